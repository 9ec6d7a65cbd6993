"""Listwise re-ranking: windows, and permutations in the answers of models."""

from __future__ import annotations

import random
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.llm_model import ScriptedPrompts

from soundingline.pipelines.rerank.listwise import (
    Listwise,
    identifiers,
    read_permutation,
    sliding,
    without_identifiers,
)
from soundingline.toolkit.llm.errors import (
    ContextOverflow,
    Refused,
    ServerGone,
    Truncated,
)

_PASSAGE = re.compile(r"^\[(\d+)\] (.*)$", re.MULTILINE)


def passages(prompt):
    """The passages that a prompt shows, checked to be numbered from 1."""
    found = _PASSAGE.findall(prompt.partition("<passages>")[2].partition("</passages>")[0])
    assert [number for number, _ in found] == [str(n + 1) for n in range(len(found))]
    return [text for _, text in found]


def grade(text):
    return int(text.rsplit("-", 1)[1])


def by_grade(prompt):
    """A perfect model: the passages `word-7` by their number, the highest first."""
    shown = passages(prompt)
    order = sorted(range(len(shown)), key=lambda place: -grade(shown[place]))
    return " > ".join(f"[{place + 1}]" for place in order)


def ranking(grades, qid="q1", query="what"):
    """A ranking whose docnos and texts tell the grades."""
    return pd.DataFrame(
        {
            "qid": qid,
            "query": query,
            "docno": [f"{qid}-d{number}" for number in grades],
            "text": [f"{qid}-{number}" for number in grades],
            "score": [100.0 - place for place in range(len(grades))],
            "rank": range(len(grades)),
        }
    )


def order(ranked, qid="q1"):
    return [grade(text) for text in ranked[ranked["qid"] == qid]["text"]]


def test_the_window_slides_from_the_end_and_carries_the_best_to_the_front():
    model = ScriptedPrompts(by_grade)
    grades = list(range(50))  # the retriever has them exactly the wrong way round
    ranked = Listwise(model, window=20, step=10)(ranking(grades))
    sizes = [len(passages(prompt)) for prompt in model.prompts]
    assert sizes == [20, 20, 20, 20]
    first = [grade(text) for text in passages(model.prompts[0])]
    assert first == grades[30:]
    second = [grade(text) for text in passages(model.prompts[1])]
    assert second == [*range(20, 30), *range(49, 39, -1)]
    assert order(ranked)[:10] == list(range(49, 39, -1))
    assert sorted(order(ranked)) == grades


def test_a_second_pass_brings_more_to_the_front():
    model = ScriptedPrompts(by_grade)
    ranked = Listwise(model, window=20, step=10, passes=2)(ranking(list(range(50))))
    assert order(ranked)[:20] == list(range(49, 29, -1))
    assert len(model.prompts) == 8


def test_queries_are_asked_together_and_the_windows_of_one_follow_each_other():
    model = ScriptedPrompts(by_grade)
    sizes = {"q1": 50, "q2": 15, "q3": 30}
    frame = pd.concat([ranking(list(range(size)), qid) for qid, size in sizes.items()])
    ranked = Listwise(model, window=20, step=10)(frame)
    assert [len(each) for each in model.rounds] == [3, 2, 1, 1]
    assert model.qids[:3] == ["q1", "q2", "q3"]
    for qid, size in sizes.items():
        assert order(ranked, qid)[:10] == list(range(size - 1, size - 11, -1))
    assert ranked["qid"].drop_duplicates().tolist() == list(sizes)


def test_a_single_candidate_needs_no_model():
    model = ScriptedPrompts(by_grade)
    ranked = Listwise(model)(pd.concat([ranking([5]), ranking([], "q2")]))
    assert order(ranked) == [5]
    assert model.rounds == []


@pytest.mark.parametrize(
    ("answers", "order_of", "counted"),
    [
        (["[3] > [3] > [17] > [1]"], [6, 4, 5, 7], {"repaired": 1}),
        # An answer without an order is asked for once more; then the window keeps its order.
        (["I cannot tell.", "[2] > [1]"], [5, 4, 6, 7], {"retried": 1, "repaired": 1}),
        (["I cannot tell."] * 2, [4, 5, 6, 7], {"retried": 1, "empty": 1}),
        ([Refused("no")], [4, 5, 6, 7], {"refused": 1}),
        ([ContextOverflow("long")], [4, 5, 6, 7], {"refused": 1}),
        ([Truncated("cut")] * 2, [4, 5, 6, 7], {"retried": 1, "refused": 1}),
    ],
)
def test_malformed_answers_are_repaired_asked_for_again_and_counted(answers, order_of, counted):
    left = iter(answers)
    it = Listwise(ScriptedPrompts(lambda prompt: next(left)))
    assert order(it(ranking([4, 5, 6, 7]))) == order_of
    names = ("windows", "repaired", "retried", "empty", "refused")
    assert {name: it.counts[name] for name in names if it.counts[name]} == {"windows": 1, **counted}
    assert list(left) == []


def test_a_lost_server_is_raised():
    with pytest.raises(ServerGone):
        Listwise(ScriptedPrompts(lambda prompt: ServerGone("gone")))(ranking([1, 2]))


def test_citations_in_texts_and_query_are_not_taken_for_passages():
    frame = ranking([1, 2], query="what does [2] say")
    frame["text"] = ["as in [2] and [7]\n[9] and on a line of its own-1", "plain-2"]
    model = ScriptedPrompts(by_grade)
    ranked = Listwise(model)(frame)
    (prompt,) = model.prompts
    assert passages(prompt) == [
        "as in (2) and (7) (9) and on a line of its own-1",
        "plain-2",
    ]
    assert "what does (2) say" in prompt
    assert ranked["docno"].tolist() == ["q1-d2", "q1-d1"]


def test_texts_are_cut_to_their_first_words():
    frame = ranking([1, 2])
    frame["text"] = ["one two  three four", "字" * 900]
    model = ScriptedPrompts(lambda prompt: "[1] > [2]")
    Listwise(model, max_words=3)(frame)
    assert passages(model.prompts[0]) == ["one two three", "字" * 30]


def test_marks_of_places_in_texts_do_no_harm():
    frame = ranking([1, 2], query="what is {passages}")
    model = ScriptedPrompts(lambda prompt: "[1] > [2]")
    Listwise(model)(frame.assign(text=["{query}", "{count}"]))
    assert "what is {passages}" in model.prompts[0]
    assert passages(model.prompts[0]) == ["{query}", "{count}"]


@pytest.mark.parametrize("changed", ["model", "settings", "prompt", "text", "query"])
def test_what_changes_an_answer_is_asked_anew(tmp_path, changed):
    frame = ranking([1, 2])
    Listwise(ScriptedPrompts(by_grade), cache=tmp_path)(frame)
    model = ScriptedPrompts(by_grade, temperature=0.5 if changed == "settings" else None)
    arguments = {}
    if changed == "model":
        model.name = "other"
    if changed == "prompt":
        own = tmp_path / "own.txt"
        own.write_text("{query} {count}\n<passages>\n{passages}\n</passages>")
        arguments = {"prompt": str(own)}
    if changed == "text":
        frame["text"] = ["x-1", "y-2"]
    if changed == "query":
        frame["query"] = "who"
    Listwise(model, cache=tmp_path, **arguments)(frame)
    assert len(model.prompts) == 1


def test_how_long_one_waits_changes_no_answer(tmp_path):
    frame = ranking([1, 2])
    Listwise(ScriptedPrompts(by_grade), cache=tmp_path)(frame)
    model = ScriptedPrompts(by_grade, timeout=3.0)
    Listwise(model, cache=tmp_path)(frame)
    assert model.prompts == []


def written(order):
    return " > ".join(f"[{place + 1}]" for place in order)


@given(st.permutations(range(12)))
def test_a_permutation_is_read_as_it_was_written(order):
    assert read_permutation(written(order), 12) == (tuple(order), False, False)


@pytest.mark.parametrize(
    "answer",
    [
        "[3] > [1] > [2]",
        "[3]>[1]>[2]",
        " [3] >\n[1] >\n[2].\n",
        "[3] > [1] = [2]",
        "[3], [1], [2]",
        "1. [3]\n2. [1]\n3. [2]",
        "3 > 1 > 2",
        "[3, 1, 2]",
        "3, 1, 2",
        "**[3] > [1] > [2]**",
        "Passages [1] and [2] share its topic only. So:\n[3] > [1] > [2]",
        "[1] > [2] > [3] is the order above. Mine is [3] > [1] > [2]",
        "In 1998, 2 passages were best: 3 > 1 > 2",
    ],
)
def test_every_usual_form_is_read(answer):
    assert read_permutation(answer, 3) == ((2, 0, 1), False, False)


@pytest.mark.parametrize(
    ("answer", "order"),
    [
        ("[3] > [1]", (2, 0, 1, 3)),
        ("[4] > [4] > [2] > [1] > [3]", (3, 1, 0, 2)),
        ("[9] > [2] > [0] > [1] > [3] > [4]", (1, 0, 2, 3)),
        ("The best is [2].", (1, 0, 2, 3)),
        ("[2] > [3] > [12345678901234567890]", (1, 2, 0, 3)),
        pytest.param(f"[2] > [3] > [{'1' * 5000}]", (1, 2, 0, 3), id="5000 digits"),
    ],
)
def test_a_malformed_permutation_is_repaired(answer, order):
    assert read_permutation(answer, 4) == (order, True, False)


@pytest.mark.parametrize(
    "answer", ["", "  \n", "I cannot rank these.", "[9] > [8]", "[] > []", "[a] > [b]", "> > >"]
)
def test_an_answer_without_an_order_keeps_the_order(answer):
    assert read_permutation(answer, 3) == ((0, 1, 2), False, True)


@given(st.text(alphabet="[]0123456789> ,a\n", max_size=60), st.integers(1, 20))
def test_whatever_is_answered_every_passage_comes_once(answer, size):
    found = read_permutation(answer, size)
    assert sorted(found.order) == list(range(size))
    assert not (found.repaired and found.empty)
    assert found.empty <= (found.order == tuple(range(size)))


def test_an_answer_without_numbers_has_no_identifiers():
    assert identifiers("no order") == []
    assert identifiers("the year 1998") == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as shown in [7] and [ 12 ]", "as shown in (7) and ( 12 )"),
        ("see [1, 2], [3-5] and [6–8]", "see (1, 2), (3-5) and (6–8)"),
        ("a[i] = b[n] [sic] []", "a[i] = b[n] [sic] []"),
        ("[[4]]", "[(4)]"),
    ],
)
def test_citations_in_a_passage_are_no_identifiers(text, shown):
    assert without_identifiers(text) == shown
    assert identifiers(without_identifiers(text)) == []


@pytest.mark.parametrize(
    ("size", "spans"),
    [
        (0, []),
        (1, []),
        (2, [(0, 2)]),
        (20, [(0, 20)]),
        (21, [(1, 21), (0, 11)]),
        (30, [(10, 30), (0, 20)]),
        (50, [(30, 50), (20, 40), (10, 30), (0, 20)]),
        (45, [(25, 45), (15, 35), (5, 25), (0, 15)]),
    ],
)
def test_windows_slide_from_the_end_to_the_front(size, spans):
    assert list(sliding(size, 20, 10)) == spans


@given(st.integers(2, 60), st.integers(2, 20), st.data())
def test_the_best_of_all_always_reaches_the_front(size, window, data):
    step = data.draw(st.integers(1, window - 1))
    order = random.Random(size).sample(range(size), size)
    for start, end in sliding(size, window, step):
        order[start:end] = sorted(order[start:end])
    assert order[0] == 0
    assert set(order[: window - step]) >= set(range(min(window - step, size)))
