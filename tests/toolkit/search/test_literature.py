"""Literature search: pages, layers of reading, exposures, refusals, scores of requirements."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.benchmarks import WordBackend, store_of

from soundingline.agents.literature import OverlapScorer
from soundingline.toolkit.benchmarks.benchmark import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link
from soundingline.toolkit.search import Literature, Located, Operators
from soundingline.toolkit.search.literature import first_sentences

DOCUMENTS = {
    "a": Document("a", "Tides of Brel", "The tide rises nine metres. " * 40, "http://x/a"),
    "b": Document("b", "Mills", "A mill stands at Brel. It grinds barley."),
    "c": Document("c", "Ferries", "No such word."),
}
PASSAGES = store_of(DOCUMENTS, {"a%p0": "The tide rises nine metres.", "a%p1": "More of it."})


class Fixed:
    """Locates the first passages of `a`, and nothing elsewhere."""

    def locate(self, docids, requirements, most=3):
        passages = [Located("a%p0", 2.0), Located("a%p1", 1.0)][:most]
        return [[passages if docid == "a" else [] for _ in requirements] for docid in docids]


OPERATORS = Operators(
    links=LinkGraph.build([Link("a", "b"), Link("c", "a"), Link("c", "b")]),
    locator=Fixed(),
    passages=PASSAGES,
    resolver=Resolver(Document(d.docid, d.title, "", d.url) for d in DOCUMENTS.values()),
)


def session(operators=OPERATORS, documents=DOCUMENTS, **settings):
    backend = WordBackend({docid: document.text for docid, document in documents.items()})
    return Literature(**settings).bind(operators).open(backend, store_of(documents))


def test_each_layer_that_is_shown_is_an_exposure_with_its_tokens():
    tool = session(hits=1, abstract_tokens=12)
    result = tool.call("search", {"query": "tide at Brel"})
    assert "docid=b Mills" in result.text and result.page.layer == "metadata"
    assert set(tool.exposures.tiers["surfaced"]) == {"a", "b"}
    for layer in ("metadata", "abstract", "text"):
        assert not tool.call("read", {"docid": "a", "layer": layer}).failed
    tool.call("locate", {"docid": "a", "requirement": "It tells of tides."})
    rows = [(row.tier, row.docid, row.layer) for row in tool.exposures.rows]
    previewed = [("previewed", docid, "metadata") for docid in "ba"]
    opened = [("opened", "a", layer) for layer in ("abstract", "text", "evidence")]
    assert rows == previewed + opened
    tokens = [row.tokens for row in tool.exposures.rows]
    assert tokens == sorted(tokens) and len(set(tokens)) == 5
    assert tool.exposures.rows[-1].documents == 2
    layers = [call.notes["layer"] for call in tool.calls]
    assert layers == ["metadata", "metadata", "abstract", "text", "evidence"]


def test_a_long_text_continues_at_the_line_that_its_page_names():
    tool = session(max_lines=1)
    page = tool.call("read", {"docid": "a", "layer": "text"}).page
    following = tool.call(page.continuation.tool, page.continuation.arguments).page
    assert (following.first, following.layer) == (2, "text")


def test_links_are_followed_and_surface_documents():
    tool = session()
    result = tool.call("expand", {"docids": "a, c", "direction": "out"})
    assert [(hit.docid, hit.score) for hit in result.page.hits] == [("b", 2.0)]
    assert tool.exposures.tiers["surfaced"] == result.call.ranking == ("b",)
    inward = tool.call("expand", {"docids": "b", "direction": "in"})
    assert set(inward.call.shown) == {"a", "c"}
    result = session(largest_hub=1).call("expand", {"docids": "a", "direction": "both"})
    assert "too many links" in result.text and result.call.notes["hubs"] == 1


def test_evidence_shows_the_passages_with_their_ids():
    tool = session(passages=1, passage_tokens=3)
    result = tool.call("locate", {"docid": "a", "requirement": "tides"})
    assert "[a%p0] The tide rises…" in result.text and "a%p1" not in result.text
    nothing = session().call("locate", {"docid": "b", "requirement": "tides"})
    assert "No passage speaks of it" in nothing.text and not nothing.failed


def test_findings_become_documents_or_are_refused():
    tool = session()
    result = tool.call("resolve", {"findings": "mills\nhttp://x/a\nThe Lost Book"})
    assert result.call.shown == tool.exposures.tiers["previewed"] == ("b", "a")
    assert "[2 of 3 found]" in result.text and '"The Lost Book": unknown' in result.text
    headings = [Document(f"r{number}", "Annual Report", "") for number in range(5)]
    tool = session(replace(OPERATORS, resolver=Resolver(headings)))
    result = tool.call("resolve", {"findings": "Annual Report"})
    assert result.text.endswith('"Annual Report": ambiguous: r0, r1, r2 and 2 more')
    assert result.call.shown == ()


def test_a_tool_without_its_operator_is_not_offered():
    assert [spec["name"] for spec in session(Operators()).specs()] == ["search", "read"]
    names = [spec["name"] for spec in session().specs()]
    assert names == ["search", "read", "expand", "locate", "resolve"]


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("read", {"docid": "a", "layer": "all"}, "out_of_range"),
        ("read", {"docid": "a", "layer": 3}, "wrong_type"),
        ("expand", {"docids": "a ghost"}, "unknown_docid"),
        ("expand", {"docids": ",;"}, "unknown_docid"),
        ("expand", {"docids": "a", "direction": "up"}, "out_of_range"),
        ("locate", {"docid": "ghost", "requirement": "x"}, "unknown_docid"),
        ("resolve", {"findings": "  "}, "empty_value"),
        ("score", {"docids": "a ghost", "requirements": "x", "question": "?"}, "unknown_docid"),
        ("score", {"docids": "  ", "requirements": "x", "question": "?"}, "empty_value"),
        ("score", {"docids": ";", "requirements": "x", "question": "?"}, "unknown_docid"),
    ],
)
def test_a_wrong_call_is_refused_and_exposes_nothing(tool, arguments, code):
    opened = session(replace(OPERATORS, scorer=OverlapScorer()))
    assert opened.call(tool, arguments).call.error == code
    assert not opened.exposures.rows


TEXT = "One two three. Four five six. Seven eight nine ten. " + "More words follow. " * 50
FIELDS = {"abstract": "Short.", "year": "1990"}


@pytest.mark.parametrize(
    ("call", "fields", "settings", "expected"),
    [
        ({"docid": "d"}, FIELDS, {}, "Short."),
        ({"docid": "d", "layer": "metadata"}, FIELDS, {}, "url: http://d\nyear: 1990"),
        # Words and marks count: four a sentence.
        ({"docid": "d"}, {}, {"abstract_tokens": 9}, "One two three. Four five six."),
        ({"docid": "d"}, {}, {"abstract_tokens": 8}, "One two three. Four five six."),
        ({"docid": "d%p3"}, {}, {"abstract_tokens": 7}, "One two three."),
        ({"docid": "d"}, {}, {"abstract_tokens": 2}, "One two"),
        ({"docid": "e"}, {}, {}, ""),
    ],
)
def test_an_abstract_is_a_field_or_the_first_sentences_and_metadata_the_rest(
    call, fields, settings, expected
):
    documents = {"d": Document("d", "Title", TEXT, "http://d"), "e": Document("e", "", "")}
    tool = session(Operators(fields=lambda docid: fields), documents, **settings)
    assert tool.call("read", call).text.split("\n", 1)[1] == expected
    assert first_sentences("No full stop", 100) == "No full stop"


# The tool `score`.

MILLS = {
    "good": "A mill grinds barley. It was built in 1720.",
    "late": "A mill grinds barley. It was built in 1820.",
    "dry": "Nothing.",
}


class WholeDocuments:
    """A document is evidence if its text contains the requirement's last word."""

    def locate(self, docids, requirements, most=3):
        words = [need.split()[-1] for need in requirements]
        return [
            [[Located(docid, 1.0)] if word in MILLS[docid] else [] for word in words]
            for docid in docids
        ]


def scoring_tool(scorer=None):
    operators = Operators(locator=WholeDocuments(), scorer=scorer or OverlapScorer())
    documents = {docid: Document(docid, docid, text) for docid, text in MILLS.items()}
    return session(operators, documents)


def scored(docids, requirements, tool=None):
    arguments = {"docids": docids, "requirements": requirements, "question": "Which mill?"}
    return (tool or scoring_tool()).call("score", arguments).page


def test_every_document_is_held_against_every_requirement():
    tool = scoring_tool()
    page = scored("good late dry", "mill grinds barley\nbetween 1700 and 1750 was built", tool)
    assert page.requirements == ["mill grinds barley", "between 1700 and 1750 was built"]
    verdicts = [[row.verdict for row in one.requirements if row] for one in page.scores]
    assert verdicts == [["satisfied"] * 2, ["satisfied", "not"], ["unknown"] * 2]
    first = page.scores[0].requirements[0]
    assert (first.passage, first.rationale) == ("good", "A mill grinds barley.")
    assert page.scores[2].requirements[0] == ("unknown", 0.0, "", "")
    exposures = [(row.tier, row.docid, row.layer) for row in tool.exposures.rows]
    assert exposures == [("opened", docid, "evidence") for docid in MILLS]
    assert tool.calls[0].shown == tuple(MILLS)


def test_an_exclusion_is_met_by_a_document_that_is_free_of_it():
    good, dry = (one.requirements[0] for one in scored("good dry", "not grinds barley").scores)
    assert good.score == 0.0 and dry.score == 1.0


def test_equal_requirements_are_scored_once_and_lines_are_tidied():
    page = scored("good", "  mill   grinds barley \n\nmill grinds barley\n用大麦磨粉")
    assert page.requirements == ["mill grinds barley", "用大麦磨粉"]


def test_what_was_read_of_a_document_before_is_context():
    candidates = []

    class Recording(OverlapScorer):
        def score(self, rows):
            candidates.extend(rows)
            return super().score(rows)

    tool = scoring_tool(Recording())
    scored("good", "mill grinds barley", tool)
    scored("good", "用大麦磨粉", tool)
    assert [passage.unit_id for passage in candidates[1].context] == ["good"]
    assert candidates[1].evidence[0].passages == ()


def test_concurrent_calls_are_all_on_record():
    tool = scoring_tool()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: tool.call("search", {"query": f"mill {n}"}), range(40)))
        list(pool.map(lambda n: scored("good late", f"number {n}", tool), range(40)))
    assert len(tool.calls) == 80
    assert [row.docid for row in tool.exposures.rows].count("good") == 2  # previewed, opened
    assert tool.exposures.rows[-1].tokens <= sum(call.tokens for call in tool.calls)
