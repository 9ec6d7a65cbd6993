"""One path of the JSON API: what it takes, what it gives, and the checks between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator
from starlette.requests import Request
from starlette.responses import Response

from experiments.serving.errors import RequestRefused
from experiments.serving.json_bodies import read_json, reply
from experiments.serving.service import Service

Schema = Mapping[str, Any]
Body = dict[str, Any]


def record(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """The schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class Endpoint:
    """One path of the API. `serve` gets the service, the checked body, and the parameters of the
    query; it gives a JSON value, or a reply. `body` is the schema of the request (None: it has
    none), `result` that of the reply; `query` names parameters of the query."""

    method: str
    path: str
    summary: str
    serve: Callable[[Service, Body, Mapping[str, str]], Awaitable[Any]]
    body: Schema | None = None
    result: Schema | None = None
    query: tuple[str, ...] = ()

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(self.body or {})

    async def answer(self, service: Service, request: Request) -> Response:
        """The reply to one request; `RequestRefused` where it is wrong."""
        body: Any = {}
        if self.body is not None:
            body = await read_json(request, service.options.max_request_bytes)
            error = next(self._validator.iter_errors(body), None)
            if error is not None:
                location = ".".join(map(str, error.absolute_path)) or "the body"
                message = f"{location}: {error.message[:200]}"
                raise RequestRefused(400, "wrong_body", message)
        result = await self.serve(service, body, request.query_params)
        if isinstance(result, Response):
            return result
        return reply(result, most=service.options.max_result_bytes)
