"""Lists of questions by id, and the strata of Pi-Serini's slices by hand-made numbers."""

import random
from collections import Counter

import pytest
from support.benchmarks import SmallBenchmark
from test_beir_benchmark import HEADER, write

from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.benchmarks.slices import (
    FOLDER,
    STRATA,
    listed_topics,
    pi_serini_slices,
    stratum,
)
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError

TOPICS = [Topic(qid, f"question {qid}") for qid in ("q1", "q2", "q3", "q4")]


def listing(folder, *rows):
    path = folder / "ids.txt"
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def test_listed_questions_stay_in_the_order_of_the_benchmark(tmp_path):
    path = listing(tmp_path, "q4", " q1 ", "", "q3\tthe text of a topic file")
    assert [topic.qid for topic in listed_topics(TOPICS, path)] == ["q1", "q3", "q4"]
    assert listed_topics(TOPICS, None) == TOPICS
    for rows, message in (("q1", "q9", "x"), "2 ids of no question, such as 'q9'"), ((), "no id"):
        with pytest.raises(InputError, match=message):
            listed_topics(TOPICS, listing(tmp_path, *rows))
    with pytest.raises(InputError, match="pi_serini_q9, or a file of ids"):
        listed_topics(TOPICS, "pi_serini_q10")


def test_the_slice_of_nine_questions_has_the_published_ids():
    published = ["25", "30", "244", "549", "655", "1019", "1032", "1127", "1219"]
    topics = [Topic(str(number), "?") for number in range(1, 1267)]
    assert [topic.qid for topic in listed_topics(topics, "pi_serini_q9")] == published
    assert (FOLDER / "pi_serini_q9.txt").read_text().split() == published


def test_a_benchmark_selects_its_questions_and_then_applies_the_limit(tmp_path):
    qids = listing(tmp_path, "q4", "q2", "q3")
    qrels = {"evidence": {topic.qid: {"d": 1} for topic in TOPICS}}
    benchmark = SmallBenchmark(TOPICS, qrels, qids=qids, limit=2)
    assert [topic.qid for topic in benchmark.topics] == ["q2", "q3"]
    assert set(benchmark.qrels["evidence"]) == {"q2", "q3"}


def test_the_fingerprint_of_a_folder_follows_the_listed_questions(tmp_path):
    folder = write(tmp_path / "mine", test=HEADER + "q1\td1\t1\nq3\td2\t1\n")
    one, both = listing(tmp_path, "q1"), tmp_path / "both.txt"
    both.write_text("q1\nq3\n")
    every, first, all_listed = (BeirBenchmark(folder, qids=qids) for qids in (None, one, str(both)))
    assert [topic.qid for topic in first.topics] == ["q1"]
    assert all_listed.topics == every.topics
    assert first.fingerprint not in (every.fingerprint, all_listed.fingerprint)
    assert first.corpus_fingerprint == every.corpus_fingerprint
    with pytest.raises(InputError, match="of no question, such as"):
        BeirBenchmark(folder, qids=listing(tmp_path, "../../x"))


@pytest.mark.parametrize("questions", [20, "sets:20"])
def test_a_generated_world_selects_listed_questions(tmp_path, questions):
    settings = {"documents": 400, "questions": questions, "median_words": 40, "p90_words": 60}
    every = FictionalWorld(**settings)
    chosen = [every.topics[3], every.topics[11]]
    part = FictionalWorld(**settings, qids=listing(tmp_path, *(topic.qid for topic in chosen)))
    assert part.topics == chosen and set(part.qrels["evidence"]) == {t.qid for t in chosen}
    assert part.fingerprint != every.fingerprint


@pytest.mark.parametrize(
    ("recall", "relevant", "name"),
    [
        (0.0, 5, "zero_small"),
        (0.0, 6, "zero_large"),
        (0.01, 5, "tiny_small"),
        (0.1, 10, "tiny_large"),
        (0.11, 9, "low_large"),
        (0.25, 4, "low_small"),
        (0.26, 5, "medium_small"),
        (0.5, 6, "medium_large"),
        (0.51, 6, "high_large"),
        (1.0, 1, "high_small"),
    ],
)
def test_strata_by_recall_and_by_evidence_documents(recall, relevant, name):
    assert stratum(recall, relevant) == name


def test_questions_are_drawn_by_one_generator_over_the_strata_by_name():
    strata = {str(number): "b" if number % 2 else "a" for number in range(1, 21)}
    first, second = pi_serini_slices(strata, {"b": 3, "a": 2}, total=5)
    generator = random.Random(42)
    even = generator.sample([str(number) for number in range(2, 21, 2)], 2)
    odd = generator.sample([str(number) for number in range(1, 21, 2)], 3)
    assert first == second == sorted(even + odd, key=int)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # 4 more by 1:2 are 1.33 and 2.67: one and two, and the largest remainder gets the last.
        ({"a": 10, "b": 10}, {"a": 1 + 1, "b": 2 + 3}),
        # b has two more questions, so that a gets the rest.
        ({"a": 10, "b": 4}, {"a": 1 + 2, "b": 2 + 2}),
    ],
)
def test_the_larger_slice_keeps_the_proportions_as_far_as_strata_have_questions(sizes, expected):
    names = [name for name, size in sizes.items() for _ in range(size)]
    strata = {str(number): name for number, name in enumerate(names, start=1)}
    first, second = pi_serini_slices(strata, {"a": 1, "b": 2}, total=7)
    assert set(first) < set(second)
    assert Counter(strata[qid] for qid in first) == {"a": 1, "b": 2}
    assert Counter(strata[qid] for qid in second) == expected


def test_the_strata_of_the_paper():
    strata = {}
    for name in [*STRATA, "tiny_small"]:
        strata |= {str(len(strata) + number): name for number in range(90)}
    first, second = pi_serini_slices(strata)
    assert (len(first), len(second)) == (100, 300)
    assert first == sorted(first, key=int) and set(first) < set(second)
    counts = Counter(strata[qid] for qid in first)
    assert counts == STRATA and sum(STRATA.values()) == 100
    assert Counter(strata[qid] for qid in second) == {name: 3 * n for name, n in STRATA.items()}


def test_too_few_questions_and_other_ids_are_refused():
    with pytest.raises(InputError, match="the stratum a has 1 of 2 questions"):
        pi_serini_slices({"1": "a"}, {"a": 2})
    with pytest.raises(InputError, match="1 questions too few"):
        pi_serini_slices({"1": "a", "2": "a"}, {"a": 1}, total=3)
    with pytest.raises(InputError, match="no number"):
        pi_serini_slices({"q1": "a"}, {"a": 1})
