"""Routes of the models: the numbers of the library, typed errors, and limits."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from service import SLOW, LocalService, logged, running, serving

import dae_hybrid as dh
from dae_hybrid.cli import main
from dae_hybrid.errors import OptionError
from dae_hybrid.named_models import UsageError
from dae_hybrid.problems import em_hysteresis, rimless_wheel
from dae_hybrid.service import pool
from dae_hybrid.service.log import LOG
from dae_hybrid.service.models import served_models
from dae_hybrid.service.settings import Settings

SPAN = {"t_span": [0, 1]}
AS_JSON = {"content-type": "application/json"}
NO_JSON = ('{"rtol": NaN}', '{"rtol": Infinity}', "{", "", "\xff", "[" * 100_000, '{"rtol": 1e999}')


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with serving("em_hysteresis", "rimless_wheel", "service:decay", "graze=service:grazing") as found:
        yield found


@pytest.fixture(scope="module")
def client(service: LocalService) -> Iterator[httpx.Client]:
    with web(service) as found:
        yield found


def web(service: Any) -> httpx.Client:
    """A client of a service."""
    return httpx.Client(base_url=service.url, timeout=60)


def post(client: httpx.Client, model: str, action: str, body: Any = None, status: int = 200, **headers: str) -> Any:
    """Answer as JSON."""
    found = client.post(f"/v1/models/{model}/{action}", json={} if body is None else body, headers=headers)
    assert found.status_code == status, found.text
    return found.json()


# -- the numbers of the library --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "problem", "points"), [("em_hysteresis", em_hysteresis, 50), ("rimless_wheel", rimless_wheel, None)]
)
def test_a_simulation_equals_that_of_the_library(client: httpx.Client, name: str, problem: Any, points: Any) -> None:
    found = post(client, name, "simulate", {} if points is None else {"points": points})
    t_eval = None if points is None else np.linspace(*problem.t_span, points)
    sol = dh.simulate(problem.system(), problem.t_span, rtol=1e-8, atol=1e-12, t_eval=t_eval)
    assert found["t"] == sol.t.tolist()
    assert found["modes"] == sol.modes.tolist()
    for variable in sol.names:
        values = np.array(found["values"][variable], dtype=float)  # null becomes nan
        np.testing.assert_array_equal(values, sol[variable])
    assert found["functionals"] == {key: np.asarray(value).tolist() for key, value in sol.functionals.items()}
    assert [event["time"] for event in found["events"]] == sol.event_table.t.tolist()
    assert found["statistics"] == dict(sol.statistics)
    assert found["warnings"] == []


def test_derivatives_equal_those_of_the_library(client: httpx.Client) -> None:
    system, span, options = em_hysteresis.system(), em_hysteresis.t_span, {"rtol": 1e-9, "atol": 1e-12}
    given = {"parameters": {"ka": 300.0}, "wrt": ["kb", "ka"], **options}
    call = {"parameters": {"ka": 300.0}, "wrt": ["kb", "ka"], **options}
    forward = post(client, "em_hysteresis", "forward", {**given, "points": 20})
    fsa = dh.forward_sensitivity(system, span, t_eval=np.linspace(*span, 20), **call)
    assert forward["gradients"]["G"] == fsa.gradient["G"].tolist()
    assert forward["sensitivities"]["z"] == fsa["z"].tolist()
    assert forward["event_time_sensitivity"] == fsa.event_time_sensitivity.tolist()
    adjoint = post(client, "em_hysteresis", "gradient", {**given, "functional": "G"})
    found = dh.adjoint_gradient(system, span, "G", **call)
    assert adjoint["gradient"] == found.gradient.tolist()
    assert adjoint["wrt"] == ["kb", "ka"]
    check = post(client, "em_hysteresis", "check", given)
    assert check["gradients"]["adjoint"] == found.gradient.tolist()
    assert check["differences"]["adjoint"] < 1e-7


def test_requests_on_one_connection_do_not_wait_for_acknowledgements(client: httpx.Client) -> None:
    """The head and the body of an answer are two packets; a delayed acknowledgement takes 40 ms."""

    def duration() -> float:
        start = time.perf_counter()
        assert client.get("/healthz").status_code == 200
        return time.perf_counter() - start

    assert statistics.median(duration() for _ in range(20)) < 0.02


def test_columns_as_csv_and_arrow(client: httpx.Client) -> None:
    body, address = {"points": 30}, "/v1/models/em_hysteresis"
    sol = dh.simulate(em_hysteresis.system(), (0, 10), rtol=1e-8, atol=1e-12, t_eval=np.linspace(0, 10, 30))
    text = client.post(f"{address}/simulate", json=body, headers={"Accept": "text/csv"})
    assert text.headers["content-type"] == "text/csv; charset=utf-8"
    table = np.genfromtxt(io.StringIO(text.text), delimiter=",", names=True, dtype=None, encoding="utf-8")
    np.testing.assert_array_equal(table["z"], sol["z"])
    stream = client.post(f"{address}/simulate", json=body, headers={"Accept": "application/vnd.apache.arrow.stream"})
    arrow = pa.ipc.open_stream(stream.content).read_all()
    np.testing.assert_array_equal(arrow["u"].to_numpy(), sol["u"])
    assert json.loads(arrow.schema.metadata[b"dae_hybrid"])["functionals"] == dict(sol.functionals)
    gradient = client.post(f"{address}/gradient", json={}, headers={"Accept": "text/csv"}).text
    assert gradient.splitlines()[1].startswith("dG/dka,-1.33")
    assert client.post(f"{address}/gradient", json={}, headers={"Accept": "image/png"}).status_code == 406


def test_the_description_of_a_model(client: httpx.Client) -> None:
    assert [model["name"] for model in client.get("/v1/models").json()["models"]] == [
        "em_hysteresis", "rimless_wheel", "decay", "graze",
    ]  # fmt: skip
    found = client.get("/v1/models/decay").json()
    assert found["parameters"][0] == {
        "name": "k", "unit": "1/s", "description": "rate", "value": 0.7, "bounds": None,
    }  # fmt: skip
    assert found["variables"] == [{"name": "y", "unit": "m", "description": None, "size": 1, "kind": "differential"}]
    assert [own["name"] for own in found["functionals"]] == ["end", "area"]
    text = client.get("/v1/models/decay/file").text
    model = dh.HybridModel.from_text(text, "json")
    run = dh.simulate(model.build(), (0, 1), rtol=1e-8, atol=1e-12)
    assert run.functionals["end"] == post(client, "decay", "simulate", SPAN)["functionals"]["end"]


def test_the_openapi_document_describes_every_body(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    body = document["paths"]["/v1/models/{name}/forward"]["post"]["requestBody"]["content"]["application/json"]
    schema = document["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]
    assert {"parameters", "t_span", "t_eval", "wrt", "rtol"} <= set(schema["properties"])
    assert "application/problem+json" in json.dumps(document["paths"]["/v1/models/{name}/forward"])


def test_the_page_of_routes_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    found = client.get("/docs")
    assert "default-src 'self'" in found.headers["content-security-policy"]
    assert not re.findall(r"https?://|<script|style=", found.text)
    assert "<code>/v1/models/{name}/gradient</code>" in found.text
    assert "array of number" in found.text
    assert client.get("/docs.css").headers["content-type"].startswith("text/css")


# -- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"parameters": {"kk": 1.0}}, "/parameters/kk", "Unknown parameter 'kk'"),
        ({"parameters": {"k": [1.0, 2.0]}}, "/parameters/k", "got shape (2,)"),
        ({"parameters": {"k": "1"}}, "/parameters/k", "finite number"),
        ({"parameters": {"k": True}}, "/parameters/k", "finite number"),
        ({"parameters": {"k": [1.0, None]}}, "/parameters/k", "entry 1 must be"),
        ({"parameters": {"a/b~": 1.0}}, "/parameters/a~1b~0", "Unknown parameter"),
        ({"rtol": 2.0}, "/rtol", "below 1"),
        ({"atol": {"q": 1e-3}}, "/atol", "atol"),
        ({"t_span": [1.0, 0.0]}, "/t_span", "reversed"),
        ({"t_span": [0.0]}, "/t_span", "at least 2"),
        ({"points": 1}, "/points", "greater than or equal to 2"),
        ({"points": 10**9}, "/points", "at most"),
        ({"points": 5, "t_eval": [0.0]}, "/points", "exclude each other"),
        ({"t_eval": [0.0, 2.0]}, "/t_eval", "t_eval"),
        ({"t_eval": [0.0, "x"]}, "/t_eval/1", "number"),
        ({"max_steps": 0}, "/max_steps", "positive"),
        ({"max_steps": 1.5}, "/max_steps", "integer"),
        ({"method": "euler"}, "/method", "method"),
        ({"preconditioner": "x"}, "/preconditioner", "not permitted"),
        ([], "", "dictionary"),
        (None, "", ""),
    ],
)  # fmt: skip
def test_wrong_entries_are_named(client: httpx.Client, body: Any, path: str, words: str) -> None:
    given = body if not isinstance(body, dict) else SPAN | body
    found = client.post("/v1/models/decay/simulate", content=json.dumps(given), headers=AS_JSON)
    assert found.status_code == 422
    assert found.headers["content-type"] == "application/problem+json"
    problem = found.json()
    assert [error["path"] for error in problem["errors"]] == [path]
    assert words in problem["errors"][0]["message"]


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json_is_refused(client: httpx.Client, text: str) -> None:
    found = client.post("/v1/models/decay/simulate", content=text.encode("latin-1"), headers=AS_JSON)
    assert found.status_code == 422
    assert found.json()["errors"]


def test_a_typed_error_keeps_its_place_and_remedy(client: httpx.Client) -> None:
    problem = post(client, "decay", "simulate", {**SPAN, "max_step": 1e-6, "max_steps": 10}, 422)
    assert problem["kind"] == "StepLimitError"
    assert problem["mode"] == "run"
    assert 0 < problem["time"] < 1e-4
    assert "Raise max_steps" in problem["remedy"]
    assert problem["request_id"]


def test_a_refused_derivative_is_a_conflict(client: httpx.Client) -> None:
    for action in ("gradient", "forward", "check"):
        problem = post(client, "graze", action, {"t_span": [0, 2]}, 409)
        assert problem["kind"] == "GrazingError"
        assert problem["transition"] == "touch"
    assert post(client, "graze", "simulate", {"t_span": [0, 2]})["functionals"] == {"count": 0.0}


def test_addresses_and_methods_that_do_not_exist(client: httpx.Client) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
        ("POST", "/v1/models/none/simulate", 404),
        ("DELETE", "/v1/models/decay", 405),
    ):
        found = client.request(method, path)
        assert found.status_code == status, path
        assert found.headers["content-type"] == "application/problem+json"
    found = client.post("/v1/models/decay/simulate", content="{}", headers={"content-type": "text/plain"})
    assert found.status_code == 415


def test_every_answer_has_an_identifier_and_is_logged(client: httpx.Client) -> None:
    with logged() as lines:
        found = client.get("/v1/models", headers={"X-Request-Id": "abc-123"})
        assert found.headers["x-request-id"] == "abc-123"
        other = client.get("/v1/models", headers={"X-Request-Id": "x" * 65}).headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{32}", other)
        until(lambda: any(line.get("request_id") == other for line in lines))  # written after the answer
    assert [line["status"] for line in lines if line.get("request_id") == other] == [200]


def test_probes_and_metrics(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json()["workers"] == 1
    client.get("/nowhere")
    text = client.get("/metrics").text
    assert 'dae_hybrid_requests_total{route="other",status="404"}' in text
    assert "dae_hybrid_workers_ready 1.0" in text


# -- limits ----------------------------------------------------------------------------------------------


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def asking(service: LocalService, body: Any) -> Iterator[socket.socket]:
    """A connection on which a run of `decay` is asked for, and whose answer is not waited for."""
    content = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        head = b"POST /v1/models/decay/simulate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        yield connection


def test_a_run_beyond_its_time_is_stopped_and_the_worker_goes_on(
    service: LocalService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, max_seconds=0.5, max_steps=10**12)
    pid = service.workers()[0].pid
    begin = time.monotonic()
    problem = post(client, "decay", "simulate", SLOW, 422)
    assert problem["kind"] == "LimitError"
    assert "more than 0.5 s" in problem["detail"]
    assert time.monotonic() - begin < 5
    assert post(client, "decay", "simulate", SPAN)["t_end"] == 1.0
    assert service.workers()[0].pid == pid


def test_a_service_that_is_ready_has_compiled_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the limit of time refuses the first requests on a machine."""
    fast = tmp_path / "cc"
    fast.write_text('#!/bin/sh\nfor a; do shift; case $a in -O*) a=-O0;; esac; set -- "$@" "$a"; done\nexec cc "$@"\n')
    fast.chmod(0o700)
    monkeypatch.setenv("CC", str(fast))
    monkeypatch.setenv("DAE_HYBRID_CACHE", str(tmp_path))
    with serving("service:decay") as service, web(service) as client:
        compiled = sorted(tmp_path.rglob("*.so"))
        assert compiled
        for action in ("simulate", "forward"):
            post(client, "decay", action, SPAN)
        for action in ("gradient", "check"):
            post(client, "decay", action, {**SPAN, "functional": "end"})
        assert sorted(tmp_path.rglob("*.so")) == compiled


@pytest.mark.operation
def test_a_run_beyond_its_memory_is_killed_and_replaced() -> None:
    with running("service:chain", max_memory=320_000_000, max_outputs=10**12, max_steps=10**12) as service:
        pid = service.workers()[0].pid
        with web(service) as client:
            problem = post(client, "chain", "simulate", {"t_span": [0, 1], "max_step": 2e-8, "max_steps": 10**12}, 422)
            assert problem["kind"] == "LimitError"
            assert "320 MB" in problem["detail"]
            assert post(client, "chain", "simulate", SPAN)["t_end"] == 1.0
        assert service.workers()[0].pid != pid


def test_a_worker_that_has_too_much_memory_is_killed_and_replaced(
    service: LocalService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = service.workers()[0].pid
    monkeypatch.setattr(pool, "memory_of", lambda worker: 320_000_001 if worker.pid == large else 100_000_000)
    service.change(monkeypatch, max_memory=320_000_000, max_steps=10**12)
    problem = post(client, "decay", "simulate", SLOW, 422)
    assert problem["kind"] == "LimitError"
    assert "320 MB" in problem["detail"]
    assert post(client, "decay", "simulate", SPAN)["t_end"] == 1.0
    assert service.workers()[0].pid != large


def test_a_killed_worker_is_replaced(
    service: LocalService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, max_steps=10**12)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(post, client, "decay", "simulate", SLOW, 500)
        until(lambda: service.service.pool.running)
        service.workers()[0].send_signal(signal.SIGKILL)
        problem = answer.result(30)
    assert problem["kind"] == "WorkerLostError"
    assert "SIGKILL" in problem["detail"]
    assert post(client, "decay", "simulate", SPAN)["t_end"] == 1.0


def test_requests_beyond_the_queue_are_refused(
    service: LocalService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, queue=1, max_steps=10**12)
    with ThreadPoolExecutor(1) as threads:
        with asking(service, SLOW):
            until(lambda: service.service.pool.running == 1)
            waiting = threads.submit(post, client, "decay", "simulate", SPAN)
            until(lambda: service.service.pool.waiting == 1)
            for _ in range(4):
                refused = client.post("/v1/models/decay/simulate", json=SPAN)
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) >= 1
        assert waiting.result(30)["t_end"] == 1.0


def test_a_client_that_leaves_frees_its_worker(
    service: LocalService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, max_steps=10**12)
    pid = service.workers()[0].pid
    with asking(service, SLOW):
        until(lambda: service.service.pool.running)
    begin = time.monotonic()
    assert post(client, "decay", "simulate", SPAN)["t_end"] == 1.0
    assert time.monotonic() - begin < 3
    assert service.workers()[0].pid == pid


def test_large_bodies_and_slow_clients(
    service: LocalService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, max_body=1000)
    assert client.post("/v1/models/decay/simulate", json={"t_eval": [0.0] * 1000}).status_code == 413
    chunks = (b"[0.0," for _ in range(1000))  # of unknown length
    assert client.post("/v1/models/decay/simulate", content=chunks, headers=AS_JSON).status_code == 413
    service.change(monkeypatch, receive_seconds=0.5)
    head = b"POST /v1/models/decay/simulate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for text in (b"", b"GET /", head, head + b"Content-Length: 10\r\n\r\n{"):
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
            connection.sendall(text)
            begin = time.monotonic()
            try:
                received = connection.recv(1000)
            except ConnectionResetError:
                received = b""
            assert time.monotonic() - begin < 5
            assert b" 408 " in received if text.endswith(b"{") else received == b""
    service.change(monkeypatch, receive_seconds=20.0)
    assert client.get("/healthz").status_code == 200


def test_a_client_that_sends_a_large_body_receives_its_refusal(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close a connection while its client sends would reset it, with the answer."""
    service.change(monkeypatch, max_body=1000)
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(b"POST /Evaluate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert b" 413 " in connection.recv(1000)
        connection.sendall(b"x" * 1_000_000 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b'{"status":"ok"}' not in received:
            some = connection.recv(1000)
            assert some, "the connection is closed"
            received += some


def test_a_client_that_sends_a_large_body_for_ever_is_left(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, max_body=1000, receive_seconds=0.5)
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(b"POST /Evaluate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n")
        assert b" 413 " in connection.recv(1000)
        with pytest.raises(ConnectionError):
            send_for(20.0, connection)


def send_for(seconds: float, connection: socket.socket) -> None:
    """Send a little at a time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(b"x" * 1000)
        time.sleep(0.01)


@pytest.mark.operation
def test_running_requests_are_finished_before_the_end() -> None:
    with (
        running("service:decay", workers=2, max_steps=10**12) as service,
        ThreadPoolExecutor(1) as threads,
        web(service) as client,
    ):
        assert client.get("/readyz").json()["workers"] == 2
        assert "dae_hybrid_workers_ready 2.0" in client.get("/metrics").text
        body = {"t_span": [0, 1], "max_step": 2e-7, "max_steps": 10**12, "points": 2}
        answer = threads.submit(post, client, "decay", "simulate", body)
        until(lambda: "dae_hybrid_requests_running 1.0" in client.get("/metrics").text)
        assert service.stop() == 0
        assert answer.result(30)["t_end"] == 1.0


def test_events_count_as_outputs(service: LocalService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    service.change(monkeypatch, max_outputs=300)
    problem = post(client, "em_hysteresis", "simulate", {"points": 2}, 422)
    assert "300 are allowed" in problem["detail"]
    assert post(client, "em_hysteresis", "simulate", {"points": 2, "t_span": [0, 1]})["n_events"] == 2


def test_warnings_reach_every_representation(client: httpx.Client) -> None:
    body = {"t_span": [0, 2], "strict": False}
    found = post(client, "graze", "gradient", body)
    assert "turns" in found["warnings"][0]
    assert found["warning_kinds"] == ["DerivativeWarning"]
    text = client.post("/v1/models/graze/gradient", json=body, headers={"Accept": "text/csv"})
    assert json.loads(text.headers["x-warnings"]) == found["warnings"]


# -- safety ----------------------------------------------------------------------------------------------


def test_a_token_is_required_where_one_is_set(
    service: LocalService, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "correct-horse-battery"
    service.change(monkeypatch, token=token)
    assert client.get("/healthz").status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": token}, {"Authorization": "Bearer é"}):
        encoded = [(name, value.encode()) for name, value in headers.items()]
        found = client.get("/v1/models", headers=encoded)
        assert found.status_code == 401
        assert found.headers["www-authenticate"] == "Bearer"
    assert client.get("/v1/models", headers={"Authorization": f"bearer {token}"}).status_code == 200
    assert client.get("/metrics").status_code == 401
    with pytest.raises(OptionError, match="can be reached by other machines"):
        Settings(host="0.0.0.0")
    for wrong, words in (
        ({"token": "short"}, "at least 16"),
        ({"token": "é" * 20}, "ASCII"),
        ({"port": 2**16}, "port"),
    ):
        with pytest.raises(OptionError, match=words):
            Settings(**wrong)


def test_other_hosts_and_other_sites_are_refused(client: httpx.Client) -> None:
    assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
    found = client.options(
        "/v1/models/decay/simulate",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert found.status_code == 405
    assert not [name for name in found.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nosuch"], 2, "no problem 'nosuch'"),
        (["nosuchmodule:f"], 2, "cannot be imported"),
        (["em_hysteresis", "--port", "99999"], 1, "between 0 and 65535"),
        (["em_hysteresis", "--max-memory", "nan"], 2, "positive number"),
        (["em_hysteresis", "--workers", "0"], 1, "workers must be positive"),
        (["em_hysteresis", "--host", "0.0.0.0"], 1, "no token is set"),
        (
            ["em_hysteresis", "--host", "nowhere.invalid", "--token-file", "TOKEN"],
            1,
            "cannot listen on nowhere.invalid",
        ),
        (["service:decay", "--port", "0", "--workers", "1", "--store", "TOKEN"], 1, "TOKEN"),
        (["service:fails", "--port", "0", "--workers", "1"], 1, "breaks at build"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_start_is_told_without_a_traceback(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    (tmp_path / "TOKEN").write_text("correct-horse-battery")
    for logger in (LOG, logging.getLogger("uvicorn.error")):  # whose handlers a start replaces
        for name in ("handlers", "propagate", "level"):
            monkeypatch.setattr(logger, name, getattr(logger, name))
    given = [str(tmp_path / "TOKEN") if text == "TOKEN" else text for text in arguments]
    assert main(["serve", *given]) == code
    text = capsys.readouterr().err
    assert words in text.rpartition("dae-hybrid")[2]
    assert "Traceback" not in text


def test_names_of_models() -> None:
    assert [*served_models(["em_hysteresis", "a/ball.toml", "b=a/ball.toml", "pkg.mod:make"])] == [
        "em_hysteresis", "ball", "b", "make",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="have the same name"):
        served_models(["a/ball.toml", "b/ball.toml"])
    with pytest.raises(UsageError, match="NAME="):
        served_models(["a/my ball.toml"])
