"""CasADi's integrators with events: erk, or rosenbrock where the problem is stiff, interpreted and compiled.

An event integrator takes the constants m as states without a rate, the guard as `zero` and the jump as `transition`.
Derivatives are those of the call, in forward or in reverse mode; with `jit` the whole function is one C file. Its
cvodes and idas have no sensitivities across events (casadi issue 4303), which is why they are not here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import casadi as ca
import numpy as np
from cases import CASES, Case, force, stress

from peers import Answer, Task, UnsupportedError

name = "CasADi"

JIT: dict[str, Any] = {"jit": True, "compiler": "shell", "jit_options": {"flags": ["-O3"], "cleanup": True}}
#: room for the steps of a compiled adjoint, which cannot grow
TAPE = 20_000
NS = SimpleNamespace(sin=ca.sin, exp=ca.exp, sinh=ca.sinh)


def version() -> str:
    return f"casadi {ca.CasadiMeta.version()}"


def rows(case: str) -> list[str]:
    if case not in CASES:
        raise UnsupportedError("its integrators with events take ODEs and semi-explicit DAEs of index 1")
    method = "rosenbrock" if CASES[case].stiff else "erk"
    return [method, f"{method}, jit", *(["rosenbrock on the DAE, jit"] if case == "P2" else [])]


def integrator(case: Case, method: str, rtol: float, atol: float, *, dae: bool) -> Any:
    """The integrator as a CasADi function, with z of P2 as an algebraic variable if `dae`."""
    n = len(case.x0)
    t, parameters = ca.SX.sym("t"), ca.SX.sym("p", len(case.nominal))
    p = [parameters[i] for i in range(len(case.nominal))]
    states, u = ca.SX.sym("x", n + len(case.m0)), ca.SX.sym("u", 0)
    x, m = ([states[i] for i in part] for part in (range(n), range(n, states.numel())))
    z = ca.SX.sym("z", int(dae))
    rate = [x[1], force(NS, t) - z] if dae else case.rate(NS, t, x, m, p)
    post = ca.vertcat(*(value for part in case.jump(NS, t, x, m, p) for value in part))
    problem: dict[str, Any] = {
        "t": t,
        "x": states,
        "p": parameters,
        "ode": ca.vertcat(*rate, *np.zeros(len(m))),
        "zero": case.guard(NS, t, x, m, p),
    }
    if dae:
        problem |= {"z": z, "alg": stress(NS, x[0], m, p) - z}
    if not case.terminal:
        problem["quad"] = case.cost(NS, t, x, m, p)
    transition = ca.Function(
        "transition", [ca.SX.sym("i"), t, states, z, parameters, u], [post, z], ca.event_in(), ca.event_out()
    )
    options: dict[str, Any] = {
        "reltol": rtol,
        "abstol": atol,
        "transition": transition,
        "max_events": 1000,
        "max_tape_steps": TAPE,
    }
    options["max_num_steps"] = 1_000_000
    return ca.integrator("run", method, problem, *case.span, options)


def prepare(case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
    warnings.simplefilter("ignore")
    ca.GlobalOptions.setNumpyMode(-1)
    stated = CASES[case]
    run = integrator(stated, row.split()[0].rstrip(","), rtol, atol, dae="DAE" in row)
    p = ca.MX.sym("p", len(stated.nominal))
    end = run(x0=ca.DM([*stated.x0, *stated.m0]), p=p)
    value = end["xf"][0] if stated.terminal else end["qf"]
    plain = ca.Function("solve", [p], [value])
    options = JIT if "jit" in row else {}
    forward = plain.forward(p.numel())(p, value, ca.MX.eye(p.numel()))
    reverse = plain.reverse(1)(p, value, 1)
    outputs: dict[str, Any] = {"solve": [value], "forward": [value, forward], "adjoint": [value, reverse]}
    return {key: _task(ca.Function(key, [p], out, options), stated.nominal) for key, out in outputs.items()}


def _task(function: Any, nominal: tuple[float, ...]) -> Task:
    """Through CasADi's buffers: a call by DM costs 25 microseconds more, as much as a bouncing ball."""
    buffer, trigger = function.buffer()
    p = np.array(nominal)
    results = [np.zeros(function.nnz_out(i)) for i in range(function.n_out())]
    buffer.set_arg(0, memoryview(p))
    for i, result in enumerate(results):
        buffer.set_res(i, memoryview(result))

    def call() -> None:
        trigger()
        if buffer.ret():
            raise RuntimeError("the integrator failed")

    def read(_: Any) -> Answer:
        gradient = [float(v) for v in results[1]] if len(results) > 1 else None
        if gradient is not None and len(gradient) != len(nominal):
            raise RuntimeError("structurally zero derivatives")
        return Answer(float(results[0][0]), gradient)

    call.keep = function, p, results  # type: ignore[attr-defined]
    return Task(call, read)
