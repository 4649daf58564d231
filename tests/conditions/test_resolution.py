"""Gradients reach the requested accuracy for parameters close to zero or with almost no effect."""

from __future__ import annotations

from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

RTOL, END = 1e-8, 1.0
#: of x' = -x + p cos(3 t)
BY_P = (np.cos(3 * END) + 3 * np.sin(3 * END) - np.exp(-END)) / 10
#: of the integral of x
BY_P_OF_INTEGRAL = (np.sin(3 * END) / 3 - np.cos(3 * END) + np.exp(-END)) / 10
NOMINAL = [0.0, 1e-14, 1e-8, 1.0, 1e8]
SOLVERS: list[dict[str, Any]] = [
    {},
    {"method": "erk"},
    {"method": "adams"},
    {"method": "bdf"},
    {"method": "bdf", "sensitivity_method": "simultaneous"},
    {"method": "bdf", "native": False},
    {"adapter": "scipy"},
    {"method": "bdf", "form": "kept"},
    {"method": "bdf", "form": "nonlinear"},
    {"method": "bdf", "form": "nonlinear", "native": False, "sensitivity_method": "simultaneous"},
    {"adapter": "scipy", "form": "nonlinear"},
]


@cache
def driven(
    nominal: float, *, start: float = 1.0, form: str = "explicit", unit: float = 1.0, native: bool = True
) -> dh.HybridSystem:
    """x' = -x + p cos(3 t), with p in some unit and the force as an algebraic variable where it is to be."""
    m = dh.HybridModel("driven")
    p, x = m.parameter("p", nominal / unit), m.differential("x")
    force = p * unit * ca.cos(3 * m.time)
    if form == "explicit":
        run = m.mode("run", ode={x: -x + force})
    else:
        z = m.algebraic("z")
        defect = z - force
        run = m.mode("run", ode={x: -x + z}, algebraic=[defect + (0.1 * ca.tanh(defect) if form == "nonlinear" else 0)])
    m.initial(run, {x: start})
    m.functional("end", terminal=x)
    m.functional("integral", integrand=x)
    return m.build(native=native, eliminate=form == "explicit")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("nominal", NOMINAL)
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_the_size_of_a_parameter_does_not_matter(solver: dict[str, Any], nominal: float, start: float) -> None:
    options = dict(solver)
    system = driven(nominal, start=start, form=options.pop("form", "explicit"), native=options.pop("native", True))
    fsa = dh.forward_sensitivity(system, (0, END), rtol=RTOL, **options)
    assert fsa.gradient["end"][0] == pytest.approx(BY_P, rel=100 * RTOL)
    assert fsa.gradient["integral"][0] == pytest.approx(BY_P_OF_INTEGRAL, rel=100 * RTOL)


@pytest.mark.parametrize("solver", [{}, {"method": "adams"}, {"method": "bdf"}, {"adapter": "scipy"}])
@pytest.mark.parametrize("unit", [2.0**-47, 1e-3, 1e3, 2.0**47])
def test_the_unit_of_a_parameter_that_is_zero_does_not_matter(solver: dict[str, Any], unit: float) -> None:
    fsa = dh.forward_sensitivity(driven(0.0, unit=unit), (0, END), rtol=RTOL, **solver)
    assert fsa.gradient["end"][0] / unit == pytest.approx(BY_P, rel=100 * RTOL)


@pytest.mark.parametrize("solver", [{}, {"method": "adams"}, {"method": "bdf"}, {"adapter": "scipy"}])
@pytest.mark.parametrize("unit", [2.0**-47, 2.0**47])
def test_the_unit_of_a_tiny_parameter_changes_no_digit(solver: dict[str, Any], unit: float) -> None:
    one, other = (dh.forward_sensitivity(driven(1e-12, unit=of), (0, END), rtol=RTOL, **solver) for of in (1.0, unit))
    assert other.gradient["end"][0] / unit == pytest.approx(one.gradient["end"][0], rel=1e-13)
    assert one.trajectory.statistics["steps"] == other.trajectory.statistics["steps"]


@pytest.mark.parametrize("native", [True, False])
def test_tiny_parameters_across_events(native: bool) -> None:
    """A pulse counter: x is set back to zero at one; the time of the last event and the integral move with p."""
    m = dh.HybridModel("saw")
    p, x = m.parameter("p", 1e-13), m.differential("x")
    run = m.mode("run", ode={x: 1 + p * ca.cos(m.time)})
    m.transition(run, run, guard=x - 1, direction="rising", reset={x: 0.0}, name="tooth")
    m.initial(run, {x: 0.0})
    m.functional("end", terminal=x)
    system = m.build(native=native)
    for options in ({"method": "bdf"}, {"method": "adams"}, {"adapter": "scipy"}):
        fsa = dh.forward_sensitivity(system, (0, 3.5), rtol=RTOL, **options)
        times = [float(row[0]) for row in fsa.event_time_sensitivity]
        np.testing.assert_allclose(times, -np.sin([1.0, 2.0, 3.0]), rtol=0, atol=100 * RTOL)
        assert fsa.gradient["end"][0] == pytest.approx(np.sin(3.5), rel=300 * RTOL)


def test_derivatives_that_nothing_resolves_are_named() -> None:
    """x follows exp(-t), whatever k: its derivative is the error of x, whose digits do not repeat."""
    m = dh.HybridModel("follower")
    k, x, y = m.parameter("k", 3.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: -k * (x - ca.exp(-m.time)) - ca.exp(-m.time), y: -y + ca.cos(3 * m.time)})
    m.initial(run, {x: 1.0, y: 0.7})
    m.functional("end", terminal=x)
    with pytest.warns(dh.ConditionWarning, match="by k are not resolved"):
        fsa = dh.forward_sensitivity(m.build(), (0, 5), method="erk")
    assert abs(fsa.gradient["end"][0]) < 1e-9
    assert not fsa.diagnostics.passed


@cache
def cell(n: int) -> dh.HybridSystem:
    """Diffusion into a particle held at a voltage: the current follows from Butler and Volmer's law."""
    m = dh.HybridModel("cell")
    diffusivity, rate = m.parameter("D", 2e-3), m.parameter("k", 1.0)
    c, current = m.differential("c", size=n), m.algebraic("I", guess=0.01)
    h = 1.0 / n
    flux = ca.vertcat(0, diffusivity * (c[1:] - c[:-1]) / h, current)
    surface = c[n - 1] + current * h / 2 / diffusivity
    exchange = rate * 0.3 * ca.sqrt(surface * (1 - surface))
    voltage = surface + 0.1 * ca.log(surface / (1 - surface)) + 0.2 * ca.asinh(current / (2 * exchange))
    run = m.mode("run", ode={c: (flux[1:] - flux[:-1]) / h}, algebraic=[voltage - 0.8])
    m.initial(run, {c: 0.3 * np.ones(n)})
    m.functional("G", integrand=current, terminal=c[0])
    return m.build()


@cache
def by_fine_steps(n: int) -> np.ndarray:
    """The gradient of `cell` at a tight tolerance."""
    return np.asarray(dh.adjoint_gradient(cell(n), (0, 100), rtol=1e-11, atol=1e-13).gradient)


@pytest.mark.parametrize("n", [20, 50])
@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8, 1e-10])
def test_sensitivities_of_a_dae_are_in_the_error_test(n: int, rtol: float) -> None:
    exact = by_fine_steps(n)
    for which in ("staggered", "simultaneous"):
        options: dict[str, Any] = {"sensitivity_method": which}
        fsa = dh.forward_sensitivity(cell(n), (0, 100), rtol=rtol, atol=rtol / 100, **options)
        np.testing.assert_allclose(fsa.gradient["G"], exact, rtol=300 * rtol)
    asa = dh.adjoint_gradient(cell(n), (0, 100), rtol=rtol, atol=rtol / 100)
    np.testing.assert_allclose(asa.gradient, exact, rtol=300 * rtol)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("which", ["staggered", "simultaneous"])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_sensitivities_choose_the_order_where_the_state_has_no_error(native: bool, which: str, degree: int) -> None:
    """IDAS compares the errors of the state at two orders first, and those of a polynomial are zero or rounding."""
    m = dh.HybridModel("still")
    p, x, z = m.parameter("p", 0.0), m.differential("x"), m.algebraic("z")
    defect = z - p * ca.cos(3 * m.time)
    rate = degree * m.time ** (degree - 1) if degree else 0.0
    m.initial(m.mode("run", ode={x: rate + z}, algebraic=[defect + 0.1 * defect**3]), {x: 0.0})
    m.functional("G", terminal=x)
    options: dict[str, Any] = {"sensitivity_method": which}
    for rtol in (1e-6, 1e-8, 1e-10):
        fsa = dh.forward_sensitivity(m.build(native=native), (0, 2), rtol=rtol, **options)
        assert fsa.gradient["G"][0] == pytest.approx(np.sin(6) / 3, rel=300 * rtol)
        assert fsa.trajectory.statistics["steps"] < 1000
