"""Jobs: ensembles and fits that outlive requests, and the server itself."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any

from pydantic import ValidationError

from dae_hybrid.cancellation import Cancellation
from dae_hybrid.ensembles.failures import report_of
from dae_hybrid.errors import DaeHybridError, EnsembleError, OverloadError, StoreError, StoreMismatchError
from dae_hybrid.service.evaluation import loaded
from dae_hybrid.service.job_calls import ensemble_call, fit_call, resolved, without_limits
from dae_hybrid.service.job_requests import EnsembleBody, FitBody, body_class
from dae_hybrid.service.job_runs import run_ensemble, run_fit
from dae_hybrid.service.job_store import REQUEST, STATUS, JobFolder, JobStore
from dae_hybrid.service.log import LOG
from dae_hybrid.service.models import LoadedModel, ServedModel
from dae_hybrid.service.settings import Settings

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
ENDED = (DONE, FAILED, CANCELLED)
#: least interval between events of progress in seconds, and in terms of the time since the start of the job: the number
#: of events of a long job stays small
INTERVAL, INTERVAL_SHARE = 0.25, 0.002
#: seconds after which to ask again when no more jobs are taken
RETRY_SECONDS = 60
#: seconds before another attempt of a job that the server could not carry out
PAUSE_SECONDS = 30.0
#: attempts of a job that the server could not carry out
MAX_ATTEMPTS = 120
#: errors of a disk that is full or cannot be written to
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
#: warnings of a job that are kept
MAX_WARNINGS = 20


class Job:
    """A job.

    Attributes
    ----------
    id : str
    number : int
        Place in the order of submission.
    body : EnsembleBody or FitBody
    state : dict
        Status, numbers of runs, times and error; what ``status.json`` has.
    digest : str or None
        Digest of the model at the submission of a fit; the store of an ensemble has its own identity.
    attempts : int
        Attempts of this server that failed for a reason outside the job.
    cancellation : Cancellation
        Stops the job, on behalf of a client or because the server ends.
    """

    def __init__(
        self, folder: JobFolder, number: int, body: EnsembleBody | FitBody, state: dict[str, Any],
        digest: str | None = None,
    ) -> None:  # fmt: skip
        self.digest, self.attempts = digest, 0
        self.id, self.folder, self.number, self.body, self.state = folder.path.name, folder, number, body, state
        self.cancellation = Cancellation()
        self.is_removed = False
        self._lock = Lock()
        self._listeners: set[Callable[[], object]] = set()
        self._due, self._begin = 0.0, time.monotonic()
        self._warnings: set[str] = set(state["warnings"])

    @property
    def has_ended(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.state["status"] in ENDED

    def facts(self) -> dict[str, Any]:
        """The state for clients."""
        times = {name: _iso(self.state[name]) for name in ("created", "started", "ended")}
        return {"id": self.id, "kind": self.body.kind, "model": self.body.model, **self.state, **times}

    # -- events ---------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[], object]) -> None:
        """Call a function, from any thread, after every event."""
        self._listeners.add(listener)

    def leave(self, listener: Callable[[], object]) -> None:
        """End `listen`."""
        self._listeners.discard(listener)

    def notify(self) -> None:
        """Call the listeners."""
        for listener in list(self._listeners):
            with suppress(RuntimeError):  # of a loop that has ended
                listener()

    def emit(self, event: str, data: Any) -> None:
        """Append an event, and call the listeners."""
        with self._lock:
            self.folder.append(event, data)
        self.notify()

    def change(self, **state: Any) -> None:
        """Change the state, on disk first, and emit it."""
        with self._lock:
            changed = self.state | state
            self.folder.write(STATUS, changed)
            self.state = changed
        self.emit("status", self.facts())

    def tell(self, **state: Any) -> None:
        """Report progress, at most four times per second."""
        shared = {name: state[name] for name in ("done", "failed", "total") if name in state}
        with self._lock:
            self.state = self.state | shared
        now = time.monotonic()
        if now >= self._due:
            self._due = now + max(INTERVAL, INTERVAL_SHARE * (now - self._begin))
            with suppress(OSError):  # a full disk loses the event
                self.emit("progress", state)

    def warn(self, text: str) -> None:
        """Report a warning, each text once."""
        if text not in self._warnings and len(self._warnings) < MAX_WARNINGS:
            self._warnings.add(text)
            with suppress(OSError):
                self.change(warnings=[*self.state["warnings"], text])


class Jobs:
    """The jobs of a service, each in a folder of the store; those that have not ended go on at once.

    Parameters
    ----------
    store : Path or None
        Directory of the jobs; None for a temporary one, which is removed at the end.
    models : mapping of str to ServedModel
    settings : Settings
        `dask`, `workers`, `running_jobs`, and the limits of jobs.

    Raises
    ------
    StoreError
        Another server uses the store, or it cannot be written.
    """

    def __init__(self, store: Path | None, models: Mapping[str, ServedModel], settings: Settings) -> None:
        self.settings, self.models = settings, dict(models)
        self.store = JobStore(store)
        self.jobs: dict[str, Job] = {}
        #: folders that cannot be read, with the reasons
        self.damaged: dict[str, str] = {}
        self.is_closing = False
        self._waiting: list[Job] = []
        self._later: list[tuple[float, Job]] = []  # when to try again
        self._reserved = 0
        self._changed = Condition()  # its lock may be entered again
        self._loading = Lock()
        try:
            self._scan()
        except BaseException:
            self.store.close()
            raise
        self._threads = [Thread(target=self._work, name=f"job {i}", daemon=True) for i in range(settings.running_jobs)]
        for thread in self._threads:
            thread.start()

    # -- the store ------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        for folder in self.store.folders():
            try:
                self.jobs[folder.path.name] = self._restored(folder)
            except Exception as reason:  # whatever a damaged file leads to
                text = "its request is not valid" if isinstance(reason, ValidationError) else str(reason)
                if isinstance(reason, OSError):  # has a path, which is not for clients
                    text = str(reason.strerror)
                self.damaged[folder.path.name] = f"{type(reason).__name__}: {text}"
                LOG.error(f"the folder of a job is damaged and left as it is: {text}", extra={"job": folder.path.name})
        for job in sorted(self.jobs.values(), key=lambda job: job.number):
            if job.has_ended:
                continue
            if job.state["is_cancelled"]:
                self._noted(job, status=CANCELLED, ended=time.time())
            elif job.body.model not in self.models:
                job.state |= {
                    "status": QUEUED,
                    "message": f"The job waits for a server of the model {job.body.model!r}.",
                }
            else:
                job.state |= {"status": QUEUED, "message": None}
                self._waiting.append(job)

    def _restored(self, folder: JobFolder) -> Job:
        request, state = folder.read(REQUEST), folder.read(STATUS)
        body = body_class(request["body"]).model_validate(request["body"])
        if state["status"] not in (QUEUED, RUNNING, *ENDED) or not isinstance(request["number"], int):
            raise ValueError(f"unknown status {state['status']!r}")
        last = folder.mend_events()
        job = Job(folder, request["number"], body, _fresh_state(0) | state, request.get("model"))
        if last is not None and last["event"] == "progress":
            job.state |= {name: last["data"][name] for name in ("done", "failed", "total") if name in last["data"]}
        if job.has_ended and (last is None or last["data"].get("status") != job.state["status"]):
            with suppress(OSError):
                job.emit("status", job.facts())  # the server was killed between both
        return job

    # -- requests -------------------------------------------------------------------------------------------

    def submit(self, body: EnsembleBody | FitBody) -> Job:
        """Check a job, store it, and let it wait.

        Raises
        ------
        OverloadError
            There are too many jobs.
        DaeHybridError
            The call is not valid; the attribute `path` names the entry.
        """
        with self._changed:
            if len(self.jobs) + self._reserved >= self.settings.max_jobs:
                error = OverloadError(
                    f"The service keeps {self.settings.max_jobs} jobs, and takes no more.",
                    remedy="Remove jobs that have ended: DELETE /v1/jobs/{id}.",
                )
                error.retry_after = RETRY_SECONDS
                raise error
            self._reserved += 1
        body = resolved(body, self.settings)
        try:
            total = self._checked(body, self.settings)
            with self._changed:
                number = 1 + max((job.number for job in self.jobs.values()), default=0)
                content = body.model_dump(mode="json", exclude_none=True)
                state = _fresh_state(total)
                digest = self._loaded(body.model).digest if isinstance(body, FitBody) else None
                request = {"number": number, "body": content, "model": digest}
                job = Job(self.store.create(request, state), number, body, state, digest)
                with suppress(OSError):
                    job.emit("status", job.facts())
                self.jobs[job.id] = job
                self._waiting.append(job)
                self._changed.notify()
        except StoreError as reason:
            error = OverloadError(reason.message, remedy="The disk of the service may be full: try again later.")
            error.retry_after = RETRY_SECONDS
            raise error from reason
        finally:
            with self._changed:
                self._reserved -= 1
        return job

    def _checked(self, body: EnsembleBody | FitBody, settings: Settings) -> int | None:
        """Check a call; return its number of runs, None for a fit."""
        model = self._loaded(body.model)
        if isinstance(body, FitBody):
            fit_call(model, body, settings)
            return None
        return ensemble_call(model, body, settings).runs

    def _loaded(self, name: str) -> LoadedModel:
        with self._loading:
            return loaded(self.models[name])

    def cancel(self, job: Job) -> None:
        """Cancel a job that has not ended; a running one ends soon after."""
        with self._changed:
            if job.has_ended:
                return
            if job in self._waiting or job.state["status"] == QUEUED:
                job.change(status=CANCELLED, is_cancelled=True, ended=time.time())
                if job in self._waiting:
                    self._waiting.remove(job)
                return
            job.change(is_cancelled=True)
            job.cancellation.cancel()

    def remove(self, job: Job) -> None:
        """Remove a job that has ended, with its results."""
        with self._changed:
            if self.jobs.pop(job.id, None) is not None:
                job.is_removed = True
                self.store.remove(job.folder)
        job.notify()

    @property
    def n_waiting(self) -> int:
        """Number of jobs that wait."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Number of jobs that run."""
        return sum(job.state["status"] == RUNNING for job in list(self.jobs.values()))

    # -- work -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self.is_closing:
                    pause = self._pause()
                    if self._waiting:
                        break
                    self._changed.wait(pause)
                if self.is_closing:
                    return
                job = self._waiting.pop(0)
                started = job.state["started"] or time.time()
                is_started = self._noted(job, status=RUNNING, started=started, message=None)
            if is_started:
                self._noted(job, **self._outcome(job))

    def _pause(self) -> float | None:
        """Let the jobs wait whose pause is over; return the time until the next one."""
        now = time.monotonic()
        due = [job for at, job in self._later if at <= now and job.state["status"] == QUEUED and not job.is_removed]
        self._later = [(at, job) for at, job in self._later if at > now]
        self._waiting += due
        return max(0.0, min(at for at, _ in self._later) - now) if self._later else None

    def _try_later(self, job: Job) -> None:
        with self._changed:
            self._later.append((time.monotonic() + PAUSE_SECONDS, job))
            self._changed.notify()

    def _noted(self, job: Job, **state: Any) -> bool:
        """Change the state of a job, unless the disk fails: what is on disk then lets the next server continue."""
        try:
            with self._changed:
                if state:
                    job.change(**state)
        except OSError as reason:
            LOG.exception("the state of a job cannot be stored", extra={"job": job.id})
            text = f"The state of the job cannot be stored ({reason.strerror}); the service tries again."
            job.state = job.state | {"status": QUEUED, "message": text}
            job.notify()
            self._try_later(job)
            return False
        return True

    def _outcome(self, job: Job) -> dict[str, Any]:
        """Carry out a job; return what changes, nothing if the next server is to continue."""
        try:
            is_complete = self._carried_out(job)
        except (DaeHybridError, OSError) as error:
            return self._after(job, error)
        except Exception as error:
            LOG.exception("a job has failed unexpectedly", extra={"job": job.id})
            text = "The service has failed. The log has the reason, under the identifier of this job."
            return _failure(report_of(error) | {"kind": "InternalError", "message": text})
        if is_complete:
            return {"status": DONE, "ended": time.time()}
        return {"status": CANCELLED, "ended": time.time()} if job.state["is_cancelled"] else {}

    def _carried_out(self, job: Job) -> bool:
        """Carry out a job that was valid when it was submitted; return whether it is complete.

        Raises
        ------
        StoreMismatchError
            The model is another one now.
        """
        settings = without_limits(self.settings)
        try:
            self._checked(job.body, settings)
        except DaeHybridError as error:
            raise StoreMismatchError(error.message) from error
        model = self._loaded(job.body.model)
        if isinstance(job.body, FitBody):
            if job.digest is not None and job.digest != model.digest:
                raise StoreMismatchError(f"The model {model.name!r} is another one than at the submission.")
            return run_fit(job, job.body, self.models[job.body.model], settings)
        return run_ensemble(job, job.body, model, settings)

    def _after(self, job: Job, error: DaeHybridError | OSError) -> dict[str, Any]:
        """What changes after an error: what this server cannot do now is no failure of the job."""
        text = error.message if isinstance(error, DaeHybridError) else str(error.strerror)
        if isinstance(error, DaeHybridError):
            error.release()
        if self.is_closing:
            return {}
        if job.state["is_cancelled"]:
            return {"status": CANCELLED, "ended": time.time()}
        if isinstance(error, StoreMismatchError):
            return self._kept(job, f"This server cannot carry out the job: {text}")
        reason = error if isinstance(error, OSError) else error.__cause__
        is_disk = isinstance(reason, OSError) and reason.errno in DISK
        is_workers = isinstance(error, EnsembleError) and not isinstance(error, StoreError)
        if is_disk or (is_workers and not isinstance(job.body, FitBody)):
            job.attempts += 1
            if job.attempts < MAX_ATTEMPTS:
                self._try_later(job)
                return self._kept(job, f"The job waits for another attempt: {text}")
        LOG.warning(f"a job has failed: {error}", extra={"job": job.id})
        return _failure(self._report(job, error))

    def _kept(self, job: Job, text: str) -> dict[str, Any]:
        """The state of a job that waits, for another attempt or for the next server."""
        LOG.warning(text, extra={"job": job.id})
        return {"status": QUEUED, "message": self._without_paths(job, text)}

    def _report(self, job: Job, error: Exception) -> dict[str, Any]:
        texts = {name: own for name, own in report_of(error).items() if isinstance(own, str)}
        return report_of(error) | {name: self._without_paths(job, text) for name, text in texts.items()}

    def _without_paths(self, job: Job, text: str) -> str:
        """A text for clients, who are not told where the store is."""
        for path in (str(job.folder.path), str(self.store.path)):
            text = text.replace(path, "the store")
        return text

    # -- the end --------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Begin to end: stop running jobs, which the next server continues, and call all listeners."""
        with self._changed:
            self.is_closing = True
            self._changed.notify_all()
            for job in self.jobs.values():
                if job.state["status"] == RUNNING:
                    job.cancellation.cancel()
        for job in list(self.jobs.values()):
            job.notify()

    def close(self, grace: float = 30.0) -> None:
        """Stop running jobs, with the results of all chunks that are done, and leave the store."""
        self.leave()
        end = time.monotonic() + grace
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            LOG.warning("a job does not stop; the store stays locked until this process ends")
            return
        self.store.close()


def _fresh_state(total: int | None) -> dict[str, Any]:
    return {
        "status": QUEUED, "done": 0, "failed": 0, "total": total, "created": time.time(), "started": None,
        "ended": None, "is_cancelled": False, "error": None, "message": None, "warnings": [],
    }  # fmt: skip


def _failure(report: dict[str, Any]) -> dict[str, Any]:
    return {"status": FAILED, "ended": time.time(), "error": report, "message": report["message"]}


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
