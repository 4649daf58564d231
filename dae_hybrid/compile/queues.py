"""The pending executions of a delayed transition as memory, and the transitions that enter and leave them.

A delay that depends on parameters alone keeps the order of its triggers: the first place of a line is due next, and
those behind move up. Other delays use a ring of places, each with a transition of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Declaration, Delay, Transition
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger, TimesTrigger
from dae_hybrid.statement.vector_entries import assembled, chosen

#: guard of an empty place, which never crosses zero; small, since it counts to the range of the guard
EMPTY = -1e-9
#: priority of transitions that enter or empty a queue: they precede all others of their instant
FIRST = 1e300
#: declare a memory by its name and its initial value
Declare = Callable[[str, Any], Declaration]


def queue_of(model: HybridModel, stated: Transition, declare: Declare) -> Queue:
    """Return the queue of a delayed transition."""
    if stated.delay is None:
        raise AssertionError("a queue belongs to a delayed transition")
    fixed = {d.symbol.__hash__() for d in model.of_kind("parameter")}
    in_order = all(s.__hash__() in fixed for s in ca.symvar(stated.delay.time))
    return (Line if in_order else Ring)(model, stated, stated.delay, declare)


class Queue(ABC):
    """Places in memory: `due` are the times, `pending` marks the places taken.

    `held` are the values at the trigger, by variable or by the label of an entry, one after the other.
    """

    def __init__(self, model: HybridModel, stated: Transition, delay: Delay, declare: Declare) -> None:
        if isinstance(stated.trigger, TimesTrigger):
            raise ModelError(
                f"Transition '{stated.name}' has a delay= and several times at=.", remedy="Add the delay to the times."
            )
        self.model, self.stated, self.delay, self.size = model, stated, delay, delay.pending
        name, n = stated.name, self.size
        self.due, self.pending = declare(f"{name} due", np.zeros(n)), declare(f"{name} pending", np.zeros(n))
        self.values = stated.reset | stated.memory if self.delay.at_trigger else {}
        self.held = {key: declare(f"{name} {key}", np.zeros(v.numel() * n)) for key, v in self.values.items()}

    # -- transitions, for each source mode ------------------------------------------------------------

    def entries(self) -> Iterator[Transition]:
        """Yield the transitions that enter the queue, empty it, and refuse more than it holds."""
        stated, none = self.stated, dict[str, ca.MX]()
        base = replace(
            stated, target=None, stays=True, reset=none, memory=self._entering(), equations=ca.MX(0, 1), labels=(),
            project=(), metric=None, guess=none, delay=None, priority=ca.MX(FIRST), freezes=False,
        )  # fmt: skip
        yield self._named(base, "triggered")
        if not self.delay.persistent:
            direction = -1 if stated.direction >= 0 else 1
            falls = replace(
                base, direction=direction, on_entry="wait", when=None, memory=self.emptied(), becomes=True, jumps=True
            )
            yield self._named(falls, "released")
        full = replace(
            base, trigger=StateTrigger(self._room()), direction=-1, on_entry="error", when=None, memory=none,
            stays=False, priority=None,
            refusal=f"More than {self.size} executions of transition '{stated.name}' are pending; give it a larger "
            "pending=.",
        )  # fmt: skip
        yield self._named(full, "queue")

    def executions(self) -> Iterator[Transition]:
        """Yield the transitions that are carried out at the times of the queue."""
        stated = self.stated
        for k, place, share, leaving in self._heads():
            guard = share * (self.model.time - self.due.symbol[place]) + (1 - share) * EMPTY
            own = replace(
                stated, name=f"{stated.name} {k}", statement=stated.name, trigger=StateTrigger(guard), direction=1,
                on_entry="error", overdue=f"The delay of transition '{stated.name}' is negative", when=None, delay=None,
                reset=self._values(stated.reset, place),
                memory=self._values(stated.memory, place) | leaving,
            )  # fmt: skip
            ends = stated.target is None and not stated.stays
            yield replace(own, memory={}) if ends else own

    @abstractmethod
    def emptied(self) -> dict[str, ca.MX]:
        """Updates of the memory that leave nothing pending."""

    @abstractmethod
    def _entering(self) -> dict[str, ca.MX]:
        """Updates of the memory at the trigger."""

    @abstractmethod
    def _room(self) -> ca.MX:
        """An expression that becomes negative when too many enter."""

    @abstractmethod
    def _heads(self) -> Iterator[tuple[int, int, ca.MX, dict[str, ca.MX]]]:
        """Yield number, place, a flag that is 1 while it is due, and updates of the memory at the execution."""

    # -- pieces -----------------------------------------------------------------------------------------

    def _put(self, place: ca.MX) -> dict[str, ca.MX]:
        """Write the time and the values of the trigger to the marked place."""
        due = self.due.symbol
        found = {
            self.due.name: due * (1 - place) + place * (self.model.time + self.delay.time),
            self.pending.name: self.pending.symbol + place,
        }
        for variable, held in self.held.items():
            value = self.values[variable]
            at = ca.kron(place, ca.MX.ones(value.numel()))
            found[held.name] = held.symbol * (1 - at) + at * ca.repmat(value, self.size)
        return found

    def _values(self, given: Mapping[str, ca.MX], k: int) -> dict[str, ca.MX]:
        """The values of a place, or those stated."""
        if not self.delay.at_trigger:
            return dict(given)
        found: dict[str, ca.MX] = {}
        entries: dict[str, dict[int, ca.MX]] = {}
        for key, value in given.items():
            size = value.numel()
            own = self.held[key].symbol[k * size : (k + 1) * size]
            part = chosen(self.model.declarations, key)
            if part is None:
                found[key] = own
            else:
                entries.setdefault(part[0].name, {})[part[1][0]] = own
        for name, pieces in entries.items():
            declared = self.model.declarations[name]
            found[name] = assembled(name, declared, pieces, declared.symbol.__getitem__)
        return found

    def _named(self, transition: Transition, what: str) -> Transition:
        name = f"{self.stated.name} {what}"
        return replace(transition, name=name, statement=name)


class Line(Queue):
    """Executions in the order of their triggers; `place` marks the number of those pending.

    `turn` marks one of two transitions, which alternate: of two executions at one instant the second does not follow
    from the transition that has just fired.
    """

    def __init__(self, model: HybridModel, stated: Transition, delay: Delay, declare: Declare) -> None:
        super().__init__(model, stated, delay, declare)
        self.place = declare(f"{stated.name} place", np.eye(self.size + 1)[0])
        self.turn = declare(f"{stated.name} turn", np.array([1.0, 0.0]))

    def emptied(self) -> dict[str, ca.MX]:
        """Nothing is pending, and the first place is free."""
        return {self.pending.name: ca.MX.zeros(self.size), self.place.name: ca.MX(ca.DM(np.eye(self.size + 1)[0]))}

    def _entering(self) -> dict[str, ca.MX]:
        place = self.place.symbol
        return self._put(place[: self.size]) | {self.place.name: ca.vertcat(0, place[: self.size])}

    def _room(self) -> ca.MX:
        return ca.sum1(self.place.symbol) - 0.5

    def _heads(self) -> Iterator[tuple[int, int, ca.MX, dict[str, ca.MX]]]:
        turn = self.turn.symbol
        leaving = {d.name: ca.vertcat(d.symbol[1:, :], 0) for d in (self.due, self.pending, self.place)}
        leaving[self.turn.name] = ca.vertcat(turn[1], turn[0])
        for variable, held in self.held.items():
            size = self.values[variable].numel()
            leaving[held.name] = ca.vertcat(held.symbol[size:, :], ca.MX.zeros(size))
        for k in range(2):
            yield k, 0, turn[k] * self.pending.symbol[0], leaving


class Ring(Queue):
    """Executions in any order; the first free place is the next one. `lost` is 1 if there was none."""

    def __init__(self, model: HybridModel, stated: Transition, delay: Delay, declare: Declare) -> None:
        super().__init__(model, stated, delay, declare)
        self.lost = declare(f"{stated.name} lost", np.zeros(1))

    def emptied(self) -> dict[str, ca.MX]:
        """Nothing is pending."""
        return {self.pending.name: ca.MX.zeros(self.size)}

    def _entering(self) -> dict[str, ca.MX]:
        free, taken = list[ca.MX](), ca.MX(1)
        for pending in ca.vertsplit(self.pending.symbol):
            free.append(taken * (1 - pending))
            taken = taken * pending
        return self._put(ca.vertcat(*free)) | {self.lost.name: taken}

    def _room(self) -> ca.MX:
        return 0.5 - self.lost.symbol

    def _heads(self) -> Iterator[tuple[int, int, ca.MX, dict[str, ca.MX]]]:
        pending, n = self.pending.symbol, self.size
        for k in range(n):
            yield k, k, pending[k], {self.pending.name: pending * ca.DM(1 - np.eye(n)[k])}
