"""What tests need and not every machine has, and how much they try.

Where a collection or package is absent, a test is skipped; with `SOUNDINGLINE_REQUIRE_ALL=1`, which
`.ci/run` sets, it fails. `make test` tries few cases, `make test-soak` all of them."""

import os
from importlib.util import find_spec

import pytest

SOAK = os.environ.get("SOUNDINGLINE_SOAK") == "1"


def cases(full, few=None):
    """`full` cases where the suite soaks; else `few`, by default a fifth of them, at least ten."""
    return full if SOAK else min(full, few or max(10, full // 5))


REQUIRED = os.environ.get("SOUNDINGLINE_REQUIRE_ALL") == "1"
COLLECTIONS = ("cacm", "cmuqa", "musique100", "vaswani", "wikimix")


def absent(what):
    """End the test that needs it."""
    if REQUIRED:
        pytest.fail(f"{what}. SOUNDINGLINE_REQUIRE_ALL=1 asks for everything that tests need")
    pytest.skip(what)


def needs(packages, extras):
    """The mark of tests that need optional packages, which the `extras` install."""
    missing = [name for name in packages if find_spec(name) is None]
    reason = f"not installed: {', '.join(missing)} (pip install -e '.[{extras}]')"
    return pytest.mark.skipif(bool(missing) and not REQUIRED, reason=reason)


def collections(root):
    """The folder of the real collections, all of which must lie below it."""
    missing = [name for name in COLLECTIONS if not (root / name / "corpus.jsonl").is_file()]
    if missing:
        absent(
            f"{', '.join(missing)} not below {root} (or another folder that SOUNDINGLINE_DATA "
            "names); docs/data.md tells where the collections come from"
        )
    return root


def needs_real(part, missing=""):
    """The mark of tests on real software, which `make test-real PART=<part>` installs. `missing`
    names what could not be installed: it skips the tests, or fails them if everything is
    required."""
    chosen = part in os.environ.get("SOUNDINGLINE_REAL", "").split(",")
    reason = f"not installed: {missing}" if chosen else f"make test-real PART={part}"
    return pytest.mark.skipif(not chosen or bool(missing and not REQUIRED), reason=reason)
