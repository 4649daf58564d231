"""The nearest point: closed forms, maxima and ties of the distance, at resets and at the start."""

from __future__ import annotations

from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import dae_hybrid as dh

A, B = 2.0, 1.0


def nearest_on_ellipse(x: float, y: float, metric: tuple[float, float] = (1.0, 1.0)) -> tuple[float, float]:
    """By brute force over the angle."""

    def distance(angle: Any) -> Any:
        return metric[0] * (A * np.cos(angle) - x) ** 2 + metric[1] * (B * np.sin(angle) - y) ** 2

    angles = np.linspace(-np.pi, np.pi, 20001)
    first = angles[distance(angles).argmin()]
    angle = minimize_scalar(distance, bounds=(first - 1e-3, first + 1e-3), method="bounded", options={"xatol": 1e-12}).x
    return A * np.cos(angle), B * np.sin(angle)


@cache
def ellipse(where: str, metric: tuple[float, float] | None = None, *, native: bool = False) -> dh.HybridSystem:
    """x and y are moved onto an ellipse, by a transition at t = 1 or at the start."""
    m = dh.HybridModel("ellipse")
    a, b, x0, y0 = m.parameter("a", A), m.parameter("b", B), m.parameter("x0", 0.0), m.parameter("y0", 0.0)
    x, y, s = m.differential("x"), m.differential("y"), m.differential("s")
    mu = m.algebraic("mu")
    k = x**2 / a**2 + y**2 / b**2 - 1
    on = m.mode("on", ode={x: mu * x / a**2 - y, y: mu * y / b**2 + x, s: 1.0}, constraint=[k])
    weights = None if metric is None else list(metric)
    if where == "start":
        m.initial(on, {x: x0, y: y0, s: 0.0}, project=[x, y], metric=weights)
    else:
        free = m.mode("free", ode={x: 0 * x, y: 0 * y, s: 1.0})
        m.transition(free, on, guard=s - 1, direction="rising", project=[x, y], metric=weights, name="onto")
        m.initial(free, {x: x0, y: y0, s: 0.0})
    m.functional("F", integrand=x * y, terminal=x + 2 * y)
    return m.build(native=native)


def landing(where: str, point: tuple[float, float], metric: tuple[float, float] | None = None) -> Any:
    system = ellipse(where, metric)
    sol = dh.simulate(system, (0, 1.25), parameters={"x0": point[0], "y0": point[1]}, rtol=1e-9)
    return (sol["x"][0], sol["y"][0]) if where == "start" else sol.events[0].state_plus[:2]


POINTS = [
    (1.0, 0.01), (0.3, 0.2), (-0.3, 0.2), (0.0, 0.5), (3.0, 2.0), (-3.0, 0.01), (1.9, 0.0), (0.1, -0.01), (0.5, 1e-4),
    (0.0, -7.0), (2.0 + 1.2e-8, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "point"),
    [
        pytest.param(where, point, marks=pytest.mark.campaign if (i + k) % 2 else [])
        for i, point in enumerate(POINTS)
        for k, where in enumerate(("start", "transition"))
    ],
)
def test_the_nearest_point_of_an_ellipse(where: str, point: tuple[float, float]) -> None:
    assert np.allclose(landing(where, point), nearest_on_ellipse(*point), atol=3e-7)
    assert np.allclose(landing(where, point, (1.0, 3.0)), nearest_on_ellipse(*point, (1.0, 3.0)), atol=3e-7)


@pytest.mark.parametrize("where", ["start", "transition"])
@pytest.mark.parametrize("point", [(1.0, 0.0), (0.0, 0.0), (-1.2, 0.0)])
def test_points_that_are_equally_near_are_refused(where: str, point: tuple[float, float]) -> None:
    """On the axis between the centres of curvature there are two of them; Newton's method reaches a maximum there."""
    with pytest.raises(dh.ConsistencyError, match="nearest") as caught:
        landing(where, point)
    assert set(caught.value.variables) >= {"x", "y"}
    assert "project=" in str(caught.value)


def test_the_centre_of_a_circle_has_no_nearest_point() -> None:
    m = dh.HybridModel("circle")
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    on = m.mode("on", ode={x: -x * z, y: -1.0 - y * z}, constraint=[x**2 + y**2 - 1])
    m.initial(on, {x: 0.0, y: 0.0}, project=[x, y])
    with pytest.raises(dh.ConsistencyError):
        dh.simulate(m.build(), (0, 1))


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("metric", [None, (1.0, 3.0)])
def test_derivatives_of_a_projected_start(native: bool, metric: tuple[float, float] | None) -> None:
    system = ellipse("start", metric, native=native)
    p = {"x0": 1.0, "y0": 0.4}
    fsa = dh.forward_sensitivity(system, (0, 1.5), parameters=p, rtol=1e-9)
    asa = dh.adjoint_gradient(system, (0, 1.5), "F", parameters=p, rtol=1e-9)
    assert np.allclose(fsa.gradient["F"], asa.gradient, rtol=1e-7)
    for i, name in enumerate(system.parameters.names):
        nominal = {"a": A, "b": B, **p}[name]
        values = [
            dh.simulate(system, (0, 1.5), parameters={**p, name: nominal + h}, rtol=1e-11, atol=1e-13).functionals["F"]
            for h in (1e-4, -1e-4)
        ]
        assert asa.gradient[i] == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_a_published_start_that_is_a_little_off(native: bool) -> None:
    """A slider crank in dead centre: position and velocity constraints as equations, values with few digits."""
    m = dh.HybridModel("slider crank")
    crank, rod = m.parameter("crank", 0.15), m.parameter("rod", 0.3)
    w0, s0 = m.parameter("w0", 10.0), m.parameter("s0", 0.450000012)
    one, two, s = (m.differential(name) for name in ("one", "two", "s"))
    run = m.mode(
        "run",
        ode={one: w0, two: -crank * np.cos(one) * w0 / (rod * np.cos(two)), s: -crank * np.sin(one) * w0},
    )
    closing = [crank * np.sin(one) + rod * np.sin(two), s - crank * np.cos(one) - rod * np.cos(two)]
    m.initial(run, {one: 0.0, two: 0.0, s: s0}, equations=closing, project=[one, two, s])
    m.functional("G", terminal=two + s, integrand=s)
    system = m.build(native=native)
    sol = dh.simulate(system, (0, 0.1), rtol=1e-9)
    assert sol["s"][0] == pytest.approx(0.45, abs=1e-14)
    assert [sol["one"][0], sol["two"][0]] == pytest.approx([0.0, 0.0], abs=1e-14)
    fsa = dh.forward_sensitivity(system, (0, 0.1), rtol=1e-9)
    assert np.allclose(fsa["s"][0], [1.0, 1.0, 0.0, 0.0], atol=1e-7)  # s = crank + rod
    asa = dh.adjoint_gradient(system, (0, 0.1), "G", rtol=1e-9)
    assert np.allclose(fsa.gradient["G"], asa.gradient, rtol=1e-6, atol=1e-10)


def test_equations_with_algebraic_variables_take_part() -> None:
    """The nearest y for which z = y^2 + 1 has the value that an initial equation asks for."""
    m = dh.HybridModel("through z")
    c, guess = m.parameter("c", 5.0), m.parameter("guess", 1.7)
    y, z = m.differential("y"), m.algebraic("z", guess=2.0)
    run = m.mode("run", ode={y: -y + 0 * z}, algebraic=[z - y**2 - 1 + 0.1 * (z - 5) ** 3])
    m.initial(run, {y: guess}, equations=[z - c], project=[y])
    m.functional("G", terminal=y)
    for eliminate in (True, False):
        fsa = dh.forward_sensitivity(m.build(eliminate=eliminate), (0, 1), rtol=1e-9)
        assert fsa["y"][0] == pytest.approx([0.25, 0.0], abs=1e-9)  # y = sqrt(c - 1) for c = 5
        assert fsa.trajectory["y"][0] == pytest.approx(2.0)


def test_statements_of_a_projection_that_cannot_be_meant() -> None:
    m = dh.HybridModel("statements")
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    on = m.mode("on", ode={x: -x * z, y: -1.0 - y * z}, constraint=[x**2 + y**2 - 1])
    with pytest.raises(dh.ModelError, match="y, which has no value"):
        m.initial(on, {x: 1.0}, project=[x, y])
    with pytest.raises(dh.ModelError, match="twice"):
        m.initial(on, {x: 1.0}, project=[x, x])
    with pytest.raises(dh.ModelError, match="metric"):
        m.initial(on, {x: 1.0, y: 0.1}, metric=2.0)
    m.initial(on, {x: 1.0, y: 0.1}, project=[x, y], metric=[1.0, 2.0, 3.0])
    with pytest.raises(dh.ModelError, match="3 entries"):
        m.build()


@cache
def wave(where: str) -> dh.HybridSystem:
    """x and y are moved onto y = a sin(b x), by a transition at t = 0.01 or at the start."""
    m = dh.HybridModel("wave")
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    point, a, b = m.parameter("point", [0.0, 0.0]), m.parameter("a", 2.0), m.parameter("b", 2.0)
    on = m.mode("on", ode={x: -a * b * ca.cos(b * x) * z, y: z}, constraint=[y - a * ca.sin(b * x)])
    if where == "start":
        m.initial(on, {x: point[0], y: point[1]}, project=[x, y])
    else:
        free = m.mode("free", ode={x: 0 * x, y: 0 * y})
        m.transition(free, on, at=0.01, project=[x, y], name="onto")
        m.initial(free, {x: point[0], y: point[1]})
    m.functional("G", terminal=x)
    return m.build(native=False)


def onto_wave(where: str, point: tuple[float, float], a: float, b: float) -> tuple[float, float]:
    sol = dh.simulate(wave(where), (0, 0.02), parameters={"point": point, "a": a, "b": b})
    x, y = (sol["x"][0], sol["y"][0]) if where == "start" else sol.events[0].state_plus[:2]
    assert y == pytest.approx(a * np.sin(b * x), abs=1e-9)
    return x, y


def distance_to_wave(point: tuple[float, float], a: float, b: float) -> float:
    """By brute force over x."""

    def distance(x: Any) -> Any:
        return np.hypot(x - point[0], a * np.sin(b * x) - point[1])

    x = np.linspace(point[0] - 7, point[0] + 7, 200_001)  # the curve is nearer than 3 + 3 everywhere
    first = x[distance(x).argmin()]
    return minimize_scalar(
        distance, bounds=(first - 1e-4, first + 1e-4), method="bounded", options={"xatol": 1e-12}
    ).fun


@pytest.mark.parametrize("where", ["start", "transition"])
@pytest.mark.parametrize(
    ("point", "a", "b"),
    [
        ((-0.766, 0.25), 2.0, 2.0),  # Newton's method reaches a minimum at 2.2, the nearest point is at 0.80
        ((-0.786, 1.56), 2.0, 2.0),
        ((0.75, 0.25), 2.0, 2.0),
        ((0.94, 0.9), 1.0, 5.0),
        ((0.94, 3.0), 1.0, 5.0),  # minima at 2.094 and 2.099
        ((4.0, -1.0), 2.0, 2.0),  # Newton's method may reach the origin, where the curve does not bend
    ],
)
def test_the_nearest_of_many_minima(where: str, point: tuple[float, float], a: float, b: float) -> None:
    x, y = onto_wave(where, point, a, b)
    assert np.hypot(x - point[0], y - point[1]) == pytest.approx(distance_to_wave(point, a, b), abs=1e-7)


@settings(max_examples=25, deadline=None)
@given(
    point=st.tuples(st.floats(-3, 3), st.floats(-3, 3)), a=st.floats(0.2, 3), b=st.floats(0.5, 5),
    where=st.sampled_from(["start", "transition"]),
)  # fmt: skip
def test_no_point_of_a_wave_is_nearer(point: tuple[float, float], a: float, b: float, where: str) -> None:
    try:
        x, y = onto_wave(where, point, a, b)
    except dh.ConsistencyError as error:
        assert "near" in str(error)  # noqa: PT017
        return
    assert np.hypot(x - point[0], y - point[1]) == pytest.approx(distance_to_wave(point, a, b), abs=1e-6)


def test_points_between_two_waves_are_refused() -> None:
    """Over a trough, as far from the one crest as from the other."""
    with pytest.raises(dh.ConsistencyError, match="equally near"):
        onto_wave("start", (3 * np.pi / 4, 2.5), 2.0, 2.0)


def test_derivatives_of_a_start_far_from_the_wave() -> None:
    """By the curvature of the wave: (1 + y'^2 + (y - py) y'') dx = dpx + y' dpy where (x - px) + (y - py) y' = 0."""
    px, py = -0.766, 0.25
    p = {"point": (px, py), "a": 2.0, "b": 2.0}
    fsa = dh.forward_sensitivity(wave("start"), (0, 0.02), parameters=p, rtol=1e-9)
    asa = dh.adjoint_gradient(wave("start"), (0, 0.02), "G", parameters=p, rtol=1e-9)
    x, y = fsa.trajectory["x"][0], fsa.trajectory["y"][0]
    slope, bend = 4 * np.cos(2 * x), -8 * np.sin(2 * x)
    expected = np.array([1.0, slope]) / (1 + slope**2 + (y - py) * bend)
    assert fsa["x"][0][:2] == pytest.approx(expected, rel=1e-7)
    assert np.allclose(fsa.gradient["G"], asa.gradient, rtol=1e-6, atol=1e-9)
