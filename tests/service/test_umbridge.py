"""UM-Bridge through the client of its package: values, derivatives, errors of the protocol."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
import umbridge
from service import LocalService, decay, logged, serving

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis

OPTIONS = {"rtol": 1e-9, "atol": 1e-12}
CONFIG = {"parameters": ["kb", "ka"], "functional": "G", **OPTIONS}
POINT = {"kb": 31.0, "ka": 300.0}
INPUT = [[*POINT.values()]]
DECAY = {"t_span": [0, 1], **OPTIONS}
TIMES = {**DECAY, "outputs": {"variables": ["y"], "t_eval": [0.5, 1.0]}}
NUMBERS = {"type": "array", "minItems": 1, "items": {"type": "number"}}
ERROR = {
    "type": "object", "required": ["error"], "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object", "required": ["type", "message"], "additionalProperties": False,
            "properties": {"type": {"type": "string"}, "message": {"type": "string", "minLength": 1}},
        }
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "examples")
        with serving("em_hysteresis", "service:decay", "graze=service:grazing", "ball_posterior:ball") as found:
            yield found


@pytest.fixture(scope="module")
def em(service: LocalService) -> Any:
    return umbridge.HTTPModel(service.url, "em_hysteresis")


@pytest.fixture(scope="module")
def rate(service: LocalService) -> Any:
    return umbridge.HTTPModel(service.url, "decay")


def test_the_models_and_their_sizes(service: LocalService, em: Any, rate: Any) -> None:
    assert umbridge.supported_models(service.url) == ["em_hysteresis", "decay", "graze", "ball"]
    assert em.supports_evaluate()
    assert em.supports_gradient()
    assert em.supports_apply_jacobian()
    assert em.supports_apply_hessian()
    assert em.get_input_sizes() == [em_hysteresis.system().parameters.size]
    assert em.get_input_sizes(CONFIG) == [2]
    assert em.get_output_sizes(CONFIG) == [1]
    assert rate.get_output_sizes(DECAY) == [2]
    assert rate.get_output_sizes(TIMES) == [2]


def test_values_and_gradients_are_those_of_the_library_to_the_last_bit(em: Any) -> None:
    system, span = em_hysteresis.system(), em_hysteresis.t_span
    sol = dh.simulate(system, span, parameters=POINT, **OPTIONS)
    assert em(INPUT, CONFIG) == [[sol.functionals["G"]]]
    call: dict[str, Any] = {"wrt": ["kb", "ka"], "parameters": POINT, **OPTIONS}
    gradient = dh.adjoint_gradient(system, span, "G", **call).gradient
    assert em.gradient(0, 0, INPUT, [1.0], CONFIG) == gradient.tolist()
    assert em.gradient(0, 0, INPUT, [2.0], CONFIG) == (2 * gradient).tolist()
    assert em.gradient(0, 0, INPUT, [0.0], CONFIG) == [0.0, 0.0]


def test_a_jacobian_product_is_one_forward_direction(em: Any) -> None:
    fsa = dh.forward_sensitivity(
        em_hysteresis.system(), em_hysteresis.t_span, wrt=["kb", "ka"], parameters=POINT, **OPTIONS
    )
    for vec in ([1.0, 0.0], [0.3, -2.0]):
        expected = fsa.gradient["G"] @ np.array(vec)
        assert em.apply_jacobian(0, 0, INPUT, vec, CONFIG) == pytest.approx([expected], rel=1e-7)
    assert em.apply_jacobian(0, 0, INPUT, [0.0, 0.0], CONFIG) == [0.0]


@pytest.mark.parametrize("config", [DECAY, TIMES])
def test_derivatives_agree_with_closed_forms_and_differences(rate: Any, config: dict[str, Any]) -> None:
    k, y0 = 0.8, 1.5

    def closed(k: float, y0: float) -> list[float]:
        if "outputs" in config:
            return [y0 * math.exp(-k / 2), y0 * math.exp(-k)]
        return [y0 * math.exp(-k), y0 * (1 - math.exp(-k)) / k]

    h, vec, sens = 1e-4, np.array([0.7, -0.4]), np.array([1.5, -0.5])

    def value(x: Any) -> Any:
        return np.array(rate([[*map(float, x)]], config)[0])

    x = np.array([k, y0])
    assert value(x) == pytest.approx(closed(k, y0), rel=1e-8)
    jacobian = np.column_stack([(value(x + d) - value(x - d)) / (2 * h) for d in h * np.eye(2)])
    assert rate.apply_jacobian(0, 0, [[k, y0]], vec.tolist(), config) == pytest.approx(jacobian @ vec, rel=1e-6)
    assert rate.gradient(0, 0, [[k, y0]], sens.tolist(), config) == pytest.approx(sens @ jacobian, rel=1e-6)


def test_a_hessian_product_agrees_with_the_closed_form(rate: Any) -> None:
    k, y0, vec = 0.8, 1.5, np.array([0.7, -0.4])
    matrix = math.exp(-k) * np.array([[y0, -1], [-1, 0]])  # of y0 exp(-k)
    found = rate.apply_hessian(0, 0, 0, [[k, y0]], [2.0, 0.0], vec.tolist(), DECAY)
    assert found == pytest.approx(2 * matrix @ vec, rel=1e-4)
    with pytest.raises(Exception, match="UnsupportedFeature"):
        rate.apply_hessian(0, 0, 0, [[k, y0]], [2.0, 0.0], vec.tolist(), TIMES)


@pytest.mark.parametrize(
    ("given", "config", "message"),
    [
        ([[1.0]], DECAY, "/input/0.*2 numbers are needed, got 1"),
        ([[1.0, 2.0], [3.0]], DECAY, "/input"),
        ([["a", 2.0]], DECAY, "/input/0/0"),
        ([[None, 2.0]], DECAY, "/input/0/0"),
        ([[True, 2.0]], DECAY, "/input/0/0"),
        ([[1.0] * 10_000], DECAY, "got 10000"),
        ([[1.0, 2.0]], {**DECAY, "rtoll": 1e-3}, "/config/rtoll"),
        ([[1.0, 2.0]], {**DECAY, "rtol": -1.0}, "/config.*rtol"),
        ([[1.0, 2.0]], {**DECAY, "functional": "none"}, "/config/functional.*end, area"),
        ([[1.0, 2.0]], {**DECAY, "parameters": ["q"]}, "/config/parameters"),
        ([[1.0, 2.0]], {**DECAY, "parameters": ["k", "k"]}, "/config/parameters must have each name once"),
        ([[1.0, 2.0]], {**TIMES, "functional": "end"}, "exclude each other"),
        ([[1.0, 2.0]], {**DECAY, "outputs": {"variables": ["w"], "t_eval": [1.0]}}, "unknown name 'w'"),
        ([[1.0, 2.0]], {}, "t_span is required"),
        ([[1.0, 2.0]], {**DECAY, "on_failure": "zero"}, "/config/on_failure"),
    ],
)
def test_wrong_input_is_an_exception_of_the_client(rate: Any, given: Any, config: Any, message: str) -> None:
    with pytest.raises(Exception, match=f"(?s)InvalidInput: .*{message}"):
        rate(given, config)


@pytest.mark.parametrize(("out", "into", "sens"), [(1, 0, [1.0, 1.0]), (0, 1, [1.0, 1.0]), (0, 0, [1.0]), (0, -1, [])])
def test_wrong_blocks_are_an_exception_of_the_client(rate: Any, out: int, into: int, sens: list[float]) -> None:
    with pytest.raises(Exception, match="InvalidInput"):
        rate.gradient(out, into, [[1.0, 2.0]], sens, DECAY)


def test_a_failed_run_is_an_exception_or_nan(rate: Any) -> None:
    config = {**DECAY, "max_steps": 2}
    with pytest.raises(Exception, match=r"StepLimitError: .*steps"):
        rate([[1.0, 2.0]], config)
    config["on_failure"] = "nan"
    assert np.isnan(rate([[1.0, 2.0]], config)).tolist() == [[True, True]]
    assert np.isnan(rate.gradient(0, 0, [[1.0, 2.0]], [1.0, 0.0], config)).tolist() == [True, True]
    assert np.isnan(rate.apply_jacobian(0, 0, [[1.0, 2.0]], [1.0, 0.0], config)).tolist() == [True, True]
    with pytest.raises(Exception, match="InvalidInput"):
        rate([[1.0]], config)


def test_a_refused_derivative_is_an_exception(service: LocalService) -> None:
    model, config = umbridge.HTTPModel(service.url, "graze"), {"t_span": [0, 2]}
    assert model([[0.5]], config) == [[0.0]]
    with pytest.raises(Exception, match="GrazingError"):
        model.gradient(0, 0, [[1.0]], [1.0], config)


def post(service: LocalService, action: str, content: Any, **headers: str) -> httpx.Response:
    text = content if isinstance(content, str) else json.dumps(content)
    return httpx.post(f"{service.url}/{action}", content=text, headers=headers, timeout=60)


def test_answers_have_the_form_of_the_protocol(service: LocalService) -> None:
    assert httpx.get(f"{service.url}/Info").json()["protocolVersion"] == 1.0
    body = {"name": "decay", "config": DECAY, "input": [[0.7, 2]], "inWrt": 0, "outWrt": 0}
    found = post(service, "Evaluate", {key: body[key] for key in ("name", "config", "input")})
    assert found.status_code == 200
    schema = {"type": "object", "required": ["output"], "additionalProperties": False}
    jsonschema.validate(found.json(), {**schema, "properties": {"output": {**NUMBERS, "items": NUMBERS}}})
    for action, further in (
        ("Gradient", {"sens": [0, 0]}),
        ("ApplyJacobian", {"vec": [0, 1]}),
        ("ApplyHessian", {"sens": [0, 0], "vec": [0, 0]}),
    ):
        content = body | further
        if action == "ApplyHessian":
            content |= {"inWrt1": content.pop("inWrt"), "inWrt2": 0}
        found = post(service, action, content)
        assert found.status_code == 200, found.text
        jsonschema.validate(found.json(), {**schema, "properties": {"output": NUMBERS}})


@pytest.mark.parametrize("action", ["ModelInfo", "InputSizes", "OutputSizes", "Evaluate", "Gradient", "ApplyJacobian"])
def test_errors_have_the_form_of_the_protocol(service: LocalService, action: str) -> None:
    found = post(service, action, {"name": "wrong"})
    assert (found.status_code, found.json()["error"]["type"]) == (400, "ModelNotFound")
    for content in ("", "{", "[]", '{"name": 1}', '{"name": NaN}', "[" * 100_000):
        found = post(service, action, content)
        assert (found.status_code, found.json()["error"]["type"]) == (400, "InvalidInput")
        jsonschema.validate(found.json(), ERROR)
    found = post(service, action, "x" * 5_000_000)  # refused before the route
    assert (found.status_code, found.json()["error"]["type"]) == (413, "RequestError")
    jsonschema.validate(found.json(), ERROR)
    jsonschema.validate(httpx.delete(f"{service.url}/{action}").json(), ERROR)
    assert post(service, action, {"name": "decay"}, origin="http://elsewhere").status_code == 415


def test_a_token_is_required_by_the_protocol_too(service: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.change(monkeypatch, token="0123456789abcdef")
    found = httpx.get(f"{service.url}/Info")
    assert found.status_code == 401
    jsonschema.validate(found.json(), ERROR)
    known = httpx.get(f"{service.url}/Info", headers={"Authorization": "Bearer 0123456789abcdef"})
    assert known.json()["models"] == ["em_hysteresis", "decay", "graze", "ball"]


def test_a_run_beyond_the_limit_of_time_is_an_exception_and_the_next_request_succeeds(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.change(monkeypatch, max_seconds=0.25, max_steps=10**12)
    model, slow = umbridge.HTTPModel(service.url, "decay"), {**DECAY, "max_step": 1e-9, "on_failure": "nan"}
    for call in (lambda: model([[1.0, 2.0]], slow), lambda: model.gradient(0, 0, [[1.0, 2.0]], [1.0, 0.0], slow)):
        with pytest.raises(Exception, match=r"LimitError: The request takes more than 0\.25 s"):
            call()
    service.change(monkeypatch, max_seconds=30.0)
    assert model([[1.0, 2.0]], DECAY)[0][0] == pytest.approx(2 * math.exp(-1), rel=1e-8)


def test_a_one_sided_derivative_is_noted_in_the_log(service: LocalService) -> None:
    h = 9.81 * 0.6**2 / 2 * (1 + 1e-9)  # the first bounce is at the first output
    config = {"t_span": [0, 1.5], "outputs": {"variables": ["y"], "t_eval": [0.6, 1.5]}, "rtol": 1e-7, "atol": 1e-10}
    model = umbridge.HTTPModel(service.url, "ball")
    with logged() as lines:
        model.gradient(0, 0, [[h, 0.8]], [1.0, 1.0], config)
    assert any("one-sided" in line["message"] for line in lines)


def test_the_model_of_these_tests_is_that_of_the_service(rate: Any) -> None:
    sol = dh.simulate(decay().build(), (0, 1), parameters=[0.9, 1.1], **OPTIONS)
    assert rate([[0.9, 1.1]], DECAY) == [[sol.functionals["end"], sol.functionals["area"]]]
