"""The last layer's vectors of the tokens of many texts, without those of padding.

On a CPU, BERT, RoBERTa and DistilBERT are computed here, equal to transformers' in exact
arithmetic: texts lie one after the other, so that no multiplication is spent on padding, and the
residual stream and the norms are float32 whatever the type of the weights, so that bfloat16 loses
less. Every other network, and every GPU, goes through transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from soundingline.pipelines.models import linear
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TokenStates = Callable[[Sequence[Sequence[int]]], "list[Tensor]"]
"""Token ids of each text -> [tokens, dimensions] of each, in their order. Texts of like length
should be neighbours."""
# Attention is computed for texts of one padded length together; kernels like multiples of 16.
_MULTIPLE = 16


def token_states(network: Any, pad: int, device: torch.device) -> TokenStates:
    """Of a network without a head, which is on `device`; `pad` is a token to pad with."""
    parts = _PARTS.get(network.config.model_type)
    absolute = getattr(network.config, "position_embedding_type", "absolute") == "absolute"
    decoder = getattr(network.config, "is_decoder", False)
    if device.type == "cpu" and parts and absolute and not decoder:
        return PackedBert(network, parts(network))
    return Padded(network, pad, device)


class Padded:
    """A network as transformers computes it, on texts padded behind to the longest."""

    def __init__(self, network: Any, pad: int, device: torch.device) -> None:
        self._network, self._pad, self._device = network, pad, device

    def __call__(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        torch = import_optional("torch")
        lengths = [len(text) for text in texts]
        ids = torch.full((len(texts), max(lengths)), self._pad)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = torch.tensor(text)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        with torch.inference_mode():
            states = self._network(
                input_ids=ids.to(self._device), attention_mask=mask.long().to(self._device)
            ).last_hidden_state
        return [row[:length] for row, length in zip(states, lengths, strict=True)]


class _Layer(NamedTuple):
    """The modules of a layer: query, key and value; then what follows them, in its order."""

    look: Sequence[Any]
    output: Any
    look_norm: Any
    inner: Any
    outer: Any
    norm: Any


class _Parts(NamedTuple):
    """What the architectures call by other names."""

    layers: Sequence[_Layer]
    heads: int
    activation: str
    before_positions: int = 0


class _Steps(NamedTuple):
    """A layer's functions of [tokens, dimensions], in their order; query, key and value are one,
    and the activation is part of `inner`."""

    look: Callable[[Tensor], Tensor]
    output: Callable[[Tensor], Tensor]
    look_norm: Callable[[Tensor], Tensor]
    inner: Callable[[Tensor], Tensor]
    outer: Callable[[Tensor], Tensor]
    norm: Callable[[Tensor], Tensor]


class _Batch(NamedTuple):
    """Lengths of the texts; those of each group of one padded length, and its mask."""

    lengths: list[int]
    groups: list[list[int]]
    masks: list[Tensor | None]


class PackedBert:
    """BERT, RoBERTa or DistilBERT on a CPU, in the type of its weights, with a float32 residual
    stream."""

    def __init__(self, network: Any, parts: _Parts) -> None:
        torch = self._torch = import_optional("torch")
        embeddings = network.embeddings
        self._dtype = network.dtype
        self._heads = parts.heads
        with torch.no_grad():
            self._words = embeddings.word_embeddings.weight
            # RoBERTa's positions begin behind that of padding.
            begin = parts.before_positions
            positions = embeddings.position_embeddings.weight[begin:].float()
            kinds = getattr(embeddings, "token_type_embeddings", None)
            # A single text is of the first kind; the others are here as their difference from it.
            self._places = positions if kinds is None else positions + kinds.weight[0].float()
            self._kinds = None
            if kinds is not None and len(kinds.weight) > 1:
                self._kinds = kinds.weight.float() - kinds.weight[0].float()
            self._first_norm = self._norm(embeddings.LayerNorm)
            self._layers = [self._steps(layer, parts.activation) for layer in parts.layers]

    def __call__(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        with self._torch.inference_mode():
            batch = self._batch(texts)
            state = self._through(self._layers, self._embedded(texts), batch)
            return list(state.split(batch.lengths))

    def first_states(
        self, texts: Sequence[Sequence[int]], kinds: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """[texts, dimensions]: the last layer's vector of each text's first token, without those
        of the others. `kinds`: the kind of each token (`token_type_ids`); None: all the first."""
        with self._torch.inference_mode():
            batch = self._batch(texts)
            state = self._through(self._layers[:-1], self._embedded(texts, kinds), batch)
            last = self._layers[-1]
            looked = self._attend(last.look(state.to(self._dtype)), batch, first_only=True)
            first = self._torch.tensor([0, *batch.lengths[:-1]]).cumsum(0)
            return self._behind_attention(last, state[first], looked)

    def _batch(self, texts: Sequence[Sequence[int]]) -> _Batch:
        lengths = [len(text) for text in texts]
        groups = [list(group) for _, group in groupby(lengths, _padded)]
        return _Batch(lengths, groups, [self._mask(group) for group in groups])

    def _embedded(
        self, texts: Sequence[Sequence[int]], kinds: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """[all tokens, dimensions] in front of the first layer."""
        torch = self._torch
        tokens = torch.tensor(list(chain.from_iterable(texts)))
        positions = torch.cat([torch.arange(len(text)) for text in texts])
        state = self._words[tokens].float() + self._places[positions]
        if kinds is not None and self._kinds is not None:
            state += self._kinds[torch.tensor(list(chain.from_iterable(kinds)))]
        return self._first_norm(state)

    def _through(self, layers: Sequence[_Steps], state: Tensor, batch: _Batch) -> Tensor:
        for layer in layers:
            looked = self._attend(layer.look(state.to(self._dtype)), batch)
            state = self._behind_attention(layer, state, looked)
        return state

    def _behind_attention(self, layer: _Steps, state: Tensor, looked: Tensor) -> Tensor:
        state = layer.look_norm(state + layer.output(looked))
        inner = layer.inner(state.to(self._dtype))
        return layer.norm(state + layer.outer(inner))

    def _mask(self, lengths: Sequence[int]) -> Tensor | None:
        """[texts, 1, 1, longest], 0 where a text has a token; None where nothing is padded."""
        torch, longest = self._torch, max(lengths)
        if min(lengths) == longest:
            return None
        hidden = torch.arange(longest) >= torch.tensor(lengths)[:, None]
        mask: Tensor = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(
            hidden, torch.finfo(self._dtype).min
        )
        return mask[:, None, None]

    def _attend(self, looks: Tensor, batch: _Batch, *, first_only: bool = False) -> Tensor:
        """[all tokens, 3 x d] -> [all tokens, d]: each token looks at those of its own text; with
        `first_only` the first of each text does, [texts, d]."""
        torch, attention = self._torch, self._torch.nn.functional.scaled_dot_product_attention
        results = []
        parts = looks.split([sum(group) for group in batch.groups])
        for part, lengths, mask in zip(parts, batch.groups, batch.masks, strict=True):
            if mask is None:
                texts = part.view(len(lengths), lengths[0], -1)
            else:
                texts = torch.nn.utils.rnn.pad_sequence(part.split(list(lengths)), batch_first=True)
            by_head = texts.view(*texts.shape[:2], 3, self._heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = by_head
            if first_only:
                looked = attention(query[:, :, :1], key, value, attn_mask=mask)
                results.append(looked.flatten(1))
                continue
            looked = attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
            results += (
                [looked.flatten(0, 1)]
                if mask is None
                else [row[:length] for row, length in zip(looked, lengths, strict=True)]
            )
        joined: Tensor = torch.cat(results)
        return joined

    def _steps(self, layer: _Layer, activation: str) -> _Steps:
        cat = self._torch.cat
        return _Steps(
            linear(
                cat([part.weight for part in layer.look]), cat([part.bias for part in layer.look])
            ),
            linear(layer.output.weight, layer.output.bias),
            self._norm(layer.look_norm),
            linear(layer.inner.weight, layer.inner.bias, activation),
            linear(layer.outer.weight, layer.outer.bias),
            self._norm(layer.norm),
        )

    def _norm(self, module: Any) -> Callable[[Tensor], Tensor]:
        layer_norm = self._torch.nn.functional.layer_norm
        weight, bias, epsilon = module.weight.float(), module.bias.float(), module.eps

        def normalised(state: Tensor) -> Tensor:
            result: Tensor = layer_norm(state, weight.shape, weight, bias, epsilon)
            return result

        return normalised


def _padded(length: int) -> int:
    return -(-length // _MULTIPLE) * _MULTIPLE


def _bert(network: Any) -> _Parts:
    layers = [
        _Layer(
            [getattr(layer.attention.self, name) for name in ("query", "key", "value")],
            layer.attention.output.dense,
            layer.attention.output.LayerNorm,
            layer.intermediate.dense,
            layer.output.dense,
            layer.output.LayerNorm,
        )
        for layer in network.encoder.layer
    ]
    return _Parts(layers, network.config.num_attention_heads, network.config.hidden_act)


def _distilbert(network: Any) -> _Parts:
    layers = [
        _Layer(
            [getattr(layer.attention, name) for name in ("q_lin", "k_lin", "v_lin")],
            layer.attention.out_lin,
            layer.sa_layer_norm,
            layer.ffn.lin1,
            layer.ffn.lin2,
            layer.output_layer_norm,
        )
        for layer in network.transformer.layer
    ]
    return _Parts(layers, network.config.n_heads, network.config.activation)


def _roberta(network: Any) -> _Parts:
    return _bert(network)._replace(before_positions=network.embeddings.padding_idx + 1)


_PARTS: dict[str, Callable[[Any], _Parts]] = {
    "bert": _bert,
    "distilbert": _distilbert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
}
