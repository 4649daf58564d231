"""Why a segment could not go on, from what is there: undetermined variables, a solution that blows up, stiffness."""

from __future__ import annotations

import numpy as np

from dae_hybrid.errors import DaeHybridError, IntegrationError, NonFiniteError, StepLimitError, StepSizeError
from dae_hybrid.formulation import collapsed
from dae_hybrid.integrator import Array
from dae_hybrid.options import Options
from dae_hybrid.stiffness import decay_rate, is_stiff
from dae_hybrid.system import ModeSystem
from dae_hybrid.transition import Arrival

#: a variable that is so many times as large as it was, and as its tolerances are made for, blows up
GROWN = 1e4


def explain(
    error: DaeHybridError,
    mode: ModeSystem,
    p: Array,
    options: Options,
    t_stop: float,
    entered: tuple[float, Arrival],
    now: tuple[float, Arrival],
) -> None:
    """Add to an integrator's error what can be seen where it stopped."""
    if not isinstance(error, IntegrationError) or not np.all(np.isfinite(now[1].x)):
        return
    t, at = now
    if mode.algebraic.size:
        before, by_z = (mode.kernels["closure"](when, there.x, there.m, p)[1] for when, there in (entered, now))
        if collapsed(by_z, before):
            names = ", ".join(mode.algebraic.names)
            error.message += f" Near t = {t:.9g} [F_y' | F_z] becomes singular, which leaves {names} open."
    if isinstance(error, StepSizeError | NonFiniteError):
        _say_what_has_grown(error, mode, options, entered[1].x, at.x)
    elif isinstance(error, StepLimitError) and options.method == "adams":
        n = mode.equations.n
        if is_stiff(mode.equations, t, at.x[:n], at.m, p, t_stop):
            rate = decay_rate(mode.equations, t, at.x[:n], at.m, p)
            error.message += (
                f" The equations are stiff there: what decays fastest does so at {rate:.2g} per unit of time."
            )
            error.remedy = "Use method='bdf', or 'auto', which changes over by itself."


def _say_what_has_grown(error: DaeHybridError, mode: ModeSystem, options: Options, then: Array, now: Array) -> None:
    ny = mode.differential.size
    usual = np.maximum(np.abs(then[:ny]), options.absolute(mode.differential) / options.rtol)
    grown = np.abs(now[:ny]) > GROWN * usual
    if grown.any():
        labels, before, after = np.array(mode.differential.labels())[grown], then[:ny][grown], now[:ny][grown]
        sizes = ", ".join(f"{name} from {a:.3g} to {b:.3g}" for name, a, b in zip(labels, before, after, strict=True))
        error.message += f" By then the solution blows up: {sizes}."
        error.variables = error.variables or tuple(labels.tolist())
