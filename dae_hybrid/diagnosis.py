"""Why a segment could not go on: the algebraic variables are not determined any more."""

from __future__ import annotations

import numpy as np

from dae_hybrid.errors import DaeHybridError, IntegrationError
from dae_hybrid.formulation import collapsed
from dae_hybrid.integrator import Array
from dae_hybrid.system import ModeSystem
from dae_hybrid.transition import Arrival


def explain(
    error: DaeHybridError, mode: ModeSystem, p: Array, entered: tuple[float, Arrival], now: tuple[float, Arrival]
) -> None:
    """Add to an integrator's error that the matrix of the algebraic variables has collapsed, where it has."""
    if not isinstance(error, IntegrationError) or not mode.algebraic.size or not np.all(np.isfinite(now[1].x)):
        return
    before, by_z = (mode.kernels["closure"](t, at.x, at.m, p)[1] for t, at in (entered, now))
    if collapsed(by_z, before):
        names = ", ".join(mode.algebraic.names)
        error.message += f" Near t = {now[0]:.9g} [F_y' | F_z] becomes singular, which leaves {names} open."
