"""Multistep methods of CVODE(S) and IDA(S), for adapters without sensitivity analysis."""

from __future__ import annotations

from dae_hybrid.method import AUTO, Method

BDF = Method(name="bdf", orders=(1, 5))
ADAMS = Method(name="adams", implicit=False, orders=(1, 12))
#: "auto" leaves the choice to the adapter
METHODS = (Method(name=AUTO, orders=BDF.orders), BDF, ADAMS)
#: methods that support algebraic equations
ALGEBRAIC = (AUTO, BDF.name)
#: CVODE's Adams method stays at order one if the rates of an adjoint's integrals are noisy (measured on the rocket: 30
#: times the steps)
FOR_ADJOINTS = {ADAMS.name: BDF.name}
