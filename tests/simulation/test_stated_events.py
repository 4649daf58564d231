"""Conditions, clocks, queues, and tables of times: closed forms, both engines, adapters, derivatives, refusals."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import casadi as ca
import event_models
import numpy as np
import pytest

import dae_hybrid as dh

OPTIONS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
NAMES = list(event_models.MODELS)


@cache
def stated(name: str) -> dh.HybridSystem:
    """The built model of a name."""
    return event_models.MODELS[name][0]().build()


@cache
def gradients(name: str) -> dh.GradientCheck:
    """The gradient of its functional in three ways."""
    return dh.check_gradient(stated(name), event_models.MODELS[name][1], "G", **OPTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_give_the_same_events(name: str) -> None:
    _, span, counts = event_models.MODELS[name]
    native, python = (dh.simulate(stated(name), span, native_events=native, **OPTIONS) for native in (True, False))
    assert Counter(event.transition for event in native.events if '"' not in event.transition) == counts
    assert [event.transition for event in native.events] == [event.transition for event in python.events]
    np.testing.assert_allclose([e.time for e in native.events], [e.time for e in python.events], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(native.functionals["G"], python.functionals["G"], rtol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_forward_adjoint_and_differences_agree(name: str) -> None:
    found = gradients(name)
    assert found.same_events
    assert found.difference("adjoint", "forward") < 1e-7
    assert found.difference("finite_difference", "forward") < 2e-5


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_give_the_same_gradient(name: str) -> None:
    span = event_models.MODELS[name][1]
    python = dh.forward_sensitivity(stated(name), span, native_events=False, **OPTIONS).gradient["G"]
    np.testing.assert_allclose(gradients(name).gradients["forward"], python, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        *((name, "scipy") for name in NAMES),
        *(
            pytest.param(name, "casadi", marks=[] if i % 5 == 0 else pytest.mark.campaign)
            for i, name in enumerate(NAMES)
        ),
    ],
)
def test_other_adapters_give_the_same(name: str, adapter: str) -> None:
    own, span = gradients(name), event_models.MODELS[name][1]
    other = dh.adjoint_gradient(stated(name), span, "G", adapter=adapter, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(other.value, own.value, rtol=1e-6)
    np.testing.assert_allclose(other.gradient, own.gradients["adjoint"], rtol=1e-4, atol=1e-5)


# -- closed forms and the order of an instant ---------------------------------------------------------


def ramp() -> dh.HybridModel:
    """x' = 1 from 0, q' = 0 from 1."""
    m = dh.HybridModel("ramp")
    x, q = m.differential("x"), m.differential("q")
    run = m.mode("run", ode={x: 1, q: 0})
    m.initial(run, {x: 0.0, q: 1.0})
    m.functional("G", terminal=q)
    return m


def symbols(m: dh.HybridModel) -> list[ca.MX]:
    """x and q."""
    return [m.lookup(name, "").symbol for name in ("x", "q")]


def names(system: dh.HybridSystem, span: tuple[float, float] = (0, 3), **options: Any) -> list[str]:
    """Names of the events, relations left out."""
    return [e.transition for e in dh.simulate(system, span, **options).events if '"' not in e.transition]


def test_bounces_are_counted() -> None:
    span = event_models.MODELS["counted bounces"][1]
    found = dh.adjoint_gradient(stated("counted bounces"), span, "G", **OPTIONS)
    top = 1 + 0.1**2 / (2 * 9.81)
    np.testing.assert_allclose(found.value, 0.8**6 * top, rtol=1e-9)
    np.testing.assert_allclose(found.gradient, [6 * 0.8**5 * top, 0.8**6], rtol=1e-8)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("low", "high", "value"), [(1.0, 2.0, 3.0), (2.0, 1.0, 4.0), (1.0, 1.0, 4.0)])
def test_the_highest_priority_fires_first(native: bool, low: float, high: float, value: float) -> None:
    m = ramp()
    x, q = symbols(m)
    own = m.parameter("own", low)
    m.transition("run", "run", guard=x > 1, reset={q: q + 1}, priority=own, name="add")
    m.transition("run", "run", guard=x > 1, reset={q: 2 * q}, priority=high, name="double")
    system = m.build(native=native)
    first = ["add", "double"] if low >= high else ["double", "add"]
    assert names(system) == first
    assert dh.simulate(system, (0, 3)).functionals["G"] == value


def test_a_time_event_of_higher_priority_precedes_a_guard() -> None:
    m = ramp()
    x, q = symbols(m)
    m.transition("run", "run", guard=x > 1, reset={q: q + 1}, name="guard")
    m.transition("run", "run", at=1.0, reset={q: 2 * q}, priority=1, name="time")
    assert names(m.build(native=False)) == ["time", "guard"]


def test_a_condition_holds_at_the_event_or_nothing_happens() -> None:
    m = ramp()
    x, q = symbols(m)
    m.transition("run", "run", guard=x - 1, reset={q: q + 1}, when=q > 2, name="never")
    m.transition("run", None, every=0.8, when=m.time > 1.5, name="end")
    system = m.build()
    assert names(system) == ["end not taken", "never not taken", "end"]
    assert dh.simulate(system, (0, 3)).final[0] == 1.6


def test_a_condition_at_its_threshold_has_no_derivative() -> None:
    m = ramp()
    x, q = symbols(m)
    c = m.parameter("c", 1.0)
    m.transition("run", "run", guard=x - 1, reset={q: q + 1}, when=m.time >= c, name="touch")
    with pytest.raises(dh.EventError, match="touch"):
        dh.adjoint_gradient(m.build(), (0, 3), "G", **OPTIONS)
    below = dh.adjoint_gradient(m.build(), (0, 3), "G", parameters={"c": 0.9}, **OPTIONS)
    assert (below.value, below.gradient[0]) == (2.0, 0.0)


def test_a_clock_ticks_at_the_start_and_its_multiple_with_it() -> None:
    m = ramp()
    x, _ = symbols(m)
    a, b = m.discrete("a", initial=0.0), m.discrete("b", initial=0.0)
    fast = m.clock(0.1, name="fast")
    m.update(fast, {a: a + 1})
    m.update(m.clock(fast, factor=3, name="slow"), {b: a})
    m.functional("both", terminal=ca.vertcat(a, b, x))
    for native in (True, False):
        sol = dh.simulate(m.build(), (0, 0.95), native_events=native)
        np.testing.assert_allclose(sol.functionals["both"], [10, 10, 0.95])
        assert [e.transition for e in sol.events][:3] == ["fast", "slow", "fast"]


def test_updates_use_the_values_before_the_tick() -> None:
    m = ramp()
    a, b = m.discrete("a", initial=1.0), m.discrete("b", initial=2.0)
    clock = m.clock(1.0, offset=0.5)
    m.update(clock, {a: b})
    m.update(clock, {b: a})
    m.functional("both", terminal=ca.vertcat(a, b))
    np.testing.assert_array_equal(dh.simulate(m.build(native=False), (0, 1)).functionals["both"], [2, 1])


def test_pending_transitions_are_cancelled_within_an_instant() -> None:
    """Two events of SBML that are due at once: the first one makes the trigger of the second one false."""
    m = ramp()
    x, q = symbols(m)
    for name, priority in (("low", 1), ("high", 2)):
        m.transition(
            "all", "same", guard=dh.all_of(x > 1, q < 2), delay=0, values="trigger", persistent=False, pending=1,
            priority=priority, reset={q: q + 5}, name=name,
        )  # fmt: skip
    found = [name for name in names(m.build(native=False)) if name in ("low", "high")]
    assert found == ["high"]


def test_pending_transitions_are_carried_out_by_priority() -> None:
    m = ramp()
    x, q = symbols(m)
    for name, priority in (("low", 1), ("high", 2)):
        m.transition(
            "all", "same", guard=x > 1, delay=0.5, values="trigger", pending=1, priority=priority,
            reset={q: q + priority}, name=name,
        )  # fmt: skip
    system = m.build(native=False)
    assert names(system) == ["low triggered", "high triggered", "high", "low"]
    assert dh.simulate(system, (0, 3)).functionals["G"] == 2.0  # both have the value of their trigger


def test_a_full_queue_is_refused() -> None:
    m = ramp()
    _, q = symbols(m)
    m.transition("run", "run", every=0.1, delay=1.05, pending=3, reset={q: q + 1}, name="slow")
    with pytest.raises(dh.ConsistencyError, match="More than 3 executions of transition 'slow' are pending") as raised:
        dh.simulate(m.build(native=False), (0, 3))
    assert raised.value.time == pytest.approx(0.4)


def test_a_negative_delay_is_refused() -> None:
    m = ramp()
    x, q = symbols(m)
    d = m.parameter("d", -0.1)
    m.transition("run", "run", guard=x > 1, delay=d, reset={q: q + 1}, name="early")
    with pytest.raises(dh.EventError, match="The delay of transition 'early' is negative"):
        dh.simulate(m.build(native=False), (0, 3))


def test_times_in_memory_that_are_past_do_not_fire() -> None:
    m = ramp()
    _, q = symbols(m)
    due = m.memory("due", initial=0.5)
    m.transition("run", "run", at=due, reset={q: q + 1}, memory={due: due + 0.6}, name="next")
    m.transition("run", "run", at=2.0, memory={due: 1.9}, name="back")
    assert names(m.build()) == ["next", "next", "next", "back"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"source": "nowhere"}, "source 'nowhere' is not a mode"),
        ({"source": []}, "source must be a mode"),
        ({"source": ["run", "run"]}, "names a mode twice"),
        ({"delay": -1.0}, "delay must not be negative"),
        ({"delay": 1.0, "values": "later"}, "values must be"),
        ({"delay": 1.0, "persistent": 1}, "persistent must be"),
        ({"delay": 1.0, "pending": 0}, "pending must be"),
        ({"values": "trigger"}, "without a delay"),
        ({"at": [1.0, 2.0], "guard": None, "reset": {"q": [1.0, 2.0, 3.0]}}, "one row for each time"),
        ({"guard": None, "every": "clock"}, "every of transition"),
        ({"when": [1.0, 2.0]}, "when of transition"),
    ],
)
def test_statements_are_refused(words: dict[str, Any], said: str) -> None:
    m = ramp()
    x, _ = symbols(m)
    with pytest.raises(dh.ModelError, match=said):
        m.transition(**({"source": "run", "target": "same", "guard": x - 1, "direction": "both"} | words))


def test_clocks_are_refused() -> None:
    m, other = ramp(), ramp()
    clock, u = m.clock(1.0), m.discrete("u", initial=0.0)
    with pytest.raises(dh.ModelError, match="is not a clock of model"):
        other.transition("run", "same", every=clock)
    with pytest.raises(dh.ModelError, match="factor= needs another clock"):
        m.clock(1.0, factor=2)
    m.update(clock, {u: 1.0})
    with pytest.raises(dh.ModelError, match="updates u twice"):
        m.update(clock, {u: 2.0})
    m.active("nowhere")
    with pytest.raises(dh.ModelError, match="names nowhere, which is not a mode"):
        m.build(native=False)


def test_rates_are_given_once() -> None:
    m = ramp()
    m.equations("again", ode={symbols(m)[0]: 2.0})
    with pytest.raises(dh.ModelError, match="x is given twice: by mode 'run' and by equations 'again'"):
        m.build(native=False)
    with pytest.raises(dh.ModelError, match="stated twice"):
        m.equations("again", ode={})


def test_a_clock_does_not_begin_before_the_run() -> None:
    m = ramp()
    m.update(m.clock(1.0, offset=-0.5), {m.discrete("u", initial=0.0): 1.0})
    with pytest.raises(dh.NonFiniteError, match="precedes the start"):
        dh.simulate(m.build(native=False), (0, 1))


# -- defects that a reader found -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["late triggered", "late 0", "late 1", "late place"])
def test_names_of_parts_do_not_collide_with_stated_ones(name: str) -> None:
    m = ramp()
    x, q = symbols(m)
    m.transition("run", "run", guard=x > 1, delay=0.5, reset={q: q + 10}, name="late")
    m.transition("run", "run", guard=x > 0.25, reset={q: q + 1}, name=name)
    assert dh.simulate(m.build(native=False), (0, 3)).functionals["G"] == 12


def test_names_of_modes_and_times_do_not_collide_with_stated_ones() -> None:
    m = ramp()
    x, q = symbols(m)
    m.transition("all", "same", at=[0.5, 0.7], reset={q: q + ca.DM([1, 2])}, name="dose")
    for name in ("dose in run", "dose 0", "dose 0 in run"):
        m.transition("all", "same", guard=x > 1, reset={q: q + 10}, name=name)
    assert dh.simulate(m.build(native=False), (0, 3)).functionals["G"] == 34


def test_entries_that_are_not_given_are_those_of_the_execution() -> None:
    m = dh.HybridModel("entries")
    x, v = m.differential("x"), m.differential("v", size=2)
    r = m.memory("r", initial=[0.0, 0.0], size=2)
    run = m.mode("run", ode={x: 1, v: [1, 2]})
    m.transition(run, run, guard=x > 1, delay=0.5, values="trigger", reset={v[0]: 10.0}, memory={r[0]: x}, name="late")
    m.transition(run, run, guard=x > 1.2, memory={r[1]: 7.0}, name="set")
    m.initial(run, {x: 0.0, v: [0.0, 0.0]})
    m.functional("end", terminal=ca.vertcat(v, r))
    restored = dh.HybridModel.from_text(m.to_text())
    for model in (m, restored):
        end = dh.simulate(model.build(native=False), (0, 2)).functionals["end"]
        np.testing.assert_allclose(end, [10.5, 4, 1, 7], rtol=1e-8)


@pytest.mark.parametrize("guard", [lambda x: x > 1, lambda x: x - 1], ids=["condition", "crossing"])
def test_a_reset_that_takes_the_guard_back_cancels(guard: Any) -> None:
    m = ramp()
    x, q = symbols(m)
    m.transition(
        "run", "run", guard=guard(x), direction="rising", delay=0.5, persistent=False, reset={q: q + 1}, name="late"
    )
    m.transition("run", "run", at=1.2, reset={x: -5.0}, name="back")
    assert dh.simulate(m.build(native=False), (0, 3)).functionals["G"] == 1


def test_places_of_short_delays_are_used_again() -> None:
    m = ramp()
    x, q = symbols(m)
    m.transition("run", "run", every=0.4, delay=ca.if_else(x < 0.5, 5.0, 0.1), pending=2, reset={q: q + 1}, name="late")
    assert dh.simulate(m.build(native=False), (0, 2.3)).functionals["G"] == 5


@pytest.mark.parametrize("native", [True, False])
def test_a_time_event_precedes_an_execution_of_lower_priority(native: bool) -> None:
    m = ramp()
    _, q = symbols(m)
    m.transition("run", "run", at=0.5, delay=0.5, priority=1, reset={q: 3 * q}, name="execution")
    m.transition("run", "run", at=1.0, priority=5, reset={q: q + 1}, name="time")
    sol = dh.simulate(m.build(native=native), (0, 3), native_events=native)
    assert [e.transition for e in sol.events] == ["execution triggered", "time", "execution"]
    assert sol.functionals["G"] == 6


@pytest.mark.parametrize("p", [1.0, 1 + 1e-12, 1 - 1e-12])
def test_tied_priorities_have_no_derivative(p: float) -> None:
    m = dh.HybridModel("tied")
    k = m.parameter("k", p)
    x, q = m.differential("x"), m.differential("q")
    run = m.mode("run", ode={x: k, q: 0})
    m.transition(run, run, at=1.0, priority=1, reset={q: q + 1}, name="add")
    m.transition(run, run, at=1.0, priority=x, reset={q: 2 * q}, name="double")
    m.initial(run, {x: 0.0, q: 0.0})
    m.functional("G", terminal=q * x)
    with pytest.raises(dh.EventError, match="priorities of"):
        dh.adjoint_gradient(m.build(native=False), (0, 2), "G", **OPTIONS)
    assert dh.adjoint_gradient(m.build(native=False), (0, 2), "G", parameters=[0.9], **OPTIONS).gradient[0] > 0


@pytest.mark.parametrize("p", [0.5, 0.5 + 1e-12, 0.5 - 1e-12])
def test_memory_at_a_threshold_has_no_derivative(p: float) -> None:
    m = ramp()
    x, q = symbols(m)
    k, level = m.parameter("k", p), m.memory("level", initial=0.0)
    m.transition("run", "run", at=1.0, memory={level: k * x}, name="write")
    m.transition("run", "run", guard=level - 0.5, direction="rising", reset={q: q + k}, name="high")
    with pytest.raises(dh.EventError):
        dh.adjoint_gradient(m.build(native=False), (0, 2), "G", **OPTIONS)


def test_memory_crosses_in_both_directions() -> None:
    m = ramp()
    _, q = symbols(m)
    level = m.memory("level", initial=0.0)
    for time, value in ((0.5, 1.0), (1.0, -1.0), (1.5, 2.0)):
        m.transition("run", "run", at=time, memory={level: value}, name=f"write {time}")
    m.transition("run", "run", guard=level - 0.5, reset={q: q + 1}, name="cross")
    assert dh.simulate(m.build(native=False), (0, 2)).functionals["G"] == 4


@pytest.mark.parametrize("first", ["update", "transition"])
def test_an_update_is_carried_out_where_its_tick_leaves_the_mode(first: str) -> None:
    m = dh.HybridModel("leaving")
    x, n = m.differential("x"), m.discrete("n", initial=0.0)
    off, on = m.mode("off", ode={x: 1}), m.mode("on", ode={x: -1})
    clock = m.clock(0.1)
    if first == "update":
        m.update(clock, {n: n + 1})
    m.transition(off, on, every=clock, name="go")
    m.transition(on, off, at=[0.05, 0.15, 0.25], name="back")
    if first == "transition":
        m.update(clock, {n: n + 1})
    m.initial(off, {x: 0.0})
    m.functional("n", terminal=n)
    for native in (True, False):
        assert dh.simulate(m.build(), (0, 0.95), native_events=native).functionals["n"] == 10


def test_values_after_a_delayed_transition_are_not_those_of_the_trigger() -> None:
    m = ramp()
    x, _ = symbols(m)
    r = m.memory("r", initial=0.0)
    with pytest.raises(dh.ModelError, match=r"uses post\(x\)"):
        m.transition(
            "run", "run", guard=x > 1, delay=0.1, values="trigger", reset={x: 2 * x}, memory={r: m.post(x)}, name="late"
        )


def test_a_time_of_memory_does_not_follow_the_state() -> None:
    m = ramp()
    x, _ = symbols(m)
    due = m.memory("due", initial=0.5)
    m.transition("run", "run", at=due + 0.5 * x, name="late")
    with pytest.raises(dh.ModelError, match="uses x; it may depend on parameters and memory only"):
        m.build(native=False)


@pytest.mark.parametrize("words", [{"when": ca.sqrt}, {"priority": ca.sqrt}])
def test_conditions_that_are_no_numbers_are_refused(words: dict[str, Any]) -> None:
    m = ramp()
    x, _ = symbols(m)
    m.transition("run", "run", at=1.0, name="a", **{key: make(x - 5) for key, make in words.items()})
    m.transition("run", "run", at=1.0, name="b")
    for native in (True, False):
        with pytest.raises(dh.NonFiniteError, match="is NaN or infinite"):
            dh.simulate(m.build(), (0, 2), native_events=native)


def test_a_guard_of_several_modes_may_be_constant_in_some() -> None:
    m = dh.HybridModel("constant")
    x, n = m.differential("x"), m.memory("n", initial=0.0)
    a, b = m.mode("a", ode={x: 1}), m.mode("b", ode={x: 1})
    m.transition("all", "same", guard=m.active("a") * x - 0.5, direction="rising", memory={n: n + 1}, name="high")
    m.transition(a, b, at=1.0)
    m.initial(a, {x: 0.0})
    m.functional("n", terminal=n)
    assert dh.simulate(m.build(native=False), (0, 2)).functionals["n"] == 1


def test_a_mode_that_is_entered_and_left_at_the_end_has_an_adjoint() -> None:
    """The run ends within the instant in which it enters a mode with a variable of its own."""
    m = dh.HybridModel("end")
    a, x, y = m.parameter("a", 0.5), m.differential("x"), m.differential("y")
    z = m.algebraic("z")
    run = m.mode("run", ode={x: a, y: x})
    last = m.mode("last", ode={x: a, y: z}, algebraic=[z + 0.1 * z**3 - x])
    m.transition(run, last, guard=x > 1, name="enter")
    m.transition(last, None, guard=x > 0.9, on_entry="fire", name="end")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    found = dh.check_gradient(m.build(native=False, eliminate=False), (0, 3), "G", **OPTIONS)
    assert found.value == pytest.approx(1.0, rel=1e-8)
    np.testing.assert_allclose(found.gradients["adjoint"], [-2.0], rtol=1e-7)
