"""monoT5 (Nogueira, Jiang, Pradeep, Lin, "Document Ranking with a Pretrained Sequence-to-Sequence
Model", Findings of EMNLP 2020): T5 reads `Query: <query> Document: <document> Relevant:`, and its
first output token is `true` or `false`.

A score is the one that `pyterrier_t5.MonoT5ReRanker` gives a pair alone. In a batch, pyterrier_t5
pads shorter prompts in front of ` Relevant:`, which changes their scores; here they are padded
after their end."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from soundingline.pipelines.checkpoint import T5, T5_TOKENIZER, Checkpoint, t5_tokenizer
from soundingline.pipelines.device import in_float32, pack_linear_layers, padded
from soundingline.pipelines.rerank.reranker import NeuralScorer, Pair
from soundingline.pipelines.stage import shared
from soundingline.pipelines.windows import least_window, split_into_windows
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor

MODEL = "castorini/monot5-base-msmarco"
# Characters of a text that are read first for each token of a prompt; English has 4 or 5.
_CHARACTERS = 12


class MonoT5Input(NamedTuple):
    """The token ids of a prompt, and what it adds to the counts of `MonoT5`."""

    ids: list[int]
    truncated: bool
    queries_too_long: bool
    empty_texts: bool
    pairs: int = 1


class MonoT5Prompts:
    """Prompts of at most `max_length` tokens. The end of the document is cut; a query that fills
    the prompt is cut too, and nothing of the document is read."""

    def __init__(self, tokenizer: Any, max_length: int = 512) -> None:
        self._tokenizer, self.max_length = tokenizer, max_length
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
        inputs = []
        tokens = self._ids(texts, limit)
        # A front was too short if it has rare characters or much white space.
        short = [
            place
            for place, (pair, part, ids) in enumerate(zip(pairs, fronts, tokens, strict=True))
            if len(ids) < limit and len(part) < len(pair.text)
        ]
        again = self._ids([_joined(*pairs[place]) for place in short], limit)
        for place, ids in zip(short, again, strict=True):
            tokens[place] = ids
        cut = [len(ids) > self._room for ids in tokens]
        queries = list({pair.query for pair, is_cut in zip(pairs, cut, strict=True) if is_cut})
        sizes = self._ids([_joined(query, "") for query in queries])
        full = {query for query, ids in zip(queries, sizes, strict=True) if len(ids) >= self._room}
        for pair, ids, is_cut in zip(pairs, tokens, cut, strict=True):
            no_room = is_cut and pair.query in full
            ids = ids[: self._room] + self._end
            inputs.append(MonoT5Input(ids, is_cut, no_room, not pair.text.strip()))
        return inputs

    def windows(self, pair: Pair) -> list[str]:
        """The document in parts that each fit and do not overlap, cut between words if possible.
        The whole document if it fits, or if the query leaves less than an eighth of the length."""
        room = self._room - len(self._ids([_joined(pair.query, "")])[0])
        if room < self._least:
            return [pair.text]
        return split_into_windows(pair.text, room, partial(self._tokenizer, verbose=False))

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


def store_bias_by_head(attention: Any) -> None:
    """Let the position bias of an attention of T5, which all layers add, come as contiguous
    memory [heads, queries, keys].

    T5 looks up [queries, keys, heads] and permutes the axes. No fused kernel takes a mask whose
    last stride is not 1, and the one that does computes in float32.
    """
    import torch

    class BiasByHead(torch.nn.Module):
        def __init__(self, weight: Tensor) -> None:
            super().__init__()
            self.weight = weight  # [buckets, heads]

        def forward(self, buckets: Tensor) -> Tensor:
            return self.weight.T.contiguous()[:, buckets].permute(1, 2, 0)

    attention.relative_attention_bias = BiasByHead(attention.relative_attention_bias.weight)


def front(text: str, size: int) -> str:
    """Whole words from the start of `text`, about `size` characters; all of it without a space to
    cut at. Words are tokenized separately, so that the tokens of a front are the first tokens of
    the text."""
    space = text.rfind(" ", 0, size) if len(text) > size else -1
    return text[:space] if space >= 0 else text


def _joined(query: str, text: str) -> str:
    return f"Query: {query} Document: {text}"


@dataclass(kw_only=True, eq=False, repr=False)
class MonoT5(NeuralScorer):
    """Scores by monoT5 (Nogueira et al., Findings of EMNLP 2020): a score is the log-probability
    of `true` against `false`.

    The end of a document that is too long is cut, and never ` Relevant:`. A query that fills the
    prompt alone is cut too, and leaves the document unread.

    Args:
        model: A T5 checkpoint, such as `castorini/monot5-large-msmarco` or `-3b-`.
        tokenizer: A name on the hub or a folder. The default is the checkpoint's own
            `tokenizer.json`, otherwise T5's (`t5-base`), as in pyterrier_t5.
        max_length: Tokens of a prompt. The default is the tokenizer's (512 for T5, the length of
            monoT5's training).

    Columns, `InputError`s and other arguments are those of `NeuralScorer` and `Scorer`. The
    `counts` add `pairs`; pairs with the document `truncated`, with a query that left it no room
    (`queries_too_long`), and with an empty document (`empty_texts`).

    Example:
        >>> pipe = index.bm25() >> RerankTop(MonoT5(), depth=50, texts=index.texts) >> MaxP()
        >>> pipe.search("old river")  # doctest: +SKIP
    """

    model: str = field(default=MODEL, kw_only=False)
    tokenizer: str | None = None

    default_batch_tokens: ClassVar[Mapping[str, int]] = {"cpu": 2048, "cuda": 32_768}
    counted = ("pairs", "truncated", "queries_too_long", "empty_texts")

    @property
    @shared
    def fingerprint(self) -> str:
        tokenizer = copy.deepcopy(self._tokenizer.backend_tokenizer)
        tokenizer.no_truncation()  # The last call has set how it truncates.
        checkpoint, precision = self._checkpoint.fingerprint, self.placement.precision
        # 2: the output layer computes in float32.
        limit = self._inputs.max_length
        return fingerprint("monot5", 2, checkpoint, tokenizer.to_str(), precision, limit)

    def _logits(self, network: Any, inputs: Sequence[MonoT5Input]) -> Tensor:
        torch, device = import_optional("torch"), self.placement.device
        start = network.config.decoder_start_token_id
        logits = network(
            **padded([each.ids for each in inputs], 0, device),
            decoder_input_ids=torch.full((len(inputs), 1), start, device=device),
            use_cache=False,
        ).logits[:, 0]
        scores: Tensor = torch.nn.functional.logsigmoid(logits[:, 0] - logits[:, 1])
        return scores

    @property
    @shared
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(T5, self.model, self.revision).checked()

    @property
    @shared
    def _network(self) -> Any:
        network = self._checkpoint.load(self.placement)
        for stack in (network.encoder, network.decoder):
            store_bias_by_head(stack.block[0].layer[0].SelfAttention)
        pack_linear_layers(network.encoder)
        pack_linear_layers(network.decoder)
        network.set_output_embeddings(self._answers_of(network.get_output_embeddings()))
        return network

    def _answers_of(self, vocabulary: Any) -> Any:
        """The two rows of the output layer that answer, in float32."""
        torch = import_optional("torch")
        weight = vocabulary.weight[list(self._inputs.answers)].detach()
        answers = torch.nn.Linear(weight.shape[1], 2, bias=False, device=weight.device)
        answers.weight = torch.nn.Parameter(weight)
        return in_float32(answers)

    @property
    @shared
    def _inputs(self) -> MonoT5Prompts:
        return MonoT5Prompts(self._tokenizer, self._limit)

    @property
    @shared
    def _tokenizer(self) -> Any:
        return t5_tokenizer(self._checkpoint, self.tokenizer)
