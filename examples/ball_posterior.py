"""The posterior that the examples of samplers share: drop height and restitution of a ball, from five positions.

A ball falls from the height h and bounces with the coefficient of restitution e. Its height is measured five times,
with noise. The unknowns are q = (log h, logit e), with independent normal priors. A ball whose bounces accumulate
before the last measurement is a failed run (`ZenoError`): its likelihood is taken as zero, and failed runs are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit, logit

import dae_hybrid as dh

NAMES, UNKNOWNS = ("h", "e"), ("log h", "logit e")
TRUTH = {"h": 1.0, "e": 0.8}
SPAN, TIMES, NOISE = (0.0, 1.5), np.linspace(0.6, 1.5, 5), 0.1
OPTIONS = {"rtol": 1e-7, "atol": 1e-10}
MEAN, SD = np.array([0.0, 1.1]), np.array([0.3, 0.8])  # of the prior


def ball(data: np.ndarray | None = None) -> dh.HybridSystem:
    """The ball; with data it has the functional misfit, the negative logarithm of the likelihood."""
    m = dh.HybridModel("ball")
    h, e = (m.parameter(name, TRUTH[name]) for name in NAMES)
    y, v = m.differential("y", unit="m"), m.differential("v", unit="m/s")
    flight = m.mode("flight", ode={y: v, v: -9.81})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: h, v: 0.0})
    if data is not None:
        terms = zip(TIMES, data, strict=True)
        m.functional("misfit", at_times=[(float(t), ((y - d) / NOISE) ** 2 / 2) for t, d in terms])
    return m.build()


def measured(seed: int = 1) -> np.ndarray:
    """Heights at TIMES with noise, in m."""
    exact = dh.simulate(ball(), SPAN, t_eval=TIMES, **OPTIONS)["y"]
    return exact + NOISE * np.random.default_rng(seed).standard_normal(TIMES.size)


@dataclass
class LogPosterior:
    """Logarithm of the unnormalised posterior for rows of q, (n,); with gradient, (n, 3): value and gradient."""

    system: dh.HybridSystem
    gradient: bool = False
    runs: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def __call__(self, q: np.ndarray) -> np.ndarray:
        h, e = np.exp(q[:, 0]), expit(q[:, 1])
        analysis = "adjoint" if self.gradient else None
        found = dh.batch(self.system, SPAN, parameters={"h": h, "e": e}, gradient=analysis, **OPTIONS)
        self.runs += len(q)
        self.failures.update(type(error).__name__ for error in found.errors if error is not None)
        prior = -(((q - MEAN) / SD) ** 2).sum(1) / 2
        value = np.where(found.ok, prior - found.functionals["misfit"], -np.inf)
        if not self.gradient:
            return value
        slope = (MEAN - q) / SD**2 - found.gradient["misfit"] * np.column_stack([h, e * (1 - e)])
        return np.column_stack([value, np.where(found.ok[:, None], slope, 0.0)])


def laplace(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the Laplace approximation: the maximum of the posterior, by `dh.fit`."""
    fit = dh.fit(
        ball(), dh.Experiment({"y": data}, TIMES, sigma=NOISE), TRUTH,
        scale={"h": "log", "e": "logit"}, bounds={"e": (0, 1)},
        priors={"h": (np.exp(MEAN[0]), SD[0]), "e": (expit(MEAN[1]), SD[1])}, **OPTIONS,
    )  # fmt: skip
    h, e = fit.estimates
    slope = np.diag([1 / h, 1 / (e * (1 - e))])  # of q by h and e
    return np.array([np.log(h), logit(e)]), slope @ fit.covariance @ slope


@dataclass
class Grid:
    """The posterior on a grid, normalised by the rectangle rule, and its moments: the reference of all samplers."""

    axes: tuple[np.ndarray, np.ndarray]
    density: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    failures: Counter[str]


def on_grid(system: dh.HybridSystem, n: int = 81) -> Grid:
    posterior = LogPosterior(system)
    axes = np.linspace(-0.5, 0.6, n), np.linspace(0.3, 4.5, n)
    q = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    values = posterior(q.reshape(-1, 2)).reshape(n, n)
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    mean = np.einsum("ij,ijk->k", weights, q)
    sd = np.sqrt(np.einsum("ij,ijk->k", weights, (q - mean) ** 2))
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    return Grid(axes, weights / cell, mean, sd, posterior.failures)


@dataclass
class Sample:
    """Draws of a sampler, (steps, chains, 2), and what they cost."""

    sampler: str
    draws: np.ndarray
    runs: int
    failures: Counter[str]
    seconds: float

    def __str__(self) -> str:
        flat = self.draws.reshape(-1, 2)
        moments = zip(UNKNOWNS, flat.mean(0), flat.std(0), strict=True)
        failed = ", ".join(f"{count} {name}" for name, count in self.failures.items()) or "none"
        return "\n".join(
            [
                f"{self.sampler}: {len(flat)} draws, {self.runs} runs in {self.seconds:.1f} s, failed: {failed}",
                *(f"  {name:8} mean {mean:.4f}  sd {sd:.4f}" for name, mean, sd in moments),
            ]
        )
