"""Signals are symbols: statements may differentiate by them."""

from __future__ import annotations

import pickle
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
TIMES, LOADS = np.linspace(0, 2, 9), np.array([0.0, 0.4, 0.9, 0.3, -0.2, 0.5, 1.1, 0.7, 0.2])


def feedforward(kind: Any = "linear", *, by_hand: bool = False) -> dh.HybridModel:
    """A plant x' = -k x + u^3 / 3 and its linearisation along the input, with d f / d u by `jacobian` or by hand."""
    m = dh.HybridModel("feedforward")
    k, gain = m.parameter("k", 0.8), m.parameter("gain", LOADS)
    u = m.signal("u", TIMES, gain, kind=kind)
    x, s, n = m.differential("x"), m.differential("s"), m.memory("n", initial=0.0)
    rate = -k * x + u**3 / 3
    by_u, by_x = (u**2, -k) if by_hand else (ca.jacobian(rate, u), ca.jacobian(rate, x))
    run = m.mode("run", ode={x: rate, s: by_x * s + by_u * m.der(u)})
    m.transition(run, run, guard=u - 0.6, direction="rising", reset={x: x + by_u}, memory={n: n + u})
    m.initial(run, {x: 0.1, s: 0.0})
    m.functional("G", integrand=x * u, terminal=s + n, at_times={1.3: by_u})
    return m


@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_derivatives_by_a_signal(kind: Any) -> None:
    one, other = (feedforward(kind, by_hand=by_hand).build() for by_hand in (False, True))
    mine, theirs = (dh.simulate(system, (0, 2), t_eval=TIMES, **TIGHT) for system in (one, other))
    for name in ("x", "s", "n", "u"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-8, atol=1e-9)
    assert len(mine.events) == len(theirs.events) == 2
    np.testing.assert_allclose(mine["u"], LOADS, atol=1e-12)
    check = dh.check_gradient(one, (0, 2), "G", **TIGHT)
    assert check.difference("forward", "adjoint") < 1e-7
    assert check.difference("forward", "finite_difference") < 1e-5


def test_steps_have_no_rate() -> None:
    m = dh.HybridModel("steps")
    u = m.signal("u", TIMES, LOADS, kind="previous")
    assert m.der(u).is_zero()
    assert m.der("u").is_zero()
    assert u.is_symbolic()


def test_signals_are_no_variables() -> None:
    m = dh.HybridModel("wrong")
    u, x = m.signal("u", TIMES, LOADS), m.differential("x")
    for call in (lambda: m.mode("run", ode={u: 1.0}), lambda: m.post(u), lambda: m.memory("r", of=u)):
        with pytest.raises(dh.ModelError, match="'u' is a signal"):
            call()
    assert m.mode("run", ode={x: u}).name == "run"


def test_files_and_pickles() -> None:
    stated = feedforward()
    text = stated.to_text()
    again = dh.HybridModel.from_text(text)
    assert again.to_text() == text
    assert "der(u)" in text
    values = [
        dh.simulate(own, (0, 2), **TIGHT).functionals["G"]
        for own in (stated.build(), again.build(), pickle.loads(pickle.dumps(stated)).build(),
                    pickle.loads(pickle.dumps(stated.build())))
    ]  # fmt: skip
    assert len(set(values)) == 1


def test_starts_elsewhere_see_signals() -> None:
    system = feedforward().build()
    check = dh.check_gradient(system, (0, 2), "G", x0={"n": 1.0}, wrt=["x(0)", "n(0)", "k"], **TIGHT)
    assert check.difference("forward", "adjoint") < 1e-7
    assert check.difference("forward", "finite_difference") < 1e-5
