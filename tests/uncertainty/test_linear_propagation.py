"""Propagation by gradients: exact for linear functionals, to first order for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_parameters import SPAN, TIGHT, ball, closed_form
from scipy import stats

import dae_hybrid as dh

LINE = closed_form({"a": 1.0, "k": np.array([1.0, 2.0]), "d": 2.0}, lambda a, k, d: d * a + 3 * k[1] - k[0])


def test_a_linear_functional() -> None:
    inputs = dh.Inputs(LINE, {"k[1]": stats.gumbel_r(1, 0.5), "a": stats.norm(2, 3)})
    found = dh.linear_propagation(LINE, SPAN, inputs, parameters={"d": 4.0, "k[0]": 5.0}, **TIGHT)
    parts = np.array([9 * stats.gumbel_r(1, 0.5).var(), 16 * 9])
    np.testing.assert_allclose(found.gradient, [3, 4], rtol=1e-9)
    np.testing.assert_allclose(found.mean, 4 * 2 + 3 * stats.gumbel_r(1, 0.5).mean() - 5, rtol=1e-9)
    np.testing.assert_allclose(found.std, np.sqrt(parts.sum()), rtol=1e-9)
    np.testing.assert_allclose(found.share, parts / parts.sum(), rtol=1e-9)
    assert found.names == ("k[1]", "a")
    assert "share of variance" in str(found)
    assert "share of variance" in found._repr_html_()


def test_correlated_parameters() -> None:
    inputs = dh.Inputs(LINE, {"a": stats.norm(2, 3), "k[0]": stats.norm(0, 1)}, {("a", "k[0]"): 0.8})
    found = dh.linear_propagation(LINE, SPAN, inputs, **TIGHT)
    covariance = 2 * -1 * 0.8 * 3
    np.testing.assert_allclose(found.std**2, 36 + 1 + 2 * covariance, rtol=1e-9)
    np.testing.assert_allclose(found.share * found.std**2, [36 + covariance, 1 + covariance], rtol=1e-8)
    sample = dh.monte_carlo(LINE, SPAN, inputs, 4096)
    np.testing.assert_allclose(found.std, sample.std.value, rtol=5e-3)


@pytest.mark.parametrize(
    "marginal", [stats.triang(0.28), stats.laplace_asymmetric(0.5), stats.uniform(), stats.gamma(2)]
)
def test_parameters_that_almost_agree(marginal: Any) -> None:
    """a - b with scores of correlation 1 - e: the variance is 2 e E (dx/dz)^2 to first order."""
    line = closed_form({"a": 1.0, "b": 1.0}, lambda a, b: a - b)
    z = np.linspace(-8, 8, 20001)
    slope = stats.norm.pdf(z) / marginal.pdf(marginal.ppf(stats.norm.cdf(z)))
    per_e = 2 * np.trapezoid(slope**2 * stats.norm.pdf(z), z)
    for e in (1e-4, 1e-6, 1e-8):
        found = dh.linear_propagation(line, SPAN, dh.Inputs(line, {"a": marginal, "b": marginal}, {("a", "b"): 1 - e}))
        np.testing.assert_allclose(found.std, np.sqrt(per_e * e), rtol=1e-3)


def test_covariances_that_cancel_too_far_are_refused() -> None:
    """Quantiles with kinks, so that the quadrature is accurate to 1e-3 of the variances only."""
    line = closed_form({"a": 1.0, "b": 1.0}, lambda a, b: a - b)
    own = stats.rv_histogram(np.histogram(np.random.default_rng(11).gamma(2, 1, 200), bins=12))()
    inputs = dh.Inputs(line, {"a": own, "b": own}, {("a", "b"): 0.9999})
    assert np.linalg.eigvalsh(inputs.covariance)[0] > 0
    with pytest.raises(dh.AssumptionError, match="variance of 'G' cannot be computed"):
        dh.linear_propagation(line, SPAN, inputs)


def test_small_distributions_of_a_ball() -> None:
    system = ball()
    inputs = dh.Inputs(system, {"e": stats.norm(0.8, 1e-4), "h": stats.norm(1, 1e-4)})
    found = dh.linear_propagation(system, (0, 2), inputs, functional="height", rtol=1e-9, atol=1e-11)
    sample = dh.monte_carlo(system, (0, 2), inputs, 1024, functional="height", rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.std, sample.std.value, rtol=5e-3)
    np.testing.assert_allclose(found.mean, sample.mean.value, rtol=1e-5)


def test_no_variance_has_no_shares() -> None:
    system = closed_form({"a": 1.0, "b": 1.0}, lambda a, b: b)
    found = dh.linear_propagation(system, SPAN, dh.Inputs(system, {"a": stats.norm()}))
    assert found.std == 0
    assert np.isnan(found.share).all()


def test_distributions_without_moments_are_refused() -> None:
    with pytest.raises(dh.AssumptionError, match="'a' has no finite mean"):
        dh.linear_propagation(LINE, SPAN, dh.Inputs(LINE, {"a": stats.cauchy()}))
    with pytest.raises(dh.ParameterError, match="Unknown functional"):
        dh.linear_propagation(LINE, SPAN, dh.Inputs(LINE, {"a": stats.norm()}), functional="Q")


@pytest.mark.parametrize("option", ["wrt", "derivatives", "t_eval", "rtoll"])
def test_unknown_options_are_refused(option: str) -> None:
    inputs = dh.Inputs(LINE, {"a": stats.norm()})
    given: Any = {option: "a"}
    with pytest.raises(dh.OptionError, match=f"Unknown option '{option}'"):
        dh.linear_propagation(LINE, SPAN, inputs, **given)
    given.pop("wrt", None)
    if given:
        with pytest.raises(dh.OptionError, match=f"Unknown option '{option}'"):
            dh.form(LINE, SPAN, inputs, above=1.0, **given)
