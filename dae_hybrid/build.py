"""`HybridModel` -> `HybridSystem`: all checks, all symbolic differentiation, compilation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.bounds import with_bounds
from dae_hybrid.branch_build import branch_table
from dae_hybrid.builders import Builders
from dae_hybrid.codegen import Kernel, NativeFunction, compile_functions
from dae_hybrid.crossing_build import network, point_functions
from dae_hybrid.ends_build import end_functions, ends_of, starts_and_ends_plainly
from dae_hybrid.errors import ModelError
from dae_hybrid.hoisting import hoisted
from dae_hybrid.initial_build import build_initial
from dae_hybrid.layout import Layout
from dae_hybrid.lowering import symbols_for
from dae_hybrid.measurement import Measurement
from dae_hybrid.mode_build import to_compile, with_numbers_apart
from dae_hybrid.model import HybridModel
from dae_hybrid.relations import with_relations
from dae_hybrid.shapes import shapes_of
from dae_hybrid.signals import SignalTable
from dae_hybrid.system import HybridSystem
from dae_hybrid.transition_build import check_parameters_only, of_parameters


def build_system(model: HybridModel, *, native: bool, eliminate: bool, direct: bool, kinks: bool) -> HybridSystem:
    """See `HybridModel.build`."""
    _check_declarations(model)
    stated = with_bounds(model)
    model, assumed_smooth = with_relations(stated, kinks=kinks)
    builders = Builders(model, eliminate=eliminate, direct=direct)
    transitions = builders.transitions()
    memory = Layout.of((d.name, d.size) for d in model.of_kind("memory"))
    signals = _signals(model, memory)
    initial = build_initial(model, builders, signals)
    named = {i: b.integrator_functions() for i, b in builders.units.items()}
    wanted = {("mode", i): with_numbers_apart(hoisted(to_compile(own)), builders.units[i]) for i, own in named.items()}
    measured = any(f.at_times for f in model.functionals.values())
    if native:
        wanted |= {("transition", kind): own for kind, own in transitions.crossings().items()}
        if starts_and_ends_plainly(model, initial, builders):
            wanted["end", 0] = end_functions(initial, builders)
        if measured or signals:
            wanted |= {("point", i): point_functions(b, turns=bool(signals)) for i, b in builders.units.items()}
    compiled, note = compile_functions(
        {(*owner, key): f for owner, own in wanted.items() for key, f in own.items()}, native=native
    )
    functions: dict[str, dict[int, dict[str, NativeFunction]]] = {
        "mode": {}, "transition": {}, "point": {}, "end": {0: {}},
    }  # fmt: skip
    for (kind, i, key), function in compiled.items():
        functions[kind].setdefault(i, {})[key] = function
    modes = builders.modes(named, functions["mode"])
    parameters = model.of_kind("parameter")
    nominal = np.concatenate([d.start for d in parameters]) if parameters else np.zeros(0)
    nominal.flags.writeable = False
    functionals = Layout.of((f.name, f.size) for f in model.functionals.values())
    return HybridSystem(
        name=model.name,
        parameters=Layout.of((d.name, d.size) for d in parameters),
        memory=memory,
        functionals=functionals,
        nominal=nominal,
        modes=modes,
        transitions=tuple(transitions.all),
        network=network(
            modes,
            transitions.all,
            [functions["transition"].get(kind) for kind in transitions.kind],
            [functions["point"].get(unit, {}) for unit in builders.unit],
            transitions.numbers,
            transitions.slopes(),
            ends_of(initial, functions["end"][0], builders.unit),
            measured=measured,
            signals=signals,
        ),
        initial=initial,
        signals=signals,
        measurements=_measurements(model, functionals, builders),
        native=all(f.address is not None for f in compiled.values()),
        note=note,
        assumed_smooth=assumed_smooth,
        branches=branch_table(stated, model, builders),
        frozen={d.name: None if d.of is None else d.of.name for d in model.of_kind("memory")},
        labels={d.name: f"{d.name} [{d.unit}]" if d.unit else d.name for d in model.declarations.values()},
    )


def _signals(model: HybridModel, memory: Layout) -> tuple[SignalTable, ...]:
    tables = []
    for d in model.of_kind("memory"):
        if d.signal is None:
            continue
        check_parameters_only(model, f"values of signal '{d.name}'", d.signal.values)
        values = of_parameters(model, "values", [d.signal.values], [])
        p = ca.MX.sym("p", values.numel_in(0))
        column = values(p)
        by_p = Kernel(ca.Function("values_by_p", [p], [ca.densify(ca.jacobian(column, p))]), [0])
        tables.append(SignalTable(d.signal, memory[d.name], Kernel(values), by_p))
    return tuple(tables)


def _measurements(model: HybridModel, functionals: Layout, builders: Builders) -> tuple[Measurement, ...]:
    found = []
    for functional in model.functionals.values():
        label, what = (f"measurement{time} of functional '{functional.name}'" for time in ("", " time"))
        of_mode: dict[Any, Callable[[int], Kernel]] = {}
        stated = shapes_of([value for _, value in functional.at_times])
        for (when, _), (shape, numbers) in zip(functional.at_times, stated, strict=True):
            if shape.key not in of_mode:
                of_mode[shape.key] = cache(partial(_measured, builders, label, shape.expression, shape.column))
            time, components = _time(model, what, when), functionals[functional.name]
            found.append(Measurement(functional.name, components, time, of_mode[shape.key], numbers))
    return tuple(found)


def _time(model: HybridModel, what: str, when: ca.MX) -> Kernel | float:
    """A number, or a time and its derivative as a function of p."""
    if when.is_constant():
        return float(when.to_DM())
    check_parameters_only(model, what, when)
    time = of_parameters(model, "time", [when], [])
    p = ca.MX.sym("p", time.numel_in(0))
    at = time(p)
    return Kernel(ca.Function("time", [p], [ca.densify(v) for v in (at, ca.jacobian(at, p))]), [1])


def _measured(builders: Builders, label: str, shape: ca.MX, data: ca.MX, mode: int) -> Kernel:
    """The measured value and its derivative by u in a mode."""
    unit, lowering = builders.units[builders.unit[mode]], builders.lowering(mode)
    function = lowering.lower("measured", [(f"{label} in mode '{lowering.mode.name}'", shape)], [data])
    s = symbols_for([function], lowering.n, unit.nm, unit.np)
    numbers = s.kind.sym("data", data.numel())
    result = ca.vertcat(*function.call([*s.point, numbers]))
    outputs = [ca.densify(v) for v in (result, ca.jacobian(result, s.u))]
    return Kernel(ca.Function("measured", [*s.point, numbers], outputs), [1])


def _check_declarations(model: HybridModel) -> None:
    if not model.modes:
        raise ModelError(f"Model '{model.name}' has no mode.", remedy="Declare one with m.mode(name, ode={...}).")
    if model.start is None:
        raise ModelError(
            f"Model '{model.name}' has no initial mode.", remedy="Call m.initial(mode, {variable: value})."
        )
    used = {s.__hash__() for mode in model.modes.values() for s in ca.symvar(mode.everything)}
    for d in model.of_kind("differential"):
        rate = model.rates.get(d.name)
        if not any(d.name in mode.ode for mode in model.modes.values()) and (
            rate is None or rate.__hash__() not in used
        ):
            raise ModelError(f"State '{d.name}' has no equation in any mode.", variables=[d.name])
    for d in model.of_kind("algebraic"):
        if d.symbol.__hash__() not in used:
            raise ModelError(
                f"Algebraic variable '{d.name}' appears in no equation.",
                variables=[d.name],
                remedy="Give the modes that have it an equation in algebraic=.",
            )
