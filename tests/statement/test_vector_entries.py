"""Entries of vectors as keys of `ode`, `initial`, `reset` and `memory`."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}


def chain(*, entries: bool) -> dh.HybridModel:
    """A chain whose statements are by entries, or by whole vectors."""
    m = dh.HybridModel("chain")
    k, v, w = m.parameter("k", 0.5), m.differential("v", size=5), m.memory("w", size=2, initial=[1.0, 2.0])
    rest = -k * v[3:] + v[2]
    if entries:
        run = m.mode("run", ode={v[3:]: rest, v[0]: -v[0], "v[2]": w[0], v[1]: v[0] * k})
        m.transition(run, run, at=0.5, reset={v[[0, 4]]: ca.vertcat(2 * v[4], k)}, memory={w[1]: w[0] + w[1]})
        m.initial(run, {v[3:]: 0.0, v[0]: 1.0, v[1:3]: [0.2, k]})
    else:
        run = m.mode("run", ode={v: ca.vertcat(-v[0], v[0] * k, w[0], rest)})
        reset = ca.vertcat(2 * v[4], v[1], v[2], v[3], k)
        m.transition(run, run, at=0.5, reset={v: reset}, memory={w: ca.vertcat(w[0], w[0] + w[1])})
        m.initial(run, {v: ca.vertcat(1.0, 0.2, k, 0.0, 0.0)})
    m.functional("G", terminal=ca.sumsqr(v) * w[1])
    return m


def test_entries_and_whole_vectors_are_the_same() -> None:
    one, other = (chain(entries=entries).build() for entries in (True, False))
    mine, theirs = (dh.simulate(system, (0, 1), t_eval=[0.0, 0.5, 1.0], **TIGHT) for system in (one, other))
    np.testing.assert_allclose(mine["v"], theirs["v"], rtol=1e-13)
    assert mine["w"].tolist() == theirs["w"].tolist() == [[1.0, 2.0], [1.0, 3.0], [1.0, 3.0]]
    check = dh.check_gradient(one, (0, 1), **TIGHT)
    assert check.difference("forward", "adjoint") < 1e-9
    assert check.difference("forward", "finite_difference") < 1e-6
    text = chain(entries=True).to_text()
    assert dh.HybridModel.from_text(text).to_text() == text


def test_entries_that_are_not_given_follow_from_equations() -> None:
    """q = (x, y, vx, vy) on a circle of radius r: x and vx are given."""
    m = dh.HybridModel("circle")
    r, a, q, pull = m.parameter("r", 1.0), m.parameter("a", 0.6), m.differential("q", size=4), m.algebraic("pull")
    run = m.mode(
        "run", ode={q[:2]: q[2:], q[2:]: -pull * q[:2] - ca.vertcat(0, 9.81)}, constraint=[q[0] * q[2] + q[1] * q[3]]
    )
    m.initial(run, {q[0]: a, q[2]: 0.3}, equations=[q[0] ** 2 + q[1] ** 2 - r**2], guess={q: [0.5, -0.5, 0, 0]})
    m.functional("G", terminal=q[0])
    system = m.build()
    start = dh.simulate(system, (0, 0.1))["q"][0]
    np.testing.assert_allclose(start, [0.6, -0.8, 0.3, 0.225], rtol=1e-12)
    check = dh.check_gradient(system, (0, 1), **TIGHT)
    assert check.difference("forward", "adjoint") < 1e-8
    assert check.difference("forward", "finite_difference") < 1e-6


def refusals() -> list[tuple[str, Any]]:
    def model() -> tuple[dh.HybridModel, Any, Any]:
        m = dh.HybridModel("vector")
        v, x = m.differential("v", size=3), m.differential("x")
        return m, v, x

    def ode(of: Any) -> Any:
        m, v, x = model()
        return lambda: m.mode("run", ode=of(v, x))

    def initial(of: Any) -> Any:
        m, v, x = model()
        run = m.mode("run", ode={v: 0.0, x: 0.0})
        return lambda: m.initial(run, of(v, x))

    return [
        (r"v\[1\] is missing", ode(lambda v, x: {v[0]: 0.0, v[2]: 0.0, x: 0.0})),
        (r"v\[0\], v\[1\] are missing", ode(lambda v, x: {v[2]: 0.0})),
        ("'v' is given twice", ode(lambda v, x: {v[:2]: 0.0, v[1:]: 0.0})),
        ("'v' is given twice", initial(lambda v, x: {v: 0.0, v[1]: 0.0})),
        ("'v' is given twice", initial(lambda v, x: {v[1]: 0.0, v: 0.0})),
        ("has 3 entries, expected 2", initial(lambda v, x: {v[:2]: [1.0, 2.0, 3.0]})),
        (r"v\[7\] is not declared", initial(lambda v, x: {"v[7]": 0.0})),
        ("is not declared", initial(lambda v, x: {2 * v[0]: 0.0})),
    ]


@pytest.mark.parametrize(("said", "call"), refusals(), ids=range(len(refusals())))
def test_keys_that_do_not_suit(said: str, call: Any) -> None:
    with pytest.raises(dh.ModelError, match=said):
        call()


def test_missing_initial_values_of_entries_are_named() -> None:
    m = dh.HybridModel("vector")
    v = m.differential("v", size=3)
    m.initial(m.mode("run", ode={v: 0.0}), {v[0]: 1.0})
    with pytest.raises(dh.ModelError, match=r"2 too few to determine v"):
        m.build()
