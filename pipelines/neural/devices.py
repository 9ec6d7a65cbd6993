"""Where a model computes, and in which precision."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from toolkit.errors import InputError
from toolkit.extras import require

if TYPE_CHECKING:
    import torch

DTYPES = ("bfloat16", "float32")


def choose_device(name: str | None = None) -> torch.device:
    """The device of that name (`cpu`, `cuda`, `cuda:1`); None: the first GPU, or the CPU where
    there is none. `InputError` for one that this machine lacks."""
    torch = require("torch")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None:
        return torch.device("cuda" if gpus else "cpu")
    valid = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{number}" for number in range(gpus))]
    if name not in valid:
        raise InputError(
            f"device={name!r} is not on this machine",
            valid=f"null, {', '.join(valid)}",
            do="set device=null, which takes a GPU where there is one",
        )
    return torch.device(name)


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """`bfloat16` or `float32`; None: bfloat16 where the device computes in it (GPUs from Ampere on;
    CPUs with AMX or AVX512-BF16), float32 elsewhere."""
    if name is None:
        name = "bfloat16" if computes_bfloat16(device) else "float32"
    if name not in DTYPES:
        raise InputError(f"dtype={name!r}", valid=f"null, {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(require("torch"), name)
    return dtype


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16, rather than emulating it."""
    torch = require("torch")
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Private in torch 2.13, and the only place that asks the CPU.
    names = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)


class Placed:
    """`device` and `dtype` of a model, chosen when they are first asked for, by the rules above."""

    def __init__(self, device: str | None, dtype: str | None) -> None:
        self._device, self._dtype = device, dtype

    @cached_property
    def device(self) -> torch.device:
        return choose_device(self._device)

    @cached_property
    def dtype(self) -> torch.dtype:
        return choose_dtype(self._dtype, self.device)

    @property
    def precision(self) -> str:
        """`bfloat16` or `float32`. Only a dtype or GPU to be found out needs torch."""
        if self._dtype in DTYPES and self._device in (None, "cpu"):
            return self._dtype
        return str(self.dtype).removeprefix("torch.")
