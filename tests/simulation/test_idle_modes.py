"""Modes without differential variables: algebraic ones, and those that only wait."""

from __future__ import annotations

import pickle
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.optimize import brentq

import dae_hybrid as dh

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
WAYS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "interpreted events": {"native_events": False},
    "implicit": {"method": "bdf"},
    "scipy": {"adapter": "scipy"},
    "casadi": {"adapter": "casadi"},
}
A, T = 2.0, 0.5


def cycle(*, implicit: bool = False) -> dh.HybridModel:
    """Wait until T, follow z + z^3/10 = a t until it is 1.5, decay from a z to 0.8, and wait again."""
    m = dh.HybridModel("cycle")
    a, begin = m.parameter("a", A), m.parameter("T", T)
    x, z = m.differential("x"), m.algebraic("z")
    wait = m.mode("wait")
    follow = m.mode("follow", algebraic=[z + 0.1 * z**3 - a * m.time])
    decay = m.mode("decay", ode={x: 1 - a * x})
    m.transition(wait, follow, at=begin)
    m.transition(follow, decay, guard=z - 1.5, direction="rising", reset={x: z * a})
    more = {"reset": [m.unknown("push") - m.pre(x)]} if implicit else {}
    m.transition(decay, wait, guard=x - 0.8, direction="falling", **more)
    m.transition(wait, decay, every=1.7, reset={x: 2 * a})
    m.initial(wait)
    m.functional("G", integrand=m.time * a)
    m.functional("H", at_events={"decay->wait": m.time * a})
    return m


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_events_and_gradients(way: str, implicit: bool) -> None:
    system = cycle(implicit=implicit).build()
    sol = dh.simulate(system, (0, 5), **WAYS[way], **TIGHT)
    follows = (1.5 + 0.1 * 1.5**3) / A
    fall = [np.log((x - 1 / A) / (0.8 - 1 / A)) / A for x in (1.5 * A, 2 * A)]
    times = [T, follows, follows + fall[0], 3.4, 3.4 + fall[1]]
    np.testing.assert_allclose([event.time for event in sol.events], times, rtol=1e-8)
    assert sol.names == ("z", "x")
    assert sol.functionals["H"] == pytest.approx(A * (times[2] + times[4]), rel=1e-8)
    check = dh.check_gradient(system, (0, 5), "H", **WAYS[way], **TIGHT)
    assert check.difference("forward", "adjoint") < 1e-7
    assert check.difference("forward", "finite_difference") < 1e-5


def test_a_model_without_differential_variables() -> None:
    m = dh.HybridModel("algebraic")
    p, z = m.parameter("p", 1.3), m.algebraic("z")
    m.initial(m.mode("only", algebraic=[z + z**3 - p * ca.sin(m.time)]))
    m.functional("G", integrand=z)
    system = m.build()
    sol = dh.simulate(system, (0, 1), t_eval=[0.0, 1.0], **TIGHT)
    assert sol["z"] == pytest.approx([0, brentq(lambda z: z + z**3 - 1.3 * np.sin(1), 0, 1)], abs=1e-12)
    assert dh.check_gradient(system, (0, 1), "G", **TIGHT).difference("forward", "finite_difference") < 1e-6


def test_the_state_that_they_have_is_in_no_result() -> None:
    system = cycle().build()
    fsa = dh.forward_sensitivity(system, (0, 2), **TIGHT)
    sol = pickle.loads(pickle.dumps(fsa)).trajectory
    assert "idle" not in " ".join([*sol.to_dataframe().columns, *sol.event_table.x_minus, system.describe()])
    many = dh.batch(system, (0, 5), parameters={"a": [2.0, 2.1]}, gradient="forward", **TIGHT)
    assert list(many.final) == ["x", "z"] or list(many.final) == ["z", "x"]
    assert many.native.all()
    with pytest.raises(dh.ParameterError, match="Those are none"):
        dh.simulate(system, (0, 1), x0={"x": 1.0})


def test_starts_in_them_and_out_of_them() -> None:
    system = cycle().build()
    assert dh.simulate(system, (0.5, 0.6), start_mode="follow")["z"][0] == pytest.approx(
        brentq(lambda z: z + 0.1 * z**3 - A * 0.5, 0, 2)
    )
    assert dh.simulate(system, (0, 0.1), start_mode="decay", x0={"x": 3.0})["x"][0] == 3.0


def test_model_files_have_them() -> None:
    text = cycle().to_text()
    assert "[modes.wait]" in text
    assert dh.HybridModel.from_text(text).to_text() == text
    assert dh.HybridModel.from_text(cycle().to_text("json"), "json").to_text() == text


def test_guards_there_see_time_and_memory() -> None:
    """A counter that waits for t to pass each of its own thresholds."""
    m = dh.HybridModel("counter")
    step, n = m.parameter("step", 0.3), m.memory("n", initial=1.0)
    wait = m.mode("wait")
    m.transition(wait, wait, guard=m.time - n * step, direction="rising", memory={n: n + 1})
    m.initial(wait)
    m.functional("G", integrand=n)
    system = m.build()
    sol = dh.simulate(system, (0, 1), **TIGHT)
    assert [event.time for event in sol.events] == pytest.approx([0.3, 0.6, 0.9], rel=1e-12)
    gradient = dh.adjoint_gradient(system, (0, 1), "G", **TIGHT).gradient
    assert gradient == pytest.approx([-6.0], rel=1e-9)
