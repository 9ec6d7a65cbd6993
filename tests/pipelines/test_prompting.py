"""What the replies to prompts took: on the ledger for each request, and beside each kept reply."""

from __future__ import annotations

import pytest
from scripted_model import ScriptedModel, saying, used

from soundingline.pipelines.cache import ResultCache
from soundingline.pipelines.counts import Counts
from soundingline.pipelines.prompting import CachedLLM
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import Truncated
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import SamplingParams, Usage
from soundingline.toolkit.llm.prices import Price

DOLLAR = Price(input=0.0, output=1_000_000.0)


def replies(model, folder, ledger=None, stored=None):
    """The counts of a stage that requests the reply to one prompt. `stored` is in the cache."""
    settings = SamplingParams(seed=1)
    blocking = BlockingModel("m", role="rewriter", settings=settings, price=DOLLAR)
    counts = Counts()
    llm = CachedLLM(name="test", parts=[], is_empty=lambda text: not text, counts=counts)
    if stored:
        key = llm.key(blocking)
        ResultCache(folder / f"test-{key}.sqlite").put([((key, "prompt"), stored)])
    with blocking.started(model, ledger):
        llm.of(blocking, folder).replies({"prompt": "q"})
    return counts()


def test_tokens_that_the_server_did_not_tell_are_unknown_now_and_where_they_are_kept(tmp_path):
    found = replies(ScriptedModel(saying("yes", usage=Usage(input=5))), tmp_path)
    assert found["reply_unmetered"] == 1
    assert replies(ScriptedModel(), tmp_path)["reply_unmetered"] == 1


@pytest.mark.parametrize(
    ("kept", "counted"),
    [
        ([100, 10], {"reply_input_tokens": 100, "reply_output_tokens": 10}),
        ([-5, 10], {"reply_unmetered": 1}),
        ([10**400, 10], {"reply_unmetered": 1}),
    ],
)
def test_the_tokens_of_a_kept_reply_are_known_only_where_they_are_possible(tmp_path, kept, counted):
    value = {"text": "yes", "retried": False, "tokens": kept}
    assert replies(ScriptedModel(), tmp_path, stored=value) == counted


@pytest.mark.parametrize(
    "first",
    [saying("", usage=used(0, 1)), Truncated("cut", turn=saying("y", usage=used(0, 1)))],
    ids=["empty", "truncated"],
)
def test_a_second_request_for_a_prompt_is_on_the_ledger_beside_the_first(tmp_path, first):
    ledger = Ledger()
    model = ScriptedModel(first, saying("yes", usage=used(0, 1)))
    counted = replies(model, tmp_path, ledger)
    assert counted["asked"] == counted["retried"] == 1
    assert (ledger.total.calls, ledger.total.dollars) == (2, 2.0)
    assert [request.settings.seed for request in model.requests] == [1, 2]
