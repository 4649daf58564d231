"""UM-Bridge 1.0: models for clients of uncertainty quantification.

Linus Seelinger et al., UM-Bridge: Uncertainty quantification and modeling bridge, Journal of Open Source Software
8(83), 4748, 2023.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from dae_hybrid.errors import DaeHybridError, OptionError, OverloadError, ParameterError
from dae_hybrid.service import problem_details
from dae_hybrid.service.bodies import checked, disconnected, documented, parsed
from dae_hybrid.service.encoding import JSON, json_bytes
from dae_hybrid.service.log import LOG
from dae_hybrid.service.problem_details import RequestError, status_of
from dae_hybrid.service.umbridge_evaluation import Refused, carry_out
from dae_hybrid.service.umbridge_requests import EvaluateBody, GradientBody, HessianBody, JacobianBody, SizesBody

if TYPE_CHECKING:
    from dae_hybrid.service.app import Service

#: routes of a model: action, body, summary
ACTIONS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("InputSizes", SizesBody, "Sizes of the input blocks"),
    ("OutputSizes", SizesBody, "Sizes of the output blocks"),
    ("Evaluate", EvaluateBody, "Simulate"),
    ("Gradient", GradientBody, "Gradient of a weighted sum of the outputs, by adjoint analysis"),
    ("ApplyJacobian", JacobianBody, "Derivative along a direction, by forward analysis"),
    ("ApplyHessian", HessianBody, "Hessian of a weighted sum of functionals times a vector"),
)
PATHS = ("/Info", "/ModelInfo", *(f"/{action}" for action, _, _ in ACTIONS))
BAD_REQUEST = 400


class ModelNotFound(RequestError):
    """There is no model of this name."""


def error_response(request: Request, error: Exception) -> Response:
    """The response to an exception, in the form of the protocol."""
    headers: dict[str, str] = {}
    kind, text, status = "InternalError", "The service has failed. The log has the reason.", 500
    if isinstance(error, RequestError):
        is_input = error.status in (BAD_REQUEST, 422)
        kind = "ModelNotFound" if isinstance(error, ModelNotFound) else "InvalidInput" if is_input else "RequestError"
        status, headers = BAD_REQUEST if is_input else error.status, error.headers
        parts = [error.detail, *(f"{path} {message}." for path, message in error.entries), error.remedy]
        text = " ".join(part for part in parts if part)
    elif isinstance(error, Refused):
        kind, text, status = "UnsupportedFeature", str(error), BAD_REQUEST
    elif isinstance(error, DaeHybridError):
        path = getattr(error, "path", None)
        is_input = path is not None or isinstance(error, OptionError | ParameterError)
        kind = "InvalidInput" if is_input else type(error).__name__
        text = str(error) if path is None else f"{path}: {error}"
        is_derivative = request.scope["path"] not in ("/Evaluate", "/InputSizes", "/OutputSizes")
        status = BAD_REQUEST if is_input else status_of(error, is_derivative=is_derivative)
        if isinstance(error, OverloadError):
            headers = {"Retry-After": str(error.retry_after)}
    return Response(json_bytes({"error": {"type": kind, "message": text}}), status, headers, JSON)


for _path in PATHS:
    problem_details.other_forms[_path] = error_response


def router(service: Service) -> APIRouter:
    """Routes of the protocol."""
    found = APIRouter(tags=["UM-Bridge"])

    @found.get("/Info", summary="Version of UM-Bridge, and the models")
    async def info() -> Response:
        return Response(json_bytes({"protocolVersion": 1.0, "models": list(service.models)}), media_type=JSON)

    @found.post("/ModelInfo", summary="What a model supports")
    async def model_info(request: Request) -> Response:
        name, _ = await _read(service, request)
        has_functionals = bool(service.descriptions[name]["functionals"])
        support = {"Evaluate": True, "Gradient": True, "ApplyJacobian": True, "ApplyHessian": has_functionals}
        return Response(json_bytes({"support": support}), media_type=JSON)

    for action, body, summary in ACTIONS:
        found.add_api_route(
            f"/{action}", _route(service, action, body), methods=["POST"], summary=summary,
            openapi_extra=documented(body), response_class=Response, name=action,
        )  # fmt: skip
    return found


def _route(service: Service, action: str, body: type[BaseModel]) -> Callable[..., Awaitable[Response]]:
    async def route(request: Request) -> Response:
        name, content = await _read(service, request)
        if action == "ApplyHessian" and not service.descriptions[name]["functionals"]:
            raise Refused("ApplyHessian is not supported: the model has no functionals.")
        call = checked(body, content).model_dump(exclude_none=True)
        answer = await service.pool.run(
            partial(disconnected, request), carry_out, service.models[name], action, call, service.limits
        )
        text, warned = (b"", []) if answer is None else answer
        for warning in warned:  # the protocol has no place for them
            LOG.warning(warning, extra={"request_id": request.scope.get("request_id")})
        return Response(text, media_type=JSON)

    return route


async def _read(service: Service, request: Request) -> tuple[str, Any]:
    """Name of a served model, and the body. Clients of the protocol need not state a media type.

    Raises
    ------
    RequestError
        The body is not JSON, has no name, or comes from a page of another site.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and "origin" in request.headers:  # a browser sends it without asking first
        raise RequestError(415, "A page must send application/json.")
    content = parsed(await request.body())
    name = content.get("name") if isinstance(content, dict) else None
    if not isinstance(name, str):
        raise RequestError(422, "The body must be an object with the name of a model.", entries=[("/name", "missing")])
    if name not in service.models:
        raise ModelNotFound(BAD_REQUEST, f"There is no model {name[:80]!r}; there are {', '.join(service.models)}.")
    return name, content
