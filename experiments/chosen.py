"""`chosen.yaml`: the cell that a tuning chose, as an option of the group `retriever`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from toolkit.errors import InputError
from toolkit.evaluation.tuning.ranks import Cell
from toolkit.files import write_atomic

NAME = "chosen.yaml"
_AGAIN = "run python -m experiments.tune first, or give retriever.path=runs/<name>"


def write_chosen(folder: Path, cell: Cell, depth: int, said: str) -> Path:
    """Write the option. Copied to `conf/retriever/<name>.yaml` it is one like any other."""
    text = (
        f"# {said}\n"
        "_target_: pipelines.retrievers.BM25Retriever\n"
        f"k1: {cell[0]!r}\nb: {cell[1]!r}\ndepth: {depth}\n"
    )
    write_atomic(folder / NAME, text)
    return folder / NAME


def chosen_value(path: str, key: str) -> float:
    """The `k1` or `b` of such a file, or of the one in a tuning's folder; `InputError` where there
    is none."""
    file = Path(path) / NAME if Path(path).is_dir() else Path(path)
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, OmegaConfBaseException, YAMLError) as error:
        told = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {file}: {told}", do=_AGAIN) from error
    value = content.get(key) if isinstance(content, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{file} has no {key}", valid="k1 and b as numbers", do=_AGAIN)
    return float(value)
