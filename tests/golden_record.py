"""What the golden gate pins of a run folder: readable, and free of times, dates and machines.

Everything is read from the files that a run leaves behind (`queries/*.json`, `metrics.json`,
`run.trec`, `tuning.json`); nothing of the packages under test is imported.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

TOP = 20
# Scores of learned stages differ in their last digits between machines. Hits that are pinned in
# order must stand further apart than that: by this much, and this part of the better score, which
# is more than a hundred times the rounding of float32.
LEAST_GAP, LEAST_SHARE = 1e-3, 2e-5
_SCORE = re.compile(r"\bscore=(-?\d+(?:\.\d+)?)")
_TIMED = re.compile(r"seconds|created|started|_ms$")
HASHES = ("output", "exposures", "messages")
ABSENT = "absent"


def runs_below(folder: Path) -> list[Path]:
    """The run folders of one command: those that hold a manifest."""
    return sorted(path.parent for path in folder.rglob("manifest.json"))


def record(run: Path, ordered: int | None = None) -> dict[str, Any]:
    """The pinned content of one run folder.

    With `ordered`, stages are learned: scores are left out, only the first `ordered` ids of a
    ranking are pinned in their order and the others as a set, and hits that are shown too close
    together for that are an `AssertionError`.
    """
    pinned: dict[str, Any] = {"metrics": numbers(read(run / "metrics.json"))}
    if (run / "tuning.json").exists():
        pinned["tuning"] = numbers(read(run / "tuning.json"))
    queries = sorted((run / "queries").glob("[!.]*.json"))
    if queries:
        pinned["queries"] = {path.stem: trajectory(read(path), ordered) for path in queries}
    else:
        pinned["rankings"] = rankings(run / "run.trec", ordered)
    return pinned


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def numbers(value: Any) -> Any:
    """Floats rounded to 6 decimals, and nothing that tells a time."""
    if isinstance(value, Mapping):
        return {key: numbers(item) for key, item in value.items() if not _TIMED.search(key)}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def rankings(path: Path, ordered: int | None) -> dict[str, Any]:
    """Of a TREC run, by question."""
    ids: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        qid, _, docid, *_ = line.split()
        ids.setdefault(qid, []).append(docid)
    return {qid: ranking(docids, ordered) for qid, docids in ids.items()}


def ranking(ids: Sequence[str], ordered: int | None = None) -> str:
    """The first ids as they are, the others as a count and a hash."""
    top = TOP if ordered is None else ordered
    others = ids[top:] if ordered is None else sorted(ids[top:])
    return " ".join([*ids[:top], *([f"and {len(others)} more {digest(others)}"] if others else [])])


def trajectory(record: Mapping[str, Any], ordered: int | None) -> dict[str, Any]:
    """How a question went, call by call."""
    answer, calls = record["answer"], record["calls"]
    return {
        "status": " ".join(filter(None, (record["status"], record["reason"]))),
        "answer": f"{answer['exact']} ({answer['confidence']})",
        "explanation": answer["explanation"],
        "citations": " ".join(answer["citations"]),
        "tiers": tier_sizes(record["tiers"], calls),
        "exposures": f"{len(record['exposures'])} {digest(record['exposures'])}",
        "usage": {name: value for name, value in numbers(record["usage"]).items() if value},
        "warnings": record["warnings"],
        "calls": {str(n): call(item, ordered) for n, item in enumerate(calls, start=1)},
        "messages": messages(record["messages"], ordered),
    }


def tier_sizes(stored: Mapping[str, Any], calls: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Documents in each tier. A file may leave out `surfaced`, which the rankings tell."""
    surfaced = {re.sub(r"%p\d+$", "", unit) for item in calls for unit in item["ranking"]}
    return {"surfaced": len(surfaced), **{tier: len(docids) for tier, docids in stored.items()}}


def call(item: Mapping[str, Any], ordered: int | None) -> dict[str, Any]:
    """One tool call; what is empty is left out."""
    output = item["output"]
    if ordered is not None:
        check_gaps(output)
        output = without_scores(output)
    arguments = ", ".join(f"{name}={value!r}" for name, value in item["arguments"].items())
    rows = {
        "call": f"{item['name']}({arguments})",
        "error": item["error"],
        "ranking": ranking(item["ranking"], ordered),
        "shown": " ".join(item["shown"]),
        "output": f"{item['tokens']} tokens {digest(output)}",
        "notes": item.get("notes", {}),
    }
    return {name: value for name, value in rows.items() if value}


def messages(items: Sequence[Mapping[str, Any]], ordered: int | None) -> str:
    """How many messages of each role there are, and a hash of them all."""
    if not items:
        return ""
    text = json.dumps([untimed(item) for item in items], ensure_ascii=False, sort_keys=True)
    roles = Counter(str(item.get("role")) for item in items)
    counts = ", ".join(f"{count} {role}" for role, count in roles.items())
    return f"{counts} {digest(text if ordered is None else without_scores(text))}"


def untimed(value: Any) -> Any:
    """Without what tells a time, at any depth."""
    if isinstance(value, Mapping):
        return {key: untimed(item) for key, item in value.items() if not _TIMED.search(key)}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def without_scores(text: str) -> str:
    return _SCORE.sub("score=?", text)


def check_gaps(output: str) -> None:
    """Hold the scores on a page apart, so that their order is the same on every machine."""
    scores = [float(score) for score in _SCORE.findall(output)]
    for better, worse in itertools.pairwise(scores):
        assert better - worse >= max(LEAST_GAP, LEAST_SHARE * abs(better)), (
            f"scores {better} and {worse} are too close for their order to be pinned: {scores}"
        )


def digest(value: Any) -> str:
    """Ten hexadecimal digits of a text, or of the JSON of another value."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "#" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every single value by its path, such as `queries / q1 / calls / 2 / ranking`."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list):
        items = enumerate(value, start=1)
    else:
        return {path: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat |= leaves(item, f"{path} / {key}" if path else str(key))
    return flat


def differences(pinned: Any, now: Any, most: int = 12) -> str:
    """The first values that differ, pinned and now, a line each, those that are hashes last; empty
    where none differs."""
    old, new = leaves(pinned), leaves(now)
    paths = [path for path in {**old, **new} if old.get(path, ABSENT) != new.get(path, ABSENT)]
    paths.sort(key=lambda path: path.endswith(HASHES))
    lines = [
        f"{path}\n  pinned: {old.get(path, ABSENT)}\n  now:    {new.get(path, ABSENT)}"
        for path in paths[:most]
    ]
    if len(paths) > most:
        lines.append(f"... and {len(paths) - most} more values")
    return "\n".join(lines)
