"""The judge with a language model: strict verdicts, files of them, and agreement of two judges."""

import asyncio
import json
import math
import random
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from support.llm_model import ScriptedModel
from support.needs import cases

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import ExactAnswerJudge
from soundingline.toolkit.evaluation.judge import (
    JudgeCase,
    LlmJudge,
    ModelVerdict,
    RecordedVerdicts,
    VerdictFile,
    case_of,
    judge_cases,
    verdicts_in,
)
from soundingline.toolkit.evaluation.statistics import agreement
from soundingline.toolkit.llm import SamplingParams, ToolCall, Turn
from soundingline.toolkit.llm.errors import (
    AuthenticationFailed,
    OutOfMoney,
    OutOfQuota,
    ServerGone,
    Truncated,
)
from soundingline.toolkit.trajectory import Answer, Trajectory

CASE = JudgeCase(
    "q1", "Who built it?", "Explanation: x\nExact Answer: T. Brekke", ("Torvald Brekke",)
)
VERDICT = {
    "extracted_answer": "T. Brekke",
    "reasoning": "The same person.",
    "correct": True,
    "confidence": 80,
}


def judge(**arguments):
    return LlmJudge(model=ScriptedModel(), **arguments)


def judged(*steps, case=CASE, **arguments):
    model = ScriptedModel(*steps)
    return asyncio.run(LlmJudge(model=model, **arguments).judge(model, case)), model


def by_tool(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return Turn(tool_calls=(ToolCall("c", "verdict", text),))


def test_the_judge_sees_question_response_and_accepted_answers_and_must_use_its_tool():
    verdict, model = judged(by_tool(VERDICT))
    assert verdict == ModelVerdict(
        "q1", True, "T. Brekke", "The same person.", 80, case=CASE.fingerprint
    )
    (asked,) = model.requests
    (message,) = asked.messages
    assert message["role"] == "user"
    for part in (CASE.question, *CASE.response.splitlines(), "Torvald Brekke"):
        assert f"\n> {part}\n" in message["content"]
    assert asked.settings.tool_choice == "verdict"
    (tool,) = asked.tools
    assert tool["parameters"]["required"] == list(VERDICT)
    assert tool["parameters"]["additionalProperties"] is False


def test_without_a_reference_the_accepted_answer_is_not_shown():
    _, model = judged(by_tool(VERDICT), reference=False)
    assert "Torvald Brekke" not in model.requests[0].messages[0]["content"]
    assert "> Exact Answer: T. Brekke" in model.requests[0].messages[0]["content"]


def test_places_inside_a_question_or_a_response_are_left_alone():
    case = CASE._replace(question="Is {response} or {accepted} right?", response="{question}?")
    _, model = judged(by_tool(VERDICT), case=case)
    said = model.requests[0].messages[0]["content"]
    assert "> Is {response} or {accepted} right?\n" in said and "\n> {question}?\n" in said


BROKEN = {
    "no JSON": by_tool('{"correct": true'),
    "an array": by_tool([VERDICT]),
    "nothing": Turn(),
    "prose around it": Turn(text=f"Here it is: {json.dumps(VERDICT)}"),
    "a word for a truth value": by_tool({**VERDICT, "correct": "yes"}),
    "a number for a truth value": by_tool({**VERDICT, "correct": 1}),
    "a field missing": by_tool({key: VERDICT[key] for key in VERDICT if key != "reasoning"}),
    "a field too many": by_tool({**VERDICT, "score": 1}),
    "a confidence out of range": by_tool({**VERDICT, "confidence": 101}),
    "a confidence that is none": by_tool({**VERDICT, "confidence": True}),
    "deep nesting": by_tool("[" * 100_000),
}


READABLE = {
    "the whole text": (Turn(text=json.dumps(VERDICT)), True, ""),
    "a fence": (Turn(text=f"```json\n{json.dumps(VERDICT, indent=1)}\n```"), True, ""),
}
FAILED = {
    "no server": (ServerGone("gone"), False, "failed"),
    "a cut reply": (Truncated("cut", turn=Turn(text="{")), False, "failed"),
}
REPLIES = {name: (turn, False, "unreadable") for name, turn in BROKEN.items()} | READABLE | FAILED


@pytest.mark.parametrize(("step", "correct", "error"), REPLIES.values(), ids=REPLIES.keys())
def test_a_reply_without_a_readable_verdict_is_wrong_and_has_an_error(step, correct, error):
    verdict, _ = judged(step)
    assert (verdict.correct, verdict.error) == (correct, error)


@pytest.mark.parametrize("error", [AuthenticationFailed("key"), OutOfQuota("q"), OutOfMoney("m")])
def test_what_every_case_would_meet_is_raised_and_makes_no_verdict(error):
    with pytest.raises(type(error)):
        judged(error)


def test_an_empty_response_is_wrong_without_asking():
    verdict, model = judged(case=CASE._replace(response=" \n"))
    assert not verdict.correct and not verdict.error and not model.requests


def test_a_fingerprint_depends_on_model_prompt_settings_and_kind(tmp_path):
    own = tmp_path / "own.txt"
    own.write_text("{question} {response} {accepted}")
    model = ScriptedModel()
    warm, other = ScriptedModel(), ScriptedModel()
    warm.settings = SamplingParams(temperature=0.7)
    other.name = "other"
    judges = [
        LlmJudge(model=model),
        LlmJudge(model=warm),
        LlmJudge(model=other),
        LlmJudge(model=model, reference=False),
        LlmJudge(model=model, prompt=str(own)),
    ]
    assert len({each.fingerprint for each in judges}) == len(judges)
    assert LlmJudge(model=model).fingerprint == judges[0].fingerprint


def test_a_prompt_without_its_places_is_refused(tmp_path):
    own = tmp_path / "own.txt"
    own.write_text("{question} {response}")
    with pytest.raises(InputError, match="accepted"):
        judge(prompt=str(own))
    assert judge(prompt=str(own), reference=False)
    with pytest.raises(InputError, match=r"gone\.txt"):
        judge(prompt=str(tmp_path / "gone.txt"))


# Files.


def test_only_what_has_no_verdict_of_its_own_is_left(tmp_path):
    record = VerdictFile(tmp_path, judge())
    cases = [CASE._replace(qid=qid) for qid in ("done", "changed", "failed", "unreadable", "new")]
    known = {
        "done": ModelVerdict("done", True, case=CASE.fingerprint),
        "changed": ModelVerdict("changed", True, case="another response"),
        "failed": ModelVerdict("failed", False, error="failed", case=CASE.fingerprint),
        "unreadable": ModelVerdict("unreadable", False, error="unreadable", case=CASE.fingerprint),
    }
    assert record.left(cases) == cases
    written(record, *known.values())
    assert [case.qid for case in record.left(cases)] == ["changed", "failed", "new"]
    assert record.read() == known
    assert record.path.name == f"verdicts-llm-{judge().fingerprint}.jsonl"
    head, *rows = map(json.loads, record.path.read_text().splitlines())
    assert head["model"] == "scripted" and rows[0]["usage"] == {"calls": 1.0}


def written(record, *verdicts):
    with record.writing() as write:
        for verdict in verdicts:
            write(verdict, {"calls": 1.0})


def test_a_verdict_is_in_its_file_as_soon_as_it_is_given(tmp_path):
    record = VerdictFile(tmp_path, judge())
    with record.writing() as write:
        for number in range(3):
            write(ModelVerdict(f"q{number}", True), {})
            assert sorted(record.read()) == [f"q{each}" for each in range(number + 1)]


def test_the_last_verdict_on_a_question_counts_and_an_unfinished_line_costs_no_other(tmp_path):
    record = VerdictFile(tmp_path, judge())
    written(record, ModelVerdict("q", False, error="failed"), ModelVerdict("other", True))
    written(record, ModelVerdict("q", True))
    assert record.read() == {"other": ModelVerdict("other", True), "q": ModelVerdict("q", True)}
    assert len(record.path.read_text().splitlines()) == 4
    record.path.write_bytes(record.path.read_bytes()[:-9])
    assert not record.read()["q"].correct
    written(record, ModelVerdict("c", False))
    assert sorted(record.read()) == ["c", "other", "q"]


def test_a_damaged_verdict_alone_is_judged_again(tmp_path, capsys):
    record = VerdictFile(tmp_path, judge())
    cases = [CASE._replace(qid=qid) for qid in ("a", "b", "c")]
    written(record, *(ModelVerdict(case.qid, True, case=CASE.fingerprint) for case in cases))
    content = record.path.read_bytes()
    damaged = content.replace(b'"qid":"b","correct":true', b'"qid":"b","correct":1234')
    record.path.write_bytes(damaged)
    with pytest.raises(InputError, match="line 3 does not match its checksum"):
        verdicts_in(record.path)
    assert [case.qid for case in record.left(cases)] == ["b"]
    assert "line 3 does not match its checksum" in capsys.readouterr().err
    assert record.path.with_name(f"{record.path.name}.damaged-1").read_bytes() == damaged
    written(record, ModelVerdict("b", True, case=CASE.fingerprint))
    record.path.write_bytes(b"?" + record.path.read_bytes())
    assert not record.left(cases), "a damaged head is written anew"
    assert sorted(verdicts_in(record.path)) == ["a", "b", "c"]


ROW = '{"qid": "q", "correct": true, "extracted": "x", "error": "", "case": "c"'


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 9}\n',
        f"{ROW}}}\n{ROW}}}\n",
        f'{{"format": 2}}\n{ROW}, "unknown": 1}}\n',
        f'{{"format": 2}}\n{ROW}\n{ROW}}}\n',
        '{"format": 2}\n{"qid": "q", "correct": 1}\n',
        '{"format": 2}\n{"qid": 3, "correct": true}\n',
        '{"format": 2}\n{"qid": "q", "correct": true, "error": "odd"}\n',
    ],
)
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "verdicts-llm-x.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match="verdicts-llm-x"):
        verdicts_in(path)


@pytest.mark.parametrize("fails", [False, True])
def test_cases_are_judged_at_once_and_an_error_keeps_the_verdicts_under_way(fails):
    begun, seen, under_way, most = [], [], 0, 0

    async def ask(case):
        nonlocal under_way, most
        begun.append(case.qid)
        if fails and case.qid == "3":
            raise OutOfMoney("gone")
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return ModelVerdict(case.qid, True)

    cases = [CASE._replace(qid=str(n)) for n in range(50)]
    judging = judge_cases(cases, ask, concurrency=7, done=lambda row: seen.append(row.qid))
    if fails:
        with pytest.raises(OutOfMoney):
            asyncio.run(judging)
        assert begun == ["0", "1", "2", "3"] and seen == ["0", "1", "2"]
    else:
        asyncio.run(judging)
        assert begun == [case.qid for case in cases] == sorted(seen, key=int) and most == 7


# As the judge of an evaluation.


def test_recorded_verdicts_decide_and_the_measures_of_the_exact_rule_stay():
    recorded = RecordedVerdicts(
        judge(),
        {"q1": ModelVerdict("q1", True), "q2": ModelVerdict("q2", False, error="unreadable")},
    )
    answer = Answer(exact="T. Brekke")
    right = recorded.verdict("q1", answer, ["Torvald Brekke"])
    assert right.correct and not right.exact and not right.error
    assert right.f1 == ExactAnswerJudge().verdict("q1", answer, ["Torvald Brekke"]).f1 > 0
    assert (right.judge, right.settings) == ("llm", judge().fingerprint)
    unread = recorded.verdict("q2", Answer(exact="Torvald Brekke"), ["Torvald Brekke"])
    assert not unread.correct and unread.exact and unread.error == "unreadable"
    assert recorded.verdict("q3", answer, ["x"]).error == "failed"


def test_the_final_reply_is_what_is_judged():
    said = "Exact Answer: x"
    messages = ({"role": "user", "content": "q"}, {"role": "assistant", "content": said})
    whole = Trajectory("q", "q?", "completed", Answer(exact="x"), messages=messages)
    assert case_of(whole, ["x"]).response == said
    # A reply that came after the end of the time is on record and does not count.
    assert case_of(replace(whole, answer=Answer()), ["x"]).response == ""
    assert case_of(replace(whole, messages=()), ["x"]).response == ""
    calls = replace(whole, messages=(*messages, {"role": "tool", "content": said}))
    assert case_of(calls, ["x"]).response == ""


# Agreement.


def verdicts(both, only_a, only_b, neither):
    kinds = [(True, True)] * both + [(True, False)] * only_a
    kinds += [(False, True)] * only_b + [(False, False)] * neither
    return tuple({f"q{n:03}": pair[side] for n, pair in enumerate(kinds)} for side in (0, 1))


def test_kappa_of_a_published_example():
    # Two readers of 50 grant proposals: Cohen's kappa is 0.4 (the worked example of most texts).
    actual = agreement(*verdicts(20, 5, 10, 15))
    assert actual.n == 50 and actual.raw == pytest.approx(0.7)
    assert actual.kappa == pytest.approx(0.4)
    assert actual.correct_a == pytest.approx(0.5) and actual.correct_b == pytest.approx(0.6)
    assert len(actual.only_a) == 5 and len(actual.only_b) == 10
    assert actual.only_a[0] == "q020" and actual.only_b[0] == "q025"


def kappa_of(pairs):
    """Cohen's kappa by its definition; None where chance alone would agree."""
    n = len(pairs)
    observed = Fraction(sum(a == b for a, b in pairs), n)
    of_a, of_b = (Fraction(sum(pair[side] for pair in pairs), n) for side in (0, 1))
    by_chance = of_a * of_b + (1 - of_a) * (1 - of_b)
    return None if by_chance == 1 else float((observed - by_chance) / (1 - by_chance))


def test_kappa_is_finite_or_undefined_for_every_small_table():
    for table in product(range(cases(6, 4)), repeat=4):
        if not any(table):
            continue
        a, b = verdicts(*table)
        actual, kappa = agreement(a, b), kappa_of([(a[name], b[name]) for name in a])
        if kappa is None:
            assert actual.kappa is None and actual.low is None and actual.high is None
            continue
        assert actual.kappa == pytest.approx(kappa, abs=1e-12)
        if 1 in map(len, (set(a.values()), set(b.values()))):  # one judge says always the same
            assert actual.kappa == 0 and actual.low is None and actual.high is None
        else:
            assert actual.low <= actual.kappa + 1e-12 and actual.high >= actual.kappa - 1e-12


def test_only_questions_that_both_judged_count():
    actual = agreement({"a": True, "b": True}, {"b": True, "c": False})
    assert actual.n == 1
    with pytest.raises(InputError, match="no answer in common"):
        agreement({"a": True}, {"b": True})


def test_answers_to_one_question_widen_kappas_interval():
    rng = random.Random(3)
    once = {f"q{n}": (rng.random() < 0.6, rng.random() < 0.5) for n in range(12)}
    # Every question is answered four times, always alike: nothing more is known than from once.
    names = {f"{qid}#repeat{repeat}": qid for qid in once for repeat in range(1, 5)}
    a, b = ({name: once[qid][side] for name, qid in names.items()} for side in (0, 1))
    result = agreement(a, b, names)
    pairs = list(once.values())
    assert result.n == 48 and result.kappa == pytest.approx(kappa_of(pairs))
    left_out = [kappa_of([*pairs[:n], *pairs[n + 1 :]]) for n in range(12)]
    mean = sum(left_out) / 12
    error = math.sqrt(11 / 12 * sum((value - mean) ** 2 for value in left_out))
    assert result.low == pytest.approx(kappa_of(pairs) - 1.959964 * error, abs=1e-6)
    assert result.high == pytest.approx(kappa_of(pairs) + 1.959964 * error, abs=1e-6)
    pooled = agreement(a, b)
    assert pooled.low > result.low


def test_kappa_has_no_interval_where_all_rests_on_one_question():
    a = {"q1": True, "q1#repeat2": True, "q2": False}
    b = {"q1": True, "q1#repeat2": True, "q2": True}
    result = agreement(a, b, {"q1": "q1", "q1#repeat2": "q1", "q2": "q2"})
    assert result.kappa == 0 and result.low is None and result.high is None
