"""From a `HybridModel` to a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import UnsupportedError
from dae_hybrid.modelfile.grammar import DATA, FUNCTIONS, quoted
from dae_hybrid.modelfile.graph_text import Definitions, Functions, Graph, Text
from dae_hybrid.modelfile.reading import EQUATIONS, VERSION
from dae_hybrid.statement.declarations import (
    DIRECTIONS,
    Clock,
    Declaration,
    Functional,
    Initial,
    Mode,
    MotionStatement,
    Series,
    SharedEquations,
    Transition,
)
from dae_hybrid.statement.lookup import LookupTable
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.peaks import CROSSINGS
from dae_hybrid.statement.transitions import ALL, SAME
from dae_hybrid.statement.triggers import PeriodicTrigger

#: a long array to the value that stands for it in the document: its numbers, or the columns of a data file
Data = Callable[[str, dict[str, NDArray[np.float64]]], dict[str, Any]]


class Written(NamedTuple):
    """The document of a model, and the operations, shapes and numbers of nonzeros of its expressions in order."""

    document: dict[str, Any]
    operations: list[tuple[int, tuple[int, int], int]]


def written(model: HybridModel, data: Data) -> Written:
    """The document of a model: tables, text and numbers.

    Raises
    ------
    UnsupportedError
        The model contains what the grammar lacks; the message names it.
    """
    return _Writer(model, data).written()


class _Writer:
    def __init__(self, model: HybridModel, data: Data) -> None:
        self._model = model
        self._data = data
        self._columns: dict[int, Text] = {}  # the data in values of series

    def written(self) -> Written:
        m = self._model
        tree: dict[str, Any] = {
            "dae_hybrid": VERSION,
            "name": m.name,
            "parameters": {d.name: self._parameter(d) for d in m.of_kind("parameter")},
            "variables": {d.name: self._variable(d) for d in m.declarations.values() if d.kind != "parameter"},
            "tables": {name: self._table(table) for name, table in m.tables.items()},
            "functions": {},
            "definitions": {},
            "clocks": {name: self._clock(clock) for name, clock in m.clocks.items()},
            "modes": {name: self._mode(mode) for name, mode in m.modes.items()},
            "equations": {name: self._shared(shared) for name, shared in m.shared.items()},
            "transitions": {name: self._transition(t) for name, t in m.transitions.items()},
            "initial": {} if m.start is None else self._initial(m.start),
            "functionals": {name: self._functional(f) for name, f in m.functionals.items()},
        }
        roots: list[ca.MX] = []
        _expressions(tree, roots)
        known = {f.name(): name for table in m.tables.values() for name, f in table.functions().items()}
        definitions, functions = Definitions({*m.declarations, "t", DATA}), Functions(known)
        graph = Graph(self._leaves(), definitions, functions, m.name)
        tree = _replaced(tree, iter(graph.write(roots)))
        tree["definitions"], tree["functions"] = definitions.by_name, functions.tables
        return Written({key: value for key, value in tree.items() if value != {}}, graph.operations)

    def _leaves(self) -> dict[int, Text]:
        """Symbols and other named expressions."""
        m = self._model
        found = {m.time.__hash__(): Text("t"), **self._columns}
        for d in m.declarations.values():
            if d.matrix is not None:
                found[d.matrix.__hash__()] = Text(quoted(d.name))
                found[d.symbol.__hash__()] = Text(f"reshape(transpose({quoted(d.name)}), {d.size}, 1)")
            elif d.signal is None:
                found[d.symbol.__hash__()] = Text(quoted(d.name))
        for name, (value, rate) in [*m.signals.items(), *m.inputs.items()]:
            for part, text in ((value, quoted(name)), (rate, f"der({quoted(name)})")):
                if not part.is_constant():
                    found[part.__hash__()] = Text(text)
        for name, symbol in m.rates.items():
            found[symbol.__hash__()] = Text(f"der({quoted(name)})")
        for name, symbol in m.indicators.items():
            found[symbol.__hash__()] = Text(f"active({quoted(name)})")
        for name, symbol in m.posts.items():
            inner = quoted(name) if name in m.declarations else f"der({quoted(name[4:-1])})"  # named der(...)
            found[symbol.__hash__()] = Text(f"post({inner})")
        return found

    # -- declarations -------------------------------------------------------------------------------------

    def _parameter(self, d: Declaration) -> Any:
        words = _words(d)
        value = _numbers(d.start) if d.matrix is None else d.start.reshape(d.matrix.shape).tolist()
        return {"value": value, **words} if words else value

    def _variable(self, d: Declaration) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if d.signal is not None:
            found["kind"] = "signal"
            knots, values = d.signal.knots, d.signal.values
            if values.is_constant():
                found |= self._data(d.name, {"times": knots, "values": np.array(values.to_DM()).ravel()})
            else:
                found |= self._data(d.name, {"times": knots}) | {"values": values}
            if d.signal.kind != "linear":
                found["interpolation"] = d.signal.kind
            if d.signal.hold:
                found["outside"] = "hold"
            return found | _words(d)
        if d.kind != "differential":
            found["kind"] = d.kind
        if d.size > 1 and d.of is None:
            found["size"] = d.size
        if d.value is not None and d.value.any():
            found["guess"] = _short(d.value)
        if d.bounds is not None:
            found["lower"], found["upper"] = (_short(side) for side in d.bounds)
        if d.of is not None:
            found["of"] = d.of.name
        if d.initial is not None:
            found["initial"] = d.initial
        return found | _words(d)

    def _table(self, table: LookupTable) -> dict[str, Any]:
        if table.name in FUNCTIONS:
            raise UnsupportedError(
                f"Table '{table.name}' has the name of a function of the grammar of model files.",
                remedy="Take another name.",
            )
        found: dict[str, Any] = {} if len(table.grid) == 1 else {"grid": [axis.tolist() for axis in table.grid]}
        columns = {"grid": table.grid[0]} if len(table.grid) == 1 else {}
        if table.values.is_constant():
            values = table.values.to_DM().full()
            found |= self._data(table.name, columns | {"values": values[:, 0] if columns else values})
        else:
            found |= (self._data(table.name, columns) if columns else {}) | {"values": table.values}
        if table.kind != "cubic":
            found["interpolation"] = table.kind
        if table.outside != "error":
            found["outside"] = table.outside
        return found | _words(table)

    # -- modes and transitions ----------------------------------------------------------------------------

    def _mode(self, mode: Mode) -> dict[str, Any]:
        found: dict[str, Any] = {"ode": dict(mode.ode)} if mode.ode else {}
        start = 0
        for kind in EQUATIONS:
            column = getattr(mode, kind)
            rows = _equations(column, mode.labels[start : start + column.numel()], f"{kind} equation")
            if rows:
                found[kind] = rows
            start += column.numel()
        if mode.mass is not None:
            found |= {"mass": mode.mass.matrix, "rhs": _equations(mode.mass.rhs, mode.mass.labels, "mass equation")}
            found["variables"] = list(mode.mass.variables)
        if mode.idle:
            found["idle"] = list(mode.idle)
        if mode.motion is not None:
            found["motion"] = self._motion(mode.motion)
        return found

    def _shared(self, shared: SharedEquations) -> dict[str, Any]:
        modes = {"modes": list(shared.modes)} if shared.modes else {}
        return modes | self._mode(shared.stated)

    def _motion(self, motion: MotionStatement) -> dict[str, Any]:
        found: dict[str, Any] = {key: list(getattr(motion, key)) for key in ("q", "v", "a", "multipliers")}
        found |= {"inner": [list(group) for group in motion.inner], "phi": motion.phi}
        if motion.projection is not None:
            found["projection"] = motion.projection
        return found | {
            "projection_penalty": float(motion.projection_penalty),
            "newmark": [float(part) for part in motion.newmark],
            "spectral_radius": float(motion.spectral_radius),
        }

    def _clock(self, clock: Clock) -> dict[str, Any]:
        return {"period": clock.period, "offset": clock.offset}

    def _transition(self, t: Transition) -> dict[str, Any]:
        if t.bound is not None or t.becomes or t.jumps or t.relation is not None:
            raise UnsupportedError(f"Transition '{t.name}' was derived by a build; write the model as it was declared.")
        names = [mode.name for mode in t.sources]
        found: dict[str, Any] = {"source": names[0] if len(names) == 1 else names or ALL}
        if t.refusal:
            return found | {"require": t.trigger.expression, "reason": t.refusal}
        if t.target is not None or t.stays:
            found["target"] = SAME if t.target is None else t.target.name
        if isinstance(t.trigger, PeriodicTrigger) and t.trigger.clock:
            found["clock"] = t.trigger.clock
        else:
            found[t.trigger.argument] = t.trigger.expression
        direction = next(word for word, sign in DIRECTIONS.items() if sign == t.direction)
        if direction != "both":
            found["direction"] = direction
        for key in ("when", "priority"):
            if getattr(t, key) is not None:
                found[key] = getattr(t, key)
        if t.delay is not None:
            found |= {"delay": t.delay.time, "pending": t.delay.pending}
            if t.delay.at_trigger:
                found["values"] = "trigger"
            if not t.delay.persistent:
                found["persistent"] = False
        if t.on_entry != "wait":
            found["on_entry"] = t.on_entry
        if np.isfinite(t.resolution):
            found["resolution"] = float(t.resolution)
        if not t.freezes:
            found["freezes"] = False
        rows = _equations(t.equations, t.labels, "reset equation")
        found |= {"reset": rows} if rows else {}
        for key in ("reset", "memory", "guess"):
            if getattr(t, key):
                found[key] = dict(getattr(t, key))
        return found | _projection(t)

    def _initial(self, start: Initial) -> dict[str, Any]:
        found: dict[str, Any] = {"mode": start.mode.name}
        if start.values:
            found["values"] = dict(start.values)
        rows = _equations(start.equations, start.labels, "initial equation")
        found |= {"equations": rows} if rows else {}
        if start.guess:
            found["guess"] = dict(start.guess)
        return found | _projection(start)

    def _functional(self, f: Functional) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in ("integrand", "terminal"):
            if getattr(f, key) is not None:
                found[key] = getattr(f, key)
        measured = [{"time": when, "value": value} for when, value in f.at_times]
        measured += [self._series(f.name, i, series) for i, series in enumerate(f.series)]
        if measured:
            found["at_times"] = measured
        if f.at_events:
            found["at_events"] = dict(f.at_events)
        for peak in f.peaks:
            names = CROSSINGS.get(peak.kind)
            found[peak.kind] = peak.parts[0] if names is None else dict(zip(names, peak.parts, strict=True))
        return found

    def _series(self, functional: str, i: int, series: Series) -> dict[str, Any]:
        self._columns[series.column.__hash__()] = Text(DATA)
        data = series.data[:, 0] if series.data.shape[1] == 1 else series.data
        return self._data(f"{functional}_{i}", {"times": series.times, DATA: data}) | {"value": series.value}


def _words(d: Declaration | LookupTable) -> dict[str, str]:
    return {key: getattr(d, key) for key in ("unit", "description") if getattr(d, key)}


def _numbers(values: NDArray[np.float64]) -> Any:
    return float(values[0]) if values.size == 1 else [float(value) for value in values]


def _short(values: NDArray[np.float64]) -> Any:
    """One number for equal ones, which is repeated."""
    return float(values[0]) if np.all(values == values[0]) else [float(value) for value in values]


def _projection(of: Transition | Initial) -> dict[str, Any]:
    found: dict[str, Any] = {"project": [d.name for d in of.project]} if of.project else {}
    return found if of.metric is None else found | {"metric": of.metric}


def _equations(column: ca.MX, labels: Sequence[str], kind: str) -> list[Any]:
    """Rows of equations, with the labels that are not the default."""
    if not column.numel():
        return []
    joined = column.op() == ca.OP_VERTCAT and all(column.dep(i).is_dense() for i in range(column.n_dep()))
    rows: list[Any] = []
    at = 0
    for part in [column.dep(i) for i in range(column.n_dep())] if joined else [column]:
        count = part.numel()
        own = list(labels[at : at + count])
        base = own[0].removesuffix("[0]") if count > 1 else own[0]
        if own == [f"{kind} {i}" for i in range(at, at + count)]:
            rows.append(part)
        elif own == ([base] if count == 1 else [f"{base}[{i}]" for i in range(count)]) and base:
            rows.append({"label": base, "equation": part})
        else:
            rows.append({"labels": own, "equation": part})
        at += count
    return rows


def _expressions(tree: Any, found: list[ca.MX]) -> None:
    """Collect the expressions of a tree in order."""
    if isinstance(tree, ca.MX):
        found.append(tree)
    elif isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            _expressions(part, found)


def _replaced(tree: Any, texts: Any) -> Any:
    """The tree with the next text in place of every expression."""
    if isinstance(tree, ca.MX):
        return next(texts)
    if isinstance(tree, dict):
        return {key: _replaced(part, texts) for key, part in tree.items()}
    return [_replaced(part, texts) for part in tree] if isinstance(tree, list) else tree
