"""A weighted sum of outputs as a functional of a copy of a system, with other weights in every run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.compile.origin import Origin
from dae_hybrid.errors import ParameterError, UnsupportedError
from dae_hybrid.interface.prepared import Prepared, prepare
from dae_hybrid.interface.starts import started
from dae_hybrid.layout import Layout
from dae_hybrid.numeric_input import listed
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.declarations import Functional, Mode, Series
from dae_hybrid.statement.expressions import free_name
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.system.system import HybridSystem

#: seed of the weights with which conditions of all outputs are checked; they are between 1 and 2, and none is special
WEIGHTS_SEED = 1
#: names of outputs in the name of their functional, for messages
SHOWN = 3
_building = Lock()


def origin_of(system: HybridSystem) -> Origin:
    """Return the statement of a built system, and the arguments of `build`.

    Raises
    ------
    UnsupportedError
        The system was not made by `HybridModel.build`.
    """
    if not isinstance(system.remake, Origin):
        raise UnsupportedError(
            f"Outputs of '{system.name}' cannot be differentiated by an adjoint: it is a system derived from another.",
            remedy="Pass the system that build() returned; x0= gives initial values.",
        )
    return system.remake


def outputs_of(system: HybridSystem, names: Sequence[str]) -> tuple[Layout, ca.MX]:
    """Return the layout of named outputs, and their expressions as a column.

    Raises
    ------
    ParameterError
        There is no variable, memory or signal of a name, a name is given twice, or there are no names.
    """
    known = legal_outputs(system)
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) < len(names):
        said = f"unknown name {unknown[0]!r}" if unknown else f"names must be given, each once, got {list(names)}"
        raise ParameterError(f"Outputs: {said}.", remedy=f"Names: {', '.join(known)}.")
    columns = [known[name] for name in names]
    return Layout.of((name, own.numel()) for name, own in zip(names, columns, strict=True)), ca.vertcat(*columns)


def legal_outputs(system: HybridSystem) -> dict[str, ca.MX]:
    """Return the expressions of all variables, memories and signals that are stated in the model, by name."""
    model = origin_of(system).model
    found = {}
    for declared in model.declarations.values():
        if declared.signal is not None:
            found[declared.name] = model.signals[declared.name][0]
        elif declared.kind in ("differential", "algebraic", "memory"):
            found[declared.name] = declared.symbol
    rates = {f"der({name})": rate for name, rate in model.rates.items()}
    return found | {name: rate for name, rate in rates.items() if any(name in m.variables for m in system.modes)}


class OutputFunctional:
    """The functional sum_k c_k . outputs(t_k) of a copy of a system, without the functionals of the original.

    The copy is built on first use, with the same arguments of `build`, and kept with the original for all times: the
    times and the weights c, (n_t, n_outputs), are numbers of its measurements, which compiled code reads from memory in
    every run. Each thread that computes a gradient has its own copy of the weights, and with it its own tables of
    compiled code.
    """

    def __init__(
        self, system: HybridSystem, times: Array, layout: Layout, outputs: ca.MX,
        x0: Mapping[str, Array] | None, start_mode: Mode | str | None,
    ) -> None:  # fmt: skip
        self._original, self.times, self._labels, self._outputs = system, times, layout.labels(), outputs
        self._start: dict[str, Any] = {"x0": x0, "start_mode": start_mode}
        names = self._names = layout.names
        self.name = free_name(f"outputs {listed(names, SHOWN)}", origin_of(system).model.declarations)
        self._idle: list[_WeightedSystem] = []

    @cached_property
    def _template(self) -> HybridSystem:
        """The copy with one measurement, at the start of the call."""
        kept, key = self._original.graph.cache, ("outputs", self._names)
        with _building:
            if key not in kept:
                kept[key] = self._build()
            found: HybridSystem = kept[key]
        own = self._original
        return started(replace(found, nominal=own.nominal, hidden_blocks=own.hidden_blocks), **self._start)

    def _build(self) -> HybridSystem:
        origin = origin_of(self._original)
        model: HybridModel = copy(origin.model)
        column = ca.MX.sym("weights", self._outputs.numel())
        series = Series(np.zeros(1), ca.dot(column, self._outputs), column, np.ones((1, column.numel())))
        model.functionals = {self.name: Functional(self.name, 1, None, None, (), (), (series,))}
        return model.build(**(origin.options | {"native": origin.options["native"] is not False}))

    @cached_property
    def system(self) -> HybridSystem:
        """The copy with weights of which none is zero, so that it has a derivative only if every output has."""
        shape = self.times.size, self._outputs.numel()
        weights = np.random.default_rng(WEIGHTS_SEED).uniform(1.0, 2.0, shape)
        return _measured(self._template, self.times, weights, self._labels)

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return options of a call without the absolute tolerances of functionals that the copy does not have."""
        atol = given.get("atol")
        if not isinstance(atol, Mapping):
            return dict(given)
        gone = set(self._original.functionals.names)
        return {**given, "atol": {name: value for name, value in atol.items() if name not in gone}}

    @contextmanager
    def weighted(self, weights: Array, **call: Any) -> Iterator[Prepared]:
        """Lend a prepared adjoint analysis with these weights; `call` are the arguments of `prepare`, always the same.

        Results must not be used after the loan: they refer to the weights.
        """
        try:
            own = self._idle.pop()
        except IndexError:
            own = _WeightedSystem(self._template, self.times, self._labels, call)
        own.weights[:] = weights
        yield own.gradient
        self._idle.append(own)  # not after an error, whose trajectory refers to the weights


class _WeightedSystem:
    """A system with weights of its own, and an adjoint analysis of it; for one run at a time."""

    def __init__(self, template: HybridSystem, times: Array, labels: tuple[str, ...], call: Mapping[str, Any]) -> None:
        self.weights = np.zeros((times.size, template.measurements[0].data.size))
        self.gradient = prepare(_measured(template, times, self.weights, labels), derivatives="adjoint", **call)


def _measured(template: HybridSystem, times: Array, weights: Array, labels: tuple[str, ...]) -> HybridSystem:
    """A system with one measurement, with measurements at all times and with these weights instead."""
    (measurement,), ends = template.measurements, template.graph.ends
    pairs = zip(times.tolist(), weights, strict=True)
    measurements = tuple(replace(measurement, time=t, data=row, outputs=labels) for t, row in pairs)
    if ends is not None:
        ends = replace(ends, measured=tuple(ends.measured[0]._replace(data=row) for row in weights))
    # tables of compiled code in the cache refer to the weights: it is not shared
    graph = replace(template.graph, ends=ends, cache={})
    return replace(template, measurements=measurements, graph=graph, remake=None)
