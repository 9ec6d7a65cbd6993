"""Golden files: what of a run they hold, as JSON in a deterministic gzip file, compared with
tolerance and shown as readable differences.

    python tests/golden/golden_store.py            the files against those of the last commit
    python tests/golden/golden_store.py REVISION   against those of another one
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import itertools
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
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
# Scores of learned stages differ in their last digits between machines. Hits whose order is stored
# must be further apart than that: by this much, and this part of the better score, which is more
# than a hundred times the rounding of float32.
LEAST_GAP, LEAST_SHARE = 1e-3, 2e-5
_SCORE = re.compile(r"\bscore=(-?\d+(?:\.\d+)?)")
# The checksum of a line of a journal is that of its times too.
_TIMED = re.compile(r"seconds|created|started|_ms$")
# Of a manifest: fingerprints and the configuration hold names of modules and classes, the others
# tell of the machine.
_OF_MANIFEST = ("factors", "stages", "costs")
_OF_EVALUATION = ("funnel", "verdicts", "agreement", "repeats")
_LISTS = ("phrases", "rewrites")
# Full texts are stored of the first question of a run; of the others, longer texts as a hash. What
# changes for some question nearly always changes for the first one too, where it can be read.
_SHORT = 120


# Fingerprints in names: of settings (a cell's name ends in eight digits) and of contents.
_HASH = re.compile(r"-[0-9a-f]{8}\b|\b[0-9a-f]{12}\b")


# What is stored of a run folder: everything that a run decides, with full texts, and without times,
# dates, versions and places of the machine. Everything is read from the files that a command
# leaves; nothing of the product is imported.


class Places(NamedTuple):
    """Texts that differ from one place or process to the next, each with what is stored for it."""

    names: Mapping[str, str]

    def hidden(self, value):
        """The value with each such text replaced, and each fingerprint, at any depth."""
        if isinstance(value, str):
            for text, name in self.names.items():
                value = value.replace(text, name)
            return _HASH.sub("<hash>", value)
        if isinstance(value, Mapping):
            return {self.hidden(key): self.hidden(inner) for key, inner in value.items()}
        return [self.hidden(inner) for inner in value] if isinstance(value, list) else value


def runs_below(folder):
    """The run folders of one command: those that hold a manifest."""
    return sorted(path.parent for path in folder.rglob("manifest.json"))


def record(run, ordered=None):
    """What is stored of one run folder.

    With `ordered`, stages are learned: scores are left out, only the first `ordered` ids of a
    ranking are stored in their order and the others as a set, and hits that are shown too close
    together for that are an `AssertionError`.
    """
    manifest = read_json(run / "manifest.json")
    stored = {name: plain(manifest[name]) for name in _OF_MANIFEST if name in manifest}
    stored["metrics"] = plain(read_json(run / "metrics.json"))
    summary = optional(run / "evaluation" / "summary.json")
    stored |= {name: summary[name] for name in ("counts", "denominators") if name in summary}
    stored["questions"] = plain(optional(run / "evaluation" / "questions.json"))
    for name in _OF_EVALUATION:
        stored[name] = plain(optional(run / "evaluation" / f"{name}.json"))
    for name in _LISTS:
        stored[name] = rows(run / f"{name}.jsonl")
    judges = sorted((run / "evaluation").glob("verdicts-*.jsonl"))
    stored["judges"] = [rows(path) for path in judges]
    stored["ledger"] = ledger(run)
    stored["tuning"] = plain(optional(run / "tuning.json"))
    stored["replay"] = plain(optional(run / "replay.json"))
    stored["trajectories"] = trajectories(run, ordered)
    for repeat in sorted((run / "repeats").glob("*")):
        stored[f"repeat {repeat.name}"] = trajectories(repeat, ordered)
    if not stored["trajectories"] and (run / "run.trec").exists():
        stored["rankings"] = rankings(run / "run.trec", ordered)
    return {name: value for name, value in stored.items() if value}


def trajectories(run, ordered):
    """By question; the first one with its full texts."""
    paths = sorted((run / "queries").glob("[!.]*.json"))
    stored = {path.stem: trajectory(read_json(path), ordered) for path in paths}
    return {
        qid: hashed(content) if place else content
        for place, (qid, content) in enumerate(stored.items())
    }


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def optional(path):
    """The content of a file that a run may lack."""
    return read_json(path) if path.exists() else {}


def rows(path):
    """The lines of a file that a run may lack."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [plain(json.loads(line)) for line in text.splitlines()]


def plain(value):
    """Numbers with the digits that are stored, and nothing that tells a time."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if not _TIMED.search(key)}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return number(value) if isinstance(value, float) else value


def ledger(run):
    """What each start has spent, in all and by role; counts of nothing are left out."""
    starts = []
    path = run / "ledger.jsonl"
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        if "role" in line:
            starts[-1][1].append(line)
        else:
            starts.append((line["cap"], []))
    return [_start(cap, attempts) for cap, attempts in starts]


def _start(cap, attempts):
    by_role = {}
    for attempt in attempts:
        by_role.setdefault(attempt["role"], []).append(attempt)
    dollars = {role: [each.get("dollars", 0.0) for each in own] for role, own in by_role.items()}
    stored = {
        "cap": cap,
        **_sums(attempts),
        "known_dollars": {role: sum(amounts) for role, amounts in dollars.items()},
        "dearest": {role: max(amounts) for role, amounts in dollars.items()},
    }
    for role, own in by_role.items():
        stored |= {f"{role}_{name}": value for name, value in _sums(own).items()}
    return {name: value for name, value in plain(stored).items() if value}


def _sums(attempts):
    """Counts of attempts by name, without those that are not known for all of them."""
    sums = Counter()
    for attempt in attempts:
        sums.update(
            {k: v for k, v in attempt.items() if isinstance(v, (int, float)) and k[0] != "_"}
        )
    tokens = {name for name in sums if name.endswith("_tokens")}
    unknown = {"replies_with_cached", "replies_with_reasoning"} | (
        tokens if sums["unreported"] else set()
    )
    unknown |= {"dollars"} if sums["unpriced"] else set()
    unknown |= {
        f"{part}_tokens" for part in ("cached", "reasoning") if not sums[f"replies_with_{part}"]
    }
    return {name: value for name, value in sums.items() if name not in unknown}


def rankings(path, ordered):
    """Of a TREC run, by question, without its scores: their last digits depend on the processor."""
    ids = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        qid, _, docid, *_ = line.split()
        ids.setdefault(qid, []).append(docid)
    return {qid: ranking(docids, ordered) for qid, docids in ids.items()}


def ranking(ids, ordered=None):
    """All ids in their order; of a learned stage the first in their order, the others by name."""
    if ordered is None or len(ids) <= ordered:
        return " ".join(ids)
    return " ".join([*ids[:ordered], "in any order:", *sorted(ids[ordered:])])


def trajectory(content, ordered):
    """How a question went. What is empty is left out."""
    stored = plain(content)
    stored.pop("format", None)
    stored["usage"] = {name: value for name, value in stored["usage"].items() if value}
    stored["tiers"] = {tier: " ".join(docids) for tier, docids in stored["tiers"].items()}
    stored["exposures"] = "\n".join(" ".join(map(str, row)) for row in stored["exposures"])
    stored["calls"] = [call(item, ordered) for item in stored["calls"]]
    if ordered is not None:
        stored["messages"] = without_scores(stored["messages"])
    return {name: value for name, value in stored.items() if value}


def hashed(value):
    """The value with every longer text as its length and a hash."""
    if isinstance(value, str) and len(value) > _SHORT:
        digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:10]
        return f"{len(value)} characters #{digest}"
    if isinstance(value, Mapping):
        return {key: hashed(inner) for key, inner in value.items()}
    return [hashed(inner) for inner in value] if isinstance(value, list) else value


def call(item, ordered):
    """One tool call; what is empty is left out."""
    stored = {
        **item,
        "ranking": ranking(item["ranking"], ordered),
        "shown": " ".join(item["shown"]),
    }
    if ordered is not None:
        check_gaps(stored["output"])
        stored["output"] = without_scores(stored["output"])
    return {name: value for name, value in stored.items() if value}


def without_scores(value):
    """The texts of search pages without the scores on them."""
    if isinstance(value, str):
        return _SCORE.sub("score=", value)
    if isinstance(value, Mapping):
        return {key: without_scores(inner) for key, inner in value.items()}
    return [without_scores(inner) for inner in value] if isinstance(value, list) else value


def check_gaps(text):
    """Hits that are shown in order must have scores that no machine can swap."""
    scores = [float(score) for score in _SCORE.findall(text)]
    for better, worse in itertools.pairwise(scores):
        least = max(LEAST_GAP, LEAST_SHARE * abs(better))
        assert better - worse >= least, f"hits are too close together to be stored: {text}"


def cells(records):
    """The records of a sweep, each under the factors in which its cells differ."""
    listed = list(records)
    keys = dict.fromkeys(key for each in listed for key in each["factors"])
    varied = [key for key in keys if len({each["factors"].get(key) for each in listed}) > 1]
    named = {
        " ".join(f"{key}={each['factors'].get(key, '-')}" for key in varied): each
        for each in listed
    }
    assert len(named) == len(listed), "two cells of a sweep have the same factors"
    return dict(sorted(named.items()))


# The files.


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
        pairs = itertools.zip_longest(expected, received, fillvalue=ABSENT)
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
