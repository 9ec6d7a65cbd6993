"""Literature search: pages, layers of reading, exposures, refusals, scores of requirements."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from support.search import WordBackend, store_of

from soundingline.agents.literature import OverlapScorer
from soundingline.toolkit.benchmarks.links import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import Literature, Located, Operators
from soundingline.toolkit.search.literature import first_sentences
from soundingline.toolkit.search.scoring import ScoresPage
from soundingline.toolkit.search.tool import DocumentPage, ResultsPage

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


def session(operators=OPERATORS, **settings):
    backend = WordBackend({docid: document.text for docid, document in DOCUMENTS.items()})
    store = store_of(DOCUMENTS)
    return Literature(**settings).bind(operators).open(backend, store)


def test_a_search_shows_titles_and_exposes_metadata():
    tool = session(hits=1)
    result = tool.call("search", {"query": "tide at Brel"})
    assert "docid=b Mills" in result.text
    assert isinstance(result.page, ResultsPage) and result.page.layer == "metadata"
    assert set(tool.exposures.tiers["surfaced"]) == {"a", "b"}
    assert tool.exposures.tiers["previewed"] == ("b",)


def test_each_layer_that_is_read_is_an_exposure_with_its_tokens():
    tool = session(abstract_tokens=12)
    tool.call("search", {"query": "tide"})
    for layer in ("metadata", "abstract", "text"):
        assert not tool.call("read", {"docid": "a", "layer": layer}).failed
    tool.call("locate", {"docid": "a", "requirement": "It tells of tides."})
    rows = [(row.tier, row.docid, row.layer) for row in tool.exposures.rows]
    assert rows == [
        ("previewed", "a", "metadata"),
        ("opened", "a", "abstract"),
        ("opened", "a", "text"),
        ("opened", "a", "evidence"),
    ]
    tokens = [row.tokens for row in tool.exposures.rows]
    assert tokens == sorted(tokens) and tokens[1] < tokens[2] < tokens[3]
    assert tool.exposures.rows[-1].documents == 1
    layers = [call.notes["layer"] for call in tool.calls]
    assert layers == ["metadata", "metadata", "abstract", "text", "evidence"]


def test_an_abstract_is_read_where_no_layer_is_named():
    result = session(abstract_tokens=14).call("read", {"docid": "a%p3"})
    assert isinstance(result.page, DocumentPage) and result.page.layer == "abstract"
    assert list(result.page.lines) == ["The tide rises nine metres. The tide rises nine metres."]


def test_metadata_tells_url_and_fields():
    operators = Operators(fields=lambda docid: {"year": "1990"})
    text = session(operators).call("read", {"docid": "a", "layer": "metadata"}).text
    assert "Tides of Brel" in text and "url: http://x/a" in text and "year: 1990" in text


def test_a_long_text_goes_on_at_the_line_that_its_page_tells():
    tool = session(max_lines=1)
    result = tool.call("read", {"docid": "a", "layer": "text"})
    assert isinstance(result.page, DocumentPage) and result.page.continuation
    following = tool.call(result.page.continuation.tool, result.page.continuation.arguments)
    assert isinstance(following.page, DocumentPage) and following.page.first == 2
    assert following.page.layer == "text"
    assert tool.call("read", {"docid": "a", "layer": "text", "offset": 99}).call.error


def test_links_are_followed_and_surface_documents():
    tool = session()
    result = tool.call("expand", {"docids": "a, c", "direction": "out"})
    assert isinstance(result.page, ResultsPage)
    assert [(hit.docid, hit.score) for hit in result.page.hits] == [("b", 2.0)]
    assert tool.exposures.tiers["surfaced"] == ("b",)
    assert result.call.ranking == ("b",)
    inward = tool.call("expand", {"docids": "b", "direction": "in"})
    assert set(inward.call.shown) == {"a", "c"}


def test_a_hub_is_said_and_not_followed():
    result = session(largest_hub=1).call("expand", {"docids": "a", "direction": "both"})
    assert "too many links" in result.text and result.call.notes["hubs"] == 1


def test_evidence_shows_the_passages_with_their_ids():
    result = session(passages=1, passage_tokens=3).call(
        "locate", {"docid": "a", "requirement": "tides"}
    )
    assert "[a%p0] The tide rises…" in result.text and "a%p1" not in result.text
    nothing = session().call("locate", {"docid": "b", "requirement": "tides"})
    assert "No passage speaks of it" in nothing.text and not nothing.failed


def test_findings_become_documents_or_are_refused():
    tool = session()
    result = tool.call("resolve", {"findings": "mills\nhttp://x/a\nThe Lost Book"})
    assert result.call.shown == ("b", "a")
    assert "[2 of 3 found]" in result.text and '"The Lost Book": unknown' in result.text
    assert tool.exposures.tiers["previewed"] == ("b", "a")


def test_a_title_of_many_documents_is_refused_with_the_first_of_them():
    headings = [Document(f"r{number}", "Annual Report", "") for number in range(5)]
    tool = session(replace(OPERATORS, resolver=Resolver(headings)))
    result = tool.call("resolve", {"findings": "Annual Report"})
    assert result.text.endswith('"Annual Report": ambiguous: r0, r1, r2 and 2 more')
    assert result.call.shown == ()


def test_a_tool_without_its_operator_is_not_offered():
    assert [spec["name"] for spec in session(Operators()).specs()] == ["search", "read"]
    names = [spec["name"] for spec in session().specs()]
    assert names == ["search", "read", "expand", "locate", "resolve"]
    assert session().search_tool == ("search", "query")
    assert session().read_tool == ("read", "docid")


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("read", {"docid": "ghost"}, "unknown_docid"),
        ("read", {"docid": "a", "layer": "all"}, "out_of_range"),
        ("read", {"docid": "a", "layer": 3}, "wrong_type"),
        ("expand", {"docids": "a ghost"}, "unknown_docid"),
        ("expand", {"docids": ",;"}, "unknown_docid"),
        ("expand", {"docids": "a", "direction": "up"}, "out_of_range"),
        ("locate", {"docid": "ghost", "requirement": "x"}, "unknown_docid"),
        ("resolve", {"findings": "  "}, "empty_value"),
    ],
)
def test_a_wrong_call_is_refused_and_exposes_nothing(tool, arguments, code):
    opened = session()
    result = opened.call(tool, arguments)
    assert result.call.error == code
    assert not opened.exposures.rows


def test_an_answer_lists_documents_of_the_session_alone():
    tool = session()
    tool.call("search", {"query": "tide"})
    answer = tool.answer("Explanation: x\nDocuments: [a] [b] [invented]")
    assert answer.documents == ("a",)


@pytest.mark.parametrize("name", ["hits", "depth", "passages", "abstract_tokens", "largest_hub"])
def test_impossible_settings_are_refused(name):
    with pytest.raises(InputError, match=name):
        Literature(**{name: 0})


TEXT = "One two three. Four five six. Seven eight nine ten. " + "More words follow. " * 50
STORE = store_of({"d": Document("d", "Title", TEXT), "e": Document("e", "", "")})


def read(docid="d", layer="abstract", fields=None, **settings):
    operators = Operators(fields=lambda docid: fields or {})
    tool = Literature(**settings).bind(operators).open(WordBackend({}), STORE)
    return tool.call("read", {"docid": docid, "layer": layer}).text.split("\n", 1)[1]


def test_the_abstract_is_a_field_apart():
    fields = {"abstract": "Short.", "year": "1990"}
    assert read(fields=fields) == "Short."
    assert read(fields=fields, layer="metadata") == "year: 1990"


def test_an_abstract_is_the_first_sentences_up_to_the_limit():
    # Words and marks count: four a sentence.
    assert read(abstract_tokens=9) == "One two three. Four five six."
    assert read(abstract_tokens=8) == "One two three. Four five six."
    assert read(abstract_tokens=7) == "One two three."


def test_a_first_sentence_that_is_too_long_is_cut_and_a_short_text_is_whole():
    assert read(abstract_tokens=2) == "One two"
    assert first_sentences("No full stop", 100) == "No full stop"
    assert read("e") == ""


# The tool `score`.

MILLS = {
    "good": "A mill grinds barley. It was built in 1720.",
    "late": "A mill grinds barley. It was built in 1820.",
    "dry": "Nothing.",
}


class WholeDocuments:
    """A document is evidence where its text holds the requirement's last word."""

    def locate(self, docids, requirements, most=3):
        return [
            [
                [Located(docid, 1.0)] if need.split()[-1] in MILLS[docid] else []
                for need in requirements
            ]
            for docid in docids
        ]


def scoring_tool(scorer=None):
    store = store_of({docid: Document(docid, docid, text) for docid, text in MILLS.items()})
    operators = Operators(locator=WholeDocuments(), scorer=scorer or OverlapScorer())
    return Literature().bind(operators).open(WordBackend(MILLS), store)


def scored(docids, requirements, tool=None):
    arguments = {"docids": docids, "requirements": requirements, "question": "Which mill?"}
    result = (tool or scoring_tool()).call("score", arguments)
    assert isinstance(result.page, ScoresPage), result.text
    return result.page


def test_every_document_is_held_against_every_requirement():
    page = scored("good late dry", "mill grinds barley\nbetween 1700 and 1750 was built")
    assert page.requirements == ["mill grinds barley", "between 1700 and 1750 was built"]
    verdicts = [[row.verdict for row in one.requirements if row] for one in page.scores]
    assert verdicts == [["satisfied"] * 2, ["satisfied", "not"], ["unknown"] * 2]
    first = page.scores[0].requirements[0]
    assert first is not None and first.passage == "good"
    assert first.rationale == "A mill grinds barley."
    assert page.scores[2].requirements[0] == ("unknown", 0.0, "", "")


def test_an_exclusion_is_met_by_a_document_that_is_free_of_it():
    page = scored("good dry", "not grinds barley")
    good, dry = (one.requirements[0] for one in page.scores)
    assert good is not None and dry is not None
    assert good.score == 0.0 and dry.score == 1.0


def test_evidence_that_was_scored_is_an_exposure_of_its_layer():
    tool = scoring_tool()
    scored("good", "mill grinds barley", tool)
    (exposure,) = tool.exposures.rows
    assert (exposure.tier, exposure.docid, exposure.layer) == ("opened", "good", "evidence")
    assert tool.calls[0].shown == ("good",)


@pytest.mark.parametrize(
    ("docids", "code"), [("nobody", "unknown_docid"), ("  ", "empty_value"), (";", "unknown_docid")]
)
def test_what_cannot_be_scored_is_refused(docids, code):
    arguments = {"docids": docids, "requirements": "mill", "question": "Which?"}
    assert scoring_tool().call("score", arguments).call.error == code


def test_equal_requirements_are_scored_once_and_lines_are_tidied():
    page = scored("good", "  mill   grinds barley \n\nmill grinds barley\n用大麦磨粉")
    assert page.requirements == ["mill grinds barley", "用大麦磨粉"]


class Remembering(OverlapScorer):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.candidates = []

    def score(self, candidates):
        self.candidates += candidates
        return super().score(candidates)


def test_what_was_read_of_a_document_before_is_context():
    scorer = Remembering()
    tool = scoring_tool(scorer)
    scored("good", "mill grinds barley", tool)
    scored("good", "用大麦磨粉", tool)
    assert [passage.unit_id for passage in scorer.candidates[1].context] == ["good"]
    assert scorer.candidates[1].evidence[0].passages == ()


def test_calls_beside_each_other_are_all_on_record():
    tool = scoring_tool()
    with ThreadPoolExecutor(16) as pool:
        queries = {f"mill {n}": "" for n in range(40)}
        list(pool.map(lambda query: tool.call("search", {"query": query}), queries))
        list(pool.map(lambda n: scored("good late", f"number {n}", tool), range(40)))
    assert len(tool.calls) == 80
    assert [row.docid for row in tool.exposures.rows].count("good") == 2  # previewed, opened
    assert tool.exposures.rows[-1].tokens <= sum(call.tokens for call in tool.calls)
