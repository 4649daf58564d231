"""C linearisation of transitions, forward and transposed, against `TransitionLinearisation`.

The flows depend on neither state nor memory, so that dG/d(y, m) does not change between events: before the transition
it is the derivative by the initial values, after it that of the terminal cost. The coefficients of the transition are
parameters that enter nowhere else, so that their gradient is the transition's share.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.system.derivative_conditions import Conditions

QUICK = settings(derandomize=True, deadline=None, max_examples=25)
OPTIONS: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
END, AT = 1.0, 0.4
#: parameters with their shapes: those of the guard, of the reset, of the memory, of the costs, of the flows
OF_GUARD = {"h_u": (2,), "h_v": (3,), "h_z": (1,), "h_k": (2,), "h_t": (1,), "level": (1,)}
OF_RESET = {"v_u": (3, 2), "v_v": (3, 3), "v_k": (3, 2), "v_uk": (3,), "v_t": (3,), "v_z": (3,)}
OF_MEMORY = {"k_u": (2, 2), "k_k": (2, 2), "k_t": (2,)}
OF_COST = {"cost_u": (2,), "cost_k": (2,), "cost_t": (1,)}
OF_FLOWS = {"flow_u": (2,), "flow_v": (3,), "flow_after": (3,), "integrand": (2,), "terminal": (5,)}
OF_START = {"u0": (2,), "v0": (3,), "k0": (2,)}
SHAPES = OF_GUARD | OF_RESET | OF_MEMORY | OF_COST | OF_FLOWS | OF_START
#: those that enter in the transition alone
OWN = [*OF_GUARD, *OF_RESET, *OF_MEMORY, *OF_COST]


#: transitions by a guard and at a time, and by a guard from a mode with an algebraic variable
KINDS = ("guard", "time", "implicit")


@cache
def system(kind: str) -> dh.HybridSystem:
    """A mode, a transition into one with fewer variables, and a functional with every kind of cost."""
    m = dh.HybridModel("transition")
    p = {name: m.parameter(name, np.ones(int(np.prod(shape)))) for name, shape in SHAPES.items()}
    t, u, v = m.time, m.differential("u", size=2), m.differential("v", size=3)
    k, has_fired = m.memory("k", size=2, initial=p["k0"]), m.memory("has fired", initial=0.0)

    def times(name: str, vector: Any) -> Any:
        return ca.reshape(p[name], *SHAPES[name]) @ vector

    ode, z, algebraic = {u: p["flow_u"] * (1 + t), v: p["flow_v"] * (1 + t)}, ca.MX(0), []
    if kind == "implicit":
        z = m.algebraic("z")
        algebraic = [z + z**3 - u[0] + v[1]]
    before = m.mode("before", ode=ode, algebraic=algebraic)
    after = m.mode("after", ode={v: p["flow_after"] * (2 - t)})
    guard = ca.dot(p["h_u"], u) + ca.dot(p["h_v"], v) + ca.dot(p["h_k"], k) + p["h_z"] * z + p["h_t"] * t - p["level"]
    when = {"at": p["level"] + 0.1 * p["h_t"]} if kind == "time" else {"guard": guard, "direction": "both"}
    change = m.transition(
        before, after, **when,
        reset={v: times("v_u", u) + times("v_v", v) + times("v_k", k) + p["v_uk"] * u[0] * k[1] + p["v_t"] * ca.sin(t)
               + p["v_z"] * z},
        memory={k: times("k_u", m.pre(u)) + times("k_k", k) + p["k_t"] * t**2, has_fired: 1.0},
    )  # fmt: skip
    m.initial(before, {u: p["u0"], v: p["v0"]})
    m.functional(
        "G",
        integrand=p["integrand"][0] * ca.cos(t) + has_fired * p["integrand"][1] * t,
        terminal=ca.dot(p["terminal"][:3], v) + ca.dot(p["terminal"][3:], k),
        at_events={change: ca.dot(p["cost_u"], u) + ca.dot(p["cost_k"], k) * u[1] + p["cost_t"] * t},
    )
    return m.build()


def meet(p: dict[str, np.ndarray], kind: str) -> float:
    """Set the level that the guard reaches at AT, or the time; the rate of the guard there."""
    growth = AT + AT**2 / 2
    u, v = p["u0"] + growth * p["flow_u"], p["v0"] + growth * p["flow_v"]
    rate = (p["h_u"] @ p["flow_u"] + p["h_v"] @ p["flow_v"]) * (1 + AT) + p["h_t"][0]
    p["level"] = p["h_u"] @ u + p["h_v"] @ v + p["h_k"] @ p["k0"] + p["h_t"] * AT
    if kind == "implicit":
        roots = np.roots([1, 0, 1, v[1] - u[0]])
        z = float(roots[np.argmin(abs(roots.imag))].real)
        p["level"] += p["h_z"] * z
        rate += p["h_z"][0] * (p["flow_u"][0] - p["flow_v"][1]) * (1 + AT) / (1 + 3 * z**2)
    if kind == "time":
        p["level"] = AT - 0.1 * p["h_t"]
    return float(rate)


@st.composite
def transitions(draw: Any, kind: str) -> dict[str, np.ndarray]:
    """Parameters of a transition at about AT, whose guard moves."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p = {name: rng.normal(size=int(np.prod(shape))) for name, shape in SHAPES.items()}
    assume(abs(meet(p, kind)) > 0.1)
    return p


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(data=st.data())
def test_compiled_derivatives_are_those_of_the_linearisation(kind: str, data: Any) -> None:
    """dt/dp and dw after from dw before, L before from L after, the share of dG/dp; and both ways are dual."""
    p, built, span = data.draw(transitions(kind)), system(kind), (0.0, END)
    forward = dh.forward_sensitivity(built, span, parameters=p, **OPTIONS)
    adjoint = dh.adjoint_gradient(built, span, "G", parameters=p, **OPTIONS)
    for run in (forward.trajectory, adjoint.trajectory):
        assume(len(run.events) == 1)  # the guard may turn round and cross once more
        assert run.statistics["native_events"] == 1
    (event,), (found,) = forward.events, forward.event_sensitivities
    linear = built.linearise(event, forward.trajectory.parameters, 0.0, Conditions())
    before = np.vstack((found.state_minus, found.memory_minus))
    after = np.vstack((found.state_plus, found.memory_plus))
    tau, expected, gained = linear.forward(before, np.eye(before.shape[1]))
    scale = 1 + 1 / abs(linear.rate)
    np.testing.assert_allclose(found.time, tau, atol=1e-9 * scale)
    np.testing.assert_allclose(after, expected, atol=1e-8 * scale)

    names, of_terminal = built.parameters, np.append(p["terminal"], 0.0)
    ends, share, _ = linear.backward(of_terminal[None], np.zeros(1))
    gradient = {name: adjoint.gradient[names[name]] for name in SHAPES}
    start = np.concatenate([gradient[name] for name in OF_START])
    np.testing.assert_allclose(start, ends[0, :7], atol=1e-8 * scale)
    for name in OWN:
        np.testing.assert_allclose(gradient[name], share[0, names[name]], atol=1e-8 * scale, err_msg=name)
    np.testing.assert_allclose(
        of_terminal @ after + gained[0], ends[0] @ before + share[0], atol=1e-8 * scale, err_msg="transpose"
    )


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(data=st.data())
def test_the_engines_agree(kind: str, data: Any) -> None:
    """The same gradients whoever carries the event out."""
    p, built = data.draw(transitions(kind)), system(kind)
    found = [
        (
            dh.forward_sensitivity(built, (0, END), parameters=p, native_events=native, **OPTIONS),
            dh.adjoint_gradient(built, (0, END), "G", parameters=p, native_events=native, **OPTIONS),
        )
        for native in (True, False)
    ]
    assume(len(found[0][0].events) == 1)
    assert [forward.trajectory.statistics["native_events"] for forward, _ in found] == [1, 0]
    values = [values for forward, adjoint in found for values in (forward.gradient["G"], adjoint.gradient)]
    size = np.abs(values[0]).max()
    for other in values[1:]:
        np.testing.assert_allclose(other, values[0], atol=1e-8 * (1 + size))


def test_a_wrong_derivative_is_seen() -> None:
    """The comparison above tells a term that is left out, in compiled code, from rounding."""
    p = {name: np.full(int(np.prod(shape)), 0.7) for name, shape in SHAPES.items()}
    built = system("guard")
    meet(p, "guard")
    forward = dh.forward_sensitivity(built, (0, END), parameters=p, **OPTIONS)
    (event,), (found,) = forward.events, forward.event_sensitivities
    linear = built.linearise(event, forward.trajectory.parameters, 0.0, Conditions())
    before = np.vstack((found.state_minus, found.memory_minus))
    for part in ("h_w", "h_p", "R_w", "R_p", "R_t", "flow_minus", "flow_plus"):
        without = replace(linear, **{part: 0 * getattr(linear, part)})
        _, after, _ = without.forward(before, np.eye(before.shape[1]))
        assert np.abs(after - np.vstack((found.state_plus, found.memory_plus))).max() > 1e-2, part
