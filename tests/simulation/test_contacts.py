"""Several contacts at one instant: what fires, how often, in which order, and which derivatives exist there."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import dae_hybrid as dh

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
#: natively compiled and interpreted, implicit and explicit, and an integrator of its own
WAYS: dict[str, tuple[bool, dict[str, Any]]] = {
    "native": (True, {}),
    "native bdf": (True, {"method": "bdf"}),
    "native adams": (True, {"method": "adams"}),
    "native erk": (True, {"method": "erk"}),
    "interpreted": (False, {}),
    "interpreted bdf": (False, {"method": "bdf"}),
    "scipy": (False, {"adapter": "scipy"}),
}


@cache
def balls(n: int, *, native: bool, direction: Any = "falling", masses: tuple[float, ...] = ()) -> dh.HybridSystem:
    """Points on a line that collide with restitution e; parameters x0, ..., v0, ..., e."""
    m = dh.HybridModel("balls")
    places = [m.parameter(f"x{i}", float(i)) for i in range(n)]
    speeds = [m.parameter(f"v{i}", 0.0) for i in range(n)]
    e = m.parameter("e", 1.0)
    x, v = m.differential("x", size=n), m.differential("v", size=n)
    fly = m.mode("fly", ode={x: v, v: np.zeros(n)})
    mass = masses or (1.0,) * n
    for i in range(n - 1):
        impulse = (1 + e) * mass[i] * mass[i + 1] / (mass[i] + mass[i + 1]) * (v[i] - v[i + 1])
        kick = {i: -impulse / mass[i], i + 1: impulse / mass[i + 1]}
        after = ca.vertcat(*(v[k] + kick.get(k, 0.0) for k in range(n)))
        m.transition(fly, fly, guard=x[i + 1] - x[i], direction=direction, reset={v: after}, name=f"{i}-{i + 1}")
    m.initial(fly, {x: ca.vertcat(*places), v: ca.vertcat(*speeds)})
    for i in range(n):
        m.functional(f"x{i}", terminal=x[i])
    return m.build(native=native)


def throw(x: list[float], v: list[float], way: str, end: float, *, e: float = 1.0, **options: Any) -> dh.Trajectory:
    native, method = WAYS[way]
    system = balls(len(x), native=native, **options)
    return dh.simulate(system, (0, end), parameters=[*x, *v, e], **method, **TIGHT)


def names(run: Any) -> list[str]:
    return [event.transition for event in run.events]


# -- equal elastic balls exchange their velocities: in order of place they are free particles ----------------------


@pytest.mark.parametrize("gap", [0.0, 3e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-9])
@pytest.mark.parametrize("way", WAYS)
def test_the_outer_two_of_three_balls_hit_the_middle_one_together(way: str, gap: float) -> None:
    run = throw([-1.0, 0.0, 1.0 + gap], [1.0, 0.0, -1.0], way, 2.0)
    np.testing.assert_allclose(run["v"][-1], [-1, 0, 1], atol=1e-12)
    np.testing.assert_allclose(run["x"][-1], [-1 + gap, 0, 1], atol=1e-9)
    assert names(run) == ["0-1", "1-2", "0-1"]


@pytest.mark.parametrize("strikers", [1, 2, 3, 4])
@pytest.mark.parametrize("way", WAYS)
def test_newtons_cradle(way: str, strikers: int) -> None:
    """As many balls leave as have struck, and none passes through another one."""
    run = throw([-1.0] * strikers + [0.0] * (5 - strikers), [1.0] * strikers + [0.0] * (5 - strikers), way, 2.0)
    moving = np.array([0.0] * (5 - strikers) + [1.0] * strikers)
    np.testing.assert_allclose(run["v"][-1], moving, atol=1e-12)
    np.testing.assert_allclose(run["x"][-1], moving, atol=1e-9)


@pytest.mark.parametrize("direction", ["falling", "both"])
def test_five_balls_that_meet_in_one_point(direction: Any) -> None:
    for native in (True, False):
        system = balls(5, native=native, direction=direction)
        run = dh.simulate(system, (0, 2), parameters=[-2, -1, 0, 1, 2, 2, 1, 0, -1, -2, 1], **TIGHT)
        np.testing.assert_allclose(run["v"][-1], [-2, -1, 0, 1, 2], atol=1e-12)
        assert len(run.events) == 10  # every pair once
        assert [event.order for event in run.events] == list(range(10))


@settings(max_examples=40, deadline=None)
@example(way="native", shape=[(0, 2), (2, 0), (2, -2)], unit=(1, 1))
@example(way="scipy", shape=[(0, 2), (2, 0), (0, 0), (0, -1), (1, -1)], unit=(3, 2))
@example(way="scipy", shape=[(2, -2), (0, -1), (2, -3), (0, -2), (0, -2)], unit=(2, 2))
@given(
    way=st.sampled_from(sorted(WAYS)),
    shape=st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3)), min_size=2, max_size=5),
    unit=st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3])),
)
def test_elastic_balls_are_free_particles(way: str, shape: list[tuple[int, int]], unit: tuple[int, int]) -> None:
    """Places and velocities on grids, so that many collisions fall on one instant, and some on the start."""
    gaps = [gap for gap, _ in shape]
    assume(not any(one == other == 0 for one, other in pairwise(gaps[1:])))  # three at one place are refused: ZenoError
    end = 3.1
    x, v = np.cumsum(gaps) / unit[0], np.array([speed for _, speed in shape]) / unit[1]
    run = throw(x.tolist(), v.tolist(), way, end)
    free = x + v * end
    order = np.argsort(free, kind="stable")
    np.testing.assert_allclose(run["x"][-1], free[order], atol=1e-7)
    apart = np.diff(free[order], prepend=-np.inf) > 1e-6
    alone = apart & np.append(apart[1:], True)
    np.testing.assert_allclose(run["v"][-1][alone], v[order][alone], atol=1e-9)


@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("x", "v"),
    [
        ([-1, 0, 1], [1, 0, -1]),
        ([0, 1, 2, 3], [2, 0, 0, -2]),
        ([0, 1, 2, 4], [1, 0, -1, -2]),
        ([-2, -1, 0, 1, 2], [2, 1, 0, -1, -2]),
    ],
)
def test_derivatives_of_elastic_balls_are_those_of_free_particles(x: list[float], v: list[float], native: bool) -> None:
    """However many meet at one instant: where they end depends smoothly on where they start."""
    n, end = len(x), 2.6
    system, p = balls(n, native=native), [*x, *v, 1.0]
    order = np.argsort(np.array(x) + end * np.array(v))
    truth = np.hstack((np.eye(n)[order], end * np.eye(n)[order]))
    options: dict[str, Any] = {"parameters": p, "wrt": system.parameters.names[: 2 * n], **TIGHT}
    fsa = dh.forward_sensitivity(system, (0, end), **options)
    assert max(event.order for event in fsa.events) >= 1
    np.testing.assert_allclose([fsa.gradient[f"x{i}"] for i in range(n)], truth, atol=1e-7)
    for i in range(n):
        asa = dh.adjoint_gradient(system, (0, end), f"x{i}", duality=True, **options)
        np.testing.assert_allclose(asa.gradient, truth[i], atol=1e-7)


@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
@pytest.mark.parametrize("native", [True, False])
def test_derivatives_of_newtons_cradle(native: bool) -> None:
    """By the ball that strikes they exist; whether the others are in contact is a matter of their own places."""
    system, p = balls(5, native=native), [-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    fsa = dh.forward_sensitivity(system, (0, 2), parameters=p, wrt=["x0", "v0"], **TIGHT)
    np.testing.assert_allclose([fsa.gradient[f"x{i}"] for i in range(5)], [[0, 0]] * 4 + [[1, 2]], atol=1e-9)
    asa = dh.adjoint_gradient(system, (0, 2), "x4", parameters=p, wrt=["x0", "v0"], **TIGHT)
    np.testing.assert_allclose(asa.gradient, [1, 2], atol=1e-9)
    for name in ("x2", "v2"):
        with pytest.raises(dh.EventError, match="zero"):
            dh.forward_sensitivity(system, (0, 2), parameters=p, wrt=[name], **TIGHT)


@cache
def box(*, native: bool) -> dh.HybridSystem:
    """Three equal elastic balls between walls at 0 and at a parameter `wall`."""
    m = dh.HybridModel("box")
    places = [m.parameter(f"x{i}", float(i + 1)) for i in range(3)]
    speeds = [m.parameter(f"v{i}", 0.0) for i in range(3)]
    wall = m.parameter("wall", 6.0)
    x, v = m.differential("x", size=3), m.differential("v", size=3)
    fly = m.mode("fly", ode={x: v, v: np.zeros(3)})
    contacts = [(x[0], -v[0], v[1], v[2]), (x[1] - x[0], v[1], v[0], v[2])]
    contacts += [(x[2] - x[1], v[0], v[2], v[1]), (wall - x[2], v[0], v[1], -v[2])]
    for i, (gap, *after) in enumerate(contacts):
        m.transition(fly, fly, guard=gap, direction="falling", reset={v: ca.vertcat(*after)}, name=f"contact {i}")
    m.initial(fly, {x: ca.vertcat(*places), v: ca.vertcat(*speeds)})
    for i in range(3):
        m.functional(f"x{i}", terminal=x[i])
    return m.build(native=native)


THROWN = given(
    way=st.sampled_from(["native", "native bdf", "interpreted", "scipy"]),
    places=st.sets(st.integers(1, 11), min_size=3, max_size=3),
    speeds=st.tuples(*[st.integers(-3, 3)] * 3),
    unit=st.sampled_from([1, 2, 3]),
)


@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
@settings(max_examples=8, deadline=None)
@example(way="native", places={2, 6, 10}, speeds=(-2, 0, 2), unit=1)  # both walls at one instant, then all three balls
@THROWN
def test_elastic_balls_between_walls(**thrown: Any) -> None:
    reflected_by_walls(**thrown)


@pytest.mark.campaign
@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
@settings(max_examples=50, deadline=None)
@THROWN
def test_many_elastic_balls_between_walls(**thrown: Any) -> None:
    reflected_by_walls(**thrown)


def reflected_by_walls(way: str, places: set[int], speeds: tuple[int, ...], unit: int) -> None:
    """Each is a free particle that the walls reflect, and so are its derivatives by places, velocities and the wall."""
    wall, end = 6.0, 4.1234567  # when nothing collides
    x, v = np.sort(list(places)) / 2, np.array(speeds) / unit
    rounds, free = np.divmod(x + v * end, 2 * wall)
    sign = np.where(free <= wall, 1.0, -1.0)
    by_wall = np.where(free <= wall, -2 * rounds, 2 + 2 * rounds)
    free = np.where(free <= wall, free, 2 * wall - free)
    order = np.argsort(free, kind="stable")
    native, method = WAYS[way]
    fsa = dh.forward_sensitivity(box(native=native), (0, end), parameters=[*x, *v, wall], **method, **TIGHT)
    places_ = [fsa.functionals[f"x{i}"] for i in range(3)]
    np.testing.assert_allclose(places_, free[order], atol=1e-7)
    truth = np.hstack((np.diag(sign), np.diag(sign * end), by_wall[:, None]))[order]
    np.testing.assert_allclose([fsa.gradient[f"x{i}"] for i in range(3)], truth, atol=1e-6)


# -- where the order matters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["declared", "reversed"])
@pytest.mark.parametrize(("e", "masses"), [(0.5, ()), (1.0, (1.0, 2.0, 3.0))])
def test_contacts_whose_order_matters_have_two_sides(e: float, masses: tuple[float, ...], order: Any) -> None:
    """The derivative is that of the side on which what is declared (or reversed) first comes first."""
    system = balls(3, native=False, masses=masses)
    p = [-1.0, 0.0, 1.0, 1.0, 0.0, -1.0, e]
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        more = {"functional": "x0"} if analysis is dh.adjoint_gradient else {}
        with pytest.warns(dh.DerivativeWarning, match="are due at one instant.* order matters: .* different states"):
            found = analysis(system, (0, 2), parameters=p, wrt=["x2"], simultaneous=order, **more, **TIGHT)
        gradient = found.gradient if more else found.gradient["x0"]
        h = 1e-4 if order == "declared" else -1e-4  # the right ball comes later, or earlier
        sides = [dh.simulate(system, (0, 2), parameters=[*p[:2], p[2] + s * h, *p[3:]], **TIGHT) for s in (1, 2)]
        slope = (sides[1].functionals["x0"] - sides[0].functionals["x0"]) / h
        np.testing.assert_allclose(gradient, slope, atol=1e-6)


@pytest.mark.parametrize("e", [0.0, 0.05])
def test_balls_that_come_to_rest_among_each_other(e: float) -> None:
    """Collisions without end whose speeds become rounding; momentum is kept, and a derivative is refused."""
    system, p = balls(3, native=False), [-1, 0, 1, 1, 0, -1, e]
    run = dh.simulate(system, (0, 2), parameters=p, **TIGHT)
    np.testing.assert_allclose(run["v"][-1], 0, atol=1e-12)
    assert len(run.events) < 100
    with pytest.raises(dh.GrazingError):
        dh.forward_sensitivity(system, (0, 2), parameters=p, **TIGHT)


@pytest.mark.parametrize("struck", [False, True])
@pytest.mark.parametrize("native", [True, False])
def test_a_contact_at_rest_has_one_sided_derivatives(native: bool, struck: bool) -> None:
    """Two balls rest in contact: one way they part, the other way they collide; a third one goes off on its own.

    Of x1 at the end, the derivatives by v1 are the end time and 0.
    """
    system, end = balls(4, native=native), 2.0
    p = [0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 1.0 if struck else 0.0, 0.0, 1.0]
    slopes = []
    for h in (1e-3, -1e-3):
        values = [dh.simulate(system, (0, end), parameters=[*p[:5], v, *p[6:]]).functionals["x1"] for v in (0.0, h)]
        slopes.append((values[1] - values[0]) / h)
    np.testing.assert_allclose(slopes, [end, 0.0], atol=1e-6)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        more = {"functional": "x1"} if analysis is dh.adjoint_gradient else {}
        with pytest.raises(dh.EventError, match="rests at zero, but leaves it with the parameters") as caught:
            analysis(system, (0, end), parameters=p, wrt=["v1"], **more)
        assert caught.value.transition == "0-1"
        analysis(system, (0, end), parameters=p, wrt=["x3", "v3"], **more)  # those leave it at rest


def test_a_chain_without_end_is_refused() -> None:
    """Each turns the rate round for the other one; that is one mode, and no sliding along a surface between two."""
    m = dh.HybridModel("squeeze")
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: 0.0})
    m.transition(run, run, guard=x, direction="falling", reset={v: -v}, name="floor")
    m.transition(run, run, guard=x, direction="rising", reset={v: -v}, name="ceiling")
    m.initial(run, {x: 1.0, v: -1.0})
    with pytest.raises(dh.ChatteringError, match="More than 100 transitions at one instant") as caught:
        dh.simulate(m.build(native=False), (0, 2))
    assert "resets and guards of the cycle" in caught.value.remedy


# -- past several thresholds -----------------------------------------------------------------------------------------


def thresholds(*declared: tuple[float, str, float], start: float, jump: float | None) -> dh.HybridModel:
    """y stands at a start value or is put there at 0.5; each (level, on_entry, y after it) fires above its level."""
    m = dh.HybridModel("thresholds")
    y = m.differential("y")
    run = m.mode("run", ode={y: 0.0})
    for i, (level, on_entry, after) in enumerate(declared):
        guard: Any = y - level
        m.transition(run, run, guard=guard, direction="rising", on_entry=on_entry, reset={y: after}, name=f"g{i}")
    if jump is not None:
        m.transition(run, run, at=0.5, reset={y: jump}, name="jump")
    m.initial(run, {y: start})
    return m


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("jump", [False, True])
@pytest.mark.parametrize(
    ("declared", "fired"),
    [
        ([(1.0, "fire", 5.0), (2.0, "fire", 5.0), (3.0, "fire", 5.0)], ["g0", "g1", "g2"]),
        ([(1.0, "fire", 1.5), (2.0, "fire", 5.0)], ["g0"]),  # taken back below its threshold
        ([(2.0, "fire", 5.0), (1.0, "fire", 1.5)], ["g0", "g1"]),
        ([(1.0, "fire", 1.5), (2.0, "error", 5.0)], ["g0"]),
        ([(4.0, "wait", 5.0), (1.0, "fire", 0.0), (3.0, "fire", 5.0)], ["g1"]),
        ([(2.0, "fire", 0.0), (-1.0, "fire", 5.0)], ["g0", "g1", "g0"]),  # brought back across
    ],
)
def test_past_several_thresholds(declared: Any, fired: list[str], jump: bool, native: bool) -> None:
    """In order of declaration, each with what the one before left, where that still is past its threshold."""
    start, when = (-5.0, 0.5) if jump else (5.0, 0.0)
    m = thresholds(*declared, start=start, jump=5.0 if jump else None)
    run = dh.simulate(m.build(native=native), (0, 1), **TIGHT)
    assert names(run) == ["jump"] * jump + fired
    assert {event.time for event in run.events} == {when}
    assert len(run.diagnostics.notes) == sum(on_entry == "wait" for _, on_entry, _ in declared)


def test_past_several_thresholds_from_the_last_to_the_first() -> None:
    m = thresholds((1.0, "fire", 0.0), (2.0, "fire", 1.5), (3.0, "fire", 5.0), start=5.0, jump=None)
    run = dh.simulate(m.build(native=False), (0, 1), simultaneous="reversed")
    assert names(run) == ["g2", "g1", "g0"]


@pytest.mark.parametrize("first", [(3.0, "error", 5.0), (1.0, "fire", 4.0)])
def test_an_invariant_that_is_still_violated_in_its_turn(first: tuple[float, str, float]) -> None:
    m = thresholds(first, (3.0, "error", 5.0), start=5.0, jump=None)
    with pytest.raises(dh.GuardPassedError) as caught:
        dh.simulate(m.build(native=False), (0, 1))
    assert caught.value.transition == ("g0" if first[1] == "error" else "g1")


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("on_entry", ["wait", "fire", "error"])
def test_a_reset_that_moves_its_own_guard_on_is_no_entry(on_entry: Any, native: bool) -> None:
    """x doubles at 1, once: x(1.5) = 2 + 0.5 whatever c is, and dx/dc = 2 - 1 where x = 2 c + (t - c)."""
    m = dh.HybridModel("double")
    c, x = m.parameter("c", 1.0), m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, run, guard=x - c, direction="rising", on_entry=on_entry, reset={x: 2 * x}, name="double")
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=x)
    system = m.build(native=native)
    ways: list[dict[str, Any]] = [{}, {"method": "bdf"}] if native else [{}, {"adapter": "scipy"}]
    for way in ways:
        asa = dh.adjoint_gradient(system, (0, 1.5), **way, **TIGHT)
        assert names(asa.trajectory) == ["double"]
        assert asa.diagnostics.notes == ()
        assert asa.value == pytest.approx(2.5)
        np.testing.assert_allclose(asa.gradient, [1.0], rtol=1e-8)


def test_a_guard_that_another_transition_puts_back_to_zero_fires_again() -> None:
    """x doubles at 1, which makes it leave for 1 once more; then it doubles again."""
    m = dh.HybridModel("again")
    x, n = m.differential("x"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, run, guard=x - 1, direction="rising", reset={x: 2 * x}, name="double")
    back: dict[str, Any] = {"on_entry": "fire", "reset": {x: 1.0}, "memory": {n: n + 1}}
    m.transition(run, run, guard=x - 1.5 - 9 * n, direction="rising", name="back", **back)
    m.initial(run, {x: 0.0})
    assert names(dh.simulate(m.build(native=False), (0, 1.2), **TIGHT)) == ["double", "back", "double"]


@pytest.mark.parametrize("native", [True, False])
def test_a_contact_at_rest_is_struck_at_either_end_of_a_run(native: bool) -> None:
    """At the start, where two balls are in contact and a third arrives; and at the very end."""
    system = balls(3, native=native)
    run = dh.simulate(system, (0, 1), parameters=[0, 0, 0, 1, 0, 0, 1], **TIGHT)
    assert names(run) == ["0-1", "1-2"]
    np.testing.assert_allclose(run["v"][-1], [0, 0, 1], atol=1e-12)
    run = dh.simulate(system, (0, 1), parameters=[-1, 0, 1, 1, 0, -1, 1], **TIGHT)
    assert names(run) == ["0-1", "1-2", "0-1"]
    np.testing.assert_allclose(run.final[2], [0, 0, 0, -1, 0, 1], atol=1e-12)


def test_a_guard_that_has_crossed_does_not_again_when_another_one_follows_at_once() -> None:
    """The second guard is zero a few roundings of time after the first, whose guard is still zero to rounding."""
    for delay in (0.0, 1e-15, 4e-15, 1e-14, 3e-14, 1e-13, 1e-12):
        m = dh.HybridModel("at once")
        y = m.differential("y")
        run = m.mode("run", ode={y: 1.0})
        m.transition(run, run, guard=y - 1, direction="rising", name="first")
        m.transition(run, run, guard=y - 1 - delay, direction="rising", name="second")
        m.initial(run, {y: 0.0})
        for native in (True, False):
            assert sorted(names(dh.simulate(m.build(native=native), (0, 2)))) == ["first", "second"]


# -- signals and clocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["rising", "both"])
def test_two_guards_that_jump_with_a_signal(direction: Any) -> None:
    m = dh.HybridModel("steps")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    f = m.signal("f", [0, 1, 2], [0.0, 2.0, 2.0], kind="previous")
    run = m.mode("run", ode={y: 0.0})
    for i, level in enumerate((1.0, 1.5)):
        m.transition(run, run, guard=f - level, direction=direction, memory={n: 10 * n + i + 1}, name=f"g{i}")
    m.initial(run, {y: 0.0})
    m.functional("order", terminal=n)
    run_ = dh.simulate(m.build(native=False), (0, 1.5))
    assert run_.functionals["order"] == 12
    assert [event.time for event in run_.events] == [1.0, 1.0]


@pytest.mark.parametrize("way", ["native", "native bdf", "interpreted", "scipy"])
def test_a_tick_happens_once_per_instant(way: str) -> None:
    """The clock of every mode is one clock: the mode that a tick leads to waits for the next one."""
    m = dh.HybridModel("clocks")
    period = m.parameter("period", 0.5)
    x = m.differential("x")
    off, on = m.mode("off", ode={x: 0.0}), m.mode("on", ode={x: 1.0})
    m.transition(off, on, every=period, name="start")
    m.transition(on, on, every=period, reset={x: 0.0}, name="restart")
    m.transition(on, on, every=2 * period, name="other clock")
    m.initial(off, {x: 0.0})
    m.functional("G", terminal=x)
    native, method = WAYS[way]
    asa = dh.adjoint_gradient(m.build(native=native), (0, 1.25), **method)
    assert [(e.transition, e.time) for e in asa.trajectory.events] == [
        ("start", 0.5), ("restart", 1.0), ("other clock", 1.0)
    ]  # fmt: skip
    np.testing.assert_allclose([asa.value, *asa.gradient], [0.25, -2.0], rtol=1e-8)


def test_modes_that_take_turns_by_one_clock() -> None:
    m = dh.HybridModel("turns")
    x = m.differential("x")
    modes = [m.mode(name, ode={x: 0.0}) for name in "abc"]
    for i in range(3):
        m.transition(modes[i], modes[(i + 1) % 3], every=0.25)
    m.transition(modes[1], modes[1], every=0.25, name="not reached")  # its mode is left first
    m.initial(modes[0], {x: 0.0})
    run = dh.simulate(m.build(native=False), (0, 1))
    assert [(e.transition, e.time) for e in run.events] == [
        ("a->b", 0.25), ("b->c", 0.5), ("c->a", 0.75), ("a->b", 1.0)
    ]  # fmt: skip


@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
@pytest.mark.parametrize("early", [0.0, 1e-9])
def test_a_tick_by_a_guard_does_not_count_twice(early: float) -> None:
    """A guard is due within the accuracy of a tick's time, in another component: their order does not matter."""
    m = dh.HybridModel("tick")
    a = m.parameter("a", 1.0)
    x, z, w = (m.differential(name) for name in "xzw")
    run = m.mode("run", ode={x: a, z: 0.0, w: 0.0})
    m.transition(run, run, every=1.0, reset={z: z + 1})
    m.transition(run, run, guard=x - 1 + early, direction="rising", reset={w: w + 1})
    m.initial(run, {x: 0.0, z: 0.0, w: 0.0})
    m.functional("G", terminal=x + z + w)
    asa = dh.adjoint_gradient(m.build(native=False), (0, 1.5))
    np.testing.assert_allclose([asa.value, *asa.gradient], [3.5, 1.5], rtol=1e-6)
