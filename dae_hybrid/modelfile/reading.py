"""From a document to a `HybridModel`, by the methods a user calls."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.errors import ModelError
from dae_hybrid.modelfile.document import Document
from dae_hybrid.modelfile.grammar import DATA, FUNCTIONS, Evaluator, Expression, GrammarError, Pattern
from dae_hybrid.modelfile.limits import MAX_ENTRIES
from dae_hybrid.modelfile.positions import Path
from dae_hybrid.statement.declarations import Functional, Mode, MotionStatement, Series
from dae_hybrid.statement.discontinuities import are_smooth
from dae_hybrid.statement.expressions import limits
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.peaks import CROSSINGS, EXTREMA, SHORTHANDS, TIMES

#: version of the format, the value of the key ``dae_hybrid``
VERSION = 1
TABLES = (
    "dae_hybrid", "name", "run", "build", "parameters", "variables", "tables", "functions", "definitions",
    "clocks", "equations",
    "modes", "transitions", "initial", "functionals",
)  # fmt: skip
COMMON = ("kind", "size", "unit", "description")
#: keys of a variable besides those of all, by kind
VARIABLES = {
    "differential": (),
    "algebraic": ("guess", "lower", "upper"),
    "unknown": ("guess",),
    "memory": ("of", "initial"),
    "signal": ("times", "values", "interpolation", "outside"),
}
EQUATIONS = ("residual", "algebraic", "constraint")
MASS = ("mass", "rhs", "variables")
MOTION = (
    "q", "v", "a", "multipliers", "inner", "phi", "projection", "projection_penalty", "newmark", "spectral_radius",
)  # fmt: skip
TRANSITION = (
    "source", "target", "guard", "at", "every", "clock", "require", "reason", "direction", "when", "priority", "delay",
    "values", "persistent", "pending", "reset", "memory", "project", "metric", "guess", "on_entry", "resolution",
    "freezes",
)  # fmt: skip
#: entries of a transition that are neither names of modes nor expressions
WORDS = ("direction", "on_entry", "values", "persistent", "pending", "project")
#: expressions of a functional with several of them, by name
SEVERAL = CROSSINGS | SHORTHANDS
FUNCTIONAL = ("integrand", "terminal", "at_times", "at_events", *EXTREMA, *TIMES, *SEVERAL)
LOOKUP = ("grid", "values", "interpolation", "outside", "unit", "description")
RUN = ("t_span", "rtol", "atol")
BUILD = ("eliminate", "index2", "kinks")


@dataclass
class ModelFile:
    """The contents of a model file.

    Attributes
    ----------
    model : HybridModel
    run : dict
        Defaults of a run: ``t_span``, ``rtol``, ``atol``, where the file states them.
    build : dict
        Options of `HybridModel.build` that the file states.
    bounds : dict
        Lower and upper bounds of parameters for fits, by name.
    """

    model: HybridModel
    run: dict[str, Any] = field(default_factory=dict)
    build: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, tuple[Any, Any]] = field(default_factory=dict)


class Names(dict[str, Any]):
    """Values of symbols and definitions; a definition is evaluated when an expression first needs it."""

    def __init__(self, document: Document, definitions: dict[str, Any], path: Path) -> None:
        super().__init__()
        self.document = document
        self.path = path
        self.evaluate: Evaluator
        self._pending: dict[str, tuple[Path, Any]] = {n: ((*path, n), value) for n, value in definitions.items()}

    def finish(self) -> None:
        """Evaluate what is left."""
        self.define(list(self._pending))

    def define(self, names: Iterable[str]) -> None:
        """Evaluate definitions, and before them those that they use. No recursion: chains may be long."""
        waiting: list[Iterator[str]] = [iter(names)]
        begun: dict[str, Expression | None] = {}
        while waiting:
            name = next((n for n in waiting[-1] if n in self._pending), None)
            if name is None:
                waiting.pop()
                if begun:
                    name, text = begun.popitem()
                    path, value = self._pending.pop(name)
                    with self.document.at(path):
                        self[name] = ca.DM(self.document.array(path, value)) if text is None else self.evaluate(text)
                        if text is None:
                            self[name] = self.evaluate.kind(self[name])
                continue
            path, value = self._pending[name]
            if name in begun:
                cycle = [*list(begun)[list(begun).index(name) :], name]
                raise self.document.error(path, f"the definition depends on itself: {' -> '.join(cycle[:8])}")
            with self.document.at(path):
                begun[name] = Expression(value) if isinstance(value, str) else None
                self._refuse_data(begun[name])
            used = begun[name]
            waiting.append(iter([] if used is None else list(used.used())))

    def _refuse_data(self, text: Expression | None) -> None:
        """Refuse the name of a row of data in a definition if the model has that name: its use would decide."""
        if text is None or self.path != ("definitions",) or (DATA not in self and DATA not in self._pending):
            return
        for node in ast.walk(text.body):
            if isinstance(node, ast.Name) and text.name(node.id) == (DATA, False):
                raise GrammarError(f"'{DATA}' is ambiguous: write `{DATA}` for the name of the model", text.place(node))

    def value(self, path: Path, given: Any) -> Any:
        """The value of an expression: text, a number, or a list of these."""
        if isinstance(given, str):
            with self.document.at(path):
                text = Expression(given)
                self.define(text.used())
                found = self.evaluate(text)
                if not isinstance(found, ca.MX | ca.SX | Pattern):
                    raise ModelError("the value is that of a function with several outputs; take one by an index")
                return found
        if isinstance(given, list) and any(isinstance(part, str) for part in given):
            parts = [self.value((*path, i), part) for i, part in enumerate(given)]
            with self.document.at(path):
                if any(isinstance(part, Pattern) or part.shape[1] != 1 for part in parts):
                    raise ModelError("every entry of a list must be a number or a vector")
                return ca.vertcat(*parts)
        return self.evaluate.kind(ca.DM(self.document.array(path, given)))


class Reader:
    """Reads one document."""

    def __init__(self, document: Document) -> None:
        self._doc = document
        self.functions: dict[str, ca.Function] = {}

    def read(self) -> ModelFile:
        """The model and what the file states besides.

        Raises
        ------
        ModelFileError
            An entry is unknown, missing or wrong; the error has its place in the file.
        """
        doc = self._doc
        top = doc.table((), doc.content, TABLES)
        version = top.get("dae_hybrid", VERSION)
        if version != VERSION or isinstance(version, bool):
            raise doc.error(("dae_hybrid",), f"this version of dae_hybrid reads version {VERSION}, got {version!r}")
        self._model = HybridModel(doc.string(("name",), top.get("name", "model")))
        tables = {key: doc.table((key,), top.get(key, {})) for key in TABLES if key not in ("dae_hybrid", "name")}
        self.functions = {}
        for name, value in tables["functions"].items():
            self.functions[name] = self._function(("functions", name), name, value)
        self._names = Names(doc, tables["definitions"], ("definitions",))
        for name in tables["definitions"]:
            if name in tables["parameters"] or name in tables["variables"] or name == "t":
                raise doc.error(("definitions", name), f"'{name}' is declared as a parameter or a variable")
        m = self._model
        sides = {"der": m.der, "post": m.post, "pre": m.pre, "active": m.active}
        self._names.evaluate = Evaluator(ca.MX, self._names, self.functions, sides)
        self._names["t"] = self._model.time
        self._entries = 0
        self._columns: set[int] = set()  # hashes of columns of data
        self._kept: list[ca.MX] = []  # which keeps the hashes unique
        bounds = self._parameters(tables["parameters"])
        for name, value in tables["tables"].items():
            self._lookup(("tables", name), name, value)
        self._variables(tables["variables"])
        order = self._model.declarations
        self._model.declarations = {name: order[name] for name in (*tables["parameters"], *tables["variables"])}
        for name, value in tables["modes"].items():
            self._mode(("modes", name), name, value)
        for name, value in tables["equations"].items():
            self._shared(("equations", name), name, value)
        for name, value in tables["clocks"].items():
            self._clock(("clocks", name), name, value)
        for name, value in tables["transitions"].items():
            self._transition(("transitions", name), name, value)
        if "initial" in top:
            self._initial(("initial",), tables["initial"])
        for name, value in tables["functionals"].items():
            self._functional(("functionals", name), name, value)
        self._names.finish()
        return ModelFile(self._model, self._run(tables["run"]), self._build(tables["build"]), bounds)

    def _value(self, path: Path, given: Any) -> Any:
        found = self._names.value(path, given)
        if isinstance(found, Pattern):
            raise self._doc.error(path, "a pattern is not a value")
        if found.numel() > MAX_ENTRIES:
            raise self._doc.error(path, f"the value has {found.numel()} entries, more than {MAX_ENTRIES}")
        return found

    def _values(self, path: Path, given: Any) -> dict[str, Any] | None:
        """A table of expressions by variable."""
        if given is None:
            return None
        return {name: self._value((*path, name), value) for name, value in self._doc.table(path, given).items()}

    # -- settings -----------------------------------------------------------------------------------------

    def _run(self, given: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in self._doc.table(("run",), given, RUN).items():
            path = ("run", key)
            if key == "t_span":
                span = [self._doc.number((*path, i), part) for i, part in enumerate(self._doc.entries(path, value))]
                if len(span) != 2 or span[0] >= span[1]:
                    raise self._doc.error(path, f"expected two increasing times, got {value!r}")
                found[key] = (span[0], span[1])
            else:
                found[key] = self._doc.number(path, value)
                if found[key] <= 0:
                    raise self._doc.error(path, f"a tolerance must be positive, got {value!r}")
        return found

    def _build(self, given: dict[str, Any]) -> dict[str, Any]:
        legal = {"eliminate": (True, False), "index2": ("reduced", "direct"), "kinks": ("integrate", "events")}
        for key, value in self._doc.table(("build",), given, BUILD).items():
            if type(value) is not type(legal[key][0]) or value not in legal[key]:
                words = " or ".join(str(word).lower() for word in legal[key])
                raise self._doc.error(("build", key), f"expected {words}, got {value!r}")
        return given

    # -- declarations -------------------------------------------------------------------------------------

    def _parameters(self, parameters: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Declare the parameters; return their bounds."""
        bounds = {}
        for name, given in parameters.items():
            path = ("parameters", name)
            plain = {} if isinstance(given, dict) and "csv" not in given else {"value": given}
            keys = ("value", "size", "unit", "description", "lower", "upper")
            entry = plain or self._doc.table(path, given, keys)
            if "value" not in entry:
                raise self._doc.error(path, "the parameter has no value")
            at = path if plain else (*path, "value")
            with self._doc.at(at):
                value, size = self._doc.array(at, entry["value"]), self._size(path, entry)
                self._names[name] = self._model.parameter(name, value, size=size, **self._words(path, entry))
            if "lower" in entry or "upper" in entry:
                bounds[name] = self._bounds(path, entry)
                with self._doc.at(path):
                    limits(f"lower and upper of '{name}'", bounds[name], self._model.declarations[name].size)
        return bounds

    def _lookup(self, path: Path, name: str, given: Any) -> None:
        """Declare a lookup table."""
        entry = self._doc.table(path, given, LOOKUP)
        missing = [key for key in ("grid", "values") if key not in entry]
        if missing:
            raise self._doc.error(path, f"the table has no {' and no '.join(missing)}")
        if name in self.functions or name in FUNCTIONS:
            raise self._doc.error(path, f"'{name}' is a function; take another name")
        at, grid = (*path, "grid"), entry["grid"]
        is_pair = isinstance(grid, list) and len(grid) == 2 and all(isinstance(axis, list | dict) for axis in grid)
        axes = [self._doc.array((*at, i), axis) for i, axis in enumerate(grid)] if is_pair else None
        words = {"kind": entry["interpolation"]} if "interpolation" in entry else {}
        words |= {"outside": entry["outside"]} if "outside" in entry else {}
        values = self._data_or_value((*path, "values"), entry["values"])
        found = axes if axes is not None else self._doc.array(at, grid)
        with self._doc.at(path):
            made = self._model.table(name, found, values, **words, **self._words(path, entry))
        self.functions |= made.functions()

    def _data_or_value(self, path: Path, given: Any) -> Any:
        """Numbers, or an expression."""
        with self._doc.at(path):
            is_text = isinstance(given, str) or (isinstance(given, list) and any(isinstance(v, str) for v in given))
            return self._value(path, given) if is_text else self._doc.array(path, given)

    def _variables(self, variables: dict[str, Any]) -> None:
        kinds = {}
        for name, given in variables.items():
            path = ("variables", name)
            kind = self._doc.table(path, given).get("kind", "differential")
            if not isinstance(kind, str) or kind not in VARIABLES:
                raise self._doc.error((*path, "kind"), f"expected one of {', '.join(VARIABLES)}, got {kind!r}")
            self._doc.table(path, given, (*COMMON, *VARIABLES[kind]))
            kinds[name] = kind
        for last in (False, True):  # memory may start from expressions in the other variables
            for name, given in variables.items():
                if (kinds[name] in ("memory", "signal")) is last:
                    path = ("variables", name)
                    with self._doc.at(path):
                        self._names[name] = getattr(self, f"_{kinds[name]}")(path, name, given)

    def _size(self, path: Path, entry: dict[str, Any]) -> Any:
        size = entry.get("size")
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_ENTRIES:
                raise self._doc.error((*path, "size"), f"expected an integer from 1 to {MAX_ENTRIES}, got {size!r}")
            self._entries += size
            if self._entries > MAX_ENTRIES:
                raise self._doc.error((*path, "size"), f"the model has more than {MAX_ENTRIES} entries")
        return size

    def _words(self, path: Path, entry: dict[str, Any]) -> dict[str, Any]:
        keys = [key for key in ("unit", "description") if key in entry]
        return {key: self._doc.string((*path, key), entry[key]) for key in keys}

    def _sized(self, path: Path, entry: dict[str, Any]) -> dict[str, Any]:
        return {"size": self._size(path, entry) or 1, **self._words(path, entry)}

    def _bounds(self, path: Path, entry: dict[str, Any]) -> tuple[Any, Any]:
        sides = (("lower", -math.inf), ("upper", math.inf))
        return tuple(self._doc.limit((*path, key), entry.get(key, none), none) for key, none in sides)

    def _guess(self, path: Path, entry: dict[str, Any]) -> dict[str, Any]:
        return {"guess": self._doc.array((*path, "guess"), entry["guess"])} if "guess" in entry else {}

    def _differential(self, path: Path, name: str, entry: dict[str, Any]) -> ca.MX:
        return self._model.differential(name, **self._sized(path, entry))

    def _algebraic(self, path: Path, name: str, entry: dict[str, Any]) -> ca.MX:
        bounds = self._bounds(path, entry) if "lower" in entry or "upper" in entry else None
        return self._model.algebraic(name, bounds=bounds, **self._guess(path, entry), **self._sized(path, entry))

    def _unknown(self, path: Path, name: str, entry: dict[str, Any]) -> ca.MX:
        return self._model.unknown(name, **self._guess(path, entry), **self._sized(path, entry))

    def _memory(self, path: Path, name: str, entry: dict[str, Any]) -> ca.MX:
        initial = self._value((*path, "initial"), entry["initial"]) if "initial" in entry else None
        of = entry.get("of")
        if of is not None:
            with self._doc.at((*path, "of")):
                of = self._model.lookup(self._doc.string((*path, "of"), of), "of").symbol
        return self._model.memory(name, of=of, initial=initial, **self._sized(path, entry))

    def _signal(self, path: Path, name: str, entry: dict[str, Any]) -> ca.MX:
        for key in ("times", "values"):
            if key not in entry:
                raise self._doc.error(path, f"the signal has no {key}")
        found = self._data_or_value((*path, "values"), entry["values"])
        words = {}
        if "interpolation" in entry:
            words["kind"] = entry["interpolation"]
        if "outside" in entry:
            words["outside"] = entry["outside"]
        times = self._doc.array((*path, "times"), entry["times"])
        return self._model.signal(name, times, found, **words, **self._words(path, entry))

    # -- functions ----------------------------------------------------------------------------------------

    def _function(self, path: Path, name: str, given: Any) -> ca.Function:
        """A function of the file, of scalar or of matrix operations."""
        entry = self._doc.table(path, given, ("name", "kind", "inputs", "definitions", "outputs"))
        if name in FUNCTIONS or name in ("range", "pattern"):
            raise self._doc.error(path, f"'{name}' is a function of the grammar; take another name")
        kind = entry.get("kind", "matrix")
        if kind not in ("matrix", "scalar"):
            raise self._doc.error((*path, "kind"), f"expected matrix or scalar, got {kind!r}")
        of = ca.MX if kind == "matrix" else ca.SX
        names = Names(self._doc, self._doc.table((*path, "definitions"), entry.get("definitions", {})),
                      (*path, "definitions"))  # fmt: skip
        names.evaluate = Evaluator(of, names, self.functions if of is ca.MX else {})
        inputs: dict[str, Any] = {}
        for key, value in self._doc.table((*path, "inputs"), entry.get("inputs", {})).items():
            at = (*path, "inputs", key)
            if isinstance(value, str):
                shape = names.value(at, value)
                if not isinstance(shape, Pattern):
                    raise self._doc.error(at, "expected a size, or a pattern")
                inputs[key] = of.sym(key, shape.sparsity)
            else:
                if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ENTRIES:
                    raise self._doc.error(at, f"expected a size, or a pattern, got {value!r}")
                inputs[key] = of.sym(key, value)
        names.update(inputs)
        outputs = self._doc.table((*path, "outputs"), entry.get("outputs", {}))
        if not inputs or not outputs:
            raise self._doc.error(path, "a function needs inputs and outputs")
        found = {key: names.value((*path, "outputs", key), value) for key, value in outputs.items()}
        names.finish()
        called = self._doc.string((*path, "name"), entry.get("name", name))
        try:
            return ca.Function(called, list(inputs.values()), list(found.values()), list(inputs), list(found))
        except (RuntimeError, NotImplementedError) as reason:
            said = str(reason).strip().splitlines()[-1]
            raise self._doc.error(path, f"CasADi refuses the function: {said}") from None

    # -- modes and transitions ----------------------------------------------------------------------------

    def _equations(self, path: Path, given: Any) -> tuple[Any, dict[int, list[str]]]:
        """Equations for `HybridModel`, and the labels of those that have several."""
        if given is None:
            return None, {}
        rows: list[Any] = []
        labels: dict[int, list[str]] = {}
        for i, row in enumerate(self._doc.entries(path, given)):
            at, label, text = (*path, i), None, row
            if isinstance(row, dict):
                self._doc.table(at, row, ("label", "labels", "equation"))
                if "equation" not in row:
                    raise self._doc.error(at, "the entry has no equation")
                at, text = (*at, "equation"), row["equation"]
                if "label" in row:
                    label = self._doc.string((*path, i, "label"), row["label"])
                if "labels" in row:
                    labels[i] = self._doc.strings((*path, i, "labels"), row["labels"])
            value = self._value(at, text)
            with self._doc.at(at):
                if not value.is_column():
                    raise ModelError(f"an equation must be a number or a vector, not {value.shape[0]}x{value.shape[1]}")
                if i in labels and len(labels[i]) != value.numel():
                    raise ModelError(f"the equation has {value.numel()} rows and {len(labels[i])} labels")
            rows.append(value if label is None else (label, value))
        return rows, labels

    @staticmethod
    def _relabelled(
        rows: Any, labels: dict[int, list[str]], stated: tuple[str, ...], start: int = 0
    ) -> tuple[str, ...]:
        found, at = list(stated), start
        for i, row in enumerate(rows or ()):
            count = (row[1] if isinstance(row, tuple) else row).numel()
            if i in labels:
                found[at : at + count] = labels[i]
            at += count
        return tuple(found)

    def _mode(self, path: Path, name: str, given: Any) -> None:
        entry = self._doc.table(path, given, ("ode", *EQUATIONS, *MASS, "idle", "motion"))
        equations = {kind: self._equations((*path, kind), entry.get(kind)) for kind in EQUATIONS}
        ode = self._values((*path, "ode"), entry.get("ode"))
        mass = self._value((*path, "mass"), entry["mass"]) if "mass" in entry else None
        rhs, own_labels = self._equations((*path, "rhs"), entry.get("rhs"))
        names = self._doc.strings((*path, "variables"), entry["variables"]) if "variables" in entry else None
        with self._doc.at(path):
            forms = {kind: rows for kind, (rows, _) in equations.items()}
            mode = self._model.mode(name, ode=ode, **forms, mass=mass, rhs=rhs, variables=names)
        if mode.mass is not None:
            relabelled = replace(mode.mass, labels=self._relabelled(rhs, own_labels, mode.mass.labels))
            mode = replace(mode, mass=relabelled)
        labels = self._all_labels(mode, equations)
        idle = tuple(self._algebraic_names((*path, "idle"), entry.get("idle", [])))
        motion = self._motion((*path, "motion"), entry["motion"]) if "motion" in entry else None
        self._model.modes[name] = replace(mode, labels=labels, idle=idle, motion=motion)

    def _all_labels(self, mode: Mode, equations: dict[str, tuple[Any, dict[int, list[str]]]]) -> tuple[str, ...]:
        labels, start = mode.labels, 0
        for kind, (rows, own) in equations.items():
            labels = self._relabelled(rows, own, labels, start)
            start += getattr(mode, kind).numel()
        return labels

    def _shared(self, path: Path, name: str, given: Any) -> None:
        entry = self._doc.table(path, given, ("modes", "ode", *EQUATIONS))
        equations = {kind: self._equations((*path, kind), entry.get(kind)) for kind in EQUATIONS}
        ode = self._values((*path, "ode"), entry.get("ode"))
        modes: Any = self._doc.strings((*path, "modes"), entry["modes"]) if "modes" in entry else "all"
        with self._doc.at(path):
            self._model.equations(name, modes=modes, ode=ode, **{kind: rows for kind, (rows, _) in equations.items()})
        own = self._model.shared[name]
        stated = replace(own.stated, labels=self._all_labels(own.stated, equations))
        self._model.shared[name] = replace(own, stated=stated)

    def _algebraic_names(self, path: Path, given: Any) -> list[str]:
        return self._declared(path, given, "algebraic")

    def _declared(self, path: Path, given: Any, *kinds: str) -> list[str]:
        """Names of variables of these kinds."""
        names = self._doc.strings(path, given)
        for i, name in enumerate(names):
            with self._doc.at((*path, i)):
                kind = self._model.lookup(name, "this list").kind
                if kind not in kinds:
                    raise ModelError(f"'{name}' is a {kind} variable, expected {' or '.join(kinds)}")
        return names

    def _motion(self, path: Path, given: Any) -> MotionStatement:
        entry = self._doc.table(path, given, MOTION)
        missing = [key for key in MOTION if key not in entry and key != "projection"]
        if missing:
            raise self._doc.error(path, f"missing: {', '.join(missing)}")
        kinds = {"q": "differential", "v": "differential", "a": "algebraic", "multipliers": "algebraic"}
        groups = self._doc.entries((*path, "inner"), entry["inner"])
        newmark = [self._doc.number((*path, "newmark", i), x)
                   for i, x in enumerate(self._doc.entries((*path, "newmark"), entry["newmark"]))]  # fmt: skip
        if len(groups) != 4 or len(newmark) != 2:
            raise self._doc.error(path, "inner needs four lists, and newmark two numbers")
        with self._doc.at(path):
            return MotionStatement(
                **{key: tuple(self._declared((*path, key), entry[key], kind)) for key, kind in kinds.items()},
                inner=tuple(tuple(self._algebraic_names((*path, "inner", i), own)) for i, own in enumerate(groups)),
                phi=self._value((*path, "phi"), entry["phi"]),
                projection=self._value((*path, "projection"), entry["projection"]) if "projection" in entry else None,
                projection_penalty=self._doc.number((*path, "projection_penalty"), entry["projection_penalty"]),
                newmark=(newmark[0], newmark[1]),
                spectral_radius=self._doc.number((*path, "spectral_radius"), entry["spectral_radius"]),
            )

    def _clock(self, path: Path, name: str, given: Any) -> None:
        entry = self._doc.table(path, given, ("period", "offset"))
        if "period" not in entry:
            raise self._doc.error(path, "the clock has no period")
        found = {key: self._value((*path, key), value) for key, value in entry.items()}
        with self._doc.at(path):
            self._model.clock(**found, name=name)

    def _transition(self, path: Path, name: str, given: Any) -> None:
        entry = self._doc.table(path, given, TRANSITION)
        if "source" not in entry:
            raise self._doc.error(path, "the transition has no source")
        at = (*path, "source")
        several = isinstance(entry["source"], list)
        source: Any = self._doc.strings(at, entry["source"]) if several else self._doc.string(at, entry["source"])
        if "require" in entry:
            self._doc.table(path, entry, ("source", "require", "reason"))
            reason = self._doc.string((*path, "reason"), entry.get("reason", ""))
            if not reason:
                raise self._doc.error(path, "a requirement needs a reason")
            quantity = self._value((*path, "require"), entry["require"])
            with self._doc.at(path):
                self._model.require(source, quantity, reason, name=name)
            return
        if "reason" in entry:
            raise self._doc.error((*path, "reason"), "a reason belongs to a requirement, require = ...")
        target = self._doc.string((*path, "target"), entry["target"]) if "target" in entry else None
        keys = ("guard", "at", "every", "when", "priority", "delay", "metric")
        expressions = {key: self._value((*path, key), entry[key]) for key in keys if key in entry}
        if "clock" in entry:
            if "every" in entry:
                raise self._doc.error((*path, "clock"), "the transition has every = ..., too")
            name_of_clock = self._doc.string((*path, "clock"), entry["clock"])
            if name_of_clock not in self._model.clocks:
                known = ", ".join(self._model.clocks) or "none"
                raise self._doc.error((*path, "clock"), f"there is no clock '{name_of_clock}'; clocks: {known}")
            expressions["every"] = self._model.clocks[name_of_clock]
        reset, labels = entry.get("reset"), dict[int, list[str]]()
        if isinstance(reset, list):
            reset, labels = self._equations((*path, "reset"), reset)
        else:
            reset = self._values((*path, "reset"), reset)
        words: dict[str, Any] = {key: entry[key] for key in WORDS if key in entry}
        if "resolution" in entry:
            words["resolution"] = self._doc.number((*path, "resolution"), entry["resolution"])
        tables: dict[str, Any] = {key: self._values((*path, key), entry.get(key)) for key in ("memory", "guess")}
        with self._doc.at(path):
            if "project" in words:
                self._doc.strings((*path, "project"), words["project"])
            made = self._model.transition(source, target, reset=reset, name=name, **expressions, **tables, **words)
            freezes = entry.get("freezes", True)
            if not isinstance(freezes, bool):
                raise ModelError(f"freezes must be true or false, got {freezes!r}")
            labelled = self._relabelled(reset, labels, made.labels) if labels else made.labels
            self._model.transitions[name] = replace(made, freezes=freezes, labels=labelled)

    # -- start and functionals ----------------------------------------------------------------------------

    def _initial(self, path: Path, given: dict[str, Any]) -> None:
        entry = self._doc.table(path, given, ("mode", "values", "equations", "guess", "project", "metric"))
        if "mode" not in entry:
            raise self._doc.error(path, "the initial mode is missing")
        guess: dict[Any, Any] | None = self._values((*path, "guess"), entry.get("guess"))
        rows, labels = self._equations((*path, "equations"), entry.get("equations"))
        values = self._values((*path, "values"), entry.get("values"))
        metric = self._value((*path, "metric"), entry["metric"]) if "metric" in entry else None
        project = self._doc.strings((*path, "project"), entry["project"]) if "project" in entry else None
        with self._doc.at(path):
            if guess is not None:
                rates = {f"der({d.name})": d.name for d in self._model.of_kind("differential")}
                guess = {self._model.der(rates[k]) if k in rates else k: value for k, value in guess.items()}
            mode = self._doc.string((*path, "mode"), entry["mode"])
            self._model.initial(mode, values, equations=rows, guess=guess, project=project, metric=metric)
            start = self._model.start
            if start is not None and labels:
                self._model.start = replace(start, labels=self._relabelled(rows, labels, start.labels))

    def _functional(self, path: Path, name: str, given: Any) -> None:
        entry = self._doc.table(path, given, FUNCTIONAL)
        whole = {key: self._value((*path, key), entry[key]) for key in ("integrand", "terminal") if key in entry}
        pairs: list[tuple[Any, Any]] = []
        series: list[Series] = []
        for i, item in enumerate(self._doc.entries((*path, "at_times"), entry.get("at_times", []))):
            at = (*path, "at_times", i)
            self._doc.table(at, item, ("time", "times", "value", DATA))
            if "value" not in item or ("time" in item) == ("times" in item) or (DATA in item and "time" in item):
                raise self._doc.error(at, "expected value and time, or value, times and data")
            if "time" in item:
                pairs.append((self._value((*at, "time"), item["time"]), self._value((*at, "value"), item["value"])))
            else:
                self._measured(at, item, pairs, series)
        events = self._values((*path, "at_events"), entry.get("at_events"))
        peaks: dict[str, Any] = {
            key: self._value((*path, key), entry[key]) for key in (*EXTREMA, *TIMES) if key in entry
        }
        peaks |= {key: self._named((*path, key), entry[key], names) for key, names in SEVERAL.items() if key in entry}
        with self._doc.at(path):
            if not (whole or pairs or events or peaks) and series:
                self._model.functionals[name] = Functional(name, 1, None, None, (), (), tuple(series))
                return
            self._model.functional(name, **whole, at_times=pairs, at_events=events, **peaks)
            found = self._model.functionals[name]
            if series and found.size != 1:
                raise ModelError("a functional with data at many times is scalar")
            self._model.functionals[name] = replace(found, series=tuple(series))

    def _named(self, path: Path, given: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
        """A table with an expression for each of these names."""
        entry = self._doc.table(path, given, names)
        missing = [name for name in names if name not in entry]
        if missing:
            raise self._doc.error(path, f"expected {', '.join(names)}; missing: {', '.join(missing)}")
        return tuple(self._value((*path, name), entry[name]) for name in names)

    def _measured(self, path: Path, item: dict[str, Any], pairs: list[Any], series: list[Series]) -> None:
        """A value at many times, which may use the row of data of its time."""
        times = self._doc.array((*path, "times"), item["times"]).ravel()
        data = np.zeros((times.size, 0))
        if DATA in item:
            data = self._doc.array((*path, DATA), item[DATA])
            data = data.reshape(-1, 1) if data.ndim < 2 else data
            if data.shape[0] != times.size:
                raise self._doc.error((*path, DATA), f"{data.shape[0]} rows for {times.size} times")
        column = ca.MX.sym(DATA, data.shape[1])
        if data.shape[1]:
            self._names.evaluate.local = {DATA: column}
        try:
            value = self._value((*path, "value"), item["value"])
        finally:
            self._names.evaluate.local = {}
        if not self._columns.isdisjoint(s.__hash__() for s in ca.symvar(value)):
            raise self._doc.error((*path, "value"), f"it uses a definition with the {DATA} of another entry")
        self._columns.add(column.__hash__())
        self._kept.append(column)
        if value.is_scalar() and are_smooth([value]) and times.size > 1 and data.shape[1]:
            series.append(Series(times, value if value.is_dense() else ca.densify(value), column, data))
        else:
            values = [ca.substitute([value], [column], [ca.MX(ca.DM(row))])[0] for row in data]
            pairs += zip(times.tolist(), values, strict=True)
