"""The OpenAPI document as a page, without scripts: routes, entries of bodies, statuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h2 code { font-size: 1rem; }
.method { display: inline-block; min-width: 4rem; font-weight: 700; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.6rem 0.2rem 0; border-bottom: 1px solid #8886; }
code { overflow-wrap: anywhere; }
"""


def page(document: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI document."""
    info, schemas = document["info"], document.get("components", {}).get("schemas", {})
    title = f"{info['title']} {info['version']}"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{escape(title)}: routes</title><link rel="stylesheet" href="/docs.css"></head><body>',
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(text)}</p>" for text in info.get("description", "").split("\n\n")),
        '<p>The same as <a href="/openapi.json">OpenAPI document</a>, for generators of clients.</p>',
    ]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            parts += _route(path, method, route, schemas)
    return "".join([*parts, "</body></html>"])


def _route(path: str, method: str, route: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>'
    yield f"<p>{escape(route.get('summary', ''))}</p>"
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        yield from _body(_resolved(body, schemas), schemas)
    answers = [(status, answer["description"]) for status, answer in route.get("responses", {}).items()]
    others = [(status, text) for status, text in answers if status != "200"]
    if others:
        yield "<details><summary>Other statuses</summary><table>"
        yield from (f"<tr><td>{status}</td><td>{escape(text)}</td></tr>" for status, text in others)
        yield "</table></details>"


def _body(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    needed = schema.get("required", ())
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Entry", "Type", "Meaning"))
    yield f"<table><thead><tr>{heads}</tr></thead>"
    for name, own in schema.get("properties", {}).items():
        label = f"<code>{escape(name)}</code>{' (required)' if name in needed else ''}"
        meaning = escape(own.get("description", ""))
        yield f"<tr><td>{label}</td><td>{escape(_kind(own, schemas))}</td><td>{meaning}</td></tr>"
    yield "</table>"


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else schemas[reference.rpartition("/")[2]]


def _kind(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """A type in words: ``number or array of number``."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        kinds = [_kind(own, schemas) for own in schema["anyOf"] if own.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(map(repr, schema["enum"]))
    if schema.get("type") == "array":
        return f"array of {_kind(schema.get('items', {}), schemas)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_kind(schema['additionalProperties'], schemas)} by name"
    return str(schema.get("type", "any"))
