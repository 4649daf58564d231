"""Time of a call by place: the share of native work, and the cost of each parameter.

    python benchmarks/where.py [--repeats 200] [--write]

The first table is of the problems of run.py at rtol 1e-8: the time of a warm call, the median of many, its share within
native loops (steps, guards, events, sweeps back), what is left to Python, and how many steps and evaluations there
were. The second is of the strip of strip.py, which is stiff, and of a chain of oscillators with a bumper, which is not:
gradients by n parameters against the solve. ``--write`` puts both into docs/speed.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
from cases import TITLES
from measuring import cpu_ms, put
from peers import ours
from strip import strip

import dae_hybrid as dh
from dae_hybrid.adapters.sundials.compiled import BackwardLoop, ForwardLoop
from dae_hybrid.adapters.sundials.native_backward import NativeBackward
from dae_hybrid.adapters.sundials.native_forward import NativeForward
from dae_hybrid.adapters.sundials.native_loop import NativeLoop
from dae_hybrid.adapters.sundials.sweep import DiscreteAdjoint, TableSweep
from dae_hybrid.tables import markdown

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
NATIVE = (
    (NativeForward, "advance"),
    (NativeBackward, "advance"),
    (NativeLoop, "advance"),
    (ForwardLoop, "advance"),
    (BackwardLoop, "advance"),
    (TableSweep, "run"),
    (DiscreteAdjoint, "back"),
)
#: states, parameters
SIZES = ((50, 4), (50, 50), (200, 10), (200, 50), (2000, 10))


@contextmanager
def native_time() -> Iterator[list[float]]:
    """Seconds that calls spend within the native loops."""
    spent, originals = [0.0], [getattr(owner, name) for owner, name in NATIVE]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*given)
            finally:
                spent[0] += time.perf_counter() - start

        return call

    for (owner, name), original in zip(NATIVE, originals, strict=True):
        setattr(owner, name, timed(original))
    try:
        yield spent
    finally:
        for (owner, name), original in zip(NATIVE, originals, strict=True):
            setattr(owner, name, original)


def typical(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median time of a call over `repeats`, and that of its native loops, in milliseconds."""
    pairs = []
    with native_time() as spent:
        for _ in range(repeats):
            spent[0], start = 0.0, time.perf_counter()
            call()
            pairs.append((1e3 * (time.perf_counter() - start), 1e3 * spent[0]))
    return sorted(pairs)[repeats // 2]


def calls(repeats: int) -> str:
    """The first table."""
    rows = [["problem", "call", "ms", "native, ms", "Python, ms", "steps", "evaluations", "native, us per step"]]
    for case in TITLES:
        for name, task in ours.prepare(case, "auto", 1e-8, 1e-12).items():
            for _ in range(3):
                result = task.call()
            whole, native = typical(task.call, repeats)
            run = dict(getattr(result, "trajectory", result).statistics)
            own = run if name != "adjoint" else {k: run[k] + n for k, n in dict(result.statistics).items()}
            rows.append([
                case, name, f"{whole:.2f}", f"{native:.2f}", f"{whole - native:.2f}", f"{own['steps']}",
                f"{own['nfev'] + own['linearisations']}", f"{1e3 * native / own['steps']:.2f}",
            ])  # fmt: skip
    return markdown(rows)


def chain(n: int, pieces: int) -> dh.HybridModel:
    """Oscillators in a row, the last one against a bumper: n states, stiffnesses by piece."""
    m, half = dh.HybridModel("chain"), n // 2
    k = m.parameter("k", 1.0 + 0.3 * np.sin(np.arange(pieces)))
    x, v = m.differential("x", size=half), m.differential("v", size=half)
    spring = k[(np.arange(half + 1) * pieces // (half + 1)).tolist()]
    force = spring * (ca.vertcat(x, 0) - ca.vertcat(0, x))
    run = m.mode("run", ode={x: v, v: force[1:] - force[:-1] - x**3 / 10})
    m.transition(
        run, run, guard=x[half - 1] + 0.2, direction="falling", reset={v: ca.vertcat(v[: half - 1], -0.8 * v[half - 1])}
    )
    m.initial(run, {x: np.sin(np.linspace(0, 3, half)), v: np.zeros(half)})
    m.functional("G", integrand=ca.sumsqr(x) / half)
    return m


def parameters(repeats: int) -> str:
    """The second table."""
    rows = [["problem", "states", "parameters", "solve, ms", "forward / solve", "1 + parameters / 2", "adjoint / solve",
             "steps", "steps forward", "per parameter and step"]]  # fmt: skip
    options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8, "t_eval": [0.0, 4.0]}
    for name, make in (("strip (BDF)", strip), ("chain (erk)", chain)):
        for n, count in SIZES:
            system, span = make(n, count).build(), (0.0, 4.0)
            sol = dh.simulate(system, span, **options)
            fsa = dh.forward_sensitivity(system, span, **options)
            plain = cpu_ms(lambda system=system, span=span: dh.simulate(system, span, **options), repeats)
            few = max(3, repeats // 20)
            direct = cpu_ms(lambda system=system, span=span: dh.forward_sensitivity(system, span, **options), few)
            dh.adjoint_gradient(system, span, "G", **options)
            adjoint = cpu_ms(lambda system=system, span=span: dh.adjoint_gradient(system, span, "G", **options), few)
            steps, more = sol.statistics["steps"], fsa.trajectory.statistics["steps"]
            share = (direct / more - plain / steps) / (plain / steps) / count
            rows.append([
                name, f"{n}", f"{count}", f"{plain:.2f}", f"{direct / plain:.1f}", f"{1 + count / 2:.0f}",
                f"{adjoint / plain:.1f}", f"{steps}", f"{more}", f"{share:.2f}",
            ])  # fmt: skip
    return markdown(rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/speed.md")
    given = parser.parse_args()
    tables = {"calls": calls(given.repeats), "parameters": parameters(max(3, given.repeats // 10))}
    for table in tables.values():
        print(table, end="\n\n")
    if given.write:
        put(PAGE, tables)


if __name__ == "__main__":
    main()
