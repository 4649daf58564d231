"""Jobs without HTTP: results of the library, lost processes, damaged stores, and limits."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pydantic import ValidationError
from service import SLOW, computing, decay, jobs_in_threads, times_of_results

import dae_hybrid as dh
from dae_hybrid.errors import LimitError, OverloadError, ParameterError
from dae_hybrid.service import job_results, job_routes
from dae_hybrid.service.job_calls import _check_size, _rectangular
from dae_hybrid.service.job_requests import body_class
from dae_hybrid.service.job_results import result_parts
from dae_hybrid.service.job_store import JobFolder
from dae_hybrid.service.jobs import Job, Jobs
from dae_hybrid.service.models import served_models
from dae_hybrid.service.settings import Settings

MODELS = ("service:decay",)
K = np.linspace(0.5, 2.0, 24)
OPTIONS = {"rtol": 1e-8, "atol": 1e-12}
#: runs of about 20 ms
BUSY = {"max_step": 1e-4, "t_span": [0, 3]}
T, Y = [0.5, 1.0, 1.5, 2.0, 2.5], [1.28, 0.81, 0.53, 0.33, 0.22]
FIT = {"kind": "fit", "model": "decay", "experiments": [{"t": T, "data": {"y": Y}}], "free": ["k", "y0"]}


@contextmanager
def engine(store: Path | None, *models: str, **settings: Any) -> Iterator[Jobs]:
    given = {"workers": 1, "max_steps": 10**12, **settings}
    jobs = Jobs(store, served_models(models or MODELS), Settings(**given))
    try:
        yield jobs
    finally:
        jobs.close()


def submit(jobs: Jobs, content: dict[str, Any]) -> Job:
    return jobs.submit(body_class(content).model_validate(content))


def sets(k: np.ndarray = K, **further: Any) -> dict[str, Any]:
    return {"kind": "ensemble", "model": "decay", "parameters": {"k": k.tolist()}, **BUSY, **further}


def until(condition: Callable[[], object], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def ended(job: Job, status: str = "done") -> Job:
    until(lambda: job.has_ended)
    assert job.state["status"] == status, job.state
    return job


def result(job: Job) -> Any:
    parts = result_parts(job, "json")
    assert parts is not None
    return json.loads(b"".join(parts))


def children() -> list[psutil.Process]:
    found = []
    for own in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended meanwhile
            if "ensembles.process" in " ".join(own.cmdline()):
                found.append(own)
    return found


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Jobs run in threads; set the number of chunks after which those of an ensemble wait for their cancellation."""
    return jobs_in_threads(monkeypatch)


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.operation)])
def hold_both(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """`hold`, or worker processes, whose chunks take a while."""
    found: Callable[[float], None] = request.getfixturevalue("hold") if request.param == "threads" else lambda _: None
    return found


def events(job: Job) -> list[Any]:
    found, offset = [], 0
    while True:
        some, after = job.folder.events(offset)
        if after == offset:
            return found
        found, offset = found + some, after


# -- ensembles -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hold_both")
def test_an_ensemble_is_that_of_the_library(tmp_path: Path) -> None:
    with engine(tmp_path) as jobs:
        content = sets(
            gradient="forward", functional=["area", "end"], wrt=["y0"], points=5, outputs=["y"], max_step=1e-3
        )
        found = result(ended(submit(jobs, content)))
    expected = dh.ensemble(
        decay().build(), (0, 3), parameters={"k": K}, gradient="forward", functional=["area", "end"], wrt=["y0"],
        t_eval=np.linspace(0, 3, 5), outputs=["y"], max_step=1e-3, **OPTIONS,
    )  # fmt: skip
    assert found["complete"] is True
    assert found["parameters"]["k"] == K.tolist()
    for name in ("end", "area"):
        assert found["functionals"][name] == expected.functionals[name].tolist()
        assert found["gradients"][name] == expected.gradient[name].tolist()
    assert found["outputs"]["y"] == expected["y"].tolist()
    assert found["t_end"] == expected.t_end.tolist()
    assert found["final"]["y"] == expected.final["y"].tolist()
    assert found["n_steps"] == expected.n_steps.tolist()
    assert found["failures"] == []


@pytest.mark.usefixtures("hold")
def test_failed_runs_have_their_errors(tmp_path: Path) -> None:
    with engine(tmp_path) as jobs:
        found = result(ended(submit(jobs, sets(K[:4], max_steps=10))))
    assert found["ok"] == [False] * 4
    assert found["functionals"]["end"] == [None] * 4
    assert [own["run"] for own in found["failures"]] == [0, 1, 2, 3]
    assert {own["kind"] for own in found["failures"]} == {"StepLimitError"}
    assert found["failures"][2]["parameters"]["k"] == K[2]


@pytest.mark.usefixtures("hold")
def test_a_design_is_drawn_from_its_distributions(tmp_path: Path) -> None:
    design = {
        "random": {"k": {"distribution": "lognormal", "median": 0.7, "sd": 0.1}}, "n": 500, "seed": 3,
        "fixed": {"y0": 5.0},
    }  # fmt: skip
    content = {"kind": "ensemble", "model": "decay", "t_span": [0, 1], "parameters": design}
    with engine(tmp_path) as jobs:
        found = result(ended(submit(jobs, content)))
        again = result(ended(submit(jobs, content)))
    k = np.array(found["parameters"]["k"])
    assert again["parameters"] == found["parameters"]
    assert abs(np.log(k / 0.7).mean()) < 4 * 0.1 / np.sqrt(500)
    assert np.log(k).std() == pytest.approx(0.1, rel=0.15)
    assert found["parameters"]["y0"] == [5.0] * 500
    np.testing.assert_allclose(found["functionals"]["end"], 5 * np.exp(-k), rtol=1e-6)


def test_a_killed_worker_loses_no_run(tmp_path: Path) -> None:
    expected = dh.batch(decay().build(), (0, 3), parameters={"k": K}, max_step=1e-4, **OPTIONS)
    with engine(tmp_path) as jobs:
        job = submit(jobs, sets())
        until(lambda: job.state["done"])
        children()[0].send_signal(signal.SIGKILL)
        found = result(ended(job))
    assert found["functionals"]["end"] == expected.functionals["end"].tolist()
    assert found["ok"] == [True] * len(K)


def test_a_cancelled_job_ends_during_a_long_chunk(tmp_path: Path) -> None:
    with engine(tmp_path) as jobs:
        job = submit(jobs, sets(K[:3]) | SLOW)
        waiting = submit(jobs, sets(K[:3]))
        until(computing(children))
        assert job.state["status"] == "running"
        jobs.cancel(waiting)
        assert waiting.state["status"] == "cancelled"
        begin = time.monotonic()
        jobs.cancel(job)
        ended(job, "cancelled")
        assert time.monotonic() - begin < 2.0
        jobs.cancel(job)  # of no effect
        assert not children()
        assert events(job)[-1]["data"]["status"] == "cancelled"


def test_the_next_server_continues_what_the_last_one_left(tmp_path: Path, hold_both: Callable[[float], None]) -> None:
    hold_both(3)
    with engine(tmp_path) as jobs:
        job, queued = submit(jobs, sets()), submit(jobs, sets(K[:3]))
        until(lambda: job.state["done"])
    assert job.state["status"] == "running"
    runs = dh.Ensemble.open(job.folder.path / "runs")
    before = int(runs.done.sum())
    assert 0 < before < len(K)
    times = times_of_results(runs)
    assert times
    hold_both(math.inf)
    with engine(tmp_path) as jobs:
        again = jobs.jobs[job.id]
        assert [own.id for own in sorted(jobs.jobs.values(), key=lambda own: own.number)] == [job.id, queued.id]
        found = result(ended(again))
        ended(jobs.jobs[queued.id])
        progress = [own["data"]["done"] for own in events(again) if own["event"] == "progress"]
        assert progress == sorted(progress)
    later = times_of_results(runs)
    assert {file: later[file] for file in times} == times  # no chunk that is done runs again
    expected = dh.batch(decay().build(), (0, 3), parameters={"k": K}, max_step=1e-4, **OPTIONS)
    assert found["functionals"]["area"] == expected.functionals["area"].tolist()


# -- fits ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hold_both")
def test_a_fit_is_that_of_the_library(tmp_path: Path) -> None:
    content = FIT | {"bounds": {"k": [0.1, None]}, "scale": {"y0": "log"}, "free": {"k": 1.0, "y0": 1.5}}
    content |= {"experiments": [{"t": T, "data": {"y": [*Y[:-1], None]}, "sigma": 0.01}]}
    with engine(tmp_path) as jobs:
        found = result(ended(submit(jobs, content)))
    data = dh.Experiment({"y": [*Y[:-1], np.nan]}, T, sigma=0.01)
    expected = dh.fit(
        decay().build(), data, {"k": 1.0, "y0": 1.5}, bounds={"k": (0.1, None)}, scale={"y0": "log"}, **OPTIONS
    )
    assert found["labels"] == ["k", "y0"]
    assert found["estimates"] == expected.estimates.tolist()
    assert found["standard_errors"] == expected.standard_errors.tolist()
    assert found["covariance"] == expected.covariance.tolist()
    assert found["cost"] == expected.cost
    assert found["success"] is True
    assert found["table"] == str(expected)


def test_a_fit_whose_process_is_killed_runs_again_but_not_for_ever(tmp_path: Path) -> None:
    content = FIT | {"experiments": [FIT["experiments"][0] | {"t_span": [0, 3]}], "max_step": 1e-6}
    killed: set[int] = set()

    def kill(times: int) -> None:
        while len(killed) < times:
            until(lambda: any(own.pid not in killed for own in children()))
            victim = next(own for own in children() if own.pid not in killed)
            time.sleep(0.2)
            victim.kill()
            killed.add(victim.pid)

    with engine(tmp_path) as jobs:
        job = submit(jobs, FIT | {"starts": 1})
        kill(1)
        done = ended(job)
        assert "lost" in done.state["warnings"][0]
        killed.clear()
        job = submit(jobs, content)
        kill(3)
        failed = ended(job, "failed")
        assert failed.state["error"]["kind"] in ("WorkerLostError", "EnsembleError")  # the latter at its start
        assert "SIGKILL" in failed.state["message"]
        assert result_parts(failed, "json") is None


def test_a_fit_is_cancelled(tmp_path: Path, hold_both: Callable[[float], None]) -> None:
    hold_both(math.inf)
    with engine(tmp_path) as jobs:
        job = submit(jobs, FIT | {"max_step": 1e-9})
        until(lambda: job.state["status"] == "running")
        is_busy, seconds = computing(children), time.process_time()
        until(lambda: is_busy() or (not children() and time.process_time() > seconds + 0.5))  # a process, or a thread
        begin = time.monotonic()
        jobs.cancel(job)
        ended(job, "cancelled")
        assert time.monotonic() - begin < 2.0
        assert not children()


def test_a_fit_ends_at_its_limit_of_time(tmp_path: Path, hold_both: Callable[[float], None]) -> None:
    hold_both(math.inf)
    with engine(tmp_path, max_job_seconds=0.5) as jobs:
        late = ended(submit(jobs, FIT | {"max_step": 1e-9}), "failed")
        assert late.state["error"]["kind"] == "LimitError"
        assert "0.5 s" in late.state["message"]
        assert not children()


def test_a_fit_reports_its_progress_and_the_next_server_begins_it_again(
    tmp_path: Path, hold_both: Callable[[float], None]
) -> None:
    hold_both(math.inf)
    with engine(tmp_path) as jobs:
        job = submit(jobs, FIT | {"max_step": 2e-5})
        until(lambda: any(own["event"] == "progress" for own in events(job)))
        assert next(own for own in events(job) if own["event"] == "progress")["data"]["evaluations"] >= 1
    assert job.state["status"] == "running"
    with engine(tmp_path) as jobs:
        until(lambda: jobs.jobs[job.id].state["status"] == "running")
        jobs.cancel(jobs.jobs[job.id])
        ended(jobs.jobs[job.id], "cancelled")


# -- the store -------------------------------------------------------------------------------------------


def test_a_store_has_one_server(tmp_path: Path) -> None:
    with engine(tmp_path), pytest.raises(dh.StoreError, match="another server"):
        Jobs(tmp_path, served_models(MODELS), Settings())
    with engine(tmp_path):
        pass


@pytest.mark.usefixtures("hold")
def test_damaged_folders_are_reported_and_left(tmp_path: Path) -> None:
    with engine(tmp_path) as jobs:
        kept, broken, torn, empty = (ended(submit(jobs, sets(K[:2]))) for _ in range(4))
    (broken.folder.path / "request.json").write_bytes(b'{"number": 1, "body": {"kind": "ensem')
    (empty.folder.path / "status.json").unlink()
    whole = (torn.folder.path / "events.jsonl").read_bytes()
    (torn.folder.path / "events.jsonl").write_bytes(whole[:-10])
    (tmp_path / ("f" * 32)).mkdir()
    (tmp_path / "notes.txt").write_text("not of the service")
    (tmp_path / ".job-0").mkdir()
    with engine(tmp_path) as jobs:
        assert set(jobs.damaged) == {broken.id, empty.id, "f" * 32}
        assert set(jobs.jobs) == {kept.id, torn.id}
        assert result(jobs.jobs[kept.id])["complete"] is True
        numbers = [own["data"]["status"] for own in events(jobs.jobs[torn.id]) if own["event"] == "status"]
        assert numbers == ["queued", "running", "done"]
        assert jobs.jobs[torn.id].folder.n_events == len(events(jobs.jobs[torn.id]))
    assert broken.folder.path.is_dir()
    assert not (tmp_path / ".job-0").exists()


def test_a_damaged_store_of_runs_fails_its_job_only(tmp_path: Path, hold: Callable[[float], None]) -> None:
    hold(3)
    with engine(tmp_path) as jobs:
        job = submit(jobs, sets())
        until(lambda: job.state["done"])
    (job.folder.path / "runs" / "chunks.sqlite").write_bytes(b"no database")
    hold(math.inf)
    with engine(tmp_path) as jobs:
        failed = ended(jobs.jobs[job.id], "failed")
        assert failed.state["error"]["kind"] == "StoreError"
        assert str(tmp_path) not in json.dumps(failed.facts())
        ended(submit(jobs, sets(K[:2])))


def test_a_job_waits_for_its_model(tmp_path: Path, hold: Callable[[float], None]) -> None:
    hold(3)
    with engine(tmp_path) as jobs:
        job = submit(jobs, sets())
        until(lambda: job.state["done"])
    with engine(tmp_path, "graze=service:grazing") as jobs:
        assert jobs.jobs[job.id].state["status"] == "queued"
        assert "'decay'" in jobs.jobs[job.id].state["message"]
        assert not jobs.n_waiting
    with engine(tmp_path, "decay=service:grazing") as jobs:
        waiting = jobs.jobs[job.id]
        until(lambda: "cannot carry out the job" in (waiting.state["message"] or ""))
        assert waiting.state["status"] == "queued"


@pytest.mark.usefixtures("hold")
def test_a_temporary_store_is_removed() -> None:
    with engine(None) as jobs:
        path = jobs.store.path
        job = ended(submit(jobs, sets(K[:2])))
        jobs.remove(job)
        assert job.id not in jobs.jobs
        assert not job.folder.path.exists()
    assert not path.exists()


def test_the_number_of_jobs_is_limited(tmp_path: Path, hold: Callable[[float], None]) -> None:
    hold(0)
    with engine(tmp_path, max_jobs=2) as jobs:
        first, second = submit(jobs, sets(K[:3])), submit(jobs, sets(K[:2]))
        until(lambda: first.state["status"] == "running")
        with pytest.raises(OverloadError, match="keeps 2 jobs") as caught:
            submit(jobs, sets(K[:2]))
        assert caught.value.retry_after > 0
        jobs.cancel(second)
        jobs.remove(second)
        jobs.cancel(submit(jobs, sets(K[:2])))
        jobs.cancel(first)
        ended(first, "cancelled")


# -- requests --------------------------------------------------------------------------------------------

RANDOM = {"distribution": "uniform", "low": 0.5, "high": 1.0}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"parameters": {"q": [1.0]}}, "/parameters/q"),
        ({"parameters": {"a/b~": [1.0]}}, "/parameters/a~1b~0"),
        ({"parameters": {"k": [[1.0, 2.0], [3.0]]}}, "/parameters/k"),
        ({"parameters": {"k": []}}, "/parameters/k"),
        ({"parameters": {"k": [1.0, 2.0], "y0": [1.0, 2.0, 3.0]}}, "/parameters"),
        ({"parameters": {"random": {"q": RANDOM}, "n": 3}}, "/parameters/random/q"),
        ({"parameters": {"random": {"k": RANDOM}, "n": 3, "fixed": {"k": 1.0}}}, "/parameters/fixed/k"),
        ({"parameters": {"random": {"k": RANDOM}, "n": 10**15}}, "/parameters/n"),
        ({"wrt": ["q"], "gradient": "forward"}, "/wrt"),
        ({"points": 5, "t_eval": [0.0, 1.0]}, "/points"),
        ({"points": 10**9}, "/points"),
        ({"outputs": ["q"], "points": 5}, "/outputs"),
        ({"x0": {"q": [1.0]}}, "/x0"),
        ({"t_span": None}, "/t_span"),
        ({"rtol": -1.0}, "/rtol"),
    ],
)
def test_a_wrong_entry_is_named(small: Jobs, change: dict[str, Any], path: str) -> None:
    with pytest.raises(dh.DaeHybridError) as caught:
        submit(small, sets(K[:2]) | change)
    assert caught.value.path == path  # type: ignore[attr-defined]
    assert not small.jobs


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"free": ["q"]}, "/free/q"),
        ({"bounds": {"q": [0, 1]}}, "/bounds/q"),
        ({"experiments": [{"t": T, "data": {"q": Y}}]}, "/experiments/0/data/q"),
        ({"experiments": [FIT["experiments"][0], {"t": T, "data": {"y": Y[:-1]}}]}, "/experiments/1"),
        ({"experiments": [{"data": {"y": Y}}]}, "/experiments/0/t"),
        ({"experiments": [{"t": T, "data": {"y": Y}, "sigma": -1.0}]}, "/experiments/0"),
        ({"experiments": [{"t": T, "data": {"y": Y}, "parameters": {"q": 1.0}}]}, "/experiments/0"),
    ],
)
def test_a_wrong_entry_of_a_fit_is_named(small: Jobs, change: dict[str, Any], path: str) -> None:
    with pytest.raises(dh.DaeHybridError) as caught:
        submit(small, FIT | change)
    assert caught.value.path == path  # type: ignore[attr-defined]
    assert not small.jobs


@pytest.mark.parametrize(("values", "words"), [([[1.0, 2.0], [3.0]], "the same number"), ([], "no values")])
def test_why_values_of_a_parameter_are_refused(values: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        _rectangular("k", values)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with engine(tmp_path_factory.mktemp("store"), max_runs=100, max_values=2000) as jobs:
        yield jobs


def test_the_size_of_a_job_is_limited(small: Jobs) -> None:
    for content in (sets(np.linspace(1, 2, 101)), sets(K, points=200)):
        with pytest.raises(LimitError, match="at most") as caught:
            submit(small, content)
        assert caught.value.path == "/parameters"  # type: ignore[attr-defined]
    _check_size(100, 20, "/parameters", small.settings)  # just as many are allowed


@pytest.mark.parametrize(
    "change",
    [
        {"store": "elsewhere"},
        {"parameters": {"k": ["1"]}},
        {"parameters": {"k": [None]}},
        {"parameters": {"k": [float("nan")]}},
        {"parameters": {"k": True}},
        {"parameters": {"random": {"k": {"distribution": "cauchy"}}, "n": 3}},
        {"parameters": {"random": {"k": RANDOM | {"high": 0.1}}, "n": 3}},
        {"parameters": {"random": {"k": RANDOM | {"sd": 1.0}}, "n": 3}},
        {"parameters": {"random": {"k": RANDOM}, "n": 0}},
        {"gradient": "exact"},
        {"preconditioner": "os.system"},
    ],
)
def test_a_body_of_another_form_is_refused(change: dict[str, Any]) -> None:
    content = sets(K[:2]) | change
    with pytest.raises(ValidationError):
        body_class(content).model_validate(content)


# -- results and events in parts -------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
@pytest.mark.usefixtures("hold")
def test_results_in_parts_are_those_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    with engine(tmp_path) as jobs:
        job = ended(submit(jobs, sets(K[:11], gradient="forward", points=3, max_step=0.1)))
        whole = list(result_parts(job, form) or ())
        monkeypatch.setattr(job_results, "NUMBERS", 30)
        parts = list(result_parts(job, form) or ())
    assert len(parts) > len(whole)
    if form == "arrow":
        tables = [pa.ipc.open_stream(b"".join(own)).read_all() for own in (whole, parts)]
        assert tables[0].num_rows == 11
        assert tables[0].equals(tables[1])
    else:
        assert b"".join(parts) == b"".join(whole)
    if form == "json":
        assert len(json.loads(b"".join(parts))["gradients"]["area"]) == 11


def test_a_silent_stream_of_events_is_kept_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold: Callable[[float], None]
) -> None:
    hold(0)
    monkeypatch.setattr(job_routes, "KEEP_ALIVE_SECONDS", 0.05)
    with engine(tmp_path) as jobs:
        running, waiting = submit(jobs, sets(K[:2])), submit(jobs, sets(K[:2]))

        async def listened() -> list[bytes]:
            found = []
            async for piece in job_routes._events(waiting, jobs, 0):
                found.append(piece)
                if len(found) == 5:
                    jobs.cancel(waiting)
            return found

        found = asyncio.run(listened())
        assert found[2:5] == [b": keep-alive\n\n"] * 3
        assert b'"status":"cancelled"' in found[-1]
        assert not waiting._listeners
        jobs.cancel(running)
        ended(running, "cancelled")


def test_progress_is_told_at_most_four_times_per_second(
    tmp_path: Path, hold: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(0)
    with engine(tmp_path) as jobs:
        waiting = [submit(jobs, sets(K[:2])) for _ in range(2)][1]
        before, now = waiting.folder.n_events, time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr("dae_hybrid.service.jobs.time", SimpleNamespace(monotonic=lambda: now, time=time.time))
            for _ in range(100):
                now += 0.01
                waiting.tell(done=1, failed=0, total=2)
            told = waiting.folder.n_events - before
            now += 86400.0  # a job of a day is told of every few minutes
            for _ in range(100):
                now += 1.0
                waiting.tell(done=1, failed=0, total=2)
        assert 2 <= told <= 5
        assert waiting.folder.n_events - before == told + 1
        assert waiting.facts()["done"] == 1
        for job in list(jobs.jobs.values()):
            jobs.cancel(job)


# -- what the server cannot do is no failure of a job --------------------------------------------------------


def test_limits_are_those_at_the_submission(tmp_path: Path, hold: Callable[[float], None]) -> None:
    hold(3)
    with engine(tmp_path, max_steps=10**12) as jobs:
        first = submit(jobs, sets())
        until(lambda: first.state["done"])
    hold(math.inf)
    with engine(tmp_path, max_steps=10, max_runs=1, max_outputs=1) as jobs:
        found = result(ended(jobs.jobs[first.id]))
    assert found["complete"] is True
    assert found["failures"] == []


def test_a_job_waits_for_the_model_that_it_was_submitted_for(tmp_path: Path, hold: Callable[[float], None]) -> None:
    hold(3)
    with engine(tmp_path) as jobs:
        identifier = submit(jobs, sets()).id
        until(lambda: jobs.jobs[identifier].state["done"])
    with engine(tmp_path, "decay=em_hysteresis") as jobs:
        job = jobs.jobs[identifier]
        until(lambda: "cannot carry out the job" in (job.state["message"] or ""))
        assert job.state["status"] == "queued"
    hold(math.inf)
    with engine(tmp_path) as jobs:
        assert result(ended(jobs.jobs[identifier]))["complete"] is True


@pytest.mark.usefixtures("hold")
def test_a_fit_waits_for_the_model_that_it_was_submitted_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tmp_path) as jobs:
        monkeypatch.setattr("dae_hybrid.service.jobs.run_fit", lambda *_: False)  # a server that ends meanwhile
        job = submit(jobs, FIT)
        until(lambda: job.state["status"] == "running")
    monkeypatch.undo()
    with engine(tmp_path, "decay=service:slower") as jobs:
        waiting = jobs.jobs[job.id]
        until(lambda: "another one than at the submission" in (waiting.state["message"] or ""))
        assert waiting.state["status"] == "queued"
    with engine(tmp_path) as jobs:
        ended(jobs.jobs[job.id])


def test_a_job_waits_for_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dae_hybrid.ensembles.workers.SCHEDULER_SECONDS", 0.5)
    monkeypatch.setattr("dae_hybrid.service.jobs.PAUSE_SECONDS", 0.2)
    with engine(tmp_path, dask="tcp://127.0.0.1:9") as jobs:
        job = submit(jobs, sets())
        until(lambda: "waits for another attempt" in (job.state["message"] or ""))
        assert job.state["status"] == "queued"
        until(lambda: job.state["status"] == "running")
        jobs.cancel(job)
        until(lambda: job.has_ended)
        assert job.state["status"] == "cancelled"


@pytest.mark.usefixtures("hold")
def test_a_full_disk_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dae_hybrid.service.jobs.PAUSE_SECONDS", 0.2)
    write, is_full = JobFolder.write, True

    def full(folder: JobFolder, name: str, content: Any) -> None:
        if is_full and (name in ("request.json", "result.json") or content.get("status") == "running"):
            raise OSError(28, "No space left on device")
        write(folder, name, content)

    with engine(tmp_path) as jobs:
        monkeypatch.setattr(JobFolder, "write", full)
        with pytest.raises(OverloadError, match="No space left"):
            submit(jobs, sets())
        assert not jobs.jobs
        is_full = False
        job = submit(jobs, sets(K[:2]))
        ended(job)
        assert result(job)["complete"] is True
        fit = submit(jobs, FIT)
        is_full = True
        until(lambda: "No space left" in (fit.state["message"] or ""))
        assert fit.state["status"] == "queued"
        is_full = False
        ended(fit)
        assert result(fit)["labels"] == ["k", "y0"]


@pytest.mark.usefixtures("hold")
def test_an_event_of_another_form_damages_its_job_only(tmp_path: Path) -> None:
    with engine(tmp_path) as jobs:
        identifier = ended(submit(jobs, sets(K[:2]))).id
    log = tmp_path / identifier / "events.jsonl"
    log.write_bytes(log.read_bytes() + b'{"event":"status","data":null}\n')
    with engine(tmp_path) as jobs:
        assert list(jobs.damaged) == [identifier]
        ended(submit(jobs, sets(K[:2])))


def test_a_job_ends_at_its_limit_of_time(tmp_path: Path, hold_both: Callable[[float], None]) -> None:
    hold_both(2)
    with engine(tmp_path, max_job_seconds=0.5) as jobs:
        job = submit(jobs, {**sets(np.linspace(0.5, 2, 2000)), "max_step": 1e-5})
        ended(job, "failed")
        assert job.state["error"]["kind"] == "LimitError"
        assert job.state["done"] < 2000


@pytest.mark.usefixtures("hold")
def test_the_interval_of_a_fit_is_that_of_its_experiments(tmp_path: Path) -> None:
    with engine(tmp_path) as jobs:
        late = result(ended(submit(jobs, {**FIT, "t_span": [0.5, 2.5]})))["estimates"]
        own = {**FIT["experiments"][0], "t_span": [0.5, 2.5]}
        assert late == result(ended(submit(jobs, {**FIT, "experiments": [own]})))["estimates"]
        assert late != result(ended(submit(jobs, FIT)))["estimates"]
        for change, path in (
            ({"t_span": [5, 1]}, "/t_span"),
            ({"free": ["k", "k"]}, "/free"),
            ({"free": {"k": [1.0, 2.0, 3.0]}}, "/free/k"),
            ({"bounds": {"k": [2.0, 1.0]}}, "/bounds/k"),
            ({"scale": {"nope": "log"}}, "/scale/nope"),
        ):
            with pytest.raises(dh.DaeHybridError) as caught:
                submit(jobs, {**FIT, **change})
            assert caught.value.__dict__["path"] == path
