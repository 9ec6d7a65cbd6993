"""Reading and writing the three-line answer, and finding citations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.toolkit.search import format_answer, parse_answer
from soundingline.toolkit.search.answers import find_citations, invented_citations
from soundingline.toolkit.trajectory import Answer

KNOWN = ("d1", "d2", "12", "an id", "a_b", "x%y", "Foo [band]", "Rome, Italy", "100%")


def test_the_plain_three_lines_are_read():
    text = "Explanation: It was he [d1].\nExact Answer: Ada Lovelace\nConfidence: 85%"
    assert parse_answer(text, KNOWN) == Answer("It was he [d1].", "Ada Lovelace", 85.0, ("d1",))


@pytest.mark.parametrize(
    "text",
    [
        "**Explanation:** So [d1]\n**Exact Answer:** Ada\n**Confidence:** 85%",
        "**Explanation**: So [d1]\n**Exact Answer**: **Ada**\n**Confidence**: 85 %",
        "## Explanation: So [d1]\n\n## Exact Answer: `Ada`\n\n## Confidence: 85 percent",
        "- explanation: So [d1]\n- exact answer: Ada\n- confidence: 85/100",
        "1. Explanation: So [d1]\n2. Exact Answer: Ada\n3. Confidence: 8.5 out of 10",
        "Exact Answer: Ada\nConfidence: 0.85\nExplanation: So [d1]",
        "Explanation: So [d1] Exact Answer: Ada Confidence: 85%",
        "**Explanation: So [d1]**\n**Exact Answer: Ada**\n**Confidence: 85%**",
        "Explanation: So [d1]\r\nExact Answer:\r\nAda\r\nConfidence: about 85%\r\n",
        "<draft>\nExact Answer: Bob\n</draft>\nExplanation: So [d1]\nExact Answer: Ada\n"
        "Confidence: 85%",
        "Explanation: So [d1]\nExact Answer: Ada\n\nThat is all.\nConfidence: 85%",
        # Invisible characters.
        "\ufeffExplanation: So [d1]\nExact Answer: Ada\nConfidence: 85%",
        "Explanation\u200b: So [d1]\nExact Answer\u200b: Ada\nConfidence:\u200e 85\u200b%",
        "**\u2060Explanation:** So [d1]\n\u200b**Exact Answer:** Ada\n\u200bConfidence: 85%",
        "Explanation: So [d1]\nExact\u00a0Answer: Ada\nConfidence: 85\u202f%",
    ],
)
def test_markdown_order_and_layout_do_not_matter(text):
    answer = parse_answer(text, KNOWN)
    assert (answer.exact, answer.confidence, answer.citations) == ("Ada", 85.0, ("d1",))
    assert answer.explanation.startswith("So [d1]")


def test_an_explanation_may_have_many_lines():
    text = "Explanation: First [d1].\n\n- then [d2]\n- confidence is high\nExact Answer: Ada"
    answer = parse_answer(text, KNOWN)
    assert answer.explanation == "First [d1].\n\n- then [d2]\n- confidence is high"
    assert answer.citations == ("d1", "d2")
    assert answer.confidence is None


def test_a_text_without_labels_is_an_explanation_and_every_part_may_cite():
    assert parse_answer(" I found [d1]. ", KNOWN) == Answer("I found [d1].", "", None, ("d1",))
    assert parse_answer("", KNOWN) == Answer()
    assert parse_answer("Exact Answer: Ada [d2]\nConfidence: 1%", KNOWN).citations == ("d2",)


@pytest.mark.parametrize(
    ("written", "confidence"),
    [
        ("0% to 100%", None),  # the format's own words, repeated
        ("90%, from 0% to 100%", 90.0),
        ("100%", 100.0),
        ("0%", 0.0),
        ("0", 0.0),
        ("1.0", 100.0),
        ("0.5%", 0.5),
        ("0,85", 85.0),
        ("72.5", 72.5),
        ("1", 1.0),
        ("2 sources agree, so 90%", 90.0),
        ("9/10", 90.0),
        ("150%", None),
        ("-5%", None),
        ("5/0", 5.0),
        ("high", None),
        ("N/A", None),
        ("", None),
    ],
)
def test_confidence_is_read_in_all_its_forms(written, confidence):
    assert parse_answer(f"Exact Answer: x\nConfidence: {written}", ()).confidence == confidence


@pytest.mark.parametrize(
    "written", ["N/A", "n/a", "**N/A**", "", "N / A", "\u200b", "N/A\ufeff", "**\u200bN/A**"]
)
def test_no_answer_is_empty(written):
    assert parse_answer(f"Exact Answer: {written}\nConfidence: 0%", ()).exact == ""


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("[d1] [d2]", ("d1", "d2")),
        ("[d1][d2][d1]", ("d1", "d2")),
        ("[d2, d1]", ("d2", "d1")),
        ("[d1; d2,d1]", ("d1", "d2")),
        ("[ d1 ]", ("d1",)),
        ("[docid=d1] [docid: d2]", ("d1", "d2")),
        ("[`d1`]", ("d1",)),
        ("【d1†L3-L9】", ("d1",)),
        ("【d1†L3, d2†L4-L5】", ("d1", "d2")),
        ("【d2, Rome, Italy†L3】", ("d2", "Rome, Italy")),
        ("[d1\u200b] [\u2060d2]", ("d1", "d2")),
        ("[d1%p3] [d1%p4]", ("d1",)),
        ("[12_3]", ("12",)),
        ("[12%p3]", ("12",)),
        ("[3]", ()),
        ("[an id]", ("an id",)),
        ("[a_b]", ("a_b",)),
        ("[x%y%p0]", ("x%y",)),
        ("[100%]", ("100%",)),
        ("[Rome, Italy]", ("Rome, Italy",)),
        ("[d1, Rome, Italy, d2]", ("d1", "Rome, Italy", "d2")),
        ("[d2] then [Foo [band]] then [d1]", ("d2", "Foo [band]", "d1")),
        ("[d9] [link](http://d1) d2 [] [,]", ()),
    ],
)
def test_citations_are_known_documents_in_square_brackets(text, cited):
    assert find_citations(text, KNOWN) == cited
    assert find_citations("[12_3] [12%p3]", ("12", "3", "_3")) == ("12",)


def test_the_written_answer_has_three_lines_and_all_citations():
    text = format_answer("Found\nin [d1]", "Ada  Lovelace", 85.0, ("d1", "d2"))
    assert text == "Explanation: Found in [d1] [d2]\nExact Answer: Ada Lovelace\nConfidence: 85%"
    text = format_answer("", "", None)
    assert text == "Explanation:\nExact Answer: N/A\nConfidence: N/A"
    assert parse_answer(text, ()) == Answer()


PLAIN = st.text("abcXYZ äé09.,'-", max_size=40).map(lambda text: " ".join(text.split()))


@given(
    explanation=PLAIN,
    exact=PLAIN,
    confidence=st.none() | st.floats(0, 100).map(lambda value: round(value, 2)),
    citations=st.lists(st.sampled_from(KNOWN), unique=True),
)
def test_what_is_written_is_read_back(explanation, exact, confidence, citations):
    answer = parse_answer(format_answer(explanation, exact, confidence, citations), KNOWN)
    assert answer.exact == exact
    assert answer.confidence == confidence
    assert list(answer.citations) == citations
    assert answer.explanation.startswith(explanation)


@given(st.text(max_size=200), st.lists(st.text(max_size=5), max_size=4))
def test_any_text_is_survived(text, known):
    assert set(parse_answer(text, known).citations) <= set(known)


@pytest.mark.parametrize(
    ("text", "invented"),
    [
        ("known [d1], [d1%p3], [d1_2] and 【d1†L3】", ()),
        ("a [d7] and [d7] again, [d1, d8; 12]", ("d7", "d8", "12")),
        ("[docid=d9] 【d9†L3-L5】 [`d9`]", ("d9",)),
        ("[sic], [two words 2], [see](http://x/1), [], [[3]]", ("3",)),
        ("[a,1] is one docid", ()),
    ],
)
def test_citations_of_nothing_that_was_shown_are_told_apart(text, invented):
    assert invented_citations(text, {"d1", "a,1"}) == invented


def test_a_list_of_documents_is_read_in_its_order():
    text = (
        "Explanation: [d9] fits best.\nDocuments: [d2], [d9%p3]\n2. [d1]\n[d2] [invented]\n"
        "Confidence: 70%"
    )
    answer = parse_answer(text, {"d1", "d2", "d9"})
    assert answer.documents == ("d2", "d9", "d1")
    assert answer.confidence == 70


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("**Documents:** [d1]", ("d1",)),
        ("Documents: [d2]\nExact Answer: [d1]", ("d2",)),
        ("Documents: [d2]\n\nDocuments: [d1]", ("d1",)),
        ("I read the documents: [d1]", ()),
        ("Documents: none", ()),
        (format_answer("Found.", "", None, ("d1",), ("d2", "d1")), ("d2", "d1")),
    ],
)
def test_documents_are_a_list_where_the_label_opens_a_line(text, documents):
    assert parse_answer(text, {"d1", "d2"}).documents == documents
