"""T5's logits of its first output token, at a few rows of the vocabulary, and nothing else of T5.

Equal to transformers' `T5ForConditionalGeneration` in exact arithmetic. What a re-ranker does not
need is left out, and the layout suits many texts of unlike length:

- Texts lie one after the other, each padded only to a multiple of 16 (kernels want that) and by
  itself: no text's result depends on the length of its neighbours. Attention is computed for texts
  of one padded length together.
- The decoder asks one question of each text. Keys and values of the text are therefore never made:
  `q (h K)' = (q K') h'` and `sum_j a_j (h_j V) = (sum_j a_j h_j) V`. They are a seventh of the
  multiplications.
- The first decoder token sees itself alone: its self-attention is its value.
- The norms' weights are multiplied into the matrices that follow them.

The residual stream is float32, whatever the type of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelines.neural.linear import Linear, linear
from toolkit.extras import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MULTIPLE = 16


class Layer(NamedTuple):
    """One layer's look at its own text (`look`: query, key and value at once; in the decoder, which
    sees one token, the value alone) and its feed-forward part. An activation that is no gate is
    part of `inner`."""

    look: Linear
    output: Linear
    inner: Linear
    outer: Linear


class CrossAttention(NamedTuple):
    """What one decoder layer asks of the text: `query` [heads * d_kv, d], `key` and `value`
    [heads, d_kv, d], `output` [d, heads * d_kv]."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


class Group(NamedTuple):
    """`texts` neighbouring texts of one padded `length`; `mask` [texts or 1, heads, length,
    length] holds the position bias, and hides padding."""

    texts: int
    length: int
    mask: Tensor


class T5FirstTokenLogits:
    """First-step logits of the tokens `rows`, computed on `device` with weights of `dtype` from a
    `T5ForConditionalGeneration`; no text may have more than `longest` tokens. The model is taken
    apart: its matrices are gone as soon as their likes here are made, so that both are never in
    memory whole.

    Called with lists of token ids; gives float32 logits [texts, rows] on the CPU. Texts of like
    length should be neighbours.
    """

    def __init__(
        self,
        model: Any,
        rows: Sequence[int],
        *,
        longest: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        torch = self._torch = require("torch")
        config = model.config
        self.device, self.dtype = device, dtype
        self.heads, self.size = config.num_heads, config.d_kv
        self.epsilon = config.layer_norm_epsilon
        self.gated, self.activation = config.is_gated_act, config.dense_act_fn
        self.gate = require("transformers.activations").ACT2FN[self.activation]
        self.pad = config.pad_token_id or 0
        start = config.decoder_start_token_id
        self.start = self.pad if start is None else start
        with torch.no_grad():
            self.embedding = self._kept(model.shared.weight)
            first = model.encoder.block[0].layer[0].SelfAttention
            length = padded(longest)
            self.bias = self._kept(first.compute_bias(length, length))
            self.encoder = [self._layer(block.layer, "qkv") for block in model.encoder.block]
            encoded_norm = model.encoder.final_layer_norm.weight
            self.decoder = [
                (self._layer(block.layer, "v"), self._question(block.layer[1], encoded_norm))
                for block in model.decoder.block
            ]
            head = model.lm_head.weight[list(rows)] * model.decoder.final_layer_norm.weight
            scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
            self.head = (head.float() * scale).to(device)

    def __call__(self, texts: Sequence[Sequence[int]]) -> Tensor:
        torch = self._torch
        with torch.inference_mode():
            lengths = [len(text) for text in texts]
            tokens = [
                token
                for text in texts
                for token in (*text, *[self.pad] * (padded(len(text)) - len(text)))
            ]
            groups = list(self._groups(lengths))
            encoded = self._encode(torch.tensor(tokens, device=self.device), groups)
            logits: Tensor = self._decode(encoded, groups, lengths).cpu()
            return logits

    def _groups(self, lengths: Sequence[int]) -> Iterator[Group]:
        torch = self._torch
        for length, neighbours in groupby(lengths, padded):
            group = list(neighbours)
            mask = self.bias[:, :, :length, :length]
            # Once for all layers: T5 shares its position bias between them.
            if min(group) < length:
                hidden = self._hidden(group, length)[:, None, None]
                mask = torch.where(hidden, torch.finfo(self.dtype).min, mask)
            yield Group(len(group), length, mask)

    def _hidden(self, lengths: Sequence[int], longest: int) -> Tensor:
        """[texts, longest], true where a text has no token."""
        torch = self._torch
        ends = torch.tensor(list(lengths), device=self.device)
        hidden: Tensor = torch.arange(longest, device=self.device) >= ends[:, None]
        return hidden

    def _encode(self, tokens: Tensor, groups: Sequence[Group]) -> Tensor:
        """[all positions] -> [all positions, d], normalised."""
        state = self.embedding[tokens].float()
        for layer in self.encoder:
            looked = self._attend(layer.look(self._norm(state)), groups)
            state += layer.output(looked)
            state += self._forward(state, layer)
        return self._norm(state)

    def _attend(self, qkv: Tensor, groups: Sequence[Group]) -> Tensor:
        attention = self._torch.nn.functional.scaled_dot_product_attention
        out = qkv.new_empty(len(qkv), self.heads * self.size)
        start = 0
        for texts, length, mask in groups:
            here = slice(start, start + texts * length)
            start = here.stop
            by_head = qkv[here].view(texts, length, 3, self.heads, self.size)
            attended = attention(*by_head.permute(2, 0, 3, 1, 4), attn_mask=mask, scale=1.0)
            out[here].view(texts, length, self.heads, -1).copy_(attended.transpose(1, 2))
        return out

    def _decode(self, encoded: Tensor, groups: Sequence[Group], lengths: Sequence[int]) -> Tensor:
        """[all positions, d] -> [texts, rows], float32."""
        torch = self._torch
        sizes = [padded(length) for length in lengths]
        texts = torch.nn.utils.rnn.pad_sequence(list(encoded.split(sizes)), batch_first=True)
        hidden = self._hidden(lengths, texts.shape[1])
        state = self.embedding[self.start].float().repeat(len(lengths), 1)
        for layer, cross in self.decoder:
            state += layer.output(layer.look(self._norm(state)))
            state += self._ask(self._norm(state), cross, texts, hidden)
            state += self._forward(state, layer)
        return torch.nn.functional.linear(self._normalised(state), self.head)

    def _ask(self, state: Tensor, cross: CrossAttention, texts: Tensor, hidden: Tensor) -> Tensor:
        torch, product = self._torch, self._torch.nn.functional.linear
        query = product(state, cross.query).view(len(state), self.heads, self.size)
        weights = torch.einsum("bhk,hkd->bhd", query, cross.key) @ texts.transpose(1, 2)
        weights = weights.float().masked_fill_(hidden[:, None], -torch.inf).softmax(-1)
        mixed = weights.to(self.dtype) @ texts
        values = torch.einsum("bhd,hkd->bhk", mixed, cross.value)
        return product(values.reshape(len(state), -1), cross.output)

    def _forward(self, state: Tensor, layer: Layer) -> Tensor:
        inner = layer.inner(self._norm(state))
        if self.gated:
            gate, rest = inner.chunk(2, dim=-1)
            inner = self.gate(gate).mul_(rest)
        return layer.outer(inner)

    def _norm(self, state: Tensor) -> Tensor:
        return self._normalised(state).to(self.dtype)

    def _normalised(self, state: Tensor) -> Tensor:
        normalised: Tensor = self._torch.nn.functional.rms_norm(
            state, state.shape[-1:], eps=self.epsilon
        )
        return normalised

    def _layer(self, parts: Any, looks: str) -> Layer:
        attention, forward = parts[0].SelfAttention, parts[-1].DenseReluDense
        inner = [forward.wi_0, forward.wi_1] if self.gated else [forward.wi]
        looking = [getattr(attention, part) for part in looks]
        widened = self._after(parts[-1].layer_norm.weight, *inner)
        return Layer(
            linear(self._after(parts[0].layer_norm.weight, *looking)),
            linear(self._kept(attention.o.weight)),
            linear(widened, activation=None if self.gated else self.activation),
            linear(self._kept(forward.wo.weight)),
        )

    def _question(self, part: Any, encoded_norm: Tensor) -> CrossAttention:
        attention = part.EncDecAttention
        by_head = (self.heads, self.size, -1)
        return CrossAttention(
            self._after(part.layer_norm.weight, attention.q),
            self._after(encoded_norm, attention.k).view(by_head),
            self._after(encoded_norm, attention.v).view(by_head),
            self._kept(attention.o.weight),
        )

    def _after(self, norm: Tensor, *parts: Any) -> Tensor:
        """The matrices in one, which takes what the norm gives before its weight."""
        weights = [part.weight.float() * norm.float() for part in parts]
        for part in parts:
            part.weight = None
        return self._kept(self._torch.cat(weights))

    def _kept(self, weight: Tensor) -> Tensor:
        return weight.detach().to(self.device, self.dtype).contiguous()


def padded(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE
