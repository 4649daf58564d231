"""Least-squares estimates for ten oral doses with a lag, from the closed form.

Usage: ``python make_reference.py [estimates.csv]``, with numpy and scipy only. The script minimises the sum of squared
residuals with `scipy.optimize.least_squares` from two starts and polishes the result by Newton's method; derivatives
are complex steps. Standard errors are sigma^2 (J^T J)^-1 with sigma^2 = rss / (n - 4). It writes the result only if
both starts lead to one minimum (relative 1e-9) at which the Hessian is positive definite.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

FOLDER = Path(__file__).parent
DOSE, TIMES = 352.3, 24.0 * np.arange(10)
STARTS = (np.array([70.0, 0.25, 0.1, 0.5]), np.array([60.0, 0.3, 0.08, 0.8]))


def concentration(p, t):
    """Sum over the doses, also for complex p = (V, ka, k, lag)."""
    V, ka, k, lag = p
    since = np.subtract.outer(t, TIMES) - lag
    since = np.where(since.real > 0, since, 0)
    return np.sum(DOSE / V * ka / (ka - k) * (np.exp(-k * since) - np.exp(-ka * since)), axis=1)


def jacobian(p, t):
    """Derivatives by complex steps."""
    return np.stack([concentration(p + step, t).imag / 1e-30 for step in 1e-30j * np.eye(4)], axis=1)


def hessian(gradient, p, h=1e-5):
    """Central differences of the gradient."""
    return np.stack([(gradient(p + h * e) - gradient(p - h * e)) / (2 * h) for e in np.eye(4)], axis=1)


def main():
    """Write the estimates."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "estimates.csv"
    t, y = np.loadtxt(FOLDER / "repeated_doses.csv", delimiter=",", skiprows=1, unpack=True)

    def gradient(p):
        return jacobian(p, t).T @ (concentration(p, t) - y)

    found = []
    for start in STARTS:
        p = least_squares(
            lambda p: concentration(p, t) - y, start, lambda p: jacobian(p, t), method="lm", x_scale="jac", xtol=1e-12
        ).x
        for _ in range(5):
            p = p - np.linalg.solve(hessian(gradient, p), gradient(p))
        found.append(p)
    if not np.allclose(*found, rtol=1e-9, atol=0):
        raise SystemExit(f"two minima: {found}")
    if np.linalg.eigvalsh(hessian(gradient, p)).min() <= 0:
        raise SystemExit(f"no minimum: {p}")
    J, rss, free = jacobian(p, t), float(np.sum((concentration(p, t) - y) ** 2)), t.size - 4
    errors = np.sqrt(rss / free * np.diag(np.linalg.inv(J.T @ J)))
    names = "V,ka,k,lag,se_V,se_ka,se_k,se_lag,sigma,rss,df"
    numbers = ",".join(f"{value:.11g}" for value in (*p, *errors, np.sqrt(rss / free), rss, free))
    target.write_text(f"# made by make_reference.py\n{names}\n{numbers}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
