"""Chained questions, and questions for documents, checked by brute force over the facts of pages.

The solver here knows nothing of how questions are made: it reads `facts(docid)` of every document
and a question's conditions, and tries everything.
"""

from __future__ import annotations

from collections import Counter

import pytest

from soundingline.toolkit.benchmarks.fictional import FictionalWorld, set_questions
from soundingline.toolkit.benchmarks.fictional.questions import Hop
from soundingline.toolkit.benchmarks.fictional.world import (
    LEXICONS,
    Choice,
    Number,
    Year,
    attribute_of,
)
from soundingline.toolkit.benchmarks.links import LinkGraph
from soundingline.toolkit.errors import InputError

Facts = dict[str, dict[str, str]]
SETTINGS = [(1, 7), (2, 7), (3, 8), (4, 7)]


def small(documents, questions, **settings):
    """A world of short pages, which facts and questions do not depend on."""
    return FictionalWorld(documents, questions, median_words=40, p90_words=80, **settings)


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda pair: f"{pair[0]}hops-seed{pair[1]}")
def world(request):
    hops, seed = request.param
    return small(480, 24, hops=hops, seed=seed)


@pytest.fixture(scope="module")
def facts(world):
    told = {}
    for document in world.documents():
        for fact in world.facts(document.docid):
            assert fact.subject == document.title
            told.setdefault(fact.subject, {})[fact.relation] = fact.value
        told[document.title]["docid"] = document.docid
    return told


def holds(facts, name, clue):
    value = facts[name][clue.relation]
    return value == clue.value if clue.value else clue.low <= int(value) <= clue.high


def candidates(facts, question, clues):
    """For each place of the path, the names of the right type that meet the clues."""
    return [
        [
            name
            for name, told in facts.items()
            if told["type"] == kind
            and all(holds(facts, name, clue) for clue in clues if clue.position == place)
        ]
        for place, kind in enumerate(question.kinds)
    ]


def paths(facts, names, hops, path=()):
    """Every choice of one name a place that the hops allow."""
    new = len(path)
    if new == len(names):
        yield path
        return
    joining = [hop for hop in hops if max(hop.subject, hop.object) == new]
    for name in names[new]:
        longer = (*path, name)
        if all(facts[longer[it.subject]][it.relation] == longer[it.object] for it in joining):
            yield from paths(facts, names, hops, longer)


def answer(facts, question, name):
    value = facts[name][question.relation]
    if question.kind != "yes/no":
        return value
    year = isinstance(attribute_of(question.kinds[-1], question.relation), Year)
    truth = int(value) < question.threshold if year else int(value) > question.threshold
    return "yes" if truth else "no"


def open_answers(facts, question, told_at, enough=2):
    """Answers that remain possible when, of the path, only the documents at some places (the last
    one among them) are known; stops at `enough` of them."""
    clues = [clue for clue in question.clues if told_at(clue.position)]
    hops = [hop for hop in question.hops if told_at(hop.subject)]
    names = candidates(facts, question, clues)
    joined = {max(hop.subject, hop.object) for hop in hops}
    start = max(place for place in range(len(names)) if place not in joined)
    shifted = [Hop(it.subject - start, it.relation, it.object - start) for it in hops]
    kept = [hop for hop in shifted if min(hop.subject, hop.object) >= 0]
    found = set()
    for path in paths(facts, names[start:], kept):
        found.add(answer(facts, question, path[-1]))
        if len(found) >= enough:
            break
    return found


def test_brute_force_finds_one_path_and_the_given_answer(world, facts):
    for worded in world.worded_questions:
        question = worded.question
        names = candidates(facts, question, list(question.clues))
        (path,) = paths(facts, names, list(question.hops))
        accepted = {text.replace(",", "") for text in worded.answers}
        assert accepted == {answer(facts, question, path[-1])}
        assert world.qrels["evidence"][worded.qid] == {facts[name]["docid"]: 1 for name in path}
        assert world.qrels["gold"][worded.qid] == {facts[path[-1]]["docid"]: 1}


def test_no_document_alone_determines_the_answer(world, facts):
    """Only the last document tells the answer (documents tell of their own entity alone); and who
    reads it without the others has at least two answers to choose from."""
    last = world.hops - 1
    possible = 1 if world.hops == 1 else 2
    for worded in world.worded_questions:
        assert len(set(worded.question.path)) == world.hops
        assert len(open_answers(facts, worded.question, lambda place: place == last)) == possible


def test_each_document_is_needed(world, facts):
    for worded in world.worded_questions:
        for gone in range(world.hops - 1):
            known = open_answers(facts, worded.question, lambda place, gone=gone: place != gone)
            assert len(known) == 2, (worded.text, gone)


def test_a_question_names_none_of_its_entities(world, facts):
    for worded in world.worded_questions:
        for text in worded.answers:
            assert text in ("yes", "no") or text not in worded.text
        for entity in worded.question.path:
            assert world.world.name(entity) not in worded.text


def test_a_question_does_not_clue_what_it_asks(world):
    last = world.hops - 1
    for worded in world.worded_questions:
        clued = {clue.relation for clue in worded.question.clues if clue.position == last}
        assert worded.question.relation not in clued


def test_answering_entities_are_never_shared(world):
    asked = [worded.question.path[-1] for worded in world.worded_questions]
    named = [
        worded.answers[0] for worded in world.worded_questions if worded.question.kind == "name"
    ]
    names = [world.world.name(entity) for entity in asked]
    assert len(set(names + named)) == len(names) + len(named)


def test_every_clue_is_worded(world):
    for worded in world.worded_questions:
        for clue in worded.question.clues:
            attribute = attribute_of(worded.question.kinds[clue.position], clue.relation)
            if isinstance(attribute, Choice):
                words = (clue.value, LEXICONS[attribute.lexicon][clue.value])
                assert any(word in worded.text for word in words)
            else:
                style = "{:,}" if isinstance(attribute, Number) else "{}"
                assert style.format(clue.low) in worded.text


def values_worded(worded, other):
    """How many word clues show the articles' word (or its paraphrase, if `other`)."""
    count = 0
    for clue in worded.question.clues:
        attribute = attribute_of(worded.question.kinds[clue.position], clue.relation)
        if isinstance(attribute, Choice):
            word = LEXICONS[attribute.lexicon][clue.value] if other else clue.value
            count += f" {word}" in worded.text
    return count


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 0, 0), (0.5, 0.4, 0.6), (1.0, 1, 1)])
def test_obfuscation_is_the_share_of_values_put_in_other_words(rate, low, high):
    world = small(3200, 200, obfuscation=rate)
    same = sum(values_worded(worded, other=False) for worded in world.worded_questions)
    other = sum(values_worded(worded, other=True) for worded in world.worded_questions)
    assert low <= other / (same + other) <= high


def test_obfuscation_changes_words_and_nothing_else():
    plain, veiled = (small(640, 20, obfuscation=rate) for rate in (0.0, 1.0))
    assert [worded.question for worded in plain.worded_questions] == [
        worded.question for worded in veiled.worded_questions
    ]
    assert plain.answers == veiled.answers
    assert all(a.text != b.text for a, b in zip(plain.topics, veiled.topics, strict=True))


def test_all_kinds_of_answers_occur_and_yes_is_as_common_as_no():
    world = small(4000, 400)
    kinds = Counter(worded.question.kind for worded in world.worded_questions)
    assert set(kinds) == {"name", "number", "year", "yes/no"}
    assert min(kinds.values()) > 40
    answers = Counter(
        worded.answers[0] for worded in world.worded_questions if worded.question.kind == "yes/no"
    )
    assert 0.38 < answers["yes"] / sum(answers.values()) < 0.62


def test_splits_halve_the_questions_and_share_no_answering_entity():
    whole, dev, test = (small(640, 31, split=split) for split in (None, "dev", "test"))
    assert sorted([*dev.topics, *test.topics]) == sorted(whole.topics)
    assert (len(dev.topics), len(test.topics)) == (16, 15)
    gold = [{docid for row in half.qrels["gold"].values() for docid in row} for half in (dev, test)]
    assert not gold[0] & gold[1]
    names = [
        {worded.answers[0] for worded in half.worded_questions if worded.question.kind == "name"}
        for half in (dev, test)
    ]
    assert not names[0] & names[1]


def test_twins_of_asked_entities_are_hard_negatives():
    """A near-twin meets some of the clues, and never all of them."""
    world = small(2000, 100, hops=1).world
    close = 0
    for worded in small(2000, 100, hops=1).worded_questions:
        (entity,) = worded.question.path
        ordinal = entity.ordinal - 1 if world.is_twin(entity.ordinal) else entity.ordinal + 1
        twins = world.is_twin(entity.ordinal) or world.is_twin(ordinal)
        if not twins or ordinal >= world.counts[entity.kind]:
            continue
        facts = world.facts(entity._replace(ordinal=ordinal))
        told = {facts[0].subject: {fact.relation: fact.value for fact in facts}}
        met = [holds(told, facts[0].subject, clue) for clue in worded.question.clues]
        assert not all(met)
        close += any(met)
    assert close >= 20


# Questions that ask for documents.

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
def facts_of_sets():
    return facts_of(WORLD)


def test_targets_are_all_documents_whose_facts_meet_every_requirement(facts_of_sets):
    assert len(WORLD.worded_questions) == 40
    for worded in WORLD.worded_questions:
        met = brute_force(facts_of_sets, worded.question)
        assert WORLD.targets[worded.qid] == {docid for docid, row in met.items() if all(row)}
        assert WORLD.targets[worded.qid]


def test_every_requirement_has_a_document_that_misses_it_alone(facts_of_sets):
    for worded in WORLD.worded_questions:
        rows = brute_force(facts_of_sets, worded.question).values()
        missing_one = {row.index(False) for row in rows if row.count(False) == 1}
        assert missing_one == set(range(len(worded.checklist)))


def test_satisfaction_is_known_of_every_document(facts_of_sets):
    for worded in WORLD.worded_questions[:8]:
        met = brute_force(facts_of_sets, worded.question)
        known = WORLD.satisfaction[worded.qid]
        assert len(known) == len(facts_of_sets)
        for docid in facts_of_sets:
            assert list(known[docid]) == met.get(docid, [False] * len(worded.checklist))
    assert "fw9999999" not in known


def test_the_world_asks_by_every_sort_of_requirement_two_to_six_of_them():
    worded = DEFAULT.worded_questions
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
    for row in DEFAULT.worded_questions:
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


def test_splits_halve_the_questions_that_ask_for_documents():
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
