"""Neural models: fingerprints and loading of checkpoints, device, dtype, batches, text windows.

A checkpoint is named by `model`, a name on the Hugging Face hub or a folder, and `revision`, a
branch, tag or commit on the hub. No function imports torch or transformers before it needs them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import file_hash, fingerprint
from soundingline.toolkit.optional import import_optional, without_absent_hub

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")

DTYPES = ("bfloat16", "float32")
# No code of a checkpoint is run, and pickled weights are read by torch's reader of tensors alone.
NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
DATA_ONLY: Mapping[str, Any] = {**NO_CODE, "weights_only": True}
# What pyterrier_t5, pygaggle and docTTTTTquery read their checkpoints with; most of these have no
# tokenizer of their own.
T5_TOKENIZER = "t5-base"
# The files of a folder that change a score.
_CONTENT = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt", "*.jinja")
# Models whose positions begin after the token number of padding.
_COUNTED_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl")
_LENGTH = 512
_UNBOUNDED = 1 << 20  # transformers uses a larger number for a tokenizer without a length
_LIBRARIES = ("huggingface_hub", "transformers", "sentence_transformers", "peft")


def choose_device(name: str | None = None) -> torch.device:
    """The device of that name (`cpu`, `cuda`, `cuda:1`); by default the first GPU, or the CPU if
    there is none. `InputError` if this machine does not have it."""
    torch = import_optional("torch")
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
    do. `batch_tokens` of a batch, padding included, are by default the `busy_tokens` of the type of
    device. The default of these suits encoders and classifiers: a CPU's caches hold no more, and
    more makes no GPU faster.
    """

    busy_tokens: Mapping[str, int] = {"cpu": 2048, "cuda": 16_384}

    def __init__(
        self,
        device: str | None,
        dtype: str | None,
        batch_tokens: int | None = None,
        busy_tokens: Mapping[str, int] | None = None,
    ) -> None:
        if batch_tokens is not None:
            check_int("batch_tokens", batch_tokens)
        self._device, self._dtype, self._batch_tokens = device, dtype, batch_tokens
        self.busy_tokens = busy_tokens or self.busy_tokens

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
        return self._batch_tokens or self.busy_tokens[self.device.type]


@contextmanager
def opening(model: str) -> Iterator[None]:
    """A block that reads a checkpoint: `InputError` in one line if that fails, and no output of the
    libraries. It does not check that all weights are there."""
    folder = Path(model)
    as_path = folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1
    if as_path and not folder.is_dir():
        raise InputError(f"there is no folder '{model}' with a model", do="check the path")
    damaged = import_optional("safetensors").SafetensorError
    import_optional("huggingface_hub.utils")  # which sets its logger's level when it is imported
    fault = ""
    try:
        with _quiet(), nullcontext("") if folder.is_dir() else without_absent_hub() as fault:
            yield
    except (OSError, ValueError, UnpicklingError, damaged) as error:
        reason = fault or str(error).strip().partition("\n")[0]
        where, do = "in that folder", "give a folder that save_pretrained has written"
        if not folder.is_dir():
            where = "neither on this machine nor to be downloaded"
            do = (
                f"run `hf download {model}` on a machine with network, and copy it or its cache "
                "(HF_HOME) here; or give the path of a folder"
            )
        refusal = InputError(f"the model '{model}' cannot be loaded, {where} ({reason})", do=do)
        refusal.shared_cause = fault
        raise refusal from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of the libraries and, if stderr is no terminal, without progress bars."""
    with ExitStack() as after, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in map(logging.getLogger, _LIBRARIES):
            after.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if not sys.stderr.isatty():
            hub = import_optional("huggingface_hub.utils")
            if not hub.are_progress_bars_disabled():
                after.callback(hub.enable_progress_bars)
                hub.disable_progress_bars()
            # Not imported here: reading a file of a checkpoint does not need transformers.
            bars = sys.modules.get("transformers.utils.logging")
            if bars and bars.is_progress_bar_enabled():
                after.callback(bars.enable_progress_bar)
                bars.disable_progress_bar()
        yield


def checkpoint_config(model: str, revision: str | None = None) -> Any:
    """The transformers configuration of a checkpoint; `InputError` if it cannot be loaded."""
    transformers = import_optional("transformers")
    with opening(model):
        return transformers.AutoConfig.from_pretrained(model, revision=revision, **NO_CODE)


def stored_config(model: str, revision: str | None = None) -> SimpleNamespace:
    """The values of a checkpoint's config.json, without the defaults that transformers adds and
    without importing it. `InputError` if it cannot be read."""
    with opening(model):
        values = json.loads(_file(model, "config.json", revision).read_text("utf-8"))
        if not isinstance(values, dict):
            raise ValueError("config.json holds no object")
    return SimpleNamespace(**values)


def stored_file(model: str, name: str, revision: str | None = None) -> Path | None:
    """A file of a checkpoint; None if the checkpoint does not have it or does not exist.
    `InputError` if that cannot be determined."""
    absent = import_optional("huggingface_hub.errors").EntryNotFoundError
    with opening(model):
        try:
            path = _file(model, name, revision)
        except absent:
            return None
    return path if path.exists() else None


def _file(model: str, name: str, revision: str | None) -> Path:
    if Path(model).is_dir():
        return Path(model, name)
    hub = import_optional("huggingface_hub.file_download")
    return Path(hub.hf_hub_download(model, name, revision=revision))


def checkpoint_fingerprint(model: str, revision: str | None = None) -> str:
    """The identity of a checkpoint for the keys of indexes and caches: the commit on the hub, or a
    hash over the files of a folder. Reads no weights into memory."""
    folder = Path(model)
    if not folder.is_dir():
        with opening(model):
            path = _file(model, "config.json", revision)
        # <cache>/models--<name>/snapshots/<commit>/config.json
        return f"{model}@{path.parent.name}"
    files = tuple(sorted({path for pattern in _CONTENT for path in folder.rglob(pattern)}))
    stats = [path.stat() for path in files]
    # A copy may keep the size and the mtime of the content, but not the ctime.
    states = tuple((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats)
    return _folder_hash(folder, files, states)


@lru_cache(maxsize=64)
def _folder_hash(folder: Path, files: tuple[Path, ...], states: Any) -> str:
    names = [path.relative_to(folder).as_posix() for path in files]
    return fingerprint(names, file_hash(*files))


def check_kind(config: Any, model: str, kinds: tuple[str, ...], what: str) -> None:
    """`InputError` if a checkpoint has another architecture (`model_type`) than `what` needs."""
    kind = getattr(config, "model_type", None)
    if kind not in kinds:
        raise InputError(
            f"{what} was given '{model}', a model of the kind {kind}",
            valid=f"a checkpoint of the kind {' or '.join(kinds)}",
            do="choose a checkpoint that was trained for it",
        )


def positions(config: Any) -> int | None:
    """The most tokens that a checkpoint reads; None if its positions are relative."""
    count: int | None = getattr(config, "max_position_embeddings", None)
    if count is not None and getattr(config, "model_type", None) in _COUNTED_FROM_PADDING:
        return count - (getattr(config, "pad_token_id", None) or 1) - 1
    return count


def check_length(config: Any, model: str, tokens: int, setting: str = "max_length") -> None:
    """`InputError` if a checkpoint has fewer positions than `tokens`."""
    most = positions(config)
    if most is not None and tokens > most:
        raise InputError(
            f"{setting}={tokens} with '{model}'",
            valid=f"at most {most}, the positions of this model",
            do=f"set {setting}={most} or less",
        )


def own_length(config: Any, tokenizer_length: float | None) -> int:
    """Tokens for which a checkpoint was made: the `model_max_length` of its tokenizer, at most its
    positions, and 512 if it has neither."""
    bounds = (tokenizer_length, positions(config))
    return min(
        (int(length) for length in bounds if length and length < _UNBOUNDED), default=_LENGTH
    )


def weight_bytes(model: str, revision: str | None = None) -> int | None:
    """Bytes of the weight files of a folder or of the hub's cache; None if that is unknown."""
    folder = Path(model)
    if not folder.is_dir():
        hub = import_optional("huggingface_hub")
        config = hub.try_to_load_from_cache(model, "config.json", revision=revision)
        if not isinstance(config, str):
            return None
        folder = Path(config).parent
    weights = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    return sum(path.stat().st_size for path in weights) or None


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
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def within_memory(
    device: Any,
    what: str,
    do: str = "set fewer batch_tokens, dtype=bfloat16, or a smaller model",
) -> Iterator[None]:
    """A block whose failing allocations become an `InputError` with `what` was computed, the free
    memory, and what to `do`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        memory = (MemoryError, import_optional("torch").OutOfMemoryError)
        if not isinstance(error, memory) and "DefaultCPUAllocator" not in str(error):
            raise
        raise InputError(
            f"{what} does not fit into the memory of {device}, which has "
            f"{gigabytes(free_bytes(device))} free",
            do=do,
        ) from error


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


class Checkpoint:
    """A whole checkpoint, or a LoRA adapter that is merged into its base when it is loaded.
    Constructing one reads nothing.

    Args:
        model: The checkpoint or the adapter, in its `revision`.
        base: The checkpoint of the adapter. The default is the one that the adapter names.
        automatic: The class of transformers that makes the network.
        more: Further arguments of that class's `from_pretrained`.
    """

    def __init__(
        self,
        model: str,
        base: str | None = None,
        revision: str | None = None,
        *,
        automatic: str = "AutoModel",
        **more: Any,
    ) -> None:
        self.model, self.revision = model, revision
        self._base, self._automatic, self._more = base, automatic, more

    @property
    def adapted(self) -> bool:
        """Whether `model` is an adapter."""
        return self._adapter is not None

    @cached_property
    def whole(self) -> str:
        """The checkpoint with configuration and tokenizer: `model`, or the base of the adapter.
        `InputError` if there is a base and no adapter."""
        if self._adapter is None:
            if self._base is not None:
                raise InputError(
                    f"base='{self._base}' is set, and '{self.model}' is no adapter",
                    do="set base=null, or name a checkpoint with an adapter_config.json",
                )
            return self.model
        import_optional("peft")
        if self._base is not None:
            return self._base
        named = json.loads(self._adapter.read_text("utf-8")).get("base_model_name_or_path")
        if not named:
            raise InputError(
                f"the adapter '{self.model}' does not say what it adapts", do="set base to it"
            )
        return str(named)

    @cached_property
    def config(self) -> Any:
        return checkpoint_config(self.whole, self._whole_revision)

    @cached_property
    def stored_config(self) -> Any:
        """The configuration as it is stored, without importing transformers."""
        return stored_config(self.whole, self._whole_revision)

    @property
    def fingerprint(self) -> str:
        """The identity of all files that the weights come from."""
        base = checkpoint_fingerprint(self.whole, self._whole_revision)
        if self._adapter is None:
            return base
        if Path(self.model).is_dir():
            return f"{checkpoint_fingerprint(self.model)} on {base}"
        # <cache>/models--<name>/snapshots/<commit>/adapter_config.json
        return f"{self.model}@{self._adapter.parent.name} on {base}"

    def tokenizer(self) -> Any:
        with opening(self.whole):
            return import_optional("transformers").AutoTokenizer.from_pretrained(
                self.whole, revision=self._whole_revision, **NO_CODE
            )

    def check_fits(self, device: torch.device, dtype: torch.dtype) -> None:
        """`InputError` if the weights do not fit into the free memory of `device`."""
        automatic = getattr(import_optional("transformers"), self._automatic)
        with import_optional("torch").device("meta"):
            weights = automatic.from_config(self.config, dtype=dtype).parameters()
        needed = sum(each.numel() * each.element_size() for each in weights)
        check_memory(needed, device, f"the model '{self.whole}'")

    def load(
        self, device: torch.device, dtype: torch.dtype, absent: Sequence[str] = ()
    ) -> tuple[Any, set[str]]:
        """The network in evaluation mode on `device`, and the names of the weights that the
        checkpoint does not have, which are random.

        `InputError` if such a name does not begin with one of `absent`, if the adapter belongs to
        another base, and if the network does not fit into memory.
        """
        what = f"the model '{self.whole}'"
        self.check_fits(device, dtype)
        with opening(self.whole), within_memory(device, what):
            automatic = getattr(import_optional("transformers"), self._automatic)
            network, report = automatic.from_pretrained(
                self.whole,
                revision=self._whole_revision,
                dtype=dtype,
                output_loading_info=True,
                **DATA_ONLY,
                **self._more,
            )
        missing = set(report["missing_keys"])
        if unexpected := sorted(name for name in missing if not name.startswith(tuple(absent))):
            raise InputError(
                f"'{self.whole}' has no weights for {', '.join(unexpected[:3])}",
                valid="a checkpoint with all weights of its kind",
                do="choose a checkpoint that was trained for this",
            )
        if self._adapter is not None:
            network = self._merged(network, missing)
        with within_memory(device, what):
            return network.to(device).eval(), missing

    def _merged(self, network: Any, missing: Iterable[str]) -> Any:
        for name in missing:
            # Random so far. If they are still zero later, the adapter does not have them either.
            network.get_parameter(name).data.zero_()
        with opening(self.model):
            adapted = import_optional("peft").PeftModel.from_pretrained(
                network, self.model, revision=self.revision
            )
        rows = [weight for name, weight in adapted.named_parameters() if ".lora_B." in name]
        # peft only warns of layers without weights in the adapter, which stay zero.
        if not all(bool(weight.any()) for weight in rows):
            raise InputError(
                f"the adapter '{self.model}' is not one of '{self.whole}': layers are without it",
                valid="the base that its adapter_config.json names, or a copy of that",
                do="set base to it",
            )
        return adapted.merge_and_unload()

    @cached_property
    def _adapter(self) -> Path | None:
        return stored_file(self.model, "adapter_config.json", self.revision)

    @property
    def _whole_revision(self) -> str | None:
        return self.revision if self._adapter is None else None


def stored_weights(model: str, revision: str | None = None) -> set[str]:
    """The names of the weights in the files of a checkpoint. Reads no weights into memory."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if path := stored_file(model, index, revision):
            return set(json.loads(path.read_text("utf-8"))["weight_map"])
    if path := stored_file(model, "model.safetensors", revision):
        with import_optional("safetensors").safe_open(path, "pt") as weights:
            return set(weights.keys())
    path = stored_file(model, "pytorch_model.bin", revision)
    return set(import_optional("torch").load(path, weights_only=True, map_location="meta"))


def t5_tokenizer(model: str, revision: str | None, tokenizer: str | None, vocabulary: int) -> Any:
    """The tokenizer of a T5 checkpoint: `tokenizer` (a name or a folder), by default the
    `tokenizer.json` of the checkpoint, otherwise that of T5. `InputError` if there is none, and if
    it has more tokens than the `vocabulary` of the checkpoint."""
    transformers = import_optional("transformers")
    if tokenizer or stored_file(model, "tokenizer.json", revision):
        source, own_revision = (tokenizer, None) if tokenizer else (model, revision)
        with opening(source):
            opened = transformers.AutoTokenizer.from_pretrained(
                source, revision=own_revision, **NO_CODE
            )
    else:
        source = T5_TOKENIZER
        # Without files, the class of T5 makes an empty vocabulary and raises no error.
        if not stored_file(source, "tokenizer.json"):
            raise InputError(
                f"'{model}' brings no tokenizer.json, and T5's tokenizer cannot be loaded",
                do=f"run `hf download {T5_TOKENIZER} --include 'tokenizer*'` on a machine with "
                "network, or set tokenizer to a folder that holds T5's",
            )
        # AutoTokenizer needs a config.json, which pyterrier_t5 does not download.
        opened = transformers.T5Tokenizer.from_pretrained(source)
    if len(opened) > vocabulary:
        raise InputError(
            f"the tokenizer '{source}' has {len(opened)} tokens, and '{model}' knows {vocabulary}",
            do="set tokenizer to the one that the model was trained with",
        )
    return opened


def pack_linear_layers(network: Any) -> None:
    """Copy the weights of all linear layers of a network on a CPU into the order in which oneDNN
    multiplies. The results stay the same up to rounding; the layers cannot be trained after that.

    Measured on one thread of an AMD EPYC in float32: monoT5 2.0 times and a cross-encoder 1.85
    times as fast as with torch's own layers.
    """
    torch = import_optional("torch")
    operators = torch.ops.mkldnn
    if not (
        torch.backends.mkldnn.is_available()
        and hasattr(operators, "_reorder_linear_weight")
        and hasattr(operators, "_linear_pointwise")
    ):
        return

    class PackedLinear(torch.nn.Module):  # type: ignore[misc, name-defined]
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
    compute: Callable[[list[Item]], Iterable[Result]],
    items: Sequence[Item],
    lengths: Sequence[int],
    max_tokens: int,
) -> list[Result]:
    """The results of `compute` in the order of `items`. It is called with the batches of
    `by_tokens` and returns one result for each item (otherwise `ValueError`)."""
    results: dict[int, Result] = {}
    for positions in by_tokens(lengths, max_tokens):
        batch_results = compute([items[position] for position in positions])
        results.update(zip(positions, batch_results, strict=True))
    return [results[position] for position in range(len(items))]


def padded(rows: Sequence[Sequence[int]], pad: int, device: Any) -> dict[str, Tensor]:
    """Token ids, padded behind by `pad`, and their mask: what a network of transformers takes."""
    torch = import_optional("torch")
    lengths = torch.tensor([len(row) for row in rows])
    pad_sequence = torch.nn.utils.rnn.pad_sequence
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def readable(text: str) -> str:
    """`text` with a `?` for each lone surrogate: JSON can hold them, tokenizers reject them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def least_window(max_length: int) -> int:
    """The fewest tokens of a window if `max_length` tokens hold a query and the window. A text is
    not split if the query leaves less room."""
    return max(1, max_length // 8)


def cut(text: str, begins: Sequence[int], size: int) -> list[str]:
    """Split `text` into pieces of at most `size` of its tokens, which begin at the characters
    `begins`. Joined, the pieces are `text`. It is cut before a word if one begins in the piece,
    otherwise within the word, and never between tokens that begin at the same character."""
    pieces, begin, first = [], 0, 0
    while len(begins) - first > size:
        last = first + size
        words = (token for token in range(last, first, -1) if _opens_word(text, begins[token]))
        after = next(words, last)
        while after > first + 1 and begins[after - 1] == begins[after]:
            after -= 1
        while after < len(begins) and begins[after] <= begin:
            after += 1
        if after == len(begins):
            break
        end = begins[after]
        pieces.append(text[begin:end])
        begin, first = end, after
    return [*pieces, text[begin:]]


def fitting(
    text: str,
    room: int,
    begins: Callable[[str], Sequence[int]],
    sizes: Callable[[Sequence[str]], Iterable[int]],
    aim: int | None = None,
) -> list[str]:
    """Split `text` as `cut` does, into pieces that each have at most `room` tokens by themselves or
    cannot be cut further.

    `begins` gives the characters at which the tokens of a text begin, `sizes` the number of tokens
    of each text by itself, and `aim` is that of a piece within `text`, at first `room`.
    """
    aim = aim or room
    pieces, fitted = cut(text, begins(text), aim), []
    for piece, size in zip(pieces, sizes(pieces), strict=True):
        # A piece can have more tokens by itself than in the text.
        smaller = size > room and aim > 1
        fitted += fitting(piece, room, begins, sizes, aim * 3 // 4) if smaller else [piece]
    return fitted


def taken_off(text: str, front: Callable[[str], str]) -> list[str]:
    """`text` in pieces between which white space is left out: what `front` gives of the rest, again
    and again. One piece at least, which is empty for a text without a word."""
    pieces = []
    rest = text.strip()
    while rest:
        pieces.append(front(rest))
        rest = rest[len(pieces[-1]) :].lstrip()
    return pieces or [""]


def _opens_word(text: str, position: int) -> bool:
    # The tokens of some models begin with the space before the word.
    return text[position].isspace() or text[position - 1].isspace()
