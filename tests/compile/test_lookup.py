"""Lookup tables: values of SciPy's interpolation, gradients with respect to values, kinks, ends of grids, cost."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Literal

import casadi as ca
import numpy as np
import pytest
from scipy.interpolate import CubicSpline, RectBivariateSpline, RegularGridInterpolator

import dae_hybrid as dh
from dae_hybrid.mechanics import Index1, Mechanism, Penalty, Reduced

TIGHT = {"rtol": 1e-9, "atol": 1e-11}
GRID = np.array([-2.0, -1.0, -0.3, 0.4, 1.0, 2.0])
VALUES = np.sin(GRID) + 0.3 * GRID
AXES = np.linspace(-2, 2, 7), np.array([-3.0, -2.0, -0.5, 1.0, 3.0])
SURFACE = np.add.outer(np.sin(AXES[0]), 0.2 * AXES[1] ** 2) * np.exp(0.1 * AXES[0])[:, None]
Kind = Literal["cubic", "linear"]
Kinks = Literal["integrate", "events"]


def at_points(kind: Kind, outside: Any, *, surface: bool) -> dh.HybridSystem:
    """A system whose functional is the value of a table at two parameters."""
    m = dh.HybridModel("points")
    a, b, x = m.parameter("a", 0.37), m.parameter("b", 0.6), m.differential("x")
    f = m.table("f", AXES, SURFACE, kind=kind, outside=outside) if surface else m.table(
        "f", GRID, VALUES, kind=kind, outside=outside)  # fmt: skip
    m.initial(m.mode("run", ode={x: 0.0}), {x: 0.0})
    m.functional("G", terminal=f(a, b) if surface else f(a) + 0 * b)
    return m.build(native=False)


def numbers(system: dh.HybridSystem, point: Any) -> tuple[float, np.ndarray]:
    fsa = dh.forward_sensitivity(system, (0, 0.1), parameters=list(point))
    return fsa.trajectory.functionals["G"], fsa.gradient["G"]


@pytest.mark.parametrize("point", [(0.37, 0.6), (1.99, -2.9), (-1.3, 0.2)])
def test_a_cubic_surface_is_a_spline(point: tuple[float, float]) -> None:
    value, gradient = numbers(at_points("cubic", "error", surface=True), point)
    spline = RectBivariateSpline(*AXES, SURFACE)
    assert np.isclose(value, spline(*point)[0, 0], rtol=1e-12)
    assert np.allclose(gradient, [spline(*point, dx=1)[0, 0], spline(*point, dy=1)[0, 0]], rtol=1e-10)


@pytest.mark.parametrize("point", [(0.37, 0.6), (1.99, -2.9), (-1.3, 0.2)])
def test_a_linear_surface_is_bilinear(point: tuple[float, float]) -> None:
    value, gradient = numbers(at_points("linear", "error", surface=True), point)
    surface, step = RegularGridInterpolator(AXES, SURFACE), 1e-3
    assert np.isclose(value, surface(point).item(), rtol=1e-12)
    for i, unit in enumerate(np.eye(2)):
        slope = (surface(point + step * unit) - surface(point - step * unit)) / (2 * step)
        assert np.isclose(gradient[i], slope.item(), rtol=1e-8)


@pytest.mark.parametrize("at", [-1.7, -0.3 + 1e-9, 0.1, 1.5])
def test_a_cubic_curve_is_a_spline(at: float) -> None:
    value, gradient = numbers(at_points("cubic", "error", surface=False), (at, 0))
    spline = CubicSpline(GRID, VALUES)
    assert np.isclose(value, spline(at), rtol=1e-12)
    assert np.isclose(gradient[0], spline(at, 1), rtol=1e-10)


@pytest.mark.parametrize("kind", ["cubic", "linear"])
def test_beyond_the_grid(kind: Kind) -> None:
    """Held, or continued with the slope at the end; without either there is no number."""
    end, slope = VALUES[-1], CubicSpline(GRID, VALUES)(2.0, 1)
    if kind == "linear":
        slope = (VALUES[-1] - VALUES[-2]) / (GRID[-1] - GRID[-2])
    value, gradient = numbers(at_points(kind, "hold", surface=False), (2.5, 0))
    assert (value, gradient[0]) == (pytest.approx(end, rel=1e-12), 0.0)
    value, gradient = numbers(at_points(kind, "linear", surface=False), (2.5, 0))
    assert np.allclose([value, gradient[0]], [end + 0.5 * slope, slope], rtol=1e-10)
    with pytest.raises(dh.NonFiniteError):
        numbers(at_points(kind, "error", surface=False), (2.5, 0))


def swing(kind: Kind, *, outside: Any = "error", start: float = 1.5) -> dh.HybridModel:
    """An oscillator whose spring is a table, with an event and a cost that use it."""
    m = dh.HybridModel(f"swing, {kind}")
    k, values = m.parameter("k", 1.1), m.parameter("values", VALUES)
    x, v = m.differential("x"), m.differential("v")
    force = m.table("force", GRID, values, kind=kind, outside=outside, unit="N")
    run = m.mode("run", ode={x: v, v: -k * force(x) - 0.05 * v})
    m.transition(run, run, guard=force(x) - 0.5, direction="rising", reset={v: v * (1 - 0.1 * force(x))})
    m.initial(run, {x: start, v: 0.1 * force(0.2)})
    m.functional("G", integrand=force(x) ** 2, terminal=x)
    return m


@pytest.mark.parametrize(("kind", "kinks"), [("cubic", "integrate"), ("linear", "integrate"), ("linear", "events")])
def test_gradients_with_respect_to_values(kind: Kind, kinks: Kinks) -> None:
    system = swing(kind).build(kinks=kinks)
    check = dh.check_gradient(system, (0, 6), "G", **TIGHT)
    assert check.same_events
    assert check.difference("adjoint", "forward") < 1e-6, check
    assert check.difference("finite_difference", "forward") < 1e-4, check
    for options in ({"native_events": False}, {"adapter": "scipy"}):
        other = dh.forward_sensitivity(system, (0, 6), **TIGHT, **options).gradient["G"]
        assert np.allclose(other, check.gradients["forward"], rtol=1e-5, atol=1e-5)


def test_kinks_are_events_on_request() -> None:
    """Both agree; each passage of a grid point is an event of its own, with more digits."""
    across, events = (dh.simulate(swing("linear").build(kinks=k), (0, 6), **TIGHT) for k in ("integrate", "events"))
    assert np.isclose(across.functionals["G"], events.functionals["G"], rtol=1e-6)
    assert len(events.events) > len([e for e in across.events if e.transition == "run->run"]) + 3


def plate(kind: Kind) -> dh.HybridModel:
    """A mass on a surface of two coordinates, with values a + b table."""
    m = dh.HybridModel(f"plate, {kind}")
    a, b = m.parameter("a", 0.2), m.parameter("b", 0.8)
    x, y = m.differential("x"), m.differential("y")
    height = m.table("height", AXES, a + b * ca.DM(SURFACE), kind=kind)
    m.initial(m.mode("run", ode={x: y, y: -x - 0.2 * height(x, y)}), {x: 1.1, y: 0.4})
    m.functional("G", integrand=height(x, y), terminal=x)
    return m


@pytest.mark.parametrize(("kind", "kinks"), [("cubic", "integrate"), ("linear", "integrate"), ("linear", "events")])
def test_surfaces(kind: Kind, kinks: Kinks) -> None:
    check = dh.check_gradient(plate(kind).build(kinks=kinks), (0, 5), "G", **TIGHT)
    assert check.difference("adjoint", "forward") < 1e-5, check
    assert check.difference("finite_difference", "forward") < 1e-4, check


def test_a_table_in_algebraic_equations_and_in_a_constraint() -> None:
    """The valve r = f(x) closes an implicit equation; a constraint that contains a table keeps the state on it."""
    m = dh.HybridModel("closed by tables")
    c, values = m.parameter("c", 0.3), m.parameter("values", VALUES)
    x, y, z, r = m.differential("x"), m.differential("y"), m.algebraic("z"), m.algebraic("r")
    f = m.table("f", GRID, values)
    run = m.mode("run", ode={x: 1 - c * r, y: z}, algebraic=[r + r**3 - f(x)], constraint=[y - f(x) ** 2])
    m.initial(run, {x: -1.0})
    m.functional("G", integrand=z**2 + r)
    check = dh.check_gradient(m.build(), (0, 2), "G", **TIGHT)
    assert check.difference("adjoint", "forward") < 1e-6, check
    assert check.difference("finite_difference", "forward") < 1e-4, check


def test_a_linear_table_in_a_constraint_becomes_events() -> None:
    """The multiplier jumps at each grid point: z = f'(x) x'."""
    m = dh.HybridModel("rail")
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    f = m.table("f", GRID, VALUES, kind="linear")
    m.initial(m.mode("run", ode={x: 1.0, y: z}, constraint=[y - f(x)]), {x: -1.5})
    m.functional("G", integrand=z**2)
    sol = dh.simulate(m.build(), (0, 3), **TIGHT)
    exact = np.sum(np.diff(VALUES) ** 2 / np.diff(GRID) * [0.5, 1, 1, 1, 0.5])
    assert np.isclose(sol.functionals["G"], exact, rtol=1e-8)


@pytest.mark.parametrize("kind", ["cubic", "linear"])
def test_leaving_the_grid_ends_the_run(kind: Kind) -> None:
    m = dh.HybridModel("leaving")
    x = m.differential("x")
    f = m.table("curve", GRID, VALUES + 3, kind=kind)
    m.initial(m.mode("run", ode={x: f(x)}), {x: -2.0})
    with pytest.raises(dh.ConsistencyError, match=r"argument x of table 'curve' leaves its grid, <= 2") as error:
        dh.simulate(m.build(), (0, 10))
    assert np.isclose(error.value.trajectory["x"][-1], 2.0, atol=1e-6)


def test_a_run_at_rest_on_a_kink_has_no_derivative() -> None:
    """The state rests at a grid point where the slopes differ, and leaves it with the parameter."""
    m = dh.HybridModel("rest")
    p, x = m.parameter("p", 0.0), m.differential("x")
    f = m.table("f", [-1.0, 0.0, 1.0], [-1.0, 0.0, 3.0], kind="linear")
    m.initial(m.mode("run", ode={x: p - f(x)}), {x: 0.0})
    m.functional("G", terminal=x)
    with pytest.raises(dh.EventError, match=r"rests at the kink of fabs\(\(x-the nearest grid point\)\)"):
        dh.forward_sensitivity(m.build(), (0, 1))


@pytest.mark.parametrize("kind", ["cubic", "linear"])
def test_the_cost_of_an_evaluation_does_not_grow_with_the_table(kind: Kind) -> None:
    """Instructions of the right-hand side, of which a search takes log n steps."""
    counts = []
    for n in (10, 1000):
        m = dh.HybridModel("large")
        x = m.differential("x")
        grid = np.linspace(-3, 3, n)
        f = m.table("f", grid, np.sin(grid), kind=kind)
        m.initial(m.mode("run", ode={x: -f(x)}), {x: 1.0})
        system = m.build(native=False)
        function = system.modes[0].equations.functions["flow"].function
        counts.append(function.n_instructions())
    assert np.isclose(dh.simulate(system, (0, 1), **TIGHT)["x"][-1], 2 * np.arctan(np.tan(0.5) / np.e), rtol=1e-4)
    assert counts[0] == counts[1]


def test_the_peak_of_a_table() -> None:
    """The largest force of a spring from a table, with respect to the start and the values."""
    m = swing("cubic", start=1.4)
    force = m.tables["force"]
    m.functional("peak", maximum=force(m.declarations["x"].symbol))
    check = dh.check_gradient(m.build(), (0, 6), "peak", **TIGHT)
    assert check.difference("adjoint", "forward") < 1e-5, check
    assert check.difference("finite_difference", "forward") < 1e-3, check


def test_a_run_with_a_table_may_start_in_another_mode() -> None:
    m = dh.HybridModel("two modes")
    x, y = m.differential("x"), m.differential("y")
    f = m.table("f", GRID, GRID**3)
    one, two = m.mode("one", ode={x: -f(x)}), m.mode("two", ode={x: 0.0, y: f(y)})
    m.transition(one, two, guard=x - 0.1, direction="falling", reset={y: f(x)})
    m.initial(one, {x: f(0.5)})
    sol = dh.simulate(m.build(), (0, 1), start_mode="two", x0={"y": 0.5}, **TIGHT)
    assert np.isclose(sol["y"][-1], (0.5**-2 - 2) ** -0.5, rtol=1e-8)  # y' = y^3
    assert np.isclose(sol["x"][-1], 0.125, rtol=1e-10)


def test_vectors_are_looked_up_entry_by_entry() -> None:
    m = dh.HybridModel("vector")
    x = m.differential("x", size=3)
    f = m.table("f", GRID, VALUES)
    m.initial(m.mode("run", ode={x: -f(x)}), {x: [1.0, 0.5, -1.0]})
    sol = dh.simulate(m.build(), (0, 1), **TIGHT)
    for i, start in enumerate([1.0, 0.5, -1.0]):
        single = dh.HybridModel("entry")
        y = single.differential("y")
        single.initial(single.mode("run", ode={y: -single.table("f", GRID, VALUES)(y)}), {y: start})
        assert np.isclose(sol["x"][-1][i], dh.simulate(single.build(), (0, 1), **TIGHT)["y"][-1], rtol=1e-7)


@pytest.mark.parametrize(
    "model", [lambda: swing("linear", outside="hold"), lambda: plate("cubic")], ids=["curve", "surface"]
)
def test_files_and_pickles(model: Any, tmp_path: Path) -> None:
    stated = model()
    value = dh.simulate(stated.build(), (0, 2), **TIGHT).functionals["G"]
    for form in ("toml", "json"):
        read = dh.HybridModel.from_text(stated.to_text(form), form)
        assert read.to_text() == stated.to_text()
        assert dh.simulate(read.build(), (0, 2), **TIGHT).functionals["G"] == value
    copied = pickle.loads(pickle.dumps(stated))
    assert dh.simulate(copied.build(), (0, 2), **TIGHT).functionals["G"] == value
    long = dh.HybridModel("long")
    x, grid = long.differential("x"), np.linspace(-3, 3, 40)
    f = long.table("f", (grid, grid[:30]), np.outer(np.sin(grid), grid[:30]), outside="linear")
    g = long.table("g", grid, np.cos(grid))
    long.initial(long.mode("run", ode={x: f(x, g(x))}), {x: 0.1})
    file = long.to_file(tmp_path / "long.toml", data="csv")
    assert dh.HybridModel.from_file(file).to_text() == long.to_text()
    assert len(list(tmp_path.glob("*.csv"))) == 2


def test_what_is_refused() -> None:
    m = dh.HybridModel("refused")
    x = m.differential("x")
    with pytest.raises(dh.ModelError, match="kind must be one of linear, cubic, got 'spline'"):
        m.table("f", GRID, VALUES, kind="spline")  # type: ignore[arg-type]
    with pytest.raises(dh.ModelError, match="outside must be one of error, hold, linear"):
        m.table("f", GRID, VALUES, outside="wrap")  # type: ignore[arg-type]
    with pytest.raises(dh.ModelError, match="must increase strictly and, for kind='cubic', have 4 points"):
        m.table("f", [0, 1, 2], [0, 1, 2])
    with pytest.raises(dh.ModelError, match="must increase strictly"):
        m.table("f", [0, 2, 1, 3], [0, 1, 2, 3])
    with pytest.raises(dh.ModelError, match=r"a grid of 7x5 points and values of shape 5x7"):
        m.table("f", AXES, SURFACE.T)
    f = m.table("f", GRID, VALUES)
    with pytest.raises(dh.ModelError, match="declared twice"):
        m.table("f", GRID, VALUES)
    with pytest.raises(dh.ModelError, match="takes 1 arguments of one size, got 1x1, 1x1"):
        f(x, x)
    symbol = ca.MX.sym("s")
    inner = ca.Function("inner", [symbol], [f(symbol)])
    m.initial(m.mode("run", ode={x: inner(x)}), {x: 0.0})
    with pytest.raises(dh.ModelError, match="The function 'inner' calls a table"):
        m.build()


@pytest.mark.parametrize("surface", [False, True])
def test_derivatives_of_a_cubic_table(surface: bool) -> None:
    """Second derivatives of an expression, as a potential has them, and the file of the model."""
    m = dh.HybridModel("derivative")
    a, b, x = m.parameter("a", 0.37), m.parameter("b", 0.6), m.differential("x")
    f = m.table("f", AXES, SURFACE) if surface else m.table("f", GRID, VALUES)
    value = f(a, b) if surface else f(a)
    m.initial(m.mode("run", ode={x: -ca.gradient(f(x, b) if surface else f(x), x)}), {x: 0.5})
    slope = ca.jacobian(ca.jacobian(value, a), b if surface else a)
    m.functional("G", terminal=slope)
    spline = RectBivariateSpline(*AXES, SURFACE) if surface else CubicSpline(GRID, VALUES)
    exact = spline(0.37, 0.6, dx=1, dy=1)[0, 0] if surface else spline(0.37, 2)
    system = m.build()
    assert np.isclose(dh.simulate(system, (0, 1)).functionals["G"], exact, rtol=1e-10)
    read = dh.HybridModel.from_text(m.to_text())
    assert read.to_text() == m.to_text()
    assert dh.simulate(read.build(), (0, 1)).functionals["G"] == dh.simulate(system, (0, 1)).functionals["G"]


def test_derivatives_that_jump_are_refused() -> None:
    for words, message in (({"kind": "linear"}, "jumps at grid points"), ({"outside": "hold"}, "jumps at the ends")):
        m = dh.HybridModel("derivative")
        x = m.differential("x")
        f = m.table("f", GRID, VALUES, **words)  # type: ignore[arg-type]
        m.initial(m.mode("run", ode={x: -ca.gradient(f(x), x)}), {x: 0.5})
        with pytest.raises(dh.ModelError, match=message):
            m.build()


@pytest.mark.first(2)
@pytest.mark.parametrize("formulation", [Index1(), Penalty(), Reduced()], ids=["index 1", "penalty", "reduced"])
def test_a_spring_of_a_mechanism(formulation: Any) -> None:
    """The force q + q^3 / 4, which a cubic table represents exactly, on a point of a parabola."""
    found = []
    for tabulated in (False, True):
        mech = Mechanism("spring")
        k, q, grid = mech.parameter("k", 2.0), mech.coordinate("q", size=2), np.linspace(-2, 2, 9)
        force: Any = mech.table("force", grid, grid + grid**3 / 4) if tabulated else lambda x: x + x**3 / 4
        mech.inertia(q, np.diag([1.0, 2.0]))
        mech.force({q: ca.vertcat(-k * force(q[0]), -k * force(q[1]) - 1.0)})
        mech.constraint("parabola", q[0] + q[1] ** 2 - 1.0)
        mech.initial(mech.mode("slide"), {q: [0.75, 0.5]})
        mech.functional("G", integrand=q[0] ** 2, terminal=q[1])
        found.append(dh.adjoint_gradient(mech.build(formulation), (0, 1), "G", rtol=1e-8, atol=1e-10))
    assert np.isclose(found[0].value, found[1].value, rtol=1e-7)
    assert np.allclose(found[0].gradient, found[1].gradient, rtol=1e-5)


@pytest.mark.parametrize("by", ["cam", "potential"])
def test_a_cam_and_a_potential(by: str) -> None:
    """Their equations contain first and second derivatives of the curve q + q^3 / 4."""
    found = []
    for tabulated in (False, True):
        mech = Mechanism("cam")
        k, q, grid = mech.parameter("k", 2.0), mech.coordinate("q", size=2), np.linspace(-2, 2, 9)
        curve: Any = mech.table("curve", grid, grid + grid**3 / 4) if tabulated else lambda x: x + x**3 / 4
        mech.inertia(q, np.diag([1.0, 2.0]))
        if by == "cam":
            mech.force({q: ca.vertcat(-k * q[0], -1.0)})
            mech.constraint("cam", q[1] - curve(q[0]))
        else:
            mech.potential(k * curve(q[0]) ** 2 / 2 + q[1])
        mech.initial(mech.mode("slide"), {q: [0.5, 0.5 + 0.5**3 / 4]})
        mech.functional("G", integrand=q[0] ** 2, terminal=q[1])
        found.append(dh.adjoint_gradient(mech.build(Index1()), (0, 1), "G", rtol=1e-8, atol=1e-10))
    assert np.isclose(found[0].value, found[1].value, rtol=1e-6)
    assert np.allclose(found[0].gradient, found[1].gradient, rtol=1e-5)
