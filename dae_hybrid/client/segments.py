"""Segments and events from the outputs and events of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.errors import NotKeptError
from dae_hybrid.layout import Layout
from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import EventRecord
from dae_hybrid.port.replay import SegmentReplay
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.trajectory import Segment

#: the rows of an answer hold all variables
SENT = Method(name="remote", final_outputs=True)


def vector(values: ArrayLike | None) -> Array:
    """Numbers as an array, NaN for those that do not exist."""
    return np.array(values, dtype=float)


def entries_of(layout: Layout, values: Mapping[str, Any]) -> Array:
    """One vector from values by name."""
    found = np.zeros(layout.size)
    for name in layout.names:
        found[layout[name]] = vector(values[name])
    return found


def state_of(system: HybridSystem, mode: int, values: Mapping[str, Any]) -> tuple[Array, Array]:
    """(y, z) and the memory from values by name."""
    return entries_of(system.modes[mode].variables, values), entries_of(system.memory, values)


def refuse_replay() -> Any:
    """Refuse dense output of a segment.

    Raises
    ------
    NotKeptError
        Always.
    """
    raise NotKeptError("The steps of this run were not sent: it was carried out by a service.")


class Decoded:
    """Outputs of an answer as arrays; with directions, also their derivatives."""

    def __init__(self, system: HybridSystem, answer: Mapping[str, Any], directions: Array | None = None) -> None:
        self.system, self.answer, self.directions = system, answer, directions
        self.indices = {mode.name: i for i, mode in enumerate(system.modes)}
        self.t = vector(answer["t"])
        self.modes = np.array([self.indices[name] for name in answer["modes"]], dtype=np.intp)
        self.p = entries_of(system.parameters, answer["parameters"])
        if self.modes.shape != self.t.shape:
            raise ValueError("modes and times differ in number")

    def _rows(self, layout: Layout, values: Mapping[str, Any], *inner: int) -> Array:
        """Values by name as rows, (n_t, layout.size, *inner)."""
        found = np.zeros((self.t.size, layout.size, *inner))
        for name, size in layout.blocks:
            found[:, layout[name]] = vector(values[name]).reshape(self.t.size, size, *inner)
        return found

    @cached_property
    def states(self) -> dict[int, Array]:
        """x by mode, (n_t, n_x); rows of other modes are without meaning."""
        return {i: self._rows(self.system.modes[i].variables, self.answer["values"]) for i in set(self.modes.tolist())}

    @cached_property
    def memory(self) -> Array:
        """The memory, (n_t, n_memory)."""
        return self._rows(self.system.memory, self.answer["values"] | self.answer["coefficients"])

    @cached_property
    def state_derivatives(self) -> dict[int, Array]:
        """dx by mode, (n_t, n_directions, n_x)."""
        d, values = self._n_directions, self.answer["sensitivities"]
        return {i: self._rows(self.system.modes[i].variables, values, d).swapaxes(1, 2) for i in self.states}

    @cached_property
    def memory_derivatives(self) -> Array:
        """dm, (n_t, n_memory, n_directions)."""
        values = self.answer["sensitivities"] | self.answer["coefficient_sensitivities"]
        return self._rows(self.system.memory, values, self._n_directions)

    @property
    def _n_directions(self) -> int:
        return 0 if self.directions is None else self.directions.shape[1]

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Divide outputs where the memory or its derivatives change, as at the knots of a signal."""
        if end - begin < 2:
            return [(begin, end)]
        held = self.memory[begin:end]
        if self.directions is not None:
            held = np.hstack((held, self.memory_derivatives[begin:end].reshape(end - begin, -1)))
        same = np.array_equal(held[1:], held[:-1], equal_nan=True)
        cuts: ArrayLike = [] if same else begin + 1 + np.flatnonzero((held[1:] != held[:-1]).any(axis=1))
        ends = [begin, *np.asarray(cuts, dtype=int).tolist(), end]
        return list(pairwise(ends))


def parts_of(outputs: Decoded) -> list[Segment | EventRecord]:
    """Return segments, with the outputs of the answer, and events in order."""
    found: list[Segment | EventRecord] = []
    answer, system, begin = outputs.answer, outputs.system, 0
    start = (answer["t_span"][0], outputs.indices[answer["start"]["mode"]])
    x, memory = state_of(system, start[1], answer["start"]["values"])
    xdot = entries_of(system.modes[start[1]].variables, answer["start"]["rates"])
    here, earlier = (*start, x, xdot, memory), None
    for event in answer["events"]:
        record = _record(outputs, event, earlier)
        end = event["outputs_before"]
        found += _segments(outputs, begin, end, here, (record.time, record.x_minus, record.xdot_minus))
        found.append(record)
        begin, earlier = end, record
        target = here[1] if record.target is None else outputs.indices[record.target]
        here = (record.time, target, record.x_plus, record.xdot_plus, record.memory_plus)
    x, _ = state_of(system, outputs.indices[answer["final"]["mode"]], answer["final"]["values"])
    if begin < outputs.t.size or answer["t_end"] > here[0]:
        found += _segments(outputs, begin, outputs.t.size, here, (answer["t_end"], x, np.full_like(x, np.nan)))
    return found


def _segments(
    outputs: Decoded, begin: int, end: int, here: tuple[float, int, Array, Array, Array],
    there: tuple[float, Array, Array],
) -> list[Segment]:  # fmt: skip
    """Segments from one point to another one, divided at the knots of signals."""
    t_start, index, x, xdot, memory = here
    mode, pieces = outputs.system.modes[index], outputs.runs(begin, end)
    if end > begin and not (outputs.modes[begin:end] == index).all():
        raise ValueError("outputs and events contradict each other")
    found = []
    for k, (first, last) in enumerate(pieces):
        some = slice(first, last)
        states = outputs.states[index][some] if last > first else np.zeros((0, mode.variables.size))
        kept: dict[str, Any] = {}
        if outputs.directions is not None and last > first:
            kept = {
                "sensitivity_rows": outputs.state_derivatives[index][some],
                "memory_sensitivities": outputs.memory_derivatives[first],
                "directions": outputs.directions,
            }
        unknown = np.full_like(x, np.nan)
        t_begin, x_begin, rate = (t_start, x, xdot) if not k else (outputs.t[first], states[0], unknown)
        is_last = k + 1 == len(pieces)
        t_end, x_end, rate_end = there if is_last else (outputs.t[last - 1], states[-1], unknown)
        held = outputs.memory[first] if last > first else memory
        found.append(Segment(
            mode, outputs.p, float(t_begin), float(t_end), x_begin, x_end, rate, rate_end, held, SENT, outputs.t[some],
            states, cast(SegmentReplay, refuse_replay), **kept,
        ))  # fmt: skip
    return found


def _record(outputs: Decoded, event: Mapping[str, Any], earlier: EventRecord | None) -> EventRecord:
    """The record of an event."""
    system, indices = outputs.system, outputs.indices
    before = indices[event["source"]]
    after = before if event["target"] is None else indices[event["target"]]
    x_minus, memory_minus = state_of(system, before, event["before"])
    x_plus, memory_plus = state_of(system, after, event["after"])
    source, target = system.modes[before], system.modes[after]
    unknowns = event["unknowns"].items()
    return EventRecord(
        time=event["time"],
        index=event["index"],
        transition=event["transition"],
        source=event["source"],
        target=event["target"],
        order=event["order"],
        guard=_float(event["guard"]),
        direction=event["direction"],
        rate=_float(event["rate"]),
        rate_scale=_float(event["rate_scale"]),
        count=event["count"],
        follows=event["follows"],
        x_minus=x_minus,
        x_plus=x_plus,
        xdot_minus=entries_of(source.variables, event["rates_before"]),
        xdot_plus=entries_of(target.variables, event["rates_after"]),
        memory_minus=memory_minus,
        memory_plus=memory_plus,
        n_differential=(source.differential.size, target.differential.size),
        xi=vector(event["xi"]),
        unknowns={name: vector(value) if isinstance(value, list) else value for name, value in unknowns},
        certified=event["certified"],
        earlier=earlier if event["order"] else None,
    )


def _float(value: float | None) -> float:
    return np.nan if value is None else value
