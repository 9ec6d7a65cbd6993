"""How a request to a language model can end badly, one class for each thing a caller would do.

`code` is stable and goes into records. `retryable` says that the same request may succeed later;
`stops_run` that every other request would end the same way, so that a run should stop instead of
failing question after question. Messages are one line and never hold a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from toolkit.llm.protocol import Turn

_LONGEST = 400


class ModelError(Exception):
    """A request without a usable reply. `turn` is what came of it where something did, with the
    usage that was paid for; `retry_after` is the server's own wish in seconds, where it told one;
    `attempts` counts the requests that were sent, which waited `queued` seconds for a place in
    flight."""

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
        self.queued = 0.0


class ContextOverflow(ModelError):
    """The transcript and the asked-for output do not fit the model's context window."""

    code = "context_overflow"


class Refused(ModelError):
    """The model or a content filter declined to answer."""

    code = "refused"


class Truncated(ModelError):
    """The output limit was reached before the reply was whole; `turn` has what there is."""

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


class OutOfQuota(ModelError):
    """The provider's account has no money or quota left; waiting does not help."""

    code = "out_of_quota"
    stops_run = True


class OutOfMoney(ModelError):
    """Our own cap would be passed by the next request. `scope` is `run` or `question`."""

    code = "out_of_money"

    def __init__(self, what: str, *, scope: str = "run") -> None:
        super().__init__(what)
        self.scope = scope


class LedgerFailed(ModelError):
    """A request could not be written to the run's ledger, so that no cap could be kept."""

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
    """No whole reply within the time for one request."""

    code = "server_timeout"
    retryable = True


class ServerGone(ModelError):
    """No connection, or one that ended before the reply was whole."""

    code = "server_gone"
    retryable = True


class BadReply(ModelError):
    """The server's reply does not follow its own protocol."""

    code = "bad_reply"
    retryable = True
