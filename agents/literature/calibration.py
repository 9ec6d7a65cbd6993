"""From a scorer's probability to the share of documents that met their question at it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint

METHODS = ("isotonic", "platt")


class Calibration:
    """What `soundingline calibrate` has fitted: `path` is its file. `scorer` is the
    fingerprint of the scorer that it was fitted for. `InputError` where the file cannot be read."""

    def __init__(self, path: str) -> None:
        try:
            self._fitted: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            self.method = str(self._fitted["method"])
            self.scorer = str(self._fitted.get("scorer", ""))
            if self.method == "isotonic":
                self._x = [float(value) for value in self._fitted["x"]]
                self._y = [float(value) for value in self._fitted["y"]]
                if not self._x or len(self._x) != len(self._y) or sorted(self._x) != self._x:
                    raise ValueError("x and y are no function")
            elif self.method == "platt":
                self._slope = float(self._fitted["slope"])
                self._intercept = float(self._fitted["intercept"])
            else:
                raise ValueError(f"method {self.method!r}")
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise InputError(
                f"cannot read the calibration {path}: {error!r}",
                valid="a file of soundingline calibrate",
                do="check agent.calibration, or set null",
            ) from error

    @property
    def fingerprint(self) -> str:
        """Of the file's content."""
        return fingerprint(self._fitted)

    def __call__(self, probability: float) -> float:
        """The calibrated probability, 0 to 1."""
        if self.method == "isotonic":
            value = float(np.interp(probability, self._x, self._y))
        else:
            value = 1 / (1 + math.exp(-(self._slope * logit(probability) + self._intercept)))
        return min(max(value, 0.0), 1.0)


def logit(probability: float) -> float:
    """The logarithm of the odds; of 0 and 1 those of a millionth."""
    bounded = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(bounded / (1 - bounded))
