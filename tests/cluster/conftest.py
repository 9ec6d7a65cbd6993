"""These tests take minutes: `make test-cluster` runs them, and `make test` does not."""

import os

collect_ignore_glob = [] if os.environ.get("SOUNDINGLINE_CLUSTER") else ["test_*.py"]
