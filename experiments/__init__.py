"""Experiments: the one place that puts parts together, and the only one that imports Hydra.

`from soundingline.experiments import Experiment` composes `conf/` in Python, and the commands of
`soundingline` (`cli.py`) do so from a command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soundingline.experiments.experiment import Experiment

__all__ = ["Experiment"]


def __getattr__(name: str) -> Any:
    # Lazy, so that a command imports only what it needs.
    if name != "Experiment":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from soundingline.experiments.experiment import Experiment

    return Experiment
