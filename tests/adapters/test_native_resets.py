"""Resets by equations, and algebraic variables that jump, in compiled code: as in Python, or left to Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.problems import ball_on_rope, impact_oscillator, pendulum_with_stop
from dae_hybrid.problems._reference import with_derivatives

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
ANALYSES: dict[str, Callable[..., Any]] = {
    "simulate": dh.simulate,
    "forward": dh.forward_sensitivity,
    "adjoint": lambda system, span, **options: dh.adjoint_gradient(system, span, "G", **options),
}


def native(run: dh.Trajectory) -> int:
    """Number of native events."""
    return run.statistics["native_events"]


def same(system: dh.HybridSystem, span: tuple[float, float], *, carried: int | None = None, **options: Any) -> Any:
    """The forward analysis, once all of the analyses have been found to agree on both engines.

    `carried` are the events that compiled code is to carry out, by default all.
    """
    options = TIGHT | options
    runs, forward, adjoint = (
        [call(system, span, native_events=engine, **options) for engine in (True, False)] for call in ANALYSES.values()
    )
    for one, other in (runs, [found.trajectory for found in forward], [found.trajectory for found in adjoint]):
        assert native(one) == (len(other.events) if carried is None else carried)
        assert native(other) == 0 < len(other.events)
        assert [e.transition for e in one.events] == [e.transition for e in other.events]
        for a, b in zip(one.events, other.events, strict=True):
            for field in ("time", "x_plus", "xdot_plus", "memory_plus", "xi"):
                np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-9, atol=1e-11, err_msg=field)
            assert {k: pytest.approx(v, rel=1e-9, abs=1e-11) for k, v in b.unknowns.items()} == dict(a.unknowns)
    assert dict(runs[0].functionals) == pytest.approx(dict(runs[1].functionals), rel=1e-9, abs=1e-11)
    one, other = forward
    scale = max(np.abs(other.gradient["G"]).max(), 1e-3)
    for found in (one.gradient["G"], adjoint[0].gradient, adjoint[1].gradient):
        np.testing.assert_allclose(found, other.gradient["G"], rtol=1e-6, atol=1e-7 * scale)
    np.testing.assert_allclose(one.event_time_sensitivity, other.event_time_sensitivity, rtol=1e-6, atol=1e-8)
    for a, b in zip(one.event_sensitivities, other.event_sensitivities, strict=True):
        for side in ("state_minus", "state_plus", "memory_plus"):
            np.testing.assert_allclose(getattr(a, side), getattr(b, side), rtol=1e-6, atol=1e-7, err_msg=side)
    return one


# -- closed forms -------------------------------------------------------------------------------------------------


def collision() -> dh.HybridModel:
    """Two masses on a line, and a wall on the left: an impulse as unknown, momentum, restitution."""
    m = dh.HybridModel("collision")
    e, m1, m2 = m.parameter("e", 0.6), m.parameter("m1", 1.5), m.parameter("m2", 0.8)
    x1, x2, v1, v2 = (m.differential(name) for name in ("x1", "x2", "v1", "v2"))
    P = m.unknown("P")
    run = m.mode("run", ode={x1: v1, x2: v2, v1: 0.0, v2: 0.0})
    reset = [
        m1 * (m.post(v1) - m.pre(v1)) + P,
        m2 * (m.post(v2) - m.pre(v2)) - P,
        m.post(v2) - m.post(v1) + e * (m.pre(v2) - m.pre(v1)),
    ]
    m.transition(run, run, guard=x2 - x1, direction="falling", reset=reset, name="meet")
    m.initial(run, {x1: 0.0, x2: 1.0, v1: 1.2, v2: -0.4})
    m.functional("G", terminal=x1 + 2 * x2)
    m.functional("impulse", at_events={"meet": P**2})
    return m


def met(p: Any) -> Any:
    """Where the masses are at t = 1.5, and the square of the impulse."""
    e, m1, m2 = p
    t, P = 1 / 1.6, (1 + e) * 1.6 * m1 * m2 / (m1 + m2)
    v1, v2 = 1.2 - P / m1, -0.4 + P / m2
    return np.array([3 * 1.2 * t + (v1 + 2 * v2) * (1.5 - t), P**2])


def test_two_masses(built: Any, compare_gradients: Any) -> None:
    value, exact = with_derivatives(met, [0.6, 1.5, 0.8])
    found = same(built(collision), (0, 1.5))
    assert found.trajectory.events[0].unknowns["P"] == pytest.approx(np.sqrt(value[1]), rel=1e-9)
    for i, name in enumerate(("G", "impulse")):
        compared = compare_gradients(built(collision), (0, 1.5), name, value=value[i], exact=exact[i])
        assert native(compared.adjoint.trajectory) == 1


@pytest.mark.parametrize("problem", [pendulum_with_stop, impact_oscillator, ball_on_rope], ids=lambda p: p.__name__)
def test_impacts_of_mechanisms(problem: Any) -> None:
    """In Cartesian coordinates: constraints with multipliers, masses, friction; beside values to 20 digits.

    A rope goes slack with the distance of its ball at rest at the length.
    """
    system, exact = problem.system(), problem.reference()
    expected = len(exact.event_times)
    fsa = dh.forward_sensitivity(system, problem.t_span, **TIGHT)
    other = dh.forward_sensitivity(system, problem.t_span, native_events=False, **TIGHT)
    assert native(fsa.trajectory) == expected > native(other.trajectory) == 0
    np.testing.assert_allclose([e.time for e in fsa.events], exact.event_times, rtol=1e-8)
    for name, value in exact.values.items():
        asa = dh.adjoint_gradient(system, problem.t_span, name, **TIGHT)
        assert native(asa.trajectory) == expected
        assert asa.value == pytest.approx(value, rel=1e-7)
        size = np.abs(exact.gradients[name]).max()
        for found in (fsa.gradient[name], other.gradient[name], asa.gradient):
            np.testing.assert_allclose(found, exact.gradients[name], rtol=1e-6, atol=1e-7 * size)


def pendulum(*, once: bool = False) -> dh.HybridModel:
    """A bob on a rod, in Cartesian coordinates, that a wall throws back: impulses of the wall and of the rod.

    The wall may be gone after that.
    """
    m = dh.HybridModel("pendulum")
    e, L, w = m.parameter("e", 0.9), m.parameter("L", 1.1), m.parameter("w", 0.2)
    x, y, vx, vy = (m.differential(name) for name in ("x", "y", "vx", "vy"))
    tension, mu, wall, rod = m.algebraic("tension"), m.algebraic("mu"), m.unknown("wall"), m.unknown("rod")
    equations: dict[str, Any] = {
        "ode": {x: vx - x * mu, y: vy - y * mu, vx: -x * tension, vy: -9.81 - y * tension},
        "constraint": [(x**2 + y**2 - L**2) / 2, x * vx + y * vy],
    }
    run, free = m.mode("run", **equations), m.mode("free", **equations)
    thrown = [m.post(vx) - vx - wall - x * rod, m.post(vy) - vy - y * rod, m.post(vx) + e * vx]
    m.transition(run, free if once else run, guard=x - w, direction="falling", reset=thrown, name="impact")
    m.initial(run, {x: L * ca.sin(1.0), y: -L * ca.cos(1.0), vx: 0.0, vy: 0.0})
    m.functional("G", integrand=x**2 + 0.1 * tension, terminal=y)
    return m


def swing() -> dh.HybridModel:
    """The same pendulum by its angle."""
    m = dh.HybridModel("swing")
    e, L, w = m.parameter("e", 0.9), m.parameter("L", 1.1), m.parameter("w", 0.2)
    angle, rate = m.differential("angle"), m.differential("rate")
    run = m.mode("run", ode={angle: rate, rate: -9.81 / L * ca.sin(angle)})
    m.transition(run, run, guard=L * ca.sin(angle) - w, direction="falling", reset={rate: -e * rate}, name="impact")
    m.initial(run, {angle: 1.0, rate: 0.0})
    tension = rate**2 + 9.81 / L * ca.cos(angle)
    m.functional("G", integrand=(L * ca.sin(angle)) ** 2 + 0.1 * tension, terminal=-L * ca.cos(angle))
    return m


SPAN = (0.0, 3.0)


@pytest.mark.parametrize("eliminate", [True, False])
def test_a_pendulum_and_a_wall(eliminate: bool, compare_gradients: Any) -> None:
    by_angle = dh.forward_sensitivity(swing().build(), SPAN, **TIGHT)
    system = pendulum().build(eliminate=eliminate)
    found = same(system, SPAN)
    assert len(found.trajectory.events) == len(by_angle.events) >= 3
    exact = {"value": by_angle.functionals["G"], "exact": by_angle.gradient["G"]}
    compare_gradients(system, SPAN, "G", **exact, **TIGHT)


def test_directions_and_adjoints_are_led_onto_constraints() -> None:
    """As in Python, however loose the tolerances."""
    system = pendulum().build()
    loose = {"rtol": 1e-4, "atol": 1e-6, "parameters": {"e": 1.0}}
    engines = [dh.forward_sensitivity(system, (0, 30), native_events=engine, **loose) for engine in (True, False)]
    assert [native(found.trajectory) for found in engines] == [len(engines[1].events), 0]
    for fsa in engines:
        for event, around in zip(fsa.events, fsa.event_sensitivities, strict=True):
            for x, d in ((event.x_minus, around.state_minus), (event.x_plus, around.state_plus)):
                held = x[0] * d[0] + x[1] * d[1] - 1.1 * np.array([0, 1, 0])
                np.testing.assert_allclose(held, 0, atol=1e-12 * np.abs(d).max())
                np.testing.assert_allclose(x[0] ** 2 + x[1] ** 2, 1.1**2, rtol=1e-14)
    one, other = (dh.adjoint_gradient(system, SPAN, native_events=engine, **loose) for engine in (True, False))
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-10)


def test_a_state_that_drifts_off_constraints_is_led_back() -> None:
    """Dense output within the segment after a native event."""
    system, loose = pendulum(once=True).build(), {"rtol": 1e-6, "atol": 1e-8}
    exact = dh.forward_sensitivity(system, (0, 40), **TIGHT)
    for engine in (True, False):
        fsa = dh.forward_sensitivity(system, (0, 40), native_events=engine, **loose)
        asa = dh.adjoint_gradient(system, (0, 40), "G", native_events=engine, **loose)
        assert native(fsa.trajectory) == native(asa.trajectory) == int(engine)
        assert asa.trajectory.statistics["segments"] > 2 + len(fsa.events)
        for found in (fsa.gradient["G"], asa.gradient):
            np.testing.assert_allclose(found, exact.gradient["G"], atol=1e-4 * np.abs(exact.gradient["G"]).max())


# -- random ones --------------------------------------------------------------------------------------------------


def random_reset(seed: int, *, nonlinear: bool, implicit: bool) -> tuple[dh.HybridModel, dict[str, bool]]:
    """Three states with an algebraic variable and a memory; all states but the first are reset by equations."""
    rng = np.random.default_rng(seed)
    m = dh.HybridModel("random")
    p = m.parameter("p", rng.uniform(0.5, 1.5, 3))
    y, z, P = m.differential("y", size=3), m.algebraic("z"), m.unknown("P", size=2)
    kept = m.memory("kept", of=z, initial=0.1)
    flow = ca.mtimes(ca.DM(rng.normal(size=(3, 3)) * 0.4), y) + ca.vertcat(1 + 0.1 * z, z, kept)
    rise = z + (0.3 * z**3 if nonlinear else 0.0) - p[0] * y[1] - 0.2 * p[1] * y[2] - 0.3 * kept
    run = m.mode("run", ode={y: flow}, algebraic=[rise])
    after, before = m.post(y), m.pre(y)
    mixed = ca.mtimes(ca.DM(np.eye(3) * 2 + 0.4 * rng.normal(size=(3, 3))), after)
    bend = 0.2 * after**3 if nonlinear else 0.0
    right = ca.mtimes(ca.DM(rng.normal(size=(3, 3))), before) + 0.3 * m.time * p - ca.vertcat(1.0, P)
    equations = [mixed + bend - right, P[0] - 0.2 * P[1] - p[1] * m.post(z), P[1] - 0.1 * m.pre(z) - 0.3 * after[2]]
    m.transition(run, run, guard=y[0] - p[0], direction="rising", reset=equations, name="hit")
    m.initial(run, {y: ca.vertcat(0, p[1] * 0.3, -0.2)})
    m.functional("G", integrand=ca.sumsqr(y), terminal=z + kept)
    m.functional("H", at_events={"hit": ca.sumsqr(P) + m.post(z) * m.pre(z)})
    return m, {"eliminate": not implicit}


@pytest.mark.parametrize(
    ("nonlinear", "implicit"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["linear-eliminated", "linear-integrated", "nonlinear-eliminated", "nonlinear-integrated"],
)
@pytest.mark.parametrize("seed", range(4))
def test_random_resets(seed: int, nonlinear: bool, implicit: bool, compare_gradients: Any) -> None:
    model, how = random_reset(seed, nonlinear=nonlinear, implicit=implicit)
    system = model.build(**how)
    runs = [dh.simulate(system, (0, 2), native_events=engine, **TIGHT) for engine in (True, False)]
    assert native(runs[0]) == len(runs[1].events) > 0
    np.testing.assert_allclose(*([e.time for e in run.events] for run in runs), rtol=1e-9)
    for name in ("G", "H"):
        compared = compare_gradients(system, (0, 2), name, rtol=1e-11, atol=1e-13)
        assert native(compared.adjoint.trajectory) == len(compared.adjoint.trajectory.events)
    other = dh.forward_sensitivity(system, (0, 2), native_events=False, **TIGHT)
    for name in ("G", "H"):
        scale = np.abs(other.gradient[name]).max()
        np.testing.assert_allclose(compared.forward.gradient[name], other.gradient[name], atol=1e-7 * scale)


# -- algebraic variables that jump ---------------------------------------------------------------------------------


def jumps() -> dh.HybridModel:
    """z + z^3 = q y in one mode and z = k y in the other: z jumps, and is kept, and costs."""
    m = dh.HybridModel("jumps")
    k, q, c = m.parameter("k", 1.2), m.parameter("q", 2.0), m.parameter("c", 0.5)
    y, z = m.differential("y"), m.algebraic("z")
    kept = m.memory("kept", of=z, initial=0.2)
    one = m.mode("one", ode={y: -z - 0.1 * kept}, algebraic=[z - k * y])
    two = m.mode("two", ode={y: z - 0.1 * kept}, algebraic=[z + z**3 - q * y])
    down = m.transition(one, two, guard=y - c, direction="falling", name="down")
    m.transition(two, one, guard=y - 2 * c, direction="rising", name="up")
    m.initial(one, {y: 1.0})
    m.functional("G", integrand=y**2 + kept, terminal=z)
    m.functional("H", at_events={down: m.post(z) ** 2 * q - m.pre(z)})
    return m


@pytest.mark.parametrize("eliminate", [True, False])
def test_algebraic_variables_that_jump(eliminate: bool, compare_gradients: Any) -> None:
    system = jumps().build(eliminate=eliminate)
    same(system, (0, 3))
    compare_gradients(system, (0, 3), "H", **TIGHT)


@pytest.mark.parametrize("eliminate", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_memory_that_the_equations_contain(share: float, eliminate: bool) -> None:
    """z = k y + s z*, where z* = z+ at events: k_z + k_z* counts."""
    m = dh.HybridModel("memory")
    k, s, y, z = m.parameter("k", 1.2), m.parameter("s", share), m.differential("y"), m.algebraic("z")
    kept = m.memory("kept", of=z, initial=0.5)
    run = m.mode("run", ode={y: z}, algebraic=[z - k - 0.1 * y - s * kept])
    m.transition(run, run, guard=y - 1, direction="rising", reset={y: 0.2 * k}, name="again")
    m.initial(run, {y: 0.0})
    m.functional("G", integrand=y * z)
    same(m.build(eliminate=eliminate), (0, 3))


def test_a_guess_for_an_algebraic_variable() -> None:
    """z^2 = y, and which root after an event; where z before satisfies the equations it stays."""
    m = dh.HybridModel("roots")
    k, y, z = m.parameter("k", 1.2), m.differential("y"), m.algebraic("z", guess=1.0)
    run = m.mode("run", ode={y: 1 + 0.1 * k * z}, algebraic=[z**2 - k * y])
    m.transition(run, run, guard=y - 2, direction="rising", reset={y: 0.5 * y}, guess={z: -3 * z}, name="other root")
    m.transition(run, run, guard=y - 1.5, direction="rising", guess={z: -3 * z}, name="stays")
    m.initial(run, {y: 1.0})
    m.functional("G", integrand=y * z)
    found = same(m.build(eliminate=False), (0, 2))
    signs = [(e.transition, np.sign(e.xi[0])) for e in found.trajectory.events]
    assert signs == [("stays", 1.0), ("other root", -1.0), ("stays", -1.0)]


@pytest.mark.parametrize("eliminate", [True, False])
def test_what_continuity_closes(eliminate: bool, models: Any) -> None:
    """Every stress satisfies the law of hysteresis where it is kept as well: it is continuous."""
    same(models.em().build(eliminate=eliminate), (0, 2), rtol=1e-9)


# -- choice of the solution, and cases left to Python -------------------------------------------------------------


def dropped(reset: Callable[..., list[Any]], *, guess: Any = None, carry: float = 1.0) -> dh.HybridModel:
    """A ball that falls on a floor; `reset(post, v, p)` is what its velocity satisfies."""
    m = dh.HybridModel("dropped")
    p = m.parameter("p", 0.8)
    y, v = m.differential("y"), m.differential("v")
    air = m.mode("air", ode={y: v, v: -9.81})
    more = {} if guess is None else {"guess": {v: guess * v}}
    m.transition(
        air, air, guard=y, direction="falling", reset=reset(m.post(v), carry * m.pre(v), p), name="hit", **more
    )
    m.initial(air, {y: 1.0, v: 0.0})
    m.functional("G", integrand=y, terminal=v)
    return m


@pytest.mark.parametrize("guess", [-1.0, -0.1, -50.0])
def test_a_guess_chooses_the_solution(guess: float) -> None:
    found = same(dropped(lambda after, v, p: [after**2 - (p * v) ** 2], guess=guess).build(), (0, 0.8))
    assert found.trajectory.events[0].xi[0] > 0


def test_damped_steps(compare_gradients: Any) -> None:
    """The full step from the value before goes astray."""
    system = dropped(lambda after, v, p: [ca.atan(after - p) + 0.01 * (after + p * v)]).build()
    same(system, (0, 0.8))
    compare_gradients(system, (0, 0.8), "G", **TIGHT)


def both_errors(call: Callable[[bool], Any]) -> tuple[dh.DaeHybridError, dh.DaeHybridError]:
    """Of either engine."""
    found = []
    for engine in (True, False):
        with pytest.raises(dh.DaeHybridError) as caught:
            call(engine)
        found.append(caught.value)
    return found[0], found[1]


WRONG: dict[str, tuple[Callable[..., list[Any]], str]] = {
    "no solution": (lambda after, v, p: [after**2 + p], "simulate"),
    "not a number": (lambda after, v, p: [after - ca.sqrt(v)], "simulate"),
    "a multiple root": (lambda after, v, p: [(after + p * v) ** 2], "forward"),
    "a multiple root, adjoint": (lambda after, v, p: [(after + p * v) ** 2], "adjoint"),
    "any value will do": (lambda after, v, p: [(p - 0.8) * (after + v)], "simulate"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_alike(case: str) -> None:
    reset, analysis = WRONG[case]
    system = dropped(reset).build()
    one, other = both_errors(lambda engine: ANALYSES[analysis](system, (0, 0.8), native_events=engine))
    assert type(one) is type(other)
    assert str(one) == str(other)
    assert one.transition == "hit"


def test_equations_that_depend_on_each_other_are_refused_alike() -> None:
    m = dh.HybridModel("dependent")
    p, u, v, w = m.parameter("p", 2.0), m.differential("u"), m.differential("v"), m.differential("w")
    run = m.mode("run", ode={u: 1.0, v: -v, w: 0.0})
    same_twice = [m.post(v) + p * m.post(w) - 1, 2 * m.post(v) + p**2 * m.post(w) - 2]
    m.transition(run, run, guard=u - 0.5, direction="rising", reset=same_twice, name="hit")
    m.initial(run, {u: 0.0, v: 1.0, w: 0.3})
    m.functional("G", terminal=v)
    system = m.build()
    for analysis in ANALYSES.values():
        one, other = both_errors(lambda engine, analysis=analysis: analysis(system, (0, 1), native_events=engine))
        assert isinstance(one, dh.ConsistencyError)
        assert str(one) == str(other)
    for engine in (True, False):  # and at another value they are not
        run_there = dh.simulate(system, (0, 1), parameters={"p": 3.0}, native_events=engine)
        assert native(run_there) == int(engine)


def test_what_is_not_clear_cut_is_left_to_python() -> None:
    """Almost dependent: regular by a hair, which bounds of singular values do not show."""
    m = dh.HybridModel("almost")
    d, u, v, w = m.parameter("d", 5.5e-11), m.differential("u"), m.differential("v"), m.differential("w")
    others = m.differential("others", size=8)
    run = m.mode("run", ode={u: 1.0, v: 0.0, w: 0.0, others: np.zeros(8)})
    almost = [m.post(v) + m.post(w) - 1, m.post(v) + (1 + d) * m.post(w) - 1, m.post(others) - 1]
    m.transition(run, run, guard=u - 0.5, direction="rising", reset=almost, name="hit")
    m.initial(run, {u: 0.0, v: 1.0, w: 0.0, others: np.ones(8)})
    system = m.build()
    for spread, count in ((5.5e-11, 0), (0.5, 1)):
        runs = [dh.simulate(system, (0, 1), parameters=[spread], native_events=engine) for engine in (True, False)]
        assert [native(run) for run in runs] == [count, 0]
        np.testing.assert_array_equal(runs[0].events[0].x_plus, runs[1].events[0].x_plus)


def test_undamped_steps_are_left_to_python() -> None:
    """Linear in v, quadratic in its rate: solved on a way through larger residuals."""
    m = dh.HybridModel("quadratic")
    p, u, v, w = m.parameter("p", 1.0), m.differential("u"), m.differential("v"), m.differential("w")
    run = m.mode("run", ode={u: 1.0, v: 0.0, w: 0.0})
    reset = [m.post(v) - 30 * p, m.post(w) - m.post(v) ** 2]
    m.transition(run, run, guard=u - 0.5, direction="rising", reset=reset, name="hit")
    m.initial(run, {u: 0.0, v: 0.0, w: 0.0})
    m.functional("G", terminal=w)
    carried = dh.simulate(m.build(), (0, 1))
    found = same(m.build(), (0, 1), carried=native(carried))
    np.testing.assert_allclose(found.gradient["G"], [1800.0], rtol=1e-8)


def test_constraints_that_neighbours_miss_are_refused_alike() -> None:
    """On the circle at these parameters, off it at others."""
    m = dh.HybridModel("circle")
    b, L, q = m.parameter("b", 0.7), m.parameter("L", 1.0), m.parameter("q", 0.75)
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    free = m.mode("free", ode={x: 0.0, y: 0.9}, algebraic=[z])
    held = m.mode("held", ode={x: -x * z, y: b - y * z}, constraint=[(x**2 + y**2 - L**2) / 2])
    reset = {x: ca.cos(q), y: ca.sin(q)}
    m.transition(free, held, guard=y - 0.5, direction="rising", reset=reset, name="catch")
    m.initial(free, {x: 0.6, y: 0.0})
    m.functional("G", terminal=y + z, integrand=z)
    system = m.build()
    run = dh.simulate(system, (0, 1))
    assert native(run) == 1
    for analysis in ("forward", "adjoint"):
        one, other = both_errors(lambda engine, a=analysis: ANALYSES[a](system, (0, 1), native_events=engine))
        assert isinstance(one, dh.ConsistencyError)
        assert str(one) == str(other)
        assert "but not at others" in str(one)
    off = both_errors(lambda engine: dh.simulate(system, (0, 1), parameters={"L": 1.1}, native_events=engine))
    assert str(off[0]) == str(off[1])
    assert "does not satisfy" in str(off[0])


@pytest.mark.parametrize("eliminate", [True, False])
def test_onto_a_circle_and_off_it(eliminate: bool) -> None:
    """A constraint that gains and loses a mode, by equations with the constraint among them."""
    m = dh.HybridModel("circle")
    b, L, q = m.parameter("b", 0.7), m.parameter("L", 1.0), m.parameter("q", 0.75)
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    free = m.mode("free", ode={x: 0.1, y: 0.9 * b}, algebraic=[z])
    held = m.mode("held", ode={x: -x * z, y: b - y * z}, constraint=[(x**2 + y**2 - L**2) / 2])
    m.transition(free, held, guard=y - 0.5, direction="rising", reset=[m.post(y) - q * m.post(x)], name="catch")
    m.transition(held, free, guard=y - 0.9, direction="rising", reset={y: 0.1 * y}, name="release")
    m.initial(free, {x: 0.6, y: 0.0})
    m.functional("G", terminal=y + z, integrand=x + z**2)
    found = same(m.build(eliminate=eliminate), (0, 4))
    assert len(found.trajectory.events) >= 3
