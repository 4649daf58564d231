"""Events and measurements closer than the accuracy of the run: both outcomes are computed and reported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.conditions import certify

OPTIONS: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}
#: accuracy of times, relative to the elapsed time
TIED, APART = (0.0, 1e-15, -1e-15, 1e-12, -1e-12, 1e-10, -1e-10), (1e-6, -1e-6)
WAYS = [
    pytest.param(True, {}, id="native"),
    pytest.param(True, {"method": "bdf"}, id="bdf"),
    pytest.param(True, {"method": "adams"}, id="adams"),
    pytest.param(False, {}, id="interpreted"),
    pytest.param(False, {"adapter": "scipy"}, id="scipy"),
]
#: the time at which x' = k (x + 1/2), x(0) = 0 comes to 1, where k = 1
REACHED = float(np.log(3))

pytestmark = pytest.mark.uncertified  # the duality check would take the other side


def tied(native: bool) -> tuple[float, ...]:
    """Offsets within the accuracy of a run; a share of them where nothing is compiled."""
    return TIED if native else (0.0, 1e-15, -1e-12, 1e-10)


def gradient(system: dh.HybridSystem, span: tuple[float, float], functional: str, analysis: str, **options: Any) -> Any:
    """The gradient of a functional by an analysis, and its warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if analysis == "adjoint":
            found = dh.adjoint_gradient(system, span, functional, **OPTIONS, **options).gradient
        else:
            found = dh.forward_sensitivity(system, span, **OPTIONS, **options).gradient[functional]
    return found, [str(one.message) for one in said]


def names_both(system: dh.HybridSystem, span: Any, functional: str, both: tuple[str, ...], **options: Any) -> None:
    """Both analyses warn of, or refuse, a tie, and name both sides."""
    for analysis in ("forward", "adjoint"):
        try:
            _, said = gradient(system, span, functional, analysis, **options)
        except dh.EventError as error:
            said = [error.message]
        assert said, analysis
        for value in both:
            assert value in said[0], said[0]


def agrees(system: dh.HybridSystem, span: Any, functional: str, exact: Any, **options: Any) -> None:
    """Both analyses are silent and right."""
    for analysis in ("forward", "adjoint"):
        found, said = gradient(system, span, functional, analysis, **options)
        assert not said, said
        np.testing.assert_allclose(found, exact, rtol=2e-6, atol=1e-7)


# -- measurements -------------------------------------------------------------------------------------------------


@cache
def measured(kind: str, *, native: bool) -> dh.HybridSystem:
    """z gains x when x reaches b, or at b log 3; G measures x + z and S x, o after log 3; M after b log 3."""
    m = dh.HybridModel("measured")
    b, k, o = m.parameter("b", 1.0), m.parameter("k", 1.0), m.parameter("o", 0.0)
    x, z = m.differential("x"), m.differential("z")
    run = m.mode("run", ode={x: k * (x + 0.5), z: 0.0})
    how: dict[str, Any] = {"guard": x - b, "direction": "rising"} if kind == "guard" else {"at": b * REACHED}
    m.transition(run, run, reset={z: z + x}, name="jump", **how)
    m.initial(run, {x: 0.0, z: 0.0})
    m.functional("G", at_times={REACHED + o: x + z})
    m.functional("S", at_times={REACHED + o: x})
    m.functional("M", at_times={b * REACHED + o: x + z})
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), WAYS)
@pytest.mark.parametrize("kind", ["guard", "at"])
def test_a_measurement_beside_an_event(kind: str, native: bool, options: dict[str, Any]) -> None:
    system = measured(kind, native=native)
    options = {**options, "wrt": ["b", "k"]}
    for o in (*tied(native), *APART):
        options["parameters"] = {"o": o}
        t = REACHED + o
        by_k, after = t * np.exp(t) / 2, o > 0
        by_z = [1.0, 0.0] if kind == "guard" else [1.5 * REACHED, 1.5 * REACHED]
        if o in APART:
            exact = [by_z[0] * after, by_k + by_z[1] * after]
            found, said = gradient(system, (0, 2), "G", "adjoint", **options)
            assert not said
            np.testing.assert_allclose(found, exact, rtol=2e-6, atol=1e-7)
        else:
            try:
                _, said = gradient(system, (0, 2), "G", "adjoint", **options)
            except dh.EventError as error:
                said = [error.message]
            assert len(said) == 1
            assert "1., with derivatives [0. , 1.64791" in said[0], said
            assert "2., with derivatives [1" in said[0], said
        found, said = gradient(system, (0, 2), "S", "adjoint", **options)
        assert not said
        np.testing.assert_allclose(found, [0.0, by_k], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_a_measurement_that_moves_with_its_event_has_a_derivative(native: bool, options: dict[str, Any]) -> None:
    """x + z at b log 3 + o, by b and k: on the side that it is on, after the event where they are the same time."""
    system = measured("at", native=native)
    for o in (*tied(native), *APART):
        after, t = o > -1e-14, REACHED + o
        by_b = 1.5 * np.exp(o) * REACHED + 1.5 * REACHED * after
        by_k = t * np.exp(t) / 2 + 1.5 * REACHED * after
        found, said = gradient(system, (0, 2), "M", "adjoint", parameters={"o": o}, wrt=["b", "k"], **options)
        assert not said
        np.testing.assert_allclose(found, [by_b, by_k], rtol=2e-6)


def test_forward_analysis_names_the_functionals_that_are_tied() -> None:
    system = measured("guard", native=False)
    _, said = gradient(system, (0, 2), "G", "forward", wrt=["b", "k"])
    assert any("'G' is measured" in one for one in said)
    assert not any("'S' is measured" in one for one in said)


# -- outputs ------------------------------------------------------------------------------------------------------


@cache
def stairs(kind: str, *, native: bool) -> dh.HybridSystem:
    """x rises by d every tenth of a second."""
    m = dh.HybridModel("stairs")
    d = m.parameter("d", 0.1)
    x, c = m.differential("x"), m.differential("c")
    run = m.mode("run", ode={x: 0.0, c: 1.0})
    if kind == "every":
        m.transition(run, run, every=0.1, reset={x: x + d})
    else:
        m.transition(run, run, guard=c - 0.1, direction="rising", reset={x: x + d, c: 0.0})
    m.initial(run, {x: 0.0, c: 0.0})
    m.functional("G", at_times={i * 0.1: x for i in range(1, 10)})
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), [*WAYS, pytest.param(False, {"adapter": "casadi"}, id="casadi")])
@pytest.mark.parametrize("kind", ["every", "guard"])
def test_an_output_at_the_time_of_an_event_shows_what_is_after_it(
    kind: str, native: bool, options: dict[str, Any]
) -> None:
    """Multiples of 0.1, as NumPy, a product and a sum have them."""
    system, steps = stairs(kind, native=native), np.arange(1, 10)
    for times in (np.linspace(0.1, 0.9, 9), steps * 0.1, np.cumsum(np.full(9, 0.1))):
        sol = dh.simulate(system, (0, 1), t_eval=times, **OPTIONS, **options)
        np.testing.assert_array_equal(sol.t, times)
        np.testing.assert_allclose(sol["x"], steps / 10)
        dense = dh.simulate(system, (0, 1), **OPTIONS, **options)
        np.testing.assert_allclose(dense(times)["x"], steps / 10)
        np.testing.assert_allclose(dense(times, side="left")["x"], (steps - 1) / 10, atol=1e-12)
        assert sol.functionals["G"] == pytest.approx(4.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a guard's time is not known to rounding, and G changes with it
            fsa = dh.forward_sensitivity(system, (0, 1), t_eval=times, **OPTIONS, **options)
        np.testing.assert_allclose(fsa["x"].reshape(-1), steps)
        np.testing.assert_allclose(fsa.gradient["G"], 45.0)


@pytest.mark.parametrize("native", [True, False])
def test_an_output_at_the_end_of_a_run_that_an_event_ends(native: bool) -> None:
    m = dh.HybridModel("ended")
    x = m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, None, at=0.1 + 0.2)
    m.initial(run, {x: 0.0})
    system = m.build(native=native)
    for last in (0.3, 0.1 + 0.2):
        sol = dh.simulate(system, (0, 1), t_eval=[0.1, last])
        np.testing.assert_array_equal(sol.t, [0.1, last])
        np.testing.assert_allclose(sol["x"], [0.1, 0.3])
        fsa = dh.forward_sensitivity(system, (0, 1), t_eval=[0.1, last])
        np.testing.assert_array_equal(fsa.t, [0.1, last])


@pytest.mark.parametrize("native", [True, False])
def test_a_tick_at_the_end_of_the_run_but_for_rounding(native: bool) -> None:
    """3 times 0.1 is more than 0.3, and 0.1 times 7 more than 0.7."""
    system = stairs("every", native=native)
    for n in range(9, 12):
        assert dh.simulate(system, (0, n / 10 + 0.05)).events[-1].count == n
        assert dh.simulate(system, (0, max(n / 10, 0.9 + 1e-15))).events[-1].count == n


# -- the end of the run -------------------------------------------------------------------------------------------


@cache
def late(*, native: bool) -> dh.HybridSystem:
    """z gains 1 where x comes to b; E ends with z, X with x, C has the integral of z."""
    m = dh.HybridModel("late")
    b, k = m.parameter("b", 1.0), m.parameter("k", 1.0)
    x, z = m.differential("x"), m.differential("z")
    run = m.mode("run", ode={x: k * (x + 0.5), z: 0.0})
    m.transition(run, run, guard=x - b, direction="rising", reset={z: z + 1}, name="late")
    m.initial(run, {x: 0.0, z: 0.0})
    m.functional("E", terminal=z)
    m.functional("X", terminal=x)
    m.functional("C", integrand=z)
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_an_event_beside_the_end_of_the_run(native: bool, options: dict[str, Any]) -> None:
    system = late(native=native)
    for o in (*tied(native), *APART):
        end = REACHED + o
        by_k = end * np.exp(end) / 2
        found, said = gradient(system, (0, end), "X", "adjoint", **options)
        assert not said  # nothing in X depends on it
        np.testing.assert_allclose(found, [0.0, by_k], rtol=2e-6, atol=1e-8)
        if o in APART:
            agrees(system, (0, end), "E", [0.0, 0.0], **options)
            # the integral of z is the time after log(2 b + 1) / k
            exact = [-2 / 3, REACHED] if o > 0 else [0.0, 0.0]
            agrees(system, (0, end), "C", exact, **options)
        else:
            names_both(system, (0, end), "E", ("0.", "1."), **options)
            for analysis in ("forward", "adjoint"):
                try:
                    _, said = gradient(system, (0, end), "C", analysis, **options)
                except dh.EventError as error:
                    said = [error.message]
                assert "-0.666667" in said[0]


# -- knots of signals ---------------------------------------------------------------------------------------------


@cache
def at_a_knot(kind: str, *, native: bool) -> dh.HybridSystem:
    """x' = s(t), whose rate or value changes at t = 1, where x comes to c = 1; then y takes on the time."""
    m = dh.HybridModel("knot")
    c = m.parameter("c", 1.0)
    x, y = m.differential("x"), m.differential("y")
    if kind == "linear":
        s = m.signal("s", [0.0, 1.0, 2.0], [1.0, 1.0, 3.0])
    else:
        s = m.signal("s", [0.0, 1.0, 2.0], [1.0, 4.0, 4.0], kind="previous")
    run = m.mode("run", ode={x: s, y: 0.0})
    m.transition(run, run, guard=x - c, direction="rising", reset={y: m.time}, name="jump")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_an_event_beside_a_knot(native: bool, options: dict[str, Any]) -> None:
    """The time of the event moves by 1 with c, or by 1/4 after a knot at which s jumps."""
    for o in (*tied(native), *APART):
        options = {**options, "parameters": {"c": 1 + o}}
        agrees(at_a_knot("linear", native=native), (0, 2), "G", [1.0], **options)
        if o in APART:
            agrees(at_a_knot("previous", native=native), (0, 2), "G", [0.25 if o > 0 else 1.0], **options)
        else:
            names_both(at_a_knot("previous", native=native), (0, 2), "G", ("1 on", "0.25 on"), **options)


# -- two guards ---------------------------------------------------------------------------------------------------


@cache
def two(*, native: bool) -> dh.HybridSystem:
    """x = a t and y = t come to 1, A adds 1 to z and B doubles it."""
    m = dh.HybridModel("two")
    a = m.parameter("a", 1.0)
    x, y, z = m.differential("x"), m.differential("y"), m.differential("z")
    run = m.mode("run", ode={x: a, y: 1.0, z: 0.0})
    m.transition(run, run, guard=x - 1, direction="rising", reset={z: z + 1}, name="A")
    m.transition(run, run, guard=y - 1, direction="rising", reset={z: 2 * z}, name="B")
    m.initial(run, {x: 0.0, y: 0.0, z: 1.0})
    m.functional("G", terminal=z)
    return m.build(native=native)


@pytest.mark.parametrize("order", ["declared", "reversed"])
@pytest.mark.parametrize(("native", "options"), WAYS)
def test_two_guards_beside_each_other(native: bool, options: dict[str, Any], order: Any) -> None:
    system, options = two(native=native), {**options, "simultaneous": order}
    for o in tied(native):
        for analysis in ("forward", "adjoint"):
            _, said = gradient(system, (0, 2), "G", analysis, parameters={"a": 1 + o}, **options)
            assert len(said) == 1
            assert "(z = 4 on one side, 3 on the other)" in said[0] or "(z = 3 on one side, 4 on the other)" in said[0]
            assert (abs(o) < 1e-13) == ("simultaneous=" in said[0])  # else that gives the same order again
    for o in APART:
        agrees(system, (0, 2), "G", [0.0], parameters={"a": 1 + o}, **options)


# -- entries ------------------------------------------------------------------------------------------------------


@cache
def entered(*, native: bool, does: bool = True) -> dh.HybridSystem:
    """Reset to r, where the guard x - c of the next mode is zero for r = c = 1; from there on x falls, or goes on."""
    m = dh.HybridModel("entered")
    c, r = m.parameter("c", 1.0), m.parameter("r", 1.0)
    x = m.differential("x")
    first, second, third = m.mode("first", ode={x: 1.0}), m.mode("second", ode={x: 1.0}), m.mode("third", ode={x: -1.0})
    m.transition(first, second, guard=x - 0.5, direction="rising", reset={x: r}, name="enter")
    if does:
        m.transition(second, third, guard=x - c, direction="rising", name="chance")
    else:
        m.transition(second, second, guard=x - c, direction="rising", reset={x: x}, name="chance")
    m.initial(first, {x: 0.0})
    m.functional("G", terminal=x)
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_a_guard_beside_zero_on_entry(native: bool, options: dict[str, Any]) -> None:
    for o in (*tied(native), *APART):
        options = {**options, "parameters": {"r": 1 + o}}
        agrees(entered(native=native, does=False), (0, 2), "G", [0.0, 1.0], **options)
        if o in APART:  # x(2) = 2 c - r - 1.5 where it is crossed, and r + 1.5
            agrees(entered(native=native), (0, 2), "G", [0.0, 1.0] if o > 0 else [2.0, -1.0], **options)
        else:
            names_both(entered(native=native), (0, 2), "G", ("zero",), **options)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_a_guard_beside_zero_at_the_start(native: bool, options: dict[str, Any]) -> None:
    system = started(native=native)
    for o in (*tied(native), *APART):
        options = {**options, "parameters": {"x0": 1 + o}}
        if o in APART:
            agrees(system, (0, 1), "G", [0.0, 1.0] if o > 0 else [2.0, -1.0], **options)
        else:
            names_both(system, (0, 1), "G", ("zero",), **options)


@cache
def started(*, native: bool) -> dh.HybridSystem:
    """x begins at x0, and falls from c on."""
    m = dh.HybridModel("started")
    c, x0 = m.parameter("c", 1.0), m.parameter("x0", 1.0)
    x = m.differential("x")
    up, down = m.mode("up", ode={x: 1.0}), m.mode("down", ode={x: -1.0})
    m.transition(up, down, guard=x - c, direction="rising", name="chance")
    m.initial(up, {x: x0})
    m.functional("G", terminal=x)
    return m.build(native=native)


# -- near misses --------------------------------------------------------------------------------------------------


@cache
def thrown(*, native: bool) -> dh.HybridSystem:
    """Thrown at v under a ceiling at h: the apex is v^2 / 20; a whole flight is one or two steps."""
    m = dh.HybridModel("thrown")
    h, v0 = m.parameter("h", 20.0), m.parameter("speed", 20.0)
    y, v, z = m.differential("y"), m.differential("v"), m.differential("z")
    flight = m.mode("flight", ode={y: v, v: -10.0, z: 0.0})
    m.transition(flight, flight, guard=y - h, direction="rising", reset={z: z + 1}, name="touch")
    m.initial(flight, {y: 0.0, v: v0, z: 0.0})
    m.functional("G", integrand=y, terminal=z)
    return m.build(native=native)


@cache
def swinging(*, native: bool) -> dh.HybridSystem:
    """x = sin(w t) / w next to a stop at 1 + c."""
    m = dh.HybridModel("swinging")
    c, w = m.parameter("c", 0.0), m.parameter("w", 1.0)
    x, v, z = m.differential("x"), m.differential("v"), m.differential("z")
    run = m.mode("run", ode={x: v, v: -w * w * x, z: 0.0})
    m.transition(run, run, guard=x - 1 - c, direction="rising", reset={z: z + 1}, name="touch")
    m.initial(run, {x: 0.0, v: 1.0, z: 0.0})
    m.functional("G", integrand=x, terminal=z)
    return m.build(native=native)


@pytest.mark.parametrize("t_eval", [None, [1.0, 3.0]], ids=["steps", "outputs"])
@pytest.mark.parametrize(("native", "options"), [*WAYS[:-1], pytest.param(False, {"adapter": "casadi"}, id="casadi")])
@pytest.mark.parametrize("build", [thrown, swinging])
def test_a_guard_that_turns_next_to_zero(
    build: Callable[..., dh.HybridSystem], native: bool, options: dict[str, Any], t_eval: Any
) -> None:
    """Tangent, or a little on the safe side, it may cross in another run that is as accurate."""
    system = build(native=native)
    name, nominal, other = ("h", 20.0, 30.0) if build is thrown else ("c", 0.0, 9.0)
    options = {**options, "t_eval": t_eval}
    for o in (0.0, 1e-15, 1e-12, 1e-10):
        for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
            with pytest.raises(dh.GrazingError) as caught:
                analysis(system, (0, 3.5), parameters={name: nominal + o}, **OPTIONS, **options)
            assert caught.value.transition == "touch"
            assert caught.value.time == pytest.approx(2.0 if build is thrown else np.pi / 2, abs=1e-3)
    far, _ = gradient(system, (0, 3.5), "G", "adjoint", parameters={name: other}, **options)
    for o in (1e-3, 1e-2, 0.1):  # clear of it
        agrees(system, (0, 3.5), "G", far, parameters={name: nominal + o}, **options)


@pytest.mark.parametrize("native", [True, False])
def test_a_near_miss_among_many_turns(native: bool) -> None:
    """One turn in thirty of a beat approaches the stop."""
    m = dh.HybridModel("many")
    c = m.parameter("c", 0.0)
    x, v, z = m.differential("x"), m.differential("v"), m.differential("z")
    run = m.mode("run", ode={x: v, v: -x, z: 0.0})
    beat = x / (1 + 1e-3 * (m.time - 20.5 * np.pi) ** 2)
    m.transition(run, run, guard=beat - 1 - c, direction="rising", reset={z: z + 1}, name="touch")
    m.initial(run, {x: 0.0, v: 1.0, z: 0.0})
    m.functional("G", terminal=z)
    system = m.build(native=native)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.GrazingError) as caught:
            analysis(system, (0, 100), parameters={"c": 1e-9}, rtol=1e-10, atol=1e-12)
        assert caught.value.time == pytest.approx(20.5 * np.pi, abs=1e-2)
    agrees(system, (0, 100), "G", [0.0], parameters={"c": 1e-3})


# -- conditions, relations and guards beside each other -----------------------------------------------------------


@cache
def ceasing(*, native: bool) -> dh.HybridSystem:
    """x < b until log 3; o later x is set back, and z gains 1 where x < b becomes true by that."""
    m = dh.HybridModel("ceasing")
    b, k, o = m.parameter("b", 1.0), m.parameter("k", 1.0), m.parameter("o", 0.0)
    x, z = m.differential("x"), m.differential("z")
    run = m.mode("run", ode={x: k * (x + 0.5), z: 0.0})
    m.transition(run, run, at=REACHED + o, reset={x: 0.25}, name="back")
    m.transition(run, run, guard=x < b, reset={z: z + 1}, name="below")
    m.initial(run, {x: 0.0, z: 0.0})
    m.functional("G", terminal=x + z)
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_a_condition_that_ceases_to_hold_beside_an_event(native: bool, options: dict[str, Any]) -> None:
    system, left = ceasing(native=native), 0.5
    for o in tied(native):
        both = "z = 1 on one side, 0 on the other"
        names_both(system, (0, REACHED + left), "G", (both,), parameters={"o": o}, **options)
    for o in APART:
        t, growth = left - o, 0.75 * np.exp(left - o)
        agrees(system, (0, REACHED + left), "G", [0, t * growth, -growth], parameters={"o": o}, **options)


@cache
def hurried(*, native: bool) -> dh.HybridSystem:
    """x' is 1 up to x = b, and 3 from there on, by a relation in a relation; at q x is set back to 0."""
    m = dh.HybridModel("hurried")
    b, q, x = m.parameter("b", 1.0), m.parameter("q", 1.0), m.differential("x")
    run = m.mode("run", ode={x: ca.if_else(x >= ca.if_else(x <= b, 2, 0), 3, 1)})
    m.transition(run, run, guard=x - q, direction="rising", reset={x: 0}, name="jump")
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=x)
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_relations_follow_each_other_before_anything_else_happens(native: bool, options: dict[str, Any]) -> None:
    system = hurried(native=native)
    for o in tied(native):
        names_both(system, (0, 1.5), "G", ("other derivatives",), parameters={"q": 1.0 + o}, **options)
    for o, exact in (1e-6, [-2 / 3, -1 / 3]), (-1e-6, [0, -1]):
        agrees(system, (0, 1.5), "G", exact, parameters={"q": 1.0 + o}, **options)


@cache
def forgotten(*, native: bool) -> dh.HybridSystem:
    """x = t, and y' = x - b beyond b, but for a mode without it from q to 3/2, which sets x to 1/4 where it ends."""
    m = dh.HybridModel("forgotten")
    b, q = m.parameter("b", 1.0), m.parameter("q", 1.0)
    x, y, z = m.differential("x"), m.differential("y"), m.differential("z")
    one = m.mode("one", ode={x: 1, y: ca.if_else(x < b, 0, x - b), z: 0})
    two = m.mode("two", ode={x: 1, y: 0, z: 1})
    m.transition(one, two, at=q, name="there")
    m.transition(two, one, at=1.5, reset={x: 0.25}, name="back")
    m.initial(one, {x: 0.0, y: 0.0, z: 0.0})
    m.functional("G", terminal=y + z)
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_what_a_relation_of_another_mode_says_makes_no_difference(native: bool, options: dict[str, Any]) -> None:
    system = forgotten(native=native)
    for o in tied(native):
        agrees(system, (0, 2.5), "G", [-0.25, -1], parameters={"q": 1.0 + o}, **options)


@pytest.mark.parametrize(
    ("native", "options"),
    [
        *WAYS,
        pytest.param(False, {"adapter": "casadi"}, id="casadi"),
        pytest.param(False, {"adapter": "scikits-odes"}, id="scikits-odes"),
    ],
)
@pytest.mark.parametrize("late", [0.0, 1e-13, 1e-10, 1e-8])
def test_no_guard_is_lost_beside_another_one(late: float, native: bool, options: dict[str, Any]) -> None:
    """y = sin 3t falls through 0.3; a relation changes a little later, as far as the polynomial of a step can tell."""
    m = dh.HybridModel("beside")
    y, z = m.differential("y"), m.differential("z")
    falls = (np.pi - np.arcsin(0.3)) / 3
    run = m.mode("run", ode={y: 3 * ca.cos(3 * m.time), z: ca.if_else(m.time > falls + late, 1, 0)})
    m.transition(run, run, guard=y - 0.3, direction="falling", reset={z: z + 10})
    m.initial(run, {y: 0.0, z: 0.0})
    m.functional("G", terminal=z)
    system = m.build(native=native)
    for rtol in np.geomspace(1e-4, 1e-9, 24).tolist():
        found = dh.simulate(system, (0, 2), rtol=rtol, atol=rtol / 100, **options)
        assert found.functionals["G"] == pytest.approx(12 - falls, abs=1e-6), rtol
        assert len(found.events) == 2


@cache
def unstable(*, native: bool) -> dh.HybridSystem:
    """x = exp(-t) / 2 solves x' = x - exp(-t), and what an integrator gets wrong grows by exp(2 t) beside it."""
    m = dh.HybridModel("unstable")
    c, o = m.parameter("c", float(np.exp(-2.0) / 2)), m.parameter("o", 0.0)
    x, z = m.differential("x"), m.differential("z")
    ode = {x: x - ca.exp(-m.time), z: 0.0}
    run, over = m.mode("run", ode=ode), m.mode("over", ode=ode)
    m.transition(run, run, at=2 + o, reset={z: 2 * z}, name="doubles")
    m.transition(run, over, guard=x - c, direction="falling", reset={z: z + 1}, name="gains")
    m.initial(run, {x: 0.5, z: 1.0})
    m.functional("G", terminal=z)
    return m.build(native=native)


@pytest.mark.parametrize(("native", "options"), WAYS)
def test_ties_are_seen_as_far_as_a_run_is_inaccurate(native: bool, options: dict[str, Any]) -> None:
    """The error exceeds 10 tolerances here; a second run at a tenth of the tolerances shows it."""
    system = unstable(native=native)
    for rtol in (1e-6, 1e-7, 1e-8, 1e-9):
        with pytest.warns(dh.DerivativeWarning, match="their order matters"):
            dh.forward_sensitivity(system, (0, 2.5), rtol=rtol, atol=rtol / 100, **options)
        with pytest.warns(dh.DerivativeWarning, match="their order matters"):
            dh.adjoint_gradient(system, (0, 2.5), rtol=rtol, atol=rtol / 100, **options)


def test_a_reset_leaves_a_relation_at_its_threshold_where_it_was() -> None:
    """The threshold of y depends on x, which the reset changes: it evaluates the relation, at zero but for rounding.

    With the reset first, the relation changes after it and moves x on at another rate.
    """
    m = dh.HybridModel("evaluated")
    t, k = m.time, m.parameter("k", 0.5)
    x, y = m.differential("x"), m.differential("y")
    high = y >= 0.2 * t + ca.if_else(x >= -5, 0.1, k)
    when = m.parameter("when", 0.25)
    run = m.mode("run", ode={x: ca.if_else(high, 2.0, k), y: 0.6 + 0 * x})
    m.transition(run, run, at=when, reset={x: 1 + 0 * x}, name="jump")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=x)
    system = m.build()
    for native in (True, False):
        with pytest.warns(dh.DerivativeWarning, match="order matters"):
            dh.forward_sensitivity(system, (0, 1), native_events=native)
    for late, slope in ((-1e-3, -0.5), (1e-3, -2.0)):  # the rate at which x is taken on after the reset
        p = {"when": 0.25 + late}
        assert dh.forward_sensitivity(system, (0, 1), parameters=p).gradient["G"][1] == pytest.approx(slope, abs=1e-6)


def undone(*, by_relation: bool) -> dh.HybridSystem:
    """x falls to where a reset and a switch are due, and the switch has no sooner been made than it is undone."""
    m = dh.HybridModel("undone")
    a, b, x = m.parameter("a", 0.5), m.parameter("b", 0.5), m.differential("x")
    if by_relation:
        go = m.mode("go", ode={x: ca.if_else(x < b, 0.3, -0.4)})
    else:
        go, up = m.mode("go", ode={x: -0.4}), m.mode("up", ode={x: 0.3})
        m.transition(up, go, guard=x - b, direction="rising", name="back")
    m.transition(go, go, guard=x - a, direction="falling", reset={x: -0.2}, name="hit")
    if not by_relation:
        m.transition(go, up, guard=x - b, direction="falling", name="there")
    m.initial(go, {x: 1.0})
    m.functional("G", terminal=x)
    return m.build(relations="cross")


@pytest.mark.parametrize("by_relation", [True, False])
@pytest.mark.parametrize("analysis", [dh.forward_sensitivity, dh.adjoint_gradient])
def test_an_order_that_has_no_end_matters(by_relation: bool, analysis) -> None:
    system = undone(by_relation=by_relation)
    with pytest.warns(dh.DerivativeWarning, match="order matters.*without end"):
        analysis(system, (0, 2))
    with pytest.raises(dh.ChatteringError):
        dh.simulate(system, (0, 2), parameters={"b": 0.5 + 1e-9})


@pytest.mark.parametrize("native_events", [True, False])
def test_a_tick_that_a_transition_has_used_up_is_no_tie(native_events: bool) -> None:
    """y' = 1 and y' = -2 y in turn, by one clock of period a; a warning would be an error."""
    m = dh.HybridModel("one clock")
    a, y = m.parameter("a", 0.3), m.differential("y")
    up, down = m.mode("up", ode={y: 1.0}), m.mode("down", ode={y: -2 * y})
    m.transition(up, down, every=a)
    m.transition(down, up, every=a)
    m.initial(up, {y: 0.5})
    m.functional("G", terminal=y)
    fsa = dh.forward_sensitivity(m.build(), (0, 1), rtol=1e-10, atol=1e-12, native_events=native_events)
    # up to 0.3, down to 0.6, up to 0.9, down to 1
    q, last = np.exp(-0.6), np.exp(-2 * (1 - 0.9))
    first = 0.5 + 0.3
    second, slope = first * q + 0.3, q - 2 * first * q + 1
    assert fsa.functionals["G"] == pytest.approx(second * last, rel=1e-8)
    assert fsa.gradient["G"][0] == pytest.approx((slope + 6 * second) * last, rel=1e-7)


def ticking(*, movable: bool) -> dh.HybridSystem:
    """Doses every unit of time, and an extraction every one and a half."""
    m = dh.HybridModel("ticking")
    k, share = m.parameter("k", 0.3), m.parameter("share", 0.9)
    x = m.differential("x")
    m.mode("decays", ode={x: -k * x})
    m.initial("decays", {x: 1.0})
    m.transition("decays", "decays", name="dose", every=(k / 0.3 if movable else 1.0), reset={x: x + 0.1})
    m.transition("decays", "decays", name="extract", every=1.5, reset={x: share * x})
    m.functional("G", terminal=x)
    return m.build()


def after_ticks(k: complex, share: complex, t_end: float) -> complex:
    """x(t_end) of `ticking`; at coincident ticks the dose comes first."""
    x, t = 1.0 + 0j, 0.0
    for tick in sorted({*np.arange(1.0, t_end), *np.arange(1.5, t_end, 1.5)}):
        x, t = x * np.exp(-k * (tick - t)), tick
        x += 0.1 * (tick % 1.0 == 0)
        x *= share if tick % 1.5 == 0 else 1.0
    return x * np.exp(-k * (t_end - t))


def test_fixed_ticks_that_coincide_are_checked_without_another_run() -> None:
    system, span = ticking(movable=False), (0, 40.2)
    with patch.object(certify, "one_sided_derivatives", side_effect=AssertionError("compared")):
        forward = dh.forward_sensitivity(system, span, **OPTIONS)
        adjoint = dh.adjoint_gradient(system, span, "G", **OPTIONS)
    exact = [after_ticks(0.3 + 1e-30j, 0.9, 40.2).imag / 1e-30, after_ticks(0.3, 0.9 + 1e-30j, 40.2).imag / 1e-30]
    for found in (forward.gradient["G"], adjoint.gradient):
        np.testing.assert_allclose(np.ravel(found), exact, rtol=1e-6)


def test_ticks_that_coincide_and_move_apart_are_compared() -> None:
    for analysis in ("forward", "adjoint"):
        _, said = gradient(ticking(movable=True), (0, 40.2), "G", analysis)
        assert any("'dose' and 'extract' are due at one instant" in one for one in said)


@pytest.mark.parametrize("native_events", [True, False])
@pytest.mark.parametrize("gap", [1e-13, -1e-13, 1e-9, -1e-9])
def test_an_event_that_reverses_the_rate_of_a_guard_next_to_zero(gap: float, native_events: bool) -> None:
    """A ball that bounces beside a threshold: whether it comes to the threshold again depends on a parameter."""
    m = dh.HybridModel("beside")
    e, q = m.parameter("e", 0.8), m.parameter("q", 0.0)
    y, v, n = m.differential("y"), m.differential("v"), m.differential("n")
    m.mode("flies", ode={y: v, v: -10.0, n: 0.1 * n})
    m.initial("flies", {y: 1.0, v: 0.0, n: 1.0})
    m.transition("flies", "flies", name="bounce", guard=y, direction="falling", reset={v: -e * v})
    m.transition("flies", "flies", name="pass", guard=y - gap - q, direction="rising", reset={n: 2 * n + v})
    m.functional("G", terminal=n + y)
    for analysis in ("forward", "adjoint"):
        _, said = gradient(m.build(), (0, 0.9), "G", analysis, native_events=native_events)
        assert any("The guard of 'pass'" in one and "different states" in one for one in said)


@pytest.mark.parametrize(("native", "options"), WAYS)
@pytest.mark.parametrize("rtol", [1e-7, 1e-9])
@pytest.mark.parametrize(("kick", "end"), [(0.5, 2.0), (0.0, 2.0), (-0.5, 2.0), (0.5, 1.0)])
def test_a_touch_where_another_event_happens_is_told(
    native: bool, options: dict[str, Any], rtol: float, kick: float, end: float
) -> None:
    """At its apex x touches a level, where a kick carries it beyond, does not matter, turns it back, or the run ends.

    For a larger v0 the level is passed before. The sign of the rounding of the guard's rate had decided.
    """
    m = dh.HybridModel("touch")
    a, v0, level, T = (m.parameter(name, value) for name, value in zip("avlT", (1.0, 1.0, 0.5, 1.0), strict=True))
    x, v, y, s = (m.differential(name) for name in ("x", "speed", "y", "s"))
    fly = m.mode("fly", ode={x: v, v: -a, y: 0.1, s: 1.0})
    m.transition(fly, fly, guard=s - T, direction="rising", reset={v: v + kick}, name="kick")
    m.transition(fly, fly, guard=x - level, direction="rising", reset={y: y + 1.0}, name="alarm")
    m.initial(fly, {x: 0.0, v: v0, y: 0.0, s: 0.0})
    m.functional("G", terminal=y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((dh.EventError, dh.DerivativeWarning)):
            dh.forward_sensitivity(m.build(native=native), (0, end), rtol=rtol, **options)


@pytest.mark.parametrize("method", ["auto", "bdf"])
@pytest.mark.parametrize(("rate", "end"), [(5.0, 3.0), (10.0, 2.0), (20.0, 2.0)])
def test_a_guard_that_settles_at_the_end_of_the_run_does_not_touch(rate: float, end: float, method: str) -> None:
    m = dh.HybridModel("settles")
    k, x, y = m.parameter("k", rate), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: -k * (x - 1), y: x})
    m.transition(run, run, guard=x - 1, direction="rising", reset={y: y + 1}, name="alarm")
    m.initial(run, {x: -1.0, y: 0.0})
    m.functional("G", terminal=y)
    right = 2 * (1 - np.exp(-rate * end)) / rate**2 - 2 * end * np.exp(-rate * end) / rate
    for analysis in ("forward", "adjoint"):
        found, said = gradient(m.build(), (0, end), "G", analysis, method=method)
        assert not said
        assert found[0] == pytest.approx(right, rel=1e-4)
