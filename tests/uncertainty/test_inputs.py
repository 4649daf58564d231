"""Random parameters: transformation to standard normal space and back, samples, covariances, refusals."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_parameters import closed_form
from scipy import stats

import dae_hybrid as dh
from dae_hybrid.uncertainty.inputs import SAMPLERS
from dae_hybrid.uncertainty.monte_carlo import replicate_points

SYSTEM = closed_form(
    {"a": 1.0, "b": 2.0, "c": 3.0, "k": np.array([1.0, 2.0])}, lambda a, b, c, k: a + b + c + k[0] + k[1]
)
MARGINALS = {
    "a": stats.norm(1, 0.2), "b": stats.lognorm(0.3, scale=2.0), "c": stats.uniform(2, 2),
    "k[1]": stats.gumbel_r(2, 0.1),
}  # fmt: skip
PAIRS: dict[tuple[str, str], float] = {("a", "b"): 0.5, ("c", "k[1]"): -0.7, ("b", "c"): 0.3}
INPUTS = dh.Inputs(SYSTEM, MARGINALS, PAIRS)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_transformation_and_inverse(u: list[float]) -> None:
    x = INPUTS.from_normal(u)
    np.testing.assert_allclose(INPUTS.to_normal(x), u, atol=2e-7)
    step = 1e-5
    differences = [
        (INPUTS.from_normal(u + step * e) - INPUTS.from_normal(u - step * e)) / (2 * step) for e in np.eye(4)
    ]
    np.testing.assert_allclose(INPUTS.jacobian(u), np.array(differences).T, rtol=1e-5, atol=1e-8)


def test_both_tails_keep_their_accuracy() -> None:
    inputs = dh.Inputs(SYSTEM, {"a": stats.norm(0, 1), "b": stats.expon()})
    u = np.array([[-12.0, -7.0], [12.0, 12.0]])
    x = inputs.from_normal(u)
    np.testing.assert_allclose(x[:, 0], u[:, 0], rtol=1e-12)
    np.testing.assert_allclose(x[1, 1], -stats.norm.logsf(12), rtol=1e-12)
    np.testing.assert_allclose(inputs.to_normal(x), u, rtol=1e-8)


def test_values_outside_a_support_have_no_score() -> None:
    inputs = dh.Inputs(SYSTEM, {"c": stats.uniform(2, 2)})
    found = inputs.to_normal([[1.9], [2.0], [4.0], [4.1]])[:, 0]
    assert np.isnan(found[[0, 3]]).all()
    assert found[1] == -np.inf
    assert found[2] == np.inf


def test_scores_at_the_end_of_a_support_leave_others_alone() -> None:
    own = dict.fromkeys("abc", stats.uniform())
    inputs = dh.Inputs(SYSTEM, own, {("a", "c"): 0.5})
    with warnings.catch_warnings(action="error"):
        found = inputs.to_normal([[1.0, 0.3, 0.5], [0.5, 1.0, 0.5], [0.5, 0.3, 1.0], [1.0, 0.3, 1.0]])
    score = stats.norm.ppf(0.3)
    expected = [[np.inf, score, -np.inf], [0, np.inf, 0], [0, score, np.inf], [np.inf, score, np.nan]]
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_correlation_is_that_of_the_normal_scores() -> None:
    rows = INPUTS.sample(2**14)
    x = rows[:, list(INPUTS.indices)]
    z = np.column_stack([stats.norm.ppf(own.cdf(x[:, i])) for i, own in enumerate(MARGINALS.values())])
    expected = np.eye(4)
    for (one, two), rho in PAIRS.items():
        i, k = INPUTS.names.index(one), INPUTS.names.index(two)
        expected[i, k] = expected[k, i] = rho
    np.testing.assert_allclose(np.corrcoef(z.T), expected, atol=5e-3)
    np.testing.assert_array_equal(INPUTS.correlation, expected)
    assert (rows[:, 3] == 1.0).all()  # k[0] is not random


def test_covariance_of_lognormals() -> None:
    one, two, rho = 0.4, 0.25, 0.6
    inputs = dh.Inputs(SYSTEM, {"a": stats.lognorm(one), "b": stats.lognorm(two)}, [[1, rho], [rho, 1]])
    exact = np.exp(0.5 * (one**2 + two**2)) * np.expm1(rho * one * two)
    np.testing.assert_allclose(inputs.covariance[0, 1], exact, rtol=1e-12)
    np.testing.assert_allclose(np.diag(inputs.covariance), np.expm1([one**2, two**2]) * np.exp([one**2, two**2]))


def test_covariance_of_uniforms() -> None:
    rho = 0.8
    inputs = dh.Inputs(SYSTEM, {"a": stats.uniform(0, 1), "b": stats.uniform(0, 1)}, {("b", "a"): rho})
    exact = 6 / np.pi * np.arcsin(rho / 2) / 12  # Pearson, 1907
    np.testing.assert_allclose(inputs.covariance[0, 1], exact, rtol=1e-4)


def test_a_covariance_is_positive_semidefinite() -> None:
    own = stats.triang(0.28)
    inputs = dh.Inputs(SYSTEM, {"a": own, "b": own, "c": own}, np.full((3, 3), 1 - 1e-8) + 1e-8 * np.eye(3))
    assert np.linalg.eigvalsh(inputs.covariance)[0] > 0
    np.testing.assert_allclose(np.diag(inputs.covariance), own.var(), rtol=1e-14)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_have_the_marginals_and_are_reproducible(sampler: Any) -> None:
    inputs = dh.Inputs(SYSTEM, MARGINALS)
    rows = inputs.sample(1024, sampler=sampler, seed=3)
    for i, own in zip(inputs.indices, MARGINALS.values(), strict=True):
        assert stats.kstest(rows[:, i], own.cdf).pvalue > 1e-3
    np.testing.assert_array_equal(rows, inputs.sample(1024, sampler=sampler, seed=3))
    assert (rows != inputs.sample(1024, sampler=sampler, seed=4)).any()


def test_replicates_differ_with_every_seed() -> None:
    """Words of 32 bits as seeds of 8192 replicates coincide with seed 2."""
    u = replicate_points(dh.Inputs(SYSTEM, {"a": stats.norm()}), 2 * 8192, 8192, "random", 2)
    assert np.unique(u).size == 2 * 8192


def test_design_parameters_and_pickle() -> None:
    rows = pickle.loads(pickle.dumps(INPUTS)).sample(8, parameters={"k[0]": 7.0})
    np.testing.assert_array_equal(rows, INPUTS.sample(8, parameters={"k[0]": 7.0}))
    assert (rows[:, 3] == 7.0).all()
    assert repr(INPUTS).startswith("<Inputs of 'closed form', correlated: a: norm, b: lognorm")


@pytest.mark.parametrize("distributions", [
    pytest.param({"q": stats.norm()}, id="unknown name"),
    pytest.param({"k": stats.norm()}, id="vector"),
    pytest.param({"k[2]": stats.norm()}, id="no such entry"),
    pytest.param({}, id="none"),
    pytest.param(stats.norm(), id="no mapping"),
    pytest.param({"a": stats.poisson(3)}, id="discrete"),
    pytest.param({"a": stats.norm}, id="not frozen"),
    pytest.param({"a": 3.0}, id="number"),
    pytest.param({"a": stats.norm(0, -1)}, id="negative scale"),
    pytest.param({"a": stats.norm(0, 0)}, id="zero scale"),
    pytest.param({"a": stats.norm(np.nan, 1)}, id="NaN"),
    pytest.param({"a": stats.norm([0, 1], 1)}, id="array"),
    pytest.param({"a": stats.norm(0, 1e-300)}, id="variance underflows"),
    pytest.param({"a": stats.norm(1e6, 1e-12)}, id="no spread in double precision"),
    pytest.param({"a": stats.rv_histogram(np.histogram([1, 2, 3]))}, id="histogram not frozen"),
])  # fmt: skip
def test_bad_distributions_are_refused(distributions: Any) -> None:
    with pytest.raises(dh.ParameterError):
        dh.Inputs(SYSTEM, distributions)


def test_an_entry_named_twice_is_refused() -> None:
    class Twice(dict):
        def __iter__(self) -> Any:
            return iter(("a", "a"))

    with pytest.raises(dh.ParameterError, match="'a' twice"):
        dh.Inputs(SYSTEM, Twice(a=stats.norm()))


@pytest.mark.parametrize(("correlation", "message"), [
    (np.eye(3), r"shape \(2, 2\)"),
    ([[1, 0.5], [0.4, 1]], "symmetric"),
    ([[2, 0.5], [0.5, 2]], "unit diagonal"),
    ([[1, 1], [1, 1]], "positive definite"),
    ([[1, np.nan], [np.nan, 1]], "finite"),
    ([["1", "0"], ["0", "1"]], "numeric"),
    ({("a", "q"): 0.5}, "not a pair"),
    ({("a", "a"): 0.5}, "not a pair"),
    ({"ab": 0.5}, "not a pair"),
    ({("a", "b"): 1.5}, "between -1 and 1"),
    ({("a", "b"): np.nan}, "between -1 and 1"),
    ({("a", "b"): 0.5, ("b", "a"): 0.5}, "twice"),
])  # fmt: skip
def test_bad_correlations_are_refused(correlation: Any, message: str) -> None:
    with pytest.raises(dh.OptionError, match=message):
        dh.Inputs(SYSTEM, {"a": stats.norm(), "b": stats.norm()}, correlation)


def test_labels_of_a_correlation_matrix_are_read() -> None:
    own = dict.fromkeys("abc", stats.norm())
    matrix = np.array([[1, 0.9, 0], [0.9, 1, 0.1], [0, 0.1, 1]])  # of b, c, a
    import pandas as pd
    import xarray as xr

    expected = [[1, 0, 0.1], [0, 1, 0.9], [0.1, 0.9, 1]]
    frame = pd.DataFrame(matrix, index=list("bca"), columns=list("bca"))
    for labelled in (frame, frame[["a", "c", "b"]], xr.DataArray(matrix, [("x", list("bca")), ("y", list("bca"))])):
        np.testing.assert_array_equal(dh.Inputs(SYSTEM, own, labelled).correlation, expected)
    for plain in (pd.DataFrame(matrix), xr.DataArray(matrix), matrix.tolist()):
        np.testing.assert_array_equal(dh.Inputs(SYSTEM, own, plain).correlation, matrix)
    for labels in ("bcd", "bcc"):
        with pytest.raises(dh.OptionError, match="has the labels"):
            dh.Inputs(SYSTEM, own, pd.DataFrame(matrix, index=list(labels), columns=list("abc")))


def test_a_matrix_of_three_that_is_not_definite_is_refused() -> None:
    pairs: Any = {("a", "b"): 0.9, ("b", "c"): 0.9, ("a", "c"): -0.9}
    with pytest.raises(dh.OptionError, match="least eigenvalue"):
        dh.Inputs(SYSTEM, {name: stats.norm() for name in "abc"}, pairs)


@pytest.mark.parametrize(("options", "message"), [
    ({"n": 100}, "64 and 128"),
    ({"n": 0}, "positive integer"),
    ({"n": 2.0}, "positive integer"),
    ({"n": True}, "positive integer"),
    ({"n": 4, "sampler": "sobols"}, "sobol, halton"),
    ({"n": 4, "seed": -1}, "seed"),
    ({"n": 4, "seed": 1.5}, "seed"),
])  # fmt: skip
def test_bad_samples_are_refused(options: Any, message: str) -> None:
    with pytest.raises(dh.OptionError, match=message):
        INPUTS.sample(**options)


@pytest.mark.parametrize("parameters", [{"a": 1.0}, {"k[1]": 1.0}, {"k": [1.0, 1.0]}, {"q": 1.0}])
def test_values_of_random_parameters_are_refused(parameters: Any) -> None:
    with pytest.raises(dh.ParameterError):
        INPUTS.sample(4, parameters=parameters)


def test_points_of_a_wrong_shape_are_refused() -> None:
    for of in (INPUTS.from_normal, INPUTS.to_normal, INPUTS.jacobian):
        with pytest.raises(dh.ParameterError, match="4 entr"):
            of([1.0, 2.0])


def test_distributions_without_moments() -> None:
    inputs = dh.Inputs(SYSTEM, {"a": stats.cauchy()})
    with pytest.raises(dh.AssumptionError, match="no finite mean"):
        _ = inputs.covariance
    heavy = dh.Inputs(SYSTEM, {"a": stats.t(2.05), "b": stats.norm()}, {("a", "b"): 0.5})
    with pytest.raises(dh.AssumptionError, match="quadrature"):
        _ = heavy.covariance
