"""Experiments: the one place that puts parts together, and the only one that imports Hydra.

`Experiment` composes `conf/` in Python and `compare` tests differences of its results; the commands
of `soundingline` (`cli.py`) do so from a command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from soundingline.toolkit.optional import lazy_names

if TYPE_CHECKING:
    from soundingline.experiments.experiment import Experiment
    from soundingline.toolkit.evaluation import compare

__all__ = ["Experiment", "compare"]

# Lazy, so that a command imports only what it needs.
__getattr__, __dir__ = lazy_names(
    __name__, {"Experiment": "experiment", "compare": ".toolkit.evaluation"}
)
