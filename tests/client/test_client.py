"""The client: results equal to the last bit those of the library, typed errors, services that fail."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from service import SLOW, LocalService, logged, running, serving

import dae_hybrid as dh
from dae_hybrid import client as dhc
from dae_hybrid.client.model import OPTIONS
from dae_hybrid.client.transport import ATTEMPTS
from dae_hybrid.client.typed_errors import ERRORS, WARNINGS, error_of
from dae_hybrid.errors import (
    DaeHybridError,
    DerivativeWarning,
    GrazingError,
    IntegrationError,
    LimitError,
    NotKeptError,
    OptionError,
    OverloadError,
    ParameterError,
    ServiceError,
    StepLimitError,
    UnsupportedError,
)
from dae_hybrid.named_models import named_model
from dae_hybrid.service.requests import NOT_OPTIONS, RunOptionsBody

PROBLEMS = (
    "em_hysteresis", "hybrid_ode", "impact_oscillator", "pendulum_with_stop", "rimless_wheel", "ball_on_rope",
    "menegotto_pinto",
)  # fmt: skip
OTHERS = ("service:decay", "graze=service:grazing")


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with serving(*PROBLEMS, *OTHERS, max_steps=10**12) as found:
        yield found


@pytest.fixture(scope="module")
def remote(service: LocalService) -> Iterator[dhc.Client]:
    with dhc.connect(service.url) as found:
        yield found


def same(one: Any, other: Any) -> None:
    """Equal to the last bit, NaN equal to NaN, and of the same type."""
    assert np.asarray(one).dtype == np.asarray(other).dtype
    np.testing.assert_array_equal(one, other)


def assert_same_run(one: dh.Trajectory, other: dh.Trajectory) -> None:
    """Two trajectories show the same."""
    same(one.t, other.t)
    same(one.modes, other.modes)
    assert one.names == other.names
    for name in one.names:
        same(one[name], other[name])
    same(one.parameters, other.parameters)
    assert dict(one.functionals).keys() == dict(other.functionals).keys()
    for name in one.functionals:
        same(one.functionals[name], other.functionals[name])
    assert dict(one.statistics) == dict(other.statistics)
    assert one.diagnostics == other.diagnostics
    assert str(one.diagnostics) == str(other.diagnostics)
    assert repr(one) == repr(other)
    assert one._repr_html_() == other._repr_html_()
    assert (one.t_span, one.ended_by_event, one.n_events) == (other.t_span, other.ended_by_event, other.n_events)
    assert one.notes == other.notes
    assert len(one.events) == len(other.events)
    for mine, theirs in zip(one.events, other.events, strict=True):
        for name in mine.__slots__:
            if name == "unknowns":
                assert mine.unknowns.keys() == theirs.unknowns.keys()
                for key, value in mine.unknowns.items():
                    same(value, theirs.unknowns[key])
            elif name == "certified" or isinstance(getattr(mine, name), np.ndarray):
                same(getattr(mine, name), getattr(theirs, name))
            elif name != "earlier":
                np.testing.assert_equal(getattr(mine, name), getattr(theirs, name))
    mine_columns, their_columns = one.event_table.columns(), other.event_table.columns()
    assert mine_columns.keys() == their_columns.keys()
    for name, values in mine_columns.items():
        np.testing.assert_array_equal(values, their_columns[name])
    assert str(one.event_table) == str(other.event_table)
    pd.testing.assert_frame_equal(one.to_dataframe(), other.to_dataframe(), check_exact=True)
    assert one.to_xarray().identical(other.to_xarray())


def local(name: str, remote: dhc.Client) -> tuple[Any, tuple[float, float], dict[str, float]]:
    """The system of a problem, and its interval and tolerances at the service."""
    model = remote[name]
    assert model.t_span is not None
    return named_model(name).build(), model.t_span, model.defaults


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("points", [None, 57])
def test_a_simulation_equals_that_of_the_library(remote: dhc.Client, name: str, points: int | None) -> None:
    system, span, options = local(name, remote)
    t_eval = None if points is None else np.linspace(*span, points)
    one = remote[name].simulate(t_eval=t_eval)
    other = dh.simulate(system, span, t_eval=t_eval, **options)
    assert isinstance(one, dh.Trajectory)
    assert_same_run(one, other)


@pytest.mark.parametrize("name", PROBLEMS)
def test_forward_sensitivities_equal_those_of_the_library(remote: dhc.Client, name: str) -> None:
    system, span, options = local(name, remote)
    t_eval = np.linspace(*span, 23)
    wrt = system.parameters.labels()[:3]
    one = remote.forward_sensitivity(name, span, wrt=wrt, t_eval=t_eval)
    other = dh.forward_sensitivity(system, span, wrt=wrt, t_eval=t_eval, **options)
    assert isinstance(one, dh.ForwardSensitivity)
    assert_same_run(one.trajectory, other.trajectory)
    assert one.parameters == other.parameters
    assert one.gradient.keys() == other.gradient.keys()
    for key, values in one.gradient.items():
        same(values, other.gradient[key])
    for key in one.trajectory.names:
        same(one[key], other[key])
    same(one.event_time_sensitivity, other.event_time_sensitivity)
    for mine, theirs in zip(one.event_sensitivities, other.event_sensitivities, strict=True):
        for part in ("time", "state_minus", "state_plus", "memory_minus", "memory_plus"):
            same(getattr(mine, part), getattr(theirs, part))
    assert one.diagnostics == other.diagnostics
    assert repr(one) == repr(other)
    assert one.to_xarray().identical(other.to_xarray())
    again = pickle.loads(pickle.dumps(one))
    for key in one.trajectory.names:
        same(again[key], one[key])


@pytest.mark.uncertified  # the service does not compare with forward analysis
@pytest.mark.parametrize("name", ["em_hysteresis", "rimless_wheel", "menegotto_pinto"])
def test_a_gradient_equals_that_of_the_library(remote: dhc.Client, name: str) -> None:
    system, span, options = local(name, remote)
    functional = system.functionals.names[0]
    one = remote[name].adjoint_gradient(span, functional)
    other = dh.adjoint_gradient(system, span, functional, **options)
    assert isinstance(one, dh.Gradient)
    same(one.gradient, other.gradient)
    same(one.value, other.value)
    assert (one.functional, one.parameters, repr(one)) == (other.functional, other.parameters, repr(other))
    assert dict(one.statistics) == dict(other.statistics)
    assert one.diagnostics == other.diagnostics
    assert one.trajectory.diagnostics == other.trajectory.diagnostics
    same(one.trajectory.final[2], other.trajectory.final[2])
    with pytest.raises(NotKeptError, match="service"):
        one.adjoint(span[0])
    with pytest.raises(NotKeptError, match="service"):
        _ = one.trajectory.t
    assert repr(pickle.loads(pickle.dumps(one))) == repr(one)


@pytest.mark.uncertified
def test_a_check_equals_that_of_the_library(remote: dhc.Client) -> None:
    system, span, options = local("hybrid_ode", remote)
    one = remote.check_gradient(remote["hybrid_ode"], span)
    other = dh.check_gradient(system, span, **options)
    assert isinstance(one, dh.GradientCheck)
    assert (str(one), repr(one), one.same_events) == (str(other), repr(other), other.same_events)


@pytest.mark.parametrize("name", ["ball_on_rope", "menegotto_pinto", "decay"])
def test_a_result_is_pickled_and_drawn(remote: dhc.Client, name: str) -> None:
    span = remote[name].t_span or (0.0, 1.0)
    sol = remote[name].simulate(span, t_eval=np.linspace(*span, 400))
    assert_same_run(pickle.loads(pickle.dumps(sol)), sol)
    drawn = sol.plot()
    assert len(drawn.axes) == len([n for n in sol.names if n not in sol.system.memory])


def test_a_line_passes_through_the_outputs_and_breaks_at_events(remote: dhc.Client) -> None:
    from dae_hybrid.report.plotting import line

    system, span, options = local("impact_oscillator", remote)
    t_eval = np.linspace(*span, 400)
    mine = line(remote["impact_oscillator"].simulate(t_eval=t_eval), "v")
    theirs = line(dh.simulate(system, span, t_eval=t_eval, **options), "v")
    assert np.isnan(mine[0]).sum() == np.isnan(theirs[0]).sum()
    kept = np.isin(theirs[0], mine[0])
    same(mine[1][~np.isnan(mine[0])], theirs[1][kept & ~np.isnan(theirs[0])])


def test_what_was_not_sent_is_refused(remote: dhc.Client) -> None:
    sol = remote["hybrid_ode"].simulate()
    for ask in (lambda: sol(1.0), lambda: sol.segments):
        with pytest.raises(NotKeptError, match="carried out by a service"):
            ask()


def test_conditions_at_events_are_evaluated_on_this_machine(remote: dhc.Client) -> None:
    system, span, options = local("em_hysteresis", remote)
    one, other = remote["em_hysteresis"].simulate(), dh.simulate(system, span, **options)
    np.testing.assert_allclose(one.jump_sensitivity(3).matrix, other.jump_sensitivity(3).matrix, rtol=1e-12)


@pytest.mark.uncertified
def test_starts_of_calls_are_those_of_the_library(remote: dhc.Client) -> None:
    system, span, options = local("em_hysteresis", remote)
    call: dict[str, Any] = {"x0": {"u": 0.002, "u_star": 0.001}, "start_mode": "unloading"}
    t_eval = np.linspace(*span, 23)
    assert_same_run(
        remote["em_hysteresis"].simulate(t_eval=t_eval, **call),
        dh.simulate(system, span, t_eval=t_eval, **call, **options),
    )
    wrt = ["ka", "u(0)", "v(0)"]
    one = remote["em_hysteresis"].forward_sensitivity(t_eval=t_eval, wrt=wrt, x0={"u": 0.002, "v": 0.01})
    other = dh.forward_sensitivity(system, span, t_eval=t_eval, wrt=wrt, x0={"u": 0.002, "v": 0.01}, **options)
    assert one.parameters == other.parameters == tuple(wrt)
    assert_same_run(one.trajectory, other.trajectory)
    same(one.gradient["G"], other.gradient["G"])
    same(
        remote["em_hysteresis"].adjoint_gradient(wrt=wrt, x0=[0.002, 0.01]).gradient,
        dh.adjoint_gradient(system, span, wrt=wrt, x0=[0.002, 0.01], **options).gradient,
    )
    with pytest.raises(ParameterError, match="'z' is no variable or memory"):
        remote["em_hysteresis"].simulate(x0={"z": 1.0})


@pytest.mark.parametrize("form", [dict, pd.Series, list])
def test_parameters_have_every_form_of_the_library(remote: dhc.Client, form: Any) -> None:
    values = {"k": 0.3, "y0": 1.5}
    given = form(values) if form is not list else np.array([0.3, 1.5])
    sol = remote["decay"].simulate((0, 2), parameters=given, rtol=np.float64(1e-9), atol={"y": 1e-12, "*": 1e-10})
    assert sol.parameters.tolist() == [0.3, 1.5]
    np.testing.assert_allclose(sol["y"][-1], 1.5 * np.exp(-0.6), rtol=1e-7)


# -- errors and warnings ---------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_before_anything_is_sent(remote: dhc.Client) -> None:
    model = remote["decay"]
    _ = model.system
    with logged() as lines:
        with pytest.raises(ParameterError, match="speed"):
            model.simulate((0, 1), parameters={"speed": 1})
        with pytest.raises(OptionError, match="reversed"):
            model.simulate((1, 0))
        with pytest.raises(OptionError, match="increase"):
            model.simulate((0, 1), t_eval=[0.5, 0.2])
        with pytest.raises(OptionError, match="Unknown option 'tol'"):
            model.simulate((0, 1), tol=1e-3)
        with pytest.raises(UnsupportedError, match="adjoint_memory"):
            model.simulate((0, 1), adjoint_memory=1e6)
        with pytest.raises(ParameterError, match="default interval"):
            model.simulate()
        with pytest.raises(ParameterError, match="Name the functional"):
            model.adjoint_gradient((0, 1))
        with pytest.raises(OptionError, match="no model"):
            remote.simulate("grace")
        with pytest.raises(KeyError, match="grace"):
            remote["grace"]
    assert not [line for line in lines if "/simulate" in line.get("path", "")]


def test_errors_of_a_run_are_those_of_the_library(remote: dhc.Client) -> None:
    system, span, options = local("em_hysteresis", remote)
    with pytest.raises(StepLimitError) as one:
        remote["em_hysteresis"].simulate(max_steps=20)
    with pytest.raises(IntegrationError) as other:
        dh.simulate(system, span, max_steps=20, **options)
    for name in ("message", "mode", "transition", "time", "variables", "remedy"):
        assert getattr(one.value, name) == getattr(other.value, name)
    with pytest.raises(GrazingError, match="touch"):
        remote["graze"].adjoint_gradient((0, 2), "count")
    with pytest.raises(OptionError) as wrong:
        remote["decay"].simulate((0, 1), atol={"speed": 1e-3})
    assert wrong.value.__dict__["errors"][0]["path"] == "/atol"


def test_a_limit_of_the_service_is_typed(
    remote: dhc.Client, service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, max_seconds=0.5)
    with pytest.raises(LimitError, match=r"0\.5 s"):
        remote["decay"].simulate((0, 1), max_step=1e-9, max_steps=10**12, t_eval=[1.0])


def test_every_option_of_a_request_is_offered() -> None:
    assert set(OPTIONS) == set(RunOptionsBody.model_fields) - set(NOT_OPTIONS)


def test_a_response_names_errors_of_the_library_only() -> None:
    assert {"OSError", "DaeHybridError", "UserWarning"} & set(ERRORS) == {"DaeHybridError"}
    assert set(WARNINGS) == {"DerivativeWarning", "ConditionWarning", "CompilerWarning"}
    assert type(error_of({"kind": "SystemExit", "detail": "x"}, 500)) is ServiceError
    odd = error_of({"kind": ["x"], "detail": 3, "time": "now", "variables": 5, "errors": [1]}, 422)
    assert isinstance(odd, OptionError)
    assert "422" in odd.message
    assert (odd.time, odd.variables) == (None, ())


def test_a_warning_is_issued_again(remote: dhc.Client) -> None:
    system, options = named_model("service:grazing").build(), remote["graze"].defaults
    with pytest.warns(DerivativeWarning) as theirs:
        other = dh.forward_sensitivity(system, (0, 2), strict=False, **options)
    with pytest.warns(DerivativeWarning) as mine:
        one = remote["graze"].forward_sensitivity((0, 2), strict=False)
    assert [(w.category, str(w.message)) for w in mine] == [(w.category, str(w.message)) for w in theirs]
    assert mine[0].filename == __file__
    assert one.diagnostics == other.diagnostics
    assert len(one.diagnostics) > len(one.trajectory.diagnostics)


# -- services that fail ----------------------------------------------------------------------------------


def test_a_service_that_wants_a_token(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "a-token-for-this-test"
    service.change(monkeypatch, token=token)
    with dhc.connect(service.url, token=token) as remote:
        assert remote.models[-2:] == ("decay", "graze")
    for wrong in (None, "another-token-than-it"):
        with pytest.raises(ServiceError, match="token") as refused:
            dhc.connect(service.url, token=wrong)
        assert "token=" in str(refused.value)


def test_a_service_that_stops() -> None:
    with answering(MODELS) as server:
        remote = dhc.connect(server.url)
    with pytest.raises(ServiceError, match="cannot be reached") as gone:
        remote.simulate("m", (0, 1))
    assert "dae-hybrid serve" in str(gone.value)
    remote.close()


@pytest.mark.operation
def test_a_service_that_ends() -> None:
    with running("service:decay") as service, dhc.connect(service.url) as remote:
        remote["decay"].simulate((0, 1))
        service.stop()
        with pytest.raises(ServiceError, match="cannot be reached") as gone:
            remote["decay"].simulate((0, 1))
        assert "dae-hybrid serve" in str(gone.value)


def test_closing_the_client_cancels_its_request(service: LocalService) -> None:
    remote = dhc.connect(service.url)
    found: list[BaseException] = []
    _ = remote["decay"].system

    def ask() -> None:
        try:
            remote["decay"].simulate((0, 1), max_step=SLOW["max_step"], max_steps=SLOW["max_steps"], t_eval=[1.0])
        except DaeHybridError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    with logged() as lines:
        thread.start()
        until(lambda: service.service.pool.running)
        begin = time.monotonic()
        remote.close()
        thread.join(10)
        assert not thread.is_alive()
        assert time.monotonic() - begin < 5
        assert isinstance(found[0], ServiceError)
        assert "closed" in found[0].message
        until(lambda: any(line.get("status") == 499 for line in lines))
    with pytest.raises(ServiceError, match="closed"):
        remote["decay"].simulate((0, 1))


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "", 5, "http://"])
def test_a_wrong_address_is_refused(url: Any) -> None:
    with pytest.raises(OptionError, match="http://HOST:PORT"):
        dhc.connect(url)


def test_a_wrong_timeout_or_token_is_refused() -> None:
    with pytest.raises(OptionError, match="timeout"):
        dhc.connect("http://127.0.0.1:1", timeout=-1)
    with pytest.raises(OptionError, match="token"):
        dhc.connect("http://127.0.0.1:1", token="line\nbreak")


class Canned(BaseHTTPRequestHandler):
    """Answers every request with what the server has in `answers`, the last one for ever."""

    def do_GET(self) -> None:
        """Answer."""
        server: Any = self.server
        server.asked += 1
        status, headers, body = server.answers[min(server.asked, len(server.answers)) - 1]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@contextmanager
def answering(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Any]:
    """A server that gives these answers one after another."""
    server: Any = HTTPServer(("127.0.0.1", 0), Canned)
    server.answers, server.asked = answers, 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


PROBLEM = {"Content-Type": "application/problem+json", "Retry-After": "1"}
BUSY = (503, PROBLEM, b'{"kind": "OverloadError", "detail": "64 requests wait."}')
MODELS = (200, {"Content-Type": "application/json"}, b'{"models": [{"name": "m"}]}')


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of clients, which take no time."""
    found: list[float] = []
    monkeypatch.setattr(
        "dae_hybrid.client.transport.time", SimpleNamespace(sleep=found.append, monotonic=time.monotonic)
    )
    return found


def test_an_overloaded_service_is_asked_again(pauses: list[float]) -> None:
    with answering(BUSY, MODELS) as server, dhc.connect(server.url) as remote:
        assert remote.models == ("m",)
        assert server.asked == 2
    assert pauses == [1]


def test_overload_is_typed_after_several_attempts(pauses: list[float]) -> None:
    with answering(BUSY) as server:
        with pytest.raises(OverloadError, match="64 requests wait") as busy:
            dhc.connect(server.url)
        assert (server.asked, busy.value.retry_after) == (ATTEMPTS, 1)
    assert pauses == [1] * (ATTEMPTS - 1)


@pytest.mark.parametrize(
    ("status", "content"),
    [(200, b"<html>"), (200, b"[]"), (200, b"\xff"), (200, b'{"models": 3}'), (500, b"oops"), (302, b""), (404, b"{}"),
     (200, b"[" * 100_000)],
)  # fmt: skip
def test_nonsense_is_a_service_error(status: int, content: bytes) -> None:
    with answering((status, {}, content)) as server, pytest.raises(ServiceError, match="does not answer as a service"):
        dhc.connect(server.url)


def test_an_answer_of_another_form_is_a_service_error(remote: dhc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    model = remote["decay"]
    answer = model._ask("simulate", {"t_span": [0, 1], "points": 3})
    for name, wrong in (("t", [0.0]), ("values", {}), ("modes", ["walk"] * 3), ("events", [{}]), ("final", None)):
        monkeypatch.setattr(model, "_ask", lambda *_, name=name, wrong=wrong: answer | {name: wrong})
        with pytest.raises(ServiceError, match="expected form"):
            model.simulate((0, 1))


def test_a_password_in_the_address_and_large_answers_are_refused(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ("http://user:secret@127.0.0.1:8000", "ftp://user:secret@host", "user:secret@host:8000"):
        with pytest.raises(dh.OptionError, match="password") as caught:
            dhc.connect(address)
        assert "secret" not in str(caught.value)
    with pytest.raises(dh.OptionError, match="address"):
        dhc.connect("http://[bad")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with dhc.connect(service.url) as remote:  # not through the proxy
        _ = remote["decay"].system
        monkeypatch.setattr("dae_hybrid.client.transport.MAX_BYTES", 1000)
        with pytest.raises(dh.ServiceError, match="more than"):
            remote.simulate("decay", (0, 1), t_eval=np.linspace(0, 1, 1000))
