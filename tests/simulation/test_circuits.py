"""Index-1 DAEs whose algebraic variables are known only as well as the state: circuits, and variables that are fast."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.problems.ivp_test_set import PROBLEMS, final

AMPLIFIER = PROBLEMS["transistor"]


@pytest.fixture(scope="module")
def amplifier() -> dh.HybridSystem:
    return AMPLIFIER.model().build()


@pytest.mark.parametrize(
    ("rtol", "steps", "digits"), [(1e-4, 2e3, 2.5), (1e-6, 4e3, 4.0), (1e-8, 8e3, 5.5), (1e-10, 2e4, 7.5)]
)
def test_a_circuit_does_not_stall(amplifier: dh.HybridSystem, rtol: float, steps: float, digits: float) -> None:
    """Tests on voltages near zero that are finer than what capacitors determine fail at any step (more than 1e5)."""
    sol = dh.simulate(amplifier, (0, AMPLIFIER.end), **AMPLIFIER.tolerances(rtol))
    assert AMPLIFIER.digits(final(sol)) > digits
    assert sol.statistics["steps"] < steps
    assert sol.statistics["error_test_failures"] < 0.15 * sol.statistics["steps"]


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("linear_solver", ["dense", "band", "sparse", "krylov"])
def test_with_every_linear_solver(linear_solver: str, native: bool, amplifier: dh.HybridSystem) -> None:
    system = amplifier if native else AMPLIFIER.model().build(native=False)
    rtol = 1e-7 if native else 1e-5
    sol = dh.simulate(system, (0, 0.05), linear_solver=linear_solver, **AMPLIFIER.tolerances(rtol))
    fine = dh.simulate(amplifier, (0, 0.05), **AMPLIFIER.tolerances(1e-10))
    assert sol.statistics["steps"] < 4000
    for name, value in final(fine).items():
        assert final(sol)[name] == pytest.approx(value, abs=300 * rtol)


@pytest.mark.parametrize("sensitivity_method", ["staggered", "simultaneous"])
def test_gradients_of_a_circuit(sensitivity_method: str, amplifier: dh.HybridSystem) -> None:
    errors = []
    exact = dh.adjoint_gradient(amplifier, (0, 0.05), functional="G", **AMPLIFIER.tolerances(1e-11)).gradient
    for rtol in (1e-6, 1e-8, 1e-10):
        options = AMPLIFIER.tolerances(rtol)
        fsa = dh.forward_sensitivity(amplifier, (0, 0.05), sensitivity_method=sensitivity_method, **options)
        asa = dh.adjoint_gradient(amplifier, (0, 0.05), functional="G", **options)
        assert fsa.trajectory.statistics["steps"] < 2e4
        errors.append([np.abs(g / exact - 1).max() for g in (fsa.gradient["G"], asa.gradient)])
    assert np.all(np.array(errors) < 300 * np.array([[1e-6], [1e-8], [1e-10]]))


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e-12])
def test_the_unit_of_a_parameter_does_not_change_the_steps_of_a_dae(unit: float) -> None:
    """IDAS's own tolerances of sensitivities do not follow the scales of the parameters."""
    m = dh.HybridModel("units")
    k, x, w = m.parameter("k", unit), m.differential("x"), m.algebraic("w")
    rate = k / unit * x * np.cos(10 * m.time)
    m.initial(m.mode("run", ode={x: -w}, algebraic=[w + 0.1 * w**3 - rate]), {x: 1.0})
    m.functional("G", integrand=x)
    fsa = dh.forward_sensitivity(m.build(), (0, 10), method="bdf", rtol=1e-6, atol=1e-8)
    assert fsa.trajectory.statistics["steps"] == pytest.approx(1830, rel=0.15)
    assert unit * fsa.gradient["G"][0] == pytest.approx(0.031741, rel=1e-3)


def fast(native: bool = True) -> dh.HybridSystem:
    """z = y + sin(40 t) with y = exp(-a t): it moves a hundred times as fast as the state, which does not see it."""
    m = dh.HybridModel("fast")
    a, y, z, n = m.parameter("a", 0.3), m.differential("y"), m.algebraic("z"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: -a * y}, algebraic=[z - y - ca.sin(40 * m.time)])
    m.transition(run, run, guard=z - y - 0.5, direction="rising", memory={n: n + 1})
    m.initial(run, {y: 1.0})
    m.functional("J", integrand=z**2)
    m.functional("count", terminal=n)
    return m.build(eliminate=False, native=native)


def exact_integral(a: float, end: float) -> float:
    """Integral of z^2."""
    w = 40.0
    mixed = (w - np.exp(-a * end) * (a * np.sin(w * end) + w * np.cos(w * end))) / (a**2 + w**2)
    return float((1 - np.exp(-2 * a * end)) / (2 * a) + 2 * mixed + end / 2 - np.sin(2 * w * end) / (4 * w))


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_functionals_and_guards_of_a_variable_that_is_faster_than_the_state(native: bool) -> None:
    system, end, step = fast(native), 3.0 if native else 0.5, 1e-5
    gradient = (exact_integral(0.3 + step, end) - exact_integral(0.3 - step, end)) / (2 * step)
    expected = (np.pi / 6 + 2 * np.pi * np.arange(20)) / 40
    expected = expected[expected < end]
    for rtol in (1e-4, 1e-6, 1e-8, 1e-10) if native else (1e-5,):
        options = {"rtol": rtol, "atol": rtol / 100}
        fsa = dh.forward_sensitivity(system, (0, end), **options)
        asa = dh.adjoint_gradient(system, (0, end), functional="J", **options)
        assert fsa.trajectory.functionals["count"] == expected.size
        assert [e.time for e in fsa.events] == pytest.approx(expected, abs=1e-12)
        assert fsa.trajectory.functionals["J"] == pytest.approx(exact_integral(0.3, end), rel=100 * rtol)
        assert fsa.gradient["J"][0] == pytest.approx(gradient, rel=300 * rtol + 1e-8)
        assert asa.gradient[0] == pytest.approx(gradient, rel=300 * rtol + 1e-8)


@pytest.mark.parametrize("method", ["auto", "bdf"])
@pytest.mark.parametrize("rtol", [1e-3, 1e-4, 1e-6])
def test_overflow_in_a_trial_step_is_a_failed_trial(rtol: float, method: str) -> None:
    """Diodes of the ring modulator: exponentials of extrapolated voltages are infinite."""
    system, times = PROBLEMS["ring_modulator"].model().build(), np.array([0.5e-4, 1e-4])
    fine = dh.simulate(system, (0, 1e-4), t_eval=times, rtol=1e-8, atol=1e-10)["U"][:, :2]
    for atol in (rtol, rtol / 100):
        sol = dh.simulate(system, (0, 1e-4), t_eval=times, rtol=rtol, atol=atol, method=method)
        assert np.abs(sol["U"][:, :2] - fine).max() < 30 * rtol
