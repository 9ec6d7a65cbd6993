"""The token ids that monoT5 reads for a query and a document.

`Query: <query> Document: <document> Relevant:` (Nogueira et al., Findings of EMNLP 2020) and the
end of sequence. What is too long is cut in front of ` Relevant:`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pipelines.neural.t5 import T5_TOKENIZER
from pipelines.neural.text_windows import fitting
from pipelines.rerank.base import Pair
from toolkit.errors import InputError

# A document is cut into windows only where they get this share of `max_length` each.
_LEAST_WINDOW = 8
# Characters of a text that are looked at first for each token that can be kept; English has 4 or 5.
_CHARACTERS = 12


class MonoT5Input(NamedTuple):
    """Token ids; whether something of the pair was cut, and whether the query left no room to the
    document."""

    ids: list[int]
    truncated: bool
    no_room: bool


class MonoT5Prompts:
    """Prompts of at most `max_length` tokens. The document gives way; a query that fills the prompt
    by itself is cut at its end, and nothing of the document is read."""

    def __init__(self, tokenizer: Any, max_length: int = 512) -> None:
        self._tokenizer = tokenizer
        self._end = [*self._ids(["Relevant:"])[0], tokenizer.eos_token_id]
        self._room = max_length - len(self._end)
        self._least = max(1, max_length // _LEAST_WINDOW)
        if self._room < self._least:
            raise InputError(
                f"max_length={max_length}",
                valid=f"more than the {len(self._end)} tokens that end every prompt",
                do="set max_length=512",
            )
        self.answers = self._answer("true"), self._answer("false")

    def encode(self, pairs: Sequence[Pair]) -> list[MonoT5Input]:
        """The prompt of each pair."""
        limit = self._room + 1
        fronts = [front(pair.text, limit * _CHARACTERS) for pair in pairs]
        texts = [_joined(pair.query, part) for pair, part in zip(pairs, fronts, strict=True)]
        inputs = self._ids(texts, limit)
        # Rare characters or white space in mass: the front was too short, the text may be not.
        short = [
            number
            for number, pair in enumerate(pairs)
            if len(inputs[number]) < limit and len(fronts[number]) < len(pair.text)
        ]
        again = self._ids([_joined(*pairs[number]) for number in short], limit)
        for number, ids in zip(short, again, strict=True):
            inputs[number] = ids
        return [self._prompt(pair, ids) for pair, ids in zip(pairs, inputs, strict=True)]

    def windows(self, pair: Pair) -> list[str]:
        """The document in pieces that each fit whole, together all of its text, cut between words
        where there is white space. One piece where it fits, or where the query leaves so little
        room that windows would be absurd."""
        room = self._room - self._query_tokens(pair.query)
        if room < self._least:
            return [pair.text]
        return fitting(pair.text, room, self._begins, self._sizes)

    def _begins(self, text: str) -> list[int]:
        coded = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        return [begin for begin, _ in coded["offset_mapping"]]

    def _sizes(self, texts: Sequence[str]) -> list[int]:
        return list(map(len, self._ids(texts)))

    def _prompt(self, pair: Pair, ids: list[int]) -> MonoT5Input:
        truncated = len(ids) > self._room
        no_room = truncated and self._query_tokens(pair.query) >= self._room
        return MonoT5Input(ids[: self._room] + self._end, truncated, no_room)

    def _query_tokens(self, query: str) -> int:
        return len(self._ids([_joined(query, "")])[0])

    def _ids(self, texts: Sequence[str], limit: int | None = None) -> list[list[int]]:
        if not texts:
            return []
        coded = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            truncation=limit is not None,
            max_length=limit,
            verbose=False,
        )
        ids: list[list[int]] = coded["input_ids"]
        return ids

    def _answer(self, word: str) -> int:
        ids = self._ids([word])[0]
        if len(ids) != 1 or ids[0] == self._tokenizer.unk_token_id:
            raise InputError(
                f"the tokenizer has no token of its own for '{word}', which monoT5 answers with",
                valid="T5's tokenizer",
                do=f"set tokenizer={T5_TOKENIZER}",
            )
        return ids[0]


def front(text: str, size: int) -> str:
    """Whole words from the start of `text`, about `size` characters; all of it where there is no
    space to cut at. Words are tokenized apart, so that the tokens of a front begin the text's."""
    space = text.rfind(" ", 0, size) if len(text) > size else -1
    return text[:space] if space >= 0 else text


def _joined(query: str, text: str) -> str:
    return f"Query: {query} Document: {text}"
