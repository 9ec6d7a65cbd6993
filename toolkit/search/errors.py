"""What was wrong with a tool call, for the model that made it."""

from __future__ import annotations

from toolkit.contracts import Refusal


class ToolError(Exception):
    """A refused call. `str()` is the text for the model: what was wrong, what to do next.

    `code` is one of the codes of `docs/search-tool.md`; `tool` and `field` name where it went wrong
    and are empty where no single tool or argument did.
    """

    def __init__(self, code: str, message: str, *, tool: str = "", field: str = "") -> None:
        self.code, self.tool, self.field = code, tool, field
        where = "".join(
            f" {key}={value}" for key, value in (("tool", tool), ("field", field)) if value
        )
        super().__init__(f"[error code={code}{where}] {message}")

    @property
    def details(self) -> Refusal:
        return Refusal(self.code, self.tool, self.field)


def quoted(value: object, limit: int = 80) -> str:
    """`value` as an error may repeat it: on one line, unprintable characters escaped, and short."""
    if isinstance(value, str):
        cut = value if len(value) <= limit else value[:limit] + "…"
        return repr(cut)
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if abs(value) < 10**18 else "a huge number"
    return f"a value of type {type(value).__name__}"
