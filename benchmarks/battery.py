"""Charging cycles of lithium-ion cells stated by PyBaMM: builds, runs and gradients compared with PyBaMM's own.

The single particle model with electrolyte (SPMe) and the Doyle-Fuller-Newman model (DFN) of PyBaMM, with its parameters
"Chen2020" (5 A h) and its default mesh, go through three cycles of five steps, which are 15 transitions:

    discharge at 5 A until 3.0 V; rest for 30 minutes; charge at 2.5 A until 4.1 V; hold 4.1 V until the current has
    fallen to 0.25 A; rest for an hour

The gradient is that of the voltage at the end by five parameters, across all transitions. PyBaMM solves the same cycles
by an experiment of these steps, with its IDAKLU solver (SUNDIALS' IDAS with KLU), at the same tolerances; its values at
changed parameters give central differences, extrapolated from two step sizes.

    pip install -r benchmarks/requirements/battery.txt
    python benchmarks/battery.py                 both models, each in a process and with a cache of its own
    python benchmarks/battery.py --only SPMe --write    one of them; also into docs/battery.md
    python benchmarks/battery.py --costs --write        without the gradients, which take longest

Times are CPU times.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pybamm
from measuring import least_ms, put
from pybamm_model import Step, model_from_pybamm

import dae_hybrid as dh
from dae_hybrid.tables import markdown

MODELS = ("SPMe", "DFN")
CYCLES, LATEST = 3, 1e5
STEPS = (
    Step("discharge", "current", 5.0, "voltage", 3.0, "falling"),
    Step("rest", "current", 0.0, "time", 1800.0),
    Step("charge", "current", -2.5, "voltage", 4.1),
    Step("hold", "voltage", 4.1, "current", -0.25),
    Step("pause", "current", 0.0, "time", 3600.0),
)
NAMES = {
    "Negative particle diffusivity [m2.s-1]": "D_n",
    "Positive particle diffusivity [m2.s-1]": "D_p",
    "Negative electrode active material volume fraction": "eps_n",
    "Positive electrode active material volume fraction": "eps_p",
    "Cation transference number": "t_plus",
}
#: of runs that are timed, and of those that are compared; of PyBaMM's, for differences
TIMED, COMPARED, REFERENCE = (dict.fromkeys(("rtol", "atol"), tolerance) for tolerance in (1e-6, 1e-9, 1e-10))
#: relative changes of parameters
CHANGES = (0.01, 0.02)
DOCUMENT = Path(__file__).parents[1] / "docs" / "battery.md"


def cell(name: str) -> dh.HybridModel:
    """The cell in its cycles; V is the voltage at the end."""
    model = getattr(pybamm.lithium_ion, name)({"operating mode": "voltage"})
    m, reported = model_from_pybamm(model, pybamm.ParameterValues("Chen2020"), NAMES, STEPS, CYCLES)
    m.functional("V", terminal=reported["voltage"])
    return m


def experiment(name: str, tolerances: dict[str, float]) -> tuple[pybamm.Simulation, dict[str, float]]:
    """The same in PyBaMM, and nominal values of the parameters."""
    steps = []
    for step in STEPS:
        make = getattr(pybamm.step, step.hold)
        if step.until == "time":
            steps.append(make(step.value, duration=step.limit, period=step.limit))
        else:
            ending = f"{abs(step.limit)}{'V' if step.until == 'voltage' else 'A'}"
            steps.append(make(step.value, termination=ending, period=600.0))
    values = pybamm.ParameterValues("Chen2020")
    nominal = {key: float(values[key]) for key in NAMES}
    values.update(dict.fromkeys(NAMES, "[input]"))
    simulation = pybamm.Simulation(
        getattr(pybamm.lithium_ion, name)(),
        experiment=pybamm.Experiment([tuple(steps)] * CYCLES),
        parameter_values=values,
        solver=pybamm.IDAKLUSolver(**tolerances),
    )
    return simulation, nominal


def differences(name: str) -> np.ndarray:
    """dV/dp by central differences of PyBaMM's solutions, extrapolated."""
    simulation, nominal = experiment(name, REFERENCE)

    def voltage(key: str, change: float) -> float:
        solution = simulation.solve(inputs={**nominal, key: nominal[key] * (1 + change)})
        return float(solution["Voltage [V]"].entries[-1])

    found = []
    for key, value in nominal.items():
        fine, coarse = ((voltage(key, h) - voltage(key, -h)) / (2 * h * value) for h in CHANGES)
        found.append(fine + (fine - coarse) / ((CHANGES[1] / CHANGES[0]) ** 2 - 1))
    return np.array(found)


def own_sensitivities(name: str) -> np.ndarray:
    """dV/dp as PyBaMM gives it."""
    simulation, nominal = experiment(name, REFERENCE)
    solution = simulation.solve(inputs=nominal, calculate_sensitivities=list(nominal))
    found = solution["Voltage [V]"].sensitivities
    return np.array([float(np.asarray(found[key]).ravel()[-1]) for key in nominal])


def spent(who: int) -> float:
    """CPU time of this process, or of those that it has waited for."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def measured(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it returns, and CPU time of this process and of the compiler."""
    before = [spent(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    result = run()
    own, compiler = (
        spent(who) - start for who, start in zip((resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN), before, strict=True)
    )
    return result, own, compiler


def measure(name: str, *, compare: bool) -> dict[str, Any]:
    """Cost of one model, and its gradient against others if `compare`."""
    warnings.simplefilter("ignore")  # of PyBaMM
    pybamm.set_logging_level("ERROR")
    first = dh.HybridModel("first")  # compiles the parts common to all models
    x = first.differential("x")
    first.initial(first.mode("run", ode={x: -x}), {x: 1.0})
    dh.simulate(first.build(), (0, 1), method="bdf")
    model, stating, _ = measured(partial(cell, name))
    system, building, compiling = measured(model.build)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    _, again, compiling_again = measured(cell(name).build)
    wrt, span = list(NAMES.values()), (0.0, LATEST)
    calls: dict[str, Callable[[], Any]] = {
        "simulate": partial(dh.simulate, system, span, **TIMED),
        "adjoint": partial(dh.adjoint_gradient, system, span, "V", wrt=wrt, **TIMED),
        "forward": partial(dh.forward_sensitivity, system, span, wrt=wrt, t_eval=[0.0], **TIMED),
    }
    changed = {"parameters": {"D_n": 3e-14, "discharge_value": 4.5, "hold_limit": -0.2}}
    _, _, compiling_changed = measured(partial(dh.simulate, system, span, **changed, **TIMED))
    simulation, nominal = experiment(name, TIMED)
    calls["idaklu"] = partial(simulation.solve, inputs=nominal)
    for call in calls.values():
        call()
    ms = {key: least_ms(call) for key, call in calls.items()}
    sol = calls["simulate"]()
    gradients = {}
    if compare:
        gradients = {
            "differences": differences(name),
            "adjoint": dh.adjoint_gradient(system, span, "V", wrt=wrt, **COMPARED).gradient,
            "forward": dh.forward_sensitivity(system, span, wrt=wrt, t_eval=[0.0], **COMPARED).gradient["V"],
            "own": own_sensitivities(name),
        }
    mode = system.modes[0]
    return {
        "name": name, "states": mode.differential.size, "algebraic": mode.algebraic.size, "events": len(sol.events),
        "stating": stating, "building": building, "compiling": compiling, "peak": peak, "again": again,
        "compiling again": compiling_again + compiling_changed, "ms": ms, "steps": sol.statistics["steps"],
        "gradients": {key: np.asarray(value).ravel().tolist() for key, value in gradients.items()},
        "nominal": list(nominal.values()),
    }  # fmt: skip


def costs(found: list[dict[str, Any]]) -> str:
    """The table of costs."""
    wanted = 1 + len(NAMES) / 2
    rows = [["", *(row["name"] for row in found), "aim"]]
    lines: list[tuple[str, Callable[[dict[str, Any]], str], str]] = [
        ("differential, algebraic variables", lambda r: f"{r['states']}, {r['algebraic']}", ""),
        ("events", lambda r: f"{r['events']}", ""),
        ("PyBaMM's statement and discretisation, s", lambda r: f"{r['stating']:.1f}", ""),
        ("first build: Python, compiler, s", lambda r: f"{r['building']:.1f}, {r['compiling']:.1f}", "20"),
        ("peak memory of Python or the compiler, MB", lambda r: f"{r['peak']:.0f}", "1500"),
        ("build from the cache, s", lambda r: f"{r['again']:.1f}", ""),
        ("compiler, for other parameters and limits, s", lambda r: f"{r['compiling again']:.1f}", "0"),
        ("simulate, ms", lambda r: f"{r['ms']['simulate']:.0f}", ""),
        ("IDAKLU, ms", lambda r: f"{r['ms']['idaklu']:.0f}", ""),
        ("simulate / IDAKLU", lambda r: f"{r['ms']['simulate'] / r['ms']['idaklu']:.2f}", "1.5"),
        ("adjoint / simulate", lambda r: f"{r['ms']['adjoint'] / r['ms']['simulate']:.1f}", "4"),
        ("forward / simulate", lambda r: f"{r['ms']['forward'] / r['ms']['simulate']:.1f}", f"{wanted:.1f}"),
    ]
    rows += [[what, *(show(row) for row in found), aim] for what, show, aim in lines]
    return markdown(rows)


def gradients(found: list[dict[str, Any]]) -> str:
    """The table of p dV/dp, with differences from those of IDAKLU as shares of the largest."""
    rows = [["p dV/dp, mV", "differences of IDAKLU", "adjoint", "off by", "forward", "off by", "PyBaMM's own"]]
    for row in found:
        values = {key: 1e3 * np.array(value) * row["nominal"] for key, value in row["gradients"].items()}
        truth = values["differences"]
        off = {key: np.abs(values[key] - truth) / np.abs(truth).max() for key in values}
        for i, key in enumerate(NAMES.values()):
            rows.append([
                f"{row['name']}: {key}", f"{truth[i]:.6f}", f"{values['adjoint'][i]:.6f}", f"{off['adjoint'][i]:.0e}",
                f"{values['forward'][i]:.6f}", f"{off['forward'][i]:.0e}", f"{values['own'][i]:.6f}",
            ])  # fmt: skip
    return markdown(rows)


def in_processes(names: list[str], options: list[str]) -> list[dict[str, Any]]:
    """Measure every model in a separate process with its own cache."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as cache:
            environment = {"PYBAMM_DISABLE_TELEMETRY": "true"} | os.environ
            environment |= {"DAE_HYBRID_CACHE": cache, "OPENBLAS_NUM_THREADS": "1"}
            start = time.perf_counter()
            done = subprocess.run(
                [sys.executable, __file__, "--one", name, *options], env=environment, stdout=subprocess.PIPE,
                text=True, check=True,
            )  # fmt: skip
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--costs", action="store_true", help="leave the gradients out")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/battery.md")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, compare=not given.costs)))
        return
    found = in_processes(given.only, ["--costs"] if given.costs else [])
    tables = {"battery": costs(found), "battery_versions": f"PyBaMM {pybamm.__version__}"}
    if not given.costs:
        tables["battery_gradients"] = gradients(found)
    print(*tables.values(), sep="\n\n")
    if given.write:
        put(DOCUMENT, tables)


if __name__ == "__main__":
    main()
