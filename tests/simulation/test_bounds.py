"""Bounds of algebraic variables, and sliding modes stated with them: closed form = forward = adjoint = differences."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.mechanics import Index1, Index2, Mechanism, Penalty, Reduced

TOLERANCES = np.logspace(-4, -12, 21)
END = 2.0


@cache
def sliding(
    leave: str = "rate", *, bounded: bool = True, curved: bool = False, native: bool = True, **form: Any
) -> dh.HybridSystem:
    """f+ = (1, x - c) above y = 0 and f- = (2, 1) below it, from (0, -h): it slides while x < c.

    Curved, it is the same in w = y + x^2 / 2.
    """
    m = dh.HybridModel("sliding")
    c, h = m.parameter("c", 1.0), m.parameter("h", 0.2)
    x, w = m.differential("x"), m.differential("w" if curved else "y")
    y, bend = (w - x**2 / 2, x) if curved else (w, 0.0)
    theta = m.algebraic("theta", guess=0.5, bounds=(0, 1) if bounded else None)
    up, down = (1.0, x - c), (2.0, 1.0)
    above = m.mode("above", ode={x: up[0], w: up[1] + bend * up[0]})
    below = m.mode("below", ode={x: down[0], w: down[1] + bend * down[0]})
    blend = [theta * a + (1 - theta) * b for a, b in zip(up, down, strict=True)]
    slide = m.mode("slide", ode={x: blend[0], w: blend[1] + bend * blend[0]}, constraint=[y])
    m.transition(above, slide, guard=y, direction="falling")
    m.transition(below, slide, guard=y, direction="rising")
    if leave == "rate":
        m.transition(slide, above, guard=up[1], direction="rising", on_entry="fire", name="leave")
    elif leave == "share":
        m.transition(slide, above, guard=theta - 1, direction="rising", name="leave")
    m.initial(below, {x: 0.0, w: -h})
    m.functional("G", terminal=y, integrand=x)
    return m.build(native=native, **form)


def slid(c: float, h: float) -> tuple[list[float], float, np.ndarray]:
    """Times of the events, G and dG/d(c, h)."""
    if 2 * h >= c:  # f+ points away from the surface where it is reached: it is crossed at once
        x, rest = 2 * h, END - h
        y = (x - c) * rest + rest**2 / 2
        value = y + h**2 + x * rest + rest**2 / 2
        return [h, h], value, np.array([-rest, 2 * rest - (x - c) - rest + 2 * h + 2 * rest - x - rest])
    # with u = 1 + c - x, u' = 1 / u - 2 along the surface: t as a function of u in closed form
    q = 1 + 2 * (c - 2 * h)
    leave = c / 2 + math.log(q) / 4
    rest, (by_c, by_h) = END - leave, (0.5 + 0.5 / q, -1 / q)
    u = 1 + c - 2 * h
    # integral of u dt = u^2 / (2 u - 1) du from 1 to u, and of x = 1 + c - u
    along = (u**2 - 1) / 4 + (u - 1) / 4 + math.log(q) / 8
    value = rest**2 / 2 + h**2 + (1 + c) * (leave - h) - along + c * rest + rest**2 / 2
    d_along = u**2 / (2 * u - 1)
    by = [
        -2 * rest * by_c + (leave - h) + (1 + c) * by_c - d_along + rest - c * by_c,
        -2 * rest * by_h + 2 * h + (1 + c) * (by_h - 1) + 2 * d_along - c * by_h,
    ]
    return [h, leave], value, np.array(by)


def check(system: dh.HybridSystem, tol: float, c: float, h: float, **options: Any) -> None:
    times, value, gradient = slid(c, h)
    given: dict[str, Any] = {"parameters": {"c": c, "h": h}, "rtol": tol, "atol": tol, **options}
    fsa = dh.forward_sensitivity(system, (0, END), **given)
    asa = dh.adjoint_gradient(system, (0, END), "G", **given)
    for run in (fsa.trajectory, asa.trajectory):
        assert [e.target for e in run.events] == ["slide", "above"]
        assert np.allclose([e.time for e in run.events], times, rtol=0, atol=20 * tol)
        assert abs(run.functionals["G"] - value) < 100 * tol
    assert np.allclose(fsa.gradient["G"], gradient, rtol=200 * tol, atol=0)
    assert np.allclose(asa.gradient, gradient, rtol=200 * tol, atol=0)


def test_the_closed_form_is_one():
    """Its derivatives are those of its values."""
    for c, h in ((1.0, 0.2), (1.0, 0.8)):
        for i, step in enumerate(1e-6 * np.eye(2)):
            slope = (slid(c + step[0], h + step[1])[1] - slid(c - step[0], h - step[1])[1]) / 2e-6
            assert abs(slope - slid(c, h)[2][i]) < 1e-8


@pytest.mark.parametrize(
    "tol",
    [pytest.param(tol, marks=pytest.mark.campaign if i % 5 else []) for i, tol in enumerate(TOLERANCES)],
    ids="{:.0e}".format,
)
def test_a_sliding_mode_as_the_remedy_says(tol):
    """It leaves tangentially, at every tolerance, and the surface is crossed at once where it does not slide."""
    check(sliding(), tol, 1.0, 0.2)
    check(sliding(), tol, 1.0, 0.8)


@pytest.mark.parametrize(
    "options", [{"native": False}, {"eliminate": False}, {"index2": "direct"}, {"leave": "share"}, {"curved": True}]
)
def test_a_sliding_mode_in_other_forms(options):
    for tol in (1e-5, 1e-8, 1e-10):
        check(sliding(**options), tol, 1.0, 0.2)


@pytest.mark.parametrize("method", ["erk", "adams", "bdf"])
def test_a_sliding_mode_by_every_method(method):
    for tol in (1e-6, 1e-9):
        check(sliding(), tol, 1.0, 0.2, method=method)


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_a_sliding_mode_by_other_adapters(adapter):
    check(sliding(), 1e-8, 1.0, 0.2, adapter=adapter)


def test_a_sliding_mode_beside_differences():
    found = dh.check_gradient(sliding(), (0, END), "G", rtol=1e-9, atol=1e-12)
    assert found.same_events
    assert found.difference("finite_difference", "adjoint") < 1e-6


@cache
def stick_slip() -> dh.HybridSystem:
    """A mass on a belt, on a spring, with friction that weakens: it sticks eight times in 40 units of time."""
    m = dh.HybridModel("stick-slip")
    mu, belt, weaker = m.parameter("mu", 1.0), m.parameter("belt", 0.3), m.parameter("weaker", 2.0)
    x, v = m.differential("x"), m.differential("v")
    theta, slip = m.algebraic("theta", bounds=(0, 1), guess=0.5), v - belt
    up, down = -x - mu / (1 + weaker * slip), -x + mu / (1 - weaker * slip)
    faster, slower = m.mode("faster", ode={x: v, v: up}), m.mode("slower", ode={x: v, v: down})
    stick = m.mode("stick", ode={x: v, v: theta * up + (1 - theta) * down}, constraint=[slip])
    m.transition(faster, stick, guard=slip, direction="falling")
    m.transition(slower, stick, guard=slip, direction="rising")
    m.transition(stick, faster, guard=up, direction="rising", on_entry="fire")
    m.transition(stick, slower, guard=down, direction="falling", on_entry="fire")
    m.initial(slower, {x: 0.5, v: -0.5})
    m.functional("G", integrand=v**2, terminal=x)
    return m.build()


@pytest.mark.parametrize("method", ["auto", "bdf", "adams"])
def test_stick_slip(method):
    """Stated like that it goes through, and its gradient is that at rtol 1e-11, which differences confirm."""
    expected = np.array([3.13060026, 40.0379299, 0.30415327])
    for tol, accuracy in ((1e-5, 1e-2), (1e-8, 2e-5), (1e-11, 1e-7)):  # of the largest entry
        fsa = dh.forward_sensitivity(stick_slip(), (0, 40), rtol=tol, atol=tol, method=method)
        allowed = 2 * accuracy if tol == 1e-5 else True
        asa = dh.adjoint_gradient(stick_slip(), (0, 40), "G", rtol=tol, atol=tol, method=method, duality=allowed)
        assert [e.target for e in fsa.events] == ["stick", "slower"] * 4 + ["stick"]
        for found in (fsa.gradient["G"], asa.gradient):
            assert np.abs(found - expected).max() < accuracy * expected.max()
    step = 1e-5
    sides = [
        dh.simulate(stick_slip(), (0, 40), parameters={"mu": 1 + d}, rtol=1e-12, atol=1e-13).functionals["G"]
        for d in (step, -step)
    ]
    assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(expected[0], rel=1e-5)


# -- passed -----------------------------------------------------------------------------------------------------


CALLS = {
    "simulate": dh.simulate,
    "forward": dh.forward_sensitivity,
    "adjoint": lambda *args, **more: dh.adjoint_gradient(*args, "G", **more),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("native", [True, False])
def test_a_forgotten_exit(call, native):
    """Without bounds it runs on with a share above one, and all analyses agree."""
    wrong = dh.adjoint_gradient(sliding("no", bounded=False, native=native), (0, END), "G", rtol=1e-8, duality=True)
    assert wrong.trajectory(END)["theta"] > 1.5
    with pytest.raises(
        dh.BoundError, match=r"(?s)theta = 1 passes its upper bound 1 .*Beyond it mode 'slide'"
    ) as caught:
        CALLS[call](sliding("no", native=native), (0, END), rtol=1e-8)
    error = caught.value
    assert (error.mode, error.variables, error.bounds) == ("slide", ("theta",), (0.0, 1.0))
    assert abs(error.time - slid(1.0, 0.2)[0][1]) < 1e-7
    assert abs(error.value - 1) < 1e-12
    assert error.trajectory.t[-1] == error.time
    assert len(error.trajectory.events) == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_forgotten_crossing(call):
    with pytest.raises(
        dh.BoundError, match=r"theta = 2\.5 is past its upper bound 1 where the mode is entered"
    ) as caught:
        CALLS[call](sliding("share"), (0, END), parameters={"h": 0.8}, rtol=1e-8)
    assert caught.value.time == pytest.approx(0.8)
    assert "on_entry='fire'" in caught.value.remedy


@cache
def bounded(case: str, *, eliminate: bool, native: bool) -> dh.HybridSystem:
    """A system of `CASES`."""
    z, bounds, leave, _ = CASES[case]
    return scalar(z, bounds, eliminate=eliminate, native=native, **leave)


def scalar(z: Any, bounds: Any, *, eliminate: bool = True, native: bool = True, size: int = 1, **leave: Any) -> Any:
    """x' = 1 from 0 on, with an algebraic variable that is a function of x."""
    m = dh.HybridModel("scalar")
    speed = m.parameter("speed", 1.0)
    x, force = m.differential("x"), m.algebraic("z", size=size, bounds=bounds, guess=0.3)
    run = m.mode("run", ode={x: speed}, algebraic=[force - z(x)])
    over = m.mode("over", ode={x: -speed})
    if leave:
        m.transition(run, over, **{key: value(x) if callable(value) else value for key, value in leave.items()})
    m.initial(run, {x: 0.0})
    m.functional("G", integrand=x)
    return m.build(native=native, eliminate=eliminate)


#: z by x, bounds, what leaves the mode, and where the run is refused, None where it is not
CASES: dict[str, tuple[Any, Any, dict[str, Any], float | None]] = {
    "passes": (lambda x: x**2, (None, 1), {}, 1.0),
    "passes the other": (lambda x: 1 - x**2, [0, np.inf], {}, 1.0),
    "touches": (lambda x: (x - 1) ** 2, (0, None), {}, None),
    "dips": (lambda x: (x - 1) ** 2 - 1e-6, (0, None), {}, 0.999),
    "begins at it, inwards": (lambda x: x, (0, None), {}, None),
    "begins a rounding past it, inwards": (lambda x: x - 1e-16, (0, None), {}, None),
    "begins at it, outwards": (lambda x: -x, (0, None), {}, 0.0),
    "begins at it, slowly inwards": (lambda x: x**2, (0, None), {}, None),
    "begins at it, slowly outwards": (lambda x: -(x**2), (0, None), {}, 0.0),
    "begins past it": (lambda x: x - 0.1, (0, None), {}, 0.0),
    "ends at it": (lambda x: x, (None, 2), {}, None),
    "stays at it": (lambda x: 1 - ca.fmax(0, 1 - x), (None, 1), {}, None),
    "is left by its time": (lambda x: x**2, (None, 1), {"at": 1.0}, None),
    "is left by another guard": (lambda x: x**2, (None, 1), {"guard": lambda x: ca.exp(x) - np.e}, None),
    "is left a moment later": (lambda x: x**2, (None, 1), {"guard": lambda x: x - 1 - 2e-8}, None),
    "is left too late": (lambda x: x**2, (None, 1), {"guard": lambda x: x - 1 - 2e-6}, 1.0),
}


ENGINES = ("sundials", "interpreted", "scipy")


@pytest.mark.parametrize(
    ("case", "adapter"),
    [
        pytest.param(case, adapter, marks=[] if (i + k) % 3 == 0 else pytest.mark.campaign)
        for i, case in enumerate(CASES)
        for k, adapter in enumerate(ENGINES)
    ],
)
def test_where_a_run_is_refused(case, adapter):
    _, _, leave, where = CASES[case]
    given = {} if adapter != "scipy" else {"adapter": "scipy"}
    for eliminate in (True, False):
        system = bounded(case, eliminate=eliminate, native=adapter != "interpreted")
        if where is None:
            run = dh.simulate(system, (0, 2), rtol=1e-8, **given)
            assert run.complete
            assert len(run.events) == len(leave)
            continue
        with pytest.raises(dh.BoundError) as caught:
            dh.simulate(system, (0, 2), rtol=1e-8, **given)
        assert caught.value.variables == ("z",)
        assert abs(caught.value.time - where) < 1e-5


def test_a_transition_at_the_bound_has_its_derivative():
    """No warning of an order that matters: x rises to 1 at 1 / v and falls from there."""
    system = scalar(lambda x: x**2, (None, 1), guard=lambda x: x - 1)
    for v in (1.0, 1.3):
        rest = 2 - 1 / v
        asa = dh.adjoint_gradient(system, (0, 2), "G", parameters={"speed": v}, rtol=1e-10)
        assert asa.value == pytest.approx(0.5 / v + rest - v * rest**2 / 2, abs=1e-8)
        assert asa.gradient[0] == pytest.approx(-0.5 / v**2 + 1 / v**2 - rest**2 / 2 - rest / v, rel=1e-7)


def test_bounds_of_vectors():
    """Bounds by entry; the error names the one that is passed."""
    system = scalar(lambda x: ca.vertcat(x, -x), ([-1, -np.inf], 1.5), size=2)
    with pytest.raises(
        dh.BoundError, match=r"z\[0\] = 1.5 passes its upper bound 1.5 \(bounds are -1 and 1.5\)"
    ) as caught:
        dh.simulate(system, (0, 2), rtol=1e-8)
    assert caught.value.time == pytest.approx(1.5)
    one = scalar(lambda x: ca.vertcat(x, -x), (-0.5, None), size=2)
    with pytest.raises(dh.BoundError, match=r"z\[1\] = -0.5 passes its lower bound"):
        dh.simulate(one, (0, 2), rtol=1e-8)


@pytest.mark.parametrize("bounds", [3.0, (1, 0), (0, 0), (0, 1, 2), (np.nan, 1), ("a", 1), ([0, 0, 0], 1)])
def test_bounds_that_are_none(bounds):
    m = dh.HybridModel("m")
    with pytest.raises(dh.ModelError, match="bounds of 'z'"):
        m.algebraic("z", size=2, bounds=bounds)


# -- contact forces ---------------------------------------------------------------------------------------------


def lifted(formulation: Any, *, leave: bool, native: bool = True) -> dh.HybridSystem:
    """A mass on the ground, pulled up by f t: the ground would have to pull from t = m g / f on."""
    mech = Mechanism("lifted")
    f = mech.parameter("f", 10.0)
    x, y = mech.coordinate("x"), mech.coordinate("y")
    mech.inertia([x, y], np.diag([2.0, 2.0]))
    mech.force({y: f * mech.time - 2.0 * 9.81})
    ground, air = mech.mode("ground"), mech.mode("air")
    force = ground.constraint("floor", -y, bounds=(0, np.inf))
    if leave:
        mech.event(ground, air, guard=force, direction="falling")
    mech.initial(ground, {x: 0.0, y: 0.0}, {"v_x": 1.0, "v_y": 0.0})
    mech.functional("G", terminal=y)
    return mech.build(formulation, native=native)


FORMULATIONS = [Index2(), Index2(positions=False), Reduced(), Index1(), Index1(omega=10.0), Penalty(alpha=1e8)]


@pytest.mark.parametrize("formulation", FORMULATIONS, ids=repr)
def test_a_contact_that_would_pull(formulation):
    """Refused where the force changes sign; with a transition there the mass lifts off, f (T - t)^3 / 12 high."""
    lift = 2 * 9.81 / 10
    for native in (True, False):
        with pytest.raises(dh.BoundError, match=r"lambda_floor = .* passes its lower bound 0") as caught:
            dh.simulate(lifted(formulation, leave=False, native=native), (0, 3), rtol=1e-8)
        assert caught.value.mode == "ground"
        assert abs(caught.value.time - lift) < 1e-9
    rest = 3 - lift
    asa = dh.adjoint_gradient(lifted(formulation, leave=True), (0, 3), "G", rtol=1e-8, atol=1e-10)
    assert asa.value == pytest.approx(10 * rest**3 / 12, rel=1e-7)
    assert asa.gradient[0] == pytest.approx(rest**3 / 12 + rest**2 * lift / 4, rel=1e-6)


@cache
def oscillator(*, native: bool = True) -> dh.HybridSystem:
    """z = a cos(t), between -1 and 1."""
    m = dh.HybridModel("oscillator")
    a = m.parameter("a", 1.0)
    x, y = m.differential("x"), m.differential("y")
    z = m.algebraic("z", bounds=(-1, 1), guess=1.0)
    swing = m.mode("swing", ode={x: -y, y: x}, algebraic=[z + 0.1 * (z - x) ** 3 - x])
    m.initial(swing, {x: a, y: 0.0})
    m.functional("G", integrand=z**2)
    return m.build(native=native)


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8, 1e-10])
@pytest.mark.parametrize(
    ("adapter", "native"), [("sundials", True), ("sundials", False), ("scipy", True), ("casadi", True)]
)
def test_a_bound_that_is_only_touched_is_not_violated(adapter, native, rtol):
    """At the start, at pi, 2 pi and 3 pi, where rounding decides whether z is beyond it."""
    options = {"adapter": adapter, "rtol": rtol, "atol": 1e-2 * rtol}
    sol = dh.simulate(oscillator(native=native), (0, 10), **options)
    assert not sol.events
    assert sol.final[2][0] == pytest.approx(math.cos(10), abs=1e3 * rtol)
    with pytest.raises(dh.BoundError, match="passes its lower bound") as caught:
        dh.simulate(later(native=native), (0, 10), **options)
    assert caught.value.time == pytest.approx(math.pi - math.acos(1 / 1.05), abs=1e3 * rtol)


@cache
def later(*, native: bool = True) -> dh.HybridSystem:
    """z = 1.05 cos(t) with a lower bound at -1 alone."""
    m = dh.HybridModel("beyond")
    x, y = m.differential("x"), m.differential("y")
    z = m.algebraic("z", bounds=(-1, None), guess=1.0)
    swing = m.mode("swing", ode={x: -y, y: x}, algebraic=[z + 0.1 * (z - x) ** 3 - x])
    m.initial(swing, {x: 1.05, y: 0.0})
    return m.build(native=native)


def test_the_gradient_where_a_bound_is_touched():
    """It is that of the run without bounds: G = a^2 (T / 2 + sin(2 T) / 4)."""
    exact = 2 * (5 + math.sin(20) / 4)
    fsa = dh.forward_sensitivity(oscillator(), (0, 10), rtol=1e-8, atol=1e-10)
    asa = dh.adjoint_gradient(oscillator(), (0, 10), "G", rtol=1e-8, atol=1e-10)
    assert fsa.gradient["G"][0] == pytest.approx(exact, rel=1e-6)
    assert asa.gradient[0] == pytest.approx(exact, rel=1e-6)


def test_a_bound_that_is_passed_by_a_little_is_violated():
    """By 2e-5, at rtol 1e-9."""
    with pytest.raises(dh.BoundError, match="is past its upper bound 1 where the mode is entered"):
        dh.simulate(oscillator(), (0, 10), parameters={"a": 1 + 2e-5}, rtol=1e-9, atol=1e-11)
