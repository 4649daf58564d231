"""The EM model of Serban and Recuero (2019), section 5.2, against hand-written C on the same SUNDIALS.

    python benchmarks/em_against_c.py [--repeats 100] [--write]

Both sides run in turn, in one process tree on one machine; what counts is the ratio of CPU times, the median of five
rounds. The C program (`c/em_hysteresis.c`) does the same work: events, quadrature, sensitivities for four parameters,
adjoint with memory quadratures; accuracy stands beside the time because equal tolerances are not equal errors. *Native*
is the share of the library's compiled loops. ``--write`` puts the table into docs/speed.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from c.build import build
from measuring import cpu_ms, put
from where import PAGE, typical

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis
from dae_hybrid.tables import markdown

ROUNDS = 5
TOLERANCES = {"rtol": 1e-8, "atol": 1e-12}
#: our variants and the C program's family that does the same
VARIANTS = {
    "default (erk, z eliminated)": ({}, {}, "cvodes-adams"),
    "adams, z eliminated": ({}, {"method": "adams"}, "cvodes-adams"),
    "bdf, z eliminated": ({}, {"method": "bdf"}, "cvodes-bdf"),
    "DAE as written (IDAS), as in C": ({"eliminate": False}, {"suppress_algebraic": True}, "idas"),
    "DAE as written (IDAS), default": ({"eliminate": False}, {}, "idas"),
}


def tasks(system: dh.HybridSystem, options: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """What the C program calls forward, fsa and asa."""
    span = em_hysteresis.t_span
    return {
        "forward": lambda: dh.simulate(system, span, **options),
        "fsa": lambda: dh.forward_sensitivity(system, span, **options),
        "asa": lambda: dh.adjoint_gradient(system, span, "G", **options),
    }


def error(gradient: Any, exact: np.ndarray) -> float:
    """Largest relative error of the three components that are not zero."""
    return float(np.abs(np.asarray(gradient)[:3] / exact[:3] - 1).max()) if len(gradient) else float("nan")


def theirs(program: Path, family: str, task: str, repeats: int) -> tuple[float, list[float]]:
    """CPU milliseconds of the C program, and its gradient."""
    command = [str(program), family, task, "1e-8", "1e-12", str(repeats)]
    reply = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return reply["cpu_ms"]["median"], reply["gradient"]


def table(repeats: int) -> str:
    """Every variant and task compared with the C program."""
    exact = np.array([-1.336643883957091555890e-5, 3.266790157646101446010e-3, -1.530224960043961405298e-6, 0.0])
    rows = [["variant", "task", "here, ms", "native, ms", "C, ms", "ratio", "native / C", "error", "error of C"]]
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory))
        for name, (build_options, options, family) in VARIANTS.items():
            system = em_hysteresis.model().build(**build_options)
            for task, run in tasks(system, {**TOLERANCES, **options}).items():
                result, few, pairs = run(), max(1, repeats // ROUNDS), []
                for _ in range(ROUNDS):
                    own, (other, gradient) = cpu_ms(run, few), theirs(program, family, task, few)
                    pairs.append((own / other, own, other, typical(run, few)[1]))
                ratio, own, other, native = sorted(pairs)[ROUNDS // 2]
                found = {"forward": [], "fsa": getattr(result, "gradient", {}), "asa": getattr(result, "gradient", [])}
                mine = found[task]["G"] if task == "fsa" else found[task]
                errors = ["" if task == "forward" else f"{error(g, exact):.0e}" for g in (mine, gradient)]
                rows.append([
                    name, task, f"{own:.2f}", f"{native:.2f}", f"{other:.2f}", f"{ratio:.2f}", f"{native / other:.2f}",
                    *errors,
                ])  # fmt: skip
    return markdown(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="put the table into docs/speed.md")
    arguments = parser.parse_args()
    found = table(arguments.repeats)
    print(found)
    if arguments.write:
        put(PAGE, {"c": found})


if __name__ == "__main__":
    main()
