"""Re-rankers by a language model: listwise with its windows and permutations, pointwise with its
three scores, and Rank1 with its verdicts."""

import json
import math
import random
import re
from contextlib import ExitStack

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.llm_model import ScriptedPrompts
from support.llm_server import Fail, Raw, Say, running_peer
from support.pairs import sides

from soundingline.pipelines.prompting import expected_digit
from soundingline.pipelines.rerank.listwise import (
    Listwise,
    identifiers,
    read_permutation,
    sliding,
    without_identifiers,
)
from soundingline.pipelines.rerank.pointwise import Pointwise, read_score
from soundingline.pipelines.rerank.rank1 import (
    Rank1,
    Rank1Prompts,
    closing_token,
    estimated_tokens,
    forced,
    verdict,
)
from soundingline.pipelines.rerank.reranker import Pair, RerankTop
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import errors
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import (
    ContextOverflow,
    OutOfMoney,
    Refused,
    ServerGone,
    Truncated,
)
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import Token
from soundingline.toolkit.llm.openai import OpenAIChat, OpenAICompletions
from soundingline.toolkit.llm.prices import UNKNOWN, Price

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


def ranking(rows, qid, query):
    """Rows (docno, text), best first."""
    frame = pd.DataFrame(rows, columns=["docno", "text"])
    ranks = range(len(frame))
    return frame.assign(qid=qid, query=query, score=[100.0 - rank for rank in ranks], rank=ranks)


def graded_ranking(grades, qid="q1", query="what"):
    """A ranking whose docnos and texts tell the grades."""
    rows = [(f"{qid}-d{number}", f"{qid}-{number}") for number in grades]
    return ranking(rows, qid, query)


def order_of(ranked, qid="q1"):
    return [grade(text) for text in ranked[ranked["qid"] == qid]["text"]]


def test_the_window_slides_from_the_end_and_carries_the_best_to_the_front():
    model = ScriptedPrompts(by_grade)
    grades = list(range(50))  # the retriever has them exactly the wrong way round
    ranked = Listwise(model, window=20, step=10)(graded_ranking(grades))
    sizes = [len(passages(prompt)) for prompt in model.prompts]
    assert sizes == [20, 20, 20, 20]
    first = [grade(text) for text in passages(model.prompts[0])]
    assert first == grades[30:]
    second = [grade(text) for text in passages(model.prompts[1])]
    assert second == [*range(20, 30), *range(49, 39, -1)]
    assert order_of(ranked)[:10] == list(range(49, 39, -1))
    assert sorted(order_of(ranked)) == grades


def test_a_second_pass_brings_more_to_the_front():
    model = ScriptedPrompts(by_grade)
    ranked = Listwise(model, window=20, step=10, passes=2)(graded_ranking(list(range(50))))
    assert order_of(ranked)[:20] == list(range(49, 29, -1))
    assert len(model.prompts) == 8


def test_queries_are_asked_together_and_the_windows_of_one_follow_each_other():
    model = ScriptedPrompts(by_grade)
    sizes = {"q1": 50, "q2": 15, "q3": 30}
    frame = pd.concat([graded_ranking(list(range(size)), qid) for qid, size in sizes.items()])
    ranked = Listwise(model, window=20, step=10)(frame)
    assert [len(each) for each in model.rounds] == [3, 2, 1, 1]
    assert model.qids[:3] == ["q1", "q2", "q3"]
    for qid, size in sizes.items():
        assert order_of(ranked, qid)[:10] == list(range(size - 1, size - 11, -1))
    assert ranked["qid"].drop_duplicates().tolist() == list(sizes)


def test_a_single_candidate_needs_no_model():
    model = ScriptedPrompts(by_grade)
    ranked = Listwise(model)(pd.concat([graded_ranking([5]), graded_ranking([], "q2")]))
    assert order_of(ranked) == [5]
    assert model.rounds == []


@pytest.mark.parametrize(
    ("answers", "expected", "counted"),
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
def test_malformed_answers_are_repaired_asked_for_again_and_counted(answers, expected, counted):
    left = iter(answers)
    it = Listwise(ScriptedPrompts(lambda prompt: next(left)))
    assert order_of(it(graded_ranking([4, 5, 6, 7]))) == expected
    names = ("windows", "repaired", "retried", "empty", "refused")
    assert {name: it.counts[name] for name in names if it.counts[name]} == {"windows": 1, **counted}
    assert list(left) == []


def test_citations_in_texts_and_query_are_not_taken_for_passages():
    frame = graded_ranking([1, 2], query="what does [2] say")
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
    frame = graded_ranking([1, 2])
    frame["text"] = ["one two  three four", "字" * 900]
    model = ScriptedPrompts(lambda prompt: "[1] > [2]")
    Listwise(model, max_words=3)(frame)
    assert passages(model.prompts[0]) == ["one two three", "字" * 30]


def test_a_passage_has_300_words_by_default():
    # `max_length` of `create_permutation_instruction`, github.com/sunnweiwei/RankGPT/rank_gpt.py
    frame = graded_ranking([1, 2])
    frame["text"] = ["w " * 301, "w " * 300]
    model = ScriptedPrompts(lambda prompt: "[1] > [2]")
    Listwise(model)(frame)
    assert [len(passage.split()) for passage in passages(model.prompts[0])] == [300, 300]


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
    "answer",
    ["", " \n", "I cannot rank these.", "In 1998", "[9] > [8]", "[] > []", "[a] > [b]", "> > >"],
)
def test_an_answer_without_an_order_keeps_the_order(answer):
    assert read_permutation(answer, 3) == ((0, 1, 2), False, True)


@given(st.text(alphabet="[]0123456789> ,a\n", max_size=60), st.integers(1, 20))
def test_whatever_is_answered_every_passage_comes_once(answer, size):
    found = read_permutation(answer, size)
    assert sorted(found.order) == list(range(size))
    assert not (found.repaired and found.empty)
    assert found.empty <= (found.order == tuple(range(size)))


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


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"score": 73}', 73.0),
        ('{"score": 0}', 0.0),
        ('{"score": 99.5}', 99.5),
        ('First {"score": 10}, no: {"score": 80}.', 80.0),
        ('```json\n{"score": 5, "reason": "far {off}"}\n```', 5.0),
        ("73", None),
        ("The score is 73 of 100", None),
        ('{"score": "73"}', None),
        ('{"score": true}', None),
        ('{"score": 101}', None),
        ('{"score": -1}', None),
        ('{"score": NaN}', None),
        ('{"rating": 73}', None),
        ("", None),
        ("{" * 100_000, None),
    ],
)
def test_only_a_number_under_score_is_a_score(answer, score):
    assert read_score(answer) == score


def text_ranking(*texts):
    return ranking([(f"d{n}", text) for n, text in enumerate(texts)], "q1", "tide")


def shown(prompt):
    found = re.search(r"<document>\n(.*?)\n</document>", prompt, re.DOTALL)
    assert found
    return found[1]


def scoring(scores):
    return lambda prompt: scores[shown(prompt)]


NO_MONEY = OutOfMoney("its cap", scope="question")


@pytest.mark.parametrize(
    ("answers", "order", "counted"),
    [
        (['{"score": 10}', '{"score": 90}', '{"score": 90}'], "1203", {}),
        (
            ["no idea", '{"score": 0}', Refused("no"), '{"score": 3}'],
            "31024",
            {"unreadable": 1, "refused": 1, "retried": 1},
        ),
        # The rows are ordered as far as the money of the question goes.
        (['{"score": 10}', NO_MONEY, '{"score": 20}', NO_MONEY], "20134", {"unpaid": 2}),
    ],
)
def test_the_top_is_ordered_by_score_and_what_has_none_ends_it(answers, order, counted):
    texts = [f"text {number}" for number in range(len(answers))]
    model = ScriptedPrompts(scoring(dict(zip(texts, answers, strict=True))))
    stage = RerankTop(Pointwise(model), depth=len(answers))
    out = stage.transform(text_ranking(*texts, "rest")).sort_values("rank")
    assert "".join(out["docno"].str[1:]) == order
    names = ("unreadable", "refused", "unpaid", "retried")
    assert {name: stage.counts[name] for name in names if stage.counts[name]} == counted
    assert stage.counts["pairs"] == len(answers)


@pytest.mark.parametrize("unreadable", ["no idea", Truncated("cut off")])
def test_a_pair_that_stays_unreadable_is_asked_for_again_at_the_next_start_and_not_before(
    unreadable, tmp_path
):
    answers = {"a": '{"score": 10}', "b": unreadable}
    model = ScriptedPrompts(scoring(answers))
    stage = Pointwise(model, cache=tmp_path)
    for _ in range(2):
        out = stage.transform(text_ranking("a", "b")).sort_values("rank")
        assert out["docno"].tolist() == ["d0", "d1"]
    assert sorted(map(shown, model.prompts)) == ["a", "b", "b"]
    assert stage.counts["unreadable"] == 2 and stage.counts["retried"] == 1

    answers["b"] = '{"score": 90}'
    for requests in (1, 0):
        model.rounds.clear()
        out = Pointwise(model, cache=tmp_path).transform(text_ranking("a", "b")).sort_values("rank")
        assert out["docno"].tolist() == ["d1", "d0"]
        assert list(map(shown, model.prompts)) == ["b"] * requests


def test_pairs_without_log_probabilities_are_not_asked_for_twice_in_a_start(peer, tmp_path):
    peer.default = Say(text="7")
    model = OpenAIChat(model="m", base_url=peer.openai_url, attempts=1)
    with BlockingModel("m", role="reranker").started(model) as blocking:
        stage = Pointwise(blocking, score="expected", cache=tmp_path)
        for unreadable in (1, 2):
            stage.transform(text_ranking("a"))
            assert stage.counts["unreadable"] == unreadable and len(peer.requests) == 1


def test_equal_pairs_are_asked_for_once_and_texts_are_cut():
    model = ScriptedPrompts(lambda prompt: '{"score": 1}')
    Pointwise(model, max_characters=4).transform(text_ranking("same one", "same two", "other"))
    assert sorted(map(shown, model.prompts)) == ["othe", "same"]


@pytest.mark.parametrize("error", [ServerGone("gone"), OutOfMoney("the run's")])
def test_an_error_that_any_pair_would_meet_is_raised(error):
    with pytest.raises(type(error)):
        Pointwise(ScriptedPrompts(lambda prompt: error)).transform(text_ranking("a"))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"7": 0.5, "8": 0.25, "6": 0.25}, 7.0),
        ({"7": 0.3, "1": 0.1}, (0.3 * 7 + 0.1 * 1) / 0.4),
        ({" 4": 0.2, "4": 0.2, "\u01200": 0.1}, 0.4 * 4 / 0.5),
        ({"9": 0.2, "10": 0.7, "nine": 0.1}, 9.0),
        ({"The": 1.0}, None),
        ({}, None),
    ],
)
def test_the_expected_grade_is_that_of_the_digits_listed(shares, expected):
    top = {token: math.log(share) for token, share in shares.items()}
    assert expected_digit(top) == (None if expected is None else pytest.approx(expected))


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    server.default = Fail(418)
    return server


def one_token(places):
    """A server that answers each document with one token, of these probabilities."""

    def answer(request):
        place = places[shown(request.body["messages"][0]["content"])]
        return Say(text=next(iter(place), ""), finish="length", top=[place] if place else ())

    return answer


def scored(peer, *texts, **arguments):
    """The order of the documents that the stage gives over the server."""
    model = OpenAIChat(model="m", base_url=peer.openai_url, attempts=1)
    with BlockingModel("m", role="reranker").started(model) as blocking:
        stage = Pointwise(blocking, **arguments)
        out = stage.transform(text_ranking(*texts)).sort_values("rank")
    return out["docno"].tolist(), stage


def test_grades_are_expected_from_one_token(peer):
    """Both documents would be given a 7."""
    low, high = {"7": 0.6, "3": 0.4}, {"7": 0.6, "9": 0.4}
    peer.default = one_token({"a": low, "b": high})
    order, stage = scored(peer, "a", "b", score="expected")
    assert order == ["d1", "d0"]
    body = peer.requests[0].body
    assert (body["logprobs"], body["top_logprobs"], body["max_completion_tokens"]) == (True, 20, 1)
    assert "one digit" in body["messages"][0]["content"]
    assert (stage.counts["pairs"], stage.counts["unreadable"], stage.counts["retried"]) == (2, 0, 0)


def test_p_yes_is_normalised_over_yes_and_no_in_every_spelling(peer):
    places = {
        "a": {"Yes": 0.6, "no": 0.4},
        "b": {" yes": 0.2, "YES": 0.1, "No": 0.1, "Maybe": 0.6},  # 0.3 of 0.4
        "c": {"No": 0.99},
    }
    peer.default = one_token(places)
    order, stage = scored(peer, "a", "b", "c", score="p_yes")
    assert order == ["d1", "d0", "d2"] and stage.counts["one_sided"] == 1


@pytest.mark.parametrize("score", ["expected", "p_yes"])
def test_pairs_without_log_probabilities_are_unreadable_and_asked_for_again_at_the_next_start(
    peer, tmp_path, score
):
    place = {"expected": {"7": 0.9}, "p_yes": {"yes": 0.9}}[score]
    peer.default = Say(text="7 yes")  # as a server that ignores what it does not know
    order, stage = scored(peer, "a", "b", score=score, cache=tmp_path)
    assert order == ["d0", "d1"] and stage.counts["unreadable"] == 2
    peer.default = one_token({"a": {"Well": 1.0}, "b": place})
    order, stage = scored(peer, "a", "b", score=score, cache=tmp_path)
    assert order == ["d1", "d0"] and stage.counts["unreadable"] == 1
    requests = len(peer.requests)
    order, stage = scored(peer, "a", "b", score=score, cache=tmp_path)
    assert order == ["d1", "d0"] and len(peer.requests) == requests


def test_an_answer_that_is_cut_off_without_log_probabilities_is_unreadable(peer):
    peer.default = Say(text="7", finish="length")
    _, stage = scored(peer, "a", score="expected")
    assert (stage.counts["unreadable"], stage.counts["refused"]) == (1, 0)


def test_a_structured_score_is_a_whole_number_that_the_body_asks_for(peer):
    scores = {"a": 20, "b": 70}
    peer.default = lambda request: Say(
        text=json.dumps({"score": scores[shown(request.body["messages"][0]["content"])]})
    )
    order, _ = scored(peer, "a", "b", structured=True)
    assert order == ["d1", "d0"]
    described = peer.requests[0].body["response_format"]["json_schema"]
    assert described["strict"] is True
    schema = described["schema"]
    assert schema["properties"] == {"score": {"type": "integer", "minimum": 0, "maximum": 100}}
    assert schema["required"] == ["score"] and schema["additionalProperties"] is False
    scored(peer, "a", "b")
    assert "response_format" not in peer.requests[-1].body


PROMPT = (
    "Determine if the following passage is relevant to the query. "
    "Answer only with 'true' or 'false'.\nQuery: {query}\nPassage: {passage}\n<think>"
)
CLOSING = ["</", "think", ">"]


def probable(**probabilities):
    """Log-probabilities of ` true` and the like, written true=0.7."""
    return {f" {word}": math.log(value) for word, value in probabilities.items()}


def completion(text, tokens, top, finish="stop", usage=(100, 40)):
    """As vLLM answers: the text without the stop sequence, the tokens with it. `top` is of the last
    token; the others are certain."""
    listed = [{token: 0.0} for token in tokens]
    if tokens and top is not None:
        listed[-1] = top
    chosen = [each.get(token, -1.0) for token, each in zip(tokens, listed, strict=True)]
    logprobs = {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": listed}
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return Raw(json.dumps({"model": "m", "choices": [choice], "usage": counts}))


def reasoned(top, says=" true", **usage):
    tokens = ["\n", "It", " is", ".", "\n", *CLOSING, says]
    return completion("\nIt is.\n", tokens, top, **usage)


def unclosed(text="\nIt is old. It may be"):
    return completion(text, text.split(" "), None, "length")


def said(top, word=" true"):
    """The answer to a forced close."""
    return completion(word, [word], top, "length", (150, 1))


@pytest.fixture
def make(peer):
    with ExitStack() as models:

        def scorer(**arguments):
            model = running({"base_url": peer.openai_url, "attempts": 1}, arguments, models)
            return Rank1(model, **arguments)

        yield scorer


def running(client, arguments, models):
    """A model that runs until `models` end; what concerns it is taken from the `arguments`."""
    ours = ("model", "base_url", "attempts", "concurrency", "price", "ledger")
    settings = {**client, **{name: arguments.pop(name) for name in ours if name in arguments}}
    ledger, price = settings.pop("ledger", None), settings.pop("price", UNKNOWN)
    model = OpenAICompletions(**{"model": "m", "kept_tokens": 16, **settings})
    blocking = BlockingModel(model.name, role="reranker", price=price)
    return models.enter_context(blocking.started(model, ledger))


PAIR = Pair("who built the mill", "The mill\nstands by the river.")


def test_the_score_is_the_share_of_true_at_the_verdict(peer, make):
    peer.script.append(reasoned(probable(true=0.6, false=0.2)))
    assert make().score(*sides([PAIR])) == pytest.approx([0.75])
    peer.script.append(reasoned(probable(false=0.9, true=0.1), says=" false"))
    assert make().score(*sides([PAIR])) == pytest.approx([0.1])


def test_the_request_is_the_published_prompt_read_greedily(peer, make):
    peer.script.append(reasoned(probable(true=0.6, false=0.2)))
    make(max_tokens=1234).score(*sides([PAIR]))
    assert peer.requests[0].body == {
        "model": "m",
        "prompt": PROMPT.format(query=PAIR.query, passage=PAIR.text),
        "temperature": 0.0,
        "max_tokens": 1234,
        "logprobs": 20,
        "stop": ["</think> true", "</think> false"],
        "skip_special_tokens": False,
    }


@pytest.mark.parametrize("spelled", [" true", "true", "True", " TRUE", "Ġtrue", "▁true", "\ntrue"])
def test_every_spelling_of_the_verdict_is_read(peer, make, spelled):
    top = {spelled: math.log(0.6), " false": math.log(0.2), " maybe": math.log(0.1)}
    peer.script.append(reasoned(top, says=spelled))
    it = make()
    assert it.score(*sides([PAIR])) == pytest.approx([0.75])
    assert it.counts["forced"] == 0


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        # All spellings of a word count together.
        ({" true": math.log(0.3), "True": math.log(0.3), " false": math.log(0.2)}, (0.75, False)),
        # A word that is not listed is as likely as the least listed one, or as what is left.
        (probable(true=0.96, yes=0.02, no=0.01), (0.96 / 0.97, True)),
        (probable(false=0.9), (0.1, True)),
        (probable(true=0.999, other=0.0005), (0.999 / 0.9995, True)),
        # vLLM writes -9999 for what cannot be.
        ({" true": 0.0, " false": -9999.0}, (1.0, False)),
        ({" false": 0.0, " true": -9999.0}, (0.0, False)),
        ({" true": -9999.0, " false": -9999.0}, (0.5, False)),
        ({" perhaps": 0.0}, None),
        ({}, None),
    ],
)
def test_a_verdict_is_the_share_of_true_in_both_words(top, expected):
    assert verdict(top) == (expected and (pytest.approx(expected[0]), expected[1]))


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        (["It", " is", " true", ".", *CLOSING, " false"], 7),
        ([" true", " or", " false", "?"], None),
        ([*CLOSING, "\n\n", "True"], 4),
        (["</think>", " true"], 1),
        ([*CLOSING, " true", "<|endoftext|>"], 3),
        ([*CLOSING, " The", " answer", " is", " true"], None),
        (["</", "think", ">\n", "false"], 3),
        ([], None),
    ],
)
def test_the_verdict_is_the_word_right_behind_the_closed_tag(tokens, found):
    row = [Token(text, float(place)) for place, text in enumerate(tokens)]
    token = closing_token(row)
    assert (token and token.logprob) == found


def test_reasoning_that_is_not_closed_is_closed_once_and_counted(peer, make):
    peer.script.extend([unclosed(), said(probable(true=0.8, false=0.2))])
    it = make()
    assert it.score(*sides([PAIR])) == pytest.approx([0.8])
    prompt = PROMPT.format(query=PAIR.query, passage=PAIR.text)
    assert peer.requests[1].body == {
        "model": "m",
        # Without the sentence that was not finished.
        "prompt": f"{prompt}\nIt is old.\n</think>",
        "temperature": 0.0,
        "max_tokens": 1,
        "logprobs": 20,
        "skip_special_tokens": False,
    }
    counts = it.counts
    assert (counts["forced"], counts["undecided"]) == (1, 0)
    assert (counts["reply_input_tokens"], counts["reply_output_tokens"]) == (250, 41)


def test_a_reply_of_rank1_without_usage_is_counted_as_such(peer, make):
    peer.script.append(reasoned(probable(true=0.6, false=0.2), usage=(None, 40)))
    it = make()
    it.score(*sides([PAIR]))
    named = ("reply_input_tokens", "reply_output_tokens", "reply_unreported")
    assert [it.counts[name] for name in named] == [0, 40, 1]


@pytest.mark.parametrize(
    ("reasoning", "kept"),
    [
        ("\nOne. Two! Is", "One. Two!"),
        ("no sentence at all", "no sentence at all"),
        ("All is said. ", "All is said."),
        ("It is.</think> perhaps", "It is."),
        ("", ""),
    ],
)
def test_a_forced_close_keeps_whole_sentences(reasoning, kept):
    assert forced("<think>", reasoning) == f"<think>\n{kept}\n</think>"


def test_a_verdict_in_other_words_is_asked_for_again(peer, make):
    perhaps = completion("It is.\n</think> perhaps", ["It", *CLOSING, " perhaps"], {" perhaps": 0})
    peer.script.extend([perhaps, said(probable(false=0.75, true=0.25), " false")])
    it = make()
    assert it.score(*sides([PAIR])) == pytest.approx([0.25])
    assert it.counts["forced"] == 1


@pytest.mark.parametrize(
    "answer", [said({" well": -0.1}, " well"), completion("", [], None), unclosed("")]
)
def test_without_a_verdict_the_score_is_a_half_and_counted(peer, make, answer):
    peer.script.extend([unclosed(), answer])
    it = make()
    assert it.score(*sides([PAIR])) == [0.5]
    assert (it.counts["forced"], it.counts["undecided"], len(peer.requests)) == (1, 1, 2)


def test_a_server_that_is_not_there_is_told_in_a_line():
    with ExitStack() as models:
        it = Rank1(running({"base_url": "http://127.0.0.1:9/v1"}, {}, models))
        with pytest.raises(
            errors.Unreachable, match=r"m at http://127.0.0.1:9/v1.*`vllm serve m`"
        ) as told:
            it.score(*sides([PAIR]))
    assert "\n" not in str(told.value)


def test_a_server_without_log_probabilities_is_refused(peer, make):
    peer.script.append(Raw(json.dumps({"choices": [{"text": "It is.", "finish_reason": "stop"}]})))
    with pytest.raises(InputError, match="gives no log-probabilities"):
        make().score(*sides([PAIR]))


@pytest.mark.parametrize("text", ["word " * 4000, "word " * 400])
def test_a_prompt_that_is_too_long_for_the_server_loses_half_of_the_document(peer, make, text):
    overflow = Fail(400, "This model's maximum context length is 4000 tokens")
    peer.script.extend([overflow, overflow, reasoned(probable(true=0.6, false=0.2))])
    it = make()
    assert it.score(*sides([Pair("which", text)])) == pytest.approx([0.75])
    words = [request.body["prompt"].count("word") for request in peer.requests]
    assert words[1] == pytest.approx(words[0] / 2, abs=2)
    assert words[2] == pytest.approx(words[0] / 4, abs=2)
    assert (it.counts["shortened"], it.counts["truncated"]) == (1, 1)


def test_a_prompt_that_never_fits_is_told(peer, make):
    peer.default = Fail(400, "This model's maximum context length is 10 tokens")
    with pytest.raises(errors.ContextOverflow):
        make().score(*sides([PAIR]))
    assert len(peer.requests) == 4


@pytest.mark.parametrize("text", ["word " * 9000, "語" * 9000, "a,b;" * 9000, "x" * 90_000])
def test_documents_are_cut_to_the_estimated_room(text):
    prompts = Rank1Prompts(2000, 4000)
    found = prompts.prompt(Pair("who built the mill", text))
    assert found.truncated
    assert 1900 < estimated_tokens(found.text) <= 2000
    assert found.text.startswith("Determine if") and found.text.endswith("\n<think>")


def test_a_prompt_has_at_most_its_own_limit_of_tokens():
    pair = Pair("who built the mill", "word " * 9000)
    assert 950 < estimated_tokens(Rank1Prompts(2000, 4000, 1024).prompt(pair).text) <= 1024
    whole = Rank1Prompts(2000, 4000).prompt(pair)
    assert Rank1Prompts(2000, 4000, 9000).prompt(pair) == whole


def test_what_fits_is_not_cut_and_any_text_is_itself():
    whole = Rank1Prompts(2000, 4000).prompt(Pair("who", "word " * 1400))
    assert not whole.truncated
    assert whole.text == PROMPT.format(query="who", passage="word " * 1400)
    odd = Rank1Prompts(2000, 4000).prompt(Pair("{query}", "{passage}"))
    assert odd.text == PROMPT.format(query="{query}", passage="{passage}")


def test_a_query_gives_way_only_beyond_half_of_the_room():
    found = Rank1Prompts(2000, 4000).prompt(Pair("river " * 3000, "mill " * 100))
    assert found.query_truncated
    assert not found.truncated
    assert estimated_tokens(found.text) <= 2000


@pytest.mark.parametrize("query", ["which", "river " * 600])
def test_windows_hold_every_word_once_and_fit_whole(query):
    words, prompts = [f"word{number}" for number in range(5000)], Rank1Prompts(2000, 4000)
    windows = Rank1().windows(query, " ".join(words))
    assert len(windows) > 2 and " ".join(windows).split() == words
    found = [prompts.prompt(Pair(query, window)) for window in windows]
    assert not any(each.truncated or each.query_truncated for each in found)
    assert all(estimated_tokens(each.text) <= 2000 for each in found)


def test_requests_are_on_the_account_of_the_question_that_searches_and_are_made_once(
    peer, make, tmp_path
):
    peer.default = reasoned(probable(true=0.6, false=0.2))
    ledger = Ledger()
    it = make(price=Price(input=1000.0, output=0.0), ledger=ledger, cache=tmp_path)
    frame = pd.DataFrame(
        {"qid": "q7", "query": "who", "docno": ["a", "b"], "text": ["x", "y"], "score": [3.0, 2.0]}
    )
    whole = it.bind(Collection("c", whole_documents=True))
    for _ in range(2):
        whole(frame)
    it.score(*sides([PAIR]))
    account = ledger.by_role("q7")["reranker"]
    assert account.calls == 2 and account.dollars == pytest.approx(0.2)
    assert (it.counts["cache_hits"], it.counts["reply_unreported"]) == (2, 2)
    assert whole.long_documents == "truncate"
