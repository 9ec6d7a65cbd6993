from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import replace

import pytest
from required import needs
from scripted_peer import Fail, Raw, Stall, running_peer

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import errors
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.local_servers import LlamaCppServer
from soundingline.toolkit.llm.messages import SamplingParams, Token, Usage, user
from soundingline.toolkit.llm.openai_chat import OpenAIChat, OpenAICompletions
from soundingline.toolkit.llm.server import serving

PATH = "/v1/completions"


def reply(
    text="sea",
    finish="stop",
    logprobs=None,
    usage=None,
):
    """As vLLM answers."""
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "m-served",
        "choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}],
        "usage": usage or {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34},
    }
    return Raw(json.dumps(body))


LOGPROBS = {
    "text_offset": [0, 4],
    "tokens": [" the", " sea"],
    "token_logprobs": [-0.25, -1.5],
    "top_logprobs": [{" the": -0.25, " a": -1.75}, {" sky": -0.5, " sea": -1.5}],
}


@pytest.fixture(scope="module")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    server.default = reply()
    return server


class Waits(list[float]):
    """The waits that were asked for; none takes any time."""

    async def __call__(self, seconds):
        self.append(seconds)


def client(peer, **arguments):
    defaults = {"model": "m", "base_url": peer.openai_url, "sleep": Waits(), "chance": lambda: 1.0}
    return OpenAICompletions(**{**defaults, **arguments})


def using(model, work):
    async def main():
        try:
            return await work(model)
        finally:
            await model.close()

    return asyncio.run(main())


def complete(model, prompt="By the", **settings):
    sampling = replace(model.settings, **settings)
    return using(model, lambda it: it.respond([user(prompt)], (), sampling))


def test_text_tokens_usage_and_the_reason_of_the_end_come_back(peer):
    counts = {
        "prompt_tokens": 30,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    peer.script.append(reply(" the sea", "length", LOGPROBS, counts))
    found = complete(client(peer), logprobs=2)
    assert (found.text, found.finish_reason, found.attempts) == (" the sea", "length", 1)
    assert found.usage == Usage(input=30, cached=16, output=2)
    assert found.tokens == [
        Token(" the", -0.25, {" the": -0.25, " a": -1.75}),
        Token(" sea", -1.5, {" sky": -0.5, " sea": -1.5}),
    ]


def test_the_request_is_the_prompt_as_it_is_with_what_was_asked(peer):
    model = client(peer, settings=SamplingParams(temperature=0.0, seed=3, extra={"top_k": 1}))
    complete(
        model,
        "q\n<think>",
        logprobs=20,
        max_output_tokens=9,
        extra={"top_k": 1, "stop": ["</think> true"]},
    )
    assert peer.requests[0].path == PATH
    assert peer.requests[0].body == {
        "model": "m",
        "prompt": "q\n<think>",
        "temperature": 0.0,
        "seed": 3,
        "top_k": 1,
        "stop": ["</think> true"],
        "logprobs": 20,
        "max_tokens": 9,
    }


def test_what_is_not_asked_is_not_sent(peer):
    complete(client(peer))
    assert peer.requests[0].body == {"model": "m", "prompt": "By the"}


def test_half_a_surrogate_pair_in_a_prompt_does_not_break_the_request(peer):
    complete(client(peer), "caf\ud83d")
    assert peer.requests[0].body["prompt"] == "caf�"


def test_log_probabilities_as_llama_cpp_gives_them(peer):
    content = [
        {
            "token": " the",
            "logprob": -0.25,
            "top_logprobs": [{"token": " the", "logprob": -0.25}, {"token": " a", "logprob": -2}],
        }
    ]
    peer.script.append(reply(" the", logprobs={"content": content}))
    found = complete(client(peer), logprobs=2)
    assert found.tokens == [Token(" the", -0.25, {" the": -0.25, " a": -2.0})]


@pytest.mark.parametrize(
    "logprobs", [None, {}, {"tokens": [], "token_logprobs": [], "top_logprobs": None}]
)
def test_a_server_without_log_probabilities_gives_no_tokens(peer, logprobs):
    peer.script.append(reply("sea", logprobs=logprobs))
    assert complete(client(peer), logprobs=5).tokens == []


def test_tokens_without_alternatives_have_none(peer):
    peer.script.append(reply(logprobs={**LOGPROBS, "top_logprobs": None}))
    assert [token.top for token in complete(client(peer), logprobs=0).tokens] == [{}, {}]


def test_only_the_last_tokens_are_kept_where_that_is_asked(peer):
    peer.default = reply(" the sea", logprobs=LOGPROBS)
    one = complete(client(peer, kept_tokens=1))
    assert [token.text for token in one.tokens] == [" sea"]
    assert one.text == " the sea"
    assert len(complete(client(peer, kept_tokens=9)).tokens) == 2


@pytest.mark.parametrize(
    "step",
    [Fail(503), Fail(429, headers={"retry-after": "2"}), Fail(500, raw=""), Raw("{}"), Raw("<p>")],
)
def test_what_may_succeed_later_is_sent_again(peer, step):
    peer.script.extend([step, reply("sea")])
    found = complete(client(peer))
    assert (found.text, found.attempts) == ("sea", 2)


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (Fail(401), errors.AuthenticationFailed),
        (Fail(404, kind="model_not_found"), errors.UnknownModel),
        (Fail(400, "This model's maximum context length is 4000 tokens"), errors.ContextOverflow),
        (Fail(400, "top logprobs above 20"), errors.BadRequest),
        (reply("no", "content_filter"), errors.Refused),
    ],
)
def test_what_cannot_succeed_is_told_by_its_kind(peer, step, kind):
    peer.script.append(step)
    with pytest.raises(errors.ModelError) as raised:
        complete(client(peer))
    assert type(raised.value) is kind
    assert len(peer.requests) == 1


def test_a_server_that_is_not_there_is_told_in_a_line():
    model = OpenAICompletions(model="m", base_url="http://127.0.0.1:9/v1", sleep=Waits())
    with pytest.raises(errors.ServerGone, match=r"m at 127\.0\.0\.1:9: no connection"):
        complete(model)


def test_a_slow_reply_is_given_up(peer):
    peer.script.append(Stall(30))
    with pytest.raises(errors.ServerTimeout):
        complete(client(peer, attempts=1), timeout=0.2)


def test_no_more_requests_are_in_flight_than_allowed(peer, monkeypatch):
    answer = peer.enter

    def slowly(request):
        step = answer(request)
        time.sleep(0.02)
        return step

    monkeypatch.setattr(peer, "enter", slowly)
    peer.gathered = 5
    peer.script.extend(reply(str(number)) for number in range(40))

    async def many(model):
        return await asyncio.gather(*(model.respond([user(f"p{number}")]) for number in range(40)))

    found = using(client(peer, concurrency=5), many)
    assert sorted(int(each.text) for each in found) == list(range(40))
    assert peer.most_in_flight == 5


@pytest.mark.parametrize(
    ("messages", "tools"), [([], ()), ([user("a"), user("b")], ()), ([user("a")], [{"name": "x"}])]
)
def test_a_conversation_is_refused(peer, messages, tools):
    with pytest.raises(InputError, match="one message, which is the prompt, and no tools"):
        using(client(peer), lambda it: it.respond(messages, tools))
    assert peer.requests == []


def test_it_is_asked_and_metered_as_chat_models_are(peer):
    peer.default = reply(" the sea", "length", LOGPROBS)
    ledger = Ledger()
    blocking = BlockingModel("m", role="reranker")
    with blocking.started(client(peer), ledger):
        turns = blocking.respond_many([[user("a")], [user("b")]], ["1", "2"])
    assert [turn.tokens[-1].text for turn in turns] == [" sea", " sea"]
    assert ledger.by_role()["reranker"].calls == 2
    assert ledger.usage("2")["input_tokens"] == 30
    assert ledger.by_role()["reranker"].failed == 0


@needs(("xllamacpp", "gguf"), "llamacpp")
def test_a_real_engine_tells_what_it_wrote_and_how_likely_that_was(tmp_path):
    from tiny_gguf import save_gguf

    weights = save_gguf(tmp_path / "tiny.gguf", ["fw0000001"])

    local = LlamaCppServer(gguf=str(weights), threads=1)
    log = tmp_path / "server.log"
    with serving(lambda port: local.command("tiny", port), log=log, start_seconds=120) as url:
        model = OpenAICompletions(model="tiny", base_url=f"{url}/v1")
        settings = SamplingParams(temperature=0.0)
        found = complete(model, "The mill of", temperature=0.0, logprobs=5, max_output_tokens=4)
        chat = OpenAIChat(model="tiny", base_url=f"{url}/v1")
        one_token = replace(settings, logprobs=5, max_output_tokens=1)
        turn = using(chat, lambda it: it.respond([user("Which mill?")], (), one_token))
    assert "".join(token.text for token in found.tokens) == found.text
    assert (found.finish_reason, found.usage.output, len(found.tokens)) == ("length", 4, 4)
    for token in found.tokens:
        # Greedy: what was written is the likeliest.
        assert token.logprob == max(token.top.values()) == token.top[token.text]
        assert len(token.top) == 5
        assert math.fsum(map(math.exp, token.top.values())) <= 1 + 1e-5
    assert len(turn.tokens) == 1 and len(turn.tokens[0].top) == 5
    assert turn.tokens[0].logprob == max(turn.tokens[0].top.values())
