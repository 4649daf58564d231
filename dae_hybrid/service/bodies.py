"""Reading of requests: bodies in strict JSON, checked by a model of pydantic, and accepted representations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from dae_hybrid.service.encoding import ARROW, CSV, JSON
from dae_hybrid.service.entries import pointer
from dae_hybrid.service.problem_details import RequestError
from dae_hybrid.tables import counted

#: errors of one body that are reported
MAX_ERRORS = 20
#: entries of an object
MAX_ENTRIES = 10_000
#: depth of lists and objects within each other
MAX_DEPTH = 16


async def body_of[Body: BaseModel](request: Request, model: type[Body]) -> Body:
    """Read and check the body of a request.

    Raises
    ------
    RequestError
        415 the media type is not JSON; 422 the body is not JSON, or an entry is wrong (with its path).
    """
    return checked(model, strict_json(request, await request.body()))


def strict_json(request: Request, content: bytes) -> Any:
    """Parse the body of a request that states the media type of JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise RequestError(415, f"The body must be application/json, got {media or 'no media type'}.")
    return parsed(content)


def parsed(content: bytes) -> Any:
    """Parse JSON; NaN and infinity are no JSON, and an empty body is null."""
    try:
        return orjson.loads(content or b"null")
    except orjson.JSONDecodeError as reason:
        raise RequestError(422, "The body is not JSON.", entries=[("", str(reason))]) from None


def checked[Body: BaseModel](model: type[Body], content: Any) -> Body:
    """Check the entries of a body."""
    if isinstance(content, dict | list):
        _check_sizes(content, "")
    try:
        return model.model_validate(content)
    except ValidationError as reason:
        found = reason.errors(include_url=False, include_input=False, include_context=False)
        entries = list(
            dict.fromkeys((pointer(error["loc"]), error["msg"].removeprefix("Value error, ")) for error in found)
        )
        raise RequestError(
            422, f"The body is not valid: {counted(len(entries), 'error')}.", entries=entries[:MAX_ERRORS]
        ) from None


def _check_sizes(content: Any, place: str, depth: int = 0) -> None:
    """Refuse deep bodies, and objects with so many entries that their errors would take long to list."""
    wrong = ""
    if depth > MAX_DEPTH:
        wrong = f"lists and objects must be nested at most {MAX_DEPTH} times"
    elif isinstance(content, dict) and len(content) > MAX_ENTRIES:
        wrong = f"an object must have at most {MAX_ENTRIES} entries, got {len(content)}"
    if wrong:
        raise RequestError(422, "The body is not valid: 1 error.", entries=[(place, wrong)])
    if isinstance(content, dict):
        members: Iterable[tuple[int | str, Any]] = content.items()
    else:  # longer lists are of numbers
        members = enumerate(content) if len(content) <= MAX_ENTRIES else ()
    for name, value in members:
        if isinstance(value, dict | list):
            _check_sizes(value, place + pointer((name,)), depth + 1)


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """The body in OpenAPI, for ``openapi_extra`` of a route."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


#: schemas of all bodies by name
schemas: dict[str, Any] = {}


def requested_form(request: Request) -> str:
    """The representation that the client accepts: json, csv or arrow.

    Raises
    ------
    RequestError
        None of them.
    """
    accepted = request.headers.get("accept", "*/*").lower()
    for form, media in (("arrow", ARROW), ("csv", CSV), ("json", JSON)):
        if media.partition(";")[0] in accepted:
            return form
    if any(pattern in accepted for pattern in ("*/*", "application/*", "text/html")):
        return "json"
    raise RequestError(406, f"The representations are {JSON}, text/csv and {ARROW}, got Accept: {accepted[:80]!r}.")


async def disconnected(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
