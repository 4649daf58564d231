"""Memory of an algebraic variable without `initial=` starts at the consistent value of its variable."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.optimize import brentq

import dae_hybrid as dh

WAYS = {"compiled": {}, "interpreted events": {"native_events": False}, "scipy": {"adapter": "scipy"}}
TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
A, B = 2.0, 0.7
#: equations of z with its memory s, and z at the start
LAWS = {
    "of the state": (lambda z, x, s, b: z - x**2 * b, B**3),
    "of its memory": (lambda z, x, s, b: 2 * z - x * b - s, B**2),
    "nonlinear": (
        lambda z, x, s, b: z + 0.3 * ca.sin(z) - x * b - 0.2 * s**2,
        brentq(lambda z: z + 0.3 * np.sin(z) - B**2 - 0.2 * z**2, 0, 1),
    ),
}


def model(law: Any) -> dh.HybridModel:
    m = dh.HybridModel("memory of z")
    a, b = m.parameter("a", A), m.parameter("b", B)
    x, z = m.differential("x"), m.algebraic("z")
    s = m.memory("s", of=z)
    run = m.mode("run", ode={x: -a * x + 0.3 * s}, algebraic=[law(z, x, s, b)])
    m.transition(run, run, at=0.5)
    m.initial(run, {x: b})
    m.functional("G", terminal=x * s, integrand=z**2)
    return m


@pytest.mark.parametrize("eliminate", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LAWS)
def test_the_start_is_consistent(name: str, way: str, eliminate: bool) -> None:
    law, z0 = LAWS[name]
    system = model(law).build(eliminate=eliminate)
    sol = dh.simulate(system, (0, 1), **WAYS[way], **TIGHT)
    assert (sol["z"][0], sol["s"][0]) == pytest.approx((z0, z0), rel=1e-12)
    check = dh.check_gradient(system, (0, 1), "G", wrt=["a", "b", "x(0)"], **WAYS[way], **TIGHT)
    assert check.difference("forward", "adjoint") < 1e-7
    assert check.difference("forward", "finite_difference") < 1e-5


def test_a_value_that_nothing_determines_is_refused() -> None:
    stated = model(lambda z, x, s, b: (z - s) - (x - b) * b)
    with pytest.raises(dh.FormulationError, match="Give memory s an initial value") as refused:
        stated.build()
    assert list(refused.value.variables) == ["z"]


def test_it_is_written_to_files_without_a_value() -> None:
    text = model(LAWS["of its memory"][0]).to_text()
    again = dh.HybridModel.from_text(text)
    assert again.to_text() == text
    assert dh.simulate(again.build(), (0, 1), **TIGHT)["s"][0] == pytest.approx(B**2, rel=1e-12)


def test_the_memory_of_a_variable_that_the_start_lacks_needs_a_value() -> None:
    m = dh.HybridModel("late")
    x, z = m.differential("x"), m.algebraic("z")
    s = m.memory("s", of=z)
    first, second = m.mode("first", ode={x: -s}), m.mode("second", ode={x: -z}, algebraic=[z - x])
    m.transition(first, second, at=0.5)
    m.initial(first, {x: 1.0})
    with pytest.raises(dh.ModelError, match="'s' needs an initial value: the initial mode does not have its variable"):
        m.build()
