"""Adapter of the index-3 augmented Lagrangian scheme with projections (ALI3-P), for equations of motion.

`scheme` takes one step; `session` locates events, writes outputs, and differentiates the steps forwards and backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dae_hybrid.adapters.ali3p.session import METHODS, Ali3pSession
from dae_hybrid.method import AUTO
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Capabilities


class Ali3pIntegrator:
    """The scheme of Lopez Varela, Dopico and Luaces (2023), eq. 9 to 11, with discrete sensitivities and adjoints.

    Methods are ``"trapezoidal"`` (also ``"auto"``), ``"newmark"`` and ``"generalized-alpha"``. ``fixed_step=`` takes
    steps of a fixed length.
    """

    name = "ali3p"
    capabilities: ClassVar[Capabilities] = Capabilities(
        methods=(AUTO, *METHODS.values()),
        roots=True,
        algebraic=(AUTO, *METHODS),
        dense=True,
        forward=True,
        adjoint=True,
        motion=True,
        exact_times=True,
        fixed_steps=True,
    )

    def open(
        self,
        options: Options,
        parameters: Array,
        *,
        parameter_directions: Array | None = None,
        scales: Array | None = None,
        wrt: Sequence[int] = (),
    ) -> Ali3pSession:
        """See `dae_hybrid.port.integrator.Integrator.open`."""
        del scales  # derivatives of steps have no tolerances
        return Ali3pSession(options, parameters, parameter_directions, tuple(wrt))
