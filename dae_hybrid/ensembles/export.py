"""Conversion of the results of an ensemble to labelled arrays and tables of other libraries, imported on use."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.ensembles.chunk_table import ChunkTable
from dae_hybrid.ensembles.layout import ResultLayout, meaning
from dae_hybrid.ensembles.results_store import ResultArrays
from dae_hybrid.errors import OptionError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.trajectory.datasets import attributes, optional

#: runs of a row group of a Parquet file, all that is in memory at a time
ROWS_OF_GROUP = 65_536
EXTRA = "ensemble"
RENAME = "Rename the functional, variable or parameter of the model, or read the arrays of the result."


class Source(NamedTuple):
    """The results of an ensemble to be exported."""

    layout: ResultLayout
    arrays: ResultArrays
    table: ChunkTable
    given: Array
    t: Array | None

    def facts(self, first: int = 0, last: int | None = None) -> dict[str, NDArray[Any]]:
        """State, counts, final time and error of runs ``first`` to ``last - 1``, by name."""
        counts = self.arrays.read("counts", first, last)
        errors = np.full(len(counts), "", dtype=object)
        for failed in self.table.failures_among(first, first + len(counts)):
            errors[failed.run - first] = failed.in_words
        return {**meaning(counts), "error": errors}

    def columns(self, first: int = 0, last: int | None = None) -> dict[str, NDArray[Any]]:
        """Results of runs ``first`` to ``last - 1`` as columns of a table."""
        layout, read = self.layout, self.arrays.read
        found: list[tuple[str, NDArray[Any]]] = [("run", np.arange(len(self.given))[first:last])]
        found += zip(layout.given, self.given[first:last].T, strict=True)
        labels = layout.functionals.labels()
        if labels:
            found += zip(labels, read("values", first, last).T, strict=True)
        if labels and layout.wrt:
            gradients = read("gradients", first, last)
            found += [
                (f"d{label}/d{name}", gradients[:, i, j])
                for i, label in enumerate(labels)
                for j, name in enumerate(layout.wrt)
            ]
        finals = [f"final({label})" for label in layout.variables.labels()]
        found += zip(["t_end", *finals], read("final", first, last).T, strict=True)
        found += self.facts(first, last).items()
        refuse_twice(name for name, _ in found)
        return dict(found)

    def dataset(self) -> Any:
        """All results as an `xarray.Dataset`."""
        xr = optional("xarray", "to_xarray()", EXTRA)
        variables: list[tuple[str, tuple[Any, ...]]] = [*self._functionals(), *self._states()]
        facts = self.facts()
        variables += [(name, (("run",), own)) for name, own in facts.items()]
        coordinates = list(self._coordinates())
        further = {dim for _, (dims, *_) in variables for dim in dims} - {"run", "t", "parameter"}
        refuse_twice((*(name for name, _ in (*variables, *coordinates)), *further))
        attrs = {"model": self.layout.model, "runs_done": int(facts["done"].sum())}
        return xr.Dataset(dict(variables), dict(coordinates), attrs)

    def _coordinates(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield "run", (("run",), np.arange(len(self.given)))
        for name, values in zip(self.layout.given, self.given.T, strict=True):
            yield name, (("run",), values, self.attributes[name])
        if self.t is not None:
            yield "t", (("t",), self.t)
        if self.layout.wrt:
            yield "parameter", (("parameter",), np.array(self.layout.wrt))
            units = [self.attributes[name].get("units", "") for name in self.layout.wrt]
            yield "parameter_unit", (("parameter",), np.array(units))

    def _functionals(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        layout = self.layout
        if not layout.functionals.size:
            return
        values = self.arrays.read("values")
        for name in layout.functionals.names:
            yield name, _variable(values[:, layout.functionals[name]], 1, ("run",), f"{name}_component")
        if layout.wrt:
            values = self.arrays.read("gradients")
            for name in layout.functionals.names:
                own = values[:, layout.functionals[name]]
                yield f"gradient({name})", _variable(own, 1, ("run", "parameter"), f"{name}_component")

    def _states(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        layout, final = self.layout, self.arrays.read("final")
        yield "t_end", (("run",), final[:, 0])
        for name in layout.variables.names:
            values = final[:, 1:][:, layout.variables[name]]
            yield f"final({name})", (*_variable(values, 1, ("run",), f"{name}_entry"), attributes(layout, name))
        if layout.outputs.size:
            values = self.arrays.read("outputs")
            for name in layout.outputs.names:
                own = values[:, :, layout.outputs[name]]
                yield name, (*_variable(own, 2, ("run", "t"), f"{name}_entry"), attributes(layout, name))

    @property
    def attributes(self) -> dict[str, dict[str, str]]:
        """Units and descriptions of columns of the table."""
        layout = self.layout
        columns = [(name, name) for name in layout.parameters]
        columns += [(f"{name}(0)", name) for name in layout.starts]
        columns += [(f"final({name})", name) for name in layout.variables.labels()]
        return {column: attributes(layout, name.partition("[")[0]) for column, name in columns}

    def write_netcdf(self, path: str | os.PathLike[str]) -> None:
        """Write `dataset` to a NetCDF file."""
        for name in ("h5netcdf", "h5py"):
            optional(name, "to_netcdf()", EXTRA)
        content = self.dataset()
        if slashed := [name for name in map(str, content.variables) if "/" in name]:
            raise OptionError(f"NetCDF reserves the slash in names: {', '.join(map(repr, slashed))}.", remedy=RENAME)
        with replaced(path) as draft:
            content.to_netcdf(draft, engine="h5netcdf")

    def write_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write `columns` to a Parquet file, a group of rows at a time."""
        pyarrow, parquet = (optional(name, "to_parquet()", EXTRA) for name in ("pyarrow", "pyarrow.parquet"))
        schema = self.schema(pyarrow)
        with replaced(path) as draft, parquet.ParquetWriter(draft, schema) as writer:
            for first in range(0, len(self.given), ROWS_OF_GROUP):
                part = self.columns(first, min(first + ROWS_OF_GROUP, len(self.given)))
                writer.write_table(pyarrow.table(part, schema=schema))

    def schema(self, pyarrow: Any) -> Any:
        """Types of `columns`, with the units and descriptions of the model."""
        about, fields = self.attributes, []
        for name, values in self.columns(0, 1).items():
            kind = pyarrow.string() if values.dtype == object else pyarrow.from_numpy_dtype(values.dtype)
            fields.append(pyarrow.field(name, kind, metadata=about.get(name)))
        return pyarrow.schema(fields, metadata={"model": self.layout.model})


def _variable(values: Array, axis: int, dims: tuple[str, ...], entry: str) -> tuple[tuple[str, ...], Array]:
    """Dimensions and values; `axis` has the entries of a vector, and is squeezed if there is one."""
    if values.shape[axis] == 1:
        return dims, values.squeeze(axis)
    return (*dims[:axis], entry, *dims[axis:]), values


def refuse_twice(names: Iterable[str]) -> None:
    """Raise an `OptionError` if a table or dataset would have two parts of one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise OptionError(
            f"The table would have two columns of one name: {', '.join(map(repr, twice))}.",
            remedy=RENAME,
        )


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a new file beside `path`, which takes its place once it is complete."""
    path = Path(path)
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
