"""SPARTA (Zhao, Lu and Lee, NAACL 2021, arXiv 2009.13013): the static embeddings of the vocabulary
are matched with the contextual states of a document's tokens.

    weight of term v = ln(1 + relu(max over tokens i of  embedding of v . state of token i))

The score of a document is the sum of the weights of the query's tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from soundingline.pipelines.counts import shared_property
from soundingline.pipelines.learned.splade import SparseRetriever, sparse_rows
from soundingline.pipelines.models import (
    Checkpoint,
    pack_linear_layers,
    padded,
    readable,
    stored_config,
    within_memory,
)
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.optional import import_optional


@dataclass(kw_only=True, eq=False, repr=False)
class Sparta(SparseRetriever):
    """Ranks units by the weights of the query's tokens (SPARTA; Zhao et al., NAACL 2021). Columns,
    further arguments and errors as in `SparseRetriever`.

    The facts are those of BEIR's `beir.retrieval.models.SPARTA`: no bias; special tokens have no
    weight; a token counts as often as the query has it. Unlike there, padding of a batch is no
    token of the document.

    Args:
        terms: The largest number of terms that a document keeps, 2000 as published.

    Example:
        >>> sparta = Sparta(terms=1000)
        >>> sparta.build(units, path, corpus_fingerprint="mine")  # doctest: +SKIP
        >>> pipe = sparta.open(path).retriever(sparta) >> MaxP()  # doctest: +SKIP
    """

    model: str = field(default="BeIR/sparta-msmarco-distilbert-base-v1", kw_only=False)
    terms: int = 2000

    name = "sparta"

    def __post_init__(self) -> None:
        check_int("terms", self.terms)
        super().__post_init__()

    @property
    def weighting(self) -> tuple[Any, ...]:
        return (self.terms,)

    def check_checkpoint(self) -> None:
        """A checkpoint with a head was trained for another task."""
        architectures = getattr(stored_config(self.model, self.revision), "architectures", None)
        if not any(name.endswith("Model") for name in architectures or []):
            kind = ", ".join(architectures or []) or "no architecture"
            raise InputError(
                f"'{self.model}' is no encoder without a head ({kind})",
                do="choose a checkpoint that was trained for SPARTA",
            )

    @shared_property
    def tokenizer(self) -> Any:
        tokenizer = self._checkpoint.tokenizer()
        tokenizer.split_special_tokens = True
        return tokenizer

    def query_weights(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """The weight of a token is how often the query has it; no model is needed."""
        texts = [readable(text) for text in texts]
        with self._computing:
            coded = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        terms = self.vocabulary
        return [
            {terms[token]: float(count) for token, count in Counter(tokens).items()}
            for tokens in coded
        ]

    def encode_batch(self, items: Sequence[str]) -> list[NDArray[Any]]:
        """The terms of weight above 0 of each text of one batch, ascending: arrays of `SPARSE`."""
        torch, device = import_optional("torch"), self.placement.device
        what = f"SPARTA of {len(items)} texts at once"
        with self._computing, within_memory(device, what), torch.inference_mode():
            coded = self.tokenizer(list(items), truncation=True, max_length=self._limit)
            batch = padded(coded["input_ids"], self.tokenizer.pad_token_id, device)
            states = self._network(**batch).last_hidden_state
            # One text at a time: [tokens, vocabulary] is the largest array.
            weights = torch.stack(
                [
                    (text[mask.bool()] @ self._embeddings.T).amax(dim=0)
                    for text, mask in zip(states, batch["attention_mask"], strict=True)
                ]
            )
            weights = weights.float().relu().log1p()
            if self.terms < weights.shape[1]:
                best, terms = weights.topk(self.terms, dim=1)
                weights = torch.zeros_like(weights).scatter_(1, terms, best)
            return sparse_rows(weights)

    @shared_property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.model, None, self.revision)

    @shared_property
    def _network(self) -> Any:
        self.check_checkpoint()
        network = self._checkpoint.load(self.placement.device, self.placement.dtype, ("pooler",))[0]
        pack_linear_layers(network)
        return network

    @shared_property
    def _embeddings(self) -> Any:
        """[vocabulary, dimensions]; those of special tokens are 0."""
        embeddings = self._network.get_input_embeddings().weight.detach().clone()
        embeddings[self.tokenizer.all_special_ids] = 0
        return embeddings
