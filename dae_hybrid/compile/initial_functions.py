"""Build the functions of the initial map; see `system.initial`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import dense
from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.compile.builders import Builders
from dae_hybrid.compile.elimination import by_substitution
from dae_hybrid.compile.lowering import symbols_for
from dae_hybrid.compile.mode_functions import entry_sizes, term_sizes
from dae_hybrid.compile.mode_system import ModeBuilder, dense_vectors
from dae_hybrid.compile.reset_functions import square_metric
from dae_hybrid.compile.structure import unmatched
from dae_hybrid.compile.transition_functions import check_parameters_only
from dae_hybrid.errors import FormulationError, ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.matrices import compact
from dae_hybrid.statement.declarations import Initial
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.system.initial import InitialMap
from dae_hybrid.system.signals import SignalTable

#: largest number of unknowns solved for symbolically
MAX_EXPLICIT_UNKNOWNS = 8


def build_initial(
    model: HybridModel, builders: Builders, signals: tuple[SignalTable, ...], given_memory: Sequence[str] = ()
) -> InitialMap:
    """Build the initial map of a model whose declarations have been checked.

    The values of `given_memory`, names or labels of entries, are given to the map, like those of signals.
    """
    initial = model.start
    if initial is None:
        raise AssertionError("no initial mode")
    index = builders.index[initial.mode.name]
    builder = builders.own(index)
    lowering, layout = builder.lowering, builder.lowering.differential
    _check_names(initial, builder)
    given = [name for name in layout.names if name in initial.values]
    for name in given:
        check_parameters_only(model, f"initial value of '{name}'", initial.values[name])
    entries = [i for name in given for i in range(layout[name].start, layout[name].stop)]
    moved = [i for d in initial.project for i in range(layout[d.name].start, layout[d.name].stop)]
    lower, none = lowering.lower, [("none", ca.MX(0, 1))]
    values = lower("given", [(f"initial value of '{n}'", initial.values[n]) for n in given] or none)
    memories = lower("m0", _memories(model, builder, given_memory) or none)
    memory = Layout.of((d.name, d.size) for d in model.of_kind("memory"))
    held_entries = [memory.labels().index(label) for name in given_memory for label in labels_of(memory, name)]
    stated = lower("stated", [("initial equations", initial.equations)])
    metric = lower("metric", [("metric", ca.vec(dense(ca.MX(1) if initial.metric is None else initial.metric)))])
    if initial.metric is not None:
        check_parameters_only(model, "metric of initial()", initial.metric)
    functions = [values, memories, stated, metric, builder.flow, builder.invariants]
    s = symbols_for(functions, lowering.n, builder.nm, builder.np)
    held = s.kind.sym("held", builder.nm)
    m0 = ca.vertcat(*memories.call(list(s.point))) if builder.nm else s.kind(0, 1)
    if builder.nm and ca.jacobian(m0, s.m).nnz():
        raise ModelError("The initial value of a memory uses a memory or a signal.", mode=initial.mode.name)
    if builder.nm:  # MX keeps unused inputs
        m0 = ca.vertcat(*memories.call([s.t, s.x, s.kind.zeros(builder.nm), s.p]))
    for at in (*(table.memory for table in signals), *([held_entries] if held_entries else [])):
        m0 = s.kind(m0)
        m0[at, :] = held[at, :]

    def phi(m: Any) -> Any:
        point = (s.t, s.x, m, s.p)
        closure = builder.flow(*point)[builder.ny :, :]
        return ca.vertcat(*stated.call(list(point)), builder.invariants(*point), closure)

    given_entries = set(entries) - set(moved)
    free = [i for i in range(lowering.n) if i not in given_entries]
    labels = _labels(initial, builder)
    rows, total, unknown = phi(s.m), phi(m0), s.x
    projection = None
    if moved:
        nothing = (s.kind.zeros(1), s.kind.zeros(lowering.n), s.kind.zeros(builder.nm))
        origin: Any = ca.vertcat(*values.call([*nothing, s.p]))
        places = {entry: k for k, entry in enumerate(entries)}
        offset = s.x[moved, :] - origin[[places[i] for i in moved], :]
        weight = square_metric(metric(*s.point), len(moved), s.kind)
        count = stated.numel_out(0) + builder.nk
        projection = _Projection.of(total, s, weight @ offset, moved, free, count, builder.ny)
        stationary, nu = projection.stationary, projection.nu
        rows, total, unknown = ca.vertcat(stationary, rows), ca.vertcat(stationary, total), ca.vertcat(s.x, nu)
        every = _variable_labels(builder)
        labels = (*(f"nearest value of {every[i]}" for i in projection.along), *labels)
        order = [*projection.along, *(i for i in free if i not in projection.along)]
        free = [*order, *range(lowering.n, lowering.n + nu.numel())]
    else:
        nu = s.kind(0, 1)
    _check_count(initial, builder, len(free) - rows.numel(), given)
    x = s.x if projection is None else s.kind.sym("x", unknown.numel())

    def of_unknowns(name: str, symbols: list[Any], outputs: list[Any]) -> ca.Function:
        if projection is None:
            return ca.Function(name, [s.t, s.x, *symbols], outputs)
        inner = ca.Function("inner", [s.t, s.x, nu, *symbols], outputs)
        return ca.Function(
            name, [s.t, x, *symbols], inner.call([s.t, x[: lowering.n, :], x[lowering.n :, :], *symbols])
        )

    at = of_unknowns("at", [s.m, s.p], [rows, term_sizes(rows, ca.vertcat(s.u, nu))])
    m0, total = of_unknowns("total", [held, s.p], [m0, total]).call([s.t, x, held, s.p])
    _check_rank(initial, builder, labels, free, ca.jacobian(total, x)[:, free].sparsity())
    inputs = [s.t, x, held, s.p]
    equations = [m0, total, compact(ca.jacobian(total, x)), at(s.t, x, m0, s.p)[1]]
    linear = [ca.jacobian(value, by) for value in (total, m0) for by in (x, held, s.p)]
    linear.append(entry_sizes(ca.jacobian(total, x), ca.vertcat(x, held, s.p, s.t)))  # without m, which MX keeps
    given_values = ca.vertcat(*values.call([s.kind.zeros(1), s.kind.zeros(lowering.n), s.kind.zeros(builder.nm), s.p]))
    start = _ExplicitStart(s, held, m0, total, given_values if entries else s.kind(0, 1), entries, free, builder.ny)
    explicit, exact = (None, None) if projection is not None else start() or (None, None)
    return InitialMap(
        index,
        _start(model, initial, builder, values, entries, nu.numel()),
        Kernel(ca.Function("equations", inputs, dense_vectors(equations, [2])), [2]),
        Kernel(ca.Function("linear", inputs, [compact(v) for v in linear]), range(7)),
        tuple(free),
        labels,
        signals,
        explicit=explicit,
        exact=exact,
        moved=len(moved),
        stationary=0 if projection is None else len(projection.along),
        multipliers=nu.numel(),
        bend=cache(partial(_bend, inputs, total, x)),
        given=Layout.of((name, layout[name].stop - layout[name].start) for name in given),
        entries=tuple(entries),
        held=Layout.of((name, len(labels_of(memory, name))) for name in given_memory),
        held_entries=tuple(held_entries),
        explicit_at=cache(start),
    )


def labels_of(layout: Layout, name: str) -> tuple[str, ...]:
    """Labels of a variable, or of an entry named by its label."""
    return layout.labels()[layout[name]] if name in layout else (name,)


def _bend(inputs: list[Any], total: Any, x: Any) -> Kernel:
    """Return the kernel (t, x, held, p, u, v) -> derivatives of u^T Phi_x v by x, held and p."""
    kind: Any = type(x)
    u, v = kind.sym("u", total.numel()), kind.sym("v", x.numel())
    value = u.T @ ca.jtimes(total, x, v)
    outputs = [dense(ca.jacobian(value, by)) for by in (x, inputs[2], inputs[3])]
    return Kernel(ca.Function("bend", [*inputs, u, v], outputs))


@dataclass(frozen=True)
class _Projection:
    """Stationarity of the Lagrangian 1/2 d^T M d - nu^T G by the entries `along` of x, projected ones first.

    G is the leading part of the equations, the stated ones and the constraints; it is all of them if the leading part
    contains algebraic variables.
    """

    along: tuple[int, ...]
    stationary: Any
    nu: Any

    @classmethod
    def of(
        cls, equations: Any, s: Any, pull: Any, moved: list[int], free: list[int], count: int, ny: int
    ) -> _Projection:
        by_x = ca.jacobian(equations, s.x)
        used = set(by_x[:count, :].sparsity().get_col())
        if any(i >= ny for i in used):
            count = equations.numel()
            used = set(by_x.sparsity().get_col())
        others = [i for i in free if i in used and i not in moved]
        along = (*moved, *others)
        nu = s.kind.sym("nu", count)
        kept = ca.vertcat(pull, s.kind.zeros(len(others)))
        return cls(along, kept - by_x[:count, list(along)].T @ nu, nu)


@dataclass(frozen=True)
class _ExplicitStart:
    """(x0, m0) and their derivatives as functions of (t, held, p), if the equations determine them one by one.

    When called with places, these given values become an additional input; by default they are fixed.
    """

    s: Any
    held: Any
    m0: Any
    phi: Any
    given: Any
    entries: list[int]
    free: list[int]
    ny: int

    def __call__(self, places: tuple[int, ...] = ()) -> tuple[Kernel, Kernel] | None:
        s, held, free = self.s, self.held, self.free
        if s.kind is not ca.SX or len(free) != self.phi.numel() or len(free) > MAX_EXPLICIT_UNKNOWNS:
            return None
        unknown = s.x[free, :]
        solution, _, left = by_substitution(self.phi, unknown)
        if left:
            return None
        given, values = ca.SX(self.given), ca.SX.sym("values", len(places))
        if places:
            given[list(places)] = values
        x0 = ca.SX(s.x)
        x0[free] = solution
        x0 = ca.substitute(x0, s.x[self.entries, :], given)
        start = ca.substitute(self.m0, s.x, x0)
        inputs, state = [s.t, held, s.p, *([values] if places else [])], ca.vertcat(x0[: self.ny, :], start)
        linear = [compact(ca.jacobian(state, by)) for by in (held, s.p)]
        return Kernel(ca.Function("explicit", inputs, dense_vectors([x0, start], []))), Kernel(
            ca.Function("explicit_linear", inputs, linear), range(2)
        )


def _check_names(initial: Initial, builder: ModeBuilder) -> None:
    layout, mode = builder.lowering.differential, initial.mode.name
    extra = [name for name in initial.values if name not in layout]
    if extra:
        raise ModelError(
            f"Initial value for {', '.join(extra)}, which the initial mode does not have.", mode=mode, variables=extra
        )
    known = {d.name for d in builder.lowering.variables}
    lost = [name for name in initial.guess if name not in known]
    if lost:
        raise ModelError(
            f"Guess for {', '.join(lost)}, which the initial mode does not have.", mode=mode, variables=lost
        )


def _check_count(initial: Initial, builder: ModeBuilder, short: int, given: list[str]) -> None:
    if short <= 0:
        return
    missing = [name for name in builder.lowering.differential.names if name not in given]
    raise ModelError(
        f"No initial value for {', '.join(missing)}."
        if short == sum(d.size for d in builder.lowering.variables if d.name in missing)
        else f"The initial conditions are {short} too few to determine {', '.join(missing)}.",
        mode=initial.mode.name,
        variables=missing,
        remedy="Give every differential variable of the initial mode a value in m.initial, or state equations.",
    )


def _check_rank(
    initial: Initial, builder: ModeBuilder, labels: tuple[str, ...], free: list[int], pattern: ca.Sparsity
) -> None:
    if ca.sprank(ca.DM(pattern, 1)) == len(free):
        return
    every = _variable_labels(builder)
    rows, columns = unmatched(pattern)
    names = [every[free[j]] for j in columns]
    loose = ", ".join(labels[i] for i in rows) or "nothing"
    following = [
        d.name for d in builder.lowering.memory
        if d.initial is None and d.of is not None and d.of.kind == "algebraic" and d.of.name in variables_of(names)
    ]  # fmt: skip
    raise FormulationError(
        f"The initial conditions cannot determine {', '.join(names)}; {loose} is left over.",
        mode=initial.mode.name,
        variables=names,
        remedy=f"Give memory {', '.join(following)} an initial value: it starts at that of its variable, and then the "
        "equations hold for every value."
        if following
        else "Some of them state the same thing twice, and something else is missing.",
    )


def variables_of(labels: list[str]) -> set[str]:
    """Names of the variables whose entries have these labels."""
    return {label.partition("[")[0] for label in labels}


def _variable_labels(builder: ModeBuilder) -> tuple[str, ...]:
    return (*builder.lowering.differential.labels(), *builder.lowering.algebraic.labels())


def _labels(initial: Initial, builder: ModeBuilder) -> tuple[str, ...]:
    return (
        *initial.labels,
        *builder.constraint_labels,
        *(f"equation {i} of the mode" for i in range(builder.nz - builder.nk)),
        *(f"the time derivative of {label}" for label in builder.constraint_labels),
    )


def _memories(model: HybridModel, builder: ModeBuilder, given: Sequence[str]) -> list[tuple[str, ca.MX]]:
    rows = []
    for d in model.of_kind("memory"):
        if d.signal is not None or d.name in given:
            value = ca.MX.zeros(d.size)
        elif d.initial is not None:
            value = d.initial
        elif d.of is not None and d.of.name in (
            *builder.lowering.differential.names,
            *builder.lowering.algebraic.names,
        ):
            value = d.of.symbol
        else:
            raise ModelError(f"Memory '{d.name}' needs an initial value: the initial mode does not have its variable.")
        rows.append((f"initial value of memory '{d.name}'", value))
    return rows


def _start(
    model: HybridModel,
    initial: Initial,
    builder: ModeBuilder,
    values: ca.Function,
    entries: list[int],
    multipliers: int,
) -> Kernel:
    """Return x0, the initial guess of Newton's method, followed by zeros for the multipliers of a projection."""
    lowering, rows = builder.lowering, []
    for d in lowering.variables:
        guess = initial.guess.get(d.name, ca.MX(ca.DM(np.zeros(d.size) if d.value is None else d.value)))
        check_parameters_only(model, f"guess of '{d.name}'", guess)
        rows.append((f"guess of '{d.name}'", guess))
    guesses = lowering.lower("guesses", rows)
    p = ca.MX.sym("p", builder.np)
    zeros = (ca.DM.zeros(1), ca.DM.zeros(lowering.n), ca.DM.zeros(builder.nm))
    start = ca.MX(ca.vertcat(*guesses.call([*zeros, p])))
    if entries:
        start[entries] = ca.vertcat(*values.call([*zeros, p]))
    start = ca.vertcat(start, ca.MX.zeros(multipliers))
    return Kernel(ca.Function("start", [p], [dense(start), compact(ca.jacobian(start, p))]), [1])
