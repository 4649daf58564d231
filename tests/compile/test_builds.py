"""Build cost is linear in the size of the statement; large mechanisms agree with small ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from growing import bars, exits, guards, ring

import dae_hybrid as dh
import dae_hybrid.compile.pipeline
from dae_hybrid.adapters.sundials.forward import Forward
from dae_hybrid.codegen.kernels import generate
from dae_hybrid.codegen.split_source import statements
from dae_hybrid.compile.families import families
from dae_hybrid.mechanics import Formulation, Index1, Index2, Penalty, kinematics
from dae_hybrid.port.integrator import Equations


@pytest.fixture
def length(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Statements of C that a build hands to the compiler."""

    class Seen(Exception):
        pass

    def of(make: Callable[[], object]) -> int:
        found: list[int] = []

        def look(functions: dict[object, ca.Function], *, native: bool) -> None:
            found.append(statements(generate(list(functions.values()))))
            raise Seen

        monkeypatch.setattr(dae_hybrid.compile.pipeline, "compile_functions", look)
        with pytest.raises(Seen):
            make()
        return found[0]

    return of


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many functions every build hands to the compiler."""
    found: list[int] = []
    compile_functions = dae_hybrid.compile.pipeline.compile_functions

    def look(functions: dict[object, ca.Function], *, native: bool) -> object:
        found.append(len(functions))
        return compile_functions(functions, native=native)

    monkeypatch.setattr(dae_hybrid.compile.pipeline, "compile_functions", look)
    return found


def unshared(monkeypatch: pytest.MonkeyPatch, model: dh.HybridModel, **options: bool) -> dh.HybridSystem:
    """A model built as if nothing in it were alike."""
    with monkeypatch.context() as patch:
        patch.setattr("dae_hybrid.compile.builders.MIN_FAMILY_SIZE", 10**9)
        return model.build(**options)


def diverse() -> dh.HybridModel:
    """Modes of two structures with memory, measurements, a clock and numbers of every kind, and one of its own."""
    m = dh.HybridModel("diverse")
    x, y, p = m.differential("x"), m.differential("y"), m.parameter("p", 1.2)
    counted, last = m.memory("counted", initial=0.3), m.memory("last", of=x, initial=0.0)
    modes = [m.mode(f"up{i}", ode={x: (2 + 0.3 * i) * p, y: x ** (2 + i % 2) - 0.7 * y}) for i in range(5)]
    modes += [m.mode(f"down{i}", ode={x: 2.9 + 0.1 * i - p * y, y: (0.5, 0.6)[i % 2] * x - y}) for i in range(5)]
    own = m.mode("own", ode={x: 3 - 0.1 * x, y: ca.sin(y)})
    ring = [*modes, own]
    for i, (here, there) in enumerate(zip(ring, (*ring[1:], ring[0]), strict=True)):
        m.transition(
            here, there, guard=x - last - (0.31 + 0.02 * i) * p, direction="rising", reset={y: (0.9 - 0.03 * i) * y},
            memory={counted: (0.2 + 0.05 * i) * counted + 0.1 * x},
        )  # fmt: skip
        m.transition(here, here, every=1.7, reset={x: x - 0.2})
    m.initial(modes[0], {x: 0.1 * p, y: 0.2})
    data = {float(t): (x - 0.4 * t) ** 2 + counted for t in np.linspace(0.13, 1.9, 9)}
    m.functional("G", integrand=y, terminal=x * y + counted, at_times=data)
    m.functional("H", terminal=x)
    return m


@pytest.mark.parametrize("make", [ring, exits], ids=["ring", "exits"])
def test_modes_that_are_alike_share_their_functions(functions, make) -> None:
    few, many = make(12).build(), make(24).build()
    assert functions[1] == functions[0]
    compiled = {id(f) for mode in many.modes for f in mode.equations.compiled.values()}
    assert len(compiled) == len(few.modes[0].equations.compiled)
    assert len({f.address for links in many.graph.links for f in (x and x.cross for x in links) if f}) < 10
    assert [mode.name for mode in many.modes] == [f"m{i}" for i in range(24)]
    assert [t.surface for t in many.transitions[:2]] == [str(t.guard) for t in make(24).transitions.values()][:2]


def test_other_numbers_need_no_compilation(monkeypatch) -> None:
    texts = []

    def look(functions: dict[object, ca.Function], *, native: bool) -> object:
        texts.append(generate(list(functions.values())))
        return compile_functions(functions, native=False)

    compile_functions = dae_hybrid.compile.pipeline.compile_functions
    monkeypatch.setattr(dae_hybrid.compile.pipeline, "compile_functions", look)
    for rate in (0.3, 0.4):
        m = dh.HybridModel("rates")
        x = m.differential("x")
        modes = [m.mode(f"m{i}", ode={x: 1.3 + rate * (i + 1)}) for i in range(5)]
        for i, (here, there) in enumerate(zip(modes, (*modes[1:], modes[0]), strict=True)):
            m.transition(here, there, guard=x - 1.1 - rate * (i + 1), reset={x: 0.0})
        m.initial(modes[0], {x: 0.0})
        m.build()
    assert texts[0] == texts[1]


def test_numbers_do_not_move_what_happens_at_a_time() -> None:
    m = dh.HybridModel("times")
    x, p = m.differential("x"), m.parameter("p", 1.0)
    modes = [m.mode(f"m{i}", ode={x: (1.3 + 0.4 * i) * p}) for i in range(5)]
    for i, (here, there) in enumerate(zip(modes, (*modes[1:], modes[0]), strict=True)):
        m.transition(here, there, guard=m.time - (0.13 + 0.11 * i), direction="rising")
    m.initial(modes[0], {x: 0.0})
    m.functional("G", terminal=x)
    system = m.build()
    assert len({id(mode.equations.compiled["flow"]) for mode in system.modes}) == 1
    assert not any(transition.movable for transition in system.transitions)
    fsa = dh.forward_sensitivity(system, (0, 0.5), rtol=1e-10)
    np.testing.assert_allclose(fsa.gradient["G"], [1.3 * 0.13 + 0.11 * (1.7 + 2.1 + 2.5) + 0.04 * 2.9], rtol=1e-9)
    np.testing.assert_allclose(fsa.event_time_sensitivity, 0.0, atol=1e-15)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_a_ring_of_modes_that_share_their_functions(native) -> None:
    """In mode k the state grows at the rate (20.5 + k) p, from 0 to 1."""
    system = ring(8).build(native=native)
    rates, begun, k = 20.5 + np.arange(8), 0.0, 0
    while begun + 1 / rates[k % 8] < 1.0:
        begun, k = begun + 1 / rates[k % 8], k + 1
    fsa = dh.forward_sensitivity(system, (0, 1), rtol=1e-10, atol=1e-12)
    asa = dh.adjoint_gradient(system, (0, 1), "G", rtol=1e-10, atol=1e-12)
    assert len(fsa.events) == k
    assert [event.source for event in fsa.events] == [f"m{i % 8}" for i in range(k)]
    np.testing.assert_allclose([event.time for event in fsa.events], np.cumsum(1 / rates[np.arange(k) % 8]), rtol=1e-9)
    assert float(fsa.functionals["G"]) == pytest.approx(rates[k % 8] * (1 - begun), rel=1e-7)
    for gradient in (fsa.gradient["G"], asa.gradient):
        np.testing.assert_allclose(gradient, [rates[k % 8]], rtol=1e-8)


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (lambda: exits(9), {}),
        (lambda: guards(9), {}),
        (diverse, {}),
        pytest.param(diverse, {"native": False}, marks=pytest.mark.campaign),
        (diverse, {"adapter": "scipy"}),
    ],
    ids=["exits", "guards", "compiled", "interpreted", "scipy"],
)
def test_what_shares_functions_gives_what_it_would_alone(monkeypatch, make, way) -> None:
    built = {key: value for key, value in way.items() if key == "native"}
    options = {"rtol": 1e-8, "atol": 1e-10} | {key: value for key, value in way.items() if key == "adapter"}
    shared, alone = make().build(**built), unshared(monkeypatch, make(), **built)
    one, other = (dh.forward_sensitivity(system, (0, 2), **options) for system in (shared, alone))
    assert len(one.events) == len(other.events) > 5
    assert [e.transition for e in one.events] == [e.transition for e in other.events]
    np.testing.assert_allclose([e.time for e in one.events], [e.time for e in other.events], rtol=1e-9)
    np.testing.assert_allclose(one.gradient["G"], other.gradient["G"], rtol=1e-6)
    asa, alone_asa = (dh.adjoint_gradient(system, (0, 2), "G", **options) for system in (shared, alone))
    np.testing.assert_allclose(asa.value, alone_asa.value, rtol=1e-9)
    np.testing.assert_allclose(asa.gradient, alone_asa.gradient, rtol=1e-6)
    np.testing.assert_allclose(asa.gradient, one.gradient["G"], rtol=1e-5)


def test_many_modes_make_their_memories_as_they_are_entered(monkeypatch) -> None:
    entered, whole = (ring(12).build() for _ in range(2))
    options = {"rtol": 1e-8, "atol": 1e-10}
    one = dh.adjoint_gradient(whole, (0, 0.3), "G", **options)
    made, make = set[str](), Forward.__init__

    def look(self: Forward, equations: Equations, *arguments: object) -> None:
        made.add(equations.name)
        make(self, equations, *arguments)

    monkeypatch.setattr("dae_hybrid.adapters.sundials.native_forward.MOST_MODES", 10)
    monkeypatch.setattr(Forward, "__init__", look)
    other = dh.adjoint_gradient(entered, (0, 0.3), "G", **options)
    assert len(one.trajectory.events) == 6
    assert made == {f"m{i}" for i in range(7)}
    np.testing.assert_array_equal(one.gradient, other.gradient)
    np.testing.assert_array_equal(one.value, other.value)


def test_modes_that_share_their_functions_go_in_batches() -> None:
    system, values = exits(9).build(), np.linspace(0.9, 1.1, 3)
    found = dh.batch(system, (0, 1), parameters={"p": values}, gradient="adjoint", rtol=1e-8)
    for i, value in enumerate(values):
        alone = dh.forward_sensitivity(system, (0, 1), parameters={"p": value}, rtol=1e-8)
        np.testing.assert_allclose(found.gradient["G"][i], alone.gradient["G"], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "n"),
    [
        (lambda n: guards(n).build(), 20),
        (lambda n: bars(n).build(), 10),
        (lambda n: bars(n).build(Index1(omega=1.0)), 10),
        (lambda n: bars(n).build(Penalty()), 10),
    ],
    ids=["guards", "index 2", "index 1", "penalty"],
)
def test_code_grows_linearly(length, make, n: int) -> None:
    small, large = length(lambda: make(n)), length(lambda: make(2 * n))
    assert large < 2.2 * small


def test_transitions_that_call_the_guards_of_their_modes_give_the_same(monkeypatch) -> None:
    apart = guards(12).build()
    monkeypatch.setattr("dae_hybrid.compile.native_transitions.CALLED", 1000)
    within = guards(12).build()
    for system in (apart, within):
        assert system.native
    one, other = (dh.forward_sensitivity(system, (0, 1.5), rtol=1e-8) for system in (apart, within))
    assert len(one.events) == 12
    assert one.trajectory.statistics["native_events"] == 12
    assert [event.time for event in one.events] == [event.time for event in other.events]
    np.testing.assert_array_equal(one.gradient["G"], other.gradient["G"])
    asa = dh.adjoint_gradient(apart, (0, 1.5), "G", rtol=1e-8)
    np.testing.assert_allclose(asa.gradient, one.gradient["G"], rtol=1e-6)


@pytest.mark.parametrize("form", [Index1(), Index2(), Index2(positions=False)], ids=str)
def test_a_large_mechanism_moves_as_a_small_one_does(monkeypatch, form: Formulation) -> None:
    stated = bars(3)
    solved = stated.build(form)
    monkeypatch.setattr(kinematics, "SMALL", 0)
    as_stated = bars(3).build(form)
    one, other = (dh.forward_sensitivity(s, (0, 1), rtol=1e-9, atol=1e-11) for s in (solved, as_stated))
    np.testing.assert_allclose(other.functionals["G"], one.functionals["G"], rtol=1e-6)
    np.testing.assert_allclose(other.gradient["G"], one.gradient["G"], rtol=1e-5)


def test_a_pendulum_of_thirty_bars() -> None:
    system = bars(30).build()
    assert system.native
    sol = dh.simulate(system, (0, 1), rtol=1e-8, atol=1e-10)
    assert sol.statistics["band factorisations"] > 0
    assert abs(float(sol.functionals["energy"])) < 1e-4  # of about 4000 that have become motion
    options = {"rtol": 1e-7, "atol": 1e-9}
    fsa = dh.forward_sensitivity(system, (0, 1), **options)
    asa = dh.adjoint_gradient(system, (0, 1), "G", **options)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["G"], rtol=1e-4, atol=1e-6)
    step = 1e-3
    for i, name in enumerate(("mass", "g")):
        p = dict(zip(("mass", "g"), system.nominal, strict=True))
        ends = [
            dh.simulate(system, (0, 1), parameters=p | {name: p[name] + s}, **options).functionals["G"]
            for s in (-step, step)
        ]
        assert float(np.diff(np.ravel(ends))[0]) / (2 * step) == pytest.approx(fsa.gradient["G"][i], rel=1e-3, abs=1e-5)


@cache
def shuffled(seed: int) -> dh.HybridSystem:
    """A chain with z_i = (z_{i-1} + z_{i+1} + y_i + z_i^3 / 9) / 4, its equations shuffled."""
    n = 40
    order = np.random.default_rng(seed).permutation(n).tolist()
    m = dh.HybridModel("chain")
    k, y, z = m.parameter("k", 1.0), m.differential("y", size=n), m.algebraic("z", size=n)
    rows = 4 * z - ca.vertcat(0, z[:-1]) - ca.vertcat(z[1:], 0) - y - z**3 / 9
    run = m.mode("run", ode={y: -k * z}, algebraic=rows[order])
    m.initial(run, {y: np.linspace(1.0, 2.0, n)})
    m.functional("G", integrand=ca.sumsqr(z))
    return m.build()


@pytest.mark.parametrize("solver", ["auto", "band", "sparse"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.campaign)])
def test_equations_in_any_order_give_a_narrow_band(seed: int, solver: str) -> None:
    system, options = shuffled(seed), {"rtol": 1e-8, "atol": 1e-10}
    found = dh.adjoint_gradient(system, (0, 1), "G", linear_solver=solver, **options)
    dense = dh.adjoint_gradient(system, (0, 1), "G", linear_solver="dense", **options)
    np.testing.assert_allclose(found.gradient, dense.gradient, rtol=1e-5)
    kind = "band" if solver == "auto" else solver
    assert found.trajectory.statistics[f"{kind} factorisations"] > 0


def test_measurements_that_differ_in_numbers_share_one_function() -> None:
    m = dh.HybridModel("data")
    p, q, x = m.parameter("p", 1.0), m.parameter("q", 0.4), m.differential("x")
    run = m.mode("run", ode={x: 1 - p * x})
    m.initial(run, {x: 0.0})
    times, data = np.linspace(0.1, 0.9, 9), np.linspace(0.2, 0.6, 9)
    terms = {
        float(t): (x - d) ** 2 / (1 + d) + ca.if_else(x > 2 + d, 1.0, q * d) for t, d in zip(times, data, strict=True)
    }
    m.functional("G", at_times=terms | {0.95: x**3, q + 0.57: 2 * x})
    system = m.build()
    sol = dh.simulate(system, (0, 1), rtol=1e-10, atol=1e-12)
    exact = 1 - np.exp(-times)
    found = np.sum((exact - data) ** 2 / (1 + data) + 0.4 * data) + (1 - np.exp(-0.95)) ** 3 + 2 * (1 - np.exp(-0.97))
    assert float(np.squeeze(sol.functionals["G"])) == pytest.approx(found, rel=1e-9)
    assert len({id(measurement.of_mode(0)) for measurement in system.measurements}) == 3
    fsa = dh.forward_sensitivity(system, (0, 1), rtol=1e-10, atol=1e-12)
    asa = dh.adjoint_gradient(system, (0, 1), "G", rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["G"], rtol=1e-8)
    by_q = 0.0 + data.sum() + 2 * np.exp(-0.97)
    assert fsa.gradient["G"][1] == pytest.approx(by_q, rel=1e-8)


def _table(values: np.ndarray) -> ca.Function:
    return ca.interpolant("table", "bspline", [np.linspace(-1, 6, 8)], values)


def test_measurements_look_up_their_own_tables() -> None:
    first, other = (_table(f(np.linspace(-1, 6, 8))) for f in (np.sin, np.cos))
    m = dh.HybridModel("measured tables")
    a, x = m.parameter("a", 0.8), m.differential("x")
    m.initial(m.mode("run", ode={x: a}), {x: 0.0})
    m.functional("G", at_times=[(1.0, first(x)), (1.5, other(0.4 * x)), (2.0, other(0.6 * x))])
    system = m.build()

    def exact(a: float) -> float:
        return float(first(a) + other(0.4 * 1.5 * a) + other(0.6 * 2 * a))

    fsa = dh.forward_sensitivity(system, (0, 2))
    assert fsa.trajectory.functionals["G"] == pytest.approx(exact(0.8), rel=1e-8)
    by_a = (exact(0.8 + 1e-5) - exact(0.8 - 1e-5)) / 2e-5
    assert fsa.gradient["G"][0] == pytest.approx(by_a, rel=1e-6)
    assert dh.adjoint_gradient(system, (0, 2), "G").gradient[0] == pytest.approx(by_a, rel=1e-6)


@pytest.mark.parametrize("native", [True, False])
def test_modes_that_are_alike_look_up_tables(native: bool) -> None:
    table, rates = _table(np.linspace(-1, 6, 8) ** 2), (0.3, 0.4, 0.6, 0.7)
    m = dh.HybridModel("tables")
    a, x, y = m.parameter("a", 0.8), m.differential("x"), m.differential("y")
    modes = [m.mode(f"m{i}", ode={x: ca.MX(1.0), y: a * table(k * x)}) for i, k in enumerate(rates)]
    for i, (one, other) in enumerate(zip(modes, [*modes[1:], modes[0]], strict=True)):
        m.transition(one, other, guard=x - (0.52 + 0.5 * i), direction="rising")
    m.initial(modes[0], {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    fsa = dh.forward_sensitivity(m.build(native=native), (0, 2.01), rtol=1e-9, atol=1e-11)
    xi, weights = np.polynomial.legendre.leggauss(20)
    ends = (0.0, 0.52, 1.02, 1.52, 2.01)
    area = sum(
        0.5 * (ends[i + 1] - ends[i]) * w * float(table(k * (ends[i] + 0.5 * (ends[i + 1] - ends[i]) * (1 + s))))
        for i, k in enumerate(rates) for s, w in zip(xi, weights, strict=True)
    )  # fmt: skip
    assert fsa.trajectory.functionals["G"] == pytest.approx(0.8 * area, rel=1e-6)
    assert fsa.gradient["G"][0] == pytest.approx(area, rel=1e-6)


def test_what_one_expression_uses_others_need_not() -> None:
    x, rate, k = ca.MX.sym("x"), ca.MX.sym("rate"), ca.MX.sym("k", 2)
    (found,) = families({i: ("", [x * (0.3 + i), rate - (0.7 + i)]) for i in range(4)}, least=4)
    assert [{s.name() for s in ca.symvar(one)} for one in found.stated(k)] == [{"x", "k"}, {"rate", "k"}]


def coupled(*, moving: bool) -> dh.HybridModel:
    """Six algebraic variables that depend on each other, and guards of one; whether time enters the equations."""
    m = dh.HybridModel("coupled")
    p, y, z = m.parameter("p", 0.8), m.differential("y"), m.algebraic("z", size=6)
    pushed = y + 0.05 * ca.sin(m.time) if moving else y
    algebraic = [z + p * z**3 - 0.1 * np.arange(1, 7) * ca.vertcat(z[1:], z[0]) - pushed]
    up, down = (m.mode(n, ode={y: s - 0.2 * z[0]}, algebraic=algebraic) for n, s in (("up", 1.0), ("down", -1.0)))
    m.transition(up, down, guard=z[2] - 0.6, direction="rising")
    m.transition(down, up, guard=z[4] - 0.3, direction="falling")
    m.initial(up, {y: 0.1})
    m.functional("G", integrand=z[3] ** 2)
    return m


@pytest.mark.parametrize("moving", [False, True])
def test_functions_at_points_call_the_derivatives_of_the_integrator(moving: bool) -> None:
    system, interpreted = coupled(moving=moving).build(), coupled(moving=moving).build(native=False)
    compiled = system.modes[0].equations.compiled
    assert {compiled[name].function.n_in() for name in ("complete", "settle", "rates")} == {4 if moving else 5}
    options = {"rtol": 1e-9, "atol": 1e-11}
    one, other = (dh.simulate(s, (0, 3), **options) for s in (system, interpreted))
    assert len(one.events) == len(other.events) > 2
    np.testing.assert_allclose([e.time for e in one.events], [e.time for e in other.events], rtol=1e-10)
    assert one.functionals["G"] == pytest.approx(float(other.functionals["G"]), rel=1e-10)
    fsa, asa = dh.forward_sensitivity(system, (0, 3), **options), dh.adjoint_gradient(system, (0, 3), "G", **options)
    above, below = (
        dh.simulate(system, (0, 3), parameters={"p": 0.8 + h}, **options).functionals["G"] for h in (1e-4, -1e-4)
    )
    np.testing.assert_allclose(asa.gradient, fsa.gradient["G"], rtol=1e-6)
    np.testing.assert_allclose(asa.gradient, (above - below) / 2e-4, rtol=1e-5)


def test_derivatives_that_functions_share_are_compiled_once(length: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    together = length(coupled(moving=False).build)
    monkeypatch.setattr("dae_hybrid.compile.mode_system.shared", lambda functions, *_: functions)
    assert together < length(coupled(moving=False).build) - 200
