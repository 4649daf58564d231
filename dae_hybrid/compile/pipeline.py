"""Build a `HybridSystem` from a `HybridModel`: all checks, all symbolic differentiation, compilation."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import dense
from dae_hybrid.codegen.compiler import Compilation, begin
from dae_hybrid.codegen.kernels import Kernel, NativeFunction, begin_functions, bound, compile_functions
from dae_hybrid.codegen.shapes import shapes_of
from dae_hybrid.compile.boundary_functions import end_functions, ends_of, starts_and_ends_plainly
from dae_hybrid.compile.branch_functions import branch_table
from dae_hybrid.compile.builders import Builders
from dae_hybrid.compile.initial_functions import build_initial
from dae_hybrid.compile.lowering import symbols_for
from dae_hybrid.compile.mode_system import motion_to_compile, to_compile
from dae_hybrid.compile.native_transitions import graph, point_functions
from dae_hybrid.compile.origin import Origin
from dae_hybrid.compile.peak_functions import build_peaks, templates
from dae_hybrid.compile.relations import with_relations
from dae_hybrid.compile.rewriting import rewritten
from dae_hybrid.compile.transition_functions import check_parameters_only, of_parameters
from dae_hybrid.errors import AdapterError, ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.port.integrator import HasLoops
from dae_hybrid.port.motion import with_code
from dae_hybrid.port.native_plan import TransitionGraph
from dae_hybrid.progress import StageReport
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.system.later import Later
from dae_hybrid.system.measurement import Measurement
from dae_hybrid.system.signals import SignalTable, aligned
from dae_hybrid.system.system import HybridSystem, ModeSystem

#: kind of owner -> its index -> name of the function -> function
ByOwner = dict[str, dict[int, dict[str, NativeFunction]]]


def build_system(
    model: HybridModel,
    *,
    native: bool | Literal["later"],
    eliminate: bool,
    direct: bool,
    kinks: bool,
    slides: bool,
    parts: StageReport,
) -> HybridSystem:
    """Build the system; see `HybridModel.build`."""
    _check_declarations(model)
    index2, kink = "direct" if direct else "reduced", "events" if kinks else "integrate"
    relations = "slide" if slides else "cross"
    options = {"native": native, "eliminate": eliminate, "index2": index2, "kinks": kink, "relations": relations}
    origin = Origin(model, options)
    parts.begin("equations")
    stated = rewritten(model, kinks=kinks)
    model, assumed_smooth, by_switches = with_relations(stated, kinks=kinks, slides=slides)
    builders = Builders(model, eliminate=eliminate, direct=direct)
    parts.begin("transitions")
    transitions = builders.transitions()
    parts.begin("start")
    memory = Layout.of((d.name, d.size) for d in model.of_kind("memory"))
    signals = _signals(model, memory)
    initial = build_initial(model, builders, signals)
    parts.begin("functions of the integrator")
    named = {i: b.integrator_functions() for i, b in builders.units.items()}
    wanted = {("mode", i): to_compile(own, builders.units[i]) for i, own in named.items()}
    wanted |= {("motion", i): motion_to_compile(own, builders.units[i]) for i, own in named.items()}
    functionals = Layout.of((f.name, f.size) for f in model.functionals.values())
    measurements, peaks = _measurements(model, functionals, builders), build_peaks(model, functionals, builders)
    measured = (*measurements, *templates(peaks))
    if native:
        wanted |= {("transition", kind): own for kind, own in transitions.crossings().items()}
        if starts_and_ends_plainly(measured, initial, builders):
            wanted["end", 0] = end_functions(initial, builders, measured)
        if measured or signals:
            wanted |= {("point", i): point_functions(b, turns=bool(signals)) for i, b in builders.units.items()}
    parts.begin("C text and compiler" if native is True else "functions")
    together = {(*owner, key): f for owner, own in wanted.items() for key, f in own.items()}
    compiled, note = compile_functions(together, native=native is True)
    functions = _by_owner(compiled)
    parts.begin("functions at points")
    modes = builders.modes(named, functions["mode"], functions["motion"])

    branches = branch_table(stated, model, builders, by_switches)

    def connected(modes: tuple[ModeSystem, ...], functions: ByOwner) -> TransitionGraph:
        return graph(
            modes,
            transitions.all,
            [functions["transition"].get(kind) for kind in transitions.kind],
            [functions["point"].get(unit, {}) for unit in builders.unit],
            transitions.numbers,
            transitions.slopes(),
            ends_of(initial, functions["end"][0], measured, builders.unit),
            measured,
            signals,
            branches.permits,
        )

    parameters = model.of_kind("parameter")
    nominal = np.concatenate([d.start for d in parameters]) if parameters else np.zeros(0)
    nominal.flags.writeable = False
    declared = [*model.declarations.values(), *(d for b in builders.units.values() for d in b.lowering.variables)]
    system = HybridSystem(
        name=model.name,
        parameters=Layout(
            tuple((d.name, d.size) for d in parameters),
            tuple((d.name, d.matrix.shape) for d in parameters if d.matrix is not None),
        ),
        memory=memory,
        functionals=functionals,
        nominal=nominal,
        modes=modes,
        transitions=tuple(transitions.all),
        graph=connected(modes, functions),
        initial=initial,
        signals=signals,
        measurements=measurements,
        peaks=peaks,
        compiled=all(f.address is not None for f in compiled.values()),
        note=note,
        assumed_smooth=assumed_smooth,
        branches=branches,
        frozen={d.name: None if d.of is None else d.of.name for d in model.of_kind("memory")},
        labels={d.name: f"{d.name} [{d.unit}]" if d.unit else d.name for d in model.declarations.values()},
        units={d.name: d.unit for d in declared if d.unit},
        descriptions={d.name: d.description for d in declared if d.description},
        remake=origin,
    )
    if native != "later":
        return system
    parts.begin("C text")
    library, note = begin_functions(together, apart=True)

    def finish(library: ctypes.CDLL) -> HybridSystem:
        functions = _by_owner(bound(together, library))
        own = []
        for mode, unit in zip(modes, builders.unit, strict=True):
            e, code = mode.equations, functions["motion"].get(unit, {})
            motion = None if e.motion is None else with_code(e.motion, code)
            equations = replace(e, compiled=functions["mode"][unit], motion=motion, cache={})
            own.append(replace(mode, equations=equations))
        return replace(system, modes=tuple(own), graph=connected(tuple(own), functions), compiled=True)

    later = Later(replace(system, note=note), library, begin_loops(), finish)
    return later.current() if later.is_done else replace(system, later=later)


def _by_owner(compiled: Mapping[Any, NativeFunction]) -> ByOwner:
    """Group functions by the kind of their owner, its index and their name."""
    found: ByOwner = {"mode": {}, "motion": {}, "transition": {}, "point": {}, "end": {0: {}}}
    for (kind, i, key), function in compiled.items():
        found[kind].setdefault(i, {})[key] = function
    return found


def begin_loops() -> list[Compilation]:
    """Start compiling the library of the default integrator, which does not depend on the model."""
    from dae_hybrid.interface.registry import BUILT_IN, adapter_class

    with suppress(AdapterError):
        kind = adapter_class(next(iter(BUILT_IN)))
        if isinstance(kind, HasLoops):
            return [begin(kind.loops(), apart=True)]
    return []


def _signals(model: HybridModel, memory: Layout) -> tuple[SignalTable, ...]:
    tables = []
    data = [d.signal for d in model.of_kind("memory") if d.signal is not None]
    for signal, knots in zip(data, aligned([signal.knots for signal in data]), strict=True):
        check_parameters_only(model, f"values of signal '{signal.name}'", signal.values)
        values = of_parameters(model, "values", [signal.values], [])
        p = ca.MX.sym("p", values.numel_in(0))
        column = values(p)
        by_p = Kernel(ca.Function("values_by_p", [p], [dense(ca.jacobian(column, p))]), [0])
        tables.append(SignalTable(replace(signal, knots=knots), memory[signal.name], Kernel(values), by_p))
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
    for functional in model.functionals.values():  # behind all others: branches count those by themselves
        label, components = f"measurement of functional '{functional.name}'", functionals[functional.name]
        for series in functional.series:
            own = cache(partial(_measured, builders, label, series.value, series.column))
            rows = zip(series.times.tolist(), series.data, strict=True)
            found += [Measurement(functional.name, components, time, own, data) for time, data in rows]
    return tuple(found)


def _time(model: HybridModel, what: str, when: ca.MX) -> Kernel | float:
    """A number, or a kernel p -> time and its derivative."""
    if when.is_constant():
        return float(when.to_DM())
    check_parameters_only(model, what, when)
    time = of_parameters(model, "time", [when], [])
    p = ca.MX.sym("p", time.numel_in(0))
    at = time(p)
    return Kernel(ca.Function("time", [p], [dense(v) for v in (at, ca.jacobian(at, p))]), [1])


def _measured(builders: Builders, label: str, shape: ca.MX, data: ca.MX, mode: int) -> Kernel:
    """The measured value and its derivative by u in a mode."""
    unit, lowering = builders.units[builders.unit[mode]], builders.lowering(mode)
    function = lowering.lower("measured", [(f"{label} in mode '{lowering.mode.name}'", shape)], [data])
    s = symbols_for([function], lowering.n, unit.nm, unit.np)
    numbers = s.kind.sym("data", data.numel())
    result = ca.vertcat(*function.call([*s.point, numbers]))
    outputs = [dense(v) for v in (result, ca.jacobian(result, s.u))]
    return Kernel(ca.Function("measured", [*s.point, numbers], outputs), [1])


def _check_declarations(model: HybridModel) -> None:
    if not model.modes:
        raise ModelError(f"Model '{model.name}' has no mode.", remedy="Declare one with m.mode(name, ode={...}).")
    if model.start is None:
        raise ModelError(
            f"Model '{model.name}' has no initial mode.", remedy="Call m.initial(mode, {variable: value})."
        )
    modes = [*model.modes.values(), *(shared.stated for shared in model.shared.values())]
    used = {s.__hash__() for s in ca.symvar(ca.veccat(*(e for mode in modes for e in mode.equations)))}
    of_mass = {name for mode in modes if mode.mass is not None for name in mode.mass.variables}
    for d in model.of_kind("differential"):
        rate = model.rates.get(d.name)
        if (
            d.name not in of_mass
            and not any(d.name in mode.ode for mode in modes)
            and (rate is None or rate.__hash__() not in used)
        ):
            raise ModelError(f"State '{d.name}' has no equation in any mode.", variables=[d.name])
    for d in model.of_kind("algebraic"):
        if d.symbol.__hash__() not in used:
            raise ModelError(
                f"Algebraic variable '{d.name}' appears in no equation.",
                variables=[d.name],
                remedy="Give the modes that have it an equation in algebraic=.",
            )
