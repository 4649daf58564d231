"""From a document to a `HybridModel`, by the methods a user calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.errors import ModelError
from dae_hybrid.modelfile.declared import Declarations
from dae_hybrid.modelfile.document import Document
from dae_hybrid.modelfile.grammar import DATA
from dae_hybrid.modelfile.positions import Path
from dae_hybrid.statement.declarations import Functional, Kind, Mode, MotionStatement, Series
from dae_hybrid.statement.discontinuities import are_smooth
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.peaks import CROSSINGS, EXTREMA, SHORTHANDS, TIMES

#: version of the format, the value of the key ``dae_hybrid``
VERSION = 1
TABLES = (
    "dae_hybrid", "name", "run", "build", "parameters", "variables", "tables", "functions", "definitions",
    "clocks", "equations",
    "modes", "transitions", "initial", "functionals",
)  # fmt: skip
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
RUN = ("t_span", "rtol", "atol")
BUILD = ("eliminate", "index2", "kinks", "relations")


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


class Reader:
    """Reads one document."""

    def __init__(self, document: Document) -> None:
        self._doc = document

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
        model = self._model = HybridModel(doc.string(("name",), top.get("name", "model")))
        tables = {key: doc.table((key,), top.get(key, {})) for key in TABLES if key not in ("dae_hybrid", "name")}
        for name in tables["definitions"]:
            if name in tables["parameters"] or name in tables["variables"] or name == "t":
                raise doc.error(("definitions", name), f"'{name}' is declared as a parameter or a variable")
        declared = self._declared = Declarations(doc, model, tables["definitions"])
        self._columns: set[int] = set()  # hashes of columns of data
        self._kept: list[ca.MX] = []  # which keeps the hashes unique
        for name, value in tables["functions"].items():
            declared.function(("functions", name), name, value)
        bounds = declared.parameters(tables["parameters"])
        for name, value in tables["tables"].items():
            declared.lookup(("tables", name), name, value)
        declared.variables(tables["variables"])
        order = (*tables["parameters"], *tables["variables"])
        model.declarations = {name: model.declarations[name] for name in order}
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
        self._declared.names.finish()
        return ModelFile(model, self._run(tables["run"]), self._build(tables["build"]), bounds)

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
        legal = {
            "eliminate": (True, False),
            "index2": ("reduced", "direct"),
            "kinks": ("integrate", "events"),
            "relations": ("slide", "cross"),
        }
        for key, value in self._doc.table(("build",), given, BUILD).items():
            if type(value) is not type(legal[key][0]) or value not in legal[key]:
                words = " or ".join(str(word).lower() for word in legal[key])
                raise self._doc.error(("build", key), f"expected {words}, got {value!r}")
        return given

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
            value = self._declared.value(at, text)
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
        ode = self._declared.values((*path, "ode"), entry.get("ode"))
        mass = self._declared.value((*path, "mass"), entry["mass"]) if "mass" in entry else None
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
        ode = self._declared.values((*path, "ode"), entry.get("ode"))
        modes: Any = self._doc.strings((*path, "modes"), entry["modes"]) if "modes" in entry else "all"
        with self._doc.at(path):
            self._model.equations(name, modes=modes, ode=ode, **{kind: rows for kind, (rows, _) in equations.items()})
        own = self._model.shared[name]
        stated = replace(own.stated, labels=self._all_labels(own.stated, equations))
        self._model.shared[name] = replace(own, stated=stated)

    def _algebraic_names(self, path: Path, given: Any) -> list[str]:
        return self._listed(path, given, "algebraic")

    def _listed(self, path: Path, given: Any, *kinds: Kind) -> list[str]:
        """Names of variables of these kinds."""
        names = self._doc.strings(path, given)
        for i, name in enumerate(names):
            with self._doc.at((*path, i)):
                self._model.lookup(name, "this list").require(kinds)
        return names

    def _motion(self, path: Path, given: Any) -> MotionStatement:
        entry = self._doc.table(path, given, MOTION)
        missing = [key for key in MOTION if key not in entry and key != "projection"]
        if missing:
            raise self._doc.error(path, f"missing: {', '.join(missing)}")
        kinds: dict[str, Kind] = {
            "q": "differential",
            "v": "differential",
            "a": "algebraic",
            "multipliers": "algebraic",
        }
        groups = self._doc.entries((*path, "inner"), entry["inner"])
        newmark = [self._doc.number((*path, "newmark", i), x)
                   for i, x in enumerate(self._doc.entries((*path, "newmark"), entry["newmark"]))]  # fmt: skip
        if len(groups) != 4 or len(newmark) != 2:
            raise self._doc.error(path, "inner needs four lists, and newmark two numbers")
        with self._doc.at(path):
            return MotionStatement(
                **{key: tuple(self._listed((*path, key), entry[key], kind)) for key, kind in kinds.items()},
                inner=tuple(tuple(self._algebraic_names((*path, "inner", i), own)) for i, own in enumerate(groups)),
                phi=self._declared.value((*path, "phi"), entry["phi"]),
                projection=self._declared.value((*path, "projection"), entry["projection"])
                if "projection" in entry
                else None,
                projection_penalty=self._doc.number((*path, "projection_penalty"), entry["projection_penalty"]),
                newmark=(newmark[0], newmark[1]),
                spectral_radius=self._doc.number((*path, "spectral_radius"), entry["spectral_radius"]),
            )

    def _clock(self, path: Path, name: str, given: Any) -> None:
        entry = self._doc.table(path, given, ("period", "offset"))
        if "period" not in entry:
            raise self._doc.error(path, "the clock has no period")
        found = {key: self._declared.value((*path, key), value) for key, value in entry.items()}
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
            quantity = self._declared.value((*path, "require"), entry["require"])
            with self._doc.at(path):
                self._model.require(source, quantity, reason, name=name)
            return
        if "reason" in entry:
            raise self._doc.error((*path, "reason"), "a reason belongs to a requirement, require = ...")
        target = self._doc.string((*path, "target"), entry["target"]) if "target" in entry else None
        keys = ("guard", "at", "every", "when", "priority", "delay", "metric")
        expressions = {key: self._declared.value((*path, key), entry[key]) for key in keys if key in entry}
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
            reset = self._declared.values((*path, "reset"), reset)
        words: dict[str, Any] = {key: entry[key] for key in WORDS if key in entry}
        if "resolution" in entry:
            words["resolution"] = self._doc.number((*path, "resolution"), entry["resolution"])
        tables: dict[str, Any] = {
            key: self._declared.values((*path, key), entry.get(key)) for key in ("memory", "guess")
        }
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
        guess: dict[Any, Any] | None = self._declared.values((*path, "guess"), entry.get("guess"))
        rows, labels = self._equations((*path, "equations"), entry.get("equations"))
        values = self._declared.values((*path, "values"), entry.get("values"))
        metric = self._declared.value((*path, "metric"), entry["metric"]) if "metric" in entry else None
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
        whole = {
            key: self._declared.value((*path, key), entry[key]) for key in ("integrand", "terminal") if key in entry
        }
        pairs: list[tuple[Any, Any]] = []
        series: list[Series] = []
        for i, item in enumerate(self._doc.entries((*path, "at_times"), entry.get("at_times", []))):
            at = (*path, "at_times", i)
            self._doc.table(at, item, ("time", "times", "value", DATA))
            if "value" not in item or ("time" in item) == ("times" in item) or (DATA in item and "time" in item):
                raise self._doc.error(at, "expected value and time, or value, times and data")
            if "time" in item:
                pairs.append(
                    (
                        self._declared.value((*at, "time"), item["time"]),
                        self._declared.value((*at, "value"), item["value"]),
                    )
                )
            else:
                self._measured(at, item, pairs, series)
        events = self._declared.values((*path, "at_events"), entry.get("at_events"))
        peaks: dict[str, Any] = {
            key: self._declared.value((*path, key), entry[key]) for key in (*EXTREMA, *TIMES) if key in entry
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
        return tuple(self._declared.value((*path, name), entry[name]) for name in names)

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
            self._declared.names.evaluate.local = {DATA: column}
        try:
            value = self._declared.value((*path, "value"), item["value"])
        finally:
            self._declared.names.evaluate.local = {}
        if not self._columns.isdisjoint(s.__hash__() for s in ca.symvar(value)):
            raise self._doc.error((*path, "value"), f"it uses a definition with the {DATA} of another entry")
        self._columns.add(column.__hash__())
        self._kept.append(column)
        if value.is_scalar() and are_smooth([value]) and times.size > 1 and data.shape[1]:
            series.append(Series(times, value if value.is_dense() else ca.densify(value), column, data))
        else:
            values = [ca.substitute([value], [column], [ca.MX(ca.DM(row))])[0] for row in data]
            pairs += zip(times.tolist(), values, strict=True)
