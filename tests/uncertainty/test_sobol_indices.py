"""Sobol indices: published values of the Ishigami function, failed runs, refusals."""

from __future__ import annotations

import sys
from typing import Any

import casadi as ca
import numpy as np
import pytest
from random_parameters import SPAN, closed_form, fragile, ishigami
from scipy import stats

import dae_hybrid as dh
from dae_hybrid.report.plotting import new_figure
from dae_hybrid.uncertainty import sobol

ISHIGAMI, FRAGILE = ishigami(), fragile()
CIRCLE = stats.uniform(-np.pi, 2 * np.pi)
INPUTS = dh.Inputs(ISHIGAMI, {"x": CIRCLE, "y": CIRCLE, "z": CIRCLE})
#: T. Homma, A. Saltelli, Reliability Engineering & System Safety 52 (1996), 1-17; a = 7, b = 0.1
FIRST, TOTAL, PAIR = (0.3139, 0.4424, 0.0), (0.5576, 0.4424, 0.2437), 0.2437


def test_ishigami() -> None:
    found = dh.sobol_indices(ISHIGAMI, SPAN, INPUTS, 2048, second_order=True)
    np.testing.assert_allclose(found.first, FIRST, atol=0.01)
    np.testing.assert_allclose(found.total, TOTAL, atol=0.01)
    assert (np.abs(found.first - FIRST) < 2 * found.first_error).all()
    assert (np.abs(found.total - TOTAL) < 2 * found.total_error).all()
    assert found.second is not None
    assert found.second_error is not None
    np.testing.assert_allclose(found.second[np.triu_indices(3, 1)], [0, PAIR, 0], atol=0.03)
    np.testing.assert_array_equal(found.second, found.second.T)
    assert np.isnan(np.diag(found.second)).all()
    assert abs(found.mean - 3.5) < 0.02
    assert abs(found.variance - (49 / 8 + 0.1 * np.pi**4 / 5 + 0.01 * np.pi**8 / 18 + 0.5)) < 0.2
    assert found.n_runs == 2048 * 8
    assert found.n_omitted == 0


def test_distributions_enter_by_their_quantiles() -> None:
    """y = 3 exp(a) + b: the variances of both terms are known."""
    system = closed_form({"a": 1.0, "b": 1.0, "d": 1.0}, lambda a, b, d: d * ca.exp(a) + b)
    inputs = dh.Inputs(system, {"a": stats.norm(0, 0.3), "b": stats.expon()})
    found = dh.sobol_indices(system, SPAN, inputs, 1024, parameters={"d": 3.0})
    own = 9 * stats.lognorm(0.3).var()
    np.testing.assert_allclose(found.first, [own / (own + 1), 1 / (own + 1)], atol=0.02)
    assert found.second is None
    assert found.n_runs == 1024 * 4


def test_a_failed_run_omits_its_group() -> None:
    inputs = dh.Inputs(FRAGILE, {"a": stats.uniform(0.49, 2.0), "b": stats.uniform(1, 1)})
    with pytest.warns(dh.UncertaintyWarning, match="Statistics omit them"):
        found = dh.sobol_indices(FRAGILE, SPAN, inputs, 256)
    assert 0 < len(found.errors) <= found.n_omitted
    assert found.n_omitted % 4 == 0
    assert "omitted" in repr(found)
    np.testing.assert_allclose(found.first.sum(), 1, atol=0.1)
    bad = dh.Inputs(FRAGILE, {"a": stats.uniform(0.0, 2.0), "b": stats.uniform(1, 1)})
    with pytest.warns(dh.UncertaintyWarning), pytest.raises(dh.UncertaintyError, match="group") as caught:
        dh.sobol_indices(FRAGILE, SPAN, bad, 64)
    kept: Any = caught.value
    assert kept.values.shape == (256,)
    assert np.isfinite(kept.values).any()
    assert len(kept.errors) == 256
    assert kept.parameters.shape == (256, 2)


def test_a_constant_functional_has_no_shares() -> None:
    system = closed_form({"a": 1.0, "b": 1.0, "c": 2.0}, lambda a, b, c: c)
    inputs = dh.Inputs(system, {"a": stats.norm(), "b": stats.norm()})
    with pytest.raises(dh.AssumptionError, match="does not vary"):
        dh.sobol_indices(system, SPAN, inputs, 16)


def test_errors_of_the_integration_are_not_shares() -> None:
    """The energy of an oscillator is constant; its runs vary by their errors."""
    m = dh.HybridModel("oscillator")
    w, x0, x, v = m.parameter("w", 1.0), m.parameter("x0", 1.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -(w**2) * x}), {x: 1.0, v: 0 * x0})
    m.functional("energy", terminal=v**2 / w**2 + x**2)
    system = m.build()
    inputs = dh.Inputs(system, {"w": stats.uniform(1, 1), "x0": stats.uniform(1, 1)})
    with pytest.raises(dh.AssumptionError, match="does not vary"):
        dh.sobol_indices(system, (0, 10), inputs, 64)
    almost = closed_form({"a": 1.0, "b": 1.0}, lambda a, b: 1 + 1e-6 * (a + b))
    inputs = dh.Inputs(almost, {"a": stats.norm(), "b": stats.norm()})
    with pytest.warns(dh.UncertaintyWarning, match="errors of the integration"):
        dh.sobol_indices(almost, SPAN, inputs, 64, rtol=1e-7)
    np.testing.assert_allclose(dh.sobol_indices(almost, SPAN, inputs, 512, rtol=1e-9).first, 0.5, atol=0.02)


def test_the_bootstrap_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dh.sobol_indices(ISHIGAMI, SPAN, INPUTS, 256, second_order=True, resamples=400)
    monkeypatch.setattr(sobol, "RESAMPLED", 256 * 30)
    parts = dh.sobol_indices(ISHIGAMI, SPAN, INPUTS, 256, second_order=True, resamples=400)
    np.testing.assert_array_equal(parts.first, whole.first)
    np.testing.assert_array_equal(parts.second, whole.second)
    for name in ("first_error", "total_error", "second_error"):
        one, two = getattr(parts, name), getattr(whole, name)
        assert not np.array_equal(one, two, equal_nan=True)
        np.testing.assert_allclose(one, two, rtol=0.2)  # of a standard deviation of 400 draws: 3.5 %


def test_parameters_without_a_variance_have_a_warning() -> None:
    inputs = dh.Inputs(ISHIGAMI, {"x": stats.cauchy(), "y": CIRCLE})
    with pytest.warns(dh.UncertaintyWarning, match="'x' has no finite variance"):
        dh.sobol_indices(ISHIGAMI, SPAN, inputs, 16)
    with pytest.warns(dh.UncertaintyWarning, match="'x' has no finite variance"):
        dh.monte_carlo(ISHIGAMI, SPAN, inputs, 16)


def test_picture_and_words() -> None:
    found = dh.sobol_indices(ISHIGAMI, SPAN, INPUTS, 16)
    axes = new_figure().axes[0]
    found.plot(axes)
    np.testing.assert_array_equal([bar.get_height() for bar in axes.patches], [*found.first, *found.total])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y", "z"]
    assert "first order" in str(found)
    assert "total" in found._repr_html_()


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"n": 100}, dh.OptionError, "64 and 128"),
    ({"n": -2}, dh.OptionError, "positive"),
    ({"n": 4}, dh.OptionError, "at least 8"),
    ({"n": 16, "resamples": 1}, dh.OptionError, "at least 10"),
    ({"n": 16, "wrt": "x"}, dh.OptionError, "Unknown option 'wrt'"),
    ({"n": 16, "gradient": True}, dh.OptionError, "Unknown option 'gradient'"),
    ({"n": 16, "level": 1.0}, dh.OptionError, "level"),
    ({"n": 16, "resamples": 0}, dh.OptionError, "resamples"),
    ({"n": 16, "second_order": 1}, dh.OptionError, "second_order"),
    ({"n": 16, "functional": "Q"}, dh.ParameterError, "Unknown functional"),
    ({"n": 16, "max_failed": -0.1}, dh.OptionError, "max_failed"),
    ({"n": 16, "seed": "1"}, dh.OptionError, "seed"),
])  # fmt: skip
def test_bad_calls_are_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        dh.sobol_indices(ISHIGAMI, SPAN, INPUTS, **options)


def test_correlated_or_single_parameters_are_refused() -> None:
    correlated = dh.Inputs(ISHIGAMI, {"x": CIRCLE, "y": CIRCLE}, {("x", "y"): 0.1})
    with pytest.raises(dh.UnsupportedError, match="independent"):
        dh.sobol_indices(ISHIGAMI, SPAN, correlated, 16)
    with pytest.raises(dh.OptionError, match="at least two"):
        dh.sobol_indices(ISHIGAMI, SPAN, dh.Inputs(ISHIGAMI, {"x": CIRCLE}), 16)


def test_a_missing_salib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "SALib.analyze.sobol", None)
    with pytest.raises(ImportError, match="dae-hybrid\\[uq\\]"):
        dh.sobol_indices(ISHIGAMI, SPAN, INPUTS, 16)
