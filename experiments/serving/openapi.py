"""The API's description: OpenAPI 3.1, and a page for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from soundingline.experiments.serving.endpoint import Endpoint

_REFUSAL = {
    "description": "What was wrong, in one line.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
                "required": ["error", "message"],
            }
        }
    },
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.4 ui-monospace,monospace}pre{background:#f4f4f4;padding:.6rem;"
    "overflow:auto}h2{margin-bottom:0}"
)


def description(endpoints: Iterable[Endpoint], title: str) -> dict[str, Any]:
    """The OpenAPI document of the endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def page(endpoints: Iterable[Endpoint], title: str) -> str:
    """The same as HTML, without scripts."""
    blocks = [
        f"<h2><code>{endpoint.method} {escape(endpoint.path)}</code></h2>"
        f"<p>{escape(endpoint.summary)}</p>{_schema('Body', endpoint.body)}"
        f"{_schema('Reply', endpoint.result)}"
        for endpoint in endpoints
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        '<p>Described by <a href="openapi.json">openapi.json</a>. MCP: streamable HTTP at '
        "<code>/mcp</code>, SSE at <code>/sse</code>.</p>" + "".join(blocks) + "</body></html>"
    )


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    result = {"application/json": {"schema": dict(endpoint.result or {})}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": endpoint.path.strip("/").replace("/", "_").replace("-", "_"),
        "responses": {"200": {"description": "Served.", "content": result}, "default": _REFUSAL},
    }
    if endpoint.query:
        operation["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
            for name in endpoint.query
        ]
    if endpoint.body is not None:
        content = {"application/json": {"schema": dict(endpoint.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _schema(name: str, schema: Any) -> str:
    if not schema:
        return ""
    return f"<p>{name}</p><pre>{escape(json.dumps(schema, indent=1))}</pre>"
