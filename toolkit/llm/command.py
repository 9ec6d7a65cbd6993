"""The command line of a local vLLM server. Nothing is run here, and vLLM is never imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.errors import InputError
from toolkit.masking import secrets_in

SERVE = ("vllm", "serve")
SERVER_KEY = "VLLM_API_KEY"  # the variable from which vLLM reads the key that it asks for


def serve_command(
    model: str,
    *,
    port: int,
    host: str = "127.0.0.1",
    launcher: Sequence[str] = SERVE,
    served_name: str | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    data_parallel: int = 1,
    tensor_parallel: int = 1,
    context_length: int | None = None,
    gpu_memory: float | None = None,
    max_sequences: int | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    seed: int | None = None,
    prefix_caching: bool = True,
    prompt_token_details: bool = True,
    strict_level: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> list[str]:
    """The words of the command that serves `model` (a name on a hub, or a folder).

    `launcher` is what vLLM is started by: `vllm serve`, or `python -m
    vllm.entrypoints.openai.api_server` where the distribution has another name. `tool_parser` also
    turns on automatic tool choice. `context_length` tokens (None: the model's own); `gpu_memory` is
    the share of each device; `max_sequences` bounds the requests of one batch.
    `prompt_token_details` makes the server report cached tokens. `strict_level` is the tool strict
    level of newer servers (`parameter`: arguments follow their schema). `extra` maps further
    options, without dashes: true is a flag, false its `no-` form, null leaves it out, and lists and
    objects go as JSON. `InputError` for impossible values, and for a key or token: every user of
    the machine sees command lines.
    """
    _check(model, launcher, data_parallel, tensor_parallel, gpu_memory)
    # `vllm serve` takes the model by place, the module by option.
    named = [model] if launcher[-1] == "serve" else ["--model", model]
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "served-model-name": served_name,
        "tensor-parallel-size": tensor_parallel if tensor_parallel > 1 else None,
        "data-parallel-size": data_parallel if data_parallel > 1 else None,
        "max-model-len": context_length,
        "gpu-memory-utilization": gpu_memory,
        "max-num-seqs": max_sequences,
        "dtype": dtype,
        "quantization": quantization,
        "seed": seed,
        "enable-auto-tool-choice": True if tool_parser else None,
        "tool-call-parser": tool_parser,
        "tool-strict-level": strict_level,
        "reasoning-parser": reasoning_parser,
        "enable-prefix-caching": prefix_caching,
        "enable-prompt-tokens-details": prompt_token_details or None,
    }
    options.update({name.replace("_", "-"): value for name, value in (extra or {}).items()})
    check_secrets(options, launcher, "vLLM", SERVER_KEY)
    return [*launcher, *named, *(word for pair in options.items() for word in option_words(*pair))]


def option_words(name: str, value: Any) -> list[str]:
    """The words of one option: true is a flag, false its `no-` form, None nothing; lists and
    objects go as JSON."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return [f"--{name}", text]


def check_secrets(
    options: Mapping[str, Any], launcher: Sequence[str], server: str, variable: str
) -> None:
    """`InputError` where the command line of `server` would hold a secret; `variable` is where it
    reads the key that it asks for."""
    named = [name for name, value in options.items() if list(secrets_in(value, name))]
    if named or list(secrets_in(launcher)):
        source = f"its option {named[0]}" if named else "its launcher"
        raise InputError(
            f"the command line of {server} would hold a secret ({source})",
            do=f"export {variable}=... and set key_env={variable}, or HF_TOKEN for the hub: "
            "servers are handed them by their environment",
        )


def check_launcher(launcher: Sequence[str], example: str) -> None:
    """`InputError` where a launcher is no list of words."""
    if not launcher or isinstance(launcher, str):
        raise InputError(f"launcher is {launcher!r}", valid=f"a list of words, such as {example}")


def _check(
    model: str,
    launcher: Sequence[str],
    data_parallel: int,
    tensor_parallel: int,
    gpu_memory: float | None,
) -> None:
    if not model or model.startswith("-"):
        raise InputError(f"the model to serve is {model!r}", valid="a name on a hub, or a folder")
    check_launcher(launcher, "[vllm, serve]")
    for name, value in (("data_parallel", data_parallel), ("tensor_parallel", tensor_parallel)):
        if value < 1:
            raise InputError(f"{name} is {value}", valid="1 or more devices")
    if gpu_memory is not None and not 0 < gpu_memory <= 1:
        raise InputError(f"gpu_memory is {gpu_memory}", valid="a share above 0, at most 1")
