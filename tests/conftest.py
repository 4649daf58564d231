"""Options, markers and fixtures of all tests: models, built systems, certified gradients, a comparison of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models import ball, circuit, counter, decay, em, oscillator, switched

import dae_hybrid as dh
from dae_hybrid.options import Options


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
    """Mark tests of compiled events ``native`` and those of the documentation ``docs``, by their place."""
    skip = pytest.mark.skip(reason="tests compiled events")
    for item in items:
        if item.path.parent.name == "documentation":
            item.add_marker("docs")
        if item.path.stem.startswith("test_native"):
            item.add_marker("native")
            if config.getoption("--python-events"):
                item.add_marker(skip)


# -- models -----------------------------------------------------------------------------------------


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

DEFECTS: list[float] = []  # of the certified gradients, relative to the tolerance


@pytest.fixture(autouse=True)
def certified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the duality of adjoint gradients, except in tests marked ``uncertified``."""
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
    """Report the number of certified gradients."""
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
