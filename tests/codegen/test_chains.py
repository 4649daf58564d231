"""Expressions of many nodes, one on top of the other: built in linear time, compiled where that takes seconds."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.codegen import compiler, kernels

#: nodes that one link of the chain adds
NODES = 3


def chained(x: Any, c: Any, nodes: int) -> Any:
    """x, after many nodes that change nothing."""
    e = x
    for _ in range(nodes // NODES):
        e = c * e + (1 - c) * x
    return e


def model(nodes: int) -> dh.HybridModel:
    """x' = -k x from 1 with a long right-hand side."""
    m = dh.HybridModel(f"chain of {nodes}")
    k, c, x = m.parameter("k", 2.0), m.parameter("c", 0.5), m.differential("x")
    m.initial(m.mode("run", ode={x: -k * chained(x, c, nodes)}), {x: 1.0})
    m.functional("G", terminal=x)
    return m


def check(system: dh.HybridSystem) -> None:
    adjoint = dh.adjoint_gradient(system, (0, 0.5), "G", rtol=1e-8)
    forward = dh.forward_sensitivity(system, (0, 0.5), rtol=1e-8)
    for value, gradient in ((adjoint.value, adjoint.gradient), (forward.functionals["G"], forward.gradient["G"])):
        assert value == pytest.approx(np.exp(-1), rel=1e-6)
        assert gradient == pytest.approx([-0.5 * np.exp(-1), 0.0], rel=1e-5, abs=1e-7)


def test_what_is_too_long_to_compile_runs_interpreted_and_says_so(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiler, "_warned", set())
    monkeypatch.setattr(kernels, "MAX_STATEMENTS", 4_000)
    with pytest.warns(dh.CompilerWarning, match="too long to compile, .* statements") as caught:
        system = model(3_000).build()
    assert len(caught) == 1
    assert not system.native
    check(system)
    assert "too long to compile" in dh.simulate(system, (0, 0.5)).diagnostics[0]


def test_shorter_chains_are_compiled() -> None:
    system = model(600).build()
    assert system.native
    check(system)
    assert not dh.simulate(system, (0, 0.5)).diagnostics.notes


def test_the_time_to_build_grows_with_the_nodes() -> None:
    """Ten times as many take no more than 25 times as long; quadratic growth would be 100."""
    seconds = []
    for nodes in (1_500, 15_000):
        m, began = model(nodes), time.process_time()
        m.build(native=False)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 25 * max(seconds[0], 0.05)


PLACES = ("guard", "algebraic", "implicit", "residual", "constraint", "reset", "implicit reset", "memory", "initial")


@pytest.mark.parametrize("place", [*PLACES, "terminal", "integrand", "at_times"])
def test_a_chain_anywhere(place: str) -> None:
    """No walk over expressions is recursive: a chain is much longer than Python's stack is deep."""
    m = dh.HybridModel(place)
    k, c, x = m.parameter("k", 2.0), m.parameter("c", 0.5), m.differential("x")
    n, nodes = m.memory("n", initial=0.0), 1_500

    def long(here: str, value: Any) -> Any:
        return chained(value, c, nodes) if here == place else value

    rate: Any = -k * x
    if place in ("algebraic", "implicit"):
        z = m.algebraic("z", guess=1.0)
        equation = (
            z - long("algebraic", k * x) if place == "algebraic" else long("implicit", z) + z**3 - k * x - (k * x) ** 3
        )
        run = m.mode("run", ode={x: -z}, algebraic=[equation])
    elif place == "residual":
        run = m.mode("run", residual=[m.der(x) - long("residual", rate)])
    elif place == "constraint":
        y, force = m.differential("y"), m.algebraic("force")
        run = m.mode("run", ode={x: rate, y: force}, constraint=[y - long("constraint", x)])
    else:
        run = m.mode("run", ode={x: rate})
    reset: Any = {x: long("reset", x)}
    if place == "implicit reset":
        reset = [m.post(x) - long("implicit reset", x)]
    m.transition(
        run, run, guard=long("guard", x - 0.5), direction="falling", reset=reset, memory={n: long("memory", x)}
    )
    m.initial(run, {x: long("initial", k - 1)})
    m.functional(
        "G", integrand=0 * long("integrand", x), terminal=long("terminal", x), at_times={0.1: 0 * long("at_times", x)}
    )
    system = m.build(native=False)
    found = dh.adjoint_gradient(system, (0, 0.5), "G", rtol=1e-8)
    assert found.value == pytest.approx(np.exp(-1), rel=1e-6)
    assert found.gradient == pytest.approx([0.5 * np.exp(-1), 0.0], rel=1e-5, abs=1e-7)
