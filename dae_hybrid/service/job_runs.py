"""What jobs do: ensembles on worker processes or a cluster, and fits in a process of their own."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import orjson

from dae_hybrid.cancellation import Cancellation, Cancelled
from dae_hybrid.ensembles.ensemble import ensemble
from dae_hybrid.ensembles.process import WorkerProcess
from dae_hybrid.ensembles.scheduling import EnsembleProgress
from dae_hybrid.ensembles.worker import cancellation_of, collected_warnings
from dae_hybrid.errors import DaeHybridError, EnsembleError, LimitError
from dae_hybrid.fitting.fit import fit
from dae_hybrid.fitting.result import Fit
from dae_hybrid.fitting.search import FitProgress
from dae_hybrid.service.evaluation import loaded
from dae_hybrid.service.job_calls import ensemble_call, fit_call
from dae_hybrid.service.job_requests import EnsembleBody, FitBody
from dae_hybrid.service.job_store import PROGRESS, RESULT, RUNS, JobFolder
from dae_hybrid.service.models import LoadedModel, ServedModel
from dae_hybrid.service.pool import CANCEL_SECONDS, LOOK_SECONDS, memory_of
from dae_hybrid.service.settings import Settings

#: interval between reports of a fit, in seconds
REPORT_SECONDS = 0.25
#: workers that a fit may lose, beyond which it has failed
MAX_LOSSES = 2


class Report(Protocol):
    """Where a job tells its state."""

    cancellation: Cancellation
    folder: JobFolder

    def tell(self, **state: Any) -> None:
        """Report progress."""

    def warn(self, text: str) -> None:
        """Report a warning, each text once."""


def run_ensemble(job: Report, body: EnsembleBody, model: LoadedModel, settings: Settings) -> bool:
    """Carry out an ensemble, or continue it; return whether it is complete.

    Raises
    ------
    LimitError
        It takes too much time; the results so far are kept.
    DaeHybridError
        It cannot be carried out.
    """
    call, end = ensemble_call(model, body, settings), time.monotonic() + settings.max_job_seconds
    cluster = settings.dask is not None
    with collected_warnings() as seen:

        def tell(state: EnsembleProgress) -> None:
            for _, text in list(seen):
                job.warn(text)
            job.tell(**state._asdict())
            if time.monotonic() > end:
                raise StopIteration

        found = ensemble(
            model.system, call.span, executor=settings.dask if cluster else "processes",
            workers=None if cluster else settings.workers, store=job.folder.path / RUNS, cancellation=job.cancellation,
            progress=tell, **call.options,
        )  # fmt: skip
    for _, text in seen:
        job.warn(text)
    if found.complete:
        counts = found.statistics
        job.tell(done=counts["done"], failed=counts["failed"], total=counts["runs"])
    elif time.monotonic() > end and not job.cancellation.is_cancelled:
        raise LimitError(f"The job takes more than {settings.max_job_seconds:g} s.", remedy="Submit fewer runs.")
    return found.complete


def run_fit(job: Report, body: FitBody, served: ServedModel, settings: Settings) -> bool:
    """Carry out a fit in a process of its own; return whether it has ended by itself.

    Raises
    ------
    LimitError
        It needs too much time or memory.
    EnsembleError
        Its process was lost several times.
    DaeHybridError
        The error of the fit.
    """
    end = time.monotonic() + settings.max_job_seconds
    path = job.folder.path / PROGRESS
    for losses in range(MAX_LOSSES + 1):
        worker = WorkerProcess()
        try:
            found = _supervised(job, worker, (served, body, settings, path), end, settings)
            break
        except EnsembleError:
            if worker.is_running or losses == MAX_LOSSES:  # lost, also while it starts
                raise
            job.warn("The process of the fit was lost; the fit runs again.")
        finally:
            worker.kill()
            path.unlink(missing_ok=True)
    if found is None:
        return False
    for text in found["warnings"]:
        job.warn(text)
    job.folder.write(RESULT, found)
    return True


def _supervised(job: Report, worker: WorkerProcess, call: tuple[Any, ...], end: float, settings: Settings) -> Any:
    """Wait for the process of a fit; None if the job was cancelled."""
    token = uuid.uuid4().hex
    with ThreadPoolExecutor(1, "fit") as threads:
        answer = threads.submit(worker.run, carry_out_fit, *call, token)
        told: Any = None
        while not wait([answer], timeout=LOOK_SECONDS).done:
            if job.cancellation.is_cancelled:
                _stop(worker, answer, token)
                return None
            if time.monotonic() > end:
                _stop(worker, answer, token)
                raise LimitError(
                    f"The fit takes more than {settings.max_job_seconds:g} s.",
                    remedy="Begin nearer to the solution, or loosen the tolerances.",
                )
            if memory_of(worker) > settings.max_memory:
                worker.kill()
                wait([answer])
                raise LimitError(f"The fit needs more than {settings.max_memory / 1e6:.0f} MB of memory.")
            with suppress(OSError, orjson.JSONDecodeError):
                state = orjson.loads(call[-1].read_bytes())
                if state != told:
                    told = state
                    job.tell(**state)
        return answer.result()


def _stop(worker: WorkerProcess, answer: Future[Any], token: str) -> None:
    worker.cancel(token)
    if not wait([answer], timeout=CANCEL_SECONDS).done:
        worker.kill()
        wait([answer])


# -- in the process of a fit --------------------------------------------------------------------------------


def carry_out_fit(
    served: ServedModel, body: FitBody, settings: Settings, path: Path, token: str
) -> dict[str, Any] | None:
    """Carry out a fit, which leaves its state at `path`; None if it was cancelled.

    Raises
    ------
    DaeHybridError
        The error of the fit.
    """
    try:
        with cancellation_of(token), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            model = loaded(served)
            experiments, call = fit_call(model, body, settings)
            found = fit(model.system, experiments, progress=_teller(path), **call)
            facts = fit_facts(found)
    except Cancelled:
        return None
    except DaeHybridError as error:
        error.release()
        raise
    return {"model": served.name, **facts, "warnings": list(dict.fromkeys(str(own.message) for own in seen))}


def _teller(path: Path) -> Callable[[FitProgress], None]:
    due = 0.0

    def tell(state: FitProgress) -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        due = time.monotonic() + REPORT_SECONDS
        draft = path.with_name(f".{path.name}")
        with suppress(OSError):  # the fit goes on without reports
            draft.write_bytes(orjson.dumps(state._asdict()))
            draft.replace(path)

    return tell


def fit_facts(found: Fit) -> dict[str, Any]:
    """A fit as JSON; null for what the data do not determine."""
    return {
        "labels": found.labels,
        "estimates": found.estimates,
        **_accuracy(found),
        "at_bound": found.at_bound.tolist(),
        "cost": found.cost,
        "success": found.success,
        "message": found.message,
        "optimizer": found.optimizer,
        "evaluations": found.evaluations,
        "chi2": found.chi2,
        "residuals": dict(found.residuals),
        "failures": [
            {"parameters": point, "kind": type(error).__name__, "message": error.message}
            for point, error in found.failures
        ],
        "table": str(found),
    }


def _accuracy(found: Fit) -> Mapping[str, Any]:
    """Standard errors and covariance; none, with the reason, if the fit has no linear approximation."""
    try:
        intervals, covariance, errors = found.intervals(), found.covariance, found.standard_errors
    except DaeHybridError as error:
        return {"standard_errors": None, "covariance": None, "intervals": None, "accuracy": error.message}
    return {"standard_errors": errors, "covariance": covariance, "intervals": intervals, "accuracy": None}
