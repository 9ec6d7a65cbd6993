"""What happens when the last cell of a sweep ends: its cells are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from experiments.compare import compare_folders


class SweepReport(Callback):
    """Hydra callback: compares every evaluated cell below `runs/<name>/`.

    Cells meet on disk only, so it does not matter which launcher ran them, or in which session.
    """

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if config.name is None:
            return
        folder = Path(config.paths.runs) / str(config.name)
        cells = sorted(path.parent for path in folder.glob("*/metrics.json"))
        if cells:
            compare_folders(cells, folder, title=str(config.name))
