"""AMICI: the problem in Antimony, compiled to C++ on CVODES.

The guard is the trigger of one event. Its adjoint differentiates a likelihood: with the measurement 0 and the standard
deviation 1 of the result y that is -y^2/2, whose gradient is divided by -y. Backward, the absolute tolerance is a
hundred times that of the solve, because with less most of the backward problems fail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import amici
import amici.sim.sundials as sim
import numpy as np
from amici.importers.antimony import antimony2amici
from amici.importers.utils import MeasurementChannel
from cases import CASES, Case

from peers import Answer, Task, UnsupportedError
from peers._text import NS, Text, write

name = "AMICI"


def version() -> str:
    return f"amici {amici.__version__}"


def rows(case: str) -> list[str]:
    if case not in CASES:
        raise UnsupportedError("one set of equations and states for all modes")
    return ["bdf"] if CASES[case].stiff else ["bdf", "adams"]


def antimony(case: Case) -> str:
    """The model; the integral is the variable q."""
    x = [Text(f"x{i}") for i in range(len(case.x0))]
    m = [Text(f"m{i}") for i in range(len(case.m0))]
    p = [Text(f"par_{name}") for name in case.names]  # p itself is a name of its own
    t = Text("time")
    x_plus, m_plus = case.jump(NS, t, x, m, p)
    lines = [f"{s.text} = {write(v)}" for s, v in zip(p, case.nominal, strict=True)]
    lines += [f"{s.text} = {write(v)}" for s, v in zip([*x, *m], [*case.x0, *case.m0], strict=True)]
    lines += [f"{s.text}' = {write(v)}" for s, v in zip(x, case.rate(NS, t, x, m, p), strict=True)]
    lines += [f"var {s.text}" for s in m]
    if not case.terminal:
        lines += ["q = 0", f"q' = {write(case.cost(NS, t, x, m, p))}"]
    changes = [
        f"{s.text} = {write(v)}" for s, v in zip([*x, *m], [*x_plus, *m_plus], strict=True) if write(v) != s.text
    ]
    trigger = f"{write(case.guard(NS, t, x, m, p))} < 0"
    if case.terminal:  # P3
        trigger += " && x1 < 0"
    lines.append(f"at ({trigger}): {', '.join(changes)}")
    return "\n".join(["model benchmark()", *(f"  {line};" for line in lines), "end"])


def compiled(case: Case) -> Any:
    """The model, from the folder of an earlier run if there is one."""
    folder = Path(os.environ.get("BENCHMARK_CACHE") or tempfile.mkdtemp()) / f"amici_{case.name}"
    module = f"benchmark_{case.name}"
    if not (folder / "done").exists():
        result = "x0" if case.terminal else "q"
        antimony2amici(
            antimony(case),
            model_name=module,
            output_dir=folder,
            observation_model=[MeasurementChannel("result", formula=result, sigma="1.0")],
            compute_conservation_laws=False,
            verbose=False,
        )
        (folder / "done").touch()
    return amici.import_model_module(module, folder).get_model()


def prepare(case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
    stated = CASES[case]
    model = compiled(stated)
    model.set_timepoints([stated.span[1]])
    ids = list(model.get_free_parameter_ids())
    model.set_parameter_list([ids.index(f"par_{name}") for name in stated.names])
    data = sim.ExpData(model)
    data.set_measurements([0.0])
    data.set_noise_scales([1.0])

    def solver(method: Any) -> Any:
        made = model.create_solver()
        made.set_sensitivity_order(sim.SensitivityOrder.first if method else sim.SensitivityOrder.none)
        made.set_sensitivity_method(method or sim.SensitivityMethod.none)
        for kind, factor in (("", 1), ("_fsa", 1), ("_b", 100), ("_quadratures", 100)):
            getattr(made, f"set_relative_tolerance{kind}")(rtol)
            getattr(made, f"set_absolute_tolerance{kind}")(factor * atol)
        made.set_max_steps(1_000_000)
        made.set_linear_solver(sim.LinearSolver.dense)
        made.set_return_data_reporting_mode(sim.RDataReporting.observables_likelihood)
        if row == "adams":
            made.set_stability_limit_flag(False)
            made.set_linear_multistep_method(sim.LinearMultistepMethod.adams)
            made.set_non_linear_solver_iteration(sim.NonlinearSolverIteration.fixedpoint)
        return made

    plain, ahead, back = (
        solver(method) for method in (None, sim.SensitivityMethod.forward, sim.SensitivityMethod.adjoint)
    )

    def read(result: Any) -> Answer:
        if result.status != sim.AMICI_SUCCESS:
            messages = [message.message for message in result.messages][-1:]
            raise RuntimeError(": ".join([sim.simulation_status_to_str(result.status), *messages]))
        value, gradient = float(np.ravel(result.y)[0]), None
        if result.sy is not None:
            gradient = np.ravel(result.sy)
        elif result.sllh is not None:
            gradient = np.ravel(result.sllh) / -value
        return Answer(value, None if gradient is None else [float(g) for g in gradient])

    return {
        "solve": Task(lambda: sim.run_simulation(model, plain), read),
        "forward": Task(lambda: sim.run_simulation(model, ahead), read),
        "adjoint": Task(lambda: sim.run_simulation(model, back, data), read),
    }
