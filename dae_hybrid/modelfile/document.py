"""Documents of model files: TOML or JSON text to plain values, and errors with their place."""

from __future__ import annotations

import csv
import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import ModelError, ModelFileError
from dae_hybrid.modelfile.grammar import GrammarError
from dae_hybrid.modelfile.limits import MAX_ENTRIES, MAX_FILE_SIZE, MAX_NESTING
from dae_hybrid.modelfile.positions import Path as EntryPath
from dae_hybrid.modelfile.positions import Positions

Format = Literal["toml", "json"]
_DOTTED = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_NESTING}}}""", re.ASCII)


class Document:
    """A parsed document.

    Parameters
    ----------
    text : str
    form : {"toml", "json"}
    file : str
        Name for error messages.
    folder : Path or None
        Folder of data files; None refuses them.

    Raises
    ------
    ModelFileError
        The text is not a table of TOML or an object of JSON.
    """

    def __init__(self, text: str, form: Format, file: str, folder: Path | None) -> None:
        self.file = file
        self._folder = folder
        self._toml = form == "toml"
        self._text = text.replace("\r\n", "\n")
        if len(text) > MAX_FILE_SIZE:
            self._syntax(f"the file has {len(text)} characters, more than {MAX_FILE_SIZE}", None)
        if self._toml and (dotted := _DOTTED.search(self._text)):  # each part is a table
            line = self._text.count("\n", 0, dotted.start()) + 1
            column = dotted.start() - self._text.rfind("\n", 0, dotted.start())
            self._syntax(f"a name of more than {MAX_NESTING} parts between dots", (line, column))
        try:
            content = tomllib.loads(text) if self._toml else json.loads(
                text, object_pairs_hook=_without_repetition, parse_constant=_no_constant
            )  # fmt: skip
        except json.JSONDecodeError as reason:
            self._syntax(reason.msg, (reason.lineno, reason.colno))
        except tomllib.TOMLDecodeError as reason:
            said = str(reason)
            place = re.search(r" \(at line (\d+), column (\d+)\)$", said)
            self._syntax(said[: place.start()] if place else said, (int(place[1]), int(place[2])) if place else None)
        except RecursionError:
            self._syntax("the file is nested too deeply", None)
        except ValueError as reason:
            self._syntax(str(reason).split(";")[0], None)
        if not isinstance(content, dict):
            self._syntax("the file must contain a table", (1, 1))
        if _nesting(content) > MAX_NESTING:
            self._syntax(f"tables and lists are nested more than {MAX_NESTING} deep", None)
        self.content: dict[str, Any] = content

    # -- errors -------------------------------------------------------------------------------------------

    def _syntax(self, message: str, place: tuple[int, int] | None) -> NoReturn:
        raise self._error(message, place, "", None) from None

    def _error(self, message: str, place: tuple[int, int] | None, entry: str, remedy: str | None) -> ModelFileError:
        where = f"{self.file}:{place[0]}:{place[1]}" if place else self.file
        found = ModelFileError(f"{where}: {entry}{': ' if entry else ''}{message.rstrip('.')}.", remedy=remedy)
        found.file, found.entry = self.file, entry
        found.line, found.column = place or (None, None)
        return found

    def error(
        self, path: EntryPath, message: str, offset: int | None = None, remedy: str | None = None
    ) -> ModelFileError:
        """The error of an entry, or of one character of its text."""
        place = Positions(self._text, toml=self._toml).of(path, offset)
        return self._error(message, place, ".".join(map(str, path)), remedy)

    @contextmanager
    def at(self, path: EntryPath) -> Iterator[None]:
        """Errors of the model or the grammar become those of an entry."""
        try:
            yield
        except ModelFileError:
            raise
        except GrammarError as reason:
            raise self.error(path, reason.message, reason.offset) from None
        except ModelError as reason:
            raise self.error(path, reason.message, remedy=reason.remedy) from reason

    # -- values -------------------------------------------------------------------------------------------

    def table(self, path: EntryPath, value: Any, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
        """The value as a table with no other keys than these."""
        if not isinstance(value, dict):
            raise self.error(path, f"expected a table, got {_shown(value)}")
        for key in value:
            if keys is not None and key not in keys:
                raise self.error((*path, key), f"unknown key; known are {', '.join(keys)}")
            if not key:
                raise self.error((*path, key), "a name must not be empty")
        return value

    def entries(self, path: EntryPath, value: Any) -> list[Any]:
        """The value as a list."""
        if not isinstance(value, list):
            raise self.error(path, f"expected a list, got {_shown(value)}")
        return value

    def string(self, path: EntryPath, value: Any) -> str:
        """The value as text."""
        if not isinstance(value, str):
            raise self.error(path, f"expected text, got {_shown(value)}")
        return value

    def strings(self, path: EntryPath, value: Any) -> list[str]:
        """The value as a list of texts."""
        return [self.string((*path, i), part) for i, part in enumerate(self.entries(path, value))]

    def number(self, path: EntryPath, value: Any) -> float:
        """The value as a finite number."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(path, f"expected a number, got {_shown(value)}")
        return self._float(path, value)

    def _float(self, path: EntryPath, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = np.inf
        if not np.isfinite(number):
            raise self.error(path, "the number must be finite")
        return number

    def limit(self, path: EntryPath, value: Any, missing: float) -> Any:
        """A bound or a list of bounds; infinite ones, in JSON ``"inf"`` and ``"-inf"``, stand for none."""
        if isinstance(value, list):
            return [self.limit((*path, i), part, missing) for i, part in enumerate(value)]
        return missing if value in (missing, str(missing)) else self.number(path, value)

    def array(self, path: EntryPath, value: Any) -> NDArray[np.float64]:
        """A number, a list of numbers, a list of rows, or columns of a CSV file: ``{csv = "f.csv", column = "x"}``."""
        if isinstance(value, dict):
            return self._read_csv(path, value)
        if not isinstance(value, list):
            return np.array(self.number(path, value))
        rows = [isinstance(part, list) for part in value]
        if not value or (any(rows) and not all(rows)):
            raise self.error(path, "expected numbers, or rows of numbers")
        if not rows[0]:
            return np.array([self.number((*path, i), part) for i, part in enumerate(value)])
        if len({len(row) for row in value}) > 1 or not value[0]:
            raise self.error(path, "the rows must have the same length")
        at = [(*path, i) for i in range(len(value))]
        return np.array(
            [[self.number((*p, j), part) for j, part in enumerate(row)] for p, row in zip(at, value, strict=True)]
        )

    def _read_csv(self, path: EntryPath, value: dict[str, Any]) -> NDArray[np.float64]:
        self.table(path, value, ("csv", "column", "columns"))
        if "csv" not in value or ("column" in value) == ("columns" in value):
            raise self.error(path, "expected csv and either column or columns")
        single = "column" in value
        at = (*path, "column" if single else "columns")
        wanted = [self.string(at, value["column"])] if single else self.strings(at, value["columns"])
        file = self._data_file((*path, "csv"), self.string((*path, "csv"), value["csv"]))
        try:
            with file.open(encoding="utf-8-sig", newline="") as lines:
                reader = csv.reader(lines)
                header = [cell.strip() for cell in next(reader, [])]
                for name in wanted:
                    if header.count(name) != 1:
                        known = ", ".join(header[:20])
                        raise self.error(at, f"{file.name} has no single column '{name}'; its columns are {known}")
                places = [header.index(name) for name in wanted]
                rows = []
                for row in reader:
                    if not row:
                        continue
                    rows.append([float(row[place]) for place in places])
                    if len(rows) * len(wanted) > MAX_ENTRIES:
                        raise self.error(at, f"{file.name} has more than {MAX_ENTRIES} numbers")
        except (ValueError, IndexError, csv.Error) as reason:
            if isinstance(reason, ModelError):
                raise
            said = "a row is too short" if isinstance(reason, IndexError) else str(reason)
            raise self.error(path, f"{file.name}, row {reader.line_num}: {said}") from None
        except OSError as reason:
            raise self.error((*path, "csv"), f"{file.name} cannot be read: {reason.strerror}") from None
        found = np.array(rows, dtype=float).reshape(len(rows), len(wanted))
        if not found.size or not np.isfinite(found).all():
            raise self.error(at, f"{file.name} must contain finite numbers")
        return found[:, 0] if single else found

    def _data_file(self, path: EntryPath, name: str) -> Path:
        if self._folder is None:
            raise self.error(path, "data files are not allowed here; state the numbers in the file")
        parts = PurePosixPath(name)
        if not name or parts.is_absolute() or ".." in parts.parts or "\\" in name or ":" in name or "\0" in name:
            raise self.error(path, f"the data file must be in the folder of the model file, got {name[:80]!r}")
        folder = self._folder.resolve()
        try:
            file = (folder / parts).resolve()
            inside, size = file.is_relative_to(folder), file.stat().st_size
        except OSError as reason:
            raise self.error(path, f"{name[:80]} cannot be read: {reason.strerror}") from None
        if not inside or not file.is_file():
            raise self.error(path, f"the data file must be in the folder of the model file, got {name[:80]!r}")
        if size > MAX_FILE_SIZE:
            raise self.error(path, f"{name} has {size} bytes, more than {MAX_FILE_SIZE}")
        return file


def _nesting(content: dict[str, Any]) -> int:
    """Depth of tables and lists."""
    level: list[Any] = [content]
    for depth in itertools.count():
        inner = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        if not inner:
            return depth
        level = [entry for part in inner for entry in part]
    raise AssertionError


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
