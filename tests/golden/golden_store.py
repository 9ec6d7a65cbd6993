"""Golden files: JSON in a deterministic gzip file, compared with tolerance and shown as readable
differences.

    python tests/golden/golden_store.py            the files against those of the last commit
    python tests/golden/golden_store.py REVISION   against those of another one
"""

from __future__ import annotations

import difflib
import gzip
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).resolve().parents[1] / "data" / "golden"
ABSENT = "(absent)"
# Numbers are stored with seven significant digits and agree if six do: a rounding of the seventh
# digit, which may differ between machines, is no difference.
DIGITS, RELATIVE = 7, 1e-6
# Numbers below a key with this mark come from a learned stage. Their last digits depend on the
# machine's matrix multiplication: they agree up to a hundred times the rounding of float32.
LEARNED, LEARNED_TOLERANCE = "~", 2e-5
# Lists below this key have no order of their own: requests that several questions sent at once.
UNORDERED = "requests"
# Equal texts of this length or more are stored once.
_LONG = 60
_REFERENCE = "="
_MOST_LINES, _AROUND = 8, 60


def path_of(name):
    return DATA / f"{name}.json.gz"


def names():
    return {path.name.removesuffix(".json.gz") for path in DATA.glob("*.json.gz")}


def read(name):
    """The content of a golden file; empty where there is none."""
    path = path_of(name)
    return decoded(path.read_bytes()) if path.exists() else {}


def write(name, content):
    """Store this content; whether it differs from what was stored. A file whose content is the same
    is left alone, so that another zlib does not change it."""
    content = json.loads(json.dumps(content))
    if path_of(name).exists() and not differences(read(name), content):
        return False
    path_of(name).write_bytes(encoded(content))
    return True


def encoded(content):
    """The same bytes for the same content: without a time or a name in the header."""
    text = json.dumps(_shared(content), ensure_ascii=False, separators=(",", ":"))
    return gzip.compress(text.encode("utf-8", "surrogatepass"), 9, mtime=0)


def decoded(data):
    packed = json.loads(gzip.decompress(data).decode("utf-8", "surrogatepass"))
    return _restored(packed["content"], packed["shared"])


def _shared(content):
    """The content with references to long parts that it holds more than once: a page is part of a
    call, of the messages, and of every later request."""
    counts = Counter()

    def count(value):
        key = _key(value)
        counts[key] += 1
        if not key or counts[key] == 1:
            for inner in _inner(value):
                count(inner)

    parts = []
    places = {}

    def replace(value):
        key = _key(value)
        if key and counts[key] > 1:
            if key not in places:
                places[key] = -1  # its place is behind that of the parts that it holds
                part = replace_inner(value)
                places[key] = len(parts)
                parts.append(part)
            return {_REFERENCE: places[key]}
        return replace_inner(value)

    def replace_inner(value):
        if isinstance(value, Mapping):
            return {key: replace(inner) for key, inner in value.items()}
        return [replace(inner) for inner in value] if isinstance(value, list) else value

    count(content)
    return {"content": replace(content), "shared": parts}


def _restored(value, shared):
    if isinstance(value, Mapping):
        if list(value) == [_REFERENCE]:
            return _restored(shared[value[_REFERENCE]], shared)
        return {key: _restored(inner, shared) for key, inner in value.items()}
    return [_restored(inner, shared) for inner in value] if isinstance(value, list) else value


def _key(value):
    """What tells a long part from others; empty for a short one."""
    if not isinstance(value, (str, Mapping, list)):
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) >= _LONG else ""


def _inner(value):
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def number(value):
    """A number with the digits that are stored."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value


class Difference(NamedTuple):
    path: str
    expected: Any
    received: Any


def differing(expected, received, path=""):
    """Every single value that differs, with its path, such as `queries / q1 / calls / 2 / name`."""
    if isinstance(expected, Mapping) and isinstance(received, Mapping):
        for key in dict.fromkeys([*expected, *received]):
            yield from differing(
                expected.get(key, ABSENT), received.get(key, ABSENT), _below(path, key)
            )
    elif isinstance(expected, list) and isinstance(received, list):
        if path.endswith(UNORDERED):
            expected, received = _unmatched(expected, received), _unmatched(received, expected)
        pairs = zip_longest(expected, received, fillvalue=ABSENT)
        for place, (old, new) in enumerate(pairs, start=1):
            yield from differing(old, new, _below(path, place))
    elif not _agree(expected, received, path):
        yield Difference(path, expected, received)


def _unmatched(values, others):
    """The values that the other list lacks. Lists in an order of no meaning are sorted: one changed
    value must not shift all others."""
    return [value for value in values if value not in others]


def _below(path, key):
    return f"{path} / {key}" if path else str(key)


def _agree(expected, received, path):
    numbers = (int, float)
    if type(expected) in numbers and type(received) in numbers:
        if LEARNED in path:
            tolerance = LEARNED_TOLERANCE
            return math.isclose(expected, received, rel_tol=tolerance, abs_tol=tolerance)
        return math.isclose(expected, received, rel_tol=RELATIVE)
    return type(expected) is type(received) and expected == received


def differences(expected, received, most=12):
    """The first values that differ, each with what was expected and received; empty where none
    does. A difference that occurs at several paths is shown once."""
    found = {}
    for each in differing(expected, received):
        found.setdefault((repr(each.expected), repr(each.received)), []).append(each)
    shown = []
    for first, *others in list(found.values())[:most]:
        elsewhere = f"\n  (and at {len(others)} more paths)" if others else ""
        shown.append(f"{first.path}\n{contrast(first.expected, first.received)}{elsewhere}")
    if len(found) > most:
        shown.append(f"... and {len(found) - most} more differences")
    return "\n".join(shown)


def contrast(expected, received):
    """Both values. Of long texts, the lines or the stretch that differ."""
    old, new = _shown(expected), _shown(received)
    if "\n" in old and "\n" in new:
        rows = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
        changed = [row for row in rows if not row.startswith(("---", "+++", "@@"))]
        lines = [f"  {row[0]} {_cut(row[1:])}" for row in changed[:_MOST_LINES]]
        if len(changed) > _MOST_LINES:
            lines.append(f"  ... and {len(changed) - _MOST_LINES} more lines")
        if lines:
            return "\n".join(lines)
    start = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    start = max(0, start - _AROUND)
    return f"  expected: {_cut(old, start)}\n  received: {_cut(new, start)}"


def _shown(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text, start=0):
    end = start + 4 * _AROUND
    before, after = "..." if start else "", "..." if end < len(text) else ""
    return f"{before}{text[start:end]}{after}"


def main(revision="HEAD"):
    """Print how the golden files differ from those of a revision."""
    root = Path(_git("rev-parse", "--show-toplevel", folder=DATA).decode().strip())
    folder = DATA.relative_to(root)
    listed = _git("ls-tree", "--name-only", revision, f"{folder}/", folder=root).decode().split()
    before = {Path(name).name.removesuffix(".json.gz") for name in listed if name.endswith(".gz")}
    for name in sorted(before | names()):
        if name not in before or name not in names():
            say(f"=== {name}: {'removed' if name in before else 'new'}")
            continue
        stored = _git("show", f"{revision}:{folder}/{name}.json.gz", folder=root)
        if message := differences(decoded(stored), read(name)):
            say(f"=== {name}\n{message}")


def say(text):
    sys.stdout.write(f"{text}\n")


def _git(*arguments, folder):
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
