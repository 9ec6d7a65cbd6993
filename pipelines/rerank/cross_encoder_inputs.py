"""What a cross-encoder reads of a query and a text: the pair as its tokenizer joins them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pipelines.neural.text_windows import fitting, readable
from pipelines.rerank.base import Pair
from toolkit.errors import InputError
from toolkit.extras import require

if TYPE_CHECKING:
    from torch import Tensor

# A document is cut into windows only where they get this share of `max_length` each.
_LEAST_WINDOW = 8

Row: TypeAlias = Mapping[str, list[int]]
"""The lists of a pair by the names of the network's arguments: `input_ids`, and what else the
tokenizer makes."""


class CrossEncoderInput(NamedTuple):
    """A pair in at most `max_length` tokens, and whether something of it was cut."""

    row: Row
    truncated: bool


class CrossEncoderInputs:
    """Joins pairs into at most `max_length` tokens; the longer side is cut first. Names of special
    tokens (`[SEP]`) are read as text. Thread-safe. `InputError` for a tokenizer that batches cannot
    be read with; `model` is its checkpoint.
    """

    def __init__(self, tokenizer: Any, model: str, max_length: int) -> None:
        if not tokenizer.is_fast:
            raise InputError(
                f"the tokenizer of '{model}' ({type(tokenizer).__name__}) has no tokenizer.json",
                do="choose a checkpoint with one",
            )
        if tokenizer.pad_token_id is None:
            raise InputError(
                f"the tokenizer of '{model}' has no token to pad with",
                do="choose a checkpoint with one, or name it in its tokenizer_config.json "
                "(pad_token)",
            )
        self.pad: int = tokenizer.pad_token_id
        self._tokenizer, self._max_length = tokenizer, max_length
        # The library's tokenizers are set up for each call, which threads must not share.
        self._tokenizing = threading.Lock()

    def encode(self, pairs: Sequence[Pair]) -> list[CrossEncoderInput]:
        """What is read of each pair."""
        if not pairs:
            return []
        queries, texts = zip(*pairs, strict=True)
        longest = {"truncation": "longest_first", "max_length": self._max_length}
        coded = self._coded(list(map(readable, queries)), list(map(readable, texts)), **longest)
        return [
            CrossEncoderInput(
                {name: values[number] for name, values in coded.items()}, bool(pair.overflowing)
            )
            for number, pair in enumerate(coded.encodings)
        ]

    def windows(self, pair: Pair) -> list[str]:
        """The document in pieces that each fit whole, together all of its text, cut between words
        where there is white space. One piece where it fits, or where the query leaves so little
        room that windows would be absurd."""
        query, text = map(readable, pair)
        # The query, and the special tokens of a pair.
        (around,) = self._sizes(query, [""])
        room = self._max_length - around
        if room < max(1, self._max_length // _LEAST_WINDOW):
            return [pair.text]
        return fitting(
            text,
            room,
            self._begins,
            lambda pieces: [size - around for size in self._sizes(query, pieces)],
        )

    def batch(self, rows: Sequence[Row], network: Any) -> Mapping[str, Tensor]:
        """The arguments of `network`, on its device: those that it takes, padded behind."""
        torch = require("torch")
        taken = set(inspect.signature(network.forward).parameters)
        if getattr(network.config, "type_vocab_size", 2) < 2:
            taken.discard("token_type_ids")
        return {
            name: torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(row[name]) for row in rows],
                batch_first=True,
                padding_value=self.pad if name == "input_ids" else 0,
            ).to(network.device)
            for name in rows[0]
            if name in taken
        }

    def _sizes(self, query: str, texts: Sequence[str]) -> list[int]:
        """Tokens of the query with each text, as they are."""
        coded = self._coded([query] * len(texts), list(texts))
        return list(map(len, coded["input_ids"]))

    def _begins(self, text: str) -> list[int]:
        coded = self._coded(text, add_special_tokens=False, return_offsets_mapping=True)
        return [begin for begin, _ in coded["offset_mapping"]]

    def _coded(self, *texts: Any, **settings: Any) -> Any:
        with self._tokenizing:
            return self._tokenizer(*texts, split_special_tokens=True, verbose=False, **settings)
