"""Diagnosis of a failed segment: undetermined variables, a solution that blows up, stiffness."""

from __future__ import annotations

import numpy as np

from dae_hybrid.errors import DaeHybridError, IntegrationError, NonFiniteError, StepLimitError, StepSizeError
from dae_hybrid.method import AUTO, Method
from dae_hybrid.numerics.algebraic import COLLAPSED, collapsed
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.segment_rules import kernel
from dae_hybrid.port.stiffness import decay_rate, is_stiff
from dae_hybrid.system.system import ModeSystem

#: a variable blows up if it exceeds its start value, and atol / rtol, by this factor
GROWTH_FACTOR = 1e4
#: smallest distance along the tangent, as a share of the remaining run, and number of points checked for finite values
MIN_DISTANCE, SAMPLES = 1e-12, 60
#: largest distance if the step size has become too small: a value that is not finite there explains it
NEAR_DISTANCE = 1e-6


def explain(
    error: DaeHybridError,
    mode: ModeSystem,
    p: Array,
    options: Options,
    t_stop: float,
    entered: tuple[float, StatePoint],
    now: tuple[float, StatePoint],
) -> None:
    """Add a diagnosis of the last point to an integrator's error."""
    if not isinstance(error, IntegrationError) or not np.all(np.isfinite(now[1].x)):
        return
    t, at = now
    if mode.algebraic.size:
        before, by_z = (mode.kernels["closure"](when, there.x, there.m, p)[1] for when, there in (entered, now))
        # at a fold an error of rtol in the state becomes one of its square root in algebraic variables and their matrix
        if collapsed(by_z, before, max(COLLAPSED, options.rtol**0.5)):
            names = ", ".join(mode.algebraic.names)
            error.message += f" Near t = {t:.9g} [F_y' | F_z] becomes singular, which leaves {names} open."
    if isinstance(error, StepSizeError | NonFiniteError) and not error.variables:
        farthest = NEAR_DISTANCE if isinstance(error, StepSizeError) else 1.0
        _report_not_finite(error, mode, p, t_stop, now, farthest)
    if isinstance(error, StepSizeError | NonFiniteError):
        _report_blow_up(error, mode, options, entered[1].x, at.x)
        if isinstance(error, StepSizeError) and not error.variables:
            _report_infinite_rate(error, mode, p, options, entered, now)
    elif isinstance(error, StepLimitError) and not (options.automatic or Method.of(error.method or AUTO).implicit):
        n = mode.equations.n
        if is_stiff(mode.equations, t, at.x[:n], at.m, p, t_stop):
            rate = decay_rate(mode.equations, t, at.x[:n], at.m, p)
            error.message += (
                f" The equations are stiff there: what decays fastest does so at {rate:.2g} per unit of time."
            )
            error.remedy = "Use method='auto', which changes over by itself, or a method for stiff equations."


def _report_not_finite(
    error: DaeHybridError, mode: ModeSystem, p: Array, t_stop: float, now: tuple[float, StatePoint], farthest: float
) -> None:
    """Name the values that are not finite at the last point or along its tangent, at the integrator's trial points."""
    t, at = now
    x = at.x[: mode.equations.n]
    rate = np.zeros(x.size)
    rate[: mode.differential.size] = kernel(mode.equations, "flow")(t, x, at.m, p)[0][: mode.differential.size]
    rate[~np.isfinite(rate)] = 0.0
    for share in (0.0, *np.geomspace(MIN_DISTANCE, farthest, SAMPLES).tolist()):
        h = share * (t_stop - t)
        names, guards = mode.not_finite(t + h, x + h * rate, at.m, p)
        if guards and not names:
            error.guard, names = guards[0], ["the guard of the transition"]
        if names:
            error.message += f" Not finite {'there' if share == 0 else 'from there on'}: {', '.join(names)}."
            return


def _report_blow_up(error: DaeHybridError, mode: ModeSystem, options: Options, then: Array, now: Array) -> None:
    ny = mode.differential.size
    usual = np.maximum(np.abs(then[:ny]), options.absolute(mode.differential) / options.rtol)
    grown = np.abs(now[:ny]) > GROWTH_FACTOR * usual
    if grown.any():
        labels, before, after = np.array(mode.differential.labels())[grown], then[:ny][grown], now[:ny][grown]
        sizes = ", ".join(f"{name} from {a:.3g} to {b:.3g}" for name, a, b in zip(labels, before, after, strict=True))
        error.message += f" By then the solution blows up: {sizes}."
        error.variables = error.variables or tuple(labels.tolist())


def _report_infinite_rate(
    error: DaeHybridError,
    mode: ModeSystem,
    p: Array,
    options: Options,
    entered: tuple[float, StatePoint],
    now: tuple[float, StatePoint],
) -> None:
    """Name states whose rate has grown: next to a logarithmic pole the state itself is still small."""
    e, ny = mode.equations, mode.differential.size
    then, rates = (kernel(e, "flow")(t, at.x[: e.n], at.m, p)[0][:ny] for t, at in (entered, now))
    usual = np.maximum(np.abs(entered[1].x[:ny]), options.absolute(mode.differential) / options.rtol)
    duration = now[0] - entered[0]
    if not duration > 0:
        return
    grown = np.abs(rates) > GROWTH_FACTOR**2 * np.maximum(np.abs(then), usual / duration)
    if grown.any():
        labels, before, after = np.array(mode.differential.labels())[grown], then[grown], rates[grown]
        sizes = ", ".join(
            f"of {name} from {a:.3g} to {b:.3g}" for name, a, b in zip(labels, before, after, strict=True)
        )
        error.message += f" Near t = {now[0]:.9g} the equations become infinite: the rate {sizes}."
        error.variables = tuple(labels.tolist())
