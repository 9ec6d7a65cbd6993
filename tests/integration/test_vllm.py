"""A whole run on a real vLLM, which serves a tiny random model: `make test-real PART=vllm`.

vLLM needs an environment of its own. SOUNDINGLINE_VLLM is the command that starts it, such as
`vllm serve` or `<python> -m vllm.entrypoints.openai.api_server`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from support.needs import needs_real
from support.tool_caller import WORDS, save_checkpoint

from soundingline.toolkit.llm.ledger import recorded_usage
from soundingline.toolkit.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = os.environ.get("SOUNDINGLINE_VLLM", "")
pytestmark = needs_real("vllm", missing="" if LAUNCHER else "vLLM (SOUNDINGLINE_VLLM)")

QUESTIONS, TURNS, CONCURRENCY = 24, 4, 8
DOCUMENTS = 64
FEW, WINDOW = 6, 16_384
TOOLS = {"search", "read_search_results", "read_document"}
WORD = f"( ({'|'.join(WORDS)}))"
ANSWER = (
    rf"Explanation:{WORD}{{3,9}} \[fw00000[0-9]{{2}}\]\n"
    rf"Exact Answer:{WORD}{{1,3}}\nConfidence: [1-9][0-9]%"
)


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    folder: RunFolder
    place: Path
    seconds: float

    @property
    def trajectories(self):
        return list(self.folder.trajectories())

    @property
    def ledger(self):
        """What all requests used, by name."""
        return recorded_usage(self.folder.ledger_path)

    @property
    def log(self):
        return (self.folder.path / "server.log").read_text(encoding="utf-8", errors="replace")


def arguments(weights, *, window=32_768):
    launcher = ",".join(f"'{word}'" for word in shlex.split(LAUNCHER))
    return [
        "name=vllm",
        "benchmark=fictional",
        f"benchmark.documents={DOCUMENTS}",
        f"benchmark.questions={QUESTIONS}",
        "benchmark.hops=1",
        "benchmark.median_words=60",
        "benchmark.p90_words=200",
        "agent=pi_serini",
        f'++agent.answer_extra={{structured_outputs:{{regex:"{ANSWER}"}}}}',
        "budget.seconds=null",
        f"budget.turns={TURNS}",
        "budget.answer_tokens=1000",
        f"concurrency={CONCURRENCY}",
        "preflight.check=false",  # the ledger has the requests of the questions alone
        "llm=vllm/qwen3_8b",
        "llm.model=tiny",
        f"llm.context_window={window}",
        "llm.settings.temperature=1.0",
        "llm.settings.max_output_tokens=1000",
        "+llm.settings.tool_choice=required",
        f"llm.server.weights='{weights}'",
        f"llm.server.launcher=[{launcher}]",
        "llm.server.start_seconds=600",
        "++llm.server.environment={HF_HUB_OFFLINE:'1',VLLM_CPU_KVCACHE_SPACE:'1',"
        "VLLM_NO_USAGE_STATS:'1'}",
        "llm.server.options.reasoning_parser=null",
        f"llm.server.options.max_model_len={window}",
        "llm.server.options.gpu_memory_utilization=null",
        "llm.server.options.tool_strict_level=parameter",
        "+llm.server.options.enforce_eager=true",
        "+llm.server.options.dtype=float32",
        "+llm.server.options.structured_outputs_config={backend:xgrammar,disable_any_whitespace:true}",
    ]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    return save_checkpoint(place / "model", [f"fw{n:07d}" for n in range(DOCUMENTS)])


def carried_out(place, overrides):
    """The command, from its start to its end."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "soundingline.experiments", "run", *overrides],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Run(RunFolder(place / "runs" / "vllm"), place, time.monotonic() - began)


@pytest.fixture(scope="module")
def run(weights, tmp_path_factory):
    return carried_out(tmp_path_factory.mktemp("vllm"), arguments(weights))


def test_every_question_has_ended_as_the_budget_says(run):
    assert len(run.trajectories) == QUESTIONS
    assert {(each.status, each.reason) for each in run.trajectories} == {("out_of_turns", "turns")}


def test_every_turn_is_one_call_that_the_schemas_allow(run):
    for trajectory in run.trajectories:
        assert len(trajectory.calls) == TURNS
        for call in trajectory.calls:
            # What a tool itself may refuse: ids that exist nowhere, places past an end.
            allowed = ("", "unknown_search_id", "past_the_end")
            assert call.error in allowed, (call.arguments, call.output)


def test_tools_find_and_open_documents(run):
    calls = [call for trajectory in run.trajectories for call in trajectory.calls]
    assert any(call.name == "search" and call.ranking for call in calls)
    assert any(call.name == "read_document" and not call.error for call in calls)


def test_every_answer_has_the_format_that_was_demanded(run):
    for trajectory in run.trajectories:
        text = trajectory.messages[-1]["content"]
        assert re.fullmatch(ANSWER, text), text
        assert trajectory.answer.exact
        assert trajectory.answer.confidence is not None
    # Citations are docids that the agent has seen; a random model names others as well.
    assert any(trajectory.answer.citations for trajectory in run.trajectories)


def test_the_ledger_has_every_request_and_every_token(run):
    ledger = run.ledger
    assert ledger["calls"] == QUESTIONS * (TURNS + 1)
    assert ledger["failed"] == ledger["retries"] == ledger["unreported"] == 0
    for name in ("input_tokens", "output_tokens", "cached_tokens"):
        assert ledger[name] == sum(each.usage[name] for each in run.trajectories) > 0
        assert all(each.usage[name] > 0 for each in run.trajectories)


def test_most_of_the_input_comes_from_the_prefix_cache(run):
    assert run.ledger["cached_tokens"] > 0.5 * run.ledger["input_tokens"]
    assert [line for each in run.trajectories for line in each.warnings] == []


def test_nothing_of_the_server_is_left(run):
    assert "the server ended with code" in run.log
    assert str(os.getpid()) in processes_in(Path.cwd())
    assert processes_in(run.place) == []


def test_summary(run):
    """What docs/results.md tells of the run."""
    ledger, calls = run.ledger, [call for each in run.trajectories for call in each.calls]
    first = min(map(begin, run.trajectories))
    last = max(begin(each) + each.seconds for each in run.trajectories)
    version = re.search(r"version (\d+\.\d+\.\d+\S*)", run.log)
    report = {
        "vLLM": version[1] if version else "unknown",
        "seconds of the command": round(run.seconds),
        "seconds from the first question to the last answer": round(last - first),
        "questions": len(run.trajectories),
        "requests": ledger["calls"],
        "tool calls": Counter(call.name for call in calls),
        "tool errors": Counter(call.error for call in calls if call.error),
        "input tokens": ledger["input_tokens"],
        "output tokens": ledger["output_tokens"],
        "cached share": round(ledger["cached_tokens"] / ledger["input_tokens"], 3),
        "seconds a question": round(sum(each.seconds for each in run.trajectories) / QUESTIONS, 2),
    }
    for name, value in report.items():
        sys.stdout.write(f"{name}: {value}\n")
    assert report["questions"]


# The end of the window. Each byte is about one token here, and a quarter of one in English.


@pytest.mark.parametrize("known", [True, False], ids=["window known", "window unknown"])
def test_a_transcript_that_fills_the_window_ends_with_an_answer(weights, tmp_path, known):
    full = [
        *arguments(weights, window=WINDOW),
        "budget.turns=null",
        f"benchmark.questions={FEW}",
        *([] if known else ["llm.context_window=null"]),
    ]
    run = carried_out(tmp_path, full)
    assert len(run.trajectories) == FEW
    # Where the window is not known, the first refusal names it for all questions.
    reasons = {"context_window"} if known else {"context_window", "context_overflow"}
    for trajectory in run.trajectories:
        assert trajectory.status == "out_of_context" and trajectory.reason in reasons
        text = trajectory.messages[-1]["content"]
        assert re.fullmatch(ANSWER, text), text
        assert len(trajectory.calls) > 1
    # vLLM refuses nothing where the window is known, and else each question that is under way once.
    ledger = run.ledger
    assert (ledger["failed"] == 0) if known else (1 <= ledger["failed"] <= FEW)
    calls = [len(trajectory.calls) for trajectory in run.trajectories]
    left_out = sum(bool(trajectory.warnings) for trajectory in run.trajectories)
    sys.stdout.write(f"calls {calls}; refused {ledger['failed']}; exchanges left out {left_out}\n")


def begin(trajectory):
    """When the question was begun, in seconds, to the second."""
    return datetime.fromisoformat(trajectory.started).timestamp()


def processes_in(folder):
    """The process ids whose working folder it is; the server's children keep that of the run, but
    not their command lines."""
    links = [entry / "cwd" for entry in Path("/proc").glob("[0-9]*")]
    found = []
    for link in links:
        with suppress(OSError):
            if link.readlink() == folder:
                found.append(link.parent.name)
    return found


@pytest.mark.parametrize(("calls", "requests"), [("schema", 4), ("native", 4)])
def test_the_check_before_a_run_takes_less_than_a_minute(weights, tmp_path, calls, requests):
    """The server constrains the calls of a model with random weights."""
    own = ("agent=", "++agent.answer_extra", "+llm.settings.tool_choice", "name=")
    kept = [word for word in arguments(weights) if not word.startswith(own)]
    command = ["preflight", *kept, "agent=neutral", "agent.first_call=search"]
    done = subprocess.run(
        [sys.executable, "-m", "soundingline.experiments", *command, f"llm.calls={calls}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    sys.stdout.write(done.stdout + done.stderr)
    assert done.returncode == 0
    passed = re.search(rf"passed: 5 checks, ([\d.]+) seconds, {requests} requests", done.stdout)
    assert passed and float(passed[1]) < 60


def test_actions_by_schema_are_searches_and_answers(weights, tmp_path):
    """`llm.calls=schema`: the server constrains each reply to one action, whatever the model is."""
    own = ("agent=", "++agent.answer_extra", "+llm.settings.tool_choice", "benchmark.questions")
    kept = [word for word in arguments(weights) if not word.startswith(own)]
    schema = ("agent=neutral", "agent.first_call=search", "llm.calls=schema")
    run = carried_out(tmp_path, [*kept, *schema, f"benchmark.questions={FEW}"])
    assert len(run.trajectories) == FEW
    for trajectory in run.trajectories:
        name, *others = [call.name for call in trajectory.calls]
        assert name == "search" and set(others) <= TOOLS, others
        errors = {call.error for call in trajectory.calls}
        assert errors <= {"", "unknown_search_id", "past_the_end", "unknown_document"}, errors
        assert trajectory.answer.exact and not trajectory.warnings
