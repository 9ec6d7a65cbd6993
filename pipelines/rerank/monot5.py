"""monoT5 (Nogueira, Jiang, Pradeep, Lin, "Document Ranking with a Pretrained Sequence-to-Sequence
Model", Findings of EMNLP 2020): T5 reads `Query: <query> Document: <document> Relevant:`, and its
first output token is `true` or `false`.

`pyterrier_t5.MonoT5ReRanker` loads the model. Its own scores of a pair change with the batch,
because it pads shorter prompts in front of ` Relevant:`. Here prompts of similar length form a
batch and are padded behind their end, so that a score is the one that pyterrier_t5 gives a pair
alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from soundingline.pipelines.counts import shared_property
from soundingline.pipelines.models import (
    T5_TOKENIZER,
    check_kind,
    check_t5_weights,
    check_weights_fit,
    checkpoint_config,
    checkpoint_fingerprint,
    fitting,
    in_batches,
    least_window,
    opening,
    pack_linear_layers,
    t5_tokenizer,
    within_memory,
)
from soundingline.pipelines.rerank.reranker import NeuralReranker, Pair
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

MODEL = "castorini/monot5-base-msmarco"
_LONGEST = 4096
# Characters of a text that are read first for each token of a prompt; English has 4 or 5.
_CHARACTERS = 12


class MonoT5Input(NamedTuple):
    """The token ids of a prompt.

    Args:
        truncated: Whether the pair was cut.
        no_room: Whether the query left no room for the document.
    """

    ids: list[int]
    truncated: bool
    no_room: bool


class MonoT5Prompts:
    """Prompts of at most `max_length` tokens. The end of the document is cut; a query that fills
    the prompt is cut too, and nothing of the document is read."""

    def __init__(self, tokenizer: Any, max_length: int = 512) -> None:
        self._tokenizer = tokenizer
        self._end = [*self._ids(["Relevant:"])[0], tokenizer.eos_token_id]
        self._room = max_length - len(self._end)
        self._least = least_window(max_length)
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
        # The front was too short: it has rare characters or much white space.
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
        """The document in parts that each fit and do not overlap, cut between words if possible.
        The whole document if it fits, or if the query leaves less than an eighth of the length."""
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
    """Whole words from the start of `text`, about `size` characters; all of it without a space to
    cut at. Words are tokenized separately, so that the tokens of a front are the first tokens of
    the text."""
    space = text.rfind(" ", 0, size) if len(text) > size else -1
    return text[:space] if space >= 0 else text


def _joined(query: str, text: str) -> str:
    return f"Query: {query} Document: {text}"


@dataclass(kw_only=True, eq=False, repr=False)
class MonoT5(NeuralReranker):
    """Re-ranks by monoT5 (Nogueira et al., Findings of EMNLP 2020): a score is the log-probability
    of `true` against `false`.

    The end of a document that is too long is cut, and never ` Relevant:`. A query that fills the
    prompt alone is cut too, and leaves the document unread. Texts that are None or not a number
    count as empty.

    Args:
        model: A T5 checkpoint, such as `castorini/monot5-large-msmarco` or `-3b-`.
        tokenizer: A name on the hub or a folder. The default is the checkpoint's own
            `tokenizer.json`, otherwise T5's (`t5-base`), as in pyterrier_t5.
        max_length: Tokens of a prompt, up to 4096. The default is the tokenizer's (512 for T5, the
            length of monoT5's training).

    Columns, `InputError`s and other arguments are those of `NeuralReranker` and `Reranker`. The
    `counts` add `pairs`; pairs with the document `truncated`, with a query that left it no room
    (`queries_too_long`), and with an empty document (`empty_texts`).

    Example:
        >>> pipe = index.bm25() >> MonoT5(depth=50) >> MaxP()
        >>> pipe.search("old river")  # doctest: +SKIP
    """

    model: str = field(default=MODEL, kw_only=False)
    tokenizer: str | None = None

    busy_tokens: ClassVar[Mapping[str, int]] = {"cpu": 2048, "cuda": 32_768}
    counted = ("pairs", "truncated", "queries_too_long", "empty_texts")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None:
            check_int("max_length", self.max_length, le=_LONGEST, do="set 512, as trained")

    @shared_property
    def fingerprint(self) -> str:  # type: ignore[override]
        _ = self._prompts
        tokenizer = copy.deepcopy(self._tokenizer.backend_tokenizer)
        tokenizer.no_truncation()  # The last call has set how it truncates.
        return fingerprint(
            "monot5",
            checkpoint_fingerprint(self.model, self.revision),
            tokenizer.to_str(),
            self.placement.precision,
            self._limit,
        )

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        plain = [_plain(pair) for pair in pairs]
        prompts = self._prompts.encode(plain)
        ids = [prompt.ids for prompt in prompts]
        scores = in_batches(
            self._batch_scores, ids, list(map(len, ids)), self.placement.batch_tokens
        )
        self.count.add(
            pairs=len(plain),
            truncated=sum(prompt.truncated for prompt in prompts),
            queries_too_long=sum(prompt.no_room for prompt in prompts),
            empty_texts=sum(not pair.text.strip() for pair in plain),
        )
        return scores

    def windows(self, pair: Pair) -> list[str]:
        """See `MonoT5Prompts`."""
        return self._prompts.windows(_plain(pair))

    def _batch_scores(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        torch = import_optional("torch")
        reference, device = self._reference, self.placement.device
        pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
        rows = [torch.tensor(ids) for ids in prompts]
        start = torch.full((len(rows), 1), reference.model.config.decoder_start_token_id)
        what = f"monoT5 on a batch of {sum(map(len, prompts))} tokens"
        with torch.inference_mode(), within_memory(device, what):
            logits = reference.model(
                input_ids=pad(rows).to(device),
                attention_mask=pad([torch.ones_like(row) for row in rows]).to(device),
                decoder_input_ids=start.to(device),
                use_cache=False,
            ).logits[:, 0, (reference.REL, reference.NREL)]
            # In float32, because bfloat16 would round unlike documents to the same score.
            scores: list[float] = logits.float().log_softmax(dim=-1)[:, 0].tolist()
        return scores

    @shared_property
    def _config(self) -> Any:
        config = checkpoint_config(self.model, self.revision)
        check_kind(config, self.model, ("t5",), "monoT5")
        return config

    @shared_property
    def _reference(self) -> Any:
        """pyterrier_t5's re-ranker, of which the network and the tokens of its answers are used."""
        place, source = self.placement, self.model
        what = f"monoT5 ({self.model})"
        check_weights_fit("AutoModelForSeq2SeqLM", self._config, place.device, place.dtype, what)
        with opening(self.model), within_memory(place.device, self.model):
            if self.revision is not None:
                hub = import_optional("huggingface_hub")
                source = hub.snapshot_download(self.model, revision=self.revision)
            reference = import_optional("pyterrier_t5").MonoT5ReRanker(
                tok_model=self._tokenizer.name_or_path, model=source, device="cpu", verbose=False
            )
        check_t5_weights(reference.model, self.model, self.revision)
        with within_memory(place.device, self.model):
            reference.model.to(place.device, place.dtype)
            pack_linear_layers(reference.model.encoder)
            pack_linear_layers(reference.model.decoder)
        return reference

    @shared_property
    def _prompts(self) -> MonoT5Prompts:
        return MonoT5Prompts(self._tokenizer, self._limit)

    @property
    def _limit(self) -> int:
        return min(super()._limit, _LONGEST)

    @shared_property
    def _tokenizer(self) -> Any:
        return t5_tokenizer(self.model, self.revision, self.tokenizer, self._config.vocab_size)


def _plain(pair: Pair) -> Pair:
    """A missing text (None, not a number) as an empty one."""
    return pair if isinstance(pair.text, str) else Pair(pair.query, "")
