"""Loss and gradient of a neural differential equation by the bridge to JAX, beside diffrax.

    pip install -r benchmarks/requirements/diffrax.txt
    python benchmarks/bridges.py [--seconds 6] [--write]

A mini-batch of 32 trajectories of x'' = network(x, x'), without events, measured at 20 times: the mean squared error,
and its gradient by all weights. Both libraries are called by the same `jax.value_and_grad` of the same loss within
`jax.jit` and `jax.vmap`, with the same weights, data and tolerances, in float64 on the CPU. The method is the pair of
Dormand and Prince of order 5 in diffrax, with its default adjoint (the steps are differentiated, with checkpoints), and
the default method here. The reference is the gradient by diffrax with Dormand and Prince's pair of order 8 at rtol
1e-13; at the tightest tolerance both libraries agree with it. Times are the least wall time and the least CPU time of
repeats that alternate. ``--write`` puts the table into docs/bridges.md, and the picture of
examples/train_neural_ode.py into docs/images.
"""

from __future__ import annotations

import argparse
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import casadi as ca
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from measuring import put

import dae_hybrid as dh
from dae_hybrid.bridges.jax import reverse_mode
from dae_hybrid.tables import markdown

jax.config.update("jax_enable_x64", True)
ROOT = Path(__file__).resolve().parent.parent
SPAN, TIMES, BATCH = (0.0, 2.0), np.linspace(0.1, 2.0, 20), 32
NAMES = ("inner", "b", "middle", "c", "outer")
TOLERANCES = (1e-4, 1e-6, 1e-8)
type Loss = Callable[[Any, Any], Any]


def first_weights(width: int) -> dict[str, np.ndarray]:
    """Matrices as vectors, column by column."""
    rng = np.random.default_rng(1)
    return {
        "inner": rng.normal(size=2 * width),
        "b": rng.normal(size=width),
        "middle": rng.normal(size=width * width) / np.sqrt(width),
        "c": 0.1 * rng.normal(size=width),
        "outer": rng.normal(size=width) / np.sqrt(width),
    }


def force(x: Any, v: Any, w: Any, xp: Any, reshape: Any) -> Any:
    """The network, in CasADi or in JAX."""
    width = w["b"].shape[0]
    hidden = xp.tanh(reshape(w["inner"], width, 2) @ xp.stacked(x, v) + w["b"])
    return reshape(w["outer"], 1, width) @ xp.tanh(reshape(w["middle"], width, width) @ hidden + w["c"])


class InCasadi:
    tanh = staticmethod(ca.tanh)
    stacked = staticmethod(ca.vertcat)


class InJax:
    tanh = staticmethod(jnp.tanh)
    stacked = staticmethod(lambda *parts: jnp.stack(parts))


def ours(width: int, starts: Any, data: Any, rtol: float) -> Loss:
    m = dh.HybridModel("network")
    x0, v0 = m.parameter("x0", 1.0), m.parameter("v0", 0.0)
    weights = {name: m.parameter(name, value) for name, value in first_weights(width).items()}
    x, v = m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: force(x, v, weights, InCasadi, ca.reshape)}), {x: x0, v: v0})
    position = reverse_mode(
        m.build(), SPAN, outputs="x", t_eval=TIMES, wrt=["x0", "v0", *NAMES], rtol=rtol, atol=rtol / 100
    )
    mapped = jax.vmap(position, in_axes=({"x0": 0, "v0": 0} | dict.fromkeys(NAMES),))

    def loss(weights: Any) -> Any:
        found = mapped({"x0": starts[:, 0], "v0": starts[:, 1]} | weights)
        return jnp.mean((found[:, :, 0] - data) ** 2)

    return loss


def theirs(starts: Any, data: Any, rtol: float, solver: Any = None) -> Loss:
    def reshape(vector: Any, rows: int, columns: int) -> Any:
        return vector.reshape(columns, rows).T

    def rates(_: Any, y: Any, weights: Any) -> Any:
        return jnp.concatenate((y[1:], force(y[0], y[1], weights, InJax, reshape)))

    def solve(start: Any, weights: Any) -> Any:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(rates), diffrax.Dopri5() if solver is None else solver, *SPAN, None, start, args=weights,
            saveat=diffrax.SaveAt(ts=jnp.array(TIMES)), max_steps=4096,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
        )  # fmt: skip
        return found.ys[:, 0]

    def loss(weights: Any) -> Any:
        return jnp.mean((jax.vmap(solve, in_axes=(0, None))(starts, weights) - data) ** 2)

    return loss


def timed(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, tuple[float, float]]:
    """Least wall and CPU time of each call, in ms, in alternating repeats."""
    least = dict.fromkeys(calls, (np.inf, np.inf))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            least[name] = tuple(min(a, 1e3 * b) for a, b in zip(least[name], spent, strict=True))
    return least


def flat(gradient: Any) -> np.ndarray:
    return np.concatenate([np.asarray(gradient[name]) for name in NAMES])


def rows_of(width: int, seconds: float) -> list[list[str]]:
    rng = np.random.default_rng(0)
    starts, data = jnp.array(rng.uniform(-1, 1, (BATCH, 2))), jnp.array(rng.normal(size=(BATCH, TIMES.size)))
    weights = {name: jnp.array(value) for name, value in first_weights(width).items()}
    tight = jax.jit(jax.grad(theirs(starts, data, 1e-13, diffrax.Dopri8())))
    exact, rows = flat(tight(weights)), []
    for rtol in TOLERANCES:
        errors, firsts, calls = {}, {}, {}
        for name in ("dae_hybrid", "diffrax"):
            begun = time.perf_counter()
            loss = ours(width, starts, data, rtol) if name == "dae_hybrid" else theirs(starts, data, rtol)
            both = jax.jit(jax.value_and_grad(loss))
            gradient = flat(both(weights)[1])
            firsts[name] = time.perf_counter() - begun
            errors[name] = np.abs(gradient - exact).max() / np.abs(exact).max()
            calls[name] = lambda both=both: jax.block_until_ready(both(weights))
        for name, (wall, cpu) in timed(calls, seconds).items():
            rows.append(
                [name, f"{exact.size:,}", f"{rtol:.0e}", f"{errors[name]:.0e}", f"{wall:.1f}", f"{cpu:.1f}",
                 f"{firsts[name]:.1f}"]
            )  # fmt: skip
            print(*rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each measurement")
    parser.add_argument("--write", action="store_true", help="write the table and the picture into docs")
    given = parser.parse_args()
    heading = ["library", "weights", "rtol", "error of gradient", "wall, ms", "CPU, ms", "first call, s"]
    rows = [row for width in (16, 64) for row in rows_of(width, given.seconds)]
    if given.write:
        put(ROOT / "docs" / "bridges.md", {"bridges": markdown([heading, *rows])})
        example = runpy.run_path(str(ROOT / "examples" / "train_neural_ode.py"))
        example["main"](picture=str(ROOT / "docs" / "bridges" / "train_neural_ode.png"))


if __name__ == "__main__":
    main()
