"""Compiled functions for native crossings: transitions and their derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import casadi as ca

from dae_hybrid.codegen.casadi_tools import SYMBOLIC_SOLVE, dense, expanded, jacobian
from dae_hybrid.codegen.copies import in_blocks
from dae_hybrid.codegen.kernels import NativeFunction, densified
from dae_hybrid.compile.families import apart
from dae_hybrid.compile.lowering import Flat
from dae_hybrid.compile.mode_system import ModeBuilder
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import BoundaryFunctions, NativeTransition, TransitionGraph
from dae_hybrid.system.measurement import Measurement
from dae_hybrid.system.signals import SignalTable, entries
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import CLOCK, TransitionMap

#: most unknowns of a transition, whose matrix is dense. Modes with more states and memory entries have no native starts
#: and ends of runs and, with many algebraic variables, no native points without a transition
MAX_POINT_ENTRIES = 40
#: longest functions of a transition with unknowns, in operations; longer ones compile for more than half a second
MAX_TRANSITION_OPERATIONS = 5000
#: above this number of guards of both modes, transitions call the modes' functions instead of inlining them
CALLED = 16
#: above this number of operations of both modes, transitions do so with few guards, too
LONG = 2000


def native_eligible(transition: TransitionMap, source: ModeBuilder, target: ModeBuilder | None) -> bool:
    """Whether the point after a transition is explicit, or given by a square system of equations."""
    if target is None or transition.projects or transition.conditions:
        return False
    if transition.trigger.is_timed and "priority" in transition.kernels:
        return False
    ends = source, target
    small = all(b.nz <= SYMBOLIC_SOLVE and not (b.direct and b.nk) for b in ends)
    unknowns = len(transition.labels)
    square = transition.kernels["after"].function.size1_out(2) == unknowns <= MAX_POINT_ENTRIES
    return small and square


def _point(mode: ModeBuilder) -> tuple[list[ca.MX], ca.MX]:
    """Symbols (t, x, m, p) with the integrator's x, and (y, z)."""
    n = mode.ny if mode.explicit is not None else mode.lowering.n
    given = [ca.MX.sym(key, size) for key, size in zip("tymp", (1, n, mode.nm, mode.np + mode.numbers), strict=True)]
    y = given[1]
    return given, y if mode.explicit is None else ca.vertcat(y, first_output(mode.explicit, *given))


def point_functions(mode: ModeBuilder, *, turns: bool) -> dict[str, ca.Function]:
    """Return `cross` of a point without a transition, and `solve` for knots; empty if Python handles both."""
    many = mode.explicit is None and mode.nz > SYMBOLIC_SOLVE and mode.lowering.n + mode.nm > MAX_POINT_ENTRIES
    if mode.nk or mode.poles or many:
        return {}
    (t, y, m, p), x = _point(mode)
    outputs = {"cross": [x, *mode.entry.call([t, x, m, p])]}
    clock, z = ca.MX.sym("clock", CLOCK), ca.MX.sym("z", mode.nz)
    if turns and mode.explicit is None and 0 < mode.nz <= SYMBOLIC_SOLVE:
        k, by_z, size = mode.closure.call([t, ca.vertcat(y[: mode.ny], z), m, p])
        outputs["solve"] = [k, by_z, ca.fabs(by_z), size]
    found = {
        key: _in_elements(ca.Function(f"m{mode.index}_{key}", [t, y, m, p, clock, z], [dense(v) for v in values]), mode)
        for key, values in outputs.items()
    }
    return _with_numbers_apart(found, mode)


def _in_elements(function: ca.Function, *modes: ModeBuilder) -> ca.Function:
    """Expand the function to SX, unless the equations of a mode stay vector operations."""
    return function if any(mode.lowering.vectorised for mode in modes) else expanded(function)


def has_slopes(transition: TransitionMap) -> bool:
    """Whether anything after a transition, other than algebraic variables, depends on solved unknowns."""
    cost = transition.kernels.get("cost")
    charged = cost is not None and cost.function.jac_sparsity(0, 3).nnz() > 0
    return not transition.simple or charged or transition.kernels["after"].function.jac_sparsity(1, 3).nnz() > 0


def solves(transition: TransitionMap, target: ModeBuilder) -> bool:
    """Whether a transition solves equations; explicit algebraic variables do not count."""
    return bool(transition.labels) and (target.explicit is None or has_slopes(transition))


def crossing_functions(
    transition: TransitionMap, source: ModeBuilder, target: ModeBuilder | None
) -> dict[str, ca.Function]:
    """Return the functions of a native transition; see `NativeTransition`.

    Empty if they are too long to be worth compiling.
    """
    if target is None:
        raise AssertionError("a plain transition has a target")
    kernels = transition.kernels
    (t, y, m, p), x = _point(source)
    xi, clock = ca.MX.sym("xi", len(transition.labels)), ca.MX.sym("clock", CLOCK)
    is_long = sum(f.n_instructions() for f in (source.entry, target.entry) if f.is_a("SXFunction")) > LONG
    called = is_long or len(source.guarded) + len(target.guarded) > CALLED
    outputs: dict[str, list[ca.MX]] = {}
    if solves(transition, target):
        x_after, m_after = densified(kernels["after"].function, 2).call([t, x, m, xi, p])
        equations = kernels["after"].function.call([t, x, m, xi, p])[2:]
        first, _, _, start = kernels["jump"].function.call([t, x, m, p])[2:6]
        outputs = {"begin": [first, start], "solve": equations}
    else:
        jump = densified(kernels["jump"].function, 2)
        x_after, m_after = (in_blocks(jump) if called else jump).call([t, x, m, p])
        if target.explicit is not None:
            y_after = x_after[: target.ny]
            x_after = ca.vertcat(y_after, first_output(target.explicit, t, y_after, m_after, p))
    moved = ca.MX(0, 1)
    if target.nk:
        state = x_after[: target.ny] if target.explicit is not None else x_after
        landed = first_output(target.landing, t, state, m_after, p)
        moved, x_after = ca.fabs(landed[: target.ny] - x_after[: target.ny]), landed
    point = [x, x_after, m_after, _open(target, t, x_after, m_after, p), moved]
    slopes = kernels["slopes"].function
    derivatives = (in_blocks(slopes, sparse=[1]) if called else slopes).call([t, x, m, x_after, m_after, p, clock])
    for mode, at in ((source, [t, x, m, p]), (target, [t, x_after, m_after, p])):
        rates = first_output(mode.entry if is_long else mode.flow, *at)[: mode.ny]
        derivatives += [ca.vertcat(rates, ca.MX.zeros(mode.nm)), first_output(mode.integrands, *at)]
    after_slopes = _constraint_slopes(target, t, x_after, m_after, p)
    others = [i for i in range(target.nk) if i not in transition.helping]
    split = target.ny + target.nm
    derivatives += [after_slopes[others, :split], after_slopes[others, split:]]
    direction = source.point_function("direction", lambda s: [source.direction(s)]) if source.nk else None
    derivatives.append(ca.MX(0, 0) if direction is None else direction(t, x, m, p))
    derivatives.append(_constraint_slopes(source, t, x, m, p)[:, :-1])
    s = source.solvable(source.symbols())
    by_w = first_output(ca.Function("chain", list(s.point), [source.chain(s)]), t, x, m, p)
    if has_slopes(transition):
        y_u, y_xi, m_u, m_xi, phi_u, _, _, z_u, entries = kernels["linear"].function.call([t, x, m, xi, p])
        derivatives[1] = ca.vertcat(y_u, m_u) @ by_w
        own = z_u @ by_w if transition.simple else entries
        derivatives += [phi_u @ by_w, ca.vertcat(y_xi, m_xi), own]
    outputs["tangent"] = [value if i == 1 else dense(value) for i, value in enumerate(derivatives)]
    if "cost" in kernels:
        costs, by_u, costs_by_xi = kernels["cost"].function.call([t, x, m, xi, p])
        outputs["cost"] = [costs, by_u @ by_w, *([costs_by_xi] if has_slopes(transition) else [])]
    if "when" in kernels:
        outputs["permit"] = kernels["when"].function.call([t, x, m, p])
    if "sides" in kernels:
        margins, by_u = kernels["sides"].function.call([t, x, m, p])
        outputs["sides"] = [margins, by_u[:, : by_u.size2() - source.numbers]]
    inputs = [t, y, m, p, clock, xi]
    if called:
        point = in_blocks(_in_elements(ca.Function("point", inputs, point), source, target)).call(inputs)
    x, x_after, m_after, *more = point
    before, after = source.entry.call([t, x, m, p]), target.entry.call([t, x_after, m_after, p])
    outputs["cross"] = [x, *before, x_after, m_after, *after, *more]
    found: dict[str, ca.Function] = {}
    for key, values in outputs.items():
        values = values if key == "tangent" else [dense(v) for v in values]
        function = ca.Function(f"t{transition.index}_{key}", inputs, values)
        whole = called and key in ("cross", "tangent")
        found[key] = function if whole else _in_elements(function, source, target)
    found["tangent"] = _with_sparse_jump(found["tangent"], transition, target)
    short = "solve" not in found or sum(f.n_instructions() for f in found.values()) <= MAX_TRANSITION_OPERATIONS
    return _with_numbers_apart(found, source) if short else {}


def _with_sparse_jump(tangent: ca.Function, transition: TransitionMap, target: ModeBuilder) -> ca.Function:
    """Drop the zeros of w after by (w, p, t), except in rows that depend on solved unknowns."""
    kind: Any = ca.SX if tangent.is_a("SXFunction") else ca.MX
    inputs = [kind.sym(tangent.name_in(i), tangent.size1_in(i)) for i in range(tangent.n_in())]
    outputs = tangent.call(inputs)
    jump = ca.sparsify(outputs[1]) if kind is ca.SX else outputs[1]
    if has_slopes(transition):
        after = transition.kernels["after"].function
        rows = {row for row in after.jac_sparsity(0, 3).row() if row < target.ny}
        rows |= {target.ny + row for row in after.jac_sparsity(1, 3).row()}
        full = ca.Sparsity.rowcol(sorted(rows), list(range(jump.size2())), *jump.shape)
        jump = ca.project(jump, jump.sparsity() + full)
    outputs[1] = jump
    return ca.Function(tangent.name(), inputs, outputs)


def _with_numbers_apart(functions: dict[str, ca.Function], mode: ModeBuilder) -> dict[str, ca.Function]:
    """Return the functions with the numbers of a family as a separate last input."""
    if not mode.numbers:
        return functions
    return {key: apart(function, 3, mode.numbers, 6) for key, function in functions.items()}


def _open(mode: ModeBuilder, t: ca.MX, x: ca.MX, m: ca.MX, p: ca.MX) -> ca.MX:
    """Derivative of the algebraic variables by y, followed by k_z, if k_z may become singular.

    The former is checked by `refuse_singular_entry`, the latter for its rank.
    """
    if not mode.nz or not (mode.explicit is None or mode.poles):
        return ca.MX(0, 0)
    rows = slice(mode.ny, mode.lowering.n)

    def of(s: Flat) -> list[Any]:
        return [ca.horzcat(mode.chain(s)[rows, : mode.ny], jacobian(mode.algebraic_part(s), s.x)[:, mode.ny :])]

    return first_output(mode.point_function("open", of), t, x, m, p)


def _constraint_slopes(mode: ModeBuilder, t: ca.MX, x: ca.MX, m: ca.MX, p: ca.MX) -> ca.MX:
    """Derivatives of a mode's constraints by (y, m, p, t)."""
    n = mode.lowering.n

    def slopes(s: Flat) -> list[Any]:
        by_u = ca.jacobian(mode.invariant_part(s), s.u)
        return [ca.horzcat(by_u[:, : mode.ny], by_u[:, n:])]

    return first_output(mode.point_function("constraint_slopes", slopes), t, x, m, p)


def first_output(function: ca.Function, *arguments: ca.MX) -> ca.MX:
    """Call a function and return its first output."""
    found: ca.MX = function.call(list(arguments))[0]
    return found


def graph(
    modes: Sequence[ModeSystem],
    transitions: Sequence[TransitionMap],
    functions: Sequence[Mapping[str, NativeFunction] | None],
    points: Sequence[Mapping[str, NativeFunction]],
    numbers: Sequence[Array],
    slopes: Sequence[bool],
    ends: BoundaryFunctions | None,
    measurements: Sequence[Measurement],
    signals: Sequence[SignalTable],
    permits: Set[int],
) -> TransitionGraph:
    """Assemble the modes' equations, the native transitions, and the functions for the start and the end of runs.

    `functions` are those of the transitions, with their `numbers` and whether they have `slopes`; `points` are the
    functions of points without a transition, needed for measurements and knots. `permits` are the transitions that have
    `sides`.
    """

    def link(index: int) -> NativeTransition | None:
        own, transition = functions[index], transitions[index]
        if own is None or transition.target is None or any(f.address is None for f in own.values()):
            return None
        return NativeTransition(
            target=transition.target,
            unknowns=len(transition.labels) if "solve" in own else 0,
            simple=transition.simple,
            slopes=slopes[index],
            others=len(modes[transition.target].invariants) - len(transition.helping),
            numbers=numbers[index],
            **{key: f for key, f in own.items() if key != "sides" or index in permits},
        )

    def stays(index: int, *, turns: bool) -> NativeTransition | None:
        own, closes = points[index], turns and modes[index].equations.implicit
        if not own or any(f.address is None for f in own.values()) or (closes and "solve" not in own):
            return None
        own_numbers = modes[index].equations.numbers
        if not closes:
            return NativeTransition(own["cross"], None, index, numbers=own_numbers)
        solve = own["solve"]
        return NativeTransition(
            own["cross"], None, index, solve=solve, unknowns=solve.function.size1_out(0), numbers=own_numbers
        )

    return TransitionGraph(
        equations=tuple(mode.equations for mode in modes),
        guarded=tuple(mode.guarded for mode in modes),
        timed=tuple(mode.timed for mode in modes),
        untaken=tuple(mode.untaken for mode in modes),
        triggers=tuple(t.trigger_index for t in transitions),
        shared=_shared(transitions),
        clocks=_clocks(transitions),
        directions=tuple(t.direction for t in transitions),
        waits=tuple(t.on_entry == "wait" for t in transitions),
        toggles=tuple(t.relation is not None for t in transitions),
        jumps=tuple(t.jumps for t in transitions),
        keeps=tuple(t.keeps for t in transitions),
        becomes=tuple(t.becomes for t in transitions),
        fixed=tuple(t.trigger.is_timed and not t.movable for t in transitions),
        sizes=tuple(mode.variables.size for mode in modes),
        constraints=tuple(len(mode.invariants) for mode in modes),
        links=tuple(
            (
                *map(link, (*mode.guarded, *mode.timed, *mode.untaken)),
                stays(index, turns=False) if measurements else None,
                stays(index, turns=True) if signals else None,
            )
            for index, mode in enumerate(modes)
        ),
        entries=entries(signals),
        shifted=any(measurement.movable for measurement in measurements),
        ends=ends,
    )


def _shared(transitions: Sequence[TransitionMap]) -> tuple[int, ...]:
    """Number the statements that transitions from several modes share, in order; -1 for other transitions."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(t.shared, len(numbers)) if t.shared else -1 for t in transitions)


def _clocks(transitions: Sequence[TransitionMap]) -> tuple[int, ...]:
    """Number the clocks: transitions that tick together share one, other timed transitions have their own."""
    numbers: dict[str | int, int] = {}
    keys = [t.clock or t.key if t.trigger.is_timed else None for t in transitions]
    return tuple(-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys)
