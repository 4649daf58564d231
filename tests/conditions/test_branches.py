"""Relations that are evaluated at an instant: derivatives where a side holds, refusals where none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}


def model(
    *,
    p: float = 0.5,
    rate: Any = lambda t, x, n, w, p, q: 0,
    reset: Any = lambda x, n, w, p, q: 0,
    start: Any = lambda p, q: 0,
    memory: Any = lambda p, q: 0,
    terminal: Any = lambda x, p, q: 0,
    measured: Any = lambda t, x, p, q: 0,
) -> dh.HybridModel:
    """x = t; y' = rate; at x = 1/2 y becomes the reset, and n counts. G is y at the end, and what is given."""
    m = dh.HybridModel("branches")
    a, q = m.parameter("p", p), m.parameter("q", 2.5)
    x, y = m.differential("x"), m.differential("y")
    n, w = m.memory("n", initial=0), m.memory("w", initial=memory(a, q))
    run = m.mode("run", ode={x: 1, y: rate(m.time, x, n, w, a, q)})
    m.transition(
        run, run, guard=x - 0.5, direction="rising", reset={y: y + reset(x, n, w, a, q)}, memory={n: n + 1}, name="T"
    )
    m.initial(run, {x: 0.0, y: start(a, q)})
    m.functional("G", terminal=y + terminal(x, a, q), at_times={0.75: 0 * x + measured(m.time, x, a, q)})
    return m


#: arguments of the model, and dG by p and q
CLEAR: dict[str, tuple[dict[str, Any], list[float]]] = {
    "reset": ({"p": 0.6, "reset": lambda x, n, w, p, q: ca.if_else(x < p, 1, 2) * q}, [0, 1]),
    "equal sides": ({"reset": lambda x, n, w, p, q: ca.if_else(x < p, q, q + 0 * x)}, [0, 1]),
    "counter": ({"reset": lambda x, n, w, p, q: ca.if_else(n <= 0, 1, 2) * q}, [0, 1]),
    "counter in a mode": ({"rate": lambda t, x, n, w, p, q: ca.if_else(n >= 1, q, 0)}, [0, 0.5]),
    "number of a case": ({"reset": lambda x, n, w, p, q: ca.if_else(n == 0, 1, 2) * q}, [0, 1]),
    "memory": (
        {"memory": lambda p, q: p, "rate": lambda t, x, n, w, p, q: ca.if_else(w < 0.7, 1, 2) * q},
        [0, 1],
    ),
    "parameter": ({"p": 0.1, "rate": lambda t, x, n, w, p, q: ca.fabs(p) * q}, [2.5, 0.1]),
    "terminal": ({"p": 0.9, "terminal": lambda x, p, q: ca.fabs(x - p)}, [-1, 0]),
    "time": ({"p": 0.75, "measured": lambda t, x, p, q: ca.if_else(t < 0.75, 1, 2) * q}, [0, 2]),
    "start": ({"p": 2.6, "start": lambda p, q: ca.fmax(p, q)}, [1, 0]),
}
OPEN: dict[str, tuple[dict[str, Any], str]] = {
    "decided by rounding": ({"reset": lambda x, n, w, p, q: ca.if_else(x < 0.5, 1, 2) * q}, "transition 'T'"),
    "reset": ({"reset": lambda x, n, w, p, q: ca.if_else(x < p, 1, 2) * q}, "transition 'T'"),
    "nearly": ({"p": 0.5 + 1e-12, "reset": lambda x, n, w, p, q: ca.if_else(x < p, 1, 2) * q}, "transition 'T'"),
    "kink": ({"reset": lambda x, n, w, p, q: ca.fabs(x - p) * q}, "transition 'T'"),
    "floor": ({"reset": lambda x, n, w, p, q: ca.floor(8 * x * p) * q}, "transition 'T'"),
    "memory": (
        {"memory": lambda p, q: p, "rate": lambda t, x, n, w, p, q: ca.if_else(w <= 0.5, 1, 2) * q},
        "mode 'run'",
    ),
    "parameter": ({"p": 0.0, "rate": lambda t, x, n, w, p, q: ca.fabs(p) * q}, "mode 'run'"),
    "terminal": ({"p": 1.0, "terminal": lambda x, p, q: ca.fabs(x - p)}, "a terminal value"),
    "measurement": ({"p": 0.75, "measured": lambda t, x, p, q: ca.if_else(x < p, 1, 2) * q}, "a measurement"),
    "start": ({"p": 2.5, "start": lambda p, q: ca.fmax(p, q)}, "the initial values"),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", CLEAR)
def test_the_branch_that_holds_has_a_derivative(name: str, native: bool) -> None:
    stated, gradient = CLEAR[name]
    system = model(**stated).build(native=native)
    fsa = dh.forward_sensitivity(system, (0, 1), **TIGHT)
    np.testing.assert_allclose(fsa.gradient["G"], gradient, atol=1e-9)
    np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 1), "G", **TIGHT).gradient, gradient, atol=1e-9)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", OPEN)
def test_where_no_side_holds_derivatives_are_refused(name: str, native: bool) -> None:
    stated, place = OPEN[name]
    system = model(**stated).build(native=native)
    assert dh.simulate(system, (0, 1), **TIGHT).complete
    for call in (dh.forward_sensitivity, dh.adjoint_gradient):
        more = ("G",) if call is dh.adjoint_gradient else ()
        with pytest.raises(dh.EventError, match=f"In {place}.* one-sided"):
            call(system, (0, 1), *more, **TIGHT)
        with pytest.warns(dh.DerivativeWarning, match="one-sided"):
            call(system, (0, 1), *more, strict=False, duality=False, **TIGHT)


def test_relations_of_values_after_a_transition() -> None:
    def system(p: float) -> dh.HybridSystem:
        m = dh.HybridModel("post")
        a, q = m.parameter("p", p), m.parameter("q", 2.0)
        x, y, w = m.differential("x"), m.differential("y"), m.memory("w", initial=0.0)
        run = m.mode("run", ode={x: 1, y: 0})
        impulse = m.unknown("impulse")
        m.transition(
            run, run, guard=x - 0.5, direction="rising",
            reset=[m.post(y) - impulse, impulse - q * x], memory={w: ca.if_else(m.post(y) < a, q, 0) + impulse},
        )  # fmt: skip
        m.initial(run, {x: 0.0, y: 0.0})
        m.functional("G", terminal=w)
        return m.build(native=False)

    gradient = dh.forward_sensitivity(system(1.5), (0, 1), **TIGHT).gradient["G"]
    np.testing.assert_allclose(gradient, [0, 1.5], atol=1e-9)
    with pytest.raises(dh.EventError, match="one-sided"):
        dh.forward_sensitivity(system(1.0), (0, 1), **TIGHT)


# -- times, memory and parameters that the accuracy of the run, or chance, brings to where a relation changes ------


def _late(m: dh.HybridModel) -> None:
    """The time of an event is compared where it is p."""
    p, x, z = m.parameter("p", 1.0), m.differential("x"), m.differential("z")
    run = m.mode("run", ode={x: x, z: 0})
    reset = {z: ca.fabs(m.time - p) + ca.if_else(m.time < p, 1, 2), x: 0.1 * x}
    m.transition(run, run, guard=x - np.e, direction="rising", reset=reset)
    m.initial(run, {x: 1.0, z: 0.0})
    m.functional("G", terminal=z)


def _remembered(m: dh.HybridModel) -> None:
    """What an event has put into memory is compared afterwards, where it is p."""
    p, q = m.parameter("p", 1.0), m.memory("q", initial=0.0)
    x, y, z = m.differential("x"), m.differential("y"), m.differential("z")
    before = m.mode("before", ode={x: x, y: -y, z: 0})
    after = m.mode("after", ode={x: x, y: -y, z: ca.if_else(q < p, 1, 2)})
    m.transition(before, after, guard=x - np.e, direction="rising", memory={q: y})
    m.initial(before, {x: 1.0, y: np.e, z: 0.0})
    m.functional("G", terminal=z)


def _scheduled(trigger: str) -> Callable[[dh.HybridModel], None]:
    """Two parameters that are equal decide when something happens."""

    def state(m: dh.HybridModel) -> None:
        a, b, x = m.parameter("a", 1.0), m.parameter("b", 1.0), m.differential("x")
        run, later = m.mode("run", ode={x: 1}), ca.fmax(a, b)
        if trigger == "at_times":
            m.functional("G", at_times={later: x})
        else:
            how: dict[str, Any] = {"guard": x - later} if trigger == "guard" else {trigger: later}
            m.transition(run, run, reset={x: 0}, **how)
            m.functional("G", terminal=x)
        m.initial(run, {x: 0.0})

    return state


def _two_cells(m: dh.HybridModel) -> None:
    """Two nominally equal cells: the guard has a kink wherever they are."""
    p, x, y, z = m.parameter("p", 1.0), m.differential("x"), m.differential("y"), m.differential("z")
    run = m.mode("run", ode={x: p, y: 1, z: 1})
    m.transition(run, run, guard=ca.fmax(x, y) - 1, direction="rising", reset={z: 0})
    m.initial(run, {x: 0.0, y: 0.0, z: 0.0})
    m.functional("G", terminal=z)


def _largest(m: dh.HybridModel) -> None:
    """The largest entry of a vector whose entries are equal."""
    p, x = m.parameter("p", 1.0), m.differential("x", size=2)
    m.initial(m.mode("run", ode={x: ca.vertcat(p, 1)}), {x: [0, 0]})
    m.functional("G", terminal=ca.mmax(x))


def _landing(m: dh.HybridModel) -> None:
    """y comes to p at an event whose reset leads to p, too."""
    p, x, y = m.parameter("p", 1.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: 1, y: ca.if_else(y < p, 1, 2)})
    m.transition(run, run, guard=x - 1, direction="rising", reset={y: 1})
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)


@pytest.mark.parametrize("options", [{"method": "bdf"}, {"method": "auto"}, {"adapter": "scipy"}], ids=str)
@pytest.mark.parametrize(
    "state",
    [_late, _remembered, *map(_scheduled, ("at", "every", "guard", "at_times")), _two_cells, _largest, _landing],
    ids=["late", "remembered", "at", "every", "guard", "at_times", "two cells", "largest", "landing"],
)
def test_what_is_decided_by_chance_is_refused(state: Callable[[dh.HybridModel], None], options: dict[str, Any]) -> None:
    m = dh.HybridModel("chance")
    state(m)
    system = m.build()
    for rtol in (1e-6, 1e-9):
        for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
            with pytest.raises((dh.EventError, dh.DerivativeWarning)):
                analysis(system, (0, 1.5), rtol=rtol, **options)


@pytest.mark.parametrize("marked", [True, False])
def test_what_is_marked_smooth_has_the_derivative_of_the_branch_that_holds(marked: bool) -> None:
    """fabs(x - p - 1e-9) at x = p, in a reset and in a terminal value; without the mark it is refused."""
    m = dh.HybridModel("marked")
    p, x, z = m.parameter("p", 1.0), m.differential("x"), m.differential("z")
    run = m.mode("run", ode={x: 1, z: 0})
    first, last = ca.fabs(x - p - 1e-9), ca.fabs(x - 1.5 * p - 1e-9)
    if marked:
        first, last = dh.smooth(first), dh.smooth(last)
    m.transition(run, run, guard=x - 1, direction="rising", reset={z: first + p})
    m.initial(run, {x: 0.0, z: 0.0})
    m.functional("G", terminal=z + last)
    system = m.build()
    if marked:
        np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 1.5)).gradient, [3.5])
        return
    with pytest.raises(dh.EventError, match="only one-sided"):
        dh.adjoint_gradient(system, (0, 1.5))


# -- conditions whose parts tie --------------------------------------------------------------------------------

#: guards, and right-hand sides, that start at max(p, q) as x = z = t: at p = q the sides have (-1, 0) and (0, -1)
STARTS: dict[str, Callable[[ca.MX, ca.MX, ca.MX, ca.MX, ca.MX], ca.MX]] = {
    "and": lambda x, z, t, p, q: ca.logic_and(x > p, z > q),
    "and, one variable": lambda x, z, t, p, q: ca.logic_and(x > p, x > q),
    "and, time": lambda x, z, t, p, q: ca.logic_and(x > p, t > q),
    "not or": lambda x, z, t, p, q: ca.logic_not(ca.logic_or(x < p, z < q)),
    "max of parameters": lambda x, z, t, p, q: x > ca.fmax(p, q),
    "a branch by parameters": lambda x, z, t, p, q: x > ca.if_else(p < q, q, p),
    "min": lambda x, z, t, p, q: ca.fmin(x - p, z - q) > 0,
    "abs": lambda x, z, t, p, q: x + z - p - q > ca.fabs(x - p - z + q),
}


@pytest.mark.parametrize("where", ["guard", "equation"])
@pytest.mark.parametrize("name", STARTS)
def test_ties_within_a_condition(name: str, where: str) -> None:
    m = dh.HybridModel("ties within")
    p, q = m.parameter("p", 0.5), m.parameter("q", 0.5)
    x, y, z = m.differential("x"), m.differential("y"), m.differential("z")
    condition = STARTS[name](x, z, m.time, p, q)
    first = m.mode("first", ode={x: 1, z: 1, y: ca.if_else(condition, 1, 0) if where == "equation" else 0 * x})
    if where == "guard":
        m.transition(first, m.mode("second", ode={x: 1, z: 1, y: 1}), guard=condition, name="T")
    m.initial(first, {x: 0.0, y: 0.0, z: 0.0})
    m.functional("G", terminal=y)
    system = m.build(native=False)
    for apart, exact in ((0.0, None), (0.125, [0, -1]), (-0.125, [-1, 0])):
        run: dict[str, Any] = {"parameters": {"q": 0.5 + apart}, **TIGHT}
        if exact is not None:
            assert dh.forward_sensitivity(system, (0, 1), **run).gradient["G"] == pytest.approx(exact, abs=1e-7)
            assert dh.adjoint_gradient(system, (0, 1), "G", **run).gradient == pytest.approx(exact, abs=1e-7)
            continue
        for analyse in (dh.forward_sensitivity, dh.adjoint_gradient):
            more: dict[str, Any] = {} if analyse is dh.forward_sensitivity else {"functional": "G"}
            with pytest.raises((dh.EventError, dh.DerivativeWarning), match=r"one-sided|order matters"):
                analyse(system, (0, 1), **more, **run)


def test_a_kink_of_a_signals_values_is_refused() -> None:
    m = dh.HybridModel("values")
    p, x = m.parameter("p", 0.0), m.differential("x")
    f = m.signal("f", [0.0, 1.0], ca.vertcat(ca.fabs(p), 1.0))
    m.initial(m.mode("run", ode={x: f}), {x: 0.0})
    m.functional("G", terminal=x)
    system = m.build(native=False)
    with pytest.raises(dh.EventError, match="is where it changes"):
        dh.forward_sensitivity(system, (0, 1))
    assert dh.forward_sensitivity(system, (0, 1), parameters={"p": -1.0}).gradient["G"] == pytest.approx([-0.5])
