"""What the replies to prompts took: on the ledger for each request, and beside each kept reply."""

from __future__ import annotations

import pytest
from scripted_model import ScriptedModel, saying, used

from soundingline.pipelines.cache import ResultCache
from soundingline.pipelines.counts import Counts
from soundingline.pipelines.prompt_client import PromptClient
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import Truncated
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import SamplingParams, Usage
from soundingline.toolkit.llm.prices import Price

DOLLAR = Price(input=0.0, output=1_000_000.0)


def replies(model, cache, ledger=None):
    """What a client counts that asks for the reply to one prompt."""
    blocking, counts = BlockingModel("m", role="rewriter", price=DOLLAR), Counts()
    client = PromptClient(
        blocking,
        SamplingParams(seed=1),
        key="k",
        cache=cache,
        is_empty=lambda text: not text,
        counts=counts,
    )
    with blocking.started(model, ledger):
        client.replies({"prompt": "q"})
    return counts()


@pytest.fixture
def cache(tmp_path):
    return ResultCache(tmp_path / "replies.sqlite")


def test_tokens_that_the_server_did_not_tell_are_unknown_now_and_where_they_are_kept(
    cache,
):
    found = replies(ScriptedModel(saying("yes", usage=Usage(input=5))), cache)
    assert found["reply_unmetered"] == 1
    assert replies(ScriptedModel(), cache)["reply_unmetered"] == 1


@pytest.mark.parametrize(
    ("kept", "counted"),
    [
        ([100, 10], {"reply_input_tokens": 100, "reply_output_tokens": 10}),
        # As earlier versions kept what they were not told, or what no server can mean.
        ([0, 0], {"reply_unmetered": 1}),
        (None, {"reply_unmetered": 1}),
        ([-5, 10], {"reply_unmetered": 1}),
        ([10**400, 10], {"reply_unmetered": 1}),
    ],
)
def test_the_tokens_of_a_kept_reply_are_known_only_where_they_are_possible(cache, kept, counted):
    value = {"text": "yes", "retried": False, "tokens": kept}
    cache.put([(("k", "prompt"), value)])
    assert replies(ScriptedModel(), cache) == counted


@pytest.mark.parametrize(
    "first",
    [saying("", usage=used(0, 1)), Truncated("cut", turn=saying("y", usage=used(0, 1)))],
    ids=["empty", "truncated"],
)
def test_a_second_request_for_a_prompt_is_on_the_ledger_beside_the_first(cache, first):
    ledger = Ledger()
    model = ScriptedModel(first, saying("yes", usage=used(0, 1)))
    counted = replies(model, cache, ledger)
    assert counted["asked"] == counted["retried"] == 1
    assert (ledger.total.calls, ledger.total.dollars) == (2, 2.0)
    assert [request.settings.seed for request in model.requests] == [1, 2]
