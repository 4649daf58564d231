"""Options, markers and fixtures of all tests: models, built systems, certified gradients, a comparison of gradients.

One rule for what is not installed: a test, or a whole file, that fails because a package of `OPTIONAL` cannot be
imported is skipped. Tests import what they need, and ask for nothing.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from models import ball, circuit, counter, decay, em, oscillator, switched

import dae_hybrid as dh
from dae_hybrid.codegen import compiler
from dae_hybrid.options import Options

#: other sizes than the first
SIZES = ("operation", "campaign")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the tests."""
    parser.addoption("--python-events", action="store_true", help="carry out all transitions in Python")
    parser.addoption("--as-shipped", action="store_true", help="compile models with the library's own options")
    parser.addoption("--no-compiler", action="store_true", help="run as on a machine without a C compiler")
    parser.addoption("--hide", default="", help="packages, with commas, to take for not installed")
    parser.addoption("--share", default="1/1", help="K/N: every N-th test, the K-th of N shares of the whole")
    parser.addoption("--absent", help="packages, with commas, that may be absent; the lack of others is a failure")


def pytest_configure(config: pytest.Config) -> None:
    """Set what the options ask for; `native_events` is the last of the library's own options."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a background job of a shell, which passes it on
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hidden := names(config, "--hide"):
        sys.meta_path.insert(0, Hidden(hidden))
        for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:  # by plugins of pytest
            del sys.modules[name]
    if not config.getoption("--as-shipped"):  # most models are run once, and take longer to compile than to run
        compiler.STRAIGHT = ("-O0", *compiler.STRAIGHT[1:])
        compiler.SEPARATE = ("-O0", *compiler.SEPARATE[1:])
        compiler.is_straight = lambda text: "int dh_" not in text  # all but the loops of integrators
    if config.getoption("--no-compiler"):
        compiler.find_compiler.cache_clear()
        compiler.find_compiler = lambda: None  # type: ignore[assignment]
        compiler._warned.add("No C compiler found")  # warnings are errors
    if config.getoption("--python-events"):
        assert Options.__init__.__defaults__ is not None
        assert [field.name for field in fields(Options)][-1] == "native_events"
        Options.__init__.__defaults__ = (*Options.__init__.__defaults__[:-1], False)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests of compiled events ``native`` and those of the documentation ``docs``, by their place.

    Of the combinations of parameters of a test, those that add no value of a parameter become a campaign: what does not
    interact is not multiplied. A test marked ``product`` keeps all, one marked ``first`` the first few. ``first`` and
    ``covering`` may name another size for the rest. What is not in the share that was asked for is left out.
    """
    skip = pytest.mark.skip(reason="tests compiled events")
    products: dict[Any, list[pytest.Function]] = {}
    for item in items:
        if item.path.parent.name == "documentation":
            item.add_marker("docs")
        if item.path.stem.startswith("test_native"):
            item.add_marker("native")
            if config.getoption("--python-events"):
                item.add_marker(skip)
        if config.getoption("--no-compiler") and (mark := item.get_closest_marker("compiled")):
            item.add_marker(pytest.mark.skip(reason=mark.args[0]))
        marks = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not marks & {"product", *SIZES}:
            products.setdefault((item.path, item.originalname), []).append(item)
    for product in products.values():
        if marker := product[0].get_closest_marker("first"):
            kept = set(range(*marker.args))
        else:
            marker = product[0].get_closest_marker("covering") or pytest.mark.covering.mark
            kept = cover([values_of(item) for item in product])
        for i, item in enumerate(product):
            if i not in kept:
                item.add_marker(marker.kwargs.get("size", "campaign"))
    share, shares = map(int, config.getoption("--share").split("/"))
    in_share = {item: crc32(item.nodeid.encode()) % shares == share - 1 for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not in_share[item]])
    items[:] = filter(in_share.get, items)


def values_of(item: pytest.Function) -> set[Any]:
    """Values of the parameters of a test, as keys; what one mark states together is one value."""
    params = dict(item.callspec.params)
    found = set()
    for mark in item.iter_markers("parametrize"):
        named = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        found.add(tuple((name, id(params.pop(name))) for name in map(str.strip, named)))
    return found | {(name, id(value)) for name, value in params.items()}  # of fixtures


def cover(rows: list[set[Any]]) -> set[int]:
    """Choose rows that have every value; each time one that adds the most, and of these the one used least so far."""
    chosen, missing, used = set(), rows, Counter[Any]()
    while any(missing):
        best = max(range(len(rows)), key=lambda i: (len(missing[i]), -sum(used[value] for value in rows[i])))
        chosen.add(best)
        used.update(rows[best])
        missing = [row - rows[best] for row in missing]
    return chosen


# -- packages that are not installed --------------------------------------------------------------------------

#: what tests import beside pytest and the requirements of the library
OPTIONAL = {
    "scikits_odes_sundials": "python -m dae_hybrid.adapters.install_scikits_odes",
    "chromium": "a browser, for the page of the service",
    **dict.fromkeys(
        ("SALib", "dask", "diffrax", "distributed", "emcee", "fastapi", "flint", "h5netcdf", "h5py", "httptools",
         "httpx", "jax", "jsonschema", "libsbml", "matplotlib", "mpi4py", "mpich", "numpyro", "optimagic", "orjson",
         "pandas", "playwright", "prometheus_client", "psutil", "pyarrow", "pybamm", "pymc", "torch", "umbridge",
         "uvicorn", "xarray", "zarr"),
        "an extra of dae-hybrid",
    ),
}  # fmt: skip


class Hidden:
    """Finder that knows of packages only that they are not there."""

    def __init__(self, packages: set[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def names(config: pytest.Config, option: str) -> set[str]:
    """The packages of an option."""
    return {name for name in (config.getoption(option) or "").split(",") if name}


def absent(config: pytest.Config, error: BaseException | None) -> str | None:
    """Reason to skip what has raised this error: a package that is not installed, and may be absent."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in OPTIONAL:
            tolerated = config.getoption("--absent") is None or package in names(config, "--absent")
            return f"{package} is not installed: {OPTIONAL[package]}" if tolerated else None
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skip a file that imports an absent package."""
    report = yield
    call = getattr(report, "call", None)
    if call is not None and call.excinfo is not None and (reason := absent(collector.config, call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: {reason}")
    return report


@contextmanager
def excused(config: pytest.Config) -> Iterator[None]:
    """Skip a test in which an absent package is missed."""
    try:
        yield
    except Exception as error:
        if reason := absent(config, error):
            pytest.skip(reason)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Skip a test whose fixtures need an absent package."""
    with excused(item.config):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test that needs an absent package; Hypothesis would look for a simpler example of what it raises."""
    if drawn := getattr(getattr(item, "obj", None), "hypothesis", None):
        drawn.inner_test = excused(item.config)(drawn.inner_test)
    with excused(item.config):
        return (yield)


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


# -- gradients of the suite are certified ---------------------------------------------------------------------

DEFECTS: list[float] = []  # of the certified gradients, relative to the tolerance


@pytest.fixture(autouse=True)
def certified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the duality of each system's first adjoint gradient in a test, except in tests marked ``uncertified``."""
    if request.node.get_closest_marker("uncertified"):
        return
    original, seen = dh.adjoint_gradient, set[int]()

    @wraps(original)
    def adjoint_gradient(*arguments: Any, **options: Any) -> dh.Gradient:
        system = arguments[0] if arguments else options.get("system")
        duality = id(system) not in seen
        seen.add(id(system))
        found = original(*arguments, **({"duality": duality} | options))
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
    """Central differences of fourth order, (k, n_p), of compiled runs, which cost least."""
    options = {name: value for name, value in options.items() if name != "native_events"}
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
