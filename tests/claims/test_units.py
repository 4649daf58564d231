"""Results do not depend on the units of the statement."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.numerics.algebraic import is_regular

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
    asa = dh.adjoint_gradient(m.build(), (0, 1))
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


def with_small_unknown(kind: str, of_w: float, *, singular: bool = False) -> dh.HybridSystem:
    """Unknowns P and Q at the start, on entry into a mode or in a reset, with Q = w / of_w for w.

    P + Q + P^3/10 = p y and P - Q = q; or the second is twice the first but for rounding.
    """
    m = dh.HybridModel("small unknown")
    p, q, y = m.parameter("p", 2.0), m.parameter("q", 0.5), m.differential("y")
    z = [m.algebraic("z", guess=1.0), m.algebraic("w", guess=of_w)]

    def equations(first: Any, second: Any) -> list[Any]:
        own = second / of_w
        one = first + own + 0.1 * first**3 - p * y
        return [one, 2 * one + 1e-13 * p * own if singular else first - own - q]

    idle: dict[str, Any] = {"ode": {y: -y}, "algebraic": z}
    modes = [m.mode("idle", **idle)]
    if kind == "reset":
        unknowns = [m.unknown("P"), m.unknown("Q")]
        modes.append(m.mode("after", **idle))
        reset = [m.post(y) - unknowns[0] - 3 * unknowns[1] / of_w, *equations(*unknowns)]
        m.transition(modes[0], modes[1], at=0.5, reset=reset)
    else:
        modes.append(m.mode("coupled", ode={y: -z[0] * z[1] / of_w}, algebraic=equations(*z)))
        m.transition(modes[0], modes[1], at=0.5)
    m.initial(modes[kind == "initial"], {y: 1.0})
    m.functional("G", integrand=z[0] ** 2 + y**2, terminal=z[1] / of_w + y)
    return m.build()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["initial", "entry", "reset"])
def test_the_unit_of_an_unknown_does_not_matter(kind: str, native: bool) -> None:
    """In units that differ by 1e12 equations are as regular, with the same values and derivatives, or as singular."""
    found = []
    for of_w in (1.0, 1e12, 1e-12):
        options: dict[str, Any] = {"rtol": 1e-8, "atol": {"w": 1e-10 * of_w}, "native_events": native}
        system = with_small_unknown(kind, of_w)
        fsa = dh.forward_sensitivity(system, (0, 1), **options)
        asa = dh.adjoint_gradient(system, (0, 1), "G", **options)
        found.append([[asa.value, fsa.trajectory.functionals["G"]], fsa.gradient["G"], asa.gradient])
        with pytest.raises(dh.ConsistencyError, match="singular"):
            dh.forward_sensitivity(with_small_unknown(kind, of_w, singular=True), (0, 1), **options)
    for values in zip(*found, strict=True):
        np.testing.assert_allclose(values[1:], [values[0]] * 2, rtol=1e-9)
    np.testing.assert_allclose(found[0][1], found[0][2], rtol=1e-6)


def test_a_reset_in_small_units_by_its_closed_form() -> None:
    """P + Q = p, P - Q = q for a Q of magnitude 1e-12 beside a P of the same, y after is P + Q: dy/dp = 1."""
    m = dh.HybridModel("closed form")
    p, q, y = m.parameter("p", 2.0), m.parameter("q", 0.5), m.differential("y")
    P, Q = m.unknown("P"), m.unknown("Q")
    modes = [m.mode(name, ode={y: 0.0 * y}) for name in ("before", "after")]
    m.transition(*modes, at=0.5, reset=[P + 1e12 * Q - p, P - 1e12 * Q - q, m.post(y) - P * 1e12 * Q])
    m.initial(modes[0], {y: 1.0})
    m.functional("G", terminal=y)
    found = dh.forward_sensitivity(m.build(), (0, 1))
    assert found.trajectory.events[0].unknowns["Q"] == pytest.approx(0.75e-12, rel=1e-14)
    assert found.trajectory.functionals["G"] == pytest.approx((2.0**2 - 0.5**2) / 4, rel=1e-14)
    np.testing.assert_allclose(found.gradient["G"], [1.0, -0.25], rtol=1e-13)


@pytest.mark.parametrize("of_w", [1.0, 1e13, 1e-13])
def test_newtons_method_does_not_end_early_in_some_units(of_w: float) -> None:
    """Next to an unknown in other units, a residual at which full steps lead away is not rounding."""
    m = dh.HybridModel("early")
    p, y = m.parameter("p", 2.0), m.differential("y")
    z, w = m.algebraic("z", guess=2.05), m.algebraic("w", guess=0.5 * of_w)
    own, steep = w / of_w - 0.5, ca.atan(30 * (z - p))
    run = m.mode("run", ode={y: -z * w / of_w}, algebraic=[steep + own, own + 0.1 * own**3 + steep / 2])
    m.initial(run, {y: 1.0})
    sol = dh.simulate(m.build(), (0, 1e-3))
    assert sol["z"][0] == pytest.approx(2.0, abs=1e-14)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_whether_a_matrix_is_regular_does_not_depend_on_units(n: int) -> None:
    """Rows and columns may be in any units; a column that cancels to rounding is not saved by small ones."""
    rng = np.random.default_rng(3)
    regular = rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.6) + np.eye(n)
    dependent, cancelling, sizes = regular.copy(), regular.copy(), np.abs(regular) + 1.0
    dependent[0] = dependent[1:].sum(axis=0)
    cancelling[:, 0] = 1e-16 * rng.normal(size=n)
    for _ in range(20):
        rows, columns = (10.0 ** rng.uniform(-12, 12, size=n) for _ in range(2))
        units = rows[:, None] * columns
        assert is_regular(regular * units, partial(np.multiply, np.abs(regular), units))
        assert not is_regular(dependent * units, partial(np.multiply, sizes, units))
        units /= np.where(np.arange(n) == 0, columns[0] / columns.min(), 1.0)
        assert not is_regular(cancelling * units, partial(np.multiply, sizes, units))
