"""What the harness asks of a model that keeps to no protocol: a search first, and the format."""

from __future__ import annotations

from soundingline.agents.base import Episode
from soundingline.agents.prompt import AgentPrompt
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.messages import user
from soundingline.toolkit.search.answers import follows_format
from soundingline.toolkit.search.tool import call_text
from soundingline.toolkit.trajectory import NO_FORMAT

# Requests of a question that force a search: a model that calls none is heard all the same.
_MOST_FORCED = 3


class Demands:
    """The demands on one question, each made once, in the words of `prompt`.

    `remind`: an answer without a line `Exact Answer` is accepted only after a reminder of the
    format. `first_call`: `search` where the first call has to be a search; None for no demand.
    """

    def __init__(
        self, episode: Episode, prompt: AgentPrompt, *, remind: bool, first_call: str | None
    ) -> None:
        self.draft = ""  # The answer without the format of which the model has been reminded.
        self._episode = episode
        self._prompt = prompt
        self.reminds = self._reminder_left = remind
        self._specs = episode.tool.specs() if first_call else []
        search = episode.tool.search_tool if self._specs else None
        self._search, self._query_argument = search or ("", "")
        self._search_demand_left = bool(self._search)
        self._forced = 0

    def forced_call(self) -> str:
        """The tool that the next request has to force while tools are open; empty where the model
        is free."""
        if not self._search_missing or self._forced == _MOST_FORCED:
            return ""
        self._forced += 1
        return self._search

    def search_first(self) -> bool:
        """Say that a search comes first, where the model answers before it called one. Whether it
        was said. Some servers force no call, so that words are needed as well."""
        if not self._search_demand_left or not self._search_missing:
            return False
        self._search_demand_left = False
        words = self._prompt.words("first_call")
        words = words.replace("{call}", self._search_call())
        self._say("first_call", words.replace("{argument}", self._query_argument))
        return True

    def remind(self, text: str, *, closed: bool) -> bool:
        """Say what an answer looks like, where `text` is none by its format; it is the `draft`
        then. `closed`: no tool can be called any more. Whether it was said."""
        if not self._reminder_left or self._keeps_format(text):
            return False
        self._reminder_left, self.draft = False, text
        self._say("reminder", self._prompt.words("reminder_closed" if closed else "reminder"))
        return True

    def mark(self, text: str) -> None:
        """Mark the last message where it is an answer `text` that names none even now, so that such
        answers can be counted."""
        if self.reminds and text and not self._keeps_format(text):
            self._episode.messages[-1][NO_FORMAT] = True

    def settle_for_draft(self) -> str:
        """The draft, once more as the last message: the reminder has brought nothing better. Empty
        where there is none."""
        if not self.draft:
            return ""
        self._episode.messages.append({"role": "assistant", "content": self.draft})
        self._episode.warnings.append(
            "the reply to the reminder of the answer format was of no use; the last message "
            "repeats the answer before it"
        )
        return self.draft

    def _keeps_format(self, text: str) -> bool:
        listed = self._prompt.asks_for_list
        return follows_format(text, self._prompt.placeholders, listed=listed)

    @property
    def _search_missing(self) -> bool:
        return bool(self._search) and all(
            call.name != self._search for call in self._episode.tool.calls
        )

    def _search_call(self) -> str:
        """`search(reason="...", query="...")`: the search with the arguments that it needs."""
        functions = [spec.get("function", spec) for spec in self._specs]
        function = next(spec for spec in functions if spec["name"] == self._search)
        properties = function["parameters"]["properties"]
        needed = [name for name, schema in properties.items() if "null" not in schema["type"]]
        return call_text(self._search, **dict.fromkeys(needed, "..."))

    def _say(self, section: str, words: str) -> None:
        # Marked, so that demands can be counted.
        self._episode.messages.append({**user(words), "demand": section})


def check_first_call(first_call: str | None) -> None:
    """`InputError` for a first call that cannot be demanded."""
    if first_call not in (None, "search"):
        raise InputError(
            f"agent.first_call is {first_call!r}", valid="search, or null for no demand"
        )
