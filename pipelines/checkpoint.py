"""Checkpoints of neural models: files, fingerprints, kinds, lengths, tokenizers, and loading.

A checkpoint is named by `model`, a name on the Hugging Face hub or a folder, and `revision`, a
branch, tag or commit on the hub. No function imports torch or transformers before it needs them.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property, lru_cache
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from soundingline.pipelines.device import Placement, check_memory, within_memory
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import file_hash, fingerprint
from soundingline.toolkit.json_text import decode_json
from soundingline.toolkit.optional import import_optional, without_absent_hub

if TYPE_CHECKING:
    import torch

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


@contextmanager
def loading_checkpoint(model: str) -> Iterator[None]:
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
    """Without warnings of the libraries and, if stderr is not a terminal, without progress bars."""
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


def stored_file(model: str, name: str, revision: str | None = None) -> Path | None:
    """A file of a checkpoint; None if the checkpoint does not have it or does not exist.
    `InputError` if that cannot be determined."""
    absent = import_optional("huggingface_hub.errors").EntryNotFoundError
    with loading_checkpoint(model):
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
        with loading_checkpoint(model):
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


def positions(config: Any) -> int | None:
    """The most tokens that a checkpoint reads; None if its positions are relative."""
    count: int | None = getattr(config, "max_position_embeddings", None)
    if count is not None and getattr(config, "model_type", None) in _COUNTED_FROM_PADDING:
        return count - (getattr(config, "pad_token_id", None) or 1) - 1
    return count


def own_length(config: Any, tokenizer_length: float | None) -> int:
    """Tokens for which a checkpoint was made: the `model_max_length` of its tokenizer, at most its
    positions, and 512 if it has neither."""
    bounds = (tokenizer_length, positions(config))
    return min(
        (int(length) for length in bounds if length and length < _UNBOUNDED), default=_LENGTH
    )


class CheckpointKind(NamedTuple):
    """What a model needs its checkpoint to be, which is checked before any weights are read.

    `fits` says whether a checkpoint is of the kind, `otherwise` what is said of one that is not.
    `reader` is the class of `library` that reads it: a network of transformers, or a model of
    sentence_transformers. A checkpoint may be without the weights whose names begin with one of
    `unused`.
    """

    reader: str
    fits: Callable[[Checkpoint], object]
    otherwise: str
    valid: str
    do: str = "choose a checkpoint that was trained for this"
    library: str = "transformers"
    unused: tuple[str, ...] = ("pooler.",)


class Checkpoint:
    """A whole checkpoint, or a LoRA adapter that is merged into its base when it is loaded.
    Constructing one reads nothing.

    Args:
        kind: What the checkpoint must be.
        model: The checkpoint or the adapter, in its `revision`.
        base: The checkpoint of the adapter. The default is the one that the adapter names.
        more: Further arguments of the `from_pretrained` of the kind's `reader`.
    """

    def __init__(
        self,
        kind: CheckpointKind,
        model: str,
        revision: str | None = None,
        base: str | None = None,
        **more: Any,
    ) -> None:
        self.kind, self.model, self.revision = kind, model, revision
        self._base, self._more = base, more

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
                    f"base='{self._base}' is set, and '{self.model}' is not an adapter",
                    do="set base=null, or name a checkpoint with an adapter_config.json",
                )
            return self.model
        import_optional("peft")
        if self._base is not None:
            return self._base
        named = self.stored_json("adapter_config.json").get("base_model_name_or_path")
        if not named:
            raise InputError(
                f"the adapter '{self.model}' does not say what it adapts", do="set base to it"
            )
        return str(named)

    @cached_property
    def config(self) -> Any:
        """The configuration of transformers."""
        transformers = import_optional("transformers")
        with loading_checkpoint(self.whole):
            return transformers.AutoConfig.from_pretrained(
                self.whole, revision=self._whole_revision, **NO_CODE
            )

    @cached_property
    def stored_config(self) -> SimpleNamespace:
        """The values of config.json, without the defaults that transformers adds and without
        importing it."""
        with loading_checkpoint(self.whole):
            path = _file(self.whole, "config.json", self._whole_revision)
            values = decode_json(path.read_text("utf-8"))
            if not isinstance(values, dict):
                raise ValueError("config.json holds no object")
        return SimpleNamespace(**values)

    def stored_json(self, name: str) -> Any:
        """The content of a JSON file of `model`; an empty dict if it does not have the file."""
        path = stored_file(self.model, name, self.revision)
        with loading_checkpoint(self.model):
            return decode_json(path.read_text("utf-8")) if path else {}

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
        with loading_checkpoint(self.whole):
            return import_optional("transformers").AutoTokenizer.from_pretrained(
                self.whole, revision=self._whole_revision, **NO_CODE
            )

    @property
    def model_type(self) -> str:
        """The name of the architecture; empty if config.json has none."""
        return getattr(self.stored_config, "model_type", None) or ""

    @property
    def architectures(self) -> Sequence[str]:
        """The classes of transformers that config.json names."""
        return getattr(self.stored_config, "architectures", None) or []

    def checked(self, **lengths: int | None) -> Checkpoint:
        """This checkpoint. `InputError` if it is of another kind, or has fewer positions than one
        of the `lengths`, which are named as the settings are."""
        if not self.kind.fits(self):
            found = [*self.architectures] or ["no architecture"]
            if labels := getattr(self.stored_config, "id2label", None):
                found.append(f"{len(labels)} labels")
            raise InputError(
                f"'{self.whole}' {self.kind.otherwise} (it is of the kind "
                f"{self.model_type or 'none'}: {', '.join(found)})",
                valid=self.kind.valid,
                do=self.kind.do,
            )
        given = {setting: tokens for setting, tokens in lengths.items() if tokens is not None}
        most = positions(self.stored_config) if given else None
        for setting, tokens in given.items():
            if most is not None and tokens > most:
                raise InputError(
                    f"{setting}={tokens} with '{self.whole}'",
                    valid=f"at most {most}, the positions of this model",
                    do=f"set {setting}={most} or less",
                )
        return self

    def load(self, place: Placement, *, new_head: bool = False) -> Any:
        """What the kind's `reader` reads, in evaluation mode, on the device and in the dtype; its
        size becomes the `parameters` of `place`.

        `InputError` if the checkpoint is of another kind, is without weights, which transformers
        would make random, or does not fit into memory, and if an adapter belongs to another base.
        With `new_head`, the layers on top of the body may be random.
        """
        self.checked()
        reader = getattr(import_optional(self.kind.library), self.kind.reader)
        of_transformers, what = self.kind.library == "transformers", f"the model '{self.whole}'"
        check_memory(
            self._network_bytes(reader, place.dtype) if of_transformers else self.weight_bytes(),
            place.device,
            what,
        )
        with loading_checkpoint(self.whole), within_memory(place.device, what):
            read = self._from_transformers if of_transformers else self._from_library
            model, report = read(reader, place)
        absent = {name for name in report["missing_keys"] if not name.startswith(self.kind.unused)}
        if new_head:
            body = f"{model.base_model_prefix}."
            absent = {name for name in absent if name.startswith(body) and ".pooler." not in name}
        if self._adapter is not None and of_transformers:
            model, absent = self._merged(model, absent)
        if absent:
            raise InputError(
                f"'{self.model}' has no weights for {', '.join(sorted(absent)[:3])}",
                valid="a checkpoint with all weights of its kind",
                do="choose a checkpoint that was trained for this",
            )
        place.parameters = sum(weight.numel() for weight in model.parameters())
        with within_memory(place.device, what):
            return model.to(place.device).eval()

    def weight_bytes(self) -> int:
        """Bytes of the weight files in the folder or in the hub's cache; 0 without any."""
        with loading_checkpoint(self.model):
            named = self._adapter or _file(self.model, "config.json", self.revision)
        folder = named.parent
        weights = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
        return sum(path.stat().st_size for path in weights)

    def _network_bytes(self, reader: Any, dtype: torch.dtype) -> int:
        with import_optional("torch").device("meta"):
            weights = reader.from_config(self.config, dtype=dtype).parameters()
        return sum(each.numel() * each.element_size() for each in weights)

    def _from_transformers(self, reader: Any, place: Placement) -> Any:
        """The network, read onto the device in its dtype, and transformers' report of its
        weights."""
        return reader.from_pretrained(
            self.whole,
            revision=self._whole_revision,
            dtype=place.dtype,
            device_map={"": place.device},
            output_loading_info=True,
            **DATA_ONLY,
            **self._more,
        )

    def _from_library(self, reader: Any, place: Placement) -> Any:
        """The model of sentence-transformers, and transformers' report of its network's weights."""
        model = reader(
            self.model,
            revision=self.revision,
            device=str(place.device),
            model_kwargs={"dtype": place.dtype},
            **NO_CODE,
        )
        network = model.transformers_model
        if network is None or self._adapter is not None:
            return model, {"missing_keys": ()}
        # The library has read the weights without the report. This reads their names alone.
        modules = self.stored_json("modules.json")
        _, report = type(network).from_pretrained(
            self.model,
            revision=self.revision,
            subfolder=modules[0]["path"] if modules else "",
            device_map="meta",
            output_loading_info=True,
            **DATA_ONLY,
        )
        return model, report

    def _merged(self, network: Any, absent: Iterable[str]) -> tuple[Any, set[str]]:
        """The network with the adapter, and which of the `absent` weights it is still without."""
        for name in absent:
            # Random so far. If they are still zero later, the adapter does not have them either.
            network.get_parameter(name).data.zero_()
        with loading_checkpoint(self.model):
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
        merged = adapted.merge_and_unload()
        return merged, {name for name in absent if not merged.get_parameter(name).any()}

    @cached_property
    def _adapter(self) -> Path | None:
        return stored_file(self.model, "adapter_config.json", self.revision)

    @property
    def _whole_revision(self) -> str | None:
        return self.revision if self._adapter is None else None


# The kinds that several models share.
BODY = CheckpointKind("AutoModel", lambda _: True, "", "any encoder or decoder")
T5 = CheckpointKind(
    "AutoModelForSeq2SeqLM",
    lambda checkpoint: checkpoint.model_type == "t5",
    "is not a T5",
    "a checkpoint of the kind t5, of an encoder and a decoder",
)


def t5_tokenizer(checkpoint: Checkpoint, tokenizer: str | None) -> Any:
    """The tokenizer of a T5 checkpoint: `tokenizer` (a name or a folder), by default the
    `tokenizer.json` of the checkpoint, otherwise that of T5. `InputError` if there is none, and if
    it has more tokens than the vocabulary of the checkpoint."""
    transformers = import_optional("transformers")
    model, revision = checkpoint.model, checkpoint.revision
    vocabulary = checkpoint.config.vocab_size
    if tokenizer or stored_file(model, "tokenizer.json", revision):
        source, own_revision = (tokenizer, None) if tokenizer else (model, revision)
        with loading_checkpoint(source):
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
