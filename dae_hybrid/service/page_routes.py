"""The page: a fixed list of files, read when the service starts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

INDEX = "index.html"
SCRIPT, STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
#: the files of the page and their media types
FILES = {
    INDEX: "text/html; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "style.css": STYLE,
    "uPlot.min.css": STYLE,
    "uPlot.iife.min.js": SCRIPT,
    "uPlot.LICENSE": "text/plain; charset=utf-8",
    **dict.fromkeys(
        ("api.js", "app.js", "chart.js", "controls.js", "export.js", "format.js", "forms.js", "linearise.js",
         "model.js", "plots.js", "runner.js", "tables.js"),
        SCRIPT,
    ),
}  # fmt: skip
#: pages load nothing from elsewhere, and no script or style that is not in a file; nothing embeds them
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"


def router() -> APIRouter:
    """Routes of the page: ``/`` and ``/page/{file}``."""
    found = APIRouter(include_in_schema=False)
    folder = files("dae_hybrid.service") / "page"
    for name, media in FILES.items():
        content = (folder / name).read_bytes()
        found.add_api_route("/" if name == INDEX else f"/page/{name}", _route(content, media), methods=["GET", "HEAD"])
    return found


def _route(content: bytes, media: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}

    async def route(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers | {"Content-Type": media})

    return route
