"""Ensembles: many runs of one system on threads, processes or a cluster, with results that survive failures."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.cancellation import Cancellation
from dae_hybrid.ensembles.chunk_table import ChunkTable
from dae_hybrid.ensembles.identity import differences, identity
from dae_hybrid.ensembles.layout import ResultLayout
from dae_hybrid.ensembles.result import ARRAYS, FORMAT, TABLE, Ensemble
from dae_hybrid.ensembles.results_store import MemoryArrays, ZarrArrays, store_path, told
from dae_hybrid.ensembles.scheduling import Campaign, EnsembleProgress
from dae_hybrid.ensembles.worker import Recipe
from dae_hybrid.ensembles.workers import ExecutorLike, open_workers
from dae_hybrid.errors import EnsembleError, OptionError, ParameterError, StoreError, StoreMismatchError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.batch import checked_table
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.prepared_case import CheckedCall
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import positive_integer
from dae_hybrid.progress import ProgressReport, check_report
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import counted


def ensemble(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    parameters: ParameterTable = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    functional: str | Sequence[str] | None = None,
    gradient: Literal["forward", "adjoint", True] | None = None,
    wrt: str | Sequence[str] | None = None,
    t_eval: ArrayLike | None = None,
    outputs: str | Sequence[str] | None = None,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    store: str | os.PathLike[str] | None = None,
    chunk: int | None = None,
    retry_lost: bool = False,
    progress: bool | Callable[[EnsembleProgress], object] = False,
    cancellation: Cancellation | None = None,
    adapter: str = "sundials",
    strict: bool = True,
    duality: bool | float = False,
    **options: Unpack[RunOptions],
) -> Ensemble:
    """Run a system for many sets of parameters and initial values, on one or many machines.

    The runs are those of `batch`, with bitwise the same results on every executor (on processors of the same type).
    They are handed out in chunks of about 0.1 s of work (with more than 10 workers, 10 ms per worker). With `store`,
    results are written to disk chunk by chunk; the same call continues where an earlier one has ended, for whatever
    reason.

    Parameters
    ----------
    system, t_span, start_mode, functional, gradient, wrt, t_eval, adapter, strict, duality, **options
        As in `batch`.
    parameters, x0
        As in `batch`, but every value must be finite.
    outputs : str or sequence of str, optional
        Variables, memory and signals to keep at the times `t_eval`; default all variables and memory, [] none.
    executor : optional
        ``"threads"`` (default) of this process; ``"processes"``, fresh interpreters on this machine, which a crash of
        compiled code or a lack of memory may kill; the address of a Dask scheduler (``"tcp://host:8786"``), a
        `distributed.Client` or a Dask cluster; any `concurrent.futures.Executor`, such as
        `mpi4py.futures.MPIPoolExecutor`; or a function that creates one, so that it can be replaced if a lost worker
        breaks it.
    workers : int, optional
        Number of threads or processes, or of runs that an executor carries out at a time; default the number of cores.
    store : path, optional
        Directory of the results, created if it does not exist. By default results are in memory.
    chunk : int, optional
        Runs per chunk; by default chosen from the time of a few runs. A store keeps its own.
    retry_lost : bool
        Whether runs of the store that failed with a `WorkerLostError` run again.
    progress : bool or callable
        True shows a line on the terminal. A function receives an `EnsembleProgress` several times per second; if it
        raises StopIteration, the ensemble ends with the results so far.
    cancellation : Cancellation, optional
        Ends the ensemble when cancelled, from any thread; running chunks are stopped, and the results so far returned.
        One that this thread has entered (``with``) raises `Cancelled` instead.

    Returns
    -------
    Ensemble
        Arrays with one row per run, and the failed runs with their parameters and errors; not `complete` if it was
        ended.

    Raises
    ------
    ParameterError
        Wrong or duplicate names, wrong shapes, or a value that is not finite.
    StoreError
        The store belongs to a call with another model, parameters, options or versions (the message says which), or
        cannot be written.
    EnsembleError
        Workers cannot be started, have other versions, or are all lost. ``error.ensemble`` has the results so far.
    OptionError, UnsupportedError
        Another argument is invalid or not supported, or the model cannot be sent to other processes.

    Notes
    -----
    Ctrl-C stops running chunks and is raised; a store keeps all chunks that are done. A run whose worker is lost twice,
    while nothing else can be the cause, fails with a `WorkerLostError`; it is found by halving its chunk. Several
    clients of one machine may work on the same store.

    Examples
    --------
    >>> import numpy as np
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> found = dh.ensemble(
    ...     hybrid_ode.system(), (0, 5), parameters={"p": np.linspace(2.5, 3.5, 100)}, gradient="adjoint"
    ... )
    >>> found.values.shape, found.gradients.shape, found.complete, len(found.failures)
    ((100, 1), (100, 1, 1), True, 0)
    """
    _check_choices(chunk, progress, cancellation)
    if retry_lost and store is None:
        raise OptionError("retry_lost= is for the runs of a store, and store= is not given.")
    case, given = checked_table(
        system, t_span, parameters, x0, start_mode, functional=functional, gradient=gradient, wrt=wrt, t_eval=t_eval,
        adapter=adapter, strict=strict, duality=duality, options=options,
    )  # fmt: skip
    layout = ResultLayout.of(case, outputs)
    _check_finite(given, layout)
    path = None if store is None else store_path(store)
    facts = None if path is None else identity(case, strict, duality) | {"outputs": list(layout.outputs.names)}
    found = None if path is None or facts is None else _opened(path, facts, given)
    if found is not None and retry_lost:
        found._retry_lost()
    if found is not None and found.complete:
        return found._with(case)
    cancellation = Cancellation() if cancellation is None else cancellation
    with (
        open_workers(executor, workers, None if path is None else path.parent) as team,
        ProgressReport(f"ensemble '{case.system.name}'", progress, EnsembleProgress.in_words) as tell,
    ):
        recipe = Recipe.of(uuid.uuid4().hex, case, layout, is_sent=not team.is_local)
        campaign = Campaign(team, recipe, layout, given, cancellation, tell)
        if found is None:
            try:
                length = campaign.chunk_length() if chunk is None else min(chunk, len(given))
            except StopIteration:  # the length of chunks is unknown: no store
                return _laid_out(None, case, layout, None, given, len(given))._with(case)
            found = _laid_out(path, case, layout, facts, given, length)
        try:
            campaign.run(found._table, found._arrays)
        except EnsembleError as error:
            error.ensemble = found._with(case)
            raise
    return found._with(case)


def _check_choices(chunk: object, progress: object, cancellation: object) -> None:
    if chunk is not None:
        positive_integer("chunk", chunk)
    check_report("progress", progress)
    if cancellation is not None and not isinstance(cancellation, Cancellation):
        raise OptionError(f"cancellation must be a dae_hybrid.Cancellation, got {shown(cancellation)}.")


def _check_finite(given: Array, layout: ResultLayout) -> None:
    if not len(given):
        raise ParameterError("The table of parameters has no rows.")
    bad = np.argwhere(~np.isfinite(given))
    if bad.size:
        run, column = bad[0].tolist()
        raise ParameterError(
            f"The table has {counted(len(bad), 'non-finite value')}, the first in row {run}, {layout.given[column]!r}: "
            f"{given[run, column]}.",
            remedy="Remove these rows.",
        )


def _laid_out(
    path: Path | None, case: CheckedCall, layout: ResultLayout, facts: dict[str, Any] | None, given: Array, chunk: int
) -> Ensemble:
    """Create the arrays and the table of chunks, on disk at once or not at all."""
    t = case.setup.t_eval
    if path is None or facts is None:
        table = ChunkTable(None)
        table.lay_out(len(given), chunk)
        return Ensemble(layout, MemoryArrays(layout, given), table, t)
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    attributes = {"format": FORMAT, "call": facts, "layout": layout.to_json(), "chunk": chunk}
    try:
        with told(path):
            draft.mkdir(parents=True)
        ZarrArrays.create(draft / ARRAYS, layout, given, t, chunk, json.loads(json.dumps(attributes)))
        table = ChunkTable(draft / TABLE)
        table.lay_out(len(given), chunk)
        table.close()
        try:
            draft.rename(path)
        except OSError as reason:
            if not path.is_dir() or not any(path.iterdir()):
                raise StoreError(f"The store {str(path)!r} cannot be created: {reason}.") from reason
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    found = _opened(path, facts, given)
    if found is None:
        raise StoreError(f"The store {str(path)!r} has vanished.")
    return found


def _opened(path: Path, facts: dict[str, Any], given: Array) -> Ensemble | None:
    """Open the store of the same call; None if there is none."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    found = Ensemble._opened(path, is_read_only=not os.access(path, os.W_OK))
    different = differences(found._facts, facts) or _different_inputs(found, given)
    if different:
        raise StoreMismatchError(
            f"The store {str(path)!r} belongs to another call: {'; '.join(different)}.",
            remedy="Pass another store=, or repeat the call to which this one belongs.",
        )
    return found


def _different_inputs(found: Ensemble, given: Array) -> list[str]:
    stored = found._arrays.given
    if stored.shape != given.shape:
        return [f"parameters and initial values: stored {stored.shape[0]} runs, now {given.shape[0]}"]
    differing = np.argwhere((stored != given) | (np.signbit(stored) != np.signbit(given)))
    if not differing.size:
        return []
    run, column = differing[0].tolist()
    name = found.layout.given[column]
    return [
        f"{name!r} of run {run}: stored {float(stored[run, column])!r}, now {float(given[run, column])!r} "
        f"(different in {counted(len(np.unique(differing[:, 0])), 'run')})"
    ]
