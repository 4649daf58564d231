"""`HybridModel` -> `HybridSystem`: all checks, all symbolic differentiation, compilation."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen import Kernel, NativeFunction, compile_functions
from dae_hybrid.errors import ModelError
from dae_hybrid.formulation import check_structure
from dae_hybrid.integrator import Equations
from dae_hybrid.layout import Layout
from dae_hybrid.lowering import ModeLowering, Symbols, linear_solve, symbols_for
from dae_hybrid.model import HybridModel, Transition
from dae_hybrid.system import HybridSystem, ModeSystem
from dae_hybrid.transition import InitialMap, TransitionMap

NEWTON_STEPS = 3  # from the integrator's tolerance to rounding
CLOCK = 2  # (start time, count)


def build_system(model: HybridModel, *, native: bool) -> HybridSystem:
    """See `HybridModel.build`."""
    _check_declarations(model)
    lowerings = {name: ModeLowering(model, mode) for name, mode in model.modes.items()}
    builders = [_ModeBuilder(model, lowerings[name], i) for i, name in enumerate(model.modes)]
    compiled = compile_functions(
        {f"{b.index}:{key}": f for b in builders for key, f in b.integrator_functions().items()}, native=native
    )
    index_of = {name: i for i, name in enumerate(model.transitions)}
    modes = tuple(b.system(compiled, index_of) for b in builders)
    mode_index = {name: i for i, name in enumerate(model.modes)}
    transitions = tuple(
        _transition(model, t, index_of[t.name], mode_index, lowerings, builders) for t in model.transitions.values()
    )
    parameters = model.of_kind("parameter")
    system = HybridSystem(
        name=model.name,
        parameters=Layout.of((d.name, d.size) for d in parameters),
        memory=Layout.of((d.name, d.size) for d in model.of_kind("memory")),
        functionals=Layout.of((f.name, f.size) for f in model.functionals.values()),
        nominal=np.concatenate([d.value for d in parameters if d.value is not None]) if parameters else np.zeros(0),
        modes=modes,
        transitions=transitions,
        initial=_initial(model, mode_index),
        native=all(f.address is not None for f in compiled.values()),
        frozen={d.name: None if d.of is None else d.of.name for d in model.of_kind("memory")},
        labels={d.name: f"{d.name} [{d.unit}]" if d.unit else d.name for d in model.declarations.values()},
    )
    return system


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


class _ModeBuilder:
    """The functions of one mode."""

    def __init__(self, model: HybridModel, lowering: ModeLowering, index: int) -> None:
        self.model, self.lowering, self.index = model, lowering, index
        mode = lowering.mode
        self.outgoing = [t for t in model.transitions.values() if t.source is mode]
        self.guarded = [t for t in self.outgoing if t.guard is not None]
        functionals = list(model.functionals.values())
        where = f"in mode '{mode.name}'"
        rows = [
            (f"ode of '{d.name}' {where}", mode.ode[d.name]) for d in lowering.variables if d.kind == "differential"
        ]
        rows.append((f"algebraic equations {where}", mode.algebraic))
        guards = [(f"guard of transition '{t.name}'", t.guard) for t in self.guarded]
        integrands = [(f"integrand of functional '{f.name}'", self._part(f.integrand, f.size)) for f in functionals]
        terminals = [(f"terminal value of functional '{f.name}'", self._part(f.terminal, f.size)) for f in functionals]
        self.flow = self._stack("flow", rows)
        self.guards = self._stack("guards", guards)
        self.integrands = self._stack("integrands", integrands)
        self.terminals = self._stack("terminals", terminals)
        self.ny, self.nz = lowering.differential.size, lowering.algebraic.size
        self.nm = sum(d.size for d in lowering.memory)
        self.np = sum(d.size for d in lowering.parameters)
        s = self.symbols()
        equations = self.flow(*s.point)
        check_structure(
            mode.name, lowering.algebraic.labels(), ca.jacobian(equations[self.ny :], s.x[self.ny :]).sparsity()
        )
        self._check_guards()

    @staticmethod
    def _part(expression: ca.MX | None, size: int) -> ca.MX:
        return ca.MX.zeros(size) if expression is None else expression

    def _stack(self, name: str, rows: list[tuple[str, Any]]) -> ca.Function:
        """One function (t, x, m, p) -> column, checked row by row so that errors name the equation."""
        function = self.lowering.lower(name, rows or [(name, ca.MX(0, 1))])
        s = symbols_for([function], self.lowering.n, *self._outer_sizes())
        return ca.Function(name, list(s.point), [ca.vertcat(*function.call(list(s.point)))])

    def _outer_sizes(self) -> tuple[int, int]:
        return sum(d.size for d in self.lowering.memory), sum(d.size for d in self.lowering.parameters)

    def _check_guards(self) -> None:
        for i, transition in enumerate(self.guarded):
            s = self.symbols()
            row = self.guards(*s.point)[i]
            if ca.jacobian(row, ca.vertcat(s.t, s.x)).nnz() == 0:
                raise ModelError(
                    "The guard depends on no variable and not on time: it can never cross zero.",
                    transition=transition.name,
                    mode=self.lowering.mode.name,
                    remedy="Write the guard as an expression that changes along the run; for a fixed time use at=.",
                )

    def symbols(self, suffix: str = "") -> Symbols:
        """Flat symbols that suit all functions of the mode."""
        functions = (self.flow, self.guards, self.integrands, self.terminals)
        return symbols_for(functions, self.lowering.n, *self._outer_sizes(), suffix)

    # -- derivatives ------------------------------------------------------------------------------

    def algebraic_part(self, s: Symbols) -> Any:
        """k(x, m, p, t)."""
        return self.flow(*s.point)[self.ny :]

    def _xdot(self, s: Symbols) -> Any:
        """Y' = f and z' from the differentiated algebraic equations."""
        equations = self.flow(*s.point)
        f, k = equations[: self.ny], equations[self.ny :]
        if not self.nz:
            return f
        y, z = s.x[: self.ny], s.x[self.ny :]
        right = ca.jacobian(k, y) @ f + ca.jacobian(k, s.t)
        return ca.vertcat(f, -linear_solve(ca.jacobian(k, z), right))

    def _point_function(self, name: str, outputs: Any) -> ca.Function:
        """A function of (t, x, m, p); `outputs(s)` are evaluated on symbols that its linear solves allow."""
        s = self.symbols()
        if self.nz > 4 and s.kind is ca.SX:
            s = Symbols(
                ca.MX,
                *(
                    ca.MX.sym(n, v.numel())
                    for n, v in zip(("t", "x", "xdot", "m", "p"), (s.t, s.x, s.xdot, s.m, s.p), strict=True)
                ),
            )
        return ca.Function(name, list(s.point), [ca.densify(o) for o in outputs(s)])

    def integrator_functions(self) -> dict[str, ca.Function]:
        """What the integrator calls, with inputs (t, x, x', m, p)."""
        s = self.symbols()
        inputs = [s.t, s.x, s.xdot, s.m, s.p]
        equations, g = self.flow(*s.point), self.integrands(*s.point)
        blocks = [ca.jacobian(equations, v) for v in (s.x, s.p, s.m)] + [ca.jacobian(g, v).T for v in (s.x, s.p, s.m)]
        rates = self._point_function("rates", lambda s: [self._rates(s)])
        complete = self._complete()
        named = {
            "flow": [equations, g],
            "jacobian": [ca.jacobian(equations, s.x), ca.jacobian(g, s.x).T],
            "linearised": blocks,
            "guards": [self.guards(*s.point)],
        }
        functions = {key: ca.Function(f"m{self.index}_{key}", inputs, outputs) for key, outputs in named.items()}
        for key, function in (("rates", rates), ("complete", complete)):
            w = symbols_for([function], self.lowering.n, self.nm, self.np)
            functions[key] = ca.Function(
                f"m{self.index}_{key}", [w.t, w.x, w.xdot, w.m, w.p], function.call(list(w.point))
            )
        return functions

    def _rates(self, s: Symbols) -> Any:
        h = self.guards(*s.point)
        return ca.jacobian(h, s.x) @ self._xdot(s) + ca.jacobian(h, s.t)

    def _complete(self) -> ca.Function:
        """Newton for the algebraic part and x' at the result; also the last correction."""
        xdot = self._point_function("xdot", lambda s: [self._xdot(s)])
        if not self.nz:
            s = self.symbols()
            return ca.Function("complete", list(s.point), [s.x, xdot(*s.point), ca.densify(s.kind(0, 1))])
        newton = self._point_function(
            "newton",
            lambda s: [-linear_solve(ca.jacobian(self.algebraic_part(s), s.x[self.ny :]), self.algebraic_part(s))],
        )
        t, x, m, p = (ca.MX.sym(n, v) for n, v in zip("txmp", (1, self.lowering.n, self.nm, self.np), strict=True))
        point, step = x, ca.MX.zeros(self.nz)
        for _ in range(NEWTON_STEPS):
            step = newton(t, point, m, p)
            point = point + ca.vertcat(ca.MX.zeros(self.ny), step)
        return ca.Function("complete", [t, x, m, p], [point, xdot(t, point, m, p), step])

    def kernels(self) -> dict[str, Kernel]:
        """What the core evaluates at points; see `ModeSystem`."""
        s = self.symbols()
        k, k_z = self.algebraic_part(s), ca.jacobian(self.algebraic_part(s), s.x[self.ny :])
        phi, g, equations = self.terminals(*s.point), self.integrands(*s.point), self.flow(*s.point)
        outputs = {
            "closure": ([k, k_z, term_sizes(k, s.u)], [1]),
            "closure_by_u": ([ca.jacobian(k, s.u)], [0]),
            "quadrature": ([g], []),
            "terminal": ([phi, ca.jacobian(phi, s.u)], [1]),
            "adjoint_point": ([ca.jacobian(equations, s.x), ca.jacobian(g, s.x)], [0, 1]),
            "flow_by_u": ([ca.jacobian(equations, s.u)], [0]),
        }
        found = {
            key: Kernel(ca.Function(key, list(s.point), [ca.densify(o) for o in values]), matrices)
            for key, (values, matrices) in outputs.items()
        }
        found["entry"] = Kernel(self._point_function("entry", self._entry))
        return found

    def _entry(self, s: Symbols) -> list[Any]:
        h = self.guards(*s.point)
        return [self._xdot(s), h, self._rates(s), term_sizes(h, s.u)]

    def system(self, compiled: dict[str, NativeFunction], index_of: dict[str, int]) -> ModeSystem:
        """The finished mode."""
        lowering = self.lowering
        prefix = f"{self.index}:"
        equations = Equations(
            name=lowering.mode.name,
            n=lowering.n,
            n_differential=self.ny,
            n_memory=self.nm,
            n_parameters=self.np,
            directions=tuple(t.direction for t in self.guarded),
            functions={key.removeprefix(prefix): f for key, f in compiled.items() if key.startswith(prefix)},
            variables=Layout.of((d.name, d.size) for d in lowering.variables),
            functionals=Layout.of((f.name, f.size) for f in self.model.functionals.values()),
            integrates=any(f.integrand is not None for f in self.model.functionals.values()),
        )
        return ModeSystem(
            name=lowering.mode.name,
            index=self.index,
            differential=lowering.differential,
            algebraic=lowering.algebraic,
            equations=equations,
            guarded=tuple(index_of[t.name] for t in self.guarded),
            timed=tuple(index_of[t.name] for t in self.outgoing if t.guard is None),
            guess=np.array(lowering.guess, dtype=float),
            kernels=self.kernels(),
        )


def term_sizes(values: Any, u: Any) -> Any:
    """Size of what each value is summed from, to first order: |dv/du| |u|. Rounding is a multiple of it."""
    return ca.fabs(ca.jacobian(values, u)) @ ca.fabs(u) + ca.fabs(values)


def _transition(
    model: HybridModel,
    transition: Transition,
    index: int,
    mode_index: dict[str, int],
    lowerings: dict[str, ModeLowering],
    builders: list[_ModeBuilder],
) -> TransitionMap:
    name = transition.name
    source = lowerings[transition.source.name]
    kind = "guard" if transition.guard is not None else "at" if transition.at is not None else "every"
    clock = ca.MX.sym("clock", CLOCK)
    schedule = {"guard": ca.MX(0), "at": transition.at, "every": None}[kind]
    if transition.every is not None:
        schedule = clock[0] + clock[1] * transition.every
    if kind != "guard":
        _check_parameters_only(model, f"{kind} of transition '{name}'", schedule, clock)
    guard = transition.guard if transition.guard is not None else model.time - schedule
    trigger = source.lower("trigger", [(f"trigger of transition '{name}'", guard)], [clock])
    kernels: dict[str, Kernel] = {}
    s = symbols_for([trigger], source.n, builders[0].nm, builders[0].np)
    c = s.kind.sym("clock", CLOCK)
    h = trigger(*s.point, c)
    kernels["trigger"] = Kernel(ca.Function("trigger", [*s.point, c], [h, ca.densify(ca.jacobian(h, s.u))]), [1])
    if kind != "guard":
        kernels["time"] = Kernel(_of_parameters(model, "time", [ca.densify(ca.MX(schedule))], [clock]))
    if transition.target is not None:
        target = builders[mode_index[transition.target.name]]
        kernels |= _jump_kernels(model, transition, source, target)
    return TransitionMap(
        name=name,
        index=index,
        source=mode_index[transition.source.name],
        target=None if transition.target is None else mode_index[transition.target.name],
        direction=transition.direction,
        on_entry=transition.on_entry,
        kind=kind,
        kernels=kernels,
    )


def _jump_kernels(
    model: HybridModel, transition: Transition, source: ModeLowering, target: _ModeBuilder
) -> dict[str, Kernel]:
    """`jump`, `after` and `linear` of `TransitionMap`."""
    name, declared = transition.name, model.declarations
    has = {d.name for d in source.variables}
    for key in transition.reset:
        if key not in target.lowering.differential:
            raise ModelError(
                f"The reset gives a value to '{key}', which the target mode '{target.lowering.mode.name}' does not have.",
                transition=name,
                variables=[key],
                remedy=f"States of the target: {', '.join(target.lowering.differential.names)}.",
            )
    states, starts = [], []
    for d in target.lowering.variables:
        if d.kind == "algebraic":
            starts.append((f"start of '{d.name}'", d.symbol if d.name in has else ca.MX(ca.DM(d.value))))
        elif d.name in transition.reset:
            states.append((f"reset of '{d.name}'", transition.reset[d.name]))
        elif d.name in has:
            states.append((f"value of '{d.name}'", d.symbol))
        else:
            raise ModelError(
                f"State '{d.name}' of the target mode has no value: the source mode does not have it.",
                transition=name,
                variables=[d.name],
                remedy="Give it one in reset=.",
            )
    posts = [model.posts.setdefault(d.name, ca.MX.sym(f"post({d.name})", d.size)) for d in target.lowering.variables]
    own = {d.name for d in target.lowering.variables}
    updates = []
    for d in model.of_kind("memory"):
        if d.of is not None and d.of.name in own:
            updates.append((f"memory '{d.name}'", model.posts[d.of.name]))
        else:
            updates.append((f"memory update of '{d.name}'", transition.memory.get(d.name, declared[d.name].symbol)))
    y_f = source.lower("jump_y", states)
    z_f = source.lower("jump_z", starts or [("none", ca.MX(0, 1))])
    m_f = source.lower("jump_m", updates or [("none", ca.MX(0, 1))], posts)
    s = symbols_for([y_f, z_f, m_f, target.flow], source.n, target.nm, target.np)
    after = s.kind.sym("after", target.lowering.n)
    m_after = s.kind.sym("m_after", target.nm)
    pieces = list(ca.vertsplit(after, [0, *np.cumsum([d.size for d in target.lowering.variables]).tolist()]))
    y_new, z_new = ca.vertcat(*y_f.call(list(s.point))), ca.vertcat(*z_f.call(list(s.point)))
    m_new = ca.vertcat(*m_f.call([*s.point, *pieces]))
    joint = Symbols(s.kind, s.t, after, s.xdot, m_after, s.p)
    k = target.algebraic_part(joint)
    k_u = ca.jacobian(k, joint.u)
    ny, n = target.ny, target.lowering.n
    m_z = ca.jacobian(m_new, after[ny:])
    k_z, k_m = k_u[:, ny:n], k_u[:, n : n + target.nm]
    at_new = ca.Function(
        "at_new",
        [*s.point, after, m_after],
        [k, k_z + k_m @ m_z, ca.fabs(k_z) + ca.fabs(k_m) @ ca.fabs(m_z), term_sizes(k, joint.u)],
    )
    results = at_new.call([*s.point, after, m_new])
    by_u = [ca.jacobian(y_new, s.u), ca.jacobian(m_new, s.u), ca.jacobian(m_new, after), ca.jacobian(z_new, s.u), k_u]
    t, x, m, p = s.point
    return {
        "jump": Kernel(ca.Function("jump", [t, x, m, p], [ca.densify(y_new), ca.densify(z_new)])),
        "after": Kernel(ca.Function("after", [t, x, m, after, p], [ca.densify(e) for e in (m_new, *results)]), [2, 3]),
        "linear": Kernel(ca.Function("linear", [t, x, m, after, m_after, p], [ca.densify(e) for e in by_u]), range(5)),
    }


def _check_parameters_only(model: HybridModel, what: str, expression: Any, *more: ca.MX) -> None:
    allowed = {d.symbol.__hash__() for d in model.of_kind("parameter")} | {s.__hash__() for s in more}
    wrong = [s.name() for s in ca.symvar(ca.MX(expression)) if s.__hash__() not in allowed]
    if wrong:
        raise ModelError(
            f"{what} uses {', '.join(wrong)}; it may depend on parameters only.",
            variables=wrong,
            remedy="Declare what it needs with m.parameter; for a condition on variables use guard=.",
        )


def _of_parameters(model: HybridModel, name: str, outputs: list[Any], extra: list[ca.MX]) -> ca.Function:
    """A function of (p, *extra)."""
    parameters = model.of_kind("parameter")
    named = ca.Function(name, [*(d.symbol for d in parameters), *extra], outputs)
    p = ca.MX.sym("p", sum(d.size for d in parameters))
    more = [ca.MX.sym(f"extra{i}", e.numel()) for i, e in enumerate(extra)]
    pieces = ca.vertsplit(p, [0, *np.cumsum([d.size for d in parameters]).tolist()]) if parameters else []
    return ca.Function(name, [p, *more], [ca.densify(o) for o in named.call([*pieces, *more])])


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
        _check_parameters_only(model, f"initial value of '{name}'", value)
    for d, value in zip(model.of_kind("memory"), memories, strict=True):
        _check_parameters_only(model, f"initial value of memory '{d.name}'", value)
    values = _of_parameters(
        model, "values", [ca.vertcat(*states), ca.vertcat(*memories) if memories else ca.MX(0, 1)], []
    )
    p = ca.MX.sym("p", sum(d.size for d in model.of_kind("parameter")))
    y, m = values(p)
    explicit = ca.Function("initial", [p], [ca.densify(e) for e in (y, m, ca.jacobian(y, p), ca.jacobian(m, p))])
    return InitialMap(mode_index[mode.name], Kernel(explicit, [2, 3]))
