"""Events of SBML as transitions.

An event whose values, order or persistence other events may change passes through the queue of a delayed transition,
with a delay of zero if it has none: it is triggered before any event of the instant is carried out.
"""

from __future__ import annotations

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

#: priorities of the transitions that begin the events, and that end the truth of a trigger at the start
BEGIN, END = 1e200, -1e200


def add_events(values: RunValues, run: Mode, pending: int) -> None:
    """Declare a transition for every event, with places for so many pending executions."""
    stated = [event for event in values.inventory.model.getListOfEvents() if event.isSetTrigger()]
    events = [_Event(values, event, i) for i, event in enumerate(stated)]
    events = [event for event in events if event.condition.value is not False and event.assigned]
    refuse_random_order(events)
    model, started = values.model, None
    if any(event.fires_at_start for event in events):
        started = model.memory(free_name("events have begun", model.declarations), initial=0.0)
        model.transition(run, run, at=0.0, memory={started: 1.0}, priority=BEGIN, name="begin of events")
    for event in events:
        event.declare(run, started, pending, is_alone=len(events) == 1)


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
        self.delay = self._number(event.getDelay())
        self.priority = self._number(event.getPriority())

    def declare(self, run: Mode, started: ca.MX | None, pending: int, *, is_alone: bool) -> None:
        """Declare the transition; an event that may fire at the start waits for `started`."""
        condition = self._guard(run, started)
        if condition is None:
            return
        options: dict[str, Any] = {}
        if self.delay is not None or not is_alone:
            options["delay"] = 0.0 if self.delay is None else self.delay
            options["values"] = "trigger" if self.at_trigger else "execution"
            options["persistent"] = self.is_persistent
            options["pending"] = pending
        if self.priority is not None:
            options["priority"] = self.priority
        resets, memory = self._new_values()
        model = self.values.model
        name = free_name(self.name, model.transitions)
        try:
            model.transition(run, run, guard=condition, reset=resets, memory=memory, name=name, **options)
        except ModelError as reason:
            raise unsupported(reason.message, self.where, reason.remedy) from reason

    def _guard(self, run: Mode, started: ca.MX | None) -> ca.MX | None:
        """The condition that becomes true when the event is triggered; None if it never does.

        The trigger counts as true before the start, or as false if the event fires at the start. Where it is true at
        the start, a memory says so until it becomes false.
        """
        condition, model = self.condition.value, self.values.model
        if isinstance(condition, bool):
            return started > 0.5 if condition and self.fires_at_start and started is not None else None
        at_start = self._at_start()
        if not self.fires_at_start and not self._is_true(at_start):
            return condition
        if isinstance(at_start, bool):
            at_start = ca.MX(float(at_start))
        held = model.memory(free_name(f"{self.name} true since the start", model.declarations), initial=at_start)
        over = ca.logic_not(condition) if started is None else ca.logic_and(started > 0.5, ca.logic_not(condition))
        name = free_name(f"{self.name} false", model.transitions)
        model.transition(run, run, guard=over, memory={held: 0.0}, priority=END, name=name)
        later = ca.logic_and(condition, held < 0.5)
        if not self.fires_at_start or started is None:
            return later
        return ca.logic_or(later, ca.logic_and(started > 0.5, held > 0.5))

    def _at_start(self) -> bool | ca.MX:
        """The trigger at the start, in terms of parameters; true if that is unknown and matters."""
        try:
            trigger = self.event.getTrigger().getMath()
            return self.values.mathematics.truth(trigger, self.values.start, self.where).value
        except UnsupportedError:
            if self.fires_at_start:
                raise
            return False

    def _is_true(self, condition: bool | ca.MX) -> bool:
        """Whether a condition in terms of parameters holds at their nominal values."""
        if isinstance(condition, bool):
            return condition
        return self.values.nominal(condition) != 0

    def affects(self, other: _Event) -> bool:
        """Whether an assignment changes the trigger or the results of another event that is due at the same time."""
        if not set(self.assigned).isdisjoint(other.assigned):
            return True
        results: list[Number] = [] if other.at_trigger else [*other.assigned.values()]
        if not other.is_persistent and isinstance(other.condition.value, ca.MX):
            results.append(other.condition.value)
        own = [q for q in self.values.stored() if q.name in self.assigned]
        symbols = ca.veccat(ca.MX(0, 1), *(self.values.symbol(q) for q in own))
        return bool(ca.depends_on(ca.veccat(ca.MX(0, 1), *map(ca.MX, results)), symbols)) if own else False

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
                value = self.assigned[quantity.name]
                if quantity.role == "solved":
                    raise unsupported(f"it assigns '{quantity.name}', which algebraic rules determine.", self.where)
                if quantity.is_amount and quantity.compartment is not None:
                    self._check_size(quantity)
                    value = value * self._size(quantity)
            elif quantity.role == "rate" and quantity.compartment is not None and self._resizes(quantity):
                old = values.lookup(quantity.compartment.name, self.where)
                value = values.symbol(quantity) * old / self._size(quantity)
            else:
                continue
            (memory if quantity.role == "held" else resets)[values.symbol(quantity)] = value
        return resets, memory

    def _resizes(self, quantity: Quantity) -> bool:
        """Whether the event assigns the size of the compartment of a species."""
        return quantity.compartment is not None and quantity.compartment.name in self.assigned

    def _size(self, quantity: Quantity) -> Number:
        """Size of the compartment of a species after the event."""
        if quantity.compartment is None:
            raise AssertionError("amounts have no size")
        name = quantity.compartment.name
        return self.assigned[name] if name in self.assigned else self.values.lookup(name, self.where)

    def _check_size(self, quantity: Quantity) -> None:
        """Refuse a concentration from the trigger in a compartment that may change until it is assigned."""
        varies = quantity.compartment is not None and quantity.compartment.role != "constant"
        if self.delay is not None and self.at_trigger and varies and not self._resizes(quantity):
            raise unsupported(
                f"it assigns the concentration of '{quantity.name}' with values from its trigger, and the size of the "
                "compartment may have changed when it is carried out.",
                self.where,
            )


def refuse_random_order(events: list[_Event]) -> None:
    """Refuse events with the same trigger and the same priority whose order matters: SBML draws it by chance."""
    found: dict[tuple[str, float], list[_Event]] = {}
    for event in events:
        if event.priority is not None:
            trigger = library().formulaToL3String(event.event.getTrigger().getMath())
            found.setdefault((trigger, event.values.nominal(event.priority)), []).append(event)
    for together in found.values():
        for i, event in enumerate(together):
            for other in together[:i]:
                if event.affects(other) or other.affects(event):
                    raise unsupported(
                        f"it has the trigger and the priority of event '{other.name}': SBML draws the order by chance.",
                        event.where,
                        "Give the events different priorities.",
                    )
