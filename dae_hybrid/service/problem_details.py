"""Problem details (RFC 9457): typed errors as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dae_hybrid import errors
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.service.encoding import json_bytes
from dae_hybrid.service.pool import AbandonedError

MEDIA_TYPE = "application/problem+json"
#: status in the log of a request whose client has closed the connection
CLIENT_GONE = 499
#: errors that are not due to the request
INTERNAL = (errors.EnsembleError, errors.AdapterError)
#: errors that refuse a derivative
REFUSALS = (errors.GrazingError, errors.DualityError, errors.AssumptionError, errors.UnsupportedError)


class RequestError(Exception):
    """A request that is refused before it reaches the library."""

    def __init__(
        self, status: int, detail: str, *, entries: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] = {},
        remedy: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(detail)
        self.status, self.detail, self.entries, self.headers = status, detail, entries, dict(headers)
        self.remedy = remedy


def status_of(error: DaeHybridError, *, is_derivative: bool) -> int:
    """Status of a typed error: 503 overload, 500 not due to the request, 409 a derivative is refused, 422 else."""
    if isinstance(error, AbandonedError):
        return CLIENT_GONE
    if isinstance(error, errors.OverloadError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, INTERNAL):
        return HTTPStatus.INTERNAL_SERVER_ERROR
    if is_derivative and isinstance(error, REFUSALS):
        return HTTPStatus.CONFLICT
    return HTTPStatus.UNPROCESSABLE_ENTITY


def details(status: int, detail: str, request_id: str, **further: Any) -> dict[str, Any]:
    """Members of a problem."""
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "Error"
    return {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "request_id": request_id,
        **further,
    }


def of_error(error: DaeHybridError, request_id: str, *, is_derivative: bool) -> dict[str, Any]:
    """Members of a problem for a typed error; `errors` has the path of the entry at fault, if one is known."""
    path = getattr(error, "path", None)
    return details(
        status_of(error, is_derivative=is_derivative),
        error.message,
        request_id,
        kind=type(error).__name__,
        mode=error.mode,
        transition=error.transition,
        time=error.time,
        variables=list(error.variables),
        remedy=error.remedy,
        errors=[] if path is None else [{"path": path, "message": error.message}],
    )


def response(problem: Mapping[str, Any], headers: Mapping[str, str] = {}) -> Response:
    """A response with a problem."""
    return Response(json_bytes(problem), problem["status"], headers=dict(headers), media_type=MEDIA_TYPE)


#: responses to exceptions in the form of another protocol, by path
other_forms: dict[str, Callable[[Request, Exception], Response]] = {}


def answer(request: Request, error: Exception) -> Response:
    """The response to an exception."""
    if request.scope["path"] in other_forms:
        return other_forms[request.scope["path"]](request, error)
    request_id = request.scope.get("request_id", "")
    if isinstance(error, RequestError):
        entries = [{"path": path, "message": message} for path, message in error.entries]
        problem = details(
            error.status, error.detail, request_id, kind="RequestError", remedy=error.remedy, errors=entries
        )
        return response(problem, error.headers)
    if isinstance(error, DaeHybridError):
        is_derivative = not request.scope["path"].endswith("/simulate")
        headers = {"Retry-After": str(error.retry_after)} if isinstance(error, errors.OverloadError) else {}
        return response(of_error(error, request_id, is_derivative=is_derivative), headers)
    text = "The service has failed. The log has the reason, under the identifier of this request."
    return response(details(500, text, request_id, kind="InternalError"))
