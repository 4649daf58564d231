"""What the tests share: small models, a cache of built systems, and one comparison of gradients."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from types import SimpleNamespace
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.options import Options

PI = np.pi


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--python-events` runs the tests with every transition in Python; those of compiled events are left out."""
    parser.addoption("--python-events", action="store_true", help="carry out all transitions in Python")


def pytest_configure(config: pytest.Config) -> None:
    """The default of `native_events`, which is the last of all options."""
    if config.getoption("--python-events"):
        assert Options.__init__.__defaults__ is not None
        assert [field.name for field in fields(Options)][-1] == "native_events"
        Options.__init__.__defaults__ = (*Options.__init__.__defaults__[:-1], False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of compiled events need them."""
    if config.getoption("--python-events"):
        skip = pytest.mark.skip(reason="of compiled events")
        for item in items:
            if item.path.stem in ("test_whole", "test_march", "test_alarms", "test_knots", "test_crossing"):
                item.add_marker(skip)


# -- models -----------------------------------------------------------------------------------------


def decay() -> dh.HybridModel:
    """y' = -k y from y0; y = y0 exp(-k t)."""
    m = dh.HybridModel("decay")
    k, y0 = m.parameter("k", 0.7), m.parameter("y0", 2.0)
    y = m.differential("y")
    run = m.mode("run", ode={y: -k * y})
    m.initial(run, {y: y0})
    m.functional("area", integrand=y)
    m.functional("end", terminal=y)
    return m


def oscillator() -> dh.HybridModel:
    """x'' = -w^2 x from (a, 0); x = a cos(w t)."""
    m = dh.HybridModel("oscillator")
    w, a = m.parameter("w", 2.0), m.parameter("a", 1.5)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -(w**2) * x})
    m.initial(run, {x: a, v: 0.0})
    m.functional("end", terminal=x)
    return m


def ball() -> dh.HybridModel:
    """Problem P3 of the speed comparison: y0 = 1, v0 = 0, e = 0.8, g = 9.81."""
    m = dh.HybridModel("ball")
    e, g = m.parameter("e", 0.8), m.parameter("g", 9.81)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: 1.0, v: 0.0})
    m.functional("height", terminal=y)
    return m


def circuit() -> dh.HybridModel:
    """Index 1: y' = -z with 0 = z - k y, until y falls to c; then 0 = z + z^3 - q y."""
    m = dh.HybridModel("circuit")
    k, c, q = m.parameter("k", 1.2), m.parameter("c", 0.5), m.parameter("q", 2.0)
    y, z = m.differential("y"), m.algebraic("z")
    first = m.mode("first", ode={y: -z}, algebraic=[z - k * y])
    second = m.mode("second", ode={y: -z}, algebraic=[z + z**3 - q * y])
    m.transition(first, second, guard=y - c, direction="falling", name="switch")
    m.initial(first, {y: 1.0})
    m.functional("work", integrand=z**2)
    m.functional("both", integrand=ca.vertcat(z * y**2, y * z), terminal=ca.vertcat(y, z))
    return m


def em() -> dh.HybridModel:
    """Serban and Recuero's second example with the short form of the stress."""
    m = dh.HybridModel("em")
    t = m.time
    ka, kb = m.parameter("ka", 32 * PI**2), m.parameter("kb", PI**2)
    alpha, beta = m.parameter("alpha", 205.0), m.parameter("beta", 0.0)
    u, v, z = m.differential("u"), m.differential("v"), m.algebraic("z")
    u_star, z_star = m.memory("u_star", of=u, initial=0.0), m.memory("z_star", of=z, initial=0.0)

    def limit(w: ca.MX) -> ca.MX:
        return -2 * beta * w + 2 * np.sinh(beta * w) + kb * w

    def stress(xi: int) -> ca.MX:
        c = xi * (ka - kb + 1e-20) / (2 * alpha)
        return limit(u) + c - np.exp(-alpha * xi * (u - u_star)) * (limit(u_star) + c - z_star)

    force = 0.5 * t * np.sin(2 * PI * t)
    loading = m.mode("loading", ode={u: v, v: force - z}, algebraic=[stress(1) - z])
    unloading = m.mode("unloading", ode={u: v, v: force - z}, algebraic=[stress(-1) - z])
    m.transition(loading, unloading, guard=v, direction="falling")
    m.transition(unloading, loading, guard=v, direction="rising")
    m.initial(loading, {u: 0.0, v: 0.0})
    m.functional("G", integrand=u**2)
    return m


def counter() -> dh.HybridModel:
    """A ramp that is reset at a threshold, with a memory that counts: y' = k, y -> r y at y = c, n -> n + 1."""
    m = dh.HybridModel("counter")
    k, c, r = m.parameter("k", 1.0), m.parameter("c", 0.75), m.parameter("r", 0.2)
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: k})
    m.transition(run, run, guard=y - c, direction="rising", reset={y: r * y}, memory={n: n + 1}, name="tooth")
    m.initial(run, {y: 0.0})
    m.functional("end", terminal=y)
    m.functional("area", integrand=y)
    m.functional("count", terminal=n)
    return m


def switched() -> dh.HybridModel:
    """Modes with 1, 2, .. states of their own, a memory that counts, an integrand that jumps; parameters everywhere."""
    m = dh.HybridModel("switched")
    a, b, c = m.parameter("a", 1.3), m.parameter("b", 0.4), m.parameter("c", 0.2)
    y, z, w = m.differential("y"), m.differential("z"), m.algebraic("w")
    count = m.memory("count", initial=a * 0.1)
    modes = [
        m.mode("up", ode={y: a - w}, algebraic=[w - b * y]),
        m.mode("down", ode={y: -b * y - w, z: count - z}, algebraic=[w - c * z]),
    ]
    m.transition(
        modes[0], modes[1], guard=y - 1 - count, direction="rising", reset={z: a * y}, memory={count: count + c * y}
    )
    m.transition(modes[1], modes[0], guard=y - c, direction="falling", reset={y: y + b * z})
    m.initial(modes[0], {y: b})
    m.functional("G", integrand=y**2 + w, terminal=y * a)
    m.functional("V", integrand=ca.vertcat(y * w, count))
    m.functional("end", terminal=w * count)
    return m


@pytest.fixture(scope="session")
def models() -> SimpleNamespace:
    """Declarations by name, to be called or handed to `built`."""
    return SimpleNamespace(
        decay=decay, oscillator=oscillator, ball=ball, circuit=circuit, em=em, counter=counter, switched=switched
    )


@pytest.fixture(scope="session")
def built() -> Callable[..., dh.HybridSystem]:
    """Build a declaration once for the whole session."""
    systems: dict[Any, dh.HybridSystem] = {}

    def build(declare: Callable[[], dh.HybridModel], *, native: bool = True) -> dh.HybridSystem:
        if (declare, native) not in systems:
            systems[declare, native] = declare().build(native=native)
        return systems[declare, native]

    return build


# -- every gradient of the suite is certified ----------------------------------------------------------------

DEFECTS: list[float] = []  # of the gradients that were, relative to what is allowed


@pytest.fixture(autouse=True)
def certified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adjoint gradients go through the duality check, but where a test is marked ``uncertified``."""
    if request.node.get_closest_marker("uncertified"):
        return
    original = dh.adjoint_gradient

    @wraps(original)
    def adjoint_gradient(*arguments: Any, **options: Any) -> dh.Gradient:
        found = original(*arguments, **({"duality": True} | options))
        if found.duality is not None and found.duality.passed:
            DEFECTS.append(found.duality.defect / found.duality.allowed)
        return found

    monkeypatch.setattr(dh, "adjoint_gradient", adjoint_gradient)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its figures on."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["defects"] = DEFECTS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The figures of a worker arrive."""
    DEFECTS.extend(getattr(node, "workeroutput", {}).get("defects", ()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many gradients were certified."""
    if DEFECTS:
        worst = max(DEFECTS)
        terminalreporter.write_line(
            f"duality: {len(DEFECTS)} gradients certified; forward and adjoint differ by {worst:.0%} of what is allowed"
        )


# -- gradients ----------------------------------------------------------------------------------------


def finite_differences(
    system: dh.HybridSystem, span: Any, functional: str, parameters: Any, wrt: Any, step: float, **options: Any
) -> np.ndarray:
    """Central differences of fourth order, (k, n_p)."""
    p = system.parameter_vector(parameters)
    events = [e.transition for e in dh.simulate(system, span, parameters=p, **options).events]
    columns = []
    for i in system.parameter_indices(wrt):
        h = step * (abs(p[i]) or 1.0)

        def value(shift: float, i: int = i, h: float = h) -> np.ndarray:
            shifted = p.copy()
            shifted[i] += shift * h
            run = dh.simulate(system, span, parameters=shifted, **options)
            assert [e.transition for e in run.events] == events, "a perturbed run takes other transitions"
            return np.atleast_1d(run.functionals[functional])

        columns.append((8 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12 * h))
    return np.array(columns).T


def table(names: tuple[str, ...], ways: dict[str, np.ndarray]) -> str:
    """One line per component and parameter."""
    lines = ["", "  ".join(["parameter".ljust(14), *(way.rjust(22) for way in ways)])]
    rows = np.atleast_2d(next(iter(ways.values()))).shape[0]
    for row in range(rows):
        for column, name in enumerate(names):
            cells = (f"{np.atleast_2d(values)[row, column]: .15e}" for values in ways.values())
            lines.append("  ".join([f"[{row}] {name}".ljust(14), *(cell.rjust(22) for cell in cells)]))
    return "\n".join(lines)


@pytest.fixture(scope="session")
def compare_gradients() -> Callable[..., Any]:
    """Forward = adjoint = finite differences (= closed form); the failure message is the whole table."""

    def compare(
        system: dh.HybridSystem,
        span: tuple[float, float],
        functional: str,
        *,
        exact: Any = None,
        value: Any = None,
        tolerance: float = 1e-7,
        fd_tolerance: float = 1e-5,
        step: float = 2e-3,
        parameters: Any = None,
        wrt: Any = None,
        rtol: float = 1e-10,
        atol: Any = 1e-12,
        **options: Any,
    ) -> SimpleNamespace:
        options = {"rtol": rtol, "atol": atol, **options}
        fsa = dh.forward_sensitivity(system, span, parameters=parameters, wrt=wrt, **options)
        asa = dh.adjoint_gradient(system, span, functional, parameters=parameters, wrt=wrt, **options)
        ways = {"forward": fsa.gradient[functional], "adjoint": asa.gradient}
        if fd_tolerance:
            difference = finite_differences(system, span, functional, parameters, wrt, step, **options)
            ways["finite differences"] = difference.reshape(np.shape(asa.gradient))
        if exact is not None:
            ways["closed form"] = np.asarray(exact, dtype=float)
            assert ways["closed form"].shape == np.shape(asa.gradient)
        text = table(fsa.parameters, ways)
        reference = np.atleast_2d(ways["closed form" if exact is not None else "adjoint"])
        scale = np.maximum(np.abs(reference).max(axis=1, keepdims=True), 1e-3)
        for way, result in ways.items():
            limit = fd_tolerance if way == "finite differences" else tolerance
            worst = float((np.abs(np.atleast_2d(result) - reference) / scale).max())
            assert worst <= limit, f"{way} is off by {worst:.2e}, allowed {limit:.0e}{text}"
        np.testing.assert_allclose(asa.value, fsa.functionals[functional], rtol=10 * rtol, atol=1e-9)
        if value is not None:
            np.testing.assert_allclose(asa.value, value, rtol=tolerance, atol=tolerance)
        return SimpleNamespace(forward=fsa, adjoint=asa, ways=ways)

    return compare


# -- memory -----------------------------------------------------------------------------------------


def peak(run: Callable[[], Any]) -> float:
    """The most memory that Python and NumPy held during a call, in bytes."""
    run()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
