"""Quintic polynomials on the unit interval, in the basis of Bernstein, whose coefficients bound the values."""

from __future__ import annotations

from math import comb

import numpy as np

from dae_hybrid.numerics.arrays import Array

#: degree of the polynomials
DEGREE = 5
#: relative positions of the values through which a quintic is laid, and of the value with which it is compared
NODES = (1 - np.cos(np.pi * np.arange(DEGREE + 1) / DEGREE)) / 2
PROBE = 0.43
#: number of parts of the interval on which quintics are bounded
N_PARTS = 8
#: imaginary part of a real root, up to rounding
REAL_ROOT = 1e-6


def basis(s: Array | float) -> Array:
    """Return the polynomials of the basis at positions, (..., 6)."""
    k, s = np.arange(DEGREE + 1), np.asarray(s, dtype=float)[..., None]
    return np.array([comb(DEGREE, i) for i in k]) * s**k * (1 - s) ** (DEGREE - k)


_THROUGH_NODES = np.linalg.inv(basis(NODES))
#: matrices from the coefficients to those on each part of the interval, (N_PARTS, 6, 6)
_PARTS = np.array([(_THROUGH_NODES @ basis((i + NODES) / N_PARTS)).T for i in range(N_PARTS)])
#: matrix from Bernstein coefficients to powers of s, lowest first
_POWERS = np.array(
    [
        [comb(DEGREE, k) * comb(k, j) * (-1.0) ** (k - j) if j <= k else 0.0 for j in range(DEGREE + 1)]
        for k in range(DEGREE + 1)
    ]
)


def parts_of(coefficients: Array) -> Array:
    """Return the coefficients of quintics (N, 6) on equal parts of the interval, (N, N_PARTS, 6)."""
    return np.asarray(coefficients @ _PARTS).transpose(1, 0, 2)


def through_values(values: Array) -> Array:
    """Return the coefficients (..., 6) of the quintics with these values at `NODES`, (..., 6)."""
    return values @ _THROUGH_NODES.T


def through_rates(values: Array, rates: Array, second: Array, h: Array) -> Array:
    """Return the coefficients (N - 1, k, 6) of the quintics with values and two derivatives (N, k) at N points.

    `h` (N - 1,) are the distances of the points.
    """
    step = h[:, None]
    a, b = values[:-1], values[1:]
    da, db, dda, ddb = step * rates[:-1], step * rates[1:], step**2 * second[:-1], step**2 * second[1:]
    columns = (a, a + da / 5, a + 2 * da / 5 + dda / 20, b - 2 * db / 5 + ddb / 20, b - db / 5, b)
    return np.stack(columns, axis=-1)


def through_ends(a: Array, b: Array, da: Array, db: Array, s: Array) -> Array:
    """Return the cubics with these values and derivatives (N, k) at their ends, at a position of each."""
    s = s[:, None]
    return np.asarray(
        (1 + 2 * s) * (1 - s) ** 2 * a + s * (1 - s) ** 2 * da + s**2 * (3 - 2 * s) * b - s**2 * (1 - s) * db
    )


def difference_of_cubics(coefficients: Array) -> Array:
    """Return the largest distance of Hermite's cubics from the quintics with the same ends, about, (...)."""
    a, a_next, *_, b_before, b = np.moveaxis(coefficients, -1, 0)
    middle = (a + b) / 2 + DEGREE * ((a_next - a) - (b - b_before)) / 8
    return np.asarray(np.abs(coefficients @ basis(0.5) - middle))


def roots(coefficients: Array) -> Array:
    """Return the zeros of a quintic in (0, 1), increasing."""
    return _inside(_POWERS @ coefficients)


def extrema(coefficients: Array) -> Array:
    """Return the zeros of the derivative of a quintic in (0, 1), increasing."""
    return _inside(np.arange(1, DEGREE + 1) * (_POWERS @ coefficients)[1:])


def _inside(powers: Array) -> Array:
    """Return the real zeros in (0, 1) of a polynomial by its powers, lowest first."""
    size = np.abs(powers).max(initial=0.0)
    if not (size > 0 and np.isfinite(size)):
        return np.zeros(0)
    found = np.roots((powers / size)[::-1])
    real = np.sort(found.real[np.abs(found.imag) <= REAL_ROOT])
    return np.asarray(real[(real > 0) & (real < 1)])
