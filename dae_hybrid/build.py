"""`HybridModel` -> `HybridSystem`: all checks, all symbolic differentiation, compilation."""

from __future__ import annotations

import casadi as ca
import numpy as np

from dae_hybrid.codegen import Kernel, compile_functions
from dae_hybrid.errors import ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.lowering import ModeLowering
from dae_hybrid.mode_build import ModeBuilder
from dae_hybrid.model import HybridModel
from dae_hybrid.system import HybridSystem
from dae_hybrid.transition import InitialMap
from dae_hybrid.transition_build import build_transition, check_parameters_only, of_parameters


def build_system(model: HybridModel, *, native: bool, eliminate: bool) -> HybridSystem:
    """See `HybridModel.build`."""
    _check_declarations(model)
    lowerings = {name: ModeLowering(model, mode) for name, mode in model.modes.items()}
    builders = [ModeBuilder(model, lowerings[name], i, eliminate=eliminate) for i, name in enumerate(model.modes)]
    compiled = compile_functions(
        {f"{b.index}:{key}": f for b in builders for key, f in b.integrator_functions().items()}, native=native
    )
    index_of = {name: i for i, name in enumerate(model.transitions)}
    modes = tuple(b.system(compiled, index_of) for b in builders)
    mode_index = {name: i for i, name in enumerate(model.modes)}
    transitions = tuple(
        build_transition(model, t, index_of[t.name], mode_index, lowerings, builders)
        for t in model.transitions.values()
    )
    parameters = model.of_kind("parameter")
    nominal = np.concatenate([d.start for d in parameters]) if parameters else np.zeros(0)
    nominal.flags.writeable = False
    return HybridSystem(
        name=model.name,
        parameters=Layout.of((d.name, d.size) for d in parameters),
        memory=Layout.of((d.name, d.size) for d in model.of_kind("memory")),
        functionals=Layout.of((f.name, f.size) for f in model.functionals.values()),
        nominal=nominal,
        modes=modes,
        transitions=transitions,
        initial=_initial(model, mode_index),
        native=all(f.address is not None for f in compiled.values()),
        frozen={d.name: None if d.of is None else d.of.name for d in model.of_kind("memory")},
        labels={d.name: f"{d.name} [{d.unit}]" if d.unit else d.name for d in model.declarations.values()},
    )


def _check_declarations(model: HybridModel) -> None:
    if not model.modes:
        raise ModelError(f"Model '{model.name}' has no mode.", remedy="Declare one with m.mode(name, ode={...}).")
    if model.initial_mode is None:
        raise ModelError(
            f"Model '{model.name}' has no initial mode.", remedy="Call m.initial(mode, {variable: value})."
        )
    states = {d.name: d for d in model.of_kind("differential")}
    for name in states:
        if not any(name in mode.ode for mode in model.modes.values()):
            raise ModelError(f"State '{name}' has no equation in any mode.", variables=[name])
    missing = [name for name in model.initial_mode.ode if name not in model.initial_values]
    if missing:
        raise ModelError(
            f"No initial value for {', '.join(missing)}.",
            mode=model.initial_mode.name,
            variables=missing,
            remedy="Every differential variable of the initial mode needs one in m.initial.",
        )
    extra = [name for name in model.initial_values if name not in model.initial_mode.ode]
    if extra:
        raise ModelError(
            f"Initial value for {', '.join(extra)}, which the initial mode does not have.",
            mode=model.initial_mode.name,
            variables=extra,
        )
    _check_algebraic_used(model)


def _check_algebraic_used(model: HybridModel) -> None:
    used = {
        s.__hash__() for mode in model.modes.values() for s in ca.symvar(ca.vertcat(*mode.ode.values(), mode.algebraic))
    }
    for declared in model.of_kind("algebraic"):
        if declared.symbol.__hash__() not in used:
            raise ModelError(
                f"Algebraic variable '{declared.name}' appears in no equation.",
                variables=[declared.name],
                remedy="Give the modes that have it an equation in algebraic=.",
            )


def _initial(model: HybridModel, mode_index: dict[str, int]) -> InitialMap:
    mode = model.initial_mode
    if mode is None:  # refused by _check_declarations
        raise AssertionError("no initial mode")
    memories = []
    for d in model.of_kind("memory"):
        if d.initial is not None:
            memories.append(d.initial)
        elif d.of is not None and d.of.name in mode.ode:
            memories.append(model.initial_values[d.of.name])
        else:
            raise ModelError(f"Memory '{d.name}' needs an initial value: the initial mode does not have its variable.")
    states = [model.initial_values[d.name] for d in model.of_kind("differential") if d.name in mode.ode]
    for name, value in model.initial_values.items():
        check_parameters_only(model, f"initial value of '{name}'", value)
    for d, value in zip(model.of_kind("memory"), memories, strict=True):
        check_parameters_only(model, f"initial value of memory '{d.name}'", value)
    values = of_parameters(
        model, "values", [ca.vertcat(*states), ca.vertcat(*memories) if memories else ca.MX(0, 1)], []
    )
    p = ca.MX.sym("p", sum(d.size for d in model.of_kind("parameter")))
    y, m = values(p)
    explicit = ca.Function("initial", [p], [ca.densify(e) for e in (y, m, ca.jacobian(y, p), ca.jacobian(m, p))])
    return InitialMap(mode_index[mode.name], Kernel(explicit, [2, 3]))
