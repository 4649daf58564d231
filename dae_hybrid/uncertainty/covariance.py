"""Covariances of parameters that a Gaussian copula joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dae_hybrid.numerics.arrays import Array


def normal_coefficients(of: Callable[[Array], Array], count: int) -> Array:
    """Coefficients of f(z) in normalised Hermite polynomials of degree 1 to count - 1, by Gauss-Hermite quadrature.

    The sum of their squares is the variance of f(z), z standard normal.
    """
    z, weights = np.polynomial.hermite_e.hermegauss(count)
    values, found = weights / weights.sum() * of(z), np.empty(count - 1)
    before, own = np.zeros(count), np.ones(count)
    for n in range(1, count):
        before, own = own, (z * own - np.sqrt(n - 1) * before) / np.sqrt(n)
        found[n - 1] = own @ values
    return found


def correlation_of_values(coefficients: Sequence[Array], correlation: Array) -> Array:
    """Correlation matrix of functions of correlated normal scores, (k, k), from their coefficients: Mehler's series.

    E f(z_i) g(z_k) is the sum of rho^n f_n g_n. The result is positive semidefinite, as entrywise powers of the
    correlation matrix of the scores are (Schur).
    """
    rows = np.array(coefficients)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    power, found = np.ones_like(correlation), np.zeros_like(correlation)
    for own in rows.T:
        power = power * correlation
        found += power * np.outer(own, own)
    return found
