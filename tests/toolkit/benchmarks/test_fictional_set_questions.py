"""Questions of the fictional world that ask for documents, proved from the facts of every page."""

from __future__ import annotations

from collections import Counter

import pytest

from soundingline.toolkit.benchmarks.fictional import FictionalWorld, set_questions
from soundingline.toolkit.benchmarks.links import LinkGraph
from soundingline.toolkit.errors import InputError

WORLD = FictionalWorld(documents=800, questions="sets:40", median_words=40, p90_words=60)
DEFAULT = FictionalWorld(questions="sets")


def facts_of(world):
    docids = [document.docid for document in world.documents()]
    return {docid: {fact.relation: fact.value for fact in world.facts(docid)} for docid in docids}


def meets(facts, requirement):
    """By the values that a page tells, and by nothing else."""
    clue, value = requirement.clue, facts[requirement.clue.relation]
    inside = value == clue.value if clue.value else clue.low <= int(value) <= clue.high
    return inside != requirement.excluded


def brute_force(facts, question):
    return {
        docid: [meets(row, requirement) for requirement in question.requirements]
        for docid, row in facts.items()
        if row["type"] == question.kind
    }


@pytest.fixture(scope="module")
def facts():
    return facts_of(WORLD)


def test_targets_are_all_documents_whose_facts_meet_every_requirement(
    facts,
):
    assert len(WORLD.worded_sets) == 40
    for worded in WORLD.worded_sets:
        met = brute_force(facts, worded.question)
        assert WORLD.targets[worded.qid] == {docid for docid, row in met.items() if all(row)}
        assert WORLD.targets[worded.qid]


def test_every_requirement_has_a_document_that_misses_it_alone(
    facts,
):
    for worded in WORLD.worded_sets:
        rows = brute_force(facts, worded.question).values()
        missing_one = {row.index(False) for row in rows if row.count(False) == 1}
        assert missing_one == set(range(len(worded.checklist)))


def test_satisfaction_is_known_of_every_document(facts):
    for worded in WORLD.worded_sets[:8]:
        met = brute_force(facts, worded.question)
        known = WORLD.satisfaction[worded.qid]
        assert len(known) == len(facts)
        for docid in facts:
            assert list(known[docid]) == met.get(docid, [False] * len(worded.checklist))
    assert "fw9999999" not in known


def test_the_world_asks_by_every_sort_of_requirement_two_to_six_of_them():
    worded = DEFAULT.worded_sets
    sorts = Counter(
        requirement.sort(row.question.kind)
        for row in worded
        for requirement in row.question.requirements
    )
    assert len(worded) == 100
    assert set(sorts) == {"attribute", "relation", "number", "years", "exclusion"}
    assert min(sorts.values()) >= 20
    assert {len(row.checklist) for row in worded} == {2, 3, 4, 5, 6}
    assert len({row.question for row in worded}) == 100


def test_the_checklist_states_the_values_and_the_question_names_related_entities():
    for row in DEFAULT.worded_sets:
        for text, (clue, excluded) in zip(row.checklist, row.question.requirements, strict=True):
            values = [clue.value] if clue.value else [f"{clue.low:,}", str(clue.low)]
            assert any(value in text for value in values)
            assert text.startswith("It is not the case that") == excluded
        related = [r for r in row.question.requirements if r.sort(row.question.kind) == "relation"]
        assert all(requirement.clue.value in row.text for requirement in related)


def test_judgements_are_the_targets_and_there_are_no_short_answers():
    qids = {topic.qid for topic in DEFAULT.topics}
    assert set(DEFAULT.targets) == qids == set(DEFAULT.checklists)
    assert DEFAULT.answers == {}
    assert {qid: set(row) for qid, row in DEFAULT.qrels["evidence"].items()} == DEFAULT.targets
    assert not FictionalWorld().targets


def test_splits_halve_the_questions():
    halves = [
        FictionalWorld(documents=800, questions="sets:40", split=split).topics
        for split in ("dev", "test")
    ]
    texts = [{topic.text for topic in topics} for topics in halves]
    assert list(map(len, texts)) == [20, 20]
    assert not texts[0] & texts[1]


def test_the_kind_of_question_changes_the_benchmark_and_not_its_corpus():
    chained = FictionalWorld()
    assert chained.fingerprint == "03d6afede29f"  # as before there were such questions
    assert chained.corpus_fingerprint == DEFAULT.corpus_fingerprint
    assert chained.fingerprint != DEFAULT.fingerprint


@pytest.mark.parametrize("questions", ["set", "sets:", "sets:x", "sets:0", "sets:-1", "sets:900"])
def test_another_word_for_questions_is_refused(questions):
    with pytest.raises(InputError, match="questions="):
        FictionalWorld(documents=800, questions=questions)


def test_a_small_world_tells_how_many_questions_it_holds(monkeypatch):
    monkeypatch.setattr(set_questions, "ATTEMPTS", 1)
    with pytest.raises(InputError, match="hold only"):
        _ = FictionalWorld(documents=64, questions="sets:32", twins=0.0).topics


def test_links_are_a_part_of_who_names_whom():
    """About half; every one of them is there to read on the page."""
    documents = {document.docid: document for document in WORLD.documents()}
    titles = {docid: document.title for docid, document in documents.items()}
    links = list(WORLD.links() or ())
    assert len(links) == len(set(links)) > 0
    assert all(titles[link.linked] in documents[link.docid].text for link in links)
    relations = sum(
        fact.value in set(titles.values()) for docid in titles for fact in WORLD.facts(docid)
    )
    assert 0.4 * relations < len(links) < 0.6 * relations
    assert links == list(FictionalWorld(documents=800, median_words=40, p90_words=60).links() or ())


def test_links_follow_mentions_beside_facts():
    world = FictionalWorld(documents=200, median_words=2000, p90_words=3000)
    documents = {document.docid: document for document in world.documents()}
    graph = LinkGraph.build(world.links(), documents)
    of_facts = {(docid, fact.value) for docid in documents for fact in world.facts(docid)}
    pairs = [
        (docid, documents[linked].title)
        for docid in documents
        for linked in graph.neighbours(docid, "out")
    ]
    assert graph.missing == 0
    assert all(title in documents[docid].text for docid, title in pairs)
    assert any(pair not in of_facts for pair in pairs)
