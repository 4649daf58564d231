"""Growth of the cost of the three analyses with events, measurements, knots, outputs, parameters and states.

    python benchmarks/growth.py [--only NAME ...] [--largest N] [--write]

Every problem is solved at a few sizes; the exponent is that of the two largest ones. CPU time, warm, the least of a few
calls. `--write` puts the table into docs/speed.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
from measuring import exponent, least_ms, show

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import growing

import dae_hybrid as dh

PAGE = Path(__file__).resolve().parent.parent / "docs" / "speed.md"
OPTIONS: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}
#: a problem of a size: model, end of the run, further options
type Problem = tuple[dh.HybridModel, float, dict[str, Any]]


def section(n: int) -> Problem:
    """An oscillator whose maxima are counted."""
    m = dh.HybridModel("section")
    w, x, v, k = m.parameter("w", 1.0), m.differential("x"), m.differential("v"), m.memory("k", initial=0)
    run = m.mode("run", ode={x: v, v: -(w**2) * x})
    m.transition(run, run, guard=v, direction="falling", memory={k: k + 1}, name="maximum")
    m.initial(run, {x: 0.0, v: 1.0})
    m.functional("G", integrand=x**2)
    return m, 2 * np.pi * n, {}


def both_ways(n: int) -> Problem:
    """The zeros of an oscillation, counted by a transition for each direction."""
    m = dh.HybridModel("both ways")
    w, x, v, k = m.parameter("w", 1.0), m.differential("x"), m.differential("v"), m.memory("k", initial=0)
    run = m.mode("run", ode={x: v, v: -(w**2) * x})
    m.transition(run, run, guard=x, direction="falling", memory={k: k + 1}, name="down")
    m.transition(run, run, guard=x, direction="rising", memory={k: k + 1}, name="up")
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("G", integrand=x**2)
    return m, np.pi * n, {}


def two_clocks(n: int) -> Problem:
    """Doses and extractions of commensurable periods: one instant in four has both."""
    m = dh.HybridModel("two clocks")
    k, x = m.parameter("k", 0.3), m.differential("x")
    run = m.mode("run", ode={x: -k * x})
    m.transition(run, run, every=1.0, reset={x: x + 0.1}, name="dose")
    m.transition(run, run, every=1.5, reset={x: 0.9 * x}, name="extract")
    m.initial(run, {x: 1.0})
    m.functional("G", integrand=x**2)
    return m, 0.6 * n + 0.2, {}


def ball(n: int) -> Problem:
    """A ball that keeps its energy."""
    m = dh.HybridModel("ball")
    g, x, v = m.parameter("g", 10.0), m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -g})
    m.transition(run, run, guard=x, direction="falling", reset={v: ca.sqrt(2 * g)}, name="impact")
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("G", integrand=x**2, terminal=x)
    return m, (2 * n - 0.5) * math.sqrt(0.2), {}


def thermostat(n: int) -> Problem:
    """A room between two temperatures."""
    m = dh.HybridModel("thermostat")
    power, x = m.parameter("power", 30.0), m.differential("x")
    on, off = m.mode("on", ode={x: power - x}), m.mode("off", ode={x: -x})
    m.transition(on, off, guard=x - 21, direction="rising", name="off")
    m.transition(off, on, guard=x - 19, direction="falling", name="on")
    m.initial(on, {x: 19.0})
    m.functional("G", integrand=x)
    period = math.log(11 / 9) + math.log(21 / 19)
    return m, (n // 2 + 0.3) * period, {}


def modulated(n: int) -> Problem:
    """A converter in open loop: a clock as a state, two guards."""
    m = dh.HybridModel("modulated")
    duty, load = m.parameter("duty", 0.4), m.parameter("load", 1.0)
    i, u, s = m.differential("i"), m.differential("u"), m.differential("s")
    on = m.mode("on", ode={i: 1 - u, u: i - u / load, s: 1})
    off = m.mode("off", ode={i: -u, u: i - u / load, s: 1})
    m.transition(on, off, guard=s - duty, direction="rising", name="open")
    m.transition(off, on, guard=s - 1, direction="rising", reset={s: s - 1}, name="close")
    m.initial(on, {i: 0.0, u: 0.0, s: 0.0})
    m.functional("G", integrand=(u - 0.4) ** 2)
    return m, n / 2 + 0.2, {}


def sampled(n: int) -> Problem:
    """A converter under a controller that samples."""
    return growing.sampled(), n / 2 + 0.2, {}


def decay(name: str) -> tuple[dh.HybridModel, Any, Any, Any]:
    """A dose that is taken up."""
    m = dh.HybridModel(name)
    k, x, y = m.parameter("k", 1.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: -k * x, y: k * x - 0.5 * y})
    m.initial(run, {x: 1.0, y: 0.0})
    return m, run, x, y


def periodic(n: int) -> Problem:
    """Doses, one after the other."""
    m, run, x, y = decay("periodic")
    m.transition(run, run, every=1.0, reset={x: x + 1}, name="dose")
    m.functional("G", integrand=y)
    return m, n + 0.5, {}


def doses(n: int) -> Problem:
    """Doses at given times."""
    m, run, x, y = decay("doses")
    for k in range(1, n + 1):
        m.transition(run, run, at=float(k), reset={x: x + 1}, name=f"dose {k}")
    m.functional("G", integrand=y)
    return m, n + 0.5, {}


def implicit(n: int) -> Problem:
    """Doses by equations."""
    m, run, x, y = decay("implicit")
    m.transition(run, run, every=1.0, reset=[m.post(x) - m.pre(x) - 1], name="dose")
    m.functional("G", integrand=y)
    return m, n + 0.5, {}


def impacts(n: int) -> Problem:
    """A pendulum on constraints that a wall throws back."""
    return growing.impacts(), 1.01585 * math.pi * n, {}


def jumps(n: int) -> Problem:
    """A nonlinear element that is switched: its current is solved for."""
    m = dh.HybridModel("jumps")
    k, u, i, s = m.parameter("k", 1.0), m.differential("u"), m.algebraic("i"), m.memory("s", initial=1.0)
    run = m.mode("run", ode={u: k - i}, algebraic=[i + i**3 - s * u])
    m.transition(run, run, every=1.0, memory={s: 3 - s}, name="switch")
    m.initial(run, {u: 1.0})
    m.functional("G", integrand=u**2)
    return m, n + 0.5, {}


def costs(n: int) -> Problem:
    """Doses with a cost at each."""
    m, run, x, y = decay("costs")
    dose = m.transition(run, run, every=1.0, reset={x: x + 1}, name="dose")
    m.functional("G", at_events={dose: y**2})
    return m, n + 0.5, {}


def measured(n: int) -> Problem:
    """Measurements of a motion without events."""
    m, _, _, y = oscillator("measured")
    m.functional("G", at_times={float(t): (y - 0.3) ** 2 for t in range(1, n + 1)})
    return m, n + 0.5, {}


def oscillator(name: str) -> tuple[dh.HybridModel, Any, Any, Any]:
    """A motion that goes on."""
    m = dh.HybridModel(name)
    k, x, y = m.parameter("k", 1.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: -k * y, y: k * x})
    m.initial(run, {x: 1.0, y: 0.0})
    return m, run, x, y


def knots(n: int) -> Problem:
    """An input from data."""
    m = dh.HybridModel("knots")
    k, x = m.parameter("k", 1.0), m.differential("x")
    times = np.arange(n + 1.0)
    f = m.signal("f", times, np.sin(0.9 * times), kind="linear")
    m.initial(m.mode("run", ode={x: f - k * x}), {x: 0.0})
    m.functional("G", integrand=x**2)
    return m, float(n), {"max_steps": 100 * n + 1000}


def outputs(n: int) -> Problem:
    """Outputs at given times."""
    m, _, x, _ = oscillator("outputs")
    m.functional("G", terminal=x)
    return m, 20.0, {"t_eval": np.linspace(0, 20.0, n)}


def parameters(n: int) -> Problem:
    """Parameters of an oscillator that hits a wall ten times."""
    m = dh.HybridModel("parameters")
    a, x, v = m.parameter("a", np.ones(n)), m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -ca.sum1(a) / n * (1 + x)})
    m.transition(run, run, guard=x, direction="falling", reset={v: -v}, name="impact")
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("G", integrand=x**2)
    return m, 20.0, {}


def states(n: int) -> Problem:
    """Cells of a rod with a thermostat, over about 50 switchings."""
    return growing.rod(n), 30.0, {"t_eval": [0.0, 30.0]}


def followed(n: int) -> Problem:
    """A linear decay with rate 1, driven by an oscillation: nonstiff for any span."""
    m = dh.HybridModel("followed")
    k, x = m.parameter("k", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: k * (ca.sin(m.time) - x)}), {x: 0.0})
    m.functional("G", integrand=x**2)
    return m, float(n), {}


def catalyst(n: int) -> Problem:
    """A stiff transient, until a catalyst is used up, before units of time of an oscillation."""
    m = dh.HybridModel("catalyst")
    k = m.parameter("k", 1e4)
    x, c, y, v = (m.differential(name) for name in ("x", "c", "y", "v"))
    run = m.mode("run", ode={x: -(k * c + 0.1) * (x - y), c: -c, y: v, v: -y})
    m.initial(run, {x: 0.0, c: 1.0, y: 1.0, v: 0.0})
    m.functional("G", integrand=x**2)
    return m, float(n), {}


#: problems with their sizes
PROBLEMS: dict[str, tuple[Callable[[int], Problem], tuple[int, ...]]] = {
    "section": (section, (100, 1000, 10000)),
    "both ways": (both_ways, (100, 1000, 10000)),
    "ball": (ball, (100, 1000, 10000, 100000)),
    "thermostat": (thermostat, (100, 1000, 10000, 100000)),
    "modulated": (modulated, (100, 1000, 10000)),
    "sampled": (sampled, (100, 1000)),
    "two clocks": (two_clocks, (100, 1000, 10000)),
    "periodic": (periodic, (100, 1000)),
    "doses": (doses, (100, 1000, 10000)),
    "implicit": (implicit, (100, 1000)),
    "impacts": (impacts, (100, 1000)),
    "jumps": (jumps, (100, 1000)),
    "costs": (costs, (100, 1000)),
    "measured": (measured, (100, 1000)),
    "knots": (knots, (10, 100, 1000, 10000, 100000)),
    "outputs": (outputs, (100, 1000, 10000)),
    "parameters": (parameters, (1, 10, 100, 1000)),
    "states": (states, (30, 100, 1000, 10000)),
    "followed": (followed, (400, 600, 4000)),
    "catalyst": (catalyst, (100, 1000, 10000)),
}
ANALYSES: dict[str, Callable[..., Any]] = {
    "simulate": lambda system, t_end, **options: dh.simulate(system, (0, t_end), **options),
    "forward": lambda system, t_end, **options: dh.forward_sensitivity(system, (0, t_end), **options),
    "adjoint": lambda system, t_end, **options: dh.adjoint_gradient(system, (0, t_end), "G", **options),
}


def measure(names: Sequence[str], largest: int) -> list[list[str]]:
    """The table."""
    rows = [
        [
            "problem",
            "size",
            *(f"{name}, ms" for name in ANALYSES),
            *(f"{name}, us each" for name in ANALYSES),
            "exponents",
        ]
    ]
    for name in names:
        make, sizes = PROBLEMS[name]
        before: tuple[int, list[float]] | None = None
        for n in [size for size in sizes if size <= largest]:
            model, t_end, more = make(n)
            system = model.build()
            found = []
            for run in ANALYSES.values():
                found.append(least_ms(partial(run, system, t_end, **OPTIONS, **more)))
            exponents = ""
            if before is not None:
                exponents = " ".join(
                    f"{exponent(a, b, n / before[0]):.2f}" for a, b in zip(before[1], found, strict=True)
                )
            rows.append([name, str(n), *(f"{t:.3g}" for t in found), *(f"{1e3 * t / n:.3g}" for t in found), exponents])
            print("  ".join(rows[-1]), flush=True)
            before = n, found
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PROBLEMS, default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--largest", type=int, default=10**9, help="leave out larger sizes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/speed.md")
    given = parser.parse_args()
    warnings.simplefilter("error", dh.DerivativeWarning)
    show(measure(given.only, given.largest), PAGE if given.write else None, "growth")


if __name__ == "__main__":
    main()
