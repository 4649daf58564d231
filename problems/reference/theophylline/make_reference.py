"""Least-squares estimates of the first-order compartment model for the theophylline data, from its closed form.

Usage: ``python make_reference.py [estimates.csv]``, with numpy and scipy only. For every subject, and for all subjects
pooled (subject 0), the script minimises the sum of squared residuals of

    conc = dose exp(lKe + lKa - lCl) (exp(-exp(lKe) t) - exp(-exp(lKa) t)) / (exp(lKa) - exp(lKe))

with `scipy.optimize.least_squares`, from two starts, and polishes the result by Newton's method on the gradient, whose
derivatives are complex steps. Standard errors are those of R's ``nls``: sigma^2 = rss / (n - 3), covariance
sigma^2 (J^T J)^-1. The script writes a row only if both starts lead to one minimum (relative 1e-9) at which the Hessian
is positive definite.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

FOLDER = Path(__file__).parent
STARTS = (np.array([-2.5, 0.5, -3.0]), np.array([-2.0, 0.0, -3.5]))


def concentration(q, dose, t):
    """The closed form, also for complex q = (lKe, lKa, lCl)."""
    ke, ka, cl = np.exp(q[0]), np.exp(q[1]), np.exp(q[2])
    return dose * ke * ka / cl * (np.exp(-ke * t) - np.exp(-ka * t)) / (ka - ke)


def jacobian(q, dose, t):
    """Derivatives of the concentration by complex steps, (n, 3)."""
    steps = 1e-30j * np.eye(3)
    return np.stack([concentration(q + step, dose, t).imag / 1e-30 for step in steps], axis=1)


def gradient(q, dose, t, conc):
    """Half the gradient of the sum of squares."""
    return jacobian(q, dose, t).T @ (concentration(q, dose, t) - conc)


def hessian(q, dose, t, conc, h=1e-5):
    """Its derivatives by central differences."""
    columns = [(gradient(q + h * e, dose, t, conc) - gradient(q - h * e, dose, t, conc)) / (2 * h) for e in np.eye(3)]
    return np.stack(columns, axis=1)


def minimum(start, dose, t, conc):
    """One minimum, polished until Newton's correction is rounding."""
    q = least_squares(
        lambda q: concentration(q, dose, t) - conc, start, lambda q: jacobian(q, dose, t), method="lm", xtol=1e-12
    ).x
    for _ in range(5):
        q = q - np.linalg.solve(hessian(q, dose, t, conc), gradient(q, dose, t, conc))
    return q


def estimate(dose, t, conc):
    """Estimates, standard errors, sigma, rss and degrees of freedom."""
    q, other = (minimum(start, dose, t, conc) for start in STARTS)
    if not np.allclose(q, other, rtol=1e-9, atol=0):
        raise SystemExit(f"two minima: {q} and {other}")
    if np.linalg.eigvalsh(hessian(q, dose, t, conc)).min() <= 0:
        raise SystemExit(f"no minimum: {q}")
    J = jacobian(q, dose, t)
    rss = float(np.sum((concentration(q, dose, t) - conc) ** 2))
    free = t.size - 3
    errors = np.sqrt(rss / free * np.diag(np.linalg.inv(J.T @ J)))
    return [*q, *errors, np.sqrt(rss / free), rss, free]


def main():
    """Write the estimates."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "estimates.csv"
    rows = np.loadtxt(FOLDER / "theophylline.csv", delimiter=",", skiprows=1)
    lines = [
        "# made by make_reference.py; subject 0: all subjects pooled",
        "subject,lKe,lKa,lCl,se_lKe,se_lKa,se_lCl,sigma,rss,df",
    ]
    for subject in range(13):
        chosen = rows if subject == 0 else rows[rows[:, 0] == subject]
        found = estimate(chosen[:, 2], chosen[:, 3], chosen[:, 4])
        lines.append(",".join([str(subject), *(f"{value:.11g}" for value in found)]))
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
