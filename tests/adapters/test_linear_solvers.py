"""Newton's matrix as a dense, banded or sparse one, and Krylov: the same answers, and a choice by structure."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.linalg import expm
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

import dae_hybrid as dh
from dae_hybrid.adapters.sundials.library import load
from dae_hybrid.adapters.sundials.linear import RECOVERABLE, SuperLU
from dae_hybrid.codegen import compiler, kernels, split_source
from dae_hybrid.numerics import factor_structure as structure

TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-11, "method": "bdf"}
OTHERS = ("band", "sparse", "krylov")
SHUFFLED = np.random.default_rng(0).permutation(100)


def heat(n: int, chain: bool = True) -> dh.HybridModel:
    """y' = a A y, tridiagonal, or with every state coupled to the first one only: y(t) = exp(a t A) y0."""
    m = dh.HybridModel("heat")
    a, s = m.parameter("a", 0.7), m.parameter("s", 1.0)
    y = m.differential("y", size=n)
    rate = matrix(n, chain)
    run = m.mode("run", ode={y: a * (ca.DM(rate) @ y)})
    m.initial(run, {y: s * np.linspace(1.0, 2.0, n)})
    m.functional("G", integrand=ca.sum1(y), terminal=y[0] ** 2)
    return m


def matrix(n: int, chain: bool) -> np.ndarray:
    if chain:
        return np.diag(np.full(n, -2.0)) + np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    arrow = np.diag(np.full(n, -1.0))
    arrow[0, 1:], arrow[1:, 0] = 0.5 / n, 0.25
    return arrow


def strip(n: int = 60, pieces: int = 3) -> dh.HybridModel:
    """The thermostat of benchmarks/strip.py."""
    m = dh.HybridModel("strip")
    k = m.parameter("k", 0.05 * (1 + 0.5 * np.sin(np.arange(pieces))))
    u = m.differential("u", size=n)
    in_cell = k[(np.arange(n) * pieces // n).tolist()]
    flux = n**2 * (in_cell[1:] + in_cell[:-1]) / 2 * (u[1:] - u[:-1])
    rate = ca.vertcat(flux, 0) - ca.vertcat(0, flux) - u - u**3 / 5
    off, on = m.mode("off", ode={u: rate}), m.mode("on", ode={u: rate + np.where(np.arange(n) < n // 4, 8.0, 0.0)})
    m.transition(on, off, guard=u[2 * n // 5] - 0.4, direction="rising")
    m.transition(off, on, guard=u[2 * n // 5] - 0.3, direction="falling")
    m.initial(on, {u: np.zeros(n)})
    m.functional("G", integrand=ca.sumsqr(u - 0.5) / n)
    return m


def network(n: int) -> dh.HybridModel:
    """Index 1, with a tridiagonal equation for as many algebraic variables; the guard and the costs use them."""
    m = dh.HybridModel("network")
    k, c = m.parameter("k", 1.2), m.parameter("c", 0.3)
    y, z = m.differential("y", size=n), m.algebraic("z", size=n)
    coupled = 2.5 * z - c * (ca.vertcat(z[1:], 0) + ca.vertcat(0, z[:-1])) - k * y
    one = m.mode("one", ode={y: -z}, algebraic=[coupled + 0.1 * z**3])
    two = m.mode("two", ode={y: -0.5 * z}, algebraic=[coupled])
    m.transition(one, two, guard=y[n // 2] + 0.1 * z[n // 3] - 0.6, direction="falling", reset={y: 0.9 * y})
    m.initial(one, {y: np.linspace(1.0, 1.5, n)})
    m.functional("G", integrand=ca.sumsqr(z) / n, terminal=y[0] + z[1], at_times={0.5: z[2]})
    return m


@cache
def system(make: Any, *arguments: Any, native: bool = True) -> dh.HybridSystem:
    return make(*arguments).build(native=native)


# -- the same answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("kind", ["dense", *OTHERS])
@pytest.mark.parametrize("chain", [True, False], ids=["tridiagonal", "arrow"])
def test_closed_form(kind: str, chain: bool, native: bool) -> None:
    n, end = 30, 1.0
    built = system(heat, n, chain, native=native)
    sol = dh.simulate(built, (0, end), linear_solver=kind, t_eval=[0.5, end], **TIGHT)
    start = np.linspace(1.0, 2.0, n)
    for t, y in zip(sol.t, sol["y"], strict=True):
        np.testing.assert_allclose(y, expm(0.7 * t * matrix(n, chain)) @ start, rtol=3e-7)
    if kind != "dense":
        assert sol.statistics[f"{kind} factorisations"] > 0
        assert sol.statistics[f"{kind} solutions"] >= sol.statistics["steps"]


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize(("make", "n"), [(heat, 30), (strip, 60), (network, 12)], ids=["ode", "hybrid", "index 1"])
def test_every_solver_gives_the_same_gradient(make: Any, n: int, native: bool) -> None:
    built, span = system(make, n if native else max(12, n // 3), native=native), (0, 1.5)
    exact = dh.adjoint_gradient(built, span, linear_solver="dense", **TIGHT)
    for kind in OTHERS:
        asa = dh.adjoint_gradient(built, span, linear_solver=kind, **TIGHT)
        assert asa.value == pytest.approx(exact.value, rel=1e-7)
        np.testing.assert_allclose(asa.gradient, exact.gradient, rtol=2e-6)
        assert asa.statistics[f"{kind} factorisations"] > 0
        for corrector in ("staggered", "simultaneous")[: 2 if native else 1]:
            fsa = dh.forward_sensitivity(built, span, linear_solver=kind, sensitivity_method=corrector, **TIGHT)
            np.testing.assert_allclose(fsa.gradient["G"], exact.gradient, rtol=2e-6)


@pytest.mark.parametrize("kind", ["auto", "band", "sparse", "krylov"])
@pytest.mark.parametrize(
    ("make", "n"), [(strip, 60), (strip, 240), (network, 150)], ids=["elements", "vectors", "index 1"]
)
def test_finite_differences(make: Any, n: int, kind: str) -> None:
    """Sparse matrices of the core, vectorised code and every solver: forward, adjoint, finite differences."""
    check = dh.check_gradient(system(make, n), (0, 2), linear_solver=kind, rtol=1e-7, atol=1e-10)
    assert check.same_events
    assert check.difference("forward", "adjoint") < 2e-6
    assert check.difference("forward", "finite_difference") < 2e-4


def test_memory_and_a_reset_of_many_states() -> None:
    """Memory of the state at the event and a reset that mixes neighbours: sparse matrices across the transition."""
    n = 150
    m = dh.HybridModel("kept")
    a, b = m.parameter("a", 0.7), m.parameter("b", 0.4)
    y = m.differential("y", size=n)
    kept = m.memory("kept", of=y, initial=np.zeros(n))
    run = m.mode("run", ode={y: -a * y - 0.1 * kept + 0.2 * (ca.vertcat(y[1:], y[0]) - y)})
    after = m.mode("after", ode={y: -b * y - 0.1 * kept})
    m.transition(run, after, guard=y[3] - 0.8, direction="falling", reset={y: y + b * ca.vertcat(y[1:], y[0])})
    m.initial(run, {y: a * np.linspace(1.5, 2.0, n)})
    m.functional("G", integrand=ca.sumsqr(y) / n, terminal=kept[5])
    check = dh.check_gradient(m.build(), (0, 2), rtol=1e-8, atol=1e-11)
    assert check.difference("forward", "adjoint") < 1e-6
    assert check.difference("forward", "finite_difference") < 1e-5


def test_many_algebraic_variables_up_to_an_event_that_ends_the_run() -> None:
    """The final time moves with the parameters, through a guard and costs on algebraic variables."""
    n = 130
    m = dh.HybridModel("ending")
    k, c = m.parameter("k", 1.2), m.parameter("c", 0.3)
    y, z = m.differential("y", size=n), m.algebraic("z", size=n)
    coupled = 2.5 * z - c * (ca.vertcat(z[1:], 0) + ca.vertcat(0, z[:-1])) - k * y
    run = m.mode("run", ode={y: -z}, algebraic=[coupled + 0.1 * z**3])
    m.transition(run, None, guard=z[n // 3] - 0.3, direction="falling", name="end")
    m.initial(run, {y: k * np.linspace(1.0, 1.5, n)})
    m.functional("G", integrand=ca.sumsqr(z) / n, terminal=m.time * y[0] + z[1], at_events={"end": z[2] ** 2})
    check = dh.check_gradient(m.build(), (0, 5), rtol=1e-8, atol=1e-11)
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-6
    assert check.difference("forward", "finite_difference") < 1e-5


def test_between_many_algebraic_variables_and_none() -> None:
    n = 130
    m = dh.HybridModel("both")
    k, c = m.parameter("k", 1.2), m.parameter("c", 0.3)
    y, z = m.differential("y", size=n), m.algebraic("z", size=n)
    coupled = 2.5 * z - c * (ca.vertcat(z[1:], 0) + ca.vertcat(0, z[:-1])) - k * y
    with_z, without = m.mode("with", ode={y: -z}, algebraic=[coupled + 0.1 * z**3]), m.mode("without", ode={y: c * y})
    m.transition(with_z, without, guard=y[3] - 0.6, direction="falling", reset={y: 0.9 * y + 0.01 * z})
    m.transition(without, with_z, guard=y[3] - 0.7, direction="rising", reset={y: k * y})
    m.initial(without, {y: k * np.linspace(0.5, 0.6, n)})
    m.functional("G", integrand=ca.sumsqr(y) / n, terminal=y[0])
    check = dh.check_gradient(m.build(), (0, 4), rtol=1e-8, atol=1e-11)
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-6
    assert check.difference("forward", "finite_difference") < 1e-5


def test_many_algebraic_variables_and_an_implicit_reset_are_differentiated() -> None:
    n = 130
    m = dh.HybridModel("implicit")
    k = m.parameter("k", 1.2)
    y, z = m.differential("y", size=n), m.algebraic("z", size=n)
    run = m.mode("run", ode={y: -z}, algebraic=[z - k * y + 0.1 * z**3])
    m.transition(run, run, guard=y[0] - 0.5, direction="falling", reset=[m.post(y) - 1.1 * m.pre(y)])
    m.initial(run, {y: np.linspace(1.0, 1.5, n)})
    m.functional("G", integrand=ca.sumsqr(z) / n)
    check = dh.check_gradient(m.build(), (0, 1), rtol=1e-8, atol=1e-10)
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-5
    assert check.difference("forward", "finite_difference") < 1e-5


def test_vectors_and_elements_agree() -> None:
    """The same equations as operations on vectors, which stay together, and element by element."""
    n = 60
    m = dh.HybridModel("elements")
    a, s = m.parameter("a", 0.7), m.parameter("s", 1.0)
    y = m.differential("y", size=n)
    left, right = [0, *range(n - 1)], [*range(1, n), n - 1]
    rows = [a * (-2 * y[i] + (y[left[i]] if i else 0) + (y[right[i]] if i < n - 1 else 0)) for i in range(n)]
    run = m.mode("run", ode={y: ca.vertcat(*rows)})
    m.initial(run, {y: s * np.linspace(1.0, 2.0, n)})
    m.functional("G", integrand=ca.sum1(y), terminal=y[0] ** 2)
    one = dh.adjoint_gradient(m.build(), (0, 1), **TIGHT)
    other = dh.adjoint_gradient(system(heat, n, True), (0, 1), **TIGHT)
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-7)


# -- the choice ---------------------------------------------------------------------------------------------


def pattern(matrix: Any) -> tuple[int, Any, Any]:
    entries = csc_array(matrix)
    columns = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
    return entries.shape[0], entries.indices.astype(np.int64), columns


def random(n: int, density: float) -> Any:
    return np.random.default_rng(1).random((n, n)) < density


@pytest.mark.parametrize(
    ("matrix", "kind"),
    [
        (np.eye(5), "dense"),
        (matrix(100, True), "band"),
        (matrix(100, True)[np.ix_(SHUFFLED, SHUFFLED)], "band"),
        (matrix(300, False), "sparse"),
        (np.ones((60, 60)), "dense"),
        (random(100, 0.5), "dense"),
    ],
    ids=["tiny", "tridiagonal", "shuffled", "arrow", "full", "half full"],
)  # fmt: skip
def test_structure_decides(matrix: Any, kind: str) -> None:
    assert structure.decide(*pattern(matrix)).kind == kind


def test_a_shuffled_band_is_found() -> None:
    found = structure.decide(*pattern(matrix(100, True)[np.ix_(SHUFFLED, SHUFFLED)]), "band")
    assert (found.lower, found.upper) == (1, 1)


@pytest.mark.parametrize("kind", ["band", "sparse"])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_places(kind: str, n: int) -> None:
    """A matrix laid out by the places is the matrix in the order of the structure."""
    rng = np.random.default_rng(n)
    values = np.where(rng.random((n, n)) < 0.2, rng.random((n, n)) + 1, 0.0)
    entries = csc_array(values)
    found = structure.decide(*pattern(values), kind)
    data = np.zeros(found.size)
    data[found.place] = entries.data
    data[found.diagonal] += 10.0
    wanted = (values + 10 * np.eye(n))[np.ix_(found.equations, found.order)]
    if kind == "sparse":
        np.testing.assert_array_equal(csc_array((data, found.rows, found.pointers), shape=(n, n)).toarray(), wanted)
        return
    length = found.stored + found.lower + 1
    for (i, j), value in np.ndenumerate(wanted):
        inside = -found.upper <= i - j <= found.lower
        assert (data[j * length + found.stored + i - j] if inside else 0.0) == value


def test_what_was_chosen_is_seen() -> None:
    sol = dh.simulate(system(strip, 60), (0, 1), rtol=1e-6, method="bdf")
    assert sol.statistics["band factorisations"] < sol.statistics["band solutions"]
    small = dh.simulate(system(heat, 5), (0, 1), method="bdf")
    assert not any("factorisations" in name for name in small.statistics)


# -- refusals and failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_other_adapters_have_no_choice(adapter: str) -> None:
    with pytest.raises(dh.UnsupportedError, match="no choice of linear_solver='band'") as caught:
        dh.simulate(system(heat, 5), (0, 1), adapter=adapter, linear_solver="band")
    assert "'sundials'" in str(caught.value)
    dh.simulate(system(heat, 5), (0, 1), adapter=adapter, linear_solver="auto")


def test_an_unknown_solver() -> None:
    with pytest.raises(dh.OptionError, match="linear_solver must be one of 'auto', 'dense', 'band'"):
        dh.simulate(system(heat, 5), (0, 1), linear_solver="lu")  # type: ignore[arg-type]


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("kind", ["dense", "band", "sparse"])
def test_a_matrix_that_becomes_singular(kind: str, native: bool) -> None:
    """0 = z^2 - y loses z where y comes to zero: the same error, with every solver."""
    m = dh.HybridModel("singular")
    y, z = m.differential("y", size=3), m.algebraic("z", size=3, guess=np.ones(3))
    run = m.mode("run", ode={y: -z / z}, algebraic=[z**2 - y])
    m.initial(run, {y: np.array([0.5, 0.6, 0.7])})
    built = m.build(native=native, eliminate=False)
    with pytest.raises(dh.DaeHybridError, match="becomes singular") as caught:
        dh.simulate(built, (0, 1), linear_solver=kind)
    assert caught.value.time == pytest.approx(0.5, abs=1e-3)
    assert dh.simulate(built, (0, 0.4), linear_solver=kind).complete


@pytest.mark.parametrize("kind", ["band", "sparse", "krylov"])
def test_an_exactly_singular_matrix_is_a_failure_that_may_pass(kind: str) -> None:
    found = structure.decide(*pattern(matrix(20, True)), kind)
    values, right = np.zeros(found.size), np.ones(20)
    if kind == "band":
        lib, length = load(), found.stored + found.lower + 1
        columns = values.ctypes.data + 8 * length * np.arange(20, dtype=np.intp)
        pivots = np.zeros(20, dtype=np.int64)
        sizes = (20, found.upper, found.lower, found.stored)
        assert lib.SUNDlsMat_bandGBTRF(columns.ctypes.data, *sizes, pivots.ctypes.data) > 0
        return
    superlu = SuperLU(found, values, right, incomplete=kind == "krylov")
    assert superlu.factor() == RECOVERABLE
    assert superlu.solve() == RECOVERABLE
    values[:] = np.nan
    assert superlu.factor() == RECOVERABLE
    assert superlu.pending is None


@pytest.mark.parametrize("kind", ["sparse", "krylov"])
def test_an_error_within_a_factorisation_reaches_the_caller(kind: str, monkeypatch: Any) -> None:
    from dae_hybrid.adapters.sundials import linear

    def failing(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room")

    fresh = heat(30).build()
    monkeypatch.setattr(structure, "FEW_PRODUCTS", 0.0)  # SuperLU factorises
    with monkeypatch.context() as patch:
        patch.setattr(linear, "spilu" if kind == "krylov" else "splu", failing)
        with pytest.raises(MemoryError, match="no room"):
            dh.simulate(fresh, (0, 1), linear_solver=kind, method="bdf")
    assert dh.simulate(fresh, (0, 1), linear_solver=kind, method="bdf").complete


def test_small_entries_on_the_diagonal_are_no_pivots() -> None:
    n = 20
    m = dh.HybridModel("pairs")
    y, a, b = m.differential("y", size=n), m.algebraic("a", size=n), m.algebraic("b", size=n)
    run = m.mode("run", ode={y: -a}, algebraic=[1e-14 * a + b - y, a + b - 2 * y])
    m.initial(run, {y: np.linspace(1.0, 2.0, n)})
    built = m.build(eliminate=False)
    sol = dh.simulate(built, (0, 1), linear_solver="sparse", rtol=1e-9, atol=1e-12)
    assert sol.statistics["sparse factorisations"] > 0
    np.testing.assert_allclose(sol["y"][-1], np.linspace(1.0, 2.0, n) * np.exp(-1), rtol=1e-7)


@pytest.mark.parametrize("room", ["enough", "too little"])
@pytest.mark.parametrize("make", [heat, network], ids=["CVODE", "IDA"])
def test_compiled_code_factorises_what_fills_in_little(make: Any, room: str, monkeypatch: Any) -> None:
    from dae_hybrid.adapters.sundials import linear

    called = []

    def counted(*arguments: Any, **options: Any) -> Any:
        called.append(1)
        return splu(*arguments, **options)

    def run() -> Any:
        asa = dh.adjoint_gradient(make(60).build(), (0, 1), "G", linear_solver="sparse", method="bdf", rtol=1e-8)
        return asa.value, asa.gradient

    monkeypatch.setattr(linear, "splu", counted)
    if room == "too little":  # decided by patterns, found out by values
        original = structure.sparse_structure
        less = lambda pattern: (replace(original(pattern)[0], room=70), *original(pattern)[1:])
        monkeypatch.setattr(structure, "sparse_structure", less)
    found = run()
    assert bool(called) == (room == "too little")
    monkeypatch.setattr(structure, "FEW_PRODUCTS", 0.0)
    called.clear()
    value, gradient = run()
    assert called
    assert np.isclose(found[0], value, rtol=1e-6)
    np.testing.assert_allclose(found[1], gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("make", [heat, network], ids=["CVODE", "IDA"])
def test_a_preconditioner_of_the_user(make: Any) -> None:
    """It gets Newton's matrix in the order of the variables, and what it returns is used, forwards and backwards."""
    built, seen = system(make, 60), []

    def exact(newton: csc_array) -> Any:
        seen.append(newton)
        return splu(newton).solve

    options = {"linear_solver": "krylov", "rtol": 1e-8, "atol": 1e-11, "method": "bdf"}
    mine = dh.adjoint_gradient(built, (0, 1), preconditioner=exact, **options)
    own = dh.adjoint_gradient(built, (0, 1), **options)
    assert mine.value == pytest.approx(own.value, rel=1e-7)
    np.testing.assert_allclose(mine.gradient, own.gradient, rtol=1e-6)
    assert len(seen) >= mine.statistics["krylov factorisations"] > 0
    if make is heat:  # I - gamma a A, off the diagonal and on it
        for newton in seen:
            full = newton.toarray()
            gamma = -full[0, 1] / 0.7
            np.testing.assert_allclose(full, np.eye(60) - gamma * 0.7 * matrix(60, True), atol=1e-12)
    useless = dh.simulate(built, (0, 1), preconditioner=lambda newton: lambda right: right, **options)
    assert useless.functionals["G"] == pytest.approx(own.value, rel=1e-6)
    count = "krylov solutions"
    assert useless.statistics[count] > dh.simulate(built, (0, 1), preconditioner=exact, **options).statistics[count]
    seen.clear()
    dh.simulate(built, (0, 1), **options)
    assert not seen  # memories are used again, preconditioners are not


@pytest.mark.parametrize("make", [heat, network], ids=["CVODE", "IDA"])
def test_a_bad_preconditioner_does_no_harm(make: Any) -> None:
    """The scale of a good one is of no account; one that gives nothing would stop Newton's method before it begins."""
    built, options = system(make, 60), {"linear_solver": "krylov", "rtol": 1e-7, "atol": 1e-10, "method": "bdf"}
    exact = dh.adjoint_gradient(built, (0, 1), linear_solver="sparse", rtol=1e-7, atol=1e-10, method="bdf")
    for scale in (1e-8, 1e6):
        found = dh.adjoint_gradient(
            built, (0, 1), preconditioner=lambda newton, scale=scale: lambda r: scale * splu(newton).solve(r), **options
        )
        assert found.value == pytest.approx(exact.value, rel=1e-5)
        np.testing.assert_allclose(found.gradient, exact.gradient, rtol=1e-4)
    with pytest.raises(dh.OptionError, match="singular"):
        dh.simulate(built, (0, 1), preconditioner=lambda newton: lambda right: 0.0 * right, **options)


def test_a_preconditioner_that_is_none() -> None:
    built, options = system(heat, 60), {"linear_solver": "krylov", "method": "bdf"}
    for wrong, error in ((3, dh.OptionError), (lambda newton: 3, dh.OptionError)):
        with pytest.raises(error, match="preconditioner"):
            dh.simulate(built, (0, 1), preconditioner=wrong, **options)
    with pytest.raises(dh.OptionError, match="shape"):
        dh.simulate(built, (0, 1), preconditioner=lambda newton: lambda right: right[1:], **options)
    with pytest.raises(ZeroDivisionError):
        dh.simulate(built, (0, 1), preconditioner=lambda newton: 1 / 0, **options)
    with pytest.raises(dh.OptionError, match="no use"):
        dh.simulate(built, (0, 1), preconditioner=splu, linear_solver="sparse", method="bdf")
    assert dh.simulate(built, (0, 1), **options).complete


# -- long C texts ----------------------------------------------------------------------------------------------


def elements(n: int) -> dh.HybridModel:
    """`heat` written element by element, with a cubic loss."""
    m = dh.HybridModel("elements")
    a, s = m.parameter("a", 0.7), m.parameter("s", 1.0)
    y = m.differential("y", size=n)
    rows = [
        a * (-2 * y[i] + (y[i - 1] if i else 0) + (y[i + 1] if i < n - 1 else 0)) - ca.tanh(y[i]) ** 3 for i in range(n)
    ]
    run = m.mode("run", ode={y: ca.vertcat(*rows)})
    m.initial(run, {y: s * np.linspace(1.0, 2.0, n)})
    m.functional("G", integrand=ca.sum1(y), terminal=y[0] ** 2)
    return m


def test_long_texts_are_cut_and_say_the_same(monkeypatch: Any) -> None:
    whole = dh.adjoint_gradient(elements(80).build(), (0, 1), **TIGHT)
    monkeypatch.setattr(split_source, "LONG", 100)
    monkeypatch.setattr(kernels, "LONG", 100)
    monkeypatch.setattr(split_source, "STATEMENTS", 50)
    monkeypatch.setattr(kernels.os, "cpu_count", lambda: 3)
    texts: list[str] = []
    compile_ = compiler._compile

    def listening(command: Any, sources: Any, **options: Any) -> bytes:
        texts.extend(sources)
        return compile_(command, sources, **options)

    monkeypatch.setattr(compiler, "_compile", listening)
    built = elements(80).build()
    assert built.native
    assert len(texts) in (0, 3)  # none where they come from the cache
    assert all("_0(arg, res, w);" in text for text in texts)
    cut = dh.adjoint_gradient(built, (0, 1), **TIGHT)
    np.testing.assert_array_equal(cut.gradient, whole.gradient)


def test_straight_texts_in_several_files_say_the_same(monkeypatch: Any, models: Any, tmp_path: Any) -> None:
    whole = dh.adjoint_gradient(models.em().build(), (0, 1), "G", **TIGHT)
    monkeypatch.setenv("DAE_HYBRID_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "known", lambda identity: None)  # it would return the same functions
    monkeypatch.setattr(kernels, "OPERATIONS_PER_FILE", 100)
    monkeypatch.setattr(kernels.os, "cpu_count", lambda: 3)
    sources: list[list[str]] = []
    begin = kernels.begin

    def listening(*texts: str, **options: Any) -> Any:
        sources.append(list(texts))
        return begin(*texts, **options)

    monkeypatch.setattr(kernels, "begin", listening)
    apart = dh.adjoint_gradient(models.em().build(), (0, 1), "G", **TIGHT)
    assert [len(texts) for texts in sources] == [3]
    np.testing.assert_array_equal(apart.gradient, whole.gradient)


@pytest.mark.parametrize(
    ("text", "straight"),
    [
        ("  a0=(a1+a2);\n", True),
        ("  for (i=0, cs=w00; i<2; ++i) *rr++ = *cs++;\n", True),
        ("  for (i=0; i<n; ++i) *x++ = 0;\n", True),
        ("  casadi_copy(w0, 3, w1);\n", True),
        ("  casadi_copy(w0, 300, w1);\n", False),
        ("  casadi_clear(w0, 300);\n", False),
        ("  for (i=0; i<200; ++i) *rr++ = *cs++ * *ss++;\n", False),
        ("  for (i=0; i<n; ++i) *rr++ += *cs++;\n", False),
        ("  while (i<n) ++i;\n", False),
    ],
)
def test_texts_without_loops_are_straight(text: str, straight: bool) -> None:
    assert split_source.is_straight(text) == straight


def test_a_long_text_that_does_not_compile(monkeypatch: Any) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(OSError, match="returned 1"):
        compiler._compile(("false",), ("int a;", "int b;"))


# -- size --------------------------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_twenty_thousand_states() -> None:
    """Nothing that is built or run has a matrix of all states: it would take 3 GB."""
    from resource import RUSAGE_SELF, getrusage

    before = getrusage(RUSAGE_SELF).ru_maxrss
    asa = dh.adjoint_gradient(strip(20_000, 50).build(), (0, 0.5), rtol=1e-4, atol=1e-6, t_eval=[0.0, 0.5])
    assert asa.gradient.shape == (50,)
    assert asa.statistics["band factorisations"] > 0
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 2_000_000  # kB


def test_wide_rows_are_handed_over_once() -> None:
    """Rows of large systems are not copied; a second run does not write into those of the first."""
    n = 12_000
    m = dh.HybridModel("wide")
    a, y = m.parameter("a", 1.0), m.differential("y", size=n)
    run = m.mode("run", ode={y: -a * y})
    m.initial(run, {y: np.linspace(1.0, 2.0, n)})
    built = m.build()
    first = dh.simulate(built, (0, 1), t_eval=[0.0, 0.5, 1.0])
    kept = first["y"].copy()
    second = dh.simulate(built, (0, 1), parameters={"a": 2.0}, t_eval=[0.0, 0.5, 1.0])
    np.testing.assert_array_equal(first["y"], kept)
    np.testing.assert_allclose(second["y"][-1], np.exp(-2.0) * kept[0], rtol=1e-6)
    np.testing.assert_allclose(first(0.25)["y"], np.exp(-0.25) * kept[0], rtol=1e-6)


@pytest.mark.parametrize("solver", ["dense", "band", "sparse", "krylov"])
@pytest.mark.parametrize("eliminate", [True, False])
def test_the_adjoint_of_a_worked_problem(solver: Any, eliminate: bool) -> None:
    """Backwards the pattern is that of F_x, transposed, whatever else stands in the linearised equations."""
    from dae_hybrid.problems import em_hysteresis

    system = em_hysteresis.model().build(eliminate=eliminate)
    more: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-13, "method": "bdf", "linear_solver": solver}
    asa = dh.adjoint_gradient(system, em_hysteresis.t_span, "G", **more)
    exact = em_hysteresis.reference().gradient
    np.testing.assert_allclose(asa.gradient[:3], exact[:3], rtol=1e-5)


@pytest.mark.parametrize("kind", ["sparse", "krylov"])
def test_equations_without_their_own_unknowns(kind: str) -> None:
    """Twelve equations, none of the algebraic ones with an entry on the diagonal: [[0, A], [A^T, 0]]."""
    m = dh.HybridModel("saddle")
    p, y = m.parameter("p", 0.5), m.differential("y", size=4)
    flow, potential = m.algebraic("flow", size=4, guess=np.ones(4)), m.algebraic("potential", size=4)
    incidence = np.diag([1.0, 1.5, 2.0, 1.2])[[2, 0, 3, 1]]
    equations = [ca.DM(incidence) @ potential + 0.1 * flow**2 * potential - y, ca.DM(incidence.T) @ flow - p * y]
    m.initial(m.mode("run", ode={y: -flow}, algebraic=equations), {y: np.linspace(1, 2, 4)})
    m.functional("G", terminal=ca.sum1(y))
    options: dict[str, Any] = {"method": "bdf", "rtol": 1e-8, "atol": 1e-10}
    system = m.build(eliminate=False)
    found, exact = (dh.adjoint_gradient(system, (0, 1), "G", linear_solver=s, **options) for s in (kind, "dense"))
    assert found.value == pytest.approx(exact.value, rel=1e-6)
    np.testing.assert_allclose(found.gradient, exact.gradient, rtol=1e-5)
