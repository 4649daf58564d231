"""diffrax: solves that end at an event, chained by a scan, under jit.

Events are located by a root finder on the dense output, with tolerances well below those of the solve, and only in the
direction in which the guard falls; the gradient goes through the located time, by implicit differentiation. On P1 a
long step passes over two crossings of the guard unless dtmax keeps it short. The scan has one segment more than there
are events, whose number a user would have to know or to bound.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import optimistix
from cases import CASES, Case

from peers import Answer, Task, UnsupportedError

name = "diffrax"
MAX_STEPS = 4096

jax.config.update("jax_enable_x64", True)
if os.environ.get("BENCHMARK_CACHE"):
    jax.config.update("jax_compilation_cache_dir", os.environ["BENCHMARK_CACHE"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def version() -> str:
    return f"diffrax {diffrax.__version__}, jax {jax.__version__}"


def rows(case: str) -> list[str]:
    if case not in CASES:
        raise UnsupportedError("it has no solver for DAEs")
    if CASES[case].stiff:
        return ["Kvaerno5"]
    return ["Tsit5", "Dopri8", *(["Dopri8, dtmax=0.05"] if case == "P1" else [])]


def solve(case: Case, row: str, p: Any, rtol: float, atol: float, adjoint: Any) -> tuple[Any, Any]:
    """Result and number of events; the integral is a state of its own."""
    n, span = len(case.x0), case.span
    solver = {"Tsit5": diffrax.Tsit5, "Dopri8": diffrax.Dopri8, "Kvaerno5": diffrax.Kvaerno5}[row.split(",")[0]]()

    def rate(t: Any, y: Any, args: Any) -> Any:
        m, p = args
        cost = 0.0 if case.terminal else case.cost(jnp, t, y, m, p)
        return jnp.stack([jnp.asarray(v, dtype=float) for v in (*case.rate(jnp, t, y, m, p), cost)])

    def guard(t: Any, y: Any, args: Any, **_: Any) -> Any:
        return case.guard(jnp, t, y, *args)

    event = diffrax.Event(guard, optimistix.Newton(1e-12, 1e-12), direction=False)
    controller = diffrax.PIDController(rtol=rtol, atol=atol, dtmax=0.05 if "dtmax" in row else None)

    def segment(carry: Any, _: Any) -> Any:
        t, y, m, count = carry
        sol = diffrax.diffeqsolve(
            diffrax.ODETerm(rate),
            solver,
            t,
            span[1],
            None,
            y,
            args=(m, p),
            stepsize_controller=controller,
            event=event,
            adjoint=adjoint,
            max_steps=MAX_STEPS,
        )
        t, y = sol.ts[-1], sol.ys[-1]
        there = sol.result == diffrax.RESULTS.event_occurred
        x_plus, m_plus = case.jump(jnp, t, y[:n], m, p)
        y = jnp.where(there, jnp.stack([*x_plus, y[n]]), y)
        m = jnp.where(there, jnp.stack(m_plus), m) if len(case.m0) else m
        return (t, y, m, count + there), None

    start = (jnp.array(span[0]), jnp.array([*case.x0, 0.0]), jnp.array(case.m0), jnp.array(0))
    (t, y, m, count), _ = jax.lax.scan(segment, start, None, length=case.events + 1)
    # all segments used and not at the end: there were more events than there are
    value = case.cost(jnp, t, y, m, p) if case.terminal else y[n]
    return jnp.where(t < span[1], jnp.nan, value), count


@cache
def compiled(case: str, row: str) -> dict[str, Any]:
    """Functions of p, rtol and atol, which are not compiled anew for other tolerances."""
    stated = CASES[case]
    ahead, back = diffrax.ForwardMode(), diffrax.RecursiveCheckpointAdjoint()

    def plain(p: Any, rtol: Any, atol: Any) -> Any:
        return solve(stated, row, p, rtol, atol, back)

    def forward(p: Any, rtol: Any, atol: Any) -> Any:
        def pushed(direction: Any) -> Any:
            return jax.jvp(lambda q: solve(stated, row, q, rtol, atol, ahead), (p,), (direction,))

        (value, count), (slope, _) = jax.vmap(pushed, out_axes=(None, 0))(jnp.eye(p.size))
        return (value, count), slope

    functions = {"solve": plain, "forward": forward, "adjoint": jax.value_and_grad(plain, has_aux=True)}
    return {key: jax.jit(function) for key, function in functions.items()}


def prepare(case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
    arguments = jnp.array(CASES[case].nominal), jnp.array(rtol), jnp.array(atol)
    return {key: Task(_blocking(function, arguments), _READ[key]) for key, function in compiled(case, row).items()}


def _blocking(function: Any, arguments: Any) -> Any:
    return lambda: jax.block_until_ready(function(*arguments))


def _with_gradient(result: Any) -> Answer:
    (value, count), gradient = result
    return Answer(float(value), [float(g) for g in gradient], int(count))


_READ = {
    "solve": lambda result: Answer(float(result[0]), None, int(result[1])),
    "forward": _with_gradient,
    "adjoint": _with_gradient,
}
