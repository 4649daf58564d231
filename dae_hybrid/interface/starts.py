"""Runs from initial values, or from a mode, other than those of `HybridModel.initial`.

Initial values that are given by numbers replace those of the initial map: no function is compiled. Initial values by
which a call differentiates, and those of a start that is projected onto constraints, are parameters of a copy of the
system. The copy is built when it is needed for the first time, and kept with the system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, cast

import numpy as np

from dae_hybrid.compile.origin import Origin
from dae_hybrid.compile.other_starts import initial_mode, shifted_entries, with_parameters, with_values
from dae_hybrid.errors import ParameterError, UnsupportedError
from dae_hybrid.interface.parameter_sets import ParameterTable, as_columns, read_table, side_by_side
from dae_hybrid.interface.start_names import (
    chosen_starts,
    differentiated_starts,
    entries_of,
    legal_starts,
    names_in,
    place_of,
    size_of,
    stated_starts,
    variable_of,
)
from dae_hybrid.interface.start_values import Starts
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.system.system import HybridSystem, check_built

#: largest number of systems with other starts that are kept with a system
MOST_KEPT = 64
_building = RLock()


def started(
    system: HybridSystem,
    *,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    wrt: str | Iterable[str] | None = None,
) -> HybridSystem:
    """Return a system whose runs start at other initial values, or in another mode.

    `simulate` and the other functions that take `x0` and `start_mode` do this by themselves; functions that take a
    system only, such as `monte_carlo` and `OptimizationProblem`, are given the result.

    Parameters
    ----------
    system : HybridSystem
        As returned by `HybridModel.build`.
    x0 : mapping of str to float or array, optional
        Initial values by name of a differential variable or a memory, or of an entry (``"v[2]"``). They replace those
        of the model and do not depend on the parameters. Algebraic variables and the other memories follow from them.
        An array gives all values that `HybridModel.initial` states, in order. Values of variables that constraints or
        initial equations determine must agree with these.
    start_mode : Mode or str, optional
        Initial mode. The values that the model states hold for the variables that this mode has; `x0` gives the others.
    wrt : str or names, optional
        Initial values ``"x(0)"``, or entries ``"v(0)[2]"``, that become parameters of the result, after those of the
        model: functions differentiate by them if `wrt` names them. Values of the model that depend on parameters must
        be replaced by `x0`. Other names are ignored.

    Returns
    -------
    HybridSystem
        The system itself if nothing changes.

    Raises
    ------
    ParameterError
        A name is unknown, or a value is missing or not finite.
    UnsupportedError
        The system has no statement of its own, or other initial values already.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("decay")
    >>> k, x = m.parameter("k", 1.0), m.differential("x")
    >>> m.initial(m.mode("run", ode={x: -k * x}), {x: 1.0})
    >>> m.functional("end", terminal=x)
    >>> system = dh.started(m.build(), x0={"x": 2.0}, wrt="x(0)")
    >>> system.parameters.names
    ('k', 'x(0)')
    >>> dh.adjoint_gradient(system, (0, 1), "end", wrt=["x(0)"], rtol=1e-10).gradient.round(6)
    array([0.367879])
    """
    if not _changes(x0, start_mode, wrt):
        return system
    choice = StartChoice.of(system, x0, start_mode, wrt)
    choice.refuse_shifts()
    return choice.system_at(choice.single(x0))


def for_call(
    system: HybridSystem, x0: ParameterTable, start_mode: Mode | str | None, wrt: object = None
) -> HybridSystem:
    """Return the system of a call that differentiates by `wrt`, at the values of the model or of `x0`.

    Where the model's initial value depends on parameters, the derivative is that by a shift of it.
    """
    if not _changes(x0, start_mode, wrt):
        return system
    choice = StartChoice.of(system, x0, start_mode, wrt)
    return choice.system_at(choice.single(x0))


def parted(
    system: HybridSystem, x0: ParameterTable, start_mode: Mode | str | None, wrt: object
) -> tuple[HybridSystem, dict[str, Any]]:
    """Return a system with the parameters by which a function differentiates, and what remains of the start.

    A system that `started` returned is parted in the same way.
    """
    remaining: dict[str, Any] = {"x0": x0, "start_mode": start_mode}
    if _changes(x0, start_mode, wrt):
        choice = StartChoice.of(system, x0, start_mode, wrt)
        choice.refuse_shifts()
        values = choice.single(x0)
        system, remaining["x0"] = choice.base_at(values), choice.rest(values)
    if (given := _given_before(system)) is None:
        return system, remaining
    original, before, mode, names = given
    base, own = parted(original, before or None, mode, names)
    return replace(base, nominal=system.nominal), {"x0": own["x0"] or remaining["x0"], "start_mode": mode}


def _changes(x0: ParameterTable, start_mode: Mode | str | None, wrt: object) -> bool:
    """Whether a call may start elsewhere, or differentiate by an initial value."""
    return x0 is not None or start_mode is not None or any("(0)" in name for name in names_in(wrt))


@dataclass(frozen=True, eq=False)
class StartChoice:
    """The initial values that a call gives, and the system with the parameters by which it differentiates.

    Attributes
    ----------
    base : HybridSystem
        The system, or its copy with initial values as parameters.
    system : HybridSystem
        `base` with the initial map of the call.
    layout : Layout
        The given values, in order.
    starts : Starts or None
        Those that are numbers of the initial map, and `numbers`, their places in the layout.
    parameters : tuple of (int, int)
        Place in the layout and index of the parameter of the others.
    """

    original: HybridSystem
    mode: str
    wrt: tuple[str, ...]
    base: HybridSystem
    system: HybridSystem
    layout: Layout
    starts: Starts | None
    numbers: tuple[int, ...]
    parameters: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, system: HybridSystem, x0: Any, start_mode: Mode | str | None = None, wrt: object = None) -> StartChoice:
        """Choose the values that `x0` gives, a table or names, for a call that differentiates by `wrt`.

        Raises
        ------
        ParameterError
            A name is unknown, given twice, or has no value that could be replaced.
        """
        original = base = check_built(system)
        mode = initial_mode(base, start_mode)
        model = _statement(base)
        legal = legal_starts(base, mode, model)
        stated = stated_starts(base, model, legal)
        layout = chosen_starts(base, mode, legal, stated, x0)
        entries = entries_of(legal, layout)
        hidden = [name for name, _ in base.parameters.blocks[len(base.parameters.blocks) - base.hidden_blocks :]]
        twice = [name for name in entries if f"{name}(0)" in hidden]
        if twice:
            raise ParameterError(
                f"x0 gives {', '.join(twice)}, whose initial value is a parameter of this system.",
                variables=twice,
                remedy=f"Give it as parameter '{twice[0]}(0)'.",
            )
        named = differentiated_starts(base, legal, wrt)
        if base.initial.is_replaced and (entries or named or mode != base.initial.mode):
            raise UnsupportedError(
                f"'{system.name}' starts at values that started() has replaced, and they cannot be replaced again.",
                remedy="Give all initial values, the mode and wrt in one call, for the system that build() returned.",
            )
        loose = [name for name in named if name not in stated and len(entries.get(name, ())) < size_of(legal, name)]
        if loose:
            raise ParameterError(
                f"wrt: the model gives {', '.join(loose)} no initial value as a whole.",
                variables=loose,
                remedy=f"It gives those of {', '.join(stated) or 'none'}; x0= gives others.",
            )
        if base.initial.moved:
            named = tuple(dict.fromkeys((*named, *entries)))
        if named:
            extra = tuple(name for name in entries if name not in base.initial.given)
            replaced = {name: tuple(entries.get(name, ())) for name in named}
            key = ("start parameters", mode, tuple(replaced.items()), extra)
            base = _kept(base, key, lambda: with_parameters(original, _origin(original), mode, replaced, extra))
        own, rest = base, Layout.of((n, s) for n, s in layout.blocks if variable_of(legal, n) not in named)
        missing = [(variable_of(legal, n), n) for n in rest.names if variable_of(legal, n) not in base.initial.given]
        states = base.modes[mode].differential
        extra = tuple(dict.fromkeys(name if name in states else label for name, label in missing))
        if extra or mode != base.initial.mode:
            own = _kept(base, ("start", mode, extra), lambda: with_values(base, _origin(base), mode, extra))
        parameters, numbers = [], []
        for k, label in enumerate(layout.labels()):
            name, entry = place_of(legal, label)
            if name in named:
                parameters.append((k, base.parameters[f"{name}(0)"].start + entry))
            else:
                numbers.append(k)
        starts = Starts.of(own, rest) if rest.size else None
        return cls(
            original, base.modes[mode].name, tuple(f"{name}(0)" for name in named), base, own, layout, starts,
            tuple(numbers), tuple(parameters),
        )  # fmt: skip

    def refuse_shifts(self) -> None:
        """Refuse initial values as parameters where they would be shifts of values that depend on others.

        Raises
        ------
        ParameterError
            The model's value depends on parameters, and `x0` does not replace it.
        """
        if self.base is self.original:
            return
        given = {label for label in self.layout.labels()}
        model, found = _origin(self.original).model, []
        for name in (own.removesuffix("(0)") for own in self.wrt):
            size = model.declarations[name].size
            labels = [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
            found += [labels[i] for i in shifted_entries(model, name) if labels[i] not in given]
        if found:
            raise ParameterError(
                f"wrt: the model's initial value of {', '.join(found)} depends on parameters.",
                variables=found,
                remedy="Give the value by x0=, which replaces it.",
            )

    def read(self, x0: ParameterTable) -> Array:
        """Return a table of given values as rows, (N, n)."""
        return np.zeros((1, 0)) if x0 is None else read_table("x0", x0, self.layout, None)

    def single(self, x0: ParameterTable) -> Array:
        """Return the given values of a single run."""
        table = None if x0 is None else as_columns(x0)
        rows = self.read(table if table is None or isinstance(table, Mapping) else np.atleast_2d(table))
        if len(rows) != 1 or not np.isfinite(rows).all():
            raise ParameterError(f"x0: the finite initial values of one run are needed, got {rows}.")
        return rows[0]

    def tables(self, parameters: ParameterTable, x0: ParameterTable) -> tuple[Array, Array | None]:
        """Return the parameters of many runs, and their numbers of the initial map, None if there are none.

        Raises
        ------
        ParameterError
            Wrong names, shapes or types, or different numbers of runs.
        """
        base, given = self.base, as_columns(parameters)
        own = base.parameters
        layout = Layout(own.blocks[: len(own.blocks) - base.hidden_blocks], own.shapes)
        if isinstance(given, Mapping) or (base.hidden and np.shape(given)[1:] == (base.parameters.size,)):
            layout = base.parameters
        sets = read_table("parameters", given, layout, base.nominal[: layout.size])
        if sets.shape[1] < base.nominal.size:
            sets = np.hstack((sets, np.broadcast_to(base.nominal[layout.size :], (len(sets), base.hidden))))
        if x0 is None:
            return sets, None
        rows = self.read(x0)
        if self.parameters:
            whole = side_by_side(sets, rows)
            sets, rows = whole[:, : sets.shape[1]].copy(), whole[:, sets.shape[1] :]
            places, indices = zip(*self.parameters, strict=True)
            sets[:, list(indices)] = rows[:, list(places)]
        return sets, rows[:, list(self.numbers)] if self.starts is not None else None

    def nominal(self, values: Array) -> Array:
        """Return the nominal parameters with given values, of `layout`."""
        found = self.base.nominal.copy()
        for place, index in self.parameters:
            found[index] = values[place]
        found.flags.writeable = False
        return found

    def system_at(self, values: Array) -> HybridSystem:
        """Return the system with given values, of `layout`."""
        found = self.system if self.starts is None else self.starts.system(values[list(self.numbers)])
        if found is self.base:
            return self.base_at(values)
        reduced = self._reduced(values)
        return replace(found, nominal=self.nominal(values), remake=lambda: reduced)

    def base_at(self, values: Array) -> HybridSystem:
        """Return `base` with given values that are parameters; `rest` are the others."""
        if self.base is self.original:
            return self.original
        remake = _OriginAtStart(cast(Origin, self.base.remake), self._reduced(values))
        return replace(self.base, nominal=self.nominal(values), remake=remake)

    def rest(self, values: Array) -> dict[str, Array] | None:
        """Return given values that are no parameters, by name; None if there are none."""
        starts = None if self.starts is None else self.starts.layout.names
        return None if starts is None else {name: values[self.layout[name]] for name in starts}

    @property
    def carrier(self) -> HybridSystem:
        """`system`, to be pickled without values."""
        if self.system is self.original:
            return self.original
        reduced = _carrier_again, (self.original, self.layout.names, self.mode, self.wrt)
        if self.system is self.base:
            return replace(self.base, remake=_OriginAtStart(cast(Origin, self.base.remake), reduced))
        return replace(self.system, remake=lambda: reduced)

    def _reduced(self, values: Array) -> tuple[Any, ...]:
        pieces = {label: values[self.layout[label]] for label in self.layout.names}
        return _started_again, (self.original, pieces, self.mode, self.wrt)


class _OriginAtStart(Origin):
    """The origin of a system with initial values as parameters; its pickle contains the original system."""

    def __init__(self, origin: Origin, reduced: tuple[Any, ...]) -> None:
        self.model, self.options, self._reduced = origin.model, origin.options, reduced

    def __call__(self) -> tuple[Any, ...]:
        """Value of `__reduce__` of the system."""
        return self._reduced


def _started_again(system: HybridSystem, values: Mapping[str, Array], mode: str, wrt: tuple[str, ...]) -> HybridSystem:
    """Restore the system of a pickle."""
    return for_call(system, values or None, mode, wrt)


def as_built(system: HybridSystem) -> tuple[HybridSystem, tuple[str, ...]]:
    """Return the system that `build` returned, and the initial mode, parameters and values that a call has changed."""
    reduced = None if system.remake is None else system.remake()
    if reduced is None or reduced[0] not in (_carrier_again, _started_again):
        return system, ()
    original, given, mode, wrt = reduced[1]
    values = given.items() if isinstance(given, Mapping) else ()
    return original, (mode, *wrt, *(f"{label} = {value.tolist()}" for label, value in values))


def _given_before(system: HybridSystem) -> tuple[Any, ...] | None:
    """The arguments of `_started_again` for a system with numbers or a mode of `started`; None for others."""
    reduced = None if system.remake is None or isinstance(system.remake, Origin) else system.remake()
    return None if reduced is None or reduced[0] is not _started_again else reduced[1]


def _carrier_again(system: HybridSystem, names: Sequence[str], mode: str, wrt: tuple[str, ...]) -> HybridSystem:
    """Restore the system of a pickle without values."""
    return StartChoice.of(system, dict.fromkeys(names) or None, mode, wrt).carrier


def _kept(system: HybridSystem, key: tuple[Any, ...], make: Callable[[], HybridSystem]) -> HybridSystem:
    """Return a system that is made once and kept with another one."""
    with _building:
        kept: dict[Any, HybridSystem] = system.graph.cache.setdefault("started", {})
        found = kept.pop(key, None) or make()
        kept[key] = found  # the latest one comes last
        if len(kept) > MOST_KEPT:
            del kept[next(iter(kept))]
        return found


def _origin(system: HybridSystem) -> Origin:
    if not isinstance(system.remake, Origin):
        raise UnsupportedError(
            f"Other initial values of '{system.name}' need its statement, and it is a system derived from another.",
            remedy="Pass the system that build() returned.",
        )
    return system.remake


def _statement(system: HybridSystem) -> HybridModel | None:
    """The statement of a system, also of one that `started` returned; None if it has none."""
    if isinstance(system.remake, Origin):
        return system.remake.model
    given = _given_before(system)
    return None if given is None else _statement(given[0])
