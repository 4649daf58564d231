"""Modes stated with a mass matrix: the index that build finds, numbers of other statements, gradients, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import dae_hybrid as dh
from dae_hybrid.problems._reference import derivatives
from dae_hybrid.problems.ivp_test_set import PROBLEMS, final

TIGHT = {"rtol": 1e-9, "atol": 1e-11}


def agree(model: dh.HybridModel, end: float, *, tolerance: float = 2e-5, **build: Any) -> dh.GradientCheck:
    """Forward, adjoint and differences agree, in compiled code, through Python and on another adapter."""
    system = model.build(**build)
    check = dh.check_gradient(system, (0, end), "G", **TIGHT)
    assert check.difference("adjoint", "forward") < tolerance, check
    assert check.difference("finite_difference", "forward") < 1e3 * tolerance, check
    native = dh.forward_sensitivity(system, (0, end), **TIGHT).gradient["G"]
    for options in ({"native_events": False}, {"adapter": "scipy"}):
        other = dh.forward_sensitivity(system, (0, end), **TIGHT, **options).gradient["G"]
        assert np.allclose(other, native, rtol=tolerance, atol=tolerance * np.abs(native).max())
    return check


def amplifier(*, vector: bool, symbolic: bool) -> dh.HybridModel:
    """The transistor amplifier as the test set states it; the capacities are numbers or parameters."""
    m = dh.HybridModel("transistor amplifier")
    ub, alpha, beta = m.parameter("ub", 6.0), m.parameter("alpha", 0.99), m.parameter("beta", 1e-6)
    r0, r, uf, c = 1000.0, 9000.0, 0.026, np.arange(1, 6) * 1e-6
    capacity = m.parameter("C", c) if symbolic else ca.MX(ca.DM(c))
    names = [f"U{k}" for k in range(1, 9)]
    u: Any = m.differential("U", size=8) if vector else [m.differential(name) for name in names]
    first, second = beta * (np.exp((u[1] - u[2]) / uf) - 1), beta * (np.exp((u[4] - u[5]) / uf) - 1)
    rhs = [
        (u[0] - 0.1 * np.sin(200 * np.pi * m.time)) / r0,
        u[1] / r + (u[1] - ub) / r + (1 - alpha) * first,
        u[2] / r - first,
        (u[3] - ub) / r + alpha * first,
        u[4] / r + (u[4] - ub) / r + (1 - alpha) * second,
        u[5] / r - second,
        (u[6] - ub) / r + alpha * second,
        u[7] / r,
    ]
    mass = ca.MX(8, 8)
    for k, (i, j) in {0: (0, 1), 1: (2, 2), 2: (3, 4), 3: (5, 5), 4: (6, 7)}.items():
        mass[i, i] = mass[j, j] = -capacity[k]
        if i != j:
            mass[i, j] = mass[j, i] = capacity[k]
    run = m.mode("run", mass=mass, rhs=rhs)
    start = [0.0, ub / 2, ub / 2, ub, ub / 2, ub / 2, ub, 0.0]
    m.initial(run, {u: ca.vertcat(*start)} if vector else dict(zip(u, start, strict=True)))
    m.functional("G", terminal=u[7], integrand=u[1] - u[2])
    return m


@pytest.mark.parametrize(("vector", "symbolic"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_transistor_amplifier_needs_no_other_statement(vector: bool, symbolic: bool) -> None:
    """Five capacitors between eight nodes: the differences of voltages are states, in any declaration."""
    problem, span, options = PROBLEMS["transistor"], (0, 0.2), PROBLEMS["transistor"].tolerances(1e-7)
    system, stated = amplifier(vector=vector, symbolic=symbolic).build(), problem.model().build()
    assert system.modes[0].differential.size == stated.modes[0].differential.size == 5
    found, reference = dh.simulate(system, span, **options), dh.simulate(stated, span, **options)
    values = final(found)
    if vector:
        values = {f"U{i + 1}": values[f"U[{i}]"] for i in range(8)}
    assert problem.digits(values) > 5.0
    assert found.statistics["steps"] < 1.5 * reference.statistics["steps"]
    gradient, other = (
        dh.adjoint_gradient(s, span, "G", wrt=list(problem.wrt), **options).gradient for s in (system, stated)
    )
    assert np.allclose(gradient, other, rtol=1e-4)


def decay(mass: Callable[[Any, Any, Any], Any], scale: Callable[[Any, Any, Any], Any]) -> dh.HybridModel:
    """scale @ (x' = -k x, y' = x - y) with mass = scale."""
    m = dh.HybridModel("decay")
    k, c = m.parameter("k", 0.7), m.parameter("c", 0.3)
    x, y = m.differential("x"), m.differential("y")
    rhs = ca.mtimes(ca.vertcat(*(ca.horzcat(*row) for row in scale(x, y, c))), ca.vertcat(-k * x, x - y))
    m.initial(m.mode("run", mass=mass(x, y, c), rhs=rhs), {x: 1.0, y: c})
    m.functional("G", integrand=x * y, terminal=y)
    return m


REGULAR: dict[str, Callable[[Any, Any, Any], Any]] = {
    "constant": lambda x, y, c: np.array([[2.0, 1.0], [1.0, 3.0]]),
    "of parameters": lambda x, y, c: [[2.0, c], [c, 1.0]],
    "of the state": lambda x, y, c: [[1 + x**2, y], [0.0, 2 + c * ca.sin(y)]],
}


@pytest.mark.parametrize("kind", REGULAR)
def test_a_regular_mass_matrix(kind: str) -> None:
    """The solution is that of x' = -k x, y' = x - y."""
    check = agree(decay(REGULAR[kind], REGULAR[kind]), 1.5)
    fsa = dh.simulate(decay(REGULAR[kind], REGULAR[kind]).build(), (0, 1.5), **TIGHT)
    k, c, t = 0.7, 0.3, 1.5
    assert np.isclose(fsa["x"][-1], np.exp(-k * t), rtol=1e-7)
    assert np.isclose(fsa["y"][-1], c * np.exp(-t) + (np.exp(-k * t) - np.exp(-t)) / (1 - k), rtol=1e-7)
    assert np.all(np.isfinite(check.gradients["forward"]))


def test_the_diagonal_may_be_given() -> None:
    """Index 1: a zero on the diagonal makes its equation and its variable algebraic."""
    m = dh.HybridModel("diagonal")
    k = m.parameter("k", 2.0)
    y = m.differential("y")
    z = m.differential("z")
    m.initial(m.mode("run", mass=[2.0, 0.0], rhs=[-2 * z, y - z**3 / k]), {y: 4.0, z: 2.0})
    m.functional("G", terminal=z)
    system = m.build()
    assert (system.modes[0].differential.names, system.modes[0].algebraic.names) == (("y",), ("z",))
    assert "Hessenberg index 1" in system.describe()
    sol = dh.simulate(system, (0, 1), **TIGHT)
    assert np.isclose(sol["z"][-1] ** 2, 4.0 - 2 * 2.0 / 3 * 1.0, rtol=1e-7)  # (z^2)' = -2 k / 3
    agree(m, 1.0)


def nonlinear_capacitor() -> dh.HybridModel:
    """Charge q = v + v^3 of v = u1 - u2: M(y) = q'(v) [[1, -1], [-1, 1]] is singular and depends on the state."""
    m = dh.HybridModel("nonlinear capacitor")
    g, source = m.parameter("g", 0.5), m.parameter("s", 2.0)
    u1, u2 = m.differential("u1"), m.differential("u2")
    slope = 1 + 3 * (u1 - u2) ** 2
    rhs = [source - u1, -g * u2]
    m.initial(m.mode("run", mass=[[slope, -slope], [-slope, slope]], rhs=rhs), {u1: 0.3 * source, u2: 0.0})
    m.functional("G", integrand=u2, terminal=u1)
    return m


def charge_model() -> dh.HybridModel:
    """The same circuit by its charge."""
    m = dh.HybridModel("charge")
    g, source = m.parameter("g", 0.5), m.parameter("s", 2.0)
    v, u2 = m.differential("v"), m.algebraic("u2")
    u1 = v + u2
    run = m.mode("run", ode={v: (source - u1) / (1 + 3 * v**2)}, algebraic=[source - u1 - g * u2])
    m.initial(run, {v: 0.3 * source})
    m.functional("G", integrand=u2, terminal=u1)
    return m


def test_a_singular_matrix_that_depends_on_the_state() -> None:
    """The sum of the equations has no rates and determines the voltages; their difference is the state."""
    m = nonlinear_capacitor()
    system = m.build()
    assert system.modes[0].differential.names == ("(u1 - u2)",)
    assert "index 0 or 1" in system.describe()
    values = [dh.simulate(s, (0, 2), **TIGHT).functionals["G"] for s in (system, charge_model().build())]
    assert np.isclose(*values, rtol=1e-7)
    check = agree(m, 2.0)
    other = dh.forward_sensitivity(charge_model().build(), (0, 2), **TIGHT).gradient["G"]
    assert np.allclose(check.gradients["forward"], other, rtol=1e-5)


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_chain_of_capacitors_that_is_not_grounded(symbolic: bool) -> None:
    """A singular block of 24 rows, whose inverse would be full, keeps its rows."""
    n = 24
    m = dh.HybridModel("chain")
    v, g = m.differential("v", size=n), m.parameter("g", 0.5)
    c = m.parameter("c", 2.0) if symbolic else 2.0
    ends = np.eye(n, n - 1) - np.eye(n, n - 1, -1)
    drive = np.eye(n)[0]
    run = m.mode("run", mass=c * ca.DM(ends @ ends.T), rhs=drive - g * v)
    m.initial(run, {v: np.zeros(n)})
    m.functional("G", integrand=v[0], terminal=v[n - 1])
    system = m.build()
    assert system.modes[0].differential.names[:2] == (f"(v[0] - v[{n - 1}])", f"(v[1] - v[{n - 1}])")
    # the voltages u = ends' v have 2 L u' = drive_u - g u with L of the chain, and the sum of v is 1 / g
    flow = -0.5 / 2.0 * np.linalg.inv(ends.T @ ends)
    onto = np.linalg.inv(np.vstack([ends.T, np.ones(n)]))  # v from u and its sum
    steady = onto @ np.append(np.linalg.solve(flow, -np.linalg.pinv(ends) @ drive / 2.0), 1 / 0.5)
    fading = scipy.linalg.expm(flow * 3.0) @ (ends.T @ steady)
    final = steady - onto @ np.append(fading, 0.0)
    assert np.allclose(dh.simulate(system, (0, 3), **TIGHT)["v"][-1], final, atol=1e-8)
    agree(m, 3.0)


SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "number": lambda u, c: 1.5,
    "parameter": lambda u, c: c,
    "nonlinear": lambda u, c: c * (1 + 0.9 * u**2),
}


def source_beside_capacitor(slope: Callable[[Any, Any], Any], statement: str) -> dh.HybridModel:
    """A voltage source and a capacitor between nodes 0 and 1, a capacitor at node 2, and a resistor at each node."""
    m = dh.HybridModel("loop of a capacitor and a voltage source")
    c, ends, grounded = m.parameter("c", 1.2), np.array([[1.0], [-1.0], [0.0]]), np.array([[0.0], [0.0], [1.0]])
    vector = statement != "scalars"
    v: Any = m.differential("v", size=3) if vector else ca.vertcat(*(m.differential(f"v{k}") for k in range(3)))
    i: Any = m.algebraic("i") if statement == "algebraic=" else m.differential("i")
    source, drive = np.sin(m.time), ca.vertcat(0, 0, np.cos(m.time))
    capacities = ca.diagcat(slope(v[0] - v[1], c), c)
    stated = np.hstack([ends, grounded])
    mass = stated @ capacities @ stated.T
    currents = drive - v - ca.vertcat(v[0] - v[1], v[1] - v[2], v[2] - v[0]) - ends @ i
    across = ends.T @ v - source
    if statement == "algebraic=":
        run = m.mode("run", mass=mass, rhs=currents, algebraic=[across])
    else:
        run = m.mode("run", mass=ca.diagcat(mass, ca.MX(1, 1)), rhs=ca.vertcat(currents, across))
    m.initial(run, {v: [0.0, 0.0, 0.0]} if vector else {f"v{k}": 0.0 for k in range(3)})
    m.functional("G", terminal=v[2] + v[0], integrand=i**2 + v[1])
    return m


def its_reduction(slope: Callable[[Any, Any], Any]) -> dh.HybridModel:
    """The same circuit with v_0 - v_1 = sin t in the equations; the sum of those at nodes 0 and 1 has no i."""
    m = dh.HybridModel("reduction")
    c, v1, v2 = m.parameter("c", 1.2), m.algebraic("v1"), m.differential("v2")
    u = np.sin(m.time)
    v0 = v1 + u
    run = m.mode("run", ode={v2: (np.cos(m.time) - v2 - (v2 - v0)) / c}, algebraic=[v0 + v1 + u + v1 - v2])
    m.initial(run, {v2: 0.0})
    i = -v0 - u - slope(u, c) * np.cos(m.time)
    m.functional("G", terminal=v2 + v0, integrand=i**2 + v1)
    return m


@pytest.mark.parametrize("statement", ["scalars", "vector", "algebraic="])
@pytest.mark.parametrize("kind", SLOPES)
def test_a_voltage_source_across_a_capacitor_has_index_2(kind: str, statement: str) -> None:
    """The state v_0 - v_1 is what the source determines: a constraint, although v_0 and v_1 are algebraic."""
    m = source_beside_capacitor(SLOPES[kind], statement)
    assert "index 2" in m.build().describe()
    check = agree(m, 2.0)
    other = dh.forward_sensitivity(its_reduction(SLOPES[kind]).build(), (0, 2), **TIGHT)
    assert np.allclose(check.gradients["forward"], other.gradient["G"], rtol=1e-6)
    assert np.isclose(dh.simulate(m.build(), (0, 2), **TIGHT).functionals["G"], other.functionals["G"], rtol=1e-7)


def test_a_source_that_jumps_across_a_capacitor_is_no_linear_equation() -> None:
    """The derivative of the row by v is constant, but the row jumps where v does not cancel."""
    m = dh.HybridModel("switch")
    a, b, i = m.differential("a"), m.differential("b"), m.differential("i")
    across = ca.if_else(a > 1.0, a - b, a - b + 1)
    run = m.mode("run", mass=ca.blockcat([[1, -1, 0], [-1, 1, 0], [0, 0, 0]]), rhs=[-a - i, -b + i, across])
    m.initial(run, {a: 0.0, b: 0.0})
    with pytest.raises(dh.ConsistencyError, match="their matrix is singular"):
        dh.simulate(m.build(), (0, 1))


@pytest.mark.parametrize("index2", ["reduced", "direct"])
def test_a_pendulum_has_index_2(index2: Any) -> None:
    """A zero row without the multiplier is a constraint."""

    def pendulum(*, by_mass: bool) -> dh.HybridModel:
        m = dh.HybridModel("pendulum")
        g, mass = m.parameter("g", 9.81), m.parameter("m", 1.3)
        q, v = m.differential("q", size=2), m.differential("v", size=2)
        z = m.differential("z") if by_mass else m.algebraic("z")
        forces = [-q[0] * z, -mass * g - q[1] * z]
        kept = q[0] * v[0] + q[1] * v[1]
        if by_mass:
            run = m.mode("run", mass=ca.diagcat(1, 1, mass, mass, 0), rhs=[v, *forces, ("rod", kept)])
        else:
            run = m.mode("run", ode={q: v, v: [force / mass for force in forces]}, constraint=[kept])
        m.initial(run, {q: [0.6, -0.8], v: [0.8, 0.6]})
        m.functional("G", integrand=z, terminal=q[0])
        return m

    if index2 == "direct":
        m = pendulum(by_mass=True)
        value = dh.simulate(m.build(index2=index2), (0, 1), rtol=1e-8, atol=1e-9).functionals["G"]
        assert np.isclose(value, dh.simulate(m.build(), (0, 1), **TIGHT).functionals["G"], rtol=1e-5)
        return
    m = pendulum(by_mass=True)
    m.start.values["z"] = ca.MX(9.0)
    system = m.build()
    assert "index 2" in system.describe()
    check = agree(m, 1.0)
    other = dh.forward_sensitivity(pendulum(by_mass=False).build(), (0, 1), **TIGHT).gradient["G"]
    assert np.allclose(check.gradients["forward"], other, rtol=1e-6)


def test_index_3_is_refused() -> None:
    m = dh.HybridModel("pendulum")
    q, v, z = m.differential("q", size=2), m.differential("v", size=2), m.differential("z")
    rhs = [v, -q[0] * z, -9.81 - q[1] * z, ("rod", q[0] ** 2 + q[1] ** 2 - 1)]
    m.initial(m.mode("run", mass=[1, 1, 1, 1, 0], rhs=rhs), {q: [0.6, -0.8], v: [0.0, 0.0]})
    with pytest.raises(dh.FormulationError, match="the index is 3 or higher"):
        m.build()


def switched() -> dh.HybridModel:
    """A capacitor between two nodes; a switch connects a second one from the second node to ground.

    Its voltage is then a state, which the source mode determines by its algebraic equation.
    """
    m = dh.HybridModel("switched capacitor")
    c, g, on = m.parameter("c", 0.5), m.parameter("g", 0.8), m.parameter("on", 0.6)
    u1, u2 = m.differential("u1"), m.differential("u2")
    currents = [1.0 - u1, -g * u2]
    one = m.mode("one", mass=[[c, -c], [-c, c]], rhs=currents)
    two = m.mode("two", mass=[[c, -c], [-c, c + 2.0]], rhs=currents)
    m.transition(one, two, at=on)
    m.transition(two, one, guard=u2 - 0.1, direction="falling")
    m.initial(one, {u1: 0.5, u2: 0.0})
    m.functional("G", integrand=u1 * u2, terminal=u1)
    return m


def test_modes_of_different_rank() -> None:
    """In the second mode the voltages are states, and continuous; in the first only their difference is."""
    system = switched().build()
    sol = dh.simulate(system, (0, 3), **TIGHT)
    before, after = sol.event_table.x_minus, sol.event_table.x_plus
    assert [event.transition for event in sol.events] == ["one->two", "two->one"]
    assert np.isclose(before["u1"][0], after["u1"][0], rtol=1e-9)
    assert np.isclose(before["u2"][0], after["u2"][0], rtol=1e-9)
    agree(switched(), 3.0)


def tapped(reset: Callable[[dh.HybridModel, Any, Any], Any]) -> dh.HybridModel:
    """The first node is set at a tap."""
    m = dh.HybridModel("tapped")
    g, to = m.parameter("g", 0.8), m.parameter("to", 0.9)
    u1, u2 = m.differential("u1"), m.differential("u2")
    run = m.mode("run", mass=[[0.5, -0.5], [-0.5, 0.5]], rhs=[1.0 - u1, -g * u2])
    m.transition(run, run, at=0.5, reset=reset(m, u1, to))
    m.initial(run, {u1: 0.5, u2: 0.0})
    m.functional("G", integrand=u1 * u2)
    return m


RESETS: dict[str, Callable[[dh.HybridModel, Any, Any], Any]] = {
    "explicit": lambda m, u1, to: {u1: to},
    "implicit": lambda m, u1, to: [m.post(u1) - to],
}


@pytest.mark.parametrize("form", RESETS)
def test_a_reset_of_a_variable_in_a_combination(form: str) -> None:
    """The state takes the value with which the variable has the one that is stated."""
    sol = dh.simulate(tapped(RESETS[form]).build(), (0, 1), **TIGHT)
    assert np.isclose(sol.event_table.x_plus["u1"][0], 0.9, rtol=1e-9)
    assert np.isclose(sol.event_table.x_plus["u2"][0], 0.1 / 0.8, rtol=1e-9)  # 1 - u1 = g u2
    agree(tapped(RESETS[form]), 1.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", ["constant", "of parameters", "of the state"])
def test_random_pencils(scale: str, seed: int) -> None:
    """S M y' = S (a A y + g(t)) with M = P diag(I, 0) Q and A = P diag(J, I) Q, which is exp(a J t) in Q y.

    S, a diagonal matrix, is 1, depends on a parameter or on the state.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    r = int(rng.integers(1, n))
    outer, inner = (rng.normal(size=(n, n)) + 2 * np.eye(n) for _ in range(2))
    flow, back = rng.normal(size=(r, r)) - np.eye(r), np.linalg.inv(inner)
    mass = outer @ np.diag([1.0] * r + [0.0] * (n - r)) @ inner
    matrix = outer @ scipy.linalg.block_diag(flow, np.eye(n - r)) @ inner
    m = dh.HybridModel(f"pencil {scale}")
    a, y = m.parameter("a", 1.3), m.differential("y", size=n)
    forcing = ca.vertcat(*(ca.sin((i + 1) * m.time) if i >= r else 0 for i in range(n)))
    factors: dict[str, Any] = {"constant": 1.0, "of parameters": a, "of the state": 1 + 0.3 * ca.sin(y[0])}
    rows = ca.diag(ca.vertcat(*(factors[scale] if i % 2 else 1.0 for i in range(n))))
    rhs = ca.mtimes(rows, ca.mtimes(ca.DM(matrix), a * y) + ca.mtimes(ca.DM(outer), forcing))
    start, weights = rng.normal(size=r), rng.normal(size=n)
    run = m.mode("run", mass=ca.mtimes(rows, ca.DM(mass)), rhs=rhs)
    m.initial(run, {y: back @ np.r_[start, np.zeros(n - r)]})
    m.functional("G", terminal=ca.dot(ca.DM(weights), y))

    def exact(p: Any) -> Any:
        bound = -np.array([np.sin(i + 1.0) for i in range(r, n)]) / p[0]
        return weights @ (back @ np.concatenate((scipy.linalg.expm(p[0] * flow) @ start, bound)))

    system = m.build(native=False)
    asa = dh.adjoint_gradient(system, (0, 1), "G", **TIGHT)
    fsa = dh.forward_sensitivity(system, (0, 1), **TIGHT).gradient["G"]
    gradient = derivatives(exact, system.nominal)
    size = np.abs([exact(system.nominal), *gradient]).max()
    assert np.isclose(asa.value, exact(system.nominal), atol=1e-6 * size)
    assert np.allclose(asa.gradient, gradient, atol=1e-6 * size)
    assert np.allclose(fsa, gradient, atol=1e-6 * size)


def test_a_combination_may_start_elsewhere() -> None:
    """By ``x0=``, and with its initial value as a parameter."""
    m = dh.HybridModel("two nodes")
    u1, u2 = m.differential("u1"), m.differential("u2")
    run = m.mode("run", mass=[[0.5, -0.5], [-0.5, 0.5]], rhs=[1.0 - u1, -u2])
    m.initial(run, {u1: 0.5, u2: 0.5})
    m.functional("G", terminal=u2)
    system, rate = m.build(), -1.0  # w' = 2 (1 - u1) and 1 - u1 = u2 = (1 - w) / 2
    value = dh.simulate(system, (0, 1), x0={"(u1 - u2)": 0.3}, **TIGHT).functionals["G"]
    assert np.isclose(value, 0.35 * np.exp(rate), rtol=1e-8)
    gradient = dh.adjoint_gradient(system, (0, 1), "G", wrt=["(u1 - u2)(0)"], **TIGHT).gradient
    assert np.allclose(gradient, -0.5 * np.exp(rate), rtol=1e-7)


def test_a_run_may_start_in_a_mode_with_other_combinations() -> None:
    """The values that the model states give the states of any mode."""
    system, model = switched().build(), switched()
    u1, u2 = (model.declarations[name].symbol for name in ("u1", "u2"))
    model.start = None
    model.initial("two", {u1: 0.5, u2: 0.0})
    stated = dh.adjoint_gradient(model.build(), (0, 3), "G", **TIGHT)
    called = dh.adjoint_gradient(system, (0, 3), "G", start_mode="two", **TIGHT)
    assert np.isclose(called.value, stated.value, rtol=1e-10)
    assert np.allclose(called.gradient, stated.gradient, rtol=1e-8)
    one = dh.adjoint_gradient(switched().build(), (0, 3), "G", start_mode="one", **TIGHT)
    assert np.allclose(one.gradient, dh.adjoint_gradient(system, (0, 3), "G", **TIGHT).gradient)


def test_what_is_refused() -> None:
    m = dh.HybridModel("refused")
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    with pytest.raises(dh.ModelError, match="mass= without rhs="):
        m.mode("a", mass=[1.0, 1.0])
    with pytest.raises(dh.ModelError, match="variables= without mass="):
        m.mode("a", ode={x: 1.0}, variables=[x])
    with pytest.raises(dh.ModelError, match="mass is 3x3 and rhs of length 2, expected 2x2 and length 2 for x, y"):
        m.mode("a", mass=np.eye(3), rhs=[x, y])
    with pytest.raises(dh.ModelError, match="mass is 1x2"):  # a row is no diagonal
        m.mode("a", mass=[[1.0, 0.0]], rhs=[x, y])
    with pytest.raises(dh.ModelError, match="once each, without an equation in ode=; got z"):
        m.mode("a", mass=[1.0, 1.0], rhs=[x, y], variables=[x, z])
    with pytest.raises(dh.ModelError, match="got x"):
        m.mode("a", ode={x: 1.0}, mass=[1.0, 1.0], rhs=[x, y], variables=[x, y])
    run = m.mode("a", mass=[1.0, 0.0], rhs=[-x, x - y], algebraic=[z - x])
    m.transition(run, run, at=1.0, reset={y: 0.0})
    m.initial(run, {x: 1.0})
    with pytest.raises(dh.ModelError, match="resets 'y', which the equations of mode 'a' determine"):
        m.build()


def test_an_entry_without_a_rate_beside_one_that_varies() -> None:
    """u0' (1 + u0^2) = -k u0, u1 = u0: ln u0 + u0^2 / 2 = 1 / 2 - k t."""
    m = dh.HybridModel("mixed")
    k, u = m.parameter("k", 0.8), m.differential("u", size=2)
    m.initial(m.mode("run", mass=ca.diagcat(1 + u[0] ** 2, 0), rhs=[-k * u[0], u[0] - u[1]]), {u: [1.0, 1.0]})
    m.functional("G", terminal=u[1])
    (value,) = dh.simulate(m.build(), (0, 2), **TIGHT)["u"][-1:, 1]
    assert np.isclose(np.log(value) + value**2 / 2, 0.5 - 1.6, rtol=1e-7)
    assert np.isclose(agree(m, 2.0).gradients["forward"][0], -2 * value / (1 + value**2), rtol=1e-6)


def switched_capacitors(*, explicit: bool) -> dh.HybridModel:
    """A nonlinear capacitor floats, then nonlinear ones connect both nodes to ground; and back."""
    m = nonlinear_capacitor()
    u1, u2 = (m.declarations[name].symbol for name in ("u1", "u2"))
    floating = m.modes["run"]
    mass = ca.blockcat([[1 + u1**2, -0.3], [-0.3, 2 + ca.sin(u2)]])
    rhs = ca.vertcat(1.0 - u1, -0.4 * u2)
    how = {"ode": dict(zip((u1, u2), ca.vertsplit(ca.solve(mass, rhs)), strict=True))}
    grounded = m.mode("grounded", **(how if explicit else {"mass": mass, "rhs": rhs}))
    m.transition(floating, grounded, guard=u2 - 0.75, direction="falling")
    m.transition(grounded, floating, guard=u2 - 0.6, direction="falling", reset={u1: u1 + 0.1})
    return m


def test_variables_stay_states_where_an_equation_needs_their_rates() -> None:
    """The nonlinear capacitor, and a mode in which the rates are stated."""
    m = nonlinear_capacitor()
    u1, u2 = (m.declarations[name].symbol for name in ("u1", "u2"))
    rates = m.mode("rates", residual=[m.der(u1) + u1 + m.der(u2), 2 * m.der(u2) - m.der(u1) + u2])
    m.transition(m.modes["run"], rates, guard=u2 - 0.75, direction="falling")
    m.start.values["u1"] = m.declarations["s"].symbol - 0.9 * m.declarations["g"].symbol  # where u2 = 0.9
    m.start.values["u2"] = ca.MX(0.9)
    system = m.build()
    assert system.modes[0].differential.names == ("u1", "u2")
    agree(m, 3.0)


def test_modes_with_and_without_combinations_whose_rates_are_unknowns() -> None:
    found = [agree(switched_capacitors(explicit=explicit), 6.0) for explicit in (False, True)]
    assert np.allclose(*(check.gradients["forward"] for check in found), rtol=1e-6)
    sol = dh.simulate(switched_capacitors(explicit=False).build(), (0, 6), **TIGHT)
    assert len(sol.events) == 3


def test_a_matrix_that_is_never_finite_is_refused() -> None:
    m = dh.HybridModel("not finite")
    x = m.differential("x")
    m.initial(m.mode("run", mass=ca.log(-1 - x**2), rhs=[-x]), {x: 1.0})
    with pytest.raises(dh.FormulationError, match="is not finite at any of the values"):
        m.build()


def chain(n: int, *, scaled: bool = False) -> dh.HybridModel:
    """Nonlinear capacitors between n nodes in a chain; `scaled`: rows with factors that depend on the state."""
    m = dh.HybridModel("chain")
    g, u = m.parameter("g", 0.5), m.differential("u", size=n)
    mass = ca.MX(n, n)
    for i in range(n - 1):
        mass[i : i + 2, i : i + 2] += (1 + (u[i] - u[i + 1]) ** 2) * ca.DM([[1, -1], [-1, 1]])
    rhs = ca.vertcat(ca.cos(m.time) - u[0], -g * u[1:])
    rows = 1 + 0.1 * u**2 if scaled else ca.MX.ones(n)
    run = m.mode("run", mass=ca.mtimes(ca.diag(rows), mass), rhs=rows * rhs)
    m.initial(run, {u: np.eye(n)[0]})
    m.functional("G", integrand=u[n - 1], terminal=u[0])
    return m


def charges(n: int) -> dh.HybridModel:
    """The same chain by the voltages of its capacitors."""
    m = dh.HybridModel("charges")
    g, w, z = m.parameter("g", 0.5), m.differential("w", size=n - 1), m.algebraic("z")
    u: list[Any] = [z]
    for i in range(n - 2, -1, -1):
        u.insert(0, u[0] + w[i])
    currents = [ca.cos(m.time) - u[0], *(-g * part for part in u[1:])]
    rates = [sum(currents[: i + 1]) / (1 + w[i] ** 2) for i in range(n - 1)]
    m.initial(m.mode("run", ode={w: rates}, algebraic=[sum(currents)]), {w: np.eye(n - 1)[0]})
    m.functional("G", integrand=u[n - 1], terminal=u[0])
    return m


@pytest.fixture
def few_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of nine rows are large."""
    monkeypatch.setattr("dae_hybrid.compile.mass_structure.MAX_SINGULAR_SYMBOLS", 8)


@pytest.mark.usefixtures("few_symbols")
@pytest.mark.parametrize(("n", "scaled"), [(5, False), (5, True), (9, True)])
def test_a_chain_of_nonlinear_capacitors(n: int, scaled: bool) -> None:
    """The sum of the currents is the equation without rates, with constant factors or with those of the rows."""
    system = chain(n, scaled=scaled).build()
    assert system.modes[0].differential.size == n - 1
    found = dh.adjoint_gradient(system, (0, 1), "G", **TIGHT)
    other = dh.adjoint_gradient(charges(n).build(), (0, 1), "G", **TIGHT)
    assert np.isclose(found.value, other.value, rtol=1e-7)
    assert np.allclose(found.gradient, other.gradient, rtol=1e-5)


def factor(above: Any, smooth: bool) -> Any:
    """1, or 2 where `above` is negative."""
    return 1.5 - 0.5 * np.tanh(above / 20) if smooth else ca.if_else(above < 0, 2.0, 1.0)


def branching(kind: str, smooth: bool) -> dh.HybridModel:
    """A capacity s(t), and twice as much in one column or one row where a voltage is far below zero."""
    m = dh.HybridModel("branching")
    k, g = m.parameter("k", 0.5), m.parameter("g", 0.8)
    u1, u2 = m.differential("u1"), m.differential("u2")
    s, f1, f2 = 2 + ca.cos(m.time), k - u1 - 2001 * m.time, -g * u2
    c = factor((u1 if kind == "columns" else u1 - u2) + 480 + g, smooth)
    mass = [[s, -c * s], [-s, c * s]] if kind == "columns" else [[s, -s], [-c * s, c * s]]
    m.initial(m.mode("run", mass=mass, rhs=[f1, f2]), {u1: k, u2: 0.0})
    m.functional("G", integrand=u2, terminal=u1)
    return m


def branching_by_rates(kind: str, smooth: bool) -> dh.HybridModel:
    """The same, solved by hand."""
    m = dh.HybridModel("by rates")
    k, g = m.parameter("k", 0.5), m.parameter("g", 0.8)
    s, f1 = 2 + ca.cos(m.time), lambda u1: k - u1 - 2001 * m.time
    if kind == "columns":  # 0 = f1 + f2, hence u2' = -(2001 + u1') / g
        u1 = m.differential("u1")
        c, u2 = factor(u1 + 480 + g, smooth), f1(u1) / g
        m.initial(m.mode("run", ode={u1: (f1(u1) / s - 2001 * c / g) / (1 + c / g)}), {u1: k})
    else:  # v = u1 - u2 and 0 = c f1 + f2
        v, u2 = m.differential("v"), m.algebraic("u2")
        u1, c = v + u2, factor(v + 480 + g, smooth)
        m.initial(m.mode("run", ode={v: f1(u1) / s}, algebraic=[c * f1(u1) - g * u2]), {v: k})
    m.functional("G", integrand=u2, terminal=u1)
    return m


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("kind", ["columns", "rows"])
def test_factors_of_combinations_that_vary_far_away(kind: str, smooth: bool) -> None:
    """The factor c is 1 to rounding at all values that other tests of structure take."""
    systems = branching(kind, smooth).build(), branching_by_rates(kind, smooth).build()
    found, other = (dh.forward_sensitivity(system, (0, 2), **TIGHT) for system in systems)
    assert len(found.trajectory.events) == len(other.trajectory.events) == (not smooth)
    assert np.isclose(found.functionals["G"], other.functionals["G"], rtol=1e-6)
    np.testing.assert_allclose(found.gradient["G"], other.gradient["G"], rtol=1e-5)


def bump(kind: str, m: dh.HybridModel, y: Any) -> Any:
    """2, and more near y = 1.5."""
    if kind == "table":
        grid = np.array([-50.0, -1.0, 0.0, 1.0, 1.3, 1.4, 1.5, 1.6, 1.7, 2.0, 3.0, 50.0])
        return m.table("gear", grid, 2 + np.exp(-(((grid - 1.5) / 0.05) ** 2)), kind="cubic")(y)
    off = (y - 1.5) / 0.05
    if kind == "marked":
        return 2 + dh.smooth(ca.if_else(off**2 < 1, (1 - off**2) ** 3, 0.0))
    return 2 + (np.exp(-(off**2)) if kind == "bell" else np.tanh(off + 1) - np.tanh(off - 1))


@pytest.mark.parametrize("kind", ["bell", "steps", "marked", "table"])
@pytest.mark.parametrize("rows", [False, True])
def test_factors_of_combinations_that_vary_in_a_small_region(kind: str, rows: bool) -> None:
    """The factor c is 2 to rounding at all sampled values of the variables."""
    ways = []
    for stated in (True, False):
        m = dh.HybridModel("gear")
        k, x = m.parameter("k", 0.7), m.differential("x") if stated else m.algebraic("x")
        y = m.differential("y")
        c, s = bump(kind, m, y), 1 + y**2
        if rows:  # s (x' - y') = -k y and c s (x' - y') = -k c y + x - y
            law: dict[str, Any] = {"mass": [[s, -s], [c * s, -c * s]], "rhs": [-k * y, x - 3 * y - k * c * y]}
            other: dict[str, Any] = {"ode": {y: -k * y / (2 * s)}, "algebraic": [x - 3 * y]}
        else:  # x = y + y^3 and s (x' + c y') = -k y
            law = {"mass": [[s, c * s], [0, 0]], "rhs": [-k * y, x - y - y**3]}
            other = {"ode": {y: -k * y / s / (1 + 3 * y**2 + c)}, "algebraic": [x - y - y**3]}
        mode = m.mode("run", **(law if stated else other))
        m.initial(mode, {x: 6.0 if rows else 10.0, y: 2.0} if stated else {y: 2.0})
        m.functional("G", integrand=x * y, terminal=y)
        ways.append(dh.forward_sensitivity(m.build(), (0, 40), **TIGHT, max_step=0.5))
    found, by_hand = ways
    assert np.isclose(found.functionals["G"], by_hand.functionals["G"], rtol=1e-7)
    assert np.allclose(found.gradient["G"], by_hand.gradient["G"], rtol=1e-5)


def test_a_large_singular_block_in_which_all_combinations_vary_is_refused() -> None:
    m = dh.HybridModel("projector")
    x, w = m.differential("x", size=40), ca.cos(m.time + np.arange(40))
    m.initial(m.mode("run", mass=ca.MX.eye(40) - w @ w.T / ca.dot(w, w), rhs=-x), {x: 0.0})
    with pytest.raises(dh.FormulationError, match="40 rows of the mass matrix are coupled, singular and not constant"):
        m.build()


def test_a_matrix_that_becomes_singular_ends_the_run() -> None:
    m = dh.HybridModel("singular")
    x = m.differential("x")
    m.initial(m.mode("run", mass=ca.MX(x - 1), rhs=[-1.0]), {x: 2.0})
    with pytest.raises(dh.ConsistencyError, match="singular") as error:
        dh.simulate(m.build(), (0, 1))
    assert np.isclose(error.value.trajectory["x"][-1], 1.0, atol=1e-2)


def test_a_large_sparse_matrix() -> None:
    """Linear elements on a rod with insulated ends: the mean is kept, the first eigenvector decays at its rate."""
    n, rate = 80, 0.2
    h = 1 / (n - 1)
    one = np.ones(n)
    inner = np.r_[0.5, one[1:-1], 0.5]
    mass = h / 6 * scipy.sparse.diags_array([one[1:], 4 * inner, one[1:]], offsets=[-1, 0, 1])
    stiffness = scipy.sparse.diags_array([-one[1:], 2 * inner, -one[1:]], offsets=[-1, 0, 1]) / h
    m = dh.HybridModel("rod")
    k, u = m.parameter("k", rate), m.differential("u", size=n)
    rhs = -k * ca.mtimes(ca.DM(stiffness.tocsc()), u)
    mode = np.cos(np.pi * np.linspace(0, 1, n))
    m.initial(m.mode("run", mass=mass, rhs=rhs), {u: 1 + mode})
    m.functional("G", terminal=u[0])
    sol = dh.simulate(m.build(), (0, 1), **TIGHT)
    eigenvalue = 6 / h**2 * (1 - np.cos(np.pi * h)) / (2 + np.cos(np.pi * h))
    assert np.allclose(sol["u"][-1], 1 + mode * np.exp(-rate * eigenvalue), rtol=1e-6)


def test_values_without_which_a_combination_has_none() -> None:
    m = dh.HybridModel("half a start")
    u1, u2 = m.differential("u1"), m.differential("u2")
    m.initial(m.mode("run", mass=[[1.0, -1.0], [-1.0, 1.0]], rhs=[1.0 - u1, -u2]), {u1: 0.5})
    with pytest.raises(dh.ModelError, match=r"no value to u2, which the state \(u1 - u2\) needs"):
        m.build()


@pytest.mark.parametrize("model", [lambda: amplifier(vector=True, symbolic=True), switched])
def test_model_files(model: Callable[[], dh.HybridModel]) -> None:
    """The statement is kept: a file has mass, rhs and variables."""
    stated = model()
    read = dh.HybridModel.from_text(stated.to_text())
    assert read.to_text() == stated.to_text()
    assert "mass = " in stated.to_text()
    one, two = (dh.simulate(m.build(), (0, 0.05), **TIGHT).functionals["G"] for m in (stated, read))
    assert one == two


@pytest.mark.parametrize("which", [0, 1])
def test_a_reset_of_any_variable_of_a_combination(which: int) -> None:
    """C (u1 - u2)' = s - u1 = u2 / R: the reset sets the variable, and the other one follows from the equations."""
    m = dh.HybridModel("high pass")
    c, r = m.parameter("C", 0.5), m.parameter("R", 2.0)
    u = m.differential("u1"), m.differential("u2")
    run = m.mode("run", mass=[[c, -c], [-c, c]], rhs=[1 - u[0], -u[1] / r])
    m.transition(run, run, at=0.5, reset={u[which]: 0.7}, name="set")
    m.initial(run, {u[0]: 0.0, u[1]: 0.0})
    m.functional("G", integrand=u[1] ** 2)
    system = m.build(native=False)
    event = dh.simulate(system, (0, 1), rtol=1e-9).events[0]
    other = 1 - 0.7 / 2 if which else 2 * (1 - 0.7)
    assert event.x_plus[system.modes[0].variables.names.index(f"u{which + 1}")] == pytest.approx(0.7)
    assert event.x_plus[system.modes[0].variables.names.index(f"u{2 - which}")] == pytest.approx(other)
    found = dh.check_gradient(system, (0, 1), "G", rtol=1e-9, atol=1e-12)
    assert found.difference("adjoint", "forward") < 1e-7
    assert found.difference("finite_difference", "forward") < 1e-5


@pytest.mark.usefixtures("few_symbols")
@pytest.mark.parametrize("more", [1, 9])
def test_a_mass_matrix_whose_pivots_vanish_while_its_rank_does_not_change(more: int) -> None:
    """E(t) (x', 0, ..) = E(t) (-k x, z1 - x^2, ..) with E of rotations: x = e^(-k t), all z are x^2."""
    m = dh.HybridModel("rotations")
    k, x = m.parameter("k", 0.7), m.differential("x")
    z = m.differential("z", size=more)
    f, column = ca.vertcat(-k * x, z - x**2), ca.MX(ca.DM.eye(more + 1)[:, 0])
    for i in range(1, more + 1):
        c, s = ca.cos(2 * m.time + i), ca.sin(2 * m.time + i)
        for rows in (f, column):
            rows[0], rows[i] = c * rows[0] - s * rows[i], s * rows[0] + c * rows[i]
    m.initial(m.mode("run", mass=ca.horzcat(column, ca.MX(more + 1, more)), rhs=f), {x: 1.0})
    m.functional("G", integrand=x, terminal=z[more - 1])
    sol = dh.simulate(m.build(), (0, 4), **TIGHT)
    assert np.allclose(sol["z"].T, np.exp(-1.4 * sol.t), rtol=1e-6, atol=1e-9)
    check = agree(m, 4.0)
    by_k = -1.0 / 0.49 * (1 - np.exp(-2.8)) + 4 / 0.7 * np.exp(-2.8) - 8 * np.exp(-5.6)
    assert np.isclose(check.gradients["forward"][0], by_k, rtol=1e-6)


def test_a_constraint_in_dependent_rows_is_found_by_elimination() -> None:
    """Index 2, x' = -k x, y' = z, 0 = y - x^2: rows that are kept would not determine z."""
    m = dh.HybridModel("mixed constraint")
    k = m.parameter("k", 0.7)
    x, y, z = m.differential("x"), m.differential("y"), m.differential("z")
    c = 2 + x**2
    rhs = [-k * x, z, -c * k * x + y - x**2]
    m.initial(m.mode("run", mass=[[1, 0, 0], [0, 1, 0], [c, 0, 0]], rhs=rhs), {x: 1.0, y: 1.0})
    m.functional("G", integrand=z, terminal=y)
    system = m.build()
    assert "index 2" in system.describe()
    sol = dh.simulate(system, (0, 1), **TIGHT)
    assert np.allclose(sol["z"][1:], -1.4 * np.exp(-1.4 * sol.t[1:]), rtol=1e-5)
    agree(m, 1.0)


def test_a_multiplier_that_cancels_is_refused() -> None:
    """Row 1 - c row 0 has no z, which its expression, z - c z / c, does not show."""
    m = dh.HybridModel("cancelled")
    y, z = m.differential("y"), m.differential("z")
    c = 2 + y**2
    m.initial(m.mode("run", mass=[[1, 0], [c, 0]], rhs=[z, c * z + y - ca.sin(m.time)]), {y: 0.0})
    with pytest.raises(dh.FormulationError, match=r"mass equation 1 is degenerate, which leaves der\(y\), z open"):
        m.build()
