"""Parameters, variables, tables and functions of a document."""

from __future__ import annotations

import math
from typing import Any

import casadi as ca

from dae_hybrid.modelfile.document import Document
from dae_hybrid.modelfile.grammar import FUNCTIONS, Evaluator, Pattern
from dae_hybrid.modelfile.limits import MAX_ENTRIES
from dae_hybrid.modelfile.names import Names
from dae_hybrid.modelfile.positions import Path
from dae_hybrid.statement.expressions import limits
from dae_hybrid.statement.model import HybridModel

COMMON = ("kind", "size", "unit", "description")
#: keys of a variable besides those of all, by kind
VARIABLES = {
    "differential": (),
    "algebraic": ("guess", "lower", "upper"),
    "unknown": ("guess",),
    "memory": ("of", "initial"),
    "signal": ("times", "values", "interpolation", "outside"),
}
LOOKUP = ("grid", "values", "interpolation", "outside", "unit", "description")


class Declarations:
    """Declares what a document declares in a model, and gives expressions their values.

    `functions` are those of the document and of its lookup tables, `names` the values of its names.
    """

    def __init__(self, document: Document, model: HybridModel, definitions: dict[str, Any]) -> None:
        self._doc, self._model, self._entries = document, model, 0
        self.functions: dict[str, ca.Function] = {}
        self.names = Names(document, definitions, ("definitions",))
        sides = {"der": model.der, "post": model.post, "pre": model.pre, "active": model.active}
        self.names.evaluate = Evaluator(ca.MX, self.names, self.functions, sides)
        self.names["t"] = model.time

    def value(self, path: Path, given: Any) -> Any:
        """Return the value of an expression."""
        found = self.names.value(path, given)
        if isinstance(found, Pattern):
            raise self._doc.error(path, "a pattern is not a value")
        if found.numel() > MAX_ENTRIES:
            raise self._doc.error(path, f"the value has {found.numel()} entries, more than {MAX_ENTRIES}")
        return found

    def values(self, path: Path, given: Any) -> dict[str, Any] | None:
        """Return the values of a table of expressions by variable."""
        if given is None:
            return None
        return {name: self.value((*path, name), value) for name, value in self._doc.table(path, given).items()}

    def parameters(self, parameters: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
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
                self.names[name] = self._model.parameter(name, value, size=size, **self._words(path, entry))
            if "lower" in entry or "upper" in entry:
                bounds[name] = self._bounds(path, entry)
                with self._doc.at(path):
                    limits(f"lower and upper of '{name}'", bounds[name], self._model.declarations[name].size)
        return bounds

    def lookup(self, path: Path, name: str, given: Any) -> None:
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
            return self.value(path, given) if is_text else self._doc.array(path, given)

    def variables(self, variables: dict[str, Any]) -> None:
        """Declare the variables."""
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
                        self.names[name] = getattr(self, f"_{kinds[name]}")(path, name, given)

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
        initial = self.value((*path, "initial"), entry["initial"]) if "initial" in entry else None
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

    def function(self, path: Path, name: str, given: Any) -> None:
        """Declare a function of scalar or of matrix operations."""
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
            made = ca.Function(called, list(inputs.values()), list(found.values()), list(inputs), list(found))
        except (RuntimeError, NotImplementedError) as reason:
            said = str(reason).strip().splitlines()[-1]
            raise self._doc.error(path, f"CasADi refuses the function: {said}") from None
        self.functions[name] = made
