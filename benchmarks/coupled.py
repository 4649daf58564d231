"""Derivatives of fully coupled states: ``python benchmarks/coupled.py --write``.

CPU time of a forward analysis by two parameters and of an adjoint over that of a solve, warm; by products with
directions, as they come, and by Jacobians. `--write` puts the table into docs/large_systems.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import casadi as ca
import numpy as np
from measuring import least_ms, show

import dae_hybrid as dh
from dae_hybrid.codegen import products

PAGE = Path(__file__).resolve().parent.parent / "docs" / "large_systems.md"
OPTIONS: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10, "t_eval": [0.0, 10.0]}
HEAD = ["equations", "states", "simulate, ms", "forward", "adjoint", "forward by Jacobians", "adjoint by Jacobians"]


def network(n: int) -> dh.HybridModel:
    """A continuous recurrent network, with its weights as a matrix."""
    m = dh.HybridModel("network")
    k, g, x = m.parameter("k", 1.0), m.parameter("g", 1.5), m.differential("x", size=n)
    weights = np.random.default_rng(0).normal(size=(n, n)) / np.sqrt(n)
    return _run(m, x, -k * x + g * (ca.DM(weights) @ ca.tanh(x)))


def elements(n: int) -> dh.HybridModel:
    """The same equations, element by element."""
    m = dh.HybridModel("elements")
    k, g, x = m.parameter("k", 1.0), m.parameter("g", 1.5), m.differential("x", size=n)
    weights = np.random.default_rng(0).normal(size=(n, n)) / np.sqrt(n)
    rates = [-k * x[i] + g * sum(weights[i, j] * ca.tanh(x[j]) for j in range(n)) for i in range(n)]
    return _run(m, x, ca.vertcat(*rates))


def _run(m: dh.HybridModel, x: ca.MX, rates: ca.MX) -> dh.HybridModel:
    m.initial(m.mode("run", ode={x: rates}), {x: np.linspace(-1, 1, x.numel())})
    m.functional("G", integrand=ca.sumsqr(x) / x.numel())
    return m


MODELS: dict[str, tuple[Callable[[int], dh.HybridModel], tuple[int, ...]]] = {
    "network": (network, (30, 60, 100)),
    "elements": (elements, (30, 60)),
}


def measure(model: dh.HybridModel) -> tuple[float, float, float]:
    """Milliseconds of a solve, a forward analysis and an adjoint."""
    system = model.build()
    calls = dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient
    found = [least_ms(lambda call=call: call(system, (0, 10), **OPTIONS)) for call in calls]  # type: ignore[misc]
    return found[0], found[1], found[2]


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--write", action="store_true", help="write docs/large_systems.md")
    given = parser.parse_args()
    rows = [HEAD]
    for name in given.only:
        model, sizes = MODELS[name]
        for n in sizes:
            solve, forward, adjoint = measure(model(n))
            with patch.object(products, "FEW_ENTRIES", 10**9):
                plain, *by_jacobians = measure(model(n))
            shares = [forward / solve, adjoint / solve, *(v / plain for v in by_jacobians)]
            rows.append([name, str(n), f"{solve:.2f}", *(f"{v:.1f}" for v in shares)])
            print(*rows[-1], flush=True)
    show(rows, PAGE if given.write else None, "coupled")


if __name__ == "__main__":
    main()
