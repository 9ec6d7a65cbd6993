"""Questions of the fictional world, checked by brute force over what the documents tell.

The solver here knows nothing of how questions are made: it reads `facts(docid)` of every document
and a question's conditions, and tries everything.
"""

from __future__ import annotations

from collections import Counter

import pytest

from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.benchmarks.fictional.questions import Hop
from soundingline.toolkit.benchmarks.fictional.world import (
    LEXICONS,
    Choice,
    Number,
    Year,
    attribute_of,
)

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
