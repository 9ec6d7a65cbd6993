"""What the golden gate stores of a run folder: everything that a run decides, with full texts, and
without times, dates, versions and places of the machine.

Everything is read from the files that a command leaves; nothing of the product is imported.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from golden_store import number

# Scores of learned stages differ in their last digits between machines. Hits whose order is stored
# must be further apart than that: by this much, and this part of the better score, which is more
# than a hundred times the rounding of float32.
LEAST_GAP, LEAST_SHARE = 1e-3, 2e-5
_SCORE = re.compile(r"\bscore=(-?\d+(?:\.\d+)?)")
# The checksum of a line of a journal is that of its times too.
_TIMED = re.compile(r"seconds|created|started|_ms$|^crc$")
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
    manifest = read(run / "manifest.json")
    stored = {name: plain(manifest[name]) for name in _OF_MANIFEST if name in manifest}
    stored["metrics"] = plain(read(run / "metrics.json"))
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
    stored = {path.stem: trajectory(read(path), ordered) for path in paths}
    return {
        qid: hashed(content) if place else content
        for place, (qid, content) in enumerate(stored.items())
    }


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def optional(path):
    """The content of a file that a run may lack."""
    return read(path) if path.exists() else {}


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
        tokens if sums["unmetered"] else set()
    )
    unknown |= {"dollars"} if sums["unpriced"] else set()
    unknown |= {
        f"{part}_tokens" for part in ("cached", "reasoning") if not sums[f"replies_with_{part}"]
    }
    return {name: value for name, value in sums.items() if name not in unknown}


def rankings(path, ordered):
    """Of a TREC run, by question. Its scores count down from the number of hits: they are the ranks
    once more."""
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
