"""Settings of agents and of their budgets that are refused in one line."""

import math

import pytest
from support.agents import bound
from support.assertions import refused

from soundingline.agents.base import Budget
from soundingline.agents.baselines import OneShotAgent
from soundingline.agents.chat import ChatAgent
from soundingline.agents.keyword import KeywordAgent
from soundingline.agents.literature import Navigator
from soundingline.agents.rag import RagAgent


def chat(**limits):
    return bound(budget=Budget(**limits))


REFUSED = [
    (ChatAgent, {"resample": -1}, r"agent\.resample=-1\. valid: a whole number, 0 or more"),
    (ChatAgent, {"queries": "letters"}, "neutral, words, meaning, matched"),
    (ChatAgent, {"prompt": "pi_seryni"}, "pi_serini"),
    (ChatAgent, {"prompt": "/nowhere/mine.txt"}, "browsecomp_plus"),
    (ChatAgent, {"first_call": "browse"}, r"first_call.*'browse'"),
    (chat, {"dollars": 1.0}, "price"),
    *((Budget, {"seconds": seconds}, f"seconds={seconds}") for seconds in (0, math.inf)),
    *((Budget, {"turns": turns}, f"turns={turns}") for turns in (1.5, math.inf)),
    (Budget, {"steer_at": 70}, "steer_at=70"),
    (Budget, {"tool_calls": True}, "tool_calls=True"),
    (Budget, {"exposed_tokens": 0}, "exposed_tokens=0"),
    (Budget, {"answer_tokens": None}, "answer_tokens=None"),
    (Budget, {"clock": "sundial"}, "budget.clock is 'sundial'. valid: wall, virtual"),
    (Budget, {"clock": "virtual"}, r"budget.speed.input=None.*declare the tokens of the model"),
    (Budget, {"clock": "virtual", "speed": {"input": 1, "output": 0}}, r"budget.speed.output=0"),
    (Budget, {"speed": {"thought": 1}}, "budget.speed names thought. valid: input, output"),
    (Budget, {"stage_seconds": {"rerank": 1}}, "names rerank. valid: rewriter, .*, reranker"),
    (Budget, {"stage_seconds": {"reranker": -1}}, "budget.stage_seconds.reranker=-1"),
    *((KeywordAgent, {"max_searches": most}, "max_searches") for most in (-1, 2.5, True)),
    *((Navigator, {name: 0}, name) for name in ("rounds", "queries", "requirements", "pool")),
    *((Navigator, {name: 0}, name) for name in ("shown", "listed", "patience", "ordered")),
    *((Navigator, {name: 0}, name) for name in ("enough", "librarians", "librarian_seconds")),
    (OneShotAgent, {"listed": 0}, "listed"),
    (RagAgent, {"query": "title"}, "agent.query is 'title'. valid: question, model"),
    (RagAgent, {"units": 0}, "agent.units"),
    (RagAgent, {"tokens": 0}, "agent.tokens"),
]


@pytest.mark.parametrize(("make", "settings", "words"), REFUSED)
def test_settings_without_meaning_are_refused(make, settings, words):
    refused(words, make, **settings)
