"""Initial conditions: values, equations, both, too many, too few; closed form = forward = adjoint = differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.compile.elimination import is_affine
from dae_hybrid.problems._reference import with_derivatives as derivatives

ANALYSES = (
    lambda system, span, **k: dh.forward_sensitivity(system, span, **k),
    lambda system, span, **k: dh.adjoint_gradient(system, span, "G", **k),
)


def declared(m: dh.HybridModel, **values: Any) -> list[ca.MX]:
    return [m.parameter(name, value) for name, value in values.items()]


# -- index 0 and 1 -------------------------------------------------------------------------------------------------

LINEAR = (1.2, 0.8, 0.5)
SPAN = (0.4, 1.4)


def linear(start: Callable[..., tuple[Any, dict[str, Any]]], form: str = "ode") -> dh.HybridModel:
    """y' = a - b y and z = b y^2, from t = 0.4; r is a parameter for the start."""
    m = dh.HybridModel("linear")
    a, b, r = declared(m, a=1.2, b=0.8, r=0.5)
    y, z = m.differential("y"), m.algebraic("z", guess=1.0)
    if form == "residual":
        run = m.mode("run", residual=[(1 + y**2) * m.der(y) - (1 + y**2) * (a - b * y), z - b * y**2])
    elif form == "factor":
        run = m.mode("run", ode={y: a - b * y}, algebraic=[(1 + z**2) * (z - b * y**2)])
    else:
        run = m.mode("run", ode={y: a - b * y}, algebraic=[z - b * y**2])
    values, more = start(m, y, z, a, b, r)
    m.initial(run, values, **more)
    m.functional("G", integrand=z, terminal=y)
    return m


def after_linear(y0: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def closed(p: Any) -> Any:
        a, b, _ = p
        s, limit, off = SPAN[1] - SPAN[0], a / b, y0(p) - a / b
        e = np.exp(-b * s)
        return limit + off * e + b * limit**2 * s + 2 * limit * off * (1 - e) + off**2 * (1 - e**2) / 2

    return closed


STARTS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "a value": (lambda m, y, z, a, b, r: ({y: r}, {}), lambda p: p[2]),
    "a value from several parameters": (
        lambda m, y, z, a, b, r: ({y: r * a**2 + b}, {}),
        lambda p: p[2] * p[0] ** 2 + p[1],
    ),
    "an equation for the state": (
        lambda m, y, z, a, b, r: (None, {"equations": [y**3 - r], "guess": {y: 1.0}}),
        lambda p: p[2] ** (1 / 3),
    ),
    "a sequence": (lambda m, y, z, a, b, r: ([y - r], {}), lambda p: p[2]),
    "a steady state": (lambda m, y, z, a, b, r: ([m.der(y)], {}), lambda p: p[0] / p[1]),
    "a rate": (lambda m, y, z, a, b, r: ([m.der(y) - r], {}), lambda p: (p[0] - p[2]) / p[1]),
    "an algebraic variable": (
        lambda m, y, z, a, b, r: (None, {"equations": [z - r], "guess": {y: 1.0}}),
        lambda p: np.sqrt(p[2] / p[1]),
    ),
    "the other solution": (
        lambda m, y, z, a, b, r: (None, {"equations": [z - r], "guess": {y: -1.0}}),
        lambda p: -np.sqrt(p[2] / p[1]),
    ),
    "rate, variables and time in one": (
        lambda m, y, z, a, b, r: (
            None,
            {"equations": [m.der(y) + b * y + r * z / b - a - r * m.time**2], "guess": {y: 1}},
        ),
        lambda p: 0.4 + 0 * p[0],
    ),
    "more equations that agree": (
        lambda m, y, z, a, b, r: ({y: r}, {"equations": [z - b * r**2, m.der(y) + b * r - a]}),
        lambda p: p[2],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("how", "form"),
    [
        pytest.param(how, form, marks=[] if (i + k) % 3 == 0 else pytest.mark.campaign)
        for i, how in enumerate(STARTS)
        for k, form in enumerate(("ode", "factor", "residual"))
        if (how, form) != ("a steady state", "factor")
    ],
)
def test_ways_to_start(how: str, form: str, compare_gradients: Any) -> None:
    """On CVODES, on IDAS, and fully implicit."""
    start, y0 = STARTS[how]
    value, exact = derivatives(after_linear(y0), LINEAR)
    system = linear(start, form).build(native=False)
    compared = compare_gradients(system, SPAN, "G", value=value, exact=exact, fd_tolerance=0)
    assert compared.forward.trajectory["y"][0] == pytest.approx(np.real(y0(np.array(LINEAR))), rel=1e-12)


def test_a_guess_for_a_rate(compare_gradients: Any) -> None:
    """y'^2 = y has two solutions: sqrt(y) = sqrt(y0) +- t / 2."""
    for sign in (1.0, -1.0):
        m = dh.HybridModel("root")
        (r,) = declared(m, r=4.0)
        y = m.differential("y")
        run = m.mode("run", residual=[m.der(y) ** 2 - y])
        m.initial(run, {y: r}, guess={m.der(y): sign})
        m.functional("G", terminal=y)
        value, exact = derivatives(lambda p, s=sign: (np.sqrt(p[0]) + s / 2) ** 2 + 0 * p[0], [4.0])
        compare_gradients(m.build(native=False), (0, 1), "G", value=value, exact=exact, fd_tolerance=0)


def some_states_unknown() -> dh.HybridModel:
    """Initial states as parameters, one vector of them; the rest are numbers."""
    m = dh.HybridModel("unknown")
    x0, v0 = m.parameter("x0", [0.3, -0.2]), m.parameter("v0", 0.7)
    x, v, w = m.differential("x", size=2), m.differential("v", size=2), m.differential("w")
    run = m.mode("run", ode={x: v, v: -x, w: x[0] * x[1]})
    m.initial(run, {x: x0, v: ca.vertcat(v0, 0.1), w: 0.0})
    m.functional("G", terminal=ca.vertcat(x, w))
    return m


def test_initial_states_as_parameters(built: Any, compare_gradients: Any) -> None:
    def closed(p: Any) -> Any:
        v, s, c = np.array([p[2], 0.1]), np.sin(1.3), np.cos(1.3)
        x = p[:2]
        area = x[0] * x[1] * (1.3 + s * c) + (x[0] * v[1] + x[1] * v[0]) * s**2 + v[0] * v[1] * (1.3 - s * c)
        return np.array([*(x * c + v * s), area / 2])

    value, exact = derivatives(closed, [0.3, -0.2, 0.7])
    system = built(some_states_unknown, native=False)
    compare_gradients(system, (0, 1.3), "G", value=value, exact=exact)
    compare_gradients(system, (0, 1.3), "G", value=value, exact=exact[:, :2], wrt=["x0"])


# -- index 2 -------------------------------------------------------------------------------------------------------


def circle(start: Callable[..., tuple[Any, dict[str, Any]]]) -> dh.HybridModel:
    """On a circle of radius L, driven by b: y' = b (1 - y^2 / L^2), y = L tanh(artanh(y0 / L) + b t / L)."""
    m = dh.HybridModel("circle")
    b, L, q = declared(m, b=0.7, L=1.0, q=0.6)
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    run = m.mode("run", ode={x: -x * z, y: b - y * z}, constraint=[(x**2 + y**2 - L**2) / 2])
    values, more = start(m, x, y, z, b, L, q)
    m.initial(run, values, **more)
    m.functional("G", terminal=ca.vertcat(y, x + z))
    return m


ON_CIRCLE: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], float]] = {
    "y given": (lambda m, x, y, z, b, L, q: ({y: q}, {"guess": {x: 1.0}}), lambda p: p[2], 1.0),
    "y given, x below": (lambda m, x, y, z, b, L, q: ({y: q}, {"guess": {x: -1.0}}), lambda p: p[2], -1.0),
    "x given": (
        lambda m, x, y, z, b, L, q: ({x: q}, {"guess": {y: 1.0}}), lambda p: np.sqrt(p[1] ** 2 - p[2] ** 2), 1.0,
    ),
    "both given by parameters": (
        lambda m, x, y, z, b, L, q: ({x: L * ca.cos(q), y: L * ca.sin(q)}, {}), lambda p: p[1] * np.sin(p[2]), 1.0,
    ),
    "a direction": (
        lambda m, x, y, z, b, L, q: (None, {"equations": [y - q * x], "guess": {x: 1.0, y: 1.0}}),
        lambda p: p[1] * p[2] / np.sqrt(1 + p[2] ** 2), 1.0,
    ),
    "a rate": (
        lambda m, x, y, z, b, L, q: (None, {"equations": [m.der(y) - b * q], "guess": {x: 1.0, y: 1.0}}),
        lambda p: p[1] * np.sqrt(1 - p[2]), 1.0,
    ),
    "the multiplier": (
        lambda m, x, y, z, b, L, q: (None, {"equations": [z - b * q / L], "guess": {x: 1.0, y: 0.5}}),
        lambda p: p[1] * p[2], 1.0,
    ),
    "too many, in agreement": (
        lambda m, x, y, z, b, L, q: ({y: q}, {"equations": [x - ca.sqrt(L**2 - q**2), L**2 * z - b * q]}),
        lambda p: p[2], 1.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", list(ON_CIRCLE))
def test_index_two(how: str, compare_gradients: Any) -> None:
    start, y0, side = ON_CIRCLE[how]

    def closed(p: Any) -> Any:
        b, L, _ = p
        angle = np.arctanh(y0(p) / L) + b * 1.1 / L
        return np.array([L * np.tanh(angle), side * L / np.cosh(angle) + b * np.tanh(angle) / L])

    value, exact = derivatives(closed, [0.7, 1.0, 0.6])
    compared = compare_gradients(circle(start).build(), (0, 1.1), "G", value=value, exact=exact)
    trajectory = compared.forward.trajectory
    x, y = (trajectory[name][0] for name in ("x", "y"))
    assert x**2 + y**2 == pytest.approx(1.0, abs=1e-14)
    assert trajectory["z"][0] == pytest.approx(0.7 * y, abs=1e-12)


def pendulum(start: Callable[..., tuple[Any, dict[str, Any]]]) -> dh.HybridModel:
    """A pendulum with position and velocity constraints: two multipliers."""
    m = dh.HybridModel("pendulum")
    g, L, v0, q = declared(m, g=9.81, L=1.0, v0=0.5, q=0.6)
    x, y, u, v = (m.differential(name) for name in ("x", "y", "u", "v"))
    z, mu = m.algebraic("z"), m.algebraic("mu")
    swing = m.mode(
        "swing",
        ode={x: u - x * mu, y: v - y * mu, u: -x * z, v: -g - y * z},
        constraint=[(x**2 + y**2 - L**2) / 2, x * u + y * v],
    )
    values, more = start(m, x, y, u, v, z, g, L, v0, q)
    m.initial(swing, values, **more)
    m.functional("G", integrand=z, terminal=x + 2 * v)
    return m


def along(m: Any, x: Any, y: Any, u: Any, v: Any, z: Any, g: Any, L: Any, v0: Any, q: Any) -> tuple[Any, Any]:
    return {x: q * L, y: -L * np.sqrt(1 - q**2), u: v0 * np.sqrt(1 - q**2), v: v0 * q}, {}


PENDULA: dict[str, Callable[..., tuple[Any, Any]]] = {
    "position and speed": lambda m, x, y, u, v, z, g, L, v0, q: (
        {x: q * L}, {"equations": [x * v - y * u - v0 * L], "guess": {y: -1.0}},
    ),
    "with der": lambda m, x, y, u, v, z, g, L, v0, q: (
        {x: q * L}, {"equations": [m.der(y) - v0 * q], "guess": {y: -1.0, u: 0.1}},
    ),
    "the tension": lambda m, x, y, u, v, z, g, L, v0, q: (
        {x: q * L}, {"equations": [z * L**2 - v0**2 + g * y], "guess": {y: -1.0, u: 0.5, v: 0.3}},
    ),
    "too many, in agreement": lambda m, x, y, u, v, z, g, L, v0, q: (
        {x: q * L},
        {"equations": [x * v - y * u - v0 * L, v - v0 * q, u**2 + v**2 - v0**2], "guess": {y: -1.0, u: 0.5, v: 0.1}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", list(PENDULA))
def test_a_pendulum_started_in_other_words(how: str, compare_gradients: Any) -> None:
    reference = dh.adjoint_gradient(pendulum(along).build(), (0, 0.5), "G", rtol=1e-11, atol=1e-13)
    system = pendulum(PENDULA[how]).build()
    compare_gradients(system, (0, 0.5), "G", value=reference.value, exact=reference.gradient, tolerance=1e-6)


def test_the_hidden_constraint_holds_at_the_start() -> None:
    sol = dh.simulate(pendulum(PENDULA["position and speed"]).build(), (0, 0.1))
    x, y, u, v, z, mu = (sol[name][0] for name in ("x", "y", "u", "v", "z", "mu"))
    assert [x, y, u, v] == pytest.approx([0.6, -0.8, 0.4, 0.3], abs=1e-13)
    assert z == pytest.approx(u**2 + v**2 - 9.81 * y, abs=1e-12)
    assert mu == pytest.approx(0.0, abs=1e-14)


# -- memory ----------------------------------------------------------------------------------------------------------


def remembered(what: str) -> dh.HybridModel:
    """y' = a - r y, where r remembers something of the start; `equations` give y0 = q^2."""
    m = dh.HybridModel("remembered")
    a, q = declared(m, a=1.2, q=0.8)
    y, w = m.differential("y"), m.differential("w")
    initial = {"a state given": w * q, "a state solved for": y * q, "parameters": a * q}[what]
    r, pair = m.memory("r", initial=initial), m.memory("pair", size=2, initial=ca.vertcat(y + w, a * w))
    of = m.memory("of", of=y)
    run = m.mode("run", ode={y: a - r * y, w: pair[0] + of})
    m.initial(run, {w: a / 2}, equations=[y / q - q])
    m.functional("G", terminal=ca.vertcat(y, w + pair[1]))
    return m


@pytest.mark.parametrize("what", ["a state given", "a state solved for", "parameters"])
def test_memory_of_the_start(what: str, compare_gradients: Any) -> None:
    def closed(p: Any) -> Any:
        a, q = p
        y0, w0 = q**2, a / 2
        r = {"a state given": w0 * q, "a state solved for": y0 * q, "parameters": a * q}[what]
        return np.array([a / r + (y0 - a / r) * np.exp(-r), w0 + (y0 + w0) + y0 + a * w0])

    value, exact = derivatives(closed, [1.2, 0.8])
    compare_gradients(remembered(what).build(native=False), (0, 1), "G", value=value, exact=exact, fd_tolerance=0)


def test_initial_equations_and_memory_that_determine_each_other(compare_gradients: Any) -> None:
    """r0 = q y0, and the steady state 0 = a - r0 y0: y0 = sqrt(a / q)."""
    m = dh.HybridModel("coupled")
    a, q = declared(m, a=1.2, q=0.8)
    y, z = m.differential("y"), m.algebraic("z")
    r = m.memory("r", initial=q * y)
    run = m.mode("run", ode={y: z - r * y}, algebraic=[(1 + y**2) * (z - a * (1 + m.time))])
    m.initial(run, equations=[m.der(y)], guess={y: 1.0})
    m.functional("G", terminal=y)
    expected = dh.HybridModel("expected")
    a, q = declared(expected, a=1.2, q=0.8)
    y = expected.differential("y")
    r = expected.parameter("r", float(np.sqrt(0.96)))
    expected.initial(expected.mode("run", ode={y: a * (1 + expected.time) - r * y}), {y: ca.sqrt(a / q)})
    expected.functional("G", terminal=y)
    known = dh.adjoint_gradient(expected.build(native=False), (0, 1), "G", rtol=1e-11, atol=1e-13)
    by_r = known.gradient[2] * np.sqrt(0.96) / 2 / np.array([1.2, 0.8])
    exact = known.gradient[:2] + by_r
    compare_gradients(m.build(native=False), (0, 1), "G", value=known.value, exact=exact, fd_tolerance=0)


# -- bad input -------------------------------------------------------------------------------------------------------


def test_values_that_do_not_satisfy_the_constraints() -> None:
    system = pendulum(lambda m, x, y, u, v, *_: ({x: 0.6, y: -0.8, u: 0.4, v: 0.2}, {})).build()
    with pytest.raises(dh.ConsistencyError, match=r"not satisfied: constraint equation 1 \(0\.08\)\.") as caught:
        dh.simulate(system, (0, 1))
    assert (caught.value.mode, caught.value.time) == ("swing", 0.0)
    assert "leave out" in str(caught.value)


def test_equations_that_conflict_with_values() -> None:
    system = circle(lambda m, x, y, z, b, L, q: ({x: 0.8}, {"equations": [y - 0.5], "guess": {y: 0.5}})).build()
    with pytest.raises(dh.ConsistencyError, match=r"initial equation 0 .*constraint equation 0") as caught:
        dh.simulate(system, (0, 1))
    assert caught.value.mode == "run"


NOMINAL_ONLY: dict[str, Callable[..., tuple[Any, Any]]] = {
    "numbers": lambda m, x, y, z, b, L, q: ({x: 0.8, y: 0.6}, {}),
    "other parameters": lambda m, x, y, z, b, L, q: ({x: 0.8, y: q}, {}),
    "equations": lambda m, x, y, z, b, L, q: ({x: 0.8}, {"equations": [y - q], "guess": {y: 0.5}}),
    "a rate": lambda m, x, y, z, b, L, q: (
        {y: q}, {"equations": [m.der(y) - 0.448, x - ca.sqrt(L**2 - q**2)], "guess": {x: 0.8}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", list(NOMINAL_ONLY))
def test_conditions_that_agree_at_the_nominal_parameters_only(how: str) -> None:
    """They simulate, but have no derivative; at other parameters they do not simulate."""
    system = circle(NOMINAL_ONLY[how]).build()
    dh.simulate(system, (0, 1))
    with pytest.raises(dh.ConsistencyError, match="not satisfied"):
        dh.simulate(system, (0, 1), parameters={"L": 1.1})
    for analyse in ANALYSES:
        with pytest.raises(dh.ConsistencyError, match=r"not at others.*In conflict: .*equation 0") as caught:
            analyse(system, (0, 1))
        assert caught.value.mode == "run"


def test_a_start_that_newton_cannot_leave() -> None:
    """y0 follows from y0^2 = L^2 - q^2; the default guess is y0 = 0."""
    system = circle(lambda m, x, y, z, b, L, q: ({x: q}, {})).build()
    with pytest.raises(dh.ConsistencyError, match="singular") as caught:
        dh.simulate(system, (0, 1))
    assert "guess=" in str(caught.value)


def test_a_start_without_solution() -> None:
    system = linear(lambda m, y, z, a, b, r: (None, {"equations": [z + r], "guess": {y: 1.0}})).build(native=False)
    with pytest.raises(dh.ConsistencyError, match=r"not satisfied|singular") as caught:
        dh.simulate(system, (0, 1))
    assert caught.value.variables == ("y",)  # z = -r contradicts nothing


def test_a_singular_start() -> None:
    """[F_y' | F_z] vanishes at z = 0."""
    m = dh.HybridModel("singular")
    y, z = m.differential("y"), m.algebraic("z")
    m.initial(m.mode("run", ode={y: z}, algebraic=[z**2 - y]), {y: 0.0})
    with pytest.raises(dh.ConsistencyError, match=r"singular.*z") as caught:
        dh.simulate(m.build(native=False), (0, 1))
    assert (caught.value.mode, caught.value.variables) == ("run", ("z",))


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e-9, 1e6])
def test_the_unit_of_time_makes_no_start_singular(unit: float) -> None:
    """Derivatives of x' are as large as the unit of time makes them, and nothing cancels."""
    m = dh.HybridModel("unit")
    p = m.parameter("p", 0.5)
    x, z = m.differential("x"), m.algebraic("z")
    run = m.mode("run", residual=[unit * m.der(x) + x + 0.2 * z, z + 0.1 * z**3 - p - 0.1 * p**3])
    m.initial(run, equations=[x + 0.2 * x**3 - 1.2])
    m.functional("G", terminal=x)
    atol = {"x": 1e-12, "z": 1e-12, "der(x)": 1e-12 / unit}
    fsa = dh.forward_sensitivity(m.build(native=False), (0, unit), rtol=1e-9, atol=atol)
    np.testing.assert_allclose(fsa.gradient["G"], -0.2 * (1 - np.exp(-1)), rtol=1e-6)


def test_initial_values_that_are_not_finite() -> None:
    system = linear(lambda m, y, z, a, b, r: ({y: ca.log(r)}, {})).build(native=False)
    with pytest.raises(dh.NonFiniteError, match="initial values are not finite") as caught:
        dh.simulate(system, (0, 1), parameters={"r": 0.0})
    assert caught.value.mode == "run"


TOO_FEW: dict[str, tuple[Callable[..., tuple[Any, Any]], type[Exception], str]] = {
    "nothing": (lambda m, x, y, u, v, *_: (None, {}), dh.ModelError, "2 too few to determine x, y, u, v"),
    "one of two": (lambda m, x, y, u, v, *_: ({x: 0.6}, {}), dh.ModelError, "1 too few to determine y, u, v"),
    "one stated twice": (
        lambda m, x, y, u, v, *_: (None, {"equations": [x - 0.6, x**2 - 0.36]}),
        dh.FormulationError, "cannot determine",
    ),
    "an equation for nothing": (
        lambda m, x, y, u, v, *_: ({x: 0.6}, {"equations": [x - 0.6]}), dh.FormulationError, "cannot determine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", list(TOO_FEW))
def test_too_few_conditions(how: str) -> None:
    start, error, words = TOO_FEW[how]
    with pytest.raises(error, match=words) as caught:
        pendulum(start).build(native=False)
    assert caught.value.mode == "swing"


def test_no_value_at_all() -> None:
    with pytest.raises(dh.ModelError, match="No initial value for y") as caught:
        linear(lambda *_: (None, {})).build(native=False)
    assert caught.value.variables == ("y",)


DECLARATIONS: dict[str, tuple[Callable[..., tuple[Any, Any]], str]] = {
    "a value for an algebraic variable": (
        lambda m, y, z, *_: ({y: 1, z: 1}, {}),
        "'z' is an algebraic variable",
    ),
    "a value from another state": (lambda m, y, z, *_: ({y: z}, {}), "initial value of 'y' uses z"),
    "a value from time": (lambda m, y, z, *_: ({y: m.time}, {}), "initial value of 'y' uses t"),
    "a variable of another model": (lambda m, y, z, *_: ({"q": 1}, {}), "q is not declared"),
    "post": (lambda m, y, z, *_: (None, {"equations": [m.post(y) - 1]}), r"post\(y\)"),
    "an unknown": (lambda m, y, z, *_: (None, {"equations": [y - m.unknown("P")]}), "unknown 'P'"),
    "equations twice": (lambda m, y, z, *_: ([y - 1], {"equations": [y - 1]}), "equations twice"),
    "a guess of the wrong size": (lambda m, y, z, *_: ({y: 1}, {"guess": {y: [1, 2]}}), "guess of 'y' has 2 entries"),
    "a guess for nothing": (lambda m, y, z, *_: ({y: 1}, {"guess": {"q": 1}}), "q is not declared"),
    "a guess for a parameter": (lambda m, y, z, a, *_: ({y: 1}, {"guess": {a: 1}}), "Guess for a"),
}


@pytest.mark.parametrize("what", list(DECLARATIONS))
def test_declarations_that_are_refused(what: str) -> None:
    start, words = DECLARATIONS[what]
    with pytest.raises(dh.ModelError, match=words):
        linear(start).build(native=False)


def test_memory_of_memory_is_refused() -> None:
    m = dh.HybridModel("q")
    y, r = m.differential("y"), m.memory("r", initial=1.0)
    m.memory("s", initial=2 * r)
    m.initial(m.mode("run", ode={y: 1.0}), {y: 0.0})
    with pytest.raises(dh.ModelError, match="initial value of a memory uses a memory"):
        m.build(native=False)


# -- starts by formula ---------------------------------------------------------------------------------------------


def stated_by_formula() -> dh.HybridModel:
    """z follows from y, and a memory from both; the given values follow from the parameters and a signal."""
    m = dh.HybridModel("by formula")
    a, b = m.parameter("a", 1.3), m.parameter("b", -0.4)
    f = m.signal("f", [0.0, 1.0, 2.0], ca.vertcat(a, 2 * a * b, 1.0))
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    kept = m.memory("kept", initial=z * x + b)
    run = m.mode("run", ode={x: -a * x + f, y: z - y}, algebraic=[2 * z - ca.sin(b * y) * x - kept * 0])
    m.initial(run, {x: a**2}, equations=[3 * y - x + ca.exp(b) * m.time])
    m.functional("G", integrand=x * z + kept**2, terminal=y)
    return m


def test_a_start_by_formula_is_that_of_newtons_method() -> None:
    built = stated_by_formula().build()
    by_formula, p = built.initial, np.array([0.9, 0.7])
    assert by_formula.explicit is not None
    by_newton, mode = replace(by_formula, explicit=None, exact=None), built.modes[0]
    for t in (0.0, 0.5):
        one, other = (map_.apply(mode, t, p) for map_ in (by_formula, by_newton))
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)
        one, other = (map_.derivatives(mode, t, one.x, p) for map_ in (by_formula, by_newton))
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-11, atol=1e-13)
    check = dh.check_gradient(built, (0, 1.5), rtol=1e-9, atol=1e-12)
    assert check.difference("forward", "adjoint") < 1e-7
    assert check.difference("forward", "finite_difference") < 1e-4


def test_a_start_that_has_no_formula_is_left_to_newtons_method() -> None:
    m = dh.HybridModel("cubic")
    a, y, z = m.parameter("a", 2.0), m.differential("y"), m.algebraic("z")
    m.initial(m.mode("run", ode={y: -z}, algebraic=[z**3 + z - a * y]), {y: 1.0})
    assert m.build().initial.explicit is None


def test_a_formula_without_a_finite_value_says_what_newtons_method_says() -> None:
    m = dh.HybridModel("root")
    a, y, z = m.parameter("a", 1.0), m.differential("y"), m.algebraic("z")
    m.initial(m.mode("run", ode={y: -z}, algebraic=[z - ca.sqrt(y)]), {y: a})
    m.functional("G", integrand=z)
    built = m.build()
    assert built.initial.explicit is not None
    with pytest.raises(dh.ConsistencyError, match="No consistent values of z"):
        dh.simulate(built, (0, 1), parameters={"a": -1.0})
    with pytest.raises(dh.NonFiniteError, match="not finite"):
        dh.forward_sensitivity(built, (0, 1), parameters={"a": 0.0})


JUMPS: dict[str, tuple[Callable[[Any, Any], Any], float | None]] = {
    "sign": (lambda x, q: x - q - 0.5 * ca.sign(x), 2.5),
    "branch": (lambda x, q: x - q - ca.if_else(x > 1, 0.5, 0), 2.5),
    "branches": (lambda x, q: x - ca.if_else(x > 1, q, 3 * q), 2.0),
    "floor": (lambda x, q: x - q - 0.5 * ca.floor(x / 2), 2.5),
    "of a parameter": (lambda x, q: x - ca.if_else(q > 1, q, 3 * q), 2.0),
    "no solution": (lambda x, q: x - q + 3 * (x > 1), None),
}


@pytest.mark.parametrize("name", JUMPS)
def test_an_equation_that_jumps_is_not_linear(name: str) -> None:
    """Derivatives say nothing of jumps: what looks linear in the unknown is solved with numbers, or refused."""
    equation, start = JUMPS[name]
    m = dh.HybridModel("jumps")
    q, x = m.parameter("q", 2.0), m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), equations=[equation(x, q)])
    m.functional("G", integrand=x)
    built = m.build()
    assert (built.initial.explicit is not None) is (name == "of a parameter")
    if start is None:
        with pytest.raises(dh.ConsistencyError):
            dh.simulate(built, (0, 1))
        return
    asa = dh.adjoint_gradient(built, (0, 1), rtol=1e-10, atol=1e-12)
    assert asa.trajectory["x"][0] == pytest.approx(start, abs=1e-14)
    assert asa.gradient[0] == pytest.approx(1 - np.exp(-1), rel=1e-8)


@pytest.mark.parametrize("eliminate", [True, False])
def test_an_algebraic_equation_that_jumps(eliminate: bool) -> None:
    m = dh.HybridModel("jumps")
    x, z = m.differential("x"), m.algebraic("z")
    m.initial(m.mode("run", ode={x: 1.0 + 0 * z}, algebraic=[z - x - 0.5 * ca.sign(z)]), {x: 2.0})
    sol = dh.simulate(m.build(eliminate=eliminate), (0, 1), t_eval=[0.0, 1.0])
    np.testing.assert_allclose(sol["z"], [2.5, 3.5], rtol=1e-12)


def test_affine_by_its_operations() -> None:
    x, y, p = (ca.SX.sym(name) for name in "xyp")
    affine = (2 * x + p * y - 3, ca.if_else(p > 1, x, 3 * x), x / p + ca.sin(p), ca.sign(p) * x, -(x + y) * p / 2)
    other = (x * y, p / x, x - ca.sign(x), ca.if_else(x > 1, p, 3 * p) - x, ca.floor(x) + y, ca.fmod(x, 2), x**2)
    for expression in (*affine, *other):
        assert is_affine(expression, ca.vertcat(x, y)) is any(expression is one for one in affine)


def double_root(kind: str, *, native: bool = True) -> dh.HybridSystem:
    """x' = -x, y' = x - y from equations that are met where two solutions meet."""
    m = dh.HybridModel(kind)
    p, q = m.parameter("p", 2.0), m.parameter("q", 3.0)
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: -x, y: x - y})
    equations = {
        "square": [(x - p) ** 2, y - q * x],
        "two squares": [(x - p) ** 2 + (y - q * p) ** 2, x - p],
        "fold": [x**2 - (p - 2.0), y - q],
        "crossing": [(x - p) * (x - q * 2 / 3), y - 1],
    }[kind]
    m.initial(run, equations=equations, guess={x: 1.0, y: 2.5})
    m.functional("G", terminal=x + y)
    return m.build(native=native)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("kind", ["square", "two squares"])
def test_solutions_that_meet_and_stay_together_have_derivatives(kind: str, native: bool) -> None:
    system, p, q = double_root(kind, native=native), 2.0, 3.0
    fsa = dh.forward_sensitivity(system, (0, 1), rtol=1e-9)
    asa = dh.adjoint_gradient(system, (0, 1), "G", rtol=1e-9)
    assert [fsa.trajectory["x"][0], fsa.trajectory["y"][0]] == pytest.approx([p, p * q], rel=1e-7)
    expected = [(2 + q) / np.e, p / np.e]  # of (p + q p + p t) exp(-t)
    assert np.allclose(fsa.gradient["G"], expected, rtol=1e-6)
    assert np.allclose(asa.gradient, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["fold", "crossing"])
def test_solutions_that_meet_and_part_have_none(kind: str) -> None:
    system = double_root(kind)
    start = dh.simulate(system, (0, 1))
    assert start["x"][0] == pytest.approx(0.0 if kind == "fold" else 2.0, abs=1e-7)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.ConsistencyError, match="multiple root") as caught:
            analysis(system, (0, 1))
        assert "meet" in str(caught.value)


@pytest.mark.parametrize("given", ["slider", "slider and rod", "everything"])
def test_a_slider_crank_in_dead_centre(given: str) -> None:
    """The closing equations have a double root there, which Newton's method starts from."""
    m = dh.HybridModel("slider crank")
    crank, rod, w = m.parameter("crank", 0.15), m.parameter("rod", 0.3), m.parameter("w", 10.0)
    one, two, s = m.differential("one"), m.differential("two"), m.differential("s")
    turn = -crank * np.cos(one) * w / (rod * np.cos(two))
    run = m.mode("run", ode={one: w, two: turn, s: -crank * np.sin(one) * w - rod * np.sin(two) * turn})
    closing = [crank * np.sin(one) + rod * np.sin(two), s - crank * np.cos(one) - rod * np.cos(two)]
    values = {"slider": {s: crank + rod}, "slider and rod": {s: crank + rod, two: 0.0}}
    values["everything"] = {s: crank + rod, two: 0.0, one: 0.0}
    m.initial(run, values[given], equations=closing if given != "slider and rod" else closing[1:])
    m.functional("G", terminal=s + two)
    system = m.build()
    fsa = dh.forward_sensitivity(system, (0, 0.05), rtol=1e-9)
    asa = dh.adjoint_gradient(system, (0, 0.05), "G", rtol=1e-9)
    angle = 0.05 * 10.0
    rod_angle = -np.arcsin(0.15 / 0.3 * np.sin(angle))
    assert fsa.trajectory["s"][-1] == pytest.approx(0.15 * np.cos(angle) + 0.3 * np.cos(rod_angle), rel=1e-7)

    def value(crank: float, rod: float, w: float) -> float:
        low = -np.arcsin(crank / rod * np.sin(0.05 * w))
        return float(crank * np.cos(0.05 * w) + rod * np.cos(low) + low)

    p = np.array([0.15, 0.3, 10.0])
    truth = [(value(*(p + h)) - value(*(p - h))) / (2 * h.sum()) for h in np.diag(1e-6 * p)]
    assert np.allclose(fsa.gradient["G"], truth, rtol=1e-6)
    assert np.allclose(asa.gradient, truth, rtol=1e-6)


def test_a_start_that_any_value_satisfies_is_refused() -> None:
    """A curve of solutions is no multiple root, though the matrix is singular at either."""
    m = dh.HybridModel("curve")
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: -x, y: x - y})
    circle = x**2 + y**2 - 1
    m.initial(run, equations=[circle, circle * (x + 2)], guess={x: 0.6, y: 0.8})
    with pytest.raises(dh.ConsistencyError, match="singular"):
        dh.simulate(m.build(), (0, 1))


# -- equations that are solved one block after the other ----------------------------------------------------------


def chained(x0: float) -> dh.HybridSystem:
    """b follows from x, q from b and P, r from q; from zeros the matrix of (b, q, r) is singular."""
    m = dh.HybridModel("chained")
    P, x = m.parameter("P", 3.0), m.differential("x")
    b, q, r = m.algebraic("b"), m.algebraic("q"), m.algebraic("r", size=2)
    equations = [b + b**3 - 2 * x, b * (q + q**3) - P, q * r[0] - r[1], r[1] + r[0] ** 3 - q]
    m.initial(m.mode("run", ode={x: -x + q / 10}, algebraic=equations), {x: x0})
    m.functional("G", terminal=x + r[1])
    return m.build(native=False)


@pytest.mark.parametrize("x0", [1.0, 0.3, -2.0])
def test_consistent_values_are_found_block_by_block(x0: float) -> None:
    sol = dh.simulate(chained(x0), (0, 1), rtol=1e-9)
    b, q, r = (np.asarray(sol[name][0]) for name in ("b", "q", "r"))
    np.testing.assert_allclose(
        [b + b**3, b * (q + q**3), q * r[0] - r[1], r[1] + r[0] ** 3 - q], [2 * x0, 3, 0, 0], atol=1e-12
    )
    both = [analysis(chained(x0), (0, 1), rtol=1e-9) for analysis in (dh.forward_sensitivity, dh.adjoint_gradient)]
    np.testing.assert_allclose(both[0].gradient["G"], both[1].gradient, rtol=1e-6)


def test_errors_name_the_block_that_has_no_solution() -> None:
    with pytest.raises(dh.ConsistencyError, match=r"No consistent values of q found") as caught:
        dh.simulate(chained(0.0), (0, 1))
    assert list(caught.value.variables) == ["q"]
