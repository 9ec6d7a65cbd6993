"""Bodies of requests and replies: JSON, bounded, and read in a bounded time."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from soundingline.experiments.serving.errors import RequestRefused

_SECONDS = 60.0  # in which a body must have come
_DEEPEST = 20  # nested lists and objects; ours have four


async def read_json(request: Request, most: int) -> Any:
    """The JSON value of a request's body, at most `most` bytes; an empty body is an empty
    object."""
    try:
        body = await asyncio.wait_for(_body(request, most), _SECONDS)
    except asyncio.TimeoutError:
        raise RequestRefused(408, "too_slow", "the body did not come in time") from None
    except ClientDisconnect:
        raise RequestRefused(400, "disconnected", "the client has gone") from None
    return parse_json(body) if body.strip() else {}


def parse_json(text: bytes | str) -> Any:
    """A JSON value of others; `RequestRefused` for what is none, and for what is nested too deep
    to be handled safely."""
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestRefused(400, "no_json", f"the body is no JSON: {reason[:200]}") from None
    level = [value]
    for _ in range(_DEEPEST):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [
            item
            for items in inner
            if isinstance(items, (list, type({}.values())))
            for item in items
        ]
        if not level:
            return value
    raise RequestRefused(400, "no_json", "the body is nested too deeply")


def dump_json(value: Any, most: int | None = None) -> str:
    """Compact JSON that UTF-8 can hold; `RequestRefused` where it has more than `most`
    characters."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which only JSON's escapes can hold
            text = json.dumps(value, separators=(",", ":"))
    if most is not None and len(text) > most:
        raise RequestRefused(
            500,
            "too_large",
            f"the result has {len(text)} characters, of at most {most}: ask for less",
        )
    return text


def reply(value: Any, status: int = 200, most: int | None = None) -> Response:
    """A JSON reply."""
    return text_reply(dump_json(value, most), status)


def text_reply(text: str, status: int = 200) -> Response:
    """A reply whose JSON is already written."""
    return Response(text, status, media_type="application/json")


def finite(score: float) -> float | None:
    """A score as JSON can hold it; None for infinity and for what is no number."""
    return score if math.isfinite(score) else None


async def _body(request: Request, most: int) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise RequestRefused(413, "too_large", f"a body has at most {most} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
