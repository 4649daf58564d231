"""The rules of entry and firing, one by one, for every engine that carries them out.

A trigger fires at t = 1 and puts a guard x where it is wanted: at `x` with the rate `v` and the acceleration `a`, in a
new mode or in the same one, where x was `was` before. What is looked at is when the observed transition fires, whose
guard x is: another one than the trigger, or the trigger itself. The rules stand in
dae_hybrid/simulation/event_logic.py, and for the compiled engine in event_loop.c.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import dae_hybrid as dh

END = 1.95


class Case(NamedTuple):
    """A guard on entry and what becomes of it: times at which it fires."""

    x: float
    v: float
    a: float
    direction: str
    fires: tuple[float, ...]
    passed: bool = False  # the guard is past its threshold, here or at the start, which `diagnostics` says
    refused: bool = False
    on_entry: str = "wait"
    where: str = "new"  # a new mode, or the "same"
    own: bool = False  # whether the trigger itself is observed
    was: float = -0.5  # of another one in the same mode
    native: bool = True  # whether the compiled engine carries the trigger out


NEXT = (1.5,)
BACK = 2.5  # acceleration that leads x = v t back to zero after 0.8
OTHER = {
    "armed, reached": Case(-0.5, 1, 0, "rising", NEXT),
    "armed, from above": Case(0.5, -1, 0, "falling", NEXT),
    "armed either way": Case(-0.5, 1, 0, "both", NEXT),
    "armed, not reached": Case(-0.5, -1, 0, "rising", ()),
    "zero and in its direction": Case(0, 1, 0, "rising", (1.0,), native=False),
    "zero and in its direction, falling": Case(0, -1, 0, "falling", (1.0,), native=False),
    "zero and the other way": Case(0, 1, 0, "falling", ()),
    "zero, the other way and back": Case(0, 1, -BACK, "falling", (1.8,)),
    "zero, either way": Case(0, 1, 0, "both", ()),
    "zero, either way and back": Case(0, -1, BACK, "both", (1.8,)),
    "zero at rest": Case(0, 0, 0, "rising", ()),
    "zero at rest, then away": Case(0, 0, -1, "rising", ()),
    "zero at rest, then in its direction": Case(0, 0, 1, "rising", (1.0,), native=False),
    "past": Case(0.5, 1, 0, "rising", (), passed=True, native=False),
    "past, falling": Case(-0.5, 1, 0, "falling", (), passed=True, native=False),
    "past, back and again": Case(0.5, -2.5, 5, "rising", (1.0 + 0.5 + 0.05**0.5,), passed=True, native=False),
    "past and fires": Case(0.5, 1, 0, "rising", (1.0,), on_entry="fire", native=False),
    "past and refused": Case(0.5, 1, 0, "rising", (), on_entry="error", refused=True, native=False),
    "clear of an invariant": Case(-0.5, 1, 0, "rising", NEXT, on_entry="fire"),
    "clear of a refusal": Case(-0.5, 1, 0, "rising", NEXT, on_entry="error"),
    "at zero of an invariant": Case(0, 1, 0, "rising", (1.0,), on_entry="fire", native=False),
}
SAME = {
    "the same, kept": Case(-0.5, 0, 0, "rising", ()),
    "the same, kept past": Case(0.5, 0, 0, "rising", (), was=0.5, passed=True),
    "the same, reached": Case(-0.5, 1, 0, "rising", NEXT),
    "the same, put past": Case(0.5, 0, 0, "rising", (), passed=True, native=False),
    "the same, put past, fires": Case(0.5, 0, 0, "rising", (1.0,), on_entry="fire", native=False),
    "the same, put past, refused": Case(0.5, 0, 0, "rising", (), on_entry="error", refused=True, native=False),
    "the same, put back": Case(-0.5, 1, 0, "rising", NEXT, was=0.5, passed=True),
    "the same, put to zero": Case(0, 1, 0, "rising", (1.0,), native=False),
    "the same, put to zero, away": Case(0, -1, 0, "rising", ()),
    "the same, put to zero, away and back": Case(0, -1, BACK, "rising", (1.8,)),
    "the same, put to zero, either way": Case(0, 1, 0, "both", (1.0,), native=False),
}
OWN = {
    "its own, brought back": Case(-0.5, 1, 0, "rising", (1.0, 1.5)),
    "its own, kept at zero": Case(0, 1, 0, "rising", (1.0,)),
    "its own, turned round": Case(0, -1, 0, "rising", (1.0,)),
    "its own, turned round and back": Case(0, -1, BACK, "rising", (1.0, 1.8)),
    "its own, moved on": Case(0.5, 1, 0, "rising", (1.0,)),
    "its own, moved on, fires": Case(0.5, 1, 0, "rising", (1.0,), on_entry="fire"),
    "its own, at rest": Case(0, 0, 0, "rising", (1.0,)),
    "its own, either way, back": Case(0, -1, BACK, "both", (1.0, 1.8)),
}
#: x is when the observed transition is due, which has a time in place of a guard
ALARMS = {
    "due later": Case(1.5, 0, 0, "alarm", NEXT),
    "due with the trigger": Case(1.0, 0, 0, "alarm", (1.0,), native=False),
    "due before the mode was entered": Case(0.5, 0, 0, "alarm", ()),
    "due later in the same": Case(1.5, 0, 0, "alarm", NEXT, where="same"),
    "due with the trigger in the same": Case(1.0, 0, 0, "alarm", (1.0,), where="same", native=False),
}
CASES = {
    **ALARMS,
    **OTHER,
    **{name: case._replace(where="same") for name, case in SAME.items()},
    **{name: case._replace(where="same", own=True) for name, case in OWN.items()},
}
ENGINES = {
    "compiled": {},
    "compiled, implicit": {"method": "bdf"},
    "python": {"native_events": False},
    "scipy": {"adapter": "scipy", "rtol": 1e-8},
}


#: x and v at the start, and those and a after the trigger
GIVEN = ("was", "start", "put x", "put v", "put a")


@cache
def system(direction: str, on_entry: str, where: str, *, own: bool) -> dh.HybridSystem:
    """The motion with its trigger; s is the time, so that two guards move."""
    m = dh.HybridModel("entry")
    was, start, put_x, put_v, put_a = (m.parameter(name, 0.0) for name in GIVEN)
    x, v, s, a = m.differential("x"), m.differential("v"), m.differential("s"), m.memory("a", initial=0.0)
    ode = {x: v, v: a, s: 1.0}
    first = m.mode("first", ode=ode)
    target = first if where == "same" else m.mode("second", ode=ode)
    put = {"reset": {x: put_x, v: put_v}, "memory": {a: put_a}}
    if own:
        m.transition(first, first, guard=x, direction=direction, on_entry=on_entry, name="observed", **put)
    else:
        m.transition(
            first, target, guard=(m.time if direction == "alarm" else s) - 1, direction="rising", name="trigger", **put
        )
        last = m.mode("last", ode=ode)
        what = {"at": put_x} if direction == "alarm" else {"guard": x, "direction": direction, "on_entry": on_entry}
        m.transition(target, last, **what, name="observed")
    m.initial(first, {x: was, v: start, s: 0.0})
    m.functional("G", terminal=x)
    return m.build()


@pytest.mark.product
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_entry(name: str, engine: str) -> None:
    case = CASES[name]
    built = system(case.direction, case.on_entry, case.where, own=case.own)
    start = (-1.0, 1.0) if case.own else (case.was, 0.0)
    given = dict(zip(GIVEN, (*start, case.x, case.v, case.a), strict=True))
    options: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11, **ENGINES[engine]}
    if case.refused:
        with pytest.raises(dh.GuardPassedError) as caught:
            dh.simulate(built, (0, END), parameters=given, **options)
        assert caught.value.transition == "observed"
        assert caught.value.mode == ("second" if case.where == "new" else "first")
        assert caught.value.time == pytest.approx(1.0, abs=1e-7)
        assert caught.value.trajectory.t[-1] == caught.value.time
        assert "on_entry" in str(caught.value)
        return
    sol = dh.simulate(built, (0, END), parameters=given, **options)
    observed = [event for event in sol.events if event.transition == "observed"]
    assert [event.time for event in observed] == pytest.approx(case.fires, abs=1e-6)
    at_once = [event for event in sol.events if abs(event.time - 1.0) < 1e-6]
    assert len({event.time for event in at_once}) == 1
    assert [event.order for event in at_once] == list(range(len(at_once)))
    said = [note for note in sol.diagnostics.notes if "'observed'" in note and "past" in note]
    assert bool(said) == case.passed
    by_compiled = sol.statistics["native_events"]
    if not engine.startswith("compiled"):
        assert by_compiled == 0
    elif case.native:
        assert by_compiled == len(sol.events)
    else:
        assert by_compiled <= len(sol.events) - len(at_once)


def test_the_table_is_complete() -> None:
    """Every direction, every answer to a guard that is past, either mode, and both outcomes for the engines."""
    cases = CASES.values()
    assert {case.direction for case in cases} == {"rising", "falling", "both", "alarm"}
    assert {case.on_entry for case in cases} == {"wait", "fire", "error"}
    assert {np.sign(case.x) for case in cases} == {-1, 0, 1}
    for where in ("new", "same"):
        assert {case.native for case in cases if case.where == where} == {True, False}
