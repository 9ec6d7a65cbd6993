"""The texts that Rank1 is given, without its tokenizer, which is behind HTTP."""

from __future__ import annotations

import math
from typing import NamedTuple

from pipelines.neural.text_windows import taken_off
from pipelines.rerank.base import Pair
from pipelines.rerank.rank1_relevance import CLOSE
from toolkit.errors import InputError
from toolkit.llm.wire import sendable
from toolkit.text import count_tokens, head

# The prompt that the published checkpoints were trained on.
_FRAME = (
    "Determine if the following passage is relevant to the query. "
    "Answer only with 'true' or 'false'.\nQuery: ",
    "\nPassage: ",
    "\n<think>",
)
_SENTENCE_ENDS = ".!?"
_TOKENS_A_WORD = 4 / 3
_BYTES_A_TOKEN = 4
# For `</think>`, the verdict, and what joins the parts.
_RESERVE = 16
_LEAST_ROOM = 128


class Rank1Prompt(NamedTuple):
    text: str
    truncated: bool
    query_truncated: bool


class Rank1Prompts:
    """Prompts whose tokens and `max_tokens` of reasoning fit a `context_window`, as far as
    that can be estimated. The document gives way, and the query where it would take more than
    half."""

    def __init__(self, max_tokens: int, context_window: int) -> None:
        around = sum(map(estimated_tokens, _FRAME)) + _RESERVE
        self._room = context_window - max_tokens - around
        if max_tokens < 1 or self._room < _LEAST_ROOM:
            raise InputError(
                f"max_tokens={max_tokens} of reasoning in a context_window of {context_window}",
                valid=f"1 or more, and {around + _LEAST_ROOM} tokens or more besides",
                do="set context_window to the server's --max-model-len, or fewer max_tokens",
            )

    def prompt(self, pair: Pair, share: float = 1.0) -> Rank1Prompt:
        """The prompt of a pair, with a `share` of what it would have of the document: for servers
        that find more tokens than are estimated."""
        query, room = self._query(pair)
        document = sendable(pair.text)
        text = shortened(document, room)
        if share < 1:
            text = shortened(text, max(1, int(estimated_tokens(text) * share)))
        opening, between, ending = _FRAME
        return Rank1Prompt(
            f"{opening}{query}{between}{text}{ending}",
            len(text) < len(document),
            len(query) < len(sendable(pair.query)),
        )

    def windows(self, pair: Pair) -> list[str]:
        """The document's text in pieces that each fit; one at least."""
        _, room = self._query(pair)
        return taken_off(sendable(pair.text), lambda rest: shortened(rest, room))

    def _query(self, pair: Pair) -> tuple[str, int]:
        """The query and the tokens that it leaves for the document."""
        query = shortened(sendable(pair.query), self._room // 2)
        return query, self._room - estimated_tokens(query)


def forced(prompt: str, reasoning: str) -> str:
    """A prompt that asks for the verdict: what there is of the reasoning, up to its last whole
    sentence, and closed."""
    thoughts = reasoning.partition(CLOSE)[0].strip()
    if not thoughts.endswith(tuple(_SENTENCE_ENDS)):
        # All of it where it has no sentence.
        thoughts = thoughts[: max(map(thoughts.rfind, _SENTENCE_ENDS)) + 1] or thoughts
    return f"{prompt}\n{thoughts}\n{CLOSE}"


def estimated_tokens(text: str) -> int:
    """Tokens of a language model: 4/3 of ours, which holds for English, and not less than a quarter
    of the bytes, which bounds scripts without spaces."""
    return math.ceil(max(count_tokens(text) * _TOKENS_A_WORD, _size(text) / _BYTES_A_TOKEN))


def shortened(text: str, room: int) -> str:
    """A beginning of `text` that is estimated at no more than `room` tokens and ends, where there
    is white space in its second half, between words; nearly the longest."""
    text = head(text, int(room / _TOKENS_A_WORD))
    size = room * _BYTES_A_TOKEN
    if _size(text) <= size:
        return text
    cut = text.encode()[:size].decode(errors="ignore")
    space = max(map(cut.rfind, (" ", "\n")))
    return cut[:space] if space > len(cut) // 2 else cut


def _size(text: str) -> int:
    return len(text.encode())
