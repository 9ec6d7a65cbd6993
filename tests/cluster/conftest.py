"""These tests take minutes: `make test-cluster` runs them, and `make test` does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "experiments"))  # whose samples they share
collect_ignore_glob = [] if os.environ.get("SOUNDINGLINE_CLUSTER") else ["test_*.py"]
