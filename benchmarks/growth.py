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


def pulses(n: int) -> Problem:
    """A converter with pulses at times in memory, over a span that ends on one of them."""
    m = dh.HybridModel("pulses")
    duty, load = m.parameter("duty", 0.4), m.parameter("load", 1.0)
    i, u, k = m.differential("i"), m.differential("u"), m.memory("k", initial=0.0)
    on, off = m.mode("on", ode={i: 1 - u, u: i - u / load}), m.mode("off", ode={i: -u, u: i - u / load})
    m.transition(on, off, at=k + duty, name="open")
    m.transition(off, on, at=k + 1, memory={k: k + 1}, name="close")
    m.initial(on, {i: 0.0, u: 0.0})
    m.functional("G", integrand=(u - 0.4) ** 2)
    return m, n / 2, {}


def relays(n: int) -> Problem:
    """Preisach's model of hysteresis: relays with thresholds of their own, about seven switchings of each."""
    m = dh.HybridModel("relays")
    a, u, y = m.parameter("a", 1.0), m.differential("u"), m.differential("y")
    on = [m.memory(f"on{k}", initial=0.0) for k in range(n)]
    run = m.mode("run", ode={u: 2 * a * ca.cos(2 * m.time), y: ca.sum1(ca.vertcat(*on)) / n})
    for k, (low, high) in enumerate(np.sort(np.random.default_rng(0).uniform(-0.95, 0.95, (n, 2)))):
        m.transition(run, run, guard=u - high, direction="rising", memory={on[k]: 1.0}, name=f"up {k}")
        m.transition(run, run, guard=u - low, direction="falling", memory={on[k]: 0.0}, name=f"down {k}")
    m.initial(run, {u: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    return m, 11.0, {}


def ring(n: int) -> Problem:
    """Neurons that fire at a threshold and excite the next one after a delay, five times each."""
    m = dh.HybridModel("ring")
    current, v = m.parameter("current", 1.2), m.differential("v", size=n)
    fired = [m.memory(f"fired{k}", initial=-1e3) for k in range(n)]
    run = m.mode("run", ode={v: current - v})
    for k, one in enumerate(np.eye(n)):
        own = {"reset": {v: v * (1 - one)}, "memory": {fired[k]: m.time}}
        m.transition(run, run, guard=v[k] - 1, direction="rising", name=f"fire {k}", **own)
        m.transition(run, run, at=fired[k] + 0.3, reset={v: v + 0.1 * np.roll(one, 1)}, name=f"arrive {k}")
    m.initial(run, {v: np.linspace(0, 0.9, n)})
    m.functional("G", terminal=v[0])
    return m, 5.0, {}


def drive(n: int) -> Problem:
    """A motor on an inverter of three phases, under sampled control: eight events in a period."""
    m = dh.HybridModel("drive")
    kp, ki = m.parameter("kp", 2.0), m.parameter("ki", 800.0)
    volts, period = 48.0, 1e-4
    i_d, i_q, w, theta = (m.differential(name) for name in ("i_d", "i_q", "w", "theta"))
    x_d, x_q = m.discrete("x_d", initial=0.0), m.discrete("x_q", initial=0.0)
    duty = [m.discrete(f"duty{k}", initial=0.5) for k in range(3)]
    begun, on = m.memory("begun", initial=0.0), [m.memory(f"on{k}", initial=0.0) for k in range(3)]
    v_a, v_b, v_c = (volts * (s - 0.5) for s in on)
    v_a, v_b = v_a - (v_a + v_b + v_c) / 3, (v_b - v_c) / math.sqrt(3)
    v_d, v_q = ca.cos(theta) * v_a + ca.sin(theta) * v_b, ca.cos(theta) * v_b - ca.sin(theta) * v_a
    rates = {i_d: 1e3 * (v_d - 0.1 * i_d) + 4 * w * i_q, i_q: 1e3 * (v_q - 0.1 * i_q) - 4 * w * (i_d + 30)}
    run = m.mode("run", ode={**rates, w: 900 * i_q - 250, theta: 4 * w})
    clock = m.clock(period, name="sample")
    u_d, u_q = x_d - kp * i_d, kp * (20 - i_q) + x_q
    a, b = ca.cos(theta) * u_d - ca.sin(theta) * u_q, ca.sin(theta) * u_d + ca.cos(theta) * u_q
    phases = (a, -a / 2 + math.sqrt(0.75) * b, -a / 2 - math.sqrt(0.75) * b)
    duties = {d: ca.fmin(ca.fmax(0.5 + u / volts, 0.02), 0.98) for d, u in zip(duty, phases, strict=True)}
    m.update(clock, {x_d: x_d - ki * period * i_d, x_q: x_q + ki * period * (20 - i_q), **duties})
    m.transition("all", "same", every=clock, memory={begun: m.time}, name="start")
    for k in range(3):
        m.transition(run, run, at=begun + (1 - duty[k]) / 2 * period, memory={on[k]: 1.0}, name=f"on {k}")
        m.transition(run, run, at=begun + (1 + duty[k]) / 2 * period, memory={on[k]: 0.0}, name=f"off {k}")
    m.initial(run, {i_d: 0.0, i_q: 0.0, w: 0.0, theta: 0.0})
    m.functional("G", integrand=(i_q - 20) ** 2)
    return m, period * n / 8, {}


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
    "pulses": (pulses, (100, 1000, 10000)),
    "relays": (relays, (10, 30, 100)),
    "ring": (ring, (3, 10, 20)),
    "drive": (drive, (100, 800)),
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
