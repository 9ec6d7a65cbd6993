"""Errors of requests to language models, and the translation of a server's error reply into one.

Each class stands for one reaction of the caller. `code` is stable and is recorded. `retryable`
errors may succeed when the same request is sent again; `stops_run` errors would end every other
request in the same way. Messages are one line and never contain a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from soundingline.toolkit.llm.messages import Turn

_LONGEST = 400


class ModelError(Exception):
    """A request without a usable reply.

    Attributes:
        turn: What arrived of the reply, with the usage that was paid for, or None.
        retry_after: The seconds that the server asks to wait, or None.
        attempts: The number of requests that were sent.
        queue_seconds: How long the last of them waited for a place in flight.

    Example:
        >>> error = ModelError("the server closed the connection", retry_after=2.0)
        >>> (error.code, error.retryable, error.retry_after)
        ('model_error', False, 2.0)
    """

    code: ClassVar[str] = "model_error"
    retryable: ClassVar[bool] = False
    stops_run: ClassVar[bool] = False

    def __init__(
        self, what: str, *, turn: Turn | None = None, retry_after: float | None = None
    ) -> None:
        line = " ".join(what.split())
        super().__init__(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…")
        self.turn = turn
        self.retry_after = retry_after
        self.attempts = 1
        self.queue_seconds = 0.0


class ContextOverflow(ModelError):
    """The transcript and the requested output do not fit the model's context window."""

    code = "context_overflow"


class Refused(ModelError):
    """The model or a content filter declined to answer."""

    code = "refused"


class Truncated(ModelError):
    """The output limit was reached before the reply was complete."""

    code = "truncated"


class BadRequest(ModelError):
    """The server does not accept the request: a setting, a schema or a message is wrong."""

    code = "bad_request"


class AuthenticationFailed(ModelError):
    """The key is absent, wrong, or not allowed to use this model."""

    code = "authentication_failed"
    stops_run = True


class UnknownModel(ModelError):
    """The server has no such model or no such path."""

    code = "unknown_model"
    stops_run = True


class Unreachable(ModelError):
    """No connection to the server can be made, before any request was sent. `fault` names its
    address."""

    fault = ""

    code = "unreachable"
    stops_run = True


class OutOfQuota(ModelError):
    """The provider's account has no money or quota left; waiting does not help."""

    code = "out_of_quota"
    stops_run = True


class OutOfMoney(ModelError):
    """The next request could exceed our own cap. `scope` is `run` or `question`."""

    code = "out_of_money"

    def __init__(self, what: str, *, scope: str = "run") -> None:
        super().__init__(what)
        self.scope = scope


class LedgerFailed(ModelError):
    """A request could not be written to the run's ledger, so that no cap can be enforced."""

    code = "ledger_failed"
    stops_run = True


class RateLimited(ModelError):
    """Too many requests or tokens for now."""

    code = "rate_limited"
    retryable = True


class ServerFailed(ModelError):
    """The server answered that it failed or is overloaded."""

    code = "server_failed"
    retryable = True


class ServerTimeout(ModelError):
    """No complete reply within the time for one request."""

    code = "server_timeout"
    retryable = True


class ServerGone(ModelError):
    """No connection, or one that ended before the reply was complete."""

    code = "server_gone"
    retryable = True


class BadReply(ModelError):
    """The server's reply does not follow its own protocol."""

    code = "bad_reply"
    retryable = True


_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|request_too_large|prompt is too long"
    r"|maximum context length|maximum model length|max_model_len"
    r"|context (size|window|length|limit)|longer than the maximum|input (length|tokens) exceed"
    # An older vLLM, if the prompt alone exceeds the window and the request has no maximum.
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
    """The error for a reply with an error.

    Args:
        status: The status of HTTP.
        body: The body, parsed or as text.
        headers: The headers.
        where: The model and its server, for the message.
        now: The time in seconds since the epoch.
        hide: Removes a key from the server's sentence before it is quoted.
    """
    if isinstance(body, Mapping) and isinstance(body.get("error"), (Mapping, str)):
        body = body["error"]
    kind, sentence = "", str(body or "")
    if isinstance(body, Mapping):
        words = (body.get(key) for key in ("type", "code"))
        kind = " ".join(str(word) for word in words if word not in (None, "", "error"))
        sentence = str(body.get("message") or body.get("detail") or "")
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


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a
    date (RFC 9110). None if it does not ask, or not readably."""
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
