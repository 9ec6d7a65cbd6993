from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.pipelines.rerank.listwise import (
    identifiers,
    read_permutation,
    sliding,
    without_identifiers,
)


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
