"""`chosen.yaml`: the setting that a tuning chose, as an option of the group `retriever`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from experiments.schema import without_free
from toolkit.checks import is_number
from toolkit.errors import InputError
from toolkit.evaluation.tuning.ranks import GridPoint
from toolkit.files import write_atomic
from toolkit.masking import masked
from toolkit.runs import RunFolder

NAME = "chosen.yaml"
TUNED = ("unit", "engine")  # the groups whose settings a choice holds for
_AGAIN = "run python -m experiments.tune first, or give retriever.path=runs/<name>"


def write_chosen(
    folder: Path,
    cell: GridPoint,
    depth: int,
    comment: str,
    overrides: Mapping[str, float] | None = None,
) -> Path:
    """Write the option. Copied to `conf/retriever/<name>.yaml` it is one like any other.
    `overrides` of other groups, which were chosen with it, are said in a comment."""
    others = " ".join(f"{key}={value!r}" for key, value in (overrides or {}).items())
    text = (
        f"# {comment}\n"
        + (f"# with {others}\n" if others else "")
        + "_target_: pipelines.retrievers.BM25Retriever\n"
        f"k1: {cell[0]!r}\nb: {cell[1]!r}\ndepth: {depth}\n"
    )
    write_atomic(folder / NAME, text)
    return folder / NAME


def chosen_value(path: str, key: str, *, _root_: Any = None) -> float:
    """The `k1` or `b` that a tuning chose.

    `path` is such a file, a tuning's folder, or the folder of a sweep of tunings; of that, the cell
    is taken that was tuned with the unit and the engine of `_root_`, the configuration, which
    OmegaConf gives. `InputError` where there is none, or where there are several.
    """
    file = _chosen_file(Path(path), _root_)
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, OmegaConfBaseException, YAMLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {file}: {reason}", do=_AGAIN) from error
    value = content.get(key) if isinstance(content, Mapping) else None
    if not is_number(value):
        raise InputError(f"{file} has no {key}", valid="k1 and b as numbers", do=_AGAIN)
    return float(value)


def _chosen_file(path: Path, root: Any) -> Path:
    if not path.is_dir():
        return path
    cells = sorted(file.parent for file in path.glob(f"*/{NAME}"))
    if (path / NAME).exists() or not cells:
        return path / NAME
    wanted = _tuned_for(root)
    matching = [cell for cell in cells if _recorded(cell) == wanted]
    if len(matching) == 1:
        return matching[0] / NAME
    number = f"{len(matching)} tunings" if matching else "no tuning"
    raise InputError(
        f"{path} holds {number} with the unit and the engine of this run",
        valid=", ".join(cell.name for cell in matching or cells),
        do=f"name one of them: retriever.path={path}/..., or tune with this unit and engine",
    )


def _tuned_for(config: Any) -> dict[str, Any]:
    """The settings of unit and engine, for which a choice holds."""
    values = {group: OmegaConf.to_container(config[group], resolve=True) for group in TUNED}
    masked_values: dict[str, Any] = masked(values)
    return {group: without_free(option, group) for group, option in masked_values.items()}


def _recorded(cell: Path) -> dict[str, Any]:
    """The same of a recorded tuning, which is data: nothing in it is resolved."""
    config = RunFolder(cell).manifest().get("config")
    values = config if isinstance(config, dict) else {}
    return {group: without_free(values.get(group), group) for group in TUNED}
