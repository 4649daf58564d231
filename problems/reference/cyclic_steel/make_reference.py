"""Least-squares estimates of the law of Voce and Chaboche for a cyclic test, and RESSPyLab's objectives.

Usage: ``python make_reference.py [estimates.json]``, with numpy, scipy and `dae_hybrid.problems.cyclic_steel`, of which
it uses the data and the return mapping (no hybrid system); a few seconds. The minimum is searched by
`scipy.optimize.least_squares` with derivatives by complex steps, from the module's `START`, with parameters scaled by
the columns of the Jacobian. A result is written only if the residual is orthogonal to these columns.

`as_resspylab` repeats the return mapping that RESSPyLab 1.1.6 uses for the original law (``errorTest_scl``): a Newton
iteration on the plastic strain that adds the absolute value of each correction to the path q, and whose derivative has
the sign of the hardening wrong in compression, so that the corrections overshoot. With ``mended=True`` derivative and
path are those of the law.
"""

import json
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from dae_hybrid.problems.cyclic_steel import START, by_return_mapping, names, published, samples

FOLDER = Path(__file__).parent
LAWS = {"original": False, "updated": True}


def residuals(p):
    """Weighted residuals."""
    measured = samples()
    return np.sqrt(measured["weight"]) * (by_return_mapping(p)[0] - measured["stress"])


def jacobian(p):
    """Derivatives by complex steps."""
    steps = 1e-30j * np.eye(p.size)
    return np.stack([residuals(p + step).imag / 1e-30 for step in steps], axis=1)


def estimate(*, updated, **other):
    """Parameters and objective at the minimum next to `START`, or to other values of some parameters."""
    start = np.array([(START | other)[name] for name in names(updated=updated)])
    found = least_squares(
        residuals, start, jacobian, method="lm", x_scale="jac",
        xtol=1e-13, ftol=1e-14, gtol=1e-14, max_nfev=400,
    )  # fmt: skip
    p, J = found.x, jacobian(found.x)
    r = residuals(p)
    cosines = (J.T @ r) / np.linalg.norm(J, axis=0) / np.linalg.norm(r)
    if np.abs(cosines).max() > 1e-6:
        raise SystemExit(f"no minimum: {p}, {cosines}")
    return {**{name: float(f"{v:.9g}") for name, v in zip(names(updated=updated), p, strict=True)},
            "objective": float(f"{r @ r:.10g}")}  # fmt: skip


def as_resspylab(p, *, mended=False):
    """The objective with RESSPyLab's iteration, without its barrier."""
    E, sy0, Q, b, C, gamma = p
    measured = samples()
    stress = q = alpha = 0.0
    strength, history = sy0, [0.0]
    for step in np.diff(measured["strain"]):
        stress += E * step
        q_before, alpha_before = q, alpha
        excess = (stress - alpha) ** 2 - strength**2
        for _ in range(1000):
            if excess <= 1e-10 if q == q_before else abs(excess) < 1e-10:
                break
            xi = np.sign(stress - alpha)
            hardening = C - xi * gamma * alpha if mended else xi * C - gamma * alpha
            isotropic = Q * b * np.exp(-b * q) * (xi if mended else 1)
            flow = excess / (2 * (stress - alpha) * (E + hardening) + 2 * strength * isotropic)
            if abs(flow) > abs(stress / E):
                flow = np.sign(flow) * 0.95 * abs(stress / E)
            q += xi * flow if mended else abs(flow)
            stress -= E * flow
            strength = sy0 + Q * (1 - np.exp(-b * q))
            xi = np.sign(stress - alpha)
            alpha = xi * C / gamma - (xi * C / gamma - alpha_before) * np.exp(-gamma * (q - q_before))
            excess = (stress - alpha) ** 2 - strength**2
        history.append(stress)
    return float(np.sum(measured["weight"] * (np.array(history) - measured["stress"]) ** 2))


def main():
    """Write the estimates, and print RESSPyLab's objectives."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "estimates.json"
    estimates = {law: estimate(updated=updated) for law, updated in LAWS.items()}
    # most random starts lead to the first minimum of the updated law, few to this one
    estimates["updated, lower"] = estimate(
        updated=True, sy0=372.0, Q=122.0, b=19.3, C=22.4e3, gamma=149.0, D=170.0, a=254.0
    )
    target.write_text(json.dumps(estimates, indent=2) + "\n", encoding="utf-8")
    for law, updated in LAWS.items():
        p = np.array([float(published[law][name]) for name in names(updated=updated)])
        barrier = np.sum(1 / p**2)
        values = {"printed": float(published[law]["objective"]), "by the law": np.sum(residuals(p) ** 2) + barrier}
        if not updated:
            values["as RESSPyLab"] = as_resspylab(p) + barrier
            values["mended"] = as_resspylab(p, mended=True) + barrier
        sys.stdout.write(f"{law}: " + ", ".join(f"{name} {value:.9f}" for name, value in values.items()) + "\n")


if __name__ == "__main__":
    main()
