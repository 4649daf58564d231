"""Results do not depend on the units of what is stated."""

from __future__ import annotations

from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

#: powers of two: products with them are exact
UNITS = [2.0**-47, 2.0**47]
SOLVERS: list[tuple[bool, dict[str, Any]]] = [
    (True, {"method": "bdf"}),
    (True, {"method": "bdf", "sensitivity_method": "simultaneous"}),
    (True, {"adapter": "scipy"}),
    (False, {"method": "erk"}),
    (False, {"method": "adams"}),
    (False, {"method": "bdf"}),
    (False, {"method": "bdf", "sensitivity_method": "simultaneous"}),
    (False, {"adapter": "scipy"}),
]


@cache
def reactor(
    *, implicit: bool, native: bool = False, of_k: float = 1.0, of_y: float = 1.0, of_t: float = 1.0
) -> dh.HybridSystem:
    """Feed and decay, with a level at which the feed is switched off; nothing depends on k at the start."""
    m = dh.HybridModel("reactor")
    k, c = m.parameter("k", 3.0 / of_k), m.parameter("c", 0.5)
    a, b = m.differential("a"), m.differential("b")
    z = m.algebraic("z", guess=of_y)
    rate = k * of_k * b * ca.exp(-a / of_y)
    modes = [
        m.mode(
            name,
            ode={a: (feed * of_y - (z if implicit else rate)) / of_t, b: (c * a - b) / of_t},
            algebraic=[z + 0.1 * z**3 / of_y**2 - rate] if implicit else [z - rate],
        )
        for name, feed in (("fed", 1.0), ("starved", 0.1))
    ]
    m.transition(modes[0], modes[1], guard=a - 0.8 * of_y, direction="rising", name="full")
    m.transition(modes[1], modes[0], guard=a - 0.3 * of_y, direction="falling", name="empty")
    m.initial(modes[0], {a: 0.0, b: 0.0})
    m.functional("G", integrand=z / (of_y * of_t), terminal=a / of_y)
    return m.build(native=native)


@pytest.mark.parametrize(("implicit", "options"), SOLVERS)
@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_of_a_parameter_does_not_matter(implicit: bool, options: dict[str, Any], unit: float) -> None:
    """Powers of two change no digit: the same steps, and derivatives that scale exactly."""
    found = []
    for of_k in (1.0, unit):
        system = reactor(implicit=implicit, native=options.get("method") == "erk", of_k=of_k)
        fsa = dh.forward_sensitivity(system, (0, 4), wrt=["k"], rtol=1e-7, atol=1e-9, **options)
        found.append((float(fsa.gradient["G"][0]) / of_k, fsa.trajectory.statistics["steps"]))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-12)
    assert found[0][1] == found[1][1]


def test_a_vectorised_model_with_algebraic_variables_and_memory_builds() -> None:
    """Large vectors stay MX, which keeps symbols that it does not use."""
    n = 120
    m = dh.HybridModel("v")
    k = m.parameter("k", 2.0)
    y, z = m.differential("y", size=n), m.algebraic("z", size=n, guess=np.ones(n))
    count = m.memory("m", initial=0.0)
    run = m.mode("run", ode={y: -z}, algebraic=[z + 0.5 * ca.sin(z) - y - k])
    m.transition(run, run, guard=y[0] - 0.5, direction="falling", memory={count: count + 1})
    m.initial(run, {y: 1.0 + np.arange(n)})
    m.functional("G", terminal=y[1])
    asa = dh.adjoint_gradient(m.build(native=False), (0, 1))
    np.testing.assert_allclose(asa.gradient, [-0.72978269], rtol=1e-6)  # that of three separate scalars, by scipy


@pytest.mark.parametrize(("depth", "refused"), [(1.0, False), (2e-5, True)])
def test_a_guard_that_falls_off_a_cliff_does_not_graze(depth: float, refused: bool) -> None:
    """asinh(1e5 x) bends sharply where x is zero, but comes from far away; a ball may just reach a ceiling."""
    m = dh.HybridModel("cliff")
    p = m.parameter("p", 1.0)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: -p, v: 0.0} if not refused else {x: v, v: -p})
    guard = ca.asinh(1e5 * x) - 1 if not refused else x - (0.5 - depth)
    m.transition(run, None, guard=guard, direction="falling" if not refused else "rising", name="end")
    m.initial(run, {x: 0.0 if refused else 1.0, v: 1.0})
    m.functional("T", terminal=m.time)
    system, options = m.build(native=False), {"rtol": 1e-6, "atol": 1e-6, "method": "bdf"}
    if refused:
        with pytest.raises(dh.GrazingError, match="within the accuracy"):
            dh.forward_sensitivity(system, (0, 3), **options)
        return
    fsa = dh.forward_sensitivity(system, (0, 3), **options)
    np.testing.assert_allclose(fsa.gradient["T"], [-(1 - 1e-5 * np.sinh(1))], rtol=1e-4)
