"""Inputs from data: every kind of interpolation, at every place of a model, against closed forms and SciPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.interpolate import CubicSpline, PPoly

import dae_hybrid as dh
from dae_hybrid.problems._reference import derivatives

KINDS = ("previous", "linear", "cubic")
KNOTS = np.array([0.0, 0.4, 0.7, 1.5, 2.0, 2.6])
VALUES = np.array([0.3, 1.0, -0.4, 0.8, 0.1, 0.6])
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def interpolant(kind: str, knots: np.ndarray, values: Any) -> PPoly:
    """The same signal by SciPy, constant after the last knot; values may be complex."""
    values = np.asarray(values)
    if kind == "cubic":
        c = CubicSpline(knots, values).c
    elif kind == "linear":
        c = np.stack([np.diff(values) / np.diff(knots), values[:-1]])
    else:
        c = values[None, :-1]
    last = np.zeros((c.shape[0], 1), dtype=c.dtype)
    last[-1] = values[-1]
    return PPoly(np.hstack((c, last)), np.append(knots, knots[-1] + 100.0))


def knots_before(knots: np.ndarray, t: float) -> np.ndarray:
    return knots[: np.searchsorted(knots, t)]


# -- a signal in an ODE --------------------------------------------------------------------------------------


def driven(kind: str, values: str) -> dh.HybridModel:
    """y' = s - k y; values are numbers, a vector parameter or an expression."""
    m = dh.HybridModel(f"driven, {kind}, {values}")
    k = m.parameter("k", 0.8)
    if values == "vector":
        data: Any = m.parameter("data", VALUES)
    elif values == "expression":
        data = m.parameter("scale", 1.3) * VALUES + m.parameter("shift", 0.2) ** 2
    else:
        data = VALUES
    s = m.signal("s", KNOTS, data, kind=kind)
    y = m.differential("y")
    run = m.mode("run", ode={y: s - k * y})
    m.initial(run, {y: 0.5})
    m.functional("G", terminal=y, integrand=s * y)
    m.functional("two", integrand=ca.vertcat(y, s**2), at_times={1.1: ca.vertcat(s, y)})
    return m


def driven_values(values: str, p: Any) -> Any:
    return VALUES if values == "numbers" else p[1:] if values == "vector" else p[1] * VALUES + p[2] ** 2


def piecewise(s: PPoly, k: Any, y: Any, tf: float, at: float) -> tuple[Any, Any, Any, Any, Any]:
    """y' = s - k y by a quadrature of each piece: y(tf), integrals of s y, y and s^2, y(at)."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    ends = np.unique(np.concatenate((knots_before(KNOTS, tf), [at, tf])))
    total_sy, total_y, total_ss, seen = 0.0, 0.0, 0.0, None
    for a, b in pairwise(ends):
        piece = int(np.searchsorted(s.x, a, side="right")) - 1

        def value(t: Any, piece: int = piece) -> Any:
            return np.polyval(s.c[:, piece], t - s.x[piece])

        def state(t: Any, a: Any = a, y: Any = y, value: Any = value) -> Any:
            u = a + (t - a) * (nodes + 1) / 2
            return np.exp(-k * (t - a)) * y + (t - a) / 2 * (weights @ (np.exp(-k * (t - u)) * value(u)))

        t = a + (b - a) * (nodes + 1) / 2
        ys = np.array([state(v) for v in t])
        total_sy = total_sy + (b - a) / 2 * (weights @ (value(t) * ys))
        total_y = total_y + (b - a) / 2 * (weights @ ys)
        total_ss = total_ss + (b - a) / 2 * (weights @ value(t) ** 2)
        y = state(b)
        if b == at:
            seen = y
    return y, total_sy, total_y, total_ss, seen


@pytest.fixture(scope="module")
def driven_system() -> Callable[[str, str], dh.HybridSystem]:
    cache: dict[Any, dh.HybridSystem] = {}

    def build(kind: str, values: str) -> dh.HybridSystem:
        if (kind, values) not in cache:
            cache[kind, values] = driven(kind, values).build()
        return cache[kind, values]

    return build


@pytest.mark.parametrize("values", ["numbers", "vector", "expression"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_values_and_by_the_rest(
    kind: str, values: str, driven_system: Any, compare_gradients: Any
) -> None:
    system = driven_system(kind, values)

    def closed(p: Any) -> Any:
        y, sy, *_ = piecewise(interpolant(kind, KNOTS, driven_values(values, p)), p[0], 0.5, 2.3, 1.1)
        return y + sy

    def closed_two(p: Any) -> Any:
        s = interpolant(kind, KNOTS, driven_values(values, p))
        _, _, y, ss, at = piecewise(s, p[0], 0.5, 2.3, 1.1)
        return np.array([y + s(1.1), ss + at])

    p = system.nominal
    for name, function in (("G", closed), ("two", closed_two)):
        compare_gradients(
            system, (0, 2.3), name, value=np.real(function(p.astype(complex))), exact=derivatives(function, p),
            fd_tolerance=1e-5 if values == "expression" else 0, rtol=1e-11,
        )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_values_over_time(kind: str, driven_system: Any) -> None:
    """`sol["s"]`, `sol(t)["s"]` on both sides and `fsa["s"]` follow the data; at a knot the value after it."""
    system = driven_system(kind, "vector")
    times = np.unique(np.concatenate((KNOTS, np.linspace(0.05, 2.55, 26))))
    exact = interpolant(kind, KNOTS, VALUES)
    fsa = dh.forward_sensitivity(system, (0, 2.6), t_eval=times, **TIGHT)
    sol = dh.simulate(system, (0, 2.6), **TIGHT)
    np.testing.assert_allclose(fsa.trajectory["s"][:-1], exact(times[:-1]), atol=1e-13)
    np.testing.assert_allclose(sol(times)["s"][:-1], exact(times[:-1]), atol=1e-13)
    left = np.append(exact(times[1:-1] - 1e-13), exact(2.6 - 1e-13))
    np.testing.assert_allclose(sol(times[1:], side="left")["s"], left, atol=1e-11)
    assert sol["s"].shape == sol.t.shape
    inside = times[~np.isin(times, KNOTS)]
    by_values = np.array([interpolant(kind, KNOTS, e)(inside) for e in np.eye(KNOTS.size)]).T
    rows = dh.forward_sensitivity(system, (0, 2.6), t_eval=inside, **TIGHT)["s"]
    np.testing.assert_allclose(rows[:, 1:], by_values, atol=1e-13)
    np.testing.assert_array_equal(rows[:, 0], 0.0)
    assert "s" in sol.columns()


@pytest.mark.parametrize("values", [VALUES, list(VALUES), VALUES.astype(np.float32)], ids=["array", "list", "float32"])
def test_numbers_in_any_form(values: Any) -> None:
    m = dh.HybridModel("q")
    s, y = m.signal("s", list(KNOTS), values), m.differential("y")
    m.initial(m.mode("run", ode={y: s}), {y: 0.0})
    sol = dh.simulate(m.build(native=False), (0, 2.6), **TIGHT)
    np.testing.assert_allclose(sol(2.6)["y"], np.trapezoid(np.asarray(values, dtype=float), KNOTS), rtol=1e-9)


@pytest.mark.parametrize(
    "product",
    [lambda a: a * VALUES, lambda a: VALUES * a, lambda a: ca.vertcat(0, a, a**2)],
    ids=["from the left", "from the right", "vertcat"],
)
def test_expressions_in_any_form(product: Any) -> None:
    m = dh.HybridModel("q")
    data = product(m.parameter("a", 2.0))
    knots = KNOTS[: data.numel()]
    s, y = m.signal("s", knots, data), m.differential("y")
    m.initial(m.mode("run", ode={y: s}), {y: 0.0})
    m.functional("G", terminal=y)
    values = np.array([0, 2.0, 4.0]) if data.numel() == 3 else 2 * VALUES
    by_a = np.array([0, 1.0, 4.0]) if data.numel() == 3 else VALUES
    asa = dh.adjoint_gradient(m.build(native=False), (0, knots[-1]), **TIGHT)
    np.testing.assert_allclose(asa.value, np.trapezoid(values, knots), rtol=1e-9)
    np.testing.assert_allclose(asa.gradient, [np.trapezoid(by_a, knots)], rtol=1e-9)


# -- the ends of the data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "span", [(0.4, 2.0), (0.5, 1.9), (-1.0, 4.0), (2.6, 3.0), (-2.0, 0.0), (-2.0, -1.0), (3.0, 5.0)]
)
def test_hold(kind: str, span: tuple[float, float], compare_gradients: Any) -> None:
    m = dh.HybridModel("hold")
    data = m.parameter("data", VALUES)
    s, y = m.signal("s", KNOTS, data, kind=kind, outside="hold"), m.differential("y")
    m.initial(m.mode("run", ode={y: s * m.time}), {y: data[0]})
    m.functional("G", terminal=y + s)

    def closed(p: Any) -> Any:
        inner, nodes, weights = interpolant(kind, KNOTS, p), *np.polynomial.legendre.leggauss(8)
        ends = np.array([span[0], *(k for k in KNOTS if span[0] < k < span[1]), span[1]])
        total = p[0]
        for a, b in pairwise(ends):
            t = a + (b - a) * (nodes + 1) / 2
            total = total + (b - a) / 2 * (weights @ (t * (inner(t) if a >= KNOTS[0] else p[0])))
        return total + (inner(span[1]) if span[1] >= KNOTS[0] else p[0])

    compare_gradients(
        m.build(native=False), span, "G", value=np.real(closed(VALUES.astype(complex))),
        exact=derivatives(closed, VALUES), fd_tolerance=0,
    )  # fmt: skip


@pytest.mark.parametrize("span", [(-0.1, 1.0), (0.0, 2.7)])
def test_a_run_that_leaves_the_data_is_refused(span: Any, driven_system: Any) -> None:
    with pytest.raises(dh.OptionError, match=r"Signal 's' has data from 0 to 2\.6.*\n.*outside='hold'"):
        dh.simulate(driven_system("linear", "numbers"), span)


# -- derivatives of signals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_the_rate_of_a_signal(kind: str, compare_gradients: Any) -> None:
    """The integral of s' is s; the work of a force along a prescribed path; by name or by symbol."""
    m = dh.HybridModel("rate")
    data = m.parameter("data", VALUES)
    s = m.signal("s", KNOTS, data, kind=kind)
    y, z = m.differential("y"), m.algebraic("z")
    run = m.mode("run", ode={y: m.der(s) + 0 * m.der("s")}, algebraic=[z - m.der(s) * s])
    m.initial(run, {y: data[0]})
    m.functional("G", terminal=y, integrand=z)

    def closed(p: Any) -> Any:
        end = interpolant(kind, KNOTS, p)(2.2)
        return end + (end**2 - p[0] ** 2) / 2

    compare_gradients(m.build(), (0, 2.2), "G", exact=derivatives(closed, VALUES), fd_tolerance=0)


def test_the_rate_of_a_step_is_zero() -> None:
    m = dh.HybridModel("q")
    s, y = m.signal("s", KNOTS, VALUES, kind="previous"), m.differential("y")
    m.initial(m.mode("run", ode={y: 1 + m.der(s)}), {y: 0.0})
    assert dh.simulate(m.build(native=False), (0, 2), **TIGHT)(2.0)["y"] == pytest.approx(2.0)


# -- constraints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "knots"), [("linear", KNOTS), ("cubic", KNOTS)])
def test_prescribed_motion(kind: str, knots: Any, compare_gradients: Any) -> None:
    """Index 2: x' = w + u with x = s prescribed; the force u = s' - w jumps with the rate of the data."""
    m = dh.HybridModel("prescribed")
    data = m.parameter("data", VALUES)
    s = m.signal("s", knots, data, kind=kind)
    x, w, u = m.differential("x"), m.differential("w"), m.algebraic("u")
    run = m.mode("run", ode={x: w + u, w: -x}, constraint=[x - s])
    m.initial(run, {w: 0.2})
    cost = u * x if kind == "linear" else 0.0
    m.functional("G", integrand=cost, terminal=w, at_times={1.1: u})

    def closed(p: Any) -> Any:
        def pieces(until: float) -> tuple[Any, Any, Any]:
            v, nodes, weights = 0.2, *np.polynomial.legendre.leggauss(12)
            total, spline = 0.0, interpolant(kind, knots, p)
            integral = spline.antiderivative()
            ends = [*knots_before(knots, until), until]
            for a, b in pairwise(ends):
                t = a + (b - a) * (nodes + 1) / 2
                ws = v - (integral(t) - integral(a))
                total = total + (b - a) / 2 * (weights @ ((spline(t, 1) - ws) * spline(t)))
                v = v - (integral(b) - integral(a))
            return total, v, spline(until, 1) - v

        total, v, _ = pieces(2.3)
        return (total if kind == "linear" else 0.0) + v + pieces(1.1)[2]

    system = m.build()
    compare_gradients(
        system, (0, 2.3), "G", value=np.real(closed(VALUES.astype(complex))), exact=derivatives(closed, VALUES),
        fd_tolerance=0,
    )  # fmt: skip
    sol = dh.simulate(system, (0, 2.3), **TIGHT)
    np.testing.assert_allclose(sol["x"], sol["s"], atol=1e-13)


def test_a_constraint_that_jumps_is_refused() -> None:
    m = dh.HybridModel("q")
    s = m.signal("s", [0.0, 1.0, 2.0], [0.0, 1.0, 0.0], kind="previous")
    x, u = m.differential("x"), m.algebraic("u")
    m.initial(m.mode("run", ode={x: u}, constraint=[x - s]))
    with pytest.raises(dh.ConsistencyError, match="signal jumps and takes a constraint") as caught:
        dh.simulate(m.build(), (0, 2))
    assert (caught.value.mode, caught.value.time, caught.value.variables) == ("run", 1.0, ("x",))
    assert caught.value.trajectory is not None


# -- guards --------------------------------------------------------------------------------------------------


def crossing(kind: str) -> dh.HybridModel:
    """An event where the data crosses a level: dt/ddata, a reset and a memory with the signal and its rate."""
    m = dh.HybridModel("crossing")
    data, level = m.parameter("data", VALUES), m.parameter("level", 0.5)
    s = m.signal("s", KNOTS, data, kind=kind)
    y, kept = m.differential("y"), m.memory("kept", initial=0.0)
    low, high = m.mode("low", ode={y: 1.0}), m.mode("high", ode={y: kept * y / 4})
    update = {kept: s * m.der(s) + m.time}
    m.transition(low, high, guard=s - level, direction="rising", reset={y: y + s}, memory=update, name="up")
    m.transition(high, low, guard=s - level, direction="falling", reset={y: y * m.der(s)}, memory=update, name="down")
    m.initial(low, {y: 0.1})
    m.functional("G", terminal=y, at_events={"up": y * s, "down": m.der(s) * kept})
    return m


def crossing_closed(kind: str, p: Any) -> Any:
    data, level = p[:-1], p[-1]
    s, rate = interpolant(kind, KNOTS, data), interpolant(kind, KNOTS, data).derivative()
    real = interpolant(kind, KNOTS, np.real(data))
    t, y, kept, total, high = 0.0, 0.1, 0.0, 0.0, False
    for root in real.solve(np.real(level), extrapolate=False):
        if not 0 < root < 2.6:
            continue
        at = root + (level - s(root)) / rate(root)  # one Newton step carries the derivative
        y = y * np.exp(kept * (at - t) / 4) if high else y + (at - t)
        slope = rate(root) + s(root, 2) * (at - root)
        if high:
            total = total + slope * kept
            y = y * slope
        else:
            total = total + y * level
            y = y + level
        kept, t, high = level * slope + at, at, not high
    return total + (y * np.exp(kept * (2.6 - t) / 4) if high else y + (2.6 - t))


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_a_guard_on_the_data(kind: str, compare_gradients: Any) -> None:
    system = crossing(kind).build()
    p = system.nominal
    compared = compare_gradients(
        system, (0, 2.6), "G", value=np.real(crossing_closed(kind, p.astype(complex))),
        exact=derivatives(lambda q: crossing_closed(kind, q), p), fd_tolerance=0, rtol=1e-11,
    )  # fmt: skip
    assert len(compared.forward.events) >= 4


@pytest.mark.parametrize("direction", ["rising", "both", "falling"])
def test_a_guard_that_jumps_at_a_knot(direction: Any, compare_gradients: Any) -> None:
    """It fires at the knot, whose time does not depend on the parameters, if it jumps in its direction."""
    m = dh.HybridModel("jump")
    a, b = m.parameter("a", 1.5), m.parameter("b", 0.7)
    s, y = m.signal("s", [0.0, 1.0, 2.0, 3.0], ca.vertcat(-a, a, -a, 0), kind="previous"), m.differential("y")
    first, second = m.mode("first", ode={y: b}), m.mode("second", ode={y: -y * s})
    m.transition(first, second, guard=s, direction=direction, reset={y: y * a + s})
    m.initial(first, {y: 0.0})
    m.functional("G", terminal=y)

    def closed(p: Any) -> Any:
        a, b = p
        if direction == "falling":
            return (2 * b * a - a) * np.exp(0.5 * a)
        return (b * a + a) * np.exp(-a + 0.5 * a)

    p = np.array([1.5, 0.7])
    compared = compare_gradients(m.build(), (0, 2.5), "G", value=np.real(closed(p)), exact=derivatives(closed, p))
    assert [e.time for e in compared.forward.events] == [2.0 if direction == "falling" else 1.0]
    np.testing.assert_array_equal(compared.forward.event_time_sensitivity, 0.0)


def test_reversals_of_a_piecewise_linear_loading(compare_gradients: Any) -> None:
    """The rate changes sign at knots: memory of the reversals, work between them in closed form."""
    turns = np.array([0.0, 1.0, -1.5, 2.0, -0.5])
    m = dh.HybridModel("reversals")
    size, stiffness = m.parameter("size", 0.8), m.parameter("stiffness", 2.0)
    strain = m.signal("strain", np.arange(5.0), size * turns)
    work, z, last = m.differential("work"), m.algebraic("z"), m.memory("last", initial=0.0)
    up, down = (
        m.mode(name, ode={work: z * m.der(strain)}, algebraic=[z - stiffness * (strain - last) * sign])
        for name, sign in (("up", 1), ("down", 1))
    )
    m.transition(up, down, guard=m.der(strain), direction="falling", memory={last: strain + 0.1 * z})
    m.transition(down, up, guard=m.der(strain), direction="rising", memory={last: strain + 0.1 * z})
    m.initial(up, {work: 0.0})
    m.functional("G", terminal=work)

    def closed(p: Any) -> Any:
        a, k = p
        last, total = 0.0, 0.0
        for start, end in zip(a * turns[:-1], a * turns[1:], strict=True):
            total = total + k * ((end - last) ** 2 - (start - last) ** 2) / 2
            last = end + 0.1 * k * (end - last)
        return total

    p = np.array([0.8, 2.0])
    compared = compare_gradients(m.build(), (0, 4), "G", value=closed(p), exact=derivatives(closed, p))
    np.testing.assert_array_equal([e.time for e in compared.forward.events], [1.0, 2.0, 3.0])


# -- several signals, many knots, coinciding times -----------------------------------------------------------


def test_several_signals_with_common_and_different_knots(compare_gradients: Any) -> None:
    m = dh.HybridModel("several")
    a, b = m.parameter("a", [0.5, 1.0, -1.0, 0.3]), m.parameter("b", 0.9)
    one = m.signal("one", [0.0, 0.5, 1.0, 2.0], a, kind="cubic")
    two = m.signal("two", [0.0, 0.5, 1.25, 2.0], b * np.array([1.0, 2.0, -1.0, 0.0]))
    three = m.signal("three", [-1.0, 0.5, 0.5000001, 3.0], [1.0, 2.0, 3.0, 4.0], kind="previous")
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: one * two * three}), {y: 0.0})
    m.functional("G", terminal=y)

    def closed(p: Any) -> Any:
        f = interpolant("cubic", np.array([0.0, 0.5, 1.0, 2.0]), p[:4])
        g = interpolant("linear", np.array([0.0, 0.5, 1.25, 2.0]), p[4] * np.array([1.0, 2.0, -1.0, 0.0]))
        h = interpolant("previous", np.array([-1.0, 0.5, 0.5000001, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
        nodes, weights = np.polynomial.legendre.leggauss(6)
        ends, total = [0.0, 0.5, 0.5000001, 1.0, 1.25, 2.0], 0.0
        for start, end in pairwise(ends):
            t = start + (end - start) * (nodes + 1) / 2
            total = total + (end - start) / 2 * (weights @ (f(t) * g(t) * h(t)))
        return total

    p = np.array([0.5, 1.0, -1.0, 0.3, 0.9])
    compare_gradients(
        m.build(), (0, 2), "G", value=np.real(closed(p.astype(complex))), exact=derivatives(closed, p), fd_tolerance=0
    )


def test_time_events_at_knots(compare_gradients: Any) -> None:
    """A reset at a knot sees the value after it; multiples of 0.1 coincide with knots to rounding only."""
    m = dh.HybridModel("doses")
    a, r = m.parameter("a", 1.2), m.parameter("r", 0.5)
    s = m.signal("s", np.array([0, 0.1, 0.2, 0.3, 0.4, 0.5]), a * np.arange(6.0), kind="previous")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: 0.0})
    m.transition(run, run, at=0.2, reset={y: y + s}, memory={n: n + s})
    m.transition(run, run, at=0.4, reset={y: r * y + s**2}, memory={n: n + s})
    m.initial(run, {y: 1.0})
    m.functional("G", terminal=y + n)
    system = m.build()
    # y = 1 + 2a; r (1 + 2a) + 16 a^2; n = 6a
    compare_gradients(system, (0, 0.5), "G", value=0.5 * 3.4 + 16 * 1.44 + 7.2, exact=[2 * 0.5 + 32 * 1.2 + 6, 3.4])


def test_every_tenth_and_knots_at_tenths() -> None:
    """Times that differ by rounding are no obstacle, whichever comes first."""
    m = dh.HybridModel("tenths")
    s = m.signal("s", np.linspace(0, 1, 11), np.linspace(0, 1, 11))
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: s})
    m.transition(run, run, every=0.1, memory={n: n + 1})
    m.initial(run, {y: 0.0})
    sol = dh.simulate(m.build(), (0, 1), t_eval=np.linspace(0, 1, 11), **TIGHT)
    assert len(sol.events) == 10
    np.testing.assert_allclose(sol["y"], np.linspace(0, 1, 11) ** 2 / 2, atol=1e-10)
    np.testing.assert_array_equal(sol["n"][[0, -1]], [0.0, 10.0])


def test_many_knots(compare_gradients: Any) -> None:
    """An oscillator under 2000 samples, against the exact solution of each piece."""
    knots, rng = np.linspace(0, 10, 2000), np.random.default_rng(1)
    data = np.cumsum(rng.standard_normal(2000)) / 20
    m = dh.HybridModel("record")
    a, w = m.parameter("a", 1.0), m.parameter("w", 3.0)
    ground = m.signal("ground", knots, a * data)
    x, v = m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -(w**2) * x - ground}), {x: 0.0, v: 0.0})
    m.functional("G", terminal=x)
    system = m.build()

    def closed(p: Any) -> Any:
        a, w = p
        x, v, h = 0.0, 0.0, np.diff(knots)
        f, slope = -a * data, -a * np.diff(data) / h
        c, s = np.cos(w * h), np.sin(w * h)
        for i in range(h.size):
            x0, v0 = x - f[i] / w**2, v - slope[i] / w**2
            x, v = (
                x0 * c[i] + v0 / w * s[i] + (f[i] + slope[i] * h[i]) / w**2,
                -x0 * w * s[i] + v0 * c[i] + slope[i] / w**2,
            )
        return x

    p = np.array([1.0, 3.0])
    compare_gradients(
        system, (0, 10), "G", value=np.real(closed(p.astype(complex))), exact=derivatives(closed, p), tolerance=1e-6,
        fd_tolerance=0, rtol=1e-10, atol=1e-13,
    )  # fmt: skip
    assert len(dh.simulate(system, (0, 10)).events) == 0


def test_signals_of_unequal_scale_in_implicit_modes(compare_gradients: Any) -> None:
    """In a residual, and an algebraic variable that jumps with the data: z = s + y/2 is solved for again at knots."""
    m = dh.HybridModel("implicit")
    a, b = m.parameter("a", 1.1), m.parameter("b", 0.4)
    s = m.signal("s", [0.0, 0.5, 1.0, 2.0], a * np.array([1.0, -1.0, 2.0, 0.0]), kind="previous")
    y, z = m.differential("y"), m.algebraic("z")
    run = m.mode("run", residual=[(2 + m.der(y) * 0 + b) * m.der(y) - z], algebraic=[z - s - y / 2])
    m.initial(run, {y: 0.3})
    m.functional("G", terminal=z, integrand=m.der(y), at_times={0.75: z**2, 1.0: m.der(y)})

    def closed(p: Any) -> Any:
        a, b = p
        c, y, total = 1 / (2 + b), 0.3, 0.0
        marks = [(0.0, a), (0.5, -a), (0.75, -a), (1.0, 2 * a), (1.6, 2 * a)]
        for (start, level), (end, after) in pairwise(marks):
            y = (y + 2 * level) * np.exp(c / 2 * (end - start)) - 2 * level
            if end == 0.75:
                total = total + (after + y / 2) ** 2
            if end == 1.0:
                total = total + c * (after + y / 2)
        return total + (2 * a + y / 2) + y - 0.3

    p = np.array([1.1, 0.4])
    for eliminate in (True, False):
        compare_gradients(m.build(eliminate=eliminate), (0, 1.6), "G", value=closed(p), exact=derivatives(closed, p))


def test_the_adjoint_over_time_jumps_at_no_knot(driven_system: Any) -> None:
    """dG/dy is continuous where the input jumps."""
    asa = dh.adjoint_gradient(driven_system("previous", "numbers"), (0, 2.3), "G", **TIGHT)
    right, left = asa.adjoint(KNOTS[1:-1])["y"], asa.adjoint(KNOTS[1:-1], side="left")["y"]
    np.testing.assert_allclose(right, left, rtol=1e-9)
    assert "s" not in asa.adjoint(1.0)


# -- refusals ------------------------------------------------------------------------------------------------


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "knots decrease": ({"t_data": [0.0, 1.0, 0.5]}, "knots of signal 's' must be two or more and increase strictly"),
    "knots repeat": ({"t_data": [0.0, 1.0, 1.0]}, "increase strictly"),
    "one knot": ({"t_data": [0.0], "values": [1.0]}, "two or more"),
    "knots are not finite": ({"t_data": [0.0, 1.0, np.inf]}, "knots of signal 's' must be finite"),
    "values are not finite": ({"values": [0.0, np.nan, 1.0]}, "values of signal 's' must be finite"),
    "number of values": ({"values": [0.0, 1.0]}, "'s' has 3 knots and 2 values"),
    "kind": ({"kind": "quadratic"}, "kind must be one of previous, linear, cubic, got 'quadratic'"),
    "cubic": ({"kind": "cubic"}, "kind='cubic' needs four knots or more, got 3"),
    "outside": ({"outside": "extrapolate"}, "outside must be 'error' or 'hold'"),
    "name": ({"name": "y"}, "The name 'y' is taken"),
    "shape": ({"values": np.zeros((3, 2))}, "values of signal 's'"),
}


@pytest.mark.parametrize("what", list(BAD))
def test_bad_declarations(what: str) -> None:
    change, message = BAD[what]
    m = dh.HybridModel("q")
    m.differential("y")
    given = {"name": "s", "t_data": [0.0, 1.0, 2.0], "values": [0.0, 1.0, 2.0], **change}
    with pytest.raises(dh.ModelError, match=message):
        m.signal(given.pop("name"), given.pop("t_data"), given.pop("values"), **given)


def test_values_that_depend_on_the_state_are_refused() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    s = m.signal("s", [0.0, 1.0], ca.vertcat(0, y))
    m.initial(m.mode("run", ode={y: s}), {y: 0.0})
    with pytest.raises(dh.ModelError, match="values of signal 's' uses y; it may depend on parameters only"):
        m.build(native=False)


def test_a_signal_is_no_memory_to_update() -> None:
    m = dh.HybridModel("q")
    s, y = m.signal("s", [0.0, 1.0], [0.0, 1.0]), m.differential("y")
    run = m.mode("run", ode={y: s})
    with pytest.raises(dh.ModelError, match=r"'s'.*a signal's"):
        m.transition(run, run, at=0.5, memory={"s": 1.0})


def test_algorithm_one_refuses_signals(driven_system: Any) -> None:
    with pytest.raises(dh.AssumptionError):
        dh.adjoint_gradient(driven_system("linear", "numbers"), (0, 2), "G", algorithm="serban-recuero")


# -- guards at knots --------------------------------------------------------------------------------------------


def test_a_protocol_that_holds_reverses_where_it_goes_back() -> None:
    m = dh.HybridModel("hold")
    s, y = m.signal("s", [0, 1, 2, 3, 4, 5, 6], [0, 1, 1, 2, 2, 0, 0]), m.differential("y")
    up, down = m.mode("up", ode={y: s}), m.mode("down", ode={y: s})
    m.transition(up, down, guard=m.der(s), direction="falling")
    m.transition(down, up, guard=m.der(s), direction="rising")
    m.initial(up, {y: 0.0})
    assert [e.time for e in dh.simulate(m.build(native=False), (0, 6)).events] == [4.0]


def test_a_guard_that_crosses_at_a_knot_does_not_hide_it() -> None:
    m = dh.HybridModel("both")
    a = m.parameter("a", 1.0)
    s, y = m.signal("s", [0.0, 1.0, 2.0], a * np.array([1.0, 1.0, 0.0])), m.differential("y")
    one, two = m.mode("one", ode={y: s}), m.mode("two", ode={y: s})
    m.transition(one, two, guard=m.time - 1, direction="rising")
    m.initial(one, {y: 0.0})
    m.functional("G", terminal=y)
    system = m.build(native=False)
    asa = dh.adjoint_gradient(system, (0, 2), rtol=1e-10)
    assert asa.value == pytest.approx(1.5, rel=1e-9)
    assert asa.gradient == pytest.approx([1.5], rel=1e-9)


def test_knots_that_are_parameters_are_refused_and_stated_by_transitions() -> None:
    """A linear ramp from a time p to a time q: its start, its value there and its slope are memory."""
    m = dh.HybridModel("ramp")
    p, q, v = m.parameter("p", 0.4), m.parameter("q", 1.3), m.parameter("v", 2.0)
    with pytest.raises(dh.ModelError, match=r"knots of signal 's' are expressions.*\n.*m.transition\('all', 'same'"):
        m.signal("s", [0.0, p, q], [0.0, 0.0, 1.0])
    since, level, slope = (m.memory(name, initial=0.0) for name in ("since", "level", "slope"))
    s, y = level + slope * (m.time - since), m.differential("y")
    m.initial(m.mode("run", ode={y: s}), {y: 0.0})
    ramp = {since: ca.vertcat(p, q), level: ca.vertcat(0, v), slope: ca.vertcat(v / (q - p), 0)}
    m.transition("all", "same", at=ca.vertcat(p, q), memory=ramp)
    m.functional("G", terminal=y)
    check = dh.check_gradient(m.build(), (0, 2), "G", **TIGHT)
    assert np.isclose(check.value, 2.0 * (0.9 / 2 + 0.7), rtol=1e-9)
    exact = [-2.0 / 2, -2.0 / 2, 0.9 / 2 + 0.7]  # v (q - p) / 2 + v (2 - q)
    assert np.allclose(check.gradients["forward"], exact, rtol=1e-8)
    assert np.allclose(check.gradients["adjoint"], exact, rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_another_adapter_gives_the_same_gradient_by_values(kind: str, driven_system: Any) -> None:
    system = driven_system(kind, "vector")
    one = dh.forward_sensitivity(system, (0, 2.3), **TIGHT).gradient["G"]
    for options in ({"native_events": False}, {"adapter": "scipy"}, {"adapter": "casadi"}):
        other = dh.forward_sensitivity(system, (0, 2.3), rtol=1e-9, atol=1e-11, **options).gradient["G"]
        assert np.allclose(other, one, rtol=1e-6, atol=1e-8)
