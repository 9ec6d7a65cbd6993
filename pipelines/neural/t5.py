"""Loading T5: the network with all of its weights, and the tokenizer that most of its checkpoints
leave to be found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.neural.checkpoints import (
    DATA_ONLY,
    NO_CODE,
    check_memory,
    opening,
    within_memory,
)
from toolkit.errors import InputError
from toolkit.extras import require

if TYPE_CHECKING:
    import torch

# What pyterrier_t5, pygaggle and docTTTTTquery read their checkpoints with; most of these bring
# none.
T5_TOKENIZER = "t5-base"
HOW_TO_GET = (
    f"run `hf download {T5_TOKENIZER} --include 'tokenizer*'` on a machine with network, or set "
    "tokenizer to a folder that holds T5's"
)


def t5_model(
    model: str,
    revision: str | None,
    config: Any,
    *,
    device: torch.device,
    dtype: torch.dtype,
    what: str,
) -> Any:
    """The `T5ForConditionalGeneration` of a checkpoint, in memory of the CPU, ready to infer.
    `InputError` where it does not fit into the memory of `device`, or lacks weights."""
    check_memory(_bytes(config, dtype), device, f"{what} ({model})")
    kind = require("transformers").T5ForConditionalGeneration
    with opening(model), within_memory(device, model):
        network, report = kind.from_pretrained(
            model, revision=revision, dtype=dtype, output_loading_info=True, **DATA_ONLY
        )
    # The library fills gaps with random weights, of an encoder's lacking decoder, say.
    _check_complete(model, report["missing_keys"])
    return network.eval()


def t5_tokenizer(model: str, revision: str | None, tokenizer: str | None, vocabulary: int) -> Any:
    """The tokenizer of that name or folder; None: the checkpoint's own `tokenizer.json`, else
    T5's. `InputError` where none can be had, and for more tokens than the `vocabulary` that the
    checkpoint knows."""
    transformers, name = require("transformers"), tokenizer
    if name or has_tokenizer(model, revision):
        source, own_revision = (name, None) if name else (model, revision)
        with opening(source):
            opened = transformers.AutoTokenizer.from_pretrained(
                source, revision=own_revision, **NO_CODE
            )
    else:
        source = T5_TOKENIZER
        # Without files, T5's class makes an empty vocabulary, and no error.
        if not has_tokenizer(source, None):
            raise InputError(
                f"'{model}' brings no tokenizer.json, and T5's tokenizer cannot be loaded",
                do=HOW_TO_GET,
            )
        # AutoTokenizer would want a config.json, which pyterrier_t5 leaves on the hub.
        opened = transformers.T5Tokenizer.from_pretrained(source)
    if len(opened) > vocabulary:
        raise InputError(
            f"the tokenizer '{source}' has {len(opened)} tokens, and '{model}' knows {vocabulary}",
            do="set tokenizer to the one that the model was trained with",
        )
    return opened


def has_tokenizer(model: str, revision: str | None = None) -> bool:
    """Whether a folder or a model of the hub brings a `tokenizer.json`."""
    if Path(model).is_dir():
        return (Path(model) / "tokenizer.json").exists()
    file = require("transformers.utils").cached_file(
        model,
        "tokenizer.json",
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return file is not None


def _check_complete(model: str, missing: Iterable[str]) -> None:
    names = sorted(missing)
    if names:
        raise InputError(
            f"'{model}' lacks {len(names)} of the weights of T5 with its decoder, {names[0]} first",
            valid="a checkpoint of an encoder and a decoder",
        )


def _bytes(config: Any, dtype: torch.dtype) -> int:
    """What loading takes: the weights, and one layer's twice."""
    torch, kind = require("torch"), require("transformers").T5ForConditionalGeneration
    with torch.device("meta"):
        shapes = kind(config)
    return sum(weights.numel() for weights in shapes.parameters()) * dtype.itemsize
