"""Estimates of a two-compartment model with infusions, from its closed form.

Usage: ``python make_reference.py [estimates.json]``, with numpy and scipy only. For both studies and every criterion
the script minimises an objective over the logarithms of the parameters, by `scipy.optimize.minimize` from two starts
with gradients by complex steps, and polishes the result by Newton's method. It writes a result only if both starts
lead to one minimum (relative 1e-8) at which the Hessian is positive definite.

Criteria, with n measurements y at which the model has the concentration c:

* ``equal weights``: sum (y - c)^2, ``weights 1/conc``: sum (y - c)^2 / y. Standard errors are those of weighted least
  squares, sigma^2 (J^T W J)^-1 with sigma^2 = objective / (n - 4).
* ``likelihood``: sum (y - c)^2 / v + log(v), twice the negative log-likelihood without its constant, with the standard
  deviation sqrt(v) = a + b c (bolus and infusion) or s sqrt(c) (three infusions).
"""

import json
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

FOLDER = Path(__file__).parent
NAMES = ("Vc", "Vt", "Cl", "Cld")
STUDIES = {
    "bolus_and_infusion": {
        "bolus": 400.0,
        "infusions": ((0.0, 26.0, 800.0),),
        "start": (3.0, 2.0, 0.4, 0.2),
        "error": {"a": 0.1, "b": 0.1},
        "sd": lambda c, a, b: a + b * c,
    },
    "three_infusions": {
        "bolus": 0.0,
        "infusions": ((0.0, 0.25, 26.9), (0.25, 8.0, 139.0), (8.0, 24.0, 138.95)),
        "start": (0.4, 2.0, 0.5, 0.8),
        "error": {"s": 0.3},
        "sd": lambda c, s: s * np.sqrt(c),
    },
}


def concentration(p, t, bolus, infusions):
    """Sum of two exponentials for the bolus and every infusion (start, end, amount)."""
    Vc, Vt, Cl, Cld = p
    k10, k12, k21 = Cl / Vc, Cld / Vc, Cld / Vt
    total = k10 + k12 + k21
    root = np.sqrt(total**2 - 4 * k21 * k10)
    conc = 0.0
    for rate, other in (((total + root) / 2, (total - root) / 2), ((total - root) / 2, (total + root) / 2)):
        weight = (rate - k21) / (rate - other) / Vc
        conc = conc + bolus * weight * np.exp(-rate * t)
        for start, end, amount in infusions:
            since, after = np.maximum(t - start, 0), np.maximum(t - end, 0)
            conc = conc + amount / (end - start) * weight / rate * (np.exp(-rate * after) - np.exp(-rate * since))
    return conc


def derivatives(function, q, step=1e-30):
    """Complex steps."""
    return np.stack([np.imag(function(q + 1j * step * e)) / step for e in np.eye(q.size)], axis=-1)


def hessian(gradient, q, h=1e-5):
    """Central differences of the gradient."""
    return np.stack([(gradient(q + h * e) - gradient(q - h * e)) / (2 * h) for e in np.eye(q.size)], axis=1)


def minimum(objective, start):
    """Minimum over logarithms, and the parameters there."""

    def gradient(q):
        return derivatives(objective, q)

    found = []
    for shift in (0.0, 0.25):
        q = np.log(start) + shift
        q = minimize(lambda q: float(objective(q)), q, jac=gradient, method="BFGS", options={"gtol": 1e-7}).x
        for _ in range(6):
            q = q - np.linalg.solve(hessian(gradient, q), gradient(q))
        found.append(np.exp(q))
        if np.linalg.eigvalsh(hessian(gradient, q)).min() <= 0:
            raise SystemExit(f"no minimum: {found[-1]}")
    if not np.allclose(*found, rtol=1e-8, atol=0):
        raise SystemExit(f"two minima: {found}")
    return found[0], float(objective(np.log(found[0])))


def estimate(study, t, y):
    """Estimates by criterion."""

    def model(p):
        return concentration(p, t, study["bolus"], study["infusions"])

    results = {}
    for criterion, weights in (("equal weights", np.ones_like(y)), ("weights 1/conc", 1 / y)):
        p, value = minimum(lambda q, w=weights: np.sum(w * (y - model(np.exp(q))) ** 2), study["start"])
        J = derivatives(model, p)
        covariance = value / (t.size - 4) * np.linalg.inv(J.T @ (weights[:, None] * J))
        results[criterion] = {
            **dict(zip(NAMES, p, strict=True)),
            "errors": np.sqrt(np.diag(covariance)).tolist(),
            "objective": value,
        }

    def deviance(q):
        c = model(np.exp(q[:4]))
        v = study["sd"](c, *np.exp(q[4:])) ** 2
        return np.sum((y - c) ** 2 / v + np.log(v))

    p, value = minimum(deviance, (*study["start"], *study["error"].values()))
    results["likelihood"] = {**dict(zip((*NAMES, *study["error"]), p, strict=True)), "objective": value}
    return results


def rounded(value):
    """Eleven digits."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else float(f"{value:.11g}")


def main():
    """Write the estimates."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "estimates.json"
    results = {}
    for name, study in STUDIES.items():
        t, y = np.loadtxt(FOLDER / f"{name}.csv", delimiter=",", skiprows=1, unpack=True)
        results[name] = rounded(estimate(study, t, y))
    target.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
