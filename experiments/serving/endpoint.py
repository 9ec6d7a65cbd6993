"""One path of the JSON API: what it takes, what it gives, and the checks between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator
from starlette.requests import Request
from starlette.responses import Response

from soundingline.experiments.serving.errors import RequestRefused
from soundingline.experiments.serving.json_bodies import read_json, reply
from soundingline.experiments.serving.service import Service

Schema = Mapping[str, Any]
Body = dict[str, Any]
_TYPES = {"string": str, "object": dict}


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

    @cached_property
    def _plain_types(self) -> Mapping[str, type]:
        """The fields whose schema asks for a text or an object and for nothing else."""
        fields = (self.body or {}).get("properties", {})
        return {
            name: _TYPES[schema["type"]]
            for name, schema in fields.items()
            if schema["type"] in _TYPES and schema.keys() <= {"type", "description"}
        }

    def wrong(self, body: Any) -> str:
        """What is wrong with a request's body; empty where nothing is."""
        if self.body is None or self._is_plain(body):
            return ""
        error = next(self._validator.iter_errors(body), None)
        if error is None:
            return ""
        location = ".".join(map(str, error.absolute_path)) or "the body"
        return f"{location}: {error.message[:200]}"

    def _is_plain(self, body: Any) -> bool:
        """Whether a body has plain fields only, and is right: most are, and the validator takes
        much longer to see it."""
        assert self.body is not None
        return (
            isinstance(body, dict)
            and all(name in body for name in self.body["required"])
            and all(isinstance(body[name], self._plain_types.get(name, ())) for name in body)
        )

    async def answer(self, service: Service, request: Request) -> Response:
        """The reply to one request; `RequestRefused` where it is wrong."""
        body: Any = {}
        if self.body is not None:
            body = await read_json(request, service.options.max_request_bytes)
            if message := self.wrong(body):
                raise RequestRefused(400, "wrong_body", message)
        result = await self.serve(service, body, request.query_params)
        if isinstance(result, Response):
            return result
        return reply(result, most=service.options.max_result_bytes)
