"""Compiled functions for the start and the end of native runs: initial, terminal and measured values, derivatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import SYMBOLIC_SOLVE, dense, expanded
from dae_hybrid.codegen.kernels import NativeFunction
from dae_hybrid.compile.builders import Builders
from dae_hybrid.compile.lowering import Flat
from dae_hybrid.compile.mode_system import ModeBuilder
from dae_hybrid.compile.native_transitions import MAX_POINT_ENTRIES, MAX_TRANSITION_OPERATIONS, first_output
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.port.native_plan import BoundaryFunctions, MeasurementFunctions
from dae_hybrid.system.initial import InitialMap
from dae_hybrid.system.measurement import Measurement
from dae_hybrid.system.transition_map import CLOCK

#: limit on the number of compiled measurement functions, over all modes
MAX_MEASUREMENT_FUNCTIONS = 32


def starts_and_ends_plainly(measurements: Sequence[Measurement], initial: InitialMap, builders: Builders) -> bool:
    """Whether the functions of starts, ends and measurements are small.

    Values of signals must not depend on the parameters, nor measurement times if there are signals.
    """
    if any(s.movable for s in initial.signals) or (initial.signals and any(m.movable for m in measurements)):
        return False
    if len(_shapes(measurements)) * len(builders.unit) > MAX_MEASUREMENT_FUNCTIONS:
        return False
    units = builders.units
    return not any(b.lowering.n + b.nm > MAX_POINT_ENTRIES or b.nk or b.nz > SYMBOLIC_SOLVE for b in units.values())


def _shapes(measurements: Sequence[Measurement]) -> list[Callable[[int], Any]]:
    """The distinct functions of the measurements."""
    return list(dict.fromkeys(measurement.of_mode for measurement in measurements))


def end_functions(
    initial: InitialMap, builders: Builders, measurements: Sequence[Measurement]
) -> dict[str, ca.Function]:
    """Return `origin`, `final<unit>` and `measured<shape>_<mode>`; see `BoundaryFunctions`.

    Empty if the functions of the measurements are too long to be worth compiling.
    """
    first = builders.units[builders.unit[initial.mode]]
    t, m, p = (ca.MX.sym(k, v) for k, v in zip("tmp", (1, first.nm, first.np), strict=True))
    named = {}
    # an equation that is solved for its variable, without a divisor that may vanish, needs no check of rank
    is_safe = first.nz <= 1 and not first.poles and not initial.signals
    if initial.explicit is not None and initial.exact is not None and is_safe:
        given = [t, ca.MX.zeros(first.nm), p]
        start = initial.explicit.function.call(given)
        by_p = initial.exact.function.call(given)[1]
        behind, whole = _numbers(first, p)
        named["origin"] = [t, _state(first), m, p, *behind], [*start, *first.entry.call([t, *start, whole]), by_p]
    for mode in builders.units.values():
        y, (behind, whole) = _state(mode), _numbers(mode, p)
        x = y if mode.explicit is None else ca.vertcat(y, first_output(mode.explicit, t, y, m, p))
        point, final = [t, x, m, whole], mode.point_function("final", partial(_final, mode))
        named[f"final{mode.index}"] = [t, y, m, p, *behind], [x, *mode.entry.call(point), *final.call(point)]
    if moving := [i for i, own in enumerate(measurements) if own.movable]:
        # those of peaks come last, at constant times: a run replaces them by any number of places
        times = (own.time for own in measurements[: moving[-1] + 1])
        rates = [ca.MX(1, first.np) if isinstance(time, float) else time.function.call([p])[1] for time in times]
        named["moves"] = [t, _state(first), m, p], [ca.vertcat(*rates).T]
    # not expanded: factors computed elsewhere must not be simplified together with these
    found = {
        key: ca.Function(f"end_{key}", inputs, [dense(v) for v in outputs]) for key, (inputs, outputs) in named.items()
    }
    for i, of_mode in enumerate(_shapes(measurements)):
        for k in range(len(builders.unit)):
            with suppress(DaeHybridError):  # the measurement has no value in this mode
                found[f"measured{i}_{k}"] = own = _measured(of_mode, builders.own(k), f"end_measured{i}_{k}")
                if own.n_instructions() > MAX_TRANSITION_OPERATIONS:
                    return {}
    return found


def _measured(of_mode: Callable[[int], Any], mode: ModeBuilder, name: str) -> ca.Function:
    """Measured value in a mode, and its derivatives by (y, m, p, t)."""
    function = of_mode(mode.index).function
    t, m, p, clock = (ca.MX.sym(k, v) for k, v in zip("tmpc", (1, mode.nm, mode.np, CLOCK), strict=True))
    y, data = _state(mode), ca.MX.sym("data", function.size1_in(4))
    x = y if mode.explicit is None else ca.vertcat(y, first_output(mode.explicit, t, y, m, p))
    value, by_u = function.call([t, x, m, p, data])
    by_w = by_u @ first_output(mode.point_function("chain", lambda s: [mode.chain(s)]), t, x, m, p)
    return expanded(ca.Function(name, [t, y, m, p, clock, data], [dense(v) for v in (value, by_w)]))


def _numbers(mode: ModeBuilder, p: ca.MX) -> tuple[list[ca.MX], ca.MX]:
    """Return the extra inputs up to the numbers of a mode, and the parameters followed by these numbers."""
    numbers = ca.MX.sym("numbers", mode.numbers)
    behind = [ca.MX.sym("clock", CLOCK), ca.MX.sym("xi", 0), numbers] if mode.numbers else []
    return behind, ca.vertcat(p, numbers) if mode.numbers else p


def _state(mode: ModeBuilder) -> ca.MX:
    """Return a symbol for the integrator's state."""
    return ca.MX.sym("x", mode.ny if mode.explicit is not None else mode.lowering.n)


def _final(mode: ModeBuilder, s: Flat) -> list[Any]:
    """Terminal values, their derivatives by u and by (y, m, p, t), the sizes of the state's terms in them and in g."""
    values, integrands, known = mode.terminals(*s.point), mode.integrands(*s.point), ca.vertcat(s.x, s.m)
    by_u = ca.jacobian(values, s.u)
    size = ca.fabs(by_u[:, : known.numel()]) @ ca.fabs(known)
    return [values, by_u, by_u @ mode.chain(s), size, ca.fabs(ca.jacobian(integrands, s.x)) @ ca.fabs(s.x)]


def ends_of(
    initial: InitialMap, functions: Mapping[str, NativeFunction], measurements: Sequence[Measurement],
    units: Sequence[int],
) -> BoundaryFunctions | None:  # fmt: skip
    """Return the compiled functions, those of each mode by its unit; None if any is not compiled."""
    if not functions or any(f.address is None for f in functions.values()):
        return None
    shapes = {shape: i for i, shape in enumerate(_shapes(measurements))}
    by_mode = {
        shape: tuple(functions.get(f"measured{i}_{mode}") for mode in range(len(units))) for shape, i in shapes.items()
    }
    measured = (
        MeasurementFunctions(by_mode[m.of_mode], np.array(m.data, dtype=float), m.components) for m in measurements
    )
    final = tuple(functions[f"final{unit}"] for unit in units)
    return BoundaryFunctions(initial.mode, functions.get("origin"), final, tuple(measured), functions.get("moves"))
