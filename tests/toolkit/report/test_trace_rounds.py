"""What a trace shows of a navigator: rounds, checklists, and who meets what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trace_samples import CHECKLIST, AnyPassage, handed_over, traced, two_calls, two_rounds

from toolkit.contracts import Trajectory


def trace(tmp_path: Path, trajectory: Trajectory) -> Any:
    folder = traced(tmp_path / "run", trajectory, passages=AnyPassage())
    return handed_over(folder / "1-7.js")


def cells(document: Any) -> list[Any]:
    return [cell and (cell["verdict"], cell["score"]) for cell in document["cells"]]


def test_rounds_tell_strategy_and_checklist(tmp_path: Path) -> None:
    first, second = trace(tmp_path, two_rounds())["rounds"]
    assert (first["number"], first["note"]) == (1, "Begin with the rarest.")
    search, expand = first["queries"]
    assert (search["text"], search["operator"], search["call"]) == ("mill", "search", 1)
    assert (search["candidates"], search["new"], search["error"]) == (3, 3, "")
    assert (expand["text"], expand["operator"], expand["call"]) == ("d1 d2", "expand in", None)
    assert (expand["candidates"], expand["error"]) == (None, "timed_out")
    listed = replace(two_rounds().calls[1], arguments={"docids": '["d1", "d2"]'})
    called = replace(two_rounds(), calls=(*two_rounds().calls, listed))
    assert trace(tmp_path / "called", called)["rounds"][0]["queries"][1]["call"] == 3
    assert first["checklist"] == list(CHECKLIST[:2])
    assert second["checklist"] == list(CHECKLIST)
    assert first["facts"] == [["planned by", "model"]]
    assert second["facts"] == [["unscored", '{"timed_out": 3}']]


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
    assert second["judged"] == ["evidence 2", "gold"] and second["title"] == "Of d2"
    evidence = second["cells"][1]
    assert evidence["passage"] == "d2%p1"
    assert evidence["rationale"] == "because of d2"
    assert (first["cells"][1]["passage"], first["cells"][2]["passage"]) == ("d1%p1", "")
    texts = dict(matrix["texts"])
    assert texts["d2%p1"] == "The mill grinds barley." and "d1%p1" not in texts
    assert set(texts) == {"d2%p0", "d2%p1", "d2%p2", "x9%p0"}, "the store lacks those of d1"
    assert values["answer"]["documents"] == [
        ["d2", ["evidence 2", "gold"]],
        ["d1", ["evidence"]],
        ["gone", []],
    ]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"librarians": [1, None], "checklist": "x", "documents": {"d1": 3}},
        {"documents": {"d1": {"requirements": {"r": {"verdict": "perhaps", "score": "high"}}}}},
        {"checklist": [3], "documents": {"d1": {"score": True, "requirements": {"r": 1}}}},
        {"round": "one", "checklist": ["r"], "documents": []},
    ],
)
def test_rounds_of_another_kind_are_shown_as_far_as_they_go(tmp_path: Path, row: Any) -> None:
    values = trace(tmp_path, two_calls(rounds=(row,)))
    assert [one["number"] for one in values["rounds"]] == [1]
    assert all(document["score"] is None for document in values["matrix"]["documents"])


def test_an_agent_without_rounds_has_none(tmp_path: Path) -> None:
    values = trace(tmp_path, two_calls())
    assert values["rounds"] == [] and values["matrix"]["documents"] == []
