"""Search by patterns: what matches, in which order, and what bounds it."""

import asyncio
import itertools
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("re2", reason="optional: pip install -e '.[grep]'")

from support.assertions import assert_linear
from support.benchmarks import store_of
from support.llm_model import ScriptedModel, call, calling, saying

from soundingline.agents.chat import ChatAgent
from soundingline.agents.keyword import KeywordAgent
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.evaluation.agent_run import _effort
from soundingline.toolkit.search import Grep

CORPUS = {
    "mill": Document("mill", "Grenholm Mill", "The mill stands on the Aske.\nBrekke built it."),
    "river": Document("river", "Aske", "It has eleven bridges.\nA mill, a mill, a mill.\n\nEnd"),
    "swan": Document("swan", "Swan", "Swans eat plants."),
    "ø": Document("ø", "Ølgod", "Ølgod is a town.\nNot a\nmill."),
}


class NoBackend:
    """A pipeline that must not be asked."""

    def search(self, request):
        raise AssertionError(request)


def grep(corpus=None, clock=time.perf_counter, **arguments):
    store = store_of(CORPUS if corpus is None else corpus)
    return Grep(**arguments).open(NoBackend(), store, clock=clock)


def find(tool, pattern):
    return tool.call("grep", {"reason": "", "pattern": pattern})


def mills(count, text="a mill"):
    return {f"d{number}": Document(f"d{number}", "", text) for number in range(count)}


def test_documents_stand_by_number_of_matches_then_in_the_order_of_the_corpus():
    result = find(grep(), "mill")
    assert result.call.ranking == ("river", "mill", "ø")
    assert [hit.score for hit in result.page.hits] == [3, 2, 1]  # titles count, case does not
    assert find(grep(order="corpus"), "mill").call.ranking == ("mill", "river", "ø")
    assert find(grep(case_sensitive=True), "Mill").call.ranking == ("mill",)
    assert find(grep(), "(?-i)Mill").call.ranking == ("mill",)


letters = st.text(alphabet="ab \nö", max_size=30)
patterns = st.lists(
    st.sampled_from(["a", "b", "ö", "a+", "[^a]", "a.b", "^a", "b$", "(?:ab|ö)", "a b", "a{2,3}"]),
    min_size=1,
    max_size=3,
).map("".join)


@settings(deadline=None, max_examples=100)
@given(texts=st.lists(letters, min_size=1, max_size=4), pattern=patterns)
def test_what_matches_is_what_matches_in_a_line(texts, pattern):
    corpus = {f"d{number}": Document(f"d{number}", "", text) for number, text in enumerate(texts)}
    expected = {}
    for docid, document in corpus.items():
        matches = [m for line in document.text.split("\n") for m in re.findall(pattern, line)]
        if matches:
            expected[docid] = float(len(matches))
    tool = grep(corpus, order="corpus", case_sensitive=True, page=4)
    result = find(tool, pattern)
    assert {hit.docid: hit.score for hit in result.page.hits} == expected
    assert result.call.notes["matching"] == len(expected)


def test_long_texts_are_searched_to_their_end_and_lines_are_numbered_as_they_are_read():
    text = "".join(f"Line {number} of the Ølgod list. {'x' * 90}\n" for number in range(1500))
    tool = grep({"d": Document("d", "", text)}, lines=5)
    result = find(tool, r"\bLine (?:3|1499) of the ølgod")
    hit = result.page.hits[0]
    assert hit.score == 2
    for shown, number in zip(hit.snippet.split("\n"), (4, 1500), strict=True):
        line = {"reason": "", "docid": "d", "offset": number, "limit": 1}
        start = tool.call("read_document", line).page.lines[0][:20]
        assert shown.strip().startswith(f"{number}: {start}")
    one_line = "é" * 40_000 + " needle " + "é" * 40_000
    (hit,) = find(grep({"d": Document("d", "", one_line)}), "needle").page.hits
    assert "needle" in hit.snippet and len(hit.snippet) < 300


def test_documents_are_paged_through_and_those_with_excerpts_are_previewed():
    tool = grep(mills(12), page=3, excerpt_depth=7)
    first = find(tool, "m.ll")
    assert "1. docid=d0 score=1.0000\n   1: a mill" in first.text
    more = first.page.continuation
    rest = tool.call(more.tool, {**more.arguments, "reason": ""})
    assert rest.call.shown == tuple(mills(12))[3:]
    assert tool.exposures.tiers["previewed"] == tuple(mills(7))
    unknown = tool.call("read_document", {"reason": "", "docid": "d99"})
    assert "Call grep(...) first" in unknown.text


@pytest.mark.parametrize(
    ("pattern", "code", "says"),
    [
        ("(mill", "bad_pattern", "missing )"),
        ("mill(?=s)", "bad_pattern", "without look-around"),
        (r"(a)\1", "bad_pattern", "back-references"),
        ("a*", "bad_pattern", "empty string"),
        ("x" * 1001, "too_long", "1000 characters"),
        (r"\pL{40}", "too_long", "too large"),
        ("(?:(?:x{900}){900}){900}", "bad_pattern", "repetition"),
    ],
)
def test_a_wrong_pattern_is_refused_and_exposes_nothing(pattern, code, says):
    tool = grep()
    result = find(tool, pattern)
    assert result.call.error == code and says in result.text
    assert not any(tool.exposures.tiers.values())


def test_limits_are_shown_and_recorded():
    corpus = mills(50, "mill " * 9)
    few = find(grep(corpus, max_documents=20, max_matches=4), "mill")
    assert few.call.notes == {"documents": 20, "matching": 20, "stopped": "documents"}
    assert few.page.hits[0].score == 4
    assert "[only 20 documents were searched: limit of documents]" in few.text
    deep = find(grep(corpus, depth=10), "mill")
    assert deep.page.total == 10 and "[50 documents match]" in deep.text
    early = find(grep(corpus, depth=10, order="corpus"), "mill")
    assert early.call.notes == {"documents": 10, "matching": 10, "stopped": "depth"}
    ticks = itertools.count()
    late = find(grep(corpus, clock=lambda: next(ticks), seconds=20), "mill")
    assert late.call.notes["stopped"] == "seconds" and late.call.notes["documents"] == 20
    assert "stopped" not in find(grep(corpus, max_documents=50), "mill").call.notes
    narrow = find(grep(corpus, depth=10, page=10, max_bytes=400), "mill")
    assert len(narrow.text.encode()) <= 400 and narrow.page.continuation is not None


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+b", "(.*)(.*)(.*)b", "a{1,30}a{1,30}b"])
def test_time_grows_with_the_length_of_a_text_whatever_the_pattern(pattern):
    def read(text):
        assert not find(grep({"d": Document("d", "", text + "c")}), pattern).page.hits

    assert_linear(read, lambda size: "a" * size)


def test_words_match_as_whole_words_and_drive_an_agent_that_writes_no_patterns():
    tool = grep(syntax="words")
    result = tool.call("grep", {"reason": "", "words": "(Ølgod) swan mil"})
    assert result.call.ranking == ("ø", "swan")
    empty = tool.call("grep", {"reason": "", "words": "?!"})
    assert empty.call.error == "bad_pattern"
    topic = Topic("q", "Who built the mill on the Aske?")
    trajectory = asyncio.run(KeywordAgent().run(topic, grep(syntax="words")))
    assert trajectory.status == "completed" and "mill" in trajectory.tiers["opened"]
    assert "Brekke" in trajectory.answer.exact
    unfit = asyncio.run(KeywordAgent().run(topic, grep()))
    assert unfit.status == "failed" and "declares no tool that searches" in unfit.traceback


def test_a_language_model_searches_by_patterns():
    model = ScriptedModel(
        calling(call("grep", "c1", reason="", pattern=r"brekke.{0,20}\bbuilt")),
        calling(call("read_document", "c2", reason="", docid="mill", offset=1, limit=None)),
        saying(),
    )
    agent = ChatAgent(model=model, prompt="neutral")
    trajectory = asyncio.run(agent.run(Topic("q", "Who built the mill?"), grep()))
    assert trajectory.status == "completed" and trajectory.tiers["cited"] == ("mill",)
    counts = _effort([trajectory])
    assert (counts["search_calls"], counts["read_calls"]) == ({"q": 1.0}, {"q": 1.0})


@pytest.mark.slow
def test_it_is_served_over_http_and_mcp():
    import mcp  # here, because its import takes a second, and a server's another
    from support.served import serving

    arguments = {"reason": "", "pattern": "Torvald|twelve"}

    async def conversation(url):
        async with mcp.Client(f"{url}/mcp", mode="legacy") as client:
            return (await client.call_tool("grep", arguments)).content[0].text

    with serving(Grep()) as server:
        opened = server.ask("/open")
        assert opened["tools"][0]["name"] == "grep"
        reply = server.ask("/call", session=opened["session"], tool="grep", arguments=arguments)
        assert reply["shown"] == ["mill", "12"] and not reply["error"]
        status, ranked = server.post("/pi-serini/search", query="mill", limit=2)
        assert status == 200 and len(ranked["hits"]) == 2  # the pipeline ranks as before
        text = asyncio.run(asyncio.wait_for(conversation(server.url), 60))
    assert "docid=mill" in text and "   1: Grenholm Mill was built by Torvald Brekke." in text
