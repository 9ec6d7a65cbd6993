"""These tests need real software and take minutes: `make test-real` runs them, and `make test` does
not. SOUNDINGLINE_REAL names the parts that run."""

import os

collect_ignore_glob = [] if os.environ.get("SOUNDINGLINE_REAL") else ["test_*.py"]
