"""Fits with and without exact derivatives, published estimates, and the pictures of docs/fitting.md.

    python benchmarks/fits.py [--starts 100] [--only cost published pictures] [--write]

The cost of a fit with differences is that of SciPy's ``jac="2-point"`` on the same residuals, scales, bounds and
starts.
``--write`` puts tables and pictures into docs/.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from measuring import show
from scipy.optimize import least_squares

import dae_hybrid as dh
from dae_hybrid.fitting.misfit import Misfit
from dae_hybrid.fitting.search import FIT_TOLERANCE, Search, latin_hypercube, search
from dae_hybrid.problems import cyclic_steel, em_hysteresis, infusions, theophylline
from dae_hybrid.report.plotting import save

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, PICTURES = DOCS / "fitting.md", DOCS / "fitting"
#: a fit has found the minimum if its cost exceeds the least one by no more than this share
FOUND = 1e-3
NAMES = ["lKe", "lKa", "lCl"]


class Case(NamedTuple):
    """A fit: system, experiments, bounds around the starts, and options."""

    title: str
    system: dh.HybridSystem
    experiments: list[dh.Experiment]
    bounds: dict[str, tuple[float, float]]
    scale: str
    options: dict[str, Any]
    local: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """Outcome of one start."""

    cost: float
    evaluations: int
    seconds: float


def hysteresis(rtol: float) -> Case:
    """Noisy displacements of the EM oscillator; bounds a third and three times the true values."""
    system, times = em_hysteresis.system(), np.linspace(*em_hysteresis.t_span, 201)[1:]
    record = dh.simulate(system, em_hysteresis.t_span, t_eval=times, rtol=1e-10, atol=1e-13)["u"]
    record = record + 1e-4 * np.random.default_rng(1).standard_normal(200)
    names = ("ka", "kb", "alpha")
    bounds = {name: tuple(system.nominal[system.parameters[name]][0] * np.array([1 / 3, 3.0])) for name in names}
    options = {"rtol": rtol, "atol": 1e-4 * rtol}
    title = f"hysteretic oscillator, 19 reversals, 3 parameters, rtol {rtol:.0e}"
    return Case(title, system, [dh.Experiment({"u": record}, times, sigma=1e-4)], bounds, "log", options)


def ball(rtol: float) -> Case:
    """Noisy heights of a bouncing ball."""
    m = dh.HybridModel("ball")
    g, e, c = m.parameter("g", 9.81), m.parameter("e", 0.8), m.parameter("c", 0.05)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g - c * v})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v})
    m.initial(flight, {y: 1.0, v: 0.0})
    system, times = m.build(), np.linspace(0.05, 2.0, 40)
    record = dh.simulate(system, (0, 2), t_eval=times, rtol=1e-10, atol=1e-13)["y"]
    record = record + 0.01 * np.random.default_rng(2).standard_normal(40)
    bounds = {"g": (5.0, 15.0), "e": (0.5, 0.95), "c": (0.0, 0.5)}
    title = f"bouncing ball, 3 parameters, rtol {rtol:.0e}"
    experiments = [dh.Experiment({"y": record}, times, sigma=0.01)]
    return Case(title, system, experiments, bounds, "linear", {"rtol": rtol, "atol": 1e-2 * rtol})


def subjects() -> list[dh.Experiment]:
    """The twelve subjects of theophylline."""
    return dh.Experiment.from_table(
        theophylline.data(), {"conc": "conc"}, time="time", by="subject", parameters={"dose": "dose"}
    )


def pharmacokinetics(rtol: float, *, own: bool) -> Case:
    """Theophylline, pooled or with parameters of every subject."""
    bounds = {name: (value - 2.0, value + 2.0) for name, value in theophylline.START.items()}
    kind = "each by itself, 36 parameters" if own else "pooled, 3 parameters"
    options, local = {"rtol": rtol, "atol": rtol}, tuple(NAMES) if own else ()
    title = f"theophylline, 12 subjects, {kind}, rtol {rtol:.0e}"
    return Case(title, theophylline.system(), subjects(), bounds, "linear", options, local)


def misfit_of(case: Case) -> Misfit:
    """The residuals of a case."""
    free = {name: 0.5 * (low + high) for name, (low, high) in case.bounds.items()}
    fit = dh.fit(
        case.system, case.experiments, free, bounds=case.bounds, scale=case.scale, local=case.local, workers=1,
        optimizer_options={"max_nfev": 1}, **case.options,
    )  # fmt: skip
    return fit.misfit


def exact(misfit: Misfit, start: np.ndarray) -> Outcome:
    """A search with the exact Jacobian; an evaluation is a forward analysis."""
    begun = time.process_time()
    found: Search = search(misfit, start, "trf", "forward", {})
    return Outcome(found.cost, found.evaluations, time.process_time() - begun)


def differences(misfit: Misfit, start: np.ndarray) -> Outcome:
    """A search with one-sided differences; an evaluation is a simulation."""
    count, free, begun = 0, misfit.free, time.process_time()

    def residuals(s: np.ndarray) -> np.ndarray:
        nonlocal count
        count += 1
        return misfit.values(free.natural(s)).residuals

    try:
        found = least_squares(
            residuals, free.scaled(start), "2-point", bounds=free.scaled_bounds, x_scale="jac", ftol=FIT_TOLERANCE,
            xtol=FIT_TOLERANCE,
        )  # fmt: skip
        cost = float(found.cost)
    except ValueError:  # NaN at the start, or in a difference
        cost = np.inf
    return Outcome(cost, count, time.process_time() - begun)


def cost(starts: int, page: Path | None) -> None:
    """Success and cost from many starts."""
    rows = [["fit", "derivatives", "minimum found", "evaluations", "solves", "CPU / s"]]
    smooth = (pharmacokinetics(1e-6, own=own) for own in (False, True))
    for case in (hysteresis(1e-6), hysteresis(1e-8), ball(1e-6), ball(1e-8), *smooth):
        misfit = misfit_of(case)
        lower, upper = misfit.free.scaled_bounds
        points = [misfit.free.natural(s) for s in latin_hypercube(lower, upper, starts, 0)]
        ratio = _ratio(misfit, points[0])
        found = {"exact": [exact(misfit, q) for q in points], "2-point": [differences(misfit, q) for q in points]}
        least = min(o.cost for outcomes in found.values() for o in outcomes)
        for way, outcomes in found.items():
            right = [o for o in outcomes if o.cost <= (1 + FOUND) * least]
            evaluations = median(o.evaluations for o in right) if right else np.nan
            solves = evaluations * (ratio if way == "exact" else 1.0)
            seconds = median(o.seconds for o in right) if right else np.nan
            rows.append(
                [case.title if way == "exact" else "", way, f"{len(right)} of {starts}", f"{evaluations:.0f}",
                 f"{solves:.0f}", f"{seconds:.2f}"]
            )  # fmt: skip
    show(rows, page, "cost")


def _ratio(misfit: Misfit, q: np.ndarray) -> float:
    """CPU time of an evaluation with derivatives, in simulations."""
    times = []
    for evaluate in (misfit.values, misfit.linearised):
        evaluate(q)
        begun = time.process_time()
        for _ in range(10):
            evaluate(q)
        times.append(time.process_time() - begun)
    return times[1] / times[0]


def published(page: Path | None) -> None:
    """Estimates of theophylline beside published ones."""
    system, options = theophylline.system(), {"rtol": 1e-9, "atol": 1e-11}
    rows = [["subject", "lKe", "R", "lKa", "R", "lCl", "R", "standard errors", "residual"]]
    for subject, experiment in zip(theophylline.SUBJECTS, subjects(), strict=True):
        fit = dh.fit(system, experiment, theophylline.START, **options)
        printed = theophylline.published["nlme"][subject]
        pairs = [cell for name in NAMES for cell in (f"{fit.parameters[name]:.4f}", printed[name])]
        errors = " ".join(f"{error:.4f}" for error in fit.standard_errors)
        rows.append([str(subject), *pairs, errors, f"{np.sqrt(fit.variance):.3f}"])
    fit = dh.fit(system, subjects(), theophylline.START, **options)
    pairs = [cell for name in NAMES for cell in (f"{fit.parameters[name]:.4f}", "")]
    errors = " ".join(f"{error:.4f}" for error in fit.standard_errors)
    rows.append(["pooled", *pairs, errors, f"{np.sqrt(fit.variance):.3f}"])
    show(rows, page, "theophylline")
    _infusions(page)
    _steel(page)


def _infusions(page: Path | None) -> None:
    """Least squares, and maximum likelihood, as published."""
    rows = [["study", "criterion", "Vc", "Vt", "Cl", "Cld"]]
    for study, case in infusions.STUDIES.items():
        system, measured, names = infusions.system(study), infusions.data(study), list(case.start)
        test = dh.Experiment({"conc": measured["conc"]}, measured["time"], t_span=(0, case.end))
        squares = dh.fit(system, test, names, scale="log", rtol=1e-9, atol=1e-11)
        scale: Any = dict.fromkeys([*names, *case.error], "log")
        problem = dh.OptimizationProblem(system, (0, case.end), "deviance", scale=scale, rtol=1e-9, atol=1e-11)
        likely = problem.minimize("L-BFGS-B", ftol=1e-15, gtol=1e-9).parameters
        for criterion, found in (("least squares", squares.parameters), ("likelihood", likely)):
            rows.append([study if criterion == "least squares" else "", criterion, *(f"{found[n]:.5f}" for n in names)])
        rows.append(["", "printed", *(infusions.published[study][n] for n in names)])
    show(rows, page, "infusions")


def _steel(page: Path | None) -> None:
    """Voce and Chaboche, and the updated law."""
    rows = [["law", "estimates", *cyclic_steel.START, "objective"]]
    measured = cyclic_steel.samples()
    test = dh.Experiment({"stress": measured["stress"]}, measured["path"], weights={"stress": measured["weight"]})
    for law, updated in (("original", False), ("updated", True)):
        names, printed = cyclic_steel.names(updated=updated), cyclic_steel.published[law]
        fit = dh.fit(cyclic_steel.system(updated=updated), test, list(names), scale="log", rtol=1e-9, atol=1e-12)
        by_law = cyclic_steel.objective(np.array([float(printed[name]) for name in names]))
        blank = [""] * (len(cyclic_steel.START) - len(names))
        rows.append([law, "fit", *(f"{fit.parameters[name]:.6g}" for name in names), *blank, f"{fit.chi2:.3f}"])
        rows.append(["", "printed", *(f"{float(printed[n]):.6g}" for n in names), *blank, f"{by_law:.3f}"])
    show(rows, page, "steel")


def pictures() -> None:
    """The pictures of the page."""
    PICTURES.mkdir(exist_ok=True)
    system, options = theophylline.system(), {"rtol": 1e-8, "atol": 1e-10}
    own = dh.fit(system, subjects(), NAMES, local=NAMES, **options)
    save(own.plot(), PICTURES / "theophylline.png", dpi=75)
    first = dh.fit(system, subjects()[0], NAMES, **options)
    save(first.profile("lKa").plot(), PICTURES / "profile.png", dpi=90)
    save(first.conditioning.plot(), PICTURES / "conditioning.png", dpi=90)
    save(first.predict(["conc", "gut"], np.linspace(0.0, 24.0, 200)).plot(), PICTURES / "bands.png", dpi=90)
    save(first.plot_residuals(), PICTURES / "residuals.png", dpi=90)
    save(first.plot_correlation(), PICTURES / "correlation.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=["cost", "published", "pictures"])
    parser.add_argument("--write", action="store_true", help="put tables and pictures into docs/")
    arguments = parser.parse_args()
    page = PAGE if arguments.write else None
    if "cost" in arguments.only:
        cost(arguments.starts, page)
    if "published" in arguments.only:
        published(page)
    if "pictures" in arguments.only and arguments.write:
        pictures()


if __name__ == "__main__":
    main()
