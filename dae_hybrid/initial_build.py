"""The functions of the start of a run; see `initial`."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen import Kernel
from dae_hybrid.declarations import Initial
from dae_hybrid.elimination import by_substitution
from dae_hybrid.errors import FormulationError, ModelError
from dae_hybrid.formulation import unmatched
from dae_hybrid.initial import InitialMap
from dae_hybrid.lowering import symbols_for
from dae_hybrid.matrices import compact
from dae_hybrid.mode_build import ModeBuilder, dense_vectors
from dae_hybrid.mode_functions import entry_sizes, term_sizes
from dae_hybrid.model import HybridModel
from dae_hybrid.signals import SignalTable
from dae_hybrid.transition_build import check_parameters_only

#: unknowns that are looked for one by one at build
MOST_EXPLICIT = 8


def build_initial(
    model: HybridModel, mode_index: dict[str, int], builders: list[ModeBuilder], signals: tuple[SignalTable, ...]
) -> InitialMap:
    """The initial map of a model whose declarations have been checked."""
    initial = model.start
    if initial is None:
        raise AssertionError("no initial mode")
    index = mode_index[initial.mode.name]
    builder = builders[index]
    lowering, layout = builder.lowering, builder.lowering.differential
    _check_names(initial, builder)
    given = [name for name in layout.names if name in initial.values]
    for name in given:
        check_parameters_only(model, f"initial value of '{name}'", initial.values[name])
    entries = [i for name in given for i in range(layout[name].start, layout[name].stop)]
    lower, none = lowering.lower, [("none", ca.MX(0, 1))]
    values = lower("given", [(f"initial value of '{n}'", initial.values[n]) for n in given] or none)
    memories = lower("m0", _memories(model, builder) or none)
    stated = lower("stated", [("initial equations", initial.equations)])
    s = symbols_for([values, memories, stated, builder.flow, builder.invariants], lowering.n, builder.nm, builder.np)
    held = s.kind.sym("held", builder.nm)
    m0 = ca.vertcat(*memories.call(list(s.point))) if builder.nm else s.kind(0, 1)
    if builder.nm and ca.jacobian(m0, s.m).nnz():
        raise ModelError("The initial value of a memory uses a memory or a signal.", mode=initial.mode.name)
    if builder.nm:  # MX keeps what it does not use
        m0 = ca.vertcat(*memories.call([s.t, s.x, s.kind.zeros(builder.nm), s.p]))
    for table in signals:
        m0 = s.kind(m0)
        m0[table.memory, :] = held[table.memory, :]

    def phi(m: Any) -> Any:
        point = (s.t, s.x, m, s.p)
        closure = builder.flow(*point)[builder.ny :, :]
        return ca.vertcat(*stated.call(list(point)), builder.invariants(*point), closure)

    given_entries = set(entries)
    free = [i for i in range(lowering.n) if i not in given_entries]
    labels = _labels(initial, builder)
    rows = phi(s.m)
    _check_count(initial, builder, len(free) - rows.numel(), given)
    at = ca.Function("at", [*s.point], [rows, term_sizes(rows, s.u)])
    total = phi(m0)
    _check_rank(initial, builder, labels, free, ca.jacobian(total, s.x)[:, free].sparsity())
    inputs = [s.t, s.x, held, s.p]
    equations = [m0, total, compact(ca.jacobian(total, s.x)), at(s.t, s.x, m0, s.p)[1]]
    linear = [ca.jacobian(value, by) for value in (total, m0) for by in (s.x, held, s.p)]
    linear.append(entry_sizes(ca.jacobian(total, s.x), ca.vertcat(s.u, held)))
    given_values = ca.vertcat(*values.call([s.kind.zeros(1), s.kind.zeros(lowering.n), s.kind.zeros(builder.nm), s.p]))
    return InitialMap(
        index,
        _start(model, initial, builder, values, entries),
        Kernel(ca.Function("equations", inputs, dense_vectors(equations, [2])), [2]),
        Kernel(ca.Function("linear", inputs, [compact(v) for v in linear]), range(7)),
        tuple(free),
        labels,
        signals,
        *_explicit(s, held, m0, total, given_values if entries else s.kind(0, 1), entries, free, builder.ny),
    )


def _explicit(
    s: Any, held: Any, m0: Any, phi: Any, given: Any, entries: list[int], free: list[int], ny: int
) -> tuple[Kernel, Kernel] | tuple[None, None]:
    """(x0, m0) and their derivatives as functions of (t, held, p), where the equations give them one by one."""
    if s.kind is not ca.SX or len(free) != phi.numel() or len(free) > MOST_EXPLICIT:
        return None, None
    unknown = s.x[free, :]
    solution, _, left = by_substitution(phi, unknown)
    if left:
        return None, None
    x0 = ca.SX(s.x)
    x0[free] = solution
    x0 = ca.substitute(x0, s.x[entries, :], given)
    start = ca.substitute(m0, s.x, x0)
    inputs, values = [s.t, held, s.p], [x0, start]
    state = ca.vertcat(x0[:ny, :], start)
    linear = [compact(ca.jacobian(state, by)) for by in (held, s.p)]
    return Kernel(ca.Function("explicit", inputs, dense_vectors(values, []))), Kernel(
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
    raise FormulationError(
        f"The initial conditions cannot determine {', '.join(names)}; {loose} is left over.",
        mode=initial.mode.name,
        variables=names,
        remedy="Some of them state the same thing twice, and something else is missing.",
    )


def _variable_labels(builder: ModeBuilder) -> tuple[str, ...]:
    return (*builder.lowering.differential.labels(), *builder.lowering.algebraic.labels())


def _labels(initial: Initial, builder: ModeBuilder) -> tuple[str, ...]:
    return (
        *initial.labels,
        *builder.constraint_labels,
        *(f"equation {i} of the mode" for i in range(builder.nz - builder.nk)),
        *(f"the time derivative of {label}" for label in builder.constraint_labels),
    )


def _memories(model: HybridModel, builder: ModeBuilder) -> list[tuple[str, ca.MX]]:
    rows = []
    for d in model.of_kind("memory"):
        if d.signal is not None:
            value = ca.MX.zeros(d.size)
        elif d.initial is not None:
            value = d.initial
        elif d.of is not None and d.of.name in builder.lowering.differential:
            value = d.of.symbol
        else:
            raise ModelError(f"Memory '{d.name}' needs an initial value: the initial mode does not have its variable.")
        rows.append((f"initial value of memory '{d.name}'", value))
    return rows


def _start(
    model: HybridModel, initial: Initial, builder: ModeBuilder, values: ca.Function, entries: list[int]
) -> Kernel:
    """x0 where Newton's method starts."""
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
    return Kernel(ca.Function("start", [p], [ca.densify(start), compact(ca.jacobian(start, p))]), [1])
