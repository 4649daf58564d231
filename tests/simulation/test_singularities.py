"""Algebraic equations whose matrix becomes singular on the way: refused, with the time, in every loop."""

from __future__ import annotations

from functools import cache

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

#: what x' = a from x0 meets: equation for z, x0, a guess, and when the matrix is singular
CASES = {
    "removable": (lambda x, z: x * z - np.sin(x), -1.0, 0.8, 1.0),
    "removable and nonlinear": (lambda x, z: x * (z + z**3 / 10) - np.sin(x), -1.0, 0.8, 1.0),
    "branches cross": (lambda x, z: z**2 - x**2, -1.0, -1.0, 1.0),
    "touch": (lambda x, z: x**2 * z - (1 - np.cos(x)), -1.0, 0.5, 1.0),
    "fold": (lambda x, z: z**3 - z - x, 0.0, 0.0, 2 / np.sqrt(27)),
    "fold of an outer branch": (lambda x, z: z**3 - z + x, -1.0, 1.3, 1 + 2 / np.sqrt(27)),
    "pole": (lambda x, z: x * z - 1, -1.0, -1.0, 1.0),
    "turning point": (lambda x, z: z**2 + x, -1.0, 1.0, 1.0),
}


@cache
def model(case: str, *, native: bool, eliminate: bool = False) -> dh.HybridSystem:
    equation, x0, guess, _ = CASES[case]
    m = dh.HybridModel(case)
    a, x, z = m.parameter("a", 1.0), m.differential("x"), m.algebraic("z", guess=guess)
    run = m.mode("run", ode={x: a}, algebraic=[equation(x, z)])
    m.initial(run, {x: x0})
    m.functional("G", integrand=z)
    return m.build(native=native, eliminate=eliminate)


def refused(system: dh.HybridSystem, *, rtol: float = 1e-7, **options: object) -> dh.DaeHybridError:
    with pytest.raises(dh.DaeHybridError) as caught:
        dh.simulate(system, (0, 3), rtol=rtol, **options)
    assert caught.value.trajectory is not None
    assert caught.value.mode == "run"
    return caught.value


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("case", CASES)
def test_a_singular_matrix_is_refused_with_its_time(case: str, native: bool) -> None:
    time = CASES[case][3]
    for rtol in (1e-4, 1e-9):
        error = refused(model(case, native=native), rtol=rtol)
        assert isinstance(error, dh.ConsistencyError | dh.IntegrationError)
        assert error.time == pytest.approx(time, abs=1e-6 if rtol < 1e-6 else 1e-2)
        if case not in ("fold", "fold of an outer branch", "pole", "turning point"):  # there no solution goes on
            assert isinstance(error, dh.ConsistencyError)
            assert "z cannot be determined" in str(error)
        assert error.trajectory.t[-1] <= error.time


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
@pytest.mark.parametrize("case", ["removable", "removable and nonlinear", "touch"])
def test_adapters_that_only_integrate_refuse_it_too(case: str, adapter: str) -> None:
    for rtol in (1e-4, 1e-8):
        error = refused(model(case, native=True), rtol=rtol, adapter=adapter)
        assert isinstance(error, dh.ConsistencyError)
        assert error.time == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("case", ["removable", "touch"])
def test_eliminated_variables_are_watched_alike(case: str) -> None:
    for adapter in ("sundials", "scipy"):
        error = refused(model(case, native=True, eliminate=True), adapter=adapter)
        assert isinstance(error, dh.ConsistencyError)
        assert error.time == pytest.approx(1.0, abs=1e-6)


def test_gradients_are_refused_with_the_run() -> None:
    system = model("removable and nonlinear", native=True)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.ConsistencyError, match="becomes singular"):
            analysis(system, (0, 3))
    fsa = dh.forward_sensitivity(system, (0, 0.9), rtol=1e-9)  # before it there is nothing to say
    asa = dh.adjoint_gradient(system, (0, 0.9), rtol=1e-9)
    assert np.allclose(fsa.gradient["G"], asa.gradient, rtol=1e-6)


def test_an_event_before_the_singular_point_is_seen_first() -> None:
    m = dh.HybridModel("escape")
    x, z = m.differential("x"), m.algebraic("z", guess=1.0)
    run = m.mode("run", ode={x: 1.0}, algebraic=[x * (z + z**3) - np.sin(x)])
    over = m.mode("over", ode={x: 1.0})
    m.transition(run, over, guard=x + 1e-3, direction="rising")
    m.initial(run, {x: -1.0})
    for adapter in ("sundials", "scipy"):
        sol = dh.simulate(m.build(), (0, 2), adapter=adapter, rtol=1e-6)
        assert sol.events[0].time == pytest.approx(0.999, abs=1e-8)


def block(n: int, *, eliminate: bool) -> dh.HybridSystem:
    """Linear equations of one block whose determinant crosses zero at x = 0; z = 1 solves them everywhere."""
    rng = np.random.default_rng(n)
    left, sizes, right = np.linalg.svd(rng.normal(size=(n, n)))
    sizes[-1] = 0.0
    matrix = ca.DM(left @ np.diag(sizes) @ right)
    m = dh.HybridModel(f"block of {n}")
    x, z = m.differential("x"), m.algebraic("z", size=n, guess=np.ones(n))
    moved = ca.DM(np.outer(left[:, -1], right[-1]))
    run = m.mode("run", ode={x: 1.0}, algebraic=[ca.mtimes(matrix + x * moved, z - 1)])
    m.initial(run, {x: -1.0})
    return m.build(eliminate=eliminate)


@pytest.mark.parametrize("eliminate", [True, False])
@pytest.mark.parametrize("n", [2, 6, 8])
def test_determinants_of_blocks_have_their_sign(n: int, eliminate: bool) -> None:
    error = refused(block(n, eliminate=eliminate))
    assert isinstance(error, dh.ConsistencyError)
    assert error.time == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("n", [12, 150])
def test_large_systems_are_looked_at_by_the_sign_of_a_factorisation(n: int) -> None:
    def chain(factor: object) -> dh.HybridSystem:
        rows = [2 * (z[i] - 1) + 0.1 * (z[i] ** 3 - 1) for i in range(n)]
        rows = [row - 0.25 * (z[i - 1] - 1) for i, row in enumerate(rows)]  # of the first: of the last
        rows[0] = factor * rows[0]
        run = m.mode(f"run{len(m.modes)}", ode={x: 1.0}, algebraic=rows)
        m.initial(run, {x: -1.0})
        return m.build()

    m = dh.HybridModel("chain")
    x, z = m.differential("x"), m.algebraic("z", size=n, guess=np.ones(n))
    system = chain(x)
    assert system.modes[0].equations.unwatched
    with pytest.raises(dh.ConsistencyError, match="others cannot be determined") as caught:
        dh.simulate(system, (0, 2), rtol=1e-8, max_step=0.01)
    assert 1.0 <= caught.value.time < 1.6
    assert caught.value.trajectory.t[-1] <= 1.0

    m = dh.HybridModel("regular chain")
    x, z = m.differential("x"), m.algebraic("z", size=n, guess=np.ones(n))
    sol = dh.simulate(chain(x + 3), (0, 2), rtol=1e-8, max_step=0.01)
    assert np.allclose(sol.final[2][1:], 1.0)


def test_determinants_that_cannot_vanish_cost_nothing() -> None:
    for law, watched in (
        (lambda z, x, a: z + z**3 - x, 0),
        (lambda z, x, a: z + 1e-3 * (np.exp(z / 0.05) - 1) - x, 0),
        (lambda z, x, a: -2 * z - np.sin(z) * 0.5 - x, 0),
        (lambda z, x, a: z + a * z**3 - x, 1),  # a may be negative
        (lambda z, x, a: z - z**3 - x, 1),
        (lambda z, x, a: 2 * z - 3 * np.cos(z) - x, 1),
    ):
        m = dh.HybridModel("law")
        a, x, z = m.parameter("a", 1.0), m.differential("x"), m.algebraic("z")
        run = m.mode("run", ode={x: -x}, algebraic=[law(z, x, a)])
        m.initial(run, {x: 0.1})
        assert m.build(native=False).modes[0].equations.n_singularities == watched


@pytest.mark.parametrize("rtol", [1e-6, 1e-8, 1e-10])
def test_branches_that_meet_are_refused_where_steps_crawl_up_to_them(rtol: float) -> None:
    """z = +-(x - 1): Newton's method finds either of them within a step, and z may turn back."""
    m = dh.HybridModel("branches")
    x, z = m.differential("x"), m.algebraic("z", guess=-1.0)
    run = m.mode("run", ode={x: 1.0}, algebraic=[(z - (x - 1)) * (z + (x - 1))])
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=z)
    with pytest.raises(dh.ConsistencyError, match="becomes singular") as caught:
        dh.simulate(m.build(eliminate=False), (0, 1.7), rtol=rtol, atol=rtol / 100, adapter="scipy")
    assert caught.value.time == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("native_events", [True, False])
@pytest.mark.parametrize("gap", [1e-6, 1e-13])
def test_a_mode_that_an_event_enters_has_to_determine_its_variables(gap: float, native_events: bool) -> None:
    """a + b = 3 y, a + (1 + d) b = 3 y + d p: b = p and a = 3 y - p, which d = 1e-13 leaves to rounding errors."""
    m = dh.HybridModel("gap")
    p, d = m.parameter("p", 1.0), m.parameter("d", gap)
    y, a, b = m.differential("y"), m.algebraic("a"), m.algebraic("b")
    one = m.mode("one", ode={y: -p * y}, algebraic=[a - y, b - 2 * y])
    two = m.mode("two", ode={y: -a}, algebraic=[a + b - 3 * y, a + (1 + d) * b - 3 * y - d * p])
    m.transition(one, two, guard=y - 0.5, direction="falling")
    m.initial(one, {y: 1.0})
    m.functional("G", terminal=y)
    given = {"rtol": 1e-8, "atol": 1e-10, "native_events": native_events}
    for analyse in (
        lambda: dh.adjoint_gradient(m.build(), (0, 2), "G", wrt=["p"], **given).gradient[0],
        lambda: dh.forward_sensitivity(m.build(), (0, 2), wrt=["p"], **given).gradient["G"][0],
    ):
        if gap < 1e-10:
            with pytest.raises(dh.ConsistencyError, match="singular"):
                analyse()
        else:  # y' = p - 3 y from 1/2 at log(2)/p: y = p/3 + (1/2 - p/3) exp(-3 s), s = 2 - log(2)/p
            w = np.exp(-3 * (2 - np.log(2)))
            exact = 1 / 3 - w / 3 - 3 * (1 / 2 - 1 / 3) * w * np.log(2)
            assert analyse() == pytest.approx(exact, rel=1e-6)
