"""The event table: events of a run as columns, read from record tables in one vectorised pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.layout import IDLE
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.record_table import Kind, RecordTable
from dae_hybrid.port.records import EventRecord
from dae_hybrid.system.packing import PortableResult
from dae_hybrid.tables import align, html
from dae_hybrid.trajectory.datasets import optional
from dae_hybrid.trajectory.outputs import Places, by_name, width_of

if TYPE_CHECKING:
    from dae_hybrid.layout import Layout
    from dae_hybrid.system.system import HybridSystem
    from dae_hybrid.trajectory.parts import TrajectoryParts

#: rows printed at most
MAX_ROWS = 10
#: columns by their names in the header of a native record
HEADER_NAMES = {"t": "time", "guard": "value", "rate": "rate", "rate_scale": "rate_scale", "count": "count"}
#: the columns that are not variables
HEADINGS = ("t", "transition", "source", "target", "order", "direction", "guard", "rate", "count")


class Columns(Mapping[str, Array]):
    """Columns by name, each created on first access, (n_events,) or (n_events, size)."""

    def __init__(self, names: tuple[str, ...], make: Callable[[str], Array]) -> None:
        self._names, self._make, self._made = names, make, dict[str, Array]()

    def __getitem__(self, name: str) -> Array:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(f"No column {name!r}; there are {', '.join(self._names)}.")
            self._made[name] = self._make(name)
            self._made[name].flags.writeable = False
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<columns {', '.join(self._names)}>"


@dataclass(frozen=True)
class _Block:
    """Events of one transition with their positions among all events: of one record table and kind, or as records."""

    index: int
    places: Places
    table: RecordTable | None = None
    kind: Kind | None = None
    records: tuple[EventRecord, ...] = ()

    def head(self, name: str) -> Array:
        """Return a number of every event."""
        if self.table is not None and self.kind is not None:
            return self.table.column(HEADER_NAMES[name])[self.kind.places]
        return np.array([getattr(record, "time" if name == "t" else name) for record in self.records], dtype=float)

    def values(self, part: str) -> Array:
        """Return a vector of every event by its name in `EventRecord`, (n, size)."""
        if self.table is not None and self.kind is not None:
            before = part.endswith("_minus")
            name = part.removesuffix("_minus") if before else part.replace("_plus", "_after")
            return self.table.values(self.kind, name)
        return np.array([getattr(record, part) for record in self.records])


class EventTable(PortableResult):
    """All events of a run as read-only columns, in order of time.

    Attributes
    ----------
    t : ndarray, shape (n_events,)
        Times of the events.
    transition, source, target : ndarray of object, shape (n_events,)
        Names of the transition and of the modes before and after it; the target is None if the run ends.
    direction : ndarray of int, shape (n_events,)
        1 for a rising guard, -1 for a falling one, 0 for time events.
    guard, rate : ndarray, shape (n_events,)
        The guard before the transition, zero to rounding, and its rate in time.
    rate_scale : ndarray, shape (n_events,)
        Range of the guard over the duration of the run.
    count : ndarray of int, shape (n_events,)
        For ``every=``, the number of elapsed periods; 0 otherwise.
    order : ndarray of int, shape (n_events,)
        0 for the first transition of an instant, 1 for the next, ...
    follows : ndarray of bool, shape (n_events,)
        Whether the transition fired on entry because its guard was past its threshold.
    index : ndarray of int, shape (n_events,)
        Index of the transition in ``system.transitions``.
    x_minus, x_plus : mapping of str to ndarray, shape (n_events,) or (n_events, size)
        Variables before and after each event, by name; NaN where the mode there does not have the variable.
    xdot_minus, xdot_plus : mapping of str to ndarray
        Time derivatives of the variables.
    memory_minus, memory_plus : mapping of str to ndarray
        Memory before and after.

    ``len(table)`` is the number of events. `EventRecord` holds the same and more for one event.

    Examples
    --------
    >>> from dae_hybrid.problems import em_hysteresis
    >>> import dae_hybrid as dh
    >>> table = dh.simulate(em_hysteresis.system(), (0, 2), rtol=1e-8, atol=1e-12).event_table
    >>> print(table)
            t  transition          source     target
    -----------  ------------------  ---------  ---------
    0.421512667  loading->unloading  loading    unloading
    0.871060694  unloading->loading  unloading  loading
     1.42790468  loading->unloading  loading    unloading
    >>> table.x_minus["u"].round(4), table.memory_plus["z_star"].round(4)
    (array([ 0.0016, -0.0049,  0.0095]), array([ 0.2267, -0.5416,  0.7744]))
    """

    def __init__(self, system: HybridSystem, parts: TrajectoryParts) -> None:
        self._system, self._parts = system, parts
        self._blocks, self._size = _blocks_of(parts)

    def _owner(self) -> HybridSystem:
        return self._system

    def _state(self) -> dict[str, Any]:
        return {"system": self._system, "parts": self._parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __len__(self) -> int:
        return self._size

    def _column(self, values: Callable[[_Block], Any], kind: Any) -> NDArray[Any]:
        found = np.zeros(self._size, kind)
        for block in self._blocks:
            found[block.places] = values(block)
        found.flags.writeable = False
        return found

    @cached_property
    def t(self) -> Array:
        """Times of the events."""
        return self._column(lambda block: block.head("t"), float)

    @cached_property
    def guard(self) -> Array:
        """The guards before the transitions."""
        return self._column(lambda block: block.head("guard"), float)

    @cached_property
    def rate(self) -> Array:
        """Rates of the guards."""
        return self._column(lambda block: block.head("rate"), float)

    @cached_property
    def rate_scale(self) -> Array:
        """Ranges of the guards over the duration of the run."""
        return self._column(lambda block: block.head("rate_scale"), float)

    @cached_property
    def follows(self) -> NDArray[np.bool_]:
        """Whether each fired on entry because its guard was past its threshold."""
        return self._column(lambda block: [r.follows for r in block.records] or False, bool)

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """Indices of the transitions, in order of declaration."""
        return self._column(lambda block: block.index, np.int64)

    @cached_property
    def count(self) -> NDArray[np.int64]:
        """Numbers of elapsed periods."""
        return self._column(lambda block: block.head("count"), np.int64)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Position of each among the transitions of its instant."""

        def orders(block: _Block) -> Any:
            if block.table is not None and block.kind is not None:
                return block.table.orders[block.kind.places]
            return [record.order for record in block.records]

        return self._column(orders, np.int64)

    @cached_property
    def direction(self) -> NDArray[np.int64]:
        """The signs of the rates, 0 for time events."""

        def signs(block: _Block) -> Any:
            trigger = self._system.transitions[block.index].trigger
            return 0 if trigger.is_timed else np.where(block.head("rate") > 0, 1, -1)

        return self._column(signs, np.int64)

    @cached_property
    def transition(self) -> NDArray[Any]:
        """Names of the transitions, as in the records."""

        def names(block: _Block) -> Any:
            transition = self._system.transitions[block.index]
            if transition.relation is None:
                return transition.name
            memory = block.values("memory_plus")
            _, first, which = np.unique(memory[:, transition.relation.entry], return_index=True, return_inverse=True)
            return np.array([transition.title(memory[i]) for i in first], dtype=object)[which]

        return self._column(names, object)

    @cached_property
    def source(self) -> NDArray[Any]:
        """Names of the modes before."""
        return self._column(lambda block: self._system.modes[self._ends(block)[0]].name, object)

    @cached_property
    def target(self) -> NDArray[Any]:
        """Names of the modes after, None if the run ends."""
        modes = self._system.modes
        return self._column(lambda b: None if self._ends(b)[1] is None else modes[self._ends(b)[1] or 0].name, object)

    def _ends(self, block: _Block) -> tuple[int, int | None]:
        transition = self._system.transitions[block.index]
        return transition.source, transition.target

    @cached_property
    def x_minus(self) -> Columns:
        """Variables before each event."""
        return self._variables("x_minus")

    @cached_property
    def x_plus(self) -> Columns:
        """Variables after each event."""
        return self._variables("x_plus")

    @cached_property
    def xdot_minus(self) -> Columns:
        """Time derivatives of the variables before each event."""
        return self._variables("xdot_minus")

    @cached_property
    def xdot_plus(self) -> Columns:
        """Time derivatives of the variables after each event."""
        return self._variables("xdot_plus")

    @cached_property
    def memory_minus(self) -> Columns:
        """Memory before each event."""
        return self._memory("memory_minus")

    @cached_property
    def memory_plus(self) -> Columns:
        """Memory after each event."""
        return self._memory("memory_plus")

    def _memory(self, part: str) -> Columns:
        memory = self._system.memory
        names = tuple(name for name in memory.names if self._system.signal(name) is None)
        return Columns(names, partial(self._values, part))

    def _variables(self, part: str) -> Columns:
        names = dict.fromkeys(name for mode in self._system.modes for name in mode.variables.names)
        names.pop(IDLE, None)
        return Columns(tuple(names), partial(self._values, part))

    def _layout(self, part: str, block: _Block) -> Layout:
        if part.startswith("memory"):
            return self._system.memory
        source, target = self._ends(block)
        return self._system.modes[source if target is None or part.endswith("_minus") else target].variables

    def _values(self, part: str, name: str) -> Array:
        blocks = ((self._layout(part, block), block.places, partial(block.values, part)) for block in self._blocks)
        return by_name(name, width_of(self._system, name), self._size, blocks)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return one column per entry, (n_events,): `HEADINGS`, then ``u-`` and ``u+`` of variables and memory."""
        found: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in HEADINGS}
        for minus, plus in ((self.x_minus, self.x_plus), (self.memory_minus, self.memory_plus)):
            for name in minus:
                for sign, values in (("-", minus[name]), ("+", plus[name])):
                    found |= entries(f"{name}{{}}{sign}", values)
        return found

    def to_dataframe(self) -> Any:
        """Return `columns` as a pandas DataFrame, one row per event. Needs pandas (extra ``[data]``)."""
        return optional("pandas", "to_dataframe()").DataFrame(self.columns())

    def __repr__(self) -> str:
        return f"<EventTable of {len(self)} events>"

    def _shown(self) -> list[list[str]]:
        rows = [
            [f"{t:.9g}", str(transition), str(source), str(target or "(end)")]
            for t, transition, source, target in zip(
                *(getattr(self, name)[:MAX_ROWS].tolist() for name in ("t", "transition", "source", "target")),
                strict=True,
            )
        ]
        return [["t", "transition", "source", "target"], *rows]

    def __str__(self) -> str:
        more = [f"... {len(self)} events"] if len(self) > MAX_ROWS else []
        return "\n".join([*align(self._shown(), left=(1, 2, 3)), *more])

    def _repr_html_(self) -> str:
        return html(repr(self), self._shown())


def entries(name: str, values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return a column, or one per entry of a vector; braces in the name are replaced by the index."""
    if values.ndim == 1:
        return {name.format(""): values}
    return {name.format(f"[{i}]"): column for i, column in enumerate(values.T)}


def _blocks_of(parts: TrajectoryParts) -> tuple[list[_Block], int]:
    """Return the events of a run in blocks, and their number."""
    blocks: list[_Block] = []
    single: defaultdict[int, list[tuple[int, EventRecord]]] = defaultdict(list)
    first = 0
    for item in parts.given:
        if isinstance(item, RecordTable):
            before = first + np.cumsum(item.is_event) - 1
            for kind in item.kinds:
                exits = item.graph.exits[kind.mode]
                if kind.guard < len(exits):
                    blocks.append(_Block(exits[kind.guard], before[kind.places], item, kind))
            first += item.n_events
        elif isinstance(item, EventRecord):
            single[item.index].append((first, item))
            first += 1
    for index, found in single.items():
        places, records = zip(*found, strict=True)
        blocks.append(_Block(index, np.array(places), records=records))
    return blocks, first
