"""Cross-encoders: transformers' sequence classifiers over a query and a text (Nogueira and Cho,
"Passage Re-ranking with BERT", 2019), such as sentence-transformers' MS MARCO models and BGE's
re-rankers, or a student trained on a teacher's judgements.

A score is the classifier's logit. sentence-transformers' `CrossEncoder` returns its sigmoid for
most checkpoints with one label, which is the same order."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from soundingline.pipelines.checkpoint import Checkpoint, CheckpointKind
from soundingline.pipelines.device import in_float32, pack_linear_layers, padded
from soundingline.pipelines.rerank.reranker import NeuralScorer, Pair
from soundingline.pipelines.stage import shared
from soundingline.pipelines.windows import least_window, split_into_windows
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint

if TYPE_CHECKING:
    from torch import Tensor

MODEL = "cross-encoder/ms-marco-MiniLM-L6-v2"
CLASSIFIER = CheckpointKind(
    "AutoModelForSequenceClassification",
    lambda checkpoint: (
        (checkpoint.adapted or is_classifier(checkpoint)) and checkpoint.config.num_labels in (1, 2)
    ),
    "has no output that was trained to score pairs",
    "a sequence classifier with one label (a score) or two (irrelevant, relevant), such as "
    f"{MODEL}",
    "choose a cross-encoder, or train one as docs/examples/train_reranker.py does",
    unused=(),
)


def is_classifier(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint may have a classifier; one that does not name its class may."""
    named = checkpoint.architectures
    return not named or any("ForSequenceClassification" in name for name in named)


class CrossEncoderInput(NamedTuple):
    """The lists of a pair by the names of the network's arguments, such as `input_ids`, and whether
    it was cut."""

    row: Mapping[str, list[int]]
    truncated: bool

    @property
    def ids(self) -> list[int]:
        return self.row["input_ids"]


class CrossEncoderInputs:
    """Joins pairs into at most `max_length` tokens; the longer side is cut first. Names of special
    tokens (`[SEP]`) are read as text. Thread-safe. `InputError` for a tokenizer (of the checkpoint
    `model`) without a fast version or a token for padding.
    """

    def __init__(self, tokenizer: Any, model: str, max_length: int) -> None:
        name = f"the tokenizer of '{model}' ({type(tokenizer).__name__})"
        if not tokenizer.is_fast:
            do = "choose a checkpoint with one"
            raise InputError(f"{name} has no tokenizer.json", do=do)
        if tokenizer.pad_token_id is None:
            do = "choose another, or name it in its tokenizer_config.json (pad_token)"
            raise InputError(f"{name} has no token to pad with", do=do)
        self.pad: int = tokenizer.pad_token_id
        self._tokenizer, self.max_length = tokenizer, max_length
        # The library's tokenizers are set up for each call, which threads must not share.
        self._tokenizing = threading.Lock()

    def encode(self, pairs: Sequence[Pair]) -> list[CrossEncoderInput]:
        """What is read of each pair."""
        if not pairs:
            return []
        sides = map(list, zip(*pairs, strict=True))
        coded = self._coded(*sides, truncation="longest_first", max_length=self.max_length)
        return [
            CrossEncoderInput(
                {name: values[number] for name, values in coded.items()}, bool(pair.overflowing)
            )
            for number, pair in enumerate(coded.encodings)
        ]

    def windows(self, pair: Pair) -> list[str]:
        """The document in parts that each fit and do not overlap, cut between words if possible.
        The whole document if it fits, or if the query leaves less than an eighth of the length."""
        query, text = pair
        # The query, and the special tokens of a pair.
        (around,) = self._sizes(query, [""])
        room = self.max_length - around
        if room < least_window(self.max_length):
            return [pair.text]
        return split_into_windows(
            text,
            room,
            self._coded,
            lambda pieces: [size - around for size in self._sizes(query, pieces)],
        )

    def _sizes(self, query: str, texts: Sequence[str]) -> list[int]:
        coded = self._coded([query] * len(texts), list(texts))
        return list(map(len, coded["input_ids"]))

    def _coded(self, *texts: Any, **settings: Any) -> Any:
        with self._tokenizing:
            return self._tokenizer(*texts, split_special_tokens=True, verbose=False, **settings)


@dataclass(kw_only=True, eq=False, repr=False)
class CrossEncoder(NeuralScorer):
    """Scores by a cross-encoder (Nogueira and Cho, 2019).

    A score is the output of a classifier with one label; with two labels, that of the second less
    that of the first. If a pair is too long, its longer side is cut first. Names of special tokens
    in a query or a text (`[SEP]`) are read as text.

    Columns, `InputError`s and arguments are those of `NeuralScorer` and `Scorer`; `max_length`
    is at least 8. The `counts` add `truncated` pairs.

    Example:
        >>> pipe = index.bm25() >> RerankTop(CrossEncoder(), depth=50, texts=index.texts) >> MaxP()
        >>> pipe.search("old river")  # doctest: +SKIP
    """

    model: str = field(default=MODEL, kw_only=False)

    counted = ("truncated",)
    least_length = 8

    @property
    @shared
    def fingerprint(self) -> str:
        limit = self._inputs.max_length
        parts = (self._checkpoint.fingerprint, self.placement.precision, limit)
        # 2: names of special tokens are read as text.
        return fingerprint("cross_encoder", 2, *parts)

    def _logits(self, network: Any, inputs: Sequence[CrossEncoderInput]) -> Tensor:
        device = self.placement.device
        batch = padded([each.ids for each in inputs], self._inputs.pad, device)
        accepted = {*inputs[0].row} & {*inspect.signature(network.forward).parameters}
        if "token_type_ids" in accepted and getattr(network.config, "type_vocab_size", 2) > 1:
            types = [each.row["token_type_ids"] for each in inputs]
            batch["token_type_ids"] = padded(types, 0, device)["input_ids"]
        logits = network(**batch).logits
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]

    @property
    @shared
    def _checkpoint(self) -> Checkpoint:
        checkpoint = Checkpoint(CLASSIFIER, self.model, self.revision)
        return checkpoint.checked(max_length=self.max_length)

    @property
    @shared
    def _inputs(self) -> CrossEncoderInputs:
        return CrossEncoderInputs(self._tokenizer, self.model, self._limit)

    @property
    @shared
    def _network(self) -> Any:
        network = self._checkpoint.load(self.placement)
        # A model that looks for the last token of a text finds padding by its number.
        network.config.pad_token_id = self._inputs.pad
        for module in network.children():
            if module is not network.base_model:
                in_float32(module)
        if pooler := getattr(network.base_model, "pooler", None):
            in_float32(pooler)
        pack_linear_layers(network.base_model)
        return network
