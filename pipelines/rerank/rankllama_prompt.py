"""The token numbers that RankLLaMA reads for a query and a document."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from pipelines.neural.text_windows import taken_off
from pipelines.rerank.base import Pair
from toolkit.checks import check_integer
from toolkit.errors import InputError

LAYOUTS = ("pair", "joined")
_SHORTEST = 32
# No token of the vocabulary is longer, runs of spaces left aside.
_CHARACTERS = 16


def check_layout(layout: str, max_length: int) -> None:
    """`InputError` for a layout that there is not, or one that no pair fits."""
    if layout not in LAYOUTS:
        raise InputError(f"layout is {layout!r}", valid=", ".join(LAYOUTS))
    check_integer("max_length", max_length, least=_SHORTEST)


class RankLlamaInput(NamedTuple):
    """Token numbers of one pair, at most `max_length`."""

    ids: list[int]
    truncated: bool
    query_truncated: bool


class RankLlamaPrompts:
    """Joins a query and a document into at most `max_length` tokens; the document gives way, and
    the query only where it would take more than half.

    `layout`: `pair`, `<s>` + query and `<s>` + document, as the published checkpoints were trained
    and as their model cards have it; `joined`, one text behind one `<s>`, as Tevatron has it since
    and with it the text-ranking study. `end_of_sequence` puts the tokenizer's behind the document,
    for checkpoints that were trained so; it is never cut.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_length: int = 512,
        layout: str = "pair",
        end_of_sequence: bool = False,
        query_prefix: str = "query: ",
        document_prefix: str = "document: ",
    ) -> None:
        check_layout(layout, max_length)
        self._tokenizer = tokenizer
        self._joined = layout == "joined"
        self._prefixes = query_prefix, document_prefix
        self._max_length = max_length
        self._begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        self._end = [tokenizer.eos_token_id] if end_of_sequence else []
        if None in self._end:
            raise InputError(
                "end_of_sequence is true, and the tokenizer has no such token",
                do="set end_of_sequence=false",
            )

    def encode(self, pair: Pair) -> RankLlamaInput:
        """The tokens of `pair`."""
        query, query_truncated = self._short(pair.query)
        text = " ".join(pair.text.split())
        # What can never be kept is not even tokenized.
        head = text[: _CHARACTERS * self._max_length]
        ids = self._ids(query, head)
        room = self._max_length - len(self._end)
        truncated = len(head) < len(text) or len(ids) > room
        return RankLlamaInput(ids[:room] + self._end, truncated, query_truncated)

    def windows(self, pair: Pair) -> list[str]:
        """The document's text in pieces that each fit whole, cut between words where there is
        white space. At least one, which is empty for an empty text."""
        query, _ = self._short(pair.query)
        return taken_off(" ".join(pair.text.split()), partial(self._fitting, query))

    def _fitting(self, query: str, rest: str) -> str:
        """As much of the front of `rest` as fits, one token of it at least."""
        room = self._max_length - len(self._end)
        count = max(1, room - len(self._ids(query, "")))
        head = rest[: _CHARACTERS * count]
        ends = [end for _, end in self._tokenized(head).offset_mapping]
        while True:
            end = ends[count - 1] if count < len(ends) else len(head)
            piece = rest[: _word_end(rest, end)]
            # A text in the prompt can have more tokens than by itself.
            if count == 1 or len(self._ids(query, piece)) <= room:
                return piece
            count = max(1, min(count, len(ends)) * 15 // 16)

    def _short(self, query: str) -> tuple[str, bool]:
        """The query as far as half of the room reaches, and whether that is less than all."""
        query = " ".join(query.split())
        prefix = self._prefixes[0]
        ends = [end for _, end in self._tokenized(f"{prefix}{query}").offset_mapping]
        limit = self._max_length // 2
        if len(ends) <= limit:
            return query, False
        return query[: max(0, ends[limit - 1] - len(prefix))], True

    def _ids(self, query: str, text: str) -> list[int]:
        query_prefix, document_prefix = self._prefixes
        begin = self._begin
        if self._joined:
            return begin + self._tokens(f"{query_prefix}{query} {document_prefix}{text}")
        query_ids = self._tokens(f"{query_prefix}{query}")
        return begin + query_ids + begin + self._tokens(f"{document_prefix}{text}")

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenized(text).input_ids
        return ids

    def _tokenized(self, text: str) -> Any:
        # A passage that has `</s>` in its text ends nothing.
        return self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )


def _word_end(text: str, end: int) -> int:
    """The last end of a word of `text` up to `end`; `end` itself where there is none."""
    if end >= len(text) or text[end] == " ":
        return end
    space = text.rfind(" ", 0, end)
    return space if space > 0 else end
