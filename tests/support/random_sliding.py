"""Random systems that slide on one to three surfaces, with the same equations for a regularised reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np
from scipy.integrate import solve_ivp

import dae_hybrid as dh

SPAN = (0.0, 4.0)


def sign(h: Any, kind: str) -> Any:
    """The sign of h in one of the ways in which it is written; with a peak at rest, as of Stribeck, for "peaked"."""
    if kind == "branches":
        return ca.if_else(h < 0, -1, 1)
    if kind == "two relations":
        return ca.if_else(h > 0, 1, 0) - ca.if_else(h < 0, 1, 0)
    return ca.sign(h) * (1 + 0.5 * ca.exp(-3 * ca.fabs(h)) if kind == "peaked" else 1)


@dataclass
class RandomSliding:
    """x' = A x - c x^3 + wave + B s, with s the signs of affine functions of x, some of which move with time."""

    seed: int

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        n = self.n = int(draw.integers(2, 5))
        k = self.k = min(n, int(draw.integers(1, 4)))
        self.a = draw.normal(size=(n, n)) * 0.5 - 0.7 * np.eye(n)
        self.b = draw.normal(size=(n, k))
        self.c = draw.normal(size=(k, n)) if draw.random() < 0.5 else np.eye(n)[:k]
        if draw.random() < 0.6:  # most of them attract
            self.b = -self.c.T @ np.diag(draw.uniform(0.3, 1.5, k)) + 0.2 * draw.normal(size=(n, k))
        self.level = draw.normal(size=k) * 0.3 * (draw.random() < 0.7)
        self.wave, self.pace = draw.normal(size=n) * (draw.random(n) < 0.6) * 1.5, draw.uniform(0.5, 2, size=n)
        self.moving = 0.2 * draw.normal(size=k) * (draw.random() < 0.3)
        self.kinds = [str(draw.choice(["sign", "branches", "two relations", "peaked"])) for _ in range(k)]
        self.start = draw.normal(size=n)
        self.start[draw.random(n) < 0.2] = 0.0
        self.cubic = 0.1 * draw.integers(2)
        repels = np.diag(self.c @ self.b) > 0
        if np.any(repels & (np.abs(self.c @ self.start - self.level) < 1e-9)):
            self.start += 0.1  # the motion from there would not be unique

    def rates(self, x: Any, t: Any, p: Any, of: Callable[[Any, str], Any], functions: Any) -> list[Any]:
        """The rates, with `of` for the signs and the functions of CasADi or NumPy."""
        heights = [
            sum(c * state for c, state in zip(row, x, strict=True)) - level * p[1] - moving * functions.sin(t)
            for row, level, moving in zip(self.c, self.level, self.moving, strict=True)
        ]
        signs = [of(h, kind) for h, kind in zip(heights, self.kinds, strict=True)]
        return [
            sum(a * state for a, state in zip(self.a[j], x, strict=True))
            - self.cubic * x[j] ** 3
            + self.wave[j] * p[2] * functions.cos(self.pace[j] * t)
            + sum(b * p[0] * s for b, s in zip(self.b[j], signs, strict=True))
            for j in range(self.n)
        ]

    def model(self) -> dh.HybridModel:
        """The model; its parameters are strength, level and wave, all one."""
        m = dh.HybridModel("random sliding")
        p = [m.parameter(name, 1.0) for name in ("strength", "level", "wave")]
        x = [m.differential(f"x{i}") for i in range(self.n)]
        run = m.mode("run", ode=dict(zip(x, self.rates(x, m.time, p, sign, ca), strict=True)))
        m.initial(
            run,
            {
                state: value * (p[1] if i == 0 else 1)
                for i, (state, value) in enumerate(zip(x, self.start, strict=True))
            },
        )
        m.functional("G", terminal=sum((i + 1) * state for i, state in enumerate(x)))
        m.functional("W", integrand=sum(state**2 for state in x))
        return m

    def regularised(self, width: float) -> float:
        """G with tanh(h / width) in the place of signs."""

        def of(h: Any, kind: str) -> Any:
            return np.tanh(h / width) * (1 + 0.5 * np.exp(-3 * np.abs(h)) if kind == "peaked" else 1)

        found = solve_ivp(
            lambda t, x: self.rates(x, t, np.ones(3), of, np), SPAN, self.start, method="Radau", rtol=1e-8, atol=1e-10
        )
        return float(sum((i + 1) * value for i, value in enumerate(found.y[:, -1])))
