from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack

import pandas as pd
import pytest
from support.llm_server import Fail, Raw, running_peer

from soundingline.pipelines.rerank.rank1 import (
    Rank1,
    Rank1Prompts,
    closing_token,
    estimated_tokens,
    forced,
    verdict,
)
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.pipelines.stage import Collection, search_notes
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import errors
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import Token
from soundingline.toolkit.llm.openai_chat import OpenAICompletions
from soundingline.toolkit.llm.prices import UNKNOWN, Price

PROMPT = (
    "Determine if the following passage is relevant to the query. "
    "Answer only with 'true' or 'false'.\nQuery: {query}\nPassage: {passage}\n<think>"
)
CLOSING = ["</", "think", ">"]
Top = Mapping[str, float]


def probable(**probabilities):
    """Log-probabilities of ` true` and the like, written true=0.7."""
    return {f" {word}": math.log(value) for word, value in probabilities.items()}


def completion(
    text,
    tokens,
    top,
    finish="stop",
    usage=(100, 40),
):
    """As vLLM answers: the text without the stop sequence, the tokens with it. `top` is of the last
    token; the others are certain."""
    listed = [{token: 0.0} for token in tokens]
    if tokens and top is not None:
        listed[-1] = top
    logprobs = {
        "tokens": tokens,
        "token_logprobs": [
            each.get(token, -1.0) for token, each in zip(tokens, listed, strict=True)
        ],
        "top_logprobs": listed,
    }
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return Raw(json.dumps({"model": "m", "choices": [choice], "usage": counts}))


def reasoned(top, says=" true"):
    tokens = ["\n", "It", " is", ".", "\n", *CLOSING, says]
    return completion("\nIt is.\n", tokens, top)


def unclosed(text="\nIt is old. It may be"):
    return completion(text, text.split(" "), None, "length")


def said(top, word=" true"):
    """The answer to a forced close."""
    return completion(word, [word], top, "length", (150, 1))


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    server.default = Fail(418)
    return server


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
    assert make().score([PAIR]) == pytest.approx([0.75])
    peer.script.append(reasoned(probable(false=0.9, true=0.1), says=" false"))
    assert make().score([PAIR]) == pytest.approx([0.1])


def test_the_request_is_the_published_prompt_read_greedily(peer, make):
    peer.script.append(reasoned(probable(true=0.6, false=0.2)))
    make(max_tokens=1234).score([PAIR])
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
    assert it.score([PAIR]) == pytest.approx([0.75])
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
    assert it.score([PAIR]) == pytest.approx([0.8])
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
    assert it.score([PAIR]) == pytest.approx([0.25])
    assert it.counts["forced"] == 1


@pytest.mark.parametrize(
    "answer", [said({" well": -0.1}, " well"), completion("", [], None), unclosed("")]
)
def test_without_a_verdict_the_score_is_a_half_and_counted(peer, make, answer):
    peer.script.extend([unclosed(), answer])
    it = make()
    assert it.score([PAIR]) == [0.5]
    assert (it.counts["forced"], it.counts["undecided"], len(peer.requests)) == (1, 1, 2)


def test_a_server_that_is_not_there_is_told_in_a_line():
    with ExitStack() as models:
        it = Rank1(running({"base_url": "http://127.0.0.1:9/v1"}, {}, models))
        with pytest.raises(
            errors.Unreachable, match=r"m at http://127.0.0.1:9/v1.*`vllm serve m`"
        ) as told:
            it.score([PAIR])
    assert "\n" not in str(told.value)


def test_a_server_without_log_probabilities_is_refused(peer, make):
    peer.script.append(Raw(json.dumps({"choices": [{"text": "It is.", "finish_reason": "stop"}]})))
    with pytest.raises(InputError, match="gives no log-probabilities"):
        make().score([PAIR])


@pytest.mark.parametrize("text", ["word " * 4000, "word " * 400])
def test_a_prompt_that_is_too_long_for_the_server_loses_half_of_the_document(peer, make, text):
    overflow = Fail(400, "This model's maximum context length is 4000 tokens")
    peer.script.extend([overflow, overflow, reasoned(probable(true=0.6, false=0.2))])
    it = make()
    assert it.score([Pair("which", text)]) == pytest.approx([0.75])
    words = [request.body["prompt"].count("word") for request in peer.requests]
    assert words[1] == pytest.approx(words[0] / 2, abs=2)
    assert words[2] == pytest.approx(words[0] / 4, abs=2)
    assert (it.counts["shortened"], it.counts["truncated"]) == (1, 1)


def test_a_prompt_that_never_fits_is_told(peer, make):
    peer.default = Fail(400, "This model's maximum context length is 10 tokens")
    with pytest.raises(errors.ContextOverflow):
        make().score([PAIR])
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
    with pytest.raises(InputError, match="prompt_tokens=10"):
        Rank1Prompts(2000, 4000, 10)


def test_what_fits_is_not_cut_and_any_text_is_itself():
    whole = Rank1Prompts(2000, 4000).prompt(Pair("who", "word " * 1400))
    assert not whole.truncated
    assert whole.text == PROMPT.format(query="who", passage="word " * 1400)
    odd = Rank1Prompts(2000, 4000).prompt(Pair("{query}", "{passage} \ud83d"))
    assert odd.text == PROMPT.format(query="{query}", passage="{passage} �")


def test_a_query_gives_way_only_beyond_half_of_the_room():
    found = Rank1Prompts(2000, 4000).prompt(Pair("river " * 3000, "mill " * 100))
    assert found.query_truncated
    assert not found.truncated
    assert estimated_tokens(found.text) <= 2000


def test_windows_hold_every_word_once_and_fit_whole(make):
    words = [f"word{number}" for number in range(5000)]
    texts = make().windows(Pair("which", " ".join(words)))
    assert len(texts) > 2
    assert " ".join(texts).split() == words
    windows = [Pair("which", text) for text in texts]
    assert not any(Rank1Prompts(2000, 4000).prompt(window).truncated for window in windows)


def test_requests_are_on_the_account_of_the_question_that_searches_and_are_made_once(
    peer, make, tmp_path
):
    peer.default = reasoned(probable(true=0.6, false=0.2))
    ledger = Ledger()
    it = make(price=Price(input=1000.0, output=0.0), ledger=ledger, cache=tmp_path)
    frame = pd.DataFrame(
        {"qid": "1", "query": "who", "docno": ["a", "b"], "text": ["x", "y"], "score": [3.0, 2.0]}
    )
    whole = it.bind(Collection("c", whole_documents=True))
    for _ in range(2):
        with search_notes("q7"):
            whole(frame)
    it.score([PAIR])
    account = ledger.by_role("q7")["reranker"]
    assert account.calls == 2 and account.dollars == pytest.approx(0.2)
    assert (it.counts["cache_hits"], it.counts["reply_unmetered"]) == (2, 2)
    assert whole.long_documents == "truncate"
