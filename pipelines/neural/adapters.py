"""Checkpoints that are whole, or a LoRA adapter that is merged into its base when it is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.neural.checkpoints import (
    DATA_ONLY,
    NO_CODE,
    check_memory,
    checkpoint_config,
    checkpoint_fingerprint,
    opening,
    stored_config,
    stored_file,
    within_memory,
)
from toolkit.errors import InputError
from toolkit.extras import require

if TYPE_CHECKING:
    import torch


class Checkpoint:
    """`model` (a name on the hub or a folder; `revision` is its) and, where that is an adapter,
    `base`: what it adapts; None: what the adapter itself names. Making one reads nothing.

    `automatic` is the class of transformers that makes the network, `more` its arguments.
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
        """The checkpoint that has configuration and tokenizer: `model`, or the adapter's base.
        `InputError` for a base without an adapter."""
        if self._adapter is None:
            if self._base is not None:
                raise InputError(
                    f"base='{self._base}' is given, and '{self.model}' is no adapter",
                    do="set base=null, or name a checkpoint with an adapter_config.json",
                )
            return self.model
        require("peft")
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
        """The configuration of what is adapted, or of the whole."""
        return checkpoint_config(self.whole, self._whole_revision)

    @cached_property
    def stored_config(self) -> Any:
        """The same as it is stored, without importing transformers."""
        return stored_config(self.whole, self._whole_revision)

    @property
    def fingerprint(self) -> str:
        """Of all files that the weights come from."""
        base = checkpoint_fingerprint(self.whole, self._whole_revision)
        if self._adapter is None:
            return base
        if Path(self.model).is_dir():
            return f"{checkpoint_fingerprint(self.model)} on {base}"
        # <cache>/models--<name>/snapshots/<commit>/adapter_config.json
        return f"{self.model}@{self._adapter.parent.name} on {base}"

    def tokenizer(self) -> Any:
        with opening(self.whole):
            return require("transformers").AutoTokenizer.from_pretrained(
                self.whole, revision=self._whole_revision, **NO_CODE
            )

    def load(
        self, device: torch.device, dtype: torch.dtype, absent: Sequence[str] = ()
    ) -> tuple[Any, set[str]]:
        """The network, ready to compute, and the names of weights that its checkpoint lacks and
        that are random therefore; `InputError` for one whose name does not begin like one of
        `absent`, for an adapter of something else, and where it does not fit in memory."""
        automatic = getattr(require("transformers"), self._automatic)
        what = f"the model '{self.whole}'"
        check_memory(self._bytes(automatic, dtype), device, what)
        with opening(self.whole), within_memory(device, what):
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
            network = self._merged(network, sorted(missing))
        with within_memory(device, what):
            return network.to(device).eval(), missing

    def _merged(self, network: Any, missing: Sequence[str]) -> Any:
        for name in missing:
            # Random so far; zeros show whether the adapter has it.
            network.get_parameter(name).data.zero_()
        with opening(self.model):
            adapted = require("peft").PeftModel.from_pretrained(
                network, self.model, revision=self.revision
            )
        rows = [weight for name, weight in adapted.named_parameters() if ".lora_B." in name]
        # Zero where nothing was loaded: the library only warns of that.
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

    def _bytes(self, automatic: Any, dtype: torch.dtype) -> int:
        with require("torch").device("meta"):
            shapes = automatic.from_config(self.config, dtype=dtype)
        return sum(weights.numel() * weights.element_size() for weights in shapes.parameters())
