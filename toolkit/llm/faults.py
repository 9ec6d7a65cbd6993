"""Tells apart, from what a server answered, why a request has no reply.

Servers agree on the status codes and on little else: exhausted quota comes as 429, 402, 403 or
400, an overflowing context as 400 or 413, with a code or only with a sentence. The phrases below
are those of OpenAI, Anthropic, DeepSeek, vLLM and llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from toolkit.llm.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    ModelError,
    OutOfQuota,
    RateLimited,
    Refused,
    ServerFailed,
    ServerTimeout,
    UnknownModel,
)

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|request_too_large|prompt is too long"
    r"|maximum context length|maximum model length|max_model_len"
    r"|context (size|window|length|limit)|longer than the maximum|input (length|tokens) exceed"
    # An older vLLM, where the prompt alone exceeds the window and no maximum is asked for.
    r"|max_tokens must be at least 1, got -",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient_quota|insufficient[_ ]balance|exceeded your current quota|billing_error"
    r"|billing_hard_limit|credit balance|payment required",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"content_filter|content_policy|content management policy|invalid_prompt|safety system",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"model_not_found|model .{0,80}(does not|doesn't) exist", re.IGNORECASE)

_BY_STATUS: Mapping[int, type[ModelError]] = {
    401: AuthenticationFailed,
    402: OutOfQuota,
    403: AuthenticationFailed,
    404: UnknownModel,
    405: UnknownModel,
    408: ServerTimeout,
    409: ServerFailed,
    413: ContextOverflow,
    425: ServerFailed,
    429: RateLimited,
    504: ServerTimeout,
}
# Errors inside a reply whose status was 200; those of Anthropic's streams first.
_BY_TYPE: Mapping[str, type[ModelError]] = {
    "overloaded_error": ServerFailed,
    "api_error": ServerFailed,
    "timeout_error": ServerTimeout,
    "rate_limit_error": RateLimited,
    "authentication_error": AuthenticationFailed,
    "permission_error": AuthenticationFailed,
    "not_found_error": UnknownModel,
    # Codes of a failed reply of the Responses API.
    "rate_limit_exceeded": RateLimited,
    "invalid_prompt": Refused,
}


def fault(
    status: int,
    body: Any,
    headers: Mapping[str, str],
    *,
    where: str,
    now: float,
    hide: Callable[[str], str] = str,
) -> ModelError:
    """The error for an answer of `status` whose body (parsed or text) is `body`. `where` names the
    model and server; `now` is the time in seconds since the epoch; `hide` takes a key out of the
    server's sentence before it is quoted."""
    kind, sentence = _said(body)
    error = _class_of(status, kind, f"{kind} {sentence}")
    quoted = f"HTTP {status}" + (f", {hide(sentence)}" if sentence else "")
    return error(f"{where}: {quoted}", retry_after=retry_after(headers, now))


def _class_of(status: int, kind: str, text: str) -> type[ModelError]:
    if 400 <= status < 500:
        if _QUOTA.search(text):
            return OutOfQuota
        if status in (400, 413, 422) and _OVERFLOW.search(text):
            return ContextOverflow
        if status in (400, 403, 422) and _REFUSAL.search(text):
            return Refused
        if status == 400 and _NO_MODEL.search(text):
            return UnknownModel
        return _BY_STATUS.get(status, BadRequest)
    if status < 400:
        return _BY_TYPE.get(kind, ServerFailed)
    return _BY_STATUS.get(status, ServerFailed)


def _said(body: Any) -> tuple[str, str]:
    """The machine words (type and code) and the sentence of an error body."""
    if isinstance(body, Mapping) and isinstance(body.get("error"), (Mapping, str)):
        body = body["error"]
    if not isinstance(body, Mapping):
        return "", str(body or "")
    words = [str(body[key]) for key in ("type", "code") if body.get(key) not in (None, "", "error")]
    message = body.get("message") or body.get("detail") or ""
    return (words[0] if len(words) == 1 else " ".join(words)), str(message)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a
    date (RFC 9110). None where it does not ask, or not readably."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    wish = headers.get("retry-after")
    seconds = _number(wish)
    if seconds is not None or not wish:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(wish).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
