"""The EM model of Serban and Recuero (2019), section 5.2, against hand-written C on the same SUNDIALS.

    python benchmarks/em_against_c.py [--repeats 100]

Both sides run in turn, in one process tree on one machine; what counts is the ratio of CPU times. The C program
(`c/em_hysteresis.c`) does the same work: events, quadrature, sensitivities for four parameters, adjoint with memory
quadratures; accuracy is printed beside the time because equal tolerances are not equal errors.
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
from measuring import cpu_ms

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis

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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    exact = np.array([-1.336643883957091555890e-5, 3.266790157646101446010e-3, -1.530224960043961405298e-6, 0.0])
    print(f"{'variant':32} {'task':8} {'here ms':>8} {'C ms':>8} {'ratio':>6} {'error':>9} {'C error':>9}")
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory))
        for name, (build_options, options, family) in VARIANTS.items():
            system = em_hysteresis.model().build(**build_options)
            for task, run in tasks(system, {**TOLERANCES, **options}).items():
                result = run()
                ours = cpu_ms(run, repeats)
                command = [str(program), family, task, "1e-8", "1e-12", str(repeats)]
                reply = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                gradient = {
                    "forward": [],
                    "fsa": getattr(result, "gradient", {}),
                    "asa": getattr(result, "gradient", []),
                }
                mine = gradient[task]["G"] if task == "fsa" else gradient[task]
                theirs = reply["cpu_ms"]["median"]
                print(
                    f"{name:32} {task:8} {ours:8.2f} {theirs:8.2f} {ours / theirs:6.2f} "
                    f"{error(mine, exact):9.1e} {error(reply['gradient'], exact):9.1e}"
                )


if __name__ == "__main__":
    main()
