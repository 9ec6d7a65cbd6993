"""A Qwen3 of 0.1 million parameters, made on the spot, for tests on real engines without weights.

Its layers are random. What it says is bounded by what its output layer knows: a bias for each
token, and which tokens may follow a few others, so that random weights do not ramble. For that, one
dimension of the residual stream is constant and a few more tell what kind of token came last; no
layer writes to any of them, and the output layer reads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import gguf
import numpy as np

HIDDEN, HEAD, HEADS, KV_HEADS, INNER, LAYERS = 64, 32, 2, 1, 128, 2
CONTEXT = 65_536
EPSILON = 1e-6
THETA = 10_000.0
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CONTROL = (PAD, START, END)

# Words of the fictional world, so that searches find something.
WORDS = (
    *("town", "person", "building", "river", "charter", "bronze", "larch", "school", "museum"),
    *("bamboo", "salt", "brick", "works", "institute", "population", "completed", "founded"),
    *("census", "settlement", "stone"),
)
KEYS = {"search": ('reason":"', 'query":"'), "docid": ('docid":"',), "id": ('search_id":"',)}
SEARCH_IDS = ("s1", "s2")
CALL, DONE = "<tool_call>\n", "\n</tool_call>"

TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {% if call.function.arguments is string %}\
{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class Vocabulary:
    """Every byte, the words (each with the space before it), keys of our tools' arguments with the
    quotation mark that opens their value, search ids, `docids`, and control tokens."""

    docids: Sequence[str]

    @property
    def kinds(self):
        """(kind, text) of each token, in the order of their numbers."""
        keys = [(f"key {kind}", text) for kind, texts in KEYS.items() for text in texts]
        return [
            *(("byte", chr(number)) for number in range(256)),
            *(("word", f" {word}") for word in WORDS),
            *keys,
            *(("id", text) for text in SEARCH_IDS),
            *(("docid", docid) for docid in self.docids),
            ("call", CALL),
            ("done", DONE),
            *(("control", text) for text in CONTROL),
        ]

    @property
    def written(self):
        """Each token as byte-level tokenizers write it, one visible character for each byte."""
        visible = _visible_bytes()
        return [
            text if kind == "control" else "".join(visible[ord(character)] for character in text)
            for kind, text in self.kinds
        ]

    def number(self, text):
        return [each for _, each in self.kinds].index(text)


def _visible_bytes():
    """GPT-2's characters for the 256 bytes: printable ones as they are, others from U+0100 on."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(number if number in plain else next(others)) for number in range(256)]


def weights(vocabulary, seed=0):
    """Float32 tensors under the names that Qwen3 checkpoints have, [output, input]."""
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.normal(0.0, 1 / np.sqrt(shape[-1]), shape).astype(np.float32)

    kinds = vocabulary.kinds
    features = sorted({kind for kind, _ in kinds if kind not in ("byte", "control")} | {"["})
    fixed = 1 + len(features)
    embedding = random.normal(0.0, 0.3, (len(kinds), HIDDEN)).astype(np.float32)
    embedding[:, :fixed] = 0.0
    embedding[:, 0] = 4.0
    for row, kind in enumerate(kinds):
        feature = "[" if kind == ("byte", "[") else kind[0]
        if feature in features:
            embedding[row, 1 + features.index(feature)] = 4.0
    head = normal(len(kinds), HIDDEN) * 0.5
    # About what a dimension of size 4 has after the last norm.
    size = 4.0 / np.sqrt((16.0 + 0.09 * HIDDEN) / HIDDEN) / 1.3
    head[:, 0] = [_bias(*kind) / size for kind in kinds]
    for column, feature in enumerate(features, start=1):
        head[:, column] = [_boost(feature, *kind) / size for kind in kinds]

    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        block = {
            "input_layernorm": np.ones(HIDDEN, np.float32),
            "post_attention_layernorm": np.ones(HIDDEN, np.float32),
            "self_attn.q_proj": normal(HEADS * HEAD, HIDDEN),
            "self_attn.k_proj": normal(KV_HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": normal(KV_HEADS * HEAD, HIDDEN),
            "self_attn.o_proj": normal(HIDDEN, HEADS * HEAD) * 0.2,
            "self_attn.q_norm": np.ones(HEAD, np.float32),
            "self_attn.k_norm": np.ones(HEAD, np.float32),
            "mlp.gate_proj": normal(INNER, HIDDEN),
            "mlp.up_proj": normal(INNER, HIDDEN),
            "mlp.down_proj": normal(HIDDEN, INNER) * 0.2,
        }
        block["self_attn.o_proj"][:fixed] = 0.0
        block["mlp.down_proj"][:fixed] = 0.0
        tensors |= {f"model.layers.{layer}.{name}.weight": each for name, each in block.items()}
    return tensors


def _bias(kind, text):
    """How likely a token is by itself, as a logit."""
    if kind == "control":
        return 4.0 if text == END else -14.0
    if kind != "byte":
        usual = {"word": 2.0, "docid": -2.0, "id": -2.0, "call": 12.0}
        return usual.get(kind, 6.0)
    if text in '"]':
        return 2.0
    if text in "\\" or not " " < text < "\x7f":
        return -14.0
    if text.isdigit():
        return -6.0
    return 0.0 if text.isalpha() and text.islower() else -3.0


def _boost(before, kind, text):
    """How much likelier a token is after a token of the kind `before`."""
    follows = {"key search": "word", "key docid": "docid", "key id": "id", "[": "docid"}
    if follows.get(before) == kind:
        return 12.0
    if (before, text) == ("done", END):
        return 20.0
    if text == '"':
        return {"word": 3.0, "docid": 14.0, "id": 14.0}.get(before, 0.0)
    return 0.0


def save_checkpoint(folder, docids):
    """A folder that transformers and vLLM can load; `docids` are those that it can write."""
    vocabulary = Vocabulary(docids)
    folder.mkdir(parents=True)
    end = vocabulary.number(END)
    files = {
        "config.json": {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": len(vocabulary.kinds),
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": EPSILON,
            "rope_theta": THETA,
            "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "eos_token_id": end,
            "dtype": "float32",
        },
        "generation_config.json": {"eos_token_id": [end]},
        "tokenizer.json": _tokenizer(vocabulary),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    _save_tensors(folder / "model.safetensors", weights(vocabulary))
    return folder


def _tokenizer(vocabulary):
    """Byte-level BPE without merges: text is read byte by byte, whole words are only written."""
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    numbers = {text: number for number, text in enumerate(vocabulary.written)}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": numbers[text], "content": text, "special": True, **added} for text in CONTROL
        ],
        "pre_tokenizer": {"type": "ByteLevel", **level},
        "decoder": {"type": "ByteLevel", **level},
        "model": {"type": "BPE", "vocab": numbers, "merges": []},
    }


def _save_tensors(path, tensors):
    """The safetensors format: length of the header, header, tensors one after the other."""
    header = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            stream.write(np.ascontiguousarray(tensor).tobytes())


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
    _write_tokenizer(writer, vocabulary)
    for name, tensor in weights(vocabulary).items():
        writer.add_tensor(_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shape(writer):
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(THETA)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _write_tokenizer(writer, vocabulary):
    types = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.written)
    writer.add_token_types(
        [types.CONTROL if kind == "control" else types.NORMAL for kind, _ in vocabulary.kinds]
    )
    # An empty list is refused. This merge makes no token of the vocabulary, so it is never used.
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_eos_token_id(vocabulary.number(END))
    writer.add_bos_token_id(vocabulary.number(PAD))
    writer.add_pad_token_id(vocabulary.number(PAD))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _name(name):
    stem = name.removesuffix(".weight")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.weight"
