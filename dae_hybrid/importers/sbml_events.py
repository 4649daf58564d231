"""Events of SBML as transitions.

An event whose values, order or persistence other events may change passes through the queue of a delayed transition,
with a delay of zero if it has none: it is triggered before any event of the instant is carried out.
"""

from __future__ import annotations

from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.importers.errors import unsupported
from dae_hybrid.importers.sbml_mathml import Number, Truth
from dae_hybrid.importers.sbml_quantities import Quantity
from dae_hybrid.importers.sbml_values import RunValues
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.statement.expressions import free_name

#: priority of the transition that lets events fire at the start
AT_ONCE = 1e200


def add_events(values: RunValues, run: Mode, pending: int) -> None:
    """Declare a transition for every event, with places for so many pending executions."""
    stated = [event for event in values.inventory.model.getListOfEvents() if event.isSetTrigger()]
    events = [_Event(values, event, i) for i, event in enumerate(stated)]
    events = [event for event in events if event.condition.value is not False and event.assigned]
    fires_at_start = [event for event in events if not event.event.getTrigger().getInitialValue()]
    model, started = values.model, None
    if fires_at_start:
        started = model.memory(free_name("started", model.declarations), initial=0.0)
        model.transition(run, run, at=0.0, memory={started: 1.0}, priority=AT_ONCE, name="start of events")
    for event in events:
        event.declare(run, started if event in fires_at_start else None, pending, is_alone=len(events) == 1)


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

    def declare(self, run: Mode, started: ca.MX | None, pending: int, *, is_alone: bool) -> None:
        """Declare the transition; events that may fire at the start wait for `started`."""
        condition = self.condition.value
        if started is not None:
            is_on = started > 0.5
            condition = is_on if isinstance(condition, bool) else ca.logic_and(is_on, condition)
        elif isinstance(condition, bool):
            return  # true from the start: it never becomes true
        delay = self._number(self.event.getDelay())
        priority = self._number(self.event.getPriority())
        options: dict[str, Any] = {}
        if delay is not None or not is_alone:
            options["delay"] = 0.0 if delay is None else delay
            options["values"] = "trigger" if self.at_trigger else "execution"
            options["persistent"] = bool(self.event.getTrigger().getPersistent())
            options["pending"] = pending
        if priority is not None:
            options["priority"] = priority
        resets, memory = self._new_values(is_delayed=delay is not None)
        model = self.values.model
        name = free_name(self.name, model.transitions)
        try:
            model.transition(run, run, guard=condition, reset=resets, memory=memory, name=name, **options)
        except ModelError as reason:
            raise unsupported(reason.message, self.where, reason.remedy) from reason

    def _number(self, part: Any) -> Number | None:
        """Value of the delay or the priority; None if it is not stated."""
        if part is None or not part.isSetMath():
            return None
        return self.values.mathematics.number(part.getMath(), self.values, self.where)

    def _new_values(self, *, is_delayed: bool) -> tuple[dict[ca.MX, Number], dict[ca.MX, Number]]:
        """New values of the states and of the memory."""
        values, resets, memory = self.values, dict[ca.MX, Number](), dict[ca.MX, Number]()
        for quantity in values.inventory.quantities.values():
            if quantity.name in self.assigned:
                value = self.assigned[quantity.name]
                if quantity.role == "solved":
                    raise unsupported(f"it assigns '{quantity.name}', which algebraic rules determine.", self.where)
                if quantity.is_amount and quantity.compartment is not None:
                    self._check_size(quantity, is_delayed=is_delayed)
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

    def _check_size(self, quantity: Quantity, *, is_delayed: bool) -> None:
        """Refuse a concentration from the trigger in a compartment that may change until it is assigned."""
        varies = quantity.compartment is not None and quantity.compartment.role != "constant"
        if is_delayed and self.at_trigger and varies and not self._resizes(quantity):
            raise unsupported(
                f"it assigns the concentration of '{quantity.name}' with values from its trigger, and the size of the "
                "compartment may have changed when it is carried out.",
                self.where,
            )
