"""Accuracy of estimates: published fits, profiles, conditioning, bounds, predictions, pictures."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import chi2, norm

import dae_hybrid as dh
from dae_hybrid.fitting.inference import Conditioning
from dae_hybrid.problems import cyclic_steel, theophylline

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
NAMES = ["lKe", "lKa", "lCl"]


def exponential() -> dh.HybridModel:
    m = dh.HybridModel("exponential")
    k, c = m.parameter("k", 1.0), m.parameter("c", 2.0)
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -k * x}), {x: c})
    return m


def twins() -> dh.HybridModel:
    """Only the sum of a and b has an effect; d has none."""
    m = dh.HybridModel("twins")
    a, b, c, _ = m.parameter("a", 0.4), m.parameter("b", 0.5), m.parameter("c", 2.0), m.parameter("d", 1.0)
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -(a + b) * x}), {x: c})
    return m


@pytest.fixture(scope="module")
def subjects():
    return dh.Experiment.from_table(
        theophylline.data(), {"conc": "conc"}, time="time", by="subject", parameters={"dose": "dose"}
    )


@pytest.fixture
def curve(built):
    times = np.array([0.2, 0.5, 1.0, 1.5, 2.0, 3.0])
    values = 2.2 * np.exp(-0.8 * times) + 0.05 * np.array([1, -1, 0.5, 1.2, -0.4, 0.3])
    return (
        dh.fit(built(exponential), dh.Experiment({"x": values}, times, sigma=0.05), ["k", "c"], **TIGHT),
        times,
        values,
    )


# -- published estimates ----------------------------------------------------------------------------


@pytest.mark.parametrize("subject", theophylline.SUBJECTS)
def test_theophylline_of_one_subject(subjects, subject) -> None:
    fit = dh.fit(theophylline.system(), subjects[subject - 1], theophylline.START, **TIGHT)
    columns = theophylline.estimates().columns
    (row,) = np.flatnonzero(columns["subject"] == subject)
    assert_allclose(fit.estimates, [columns[name][row] for name in NAMES], rtol=0, atol=3e-6)
    assert_allclose(fit.standard_errors, [columns[f"se_{name}"][row] for name in NAMES], rtol=1e-5)
    assert_allclose(np.sqrt(fit.variance), columns["sigma"][row], rtol=1e-7)
    printed = theophylline.published["nlme"][subject]
    for value, name in zip(fit.estimates, NAMES, strict=True):
        digits = len(printed[name].partition(".")[2])
        assert f"{value:.{digits}f}" == printed[name]


def test_theophylline_of_the_first_subject_as_printed_by_r(subjects) -> None:
    fit, printed = dh.fit(theophylline.system(), subjects[0], NAMES, **TIGHT), theophylline.published["stats"][1]
    assert [f"{v:.4f}" for v in fit.estimates] == [printed[name] for name in NAMES]
    assert tuple(f"{v:.4f}" for v in fit.standard_errors) == printed["errors"]
    assert f"{np.sqrt(fit.variance):.3f}" == printed["sigma"]
    assert fit.degrees_of_freedom == 8


def test_theophylline_pooled_and_with_own_parameters(subjects) -> None:
    system, columns = theophylline.system(), theophylline.estimates().columns
    pooled = dh.fit(system, subjects, NAMES, **TIGHT)
    (row,) = np.flatnonzero(columns["subject"] == 0)
    assert_allclose(pooled.estimates, [columns[name][row] for name in NAMES], rtol=0, atol=3e-6)
    assert_allclose(pooled.standard_errors, [columns[f"se_{name}"][row] for name in NAMES], rtol=1e-5)
    own = dh.fit(system, subjects, NAMES, local=NAMES, rtol=1e-8, atol=1e-10)
    singles = columns["subject"] > 0
    assert_allclose(own.estimates.reshape(3, 12), [columns[name][singles] for name in NAMES], rtol=0, atol=1e-4)
    assert_allclose(own.chi2, columns["rss"][singles].sum(), rtol=1e-7)


@pytest.mark.campaign
def test_both_minima_of_the_updated_law_of_cyclic_steel() -> None:
    measured, expected = cyclic_steel.samples(), cyclic_steel.estimates()
    experiment = dh.Experiment({"stress": measured["stress"]}, measured["path"], weights={"stress": measured["weight"]})
    call = {"scale": "log", "rtol": 1e-8, "atol": 1e-11}
    system, names = cyclic_steel.system(updated=True), cyclic_steel.names(updated=True)
    lower, other = expected["updated, lower"], expected["updated"]
    fit = dh.fit(system, experiment, list(names), **call)
    assert_allclose(fit.estimates, [lower[name] for name in names], rtol=1e-4)
    assert_allclose(fit.chi2, lower["objective"], rtol=1e-7)
    assert fit.conditioning.indices[-1] > 100
    there = dh.fit(system, experiment, {n: other[n] for n in names}, optimizer_options={"max_nfev": 1}, **call)
    assert_allclose(there.chi2, other["objective"], rtol=1e-7)
    slopes = there.jacobian.T @ there.residuals["1"] / np.linalg.norm(there.jacobian, axis=0)
    assert np.abs(slopes).max() < 1e-4 * np.sqrt(there.chi2)


# -- profiles ---------------------------------------------------------------------------------------


def test_a_profile_is_the_cost_minimised_over_the_others(curve) -> None:
    fit, times, values = curve
    profile = fit.profile("k", level=0.9)

    def cost(k):  # minimised over c in closed form
        shape = np.exp(-k * times)
        return 0.5 * (((values - shape * (values @ shape) / (shape @ shape)) / 0.05) ** 2).sum()

    least = minimize_scalar(cost, (0.5, 1.0), tol=1e-12)
    assert_allclose(profile.estimate, least.x, rtol=1e-6)
    limit = chi2.ppf(0.9, 1) / 2
    ends = [brentq(lambda k: cost(k) - least.fun - limit, *pair) for pair in ((0.3, least.x), (least.x, 2.0))]
    assert_allclose(profile.interval, ends, rtol=1e-6)
    for value, root in zip(profile.values, profile.root, strict=True):
        assert_allclose(root**2 / 2, cost(value) - least.fun, atol=1e-6)
    assert np.all(np.diff(profile.values) > 0)
    assert np.all(np.diff(profile.root) > 0)
    assert_allclose(profile.parameters[:, 0], profile.values)


def test_a_profile_ends_where_runs_fail_or_at_a_bound(built) -> None:
    m = dh.HybridModel("root")
    k, x = m.parameter("k", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: -np.sqrt(1.2 - k) * x}), {x: 1.0})
    experiment = dh.Experiment({"x": np.exp(-np.sqrt(0.2) * np.array([0.5, 1.0]))}, [0.5, 1.0], sigma=0.3)
    fit = dh.fit(m.build(), experiment, {"k": 0.9}, **TIGHT)
    profile = fit.profile("k")
    assert profile.interval[1] == np.inf
    assert any("runs fail beyond k" in reason for reason in profile.reasons)
    bounded = dh.fit(m.build(), experiment, {"k": 0.9}, bounds={"k": (0.5, 1.1)}, **TIGHT).profile("k")
    assert bounded.interval == (0.5, 1.1)
    assert all("beyond the bound" in reason for reason in bounded.reasons)
    assert profile.plot() is not None


def test_a_parameter_that_is_not_determined_has_an_open_profile(built) -> None:
    times = np.array([0.5, 1.0, 2.0])
    experiment = dh.Experiment({"x": 2 * np.exp(-0.8 * times)}, times, sigma=0.05)
    fit = dh.fit(built(twins), experiment, ["a", "b", "c"], **TIGHT)
    profile = fit.profile("a", points=5)
    assert profile.interval == (-np.inf, np.inf)
    assert_allclose(profile.parameters[:, :2].sum(axis=1), 0.8, rtol=1e-4)


def test_a_profile_of_a_fit_that_has_not_converged_says_so(built) -> None:
    times = np.array([0.5, 1.0, 2.0])
    experiment = dh.Experiment({"x": 2 * np.exp(-0.8 * times)}, times, sigma=0.05)
    fit = dh.fit(built(exponential), experiment, ["k", "c"], optimizer_options={"max_nfev": 1}, **TIGHT)
    assert not fit.success
    assert "not converged" in repr(fit)
    with pytest.raises(dh.AssumptionError, match="finds a lower cost"):
        fit.profile("k")


# -- combinations -----------------------------------------------------------------------------------


def test_combinations_that_the_data_do_not_determine(built) -> None:
    times = np.array([0.5, 1.0, 2.0, 3.0])
    experiment = dh.Experiment({"x": 2 * np.exp(-0.8 * times)}, times, sigma=0.05)
    fit = dh.fit(built(twins), experiment, ["a", "b", "c", "d"], **TIGHT)
    found = fit.conditioning
    assert found.rank == 2
    assert found.determined.tolist() == [False, False, True, False]
    assert np.isinf(fit.standard_errors[[0, 1, 3]]).all()
    alone = dh.fit(built(exponential), experiment, ["k", "c"], **TIGHT)
    assert_allclose(fit.standard_errors[2], alone.standard_errors[1], rtol=1e-5)
    assert_allclose(fit.estimates[:2].sum(), 0.8, rtol=1e-6)
    null = found.directions[2:]
    assert_allclose(np.abs(null @ np.array([1, -1, 0, 0]) / np.sqrt(2)).max(), 1.0, rtol=1e-5)
    assert "not determined by the data" in str(fit)
    known = fit.predict("x", [1.0])  # depends on a + b and c, which are determined
    assert_allclose(known.standard_error("x"), alone.predict("x", [1.0]).standard_error("x"), rtol=1e-5)
    assert fit.degrees_of_freedom == 2
    assert fit.plot().axes
    with_prior = dh.fit(
        built(twins), experiment, ["a", "b", "c"], priors={"a": (0.4, 0.1)}, **TIGHT
    )  # the prior separates a and b
    assert with_prior.conditioning.rank == 3
    assert_allclose(with_prior.standard_errors[0], 0.1, rtol=1e-4)


def test_condition_indices_are_those_of_belsley_kuh_and_welsch() -> None:
    rng = np.random.default_rng(0)
    jacobian = rng.normal(size=(20, 3)) @ np.array([[1.0, 0.0, 0.0], [0.0, 1e3, 0.0], [1.0, 1e3, 1e-2]])
    found = Conditioning.of(jacobian, ("a", "b", "c"), 1e-10)
    scaled = jacobian / np.linalg.norm(jacobian, axis=0)
    eigenvalues = np.linalg.eigvalsh(scaled.T @ scaled)[::-1]
    assert_allclose(found.indices, np.sqrt(eigenvalues[0] / eigenvalues), rtol=1e-8)
    assert_allclose(found.proportions.sum(axis=0), 1.0)
    assert_allclose(found.inverse(), np.linalg.inv(jacobian.T @ jacobian), rtol=1e-8)
    assert np.all(np.diff(found.indices) > 0)


def test_a_parameter_at_its_bound_counts_as_known(built) -> None:
    times = np.array([0.5, 1.0, 2.0])
    experiment = dh.Experiment({"x": 2 * np.exp(-0.8 * times)}, times, sigma=0.05)
    fit = dh.fit(built(exponential), experiment, {"k": 0.4, "c": 1.5}, bounds={"k": (0.1, 0.6)}, **TIGHT)
    alone = dh.fit(built(exponential), experiment, "c", parameters={"k": 0.6}, **TIGHT)
    assert fit.at_bound.tolist() == [True, False]
    assert_allclose(fit.estimates, [0.6, alone.estimates[0]], rtol=1e-6)
    assert_allclose(fit.standard_errors, [0.0, alone.standard_errors[0]], rtol=1e-6)
    assert fit.degrees_of_freedom == 2
    assert "at a bound" in str(fit)
    with pytest.raises(dh.ParameterError, match="at a bound"):
        fit.profile("k")


def test_as_many_values_as_parameters_leave_no_variance(built) -> None:
    fit = dh.fit(built(exponential), dh.Experiment({"x": [1.5, 1.0]}, [0.5, 1.0]), ["k", "c"], **TIGHT)
    with pytest.raises(dh.AssumptionError, match="no degree of freedom"):
        _ = fit.covariance
    assert "k" in str(fit)
    assert "nan" not in str(fit)


# -- predictions and pictures -----------------------------------------------------------------------


def test_bands_follow_from_the_covariance(curve) -> None:
    fit, _, _ = curve
    t = np.linspace(0.1, 5.0, 7)
    found, (k, c) = fit.predict("x", t, level=0.9), fit.estimates
    slopes = np.column_stack((-t * c * np.exp(-k * t), np.exp(-k * t)))
    errors = np.sqrt(np.einsum("ij,jk,ik->i", slopes, fit.covariance, slopes))
    assert_allclose(found["x"], c * np.exp(-k * t), rtol=1e-7)
    assert_allclose(found.standard_error("x"), errors, rtol=1e-6)
    assert_allclose(found.upper("x") - found.lower("x"), 2 * norm.ppf(0.95) * errors, rtol=1e-6)
    with pytest.raises(dh.ParameterError, match="free parameter"):
        fit.predict("x", t, parameters={"k": 1.0})
    with pytest.raises(dh.ParameterError, match="no experiment"):
        fit.predict("x", t, experiment="other")
    with pytest.raises(dh.OptionError, match="between 0 and 1"):
        fit.predict("x", t, level=95)


def test_pictures_show_data_and_predictions(subjects) -> None:
    fit = dh.fit(theophylline.system(), subjects[:2], NAMES, rtol=1e-8)
    figure = fit.plot()
    assert [axes.get_title() for axes in figure.axes] == ["1: conc [mg/l]", "2: conc [mg/l]"]
    for axes, experiment in zip(figure.axes, subjects, strict=False):
        line, points = axes.lines
        assert_allclose(points.get_ydata(), experiment.series[0].values[:, 0])
        assert len(line.get_xdata()) >= 200
    assert len(fit.plot("conc", experiments=["2"], level=None).axes) == 1
    with pytest.raises(dh.OptionError, match="no data of u"):
        fit.plot("u")
    for picture in (fit.plot_residuals(), fit.plot_correlation(), fit.conditioning.plot(), fit.profile("lKa").plot()):
        assert picture.axes
    assert fit.predict(["conc", "gut"], [1.0, 2.0]).plot().axes[1].get_ylabel() == "gut"
    with pytest.raises(dh.ParameterError, match="no free parameter of this fit"):
        fit.profile("dose")
    assert "<table>" in fit._repr_html_()
    assert "<table>" in fit.conditioning._repr_html_()
    assert str(fit.conditioning).startswith("condition index")


# -- edges of scales ---------------------------------------------------------------------------------


def test_a_profile_in_a_log_scale_is_open_where_the_data_are(built) -> None:
    times = np.linspace(0.5, 3.0, 6)
    values = 2 + 0.02 * np.array([1.0, -1.0, 0.5, -0.5, 1.0, -1.0])
    experiment = dh.Experiment({"x": values}, times, sigma=0.02)
    fit = dh.fit(built(exponential), experiment, {"k": 0.1, "c": 2.0}, scale="log", **TIGHT)
    linear = dh.fit(built(exponential), experiment, {"k": 0.1, "c": 2.0}, bounds={"k": (-1, 1)}, **TIGHT)
    profile = fit.profile("k")
    assert profile.interval[0] == 0.0
    assert profile.reasons == ("the lower end is not reached by 40 points",)
    assert_allclose(profile.interval[1], linear.profile("k").interval[1], rtol=1e-4)
    falling = dh.Experiment({"x": 2 + 0.02 * times}, times, sigma=0.02)
    edge = dh.fit(built(exponential), falling, {"k": 0.1, "c": 2.0}, scale="log", **TIGHT)
    assert edge.at_bound.tolist() == [True, False]


def test_a_logit_scale_knows_its_bounds(built) -> None:
    times = np.array([0.5, 1.0, 2.0])
    experiment = dh.Experiment({"x": 2 * np.exp(-0.8 * times)}, times, sigma=0.05)
    call = {"bounds": {"k": (0.1, 0.6)}, **TIGHT}
    fit = dh.fit(built(exponential), experiment, {"k": 0.4, "c": 1.5}, scale={"k": "logit"}, **call)
    linear = dh.fit(built(exponential), experiment, {"k": 0.4, "c": 1.5}, **call)
    assert fit.at_bound.tolist() == [True, False]
    assert_allclose(fit.estimates, linear.estimates, rtol=1e-4)


def test_many_values_need_no_square_matrix() -> None:
    jacobian = np.random.default_rng(0).normal(size=(200_000, 2))
    assert Conditioning.of(jacobian, ("a", "b"), 1e-9).rank == 2


def test_the_robust_interval_covers_the_truth(built) -> None:
    rng, times, inside = np.random.default_rng(0), np.linspace(0.3, 3.0, 12), 0
    for _ in range(60):
        values = 2 * np.exp(-times) + 0.05 * rng.normal(size=12)
        fit = dh.fit(
            built(exponential), dh.Experiment({"x": values}, times), ["k", "c"], loss="huber", f_scale=0.05, rtol=1e-7,
            workers=1,
        )  # fmt: skip
        low, high = fit.intervals()[0]
        inside += low <= 1.0 <= high
    assert inside >= 53
