"""Where neural models compute: device, precision, memory, batches, and layers that suit a CPU.

No function imports torch before it needs it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")

DTYPES = ("bfloat16", "float32")
_UNREAD = 1 << 28


def choose_device(name: str | None = None) -> torch.device:
    """The device of that name (`cpu`, `cuda`, `cuda:1`); by default the first GPU, or the CPU if
    there is none. `InputError` if this machine does not have it."""
    torch, gpus = import_optional("torch"), _visible_gpus()
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


def gpu_by_turns(number: int) -> str | None:
    """The GPU of the process of this number, where several are visible; otherwise None."""
    gpus = _visible_gpus()
    return f"cuda:{number % gpus}" if gpus > 1 else None


def _visible_gpus() -> int:
    cuda = import_optional("torch").cuda
    return int(cuda.device_count()) if cuda.is_available() else 0


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """`bfloat16` or `float32`. The default is float32 on a CPU, so that a ranking is the same on
    every CPU, and bfloat16 on a GPU that computes in it (from Ampere on)."""
    if name is None:
        on_gpu = device.type == "cuda" and computes_bfloat16(device)
        name = "bfloat16" if on_gpu else "float32"
    if name not in DTYPES:
        raise InputError(f"dtype={name!r}", valid=f"null, {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(import_optional("torch"), name)
    return dtype


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16 and does not emulate it."""
    torch = import_optional("torch")
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Private in torch 2.13, which has no public function for a CPU.
    names = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)


class Placement:
    """Where a model computes, in which precision, and how many tokens at a time.

    The device and the dtype are chosen at their first use, as `choose_device` and `choose_dtype`
    do. `batch_tokens` of a batch, padding included, are by default the `default_batch_tokens` of
    the type of device. The default of these suits encoders and classifiers: a CPU's caches hold no
    more. A GPU would wait for the launches of a small network: below a billion `parameters` it gets
    more tokens in inverse proportion, four times as many at most.
    """

    default_batch_tokens: Mapping[str, int] = {"cpu": 2048, "cuda": 16_384}
    parameters = 0  # of the network that was loaded to compute here

    def __init__(
        self,
        device: str | None,
        dtype: str | None,
        batch_tokens: int | None = None,
        default_batch_tokens: Mapping[str, int] | None = None,
    ) -> None:
        if batch_tokens is not None:
            check_int("batch_tokens", batch_tokens)
        self._device, self._dtype, self._batch_tokens = device, dtype, batch_tokens
        self.default_batch_tokens = default_batch_tokens or self.default_batch_tokens

    @cached_property
    def device(self) -> torch.device:
        return choose_device(self._device)

    @cached_property
    def dtype(self) -> torch.dtype:
        return choose_dtype(self._dtype, self.device)

    @property
    def precision(self) -> str:
        """`bfloat16` or `float32`. Torch is imported only if it must choose."""
        if self._dtype in DTYPES and self._device in (None, "cpu"):
            return self._dtype
        return str(self.dtype).removeprefix("torch.")

    @property
    def batch_tokens(self) -> int:
        default, on_gpu = self.default_batch_tokens[self.device.type], self.device.type == "cuda"
        times = max(1, min(4, 1e9 / self.parameters)) if on_gpu and self.parameters else 1
        return self._batch_tokens or int(default * times)


class OutOfMemory(InputError):
    """What is computed does not fit into the memory of a device."""


def check_memory(needed: int, device: Any, what: str) -> None:
    """`InputError` with the sizes if `device` has less free memory than `needed` bytes."""
    free = free_bytes(device)
    if needed > free:
        raise InputError(
            f"{what} needs {gigabytes(needed)} and {device} has {gigabytes(free)} free",
            do="choose a smaller model, dtype=bfloat16, or another device",
        )


def free_bytes(device: Any) -> int:
    """The free memory of a device. That of a CPU is the memory of the machine, whatever the limit
    of a container may be."""
    if device.type == "cuda":
        return int(import_optional("torch").cuda.mem_get_info(device)[0])
    return free_memory()


def free_memory() -> int:
    """The bytes of the machine's memory that are free or that its kernel can free."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_disk(path: Path) -> int:
    """The free bytes of the disk on which `path` is, or would be."""
    absolute = path.absolute()
    return shutil.disk_usage(next(p for p in (absolute, *absolute.parents) if p.is_dir())).free


@contextmanager
def within_memory(
    device: Any, what: str, do: str = "set fewer batch_tokens, dtype=bfloat16, or a smaller model"
) -> Iterator[None]:
    """A block whose failing allocations become an `OutOfMemory` with `what` was computed, the free
    memory, and what to `do`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        memory = (MemoryError, import_optional("torch").OutOfMemoryError)
        if not isinstance(error, memory) and "DefaultCPUAllocator" not in str(error):
            raise
        raise OutOfMemory(
            f"{what} does not fit into the memory of {device}, which has "
            f"{gigabytes(free_bytes(device))} free",
            do=do,
        ) from error


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def by_tokens(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Positions of texts in batches of at most `max_tokens` tokens with padding (texts x longest).

    The longest texts come first, so that a batch that does not fit into memory fails at once. A
    text longer than `max_tokens` is a batch by itself.
    """
    check_int("max_tokens", max_tokens)
    batches: list[list[int]] = []
    room = 0
    for position in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        if room == 0:
            batches.append([])
            # The first of a batch is its longest.
            room = max(1, max_tokens // max(1, lengths[position]))
        batches[-1].append(position)
        room -= 1
    return batches


def in_batches(
    compute: Callable[[list[Item]], tuple[Tensor, ...]],
    items: Sequence[Item],
    lengths: Sequence[int],
    max_tokens: int,
    read: Callable[[tuple[Tensor, ...]], Iterable[Result]],
) -> list[Result]:
    """The results in the order of `items`. `compute` is called with the batches of `by_tokens`, and
    `read` with the tensors that it returns, of which it makes one result for each item (otherwise
    `ValueError`).

    On a GPU, which computes while the next batch is prepared, tensors of up to `_UNREAD` bytes are
    read at the same time: a read waits for all that the GPU has to compute.

    After an `OutOfMemory` the batches that are left are made again with half the tokens of the one
    that did not fit, with a notice. A single item that does not fit raises it.
    """
    results: dict[int, Result] = {}
    unread: list[tuple[list[int], tuple[Tensor, ...]]] = []

    def read_all() -> None:
        for positions, tensors in unread:
            results.update(zip(positions, read(tensors), strict=True))
        unread.clear()

    batches = by_tokens(lengths, max_tokens)
    while batches:
        positions = batches.pop(0)
        try:
            tensors = compute([items[position] for position in positions])
        except OutOfMemory:
            if len(positions) == 1:
                raise
            read_all()
            max_tokens = max(1, len(positions) * lengths[positions[0]] // 2)
            notify(
                f"a batch of {len(positions):,} texts did not fit into memory: those that follow "
                f"have at most {max_tokens:,} tokens"
            )
            left = [position for batch in (positions, *batches) for position in batch]
            halved = by_tokens([lengths[position] for position in left], max_tokens)
            batches = [[left[number] for number in batch] for batch in halved]
        else:
            unread.append((positions, tensors))
            held = sum(tensor.nbytes for _, batch in unread for tensor in batch)
            if tensors[0].device.type == "cpu" or held > _UNREAD:
                read_all()
    read_all()
    return [results[position] for position in range(len(items))]


class TokenizedTexts(NamedTuple):
    """Texts as a tokenizer has made them, on the CPU.

    `features`: `input_ids`, `attention_mask` and what else a network takes. Tensors are [texts,
    longest], padded; other values hold for all texts. `lengths`: tokens of each text that the
    network reads, special ones included. `in_front`: whether the padding is.
    """

    features: Any
    lengths: list[int]
    in_front: bool = False

    def batch(self, rows: Sequence[int], device: Any) -> dict[str, Any]:
        """The features of some texts on a device, no wider than the longest of them needs."""
        width = padded_width(max(1, *(self.lengths[row] for row in rows)), device.type)
        columns = slice(-width, None) if self.in_front else slice(width)
        is_tensor = import_optional("torch").is_tensor
        return {
            name: moved(value[rows, columns], device) if is_tensor(value) else value
            for name, value in self.features.items()
        }


def moved(tensor: Tensor, device: Any) -> Tensor:
    """A tensor of the CPU on a device. The copy to a GPU waits for nothing that the GPU computes,
    which one from memory that is not pinned would."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def padded(rows: Sequence[Sequence[int]], pad: int, device: Any) -> dict[str, Tensor]:
    """Token ids, padded at the end by `pad`, and their mask: what a network of transformers
    takes."""
    padded_rows = pad_rows(rows, pad, device.type)
    return {name: moved(value, device) for name, value in padded_rows.items()}


def pad_rows(rows: Sequence[Sequence[int]], pad: int, device_type: str) -> dict[str, Tensor]:
    """The same on the CPU, as wide as on a device of this type."""
    torch = import_optional("torch")
    lengths = list(map(len, rows))
    mask = torch.arange(padded_width(max(lengths), device_type)) < torch.tensor(lengths)[:, None]
    ids = torch.full(mask.shape, pad)
    ids[mask] = torch.tensor(list(chain.from_iterable(rows)))
    return {"input_ids": ids, "attention_mask": mask.long()}


def padded_width(longest: int, device_type: str) -> int:
    """The tokens of each row of a batch on a device of this type: on a GPU a multiple of 8, which
    the fused kernels of attention need of a mask."""
    return -(-longest // 8) * 8 if device_type == "cuda" else longest


def pack_linear_layers(network: Any) -> None:
    """Copy the weights of all linear layers of a network on a CPU into the order in which oneDNN
    multiplies. The results stay the same up to rounding; the layers cannot be trained after that.

    Measured on one thread of an AMD EPYC in float32: monoT5 2.0 times and a cross-encoder 1.85
    times as fast as with torch's own layers.
    """
    import torch

    operators = torch.ops.mkldnn
    if not (
        torch.backends.mkldnn.is_available()
        and hasattr(operators, "_reorder_linear_weight")
        and hasattr(operators, "_linear_pointwise")
    ):
        return

    class PackedLinear(torch.nn.Module):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            weight = layer.weight.detach()
            # transformers reads the dtype of a layer's weight.
            self.weight = weight.new_empty(0)
            self.bias = None if layer.bias is None else layer.bias.detach()
            with torch.inference_mode():
                self.packed = operators._reorder_linear_weight(weight.contiguous())

        def forward(self, states: Tensor) -> Tensor:
            rows = states.reshape(-1, states.shape[-1])
            rows = operators._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
            return rows.view(*states.shape[:-1], rows.shape[-1])

    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear and layer.weight.device.type == "cpu":
                dtype = layer.weight.dtype
                in_bfloat16 = dtype == torch.bfloat16 and computes_bfloat16(layer.weight.device)
                if in_bfloat16 or dtype == torch.float32:
                    setattr(parent, name, PackedLinear(layer))


def in_float32(module: Any) -> Any:
    """The last layer of a network that computes in bfloat16, changed to compute in float32:
    bfloat16 has eight bits, and would give unlike texts the same score."""
    is_tensor = import_optional("torch").is_tensor

    def converted(_: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value.float() if is_tensor(value) else value for value in arguments)

    module.float().register_forward_pre_hook(converted)
    return module
