"""Initial values that replace numbers of the initial map."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import casadi as ca

from dae_hybrid.codegen.kernels import NativeFunction, compile_functions
from dae_hybrid.errors import UnsupportedError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import TransitionGraph
from dae_hybrid.system.system import HybridSystem


class Starts:
    """Initial states of a system's runs as functions of chosen initial values, ordered as in `layout`."""

    def __init__(self, system: HybridSystem, layout: Layout) -> None:
        self._system, self.layout = system, layout
        initial, labels = system.initial, layout.labels()
        given, held = list(initial.given.labels()), list(initial.held.labels())
        self._values = [k for k, label in enumerate(labels) if label not in held]
        self._places = tuple(given.index(labels[k]) for k in self._values)
        self._held = [labels.index(label) for label in held]

    @classmethod
    def of(cls, system: HybridSystem, layout: Layout) -> Starts:
        """Starts with these values; one for all calls.

        Raises
        ------
        UnsupportedError
            The initial state is projected onto constraints (`project=`).
        """
        if system.initial.moved:
            raise UnsupportedError(
                "Initial values cannot be given for a start that is moved onto constraints (project=).",
                mode=system.modes[system.initial.mode].name,
                remedy="Make the initial values parameters of the model.",
            )
        found: Starts = system.graph.cache.setdefault(("starts", layout), cls(system, layout))
        return found

    @property
    def size(self) -> int:
        """Number of values."""
        return self.layout.size

    def system(self, values: Array) -> HybridSystem:
        """Return the system with these initial values."""
        held = values[self._held] if self._held else None
        initial = self._system.initial.at(self._places, values[self._values], held)
        return replace(self._system, initial=initial, graph=self._graph)

    @cached_property
    def _graph(self) -> TransitionGraph:
        """The graph without the compiled initial point, which is that of the model's own values."""
        graph = self._system.graph
        if graph.ends is None or graph.ends.origin is None:
            return graph
        return replace(graph, ends=replace(graph.ends, origin=None), cache={})

    @cached_property
    def origin(self) -> NativeFunction | None:
        """`BoundaryFunctions.origin` with the values appended to the parameters; None if it is not compiled."""
        system = self._system
        explicit = None if self._held else system.initial.explicit_at(self._places)
        if explicit is None or system.signals or system.graph.ends is None:
            return None
        mode = system.modes[system.initial.mode]
        e, n_p = mode.equations, system.parameters.size
        sizes = (("t", 1), ("x", e.n), ("m", e.n_memory), ("p", n_p + self.size))
        t, _, _, p = inputs = [ca.MX.sym(name, size) for name, size in sizes]
        given = [t, ca.MX.zeros(e.n_memory), p[:n_p], p[n_p:]]
        start, by_p = explicit[0].function.call(given), explicit[1].function.call(given)[1]
        entry = mode.kernels["entry"].function.call([t, *start, p[:n_p]])
        origin = ca.Function("origin_at", inputs, [ca.densify(v) for v in (*start, *entry, by_p)])
        found = compile_functions({"origin": origin}, native=system.native)[0]["origin"]
        return found if found.address is not None else None
