"""RankLLaMA (Ma et al., "Fine-Tuning LLaMA for Multi-Stage Text Retrieval", SIGIR 2024): a Llama
with one output, read at the last token of query and document.

The published checkpoints were trained without `</s>` after the document, although the paper's
formula has it, and each part has its own `<s>`: `<s> query: ... <s> document: title text`. Both are
arguments, because later checkpoints and the text-ranking study differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from soundingline.pipelines.checkpoint import Checkpoint, CheckpointKind
from soundingline.pipelines.device import moved, padded
from soundingline.pipelines.rerank.reranker import NeuralScorer, Pair
from soundingline.pipelines.stage import shared
from soundingline.pipelines.windows import split_into_windows
from soundingline.toolkit.errors import InputError, Runtime
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor

PASSAGE = "castorini/rankllama-v1-7b-lora-passage"
LAYOUTS = ("pair", "joined")
_KIND = CheckpointKind(
    "AutoModelForSequenceClassification",
    # The base of an adapter has no such output.
    lambda checkpoint: (
        checkpoint.model_type == "llama"
        and (checkpoint.adapted or checkpoint.config.num_labels == 1)
    ),
    "has no output that was trained to score pairs",
    "a RankLLaMA, of the kind llama with one label: an adapter such as "
    f"{PASSAGE}, or one merged into its base",
    unused=(),
)
# No token of the vocabulary is longer, runs of spaces left aside.
_CHARACTERS = 16


class RankLlamaInput(NamedTuple):
    """Token ids of one pair, at most `max_length`, and whether document and query were cut."""

    ids: list[int]
    truncated: bool
    queries_truncated: bool


@dataclass(frozen=True)
class RankLlamaPrompts:
    """Joins a query and a document into at most `max_length` tokens; the document gives way, and
    the query only where it would take more than half.

    `layout`: `pair`, `<s>` + query and `<s>` + document, as the published checkpoints were trained
    and as their model cards have it; `joined`, one text after one `<s>`, as Tevatron has it since
    and with it the text-ranking study. `end_of_sequence` puts the tokenizer's after the document,
    for checkpoints that were trained so; it is never cut.
    """

    tokenizer: Any
    max_length: int = 512
    layout: str = "pair"
    end_of_sequence: bool = False
    query_prefix: str = "query: "
    document_prefix: str = "document: "

    def __post_init__(self) -> None:
        if None in self.end:
            raise InputError(
                "end_of_sequence is true, and the tokenizer has no such token",
                do="set end_of_sequence=false",
            )

    @property
    def end(self) -> list[int]:
        """The tokens after the document."""
        return [self.tokenizer.eos_token_id] if self.end_of_sequence else []

    def encode(self, pairs: Sequence[Pair]) -> list[RankLlamaInput]:
        """The tokens of each pair."""
        if not pairs:
            return []
        queries = self._shortened([pair.query for pair in pairs])
        texts = [" ".join(pair.text.split()) for pair in pairs]
        # A text that is too long in any case is cut before it is tokenized.
        fronts = [text[: _CHARACTERS * self.max_length] for text in texts]
        tokens = self._ids([queries[pair.query][0] for pair in pairs], fronts)
        room = self.max_length - len(self.end)
        inputs = []
        for pair, text, part, ids in zip(pairs, texts, fronts, tokens, strict=True):
            truncated = len(part) < len(text) or len(ids) > room
            inputs.append(RankLlamaInput(ids[:room] + self.end, truncated, queries[pair.query][1]))
        return inputs

    def windows(self, pair: Pair) -> list[str]:
        """The document in parts that each fit, cut between words if possible; at least one, which
        is empty for an empty text. A query that is too long is cut beside each of them."""
        query, _ = self._shortened([pair.query])[pair.query]

        def sizes(texts: Sequence[str]) -> list[int]:
            return list(map(len, self._ids([query] * len(texts), texts)))

        (around,) = sizes([""])
        room = max(1, self.max_length - len(self.end) - around)
        parts = split_into_windows(
            " ".join(pair.text.split()),
            room,
            partial(self.tokenizer, split_special_tokens=True),
            lambda texts: [size - around for size in sizes([text.strip() for text in texts])],
        )
        return [part.strip() for part in parts]

    def _shortened(self, queries: Sequence[str]) -> dict[str, tuple[str, bool]]:
        """Each query as far as half of the room reaches, and whether that is less than all."""
        prefix, limit = self.query_prefix, self.max_length // 2
        plain = {query: " ".join(query.split()) for query in queries}
        coded = self._tokenized([f"{prefix}{query}" for query in plain.values()])
        shortened = {}
        for (query, text), offsets in zip(plain.items(), coded["offset_mapping"], strict=True):
            cut = len(offsets) > limit
            end = max(0, offsets[limit - 1][1] - len(prefix)) if cut else len(text)
            shortened[query] = text[:end], cut
        return shortened

    def _ids(self, queries: Sequence[str], texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each query with its text, by one call of the tokenizer."""
        joints = [
            (f"{self.query_prefix}{query}", f"{self.document_prefix}{text}")
            for query, text in zip(queries, texts, strict=True)
        ]
        parts = [(" ".join(both),) for both in joints] if self.layout == "joined" else joints
        different = list({part: None for each in parts for part in each})
        coded = self._tokenized(different)["input_ids"]
        tokens = dict(zip(different, coded, strict=True))
        begin = self.tokenizer.bos_token_id
        begins = [] if begin is None else [begin]
        return [[token for part in each for token in (*begins, *tokens[part])] for each in parts]

    def _tokenized(self, texts: Sequence[str]) -> Any:
        # A passage that has `</s>` in its text ends nothing.
        return self.tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class RankLLaMA(NeuralScorer):
    """Scores by RankLLaMA (Ma et al., SIGIR 2024): a score is the raw output of the model.

    A document that is too long is cut, and a query only if it would take more than half of
    `max_length`. White space becomes single spaces, as in the texts of the training data.

    Args:
        model: A LoRA adapter, which is merged into `base` when it is loaded, or a checkpoint that
            holds the merged weights.
        base: The checkpoint of the adapter. The default is the one that the adapter names.
        layout: `pair` or `joined`; see `RankLlamaPrompts`.
        end_of_sequence: Whether the tokenizer's end token follows the document, for checkpoints
            that were trained so.
        query_prefix, document_prefix: What is put in front of query and document.

    Columns, `InputError`s and other arguments are those of `NeuralScorer` and `Scorer`. The
    `counts` add pairs with the document `truncated`, or the query (`queries_truncated`).

    Example:
        >>> pipe = index.bm25() >> RerankTop(RankLLaMA(), depth=50, texts=index.texts) >> MaxP()
        >>> pipe.search("old river")  # doctest: +SKIP
    """

    model: str = field(default=PASSAGE, kw_only=False)
    base: str | None = None
    batch_tokens: Runtime[int | None] = 16_384
    layout: str = "pair"
    end_of_sequence: bool = False
    query_prefix: str = "query: "
    document_prefix: str = "document: "

    counted = ("truncated", "queries_truncated")
    least_length = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout not in LAYOUTS:
            raise InputError(f"layout is {self.layout!r}", valid=", ".join(LAYOUTS))

    @property
    @shared
    def fingerprint(self) -> str:
        settings = (self._inputs.max_length, self.layout, self.end_of_sequence)
        prefixes = (self.query_prefix, self.document_prefix)
        dtype = str(self.placement.dtype)
        # 2: windows are cut as those of the other models.
        return fingerprint(
            "rankllama", 2, self._checkpoint.fingerprint, dtype, *settings, *prefixes
        )

    @property
    @shared
    def _checkpoint(self) -> Checkpoint:
        checkpoint = Checkpoint(_KIND, self.model, self.revision, self.base, num_labels=1)
        return checkpoint.checked(max_length=self.max_length)

    @property
    @shared
    def _inputs(self) -> RankLlamaPrompts:
        layout = self.layout, self.end_of_sequence, self.query_prefix, self.document_prefix
        return RankLlamaPrompts(self._tokenizer, self._limit, *layout)

    @property
    @shared
    def _network(self) -> Any:
        return self._checkpoint.load(self.placement)

    def _logits(self, network: Any, inputs: Sequence[RankLlamaInput]) -> Tensor:
        torch, device = import_optional("torch"), self.placement.device
        # Attention looks back only: padding after a pair changes nothing before it, and needs no
        # mask.
        ids = padded([each.ids for each in inputs], 0, device)["input_ids"]
        hidden = network.model(ids, use_cache=False).last_hidden_state
        ends = moved(torch.tensor([len(each.ids) - 1 for each in inputs]), device)
        last = hidden[torch.arange(len(inputs), device=device), ends]
        scores: Tensor = last.float() @ network.score.weight[0].float()
        return scores
