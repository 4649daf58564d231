"""FORM: exact indices of linear limit states, published examples, gradients, refusals, event sequences."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_parameters import SPAN, TIGHT, ball, closed_form, fragile
from scipy import optimize, stats

import dae_hybrid as dh

PLANE = closed_form({"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0}, lambda a, b, c, d: d * a + 2 * b - 2 * c)
BALL, FRAGILE = ball(), fragile()
CLOSE: dict[str, Any] = {"tolerance": 1e-8, **TIGHT}


def lognormal(mean: float, std: float) -> Any:
    s = np.sqrt(np.log1p((std / mean) ** 2))
    return stats.lognorm(s, scale=mean / np.sqrt(1 + (std / mean) ** 2))


@pytest.mark.parametrize(("limit", "beta"), [(9.0, 3.0), (3.0, 1.0), (-6.0, -2.0), (0.0, 0.0), (36.0, 12.0)])
def test_a_linear_limit_state_is_exact(limit: float, beta: float) -> None:
    inputs = dh.Inputs(PLANE, {name: stats.norm() for name in "abc"})
    found = dh.form(PLANE, SPAN, inputs, above=limit, **CLOSE)
    np.testing.assert_allclose(found.beta, beta, atol=1e-9)
    np.testing.assert_allclose(found.probability, stats.norm.sf(beta), rtol=1e-7)
    np.testing.assert_allclose(found.u, beta * np.array([1, 2, -2]) / 3, atol=1e-7)
    np.testing.assert_allclose(found.importance, [1 / 9, 4 / 9, 4 / 9], rtol=1e-8)
    assert found.others == ()
    below = dh.form(PLANE, SPAN, inputs, below=-limit, **CLOSE)
    np.testing.assert_allclose(below.beta, beta, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.1, 3), min_size=3, max_size=3), st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.floats(-0.45, 0.9), st.floats(-5, 15),
)  # fmt: skip
def test_correlated_normals_are_exact(std: list[float], mean: list[float], rho: float, limit: float) -> None:
    correlation = np.full((3, 3), rho) + (1 - rho) * np.eye(3)
    inputs = dh.Inputs(PLANE, dict(zip("abc", map(stats.norm, mean, std), strict=True)), correlation)
    slope = np.array([1.0, 2.0, -2.0])
    spread = np.sqrt(slope * std @ correlation @ (slope * std))
    assume(limit - slope @ mean < 35 * spread)  # farther out, probabilities underflow
    found = dh.form(PLANE, SPAN, inputs, above=limit, starts=1, **CLOSE)
    np.testing.assert_allclose(found.beta, (limit - slope @ mean) / spread, atol=1e-7)
    np.testing.assert_allclose(found.gradient[:3], -slope / spread, rtol=1e-6)  # by shifts of the means
    np.testing.assert_allclose(found.importance.sum(), 1)


def test_a_ratio_of_lognormals_is_exact() -> None:
    system = closed_form({"r": 1.0, "s": 1.0}, lambda r, s: ca.log(r / s))
    r, s = lognormal(200, 20), lognormal(100, 30)
    found = dh.form(system, SPAN, dh.Inputs(system, {"r": r, "s": s}), below=0.0, **CLOSE)
    exact = np.log(r.median() / s.median()) / np.hypot(r.args[0], s.args[0])
    np.testing.assert_allclose(found.beta, exact, rtol=1e-9)
    np.testing.assert_allclose(found.x[0], found.x[1], rtol=1e-8)


def test_published_plastic_frame() -> None:
    """A. Der Kiureghian, H.-Z. Lin, S.-J. Hwang, J. Eng. Mech. 113 (1987), 1208: beta 2.348, probability 0.00943."""
    weights = {"x1": 1, "x2": 2, "x3": 2, "x4": 1, "x5": -5, "x6": -5}
    system = closed_form(dict.fromkeys(weights, 1.0), lambda **x: sum(w * x[n] for n, w in weights.items()))
    marginals = {name: lognormal(120, 12) for name in weights} | {"x5": lognormal(50, 15), "x6": lognormal(40, 12)}
    found = dh.form(system, SPAN, dh.Inputs(system, marginals), below=0.0, **CLOSE)
    assert round(found.beta, 3) == 2.348
    assert round(found.probability, 5) == 0.00943
    sampled = found.importance_sampling(1024)
    sample = dh.monte_carlo(system, SPAN, dh.Inputs(system, marginals), 4096).probability(below=0.0)
    assert abs(sampled.value - sample.value) < 5 * np.hypot(sampled.standard_error, sample.standard_error)


def nataf(one: Any, two: Any, rho: float) -> float:
    """Correlation of normal scores for a correlation of the variables, by quadrature."""
    z, w = np.polynomial.hermite_e.hermegauss(40)
    w = w / w.sum()

    def standard(own: Any, score: np.ndarray) -> np.ndarray:
        return (own.ppf(np.clip(stats.norm.cdf(score), 1e-300, 1 - 1e-16)) - own.mean()) / own.std()

    def error(r: float) -> float:
        y = standard(two, r * z[:, None] + np.sqrt(1 - r**2) * z[None, :])
        return float(w @ (standard(one, z)[:, None] * y) @ w) - rho

    return float(optimize.brentq(error, 0.9 * rho, 1.2 * rho))


def test_published_correlated_example() -> None:
    """The example of FERUM and Pystra (Haukaas, Der Kiureghian, Caprani), with Nataf's correlation: beta 3.7347."""
    x, y, z = lognormal(500, 100), stats.norm(2000, 400), stats.uniform(5 - 0.5 * np.sqrt(3), np.sqrt(3))
    system = closed_form({"x": 1.0, "y": 1.0, "z": 1.0}, lambda x, y, z: 1.7 - y / (1000 * z) - (x / (200 * z)) ** 2)
    pairs = {("x", "y"): nataf(x, y, 0.3), ("x", "z"): nataf(x, z, 0.2), ("y", "z"): nataf(y, z, 0.2)}
    found = dh.form(system, SPAN, dh.Inputs(system, {"x": x, "y": y, "z": z}, pairs), below=0.0, **CLOSE)
    assert abs(found.beta - 3.7347) < 1e-3


@pytest.mark.parametrize("functional", ["height", "speed"])
def test_gradients_are_those_of_the_index(functional: str) -> None:
    def index(h: float = 1.0, e: float = 0.0, g: float = 0.0, **more: Any) -> dh.Form:
        inputs = dh.Inputs(
            BALL, {"e": stats.norm(0.8 + e, 0.01), "g": stats.lognorm(0.003, loc=g, scale=9.81)}, {("e", "g"): 0.4}
        )
        limit: Any = {"above": 0.24} if functional == "height" else {"below": 0.0}
        return dh.form(
            BALL, (0.0, 1.95), inputs, functional=functional, parameters={"h": h}, starts=1, tolerance=1e-7,
            rtol=1e-11, atol=1e-13, **limit, **more,
        )  # fmt: skip

    found = index(wrt=["h", "e", "g"])
    assert found.wrt == ("h", "e", "g")
    step = 1e-5
    differences = [
        (index(**{name: base + step}).beta - index(**{name: base - step}).beta) / (2 * step)
        for name, base in (("h", 1.0), ("e", 0.0), ("g", 0.0))
    ]
    np.testing.assert_allclose(found.gradient, differences, rtol=1e-5)
    density = stats.norm.pdf(found.beta)
    np.testing.assert_allclose(found.probability_gradient, -density * found.gradient)


def test_importance_sampling_sees_curvature() -> None:
    """Failure outside a circle: the tangent plane has half of the probability, which is a noncentral chi-square."""
    system = closed_form({"a": 0.0, "b": 0.0}, lambda a, b: (a + 1.0) ** 2 + b**2)
    found = dh.form(system, SPAN, dh.Inputs(system, {"a": stats.norm(), "b": stats.norm()}), above=9.0, **CLOSE)
    np.testing.assert_allclose(found.u, [2, 0], atol=1e-7)
    exact = stats.ncx2(2, 1).sf(9.0)
    sampled = found.importance_sampling(2**12)
    assert found.probability < 0.53 * exact
    assert abs(sampled.value - exact) < max(4 * sampled.standard_error, 0.03 * exact)


@pytest.mark.parametrize("limit", [-4.0, -2.0, 0.0, 3.0])
def test_importance_sampling_of_a_line_on_either_side(limit: float) -> None:
    """If the origin fails, the complement is sampled."""
    inputs = dh.Inputs(PLANE, {name: stats.norm() for name in "abc"})
    sampled = dh.form(PLANE, SPAN, inputs, above=3 * limit).importance_sampling(2**12)
    exact = stats.norm.sf(limit)
    assert abs(sampled.value - exact) < 5 * sampled.standard_error
    assert sampled.standard_error < 0.02 * min(exact, 1 - exact)


def test_importance_sampling_around_several_design_points() -> None:
    system = closed_form({"a": 0.0, "b": 0.0}, lambda a, b: a * (a - 0.4) + 0 * b)
    inputs = dh.Inputs(system, {"a": stats.norm(), "b": stats.norm()})
    with pytest.warns(dh.UncertaintyWarning, match="another design point"):
        found = dh.form(system, SPAN, inputs, above=4.8, starts=6, **CLOSE)  # beyond -2 and 2.4
    assert [round(point.beta, 6) for point in found.others] == [2.4]
    exact = stats.norm.sf(2) + stats.norm.sf(2.4)
    sampled = found.importance_sampling(2**12)
    assert abs(sampled.value - exact) < 5 * sampled.standard_error
    assert sampled.standard_error < 0.01 * exact
    with pytest.raises(dh.OptionError, match="at least 4, the number of design points and one"):
        dataclasses.replace(found, others=found.others * 2).importance_sampling(16)


def test_importance_sampling_sees_failures_beyond_the_design_point() -> None:
    """One search finds one of two sides."""
    system = closed_form({"a": 0.0, "b": 0.0}, lambda a, b: a * (a - 0.4) + 0 * b)
    found = dh.form(system, SPAN, dh.Inputs(system, dict.fromkeys("ab", stats.norm())), above=4.8, starts=1)
    assert found.others == ()
    sampled = found.importance_sampling(2**12)
    assert abs(sampled.value - stats.norm.sf(2) - stats.norm.sf(2.4)) < 4 * sampled.standard_error


def test_importance_sampling_is_an_ensemble(tmp_path: Path) -> None:
    found = dh.form(PLANE, SPAN, dh.Inputs(PLANE, {name: stats.norm() for name in "abc"}), above=9.0)
    states = list[Any]()
    call: dict[str, Any] = {"store": tmp_path / "store", "executor": "threads", "workers": 2, "progress": states.append}
    assert found.importance_sampling(1024, **call).value == found.importance_sampling(1024).value
    assert states
    assert (tmp_path / "store" / "runs").is_dir()
    assert found.importance_sampling(1024, **call).value == found.importance_sampling(1024).value


def test_importance_sampling_that_meets_too_few_failures_warns() -> None:
    """Failure is a sliver around the design point."""
    system = closed_form({"a": 0.0, "b": 0.0}, lambda a, b: a - 1e4 * b * b)
    found = dh.form(system, SPAN, dh.Inputs(system, {"a": stats.norm(), "b": stats.norm()}), above=3.0)
    with pytest.warns(dh.UncertaintyWarning, match="effective number of 0 of 64 runs"):
        none = found.importance_sampling(64, seed=2)
    assert none.value == 0
    assert np.isnan(none.standard_error)
    with pytest.warns(dh.UncertaintyWarning, match="effective number of 1 of 64 runs"):
        found.importance_sampling(64, seed=1)


def test_the_system_is_that_of_the_call() -> None:
    """Inputs of a model with the same parameters are legal; its functional does not matter."""
    inputs = dh.Inputs(closed_form({"a": 0.0}, lambda a: 0.1 * a), {"a": stats.norm()})
    twice = closed_form({"a": 0.0}, lambda a: 2 * a)
    found = dh.form(twice, SPAN, inputs, above=4.0)
    assert abs(found.importance_sampling(1024).value / stats.norm.sf(2) - 1) < 0.02


def test_curved_surfaces_need_few_runs() -> None:
    """The HL-RF method oscillates where beta kappa is near or above one, and needs more than 100 iterations here."""
    normal = {name: stats.norm() for name in "ab"}
    for of, beta in (
        (lambda a, b: 0.1 * (a - b) ** 2 - (a + b) / np.sqrt(2) + 2.5, 2.5),
        (lambda a, b: 3 - a + 1e4 * b * b, 3.0),
    ):
        system = closed_form({"a": 0.0, "b": 0.0}, of)
        found = dh.form(system, SPAN, dh.Inputs(system, normal), below=0.0)
        np.testing.assert_allclose(found.beta, beta, rtol=1e-6)
        assert found.unsuccessful == ()
        assert found.n_runs < 120


def test_all_design_points_around_a_saddle_are_found() -> None:
    """The sum of exponentials is largest on the axes; the search from the origin ends on the diagonal, at a maximum."""
    names = "abcde"
    system = closed_form(dict.fromkeys(names, 0.0), lambda **x: sum(ca.exp(x[name]) for name in names))
    inputs = dh.Inputs(system, dict.fromkeys(names, stats.norm()))
    with pytest.warns(dh.UncertaintyWarning, match="another design point"):
        found = dh.form(system, SPAN, inputs, above=40.0, starts=1, **CLOSE)
    points = np.array([found.u, *(point.u for point in found.others)])
    assert sorted(points.argmax(axis=1).tolist()) == [0, 1, 2, 3, 4]
    best = optimize.minimize(
        lambda u: u @ u, [3.5, 0, 0, 0, 0], constraints={"type": "eq", "fun": lambda u: np.exp(u).sum() - 40}, tol=1e-12
    )
    np.testing.assert_allclose([found.beta, *(point.beta for point in found.others)], np.sqrt(best.fun), rtol=1e-6)


def test_another_design_point_is_reported() -> None:
    system = closed_form({"a": 0.0, "b": 0.0}, lambda a, b: a * (a + 0.2) + 0.1 * b)
    inputs = dh.Inputs(system, {"a": stats.norm(), "b": stats.norm()})
    with pytest.warns(dh.UncertaintyWarning, match=r"another design point.*larger"):
        found = dh.form(system, SPAN, inputs, above=9.0, starts=6, **CLOSE)
    assert len(found.others) == 1
    assert found.x[0] > 0 > found.others[0].x[0] or found.x[0] < 0 < found.others[0].x[0]
    assert abs(found.others[0].beta) > abs(found.beta)
    with pytest.warns(dh.UncertaintyWarning, match=r"another design point.*smaller"):
        safe = dh.form(system, SPAN, inputs, below=9.0, starts=6, **CLOSE)
    assert safe.importance_sampling(1024).value < safe.probability


def test_a_saddle_is_no_design_point() -> None:
    """With s and d along the diagonals, |u|^2 = s^2 + 3 - s on s = 3 - d^2: a maximum at s = 3, the minimum at 1/2."""
    system = closed_form({"a": 0.0, "b": 0.0}, lambda a, b: 3 - 0.5 * (a - b) ** 2 - (a + b) / np.sqrt(2))
    inputs = dh.Inputs(system, {"a": stats.norm(), "b": stats.norm()})
    with pytest.warns(dh.UncertaintyWarning, match="another design point"):
        found = dh.form(system, SPAN, inputs, below=0.0, starts=1, **CLOSE)  # the search from the origin ends at s = 3
    np.testing.assert_allclose([found.beta, *(point.beta for point in found.others)], np.sqrt(2.75), rtol=1e-9)
    np.testing.assert_allclose(found.u, found.others[0].u[::-1], atol=1e-7)
    z = np.linspace(-10, 10, 4001)
    exact = np.trapezoid(stats.norm.pdf(z) * stats.norm.sf(3 - z**2), z)
    sampled = found.importance_sampling(2**12)
    assert abs(sampled.value - exact) < 5 * sampled.standard_error


def test_a_sphere_and_a_failed_search_are_reported() -> None:
    """The gradient at the origin is zero."""
    system = closed_form({"a": 0.0, "b": 0.0}, lambda a, b: a * a + b * b)
    inputs = dh.Inputs(system, {"a": stats.norm(), "b": stats.norm()})
    with (
        pytest.warns(dh.UncertaintyWarning, match="curves around the origin almost like a sphere of radius 3"),
        pytest.warns(dh.UncertaintyWarning, match="1 of 2 searches found no design point.*gradient is zero"),
    ):
        found = dh.form(system, SPAN, inputs, above=9.0, starts=2, **CLOSE)
    np.testing.assert_allclose(found.beta, 3, rtol=1e-9)
    line = closed_form({"a": 0.0}, lambda a: a * a)
    with pytest.warns(dh.UncertaintyWarning, match="A nearer or another design point may be missing"):
        dh.form(line, SPAN, dh.Inputs(line, {"a": stats.norm()}), above=9.0, starts=2, **CLOSE)


def test_runs_that_fail_before_the_design_point_are_reported() -> None:
    """Runs fail for |a + b| < 1, about the origin."""
    system = closed_form({"a": 0.0, "b": 0.0}, lambda a, b: a + b + 1e-30 * ca.sqrt((a + b) ** 2 - 1))
    inputs = dh.Inputs(system, {"a": stats.norm(), "b": stats.norm()})
    with (
        pytest.warns(dh.UncertaintyWarning, match="8 of 16 runs between the origin and the design point fail"),
        pytest.warns(dh.UncertaintyWarning, match="searches found no design point"),
    ):
        found = dh.form(system, SPAN, inputs, above=2.0, starts=8)
    np.testing.assert_allclose(found.beta, np.sqrt(2), rtol=1e-6)


def test_runs_that_fail_shorten_the_step() -> None:
    """The root of a - 1/2 has an infinite slope at the end of the domain, close to the limit."""
    inputs = dh.Inputs(FRAGILE, {"a": stats.norm(2, 0.5)})
    with pytest.warns(dh.UncertaintyWarning, match="or runs fail there"):
        found = dh.form(FRAGILE, SPAN, inputs, below=0.02, **CLOSE)
    np.testing.assert_allclose(found.beta, (2 - 0.5 - 0.02**2) / 0.5, rtol=1e-6)
    with pytest.raises(dh.UncertaintyError, match="failed runs count as not beyond"):  # about half of the runs
        found.importance_sampling(64)
    with (
        pytest.warns(dh.UncertaintyWarning, match="rests on"),
        pytest.warns(dh.UncertaintyWarning, match="of 64 failed"),
    ):
        found.importance_sampling(64, max_failed=0.9)
    with pytest.raises(dh.OptionError, match="max_failed"):
        found.importance_sampling(64, max_failed=np.nan)


def test_runs_that_fail_have_no_value_beyond_the_limit() -> None:
    """G = sqrt(a - 1/2) is below 1/2 for a from 1/2 to 3/4; runs fail below, in a third of the sample."""
    found = dh.form(FRAGILE, SPAN, dh.Inputs(FRAGILE, {"a": stats.norm(2, 0.5)}), below=0.5, **CLOSE)
    with pytest.warns(dh.UncertaintyWarning, match="of 1024 failed.*Failed runs count as not beyond"):
        sampled = found.importance_sampling(1024, max_failed=0.5)
    assert abs(sampled.value - (stats.norm.cdf(-2.5) - stats.norm.cdf(-3))) < 5 * sampled.standard_error


def test_a_limit_out_of_reach_is_refused() -> None:
    system = closed_form({"a": 0.0}, lambda a: ca.tanh(a))
    with pytest.raises(dh.UncertaintyError, match="No design point") as caught:
        dh.form(system, SPAN, dh.Inputs(system, {"a": stats.norm()}), above=1.5)
    assert len(caught.value.errors) == 3  # type: ignore[attr-defined]
    flat = closed_form({"a": 0.0, "b": 1.0}, lambda a, b: b)
    with pytest.raises(dh.UncertaintyError, match="gradient is zero"):
        dh.form(flat, SPAN, dh.Inputs(flat, {"a": stats.norm()}), above=1.5)
    with pytest.raises(dh.UncertaintyError, match="1 iterations"):
        dh.form(PLANE, SPAN, dh.Inputs(PLANE, {"a": stats.lognorm(1.0)}), above=9.0, max_iterations=1)


def test_a_limit_within_a_jump_is_refused() -> None:
    """G = a for a < 1, a + 10 above: no point has G = 5, and the surface G = -5 of the upper branch is not there."""
    system = closed_form({"a": 0.0}, lambda a: a + ca.if_else(a > 1, 10.0, 0.0))
    with pytest.raises(dh.UncertaintyError, match="sequence of events changes"):
        dh.form(system, SPAN, dh.Inputs(system, {"a": stats.norm(0, 1)}), above=5.0)


def test_a_surface_behind_a_jump_is_refused() -> None:
    """G = 5 at a = 5, but runs fail from 1 to 2, too, where G = a + 10: the nearest failure is at the jump."""
    system = jumping()
    with pytest.raises(dh.UncertaintyError, match="not the nearest"):
        dh.form(system, (0.0, 1.0), dh.Inputs(system, {"a": stats.norm(0, 1)}), above=5.0)


def jumping() -> dh.HybridSystem:
    m = dh.HybridModel("step")
    a, x = m.parameter("a", 1.0), m.differential("x")
    low, high = m.mode("low", ode={x: 1.0}), m.mode("high", ode={x: 1.0})
    m.transition(low, high, guard=x - 2, direction="rising", reset={x: x + 10})
    m.initial(low, {x: a})
    m.functional("G", terminal=x - 1)
    return m.build()


def test_a_change_of_the_sequence_beside_the_design_point_is_reported() -> None:
    system = jumping()
    inputs = dh.Inputs(system, {"a": stats.norm(0, 1)})
    with pytest.warns(dh.UncertaintyWarning, match="sequence of events changes within 0.1"):
        found = dh.form(system, (0.0, 1.0), inputs, above=0.95, starts=1, **CLOSE)
    np.testing.assert_allclose(found.beta, 0.95, rtol=1e-8)
    np.testing.assert_allclose(found.beside, [[1.05]])
    assert dh.form(system, (0.0, 1.0), inputs, above=0.85, starts=1, **CLOSE).beside.size == 0


def test_the_probability_is_that_of_monte_carlo() -> None:
    inputs = dh.Inputs(BALL, {"e": stats.norm(0.8, 0.01), "h": stats.norm(1, 0.02)})
    found = dh.form(BALL, (0.0, 1.95), inputs, functional="height", above=0.24)
    sample = dh.monte_carlo(BALL, (0.0, 1.95), inputs, 8192, functional="height").probability(above=0.24)
    sampled = found.importance_sampling(1024)
    assert abs(sampled.value - sample.value) < 5 * np.hypot(sample.standard_error, sampled.standard_error)
    again = pickle.loads(pickle.dumps(found))
    assert again.importance_sampling(1024).value == sampled.value
    assert "design point" in str(found)
    assert "importance" in found._repr_html_()
    assert set(found.design_point) == {"e", "h"}


@pytest.mark.parametrize(("options", "error", "message"), [
    ({}, dh.OptionError, "above= or below="),
    ({"above": 1.0, "below": 2.0}, dh.OptionError, "above= or below="),
    ({"above": np.nan}, dh.OptionError, "finite"),
    ({"above": "1"}, dh.OptionError, "finite"),
    ({"above": 1.0, "functional": "Q"}, dh.ParameterError, "Unknown functional"),
    ({"above": 1.0, "starts": 0}, dh.OptionError, "starts"),
    ({"above": 1.0, "tolerance": 0.0}, dh.OptionError, "tolerance"),
    ({"above": 1.0, "tolerance": True}, dh.OptionError, "tolerance"),
    ({"above": 1.0, "max_iterations": 1.5}, dh.OptionError, "max_iterations"),
    ({"above": 1.0, "wrt": "q"}, dh.ParameterError, "q"),
    ({"above": 1.0, "parameters": {"a": 2.0}}, dh.ParameterError, "is random"),
])  # fmt: skip
def test_bad_calls_are_refused(options: Any, error: Any, message: str) -> None:
    inputs = dh.Inputs(PLANE, {"a": stats.norm()})
    with pytest.raises(error, match=message):
        dh.form(PLANE, SPAN, inputs, **options)
