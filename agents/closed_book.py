"""The floor of every table: what the model answers from what it knows, without a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from agents.base import play
from agents.chat import ChatAgent
from toolkit.contracts import SearchTool, Topic, Trajectory


class ClosedBookAgent(ChatAgent):
    """A `ChatAgent` that is given no tool, and whose session refuses any call all the same.

    It is shown no document, so that every citation in its answer is invented, and counts in
    `citations_invented`. After three turns with calls it ends as `steered`, reason `no_answer`.
    """

    name = "closed_book"

    def __init__(
        self,
        *,
        prompt: str = "closed_book",
        answer_extra: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(prompt=prompt, answer_extra=answer_extra, **given)

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """See `ChatAgent`."""
        tool.block(self._setup.prompt.sections["blocked"])
        opening = self._setup.prompt.opening(topic.text)
        session = cast(SearchTool, _NoTools(tool))
        return await play(topic, session, self._work, opening=opening, clock=self._clock)


class _NoTools:
    """A session of which the model is told nothing."""

    def __init__(self, session: SearchTool) -> None:
        self._session = session

    def specs(self) -> list[dict[str, Any]]:
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)
