"""Judges with one fault each, and judges without any."""

import json
from contextlib import contextmanager

import pytest
from support.llm_model import ScriptedModel, calling, saying, used

from soundingline.experiments.preflight.judge import check_judge
from soundingline.toolkit.evaluation import ExactAnswerJudge
from soundingline.toolkit.evaluation.judge import LlmJudge
from soundingline.toolkit.llm import FunctionCall, SamplingParams
from soundingline.toolkit.llm.errors import AuthenticationFailed, ServerGone
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import Price


class JudgeModel:
    """A served model that answers each request by `choose`, in which it reads the response."""

    name = "judge-model"
    settings = SamplingParams()
    price = Price(input=1.0, output=1.0)
    weights_fingerprint = ""

    def __init__(self, choose):
        self._choose = choose

    @contextmanager
    def running(self, log, servers=None):
        self.model = ScriptedModel(choose=lambda messages, _: self._answer(messages))
        yield self.model
        assert self.model.closed == 1

    def _answer(self, messages):
        turn = self._choose(messages[0]["content"])
        if isinstance(turn, Exception):
            raise turn
        return turn


def verdict(correct, reasoning="so it is"):
    fields = {"extracted_answer": "x", "reasoning": reasoning, "correct": correct}
    text = json.dumps({**fields, "confidence": None})
    return calling(FunctionCall("v1", "verdict", text), usage=used(50, 5))


def in_words(correct):
    return saying(f"reasoning: so it is\ncorrect: {'yes' if correct else 'no'}", usage=used(50, 5))


def is_right(prompt):
    """What somebody says who knows the answer, in whichever words."""
    return "> Exact Answer: Grenholm Shipyard" in prompt or "shipyard of Grenholm\n" in prompt


def checking(choose, tmp_path, ledger=None, **settings):
    llm = JudgeModel(choose)
    judge = LlmJudge(**settings).bind(llm)
    return check_judge(judge, llm, ledger or Ledger(), tmp_path / "log"), llm


FAULTS = {
    "always yes": (lambda prompt: verdict(True), "the wrong answer as correct"),
    "always no": (
        lambda prompt: verdict(False),
        "the right answer as wrong ('so it is') and the paraphrased answer as wrong",
    ),
    "words alone": (
        lambda prompt: verdict("> Exact Answer: Grenholm Shipyard" in prompt),
        "the paraphrased answer as wrong",
    ),
    "the opposite": (
        lambda prompt: verdict(not is_right(prompt)),
        "the wrong answer as correct ('so it is')",
    ),
    "nothing": (lambda prompt: saying("", usage=used(50, 0)), "where this arrived: ''"),
    "in another format": (
        lambda prompt: saying("Verdict = CORRECT", usage=used(50, 5)),
        "6 of 6 replies of the judge judge-model hold no verdict, for example on the right answer, "
        "where this arrived: 'Verdict = CORRECT'",
    ),
    "sometimes in another format": (
        lambda prompt: verdict(True) if is_right(prompt) else saying("No."),
        "2 of 6 replies",
    ),
    "lost": (lambda prompt: ServerGone("gone"), "6 of 6 replies"),
    "without a key": (
        lambda prompt: AuthenticationFailed("the key is wrong"),
        "gives no verdict: authentication_failed: the key is wrong",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_of_a_judge_is_one_line_that_says_what_to_do(fault, tmp_path):
    choose, message = FAULTS[fault]
    (finding,), _ = checking(choose, tmp_path)
    assert message in finding.message
    assert (finding.check, finding.level) == ("judge", "fault")
    assert finding.do
    assert "\n" not in finding.message + finding.do


def test_a_judge_that_changes_its_mind_is_a_note(tmp_path):
    answers = iter([verdict(True), verdict(False)])
    choose = lambda prompt: next(answers) if "bakery" in prompt else verdict(True)  # noqa: E731
    (finding,), _ = checking(choose, tmp_path)
    assert finding.level == "note"
    assert finding.message.endswith("different verdicts on equal requests: on the wrong answer")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, verdict),
        ({"reference": False}, verdict),
        ({}, lambda correct: saying(verdict(correct).tool_calls[0].arguments, usage=used(9, 9))),
        ({"prompt": "browsecomp_plus", "tool": False}, in_words),
        (
            {"prompt": "pi_serini", "tool": False},
            lambda correct: saying(json.dumps({"correct": correct}), usage=used(9, 9)),
        ),
    ],
    ids=["tool", "reference free", "text for a tool", "browsecomp_plus", "pi_serini"],
)
def test_a_judge_that_accepts_paraphrases_is_healthy(settings, says, tmp_path):
    findings, llm = checking(lambda prompt: says(is_right(prompt)), tmp_path, **settings)
    assert findings == []
    assert len(llm.model.requests) == 6  # the empty answer is wrong without one
    prompts = [request.messages[0]["content"] for request in llm.model.requests]
    assert sorted(prompts.count(prompt) for prompt in set(prompts)) == [2, 2, 2]


def test_the_ledger_holds_the_requests_under_the_role_of_the_judge(tmp_path):
    ledger = Ledger(cap=1.0)
    checking(lambda prompt: verdict(is_right(prompt)), tmp_path, ledger)
    (role,) = ledger.by_role()
    assert (role, ledger.total.calls, ledger.total.input_tokens) == ("judge", 6, 300)
    assert ledger.by_role("right") == {}  # of no question


def test_a_spent_cap_is_a_fault(tmp_path):
    spent = Ledger(cap=1e-9)
    with spent.request("agent", "q1", Price(input=1.0, output=1.0)) as request:
        request.reply(saying(usage=used()))
    (finding,), llm = checking(lambda prompt: verdict(is_right(prompt)), tmp_path, spent)
    assert "out_of_money" in finding.message
    assert llm.model.requests == []


def test_the_exact_rule_is_not_checked(tmp_path):
    assert check_judge(ExactAnswerJudge(), None, Ledger(), tmp_path) == []
