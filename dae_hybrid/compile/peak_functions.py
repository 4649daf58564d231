"""Functions of peaks: the watched expressions with their rates, and measurements of them."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import casadi as ca

from dae_hybrid.codegen.casadi_tools import dense, jacobian
from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.compile.builders import Builders
from dae_hybrid.compile.lowering import Flat, symbols_for
from dae_hybrid.layout import Layout
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.peaks import size_of
from dae_hybrid.system.measurement import Measurement
from dae_hybrid.system.peaks import Peak, width


def build_peaks(model: HybridModel, functionals: Layout, builders: Builders) -> tuple[Peak, ...]:
    """Build the peaks of all functionals."""
    found = []
    for functional in model.functionals.values():
        for stated in functional.peaks:
            label = f"{stated.kind} of functional '{functional.name}'"
            values = cache(partial(_values, builders, label, stated.watched))
            watch = cache(partial(_watched, builders, label, stated.watched))
            measure = cache(partial(_measured, builders, label, stated.watched))
            part = functionals[functional.name]
            size, watched = size_of(stated), stated.watched.numel()
            found.append(Peak(functional.name, part.start, size, stated.kind, watched, values, watch, measure))
    return tuple(found)


def templates(peaks: tuple[Peak, ...]) -> tuple[Measurement, ...]:
    """Return a measurement for each peak, whose functions those of a run share."""
    return tuple(
        Measurement(own.functional, slice(own.first, own.first + 1), 0.0, own.measure, own.nothing) for own in peaks
    )


def _values(builders: Builders, label: str, watched: ca.MX, mode: int) -> Kernel:
    """The watched expressions in a mode."""
    lowering = builders.lowering(mode)
    return Kernel(lowering.lower("watched", [(f"{label} in mode '{lowering.mode.name}'", watched)]))


def _rates(builders: Builders, label: str, watched: ca.MX, mode: int) -> tuple[Flat, Any, Any, Any]:
    """Symbols, the watched expressions, and their first and second derivatives by time along the mode's equations."""
    builder, lowering = builders.own(mode), builders.lowering(mode)
    function = lowering.lower("watched", [(f"{label} in mode '{lowering.mode.name}'", watched)])
    s = builder.solvable(symbols_for([function, builder.flow], lowering.n, builder.nm, builder.np))
    values, xdot = ca.vertcat(*function.call([*s.point])), builder.xdot(s)

    def along(v: Any) -> Any:
        return jacobian(v, s.x) @ xdot + jacobian(v, s.t)

    rates = along(values)
    return s, values, rates, along(rates)


def _watched(builders: Builders, label: str, watched: ca.MX, mode: int) -> Kernel:
    """The watched expressions in a mode, and their first and second rates."""
    s, values, rates, second = _rates(builders, label, watched, mode)
    outputs = [dense(v) for v in (values, rates, second)]
    return Kernel(ca.Function("watched", [*s.point], outputs))


def _measured(builders: Builders, label: str, watched: ca.MX, mode: int) -> Kernel:
    """A measurement in a mode, and its derivative by u; see `dae_hybrid.system.peaks.width`."""
    s, values, rates, _ = _rates(builders, label, watched, mode)
    n = values.numel()
    data = s.kind.sym("data", width(n))
    of_values, of_rates, of_squares, constant = ca.vertsplit(data, [0, n, 2 * n, 3 * n, 3 * n + 1])
    result = ca.dot(of_values, values) + ca.dot(of_rates, rates) + ca.dot(of_squares, rates**2) + constant
    outputs = [dense(v) for v in (result, jacobian(result, s.u))]
    return Kernel(ca.Function("measured", [*s.point, data], outputs), [1])
