"""The application: routes of the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dae_hybrid import __version__
from dae_hybrid.ensembles.process import WorkerProcess
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.service import api_page, bodies, job_routes, page_routes, umbridge
from dae_hybrid.service.bodies import body_of, disconnected, documented, requested_form
from dae_hybrid.service.encoding import JSON, MEDIA, json_bytes
from dae_hybrid.service.entries import pointer
from dae_hybrid.service.evaluation import Limits, carry_out, describe
from dae_hybrid.service.guards import Guard
from dae_hybrid.service.jobs import Jobs
from dae_hybrid.service.log import LOG
from dae_hybrid.service.metrics import Metrics
from dae_hybrid.service.models import ServedModel
from dae_hybrid.service.pool import Pool
from dae_hybrid.service.problem_details import MEDIA_TYPE, RequestError, answer
from dae_hybrid.service.requests import CheckBody, ForwardBody, GradientBody, RunOptionsBody, SimulateBody
from dae_hybrid.service.settings import Settings

DESCRIPTION = """Simulation of hybrid DAE systems, and derivatives across events.

Errors are problem details (RFC 9457), with the kind of the error, its mode, transition and time, and a remedy."""
#: routes of a model: action, body, summary
ACTIONS: tuple[tuple[str, type[RunOptionsBody], str], ...] = (
    ("simulate", SimulateBody, "Simulate"),
    ("forward", ForwardBody, "Simulate with forward sensitivities"),
    ("gradient", GradientBody, "Gradient of a functional by adjoint analysis"),
    ("check", CheckBody, "Compare adjoint, forward and finite-difference gradients"),
)
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {MEDIA_TYPE: {}}}
    for status, text in (
        (401, "A token is required"),
        (404, "There is no such model or route"),
        (409, "A derivative is refused, with the reason"),
        (413, "The body is too large"),
        (422, "An entry is wrong (`errors` has its path), the run failed, or a limit was exceeded"),
        (503, "Too many requests wait; try again after `Retry-After` seconds"),
    )
}


#: warnings in a header
MAX_WARNINGS = 5


class Service:
    """What the routes share."""

    def __init__(self, settings: Settings, models: Mapping[str, ServedModel]) -> None:
        self.settings, self.models, self.metrics = settings, dict(models), Metrics()
        self.jobs: Jobs
        self.limits = Limits(settings.max_outputs, settings.max_steps)
        self.pool = Pool(settings.workers, settings.queue, settings.max_seconds, settings.max_memory, self._prepare)
        self.descriptions: dict[str, dict[str, Any]] = {}
        self.files: dict[str, str | None] = {}
        for name, text, value in (
            ("requests_waiting", "Requests that wait for a worker", lambda: self.pool.waiting),
            ("requests_running", "Requests that a worker carries out", lambda: self.pool.running),
            ("workers_ready", "Worker processes that are ready", lambda: self.pool.ready),
        ):
            self.metrics.gauge(name, text, value)
        for name, text, value in (
            ("jobs_waiting", "Jobs that wait", lambda: self.jobs.n_waiting),
            ("jobs_running", "Jobs that run", lambda: self.jobs.n_running),
        ):
            self.metrics.gauge(name, text, value)
        self.metrics.gauge("workers_replaced", "Worker processes that were replaced", lambda: self.pool.replaced)
        self.metrics.gauge("worker_seconds", "Time of requests in workers", lambda: self.pool.busy_seconds)

    def _prepare(self, worker: WorkerProcess) -> Any:
        return worker.run(describe, list(self.models.values()))

    async def start(self) -> None:
        """Start the workers, which build all models, and the jobs; do nothing if they have been started.

        Raises
        ------
        DaeHybridError
            A model cannot be built, or another server uses the store of jobs.
        """
        if self.descriptions:
            return
        found = await self.pool.start()
        for name, (description, file) in zip(self.models, found, strict=True):
            self.descriptions[name], self.files[name] = description, file
        self.jobs = Jobs(self.settings.store, self.models, self.settings)  # a model that fails would fail them

    async def close(self) -> None:
        """End the jobs that run, which the next server continues, and the workers."""
        await asyncio.to_thread(self.jobs.close, self.settings.grace_seconds)
        self.pool.close()

    def model(self, name: str) -> ServedModel:
        """The model of this name.

        Raises
        ------
        RequestError
            There is none.
        """
        if name not in self.models:
            raise RequestError(404, f"There is no model {name!r}; there are {', '.join(self.models)}.")
        return self.models[name]


def create_app(settings: Settings, models: Mapping[str, ServedModel]) -> FastAPI:
    """Create the application.

    Parameters
    ----------
    settings : Settings
    models : mapping of str to ServedModel
        The models that are served, see `served_models`.

    Returns
    -------
    FastAPI
        ``app.state.service`` has the `Service`.
    """
    service = Service(settings, models)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="dae_hybrid", version=__version__, description=DESCRIPTION, lifespan=lifespan,
        docs_url=None, redoc_url=None, openapi_url="/openapi.json", redirect_slashes=False,
    )  # fmt: skip
    app.state.service = service
    for kind in (RequestError, DaeHybridError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.include_router(health_routes(service))
    app.include_router(model_routes(service))
    app.include_router(umbridge.router(service))
    app.include_router(job_routes.router(service), responses=RESPONSES)
    app.include_router(page_routes.router())
    app.add_middleware(Guard, settings=settings, metrics=service.metrics)
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]
    return app


def _answer(request: Request, error: Exception) -> Response:
    found = answer(request, error)
    if found.status_code >= 500:
        LOG.error(str(error), extra={"request_id": request.scope.get("request_id")})
    return found


def _not_found(request: Request, error: Exception) -> Response:
    """Errors of the router: 404 and 405."""
    assert isinstance(error, HTTPException)
    return answer(request, RequestError(error.status_code, error.detail, headers=error.headers or {}))


def _invalid(request: Request, error: Exception) -> Response:
    """Errors in an address: its path or its query."""
    assert isinstance(error, RequestValidationError)
    entries = [(pointer(found["loc"]), found["msg"]) for found in error.errors()]
    return answer(request, RequestError(422, "The address is not valid.", entries=entries))


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        found.setdefault("components", {}).setdefault("schemas", {}).update(bodies.schemas)
        app.openapi_schema = found
    return app.openapi_schema


def health_routes(service: Service) -> APIRouter:
    """Routes for those who operate the service."""
    router = APIRouter(tags=["operation"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", summary="Whether the service runs")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="Whether a worker is ready")
    async def readyz() -> Response:
        if service.pool.ready:
            return Response(json_bytes({"status": "ready", "workers": service.pool.ready}), media_type=JSON)
        raise RequestError(503, "No worker is ready.", headers={"Retry-After": "1"})

    @router.get("/docs", summary="This page", response_class=HTMLResponse)
    async def docs(request: Request) -> Response:
        text = api_page.page(request.app.openapi())
        return HTMLResponse(text, headers={"Content-Security-Policy": page_routes.POLICY})

    @router.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return Response(api_page.STYLE, media_type="text/css")

    @router.get("/metrics", summary="Counters, for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=service.metrics.media_type)

    return router


def model_routes(service: Service) -> APIRouter:
    """Routes of the models."""
    router = APIRouter(prefix="/v1/models", tags=["models"], responses=RESPONSES)

    @router.get("", summary="The models")
    async def models() -> Response:
        found = [
            {"name": name, "title": own["title"], "href": f"/v1/models/{name}"}
            for name, own in service.descriptions.items()
        ]
        return Response(json_bytes({"models": found}), media_type=JSON)

    @router.get("/{name}", summary="Parameters, variables, modes and functionals of a model")
    async def model(name: str) -> Response:
        service.model(name)
        limits = {
            "max_outputs": service.settings.max_outputs,
            "max_steps": service.settings.max_steps,
            "max_seconds": service.settings.max_seconds,
        }
        return Response(json_bytes(service.descriptions[name] | {"limits": limits}), media_type=JSON)

    @router.get("/{name}/file", summary="The model as a model file in JSON")
    async def file(name: str) -> Response:
        service.model(name)
        text = service.files[name]
        if text is None:
            raise RequestError(404, f"The model {name!r} cannot be written to a model file.")
        return Response(text, media_type=JSON)

    for action, body, summary in ACTIONS:
        router.add_api_route(
            f"/{{name}}/{action}",
            _route(service, action, body),
            methods=["POST"],
            summary=summary,
            openapi_extra=documented(body),
            response_class=Response,
            name=action,
        )
    return router


def _route(service: Service, action: str, body: type[RunOptionsBody]) -> Callable[..., Awaitable[Response]]:
    async def route(name: str, request: Request) -> Response:
        model, form, call = service.model(name), requested_form(request), await body_of(request, body)
        gone = partial(disconnected, request)
        answer = await service.pool.run(gone, carry_out, model, action, call.given(), form, service.limits)
        content, warned = answer or (b"", [])
        # CSV has no place for warnings
        headers = {"X-Warnings": json.dumps(warned[:MAX_WARNINGS])} if warned else {}
        return Response(content, headers=headers, media_type=MEDIA[form])

    return route
