from __future__ import annotations

import json
import math
import re

import pandas as pd
import pytest
from support.llm_model import ScriptedPrompts
from support.llm_server import Say, running_peer

from soundingline.pipelines.prompting import expected_digit
from soundingline.pipelines.rerank.pointwise import Pointwise, read_score
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import OutOfMoney, Refused, ServerGone, Truncated
from soundingline.toolkit.llm.openai_chat import OpenAIChat


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


def ranking(*texts):
    return pd.DataFrame(
        {
            "qid": "q1",
            "query": "tide",
            "docno": [f"d{n}" for n in range(len(texts))],
            "text": texts,
            "score": [float(len(texts) - n) for n in range(len(texts))],
            "rank": range(len(texts)),
        }
    )


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
        # The head is ordered as far as the money of the question goes.
        (['{"score": 10}', NO_MONEY, '{"score": 20}', NO_MONEY], "20134", {"unpaid": 2}),
    ],
)
def test_the_head_is_ordered_by_score_and_what_has_none_ends_it(answers, order, counted):
    texts = [f"text {number}" for number in range(len(answers))]
    stage = Pointwise(
        ScriptedPrompts(scoring(dict(zip(texts, answers, strict=True)))), depth=len(answers)
    )
    out = stage.transform(ranking(*texts, "tail")).sort_values("rank")
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
        out = stage.transform(ranking("a", "b")).sort_values("rank")
        assert out["docno"].tolist() == ["d0", "d1"]
    assert sorted(map(shown, model.prompts)) == ["a", "b", "b"]
    assert stage.counts["unreadable"] == 2 and stage.counts["retried"] == 1

    answers["b"] = '{"score": 90}'
    for requests in (1, 0):
        model.rounds.clear()
        out = Pointwise(model, cache=tmp_path).transform(ranking("a", "b")).sort_values("rank")
        assert out["docno"].tolist() == ["d1", "d0"]
        assert list(map(shown, model.prompts)) == ["b"] * requests


def test_pairs_without_log_probabilities_are_not_asked_for_twice_in_a_start(peer, tmp_path):
    peer.default = Say(text="7")
    model = OpenAIChat(model="m", base_url=peer.openai_url, attempts=1)
    with BlockingModel("m", role="reranker").started(model) as blocking:
        stage = Pointwise(blocking, score="expected", cache=tmp_path)
        for unreadable in (1, 2):
            stage.transform(ranking("a"))
            assert stage.counts["unreadable"] == unreadable and len(peer.requests) == 1


def test_equal_pairs_are_asked_for_once_and_texts_are_cut():
    model = ScriptedPrompts(lambda prompt: '{"score": 1}')
    Pointwise(model, max_characters=4).transform(ranking("same one", "same two", "other"))
    assert sorted(map(shown, model.prompts)) == ["othe", "same"]


@pytest.mark.parametrize("error", [ServerGone("gone"), OutOfMoney("the run's")])
def test_an_error_that_any_pair_would_meet_is_raised(error):
    with pytest.raises(type(error)):
        Pointwise(ScriptedPrompts(lambda prompt: error)).transform(ranking("a"))


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
        out = stage.transform(ranking(*texts)).sort_values("rank")
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
