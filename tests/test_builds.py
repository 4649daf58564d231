"""What is built grows linearly with what is stated, and large mechanisms move as small ones do."""

from __future__ import annotations

from collections.abc import Callable

import casadi as ca
import numpy as np
import pytest
from growing import bars, guards, ring

import dae_hybrid as dh
import dae_hybrid.build
from dae_hybrid.chunks import statements
from dae_hybrid.codegen import generate
from dae_hybrid.mechanics import Formulation, Index1, Index2, Penalty, kinematics


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

        monkeypatch.setattr(dae_hybrid.build, "compile_functions", look)
        with pytest.raises(Seen):
            make()
        return found[0]

    return of


@pytest.mark.parametrize(
    ("make", "n"),
    [
        (lambda n: guards(n).build(), 20),
        (lambda n: ring(n).build(), 10),
        (lambda n: bars(n).build(), 10),
        (lambda n: bars(n).build(Index1(omega=1.0)), 10),
        (lambda n: bars(n).build(Penalty()), 10),
    ],
    ids=["guards", "ring", "index 2", "index 1", "penalty"],
)
def test_code_grows_linearly(length, make, n: int) -> None:
    small, large = length(lambda: make(n)), length(lambda: make(2 * n))
    assert large < 2.2 * small


def test_transitions_that_call_the_guards_of_their_modes_give_the_same(monkeypatch) -> None:
    apart = guards(12).build()
    monkeypatch.setattr("dae_hybrid.crossing_build.CALLED", 1000)
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("solver", ["auto", "band", "sparse"])
def test_equations_in_any_order_give_a_narrow_band(seed: int, solver: str) -> None:
    """A chain with z_i = (z_{i-1} + z_{i+1} + y_i + z_i^3 / 9) / 4, its equations shuffled."""
    n = 40
    order = np.random.default_rng(seed).permutation(n).tolist()
    m = dh.HybridModel("chain")
    k, y, z = m.parameter("k", 1.0), m.differential("y", size=n), m.algebraic("z", size=n)
    rows = 4 * z - ca.vertcat(0, z[:-1]) - ca.vertcat(z[1:], 0) - y - z**3 / 9
    run = m.mode("run", ode={y: -k * z}, algebraic=rows[order])
    m.initial(run, {y: np.linspace(1.0, 2.0, n)})
    m.functional("G", integrand=ca.sumsqr(z))
    system = m.build()
    options = {"rtol": 1e-8, "atol": 1e-10}
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
