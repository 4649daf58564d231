"""Random hybrid systems: forward = adjoint, and changes of the statement that must change nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dae_hybrid as dh

TIGHT = {"rtol": 1e-9, "atol": 1e-11}
QUICK = settings(derandomize=True, deadline=None, max_examples=12)
seeds = st.integers(0, 2**32 - 1)


@cache
def linear(ny: int, nz: int, nm: int) -> dh.HybridSystem:
    """Two linear modes with a state guard one way and a period the other; every coefficient is a parameter."""
    m = dh.HybridModel(f"linear{ny}{nz}{nm}")
    y = m.differential("y", size=ny)
    r = m.memory("r", size=nm, initial=np.arange(1.0, nm + 1))

    def matrix(name: str, rows: int, columns: int) -> ca.MX:
        return ca.reshape(m.parameter(name, np.zeros(rows * columns)), rows, columns)

    z = m.algebraic("z", size=nz) if nz else None
    modes = []
    for i in range(2):
        rate = matrix(f"A{i}", ny, ny) @ y + matrix(f"B{i}", ny, nm) @ r
        rows = []
        if z is not None:
            rate += matrix(f"C{i}", ny, nz) @ z
            rows = [4 * z + matrix(f"E{i}", nz, nz) @ z - matrix(f"K{i}", nz, ny) @ y - r[0]]
        modes.append(m.mode(f"mode{i}", ode={y: rate}, algebraic=rows))
    jump = matrix("R", ny, ny) @ y + matrix("S", ny, nm) @ r
    update = {r: 0.5 * r + matrix("M", nm, ny) @ m.post(y) + matrix("N", nm, ny) @ y}
    m.transition(modes[0], modes[1], guard=y[0] - m.parameter("c", 0.0), reset={y: jump}, memory=update)
    m.transition(modes[1], modes[0], every=m.parameter("tau", 0.4), reset={y: y + jump / 4})
    m.initial(modes[0], {y: m.parameter("y0", np.zeros(ny))})
    weight = m.parameter("w", np.zeros(ny))
    m.functional("G", integrand=ca.dot(weight, y) ** 2 + ca.sumsqr(r), terminal=ca.dot(weight, y) * r[0])
    return m.build()


@QUICK
@given(st.sampled_from([(1, 0, 1), (2, 0, 2), (3, 2, 1), (2, 1, 2)]), seeds)
def test_forward_is_adjoint_on_random_linear_systems(sizes: tuple[int, int, int], seed: int) -> None:
    system = linear(*sizes)
    rng = np.random.default_rng(seed)
    p = rng.uniform(-0.8, 0.8, system.parameters.size)
    p[system.parameters["tau"]] = rng.uniform(0.2, 0.5)
    p[system.parameters["c"]] = 0.3
    fsa = dh.forward_sensitivity(system, (0, 1.5), parameters=p, **TIGHT)
    asa = dh.adjoint_gradient(system, (0, 1.5), parameters=p, **TIGHT)
    scale = max(np.abs(asa.gradient).max(), 1e-2)
    np.testing.assert_allclose(fsa.gradient["G"], asa.gradient, rtol=0, atol=1e-5 * scale)
    direction = rng.normal(size=p.size)
    h = 1e-5
    runs = [dh.simulate(system, (0, 1.5), parameters=p + s * h * direction, **TIGHT) for s in (1, -1)]
    if all([e.transition for e in run.events] == [e.transition for e in fsa.events] for run in runs):
        slope = (runs[0].functionals["G"] - runs[1].functionals["G"]) / (2 * h)
        assert asa.gradient @ direction == pytest.approx(slope, rel=1e-3, abs=2e-3 * scale)


# -- restatements ---------------------------------------------------------------------------------------------


def bouncer(
    *, order: tuple[str, ...] = ("e", "g", "c"), extra: Callable[..., None] | None = None, algebraic: bool = False
) -> dh.HybridModel:
    """A ball in a viscous medium, restated in several ways."""
    values = {"e": 0.8, "g": 9.81, "c": 0.1}
    m = dh.HybridModel("bouncer")
    p = {name: m.parameter(name, values[name]) for name in order}
    y, v = m.differential("y"), m.differential("v")
    rates, rows = {y: v, v: -p["g"] - p["c"] * v}, []
    if algebraic:
        a, b = m.algebraic("a"), m.algebraic("b")
        rates, rows = {y: a, v: b}, [a - v, b + p["g"] + p["c"] * a]
    fly = m.mode("fly", ode=rates, algebraic=rows)
    m.transition(fly, fly, guard=y, direction="falling", reset={v: -p["e"] * v})
    if extra is not None:
        extra(m, fly, y, v)
    m.initial(fly, {y: 1.0, v: 0.0})
    m.functional("G", integrand=y**2, terminal=v)
    return m


def never(m: Any, fly: Any, y: Any, v: Any) -> None:
    other = m.mode("other", ode={y: v * 3, v: y})
    m.transition(fly, other, guard=y - 100, direction="rising")
    m.transition(fly, other, at=50.0)
    m.transition(other, fly, guard=v)


def idle(m: Any, fly: Any, y: Any, v: Any) -> None:
    m.transition(fly, fly, at=0.2)
    m.transition(fly, fly, every=0.37)
    m.transition(fly, fly, guard=v + 1, direction="falling")


RESTATED = {
    "a transition that never fires": {"extra": never},
    "events that do nothing": {"extra": idle},
    "index 1": {"algebraic": True},
    "permuted parameters": {"order": ("c", "g", "e")},
    "all together": {"order": ("g", "e", "c"), "extra": idle, "algebraic": True},
}


@pytest.fixture(scope="module")
def original() -> Any:
    system = bouncer().build()
    return (
        dh.simulate(system, (0, 2.5), **TIGHT),
        dh.forward_sensitivity(system, (0, 2.5), **TIGHT),
        dh.adjoint_gradient(system, (0, 2.5), **TIGHT),
    )


@pytest.mark.parametrize("how", list(RESTATED))
def test_restatements_change_nothing(how: str, original: Any) -> None:
    sol, fsa, asa = original
    order = RESTATED[how].get("order", ("e", "g", "c"))
    system = bouncer(**RESTATED[how]).build()
    new = dh.simulate(system, (0, 2.5), **TIGHT)
    back = [order.index(name) for name in ("e", "g", "c")]
    assert new.functionals["G"] == pytest.approx(sol.functionals["G"], rel=1e-7)
    bounces = [e.time for e in new.events if e.transition == "fly->fly"]
    np.testing.assert_allclose(bounces, [e.time for e in sol.events], rtol=1e-8)
    scale = np.abs(asa.gradient).max()
    one = dh.forward_sensitivity(system, (0, 2.5), **TIGHT).gradient["G"][back]
    two = dh.adjoint_gradient(system, (0, 2.5), **TIGHT).gradient[back]
    for gradient in (one, two):
        np.testing.assert_allclose(gradient, asa.gradient, atol=2e-6 * scale)
        np.testing.assert_allclose(gradient, fsa.gradient["G"], atol=2e-6 * scale)


def test_a_transition_that_never_fires_changes_nothing_but_rounding(original: Any) -> None:
    sol, _, asa = original
    system = bouncer(extra=never).build()
    found = dh.simulate(system, (0, 2.5), **TIGHT).functionals
    assert found == pytest.approx(dict(sol.functionals), rel=1e-14)
    np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 2.5), **TIGHT).gradient, asa.gradient, rtol=1e-12)


@QUICK
@given(st.floats(-1e3, 1e3), st.floats(0.1, 10))
def test_time_may_be_counted_from_anywhere(shift: float, stretch: float) -> None:
    """An autonomous system does not know what time it is; rescaled time rescales the rates."""
    system = shifted()
    base = dh.adjoint_gradient(system, (0, 2.5), parameters={"s": 1.0}, **TIGHT)
    moved = dh.adjoint_gradient(
        system, (shift, shift + 2.5 / stretch), parameters={"s": stretch}, rtol=1e-9, atol=1e-11
    )
    assert moved.value == pytest.approx(base.value, rel=1e-6, abs=1e-7)
    np.testing.assert_allclose(moved.gradient[:2], base.gradient[:2], atol=1e-5 * np.abs(base.gradient[:2]).max())


@cache
def shifted() -> dh.HybridSystem:
    m = dh.HybridModel("shifted")
    e, g, s = m.parameter("e", 0.8), m.parameter("g", 9.81), m.parameter("s", 1.0)
    y, v = m.differential("y"), m.differential("v")
    fly = m.mode("fly", ode={y: s * v, v: -s * g})
    m.transition(fly, fly, guard=y, direction="falling", reset={v: -e * v})
    m.initial(fly, {y: 1.0, v: 0.0})
    m.functional("G", terminal=y)
    return m.build()


@QUICK
@given(st.lists(st.floats(0, 2.5), min_size=1, max_size=8, unique=True))
def test_output_times_do_not_matter(times: list[float]) -> None:
    system = shifted()
    times = sorted(times)
    sol = dh.simulate(system, (0, 2.5), t_eval=times, **TIGHT)
    np.testing.assert_array_equal(sol.t, times)
    plain = dh.simulate(system, (0, 2.5), **TIGHT)
    assert sol.functionals == plain.functionals
    np.testing.assert_allclose(sol["y"], plain(times)["y"], atol=1e-9)


@QUICK
@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4))
def test_time_events_split_a_run_without_a_trace(cuts: list[float]) -> None:
    """Idle time events anywhere, also on top of each other: one record each, the same solution."""
    system = split(len(cuts))
    p = {f"t{i}": value for i, value in enumerate(cuts)}
    asa = dh.adjoint_gradient(system, (0, 1), parameters=p, **TIGHT)
    assert sorted(e.time for e in asa.trajectory.events) == sorted(cuts)
    assert asa.value == pytest.approx(np.exp(-0.7), rel=1e-7)
    np.testing.assert_allclose(asa.gradient[0], -np.exp(-0.7), rtol=1e-6)
    np.testing.assert_allclose(asa.gradient[1:], 0, atol=1e-12)


@cache
def split(count: int) -> dh.HybridSystem:
    m = dh.HybridModel("split")
    k = m.parameter("k", 0.7)
    y = m.differential("y")
    run = m.mode("run", ode={y: -k * y})
    for i in range(count):
        m.transition(run, run, at=m.parameter(f"t{i}", 0.5))
    m.initial(run, {y: 1.0})
    m.functional("G", terminal=y)
    return m.build()
