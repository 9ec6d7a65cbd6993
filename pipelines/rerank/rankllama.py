"""RankLLaMA (Ma et al., "Fine-Tuning LLaMA for Multi-Stage Text Retrieval", SIGIR 2024): a Llama
with one output, read at the last token of query and document.

The published checkpoints were trained without `</s>` behind the document, although the paper's
formula has it, and each part has its own `<s>`: `<s> query: ... <s> document: title text`. Both are
arguments, because later checkpoints and the text-ranking study differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from soundingline.pipelines.counts import shared_property
from soundingline.pipelines.models import (
    Checkpoint,
    check_kind,
    check_length,
    in_batches,
    own_length,
    taken_off,
    within_memory,
)
from soundingline.pipelines.rerank.reranker import NeuralReranker, Pair
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

LAYOUTS = ("pair", "joined")
_SHORTEST = 32
# No token of the vocabulary is longer, runs of spaces left aside.
_CHARACTERS = 16


def check_layout(layout: str, max_length: int | None) -> None:
    """`InputError` for a layout that there is not, or one that no pair fits."""
    if layout not in LAYOUTS:
        raise InputError(f"layout is {layout!r}", valid=", ".join(LAYOUTS))
    if max_length is not None:
        check_int("max_length", max_length, ge=_SHORTEST)


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


if TYPE_CHECKING:
    import torch

PASSAGE = "castorini/rankllama-v1-7b-lora-passage"


class RankLlamaCheckpoint(Checkpoint):
    """The weights: an adapter and its base, or one whole model. Arguments as of `Checkpoint`.

    Making one reads configurations only. `InputError` where one cannot be had, or is no model that
    scores pairs.
    """

    def __init__(self, model: str, base: str | None, revision: str | None) -> None:
        kind = "AutoModelForSequenceClassification"
        super().__init__(model, base, revision, automatic=kind, num_labels=1)
        check_kind(self.config, self.whole, ("llama",), "rankllama")
        if not self.adapted:
            self._check_output(self.config.num_labels == 1)

    def ranker(self, device: torch.device, dtype: torch.dtype) -> Any:
        """The network, ready to score."""
        # The base of an adapter has no such output.
        network, missing = self.load(device, dtype, absent=("score.",))
        self._check_output(bool(network.score.weight.any()) if self.adapted else not missing)
        return network

    def _check_output(self, there: bool) -> None:
        if not there:
            raise InputError(
                f"'{self.model}' has no output that was trained to score pairs",
                valid=f"a RankLLaMA: an adapter such as {PASSAGE}, or one merged into its base, "
                "with one label",
            )


@dataclass(kw_only=True, eq=False, repr=False)
class RankLLaMA(NeuralReranker):
    """Re-ranks by RankLLaMA (Ma et al., SIGIR 2024): a score is the raw output of the model.

    A document that is too long is cut, and a query only if it would take more than half of
    `max_length`. White space becomes single spaces, as in the texts of the training data.

    Args:
        model: A LoRA adapter, which is merged into `base` when it is loaded, or a checkpoint that
            holds the merged weights.
        base: The checkpoint of the adapter. The default is the one that the adapter names.
        batch_tokens: Tokens of a batch, padding included.
        layout: `pair` or `joined`; see `RankLlamaPrompts`.
        end_of_sequence: Whether the tokenizer's end token follows the document, for checkpoints
            that were trained so.
        query_prefix: Stands in front of the query.
        document_prefix: Stands in front of the document.

    Columns, `InputError`s and other arguments are those of `NeuralReranker` and `Reranker`. The
    `counts` add pairs with the document `truncated`, or the query (`queries_truncated`).
    """

    model: str = field(default=PASSAGE, kw_only=False)
    base: str | None = None
    batch_tokens: int | None = 16_384
    layout: str = "pair"
    end_of_sequence: bool = False
    query_prefix: str = "query: "
    document_prefix: str = "document: "

    counted = ("truncated", "queries_truncated")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layout(self.layout, self.max_length)

    @shared_property
    def fingerprint(self) -> str:  # type: ignore[override]
        _ = self._prompts
        settings = (self._limit, self.layout, self.end_of_sequence)
        prefixes = (self.query_prefix, self.document_prefix)
        dtype = str(self.placement.dtype)
        return fingerprint("rankllama", self._checkpoint.fingerprint, dtype, *settings, *prefixes)

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        prompts = [self._prompts.encode(pair) for pair in pairs]
        ids = [prompt.ids for prompt in prompts]
        lengths = list(map(len, ids))
        scores = in_batches(self._batch_scores, ids, lengths, self.placement.batch_tokens)
        self.count.add(
            truncated=sum(prompt.truncated for prompt in prompts),
            queries_truncated=sum(prompt.query_truncated for prompt in prompts),
        )
        return scores

    def windows(self, pair: Pair) -> list[str]:
        """The document in parts that each fit whole, cut between words. A query that is too long is
        cut beside each of them."""
        return self._prompts.windows(pair)

    @shared_property
    def _checkpoint(self) -> RankLlamaCheckpoint:
        checkpoint = RankLlamaCheckpoint(self.model, self.base, self.revision)
        if self.max_length is not None:
            check_length(checkpoint.config, checkpoint.whole, self.max_length)
        return checkpoint

    @shared_property
    def _tokenizer(self) -> Any:
        return self._checkpoint.tokenizer()

    @property
    def _limit(self) -> int:
        told = self._tokenizer.model_max_length
        return self.max_length or own_length(self._checkpoint.config, told)

    @shared_property
    def _prompts(self) -> RankLlamaPrompts:
        return RankLlamaPrompts(
            self._tokenizer,
            max_length=self._limit,
            layout=self.layout,
            end_of_sequence=self.end_of_sequence,
            query_prefix=self.query_prefix,
            document_prefix=self.document_prefix,
        )

    @shared_property
    def _network(self) -> Any:
        return self._checkpoint.ranker(self.placement.device, self.placement.dtype)

    def _batch_scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        torch = import_optional("torch")
        network, device = self._network, self.placement.device
        padded = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
        for number, row in enumerate(rows):
            padded[number, : len(row)] = torch.tensor(row)
        ends = torch.tensor([len(row) - 1 for row in rows])
        with (
            torch.inference_mode(),
            within_memory(device, f"a batch of {padded.numel()} tokens"),
        ):
            # Attention looks back only: padding behind a pair changes nothing before it, and needs
            # no mask.
            hidden = network.model(padded.to(device), use_cache=False).last_hidden_state
            last = hidden[torch.arange(len(rows)), ends.to(device)]
            # In float32, because bfloat16 would round unlike documents to the same score.
            scores: list[float] = (last.float() @ network.score.weight[0].float()).tolist()
        return scores
