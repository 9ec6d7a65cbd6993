"""How much a test tries: few cases in `make test`, all of them in `make test-soak`."""

from __future__ import annotations

import os

SOAK = os.environ.get("SOUNDINGLINE_SOAK") == "1"


def cases(full, few=None):
    """`full` cases where the suite soaks; else `few`, by default a fifth of them, at least ten."""
    return full if SOAK else min(full, few or max(10, full // 5))
