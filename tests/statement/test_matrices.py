"""Parameters that are matrices."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm

import dae_hybrid as dh
from dae_hybrid.statement.expressions import as_matrix

TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
A = np.array([[-0.5, 1.0, 0.3], [-0.2, -0.1, 0.4]])


def model() -> dh.HybridModel:
    """y' = A (y, u), with a scalar before and after A."""
    m = dh.HybridModel("linear")
    u, a, c = m.parameter("u", 0.7), m.parameter("A", A, unit="1/s"), m.parameter("c", 2.0)
    y = m.differential("y", size=2)
    run = m.mode("run", ode={y: a[:, :2] @ y + a[:, 2] * u})
    m.transition(run, run, at=0.5, reset={y: y * a[0, 1]})
    m.initial(run, {y: [1.0, 0.5]})
    m.functional("G", terminal=y[0] + c * y[1])
    return m


@pytest.fixture(scope="module")
def system() -> dh.HybridSystem:
    return model().build()


def exact(a: np.ndarray, u: float = 0.7, c: float = 2.0) -> float:
    whole = np.zeros((3, 3))
    whole[:2] = a
    step, y = expm(0.5 * whole), np.array([1.0, 0.5, u])
    middle = step @ y
    middle[:2] *= a[0, 1]
    end = step @ middle
    return float(end[0] + c * end[1])


def test_rows_follow_each_other(system: dh.HybridSystem) -> None:
    names = ("u", "A[0,0]", "A[0,1]", "A[0,2]", "A[1,0]", "A[1,1]", "A[1,2]", "c")
    assert system.parameters.labels() == names
    assert system.nominal.tolist() == [0.7, *A.ravel(), 2.0]
    assert dh.simulate(system, (0, 1), **TIGHT).functionals["G"] == pytest.approx(exact(A), rel=1e-9)


@pytest.mark.parametrize(
    "given",
    [
        {"A": 2 * A},
        {"A": (2 * A).tolist()},
        {"A": (2 * A).ravel()},
        {f"A[{i},{j}]": 2 * A[i, j] for i in range(2) for j in range(3)},
        np.array([0.7, *(2 * A).ravel(), 2.0]),
    ],
    ids=["array", "rows", "flat", "entries", "all"],
)
def test_values_have_every_form(system: dh.HybridSystem, given: Any) -> None:
    sol = dh.simulate(system, (0, 1), parameters=given, **TIGHT)
    assert sol.functionals["G"] == pytest.approx(exact(2 * A), rel=1e-9)


def test_derivatives_by_entries(system: dh.HybridSystem) -> None:
    check = dh.check_gradient(system, (0, 1), **TIGHT)
    assert check.difference("forward", "adjoint") < 1e-9
    h = 1e-6
    for i, j in np.ndindex(A.shape):
        shift = np.zeros_like(A)
        shift[i, j] = h
        slope = (exact(A + shift) - exact(A - shift)) / (2 * h)
        at = check.parameters.index(f"A[{i},{j}]")
        assert check.gradients["forward"][at] == pytest.approx(slope, rel=1e-6)
    chosen = dh.adjoint_gradient(system, (0, 1), wrt=["A[1,2]", "u"], **TIGHT)
    assert chosen.parameters == ("A[1,2]", "u")
    assert chosen.gradient[0] == pytest.approx(check.gradients["adjoint"][6], rel=1e-9)


def test_tables_of_runs(system: dh.HybridSystem) -> None:
    scales = (1.0, 0.5, 2.0)
    sets = np.array([scale * A for scale in scales])
    for given in (sets, sets.reshape(3, 6)):
        many = dh.batch(system, (0, 1), parameters={"A": given}, gradient="adjoint", **TIGHT)
        np.testing.assert_allclose(many.functionals["G"], [exact(own) for own in sets], rtol=1e-9)
    one = dh.batch(system, (0, 1), parameters={"A": 2 * A, "u": [0.7, 0.1]}, **TIGHT)
    np.testing.assert_allclose(one.functionals["G"], [exact(2 * A), exact(2 * A, u=0.1)], rtol=1e-9)


def test_tables_of_entries(system: dh.HybridSystem) -> None:
    values = [-0.2, 0.4]
    sets = np.array([A, A])
    sets[:, 1, 0] = values
    many = dh.batch(system, (0, 1), parameters={"A[1,0]": values, "c": 2.0}, gradient="adjoint", **TIGHT)
    np.testing.assert_allclose(many.functionals["G"], [exact(a) for a in sets], rtol=1e-9)
    with pytest.raises(dh.ParameterError, match=r"'A\[1,0\]' is given twice"):
        dh.batch(system, (0, 1), parameters={"A": sets, "A[1,0]": values})
    with pytest.raises(dh.ParameterError, match=r"unknown name 'A\[2,0\]'"):
        dh.batch(system, (0, 1), parameters={"A[2,0]": values})


def test_optima_in_entries(system: dh.HybridSystem) -> None:
    """Bounds and scales by entry; the result is the whole matrix, of which only the entry has changed."""
    problem = dh.OptimizationProblem(
        system, (0, 1), "G", wrt=["A[1,2]", "u"], bounds={"A[1,2]": (0.1, 0.6), "u": (0.5, 0.9)},
        scale={"A[1,2]": "log"}, **TIGHT,
    )  # fmt: skip
    assert problem.x0.tolist() == [np.log(0.4), 0.7]
    found, best = problem.minimize(), A.copy()
    best[1, 2] = 0.1
    np.testing.assert_allclose(found.parameters["A"], best, rtol=1e-6)
    assert found.value == pytest.approx(exact(best, u=0.5), rel=1e-6)


def test_optima_are_matrices(system: dh.HybridSystem) -> None:
    problem = dh.OptimizationProblem(system, (0, 1), "G", wrt=["A", "u"], **TIGHT)
    named = problem.parameters(problem.x0)
    np.testing.assert_array_equal(named["A"], A)
    assert named["u"] == 0.7


@pytest.mark.parametrize("form", ["toml", "json"])
def test_model_files(form: Any) -> None:
    stated = model()
    text = stated.to_text(form)
    again = dh.HybridModel.from_text(text, form)
    assert again.to_text(form) == text
    one, other = (dh.simulate(own.build(), (0, 1), **TIGHT).functionals["G"] for own in (stated, again))
    assert one == other
    written = dh.HybridModel.from_text(
        '[parameters]\nK = [[2.0, 1.0], [0.0, 3.0]]\n[variables]\nx = {size = 2}\n[modes.run]\node = {x = "-K @ x"}\n'
        '[initial]\nmode = "run"\nvalues = {x = [1.0, 1.0]}\n[functionals]\nG = {terminal = "x[0] + K[0, 1]"}\n'
    )
    found = dh.simulate(written.build(), (0, 1), **TIGHT)
    decay = expm(-np.array([[2.0, 1.0], [0.0, 3.0]])) @ [1, 1]
    np.testing.assert_allclose(found(1.0)["x"], decay, rtol=1e-8)
    assert found.functionals["G"] == pytest.approx(decay[0] + 1, rel=1e-8)


def test_pickles(system: dh.HybridSystem) -> None:
    again = pickle.loads(pickle.dumps(system))
    assert again.parameters.labels() == system.parameters.labels()
    assert dh.simulate(again, (0, 1), parameters={"A": 2 * A}).functionals["G"] == pytest.approx(exact(2 * A), rel=1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"A": A.T}, "6 values needed"),
        ({"A": A[:, :2]}, "6 values needed"),
        ({"A[0]": 1.0}, "Unknown parameter"),
        ({"A": np.full((2, 3), np.nan)}, r"A\[0,0\]"),
        ({"A": A, "A[0,1]": 1.0}, "given twice"),
    ],
    ids=range(5),
)
def test_values_that_do_not_suit(system: dh.HybridSystem, given: Any, said: str) -> None:
    with pytest.raises(dh.ParameterError, match=said):
        dh.simulate(system, (0, 1), parameters=given)


def test_matrices_that_cannot_be_declared() -> None:
    m = dh.HybridModel("wrong")
    for value in (np.full((2, 2), np.inf), np.zeros((0, 2)), [[1.0, 2.0], [3.0]], np.zeros((2, 2, 2)), [["a"]]):
        with pytest.raises(dh.ModelError, match="'K'"):
            m.parameter("K", value)
    with pytest.raises(dh.ModelError, match="'K'"):
        m.parameter("K", np.eye(2), size=4)
    assert as_matrix("K", 1.0) is None
    assert as_matrix("K", [1.0, 2.0]) is None
