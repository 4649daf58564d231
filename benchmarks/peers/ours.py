"""The library itself, in the ways of `ROWS`: a new method is a new line there."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
from cases import CASES, FORMS, P3, P4, Case
from outcomes import OURS

import dae_hybrid as dh
from peers import Answer, Task, UnsupportedError

name = OURS


@dataclass(frozen=True)
class Row:
    """A way to run it: options of `build` and of the call, and the problems it is for (default: all)."""

    label: str
    build: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()


ROWS = (
    Row("auto"),
    Row("adams", call={"method": "adams"}, only=("P1", "P2", "P3", "D1", "D2")),
    Row("bdf", call={"method": "bdf"}),
    Row("DAE as written", build={"eliminate": False}, only=("P2", "D1", "D2")),
    Row("index 2 direct", build={"index2": "direct"}, only=("D2",)),
)


def version() -> str:
    own = dh.__version__
    if own == "0+unknown":  # not installed
        text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        own = tomllib.loads(text)["project"]["version"]
    return f"dae_hybrid {own}, sundials4py {metadata.version('sundials4py')}"


def rows(case: str) -> list[str]:
    return [row.label for row in ROWS if case in row.only or not row.only]


def model(case: str) -> tuple[dh.HybridModel, tuple[float, float], str]:
    """Declaration, interval and functional."""
    if case == "P3":
        return ball(P3), P3.span, "y3"
    if case == "P4":
        return robertson(P4), P4.span, "G"
    problem, functional = {"P1": ("hybrid_ode", "G"), "P2": ("em_hysteresis", "G")}.get(case) or FORMS[case][:2]
    module = import_module(f"dae_hybrid.problems.{problem}")
    return module.model(), module.t_span, functional


def ball(case: Case) -> dh.HybridModel:
    """P3."""
    m = dh.HybridModel("bouncing_ball")
    e, g = (m.parameter(*pair) for pair in zip(case.names, case.nominal, strict=True))
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v})
    m.initial(flight, dict(zip((y, v), case.x0, strict=True)))
    m.functional("y3", terminal=y)
    return m


def robertson(case: Case) -> dh.HybridModel:
    """P4."""
    m = dh.HybridModel("robertson_regeneration")
    k1, k2, k3, r = (m.parameter(*pair) for pair in zip(case.names, case.nominal, strict=True))
    y1, y2, y3 = (m.differential(name) for name in ("y1", "y2", "y3"))

    def kinetics(s: int) -> dict[Any, Any]:
        slow, fast, back, regeneration = k1 * y1, k2 * y2**2, k3 * y2 * y3, s * r * y3
        return {y1: -slow + back + regeneration, y2: slow - back - fast, y3: fast - regeneration}

    off, on = m.mode("off", ode=kinetics(0)), m.mode("on", ode=kinetics(1))
    m.transition(off, on, guard=y1 - 0.7, direction="falling")
    m.transition(on, off, guard=y1 - 0.85, direction="rising")
    m.initial(off, dict(zip((y1, y2, y3), case.x0, strict=True)))
    m.functional("G", integrand=y3**2)
    return m


def exact(case: str) -> tuple[float, list[float], int]:
    """Exact value, gradient and number of events."""
    if case in CASES:
        return CASES[case].value, list(CASES[case].gradient), CASES[case].events
    module, functional, _, events = FORMS[case]
    reference = import_module(f"dae_hybrid.problems.{module}").reference()
    return float(reference.values[functional]), [float(g) for g in reference.gradients[functional]], events


def prepare(case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
    chosen = next(r for r in ROWS if r.label == row)
    declaration, span, functional = model(case)
    system = declaration.build(**chosen.build)
    options = {"rtol": rtol, "atol": atol, **chosen.call}

    def checked(run: Any) -> Any:
        def call() -> Any:
            try:
                return run()
            except dh.UnsupportedError as error:
                raise UnsupportedError(error.message) from error

        return call

    return {
        "solve": Task(
            checked(lambda: dh.simulate(system, span, **options)),
            lambda sol: Answer(float(np.squeeze(sol.functionals[functional])), None, len(sol.events)),
        ),
        "forward": Task(
            checked(lambda: dh.forward_sensitivity(system, span, **options)),
            lambda fsa: Answer(
                float(np.squeeze(fsa.functionals[functional])), _floats(fsa.gradient[functional]), len(fsa.events)
            ),
        ),
        "adjoint": Task(
            checked(lambda: dh.adjoint_gradient(system, span, functional, **options)),
            lambda asa: Answer(float(np.squeeze(asa.value)), _floats(asa.gradient), len(asa.trajectory.events)),
        ),
    }


def _floats(values: Any) -> list[float]:
    return [float(value) for value in np.ravel(values)]
