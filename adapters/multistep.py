"""The multistep methods of CVODE(S) and IDA(S), as the adapters name them that only integrate."""

from __future__ import annotations

from dae_hybrid.method import AUTO, Method

BDF = Method(name="bdf", orders=(1, 5))
ADAMS = Method(name="adams", implicit=False, orders=(1, 12))
#: the first leaves the choice to the adapter
METHODS = (Method(name=AUTO, orders=BDF.orders), BDF, ADAMS)
#: those that take algebraic equations
ALGEBRAIC = (AUTO, BDF.name)
#: CVODE's Adams stays at order one where the rates of an adjoint's integrals are noisy (measured on the rocket: 30
#: times the steps)
FOR_ADJOINTS = {ADAMS.name: BDF.name}
