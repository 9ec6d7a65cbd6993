"""Cross-encoders: transformers' sequence classifiers over a query and a text (Nogueira and Cho,
"Passage Re-ranking with BERT", 2019), such as sentence-transformers' MS MARCO models and BGE's
re-rankers, or a student trained on a teacher's judgements.

A score is the classifier's logit. sentence-transformers' `CrossEncoder` shows its sigmoid for most
checkpoints with one label, which orders texts alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pipelines.neural.adapters import Checkpoint
from pipelines.neural.batches import in_batches
from pipelines.neural.checkpoints import check_length, within_memory
from pipelines.neural.devices import Placed
from pipelines.neural.token_states import PackedBert, token_states
from pipelines.rerank.base import Pair
from pipelines.rerank.cross_encoder_inputs import CrossEncoderInputs, Row
from pipelines.rerank.stage import Reranker
from pipelines.stage import Texts
from toolkit.checks import check_integer
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import fingerprint

if TYPE_CHECKING:
    from torch import Tensor

MODEL = "cross-encoder/ms-marco-MiniLM-L6-v2"
CLASSIFIER = "AutoModelForSequenceClassification"
# What a device needs to be busy; more makes no more speed.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 16_384}

Logits: TypeAlias = "Callable[[Sequence[Row]], Tensor]"
"""[pairs, labels] in float32."""


class CrossEncoderScorer(Placed):
    """The logit of each pair: the output of a classifier with one label; with two, that of the
    second less that of the first. Thread-safe.

    - `model`, `revision`: a sequence classifier on the hub or in a folder, with weights that were
      trained to classify.
    - `device`, `dtype`: see `choose_device` and `choose_dtype`.
    - `batch_tokens`: tokens of a batch, padding included; None: 2048 on a CPU, 16,384 on a GPU.
    - `max_length`: tokens that hold a pair, of which the longer side is cut first.

    Names of special tokens in a query or a text (`[SEP]`) are read as text. Making one reads
    nothing: configuration and tokenizer are read by `fingerprint`, weights by the first call of
    `score`. `counts`: `truncated` pairs.
    """

    def __init__(
        self,
        model: str = MODEL,
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        max_length: int = 512,
    ) -> None:
        check_integer("max_length", max_length, least=8)
        if batch_tokens is not None:
            check_integer("batch_tokens", batch_tokens)
        super().__init__(device, dtype)
        self.model, self.revision, self.max_length = model, revision, max_length
        self._batch_tokens = batch_tokens
        self._loading = threading.Lock()
        self._logits: Logits | None = None
        self._counts = Counts("truncated")

    def __repr__(self) -> str:
        return f"CrossEncoderScorer({self.model!r})"

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch."""
        return self._batch_tokens or _BATCH_TOKENS[self.device.type]

    @cached_property
    def fingerprint(self) -> str:
        """See `PairScorer`. `InputError` where the model cannot be had, is no such classifier, or
        has a tokenizer that pairs cannot be read with."""
        _ = self._inputs
        parts = (self._checkpoint.fingerprint, self.precision, self.max_length)
        # 2: names of special tokens are read as text.
        return fingerprint("cross_encoder", 2, *parts)

    @property
    def counts(self) -> Mapping[str, int]:
        """See the class."""
        return self._counts()

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """See `PairScorer`. `InputError` where the weights or a batch do not fit in memory."""
        inputs = self._inputs.encode(pairs)
        rows = [one.row for one in inputs]
        self._counts.add(truncated=sum(one.truncated for one in inputs))
        lengths = [len(row["input_ids"]) for row in rows]
        return in_batches(self._score_batch, rows, lengths, self.batch_tokens)

    def split(self, pair: Pair) -> list[Pair]:
        """The document in windows that each fit whole beside the query and do not overlap; together
        they are its text. The pair itself where it fits, or where the query leaves less than an
        eighth of `max_length`."""
        return [Pair(pair.query, text) for text in self._inputs.windows(pair)]

    def close(self) -> None:
        """See `PairScorer`: it holds no connection."""

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        checkpoint = Checkpoint(self.model, None, self.revision, automatic=CLASSIFIER)
        config = checkpoint.config
        if not checkpoint.adapted and not is_classifier(config):
            raise InputError(
                f"'{self.model}' has no output that was trained to score pairs "
                f"({config.architectures[0]})",
                valid=f"a sequence classifier, such as {MODEL}",
                do="choose a cross-encoder, or train one: experiments.train_reranker "
                "--kind cross_encoder --start",
            )
        check_labels(config, self.model)
        check_length(config, self.model, self.max_length)
        return checkpoint

    @cached_property
    def _inputs(self) -> CrossEncoderInputs:
        tokenizer = self._checkpoint.tokenizer()
        return CrossEncoderInputs(tokenizer, self.model, self.max_length)

    def _score_batch(self, rows: Sequence[Row]) -> list[float]:
        tokens = sum(len(row["input_ids"]) for row in rows)
        logits_of = self._loaded()
        with within_memory(self.device, f"a batch of {tokens} tokens"):
            scores: list[float] = margins(logits_of(rows)).tolist()
        return scores

    def _loaded(self) -> Logits:
        with self._loading:
            if self._logits is None:
                network, _ = self._checkpoint.load(self.device, self.dtype)
                self._logits = _logits_of(network, self._inputs, self.device)
            return self._logits


class CrossEncoder(Reranker):
    """Re-ranks the best `depth` rows of each query by a cross-encoder (Nogueira and Cho, 2019).
    Columns and errors as in `Reranker`, of which it takes the arguments too; those of the model,
    and what is refused of a checkpoint, as in `CrossEncoderScorer`. A score is a raw logit."""

    def __init__(
        self,
        model: str = MODEL,
        *,
        revision: str | None = None,
        depth: int = 50,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        max_length: int = 512,
        long_documents: str | None = None,
        max_wait_ms: float = 5.0,
        texts: Texts | None = None,
        cache: Path | str | None = None,
    ) -> None:
        self.model, self.revision = model, revision
        self.device, self.dtype = device, dtype
        self.batch_tokens, self.max_length = batch_tokens, max_length
        super().__init__(
            self._part(CrossEncoderScorer),
            texts=texts,
            depth=depth,
            cache=cache,
            long_documents=long_documents,
            max_wait_ms=max_wait_ms,
        )


def is_classifier(config: Any) -> bool:
    """Whether a checkpoint may have a classifier; one that does not name its class may."""
    named = config.architectures or []
    return not named or any("ForSequenceClassification" in name for name in named)


def check_labels(config: Any, model: str) -> None:
    """`InputError` for a classifier of something else than relevance."""
    if config.num_labels not in (1, 2):
        raise InputError(
            f"'{model}' is a classifier with {config.num_labels} labels",
            valid="one label (a score), or two (irrelevant, relevant)",
        )


def margins(logits: Tensor) -> Tensor:
    """[pairs, labels] -> [pairs]: the logit of being relevant."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def _logits_of(network: Any, inputs: CrossEncoderInputs, device: Any) -> Logits:
    torch = require("torch")
    # What looks for the last token of a text knows padding by its number.
    network.config.pad_token_id = inputs.pad
    head = _HEADS.get(type(network).__name__)
    packed = token_states(network.base_model, inputs.pad, device) if head else None
    if head and isinstance(packed, PackedBert):
        classify, states = head(network), packed

        def by_first_tokens(rows: Sequence[Row]) -> Tensor:
            kinds = [row.get("token_type_ids") or [0] * len(row["input_ids"]) for row in rows]
            with torch.inference_mode():
                return classify(states.first_states([row["input_ids"] for row in rows], kinds))

        return by_first_tokens
    for module in network.children():
        if module is not network.base_model:
            module.float().register_forward_pre_hook(_in_float32)

    def by_library(rows: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = network(**inputs.batch(rows, network)).logits
            return logits

    return by_library


def _in_float32(_: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    is_tensor = require("torch").is_tensor
    return tuple(value.float() if is_tensor(value) else value for value in arguments)


def _bert(network: Any) -> Callable[[Tensor], Tensor]:
    pooler, classifier = network.bert.pooler.float(), network.classifier.float()
    return lambda states: classifier(pooler(states[:, None]))  # type: ignore[no-any-return]


def _distilbert(network: Any) -> Callable[[Tensor], Tensor]:
    inner, classifier = network.pre_classifier.float(), network.classifier.float()
    return lambda states: classifier(inner(states).relu())  # type: ignore[no-any-return]


def _roberta(network: Any) -> Callable[[Tensor], Tensor]:
    classifier = network.classifier.float()
    return lambda states: classifier(states[:, None])  # type: ignore[no-any-return]


# What classifies the vector of a first token; in float32, as bfloat16 would give unlike texts one
# score.
_HEADS: Mapping[str, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    "BertForSequenceClassification": _bert,
    "DistilBertForSequenceClassification": _distilbert,
    "RobertaForSequenceClassification": _roberta,
    "XLMRobertaForSequenceClassification": _roberta,
}
