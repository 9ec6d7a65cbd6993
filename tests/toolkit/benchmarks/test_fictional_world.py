"""The fictional world: determinism, pages, twins, and questions checked by brute force."""

import hashlib
import re
import tracemalloc
from collections import Counter
from functools import cache
from itertools import islice

import numpy as np
import pytest
from support.assertions import refused
from support.needs import cases

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld, questions
from soundingline.toolkit.benchmarks.fictional.pages import philox_bits, printed, zipf
from soundingline.toolkit.benchmarks.fictional.questions import Hop
from soundingline.toolkit.benchmarks.fictional.world import (
    BY_NAME,
    CHOICE,
    LEXICONS,
    NUMBER,
    RELATION,
    TWIN_DIFFERENCES,
    TYPES,
    YEAR,
    World,
    attribute_of,
    splitmix64,
)
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search.answers import ShownText, stating_documents

SMALL = {"documents": 160, "questions": 8, "median_words": 60, "p90_words": 200}


def test_the_seed_changes_everything():
    one, other = FictionalWorld(**SMALL), FictionalWorld(**SMALL, seed=8, name="other")
    assert isinstance(one, Benchmark) and other.name == "other"
    pairs = list(zip(one.documents(), other.documents(), strict=True))
    assert all(a.text != b.text for a, b in pairs)
    assert not {a.title for a, _ in pairs} & {b.title for _, b in pairs}
    assert not {a.text for a in one.topics} & {b.text for b in other.topics}


def test_the_corpus_fingerprint_depends_on_the_documents_only():
    base = FictionalWorld(**SMALL)
    questions = {"split": "dev", "questions": 9, "hops": 3, "clues": 3, "obfuscation": 0.1}
    pages = {"seed": 8, "documents": 161, "twins": 0.1, "median_words": 61, "p90_words": 201}
    for name, value in (questions | pages).items():
        other = FictionalWorld(**{**SMALL, name: value})
        assert (other.corpus_fingerprint == base.corpus_fingerprint) is (name in questions)
        assert other.fingerprint != base.fingerprint
    assert FictionalWorld(**SMALL, name="other").fingerprint == base.fingerprint


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("documents", 63, r"documents=63\. valid: a whole number, 64 to"),
        ("documents", 2.5, r"documents=2\.5"),
        ("documents", True, r"documents=True"),
        ("questions", 0, r"questions=0\. valid: a whole number, 1 to 80"),
        ("questions", 81, r"questions=81"),
        *(
            ("questions", it, "questions=")
            for it in ("set", "sets:", "sets:x", "sets:0", "sets:99")
        ),
        ("hops", 0, r"hops=0\. valid: a whole number, 1 to 4"),
        ("hops", 5, r"hops=5"),
        ("seed", -1, r"seed=-1"),
        ("seed", "a", r"seed='a'"),
        ("clues", 6, r"clues=6\. valid: a whole number, 1 to 5"),
        ("obfuscation", 1.1, r"obfuscation=1\.1\. valid: 0 or more, at most 1"),
        ("obfuscation", float("nan"), r"obfuscation=nan"),
        ("twins", 0.6, r"twins=0\.6\. valid: 0 or more, at most 0\.5"),
        ("median_words", 10, r"median_words=10"),
        ("p90_words", 60, r"p90_words=60\. valid: a whole number, 61 to"),
        ("split", "train", r"split='train'\. valid: dev, test, or null"),
        ("repetition", "often", r"repetition='often'\. valid: \[scale, exponent, deviation\]"),
        ("repetition", [1, 2], r"repetition=\[1, 2\]"),
        ("repetition", [1, 2, 0], r"repetition's exponent=2"),
        ("told", "all", r"told='all'\. valid: \[mentions, facts\]"),
        ("told", [0.5], r"told=\[0\.5\]"),
        ("told", [2, 0.5], r"told's mentions=2"),
    ],
)
def test_arguments_out_of_range_are_refused(argument, value, message):
    refused(message, FictionalWorld, **{**SMALL, argument: value})


def test_a_world_too_small_for_its_questions_says_how_many_it_holds():
    world = FictionalWorld(documents=400, questions=200, hops=1, clues=1)
    refused(r"400 documents hold only \d+ of 200 questions of 1 hops", lambda: world.topics)


@pytest.mark.parametrize("docid", ["fw9999999", "fw1", "x", "fw0000160", "fw00000001", ""])
def test_an_unknown_document_is_missing_and_has_no_facts(docid):
    world = FictionalWorld(**SMALL)
    assert world.missing_documents(["fw0000000", docid]) == {docid}
    with pytest.raises(KeyError):
        world.facts(docid)


@pytest.mark.parametrize(("size", "twins"), [(64, 0.5), (20_000, 0.5), (50_000, 0.2), (999, 0.0)])
def test_names_are_unique(size, twins):
    world = World(size, 7, twins)
    assert len({world.name(world.entity(index)) for index in range(size)}) == size


def test_twins_share_most_attributes_and_a_similar_name_and_differ_somewhere():
    world = World(4000, 7, 0.25)
    entities = [world.entity(index) for index in range(4000)]
    twins = [entity for entity in entities if world.is_twin(entity.ordinal)]
    assert len(twins) == pytest.approx(1000, rel=0.02)
    for twin in twins:
        base = twin._replace(ordinal=twin.ordinal - 1)
        assert not world.is_twin(base.ordinal)
        different = sum(
            world.digits(twin.kind, attribute, twin.ordinal)
            != world.digits(base.kind, attribute, base.ordinal)
            for attribute in BY_NAME[twin.kind].attributes
        )
        assert 1 <= different <= TWIN_DIFFERENCES
        one, other = world.name(twin), world.name(base)
        assert one != other
        assert one[:3] == other[:3] and len(one.split()) == len(other.split())


def test_things_are_made_by_people_who_are_alive_and_grown_up():
    world = World(1600, 7, 0.2)
    made = [
        (entity, BY_NAME[entity.kind], attribute)
        for entity in map(world.entity, range(1600))
        for attribute in BY_NAME[entity.kind].attributes
        if attribute.kind == YEAR and attribute.after
    ]
    assert len(made) > 500
    for entity, kind, attribute in made:
        maker = kind.attributes[kind.position(attribute.after)]
        facts = {it.relation: it.value for it in world.facts(world.target(entity, maker))}
        assert 18 <= world.number(entity, attribute) - int(facts["born"]) <= 70


def test_paraphrases_denote_one_word_each():
    for words in LEXICONS.values():
        assert len(set(words.values())) == len(words)
        assert not set(words.values()) & set(words)


def test_every_wording_has_its_slots():
    for kind in TYPES:
        for attribute in kind.attributes:
            assert len(set(attribute.tells)) == 4
            assert all("{s}" in tell and "{v}" in tell for tell in attribute.tells)
            assert "{v}" in attribute.line
            if attribute.kind == RELATION:
                assert all("{a}" in link and "{b}" in link for link in attribute.links)
            else:
                slot = "{v}" if attribute.kind == CHOICE else "{r}"
                assert all(slot in clue for clue in attribute.clues)
                assert attribute.clues[0] != attribute.clues[1]


def test_splitmix64_gives_the_published_outputs():
    """Outputs for seed 0 as published with the reference implementation (Vigna)."""
    values = [0x9E3779B97F4A7C15 * turn % 2**64 for turn in range(3)]
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [splitmix64(value) for value in values] == outputs
    assert splitmix64(np.array(values, dtype=np.uint64)).tolist() == outputs


# Worlds of three settings, pinned byte for byte. The digests have no independent source: the
# generator of an earlier commit computed them, and published figures and recorded runs depend on
# its worlds. If a world must change, raise `VERSION` or `SETS_VERSION` in `fictional/benchmark.py`,
# pin the new digests, and compute the figures of the documentation again.
SETTINGS = {
    "chained": {"documents": 160, "questions": 40},
    "four hops": {
        **{"documents": 640, "median_words": 80, "p90_words": 900, "twins": 0.45, "seed": 11},
        **{"questions": 16, "hops": 4, "clues": 2, "obfuscation": 0.9, "split": "dev"},
    },
    "sets": {
        **{"documents": 800, "median_words": 120, "p90_words": 200, "seed": 3},
        **{"questions": "sets:25", "obfuscation": 0.25},
    },
}
PINNED = {
    "chained": "6afc7c37ed 2017c91a20 bfc8decffb 46e254fa25 79194d9a59 35386d38b1 fa165efa13",
    "four hops": "78d7e87bdf ab06a15fee f881931c9b 46e254fa25 6baaf70803 7d8e0b1a42 3ef42ec857",
    "sets": "532743625a d108e309d2 de3e33fc34 d6e15228da 609701d638 3f595122e3 e2b12d95ad",
}


def digests(world):
    documents = [tuple(document) for document in world.documents()]
    docids = [docid for docid, *_ in documents]
    parts = [
        documents,
        [tuple(topic) for topic in world.topics],
        [world.qrels, world.answers],
        [
            [(qid, sorted(targets)) for qid, targets in world.targets.items()],
            world.checklists,
            [[rows[docid] for docid in docids] for rows in world.satisfaction.values()],
        ],
        [tuple(link) for link in world.links()],
        [tuple(map(tuple, world.facts(docid))) for docid in docids[::7]],
        [world.corpus_fingerprint, world.fingerprint],
    ]
    return [hashlib.sha256(repr(part).encode()).hexdigest()[:10] for part in parts]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_generator_makes_the_pinned_world(name):
    assert " ".join(digests(FictionalWorld(**SETTINGS[name]))) == PINNED[name]


# Pages.

SENTENCE = re.compile(r"[^.!\n]+[.!]?")


VALUE = "\0"  # stands for the value in a sentence


@cache
def wordings(attribute):
    """Any of the ways in which a page may tell a fact, with `VALUE` for its value."""
    shapes = [re.escape(tell) for tell in (*attribute.tells, attribute.line)]
    return re.compile(
        "|".join(
            shape.replace(r"\{s\}", r"[^.\n]{3,50}?").replace(r"\{v\}", VALUE) for shape in shapes
        ),
        re.IGNORECASE,
    )


def tells(sentence, attribute, shown):
    """Whether the sentence states this value of the attribute, at one of the places where it has
    the value."""
    return any(
        wordings(attribute).fullmatch(sentence[: found.start()] + VALUE + sentence[found.end() :])
        for found in re.finditer(re.escape(shown), sentence, re.IGNORECASE)
    )


@pytest.fixture(scope="module")
def long_world():
    return FictionalWorld(documents=1600, median_words=500, p90_words=2000)


@pytest.fixture(scope="module")
def documents(long_world):
    return list(islice(long_world.documents(), 320))


def test_evidence_is_each_page_that_states_a_fact_of_the_question():
    """The texts are searched for the wordings of the facts."""
    lengths = {"median_words": 700, "p90_words": 3000}
    world = FictionalWorld(documents=240, questions=12, hops=1, told=[0.8, 0.4], **lengths)
    pages = [ShownText(each.docid, each.title, each.text) for each in world.documents()]
    several = 0
    for qid, facts in world.needed_facts.items():
        stating = [
            {page.docid for page in pages if stating_documents([fact], [page]) != [None]}
            for fact in facts
        ]
        assert set(world.qrels["evidence"][qid]) == set().union(*stating)
        assert set(world.qrels["gold"][qid]) == stating[-1]
        several += len(stating[-1]) > 1
    assert several > 6
    alone = FictionalWorld(documents=240, questions=12, hops=1, **lengths)
    assert alone.corpus_fingerprint != world.corpus_fingerprint
    assert list(alone.qrels["evidence"].values()) == list(alone.qrels["gold"].values())


def test_the_long_world_has_the_published_statistics():
    """BrowseComp-Plus has documents of 5,179 words on average and a 90th percentile of the length
    that is seven times the median; 6.1 documents with evidence and 2.9 with the answer a question
    (Chen et al., 2025, and Table 1 of arXiv 2602.21456)."""
    world = make(Settings.compose(["benchmark=fictional_long"]).config.benchmark)
    words = list(map(world._articles.words, range(world.size)))
    assert np.mean(words) == pytest.approx(5179, rel=0.03)
    assert np.percentile(words, 90) / np.median(words) == pytest.approx(7, rel=0.05)
    evidence, gold = (world.qrels[tier].values() for tier in ("evidence", "gold"))
    assert np.mean([*map(len, evidence)]) == pytest.approx(6.1, abs=0.15)
    assert np.mean([*map(len, gold)]) == pytest.approx(2.9, abs=0.15)


def places(world, document):
    """Where the page tells each of its facts, from 0 (start) to 1 (end)."""
    entity = world.world.entity(int(document.docid[2:]))
    sentences = list(SENTENCE.finditer(document.text))
    found = []
    for attribute in BY_NAME[entity.kind].attributes:
        shown = printed(attribute, world.world.value(entity, attribute))
        told = [
            sentence.start()
            for sentence in sentences
            if tells(sentence[0].strip(), attribute, shown)
        ]
        assert len(told) == 1, (document.docid, attribute.name, len(told))
        found.append(told[0] / len(document.text))
    return found


def test_every_fact_is_stated_once_on_its_page_and_at_any_place(long_world, documents):
    found = [
        place
        for document in documents
        for place in places(long_world, document)
        if len(document.text.split()) > 400
    ]
    assert len(found) > 800
    # The test of Kolmogorov and Smirnov: a larger distance from the uniform distribution has a
    # probability of 0.001.
    steps = np.arange(len(found) + 1) / len(found)
    above, below = steps[1:] - np.sort(found), np.sort(found) - steps[:-1]
    assert max(above.max(), below.max()) < 1.949 / np.sqrt(len(found))


def test_pages_have_titles_addresses_and_lines(documents):
    for document in documents:
        assert document.title in document.text
        assert re.fullmatch(r"https://[a-z]+\.example/[a-z]+/[\w-]+", document.url)
        assert "\n\n\n" not in document.text
        assert "%" not in document.text
    long = [document.text for document in documents if len(document.text.split()) > 1500]
    assert all(text.count("\n\n") >= 5 for text in long)
    assert any("\n- " in text for text in long)


def test_lengths_are_log_normal_with_the_median_and_percentile_asked_for():
    world = FictionalWorld(documents=20_000)
    aimed = np.array(list(map(world._articles.words, range(20_000))))
    assert np.median(aimed) == pytest.approx(1500, rel=0.03)
    assert np.percentile(aimed, 90) == pytest.approx(10_000, rel=0.04)
    assert np.percentile(aimed, 10) == pytest.approx(1500**2 / 10_000, rel=0.04)


def test_pages_have_the_length_aimed_at(long_world, documents):
    aimed = {document: long_world._articles.words(n) for n, document in enumerate(documents)}
    long = {document: words for document, words in aimed.items() if words > 600}
    assert len(long) > 10
    for document, words in long.items():
        assert len(document.text.split()) == pytest.approx(words, rel=0.1)


def test_ranks_follow_the_zipf_mandelbrot_law():
    size, shift, exponent = 50_000, 12, 1.25
    drawn = zipf(philox_bits(400_000, "test") >> np.uint64(32), size, shift)
    weights = (np.arange(size) + shift) ** -exponent
    expected = np.cumsum(weights) / weights.sum()
    assert drawn.min() == 0
    assert drawn.max() < size
    for rank in (0, 1, 10, 100, 1000, 10_000, 40_000):
        assert np.mean(drawn <= rank) == pytest.approx(expected[rank], abs=0.003)


def test_the_vocabulary_keeps_growing_with_the_collection():
    """Heaps' law: in texts the exponent of distinct words over all words is 0.4 to 0.8."""
    world = FictionalWorld(documents=100_000, median_words=600, p90_words=2000)
    seen = set()
    total, sizes = 0, []
    most = cases(800, 250)
    for number, document in enumerate(islice(world.documents(), most), start=1):
        words = re.findall(r"\w+", document.text.lower())
        total += len(words)
        seen.update(words)
        if number in (50, most):
            sizes.append((total, len(seen)))
    (words_before, distinct_before), (words_after, distinct_after) = sizes
    growth = np.log(distinct_after / distinct_before) / np.log(words_after / words_before)
    assert 0.4 < growth < 0.85


def test_documents_are_numbered_from_0(long_world):
    docids = [document.docid for document in long_world.documents()]
    assert docids == [f"fw{index:07d}" for index in range(1600)]


def peak(function):
    tracemalloc.start()
    assert function()
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


def test_documents_need_no_memory_that_grows_with_their_number():
    settings = {"median_words": 60, "p90_words": 120}
    small = FictionalWorld(documents=1000, **settings)
    large = FictionalWorld(documents=100_000, **settings)
    # Makes the shared tables.
    assert all(document.text for document in islice(large.documents(), 160))
    few = peak(lambda: all(document.text for document in islice(small.documents(), 40)))
    many = peak(lambda: all(document.text for document in islice(large.documents(), 160)))
    assert many < few + 300_000


def test_questions_of_a_large_world_need_a_few_bytes_an_entity():
    world = FictionalWorld(documents=100_000, questions=20, hops=3)
    assert peak(lambda: len(world.topics) == 20) < 100 * world.size


@pytest.mark.parametrize("questions", [4, "sets:4"])
def test_a_share_of_the_corpus_has_the_pages_of_all_questions(questions):
    arguments = {"documents": 160, "questions": questions, "median_words": 60, "p90_words": 90}
    whole = {document.docid for document in FictionalWorld(**arguments, split="dev").documents()}
    kept = {}
    for share in (0.1, 0.3):
        worlds = [
            FictionalWorld(**arguments, split=split, corpus_share=share)
            for split in (None, "dev", "test")
        ]
        assert len({world.corpus_fingerprint for world in worlds}) == 1
        kept[share] = {document.docid for document in worlds[1].documents()}
        for world in worlds:
            judged = {docid for rows in world.qrels["evidence"].values() for docid in rows}
            assert judged and judged <= kept[share]
            assert world.missing_documents(whole) == whole - kept[share]
    assert kept[0.1] < kept[0.3] < whole and len(whole) == 160


# Chained questions, and questions for documents, checked by brute force over the facts of pages.
# The solver knows nothing of how questions are made: it reads `facts(docid)` of every document and
# a question's conditions, and tries everything.


HOPS = [(1, 7), (2, 7), (3, 8), (4, 7)]


def small(documents, questions, **settings):
    """A world of short pages, which facts and questions do not depend on."""
    return FictionalWorld(documents, questions, median_words=40, p90_words=80, **settings)


@pytest.fixture(scope="module", params=HOPS, ids=lambda pair: f"{pair[0]}hops-seed{pair[1]}")
def world(request):
    hops, seed = request.param
    return small(480, 24, hops=hops, seed=seed)


def facts_by(key, world):
    """The facts of each page by relation, with its docid and title."""
    rows = {}
    for number in range(world.size):
        docid = f"fw{number:07d}"
        facts = world.facts(docid)
        (title,) = {fact.subject for fact in facts}
        row = {fact.relation: fact.value for fact in facts}
        row |= {"docid": docid, "title": title}
        rows[row[key]] = row
    titles = {document.docid: document.title for document in islice(world.documents(), 80)}
    assert titles.items() <= {row["docid"]: row["title"] for row in rows.values()}.items()
    assert len(rows) == world.size
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
    year = attribute_of(question.kinds[-1], question.relation).kind == YEAR
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
            if attribute.kind == CHOICE:
                words = (clue.value, LEXICONS[attribute.lexicon][clue.value])
                assert any(word in text for word in words)
            else:
                style = "{:,}" if attribute.kind == NUMBER else "{}"
                assert style.format(clue.low) in text
    assert len(set(names)) == len(names), "an entity of two answers"


def values_worded(worded, other):
    """How many word clues show the articles' word (or its paraphrase, if `other`)."""
    count = 0
    for clue in worded.question.clues:
        attribute = attribute_of(worded.question.kinds[clue.position], clue.relation)
        if attribute.kind == CHOICE:
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
    every, dev, test = (small(320, 31, split=split) for split in (None, "dev", "test"))
    assert sorted([*dev.topics, *test.topics]) == sorted(every.topics)
    assert (len(dev.topics), len(test.topics)) == (16, 15)
    gold = [{docid for row in half.qrels["gold"].values() for docid in row} for half in (dev, test)]
    assert not gold[0] & gold[1]
    dev, test = (small(200, "sets:16", split=split) for split in ("dev", "test"))
    assert (len(dev.topics), len(test.topics)) == (8, 8)
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

WORLD = small(400, "sets:40")
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
        none = [False] * len(worded.checklist)
        expected = {docid: met.get(docid, none) for docid in facts}
        assert {docid: list(known[docid]) for docid in facts} == expected


def test_the_world_asks_by_every_sort_of_requirement_two_to_six_of_them():
    worded = DEFAULT.worded_questions
    sorts = Counter(
        requirement.sort(row.question.kind)
        for row in worded
        for requirement in row.question.requirements
    )
    assert len(worded) == 100
    assert set(sorts) == {"choice", "relation", "number", "year", "exclusion"}
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
