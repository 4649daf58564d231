"""Fits: closed forms of linear regression, published estimates, agreement of optimizers, failures, refusals."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import least_squares
from scipy.stats import norm
from scipy.stats import t as student

import dae_hybrid as dh
from dae_hybrid.fitting.losses import LOSSES
from dae_hybrid.problems import em_hysteresis

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
TIMES = np.array([0.5, 1.0, 1.5, 2.5, 4.0])
VALUES = np.array([1.9, 2.6, 2.4, 3.9, 5.4])


def line() -> dh.HybridModel:
    """x(t) = b + a t, which makes every fit a linear regression."""
    m = dh.HybridModel("line")
    a, b = m.parameter("a", 0.5), m.parameter("b", 0.5)
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: a}), {x: b})
    m.functional("area", integrand=x)
    return m


def decay() -> dh.HybridModel:
    m = dh.HybridModel("decay")
    k, c = m.parameter("k", 1.0), m.parameter("c", 2.0)
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -k * x}), {x: c})
    m.functional("area", integrand=x)
    return m


def ball() -> dh.HybridModel:
    """A ball that bounces; a run fails where the coefficient of restitution e exceeds 0.9."""
    m = dh.HybridModel("ball")
    g, e = m.parameter("g", 9.0), m.parameter("e", 0.7)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g * np.sqrt(0.9 - e) / np.sqrt(0.9 - e)})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v})
    m.initial(flight, {y: 1.0, v: 0.0})
    return m


def design(times=TIMES):
    return np.column_stack((times, np.ones_like(times)))


# -- closed forms -----------------------------------------------------------------------------------


def test_a_line_is_a_linear_regression(built) -> None:
    fit = dh.fit(built(line), dh.Experiment({"x": VALUES}, TIMES), ["a", "b"], **TIGHT)
    x = design()
    best, (rss,) = np.linalg.lstsq(x, VALUES, rcond=None)[:2]
    variance = rss / 3
    assert_allclose(fit.estimates, best, rtol=1e-9)
    assert_allclose(fit.chi2, rss, rtol=1e-9)
    assert_allclose(fit.variance, variance, rtol=1e-9)
    assert_allclose(fit.covariance, variance * np.linalg.inv(x.T @ x), rtol=1e-8)
    assert_allclose(fit.information, np.linalg.inv(fit.covariance), rtol=1e-8)
    width = student.ppf(0.975, 3) * fit.standard_errors
    assert_allclose(fit.intervals(), np.column_stack((best - width, best + width)), rtol=1e-9)
    assert_allclose(fit.residuals["1"], x @ best - VALUES, rtol=1e-7)
    n = len(VALUES)
    assert_allclose(fit.log_likelihood, norm.logpdf(x @ best - VALUES, scale=np.sqrt(rss / n)).sum(), rtol=1e-9)
    assert_allclose(fit.aic, 2 * 3 - 2 * fit.log_likelihood)


def test_known_standard_deviations_are_weights_and_give_the_covariance(built) -> None:
    sigma = np.array([0.1, 0.2, 0.1, 0.3, 0.2])
    fit = dh.fit(built(line), dh.Experiment({"x": VALUES}, TIMES, sigma={"x": sigma}), ["a", "b"], **TIGHT)
    x = design() / sigma[:, None]
    assert_allclose(fit.estimates, np.linalg.lstsq(x, VALUES / sigma, rcond=None)[0], rtol=1e-9)
    assert_allclose(fit.covariance, np.linalg.inv(x.T @ x), rtol=1e-8)
    assert fit.variance == 1.0
    assert_allclose(fit.quantile(), norm.ppf(0.975))
    weighted = dh.fit(built(line), dh.Experiment({"x": VALUES}, TIMES, weights={"x": sigma**-2}), ["a", "b"], **TIGHT)
    assert_allclose(weighted.estimates, fit.estimates, rtol=1e-9)
    assert_allclose(weighted.covariance, fit.covariance * fit.chi2 / 3, rtol=1e-8)


def test_missing_values_and_weight_zero_are_left_out(built) -> None:
    missing = VALUES.copy()
    missing[2] = np.nan
    weights = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    kept = weights > 0
    expected = np.linalg.lstsq(design(TIMES[kept]), VALUES[kept], rcond=None)[0]
    for experiment in (
        dh.Experiment({"x": missing}, TIMES),
        dh.Experiment({"x": VALUES}, TIMES, weights={"x": weights}),
        dh.Experiment({"x": (TIMES[kept][::-1], VALUES[kept][::-1])}),
    ):
        fit = dh.fit(built(line), experiment, ["a", "b"], **TIGHT)
        assert_allclose(fit.estimates, expected, rtol=1e-9)
        assert fit.degrees_of_freedom == 2


def test_replicates_have_equal_times(built) -> None:
    times, values = np.repeat(TIMES, 2), np.repeat(VALUES, 2) + np.tile([0.1, -0.1], 5)
    fit = dh.fit(built(line), dh.Experiment({"x": values}, times), ["a", "b"], **TIGHT)
    assert_allclose(fit.estimates, np.linalg.lstsq(design(times), values, rcond=None)[0], rtol=1e-9)


def test_priors_and_penalties_are_further_rows(built) -> None:
    experiment = dh.Experiment({"x": VALUES}, TIMES, sigma=0.2)
    fit = dh.fit(
        built(line), experiment, ["a", "b"], priors={"a": (0.8, 0.05)}, penalty=lambda q: [3.0 * (q["a"] - q["b"])],
        **TIGHT,
    )  # fmt: skip
    rows = np.vstack((design() / 0.2, [1 / 0.05, 0.0], [3.0, -3.0]))
    right = np.concatenate((VALUES / 0.2, [0.8 / 0.05, 0.0]))
    assert_allclose(fit.estimates, np.linalg.lstsq(rows, right, rcond=None)[0], rtol=1e-9)
    assert_allclose(fit.covariance, np.linalg.inv(rows.T @ rows), rtol=1e-8)
    assert_allclose(2 * fit.cost, ((rows @ fit.estimates - right) ** 2).sum(), rtol=1e-9)


def test_a_prior_is_normal_in_the_scale_of_its_parameter(built) -> None:
    experiment = dh.Experiment({"x": [1.2, 0.8]}, [0.5, 1.0], sigma=0.1)
    call = {"scale": {"k": "log"}, "priors": {"k": (0.7, 0.2)}, **TIGHT}
    fit = dh.fit(built(decay), experiment, "k", **call)

    def rows(s):
        k = np.exp(s[0])
        return [*((2 * np.exp(-k * np.array([0.5, 1.0])) - [1.2, 0.8]) / 0.1), (s[0] - np.log(0.7)) / 0.2]

    found = least_squares(rows, [0.0], ftol=1e-14, xtol=1e-14, gtol=1e-14)
    assert_allclose(fit.estimates, np.exp(found.x), rtol=1e-7)


def test_functionals_are_data_too(built) -> None:
    experiment = dh.Experiment(
        {"x": [1.0]}, [1.0], functionals={"area": 1.9}, t_span=(0, 2), sigma={"x": 0.1, "area": 0.2}
    )
    fit = dh.fit(built(line), experiment, ["a", "b"], **TIGHT)
    # a + b = 1 and 2 a + 2 b = 1.9 contradict each other: only the sum is determined
    share = (1.0 / 0.01 + 1.9 * 2 / 0.04) / (1 / 0.01 + 4 / 0.04)
    assert_allclose(fit.estimates.sum(), share, rtol=1e-9)
    assert fit.conditioning.rank == 1
    assert np.isinf(fit.standard_errors).all()
    assert "not determined" in str(fit)


def test_experiments_have_their_own_conditions(built) -> None:
    system = built(line)
    both = [
        dh.Experiment({"x": VALUES}, TIMES, name="one", parameters={"b": 1.0}),
        dh.Experiment({"x": VALUES + 1}, TIMES, name="two", x0={"x": 2.0}, t_span=(0, 5)),
    ]
    fit = dh.fit(system, both, "a", **TIGHT)
    t = np.concatenate((TIMES, TIMES))
    y = np.concatenate((VALUES - 1, VALUES + 1 - 2))
    assert_allclose(fit.estimates, [t @ y / (t @ t)], rtol=1e-9)
    assert fit.parameters_of("one") == {"a": fit.estimates[0], "b": 1.0}


def test_initial_values_hold_for_functionals_too(built) -> None:
    experiment = dh.Experiment(functionals={"area": 5.0}, t_span=(0, 2), x0={"x": 2.0})
    for derivatives in ("forward", "adjoint"):
        fit = dh.fit(built(line), experiment, "a", derivatives=derivatives, **TIGHT)
        assert_allclose(fit.estimates, [0.5], rtol=1e-6)  # area = 2 x0 + 2 a


def test_fits_can_be_pickled(built) -> None:
    experiment = dh.Experiment({"x": VALUES}, TIMES, functionals={"area": 5.0}, name="one", x0={"x": 1.0})
    fit = dh.fit(built(line), experiment, "a", penalty=lambda q: [q["a"]], loss="huber", **TIGHT)
    again = pickle.loads(pickle.dumps(fit))
    assert_allclose(again.estimates, fit.estimates, rtol=0)
    assert_allclose(again.predict("x", [1.0])["x"], fit.predict("x", [1.0])["x"], rtol=1e-9)


def test_local_parameters_make_separate_fits(built) -> None:
    system, others = built(line), VALUES[::-1].copy()
    experiments = [dh.Experiment({"x": v}, TIMES, name=n) for n, v in (("up", VALUES), ("down", others))]
    both = dh.fit(system, experiments, ["a", "b"], local=["a", "b"], **TIGHT)
    assert both.labels == ("a(up)", "a(down)", "b(up)", "b(down)")
    for experiment, part in zip(experiments, (slice(0, 4, 2), slice(1, 4, 2)), strict=True):
        alone = dh.fit(system, experiment, ["a", "b"], **TIGHT)
        assert_allclose(both.estimates[part], alone.estimates, rtol=1e-8)
    assert both.parameters_of("down")["b"] == both.parameters["b(down)"]
    common = dh.fit(system, experiments, ["a", "b"], local="b", **TIGHT)
    t, zero = TIMES, np.zeros(5)
    rows = np.block([[t[:, None], np.ones((5, 1)), zero[:, None]], [t[:, None], zero[:, None], np.ones((5, 1))]])
    assert_allclose(common.estimates, np.linalg.lstsq(rows, np.concatenate((VALUES, others)), rcond=None)[0], rtol=1e-8)


def test_experiments_have_their_own_systems(built) -> None:
    experiments = [
        dh.Experiment({"x": 2 * np.exp(-0.4 * TIMES)}, TIMES, name="decay", system=built(decay)),
        dh.Experiment({"x": 1 + 0.3 * TIMES}, TIMES, name="line", parameters={"b": 1.0}),
    ]
    fit = dh.fit(built(line), experiments, {"a": 0.1, "k": 1.0}, **TIGHT)
    assert_allclose(fit.estimates, [0.3, 0.4], rtol=1e-7)
    assert fit.parameters_of("line") == {"a": fit.estimates[0], "b": 1.0}


def test_a_value_at_the_time_of_a_dose_needs_a_side() -> None:
    m = dh.HybridModel("bolus")
    k, dose, x = m.parameter("k", 0.6), m.parameter("dose", 1.0), m.differential("x")
    run = m.mode("run", ode={x: -k * x})
    m.transition(run, run, at=1.0, reset={x: x + dose})
    m.initial(run, {x: 1.0})
    system, k = m.build(), 0.5
    before, after = np.exp(-k), np.exp(-k) + 1
    for side, value in (("before", before), ("after", after)):
        experiment = dh.Experiment(
            {"x": [np.exp(-0.5 * k), value, after * np.exp(-k)]}, [0.5, 1.0, 2.0], at_events=side
        )
        for derivatives in ("forward", "adjoint"):
            assert_allclose(dh.fit(system, experiment, "k", derivatives=derivatives, **TIGHT).estimates, k, rtol=1e-5)
    with pytest.raises(dh.ParameterError, match=r"'x' jumps at t = 1, .*: 0\.5488.* before, 1\.5488.* after"):
        dh.fit(system, dh.Experiment({"x": [0.8, 0.6]}, [0.5, 1.0]), "k")
    with pytest.raises(dh.ParameterError, match="at_events must be"):
        dh.Experiment({"x": [0.8, 0.6]}, [0.5, 1.0], at_events="left")


@given(st.floats(0.2, 3.0), st.floats(0.5, 4.0), st.sampled_from(["linear", "log", "logit"]))
@settings(max_examples=15, deadline=None)
def test_exact_data_give_the_parameters_back_in_every_scale(k, c, scale) -> None:
    system = decay().build()
    experiment = dh.Experiment({"x": c * np.exp(-k * TIMES)}, TIMES)
    fit = dh.fit(
        system, experiment, ["k", "c"], scale=scale, bounds={"k": (0.05, 9.0), "c": (0.1, 9.0)},
        optimizer_options={"gtol": 1e-13}, **TIGHT,
    )  # fmt: skip
    assert_allclose(fit.estimates, [k, c], rtol=1e-5)


# -- published numbers, and the same fit in other ways ----------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "derivatives"),
    [("dogbox", None), ("L-BFGS-B", "forward"), ("L-BFGS-B", "adjoint"), ("SLSQP", None),
     ("scipy_ls_dogbox", None), ("scipy_lbfgsb", None), ("scipy_lbfgsb", "forward"), ("pounders", None)],
)  # fmt: skip
def test_optimizers_agree(built, optimizer, derivatives) -> None:
    experiment = dh.Experiment({"x": [1.2, 0.8, 0.3]}, [0.5, 1.0, 2.0], functionals={"area": 1.7}, t_span=(0, 3))
    call = {"bounds": {"k": (0.1, 5.0), "c": (0.1, 5.0)}, **TIGHT}
    expected = dh.fit(built(decay), experiment, ["k", "c"], **call)
    found = dh.fit(built(decay), experiment, ["k", "c"], optimizer=optimizer, derivatives=derivatives, **call)
    assert found.success
    assert_allclose(found.estimates, expected.estimates, rtol=1e-4)
    assert_allclose(found.standard_errors, expected.standard_errors, rtol=1e-3)
    assert found.optimizer == optimizer


def test_algorithms_of_optimagic_are_checked(built) -> None:
    system, experiment = built(decay), dh.Experiment({"x": [1.2, 0.8, 0.3]}, [0.5, 1.0, 2.0])
    for change, said in (
        ({"optimizer": "bhhh"}, "maximises likelihoods"),
        ({"optimizer": "nag_dfols"}, "is not installed"),
        ({"optimizer": "scipy_ls_lm", "bounds": {"k": (0, 1)}}, "takes no bounds"),
        ({"optimizer": "scipy_ls_trf", "loss": "huber"}, "takes plain least squares"),
    ):
        with pytest.raises(dh.OptionError, match=said):
            dh.fit(system, experiment, "k", **change)
    found = dh.fit(system, experiment, "k", scale="log", optimizer="scipy_neldermead", **TIGHT)
    assert_allclose(found.estimates, dh.fit(system, experiment, "k", **TIGHT).estimates, rtol=1e-4)


def test_the_adjoint_gradient_is_that_of_the_jacobian() -> None:
    system = em_hysteresis.system()
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0.5, 9.5, 40))
    data = {"u": rng.normal(size=40) / 10, "z": rng.normal(size=40)}
    experiments = [dh.Experiment(data, times, functionals={"G": 0.05}, t_span=(0, 10), sigma=0.1, name=n) for n in "ab"]
    fit = dh.fit(
        system, experiments, ["ka", "alpha"], loss="huber", scale="log", priors={"ka": (300.0, 1.0)}, starts=1,
        optimizer_options={"max_nfev": 1}, rtol=1e-9, atol=1e-12,
    )  # fmt: skip
    q = fit.estimates
    forward, adjoint = fit.misfit.linearised(q), fit.misfit.differentiated(q)
    assert_allclose(adjoint.gradient, forward.gradient, rtol=1e-6)
    for i, h in enumerate(1e-5 * q):
        step = h * np.eye(2)[i]
        difference = (fit.misfit.values(q + step).cost - fit.misfit.values(q - step).cost) / (2 * h)
        assert_allclose(difference, forward.gradient[i], rtol=1e-4)


@pytest.mark.parametrize("loss", sorted(set(LOSSES) - {"linear"}))
def test_robust_losses_are_those_of_scipy(built, loss) -> None:
    values = 2 * np.exp(-0.7 * TIMES) + np.array([0.02, -0.03, 0.9, 0.01, -0.02])
    fit = dh.fit(built(decay), dh.Experiment({"x": values}, TIMES), ["k", "c"], loss=loss, f_scale=0.05, **TIGHT)
    expected = least_squares(
        lambda q: q[1] * np.exp(-q[0] * TIMES) - values, [1.0, 2.0], loss=loss, f_scale=0.05, ftol=1e-12, xtol=1e-12
    )
    assert_allclose(fit.estimates, expected.x, rtol=1e-4)
    assert_allclose(fit.cost, expected.cost, rtol=1e-6)
    assert np.isfinite(fit.standard_errors).all() or loss == "arctan"
    with pytest.raises(dh.AssumptionError, match="no likelihood"):
        fit.profile("k")


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_derivatives_of_losses(loss) -> None:
    z = np.array([0.0, 0.3, 0.99, 1.5, 40.0])
    rho, h = LOSSES[loss], 1e-6
    assert_allclose((rho(z + h)[0] - rho(z - h)[0])[1:] / (2 * h), rho(z)[1][1:], rtol=1e-6)
    assert_allclose((rho(z + h)[1] - rho(z - h)[1])[1:] / (2 * h), rho(z)[2][1:], rtol=1e-5, atol=1e-9)


def test_the_robust_covariance_is_that_of_repeated_fits(built) -> None:
    system, rng = built(line), np.random.default_rng(3)
    times = np.linspace(0.1, 4.0, 60)
    found, errors = [], []
    for _ in range(30):
        noise = 0.1 * rng.standard_t(3, size=60)
        fit = dh.fit(
            system, dh.Experiment({"x": 1 + 0.5 * times + noise}, times), ["a", "b"], loss="huber", f_scale=0.1,
            workers=1, rtol=1e-7,
        )  # fmt: skip
        found.append(fit.estimates)
        errors.append(fit.standard_errors)
    assert_allclose(np.mean(errors, axis=0), np.std(found, axis=0), rtol=0.35)


# -- points without values --------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [None, "dogbox", "L-BFGS-B", "SLSQP"])
@pytest.mark.parametrize("derivatives", [None, "adjoint"])
def test_failing_runs_shorten_the_step(optimizer, derivatives) -> None:
    if derivatives == "adjoint" and optimizer in (None, "dogbox"):
        optimizer = "L-BFGS-B"
    system, times = ball().build(), np.linspace(0.1, 1.6, 16)
    truth = dh.simulate(system, (0, 1.6), parameters={"e": 0.85}, t_eval=times, **TIGHT)["y"]
    fit = dh.fit(
        system, dh.Experiment({"y": truth}, times), {"e": 0.75}, optimizer=optimizer, derivatives=derivatives, **TIGHT
    )
    assert fit.estimates[0] == pytest.approx(0.85, abs=1e-4)
    assert fit.success or optimizer == "L-BFGS-B"  # which may say that its line search is exhausted
    for parameters, error in fit.failures:
        assert parameters["e"] > 0.9
        assert isinstance(error, dh.DaeHybridError)


def test_the_reasons_of_failures_are_kept() -> None:
    system, times = ball().build(), np.linspace(0.1, 1.6, 16)
    truth = dh.simulate(system, (0, 1.6), parameters={"e": 0.89}, t_eval=times, **TIGHT)["y"]
    fit = dh.fit(system, dh.Experiment({"y": truth}, times), {"e": 0.7}, starts=6, bounds={"e": (0.5, 1.6)}, **TIGHT)
    assert fit.estimates[0] == pytest.approx(0.89, abs=1e-4)
    failed = [search for search in fit.searches if search.best is None]
    assert failed
    assert all("start failed" in search.message for search in failed)
    assert f"{len(fit.failures)} points without values" in str(fit) or "points without values" in str(fit)


def test_a_start_that_fails_raises_the_error_of_its_run() -> None:
    system = ball().build()
    with pytest.raises(dh.IntegrationError):
        dh.fit(system, dh.Experiment({"y": [0.5]}, [0.3]), {"e": 0.95})


def test_progress_can_stop_a_fit(built) -> None:
    seen = []

    def stop(state) -> None:
        seen.append(state)
        if len(seen) == 3:
            raise StopIteration

    fit = dh.fit(built(decay), dh.Experiment({"x": [1.2, 0.8]}, [0.5, 1.0]), ["k", "c"], progress=stop, **TIGHT)
    assert not fit.success
    assert fit.message == "Stopped by progress."
    assert fit.cost == min(state.cost for state in seen)
    assert seen[-1].parameters.keys() == {"k", "c"}


def test_starts_find_the_best_of_several_minima() -> None:
    m = dh.HybridModel("wave")
    w, x, v = m.parameter("w", 1.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -(w**2) * x}), {x: 1.0, v: 0.0})
    times = np.linspace(0.1, 12.0, 60)
    experiment = dh.Experiment({"x": np.cos(3.1 * times)}, times)
    system = m.build()
    alone = dh.fit(system, experiment, "w", rtol=1e-7)
    assert alone.cost > 1.0
    several = dh.fit(system, experiment, "w", bounds={"w": (0.3, 5.0)}, starts=10, rtol=1e-7)
    assert several.estimates[0] == pytest.approx(3.1, rel=1e-5)
    assert [s.cost for s in several.searches] == sorted(s.cost for s in several.searches)
    again = dh.fit(system, experiment, "w", bounds={"w": (0.3, 5.0)}, starts=10, rtol=1e-7, workers=1)
    assert_allclose(again.estimates, several.estimates, rtol=1e-12)


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"free": []}, dh.ParameterError, "each once"),
        ({"free": ["a", "a"]}, dh.ParameterError, "each once"),
        ({"free": ["q"]}, dh.ParameterError, "unknown parameter 'q'"),
        ({"free": {"a": np.nan}}, dh.ParameterError, "must be finite"),
        ({"bounds": {"c": (0, 1)}}, dh.ParameterError, "no free parameter"),
        ({"bounds": {"a": (1, 0)}}, dh.OptionError, "must not exceed"),
        ({"bounds": {"a": (1, 1)}}, dh.ParameterError, "must increase"),
        ({"bounds": {"a": 3}}, dh.OptionError, "must be a pair"),
        ({"bounds": {"a": (1, 2)}}, dh.ParameterError, "outside its bounds"),
        ({"scale": "cubic"}, dh.OptionError, "'linear', 'log', 'logit' or a positive number"),
        ({"scale": {"a": "logit"}}, dh.ParameterError, "finite bounds"),
        ({"free": {"a": -1.0}, "scale": "log"}, dh.ParameterError, "is not positive"),
        ({"priors": {"a": (1.0, 0.1)}}, dh.ParameterError, "Priors need the standard deviations"),
        ({"penalty": lambda q: [np.sin(q["nothing"])]}, dh.OptionError, "KeyError"),
        ({"parameters": {"a": 1.0}}, dh.ParameterError, "free and has a fixed value"),
        ({"parameters": {"zz": 1.0}}, dh.ParameterError, "Unknown parameter 'zz'"),
        ({"loss": "cubic"}, dh.OptionError, "loss must be one of"),
        ({"f_scale": 0.0}, dh.OptionError, "positive number"),
        ({"optimizer": "nonsense"}, dh.OptionError, "Unknown optimizer"),
        ({"derivatives": "adjoint", "optimizer": "trf"}, dh.OptionError, "needs a Jacobian"),
        ({"derivatives": "none"}, dh.OptionError, "'forward' or 'adjoint'"),
        ({"starts": 0}, dh.OptionError, "positive integer"),
        ({"starts": 3}, dh.ParameterError, "needs finite bounds"),
        ({"workers": "two"}, dh.OptionError, "positive integer"),
        ({"progress": 3}, dh.OptionError, "True, False or a function"),
        ({"rtol": -1.0}, dh.OptionError, "rtol"),
        ({"experiments": []}, dh.ParameterError, "an Experiment or a list"),
        ({"local": ["b2"]}, dh.ParameterError, "no free parameter"),
    ],
    ids=lambda value: (
        " ".join(f"{k}={'f' if callable(v) else v}" for k, v in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_bad_arguments_are_refused(built, change, error, said) -> None:
    call = {"experiments": dh.Experiment({"x": VALUES}, TIMES), "free": ["a", "b"], **change}
    with pytest.raises(error, match=said):
        dh.fit(built(line), call.pop("experiments"), call.pop("free"), **call)


@pytest.mark.parametrize(
    ("data", "t", "more", "said"),
    [
        ({"x": [1.0, 2.0]}, [1.0], {}, "do not match"),
        ({"x": "abc"}, [1.0], {}, "must be numeric"),
        ({"x": [np.inf]}, [1.0], {}, "finite or NaN"),
        ({"x": [np.nan]}, [1.0], {}, "at least one value"),
        ({"x": [1.0]}, [np.nan], {}, "times must be finite"),
        ({"x": [1.0]}, None, {}, "must be a pair"),
        ({"x": [1.0]}, [0.0], {}, "t_span is needed"),
        ({"x": [1.0]}, [3.0], {"t_span": (0, 2)}, "outside t_span"),
        ({"x": [1.0]}, [1.0], {"sigma": 0.0}, "positive"),
        ({"x": [1.0]}, [1.0], {"sigma": {"y": 1.0}}, "no entry for 'x'"),
        ({"x": [1.0]}, [1.0], {"sigma": {"x": 1.0, "y": 1.0}}, "'y' has no data"),
        ({"x": [1.0]}, [1.0], {"sigma": {"x": [1.0, 2.0]}}, "has shape"),
        ({"x": [1.0]}, [1.0], {"weights": -1.0}, "zero or more"),
        ({"x": [1.0]}, [1.0], {"weights": 1.0, "sigma": 1.0}, "both given"),
        ([1.0], [1.0], {}, "must be a mapping"),
    ],
)
def test_bad_data_are_refused(data, t, more, said) -> None:
    with pytest.raises(dh.ParameterError, match=said):
        dh.Experiment(data, t, **more)


@pytest.mark.parametrize(
    ("experiment", "said"),
    [
        (dh.Experiment({"q": [1.0]}, [1.0]), "'q'"),
        (dh.Experiment({"x": [[1.0, 2.0]]}, [1.0]), "has 1 entries, its data 2"),
        (dh.Experiment(functionals={"volume": 1.0}, t_span=(0, 1)), "Unknown functional"),
        (dh.Experiment(functionals={"area": [1.0, 2.0]}, t_span=(0, 1)), "has 1 components, its data 2"),
        (dh.Experiment({"x": [1.0]}, [1.0], x0={"w": 1.0}), "'w'"),
        (dh.Experiment({"x": [1.0]}, [1.0], parameters={"w": 1.0}), "Unknown parameter 'w'"),
        ([dh.Experiment({"x": [1.0]}, [1.0], sigma=1.0), dh.Experiment({"x": [1.0]}, [1.0])], "in all, or in none"),
        ([dh.Experiment({"x": [1.0]}, [1.0], name="1")] * 2, "different names"),
    ],
    ids=str,
)
def test_data_that_do_not_suit_the_system_are_refused(built, experiment, said) -> None:
    with pytest.raises(dh.ParameterError, match=said):
        dh.fit(built(line), experiment, ["a"])


def test_tables_become_experiments() -> None:
    table = {
        "id": ["a", "b", "a", "b"], "t": [1.0, 1.0, 2.0, 2.0], "c": [1.0, 2.0, np.nan, 4.0],
        "w": [5.0, 6.0, np.nan, 6.0],
        "sd": [0.1, 0.1, 0.2, 0.2],
    }  # fmt: skip
    first, second = dh.Experiment.from_table(
        table, {"x": "c"}, time="t", by="id", sigma={"x": "sd"}, parameters={"dose": "w"}, t_span=(0, 3)
    )
    assert (first.name, first.size, first.parameters, first.t_span) == ("a", 1, {"dose": 5.0}, (0, 3))
    assert (second.name, second.size, second.parameters) == ("b", 2, {"dose": 6.0})
    assert second.series[0].sigma.ravel().tolist() == [0.1, 0.2]
    with pytest.raises(dh.ParameterError, match="has 2 values in experiment b"):
        dh.Experiment.from_table(
            {**table, "w": [5.0, 6.0, 5.0, 7.0]}, {"x": "c"}, time="t", by="id", parameters={"d": "w"}
        )
    with pytest.raises(dh.ParameterError, match="no column 'z'"):
        dh.Experiment.from_table(table, {"x": "z"}, time="t")
    with pytest.raises(dh.ParameterError, match="one length"):
        dh.Experiment.from_table({"t": [1.0], "c": [1.0, 2.0]}, {"x": "c"}, time="t")


# -- sides of events, and experiments whose variables or times are partly used -----------------------


def dosed() -> dh.HybridModel:
    m = dh.HybridModel("dosed")
    k, dose, x = m.parameter("k", 0.5), m.parameter("D", 1.5), m.differential("x")
    run = m.mode("run", ode={x: -k * x})
    m.transition(run, run, at=1.0, reset={x: x + dose})
    m.initial(run, {x: 1.0})
    return m


DOSE_TIMES = np.array([0.5, 1.0, 2.0, 3.0])


def before_dose(k, dose):
    return np.array([np.exp(-0.5 * k), np.exp(-k), *((np.exp(-k) + dose) * np.exp(-k * (DOSE_TIMES[2:] - 1)))])


@pytest.mark.parametrize("start", [{"k": 0.5, "D": 0.0}, {"k": 0.2, "D": 4.0}], ids=["no jump at the start", "jump"])
def test_the_side_of_events_does_not_depend_on_the_start(built, start) -> None:
    experiment = {"data": {"x": before_dose(0.7, 2.0)}, "t": DOSE_TIMES}
    fit = dh.fit(built(dosed), dh.Experiment(**experiment, at_events="before"), start, **TIGHT)
    assert_allclose(fit.estimates, [0.7, 2.0], rtol=1e-6)
    assert_allclose(fit.predict("x", DOSE_TIMES)["x"], experiment["data"]["x"], rtol=1e-6)
    with pytest.raises(dh.ParameterError, match="jumps at t = 1"):
        dh.fit(built(dosed), dh.Experiment(**experiment), start, **TIGHT)


def test_variables_of_some_modes_are_evaluated_at_their_own_times() -> None:
    m = dh.HybridModel("two")
    k, x = m.parameter("k", 0.5), m.differential("x")
    early, late = m.algebraic("early"), m.algebraic("late")
    first = m.mode("first", ode={x: -k * x}, algebraic=[early - 2 * x])
    second = m.mode("second", ode={x: -k * x}, algebraic=[late - 3 * x])
    m.transition(first, second, at=1.0)
    m.initial(first, {x: 1.0})
    data = {"early": ([0.25, 0.5], 2 * np.exp(-0.7 * np.array([0.25, 0.5]))), "late": ([2.0], [3 * np.exp(-1.4)])}
    for derivatives in ("forward", "adjoint"):
        fit = dh.fit(m.build(), dh.Experiment(data), "k", derivatives=derivatives, **TIGHT)
        assert_allclose(fit.estimates, 0.7, rtol=1e-6)


def test_times_without_values_are_not_reached() -> None:
    m = dh.HybridModel("ends")
    k, x = m.parameter("k", 0.5), m.differential("x")
    run = m.mode("run", ode={x: -k * x})
    m.transition(run, None, guard=x - 0.3, direction="falling")
    m.initial(run, {x: 1.0})
    experiment = dh.Experiment({"x": [np.exp(-0.35), np.exp(-0.7), np.nan]}, [0.5, 1.0, 5.0])
    assert_allclose(dh.fit(m.build(), experiment, "k", **TIGHT).estimates, 0.7, rtol=1e-6)


def test_a_search_that_stops_beside_failing_points_has_not_converged() -> None:
    m = dh.HybridModel("wall")
    k, c = m.parameter("k", 0.2), m.parameter("c", 1.0)
    x, y = m.differential("x"), m.algebraic("y")
    run = m.mode("run", ode={x: -k * x}, algebraic=[y - c * x])
    m.transition(run, None, guard=x - 0.3, direction="falling")
    m.initial(run, {x: 1.0})
    times = np.linspace(0.2, 2.0, 10)
    experiment, system = dh.Experiment({"y": np.exp(-0.9 * times)}, times), m.build()
    for optimizer in ("trf", "dogbox", "SLSQP", "L-BFGS-B"):
        fit = dh.fit(system, experiment, ["k", "c"], optimizer=optimizer, **TIGHT)
        assert not fit.success
        assert "not converged" in repr(fit)
        assert fit.failures


def test_options_that_fit_sets_itself_are_refused(built) -> None:
    experiment = dh.Experiment({"x": [1.2, 0.8]}, [0.5, 1.0])
    for options, said in (({"loss": "cauchy"}, "that fit sets itself"), ([1], "mapping"), ({"foo": 1}, "foo")):
        with pytest.raises(dh.OptionError, match=said):
            dh.fit(built(decay), experiment, "k", optimizer_options=options)
    for call, said in (
        ({"experiments": None}, "an Experiment or a list"), ({"free": None}, "name or names"),
        ({"local": 3}, "name or names"),
        ({"parameters": [1.0]}, "mapping of names"), ({"bounds": 3}, "mapping by the names"),
    ):  # fmt: skip
        given = {"experiments": experiment, "free": "k", **call}
        with pytest.raises(dh.ParameterError, match=said):
            dh.fit(built(decay), given.pop("experiments"), given.pop("free"), **given)
    fit = dh.fit(built(decay), experiment, "k", **TIGHT)
    for t, names, more, said in (
        ("a", "x", {}, "must be numeric"), ([], "x", {}, "at least one time"),
        ([1.0], "x", {"parameters": [1.0, 2.0]}, "mapping"),
    ):  # fmt: skip
        with pytest.raises(dh.ParameterError, match=said):
            fit.predict(names, t, **more)
    with pytest.raises(dh.ParameterError, match="no output 'q'"):
        _ = fit.predict("x", [1.0])["q"]
    with pytest.raises(dh.ParameterError, match="depends on no free parameter"):
        dh.fit(built(decay), [experiment, dh.Experiment({"x": [1.0]}, [1.0], system=built(line))], "k")


def test_experiments_with_few_parameters_each_use_the_jacobian(built) -> None:
    experiments = [
        dh.Experiment({"x": 2 * np.exp(-k * TIMES)}, TIMES, name=f"{k:.3f}") for k in np.linspace(0.3, 1, 30)
    ]
    fit = dh.fit(built(decay), experiments, ["k", "c"], local=["k", "c"], **TIGHT)
    assert fit.optimizer == "trf"
    assert_allclose(fit.estimates[:30], np.linspace(0.3, 1, 30), rtol=1e-6)


def test_tables_name_the_experiment_at_fault() -> None:
    table = {"id": [1, 1, 2], "t": [1.0, 2.0, 1.0], "c": [1.0, 2.0, np.nan]}
    with pytest.raises(dh.ParameterError, match="Experiment 2: An experiment needs at least one value"):
        dh.Experiment.from_table(table, {"x": "c"}, time="t", by="id")
    with pytest.raises(dh.ParameterError, match="names no experiment in row 1"):
        dh.Experiment.from_table({**table, "id": [1.0, np.nan, 2.0]}, {"x": "c"}, time="t", by="id")
    with pytest.raises(dh.ParameterError, match="must be a mapping"):
        dh.Experiment.from_table(table, "c", time="t", by="id")
    with pytest.raises(dh.ParameterError, match="may belong to the times or to the entries"):
        dh.Experiment({"x": [[1.0, 2.0], [3.0, 4.0]]}, [1.0, 2.0], sigma={"x": [0.1, 0.2]})
