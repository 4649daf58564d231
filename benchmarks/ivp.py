"""Problems of the Test Set for IVP Solvers: ``python benchmarks/ivp.py --write`` writes docs/ivp.md.

Correct digits, steps and CPU time of a solve at several tolerances, beside CasADi's interfaces to CVODES and IDAS on
the same equations, and the digits to which forward and adjoint gradients agree. The statements and reference values
are those of `dae_hybrid.problems.ivp_test_set`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
from measuring import cpu_ms

import dae_hybrid as dh
from dae_hybrid.problems.ivp_test_set import PROBLEMS, IvpProblem, final
from dae_hybrid.tables import markdown

RTOLS = (1e-4, 1e-6, 1e-8, 1e-10)
#: the ring modulator takes a hundred thousand steps at the first of them
LOOSE = {"ring_modulator": RTOLS[:2]}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "ivp.md"
MOST_STEPS = 500_000
#: milliseconds from which on a solve is timed once
SLOW = 500.0


@dataclass(frozen=True)
class Outcome:
    """A solve: correct digits, steps and milliseconds, or None where it failed."""

    digits: float
    steps: int
    milliseconds: float

    @property
    def cells(self) -> list[str]:
        """For the table."""
        return [f"{self.digits:.1f}", str(self.steps), f"{self.milliseconds:.3g}"]


def ours(problem: IvpProblem, system: dh.HybridSystem, rtol: float, repeats: int) -> Outcome | None:
    """A solve by this library, as it comes."""
    options: dict[str, Any] = problem.tolerances(rtol) | {"max_steps": MOST_STEPS}
    try:
        found = dh.simulate(system, (0, problem.end), **options)
    except dh.DaeHybridError as error:
        print(f"{problem.title}, rtol {rtol:.0e}: {error}", file=sys.stderr)
        return None
    took = cpu_ms(lambda: dh.simulate(system, (0, problem.end), t_eval=[problem.end], **options), repeats)
    return Outcome(problem.digits(final(found)), found.statistics["steps"], took)


def casadi_solver(problem: IvpProblem, system: dh.HybridSystem, rtol: float) -> tuple[Callable[[], Any], Any, Any]:
    """A run by CasADi's integrator of the equations that are integrated here, the integrator, and the equations."""
    e = system.modes[0].equations
    start = dh.simulate(system, (0, problem.end * 1e-9), rtol=1e-6)
    values, ny = start.segments[0].states[0], e.n_differential
    t, y, z = ca.MX.sym("t"), ca.MX.sym("y", ny), ca.MX.sym("z", e.n - ny)
    flow = e.functions["flow"].function
    rows = flow(t, ca.vertcat(y, z), ca.DM.zeros(e.n_memory), ca.DM(system.nominal))[0]
    dae = {"t": t, "x": y, "ode": rows[:ny]}
    if e.n > ny:
        dae |= {"z": z, "alg": rows[ny:]}
    tolerances = problem.tolerances(rtol)
    options = {"reltol": rtol, "abstol": tolerances["atol"], "max_num_steps": MOST_STEPS}
    solver = ca.integrator("peer", "idas" if e.n > ny else "cvodes", dae, 0, problem.end, options)
    return lambda: solver(x0=values[:ny], z0=values[ny:]), solver, e


def casadi(problem: IvpProblem, system: dh.HybridSystem, rtol: float, repeats: int) -> Outcome | None:
    """A solve by CasADi, which knows no transitions."""
    if system.transitions:
        return None
    run, solver, e = casadi_solver(problem, system, rtol)
    start = time.process_time()
    try:
        found = run()
    except RuntimeError as error:
        print(f"{problem.title}, rtol {rtol:.0e}, CasADi: {str(error).splitlines()[-1]}", file=sys.stderr)
        return None
    took = 1e3 * (time.process_time() - start)
    end = np.concatenate((np.array(found["xf"]).ravel(), np.array(found["zf"]).ravel()))
    values = dict(zip(e.variables.labels(), end.tolist(), strict=True))
    took = took if took > SLOW else cpu_ms(run, repeats)
    return Outcome(problem.digits(values), int(solver.stats()["nsteps"]), took)


def agreement(problem: IvpProblem, system: dh.HybridSystem, rtol: float) -> float | None:
    """Digits to which forward and adjoint gradients of the problem's functional agree."""
    if not problem.wrt:
        return None
    options: dict[str, Any] = problem.tolerances(rtol) | {"max_steps": MOST_STEPS, "wrt": problem.wrt}
    try:
        forward = dh.forward_sensitivity(system, (0, problem.end), **options).gradient["G"]
        adjoint = dh.adjoint_gradient(system, (0, problem.end), functional="G", **options).gradient
    except dh.DaeHybridError as error:
        print(f"{problem.title}, rtol {rtol:.0e}, gradients: {error}", file=sys.stderr)
        return None
    nominal = np.concatenate([np.atleast_1d(system.nominal[system.parameters[name]]) for name in problem.wrt])
    one, other = forward * nominal, adjoint * nominal
    return float(-np.log10(max(np.abs(one - other).max() / np.abs(one).max(), 1e-16)))


def rows(names: Sequence[str], rtols: Sequence[float], repeats: int) -> list[list[str]]:
    """The table."""
    table = [
        [
            "problem", "kind", "rtol", "digits", "steps", "ms", "CasADi: digits", "steps", "ms", "FSA = ASA: digits"
        ]
    ]  # fmt: skip
    for name in names:
        problem = PROBLEMS[name]
        system, whole = problem.model().build(), problem.model().build(eliminate=False)
        for i, rtol in enumerate(r for r in rtols if r in LOOSE.get(name, RTOLS)):
            found, peer = ours(problem, system, rtol, repeats), casadi(problem, whole, rtol, repeats)
            digits = agreement(problem, system, rtol)
            table.append([
                problem.title if i == 0 else "", problem.kind if i == 0 else "", f"{rtol:.0e}",
                *(["failed", "", ""] if found is None else found.cells),
                *([["failed", ""][bool(whole.transitions)], "", ""] if peer is None else peer.cells),
                "" if digits is None else f"{digits:.1f}",
            ])  # fmt: skip
            print(" ".join(table[-1]), flush=True)
    return table


def sources() -> list[list[str]]:
    """Where the reference values come from."""
    return [["problem", "reference values"], *([p.title, p.source] for p in PROBLEMS.values())]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/ivp.md")
    parser.add_argument("--problems", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    table = markdown(rows(given.problems, RTOLS, given.repeats))
    if not given.write:
        return
    PAGE.write_text(
        "# The Test Set for IVP Solvers\n\n"
        "Written by `python benchmarks/ivp.py --write`. The problems are those of the test set of the University of "
        "Bari, stated from their public definitions in [problems/ivp_test_set.py](../problems/ivp_test_set.py) and "
        "[problems/ivp_circuits.py](../problems/ivp_circuits.py). The tubes switch between laminar and turbulent flow "
        "by transitions, which CasADi does not support. *digits* is the number of correct digits of the worst "
        "component at the end, compared with the reference values of the test set; errors are relative to the value "
        "plus the ratio of atol to rtol. *steps* and *ms* (CPU time) are those of one simulation with the default "
        "method. CasADi's CVODES and IDAS integrate the same equations with the same tolerances in the same process, "
        "index 2 with the derivatives of the constraints. The last column is the number of digits to which forward "
        "and adjoint gradients agree in their largest component, in units of the parameters. A simulation has failed "
        "if it takes more than 500,000 steps or ends in an error. The last column is empty if a gradient failed, or "
        "if there is no natural parameter. The jumps of VDPOL and OREGO magnify errors of the derivatives 1e4 to 1e6 "
        "times in either analysis. Where that leaves less than two digits, a `ConditionWarning` accompanies both "
        "gradients.\n\n"
        f"{table}\n\n## Reference values\n\n{markdown(sources())}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
