"""Algebraic variables that enter nonlinearly, solved for within explicit steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}


def methods(run: dh.Trajectory) -> set[str]:
    """The methods of all segments."""
    return {str(segment.method) for segment in run.segments}


# -- closed forms ---------------------------------------------------------------------------------------------


def cubic() -> dh.HybridModel:
    """x' = -a z, z + z^3 = x: then ln z + 3/2 z^2 falls by a t."""
    m = dh.HybridModel("cubic")
    a, x, z = m.parameter("a", 1.0), m.differential("x"), m.algebraic("z", guess=0.5)
    m.initial(m.mode("go", ode={x: -a * z}, algebraic=[z + z**3 - x]), {x: 2.0})
    m.functional("G", integrand=z**2, terminal=z)
    return m


def z_of_cubic(fallen: float) -> float:
    z = 1.0
    for _ in range(50):
        z -= (np.log(z) + 1.5 * z**2 - 1.5 + fallen) / (1 / z + 3 * z)
    return z


@pytest.mark.parametrize("method", ["auto", "erk"])
def test_a_cubic(method: str, built: Any) -> None:
    system, times = built(cubic), [0.5, 2.0, 3.0]
    run = dh.simulate(system, (0, 3), t_eval=times, method=method, **TIGHT)
    exact = np.array([z_of_cubic(t) for t in times])
    assert methods(run) == {"erk"}
    np.testing.assert_allclose(run["z"], exact, rtol=1e-9)
    np.testing.assert_allclose(run["z"] + run["z"] ** 3, run["x"], rtol=1e-14)
    z = exact[-1]
    integral, dz = (1 - z**2) / 2 + 3 * (1 - z**4) / 4, -3 * z / (1 + 3 * z**2)
    gradient = -integral + (1 - (z + 3 * z**3)) * dz
    assert run.functionals["G"] == pytest.approx(integral + z, rel=1e-9)
    fsa = dh.forward_sensitivity(system, (0, 3), t_eval=times, method=method, **TIGHT)
    asa = dh.adjoint_gradient(system, (0, 3), "G", method=method, **TIGHT)
    assert fsa.gradient["G"][0] == pytest.approx(gradient, rel=1e-8)
    assert asa.gradient[0] == pytest.approx(gradient, rel=1e-8)
    assert fsa["z"][-1, 0] == pytest.approx(dz, rel=1e-8)


def test_errors_follow_the_tolerance(built: Any) -> None:
    errors = []
    for rtol in (1e-5, 1e-7, 1e-9, 1e-11):
        run = dh.simulate(built(cubic), (0, 3), rtol=rtol, atol=rtol / 100)
        errors.append(abs(run["z"][-1] - z_of_cubic(3.0)) / rtol)
    assert max(errors) < 10


@pytest.mark.parametrize("native_events", [True, False])
def test_an_exponential_with_a_guard(native_events: bool, built: Any) -> None:
    """exp(z) = x, x' = x w cos(w t): z = sin(w t), and z rises through c at arcsin(c) / w."""

    def model() -> dh.HybridModel:
        m = dh.HybridModel("exponential")
        w, c = m.parameter("w", 1.3), m.parameter("c", 0.5)
        x, z = m.differential("x"), m.algebraic("z", guess=0.0)
        count = m.memory("count", initial=0.0)
        go = m.mode("go", ode={x: x * w * ca.cos(w * m.time)}, algebraic=[ca.exp(z) - x])
        m.transition(go, go, guard=z - c, direction="rising", memory={count: count + m.time})
        m.initial(go, {x: 1.0})
        m.functional("sum", terminal=count)
        return m

    system, span = built(model), (0.0, 12.0)
    options = TIGHT | {"native_events": native_events}
    run = dh.simulate(system, span, **options)
    exact = [(np.arcsin(0.5) + 2 * np.pi * k) / 1.3 for k in range(3)]
    assert methods(run) == {"erk"}
    np.testing.assert_allclose([event.time for event in run.events], exact, rtol=1e-9)
    by_c = 3 / 1.3 / np.sqrt(1 - 0.25)
    fsa = dh.forward_sensitivity(system, span, **options)
    np.testing.assert_allclose(fsa.gradient["sum"], [-sum(exact) / 1.3, by_c], rtol=1e-8)
    np.testing.assert_allclose(
        dh.adjoint_gradient(system, span, "sum", **options).gradient, fsa.gradient["sum"], rtol=1e-8
    )


# -- forward = adjoint = differences ----------------------------------------------------------------------------


def rectifier() -> dh.HybridModel:
    """A diode with a resistance charges a capacitor, which a switch discharges; the load is switched by a clock."""
    m = dh.HybridModel("rectifier")
    saturation, resistance, w = m.parameter("Is", 1e-6), m.parameter("R", 2.0), m.parameter("w", 3.0)
    v, q = m.differential("v"), m.differential("q")
    d, i = m.algebraic("d", guess=0.0), m.algebraic("i", guess=0.0)
    load = m.memory("load", initial=0.3)
    source = ca.sin(w * m.time)
    diode = [i - saturation * (ca.exp(d / 0.05) - 1), d + resistance * i - source + v]
    charging = m.mode("charging", ode={v: i - load * v, q: i**2}, algebraic=diode)
    draining = m.mode("draining", ode={v: -(1 + load) * v, q: 0.1 * v})
    m.transition(charging, draining, guard=v - 0.35, direction="rising")
    m.transition(draining, charging, guard=v - 0.15, direction="falling", reset={q: 0.9 * q})
    m.transition(charging, charging, every=0.7, memory={load: 0.5 - load + 0.01 * i})
    m.initial(charging, {v: 0.0, q: 0.0})
    m.functional("heat", integrand=resistance * v**2, terminal=v + q)
    return m


def everything() -> dh.HybridModel:
    """Guards on z, resets that move it, costs of it, memory of it, times, measurements and a signal."""
    m = dh.HybridModel("everything")
    a, b = m.parameter("a", 0.8), m.parameter("b", 1.1)
    x, y, z, w = m.differential("x"), m.differential("y"), m.algebraic("z", guess=0.3), m.algebraic("w", guess=0.1)
    held = m.memory("held", of=z, initial=0.0)
    u = m.signal("u", np.array([0.0, 0.9, 2.1, 3.3, 6.0]), np.array([0.4, 0.9, 0.2, 0.6, 0.6]), kind="previous")
    equations = [z + a * z**3 + 0.2 * w - x - u, w + 0.1 * ca.tanh(w + z) - b * y * z]
    up = m.mode("up", ode={x: b - z, y: z * w - y + a}, algebraic=equations)
    down = m.mode("down", ode={x: -b - 0.3 * z * held, y: ca.cos(m.time) - w}, algebraic=equations)
    top = m.transition(up, down, guard=z - 0.75 * b, direction="rising", reset={x: x - 0.1 * z})
    m.transition(down, up, guard=w - 0.1 + z, direction="falling", reset={y: y + 0.2 * a * z})
    m.transition(up, up, at=1.234 * a, reset={x: 0.9 * x})
    m.initial(up, {x: 0.1 * a, y: 0.5})
    m.functional("G", integrand=z**2 + w * x, terminal=z * w)
    m.functional("at", at_times={0.5: z, 2.5: z * y, 4.5: w}, at_events={top: z * w})
    return m


@pytest.mark.parametrize("make", [rectifier, everything])
@pytest.mark.parametrize("native_events", [True, False])
def test_forward_adjoint_and_differences_agree(
    make: Callable[[], dh.HybridModel], native_events: bool, built: Any, compare_gradients: Any
) -> None:
    system, span = built(make), (0.0, 6.0)
    options = TIGHT | {"native_events": native_events}
    run = dh.simulate(system, span, **options)
    other = dh.simulate(system, span, **options | {"method": "bdf"})
    assert methods(run) == {"erk"}
    assert methods(other) == {"bdf"}
    assert len(run.events) > 3
    times = np.linspace(0.1, 5.9, 31)
    for name in run.names:
        np.testing.assert_allclose(run(times)[name], other(times)[name], rtol=1e-6, atol=1e-7)
    reference = dh.forward_sensitivity(system, span, **options | {"method": "bdf"})
    for name in system.functionals.names:
        found = compare_gradients(system, span, name, step=1e-4, tolerance=1e-6, **options)
        size = np.abs(found.adjoint.gradient).max()
        np.testing.assert_allclose(found.adjoint.gradient, reference.gradient[name], rtol=1e-5, atol=1e-5 * size)


def test_adjoints_at_times(built: Any) -> None:
    """They are integrated along the steps."""
    times = [0.2, 1.7, 2.9]
    one, other = (
        dh.adjoint_gradient(built(cubic), (0, 3), "G", t_eval=times, method=method, **TIGHT)
        for method in ("erk", "bdf")
    )
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-7)
    np.testing.assert_allclose(one.adjoint(times)["x"], other.adjoint(times)["x"], rtol=1e-6)


# -- which modes -------------------------------------------------------------------------------------------------


def follower(rate: float, tail: int = 0) -> dh.HybridModel:
    """x follows an oscillation through a cubic law, with further algebraic variables."""
    m = dh.HybridModel("follower")
    r, x, z = m.parameter("r", rate), m.differential("x"), m.algebraic("z", guess=0.0)
    others = [m.algebraic(f"z{k}", guess=0.0) for k in range(tail)]
    equations = [o + 0.1 * o**3 - z for o in others]
    m.initial(m.mode("go", ode={x: -r * z}, algebraic=[z + z**3 - x + ca.cos(m.time), *equations]), {x: 1.0})
    m.functional("G", integrand=x**2)
    return m


def test_stiff_modes_are_left_to_bdf() -> None:
    assert methods(dh.simulate(follower(1e6).build(), (0, 10), rtol=1e-6)) == {"bdf"}
    assert methods(dh.simulate(follower(3.0).build(), (0, 10), rtol=1e-6)) == {"erk"}


def test_many_algebraic_variables_are_left_to_bdf() -> None:
    assert methods(dh.simulate(follower(3.0, tail=3).build(), (0, 1))) == {"erk"}
    system = follower(3.0, tail=4).build()
    assert methods(dh.simulate(system, (0, 1))) == {"bdf"}
    with pytest.raises(dh.UnsupportedError, match="few of them"):
        dh.simulate(system, (0, 1), method="erk")


def test_equations_as_they_are_written_are_left_to_bdf() -> None:
    assert methods(dh.simulate(follower(3.0).build(eliminate=False), (0, 1))) == {"bdf"}
    assert methods(dh.simulate(follower(3.0).build(native=False), (0, 1))) == {"bdf"}


def test_a_mode_that_becomes_stiff_changes_over() -> None:
    m = dh.HybridModel("stiffens")
    x, c, z = m.differential("x"), m.differential("c"), m.algebraic("z", guess=0.0)
    law = [z + z**3 - x + ca.cos(m.time)]
    m.initial(m.mode("go", ode={x: -c * z, c: c}, algebraic=law), {x: 1.0, c: 1.0})
    m.functional("G", integrand=x**2, terminal=z)
    k = m.parameter("k", 1.0)
    m.functional("K", integrand=k * z)
    system, span = m.build(), (0.0, 16.0)
    run = dh.simulate(system, span, rtol=1e-7)
    assert methods(run) == {"erk", "bdf"}
    reference = dh.simulate(system, span, method="bdf", rtol=1e-9, atol=1e-12)
    assert run.functionals["G"] == pytest.approx(reference.functionals["G"], rel=1e-5)
    fsa = dh.forward_sensitivity(system, span, rtol=1e-7)
    asa = dh.adjoint_gradient(system, span, "K", rtol=1e-7)
    np.testing.assert_allclose(fsa.gradient["K"], asa.gradient, rtol=1e-5)
    np.testing.assert_allclose(fsa.gradient["K"], reference.functionals["K"], rtol=1e-4)


# -- branches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "erk"])
def test_a_fold_is_not_stepped_over(method: str) -> None:
    """z^2 = x, and x comes to zero."""
    m = dh.HybridModel("fold")
    x, z = m.differential("x"), m.algebraic("z", guess=1.0)
    m.initial(m.mode("go", ode={x: -1.0}, algebraic=[z**2 - x]), {x: 1.0})
    m.functional("G", integrand=z)
    with pytest.raises(dh.StepSizeError, match="becomes singular") as caught:
        dh.simulate(m.build(), (0, 2), method=method)
    assert caught.value.trajectory.t[-1] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("method", ["auto", "erk"])
def test_a_determinant_that_changes_sign_is_refused(method: str) -> None:
    """x (z + z^3 - 2) = 0 says nothing of z where x is zero."""
    m = dh.HybridModel("sign")
    x, z = m.differential("x"), m.algebraic("z", guess=1.0)
    m.initial(m.mode("go", ode={x: -1.0}, algebraic=[x * (z + z**3 - 2)]), {x: 1.0})
    with pytest.raises(dh.ConsistencyError, match="becomes singular") as caught:
        dh.simulate(m.build(), (0, 2), method=method)
    assert caught.value.time == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("apart", [1.0, 0.1, 1e-2, 1e-3])
@pytest.mark.parametrize("rtol", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("branch", [0, 1, 2])
def test_the_branch_is_kept(apart: float, rtol: float, branch: int) -> None:
    """Three roots move together, far more than they are apart, in steps that are longer than that takes."""
    m = dh.HybridModel("branches")
    x, z = m.differential("x"), m.algebraic("z", guess=branch * apart)
    s = ca.sin(3 * x)
    cubic = (z - s) * (z - s - apart) * (z - s - 2 * apart) / apart**2
    m.initial(m.mode("go", ode={x: 1 + 0.5 * (z - s) / apart}, algebraic=[cubic]), {x: 0.0})
    run = dh.simulate(m.build(), (0, 10), rtol=rtol, atol=rtol / 100)
    assert methods(run) == {"erk"}
    np.testing.assert_allclose((run["z"] - np.sin(3 * run["x"])) / apart, branch, atol=1e-6)
    assert run["x"][-1] == pytest.approx(10 * (1 + 0.5 * branch), rel=1e-6)


def test_branches_that_meet_are_not_mixed_up() -> None:
    """(z - sin t) (z - 0.999 + 0.1 t) = 0: where they cross nothing says which one goes on."""
    m = dh.HybridModel("meeting")
    x, z = m.differential("x"), m.algebraic("z", guess=0.0)
    m.initial(m.mode("go", ode={x: z}, algebraic=[(z - ca.sin(m.time)) * (z - 0.999 + 0.1 * m.time)]), {x: 0.0})
    for method in ("auto", "erk"):
        with pytest.raises(dh.DaeHybridError, match="singular") as caught:
            dh.simulate(m.build(), (0, 6), method=method)
        assert isinstance(caught.value, (dh.ConsistencyError, dh.StepSizeError))
