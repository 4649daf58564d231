"""Names of the initial values that a call may give, that the model states, and that a table gives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from dae_hybrid.errors import ParameterError
from dae_hybrid.interface.parameter_sets import as_columns
from dae_hybrid.layout import IDLE, Layout
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.system.system import HybridSystem

#: an initial value among parameters: ``x(0)``, or ``x(0)[2]`` of a vector
INITIAL_VALUE = re.compile(r"(.*)\(0\)(?:\[\d+\])?", re.DOTALL)


def legal_starts(system: HybridSystem, mode: int, model: HybridModel | None) -> Layout:
    """The variables and memories that have an initial value in a mode."""
    own = (block for block in system.modes[mode].differential.blocks if block[0] != IDLE)
    declared = system.memory.names if model is None else model.declarations  # not the truth values of relations
    memories = ((n, size) for n, size in system.memory.blocks if n in declared and system.signal(n) is None)
    return Layout((*own, *memories))


def stated_starts(system: HybridSystem, model: HybridModel | None, legal: Layout) -> tuple[str, ...]:
    """Those of the legal ones that the model states explicitly, also for other modes."""
    found = [name for name in system.initial.given.names if name in legal]
    if model is not None:
        memories = (d for d in model.of_kind("memory") if d.initial is not None)
        found += [d.name for d in memories if d.name in legal]
    return tuple(found)


def chosen_starts(system: HybridSystem, mode: int, legal: Layout, stated: Sequence[str], x0: Any) -> Layout:
    """The layout of the values in a table: those of variables with stated values first, in their order."""
    if x0 is None:
        return Layout(())
    table, where = as_columns(x0), system.modes[mode].name
    sizes = dict(legal.blocks)
    if not hasattr(table, "keys"):
        return Layout(tuple((n, sizes[n]) for n in stated if n in system.modes[mode].differential))
    names = list(table)
    labels = {label: 1 for label in legal.labels()} | sizes
    unknown = [name for name in names if name not in labels]
    if unknown:
        raise ParameterError(
            f"x0: {', '.join(map(repr, unknown))} is no variable or memory with an initial value.",
            mode=where,
            variables=[str(name) for name in unknown],
            remedy=f"Those are {', '.join(legal.names) or 'none'}; algebraic variables follow from equations.",
        )
    places = [[legal.labels().index(label) for label in Layout(((n, labels[n]),)).labels()] for n in names]
    flat = [place for own in places for place in own]
    if len(set(flat)) < len(flat):
        raise ParameterError(f"x0 gives a value twice: {', '.join(map(repr, names))}.", mode=where)
    order = {name: k for k, name in enumerate(stated)}
    names = sorted(names, key=lambda n: (order.get(variable_of(legal, n), len(order)), min(places[names.index(n)])))
    layout = Layout(tuple((name, labels[name]) for name in names))
    for name, entries in entries_of(legal, layout).items():
        if name not in stated and len(entries) < sizes[name]:
            raise ParameterError(
                f"x0: the model gives '{name}' no initial value as a whole, so that x0 needs all of its entries.",
                mode=where,
                variables=[name],
            )
    return layout


def variable_of(legal: Layout, label: str) -> str:
    """The variable of a name or of the label of an entry."""
    return label if label in legal else place_of(legal, label)[0]


def place_of(legal: Layout, label: str) -> tuple[str, int]:
    """The variable and the entry of a label."""
    if label in legal:
        return label, 0
    at = legal.labels().index(label)
    name = next(n for n in legal.names if legal[n].start <= at < legal[n].stop)
    return name, at - legal[name].start


def entries_of(legal: Layout, layout: Layout) -> dict[str, list[int]]:
    """The given entries of every variable."""
    found: dict[str, list[int]] = {}
    for label in layout.labels():
        name, entry = place_of(legal, label)
        found.setdefault(name, []).append(entry)
    return {name: sorted(entries) for name, entries in found.items()}


def size_of(legal: Layout, name: str) -> int:
    """Number of entries of a variable or memory."""
    return legal[name].stop - legal[name].start


def differentiated_starts(system: HybridSystem, legal: Layout, wrt: object) -> tuple[str, ...]:
    """The variables whose initial values a call differentiates by, and that are not parameters yet."""
    found = map(INITIAL_VALUE.fullmatch, names_in(wrt))
    names = [match.group(1) for match in found if match]
    return tuple(dict.fromkeys(n for n in names if n in legal and f"{n}(0)" not in system.parameters))


def names_in(wrt: object) -> list[str]:
    """The names in `wrt`, which is checked elsewhere."""
    given = [wrt] if isinstance(wrt, str) else wrt if isinstance(wrt, Iterable) else ()
    try:
        return [name for name in given if isinstance(name, str)]
    except TypeError:  # matrices of CasADi cannot be iterated
        return []
