"""Crossings that an integrator may carry out by itself: transitions and their derivatives as compiled functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import casadi as ca

from dae_hybrid.codegen import NativeFunction
from dae_hybrid.journey import Ends, Link, Network
from dae_hybrid.mode_build import ModeBuilder
from dae_hybrid.signals import SignalTable, entries
from dae_hybrid.symbolic import SYMBOLIC_SOLVE, expanded
from dae_hybrid.system import ModeSystem
from dae_hybrid.transition import CLOCK, TransitionMap

#: beyond so many states and memories it is the integration of a segment that takes the time, not the transition
LARGEST = 40
#: the same where nothing happens, of modes that are integrated as explicit equations
LARGEST_POINT = 1000


def is_plain(transition: TransitionMap, builders: Sequence[ModeBuilder]) -> bool:
    """Whether the point after a transition is given explicitly, or is where it was."""
    if transition.target is None or not transition.simple:
        return False
    ends = builders[transition.source], builders[transition.target]
    small = all(not b.nk and b.lowering.n + b.nm <= LARGEST and b.nz <= SYMBOLIC_SOLVE for b in ends)
    charged = "cost" in transition.kernels and transition.kernels["cost"].function.jac_sparsity(0, 3).nnz()
    return small and not ends[1].poles and not charged


def _point(mode: ModeBuilder) -> tuple[list[ca.MX], ca.MX]:
    """Symbols (t, x, m, p) with the integrator's x, and (y, z)."""
    n = mode.ny if mode.explicit is not None else mode.lowering.n
    given = [ca.MX.sym(key, size) for key, size in zip("tymp", (1, n, mode.nm, mode.np), strict=True)]
    y = given[1]
    return given, y if mode.explicit is None else ca.vertcat(y, first_output(mode.explicit, *given))


def point_functions(mode: ModeBuilder, *, turns: bool) -> dict[str, ca.Function]:
    """`cross` of a mode where nothing happens, and `closure` for knots; none where it is too large, or of index 2."""
    largest = LARGEST if mode.nz and mode.explicit is None else LARGEST_POINT
    if mode.nk or mode.poles or mode.lowering.n + mode.nm > largest:
        return {}
    (t, y, m, p), x = _point(mode)
    outputs = {"cross": [x, *mode.entry.call([t, x, m, p])]}
    if turns and mode.explicit is None and 0 < mode.nz <= SYMBOLIC_SOLVE:
        outputs["closure"] = mode.closure.call([t, x, m, p])
    clock = ca.MX.sym("clock", CLOCK)
    return {
        key: expanded(ca.Function(f"m{mode.index}_{key}", [t, y, m, p, clock], [ca.densify(v) for v in values]))
        for key, values in outputs.items()
    }


def follows_z(transition: TransitionMap) -> bool:
    """Whether the memory after a transition depends on the algebraic variables after it."""
    return bool(transition.kernels["after"].function.jac_sparsity(1, 3).nnz())


def crossing_functions(transition: TransitionMap, builders: Sequence[ModeBuilder]) -> dict[str, ca.Function]:
    """`cross`, `tangent` and, where it costs anything, `cost` of a plain transition; see `Link`."""
    if transition.target is None:
        raise AssertionError("a plain transition has a target")
    source, target = builders[transition.source], builders[transition.target]
    (t, y, m, p), x = _point(source)
    x_after, m_after, _, phi, phi_size, _, *entry = transition.kernels["jump"].function.call([t, x, m, p])
    if target.explicit is not None and not follows_z(transition):
        y_after = x_after[: target.ny]
        x_after = ca.vertcat(y_after, first_output(target.explicit, t, y_after, m_after, p))
        entry = target.entry.call([t, x_after, m_after, p])
    before = source.entry.call([t, x, m, p])
    tangent = transition.kernels["tangent"].function
    clock = ca.MX.sym("clock", tangent.size1_in(6))
    outputs = {
        "cross": [x, *before, x_after, m_after, *entry, phi, phi_size, _open(target, t, x_after, m_after, p)],
        "tangent": tangent.call([t, x, m, x_after, m_after, p, clock]),
    }
    if "cost" in transition.kernels:
        kernel = transition.kernels["cost"].function
        costs, by_u, _ = kernel.call([t, x, m, ca.MX.zeros(kernel.size1_in(3)), p])
        chain = source.point_function("chain", lambda s: [source.chain(s)])
        outputs["cost"] = [costs, by_u @ first_output(chain, t, x, m, p)]
    return {
        key: expanded(ca.Function(f"t{transition.index}_{key}", [t, y, m, p, clock], [ca.densify(v) for v in values]))
        for key, values in outputs.items()
    }


def _open(mode: ModeBuilder, t: ca.MX, x: ca.MX, m: ca.MX, p: ca.MX) -> ca.MX:
    """How the algebraic variables of implicit equations depend on y: what `refuse_singular_entry` looks at."""
    if not mode.nz or mode.explicit is not None:
        return ca.MX(0, 0)
    rows = slice(mode.ny, mode.lowering.n)
    return first_output(mode.point_function("open", lambda s: [mode.chain(s)[rows, : mode.ny]]), t, x, m, p)


def first_output(function: ca.Function, *arguments: ca.MX) -> ca.MX:
    """The first output."""
    found: ca.MX = function.call(list(arguments))[0]
    return found


def network(
    modes: Sequence[ModeSystem],
    transitions: Sequence[TransitionMap],
    functions: Mapping[int, Mapping[str, NativeFunction]],
    points: Mapping[int, Mapping[str, NativeFunction]],
    ends: Ends | None,
    *,
    measured: bool,
    signals: Sequence[SignalTable],
) -> Network:
    """The modes' equations, what leads from one to the other, and where runs start and end.

    `points` are the functions of modes where nothing happens; measurements need them, and knots.
    """

    def link(index: int) -> Link | None:
        own, transition = functions.get(index), transitions[index]
        if own is None or transition.target is None or any(f.address is None for f in own.values()):
            return None
        return Link(
            target=transition.target,
            follows_z=follows_z(transition),
            closes=follows_z(transition) or modes[transition.target].equations.implicit,
            **own,
        )

    def stays(index: int, *, turns: bool) -> Link | None:
        own, solves = points.get(index, {}), turns and modes[index].equations.implicit
        if not own or any(f.address is None for f in own.values()) or (solves and "closure" not in own):
            return None
        closure = own["closure"] if solves else None
        return Link(own["cross"], None, index, closes=False, follows_z=False, closure=closure)

    return Network(
        equations=tuple(mode.equations for mode in modes),
        guarded=tuple(mode.guarded for mode in modes),
        timed=tuple(mode.timed for mode in modes),
        clocks=_clocks(transitions),
        directions=tuple(t.direction for t in transitions),
        waits=tuple(t.on_entry == "wait" for t in transitions),
        toggles=tuple(t.relation is not None for t in transitions),
        becomes=tuple(t.becomes for t in transitions),
        keeps=tuple(t.keeps for t in transitions),
        sizes=tuple(mode.variables.size for mode in modes),
        links=tuple(
            (
                *map(link, (*mode.guarded, *mode.timed)),
                stays(index, turns=False) if measured else None,
                stays(index, turns=True) if signals else None,
            )
            for index, mode in enumerate(modes)
        ),
        entries=entries(signals),
        ends=ends,
    )


def _clocks(transitions: Sequence[TransitionMap]) -> tuple[int, ...]:
    """Numbers of what ticks together; a time of its own has its own."""
    numbers: dict[str | int, int] = {}
    keys = [None if t.kind == "guard" else t.clock or t.index for t in transitions]
    return tuple(-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys)
