"""What a client did wrong, in one line."""

from __future__ import annotations


class RequestRefused(Exception):
    """A request that is not served. `status` is HTTP's, `code` a stable word; `str()` is one line
    that says what came and what to do next."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
        self.code = code

    def body(self) -> dict[str, str]:
        """The refusal as a JSON object."""
        return {"error": self.code, "message": str(self)}
