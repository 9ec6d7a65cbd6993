"""What a trace shows of a navigator: rounds, checklists, and who meets what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trace_samples import CHECKLIST, handed_over, traced, two_calls, two_rounds

from toolkit.contracts import Trajectory


def trace(tmp_path: Path, trajectory: Trajectory) -> Any:
    return handed_over(traced(tmp_path / "run", trajectory) / "1-7.js")


def cells(document: Any) -> list[Any]:
    return [cell and (cell["verdict"], cell["score"]) for cell in document["cells"]]


def test_rounds_tell_strategy_and_checklist(tmp_path: Path) -> None:
    first, second = trace(tmp_path, two_rounds())["rounds"]
    assert (first["number"], first["note"]) == (1, "Begin with the rarest.")
    assert first["queries"] == [
        {"text": "mill", "operator": "search", "call": 1},
        {"text": "never asked", "operator": "", "call": None},
    ]
    assert [row["text"] for row in first["checklist"]] == [
        row["requirement"] for row in CHECKLIST[:2]
    ]
    assert [row["excluded"] for row in second["checklist"]] == [False, False, True]
    assert second["facts"] == [["unscored", "3"]]


def test_documents_stand_as_listed_with_the_newest_score_of_each_requirement(
    tmp_path: Path,
) -> None:
    values = trace(tmp_path, two_rounds())
    matrix = values["matrix"]
    assert [row["docid"] for row in matrix["documents"]] == ["d2", "d1", "x9"]
    second, first, other = matrix["documents"]
    assert (second["listed"], first["listed"], other["listed"]) == (1, 2, None)
    assert cells(first) == [("satisfied", 0.95), ("satisfied", 0.95), ("unknown", 0.0)]
    assert cells(other) == [("not", 0.1), ("unknown", 0.0), None]
    assert (first["score"], second["overall"]) == (0.9, 0.99)
    assert second["judged"] == ["evidence 2", "gold"]
    evidence = second["cells"][1]
    assert evidence["passages"] == [["d2%p1", "The mill grinds barley."]]
    assert evidence["rationale"] == "because of d2"
    assert values["answer"]["documents"] == [
        ["d2", ["evidence 2", "gold"]],
        ["d1", ["evidence"]],
        ["gone", []],
    ]


@pytest.mark.parametrize(
    "row",
    [
        "no mapping",
        {},
        {"queries": [1, None], "checklist": "x", "documents": {"docid": "d1"}},
        {"documents": [{"requirements": [{"verdict": "perhaps", "score": "high"}]}]},
        {"checklist": [{"requirement": 3}], "documents": [{"docid": "d1", "score": True}]},
    ],
)
def test_rounds_of_another_kind_are_shown_as_far_as_they_go(tmp_path: Path, row: Any) -> None:
    sample = two_calls()
    message = {"role": "assistant", "content": "", "round": row}
    values = trace(tmp_path, replace(sample, messages=(*sample.messages, message)))
    assert len(values["rounds"]) == (row != "no mapping")
    assert all(document["score"] is None for document in values["matrix"]["documents"])


def test_an_agent_without_rounds_has_none(tmp_path: Path) -> None:
    values = trace(tmp_path, two_calls())
    assert values["rounds"] == [] and values["matrix"] == {"checklist": [], "documents": []}
