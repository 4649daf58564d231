"""Transitions whose times or periods differ in numbers share their functions, with the results of separate ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
import dae_hybrid.compile.pipeline
from dae_hybrid.codegen.kernels import Kernel

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
END = 3.0


def doses(n: int, *, moving: bool = True) -> dh.HybridModel:
    """Doses of different sizes at times that are stated in no order; `tau` stretches them."""
    m = dh.HybridModel("doses")
    k, tau, x = m.parameter("k", 0.7), m.parameter("tau", 1.3), m.differential("x")
    run = m.mode("run", ode={x: -k * x})
    for share, dose in shares(n):
        m.transition(run, run, at=share * (tau if moving else 1.3), reset={x: x + dose})
    m.initial(run, {x: 1.0})
    m.functional("G", terminal=x)
    return m


def shares(n: int) -> np.ndarray:
    return np.random.default_rng(n).permuted(np.linspace((0.13, 0.21), (1.97, 0.83), n), axis=0)


def exact(n: int) -> np.ndarray:
    """Terminal value of x and its derivatives by k and tau."""
    k, tau = 0.7, 1.3
    times, sizes = tau * shares(n)[:, 0], shares(n)[:, 1]
    own = sizes * np.exp(-k * (END - times))
    first = np.exp(-k * END)
    return np.array([first + own.sum(), -END * first - own @ (END - times), k * own @ times / tau])


@pytest.mark.parametrize("options", [{}, {"native_events": False}], ids=["compiled", "Python"])
def test_doses_at_many_times(options: dict[str, Any]) -> None:
    n, system = 12, doses(12).build()
    value, *gradient = exact(n)
    fsa = dh.forward_sensitivity(system, (0, END), **TIGHT, **options)
    asa = dh.adjoint_gradient(system, (0, END), "G", **TIGHT, **options)
    order = np.argsort(shares(n)[:, 0])
    assert [e.transition for e in fsa.events] == [system.transitions[i].name for i in order]
    np.testing.assert_allclose(fsa.trajectory.event_table.t, 1.3 * shares(n)[order, 0], rtol=1e-15)
    np.testing.assert_allclose(fsa.event_time_sensitivity, np.stack((0 * order, shares(n)[order, 0]), 1), rtol=1e-14)
    assert asa.value == pytest.approx(value, rel=1e-8)
    np.testing.assert_allclose(fsa.gradient["G"], gradient, rtol=1e-7)
    np.testing.assert_allclose(asa.gradient, gradient, rtol=1e-7)
    assert fsa.trajectory.statistics["native_events"] == (0 if options else n)


def test_fixed_times_have_no_derivatives() -> None:
    fsa = dh.forward_sensitivity(doses(12, moving=False).build(), (0, END), **TIGHT)
    value, by_k, _ = exact(12)
    assert fsa.functionals["G"] == pytest.approx(value, rel=1e-8)
    np.testing.assert_allclose(fsa.gradient["G"], [by_k, 0.0], rtol=1e-7)
    assert not fsa.event_time_sensitivity.any()


def several(n: int) -> dh.HybridModel:
    """Two modes, each left at many times; clocks, some of which tick together, and one with a reset of its own."""
    m = dh.HybridModel("several")
    k, s = m.parameter("k", 0.7), m.parameter("s", 0.9)
    x, y, count = m.differential("x"), m.differential("y"), m.memory("count", initial=0)
    here, there = (m.mode(name, ode={x: -k * x + c, y: x}) for name, c in (("here", 0.3), ("there", 0.8)))
    for i in range(n):
        m.transition(here, there, at=(0.21 + 2.6 * i / n) * s, reset={x: 0.9 * x + 0.01 * i}, name=f"go {i}")
        m.transition(there, here, at=(0.33 + 2.6 * i / n) * s, name=f"return {i}")
        every = (0.37, 0.41, 0.53, 0.97)[i % 4] * s
        m.transition(here, here, every=every, reset={x: x + 0.1}, memory={count: count + 1}, name=f"tick {i}")
        m.transition(there, there, every=every, reset={x: x + 0.1}, memory={count: count + 1}, name=f"tack {i}")
    m.transition(there, there, every=0.37 * s, reset={x: x + 0.2, y: 0.5 * y}, name="special")
    m.initial(here, {x: 1.0, y: 0.0})
    m.functional("G", terminal=x * y, integrand=y)
    return m


@pytest.mark.filterwarnings("ignore::dae_hybrid.DerivativeWarning")
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "Python"])
def test_they_fire_as_transitions_with_functions_of_their_own(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = several(4).build()
    with monkeypatch.context() as patch:
        patch.setattr("dae_hybrid.compile.builders.MIN_FAMILY_SIZE", 10**9)
        apart = several(4).build()
    options = {**TIGHT, "native_events": native, "strict": False}
    one, other = (dh.forward_sensitivity(s, (0, END), **options) for s in (shared, apart))
    assert [(e.transition, e.time, e.count) for e in one.events] == [
        (e.transition, e.time, e.count) for e in other.events
    ]
    assert len({e.transition for e in one.events}) > 12
    np.testing.assert_allclose(one.gradient["G"], other.gradient["G"], rtol=1e-10)
    np.testing.assert_allclose(one.event_time_sensitivity, other.event_time_sensitivity, rtol=1e-12, atol=1e-14)


def test_a_batch_has_its_own_times() -> None:
    system, tau = doses(9).build(), np.linspace(1.1, 1.5, 7)
    found = dh.batch(system, (0, END), parameters={"tau": tau}, gradient="adjoint", **TIGHT)
    assert not any(found.errors)
    for i, value in enumerate(tau):
        one = dh.adjoint_gradient(system, (0, END), "G", parameters={"tau": value}, **TIGHT)
        assert found.functionals["G"][i] == one.value
        np.testing.assert_array_equal(found.gradient["G"][i], one.gradient)


def test_a_time_that_is_not_finite_is_named() -> None:
    m = dh.HybridModel("bad")
    p, x = m.parameter("p", 1.0), m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    for i in range(6):
        m.transition(run, run, at=0.3 + 0.1 * i + 0.1 / (p - 0.5 * i), name=f"number {i}")
    m.initial(run, {x: 0.0})
    system = m.build()
    with pytest.raises(dh.NonFiniteError, match="time is not finite") as caught:
        dh.simulate(system, (0, 1), parameters={"p": 2.0})
    assert caught.value.transition == "number 4"
    for i in range(5):
        m.transition(run, run, at=x + 0.3 * i, name=f"state {i}")
    with pytest.raises(dh.ModelError, match="at of transition 'state 0' uses x"):
        m.build()


def sizes_of(models: list[dh.HybridModel], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of instructions of all functions that would be compiled for each model."""
    sizes: list[int] = []
    compile_functions = dae_hybrid.compile.pipeline.compile_functions

    def look(functions: dict[object, ca.Function], *, native: bool) -> object:
        sizes.append(sum(f.n_instructions() for f in functions.values()))
        return compile_functions(functions, native=False)

    monkeypatch.setattr(dae_hybrid.compile.pipeline, "compile_functions", look)
    for model in models:
        model.build()
    return sizes


@pytest.mark.parametrize("make", [doses, several])
def test_functions_do_not_grow_with_the_number_of_times(
    make: Callable[[int], dh.HybridModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = sizes_of([make(8), make(80)], monkeypatch)
    assert few == many


@pytest.mark.parametrize("stated", [doses, several])
def test_a_run_evaluates_all_times_at_once(
    stated: Callable[[int], dh.HybridModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def calls(n: int) -> int:
        system, found = stated(n).build(), [0]
        dh.simulate(system, (0, 0.1))
        call = Kernel.__call__

        def counted(kernel: Kernel, *arguments: Any) -> Any:
            found[0] += 1
            return call(kernel, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Kernel, "__call__", counted)
            dh.simulate(system, (0, 0.1), parameters={"k": 0.6})
        return found[0]

    assert calls(8) == calls(80)


def jumps(n: int, *, constrained: bool) -> dh.HybridModel:
    """A nonlinear element, or a pendulum in Cartesian coordinates, kicked at many times and at many places."""
    m = dh.HybridModel("jumps")
    k, tau = m.parameter("k", 0.7), m.parameter("tau", 1.1)
    if constrained:
        x, y, vx, vy = (m.differential(name) for name in ("x", "y", "vx", "vy"))
        tension, mu = m.algebraic("tension"), m.algebraic("mu")
        ode = {x: vx - x * mu, y: vy - y * mu, vx: -x * tension, vy: -9.81 - y * tension}
        run = m.mode("run", ode=ode, constraint=[(x**2 + y**2 - 1.44) / 2, x * vx + y * vy])
        m.initial(run, {x: 1.2 * np.sin(0.5), y: -1.2 * np.cos(0.5), vx: 0.0, vy: 0.0})
        resets = [{vx: f * k * vx, vy: f * k * vy} for f in np.linspace(1.2, 1.5, n)]
        m.functional("G", terminal=x, integrand=tension)
    else:
        x, z, c = m.differential("x"), m.algebraic("z"), m.memory("c", initial=1.0)
        kept = m.memory("kept", of=z, initial=0.5)
        run = m.mode("run", ode={x: 0.4 - k * z}, algebraic=[z + 0.3 * z**3 + 0.1 * kept - c * x])
        m.initial(run, {x: 1.0})
        resets = [{x: x + f * z} for f in np.linspace(0.1, 0.3, n)]
        m.functional("G", terminal=x * z, integrand=z**2)
    for i, reset in enumerate(resets):
        memory = None if constrained else {c: 1 + 0.3 * np.cos(i)}
        m.transition(run, run, at=(i + 0.37) / n * 1.7 * tau, reset=reset, memory=memory, name=f"at {i}")
        place = 0.43 - 0.13 * i if constrained else 0.81 + 0.13 * i
        m.transition(run, run, guard=x - place, reset=reset, name=f"place {i}")
    return m


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "Python"])
@pytest.mark.parametrize("eliminate", [True, False])
@pytest.mark.parametrize("constrained", [True, False])
def test_transitions_of_modes_with_algebraic_variables(
    constrained: bool, eliminate: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = jumps(6, constrained=constrained).build(eliminate=eliminate)
    with monkeypatch.context() as patch:
        patch.setattr("dae_hybrid.compile.builders.MIN_FAMILY_SIZE", 10**9)
        apart = jumps(6, constrained=constrained).build(eliminate=eliminate)
    assert len({id(t.kernels["jump"].function) for t in apart.transitions}) == 12
    assert len({id(t.kernels["jump"].family[0]) for t in shared.transitions if t.kernels["jump"].family}) == 2
    one, other = (dh.forward_sensitivity(s, (0, 2), **TIGHT, native_events=native) for s in (shared, apart))
    assert [(e.transition, e.time) for e in one.events] == [(e.transition, e.time) for e in other.events]
    assert len(one.events) > 6
    np.testing.assert_allclose(one.gradient["G"], other.gradient["G"], rtol=1e-10)
    asa = dh.adjoint_gradient(shared, (0, 2), "G", **TIGHT, native_events=native)
    np.testing.assert_allclose(asa.gradient, one.gradient["G"], rtol=1e-6)


def table(n: int, kind: str = "explicit") -> dh.HybridModel:
    """Doses at times and of amounts that are parameters: in no order, one before the start and two at one time."""
    m = dh.HybridModel("table")
    times, amounts = starts(n)
    if kind == "intervals":
        times = np.diff(times, prepend=0.0)
    k, T, A = m.parameter("k", 0.7), m.parameter("T", times), m.parameter("A", amounts)
    x, y, z = m.differential("x"), m.differential("y", size=2), m.differential("z")
    count = m.memory("count", initial=0.0)
    run = m.mode("run", ode={x: -k * x, y: -y, z: x})
    options: dict[str, Any] = {
        "reset": {x: x * ca.exp(-0.1 * k) + A[:, 0], y: ca.repmat(k * y.T, n, 1) + A},
        "memory": {count: count + A[:, 1]},
    }
    if kind == "implicit":
        options = {"reset": [m.post(x) ** 3 + m.post(x) - x - k], "guess": {x: x}}
    elif kind == "when":
        options["when"] = x < 1.5
    elif kind == "priority":
        options["priority"] = k * x
    dose = m.transition(run, run, at=ca.cumsum(T) if kind == "intervals" else T, name="dose", **options)
    m.initial(run, {x: 1.0, y: [0.2, 0.3], z: 0.0})
    m.functional("G", terminal=x + y[0] * y[1] + count * z, at_events={dose: x * k} if kind == "costs" else None)
    return m


def starts(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and amounts of `table`."""
    rng = np.random.default_rng(n)
    times = rng.permuted(np.linspace(0.13, 2.7, n))
    times[1], times[2] = times[0], -0.5
    return times, rng.uniform(0.1, 0.4, (n, 2))


@pytest.mark.filterwarnings("ignore::dae_hybrid.DerivativeWarning")
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "Python"])
@pytest.mark.parametrize("kind", ["explicit", "implicit", "when", "priority", "costs", "intervals"])
def test_times_and_amounts_that_are_parameters(kind: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = table(7, kind).build()
    with monkeypatch.context() as patch:
        patch.setattr("dae_hybrid.compile.builders.MIN_FAMILY_SIZE", 10**9)
        apart = table(7, kind).build()
    assert len({id(t.kernels["jump"].family[0]) for t in shared.transitions if t.kernels["jump"].family}) == 1 + (
        kind == "when"
    )
    options = {**TIGHT, "native_events": native, "strict": False}
    one, other = (dh.forward_sensitivity(s, (0, END), **options) for s in (shared, apart))
    assert [(e.transition, e.time, e.count) for e in one.events] == [
        (e.transition, e.time, e.count) for e in other.events
    ]
    assert len(one.events) == 6
    np.testing.assert_allclose(one.gradient["G"], other.gradient["G"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(one.event_time_sensitivity, other.event_time_sensitivity, rtol=1e-12, atol=1e-14)
    one_asa, other_asa = (dh.adjoint_gradient(s, (0, END), "G", **options) for s in (shared, apart))
    np.testing.assert_allclose(one_asa.gradient, other_asa.gradient, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(one_asa.gradient, one.gradient["G"], rtol=1e-6, atol=1e-9)


def test_derivatives_by_every_time_and_amount() -> None:
    n, k = 9, 0.7
    m = dh.HybridModel("dosing")
    rate, x = m.parameter("k", k), m.differential("x")
    times, amounts = np.random.default_rng(1).permuted(np.linspace((0.1, 0.3), (2.6, 1.4), n), axis=0).T
    T, A = [m.parameter(f"T{i}", v) for i, v in enumerate(times)], m.parameter("A", amounts)
    run = m.mode("run", ode={x: -rate * x})
    m.transition(run, run, at=ca.vertcat(*T), reset={x: x + A})
    m.initial(run, {x: 1.0})
    m.functional("G", terminal=x)
    system = m.build()
    left = np.exp(-k * (END - times))
    exact = [-END * np.exp(-k * END) - amounts * left @ (END - times), *(k * amounts * left), *left]
    for options in ({}, {"native_events": False}):
        fsa = dh.forward_sensitivity(system, (0, END), **TIGHT, **options)
        asa = dh.adjoint_gradient(system, (0, END), "G", **TIGHT, **options)
        np.testing.assert_allclose(fsa.gradient["G"], exact, rtol=1e-7)
        np.testing.assert_allclose(asa.gradient, exact, rtol=1e-7)
        moved = fsa.event_time_sensitivity
        np.testing.assert_allclose(moved[:, 1 : n + 1], np.eye(n)[np.argsort(times)], atol=1e-14)
        assert not moved[:, [0, *range(n + 1, 2 * n + 1)]].any()


@pytest.mark.parametrize("kind", ["explicit", "implicit", "when", "costs", "intervals"])
def test_functions_grow_with_the_number_of_parameters_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = sizes_of([table(n, kind) for n in (8, 16, 32)], monkeypatch)
    assert c - b <= 2.2 * (b - a)
    assert c < 4 * a
