"""Routes of jobs: submission, state, events, result and cancellation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any, Protocol

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dae_hybrid.errors import OptionError
from dae_hybrid.service.bodies import checked, documented, requested_form, strict_json
from dae_hybrid.service.encoding import JSON, MEDIA, json_bytes
from dae_hybrid.service.job_requests import DesignBody, EnsembleBody, FitBody, body_class
from dae_hybrid.service.job_results import result_parts
from dae_hybrid.service.jobs import QUEUED, RUNNING, Job, Jobs
from dae_hybrid.service.log import LOG
from dae_hybrid.service.problem_details import RequestError

#: interval between comments that keep a connection open, in seconds
KEEP_ALIVE_SECONDS = 15.0
#: least interval between pieces of events, in seconds, and time for a cancelled job to end before the answer
EVENT_SECONDS, CANCEL_SECONDS = 0.25, 2.0
EVENT_STREAM = "text/event-stream"
EVENT_NUMBER = re.compile(r"[0-9]{1,18}")
#: milliseconds after which a browser connects again
RETRY = b"retry: 1000\n\n"


class JobService(Protocol):
    """What the routes need of a service."""

    jobs: Jobs


def router(service: JobService) -> APIRouter:
    """Routes of jobs."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    def found(identifier: str) -> Job:
        try:
            return service.jobs.jobs[identifier]
        except KeyError:
            raise RequestError(404, "There is no such job.") from None

    @routes.post("", status_code=202, summary="Submit an ensemble or a fit", openapi_extra=_documentation())
    async def submit(request: Request) -> Response:
        content = strict_json(request, await request.body())
        try:
            kind = body_class(content)
        except ValueError as reason:
            raise RequestError(422, "The body is not valid: 1 error.", entries=[("/kind", str(reason))]) from None
        body = await run_in_threadpool(checked, kind, content)  # up to a million numbers
        if body.model not in service.jobs.models:
            text = f"There is no model {body.model!r}; there are {', '.join(service.jobs.models)}."
            raise RequestError(422, text, entries=[("/model", text)])
        job = await run_in_threadpool(service.jobs.submit, body)
        return _answer(job, service.jobs, 202, {"Location": f"/v1/jobs/{job.id}"})

    @routes.get("", summary="The jobs, in order of submission")
    async def jobs() -> Response:
        own = service.jobs
        content = {
            "jobs": [_facts(job, own) for job in sorted(own.jobs.values(), key=lambda job: job.number)],
            "damaged": [{"id": name, "message": text} for name, text in own.damaged.items()],
            "durable": not own.store.is_temporary,
        }
        return Response(json_bytes(content), media_type=JSON)

    @routes.get("/{identifier}", summary="State of a job")
    async def state(identifier: str) -> Response:
        return _answer(found(identifier), service.jobs, 200)

    @routes.get("/{identifier}/events", summary="Progress as server-sent events", response_class=StreamingResponse)
    async def events(identifier: str, request: Request) -> Response:
        job = found(identifier)
        given = request.headers.get("last-event-id", "")
        last = int(given) if EVENT_NUMBER.fullmatch(given) else 0
        last = last if last <= job.folder.n_events else 0
        if job.has_ended and last == job.folder.n_events:
            return Response(status_code=204)  # a browser then stops to connect again
        headers = {"X-Accel-Buffering": "no"}  # a proxy is not to collect them
        return StreamingResponse(_events(job, service.jobs, last), media_type=EVENT_STREAM, headers=headers)

    @routes.get("/{identifier}/result", summary="Result of a job that has ended, as JSON, CSV or Arrow")
    async def result(identifier: str, request: Request) -> Response:
        job, form = found(identifier), requested_form(request)
        if not job.has_ended:
            raise RequestError(409, f"The job is {job.state['status']}.", remedy=f"Wait: GET /v1/jobs/{job.id}/events.")
        try:
            parts = await run_in_threadpool(result_parts, job, form)
            first = None if parts is None else await run_in_threadpool(next, parts, b"")
        except OptionError:
            raise
        except Exception as error:
            LOG.exception("the result of a job cannot be read", extra={"job": job.id})
            raise RequestError(500, f"The result of the job {job.id} is damaged. The log has the reason.") from error
        if parts is None or first is None:
            reason = job.state["message"] or f"it is {job.state['status']}"
            raise RequestError(409, f"The job has no result: {reason}")
        return StreamingResponse(chain([first], parts), media_type=MEDIA[form])

    @routes.delete("/{identifier}", summary="Cancel a job, or remove one that has ended")
    async def delete(identifier: str) -> Response:
        job = found(identifier)
        if job.has_ended:
            await run_in_threadpool(service.jobs.remove, job)
            return Response(status_code=204)
        try:
            await run_in_threadpool(service.jobs.cancel, job)
        except OSError as reason:
            text = f"The cancellation cannot be stored: {reason.strerror}."
            raise RequestError(503, text, headers={"Retry-After": "60"}) from reason
        await _ended(job)
        return _answer(job, service.jobs, 200 if job.has_ended else 202)

    return routes


def _documentation() -> dict[str, Any]:
    """The body in OpenAPI, one of several."""
    schemas = [
        documented(kind)["requestBody"]["content"]["application/json"]["schema"]
        for kind in (EnsembleBody, DesignBody, FitBody)
    ]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": {"anyOf": schemas}}}}}


def _facts(job: Job, jobs: Jobs) -> dict[str, Any]:
    address = f"/v1/jobs/{job.id}"
    links = {"href": address, "events": f"{address}/events", "result": f"{address}/result"}
    return job.facts() | links | {"durable": not jobs.store.is_temporary}


def _answer(job: Job, jobs: Jobs, status: int, headers: dict[str, str] | None = None) -> Response:
    if job.state["status"] in (QUEUED, RUNNING):
        headers = {"Retry-After": "1", **(headers or {})}
    return Response(json_bytes(_facts(job, jobs)), status, headers=headers, media_type=JSON)


class _Bell:
    """Wakes a coroutine of this loop after events of a job, which come from other threads."""

    def __init__(self, job: Job) -> None:
        self._job, self._rung, self._loop = job, asyncio.Event(), asyncio.get_running_loop()

    def _ring(self) -> None:
        self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, seconds: float) -> bool:
        """Wait for an event; whether there was one."""
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def __enter__(self) -> _Bell:
        self._job.listen(self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        self._job.leave(self._ring)


async def _ended(job: Job) -> None:
    """Wait for the end of a job that was cancelled, for a while."""
    with _Bell(job) as bell:
        loop = asyncio.get_running_loop()
        end = loop.time() + CANCEL_SECONDS
        while not job.has_ended and (left := end - loop.time()) > 0:
            await bell.wait(left)


async def _events(job: Job, jobs: Jobs, last: int) -> AsyncIterator[bytes]:
    """The events after number `last`, until the job has ended or is removed, or the server ends."""
    number, offset = 0, 0
    with _Bell(job) as bell:
        yield RETRY
        while True:
            has_ended = job.has_ended or jobs.is_closing  # before the last look
            while True:
                try:
                    found, after = job.folder.events(offset)
                    await asyncio.sleep(0)  # a long log is read in pieces
                except FileNotFoundError:
                    return
                if after == offset:
                    break
                offset = after
                content = b""
                for own in found:
                    number += 1
                    if number > last:
                        content += b"id: %d\nevent: %b\ndata: %b\n\n" % (
                            number, own["event"].encode(), json_bytes(own["data"]),
                        )  # fmt: skip
                if content:
                    yield content
            if has_ended or job.is_removed:
                return
            if await bell.wait(KEEP_ALIVE_SECONDS):
                await asyncio.sleep(EVENT_SECONDS * (not job.has_ended))
            else:
                yield b": keep-alive\n\n"
