"""Cost of guards on algebraic variables and on multipliers.

    python benchmarks/guards.py [--only NAME ...] [--largest N] [--write]

Every problem is solved without a guard, with one and with five that never fire, and with one that fires again and
again, on a differential variable and on an algebraic one. CPU time, warm, the least of a few calls. `--write` puts the
table into docs/speed.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import casadi as ca
import numpy as np
from growth import PAGE
from measuring import least_ms, show

import dae_hybrid as dh

OPTIONS: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}


@dataclass(frozen=True)
class Problem:
    """A model with one mode: an algebraic and a differential variable of it, and levels that they pass again and again.

    The algebraic variable stays below `far`.
    """

    model: dh.HybridModel
    mode: Any
    algebraic: tuple[Any, float]
    differential: tuple[Any, float]
    far: float
    t_end: float

    def build(self, never: int, fires: str) -> dh.HybridSystem:
        """The system with `never` guards that never fire, and one that does if `fires` is not empty."""
        m, mode = self.model, self.mode
        for i in range(never):
            m.transition(
                mode, None, guard=self.algebraic[0] - self.far * (1 + i), direction="rising", name=f"limit {i}"
            )
        if fires:
            value, level = getattr(self, fires)
            count = m.memory("count", initial=0)
            m.transition(mode, mode, guard=value - level, memory={count: count + 1}, name="passes")
        return m.build()


def electrode(n: int) -> Problem:
    """Diffusion into a particle under an alternating current; the voltage at its surface follows implicitly."""
    m = dh.HybridModel("electrode")
    t, c, z = m.time, m.differential("c", size=n), m.algebraic("z", guess=0.5)
    current = m.parameter("current", 0.4) * ca.sin(2 * np.pi * t)
    inflow = n * current
    flux = n**2 * (c[1:] - c[:-1])
    rate = ca.vertcat(flux, inflow) - ca.vertcat(0, flux)
    surface = c[n - 1]
    over = z - ca.log(surface / (1 - surface))
    kinetics = ca.sqrt(surface * (1 - surface)) * (ca.exp(over / 2) - ca.exp(-over / 2)) + 0.01 * z**3
    run = m.mode("run", ode={c: rate}, algebraic=[kinetics - current])
    m.initial(run, {c: np.full(n, 0.5)})
    return Problem(m, run, (z, 0.2), (surface, 0.5), far=10.0, t_end=10.0)


def cell(n: int) -> Problem:
    """Concentrations and, as many, potentials of a porous electrode under an alternating current."""
    m = dh.HybridModel("cell")
    n //= 2
    t, c, phi = m.time, m.differential("c", size=n), m.algebraic("phi", size=n, guess=0.0)
    current = m.parameter("current", 1.0) * ca.sin(2 * np.pi * t)
    reaction = ca.sqrt(c) * ca.sinh((phi - ca.log(c)) / 2)
    flux = 0.1 * n**2 * (c[1:] - c[:-1])
    rate = ca.vertcat(flux, 0) - ca.vertcat(0, flux) - 0.2 * reaction
    field = n**2 * (c[1:] + c[:-1]) / 2 * (phi[1:] - phi[:-1])
    charge = ca.vertcat(field, n * current) - ca.vertcat(0, field) - 4 * reaction
    run = m.mode("run", ode={c: rate}, algebraic=[charge / n**2])
    m.initial(run, {c: np.full(n, 0.5)})
    return Problem(m, run, (phi[n - 1], -0.5), (c[n - 1], 0.5), far=20.0, t_end=10.0)


def network(n: int) -> Problem:
    """Flows in a ladder of pipes with pressures as multipliers (index 2), under a demand that comes and goes."""
    m = dh.HybridModel("network")
    nodes = max(2, (n - 2) // 3)  # pairs: two chains of pipes, with rungs
    pipes = [(2 * i + s, 2 * i + 2 + s) for i in range(nodes - 1) for s in (0, 1)]
    pipes += [(2 * i, 2 * i + 1) for i in range(nodes - 1)]
    incidence = np.zeros((2 * nodes, len(pipes)))
    for k, (a, b) in enumerate(pipes):
        incidence[a, k], incidence[b, k] = -1, 1
    inner = ca.sparsify(ca.DM(incidence[1:]))  # the first node is a reservoir
    q, p = m.differential("q", size=len(pipes)), m.algebraic("p", size=2 * nodes - 1)
    length = 1 + 0.3 * np.cos(np.arange(len(pipes)))
    rate = (-inner.T @ p - 2 * q * ca.sqrt(q**2 + 0.01)) / length
    wanted = m.parameter("demand", 1.0) * (1 - ca.cos(2 * np.pi * m.time))
    shares = np.zeros(2 * nodes - 1)
    shares[-1], shares[nodes] = 0.6, 0.4
    run = m.mode("run", ode={q: rate}, constraint=[inner @ q - wanted * shares])
    m.initial(run, {q: np.zeros(len(pipes))})
    return Problem(m, run, (p[2 * nodes - 2], -2.0 * nodes), (q[0], 0.3), far=1e4 * nodes, t_end=5.0)


PROBLEMS: dict[str, tuple[Callable[[int], Problem], tuple[int, ...]]] = {
    "electrode": (electrode, (10, 100, 1000)),
    "cell": (cell, (20, 200, 1000)),
    "network": (network, (20, 200, 500)),
}
#: number of guards that never fire, and the variable of the guard that does
VARIANTS: dict[str, tuple[int, str]] = {
    "none": (0, ""), "one": (1, ""), "five": (5, ""), "state": (0, "differential"), "algebraic": (0, "algebraic"),
}  # fmt: skip


def measure(names: Sequence[str], largest: int) -> list[list[str]]:
    """The table."""
    rows = [
        [
            "problem", "unknowns", "steps", "no guard, ms", "one", "five", "events", "on a state, ms", "on z: events",
            "ms", "ratio an event",
        ]
    ]  # fmt: skip
    for name in names:
        make, sizes = PROBLEMS[name]
        for n in [size for size in sizes if size <= largest]:
            ms, runs, size = {}, {}, 0
            for variant, (never, fires) in VARIANTS.items():
                problem = make(n)
                system = problem.build(never, fires)
                run = partial(dh.simulate, system, (0, problem.t_end), **OPTIONS)
                runs[variant], ms[variant] = run(), least_ms(run)
                size = system.modes[0].equations.n
            events = {variant: len(runs[variant].events) for variant in VARIANTS}
            rows.append(
                [
                    name, str(size), str(runs["none"].statistics["steps"]), f"{ms['none']:.3g}",
                    *(f"{ms[variant] / ms['none']:.2f}" for variant in ("one", "five")),
                    str(events["state"]), f"{ms['state']:.3g}", str(events["algebraic"]), f"{ms['algebraic']:.3g}",
                    f"{ms['algebraic'] / events['algebraic'] / (ms['state'] / events['state']):.2f}",
                ]
            )  # fmt: skip
            print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PROBLEMS, default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--largest", type=int, default=10**9, help="leave out larger sizes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/speed.md")
    given = parser.parse_args()
    show(measure(given.only, given.largest), PAGE if given.write else None, "guards")


if __name__ == "__main__":
    main()
