"""Answer coverage: an accepted answer in the texts of the first documents."""

from __future__ import annotations

import pytest

from soundingline.toolkit.evaluation.retrieval import answer_coverage

TEXTS = {f"d{number}": f"Title {number}\nnothing of use" for number in range(20)}
TEXTS["kow"] = "Brel\nIts mayor is ANNA  Kow, since 1,998."
TEXTS["kowal"] = "Brel\nAnna Kowalska was no mayor. Yes."


def texts(docids):
    return ((docid, TEXTS[docid]) for docid in docids if docid in TEXTS)


def coverage(ranking, *accepted):
    values = answer_coverage({"q": ranking}, {"q": accepted}, texts)
    return values["AnswerCoverage@5"]["q"], values["AnswerCoverage@10"]["q"]


@pytest.mark.parametrize(
    ("place", "expected"), [(1, (1, 1)), (5, (1, 1)), (6, (0, 1)), (10, (0, 1)), (11, (0, 0))]
)
def test_an_answer_counts_where_one_of_the_first_documents_holds_it(place, expected):
    ranking = [f"d{number}" for number in range(15)]
    ranking.insert(place - 1, "kow")
    assert coverage(ranking, "Bo Lind", "the Anna Kow!") == expected


def test_texts_and_answers_are_normalised_alike_and_answers_are_whole_words():
    assert coverage(["kow"], "anna kow") == coverage(["kow"], "1998") == (1, 1)
    assert coverage(["kow"], "Brel") == (1, 1)  # titles count
    assert coverage(["kowal"], "Anna Kow") == coverage(["kow"], "Kow Anna") == (0, 0)
    assert coverage(["gone", "kow"], "Anna Kow") == (1, 1)  # a document that the corpus lacks


def test_every_question_with_an_answer_that_can_be_held_is_in_the_mean():
    accepted = {"a": ["Anna Kow"], "b": ["Anna Kow"], "c": ["yes"], "d": [], "e": ["yes", "Brel"]}
    values = answer_coverage({"a": ["kow"], "c": ["kowal"], "e": ["kow"]}, accepted, texts)
    assert values["AnswerCoverage@5"] == {"a": 1.0, "b": 0.0, "e": 1.0}
    none = {qid: accepted[qid] for qid in "cd"}
    assert answer_coverage({"a": ["kow"]}, none, texts) == {}


def test_each_document_is_read_once_and_only_the_first_ten_are():
    reads = []

    def counted(docids):
        reads.extend(docids)
        return texts(docids)

    rankings = {qid: ["kow", *(f"d{number}" for number in range(15))] for qid in "ab"}
    answer_coverage(rankings, {"a": ["Kow"], "b": ["Kow"]}, counted)
    assert len(reads) == len(set(reads)) == 10
