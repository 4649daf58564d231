"""The results of an ensemble, in memory or in a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.ensembles.chunk_table import DONE, ChunkTable
from dae_hybrid.ensembles.export import Source
from dae_hybrid.ensembles.layout import ResultLayout, meaning
from dae_hybrid.ensembles.results_store import ResultArrays, ZarrArrays, store_path
from dae_hybrid.errors import DaeHybridError, NotKeptError, OptionError, StoreError, StoreMismatchError
from dae_hybrid.interface.batch import narrow
from dae_hybrid.interface.prepared_case import CheckedCall, Single
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.tables import html, in_short
from dae_hybrid.trajectory.datasets import optional

#: version of the layout of a store, and names within one
FORMAT = 1
ARRAYS, TABLE = "results.zarr", "chunks.sqlite"
#: failed runs shown in a notebook
MAX_FAILURES_SHOWN = 10
#: failed runs read at a time
ROWS_READ = 1000


class Failure:
    """A failed run of an ensemble.

    Attributes
    ----------
    run : int
        Its number.
    parameters : mapping of str to float
        Its parameters and initial values, by label; ``"x(0)"`` is the initial value of x.
    error : DaeHybridError
        Its error, without the partial trajectory.
    """

    def __init__(self, run: int, parameters: Mapping[str, float], error: DaeHybridError) -> None:
        self.run, self.parameters, self.error = run, parameters, error

    def __repr__(self) -> str:
        return f"<Failure of run {self.run}: {type(self.error).__name__}: {self.error.message}>"


class Failures(Sequence[Failure]):
    """The failed runs of an ensemble, in order, whose errors are read from the table of chunks when asked for."""

    def __init__(self, table: ChunkTable, given: Callable[[int], Mapping[str, float]]) -> None:
        self._table, self._given, self._runs = table, given, table.failed_runs()

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Failure]:
        return self._of(self._runs)

    def _of(self, runs: Sequence[int]) -> Iterator[Failure]:
        for first in range(0, len(runs), ROWS_READ):
            some = runs[first : first + ROWS_READ]
            found = {own.run: own.error for own in self._table.failures_among(min(some), max(some) + 1)}
            yield from (Failure(run, self._given(run), found[run]) for run in some)

    @overload
    def __getitem__(self, index: int) -> Failure: ...

    @overload
    def __getitem__(self, index: slice) -> list[Failure]: ...

    def __getitem__(self, index: int | slice) -> Failure | list[Failure]:
        runs = self._runs[index]
        return next(self._of([runs])) if isinstance(runs, int) else list(self._of(runs))

    def __repr__(self) -> str:
        return f"<{len(self)} failures>"


class Ensemble:
    """Results of an ensemble, one row per run.

    Results of a store are read when asked for. Runs that failed, or are not done, have NaN.

    Attributes
    ----------
    parameters : ndarray, shape (N, n_parameters)
        Parameters of each run; `layout.parameters` names the columns.
    x0 : ndarray, shape (N, n)
        Initial values that were given; `layout.starts` names the columns.
    values : ndarray, shape (N, n_components)
        Values of all reported functionals.
    gradients : ndarray, shape (N, n_components, n_wrt)
        Their gradients, if requested; `wrt` names the parameters.
    functionals : mapping of str to ndarray, shape (N,), or (N, k) of a vector
        Values by functional.
    gradient : mapping of str to ndarray, shape (N, n_wrt), or (N, k, n_wrt)
        Gradients by functional.
    ok, done : ndarray of bool, shape (N,)
        Whether each run succeeded, and whether it was carried out.
    complete : bool
        Whether all runs were carried out.
    failures : sequence of Failure
        The failed runs with their parameters and errors.
    n_events, n_steps, digest : ndarray of int, shape (N,)
        As in `Batch`.
    native : ndarray of bool, shape (N,)
        As in `Batch`.
    t : ndarray, shape (n_t,), or None
        Output times.
    t_end : ndarray, shape (N,)
        Final times.
    final : mapping of str to ndarray, shape (N,), or (N, size) of a vector
        Variables and memory at the final times.
    statistics : mapping of str to int
        ``runs``, ``done``, ``failed``, ``native``, ``chunks``, ``lost`` (workers lost with chunks not halved since).

    ``ensemble["u"]`` returns an output, (N, n_t), or (N, n_t, size) of a vector; `outputs(name, first, last)` reads
    some runs of it. ``len(ensemble)`` is N, and ``ensemble.single(i)`` repeats run i as a single call. A pickle or copy
    of results in a store has the path of the store, which it opens.
    """

    def __init__(
        self, layout: ResultLayout, arrays: ResultArrays, table: ChunkTable, t: Array | None, path: Path | None = None,
        facts: Mapping[str, Any] | None = None, case: CheckedCall | None = None,
    ) -> None:  # fmt: skip
        self.layout, self.t, self.path, self.wrt = layout, t, path, layout.wrt or ()
        self._arrays, self._table, self._facts, self._case = arrays, table, facts or {}, case

    @classmethod
    def open(cls, store: str | os.PathLike[str]) -> Ensemble:
        """Open the results of a store, complete or not, without the model.

        Raises
        ------
        OptionError
            `store` is not a path.
        StoreError
            There is no store, it was written by another version of the library, or it is damaged.

        Notes
        -----
        The store is not changed, and may be in a folder that cannot be written to.
        """
        return cls._opened(store_path(store), is_read_only=True)

    @classmethod
    def _opened(cls, path: Path, *, is_read_only: bool) -> Ensemble:
        if not (path / ARRAYS).is_dir() or not (path / TABLE).is_file():
            raise StoreError(f"{str(path)!r} is not the store of an ensemble.")
        arrays = ZarrArrays(path / ARRAYS, is_read_only=is_read_only)
        written = arrays.facts.get("format")
        if written != FORMAT:
            raise StoreMismatchError(
                f"The store {str(path)!r} has format {written}, and this version of the library reads format {FORMAT}.",
                remedy="Read it with the version that wrote it, or repeat the call with another store=.",
            )
        try:
            layout, facts = ResultLayout.from_json(arrays.facts["layout"]), arrays.facts["call"]
        except (KeyError, TypeError, ValueError) as reason:
            raise StoreError(f"The store {str(path)!r} is damaged: {reason}.") from reason
        table = ChunkTable(path / TABLE, is_read_only=is_read_only)
        lost = arrays.blocks_missing(layout, table.blocks_done())
        table.check(len(arrays.given))
        if lost and is_read_only:
            raise StoreError(
                f"The store {str(path)!r} lacks files of {len(lost)} chunks that are done.",
                remedy="Repeat the call of dh.ensemble with this store: it carries out their runs again.",
            )
        found = cls(layout, arrays, table, arrays.t, path, facts)
        if lost:
            table.repeat(lost, found._clear)
        return found

    def _retry_lost(self) -> None:
        """Let the runs wait again whose workers were lost."""
        self._table.retry_lost(self._clear)

    def _clear(self, first: int, last: int) -> None:
        """Empty the rows of the runs ``first`` to ``last - 1``."""
        self._arrays.write(first, self.layout.empty_rows(last - first))

    def _with(self, case: CheckedCall) -> Ensemble:
        """Return the results so far, read anew, with the call that repeats single runs."""
        return Ensemble(self.layout, self._arrays, self._table, self.t, self.path, self._facts, case)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is not None:
            return _reopened, (self.path, self._case)
        return Ensemble, (self.layout, self._arrays, self._table, self.t, None, self._facts, self._case)

    # -- numbers of runs ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._given)

    @cached_property
    def _given(self) -> Array:
        return self._arrays.given

    @cached_property
    def _counts(self) -> Mapping[str, NDArray[Any]]:
        return meaning(self._arrays.read("counts"))

    @property
    def complete(self) -> bool:
        """Whether all runs were carried out."""
        return self._table.counts()[DONE] == len(self)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Whether each run succeeded."""
        return self._counts["ok"]

    @property
    def done(self) -> NDArray[np.bool_]:
        """Whether each run was carried out."""
        return self._counts["done"]

    @property
    def failures(self) -> Failures:
        """The failed runs."""
        return Failures(self._table, lambda run: dict(zip(self.layout.given, self._given[run].tolist(), strict=True)))

    @property
    def statistics(self) -> Mapping[str, int]:
        """Numbers of runs, chunks and lost workers."""
        chunks = self._table.chunks()
        return MappingProxyType(
            {
                "runs": len(self), "done": int(self.done.sum()), "failed": self._table.n_failures(),
                "native": int(self.native.sum()), "chunks": len(chunks), "lost": sum(own[3] for own in chunks),
            }
        )  # fmt: skip

    n_events = property(lambda self: self._counts["n_events"], doc="Number of events of each run.")
    n_steps = property(lambda self: self._counts["n_steps"], doc="Number of steps of each run.")
    digest = property(lambda self: self._counts["digest"], doc="Digest of each run's sequence of events.")
    native = property(lambda self: self._counts["native"], doc="Whether compiled code completed each run.")

    # -- values ---------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> Array:
        """Parameters of each run, (N, n_parameters)."""
        return self._given[:, : len(self.layout.parameters)]

    @property
    def x0(self) -> Array:
        """Initial values that were given, (N, n)."""
        return self._given[:, len(self.layout.parameters) :]

    @cached_property
    def values(self) -> Array:
        """Values of all reported functionals, (N, n_components)."""
        return self._arrays.read("values") if self.layout.functionals.size else np.zeros((len(self), 0))

    @cached_property
    def gradients(self) -> Array:
        """Gradients of all reported functionals, (N, n_components, n_wrt)."""
        if self.layout.wrt is None:
            raise OptionError("There are no gradients.", remedy="Pass gradient='forward', 'adjoint' or True.")
        return self._arrays.read("gradients")

    @cached_property
    def _final(self) -> Array:
        return self._arrays.read("final")

    @property
    def functionals(self) -> Mapping[str, Array]:
        """Values by functional."""
        return MappingProxyType(_by_name(self.values, self.layout.functionals))

    @property
    def gradient(self) -> Mapping[str, Array]:
        """Gradients by functional; empty if not requested."""
        return MappingProxyType(
            {} if self.layout.wrt is None else _by_name(self.gradients, self.layout.functionals)
        )  # fmt: skip

    @property
    def t_end(self) -> Array:
        """Final times, (N,)."""
        return self._final[:, 0]

    @property
    def final(self) -> Mapping[str, Array]:
        """Variables and memory at the final times."""
        return MappingProxyType(_by_name(self._final[:, 1:], self.layout.variables))

    def outputs(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """Return an output of runs ``first`` to ``last - 1``, (n, n_t), or (n, n_t, size) of a vector.

        Raises
        ------
        NotKeptError
            There are no outputs of this name.
        """
        if self.t is None or name not in self.layout.outputs:
            kept = ", ".join(self.layout.outputs.names) or "none"
            raise NotKeptError(
                f"No outputs of {name!r} were kept; there are {kept}.", remedy="Pass t_eval= and outputs=."
            )
        return narrow(self._arrays.read("outputs", first, last)[:, :, self.layout.outputs[name]], 2)

    def __getitem__(self, name: str) -> Array:
        return self.outputs(name)

    def single(self, i: int) -> Single:
        """Repeat run i as a single call; see `Batch.single`.

        Raises
        ------
        OptionError
            The results were opened without the model.
        """
        if self._case is None:
            raise OptionError(
                "These results were opened without their model.", remedy="Repeat the call of dh.ensemble with store=."
            )
        return self._case.single(self.parameters[i].copy(), self.x0[i].copy())

    # -- exports --------------------------------------------------------------------------------------------

    @property
    def _source(self) -> Source:
        return Source(self.layout, self._arrays, self._table, self._given, self.t)

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with one row per run, without outputs; see `to_parquet` for the columns.

        Raises
        ------
        ImportError
            pandas is not installed (extra ``[ensemble]``).
        OptionError
            Two columns would have the same name.
        """
        return optional("pandas", "to_dataframe()", "ensemble").DataFrame(self._source.columns())

    def to_xarray(self) -> Any:
        """All results as an `xarray.Dataset` in memory.

        Dimensions are ``run``, ``t`` and ``parameter`` (of gradients); vectors have a further one, ``G_component`` of a
        functional G and ``x_entry`` of a variable x. Coordinates are the parameters and initial values of the runs, by
        label. Variables are functionals and outputs by name, ``gradient(G)``, ``final(x)``, ``t_end``, ``ok``,
        ``done``, ``n_events``, ``n_steps``, ``digest``, ``native``, and ``error``, the text of the error or "". Units
        and descriptions are attributes. Runs that are not done have NaN, and ``done`` is False.

        Raises
        ------
        ImportError
            xarray is not installed (extra ``[ensemble]``).
        OptionError
            Two variables would have the same name, such as a functional and an output.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> from dae_hybrid.problems import hybrid_ode
        >>> found = dh.ensemble(hybrid_ode.system(), (0, 5), parameters=[[2.9], [3.0]], gradient="adjoint")
        >>> found.to_xarray()["gradient(G)"].dims
        ('run', 'parameter')
        """
        return self._source.dataset()

    def to_netcdf(self, path: str | os.PathLike[str]) -> None:
        """Write `to_xarray` to a NetCDF 4 file, which replaces an existing one when it is complete.

        Raises
        ------
        ImportError
            xarray or h5netcdf is not installed (extra ``[ensemble]``).
        OptionError
            As `to_xarray`; or a name contains a slash, which NetCDF reserves.
        OSError
            The file cannot be written.
        """
        self._source.write_netcdf(path)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write a table with one row per run to a Parquet file, which replaces an existing one when it is complete.

        The columns are ``run``, parameters and initial values by label, functionals, ``dG/dk``, ``t_end``,
        ``final(x)``, ``ok``, ``done``, ``n_events``, ``n_steps``, ``digest``, ``native`` and ``error``. Outputs are not
        part of it. Results are read and written 65,536 runs at a time.

        Raises
        ------
        ImportError
            pyarrow is not installed (extra ``[ensemble]``).
        OptionError
            Two columns would have the same name.
        OSError
            The file cannot be written.
        """
        self._source.write_parquet(path)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {name}" for name, n in self.statistics.items() if name not in ("runs", "lost"))
        where = f" in {str(self.path)!r}" if self.path is not None else ""
        return f"<Ensemble of {len(self)} run{'s' * (len(self) != 1)}{where}: {counts}>"

    def _repr_html_(self) -> str:
        rows = [
            [str(own.run), *(in_short(value) for value in own.parameters.values()), str(own.error)]
            for own in self.failures[:MAX_FAILURES_SHOWN]
        ]
        return html(repr(self), [["failed run", *self.layout.given, "error"], *rows] if rows else [])


def _reopened(path: Path, case: CheckedCall | None) -> Ensemble:
    found = Ensemble.open(path)
    return found if case is None else found._with(case)


def _by_name(values: Array, layout: Layout) -> dict[str, Array]:
    """Columns by name, (N, ...) of a scalar and (N, size, ...) of a vector."""
    return {name: narrow(values[:, layout[name]], 1) for name in layout.names}
