"""Products with directions in place of Jacobians: chosen where rows are full, and as exact."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.codegen.products import operations
from dae_hybrid.port.replay import SegmentReplay

N, END, P = 14, 2.0, np.array([0.8, 1.3, 0.6, 1.7])
LEVEL = 0.7
EXPLICIT = {"rtol": 1e-10, "atol": 1e-12}
STIFF = {"rtol": 1e-9, "atol": 1e-11}
METHODS: list[dict[str, Any]] = [
    {"method": "erk"} | EXPLICIT,
    {"method": "erk", "native_events": False} | EXPLICIT,
    {"method": "adams"} | EXPLICIT,
    {"method": "adams", "sensitivity_method": "simultaneous"} | EXPLICIT,
    {"method": "bdf"} | STIFF,
    {"method": "bdf", "sensitivity_method": "simultaneous"} | STIFF,
    {"method": "bdf", "linear_solver": "sparse"} | STIFF,
]


def turn(n: int) -> np.ndarray:
    """An orthogonal matrix without zeros."""
    return np.linalg.qr(np.random.default_rng(1).normal(size=(n, n)))[0]


def turned(n: int, *, vectors: bool) -> dh.HybridModel:
    """z_i' = -k c z_i^3 in turned coordinates x = Q z; c is s at first, and b from z_0 = level on."""
    m, q = dh.HybridModel("turned"), turn(n)
    k, a, b, s = (m.parameter(name, value) for name, value in zip("kabs", P, strict=True))
    x, c = m.differential("x", size=n), m.memory("c", initial=s)
    if vectors:
        rates = -k * c * (ca.DM(q) @ (ca.DM(q.T) @ x) ** 3)
    else:
        z = [sum(float(q[i, j]) * x[i] for i in range(n)) for j in range(n)]
        rates = ca.vertcat(*(-k * c * sum(float(q[i, j]) * z[j] ** 3 for j in range(n)) for i in range(n)))
    run = m.mode("run", ode={x: rates})
    m.transition(run, run, guard=ca.dot(ca.DM(q[:, 0]), x) - LEVEL, direction="falling", memory={c: b})
    m.initial(run, {x: a * ca.DM(q @ np.linspace(1, 2, n))})
    m.functional("G", integrand=ca.sumsqr(x) * k, terminal=ca.dot(ca.DM(q @ np.linspace(-1, 1, n)), x))
    m.functional("H", integrand=ca.vertcat(ca.dot(ca.DM(q[:, 1]), x) ** 4, c * ca.sumsqr(x)))
    return m


def closed(p: Any, n: int) -> np.ndarray:
    """G and H, also of complex parameters."""
    k, a, b, s = p
    start = a * np.linspace(1, 2, n)
    event = (1 / LEVEL**2 - 1 / start[0] ** 2) / (2 * k * s)
    middle = start / np.sqrt(1 + 2 * k * s * event * start**2)
    end = middle / np.sqrt(1 + 2 * k * b * (END - event) * middle**2)
    logs = [np.log(start / middle) / (k * s), np.log(middle / end) / (k * b)]  # integrals of z^2
    fourth = (start[1] ** 2 - middle[1] ** 2) / (2 * k * s) + (middle[1] ** 2 - end[1] ** 2) / (2 * k * b)
    squares, weighted = sum(v.sum() for v in logs), s * logs[0].sum() + b * logs[1].sum()
    return np.array([k * squares + np.linspace(-1, 1, n) @ end, fourth, weighted])


def exact(n: int) -> np.ndarray:
    """Their derivatives, (3, 4)."""
    return np.array([closed(P + 1e-30j * unit, n).imag / 1e-30 for unit in np.eye(4)]).T


@pytest.fixture(scope="module", params=[(N, False), (40, True)], ids=["elements", "vectors"])
def system(request: pytest.FixtureRequest) -> dh.HybridSystem:
    """Built, with products."""
    n, vectors = request.param
    built = turned(n, vectors=vectors).build()
    functions = built.modes[0].equations.compiled
    assert {"tape", "tangent", "pullback"} <= set(functions)
    assert "linearised" not in functions
    assert functions["tangent"].function.is_a("MXFunction" if vectors else "SXFunction")
    return built


@pytest.mark.parametrize(
    "options", METHODS, ids=lambda o: "-".join(str(v) for v in o.values() if not isinstance(v, float))
)
def test_derivatives(system: dh.HybridSystem, options: dict[str, Any]) -> None:
    n = system.modes[0].differential.size
    of, tolerance = exact(n), 1e-7 if options["method"] == "erk" else 2e-6
    fsa = dh.forward_sensitivity(system, (0, END), **options)
    assert len(fsa.events) == 1
    np.testing.assert_allclose(fsa.functionals["G"], closed(P, n)[0], rtol=1e-7)
    np.testing.assert_allclose(fsa.gradient["G"], of[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(fsa.gradient["H"], of[1:], rtol=tolerance, atol=tolerance)
    for name, rows in (("G", of[0]), ("H", of[1:])):
        asa = dh.adjoint_gradient(system, (0, END), name, **options)
        np.testing.assert_allclose(asa.gradient, rows, rtol=tolerance, atol=tolerance)


def test_a_choice_of_parameters_and_finite_differences(system: dh.HybridSystem) -> None:
    wrt = ["s", "k"]
    fsa = dh.forward_sensitivity(system, (0, END), wrt=wrt, t_eval=[1.0, END], **EXPLICIT)
    asa = dh.adjoint_gradient(system, (0, END), "G", wrt=wrt, duality=True, **EXPLICIT)
    n = system.modes[0].differential.size
    np.testing.assert_allclose(fsa.gradient["G"], exact(n)[0, [3, 0]], rtol=1e-7)
    np.testing.assert_allclose(asa.gradient, exact(n)[0, [3, 0]], rtol=1e-7)
    step = 1e-4
    up, down = (
        dh.simulate(system, (0, END), parameters={"s": P[3] + h}, t_eval=[1.0, END], **EXPLICIT)["x"]
        for h in (step, -step)
    )
    np.testing.assert_allclose(fsa["x"][:, :, 0], (up - down) / (2 * step), atol=1e-6)


def test_many_runs(system: dh.HybridSystem) -> None:
    values = np.array([0.7, 0.9])
    for gradient in ("forward", "adjoint"):
        found = dh.batch(system, (0, END), parameters={"k": values}, gradient=gradient, **EXPLICIT)
        for k, g in zip(values, found.gradient["G"], strict=True):
            single = dh.adjoint_gradient(system, (0, END), "G", parameters={"k": k}, **EXPLICIT)
            np.testing.assert_allclose(g, single.gradient, rtol=1e-7)


def test_interpreted_and_compiled_agree() -> None:
    built = turned(N, vectors=False).build(native=False)
    fsa = dh.forward_sensitivity(built, (0, END), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(fsa.gradient["G"], exact(N)[0], rtol=1e-5)


def test_values_that_are_not_finite() -> None:
    m, q = dh.HybridModel("log"), turn(N)
    k, x = m.parameter("k", 1.0), m.differential("x", size=N)
    z = [sum(float(q[i, j]) * x[i] for i in range(N)) for j in range(N)]
    rates = [sum(float(q[i, j]) * ca.sqrt(1 - k * z[j]) for j in range(N)) for i in range(N)]
    run = m.mode("run", ode={x: -ca.vertcat(*rates)})
    m.initial(run, {x: ca.DM(q @ np.full(N, 0.5))})
    m.functional("G", terminal=ca.dot(ca.DM(q[:, 0]), x))
    built = m.build()
    assert "tangent" in built.modes[0].equations.compiled
    # sqrt(1 - k z) grows by k/2 per unit of time; of z < 1/k all is smooth
    root = np.sqrt(0.5)
    fsa = dh.forward_sensitivity(built, (0, 1), **EXPLICIT)
    assert fsa.functionals["G"] == pytest.approx(1 - (root + 0.5) ** 2, rel=1e-8)
    with pytest.raises(dh.DaeHybridError):
        dh.forward_sensitivity(built, (0, 1), parameters={"k": 3.0}, **EXPLICIT)


def test_jacobians_stay_where_they_cost_less() -> None:
    m = dh.HybridModel("chain")
    k, x = m.parameter("k", 1.0), m.differential("x", size=N)
    run = m.mode("run", ode={x: -k * ca.vertcat(x[1:] - x[:-1], x[-1]) ** 3})
    m.initial(run, {x: np.linspace(0, 1, N)})
    sparse = m.build()
    assert "linearised" in sparse.modes[0].equations.compiled
    assert "products" not in sparse.describe()
    small = turned(6, vectors=False).build()
    assert "linearised" in small.modes[0].equations.compiled
    assert "products" not in small.describe()


def test_a_sum_of_many_parameters_is_no_full_row() -> None:
    """A direction meets one of its derivatives; products with directions would add all parameters for each."""
    m = dh.HybridModel("many parameters")
    a, x, v = m.parameter("a", np.ones(1000)), m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -ca.sum1(a) / 1000 * (1 + x)})
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("G", integrand=x**2)
    assert "linearised" in m.build().modes[0].equations.compiled


def test_the_choice_is_shown(system: dh.HybridSystem) -> None:
    e = system.modes[0].equations
    said = system.describe()
    assert "products" in said
    assert f"{operations(e.compiled['tangent'].function):,}" in said


@pytest.mark.parametrize("method", ["erk", "bdf"])
def test_outputs_at_given_times_take_one_run(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    m = dh.HybridModel("swing")
    a, x, v = m.parameter("a", 1.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -x}), {x: a, v: 0.0})
    m.functional("G", terminal=x)
    built = m.build()

    def again(replay: SegmentReplay) -> None:
        raise AssertionError("the run was carried out once more")

    monkeypatch.setattr(SegmentReplay, "__call__", again)
    fsa = dh.forward_sensitivity(built, (0, 30), t_eval=[10.0, 30.0], method=method, rtol=1e-8, atol=1e-10)
    assert fsa.trajectory.statistics["steps"] > 80  # enough of them to be looked at
    np.testing.assert_allclose(fsa["x"][:, 0], [np.cos(10), np.cos(30)], rtol=1e-4)
