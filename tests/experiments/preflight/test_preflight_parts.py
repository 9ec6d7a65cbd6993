"""The checks of a prompt and of the first questions, and the bounds of all checks together."""

from dataclasses import replace
from itertools import chain, repeat

import pytest

from soundingline.agents.prompt import load_prompt
from soundingline.experiments import preflight
from soundingline.experiments.preflight import run_checks
from soundingline.experiments.preflight.agent import check_first_questions, check_prompt
from soundingline.experiments.preflight.findings import Check, Finding
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.trajectory import Answer, RecordedCall, Trajectory

SEARCH = RecordedCall("search", {"query": "mill"}, "1. d1", ranking=("d1",), shown=("d1",))
ANSWERED = Answer("It says so [d1].", "1820", 90.0)
GOOD = Trajectory("q", "When?", "completed", answer=ANSWERED, calls=(SEARCH,))
ACCEPTED = {f"q{number}": ["1820"] for number in range(5)}


@pytest.fixture
def specs():
    def spec(name, *arguments, about="It searches."):
        properties = {each: {"type": "string", "description": "What."} for each in arguments}
        return {"name": name, "description": about, "parameters": {"properties": properties}}

    return [
        spec("search", "reason", "query"),
        spec("read_search_results", "reason", "search_id"),
        spec("read_document", "reason", "docid", "offset", "limit"),
    ]


def prompted(specs, name="pi_serini"):
    prompt = load_prompt(name)
    return check_prompt(prompt, specs, prompt.opening("When?", specs=specs))


def test_a_prompt_that_fits_its_tools_passes(specs):
    assert prompted(specs) == []


def test_a_prompt_must_name_tools_and_arguments_that_the_session_has(specs):
    (missing,) = prompted(specs[:2])
    assert missing.level == "fault" and "names read_document, which no tool has" in missing.message
    assert "the tools of the session (search, read_search_results)" in missing.do
    del specs[2]["parameters"]["properties"]["limit"]
    (argument,) = prompted(specs)
    assert "names read_document(limit)" in argument.message


def test_a_tool_must_be_described_or_named(specs):
    specs[0]["description"] = ""  # The prompt names it.
    assert prompted(specs) == []
    specs.append({"name": "expand", "description": "", "parameters": {"properties": {}}})
    (tool,) = prompted(specs)
    assert "says what expand is" in tool.message and "describe expand" in tool.do
    specs[3] |= {"description": "Links.", "parameters": {"properties": {"hops": {}}}}
    (argument,) = prompted(specs)
    assert "says what hops is" in argument.message


def first(change=lambda each: each, number=5, tools=True, accepted=ACCEPTED):
    asked = [change(replace(GOOD, qid=f"q{each}")) for each in range(number)]
    return check_first_questions(asked, accepted, calls_tools=tools)


FAULTS = {
    "no call": (
        lambda each: replace(each, calls=()),
        "none of the first 5 questions has a tool call",
        "llm.calls",
    ),
    "empty searches": (
        lambda each: replace(each, calls=(replace(SEARCH, ranking=(), shown=()),)),
        *("all 5 searches of the first 5 questions found nothing", "the benchmark's corpus"),
    ),
    "empty answers": (
        lambda each: replace(each, answer=Answer()),
        *("all answers to the first 5 questions are empty", "another format"),
    ),
    "cut replies": (
        lambda each: replace(each, status="failed", reason="truncated"),
        *("cut at its limit", "max_output_tokens"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_all_of_the_first_questions_share_is_a_fault(fault):
    change, message, do = FAULTS[fault]
    (found,) = first(change)
    assert (found.check, found.level) == ("first_questions", "fault")
    assert message in found.message and do in found.do

    def but_one(each):
        return each if each.qid == "q3" else change(each)

    assert first(but_one) == [] and first(change, number=2) == []


def test_an_agent_without_tools_calls_none():
    assert first(lambda each: replace(each, calls=()), tools=False) == []


@pytest.mark.parametrize(("number", "probability"), [(5, "0.33"), (10, "0.11"), (3, "0.51")])
def test_an_accuracy_of_0_is_a_note_with_its_probability(number, probability):
    """0.8^n, by hand."""

    def wrong(each):
        return replace(each, answer=replace(ANSWERED, exact="1900"))

    accepted = {f"q{each}": ["1820"] for each in range(number)}
    (found,) = first(wrong, number, accepted=accepted)
    assert found.level == "note" and f"probability of {probability} at" in found.message
    assert first(wrong, number, accepted={}) == []
    (published,) = check_first_questions(
        [wrong(replace(GOOD, qid=f"q{each}")) for each in range(5)],
        ACCEPTED,
        calls_tools=True,
        expected=0.5,
    )
    assert "a probability of 0.03 at an accuracy of 0.5" in published.message  # 1/32


def noted(name, key="", level="note"):
    return Check(name, key, lambda seconds: [Finding(name, level, f"it took {seconds:.0f} s")])


def test_what_does_not_fit_into_the_bounds_is_left_out(monkeypatch):
    clock = chain((0.0, 0.0, 50.0, 61.0), repeat(62.0))
    monkeypatch.setattr(preflight.time, "monotonic", lambda: next(clock))
    report = run_checks([noted("server"), noted("judge"), noted("machine")], Ledger())
    said = [each.message for each in report.findings]
    assert said[:2] == ["it took 60 s", "it took 10 s"] and report.checks == 2
    assert said[2] == "it was not checked: 60 seconds and 20 requests are used up"

    ledger = Ledger()

    def asking(seconds):
        for _ in range(20):
            with ledger.request("preflight", ""):
                pass
        return []

    report = run_checks([Check("judge", "", asking), noted("server")], ledger)
    assert report.requests == 20 and [each.check for each in report.findings] == ["server"]
    assert "it was not checked" in report.findings[0].message


def test_cells_share_what_was_found_by_its_key(tmp_path):
    for key, made in (("a", 1), ("a", 0), ("b", 1), ("", 1), ("", 1)):
        report = run_checks([noted("server", key, "fault")], Ledger(), tmp_path)
        assert report.checks == made and [each.level for each in report.findings] == ["fault"]
