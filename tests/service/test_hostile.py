"""A thousand hostile requests: no failure of the service, no lost worker, no leak."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service import RunningService, running

ACTIONS = ("simulate", "forward", "gradient", "check")
#: entries of bodies, and values that fit some of them
KEYS = ("parameters", "t_span", "t_eval", "points", "rtol", "atol", "method", "max_step", "first_step", "max_steps",
        "max_order", "max_events", "on_zeno", "wrt", "functional", "__proto__", "")  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.floats() | st.integers() | st.integers(min_value=2**63) | st.text(max_size=8)
    | st.sampled_from(["G", "ka", "erk", "end", 1e-8, 0.0, -1.0, 10.0, 1e308, 5e-324])
    | st.sampled_from(["\ud800", "\x00", "../../etc/passwd"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda own: st.lists(own, max_size=4) | st.dictionaries(st.text(max_size=5), own, max_size=3)
)
BODIES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5) | VALUES
PLAUSIBLE = st.fixed_dictionaries(
    {},
    optional={
        "parameters": st.dictionaries(st.sampled_from(["ka", "kb", "alpha", "beta"]), st.floats(-1e6, 1e6), max_size=3),
        "t_span": st.lists(st.floats(-20, 20), min_size=2, max_size=2),
        "t_eval": st.lists(st.floats(-1, 11), max_size=5),
        "points": st.integers(-1, 50),
        "rtol": st.floats(0, 1),
        "atol": st.floats(0, 1)
        | st.dictionaries(st.sampled_from(["u", "v", "z", "*", "q"]), st.floats(0, 1), max_size=2),
        "method": st.sampled_from(["auto", "bdf", "adams", "erk"]),
        "max_step": st.floats(0, 10),
        "max_steps": st.integers(0, 10**4),
        "max_events": st.integers(-1, 100),
        "on_zeno": st.sampled_from(["raise", "end"]),
    },
)


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running("em_hysteresis", "service:decay", max_seconds=5, receive_seconds=1) as found:
        yield found


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as found:
        yield found


def refused_or_done(found: httpx.Response) -> None:
    assert found.status_code < 500, found.text
    if found.status_code != 200:
        assert found.headers["content-type"] == "application/problem+json"
        assert {"title", "status", "detail", "request_id"} <= set(found.json())


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode(errors="surrogatepass")  # NaN and lone surrogates are hostile too


def counts(few: int, many: int) -> Any:
    """Numbers of examples: few in the first size."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.operation)])


@counts(50, 350)
@pytest.mark.parametrize("bodies", [BODIES, PLAUSIBLE], ids=["arbitrary", "plausible"])
def test_bodies(client: httpx.Client, bodies: Any, count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(body=bodies, action=st.sampled_from(ACTIONS), form=st.sampled_from(["application/json", "text/csv"]))
    def check(body: Any, action: str, form: str) -> None:
        headers = {"content-type": "application/json", "accept": form}
        address = f"/v1/models/em_hysteresis/{action}"
        refused_or_done(client.post(address, content=to_json(body), headers=headers))

    check()


@counts(30, 150)
def test_bytes(client: httpx.Client, count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(content=st.binary(max_size=200), media=st.sampled_from(["application/json", "text/plain", "", "a/b; c=d"]))
    def check(content: bytes, media: str) -> None:
        headers = {"content-type": media, "content-encoding": "gzip"}
        refused_or_done(client.post("/v1/models/em_hysteresis/simulate", content=content, headers=headers))

    check()


@counts(30, 150)
def test_addresses_and_headers(client: httpx.Client, count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(
        method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "TRACE", "OPTIONS", "HEAD", "PATCH"]),
        path=st.lists(
            st.sampled_from(
                ["v1", "models", "em_hysteresis", "simulate", "jobs", "page", "Evaluate", "..", "%2e%2e", "%00", "%ff",
                 "etc", "passwd", "", ".", "~", ";", "%0d%0a", "a" * 300]
            ),
            max_size=6,
        ),
        header=st.sampled_from(
            ["X-Request-Id", "Accept", "Authorization", "Last-Event-ID", "Cookie", "X-Forwarded-For"]
        ),
        value=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=50),
    )  # fmt: skip
    def check(method: str, path: list[str], header: str, value: str) -> None:
        address = httpx.URL(f"{client.base_url}/{'/'.join(path)}")
        found = client.request(method, address, headers={header: value.strip()})
        assert found.status_code < 500, found.text

    check()


RAW = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /v1/models HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"POST /v1/models/em_hysteresis/simulate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/models/em_hysteresis/simulate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/models/em_hysteresis/simulate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"FFFFFFFFFFFF\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    b"\x00" * 1000,
)  # fmt: skip


def test_raw_bytes_on_the_socket(service: RunningService, client: httpx.Client) -> None:
    port, chance = int(service.url.rpartition(":")[2]), random.Random(0)
    for i in range(10 * len(RAW)):
        text = bytearray(RAW[i % len(RAW)])
        if i >= len(RAW):  # mutated
            text[chance.randrange(len(text))] = chance.randrange(256)
            text = text[: chance.randrange(1, len(text) + 1)]
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            try:
                connection.sendall(text)
                if i < len(RAW):
                    answer = connection.recv(4096)
                    assert b" 500 " not in answer.partition(b"\r\n")[0]
            except (ConnectionError, TimeoutError):
                pass  # closed by the service
    assert client.get("/healthz").status_code == 200


LARGE = (
    '{"t_eval": [' + ",".join(['""'] * 1_300_000) + "]}",
    '{"parameters": {' + ",".join(f'"{i:x}": ""' for i in range(330_000)) + "}}",
    "{" + ",".join(f'"{i:x}": 0' for i in range(360_000)) + "}",
    '{"wrt": [' + ",".join(["1"] * 1_900_000) + "]}",
    '{"parameters": {"ka": ' + "[" * 1000 + "]" * 1000 + "}}",
)


def test_large_wrong_bodies_cost_little(service: RunningService, client: httpx.Client) -> None:
    process = psutil.Process(service.process.pid)
    before, memory = process.cpu_times().user, process.memory_info().rss
    for text in LARGE:
        found = client.post("/v1/models/decay/forward", content=text, headers={"content-type": "application/json"})
        assert found.status_code == 422
        assert 1 <= len(found.json()["errors"]) <= 20
    assert process.cpu_times().user - before < 4  # 16 s if every entry had an error of its own
    assert process.memory_info().rss - memory < 300e6


def test_clients_that_do_not_go_on_are_left(service: RunningService) -> None:
    """After a first request, and with an answer that is not read."""
    port = int(service.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in connection.recv(4096)
        connection.sendall(b"GET /h")
        assert closed(connection)
    body = b'{"t_span": [0, 1], "points": 300000}'
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", port))
        connection.sendall(
            b"POST /v1/models/decay/simulate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        assert b" 200 " in connection.recv(100)
        process, own = psutil.Process(service.process.pid), connection.getsockname()[1]
        for _ in range(100):
            if not [found for found in process.net_connections() if found.raddr and found.raddr.port == own]:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the connection is still open")


def closed(connection: socket.socket) -> bool:
    """Whether the service closes a connection; what it has sent before is read."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("host", [b"[", b"[::1", b"a/Evaluate?", b"localhost:[", b"evil.example", b"localhost#"])
def test_hosts(service: RunningService, host: bytes) -> None:
    port = int(service.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /v1/models/none HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        answer = connection.recv(4096)
    assert answer.split()[1] in (b"400", b"403", b"404")
    assert b"application/problem+json" in answer or b" 400 " in answer


@counts(40, 400)
def test_nothing_is_lost_and_nothing_grows(service: RunningService, client: httpx.Client, count: int) -> None:
    """The last test of the module."""

    def memory() -> list[int]:
        return [process.memory_info().rss for process in (psutil.Process(service.process.pid), *service.workers())]

    def ask(count: int) -> None:
        for i in range(count):
            body = {"parameters": {"ka": ("x", -1.0, 300.0)[i % 3]}}
            refused_or_done(client.post(f"/v1/models/em_hysteresis/{ACTIONS[i % 2]}", json=body))

    text = client.get("/metrics").text
    assert "dae_hybrid_workers_replaced 0.0" in text, service.text()
    assert not [line for line in service.text().splitlines() if "traceback" in line]
    ask(count // 4)
    before = memory()
    ask(count)
    assert all(after - first < 5e6 for first, after in zip(before, memory(), strict=True))
    files = psutil.Process(service.process.pid).num_fds()
    assert files < 40
    exact = client.post("/v1/models/em_hysteresis/gradient", json={}).json()["value"]
    assert exact == pytest.approx(0.04993978860638, rel=1e-8)
