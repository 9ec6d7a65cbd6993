from __future__ import annotations

import pytest

from soundingline.agents.keyword.answers import answer_type, candidates, count_votes
from soundingline.agents.keyword.evidence import Reader, coverage


def found(kind, text):
    return [candidate.text for candidate in candidates(kind, text)]


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("When was Ada born?", "date"),
        ("In what year did the mill burn?", "year"),
        ("Grant was elected in which year?", "year"),
        ("How many children had she?", "number"),
        ("How long is the river?", "measure"),
        ("How old was Pascal when he died?", "measure"),
        ("Who wrote it?", "name"),
        ("To whom was it sold?", "name"),
        ("Where is the bridge?", "place"),
        ("Why did he leave?", "reason"),
        ("Which city hosts the fair?", "name"),
        ("What is a young swan called?", "phrase"),
        ("Did she return?", "yes_no"),
        ("Is the swan black or white?", "choice"),
        ("She left in 1911. Where did she go?", "place"),
        ("Tell of the mill.", "phrase"),
        ("", "phrase"),
    ],
)
def test_the_question_word_gives_the_kind(question, kind):
    assert answer_type(question).kind == kind


def test_the_noun_asked_for_and_the_alternatives_are_kept():
    assert "county" in answer_type("Which county was he born in?").focus
    assert answer_type("Is the swan black or white?").options == ("black", "white")


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        (
            "date",
            "Born September 22, 1791, he died on 25 August 1867.",
            "September 22, 1791 | 25 August 1867",
        ),
        ("date", "It began in April 1793 and ended in 1815.", "April 1793 | 1815"),
        ("date", "Flight 9000 had 120 seats.", ""),
        ("year", "On 25 August 1867 and in the 12th century.", "1867 | 12th century"),
        (
            "number",
            "They had 1,234 sheep, twenty-five goats and $3.5 million.",
            "1,234 | twenty-five | $3.5 million",
        ),
        ("number", "About 12% of B52 crews", "12%"),
        ("number", "nothing to count", ""),
        ("measure", "It is 42 months and 16.5 km long.", "42 months | 16.5 km"),
        (
            "name",
            "In Oslo the Bank of Norway met Jean-Luc Picard in May.",
            "Oslo | Bank of Norway | Jean-Luc Picard",
        ),
        ("name", "He met Élise Øverland.", "Élise Øverland"),
        ("reason", "He left because of the flood, and died.", "the flood, and died"),
        ("phrase", "Young swans are known as cygnets.", "Young | Young swans | cygnets"),
    ],
)
def test_candidates_of_each_kind_are_found(kind, text, wanted):
    assert " | ".join(found(kind, text)) == wanted


@pytest.mark.parametrize("kind", ["name", "place", "number", "measure", "date", "year", "phrase"])
def test_a_candidate_stands_where_it_says(kind):
    text = "On 3 May 1871 the Duke of York saw 12 young swans in Oslo, near a very old stone mill."
    all_found = candidates(kind, text)
    assert all_found
    for candidate in all_found:
        assert text[candidate.start :].startswith(candidate.text)


def test_a_name_after_a_preposition_fits_a_place_better():
    weights = {
        each.text: each.weight for each in candidates("place", "Then Faraday moved to Surrey.")
    }
    assert weights["Surrey"] > weights["Faraday"]


CLUES = {"museum": 1.0, "found": 0.5, "tulsa": 0.5}


def test_sentences_are_scored_by_coverage_with_the_title_counting_whole():
    text = "The museum was founded in 1939. It is large. Founding took money."
    first, last = Reader(CLUES).sentences("d1", "Tulsa", text)
    assert first.score == pytest.approx(2.0 / 2)
    assert last.score == pytest.approx(1.0 / 2)
    assert [(found, text[at : at + 6]) for found, at in first.matches] == [
        ("museum", "museum"),
        ("found", "founde"),
    ]


def test_the_sentence_before_counts_half():
    (_, after) = Reader(CLUES).sentences("d1", "", "The museum stands. Founded late.")
    assert after.score == pytest.approx((0.5 + 0.5 * 1.0) / 2)


def test_without_clues_no_sentence_speaks():
    assert Reader({}).sentences("d1", "", "The museum stands.") == []


def test_coverage_is_the_best_sentence_of_each_clue():
    sentences = Reader(CLUES).sentences("d1", "", "The museum stands. The museum was founded.")
    assert coverage(sentences, CLUES) == {
        "museum": pytest.approx(0.75),
        "found": pytest.approx(0.75),
        "tulsa": 0.0,
    }


def votes(question, clues, *documents, trust=1.0):
    reader = Reader(clues)
    sentences = [
        sentence
        for number, text in enumerate(documents)
        for sentence in reader.sentences(f"d{number}", "", text)
    ]
    trusted = {f"d{number}": trust for number in range(len(documents))}
    return [vote.text for vote in count_votes(answer_type(question), sentences, clues, trusted)]


def test_the_candidate_nearest_to_the_clues_wins():
    text = "The museum was founded in 1939 after a long quarrel that had begun in the year 1921."
    assert votes("When was the museum founded?", CLUES, text) == ["1939", "1921"]


def test_words_of_the_title_pull_less_than_what_is_asked_about_it():
    text = "Tulsa Mayor Ann Hill came late. The museum was founded by Waite Phillips, Tulsa Mayor."
    sentences = Reader(CLUES).sentences("d1", "Tulsa", text)
    expected = answer_type("Who founded the museum of Tulsa?")
    best = count_votes(expected, sentences, CLUES, {"d1": 1.0})[0]
    assert best.text == "Waite Phillips"


def test_documents_that_agree_outvote_one_that_repeats_itself():
    right = "The museum was founded in 1939."
    wrong = " ".join(["The museum was founded in 1921."] * 3)
    assert votes("When was the museum founded?", CLUES, wrong, right, right)[0] == "1939"


def test_words_of_the_question_are_no_answer():
    text = "The Museum of Tulsa was founded by Waite Phillips."
    assert votes("Who founded the Tulsa museum?", CLUES, text) == ["Waite Phillips"]


def test_a_candidate_that_names_the_noun_asked_for_is_preferred():
    text = "Lincoln and Oklahoma founded with Tulsa and Hardin County."
    assert votes("Which county was founded?", {"found": 1.0}, text)[0] == "Hardin County"


def test_an_untrusted_document_has_no_vote():
    assert votes("When was the museum founded?", CLUES, "The museum opened in 1939.", trust=0) == []


def test_shares_sum_to_one_and_name_their_documents():
    sentences = Reader(CLUES).sentences("d1", "", "The museum was founded in 1939, not in 1921.")
    result = count_votes(answer_type("When was the museum founded?"), sentences, CLUES, {"d1": 0.7})
    assert sum(vote.share for vote in result) == pytest.approx(1)
    assert result[0].docids == ("d1",)
    assert result[0].sentence == "The museum was founded in 1939, not in 1921."


def test_yes_no_follows_the_negation_of_the_best_sentence():
    question = "Was the museum founded in Tulsa?"
    assert votes(question, CLUES, "The museum was founded in Tulsa.") == ["Yes"]
    assert votes(question, CLUES, "The museum was never founded in Tulsa.") == ["No"]
    assert votes(question, CLUES) == []


def test_a_choice_is_made_among_what_the_question_offers():
    clues = {"swan": 1.0, "black": 0.5, "white": 0.5}
    text = "The swan is white. Black coal burns elsewhere in the museum of Oslo."
    assert votes("Is the swan black or white?", clues, text)[0] == "white"
