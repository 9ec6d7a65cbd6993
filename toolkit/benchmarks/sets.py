"""Questions that ask for documents, as a BEIR folder tells them: reading and checking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.benchmarks.reading import Judgements, Place, identifier, records
from toolkit.errors import InputError

LONGEST_CHECKLIST = 100  # requirements of one question

Satisfaction = dict[str, dict[str, tuple[bool, ...]]]


class AskedSets(NamedTuple):
    """What `queries.jsonl` says of questions that ask for documents: `checklist` and `targets`, a
    list of docids, by qid; each only where the field is there."""

    checklists: dict[str, list[str]]
    targets: dict[str, list[str]]

    @property
    def qids(self) -> set[str]:
        return {*self.checklists, *self.targets}


def read_asked_sets(path: Path) -> AskedSets:
    """The fields of a `queries.jsonl`. `InputError` for a checklist that is no list of 1 to
    `LONGEST_CHECKLIST` texts, and for targets that are no list of ids."""
    sets = AskedSets({}, {})
    for location, record in records(path):
        qid = identifier(location, record)
        if record.get("checklist") is not None:
            sets.checklists[qid] = _checklist(location, record["checklist"])
        if record.get("targets") is not None:
            sets.targets[qid] = _targets(location, record["targets"])
    return sets


def with_targets(evidence: Judgements, targets: Mapping[str, Sequence[str]]) -> Judgements:
    """The judgements with the targets, each of grade 1 where the qrels do not grade it.
    `InputError` where they grade a target 0 or less."""
    grades = {qid: dict(row) for qid, row in evidence.items()}
    for qid, docids in targets.items():
        for docid in docids:
            if grades.setdefault(qid, {}).setdefault(docid, 1) <= 0:
                raise InputError(
                    f"document {docid!r} is a target of question {qid!r}, and its qrels grade it "
                    f"{grades[qid][docid]}",
                    do="Remove it from one of the two files",
                )
    return grades


def read_satisfaction(path: Path, checklists: Mapping[str, Sequence[str]]) -> Satisfaction:
    """The rows of a `satisfaction.jsonl`: `query-id`, `corpus-id`, and `satisfied`, one true or
    false for each requirement of the question's checklist."""
    satisfaction: Satisfaction = {}
    for location, record in records(path):
        qid, docid = (identifier(location, record, name) for name in ("query-id", "corpus-id"))
        wanted = len(checklists.get(qid, ()))
        values = record.get("satisfied")
        if (
            not isinstance(values, list)
            or len(values) != wanted
            or not all(isinstance(value, bool) for value in values)
        ):
            raise InputError(
                f"{location} does not fit the checklist of question {qid!r}",
                valid=f"'satisfied' as a list of {wanted} values, true or false",
            )
        satisfaction.setdefault(qid, {})[docid] = tuple(values)
    return satisfaction


def _checklist(location: Place, value: Any) -> list[str]:
    texts = value if isinstance(value, list) else []
    valid = all(isinstance(text, str) and text.strip() for text in texts)
    if not valid or not 1 <= len(texts) <= LONGEST_CHECKLIST:
        count = f" with {len(texts)} items" if isinstance(value, list) else ""
        raise InputError(
            f"{location} has a 'checklist'{count} that is none",
            valid=f"a list of 1 to {LONGEST_CHECKLIST} texts",
            do="Leave the field out where the requirements are not known",
        )
    return list(texts)


def _targets(location: Place, value: Any) -> list[str]:
    ids = value if isinstance(value, list) else [None]
    if not all(isinstance(one, (str, int)) and not isinstance(one, bool) for one in ids):
        raise InputError(f"{location} has 'targets' that are no list of ids", valid='["d1", "d2"]')
    return list(dict.fromkeys(map(str, ids)))
