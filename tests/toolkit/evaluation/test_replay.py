"""Recorded calls through another ranking: what changes, and from which page on."""

from dataclasses import replace

import pytest
from support.search import WordBackend, store_of

from soundingline.toolkit.evaluation.replay import (
    calls_until_evidence,
    first_calls,
    replay,
    without_answer,
)
from soundingline.toolkit.search import Grep, RankedBrowsing, TopK
from soundingline.toolkit.trajectory import Answer, ToolCall, Trajectory

TEXTS = {
    "a": "tide harbour brel",
    "b": "tide mill",
    "c": "harbour mill market",
    "d": "market tide harbour",
}
OTHER = {**{docid: TEXTS[docid] for docid in reversed(TEXTS)}, "a": "nothing of it"}
STORE = store_of(TEXTS)
TOOL = TopK(k=2, get_document=True)
QUERIES = ("mill market", "tide harbour", "brel")


def recorded(tool=TOOL):
    session = tool.open(WordBackend(TEXTS), STORE)
    reason = {"reason": "r"} if isinstance(tool, RankedBrowsing) else {}
    for query in QUERIES:
        session.call("search", {**reason, "query": query})
    read = "read_document" if reason else "get_document"
    session.call(read, {**reason, "docid": "a"})
    session.call("search", {"nonsense": 1})
    session.block("time is over")
    session.call("search", {**reason, "query": "mill"})
    return Trajectory(
        "q",
        "?",
        "completed",
        answer=Answer(exact="x"),
        calls=session.calls,
        tiers=session.exposures.tiers,
        exposures=session.exposures.rows,
    )


def test_the_same_pipeline_shows_the_same_pages_and_changes_nothing():
    before = recorded()
    result = replay(before, TOOL.open(WordBackend(TEXTS), STORE), {"a"})
    assert (result.calls, result.unchanged) == (5, 5)  # the refused one is left out
    assert (result.overlap, result.moved) == (1.0, 0.0)
    assert result.trajectory.tiers["previewed"] == before.tiers["previewed"]
    assert result.trajectory.tiers["opened"] == ("a",)
    assert result.trajectory.answer == Answer()


def test_another_ranking_changes_pages_from_the_first_other_text_on():
    result = replay(recorded(), TOOL.open(WordBackend(OTHER), STORE), {"a"})
    assert result.unchanged < result.calls
    rankings = [call.ranking for call in result.trajectory.calls if call.name == "search"]
    expected = []
    for call, ranking in zip(recorded().calls[:3], rankings, strict=False):
        head = set(call.ranking)
        expected.append(len(head & set(ranking[: len(head)])) / len(head))
    assert result.overlap == pytest.approx(sum(expected) / 3)
    assert result.moved < 0  # `a` is found no more


def test_equal_ids_with_another_text_are_a_changed_page():
    class Scored(WordBackend):
        def search(self, request):
            actual = super().search(request)
            return actual._replace(hits=[hit._replace(score=hit.score / 2) for hit in actual.hits])

    result = replay(recorded(), TOOL.open(Scored(TEXTS), STORE), {"a"})
    assert (result.overlap, result.unchanged) == (1.0, 0)


def test_measures_before_the_first_changed_page_count_the_calls_before_it_alone():
    before = recorded()
    head = first_calls(before, 1)
    assert len(head.calls) == 1
    assert head.tiers["surfaced"] == tuple(before.calls[0].ranking)
    assert head.tiers["previewed"] == tuple(before.calls[0].shown)
    assert head.tiers["opened"] == ()
    assert first_calls(before, 0).tiers["surfaced"] == ()


def test_calls_until_evidence_are_one_more_than_all_where_none_was_shown():
    before = without_answer(recorded(), recorded().calls)
    assert calls_until_evidence(before, {"c"}) == 1
    assert calls_until_evidence(before, {"a"}) == 2
    assert calls_until_evidence(before, {"nowhere"}) == len(before.calls) + 1


@pytest.mark.parametrize("foreign", [True, False])
def test_calls_to_another_tool_are_made_by_its_own_names(foreign):
    """A foreign client's names, and a run of ours through another interface."""
    if foreign:
        calls = [
            ToolCall("search", {"user_query": "brel"}, "", notes={"tool": "retrieval"}),
            ToolCall("get_document", {"docid": "b"}, ""),
        ]
        before = replace(recorded(), calls=tuple(calls), source={"format": "browsecomp_plus"})
    else:
        before = replace(recorded(RankedBrowsing()), calls=recorded(RankedBrowsing()).calls[2:4])
    for tool in (TopK(get_document=True), RankedBrowsing()):
        result = replay(before, tool.open(WordBackend(TEXTS), STORE), {"a"})
        assert [call.error for call in result.trajectory.calls] == ["", ""]
        assert result.trajectory.tiers["previewed"] == ("a",)
        assert result.trajectory.tiers["opened"] == (("b",) if foreign else ("a",))


def test_words_and_queries_are_translated_between_tools_and_patterns_are_not():
    pytest.importorskip("re2", reason="optional: pip install -e '.[grep]'")

    def searched(tool, **arguments):
        session = tool.open(WordBackend(TEXTS), STORE)
        session.call("grep", {"reason": "r", **arguments})
        return replace(recorded(), calls=session.calls)

    grep = Grep(syntax="words")
    by_words = searched(grep, words="brel")
    by_query = replace(recorded(), calls=recorded().calls[2:3])
    for before, tool in ((by_words, TOOL), (by_words, RankedBrowsing()), (by_query, grep)):
        result = replay(before, tool.open(WordBackend(TEXTS), STORE), {"a"})
        assert [call.error for call in result.trajectory.calls] == [""]
        assert result.trajectory.calls[0].ranking[0] == "a"  # the one document with that word
    by_pattern = searched(Grep(), pattern="b.*l")
    result = replay(by_pattern, TOOL.open(WordBackend(TEXTS), STORE), {"a"})
    assert [call.error for call in result.trajectory.calls] == ["missing_argument"]


def test_the_newest_reasoning_goes_with_each_query():
    asked = []

    class Listening(WordBackend):
        def search(self, request):
            asked.append((request.query, request.reasoning))
            return super().search(request)

    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "reasoning": "one", "tool_calls": [{}]},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "two", "tool_calls": [{}]},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "", "tool_calls": [{}]},
        {"role": "tool", "content": ""},
    ]
    before = replace(recorded(), messages=tuple(messages))
    replay(before, TOOL.open(Listening(TEXTS), STORE), set())
    assert asked == [(QUERIES[0], "one"), (QUERIES[1], "two"), (QUERIES[2], "two")]
