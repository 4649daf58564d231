"""Runs from initial values other than those of `HybridModel.initial`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import casadi as ca

from dae_hybrid.codegen.kernels import NativeFunction, compile_functions
from dae_hybrid.errors import ParameterError, UnsupportedError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.system.system import HybridSystem


def started_at(system: HybridSystem, names: Sequence[str], values: Array) -> HybridSystem:
    """A system with other initial values of these variables; for pickles."""
    return Starts.of(system, names).system(values)


class Starts:
    """Initial states of a system's runs as functions of chosen initial values, ordered as in `layout`."""

    def __init__(self, system: HybridSystem, layout: Layout) -> None:
        self._system, self.layout = system, layout
        given = system.initial.given
        self._places = tuple(i for name in layout.names for i in range(given[name].start, given[name].stop))

    @classmethod
    def of(cls, system: HybridSystem, names: Sequence[str] | None) -> Starts:
        """Choose variables by name; None chooses every variable with an initial value in the model.

        Raises
        ------
        ParameterError
            A name has no initial value in the model.
        UnsupportedError
            The initial state is projected onto constraints (`project=`).
        """
        given, mode = system.initial.given, system.modes[system.initial.mode].name
        if system.initial.moved:
            raise UnsupportedError(
                "Initial values cannot be given for a start that is moved onto constraints (project=).",
                mode=mode,
                remedy="Make the initial values parameters of the model.",
            )
        chosen = given.names if names is None else tuple(names)
        unknown = [name for name in chosen if name not in given]
        if unknown or not chosen:
            raise ParameterError(
                f"x0: {', '.join(map(repr, unknown)) or 'nothing'} is no variable to which the model gives an initial "
                "value.",
                mode=mode,
                remedy=f"Those are {', '.join(given.names) or 'none'}; all others follow from equations.",
            )
        layout = Layout(tuple((name, size) for name, size in given.blocks if name in chosen))
        found: Starts = system.graph.cache.setdefault(("starts", layout), cls(system, layout))
        return found

    @property
    def size(self) -> int:
        """Number of values."""
        return self.layout.size

    def system(self, values: Array) -> HybridSystem:
        """Return the system with these initial values."""
        system = self._system
        # the compiled initial point is that of the model's own values
        return replace(
            system,
            initial=system.initial.at(self._places, values),
            graph=replace(system.graph, ends=None),
            remake=lambda: (started_at, (system, self.layout.names, values)),
        )

    @cached_property
    def origin(self) -> NativeFunction | None:
        """`BoundaryFunctions.origin` with the values appended to the parameters; None if it is not compiled."""
        system = self._system
        explicit = system.initial.explicit_at(self._places)
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
