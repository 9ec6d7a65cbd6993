"""Errors of requests to language models, and the translation of a server's error reply into one.

Each class stands for one reaction of the caller. `code` is stable and is recorded. `retryable`
errors may succeed when the same request is sent again; `stops_run` errors would end every other
request in the same way. Messages are one line and never contain a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from soundingline.toolkit.json_text import try_json

if TYPE_CHECKING:
    from soundingline.toolkit.llm.messages import Turn

_LONGEST = 400


class ModelError(Exception):
    """A request without a usable reply.

    Attributes:
        turn: What arrived of the reply, with the usage that was paid for, or None.
        retry_after: The seconds that the server asks to wait, or None.

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


class ContextOverflow(ModelError):
    """The transcript and the requested output do not fit the model's context window.

    Attributes:
        window: The window in tokens, if the server names it; that of the input alone where the
            server limits it apart.
    """

    code = "context_overflow"
    window: int | None = None


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
    """No connection to the server can be made, before any request was sent. `shared_cause` names
    its address."""

    shared_cause = ""

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


_ERRORS: tuple[type[ModelError], ...] = (
    ContextOverflow,
    Refused,
    Truncated,
    BadRequest,
    AuthenticationFailed,
    UnknownModel,
    Unreachable,
    OutOfQuota,
    OutOfMoney,
    LedgerFailed,
    RateLimited,
    ServerFailed,
    ServerTimeout,
    ServerGone,
    BadReply,
)
ERRORS: Mapping[str, type[ModelError]] = {kind.code: kind for kind in _ERRORS}
"""The errors by their codes."""


# What a server's reply says. Codes come first, because they are stable; words are for the servers
# that have none. `tests/data/error_replies.yaml` holds replies of each, and look-alikes.


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_OVERFLOW_CODES = _words(
    r"context_(length|window)_exceeded|exceed_context_size|request_too_large",
    r"tokens?_(limit_reached|limit_exceeded|quantity_exceeded)|prompt_tokens_exceeded",
)
_OVERFLOW = _words(
    # The window by its name: "maximum context length", "context window of", "model token limit".
    r"(max(imum)?|model'?s|available|configured|loaded) (context|prompt|model|sequence) "
    r"(length|size|window)",
    r"context.?(window|length|size|limit)\W.{0,60}(exceed|overflow|not enough|is only)",
    r"(exceed(s|ed)?|over|greater than|longer than)( the| this| max| model)* context",
    r"when context the overflows|\bn_keep\b|ContextWindowExceeded",
    # The prompt is longer than something.
    r"(prompt|inputs?|request|messages|(prompt|input|requested) (tokens?|length)|body)"
    r"( is| are)? too (long|large)",
    r"(prompt|inputs?|messages?|token count|requests?|requested tokens)\b.{0,60}"
    r"(exceed|(long|great|larg)er than|more than).{0,60}(context|token|length|limit|window)",
    r"prompt exceeds|too large for model with|max tokens of \d+ exceeded|token limit exceeded",
    r"too many (input )?tokens(?!: max tokens)|input token count is|exceed max message tokens",
    r"sequence length is longer than|`inputs` (tokens \+|must have)|range of input length",
    r"reduce the length of the (input )?(messages|prompt)|expected maxLength: \d+, actual",
    r"(prompt|tokens?|输入|上下文).{0,12}(超长|超过|超出)",  # is too long; exceeds
    # An older vLLM, if the prompt alone exceeds the window and the request has no maximum.
    r"max_tokens must be at least 1, got -",
)
# A limit on the characters of one field, by the field.
_TOO_LONG = "string_above_max_length"
_OF_TRANSCRIPT = re.compile(r"(messages|input)(\[\d+\])?(\.(content|output)\b.*)?")
_WINDOW = _words(
    r"> (?P<a>\d+)( maximum|, decrease)",
    r"(context|prompt|model|sequence|input|maximum allowed) (length|window|size)"
    r"( is| of| only| limit|:)* \(?(?P<b>\d+)(?!\d|( tokens)?\)? exceeds)",
    r"n_ctx[:( ]+(?P<c>\d+)|too large for model with (?P<d>\d+)|must be <= (?P<e>\d+)",
    r"(tokens allowed|length should be|supports up to|must have less than) ?[(\[]?(1, )?(?P<f>\d+)",
    r"(max input tokens|max size|token limit): (?P<g>\d+)|total tokens limit (?P<h>\d+)",
    r"limit (for this model is|of|is) (?P<i>\d+)",
)
_LEAST_WINDOW = 256  # tokens; a smaller number is something else
_QUOTA = _words(
    r"insufficient_quota|insufficient[_ ]balance|exceeded your current quota|billing_error",
    r"billing_hard_limit|credit balance|payment required|arrearage|used all available credits",
)
_LIMITED_CODES = _words(r"rate_limit|throttl|too_many_requests")
_LIMITED = _words(
    r"\bper[ _](sec(ond)?|min(ute)?|hour|day)\b|_per_minute|allocated quota|please wait before",
)
_REFUSAL_CODES = _words(
    r"content_(filter|policy)|ResponsibleAIPolicy|data_?inspection_?failed|\brefusal\b|\b1301\b",
)
_REFUSAL = _words(
    r"content (management|filtering) policy|safety system|content exists risk",
    r"inappropriate content|sensitive content|new_sensitive|violates usage guidelines",
    r"(input|prompt|request|content|output) (was|is|has been) flagged|SAFETY_CHECK",
)
_NO_MODEL_CODES = _words(r"model_not_found|invalid_model")
_NO_MODEL = _words(
    r"model((?!tool|function|file|field|param).){0,80} (does not|doesn't|not) exist",
    r"not a valid model id|model identifier is invalid|no endpoints found for",
    r"(unknown|invalid) model(?! ?(param|output|setting))\b",
    # LM Studio answers with status 200 on every path.
    r"unexpected endpoint",
)

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


class ErrorReply(NamedTuple):
    """What a server says of an error.

    Attributes:
        codes: Its types, codes and states, separated by spaces.
        sentence: Its words.
        parameter: The field of the request that it names.
        status: The status that the body names, or None.
        flagged: Whether a moderation quotes what it refuses.
        window: The context window that a field names, or None.
        wait: The seconds to wait that a field names, or None.
    """

    codes: str = ""
    sentence: str = ""
    parameter: str = ""
    status: int | None = None
    flagged: bool = False
    window: int | None = None
    wait: float | None = None


_CODES = ("type", "code", "status", "error_type", "reason", "error_code", "status_code", "__type")
_SENTENCES = ("message", "msg", "status_msg", "detail", "error", "raw")
# The fields in which an error lies. Others may repeat the request, whose text says anything.
_INSIDE = ("", "error", "errors", "message", "detail", "details", "innererror", "metadata", "raw")
_DEEPEST = 6


def read_error(body: Any) -> ErrorReply:
    """What an error's body says: an object, a list of objects (Gemini), text, or JSON as text
    inside any of them (gateways)."""
    fields = list(_fields(body))
    codes = [value for key, value in fields if key in _CODES and value not in (None, "error")]
    sentences = [v for key, v in fields if key in _SENTENCES and isinstance(v, str)]
    named = dict(reversed(fields))
    return ErrorReply(
        codes=" ".join(map(str, codes)),
        sentence="; ".join(dict.fromkeys(sentences)),
        parameter=str(named.get("param") or ""),
        status=next((int(c) for c in map(str, codes) if re.fullmatch(r"[45]\d\d", c)), None),
        flagged="flagged_input" in named,
        window=_whole_number(named.get("n_ctx")),
        wait=_duration(str(named.get("retrydelay") or "")) or _number(named.get("retry_after")),
    )


def _fields(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = try_json(value, value)
    if isinstance(value, (Mapping, list)):
        if depth > _DEEPEST or not (key in _INSIDE or key == "base_resp"):
            yield key, None
            return
        inner = value.items() if isinstance(value, Mapping) else ((key, each) for each in value)
        for name, each in inner:
            yield from _fields(each, str(name).lower(), depth + 1)
    else:
        # The whole body may be text.
        yield key or "message", value


def error_of_reply(
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
    reply = read_error(body)
    wait = retry_after(headers, now)
    if wait is None:
        wait = _wait_in_words(reply.sentence) if reply.wait is None else reply.wait
    quoted = f"HTTP {status}" + (f", {hide(reply.sentence)}" if reply.sentence else "")
    error = _class_of(status, reply, waits=wait is not None)(f"{where}: {quoted}", retry_after=wait)
    if isinstance(error, ContextOverflow):
        error.window = reply.window or _window_in_words(reply.sentence)
    return error


def _class_of(status: int, reply: ErrorReply, *, waits: bool) -> type[ModelError]:
    # OpenRouter and others report an error that comes late with status 200 and a status inside.
    status = reply.status or 200 if status < 400 else status
    text = f"{reply.codes} {reply.sentence}"
    refused = status in (200, 400, 403, 422)
    limited = status == 429 or _LIMITED_CODES.search(reply.codes)
    if 400 <= status < 500:
        # A quota of a minute calls itself a quota too.
        if (limited or _QUOTA.search(text)) and (waits or _LIMITED.search(text)):
            return RateLimited
        if _QUOTA.search(text):
            return OutOfQuota
        if limited:
            return RateLimited
    if status in (200, 400, 413, 422, 500) and _is_overflow(reply):
        return ContextOverflow
    if refused and _is_refusal(reply):
        return Refused
    if refused and (_NO_MODEL_CODES.search(reply.codes) or _NO_MODEL.search(reply.sentence)):
        return UnknownModel
    if status == 200:
        kinds = (_BY_TYPE[code] for code in reply.codes.split() if code in _BY_TYPE)
        return next(kinds, ServerFailed)
    return _BY_STATUS.get(status, BadRequest if status < 500 else ServerFailed)


def _is_overflow(reply: ErrorReply) -> bool:
    if _OVERFLOW_CODES.search(reply.codes):
        return True
    if _TOO_LONG in reply.codes:
        return _OF_TRANSCRIPT.fullmatch(reply.parameter) is not None
    return _OVERFLOW.search(reply.sentence) is not None


def _is_refusal(reply: ErrorReply) -> bool:
    # Bedrock reports a request out of its schema under this code.
    prompt = "invalid_prompt" in reply.codes and "validation error" not in reply.sentence
    known = _REFUSAL_CODES.search(reply.codes) or _REFUSAL.search(reply.sentence)
    return reply.flagged or prompt or known is not None


def _window_in_words(sentence: str) -> int | None:
    # 256,000 is one number.
    found = _WINDOW.search(re.sub(r"(?<=\d),(?=\d{3})", "", sentence))
    values = found.groupdict().values() if found else ()
    return next((_whole_number(value) for value in values if value), None)


def _whole_number(value: Any) -> int | None:
    tokens = int(value) if str(value).isdecimal() else 0
    return tokens if tokens >= _LEAST_WINDOW else None


_WAIT = re.compile(r"(?:try again|retry)(?: after| in)? (\d[\d.]*\s?[hms][\w.]*)", re.IGNORECASE)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def _wait_in_words(sentence: str) -> float | None:
    found = _WAIT.search(sentence)
    return _duration(found[1]) if found else None


def _duration(text: str) -> float | None:
    """The seconds of `45s`, `1m30.5s`, `120ms` or `30 seconds`; None if it is not such a text."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s?(ms|[hms])", text.lower())
    return sum(float(count) * _SECONDS[unit] for count, unit in parts) if parts else None


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
    except (ValueError, OverflowError):
        return None


def _number(text: Any) -> float | None:
    try:
        value = float(text or "")
    except (ValueError, TypeError):
        return None
    return value if 0 <= value < float("inf") else None
