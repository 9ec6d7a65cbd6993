"""The tiny random model as one GGUF file, which llama.cpp loads. Needs the package gguf."""

from __future__ import annotations

import gguf
import tiny_model
from tiny_model import Vocabulary, weights

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save_gguf(path, docids):
    """Write the model; `docids` are those that it can write."""
    vocabulary = Vocabulary(docids)
    writer = gguf.GGUFWriter(path, "qwen3")
    _shape(writer)
    _tokenizer(writer, vocabulary)
    for name, tensor in weights(vocabulary).items():
        writer.add_tensor(_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shape(writer):
    writer.add_context_length(tiny_model.CONTEXT)
    writer.add_embedding_length(tiny_model.HIDDEN)
    writer.add_block_count(tiny_model.LAYERS)
    writer.add_feed_forward_length(tiny_model.INNER)
    writer.add_head_count(tiny_model.HEADS)
    writer.add_head_count_kv(tiny_model.KV_HEADS)
    writer.add_key_length(tiny_model.HEAD)
    writer.add_value_length(tiny_model.HEAD)
    writer.add_layer_norm_rms_eps(tiny_model.EPSILON)
    writer.add_rope_freq_base(tiny_model.THETA)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _tokenizer(writer, vocabulary):
    types = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.written)
    writer.add_token_types(
        [types.CONTROL if kind == "control" else types.NORMAL for kind, _ in vocabulary.kinds]
    )
    # An empty list is refused. This merge makes no token of the vocabulary, so it is never used.
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_eos_token_id(vocabulary.number(tiny_model.END))
    writer.add_bos_token_id(vocabulary.number(tiny_model.PAD))
    writer.add_pad_token_id(vocabulary.number(tiny_model.PAD))
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny_model.TEMPLATE)


def _name(name):
    stem = name.removesuffix(".weight")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.weight"
