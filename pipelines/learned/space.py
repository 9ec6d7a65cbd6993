"""Whether a disk holds what an encoding will write, told before hours are spent on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from operator import length_hint
from pathlib import Path

import numpy as np

from pipelines.learned.colbert_encoder import STORAGES, ColbertEncoder
from pipelines.learned.encoding import work_folder
from pipelines.neural.checkpoints import gigabytes
from toolkit.contracts import Unit
from toolkit.errors import InputError

_SAMPLE = 1024


def check_space(units: Iterable[Unit], encoder: ColbertEncoder, path: Path) -> None:
    """`InputError` with the sizes where the disk of `path` would not hold the tokens' vectors twice
    (the encoding, and the index that is made of it), judged by the tokens of every n-th unit. Units
    that can be read only once are not judged."""
    if iter(units) is units:
        return
    total = length_hint(units) or sum(1 for _ in units)
    step = max(1, total // _SAMPLE)
    sample = [unit.contents for number, unit in enumerate(units) if number % step == 0]
    if not sample:
        return
    tokens = sum(encoder.lengths(sample)) / len(sample) * total
    token_bytes = encoder.dimensions * np.dtype(STORAGES[encoder.storage]).itemsize
    # What a killed build has left is counted among what is needed, so it counts as free.
    free = shutil.disk_usage(_existing(path)).free + _size(work_folder(path))
    if 2 * tokens * token_bytes > free:
        size, disk = gigabytes(int(tokens * token_bytes)), _existing(path)
        raise InputError(
            f"the vectors of {total} units, about {tokens / total:.0f} tokens each and "
            f"{encoder.dimensions} x {encoder.storage} a token, take {size} and twice that while "
            f"they are made, and the disk of '{disk}' has {gigabytes(free)} free",
            do="re-rank with it instead (reranker=colbert), set storage=float16, choose shorter "
            "units, or another disk",
        )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _existing(path: Path) -> Path:
    return next(folder for folder in path.absolute().parents if folder.is_dir())
