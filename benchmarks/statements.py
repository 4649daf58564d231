"""Cost of the same motion in different statements.

    python benchmarks/statements.py [--size N] [--write]

A first-order lag is switched over at every unit of time: by a guard, by clocks and lists of times, by a signal, with
equations in the reset, with an algebraic variable. A smooth input that is measured as often has no events at all.
CPU time, warm, the least of a few calls. `--write` puts the table into docs/speed.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from growth import ANALYSES, OPTIONS, PAGE
from measuring import least_ms, show

import dae_hybrid as dh


def lag(name: str, *, phase: bool, algebraic: bool = False) -> tuple[dh.HybridModel, Any, Any, Any, Any]:
    """A lag that follows an input of +1 or -1; its mode, the variable, the input and the phase, if any."""
    m = dh.HybridModel(name)
    tau, y, u = m.parameter("tau", 0.7), m.differential("y"), m.memory("u", initial=1.0)
    ode: dict[Any, Any] = {y: (u - y) / tau}
    equations = []
    if algebraic:
        z = m.algebraic("z", guess=0.5)
        equations, ode[y] = [z + 0.1 * z**5 - u], (z - y) / tau
    s = m.differential("s") if phase else None
    if s is not None:
        ode[s] = 1 + 0.01 * y
    go = m.mode("go", ode=ode, algebraic=equations)
    m.initial(go, {y: 0.0} | ({} if s is None else {s: 0.0}))
    m.functional("G", integrand=y**2, terminal=y)
    return m, go, y, u, s


def guard(_: int) -> dh.HybridModel:
    """A guard on a phase."""
    m, go, _, u, s = lag("guard", phase=True)
    m.transition(go, go, guard=s - 1, direction="rising", reset={s: s - 1}, memory={u: -u})
    return m


def equations_in_reset(_: int) -> dh.HybridModel:
    """The same with equations for the state after it."""
    m, go, y, u, s = lag("equations", phase=True)
    equations = [m.post(s) - m.pre(s) + 1, m.post(y) - m.pre(y)]
    m.transition(go, go, guard=s - 1, direction="rising", reset=equations, memory={u: -u})
    return m


def algebraic(_: int) -> dh.HybridModel:
    """The same with an algebraic variable."""
    m, go, _, u, s = lag("algebraic", phase=True, algebraic=True)
    m.transition(go, go, guard=s - 1, direction="rising", reset={s: s - 1}, memory={u: -u})
    return m


def period(_: int) -> dh.HybridModel:
    """A clock."""
    m, go, _, u, _ = lag("period", phase=False)
    m.transition(go, go, every=1.0, memory={u: -u})
    return m


def times(n: int) -> dh.HybridModel:
    """A list of times."""
    m, go, _, u, _ = lag("times", phase=False)
    for i in range(1, n):
        m.transition(go, go, at=float(i), memory={u: -u})
    return m


def costs(_: int) -> dh.HybridModel:
    """A clock, whose ticks cost something."""
    m, go, y, u, _ = lag("costs", phase=False)
    tick = m.transition(go, go, every=1.0, memory={u: -u})
    m.functional("cost", at_events={tick: y**2})
    return m


def knots(n: int) -> dh.HybridModel:
    """A signal."""
    m = dh.HybridModel("knots")
    tau, y = m.parameter("tau", 0.7), m.differential("y")
    u = m.signal("u", np.arange(n + 1.0), (-1.0) ** np.arange(n + 1), kind="previous")
    go = m.mode("go", ode={y: (u - y) / tau})
    m.initial(go, {y: 0.0})
    m.functional("G", integrand=y**2, terminal=y)
    return m


def measurements(n: int) -> dh.HybridModel:
    """A smooth input and measurements."""
    m = dh.HybridModel("measurements")
    tau, y = m.parameter("tau", 0.7), m.differential("y")
    go = m.mode("go", ode={y: (np.cos(np.pi * m.time) - y) / tau})
    m.initial(go, {y: 0.0})
    m.functional("G", integrand=y**2, terminal=y)
    m.functional("square", at_times={float(i): y**2 for i in range(1, n)})
    return m


STATEMENTS: dict[str, Callable[[int], dh.HybridModel]] = {
    "guard on a phase": guard,
    "equations in the reset": equations_in_reset,
    "algebraic variable": algebraic,
    "every=": period,
    "at=": times,
    "costs at events": costs,
    "signal with knots": knots,
    "measurements": measurements,
}


def measure(n: int) -> list[list[str]]:
    """The table."""
    head = [f"{name}, us each" for name in ANALYSES]
    found = {}
    for name, make in STATEMENTS.items():
        system = make(n).build()
        found[name] = [1e3 * least_ms(partial(run, system, n - 0.5, **OPTIONS)) / n for run in ANALYSES.values()]
        print(name, *(f"{t:.1f}" for t in found[name]), flush=True)
    cheapest = [min(own) for own in zip(*found.values(), strict=True)]
    return [
        ["statement", *head, "times the cheapest"],
        *(
            [name, *(f"{t:.1f}" for t in own), " ".join(f"{t / c:.1f}" for t, c in zip(own, cheapest, strict=True))]
            for name, own in found.items()
        ),
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=500, help="how often the input is switched over")
    parser.add_argument("--write", action="store_true", help="put the table into docs/speed.md")
    given = parser.parse_args()
    warnings.simplefilter("error", dh.DerivativeWarning)
    show(measure(given.size), PAGE if given.write else None, "statements")


if __name__ == "__main__":
    main()
