"""Reading and writing the three-line answer, finding citations, and snippets: which stretch they
show, that they do not cut words, and that they are fast."""

import re
import time
from collections import namedtuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.benchmarks import WordBackend, store_of
from support.needs import cases

from soundingline.toolkit.data import Document
from soundingline.toolkit.search import RankedBrowsing, TopK, format_answer, parse_answer
from soundingline.toolkit.search.answers import (
    ShownText,
    find_citations,
    invented_citations,
    shown_texts,
)
from soundingline.toolkit.search.ranked_browsing import SNIPPETS
from soundingline.toolkit.search.snippets import (
    METHODS,
    QueryTerms,
    best_window,
    excerpt,
    first_match,
)
from soundingline.toolkit.trajectory import Answer, RecordedCall

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


# Snippets.


FILLER = "nothing here speaks about it at all and so goes on "
MET = f"king king king. {FILLER * 10} The king met the queen in Vienna. {FILLER * 10}"
ENDINGS = f"{FILLER * 10} KINGS of Äthiopien {FILLER * 10}"
FREQUENT = f"{'the king said. ' * 20}{FILLER * 5} zeppelin {FILLER * 5}"


@pytest.mark.parametrize(
    ("query", "text", "characters", "expected"),
    [
        ("king queen Vienna", MET, 80, "king met the queen in Vienna"),
        ("king zeppelin", FREQUENT, 60, "zeppelin"),  # A rare word weighs more.
        ("king", f"one king here. {FILLER * 10} two king there.", 60, "one king"),
        ("king", ENDINGS, 60, "KINGS"),
        ("kings", ENDINGS, 60, "KINGS"),
        ("äthiopien", ENDINGS, 60, "Äthiopien"),
        ("kon", f"{FILLER * 9} reckoning {FILLER * 9} reckless kon {FILLER}", 60, "reckless kon"),
        ("東京タワー", "天" * 300 + "東京タワー" + "地" * 300, 40, "東京タワー"),
        ("zebra", FILLER * 10, 40, "nothing here speaks"),
        ("king", "the\n\n king\tcame ", 220, "the king came"),
    ],
)
def test_the_window_holds_the_matches_that_are_worth_most(query, text, characters, expected):
    assert expected in best_window(QueryTerms(query), text, characters)


# Of Bm25Server.java of Pi-Serini (justram/pi-serini, commit bbab25d), by hand.
BEFORE, AFTER = "x" * 100, "y" * 300
FIRST_MATCHES = {
    "55 characters before a match, and 220 in all": (
        ("queen king", f"{BEFORE}king{AFTER}queen"),
        f"...{'x' * 55}king{'y' * 161}...",
    ),
    "inside a word, in any case": (
        ("ART", f"{BEFORE}stART{AFTER}"),
        f"...{'x' * 53}stART{'y' * 162}...",
    ),
    "a stop word is no token": (("the king", f"the {BEFORE}king"), f"...{'x' * 55}king"),
    "neither is one character": (("x b king", f"{BEFORE}king"), f"...{'x' * 55}king"),
    "marks inside a token": (("u.s-a", f"us {BEFORE}u.s-a"), f"...{'x' * 55}u.s-a"),
    "but not at its beginning": (("-1914", f"{BEFORE}1914"), f"...{'x' * 55}1914"),
    "letters beyond ASCII end a token": (("Käthe", f"{BEFORE}the"), "x" * 100 + "the"),
    "no match": (("zebra", AFTER), f"{'y' * 220}..."),
    "an early match": (("king", f"xx king{AFTER}"), f"xx king{'y' * 213}..."),
    "the whole text, without white space around it": (("king", "\n a king\t "), "a king"),
    "line breaks stay": (("king", "a\n\nking"), "a\n\nking"),
    "white space at the ends of a stretch": (
        ("king", f"abc {'x' * 44}{' ' * 10}king"),
        f"...{'x' * 44}{' ' * 10}king",
    ),
    "an empty text": (("king", " \n"), ""),
    "an empty query": (("", "a king"), "a king"),
}


@pytest.mark.parametrize("both, expected", FIRST_MATCHES.values(), ids=FIRST_MATCHES.keys())
def test_the_first_match_is_the_excerpt_of_pi_serini(both, expected):
    query, text = both
    assert first_match(QueryTerms(query), text, 220) == expected


def test_a_short_excerpt_begins_20_characters_before_the_match():
    shown = first_match(QueryTerms("king"), f"{BEFORE}king{AFTER}", 40)
    assert shown == f"...{'x' * 20}king{'y' * 16}..."


def test_omitted_text_is_marked_and_an_empty_text_has_an_empty_snippet():
    shown = best_window(QueryTerms("king"), f"{FILLER * 5}king {FILLER * 5}", 60)
    assert shown.startswith("…") and shown.endswith("…")
    assert [best_window(QueryTerms("king"), text, 220) for text in ("", "   ", "\n")] == [""] * 3


@settings(max_examples=cases(200), deadline=None)
@given(text=st.text(max_size=400), query=st.text(max_size=30), characters=st.integers(20, 250))
def test_an_excerpt_is_a_stretch_of_the_text_of_at_most_the_length_asked(text, query, characters):
    shown = best_window(QueryTerms(query), text, characters)
    solid = " ".join(text.split())
    inner = shown[1:] if shown not in solid and shown.startswith("…") else shown
    inner = inner[:-1] if inner not in solid else inner
    assert inner in solid
    assert len(shown) <= characters + 2


WORDS = ["alpha", "bravo", "carol", "delta", "filler", "mumble"]


@settings(max_examples=cases(100), deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "x", "of"]), min_size=1, max_size=120))
def test_words_are_not_cut(words):
    shown = best_window(QueryTerms("alpha delta"), " ".join(words), 50)
    assert set(shown.strip("…").split()) <= set(words)


Place = namedtuple("Place", "start end stem")  # a match of a stem, ordered as matches are


def places_one_by_one(lowered, stem):
    """Where `stem` occurs, from left to right and without overlap."""
    return [match.start() for match in re.finditer(re.escape(stem), lowered)]


def stem_of(word):
    endings = [end for end in ("ing", "es", "ed", "s") if re.fullmatch(rf"\w{{4,}}{end}", word)]
    return word[: -len(endings[0])] if endings else word


def stems_of(query):
    stems = dict.fromkeys(stem_of(word) for word in re.findall(r"\w+", lower(query)))
    return sorted(stems, key=lambda stem: -len(stem))[:24]


def lower(text):
    """Of the same length: where a character gets longer, each is changed by itself or stays."""
    singly = [character.lower() for character in text]
    if all(len(low) == 1 for low in singly):
        return text.lower()  # in which a sigma depends on what stands around it
    return "".join(low if len(low) == 1 else old for low, old in zip(singly, text, strict=True))


def match_at(lowered, stem, start):
    if not stem.isascii():
        return Place(start, start + len(stem), stem)
    ending = 3 if len(stem) >= 4 else 0
    pattern = rf"(?<!\w){re.escape(stem)}\w{{0,{ending}}}(?!\w)"
    match = re.compile(pattern).match(lowered, start)
    return Place(start, match.end(), stem) if match else None


def matches_of(lowered, stem, most=None):
    places = places_one_by_one(lowered, stem)[:most]
    return [match for place in places if (match := match_at(lowered, stem, place))]


def plain_window(query, text, characters):
    """`window`, from its definition: each window of matches is made and weighed by itself."""
    lowered, stems = lower(text), stems_of(query)
    matches = {stem: matches_of(lowered, stem, 65) for stem in stems}
    rare = [stem for stem in stems if len(places_one_by_one(lowered, stem)) <= 64]
    counted = [match for stem in rare for match in matches[stem]]
    counted = counted or [match for stem in stems for match in matches[stem]]
    counted.sort(key=lambda match: (match.start, match.end, stems.index(match.stem)))
    best, shown, first = 0.0, excerpt(text, 0, characters), 0
    for last, match in enumerate(counted):
        while first < last and match.end - counted[first].start > characters:
            first += 1
        inside = dict.fromkeys(match.stem for match in counted[first : last + 1])
        worth = sum(len(matches[stem]) ** -0.5 for stem in inside)
        if worth > best + 1e-9:
            start, best = counted[first].start, worth
            shown = excerpt(text, start - max(0, characters - (match.end - start)) // 2, characters)
    return shown


STOPWORDS = "a an and are as at be by for from in into is it of on or that the their this to with"


def plain_first_match(query, text, characters):
    """Pi-Serini's `buildExcerpt`, from its description: one search for any of the tokens."""
    words = re.findall(r"[A-Za-z0-9][A-Za-z0-9+._-]*", query)
    tokens = [word.lower() for word in words if word.lower() not in STOPWORDS.split()]
    tokens = [re.escape(token) for token in tokens if len(token) > 1]
    text = re.sub(r"\A[\x00- ]+|[\x00- ]+\Z", "", text)
    match = re.search("|".join(tokens), lower(text)) if tokens else None
    start = max(0, (match.start() if match else 0) - max(20, characters // 4))
    shown = re.sub(r"\A[\x00- ]+|[\x00- ]+\Z", "", text[start : start + characters])
    return "..." * (start > 0) + shown + "..." * (len(text) > start + characters)


# Letters whose codes end with the same byte (a, š), one that gets longer in lower case, a wide
# one, a sigma, and digits and marks that count as letters or do not.
LETTERS = st.sampled_from("aabkkš天İΣ\U0001f600²_-  \n")
LATIN = st.sampled_from("abking  .")
VOCABULARY = st.sampled_from(
    ["king", "Kings", "kingdom", "king's", "ring", "of", "a", "_a", "Äthiopien", "天", "東京", "-"]
)
ALPHABETS = (LETTERS, LATIN, VOCABULARY.map(lambda word: f"{word} "))


@st.composite
def texts_and_queries(draw):
    """A text, and a query with words and parts of words of it."""
    pieces = draw(st.sampled_from(ALPHABETS))
    # Repeated, so that words stand more often than is counted.
    text = "".join(draw(st.lists(pieces, max_size=60))) * draw(st.sampled_from([1, 1, 2, 70]))
    starts = draw(st.lists(st.integers(0, 60), max_size=30))
    parts = [text[start : start + 1 + start % 6] for start in starts]
    return text, " ".join(["".join(draw(st.lists(pieces, max_size=6))), *parts])


FAR = FILLER * 5


@settings(max_examples=cases(1000), deadline=None)
@example(both=(f"東京{FAR}東京{FAR}天天天", "天天 東京"), characters=40).via("overlapping places")
@example(both=(f"queen {FAR}queen {FAR}king reking reking", "king queen"), characters=40).via(
    "places inside words weigh nothing"
)
@example(both=("地" * 50 + "東京タ" + "地" * 50, "東京 東京タ"), characters=40).via(
    "matches that begin together"
)
@example(both=("gh gh ab gh gh gh gh gh gh cd", "ab cd gh"), characters=20).via(
    "sums in two orders"
)
@given(both=texts_and_queries(), characters=st.integers(20, 120))
def test_excerpts_are_those_of_the_definition(both, characters):
    text, query = both
    prepared = QueryTerms(query)
    assert best_window(prepared, text, characters) == plain_window(query, text, characters)
    assert first_match(prepared, text, characters) == plain_first_match(query, text, characters)


def test_a_whole_question_takes_little_longer_than_four_words():
    text = FILLER * 1000
    words = [f"{letter}{end}" for letter in "abcdef" for end in ("vent", "tory", "blem", "wick")]
    seconds = {4: [], 24: []}
    for _ in range(9):
        for count, times in seconds.items():
            query = QueryTerms(" ".join(words[:count]))
            started = time.thread_time()
            best_window(query, text, 220)
            times.append(time.thread_time() - started)
    # A pass for each word would take six times as long.
    assert min(seconds[24]) < 2.5 * min(seconds[4])


def test_a_text_of_15000_words_takes_milliseconds():
    text = ("The king of the country said that in time a treaty is to be had. " * 1100)[:95_000]
    words = "which king of the country said in 1848 that a treaty with Prussia is to be had"
    query = QueryTerms(words)
    seconds = []
    for _ in range(9):
        started = time.process_time()
        best_window(query, text, 220)
        seconds.append(time.process_time() - started)
    # About 1 ms; the bound leaves room for slow machines.
    assert sorted(seconds)[4] < 0.02


def test_a_word_without_end_is_not_looked_for():
    text = f"{'a' * 300} {FILLER * 20} king {FILLER}"
    assert "king" in best_window(QueryTerms(f"{'a' * 300} king"), text, 60)
    assert "a" * 30 in best_window(QueryTerms(f"{'a' * 150}"), f"{FILLER * 9}{'a' * 150}", 60)
    words = " ".join("a" * (200 - ending) + "b" for ending in range(1, 25))
    query, text = QueryTerms(f"{'a' * 900_000} {words}"), "a" * 100_000
    start = time.process_time()
    best_window(query, text, 220)
    assert time.process_time() - start < 5.0


def test_the_interface_offers_every_method():
    assert (*METHODS, "none") == SNIPPETS


# What an agent was shown.

MILL = Document("d1", "The mill", "\n".join(["It is old.", "docid=d2 is a mark.", "It burned"]))
INN = Document("d2", "", "An inn of the mill.")


def opened(tool):
    texts = {each.docid: f"{each.title} {each.text}" for each in (MILL, INN)}
    return tool.open(WordBackend(texts), store_of({"d1": MILL, "d2": INN}))


def test_excerpts_and_pages_that_continue_are_shown_without_queries_and_hints():
    tool = opened(RankedBrowsing(read_limit=2))
    tool.call("search", {"reason": "", "query": "mill burned"})
    tool.call("read_document", {"reason": "", "docid": "d1"})
    tool.call("read_document", {"reason": "", "docid": "d9"})
    tool.call("read_document", {"reason": "", "docid": "d1", "offset": 3})
    tool.call("read_document", {"reason": "", "docid": "d1", "offset": 2, "limit": 1})
    assert shown_texts(tool.calls) == [
        ShownText("d1", "The mill", "   It is old. docid=d2 is a mark. It burned\n"),
        ShownText("d2", "An inn of the mill.", "   An inn of the mill."),
        ShownText("d1", "The mill", MILL.text),
        ShownText("d1", "The mill", "docid=d2 is a mark."),
    ]


def test_whole_texts_are_shown_up_to_the_cut():
    tool = opened(TopK(k=2, max_tokens=5, get_document=True))
    tool.call("search", {"query": "mill old"})
    tool.call("get_document", {"docid": "d2"})
    tool.call("search", {"query": "nothing"})
    first, second, whole = shown_texts(tool.calls)
    assert (first.docid, first.title, first.text) == ("d1", "The mill", "The mill\nIt is old")
    assert (second.docid, second.text) == ("d2", INN.text[:-1])
    assert whole == ShownText("d2", "", INN.text)


@pytest.mark.parametrize(
    ("output", "shown", "expected"),
    [
        ('[{"docid": 7, "score": 1, "snippet": "One\\nmill"}, {"docid": "b", "text": "Two"}]',
         ("7%p1", "b"), [("7", "One\nmill"), ("b", "Two")]),
        ('{"result": [{"docid": "a", "title": "T", "text": "x"}]}', ("a",), [("a", "T\nx")]),
        ("A text alone", ("a",), [("a", "A text alone")]),
        ("[not JSON", ("a",), [("a", "[not JSON")]),
        ("A text of two", ("a", "b"), []),
        ("Hits:\n[a] One [b]\nmill\n\n[b%p1] Two", ("a", "b%p1"),
         [("a", "One [b]\nmill"), ("b", "Two")]),
        ("1. a: One\n2) b: Two\na: more", ("a", "b"), [("a", "One"), ("b", "Two\na: more")]),
        ("[b] Two\n[a] One", ("a", "b"), []),
        ("[7] One", ("7",), [("7", "One")]),
        ("7 people: none", ("7",), [("7", "7 people: none")]),
        ("nothing", (), []),
    ],
)  # fmt: skip
def test_outputs_of_other_harnesses_are_read_where_their_documents_are_known(
    output, shown, expected
):
    call = RecordedCall("search", {}, output, shown=shown)
    titled = output.startswith(("{", "[{"))  # by the first line of the text
    assert shown_texts([call]) == [
        ShownText(docid, text.partition("\n")[0] if titled else "", text)
        for docid, text in expected
    ]
