"""Implicit resets, projections and memory updates: closed form = forward = adjoint = finite differences; refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.problems._reference import with_derivatives as derivatives

ANALYSES = (
    lambda system, span, **k: dh.forward_sensitivity(system, span, **k),
    lambda system, span, **k: dh.adjoint_gradient(system, span, "G", **k),
)


def declared(m: dh.HybridModel, **values: Any) -> list[ca.MX]:
    return [m.parameter(name, value) for name, value in values.items()]


# -- impacts: unknowns, several equations, several solutions ------------------------------------------------------


def falling(reset: Callable[..., dict[str, Any]]) -> dh.HybridModel:
    """A ball that falls from h; what happens at the floor is `reset(m, y, v, P, e)`."""
    m = dh.HybridModel("ball")
    e, g, h, mass = declared(m, e=0.8, g=9.81, h=1.0, mass=0.7)
    y, v, P, total = m.differential("y"), m.differential("v"), m.unknown("P", guess=1.0), m.memory("total", initial=0.0)
    air = m.mode("air", ode={y: v, v: -g})
    given = reset(m, y, v, P, e)
    if given.get("memory") == "impulse":
        given["memory"] = {total: total + P + mass * m.post(v)}
    m.transition(air, air, guard=y, direction="falling", name="hit", **given)
    m.initial(air, {y: h, v: 0.0})
    m.functional("G", terminal=y + total)
    if given.get("memory"):
        m.functional("cost", at_events={"hit": P**2 / mass + m.post(v) * v})
    return m


def with_impulse() -> dh.HybridModel:
    def reset(m: Any, y: Any, v: Any, P: Any, e: Any) -> dict[str, Any]:
        mass = m.lookup("mass", "test").symbol
        return {"reset": [mass * (m.post(v) - m.pre(v)) - P, m.post(v) + e * v], "memory": "impulse"}

    return falling(reset)


def height(p: Any, sign: float = 1.0) -> Any:
    """Height at t = 0.8 after a velocity of sign e sqrt(2 g h) at the floor."""
    e, g, h, _ = p
    t, speed = np.sqrt(2 * h / g), np.sqrt(2 * g * h)
    return sign * e * speed * (0.8 - t) - g * (0.8 - t) ** 2 / 2


def test_an_impulse_as_unknown(built: Any, compare_gradients: Any) -> None:
    nominal = [0.8, 9.81, 1.0, 0.7]

    def impulse(p: Any) -> Any:
        return p[3] * (1 + p[0]) * np.sqrt(2 * p[1] * p[2])

    def total(p: Any) -> Any:
        return height(p) + impulse(p) + p[3] * p[0] * np.sqrt(2 * p[1] * p[2])

    def cost(p: Any) -> Any:
        return impulse(p) ** 2 / p[3] - p[0] * 2 * p[1] * p[2]

    system = built(with_impulse, native=False)
    for name, closed in (("G", total), ("cost", cost)):
        value, exact = derivatives(closed, nominal)
        compared = compare_gradients(system, (0, 0.8), name, value=value, exact=exact, fd_tolerance=0)
    event = compared.forward.events[0]
    assert event.unknowns["P"] == pytest.approx(np.real(impulse(np.array(nominal))), rel=1e-9)
    tau = derivatives(lambda p: np.sqrt(2 * p[2] / p[1]), nominal)[1]
    np.testing.assert_allclose(compared.forward.event_time_sensitivity, [tau], atol=1e-9)


def elastic(guess: Any) -> dh.HybridModel:
    """Energy alone: v+^2 = e^2 v^2 has two solutions."""
    return falling(
        lambda m, y, v, P, e: {
            "reset": [m.post(v) ** 2 - (e * v) ** 2],
            "guess": None if guess is None else {v: guess * v},
        }
    )


@pytest.mark.parametrize(("guess", "sign"), [(None, -1.0), (2.0, -1.0), (-1.0, 1.0), (-0.1, 1.0)], ids=str)
def test_guess_steers_between_solutions(guess: Any, sign: float, compare_gradients: Any) -> None:
    """The default is the value before: the ball passes through the floor."""
    value, exact = derivatives(lambda p: height(p, sign), [0.8, 9.81, 1.0, 0.7])
    compare_gradients(elastic(guess).build(native=False), (0, 0.8), "G", value=value, exact=exact, fd_tolerance=0)


def test_a_guess_at_which_the_equations_are_singular() -> None:
    with pytest.raises(dh.ConsistencyError, match=r"singular.*leaves v open; reset equation 0") as caught:
        dh.simulate(elastic(0.0).build(native=False), (0, 0.8))
    assert "guess=" in str(caught.value)


def test_a_complementarity_condition(compare_gradients: Any) -> None:
    """min(P, v+ + e v) = 0: the ball bounces, and sticks to nothing."""
    model = falling(lambda m, y, v, P, e: {"reset": [m.post(v) - v - P, ca.fmin(P, m.post(v) + e * v)]})
    value, exact = derivatives(height, [0.8, 9.81, 1.0, 0.7])
    compare_gradients(model.build(native=False), (0, 0.8), "G", value=value, exact=exact, fd_tolerance=0)


def test_more_equations_than_unknowns_that_agree(compare_gradients: Any) -> None:
    model = falling(
        lambda m, y, v, P, e: {"reset": [m.post(v) + e * v, 3 * (m.post(v) + e * v) + (m.post(v) + e * v) ** 3]}
    )
    value, exact = derivatives(height, [0.8, 9.81, 1.0, 0.7])
    compare_gradients(model.build(native=False), (0, 0.8), "G", value=value, exact=exact, fd_tolerance=0)


def collision() -> dh.HybridModel:
    """Two masses on a line: momentum and restitution for the vector of velocities."""
    m = dh.HybridModel("collision")
    e, mass, u = m.parameter("e", 0.6), m.parameter("mass", [1.5, 0.8]), m.parameter("u", [1.2, -0.4])
    x, v, P = m.differential("x", size=2), m.differential("v", size=2), m.unknown("P", size=2)
    run = m.mode("run", ode={x: v, v: np.zeros(2)})
    after = m.post(v)
    reset = [mass * (after - v) - P, P[0] + P[1], after[1] - after[0] - e * (v[0] - v[1])]
    m.transition(run, run, guard=x[1] - x[0], direction="falling", reset=reset)
    m.initial(run, {x: np.array([0.0, 1.0]), v: u})
    m.functional("G", terminal=x)
    return m


def test_a_collision_of_two_masses(built: Any, compare_gradients: Any) -> None:
    def closed(p: Any) -> Any:
        e, m1, m2, u1, u2 = p
        t = 1 / (u1 - u2)
        mean, gap = (m1 * u1 + m2 * u2) / (m1 + m2), e * (u1 - u2)
        after = np.array([mean - m2 * gap / (m1 + m2), mean + m1 * gap / (m1 + m2)])
        return u1 * t + after * (1.5 - t)

    value, exact = derivatives(closed, [0.6, 1.5, 0.8, 1.2, -0.4])
    compared = compare_gradients(
        built(collision, native=False), (0, 1.5), "G", value=value, exact=exact, fd_tolerance=0
    )
    P = compared.forward.events[0].unknowns["P"]
    assert P[0] == pytest.approx(-P[1])


@pytest.mark.parametrize("n", [3, 12], ids=str)
def test_vectors_of_any_length(n: int, compare_gradients: Any) -> None:
    """n post values, n unknowns and n algebraic variables, all coupled and nonlinear."""
    m = dh.HybridModel("vectors")
    e, c = m.parameter("e", 0.6), m.parameter("c", 0.3)
    x, v, z = m.differential("x", size=n), m.differential("v", size=n), m.algebraic("z", size=n)
    P = m.unknown("P", size=n)
    mixed = ca.DM(np.random.default_rng(0).normal(size=(n, n)) / n)
    run = m.mode("run", ode={x: v, v: -x + 0.1 * z}, algebraic=[z + z**3 / 3 - ca.mtimes(mixed, x)])
    reset = [
        2 * (m.post(v) - v) - P * (1 + x**2),
        P + 0.05 * P**3 * m.post(z) + ca.mtimes(mixed, m.post(v)) + e * v + c * m.time * z,
    ]
    m.transition(run, run, guard=ca.sum1(x), direction="falling", reset=reset, name="hit")
    m.initial(run, {x: np.linspace(0.2, 1, n), v: -e * np.ones(n)})
    both = {"integrand": ca.vertcat(ca.sumsqr(x), 0), "terminal": ca.vertcat(ca.sum1(v), 0)}
    m.functional("G", **both, at_events={"hit": ca.vertcat(0, ca.sumsqr(P))})
    compared = compare_gradients(m.build(native=False), (0, 1.5), "G", rtol=1e-11, atol=1e-13)
    assert len(compared.forward.events) == 1


# -- both sides: derivatives, algebraic variables, time, parameters ------------------------------------------------


def both_sides(*, residual: bool, implicit: bool) -> dh.HybridModel:
    """y' = a, z = k y until y = c; then y' = -b y, z = y^2 from b y+ + y+^2 = a + z- t + b c^2."""
    m = dh.HybridModel("sides")
    a, b, c, k = declared(m, a=0.7, b=0.4, c=0.5, k=1.3)
    y, z, t = m.differential("y"), m.algebraic("z"), m.time
    if residual:
        first = m.mode("first", residual=[(1 + y**2) * (m.der(y) - a), z - k * y])
        second = m.mode("second", residual=[m.der(y) / (1 + z) + b * y / (1 + z), z - y**2])
    else:
        first, second = (
            m.mode(n, ode={y: f}, algebraic=[z - q]) for n, f, q in (("first", a, k * y), ("second", -b * y, y**2))
        )
    known = m.der(y) + m.pre(z) * t + b * m.pre(y) ** 2
    implied = [m.post(z) + (b * m.post(y) - m.post(m.der(y))) / 2 - known]
    given = {y: (-b + np.sqrt(b**2 + 4 * known)) / 2}
    m.transition(first, second, guard=y - c, direction="rising", reset=implied if implicit else given, name="T")
    m.initial(first, {y: 0.1})
    m.functional("G", integrand=z + m.der(y), terminal=m.der(y) * z)
    if implicit:
        m.functional("cost", at_events={"T": m.post(m.der(y)) * m.der(y) + m.post(z) * z})
    return m


def sides(p: Any) -> tuple[Any, Any]:
    a, b, c, k = p
    t = (c - 0.1) / a
    after = (-b + np.sqrt(b**2 + 4 * (a + k * c * t + b * c**2))) / 2
    end = after * np.exp(-b * (1.2 - t))
    g = k * (c**2 - 0.01) / (2 * a) + c - 0.1 + (after**2 - end**2) / (2 * b) + end - after - b * end**3
    return g, -b * after * a + after**2 * k * c


@pytest.mark.parametrize("implicit", [False, True], ids=["mapping", "equations"])
@pytest.mark.parametrize("residual", [False, True], ids=["ode", "residual"])
def test_both_sides_of_a_reset(residual: bool, implicit: bool, compare_gradients: Any) -> None:
    system = both_sides(residual=residual, implicit=implicit).build(native=False)
    for i, name in enumerate(["G", "cost"] if implicit else ["G"]):
        value, exact = derivatives(lambda p, i=i: sides(p)[i], [0.7, 0.4, 0.5, 1.3])
        compare_gradients(system, (0, 1.2), name, value=value, exact=exact, fd_tolerance=0)


def gains_a_variable() -> dh.HybridModel:
    """The second mode has a state s of its own, given by an equation: s+ y+ = q, y continuous."""
    m = dh.HybridModel("gain")
    a, c, q = declared(m, a=0.7, c=0.5, q=2.0)
    y, s = m.differential("y"), m.differential("s")
    alone, pair = m.mode("alone", ode={y: a}), m.mode("pair", ode={y: 0.0, s: -s})
    m.transition(alone, pair, guard=y - c, direction="rising", reset=[m.post(s) * y - q], guess={s: 1.0})
    m.transition(pair, alone, at=1.0, reset={y: y + s})
    m.initial(alone, {y: 0.0})
    m.functional("G", terminal=y)
    return m


def test_a_mode_gains_a_variable(built: Any, compare_gradients: Any) -> None:
    value, exact = derivatives(lambda p: p[1] + p[2] / p[1] * np.exp(p[1] / p[0] - 1) + p[0] * 0.5, [0.7, 0.5, 2.0])
    compare_gradients(built(gains_a_variable, native=False), (0, 1.5), "G", value=value, exact=exact, fd_tolerance=0)


def two_at_one_time() -> dh.HybridModel:
    """Two implicit resets at time w, the second with the results of the first."""
    m = dh.HybridModel("two")
    k, w, d, q = declared(m, k=0.8, w=0.6, d=0.5, q=1.7)
    y, P = m.differential("y"), m.unknown("P")
    seen = m.memory("seen", initial=0.0)
    a, b, c = m.mode("a", ode={y: -k * y}), m.mode("b", ode={y: y}), m.mode("c", ode={y: -(k**2) * y})
    m.transition(a, b, at=w, reset=[m.post(y) - y - P, P - d * m.time], memory={seen: P * m.post(y)})
    m.transition(
        b, c, guard=y - 0.3, direction="rising", on_entry="fire",
        reset=[m.post(y) - q * y + 0.1 * m.post(y) * m.post(m.der(y))], memory={seen: seen + m.post(y) * y},
    )  # fmt: skip
    m.initial(a, {y: 1.0})
    m.functional("G", terminal=y + seen)
    return m


def test_two_implicit_resets_at_one_instant(built: Any, compare_gradients: Any) -> None:
    def closed(p: Any) -> Any:
        k, w, d, q = p
        first = np.exp(-k * w) + d * w
        # y+ - q y - k^2 y+^2 / 10 = 0
        second = (1 - np.sqrt(1 - 0.4 * k**2 * q * first)) / (0.2 * k**2)
        return second * np.exp(-(k**2) * (1 - w)) + d * w * first + second * first

    value, exact = derivatives(closed, [0.8, 0.6, 0.5, 1.7])
    compared = compare_gradients(
        built(two_at_one_time, native=False), (0, 1), "G", value=value, exact=exact, fd_tolerance=0
    )
    np.testing.assert_allclose(compared.forward.event_time_sensitivity, [[0, 1, 0, 0]] * 2, atol=1e-12)


# -- onto a constraint ---------------------------------------------------------------------------------------------


def onto_circle(**given: Callable[..., Any]) -> Callable[[], dh.HybridModel]:
    """(x0, a t) until y = c; then on a circle of radius L, driven by b: y' = b (1 - y^2 / L^2)."""

    def declare() -> dh.HybridModel:
        m = dh.HybridModel("circle")
        x0, a, c, b, L, q = declared(m, x0=0.6, a=0.9, c=0.5, b=0.7, L=1.0, q=0.75)
        x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
        free = m.mode("free", ode={x: 0.0, y: a}, algebraic=[z])
        held = m.mode("held", ode={x: -x * z, y: b - y * z}, constraint=[(x**2 + y**2 - L**2) / 2])
        more = {key: value(m, x, y, L, q) for key, value in given.items()}
        m.transition(free, held, guard=y - c, direction="rising", name="catch", **more)
        m.initial(free, {x: x0, y: 0.0})
        m.functional("G", terminal=y + z, integrand=z)
        return m

    return declare


CIRCLE = (0.6, 0.9, 0.5, 0.7, 1.0, 0.75)


def after_circle(y1: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def closed(p: Any) -> Any:
        _, a, c, b, L, _ = p
        start = np.arctanh(y1(p) / L)
        angle = start + b * (1.3 - c / a) / L
        y = L * np.tanh(angle)
        return y + b * y / L**2 + np.log(np.cosh(angle) / np.cosh(start))

    return closed


ONTO: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "nearest": (
        {"project": lambda m, x, y, L, q: [x, y]},
        lambda p: p[4] * p[2] / np.sqrt(p[0] ** 2 + p[2] ** 2),
    ),
    "nearest after a reset": (
        {"reset": lambda m, x, y, L, q: {x: q * x}, "project": lambda m, x, y, L, q: [x, y]},
        lambda p: p[4] * p[2] / np.sqrt((p[5] * p[0]) ** 2 + p[2] ** 2),
    ),
    "x moves, y stays": ({"project": lambda m, x, y, L, q: [x]}, lambda p: p[2]),
    "one equation and the constraint": (
        {"reset": lambda m, x, y, L, q: [m.post(y) - q * m.post(x)]},
        lambda p: p[4] * p[5] / np.sqrt(1 + p[5] ** 2),
    ),
    "the other solution": (
        {
            "reset": lambda m, x, y, L, q: [m.post(y) - q * m.post(x)],
            "guess": lambda m, x, y, L, q: {x: -x, y: -y},
        },
        lambda p: -p[4] * p[5] / np.sqrt(1 + p[5] ** 2),
    ),
    "a mapping that leads onto it": (
        {"reset": lambda m, x, y, L, q: {x: L * ca.cos(q), y: L * ca.sin(q)}},
        lambda p: p[4] * np.sin(p[5]),
    ),
    "equations that lead onto it": (
        {"reset": lambda m, x, y, L, q: [m.post(x) - L * ca.cos(q), m.post(y) - L * ca.sin(q)]},
        lambda p: p[4] * np.sin(p[5]),
    ),
    "along an impulse": (
        {
            "reset": lambda m, x, y, L, q: [m.post(x) - x - q * m.unknown("P"), m.post(y) - y],
            "guess": lambda m, x, y, L, q: {"P": 1.0},
        },
        lambda p: p[2],
    ),
}


@pytest.mark.parametrize("how", list(ONTO))
def test_onto_a_circle(how: str, compare_gradients: Any) -> None:
    given, y1 = ONTO[how]
    system = onto_circle(**given)().build()
    value, exact = derivatives(after_circle(y1), CIRCLE)
    compared = compare_gradients(system, (0, 1.3), "G", value=value, exact=exact, fd_tolerance=0)
    x, y = compared.forward.events[0].state_plus
    assert x**2 + y**2 == pytest.approx(1.0, abs=1e-14)
    assert y == pytest.approx(np.real(y1(np.array(CIRCLE))), abs=1e-9)


def test_the_direct_form_and_no_elimination(compare_gradients: Any) -> None:
    given, y1 = ONTO["nearest"]
    value, exact = derivatives(after_circle(y1), CIRCLE)
    for how in ({"eliminate": False}, {"index2": "direct"}):
        system = onto_circle(**given)().build(**how)
        compare_gradients(system, (0, 1.3), "G", value=value, exact=exact, tolerance=1e-6, fd_tolerance=0)


def in_a_metric() -> dh.HybridModel:
    """Onto alpha x + y = L, nearest in the metric diag(1 + z^2, y' + t), in values before; r is 10 z + x+."""
    m = dh.HybridModel("metric")
    a, c, alpha, L = declared(m, a=0.9, c=0.5, alpha=1.4, L=2.0)
    x, y, z, r = m.differential("x"), m.differential("y"), m.algebraic("z"), m.memory("r", initial=0.0)
    free = m.mode("free", ode={x: 0.0, y: a}, algebraic=[z - y**2])
    held = m.mode("held", ode={x: 1 - alpha * z, y: -z}, constraint=[alpha * x + y - L])
    metric = ca.vertcat(1 + z**2, m.der(y) + m.time)
    m.transition(
        free, held, guard=y - c, direction="rising", project=[x, y], metric=metric, memory={r: 10 * z + m.post(x)}
    )
    m.initial(free, {x: 0.6, y: 0.0})
    m.functional("G", terminal=ca.vertcat(y, r))
    return m


def test_the_metric_may_depend_on_everything_before(built: Any, compare_gradients: Any) -> None:
    def closed(p: Any) -> Any:
        a, c, alpha, L = p
        t = c / a
        w1, w2 = 1 / (1 + c**4), 1 / (a + t)
        nu = (L - alpha * 0.6 - c) / (alpha**2 * w1 + w2)
        return np.array([c + w2 * nu - alpha / (1 + alpha**2) * (1.2 - t), 10 * c**2 + 0.6 + alpha * w1 * nu])

    value, exact = derivatives(closed, [0.9, 0.5, 1.4, 2.0])
    compare_gradients(built(in_a_metric), (0, 1.2), "G", value=value, exact=exact, fd_tolerance=0)


@pytest.mark.parametrize("kind", ["number", "diagonal", "matrix"])
def test_forms_of_the_metric(kind: str) -> None:
    forms = {"number": 3.0, "diagonal": np.array([3.0, 3.0]), "matrix": 3.0 * np.eye(2)}
    declare = onto_circle(project=lambda m, x, y, L, q: [x, y], metric=lambda *_: forms[kind])
    event = dh.simulate(declare().build(), (0, 0.6)).events[0]
    np.testing.assert_allclose(event.state_plus, np.array([0.6, 0.5]) / np.hypot(0.6, 0.5), rtol=1e-9)


def same_constraint(after: str) -> dh.HybridModel:
    """From one circle to the next, in other words: the state is there already, whatever the parameters."""
    m = dh.HybridModel("same")
    L, a = declared(m, L=1.0, a=0.9)
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    constraint = {"same": x**2 + y**2 - L**2, "root": np.sqrt(x**2 + y**2) - L, "nominal": x**2 + y**2 - 1.0}
    up = m.mode("up", ode={x: -x * z, y: 1 - y * z}, constraint=[constraint["same"]])
    down = m.mode("down", ode={x: -x * z, y: -1 - y * z}, constraint=[constraint[after]])
    m.transition(up, down, guard=y - a, direction="rising", name="turn")
    m.initial(up, {y: 0.2}, guess={x: 1.0})
    m.functional("G", terminal=y)
    return m


@pytest.mark.parametrize("after", ["same", "root"])
def test_a_constraint_that_the_source_has_kept(after: str, compare_gradients: Any) -> None:
    def closed(p: Any) -> Any:
        L, a = p
        t = L * (np.arctanh(a / L) - np.arctanh(0.2 / L))
        return L * np.tanh(np.arctanh(a / L) - (1.6 - t) / L)

    value, exact = derivatives(closed, [1.0, 0.9])
    compare_gradients(same_constraint(after).build(), (0, 1.6), "G", value=value, exact=exact, fd_tolerance=0)


def test_a_constraint_that_the_source_has_kept_at_the_nominal_parameters_only() -> None:
    system = same_constraint("nominal").build()
    assert len(dh.simulate(system, (0, 1.6)).events) == 1
    for analyse in ANALYSES:
        with pytest.raises(dh.ConsistencyError, match="but not at others") as caught:
            analyse(system, (0, 1.6))
        assert (caught.value.transition, caught.value.mode) == ("turn", "down")


NOMINAL_ONLY: dict[str, dict[str, Any]] = {
    "a mapping with numbers": {"reset": lambda m, x, y, L, q: {x: 0.8, y: 0.6}},
    "a mapping with other parameters": {"reset": lambda m, x, y, L, q: {x: ca.cos(q), y: ca.sin(q)}},
    "equations": {"reset": lambda m, x, y, L, q: [m.post(x) - 0.8, m.post(y) - 0.8 * q]},
    "a memory": {"reset": lambda m, x, y, L, q: {x: m.memory("r", initial=0.8), y: 0.6 * L}},
}


@pytest.mark.parametrize("how", list(NOMINAL_ONLY))
def test_a_reset_onto_the_constraint_at_the_nominal_parameters_only(how: str) -> None:
    system = onto_circle(**NOMINAL_ONLY[how])().build(native=True)
    assert len(dh.simulate(system, (0, 1.3)).events) == 1
    for analyse in ANALYSES:
        with pytest.raises(dh.ConsistencyError, match="but not at others") as caught:
            analyse(system, (0, 1.3))
        assert (caught.value.transition, caught.value.mode) == ("catch", "held")
        assert "project=" in str(caught.value)


def test_a_reset_that_does_not_lead_onto_the_constraint() -> None:
    with pytest.raises(dh.ConsistencyError, match="does not satisfy constraint equation 0 of mode 'held'") as caught:
        dh.simulate(onto_circle()().build(), (0, 1.3))
    assert caught.value.transition == "catch"
    assert caught.value.time == pytest.approx(0.5 / 0.9)
    assert caught.value.trajectory is not None
    assert "post()" in str(caught.value)


# -- memory --------------------------------------------------------------------------------------------------------


def deep_memory() -> dh.HybridModel:
    """A ramp reset at c by P; a register of three values shifts, and a scalar follows it."""
    m = dh.HybridModel("deep")
    k, c, r, q = declared(m, k=1.0, c=0.7, r=0.2, q=0.6)
    y, P, t = m.differential("y"), m.unknown("P"), m.time
    register, last = m.memory("register", size=3, initial=ca.vertcat(c, 0, k)), m.memory("last", initial=y * q)
    run = m.mode("run", ode={y: k + 0.1 * last})
    m.transition(
        run, run, guard=y - c - 0.05 * register[2], direction="rising", name="tooth",
        reset=[m.post(y) - y + P, P - (1 - r) * y - 0.02 * register[1]],
        memory={
            register: ca.vertcat(m.post(y) + P * t, register[0] * q, register[1] + m.pre(y)),
            last: q * last + P * m.post(y) * register[2] + m.der(y) * t,
        },
    )  # fmt: skip
    m.initial(run, {y: 0.3 * c})
    m.functional("G", terminal=ca.vertcat(y, register), integrand=ca.vertcat(last, register * y))
    return m


def deep_closed(p: Any, tf: float = 2.3) -> Any:
    k, c, r, q = p
    y, register, t = 0.3 * c, np.array([c, 0 * c, k]), 0.0
    last, total = y * q, np.zeros(4, dtype=complex)
    while True:
        rate = k + 0.1 * last
        s = (c + 0.05 * register[2] - y) / rate
        ends = np.real(t + s) > tf
        s = tf - t if ends else s
        total = total + np.array([last * s, *(register * (y * s + rate * s**2 / 2))])
        y, t = y + rate * s, t + s
        if ends:
            return np.array([y, *register]) + total
        P = (1 - r) * y + 0.02 * register[1]
        y, old = y - P, y
        last = q * last + P * y * register[2] + rate * t
        register = np.array([y + P * t, register[0] * q, register[1] + old])


def test_memory_of_depth_three(built: Any, compare_gradients: Any) -> None:
    value, exact = derivatives(deep_closed, [1.0, 0.7, 0.2, 0.6])
    compared = compare_gradients(
        built(deep_memory, native=False), (0, 2.3), "G", value=value, exact=exact, fd_tolerance=0
    )
    assert len(compared.forward.events) == 4


def coupled_memory() -> dh.HybridModel:
    """z+ depends on r+, and r+ on z+: z = y + r / 2, r+ = r / 3 + z+ / 4 + z- q."""
    m = dh.HybridModel("coupled")
    k, c, q = declared(m, k=1.0, c=0.7, q=0.6)
    y, z, r = m.differential("y"), m.algebraic("z"), m.memory("r", initial=q)
    run = m.mode("run", ode={y: k}, algebraic=[(1 + y**2) * (z - y - r / 2)])
    m.transition(
        run, run, guard=z - c, direction="rising", reset={y: 0.1 * z}, memory={r: r / 3 + m.post(z) / 4 + z * q}
    )
    m.initial(run, {y: 0.0})
    m.functional("G", terminal=z, integrand=r)
    return m


def test_memory_and_algebraic_variables_that_determine_each_other(compare_gradients: Any) -> None:
    def closed(p: Any) -> Any:
        k, c, q = p
        y, r, t, total = 0.0, q, 0.0, 0.0
        while True:
            s = (c - r / 2 - y) / k
            if np.real(t + s) > 0.9:
                return y + k * (0.9 - t) + r / 2 + total + r * (0.9 - t)
            total, t, y = total + r * s, t + s, 0.1 * c
            r = (r / 3 + y / 4 + c * q) / (1 - 1 / 8)

    value, exact = derivatives(closed, [1.0, 0.7, 0.6])
    for eliminate in (True, False):
        system = coupled_memory().build(eliminate=eliminate, native=False)
        compare_gradients(system, (0, 0.9), "G", value=value, exact=exact, fd_tolerance=0)


# -- bad input -----------------------------------------------------------------------------------------------------

DECLARATIONS: dict[str, tuple[Callable[..., dict[str, Any]], type[Exception], str]] = {
    "too few equations": (
        lambda m, y, v, P, e: {"reset": [m.post(v) + e * v + P]},
        dh.FormulationError, r"1 equations .* 2 unknowns \(post\(v\), P\)",
    ),
    "post in a mapping": (lambda m, y, v, P, e: {"reset": {v: m.post(y)}}, dh.ModelError, r"reset of 'v'.*post\(y\)"),
    "an unknown in a mapping": (lambda m, y, v, P, e: {"reset": {v: P}}, dh.ModelError, "unknown 'P'"),
    "an unknown that no equation has": (
        lambda m, y, v, P, e: {"reset": [m.post(v) + v], "memory": {"total": P}}, dh.ModelError, "'total'.*'P'",
    ),
    "text": (lambda m, y, v, P, e: {"reset": ["v"]}, dh.ModelError, "transition 'hit'.*'v'"),
    "post of a memory": (lambda m, y, v, P, e: {"reset": [m.post("total")]}, dh.ModelError, "'total' is a memory"),
    "post of an expression": (lambda m, y, v, P, e: {"reset": [m.post(y + v)]}, dh.ModelError, "not declared"),
    "post in a guess": (
        lambda m, y, v, P, e: {"reset": [m.post(v) + v], "guess": {v: m.post(y)}}, dh.ModelError, r"post\(y\)",
    ),
    "a guess of another unknown": (
        lambda m, y, v, P, e: {"reset": [m.post(v) + v], "guess": {P: 1.0}}, dh.ModelError, "guess= names P",
    ),
    "nothing to project onto": (
        lambda m, y, v, P, e: {"project": [y]}, dh.ModelError, "mode 'air' has none",
    ),
    "projection of a parameter": (lambda m, y, v, P, e: {"project": [e]}, dh.ModelError, "'e' is a parameter"),
    "a variable projected twice": (lambda m, y, v, P, e: {"project": [y, y]}, dh.ModelError, "twice"),
    "a metric alone": (lambda m, y, v, P, e: {"metric": 1.0}, dh.ModelError, "'hit' has a metric= without project="),
    "projection and equations": (
        lambda m, y, v, P, e: {"project": [y], "reset": [m.post(v) + v]}, dh.ModelError, "both project= and",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", list(DECLARATIONS))
def test_declarations_that_are_refused(what: str) -> None:
    reset, error, words = DECLARATIONS[what]
    with pytest.raises(error, match=words):
        falling(reset).build(native=False)


def test_post_and_unknown_belong_to_transitions() -> None:
    for where, words in (("guard", r"post\(v\)"), ("integrand", "unknown 'P'"), ("terminal", "unknown 'P'")):
        m = falling(lambda m, y, v, P, e: {"reset": [m.post(v) - v - P, m.post(v) + e * v]})
        P, v = (m.lookup(name, "test").symbol for name in ("P", "v"))
        if where == "guard":
            m.transition("air", "air", guard=m.post(v))
        else:
            m.functional("other", **{where: P})
        with pytest.raises(dh.ModelError, match=words):
            m.build(native=False)


def test_a_metric_of_the_wrong_size() -> None:
    declare = onto_circle(project=lambda m, x, y, L, q: [x, y], metric=lambda *_: np.ones(3))
    with pytest.raises(dh.ModelError, match="3 entries; the projection moves 2") as caught:
        declare().build(native=False)
    assert caught.value.transition == "catch"


def test_the_target_lacks_or_misses_a_variable() -> None:
    m = dh.HybridModel("q")
    y, s = m.differential("y"), m.differential("s")
    alone, pair = m.mode("alone", ode={y: 1.0}), m.mode("pair", ode={y: 1.0, s: y})
    m.initial(alone, {y: 0.0})
    m.transition(alone, pair, at=0.5, name="gain")
    with pytest.raises(dh.ModelError, match="State 's' of the target mode has no value") as caught:
        m.build(native=False)
    assert (caught.value.transition, caught.value.variables) == ("gain", ("s",))
    m.transitions.clear()
    m.transition(pair, alone, at=0.5, reset=[m.post(s) - y])
    with pytest.raises(dh.ModelError, match=r"post\(s\)"):
        m.build(native=False)


UNSOLVABLE: dict[str, tuple[Callable[..., Any], str]] = {
    "no solution": (lambda m, y, v, P, e: [m.post(v) ** 2 + (e * v) ** 2], r"not satisfied: reset equation 0 \(12"),
    "equations that conflict": (
        lambda m, y, v, P, e: [m.post(v) + e * v, m.post(v) - 3],
        "not satisfied: reset equation 0.*reset equation 1",
    ),
    "equations of the same": (
        lambda m, y, v, P, e: [m.post(v) + e * v + P, 2 * m.post(v) + 2 * P - 1],
        "singular.*leaves v, P open; reset equation 0, reset equation 1 depend on each other",
    ),
    "a condition on values before": (
        lambda m, y, v, P, e: [m.post(v) + e * v, v - 5], r"not satisfied where it fires: reset equation 1 \(-9"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", list(UNSOLVABLE))
def test_resets_that_cannot_be_solved(what: str) -> None:
    equations, words = UNSOLVABLE[what]
    system = falling(lambda *a: {"reset": equations(*a)}).build(native=False)
    with pytest.raises(dh.ConsistencyError, match=words) as caught:
        dh.simulate(system, (0, 0.8))
    assert (caught.value.transition, caught.value.mode) == ("hit", "air")
    assert caught.value.time == pytest.approx(np.sqrt(2 / 9.81))
    assert caught.value.trajectory is not None


def test_a_structurally_singular_reset_is_refused_at_build() -> None:
    def twice(m: Any, y: Any, v: Any, P: Any, e: Any) -> Any:
        return {"reset": [m.post(v) + e * v, m.post(v) + e * v, P + m.unknown("Q") - v]}

    model = falling(twice)
    with pytest.raises(dh.FormulationError, match=r"cannot determine [PQ]; reset equation [01] is left over") as caught:
        model.build(native=False)
    assert caught.value.transition == "hit"


def test_more_equations_than_unknowns_that_agree_at_the_nominal_parameters_only() -> None:
    system = falling(lambda m, y, v, P, e: {"reset": [m.post(v) + e * v, m.post(v) + 0.8 * v]}).build(native=False)
    assert dh.simulate(system, (0, 0.8)).functionals["G"] == pytest.approx(float(height([0.8, 9.81, 1.0, 0.7])))
    with pytest.raises(dh.ConsistencyError):
        dh.simulate(system, (0, 0.8), parameters={"e": 0.7})
    for analyse in ANALYSES:
        with pytest.raises(dh.ConsistencyError, match="not at others") as caught:
            analyse(system, (0, 0.8))
        assert caught.value.transition == "hit"


@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_a_reset_that_any_value_satisfies_is_refused_by_every_analysis(power: int, native: bool) -> None:
    m = dh.HybridModel("anything goes")
    m.parameter("unused", 1.0)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: 0.0})
    law = (m.post(v) - v) * (x - 1.0) if power == 1 else (m.post(v) - v) ** 3  # singular where the guard is zero
    m.transition(run, run, guard=x - 1.0, direction="rising", reset=[law], name="hit")
    m.initial(run, {x: 0.0, v: 1.0})
    m.functional("G", terminal=x)
    system = m.build(native=native)
    for analysis in (dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.ConsistencyError, match="do not determine v") as caught:
            analysis(system, (0, 2), rtol=1e-8)
        assert caught.value.transition == "hit"
        assert caught.value.time == pytest.approx(1.0)


@cache
def redundant(share: float, kind: str) -> dh.HybridSystem:
    """A bounce v+ = -p v/2, and an equation too many that misses by share (p - 1)."""
    m = dh.HybridModel("redundant")
    p, k = m.parameter("p", 1.0), m.parameter("k", 2.0)
    y, v = m.differential("y"), m.differential("v")
    before = m.mode("before", ode={y: v, v: -k * y})
    off = share * (p - 1)
    held = {"constraint": [y - 0.5 - off]} if kind == "constraint" else {}
    mu = m.algebraic("mu") if held else 0.0
    after = m.mode("after", ode={y: v - mu, v: -k * y}, **held)
    reset: Any = {v: -0.5 * p * v}
    if kind != "constraint":
        more = {"reset": 2 * m.post(v) + p * v + off, "condition": y - 0.5 + off}[kind]
        reset = [m.post(y) - y, m.post(v) + 0.5 * p * v, more]
    m.transition(before, after, guard=y - 0.5, direction="rising", reset=reset)
    m.initial(before, {y: 0.0, v: 1.0})
    m.functional("G", terminal=y + v)
    return m.build()


@pytest.mark.compiled("the discrete adjoint of explicit steps is needed for six digits at this tolerance")
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["reset", "condition", "constraint"])
def test_an_equation_too_many_that_depends_on_a_parameter_leaves_no_derivative(kind: str, native: bool) -> None:
    """However little: consistent runs exist at p = 1 alone. What vanishes identically, or to rounding, is no matter."""
    options: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10, "native_events": native}
    for share in (1e-4, 1e-6, 1e-8):
        system = redundant(share, kind)
        for analysis in ANALYSES:
            with pytest.raises(dh.ConsistencyError, match="no derivative exists"):
                analysis(system, (0, 2), **options)
    found = []
    for share in (0.0, 1e-15):
        system = redundant(share, kind)
        fsa = dh.forward_sensitivity(system, (0, 2), **options).gradient["G"]
        np.testing.assert_allclose(fsa, dh.adjoint_gradient(system, (0, 2), "G", **options).gradient, rtol=1e-6)
        found.append(fsa)
    np.testing.assert_allclose(*found, rtol=1e-12)
