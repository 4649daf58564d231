"""Routes of jobs: events that resume, killed servers, cancellation, and hostile requests."""

from __future__ import annotations

import io
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pytest
from service import (
    SLOW,
    LocalService,
    RunningService,
    computing,
    decay,
    jobs_in_threads,
    running,
    serving,
    times_of_results,
)

import dae_hybrid as dh

K = np.linspace(0.5, 2.0, 24)
OPTIONS = {"rtol": 1e-8, "atol": 1e-12}
BUSY: dict[str, Any] = {"max_step": 1e-4, "t_span": [0, 3]}
SETTINGS: dict[str, Any] = {"workers": 1, "max_steps": 10**12}
ENDED = ("done", "failed", "cancelled")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Callable[[float], None]]:
    """Jobs run in threads."""
    with pytest.MonkeyPatch.context() as patch:
        yield jobs_in_threads(patch)


@pytest.fixture
def hold(jobs: Callable[[float], None]) -> Iterator[Callable[[float], None]]:
    """Set the number of chunks after which those of an ensemble wait for their cancellation, in this test."""
    yield jobs
    jobs(math.inf)


@pytest.fixture(scope="module")
def service(jobs: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    with serving("service:decay", store=tmp_path_factory.mktemp("store"), **SETTINGS) as found:
        yield found


@pytest.fixture(scope="module")
def client(service: LocalService) -> Iterator[httpx.Client]:
    with web(service) as found:
        yield found


def web(service: Any, **further: Any) -> httpx.Client:
    return httpx.Client(base_url=service.url, timeout=60, **further)


def sets(k: np.ndarray = K, **further: Any) -> dict[str, Any]:
    return {"kind": "ensemble", "model": "decay", "parameters": {"k": k.tolist()}, **BUSY, **further}


def submit(client: httpx.Client, content: Any, status: int = 202) -> Any:
    found = client.post("/v1/jobs", json=content)
    assert found.status_code == status, found.text
    if status == 202:
        assert found.headers["location"] == f"/v1/jobs/{found.json()['id']}"
    return found.json()


def stream(client: httpx.Client, address: str, last: int | str | None = None, most: int = 10**9) -> list[Any]:
    """Events as (number, name, data)."""
    found: list[Any] = []
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with client.stream("GET", address, headers=headers) as answer:
        if answer.status_code == 204:
            return found
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        entry: dict[str, str] = {}
        for line in answer.iter_lines():
            key, _, value = line.partition(": ")
            entry |= {key: value} if key else {}
            if not line and "id" in entry:
                found.append((int(entry["id"]), entry["event"], json.loads(entry["data"])))
                entry = {}
                if len(found) == most:
                    break
    return found


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def start_slow(service: RunningService, client: httpx.Client) -> Any:
    """Submit a job, and wait until its worker computes."""
    others = {own.pid for own in service.workers()}
    job = submit(client, sets(K[:4]) | SLOW)
    until(computing(lambda: [own for own in service.workers() if own.pid not in others]))
    assert state(client, job)["status"] == "running"
    return job


def state(client: httpx.Client, job: Any) -> Any:
    return client.get(job["href"]).json()


# -- a job from its submission to its removal ------------------------------------------------------------


def test_an_ensemble_from_its_submission_to_its_removal(client: httpx.Client) -> None:
    job = submit(client, sets(gradient="forward", max_step=1e-3))
    assert job["status"] in ("queued", "running")
    assert job["durable"] is True
    assert client.get(job["result"]).status_code in (200, 409)
    found = stream(client, job["events"])
    assert [number for number, *_ in found] == list(range(1, len(found) + 1))
    assert found[-1][1:] == ("status", found[-1][2] | {"status": "done", "done": len(K), "total": len(K)})
    assert any(event == "progress" and data["total"] == len(K) for _, event, data in found)
    expected = dh.ensemble(decay().build(), (0, 3), parameters={"k": K}, gradient="forward", max_step=1e-3, **OPTIONS)
    result = client.get(job["result"]).json()
    assert result["functionals"]["area"] == expected.functionals["area"].tolist()
    assert result["gradients"]["area"] == expected.gradient["area"].tolist()
    text = client.get(job["result"], headers={"Accept": "text/csv"})
    table = np.genfromtxt(io.StringIO(text.text), delimiter=",", names=True, usecols=("k", "area"))
    np.testing.assert_array_equal(table["area"], expected.functionals["area"])
    content = client.get(job["result"], headers={"Accept": "application/vnd.apache.arrow.stream"}).content
    arrow = pa.ipc.open_stream(content).read_all()
    np.testing.assert_array_equal(arrow["darea/dk"].to_numpy(), expected.gradient["area"][:, 0])
    assert client.delete(job["href"]).status_code == 204
    assert client.get(job["href"]).status_code == 404
    assert job["id"] not in [own["id"] for own in client.get("/v1/jobs").json()["jobs"]]


def test_a_fit_from_its_submission_to_its_result(client: httpx.Client) -> None:
    t = [0.5, 1.0, 1.5, 2.0, 2.5]
    y = [1.28, 0.81, 0.53, 0.33, 0.22]
    job = submit(
        client, {"kind": "fit", "model": "decay", "experiments": [{"t": t, "data": {"y": y}}], "free": ["k", "y0"]}
    )
    assert stream(client, job["events"])[-1][2]["status"] == "done"
    expected = dh.fit(decay().build(), dh.Experiment({"y": y}, t), ["k", "y0"], **OPTIONS)
    result = client.get(job["result"]).json()
    assert result["estimates"] == expected.estimates.tolist()
    lines = client.get(job["result"], headers={"Accept": "text/csv"}).text.splitlines()
    assert lines[0] == "parameter,estimate,standard_error"
    assert float(lines[1].split(",")[2]) == expected.standard_errors[0]
    arrow = client.get(job["result"], headers={"Accept": "application/vnd.apache.arrow.stream"}).content
    assert pa.ipc.open_stream(arrow).read_all()["estimate"].to_pylist() == expected.estimates.tolist()


def test_events_resume_after_the_last_one_that_was_received(client: httpx.Client) -> None:
    job = submit(client, sets(np.linspace(0.5, 2.0, 40)))
    found = stream(client, job["events"], most=3)
    while found[-1][2].get("status") not in ENDED:
        found += stream(client, job["events"], last=found[-1][0], most=2)
    assert [number for number, *_ in found] == list(range(1, len(found) + 1))
    assert found == stream(client, job["events"])
    assert client.get(job["events"], headers={"Last-Event-ID": str(len(found))}).status_code == 204
    for bad in ("-1", "x", "1.5", "9" * 40, "999999", "0", "²"):
        headers = {"Last-Event-ID": bad.encode()}
        with client.stream("GET", job["events"], headers=headers) as answer:
            assert b"id: 1\n" in b"".join(answer.iter_bytes()), bad


def test_listeners_cost_no_threads_and_leave_nothing(
    service: LocalService, client: httpx.Client, hold: Callable[[float], None]
) -> None:
    hold(0)
    job = submit(client, sets(K[:4]))
    until(lambda: state(client, job)["status"] == "running")
    process = psutil.Process()
    threads, files = process.num_threads(), process.num_fds()
    clients = [web(service) for _ in range(20)]
    streams = [own.stream("GET", job["events"]) for own in clients]
    for own in streams:
        assert own.__enter__().status_code == 200
    until(lambda: len(service.service.jobs.jobs[job["id"]]._listeners) == len(streams))
    assert process.num_threads() <= threads + 4
    for own in (*streams, *clients):
        own.__exit__(None, None, None)
    until(lambda: process.num_fds() <= files + 4)
    until(lambda: not service.service.jobs.jobs[job["id"]]._listeners)
    begin = time.monotonic()
    answer = client.delete(job["href"])
    assert time.monotonic() - begin < 2.5
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")


# -- the end of a server ---------------------------------------------------------------------------------


@pytest.mark.operation
def test_a_killed_server_loses_nothing_and_no_chunk_that_is_done_runs_again(tmp_path: Path) -> None:
    with running("service:decay", store=tmp_path, **SETTINGS) as first, web(first) as client:
        job, queued = submit(client, sets()), submit(client, sets(K[:3]))
        until(lambda: state(client, job)["done"] > 4)
        seen = stream(client, job["events"], most=3)
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    before = times_of_results(dh.Ensemble.open(tmp_path / job["id"] / "runs"))
    assert before
    with running("service:decay", store=tmp_path, **SETTINGS) as second, web(second) as client:
        seen += stream(client, job["events"], last=seen[-1][0])
        assert [number for number, *_ in seen] == list(range(1, len(seen) + 1))
        assert seen[-1][2]["status"] == "done"
        result = client.get(job["result"]).json()
        assert stream(client, queued["events"])[-1][2]["status"] == "done"
    after = times_of_results(dh.Ensemble.open(tmp_path / job["id"] / "runs"))
    assert {file: after[file] for file in before} == before
    expected = dh.batch(decay().build(), (0, 3), parameters={"k": K}, max_step=1e-4, **OPTIONS)
    assert result["functionals"]["area"] == expected.functionals["area"].tolist()


@pytest.mark.operation
def test_a_server_that_ends_leaves_its_jobs_to_the_next(tmp_path: Path) -> None:
    with running("service:decay", store=tmp_path, **SETTINGS) as first, web(first) as client:
        job = start_slow(first, client)
        with client.stream("GET", job["events"]) as answer:
            lines = answer.iter_lines()
            next(lines)
            begin = time.monotonic()
            first.process.send_signal(signal.SIGTERM)
            assert '"status":"cancelled"' not in "".join(lines)  # the stream ends, the job does not
        assert first.process.wait(20) == 0
        assert time.monotonic() - begin < 10
        assert "Traceback" not in first.text()
    with running("service:decay", store=tmp_path, **SETTINGS) as second, web(second) as client:
        until(lambda: state(client, job)["status"] == "running")
        client.delete(job["href"])
        until(lambda: state(client, job)["status"] == "cancelled")


@pytest.mark.operation
def test_a_second_server_on_a_store_is_refused(service: LocalService) -> None:
    with (
        pytest.raises(RuntimeError, match="in use by another server"),
        running("service:decay", store=service.service.jobs.store.path, **SETTINGS),
    ):
        pass


@pytest.mark.operation
def test_ensembles_run_on_a_dask_cluster(tmp_path: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as cluster, running(
        "service:decay", store=tmp_path, dask=cluster.scheduler_address, **SETTINGS
    ) as own, web(own) as client:  # fmt: skip
        job = submit(client, sets())
        assert stream(client, job["events"])[-1][2]["status"] == "done"
        result = client.get(job["result"]).json()
        lasting = submit(client, sets(K[:3]) | SLOW)
        until(lambda: state(client, lasting)["status"] == "running")
        time.sleep(1.0)
        begin = time.monotonic()
        client.delete(lasting["href"])
        until(lambda: state(client, lasting)["status"] == "cancelled")
        assert time.monotonic() - begin < 4.0
    expected = dh.batch(decay().build(), (0, 3), parameters={"k": K}, max_step=1e-4, **OPTIONS)
    assert result["functionals"]["area"] == expected.functionals["area"].tolist()


# -- requests that are refused ---------------------------------------------------------------------------

RAW = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b"[]", "/kind"),
        (b'{"kind": ["fit"]}', "/kind"),
        (b'{"kind": "ensemble"}', "/model"),
        (b'{"kind": "ensemble", "model": "../decay"}', "/model"),
        (b'{"kind": "ensemble", "model": "decay", "t_span": [0, 1], "parameters": {"k": ["1"]}}', "/parameters/k"),
        (b'{"kind": "ensemble", "model": "decay", "t_span": [0, 1], "store": "elsewhere"}', "/store"),
        (b'{"kind": "ensemble", "model": "decay", "t_span": [0, 1], "gradient": 1}', "/gradient"),
        (b'{"kind": "fit", "model": "decay", "free": [], "experiments": [{}]}', "/free"),
        (b'{"kind": "fit", "model": "decay", "free": ["k"], "experiments": [{"t": [1], "data": {"y": 1}}]}',
         "/experiments/0/data/y"),
        (b'{"kind": "fit", "model": "decay", "free": ["k"], "experiments": [{}]}', "/experiments/0"),
        (b'{"kind": "fit", "model": "decay", "free": ["k"], "optimizer": "os", "experiments": [{}]}', "/optimizer"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused_with_the_path(client: httpx.Client, content: bytes, path: str) -> None:
    answer = client.post("/v1/jobs", content=content, headers=RAW)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert path in [own["path"] for own in answer.json()["errors"]]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b'{"kind": NaN}', b"[" * 100_000, b'{"kind": "ensemble", "parameters": {"k": [1e999]}}'],
)
def test_what_is_no_json_is_refused(client: httpx.Client, content: bytes) -> None:
    assert client.post("/v1/jobs", content=content, headers=RAW).status_code == 422
    assert client.post("/v1/jobs", content=content, headers={"content-type": "text/plain"}).status_code == 415


@pytest.mark.parametrize(
    "name", ["x", "0" * 32, "..%2F..%2Fetc", "..", "%00", "lock.sqlite", "a" * 5000, "%2e%2e%2flock.sqlite"]
)
def test_an_address_never_names_a_file(client: httpx.Client, name: str) -> None:
    for route in ("", "/events", "/result"):
        assert client.get(f"/v1/jobs/{name}{route}").status_code in (307, 404, 405)
    assert client.delete(f"/v1/jobs/{name}").status_code in (404, 405)


def test_too_many_jobs_are_refused_and_a_token_is_needed(
    service: LocalService, client: httpx.Client, hold: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "a token of sixteen"
    service.change(monkeypatch, token=token, max_jobs=len(service.service.jobs.jobs) + 2)
    assert client.post("/v1/jobs", json=sets()).status_code == 401
    assert client.get("/v1/jobs").status_code == 401
    monkeypatch.setitem(client.headers, "Authorization", f"Bearer {token}")
    hold(0)
    first, second = submit(client, sets(K[:3])), submit(client, sets(K[:3]))
    answer = client.post("/v1/jobs", json=sets())
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert client.delete(second["href"]).json()["status"] == "cancelled"
    assert client.get(second["result"]).status_code == 409
    until(lambda: "dae_hybrid_jobs_running 1.0" in client.get("/metrics").text)
    client.delete(first["href"])
    until(lambda: state(client, first)["status"] == "cancelled")


def test_the_openapi_document_describes_jobs(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = [own["$ref"].rpartition("/")[2] for own in body["anyOf"]]
    assert names == ["EnsembleBody", "DesignBody", "FitBody"]
    assert {"experiments", "free", "bounds"} <= set(document["components"]["schemas"]["FitBody"]["properties"])
    references = json.dumps(document).split('"#/components/schemas/')[1:]
    assert {own.partition('"')[0] for own in references} <= set(document["components"]["schemas"])
