"""Rank parameters by derivative-based global sensitivity measures (DGSM), from exact gradients and by SALib.

The measure of a parameter is v = E[(dG/dp)^2] over the ranges of all parameters, and
v (upper - lower)^2 / (pi^2 Var G) bounds its total Sobol index. SALib estimates v by differences, with one more run per
point and parameter. The batch has exact gradients, which cost an adjoint analysis per point whatever the number of
parameters. G is that of a hysteretic oscillator with 19 reversals. Needs the extra ``[uq]``.

Sobol and Kucherenko, Derivative based global sensitivity measures and their link with global sensitivity indices,
Mathematics and Computers in Simulation 79(10), 3009-3017, 2009.
"""

from __future__ import annotations

import numpy as np
from SALib.analyze import dgsm
from SALib.sample import finite_diff
from scipy import stats

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis

RANGES = {"ka": (270.0, 360.0), "kb": (8.0, 12.0), "alpha": (160.0, 250.0), "beta": (8.0, 10.0)}
OPTIONS = {"rtol": 1e-8, "atol": 1e-12}


def batch(system: dh.HybridSystem, points: np.ndarray, **gradient) -> dh.Batch:
    """Runs for rows of points; one that fails is an error, since the mean would not be that of the ranges."""
    columns = dict(zip(RANGES, points.T, strict=True))
    found = dh.batch(system, em_hysteresis.t_span, parameters=columns, **gradient, **OPTIONS)
    for error in found.errors:
        if error is not None:
            raise error
    return found


def main(n: int = 256, delta: float = 1e-3) -> dict[str, np.ndarray]:
    system = em_hysteresis.system()
    problem = {"num_vars": len(RANGES), "names": list(RANGES), "bounds": [list(pair) for pair in RANGES.values()]}
    points = finite_diff.sample(problem, n, delta=delta)  # each point is followed by one shifted along each parameter
    by_differences = dgsm.analyze(problem, points, batch(system, points).functionals["G"], seed=1)

    exact = batch(system, points[:: len(RANGES) + 1], gradient="adjoint", wrt=list(RANGES))
    width = np.array([upper - lower for lower, upper in RANGES.values()])
    v = np.mean(exact.gradient["G"] ** 2, axis=0)
    bound = v * width**2 / (np.pi**2 * exact.functionals["G"].var())

    uniform = {name: stats.uniform(lower, upper - lower) for name, (lower, upper) in RANGES.items()}
    inputs = dh.Inputs(system, uniform)
    sobol = dh.sobol_indices(system, em_hysteresis.t_span, inputs, n, functional="G", **OPTIONS)

    print(f"{'':6} {'v, exact':>12} {'v, SALib':>12} {'bound':>8} {'total Sobol index':>20}")
    for i, name in enumerate(RANGES):
        total = f"{sobol.total[i]:.4f} +- {sobol.total_error[i]:.4f}"
        print(f"{name:6} {v[i]:12.5e} {by_differences['vi'][i]:12.5e} {bound[i]:8.4f} {total:>20}")
    print(f"runs: {n} with gradients, {len(points)} for differences, {sobol.n_runs} for Sobol indices")
    return {
        "exact": v, "differences": np.asarray(by_differences["vi"]), "bound": bound, "total": sobol.total,
        "error": sobol.total_error,
    }  # fmt: skip


if __name__ == "__main__":
    main()
