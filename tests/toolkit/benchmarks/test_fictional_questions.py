"""Chained questions, and questions for documents, checked by brute force over the facts of pages.

The solver here knows nothing of how questions are made: it reads `facts(docid)` of every document
and a question's conditions, and tries everything.
"""

from collections import Counter

import pytest

from soundingline.toolkit.benchmarks.benchmark import LinkGraph
from soundingline.toolkit.benchmarks.fictional import FictionalWorld, questions
from soundingline.toolkit.benchmarks.fictional.questions import Hop
from soundingline.toolkit.benchmarks.fictional.world import (
    LEXICONS,
    Choice,
    Number,
    Year,
    attribute_of,
)
from soundingline.toolkit.errors import InputError

SETTINGS = [(1, 7), (2, 7), (3, 8), (4, 7)]


def small(documents, questions, **settings):
    """A world of short pages, which facts and questions do not depend on."""
    return FictionalWorld(documents, questions, median_words=40, p90_words=80, **settings)


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda pair: f"{pair[0]}hops-seed{pair[1]}")
def world(request):
    hops, seed = request.param
    return small(480, 24, hops=hops, seed=seed)


def facts_by(key, world):
    """The facts of each page by relation, with its docid and title."""
    rows = {}
    for document in world.documents():
        facts = world.facts(document.docid)
        assert {fact.subject for fact in facts} == {document.title}
        row = {fact.relation: fact.value for fact in facts}
        row |= {"docid": document.docid, "title": document.title}
        rows[row[key]] = row
    return rows


@pytest.fixture(scope="module")
def facts(world):
    return facts_by("title", world)


def holds(row, clue):
    value = row[clue.relation]
    return value == clue.value if clue.value else clue.low <= int(value) <= clue.high


def candidates(facts, question, clues):
    """For each place of the path, the names of the right type that meet the clues."""
    return [
        [
            name
            for name, row in facts.items()
            if row["type"] == kind
            and all(holds(row, clue) for clue in clues if clue.position == place)
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


def open_answers(facts, question, known, enough=2):
    """Answers that remain possible when only the documents at the `known` places of the path (the
    last one among them) are read; stops at `enough` of them."""
    clues = [clue for clue in question.clues if clue.position in known]
    hops = [hop for hop in question.hops if hop.subject in known]
    names = candidates(facts, question, clues)
    joined = {max(hop.subject, hop.object) for hop in hops}
    start = max(place for place in range(len(names)) if place not in joined)
    shifted = [Hop(it.subject - start, it.relation, it.object - start) for it in hops]
    hops = [hop for hop in shifted if min(hop.subject, hop.object) >= 0]
    possible = set()
    for path in paths(facts, names[start:], hops):
        possible.add(answer(facts, question, path[-1]))
        if len(possible) >= enough:
            break
    return possible


def test_brute_force_yields_one_path_and_the_accepted_answer(world, facts):
    for worded in world.worded_questions:
        question = worded.question
        names = candidates(facts, question, list(question.clues))
        (path,) = paths(facts, names, list(question.hops))
        accepted = {text.replace(",", "") for text in worded.answers}
        assert accepted == {answer(facts, question, path[-1])}
        assert world.qrels["evidence"][worded.qid] == {facts[name]["docid"]: 1 for name in path}
        assert world.qrels["gold"][worded.qid] == {facts[path[-1]]["docid"]: 1}


def test_each_document_is_needed_and_none_determines_the_answer_alone(world, facts):
    """Only the last document states the answer, because documents are about their own entity."""
    last = world.hops - 1
    for worded in world.worded_questions:
        question = worded.question
        assert len(set(question.path)) == world.hops
        assert len(open_answers(facts, question, {last})) == (2 if last else 1)
        for without in range(last):
            known = set(range(world.hops)) - {without}
            assert len(open_answers(facts, question, known)) == 2, (worded.text, without)


def test_a_question_words_every_clue_and_neither_its_entities_nor_what_it_asks(world):
    names = []
    for worded in world.worded_questions:
        question, text = worded.question, worded.text
        assert all(it in ("yes", "no") or it not in text for it in worded.answers)
        assert not any(world.world.name(entity) in text for entity in question.path)
        names.append(world.world.name(question.path[-1]))
        names += worded.answers if question.kind == "name" else []
        for clue in question.clues:
            assert (clue.position, clue.relation) != (world.hops - 1, question.relation)
            attribute = attribute_of(question.kinds[clue.position], clue.relation)
            if isinstance(attribute, Choice):
                words = (clue.value, LEXICONS[attribute.lexicon][clue.value])
                assert any(word in text for word in words)
            else:
                style = "{:,}" if isinstance(attribute, Number) else "{}"
                assert style.format(clue.low) in text
    assert len(set(names)) == len(names), "an entity of two answers"


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
def test_obfuscation_is_the_share_of_values_in_other_words(rate, low, high):
    world = small(3200, 200, obfuscation=rate)
    same = sum(values_worded(worded, other=False) for worded in world.worded_questions)
    other = sum(values_worded(worded, other=True) for worded in world.worded_questions)
    assert low <= other / (same + other) <= high


def test_obfuscation_changes_words_and_nothing_else():
    plain, veiled = (small(640, 20, obfuscation=rate).worded_questions for rate in (0.0, 1.0))
    for one, other in zip(plain, veiled, strict=True):
        assert (one.question, one.answers) == (other.question, other.answers)
        assert one.text != other.text


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
    every, dev, test = (small(640, 31, split=split) for split in (None, "dev", "test"))
    assert sorted([*dev.topics, *test.topics]) == sorted(every.topics)
    assert (len(dev.topics), len(test.topics)) == (16, 15)
    gold = [{docid for row in half.qrels["gold"].values() for docid in row} for half in (dev, test)]
    assert not gold[0] & gold[1]
    dev, test = (small(800, "sets:40", split=split) for split in ("dev", "test"))
    assert (len(dev.topics), len(test.topics)) == (20, 20)
    assert not {topic.text for topic in dev.topics} & {topic.text for topic in test.topics}


def test_twins_of_entities_in_questions_are_hard_negatives():
    """A near-twin meets some of the clues, and never all of them."""
    questions = small(2000, 100, hops=1)
    world, close = questions.world, 0
    for worded in questions.worded_questions:
        (entity,) = worded.question.path
        ordinal = entity.ordinal - 1 if world.is_twin(entity.ordinal) else entity.ordinal + 1
        twins = world.is_twin(entity.ordinal) or world.is_twin(ordinal)
        if not twins or ordinal >= world.counts[entity.kind]:
            continue
        facts = world.facts(entity._replace(ordinal=ordinal))
        row = {fact.relation: fact.value for fact in facts}
        met = [holds(row, clue) for clue in worded.question.clues]
        assert not all(met)
        close += any(met)
    assert close >= 20


# Questions that ask for documents.

WORLD = small(800, "sets:40")
DEFAULT = FictionalWorld(questions="sets")


def test_targets_and_satisfaction_are_those_of_the_facts_of_the_pages():
    facts = facts_by("docid", WORLD)
    assert len(WORLD.worded_questions) == 40
    for worded in WORLD.worded_questions:
        question, known = worded.question, WORLD.satisfaction[worded.qid]
        met = {
            docid: [holds(row, it.clue) != it.excluded for it in question.requirements]
            for docid, row in facts.items()
            if row["type"] == question.kind
        }
        assert WORLD.targets[worded.qid] == {docid for docid, row in met.items() if all(row)}
        assert WORLD.targets[worded.qid]
        missing_one = {row.index(False) for row in met.values() if row.count(False) == 1}
        assert missing_one == set(range(len(worded.checklist))), "a superfluous requirement"
        assert len(known) == len(facts) and "fw9999999" not in known
        for docid in facts:
            assert list(known[docid]) == met.get(docid, [False] * len(worded.checklist))


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
    chained = FictionalWorld()
    assert not chained.targets
    assert chained.fingerprint == "03d6afede29f"  # as before there were such questions
    assert chained.corpus_fingerprint == DEFAULT.corpus_fingerprint
    assert chained.fingerprint != DEFAULT.fingerprint


def test_a_small_world_says_how_many_questions_it_holds(monkeypatch):
    monkeypatch.setattr(questions, "SET_ATTEMPTS", 1)
    with pytest.raises(InputError, match="hold only"):
        _ = FictionalWorld(documents=64, questions="sets:32", twins=0.0).topics


def test_links_are_a_part_of_who_names_whom_in_facts_and_mentions():
    for world in (WORLD, FictionalWorld(documents=200, median_words=2000, p90_words=3000)):
        documents = {document.docid: document for document in world.documents()}
        graph = LinkGraph.build(world.links(), documents)
        assert (graph.missing, graph.repeated, graph.own) == (0, 0, 0)
        pairs = {
            (docid, documents[linked].title)
            for docid in documents
            for linked in graph.neighbours(docid, "out")
        }
        assert all(title in documents[docid].text for docid, title in pairs)
        titles = {document.title for document in documents.values()}
        relations = {
            (docid, fact.value)
            for docid in documents
            for fact in world.facts(docid)
            if fact.value in titles
        }
        if world is WORLD:
            assert 0.4 * len(relations) < len(pairs) < 0.6 * len(relations)
        else:
            assert pairs - relations
