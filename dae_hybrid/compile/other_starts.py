"""Systems that start elsewhere: in another mode, at given values, or at values that are parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

import casadi as ca
import numpy as np

from dae_hybrid.compile.builders import Builders
from dae_hybrid.compile.initial_functions import build_initial
from dae_hybrid.compile.origin import Origin
from dae_hybrid.compile.relations import with_relations
from dae_hybrid.compile.rewriting import rewritten, with_single_states
from dae_hybrid.errors import ModelError, ParameterError
from dae_hybrid.statement.declarations import Declaration
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.system.system import HybridSystem


def initial_mode(system: HybridSystem, mode: object) -> int:
    """Return the index of a mode, given by its name or as declared; None means that of the model.

    Raises
    ------
    ParameterError
        The system has no such mode.
    """
    if mode is None:
        return system.initial.mode
    name, known = mode if isinstance(mode, str) else getattr(mode, "name", None), [own.name for own in system.modes]
    if name not in known:
        raise ParameterError(
            f"start_mode={mode!r} is not a mode of '{system.name}'.", remedy=f"Modes: {', '.join(known)}."
        )
    return known.index(name)


def with_values(system: HybridSystem, origin: Origin, mode: int, names: Sequence[str]) -> HybridSystem:
    """Return a system that starts in a mode, with values of these variables and memories among the given ones.

    `names` may be labels of entries. Only the initial map is built; the values remain to be given (`InitialMap.at`).

    Raises
    ------
    ParameterError
        An initial value is missing, or the initial equations do not suit the mode.
    """
    options, kinks = origin.options, origin.options["kinks"] == "events"
    plain = _rewritten_in(origin.model, system.modes[mode].name, partial(rewritten, kinks=kinks))
    model, *_ = with_relations(
        _restated(system, plain, mode, names), kinks=kinks, slides=options["relations"] == "slide"
    )
    builders = Builders(model, eliminate=options["eliminate"], direct=options["index2"] == "direct")
    memories = [name for name in names if any(label in system.memory.labels() for label in (name, f"{name}[0]"))]
    try:
        initial = build_initial(model, builders, system.signals, memories)
    except ModelError as error:
        error.message = f"A run cannot start in mode '{system.modes[mode].name}': {error.message}"
        error.remedy = "Give the missing initial values by x0=, or start in another mode."
        raise ParameterError(error.message, mode=error.mode, variables=error.variables, remedy=error.remedy) from None
    surplus = [name for name in names if name not in memories and name not in _stated_values(plain)]
    ends = system.graph.ends
    ends = None if ends is None else replace(ends, origin=None, mode=initial.mode)
    graph = replace(system.graph, ends=ends, cache={})
    return replace(system, initial=replace(initial, surplus=tuple(surplus)), graph=graph)


def with_parameters(
    system: HybridSystem, origin: Origin, mode: int, names: Mapping[str, Sequence[int]], given: Sequence[str]
) -> HybridSystem:
    """Build a system whose initial values of these variables and memories are further parameters, ``x(0)``.

    Parameters
    ----------
    names : mapping of str to sequence of int
        Variables and memories, with the entries whose value in the model is replaced. Where the value of another entry
        depends on parameters (`shifted_entries`), the parameter is added to it.
    given : sequence of str
        Further variables and memories whose values are given by `with_values`.

    Raises
    ------
    ParameterError
        The name of such a parameter is that of a variable.
    """
    stated = origin.model
    if any(own.mass is not None for own in stated.modes.values()):
        rewrite = partial(with_single_states, kinks=origin.options["kinks"] == "events")
        stated = _rewritten_in(stated, system.modes[mode].name, rewrite)
    model = _restated(system, stated, mode, [*names, *given])
    start = model.start
    if start is None:
        raise AssertionError("no initial mode")
    values = dict(start.values)
    for name, replaced in names.items():
        declared, parameter = model.declarations[name], f"{name}(0)"
        if parameter in model.declarations:
            raise ParameterError(
                f"The initial value of '{name}' has no name: '{parameter}' is a variable of the model."
            )
        symbol = ca.MX.sym(parameter, declared.size)
        nominal = np.zeros(declared.size)
        model.declarations[parameter] = Declaration(
            parameter, "parameter", declared.size, symbol, nominal, unit=declared.unit,
            description=f"initial value of {name}",
        )  # fmt: skip
        own = stated_value(model, name)
        shifted = set(shifted_entries(model, name)) - set(replaced)
        nominal[:] = _numbers(own)
        nominal[list(shifted)] = 0.0
        kept = np.array([float(i in shifted) for i in range(declared.size)])
        if declared.kind == "memory":
            model.declarations[name] = replace(declared, initial=_added(own, kept, symbol))
        else:
            values[name] = _added(own, kept, symbol)
    model.start = replace(start, values=values)
    built = model.build(**(origin.options | {"native": origin.options["native"] is not False}))
    return replace(built, hidden_blocks=len(names))


def _rewritten_in(model: HybridModel, mode: str, rewrite: Callable[[HybridModel], HybridModel]) -> HybridModel:
    """Rewrite a model that starts in a mode: stated values give the combinations that a mass matrix makes states there.

    Where they do not suffice, the combinations are left without values.
    """
    if model.start is None or all(own.mass is None for own in model.modes.values()):
        return rewrite(model)
    moved = copy(model)
    moved.start = replace(model.start, mode=model.modes[mode])
    try:
        return rewrite(moved)
    except ModelError:
        return rewrite(model)


def stated_value(model: HybridModel, name: str) -> ca.MX:
    """The initial value of a variable or a memory in the model, zero if it has none."""
    declared, start = model.declarations[name], model.start
    given = declared.initial if declared.kind == "memory" else None if start is None else start.values.get(name)
    return ca.MX.zeros(declared.size) if given is None else ca.MX(given)


def shifted_entries(model: HybridModel, name: str) -> list[int]:
    """The entries of an initial value that depend on parameters."""
    value = stated_value(model, name)
    symbols = ca.symvar(value)
    return sorted(set(ca.jacobian_sparsity(value, ca.veccat(*symbols)).row())) if symbols else []


def _numbers(value: ca.MX) -> np.ndarray:
    """The entries of a value that depend on nothing; the others are undefined."""
    symbols = ca.symvar(value)
    (found,) = ca.Function("value", symbols, [value]).call([ca.DM.zeros(s.shape) for s in symbols])
    return np.nan_to_num(np.array(found).ravel())


def _added(stated: ca.MX, kept: np.ndarray, symbol: ca.MX) -> ca.MX:
    """The stated value where it is kept, plus the parameter."""
    if not kept.any():
        return symbol
    return stated + symbol if kept.all() else ca.DM(kept) * stated + symbol


def _stated_values(model: HybridModel) -> Mapping[str, ca.MX]:
    return {} if model.start is None else model.start.values


def _restated(system: HybridSystem, model: HybridModel, mode: int, names: Sequence[str]) -> HybridModel:
    """A copy of a model that starts in a mode, with zero as the value of each of these that has none."""
    found, start, own = copy(model), model.start, system.modes[mode]
    if start is None:
        raise AssertionError("no initial mode")
    found.declarations = dict(model.declarations)
    values = {name: value for name, value in start.values.items() if name in own.differential}
    for name in names:
        if name in own.differential:
            values.setdefault(name, ca.MX.zeros(model.declarations[name].size))
    guess = {name: value for name, value in start.guess.items() if name in own.variables}
    project = tuple(d for d in start.project if d.name in values)
    found.start = replace(start, mode=model.modes[own.name], values=values, guess=guess, project=project)
    return found
