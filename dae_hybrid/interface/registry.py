"""The registry of adapters, their capabilities, and the refusal of unsupported requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, cast

from dae_hybrid.errors import AdapterError, DaeHybridError, OptionError, UnsupportedError
from dae_hybrid.method import Method
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Capabilities, Integrator
from dae_hybrid.steppers.initial_value import SteppedIntegrator
from dae_hybrid.steppers.session import SteppedPort
from dae_hybrid.system.system import HybridSystem, check_built
from dae_hybrid.tables import align

#: entry-point group for adapters of other packages
GROUP = "dae_hybrid.adapters"
#: adapters of this package; the first is the default
BUILT_IN = {
    "sundials": "dae_hybrid.adapters.sundials:SundialsIntegrator",
    "scikits-odes": "dae_hybrid.adapters.scikits_odes:ScikitsOdesIntegrator",
    "casadi": "dae_hybrid.adapters.casadi:CasadiIntegrator",
    "scipy": "dae_hybrid.adapters.scipy:SciPyIntegrator",
    "ali3p": "dae_hybrid.adapters.ali3p:Ali3pIntegrator",
}
Adapter = Integrator | SteppedIntegrator
Analysis = Literal["simulate", "forward", "adjoint"]

_registered: dict[str, type[Adapter]] = {}


def register_adapter[A: type[Adapter]](adapter: A, *, replace: bool = False) -> A:
    """Register an adapter under its name. May be used as a decorator.

    A package can instead declare its adapter in its metadata, under the entry-point group ``dae_hybrid.adapters``;
    registration is then not needed.

    Parameters
    ----------
    adapter : class
        A `SteppedIntegrator`, or any class with the members of `dae_hybrid.port.integrator.Integrator`. It is
        instantiated without arguments.
    replace : bool
        Whether it may replace an adapter of the same name. Default False.

    Returns
    -------
    class
        The adapter, unchanged.

    Raises
    ------
    OptionError
        The adapter has no name or no capabilities, or the name is taken.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.adapters.scipy import SciPyIntegrator
    >>> class Patient(SciPyIntegrator):
    ...     name, nonstiff = "patient", "rk45"
    >>> dh.register_adapter(Patient).name
    'patient'
    >>> "patient" in dh.adapter_names()
    True
    """
    name = getattr(adapter, "name", None)
    if not isinstance(name, str) or not isinstance(getattr(adapter, "capabilities", None), Capabilities):
        raise OptionError(
            f"{adapter!r} is not an adapter: it needs a `name` and `capabilities`.",
            remedy="Derive it from dae_hybrid.SteppedIntegrator and set both.",
        )
    if (not replace and _registered.get(name, adapter) is not adapter) or (name in BUILT_IN and not replace):
        raise OptionError(f"There is an adapter {name!r} already.", remedy="Choose another name, or pass replace=True.")
    _registered[name] = adapter
    find_integrator.cache_clear()
    return adapter


def _elsewhere() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def adapter_names() -> tuple[str, ...]:
    """Return the names of all adapters: built-in, from other packages, and registered."""
    return tuple(dict.fromkeys((*BUILT_IN, *_elsewhere(), *_registered)))


def registered(name: Any) -> tuple[Any, type[Adapter] | None]:
    """Cache key of the adapter registered under a name."""
    return name, _registered.get(name) if isinstance(name, str) else None


def adapter_class(name: str) -> type[Adapter]:
    """Return the class of an adapter without loading its solver library.

    Raises
    ------
    OptionError
        No adapter has this name.
    AdapterError
        The package that provides it cannot be imported.
    """
    if not isinstance(name, str):
        raise OptionError(f"adapter must be a name, got {name!r}.", remedy=f"Adapters: {', '.join(adapter_names())}.")
    if name in _registered:
        return _registered[name]
    # called by every run: scanning the installed packages takes longer than a short run
    point = EntryPoint(name, BUILT_IN[name], GROUP) if name in BUILT_IN else _elsewhere().get(name)
    if point is None:
        raise OptionError(f"There is no adapter {name!r}.", remedy=f"Adapters: {', '.join(adapter_names())}.")
    try:
        found: type[Adapter] = point.load()
    except Exception as reason:  # the import may raise anything
        raise AdapterError(f"Adapter {name!r} cannot be loaded: {reason}.", remedy=_other_than(name)) from reason
    return found


@cache
def find_integrator(name: str) -> Integrator:
    """Return the integrator of an adapter; its solver library is loaded on first use.

    Raises
    ------
    OptionError
        No adapter has this name.
    AdapterError
        The adapter cannot be used on this machine.
    """
    kind = adapter_class(name)
    try:
        made = kind()
        return SteppedPort(made) if isinstance(made, SteppedIntegrator) else made
    except AdapterError as error:
        error.remedy = f"{error.remedy} {_other_than(name)}" if error.remedy else _other_than(name)
        raise
    except ImportError as reason:
        raise AdapterError(f"Adapter {name!r} cannot be loaded: {reason}.", remedy=_other_than(name)) from reason


def _other_than(name: str) -> str:
    return f"Other adapters: {', '.join(other for other in adapter_names() if other != name)}."


def for_call(system: object, adapter: str, options: Mapping[str, Any]) -> HybridSystem:
    """Return the system that serves a call; wait for its code if the method needs compiled code."""
    found = check_built(system)
    if found.later is None and (later := cast(HybridSystem, system).later) is not None and not later.is_done:
        method = adapter_class(adapter).capabilities.named.get(str(options.get("method")))
        if method is not None and method.compiled:
            later.wait(None)
            return later.current()
    return found


# -- refusals -----------------------------------------------------------------------------------------------


def check_capabilities(name: str, system: HybridSystem, options: Options, analysis: Analysis = "simulate") -> None:
    """Refuse requests that an adapter does not support, and name one that does.

    Raises
    ------
    OptionError
        No adapter has this method.
    UnsupportedError
        This adapter does not support the request.
    """
    kind = adapter_class(name)
    can, method = kind.capabilities, options.method
    if method not in can.named:
        others = _with(lambda other: method in other.named)
        if not others:
            raise OptionError(f"method must be one of {', '.join(map(repr, can.named))}, got {method!r}.")
        raise UnsupportedError(
            f"Adapter {name!r} has no method {method!r}.",
            remedy=f"Its methods: {', '.join(can.named)}. Adapters with {method!r}: {others}.",
        )
    _check_order(can.named[method], options.max_order)
    if options.linear_solver not in can.linear_solvers:
        raise UnsupportedError(
            f"Adapter {name!r} has no choice of linear_solver={options.linear_solver!r}.",
            remedy=f"Leave it out, or use {_with(lambda other: options.linear_solver in other.linear_solvers)}.",
        )
    if options.fixed_step is not None and not can.fixed_steps:
        raise UnsupportedError(
            f"Adapter {name!r} has no fixed steps (fixed_step={options.fixed_step!r}).",
            remedy=f"Leave fixed_step out, or use {_with(lambda other: other.fixed_steps)}.",
        )
    for mode in system.modes:
        if can.motion and mode.equations.motion is None:
            raise UnsupportedError(
                f"Adapter {name!r} integrates equations of motion only.",
                mode=mode.name,
                remedy="Build the system from a Mechanism with the formulation ALI3P().",
            )
        if mode.equations.index == 2 and not can.index2:
            raise UnsupportedError(
                f"Adapter {name!r} does not integrate the direct form of index 2.",
                mode=mode.name,
                remedy=f"Build with index2='reduced' (the default), or use {_with(lambda other: other.index2)}.",
            )
        solved = mode.equations.reducible and method in can.reduced
        if mode.equations.implicit and can.algebraic and method not in can.algebraic and not solved:
            raise UnsupportedError(
                f"method={method!r} needs modes without algebraic variables"
                + (", or few of them, in Hessenberg index 1." if method in can.reduced else "."),
                mode=mode.name,
                remedy=f"Use method={can.algebraic[0]!r}, or another of {', '.join(can.algebraic)}.",
            )
    if analysis != "simulate" and not issubclass(kind, SteppedIntegrator) and not getattr(can, analysis):
        raise UnsupportedError(
            f"Adapter {name!r} has no {analysis} sensitivity analysis.",
            remedy=f"Use {_with(lambda other: bool(getattr(other, analysis)))}.",
        )
    if analysis == "forward" and issubclass(kind, SteppedIntegrator) and not options.sensitivity_error_control:
        raise UnsupportedError(
            f"Adapter {name!r} has no sensitivity_error_control=False: sensitivities are states like others.",
            remedy=f"Leave it out, or use {_with(lambda other: other.forward)}.",
        )
    if issubclass(kind, SteppedIntegrator):
        kind.check(options)


def _check_order(method: Method, order: int | None) -> None:
    if method.orders is None or order is None or method.orders[0] <= order <= method.orders[1]:
        return
    lowest, highest = method.orders
    limits = f"at most {highest}" if order > highest else f"at least {lowest}"
    raise OptionError(f"max_order is {limits} for {method.name!r}, got {order}.")


def _with(able: Any) -> str:
    """Names of the built-in adapters with a capability."""
    return ", ".join(repr(name) for name in BUILT_IN if able(adapter_class(name).capabilities))


# -- the table ----------------------------------------------------------------------------------------------


def capability_table() -> list[list[str]]:
    """Return the capabilities of the adapters as a table: a heading and one row per adapter.

    *own* is provided by the adapter, *core* by this library.
    """
    heading = ["adapter", "methods", "events", "algebraic", "dense output", "forward", "adjoint", "index 2 direct"]
    rows = []
    for name in adapter_names():
        try:
            kind = adapter_class(name)
        except AdapterError:  # the package cannot be imported
            rows.append([name, *["?"] * (len(heading) - 1)])
            continue
        can = kind.capabilities
        around = "core" if issubclass(kind, SteppedIntegrator) else "no"
        own = (can.roots, bool(can.algebraic), can.dense, can.forward, can.adjoint)
        rows.append(
            [name, ", ".join(can.named), *("own" if it else around for it in own), "yes" if can.index2 else "no"]
        )
    return [heading, *rows]


def describe_adapters() -> str:
    """Return the table of capabilities as text, with a column that tells which adapters work on this machine.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> print(dh.describe_adapters())  # doctest: +ELLIPSIS
    adapter ...
    """
    heading, *rows = capability_table()
    table = [[*heading, "usable here"], *([*row, _unusable(row[0]) or "yes"] for row in rows)]
    first, _, *body = align(table, left=range(len(heading) + 1))
    return "\n".join(line.rstrip() for line in (first, *body))


def general_adapters() -> list[str]:
    """Return the names of the adapters that work on this machine and integrate more than equations of motion."""
    return [name for name in adapter_names() if not (_unusable(name) or adapter_class(name).capabilities.motion)]


def _unusable(name: str) -> str:
    """Reason why an adapter does not work here; empty if it does."""
    try:
        find_integrator(name)
    except DaeHybridError as reason:
        return f"no: {reason.message}"
    return ""
