"""Write and read model files: `HybridModel.to_file`, `from_file`, `to_text`, `from_text`."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import ModelError, ModelFileError, UnsupportedError
from dae_hybrid.modelfile.document import Document, Format
from dae_hybrid.modelfile.layout import json_text, toml_text
from dae_hybrid.modelfile.limits import MAX_FILE_SIZE
from dae_hybrid.modelfile.reading import ModelFile, Reader
from dae_hybrid.modelfile.writing import written
from dae_hybrid.statement.model import HybridModel

#: numbers of an array above which ``data="csv"`` puts it into a file of its own
LONG_DATA = 20


class _Inline:
    """Long arrays stay in the document."""

    def __call__(self, name: str, columns: dict[str, NDArray[np.float64]]) -> dict[str, Any]:  # noqa: ARG002
        """The numbers."""
        return {key: values.tolist() for key, values in columns.items()}


class _Beside:
    """Long arrays become columns of CSV files beside the model file."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self.files: dict[str, tuple[list[str], NDArray[np.float64]]] = {}

    def __call__(self, name: str, columns: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """References to columns of a file."""
        if next(iter(columns.values())).shape[0] <= LONG_DATA:
            return _Inline()(name, columns)
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
        file, count = f"{self._stem}_{plain}.csv", 1
        while file in self.files:
            count += 1
            file = f"{self._stem}_{plain}_{count}.csv"
        heads: list[str] = []
        found: dict[str, Any] = {}
        for key, values in columns.items():
            own = [key] if values.ndim == 1 else [f"{key}{i}" for i in range(values.shape[1])]
            heads += own
            found[key] = {"csv": file} | ({"column": key} if values.ndim == 1 else {"columns": own})
        self.files[file] = heads, np.column_stack(list(columns.values()))
        return found

    def write(self, path: Path) -> None:
        """Write the files beside a model file.

        Raises
        ------
        ModelError
            A file exists, and the present model file does not refer to it.
        """
        folder, earlier = path.parent, path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for name in self.files:
            if (folder / name).exists() and f'"{name}"' not in earlier:
                raise ModelError(
                    f"{folder / name} exists already, and is not of the model file {path.name}.",
                    remedy="Remove it, or write the model under another name.",
                )
        for name, (heads, values) in self.files.items():
            with (folder / name).open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(heads)
                writer.writerows(values.tolist())  # the repr of a Python float is its shortest exact one


_TEXT = {"toml": toml_text, "json": json_text}


def _stable(model: HybridModel) -> tuple[HybridModel, dict[str, Any]]:
    """The model and its document, after a check that reading the document gives this document again.

    CasADi simplifies what it reads, such as ``x + 0`` left by a substitution; the model is then the one that was read.
    """
    for _ in range(2):
        found = written(model, _Inline())
        try:
            restored = Reader(Document(json_text(found.document), "json", "<text>", None)).read().model
        except ModelFileError as reason:
            raise UnsupportedError(f"'{model.name}' cannot be written to a file: {reason.message}") from reason
        if written(restored, _Inline()) == found:
            return model, found.document
        model = restored
    raise UnsupportedError(
        f"'{model.name}' cannot be written to a file: CasADi reads an expression of it in another form each time.",
        remedy="Keep the model in a Python module and name its function.",
    )


def to_text(model: HybridModel, form: Format = "toml") -> str:
    """Text of a model; see `HybridModel.to_text`."""
    if form not in _TEXT:
        raise ModelError(f"form must be 'toml' or 'json', got {form!r}.")
    return _TEXT[form](_stable(model)[1])


def to_file(model: HybridModel, path: str | Path, data: Literal["inline", "csv"] = "inline") -> Path:
    """Write a model file; see `HybridModel.to_file`."""
    path = Path(path)
    form = _form(path)
    if data not in ("inline", "csv"):
        raise ModelError(f"data must be 'inline' or 'csv', got {data!r}.")
    model, tree = _stable(model)
    beside = _Beside(path.stem)
    if data == "csv":
        tree = written(model, beside).document
    path.parent.mkdir(parents=True, exist_ok=True)
    beside.write(path)
    path.write_text(_TEXT[form](tree), encoding="utf-8", newline="\n")
    return path


def read_text(text: str, form: Format = "toml") -> ModelFile:
    """Read the text of a model file, which must not refer to data files.

    Parameters
    ----------
    text : str
    form : {"toml", "json"}

    Raises
    ------
    ModelFileError
        The text is no model file.
    """
    if form not in _TEXT:
        raise ModelError(f"form must be 'toml' or 'json', got {form!r}.")
    return Reader(Document(text, form, "<text>", None)).read()


def read_file(path: str | Path, *, data: bool = True) -> ModelFile:
    """Read a model file, with its defaults of a run.

    Parameters
    ----------
    path : str or Path
        A file named ``*.toml`` or ``*.json``.
    data : bool
        Whether the file may refer to CSV files in its folder.

    Raises
    ------
    ModelFileError
        The file is no model file; the error has the line and the column.
    OSError
        The file cannot be read.
    """
    path = Path(path)
    form = _form(path)
    if path.stat().st_size > MAX_FILE_SIZE:
        raise ModelFileError(f"{path}: the file has more than {MAX_FILE_SIZE} bytes.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as reason:
        raise ModelFileError(f"{path}: the file is not UTF-8: {reason.reason} at byte {reason.start}.") from None
    return Reader(Document(text, form, str(path), path.parent if data else None)).read()


def _form(path: Path) -> Format:
    match path.suffix.lower():
        case ".toml":
            return "toml"
        case ".json":
            return "json"
    raise ModelFileError(f"{path}: a model file is named *.toml or *.json.")
