"""monoT5 (Nogueira, Jiang, Pradeep, Lin, "Document Ranking with a Pretrained Sequence-to-Sequence
Model", Findings of EMNLP 2020): T5 reads a query and a document, and its first output token is
`true` or `false`.

A score is the one that pyterrier_t5 gives a pair by itself. There, a batch changes it: shorter
prompts are padded in front of ` Relevant:`. Here nothing but the pair's own tokens is read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.neural.batches import in_batches
from pipelines.neural.checkpoints import (
    check_kind,
    check_memory,
    checkpoint_config,
    checkpoint_fingerprint,
    opening,
    within_memory,
)
from pipelines.neural.devices import choose_device, choose_dtype
from pipelines.neural.extras import require
from pipelines.rerank.base import Pair
from pipelines.rerank.monot5_prompt import HOW_TO_GET, T5_TOKENIZER, MonoT5Prompts, has_tokenizer
from pipelines.rerank.stage import Reranker, Texts, treatment_of_long
from pipelines.rerank.t5_first_step import FirstStep, padded
from toolkit.errors import InputError
from toolkit.files import fingerprint

if TYPE_CHECKING:
    import torch

MODEL = "castorini/monot5-base-msmarco"
# What a device needs to be busy; more makes no more speed.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 32_768}
_LONGEST = 4096


class MonoT5Scorer:
    """log P(true) of true and false, for each pair. Thread-safe: one thread at a time computes.

    - `model`, `revision`: a T5 checkpoint on the hub (`castorini/monot5-base-msmarco`, `-large-`,
      `-3b-`, ...) or a folder.
    - `tokenizer`: a name or a folder; None: the checkpoint's own `tokenizer.json`, else T5's
      (`t5-base`), as pyterrier_t5.
    - `device`, `dtype`: see `choose_device` and `choose_dtype`.
    - `batch_tokens`: tokens of a batch; None: 2048 on a CPU, 32,768 on a GPU.
    - `max_length`: tokens of a prompt; of a longer one the document's end is cut, and never
      ` Relevant:`. A query that fills the prompt alone is cut too, and leaves the document unread.

    Texts that are None or not a number count as empty. The weights are loaded by the first call of
    `score`, everything else is checked at once. `InputError` where the model cannot be had, is no
    T5, or does not fit into memory.
    """

    def __init__(
        self,
        model: str = MODEL,
        *,
        revision: str | None = None,
        tokenizer: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        max_length: int = 512,
    ) -> None:
        if batch_tokens is not None and batch_tokens < 1:
            raise InputError(f"batch_tokens={batch_tokens}", valid="null, or 1 and more")
        if not 1 <= max_length <= _LONGEST:
            raise InputError(f"max_length={max_length}", valid=f"1 to {_LONGEST}, 512 as trained")
        self.model, self.revision, self.max_length = model, revision, max_length
        self.config = checkpoint_config(model, revision)
        check_kind(self.config, model, ("t5",), "monoT5")
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        self.batch_tokens = batch_tokens or _BATCH_TOKENS[self.device.type]
        opened = self._opened(tokenizer)
        self._prompts = MonoT5Prompts(opened, max_length)
        self._fingerprint = fingerprint(
            "monot5",
            checkpoint_fingerprint(model, revision),
            opened.backend_tokenizer.to_str(),
            self._precision,
            max_length,
        )
        self._network: FirstStep | None = None
        # Tokenizer and model are one computation: neither gains from a second thread.
        self._computing = threading.RLock()
        self._counting = threading.Lock()
        self._counts = {"pairs": 0, "truncated": 0, "queries_too_long": 0, "empty_texts": 0}

    def __repr__(self) -> str:
        return f"MonoT5Scorer({self.model!r}, dtype={self._precision!r})"

    @property
    def fingerprint(self) -> str:
        """See `PairScorer`."""
        return self._fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        """Cumulative: `pairs` scored, of these with the document `truncated`, with a query that
        left no room to it (`queries_too_long`), with an empty document (`empty_texts`)."""
        with self._counting:
            return dict(self._counts)

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """See `PairScorer`."""
        plain = [_plain(pair) for pair in pairs]
        with self._computing:
            prompts = self._prompts.encode(plain)
            ids = [prompt.ids for prompt in prompts]
            lengths = [padded(len(each)) for each in ids]
            scores = in_batches(self._scored, ids, lengths, self.batch_tokens)
        self._count(
            pairs=len(plain),
            truncated=sum(prompt.truncated for prompt in prompts),
            queries_too_long=sum(prompt.no_room for prompt in prompts),
            empty_texts=sum(not pair.text.strip() for pair in plain),
        )
        return scores

    def split(self, pair: Pair) -> list[Pair]:
        """The document in windows that each fit whole beside the query and do not overlap; together
        they are its text. The pair itself where it fits, or where the query leaves less than an
        eighth of `max_length`."""
        pair = _plain(pair)
        with self._computing:
            return [Pair(pair.query, text) for text in self._prompts.windows(pair)]

    def _scored(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        network = self._loaded()
        what = f"monoT5 on a batch of {sum(map(len, prompts))} tokens"
        with within_memory(self.device, what):
            scores: list[float] = network(prompts).log_softmax(dim=-1)[:, 0].tolist()
        return scores

    def _loaded(self) -> FirstStep:
        if self._network is None:
            check_memory(_bytes(self.config, self.dtype), self.device, f"monoT5 ({self.model})")
            kind = require("transformers").T5ForConditionalGeneration
            with opening(self.model), within_memory(self.device, self.model):
                whole, found = kind.from_pretrained(
                    self.model, revision=self.revision, dtype=self.dtype, output_loading_info=True
                )
                # The library fills gaps with random weights, of an encoder's lacking decoder, say.
                _check_whole(self.model, found["missing_keys"])
                self._network = FirstStep(
                    whole.eval(),
                    self._prompts.answers,
                    longest=self.max_length,
                    device=self.device,
                    dtype=self.dtype,
                )
        return self._network

    def _opened(self, name: str | None) -> Any:
        transformers = require("transformers")
        if name or has_tokenizer(self.model, self.revision):
            source, revision = (name, None) if name else (self.model, self.revision)
            with opening(source):
                opened = transformers.AutoTokenizer.from_pretrained(source, revision=revision)
        else:
            source = T5_TOKENIZER
            # Without files, T5's class makes an empty vocabulary, and no error.
            if not has_tokenizer(source, None):
                raise InputError(
                    f"'{self.model}' brings no tokenizer.json, and T5's tokenizer cannot be loaded",
                    do=HOW_TO_GET,
                )
            # AutoTokenizer would want a config.json, which pyterrier_t5 leaves on the hub.
            opened = transformers.T5Tokenizer.from_pretrained(source)
        if len(opened) > self.config.vocab_size:
            raise InputError(
                f"the tokenizer '{source}' has {len(opened)} tokens, and '{self.model}' knows "
                f"{self.config.vocab_size}",
                do="set tokenizer to the one that the model was trained with",
            )
        return opened

    @property
    def _precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, count in more.items():
                self._counts[name] += count


def monot5(
    texts: Texts,
    unit: str,
    caches: Path | None,
    *,
    model: str = MODEL,
    revision: str | None = None,
    tokenizer: str | None = None,
    depth: int = 50,
    device: str | None = None,
    dtype: str | None = None,
    batch_tokens: int | None = None,
    max_length: int = 512,
    long_documents: str | None = None,
    gather_ms: float = 5.0,
) -> Reranker:
    """Re-ranks the best `depth` by monoT5; arguments as in `MonoT5Scorer` and `Reranker`.

    `long_documents` None: `max_passage` where the unit is a whole document, else `truncate`.
    """
    scorer = MonoT5Scorer(
        model,
        revision=revision,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        batch_tokens=batch_tokens,
        max_length=max_length,
    )
    return Reranker(
        scorer,
        texts=texts,
        depth=depth,
        cache=caches,
        long_documents=treatment_of_long(unit, long_documents),
        gather_ms=gather_ms,
    )


def _check_whole(model: str, missing: Iterable[str]) -> None:
    names = sorted(missing)
    if names:
        raise InputError(
            f"'{model}' lacks {len(names)} of the weights of T5 with its decoder, {names[0]} first",
            valid=f"a checkpoint such as {MODEL}",
        )


def _plain(pair: Pair) -> Pair:
    """A missing text (None, not a number) as an empty one."""
    return pair if isinstance(pair.text, str) else Pair(pair.query, "")


def _bytes(config: Any, dtype: torch.dtype) -> int:
    """What loading takes: the weights, and one layer's twice."""
    torch, kind = require("torch"), require("transformers").T5ForConditionalGeneration
    with torch.device("meta"):
        shapes = kind(config)
    return sum(each.numel() for each in shapes.parameters()) * dtype.itemsize
