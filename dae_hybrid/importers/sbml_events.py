"""Events of SBML as transitions.

An event with a delay, or one whose result may depend on another event of the same instant, passes through the queue of
a delayed transition, with a delay of zero if it has none: it is triggered before any event of the instant is carried
out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError, UnsupportedError
from dae_hybrid.importers.errors import unsupported
from dae_hybrid.importers.sbml_document import library
from dae_hybrid.importers.sbml_mathml import Number, Truth
from dae_hybrid.importers.sbml_quantities import Quantity
from dae_hybrid.importers.sbml_values import RunValues
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.statement.expressions import free_name

#: priority of the transition that begins the events, and the priorities of those that end the truth of a trigger at the
#: start: after the entry into a queue and before all events, or after the event itself
BEGIN, BEFORE, AFTER = 1e200, 1e200, -1e200
#: period of the clock that ticks once
NEVER_AGAIN = 1e300


def add_events(values: RunValues, run: Mode, pending: int) -> None:
    """Declare a transition for every event, with places for so many pending executions."""
    stated = [event for event in values.inventory.model.getListOfEvents() if event.isSetTrigger()]
    events = [_Event(values, event, i) for i, event in enumerate(stated)]
    events = [event for event in events if event.condition.value is not False and event.assigned]
    refuse_random_order(events)
    model, started = values.model, None
    waiting = [event for event in events if event.fires_at_start or event.may_be_true_at_start()]
    if waiting:
        started = model.memory(free_name("events have begun", model.declarations), initial=0.0)
        begin = {started: ca.MX(1)} | dict(event.true_since_start() for event in waiting if event.is_variable)
        once = model.clock(NEVER_AGAIN, name="begin")  # ticks at the start
        model.transition(run, run, every=once, memory=begin, priority=BEGIN, name="begin of events")
    for event in events:
        event.declare(run, started, pending, [other for other in events if other is not event])


class _Event:
    """One event, translated."""

    def __init__(self, values: RunValues, event: Any, index: int) -> None:
        self.values, self.event = values, event
        self.name = event.getId() or f"event {index + 1}"
        self.where = f"event '{self.name}'"
        trigger = event.getTrigger()
        mathematics = values.mathematics
        self.condition = Truth(value=False)
        if trigger.isSetMath():
            self.condition = mathematics.truth(trigger.getMath(), values, self.where)
        self.assigned: dict[str, Number] = {}
        for own in event.getListOfEventAssignments():
            if own.isSetMath():
                self.assigned[own.getVariable()] = mathematics.number(own.getMath(), values, self.where)
        self.at_trigger = bool(event.getUseValuesFromTriggerTime())
        self.fires_at_start = not trigger.getInitialValue()
        self.is_persistent = bool(trigger.getPersistent())
        self.held: ca.MX | None = None
        self.sizes: dict[str, Quantity] = {}  # compartments of the concentrations that it changes
        self.delay = self._number(event.getDelay())
        self.priority = self._number(event.getPriority())
        self.resets, self.memory = self._new_values()
        self.writes = _hashes([*self.resets, *self.memory])
        self.trigger_reads = self._read([self.condition.value])
        self.value_reads = self._read([*self.resets.values(), *self.memory.values()])
        self.reads = self.trigger_reads | self.value_reads | self._read([self.delay, self.priority])

    def declare(self, run: Mode, started: ca.MX | None, pending: int, others: list[_Event]) -> None:
        """Declare the transition; an event that may fire at the start waits for `started`."""
        is_queued = self.delay is not None or any(self.meets(other) for other in others)
        condition = self._guard(run, started, BEFORE if is_queued else AFTER)
        if condition is None:
            return
        options: dict[str, Any] = {}
        if is_queued:
            self._check_sizes(others)
            toggles = sum(not self.trigger_reads.isdisjoint(other.writes) for other in others)
            options["delay"] = 0.0 if self.delay is None else self.delay
            options["values"] = "trigger" if self.at_trigger else "execution"
            options["persistent"] = self.is_persistent
            options["pending"] = pending if self.delay is not None else min(pending, 1 + toggles)
        if self.priority is not None:
            options["priority"] = self.priority
        model = self.values.model
        name = free_name(self.name, model.transitions)
        try:
            model.transition(run, run, guard=condition, reset=self.resets, memory=self.memory, name=name, **options)
        except ModelError as reason:
            raise unsupported(reason.message, self.where, reason.remedy) from reason

    def _check_sizes(self, others: list[_Event]) -> None:
        """Refuse concentrations from the trigger in a compartment that may change until they are assigned."""
        for species, size in self.sizes.items() if self.at_trigger else ():
            if self.delay is not None:
                may_change = size.role != "constant"
            else:
                reads = self._read([self.values.lookup(size.name, self.where)])
                may_change = any(not reads.isdisjoint(other.writes) for other in others)
            if may_change:
                raise unsupported(
                    f"it changes the concentration of '{species}' with values from its trigger, and the size of the "
                    "compartment may have changed when it is carried out.",
                    self.where,
                )

    @property
    def is_variable(self) -> bool:
        """Whether the trigger may change."""
        return not isinstance(self.condition.value, bool)

    def may_be_true_at_start(self) -> bool:
        """Whether the trigger is true at the start, for the nominal values, or that is unknown."""
        try:
            trigger = self.event.getTrigger().getMath()
            at_start = self.values.mathematics.truth(trigger, self.values.start, self.where).value
        except UnsupportedError:
            return True
        return bool(at_start) if isinstance(at_start, bool) else self.values.nominal(at_start) != 0

    def true_since_start(self) -> tuple[ca.MX, ca.MX]:
        """Declare a memory that says whether the trigger has been true since the start; return it with its value."""
        model = self.values.model
        self.held = model.memory(free_name(f"{self.name} true since the start", model.declarations), initial=0.0)
        return self.held, ca.MX(self.condition.value)

    def _guard(self, run: Mode, started: ca.MX | None, priority: float) -> ca.MX | None:
        """The condition that becomes true when the event is triggered; None if it never does.

        Before the start the trigger counts as true, or as false if the event fires at the start.
        """
        condition, model = self.condition.value, self.values.model
        if isinstance(condition, bool):
            return started > 0.5 if self.fires_at_start and started is not None else None
        if self.held is None or started is None:
            return self._tracked(run, condition) if self._returns_to_threshold(condition) else condition
        has_begun, held = started > 0.5, self.held > 0.5
        over = ca.logic_and(has_begun, ca.logic_not(condition))
        name = free_name(f"{self.name} false", model.transitions)
        model.transition(run, run, guard=over, memory={self.held: 0.0}, priority=priority, name=name)
        if self.fires_at_start:
            return ca.logic_and(has_begun, ca.logic_or(condition, held))
        return ca.logic_and(ca.logic_and(has_begun, condition), ca.logic_not(held))

    def _returns_to_threshold(self, condition: ca.MX) -> bool:
        """Whether the event may put its trigger, ``a <= b``, back to equality, where it holds and stays true.

        Its values come from the trigger, where both sides are equal.
        """
        is_late = self.delay is not None and self.at_trigger and self.is_persistent
        return is_late and condition.op() == ca.OP_LE and not self.trigger_reads.isdisjoint(self.writes)

    def _tracked(self, run: Mode, condition: ca.MX) -> ca.MX:
        """The trigger, with a memory that it has become true, until it becomes false."""
        model = self.values.model
        holds = model.memory(free_name(f"{self.name} holds", model.declarations), initial=0.0)
        found = ca.logic_and(condition, holds < 0.5)
        for what, guard, value in (("true", found, 1.0), ("false", ca.logic_not(condition), 0.0)):
            name = free_name(f"{self.name} {what}", model.transitions)
            model.transition(run, run, guard=guard, memory={holds: value}, priority=BEFORE, name=name)
        return found

    def meets(self, other: _Event) -> bool:
        """Whether the result of two events at one instant may depend on their order."""
        return not (
            self.writes.isdisjoint(other.reads | other.writes) and other.writes.isdisjoint(self.reads | self.writes)
        )

    def follows(self, other: _Event) -> bool:
        """Whether its result changes if another event precedes it after both have been triggered."""
        late = set() if self.at_trigger else self.value_reads
        late = late if self.is_persistent else late | self.trigger_reads
        return not other.writes.isdisjoint(self.writes | late)

    def _read(self, values: Iterable[Number | bool | None]) -> set[int]:
        """Symbols that expressions use; those of algebraic rules may depend on all that a run stores."""
        found = _hashes(ca.symvar(ca.veccat(ca.MX(0, 1), *(v for v in values if isinstance(v, ca.MX)))))
        stored = self.values.stored()
        solved = _hashes(self.values.symbol(q) for q in stored if q.role == "solved")
        return found if found.isdisjoint(solved) else found | _hashes(map(self.values.symbol, stored))

    def _number(self, part: Any) -> Number | None:
        """Value of the delay or the priority; None if it is not stated."""
        if part is None or not part.isSetMath():
            return None
        return self.values.mathematics.number(part.getMath(), self.values, self.where)

    def _new_values(self) -> tuple[dict[ca.MX, Number], dict[ca.MX, Number]]:
        """New values of the states and of the memory."""
        values, resets, memory = self.values, dict[ca.MX, Number](), dict[ca.MX, Number]()
        for quantity in values.inventory.quantities.values():
            if quantity.name in self.assigned:
                value = self._assigned(quantity)
            elif quantity.role == "rate" and self._resizes(quantity):
                value = values.symbol(quantity) * self._shrinkage(quantity)
            else:
                continue
            (memory if quantity.role == "held" else resets)[values.symbol(quantity)] = value
        return resets, memory

    def _assigned(self, quantity: Quantity) -> Number:
        """New value of what a run stores of a quantity: a concentration is assigned in the size before the event."""
        value = self.assigned[quantity.name]
        if quantity.role == "solved":
            raise unsupported(f"it assigns '{quantity.name}', which algebraic rules determine.", self.where)
        if quantity.compartment is None:
            return value
        if quantity.is_amount:
            self.sizes[quantity.name] = quantity.compartment
            return value * self.values.lookup(quantity.compartment.name, self.where)
        return value * self._shrinkage(quantity) if self._resizes(quantity) else value

    def _resizes(self, quantity: Quantity) -> bool:
        """Whether the event assigns the size of the compartment of a concentration: its amount stays the same."""
        return quantity.compartment is not None and quantity.compartment.name in self.assigned

    def _shrinkage(self, quantity: Quantity) -> Number:
        """Size of the compartment of a species before the event, divided by that after it."""
        if quantity.compartment is None:
            raise AssertionError("only a concentration changes with the size")
        self.sizes[quantity.name] = quantity.compartment
        name = quantity.compartment.name
        return self.values.lookup(name, self.where) / self.assigned[name]


def _hashes(symbols: Iterable[ca.MX]) -> set[int]:
    return {symbol.__hash__() for symbol in symbols}


def refuse_random_order(events: list[_Event]) -> None:
    """Refuse events with the same trigger and the same priority whose order matters: SBML draws it by chance."""
    found: dict[tuple[str, float], list[_Event]] = {}
    for event in events:
        priority = math.nan if event.priority is None else event.values.nominal(event.priority)
        if not math.isnan(priority):
            trigger = library().formulaToL3String(event.event.getTrigger().getMath())
            found.setdefault((trigger, priority), []).append(event)
    for together in found.values():
        for i, event in enumerate(together):
            for other in together[:i]:
                if event.follows(other) or other.follows(event):
                    raise unsupported(
                        f"it has the trigger and the priority of event '{other.name}': SBML draws the order by chance.",
                        event.where,
                        "Give the events different priorities.",
                    )
