"""Quintics along a run: their bounds, zeros and extrema."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dae_hybrid.numerics.quintics import NODES, basis, extrema, parts_of, roots, through_rates, through_values


def shaped(s: np.ndarray) -> np.ndarray:
    """A quintic with zeros at 0.2 and 0.7."""
    return (s - 0.2) * (s - 0.7) * (s + 3) * (s**2 + 1)


def test_zeros_and_extrema() -> None:
    coefficients = through_values(shaped(NODES))
    np.testing.assert_allclose(roots(coefficients), [0.2, 0.7], rtol=1e-12)
    (turn,) = extrema(coefficients)
    h = 1e-4
    assert shaped(turn) < min(shaped(turn - h), shaped(turn + h))
    assert not roots(np.zeros(6)).size
    assert not extrema(np.ones(6)).size


def test_the_same_quintic_from_derivatives() -> None:
    whole = np.polynomial.Polynomial.fit(NODES, shaped(NODES), 5)
    ends = np.array([0.0, 1.0])
    values, rates, second = (whole.deriv(k)(ends)[:, None] if k else whole(ends)[:, None] for k in range(3))
    found = through_rates(values, rates, second, np.ones(1))[0, 0]
    np.testing.assert_allclose(found, through_values(shaped(NODES)), rtol=1e-10)


@given(st.lists(st.floats(-10, 10), min_size=6, max_size=6))
def test_coefficients_bound_the_values(given: list[float]) -> None:
    coefficients = np.array([given])
    s = np.linspace(0, 1, 101)
    values = basis(s) @ coefficients[0]
    parts = parts_of(coefficients)
    slack = 1e-9
    for one in (coefficients, parts):
        assert one.min() - slack <= values.min()
        assert values.max() <= one.max() + slack
    assert parts.max() <= coefficients.max() + slack
    assert parts[0, :, 0] == pytest.approx(basis(np.arange(8) / 8) @ coefficients[0], abs=slack)
