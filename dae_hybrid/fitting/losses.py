"""Robust losses of squared residuals, as in `scipy.optimize.least_squares`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from dae_hybrid.numerics.arrays import Array

LossName = Literal["linear", "soft_l1", "huber", "cauchy", "arctan"]
#: rho(z), rho'(z) and rho''(z), shape (3, m), of z = (r / f_scale)^2
type Rho = Callable[[Array], Array]


def _linear(z: Array) -> Array:
    return np.array([z, np.ones_like(z), np.zeros_like(z)])


def _soft_l1(z: Array) -> Array:
    t = 1 + z
    return np.array([2 * (np.sqrt(t) - 1), t**-0.5, -0.5 * t**-1.5])


def _huber(z: Array) -> Array:
    inside, t = z <= 1, np.maximum(z, 1.0)
    outside = np.array([2 * np.sqrt(t) - 1, t**-0.5, -0.5 * t**-1.5])
    return np.where(inside, _linear(z), outside)


def _cauchy(z: Array) -> Array:
    t = 1 + z
    return np.array([np.log1p(z), 1 / t, -1 / t**2])


def _arctan(z: Array) -> Array:
    t = 1 + z**2
    return np.array([np.arctan(z), 1 / t, -2 * z / t**2])


LOSSES: dict[str, Rho] = {
    "linear": _linear, "soft_l1": _soft_l1, "huber": _huber, "cauchy": _cauchy, "arctan": _arctan
}  # fmt: skip
