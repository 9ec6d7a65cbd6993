"""Runs of an agent with a language model: capped, repeated, what they have spent, and the servers
of their models."""

import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from pathlib import Path

import pytest
from support.assertions import told
from support.benchmarks import TINY
from support.commands import CommandProcess, run_command
from support.llm_model import wavers
from support.llm_server import Fail, Request, Say, running_peer
from support.needs import needs
from support.runs import contents, starts, without_times

from soundingline.agents.prompt import QUERIES
from soundingline.experiments.planning import measured_runs
from soundingline.pipelines.backend import PipelineBackend
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.json_lines import JsonLinesLog, read_json_lines
from soundingline.toolkit.runs import RunFolder, read_trajectory
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY

OPTIONS = Path(__file__).resolve().parent / "options"
MODEL = (f"hydra.searchpath=[file://{OPTIONS}]", "agent=pi_serini", "llm=scripted")
WAVERING = (*TINY, *MODEL, "llm.wavering=true", "concurrency=4", "preflight.questions=0", "name=r")
SEED = 7  # the scripted model's
STAGE = ("agent=one_shot", MODEL[0], "rewriter=q2q", "llm@rewriter_llm=scripted")


def statuses(run):
    return list(RunFolder(run).statuses().values())


def test_a_run_with_a_model_is_answered_measured_and_accounted_for(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m", "concurrency=4") == 0
    metrics = contents("runs/m/metrics.json")
    assert metrics["completion"] == 1.0 and metrics["search_calls"] == 2
    assert metrics["recall_surfaced"] > 0.5
    assert metrics["usage_agent_calls"] == 3 and metrics["usage_input_tokens"] == 600
    manifest = contents("runs/m/manifest.json")
    assert {"prompt", "llm", "budget", "agent"} <= set(manifest["fingerprints"])
    assert manifest["factors"]["llm"] == "scripted" and manifest["factors"]["budget"] == "pi_serini"
    (start,) = starts("runs/m")
    assert start["calls"] == 18 and start["agent_input_tokens"] == 3600
    assert start["dollars"] == pytest.approx((3600 + 180) / 1e6)
    told = capsys.readouterr().err
    assert "50.0% of the input tokens came from the prefix cache" in told
    # What the estimates of experiments are based on: 10 tokens of output a reply.
    (measured,) = measured_runs(Path("runs"))
    assert measured.key[:3] == ("fictional", "pi_serini", "ranked_browsing")
    assert (measured.run, measured.questions, measured.calls, measured.requests) == ("m", 6, 2, 3)
    assert (measured.input, measured.cached, measured.output) == (600, 300, 30)
    assert measured.seconds == pytest.approx(metrics["seconds"])


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("tool=top_k",), "the prompt pi_serini names search(reason), read_search_results"),
        (("agent=navigator", "tool=top_k"), "the navigator needs an interface that searches"),
    ],
)
def test_an_agent_without_the_tools_that_it_needs_is_refused_before_the_first_question(
    words, refusal, entry, capsys
):
    assert entry("run", *TINY, *MODEL, "name=m", *words) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if refusal in line)
    assert line.startswith("soundingline: ") and not Path("runs/m").exists()
    assert entry("run", *TINY, *MODEL, "name=m", "agent=neutral", "tool=top_k") == 0
    assert "prompt.tools" in contents("runs/m/manifest.json")["fingerprints"]


def test_a_sweep_varies_what_the_prompt_says_about_queries(entry):
    sweep = ("name=s", "agent=neutral", "agent.queries=neutral,matched", "retriever=ql,oracle")
    assert entry("run", "-m", *TINY, *MODEL, "preflight.questions=0", *sweep) == 0
    said = {}
    for path in Path("runs/s").glob("*/manifest.json"):
        manifest = contents(path)
        factors = manifest["factors"]
        trajectory = next(iter(RunFolder(path.parent).trajectories()))
        rules = trajectory.messages[0]["content"]
        told = re.findall(r"Queries are matched .*", rules)
        said[factors["agent.queries"], factors["retriever"]] = told
        hashes = [fingerprint(text) for text in told]
        assert [manifest["fingerprints"].get("prompt.queries")] == (hashes or [None])
    empty = {("neutral", "ql"): [], ("neutral", "oracle"): [], ("matched", "oracle"): []}
    assert said == {**empty, ("matched", "ql"): [QUERIES["words"]]}


def test_threats_to_validity_are_printed_before_the_run_and_are_in_the_report(entry, capsys):
    """A cell that lost a question and met another version of its server."""
    sweep = ("name=s", "retriever=ql,bm25_default", "budget=none")
    assert entry("run", "-m", *TINY, *MODEL, "preflight.questions=0", *sweep) == 0
    told = capsys.readouterr().err
    threats = re.findall(r"^threat to validity \((\w+)\)", told, re.MULTILINE)
    assert threats == ["one_repeat"]
    assert told.index("threat to validity") < told.index("metrics.json")
    cells = sorted(path.parent for path in Path("runs/s").glob("*/manifest.json"))
    assert "unequal_completion" not in Path("runs/s/report.md").read_text()
    for number, cell in enumerate(cells):
        manifest = {**contents(cell / "manifest.json"), "servers": {"llm": f"0.11.{number}"}}
        (cell / "manifest.json").write_text(json.dumps(manifest))
    next(cells[0].glob("queries/*")).unlink()
    assert entry("evaluate", str(cells[0])) == 0
    assert entry("compare", *map(str, cells), "name=c", "comparison.accept=[one_repeat]") == 0
    report = Path("runs/c/report.md").read_text()
    section = report[report.index("## Threats to validity") :].partition("\n## ")[0]
    assert re.findall(r"^\| (\w+) \|", section, re.MULTILINE)[1:] == [
        *("one_repeat", "model_drift", "unequal_completion"),
    ]
    assert re.search(r"^\| one_repeat .*\| accepted \|$", section, re.MULTILINE)


# Machines and caches of other speeds.

REWRITTEN = ("agent=neutral", "llm.turns=8", "rewriter=q2q", "llm@rewriter_llm=scripted")
# A first reply takes 2 seconds, each other one 1.9 (90 new tokens and 10), and a search 1.
VIRTUAL = (
    *("budget.clock=virtual", "budget.speed={input: 100, output: 10}", "budget.seconds=20"),
    *("budget.stage_seconds.retriever=0.75", "budget.stage_seconds.rewriter=0.25"),
    "budget.stage_seconds.reranker=99",
)


@pytest.fixture
def answered(entry, monkeypatch):
    """The trajectories of eight questions, without what they truly took."""

    def run(*words, delay=0.0, at_once=1, caches="caches"):
        search = PipelineBackend.search
        with monkeypatch.context() as patch:
            late = lambda self, request: time.sleep(delay) or search(self, request)  # noqa: E731
            patch.setattr(PipelineBackend, "search", late)
            name = f"r{len(list(Path().glob('runs/r*')))}"
            command = (*TINY, *MODEL, *REWRITTEN, "preflight.questions=0", f"name={name}", *words)
            command += ("benchmark.questions=8", f"paths.caches={caches}")
            assert entry("run", *command, f"concurrency={at_once}") == 0
        return sorted(RunFolder(f"runs/{name}").trajectories(), key=lambda each: each.qid)

    return run


def test_by_the_virtual_clock_machine_cache_and_concurrency_change_no_trajectory(answered):
    first = answered(*VIRTUAL)
    for trajectory in first:
        # 13.6 at the fifth call, and 14 are seven tenths. After them, a call and the answer.
        assert trajectory.status == "steered"
        assert [call.error for call in trajectory.calls] == [*[""] * 5, "blocked"]
        assert trajectory.virtual_seconds == pytest.approx(2 + 6 * 1.9 + 5 * 1)
        assert trajectory.usage["rewriter_calls"] > 0 and trajectory.seconds > 0
    wanted = [without_times(each, roles=("agent",)) for each in first]
    assert len(set(wanted)) == 8
    for words in (
        {"at_once": 8},  # the cache is warm
        {"delay": 0.05},
        {"delay": 0.05, "at_once": 8, "caches": "cold"},
        {"at_once": 8, "caches": "colder"},
    ):
        again = answered(*VIRTUAL, **words)
        assert [without_times(each, roles=("agent",)) for each in again] == wanted, words
    # By the wall clock there is no time for eight searches of a twentieth of a second.
    for trajectory in answered("budget.seconds=0.3", delay=0.05):
        assert trajectory.status in ("steered", "timed_out") and len(trajectory.calls) < 8
    # Without any limit there is.
    assert {len(each.calls) for each in answered("budget=none", delay=0.05, at_once=8)} == {8}


def test_a_finished_run_is_priced_by_the_list_of_another_month(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m") == 0
    path = Path("runs/m/manifest.json")
    manifest = contents(path)
    table = {"_target_": "soundingline.toolkit.llm.prices.Price", "dated": "2026-11-21"}
    old = {"input": 10.0, "cached_input": 2.0, "output": 100.0}
    table |= {"input": 1.0, "output": 1.0, "lists": {"2026-05": old}}
    manifest["config"]["llm"]["price"] = table
    path.write_text(json.dumps(manifest))
    assert entry("evaluate", "evaluation.prices=2026-05", "runs/m") == 0
    # 600 input tokens, 300 of them from the cache, and 30 output tokens a question.
    by_hand = (300 * 10 + 300 * 2 + 30 * 100) / 1e6
    assert contents("runs/m/metrics.json")["usage_dollars"] == pytest.approx(by_hand)
    assert contents("runs/m/evaluation/summary.json")["prices"]["agent"] == "2026-05"
    assert entry("evaluate", "runs/m") == 0  # as it was billed
    assert contents("runs/m/metrics.json")["usage_dollars"] == pytest.approx(630 / 1e6)
    capsys.readouterr()
    assert entry("evaluate", "evaluation.prices=2025-01", "runs/m") == 2
    assert "no price list 2025-01. valid: 2026-05, 2026-11-21." in capsys.readouterr().err


def test_the_first_questions_tell_what_the_others_will_take(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m", "preflight.questions=3", "llm.price=1000") == 0
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if "judged by the first" in line]
    # All questions cost the same here: 600 + 30 tokens, so that the bounds meet.
    assert "6 questions, judged by the first 3: $3.78 ($3.78 to $3.78); 3,600" in line
    assert re.search(r"output tokens; about 0\.\d minutes$", line)


def test_the_bar_tells_of_replies_while_a_question_is_under_way(entry, terminal, monkeypatch):
    monkeypatch.setattr("soundingline.experiments.run.Progress.line", lambda self: "read anew")
    assert entry("run", *TINY, *MODEL, "name=m") == 0
    first = next(line for line in terminal.getvalue().split("\r") if "Answering" in line)
    assert "0/6" in first and "read anew" in first


def test_failed_questions_are_counted_and_tried_again(entry, capsys):
    benchmark = (*TINY, *MODEL, "name=m", "concurrency=3")
    # A run of which nothing succeeds is a failed job.
    assert entry("run", *benchmark, "llm.failing=e") == 2
    assert "all 6 questions of the run runs/m failed (server_gone 6)" in capsys.readouterr().err
    assert statuses("runs/m") == ["failed"] * 6
    assert contents("runs/m/evaluation/summary.json")["counts"]["failed"] == 6
    # Another script is another model, so the run is not the same.
    assert entry("run", *benchmark) == 2

    one = next(Path("runs/m/queries").glob("*.json"))
    end_of_one = contents(str(one))["question"].rstrip("?")[-25:]
    some = (*TINY, *MODEL, "name=some", "concurrency=3", f"llm.failing='{end_of_one}'")
    assert entry("run", *some) == 0
    failed = statuses("runs/some").count("failed")
    assert 1 <= failed < 6
    line = f"{failed} of 6 questions failed (server_gone {failed}); the same command tries them"
    assert line in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "group", "setting", "file", "missing"),
    [
        ("run agent=chat llm=llamacpp/gguf", "llm", "gguf", "model.gguf", "there is no file"),
        (
            "run agent=chat llm=vllm/qwen3_8b",
            *("llm", "weights", "model.safetensors", "was made with another llm.content"),
        ),
        (
            "rank rewriter=hyde llm@rewriter_llm=llamacpp/gguf",
            *("rewriter_llm", "gguf", "model.gguf", "there is no file"),
        ),
    ],
    ids=["llama.cpp", "vLLM", "a stage's model"],
)
def test_other_weights_at_the_same_place_are_another_model(
    entry, tmp_path, capsys, words, group, setting, file, missing
):
    weights = tmp_path / "weights" / file
    weights.parent.mkdir()
    weights.write_bytes(b"GGUF, first")
    place = weights if setting == "gguf" else weights.parent
    server = (f"{group}.server.{setting}={place}", f"{group}.server.launcher=['false']")
    command = (*words.split(), *TINY, *server, "name=m")
    # The server ends as soon as it is started, and the run has its identity by then.
    assert entry(*command) == 2
    first = contents("runs/m/manifest.json")["fingerprints"][f"{group}.content"]
    assert entry(*command) == 2
    assert "made with another" not in capsys.readouterr().err
    weights.write_bytes(b"GGUF, other")
    assert entry(*command) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"was made with another {group}.content (was {first}, now" in error
    assert len(contents("caches/weights.json")) == 1
    weights.unlink()
    assert entry(*command) == 2
    assert missing in " ".join(capsys.readouterr().err.split())


def test_an_address_may_change_between_the_starts_of_a_run(entry):
    assert entry("run", *TINY, *MODEL, "name=m", "llm.base_url=http://a") == 0
    assert entry("run", *TINY, *MODEL, "name=m", "llm.base_url=http://b", "llm.price=2") == 0
    assert entry("run", *TINY, *MODEL, "name=m", "llm.turns=3") == 2
    assert entry("run", *TINY, *MODEL, "name=m", "budget.turns=3") == 2


def test_a_fault_that_would_fail_every_question_stops_the_run(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m", "llm.locked=true") == 2
    assert "the key is wrong" in capsys.readouterr().err
    assert statuses("runs/m") == ["failed"]


def test_a_cap_on_the_runs_money_stops_it_and_raising_it_goes_on(entry, capsys):
    command = (*TINY, *MODEL, "name=m", "preflight.questions=0", "llm.price=1000")
    # A question takes 0.63 dollars, its last turn 0.31.
    assert entry("run", *command, "budget.run_dollars=1.6") == 2
    assert "budget.run_dollars" in capsys.readouterr().err
    ended = {t.qid: (t.status, t.reason) for t in RunFolder("runs/m").trajectories()}
    assert list(ended.values()).count(("completed", "")) == 2
    assert list(ended.values()).count(("out_of_money", RUN_OUT_OF_MONEY)) == 1
    first = starts("runs/m")[0]["dollars"]
    assert 1.26 <= first <= 1.6
    # What was spent counts, and so does what one more request may take.
    assert entry("run", *command, "budget.run_dollars=1.6") == 2
    assert len(starts("runs/m")) == 1
    assert entry("run", *command, "budget.run_dollars=9") == 0
    assert statuses("runs/m") == ["completed"] * 6
    rows = starts("runs/m")
    assert len(rows) == 2 and rows[0]["dollars"] == first
    cut_short = [read_trajectory(path) for path in Path("runs/m/retried").rglob("*.json")]
    wasted = sum(trajectory.usage.get("dollars", 0) for trajectory in cut_short)
    assert sum(start["dollars"] for start in rows) == pytest.approx(6 * 0.63 + wasted)


def test_an_agent_that_asks_no_model_starts_none_and_has_one_cell_for_all_models(entry, tmp_path):
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF")
    server = (f"llm.server.gguf={weights}", "llm.server.launcher=['false']")
    assert entry("run", *TINY, "name=k", "agent=keyword", "llm=llamacpp/gguf", *server) == 0
    manifest = contents("runs/k/manifest.json")
    assert "llm" not in manifest["factors"]
    assert not {"llm", "llm.content"} & set(manifest["fingerprints"])

    models = (MODEL[0], "agent=keyword,pi_serini", "llm=scripted", "llm.turns=1,2")
    assert entry("run", "-m", *TINY, *models, "name=s") == 0
    cells = [contents(path.parent / "manifest.json") for path in Path("runs/s").glob("*/queries")]
    agents = sorted(cell["factors"]["agent"] for cell in cells)
    assert agents == ["keyword", "pi_serini", "pi_serini"]


# Every question asked several times, each time with another seed.


def searches(trajectory):
    return sum(call.name == "search" for call in trajectory.calls)


def test_each_repeat_has_its_own_seed_and_account(entry, capsys):
    assert entry("run", *WAVERING, "repeats=3") == 0
    folder = RunFolder("runs/r")
    assert [part.number for part in folder.repeats()] == [1, 2, 3]
    for repeat, part in enumerate(folder.repeats()):
        trajectories = list(part.trajectories())
        assert len(trajectories) == 6
        for trajectory in trajectories:
            expected = 2 + wavers(trajectory.question, SEED + repeat)
            assert searches(trajectory) == expected
            # Of this repeat alone, although all were under way at once.
            assert trajectory.usage["agent_calls"] == expected + 1
    metrics = contents("runs/r/metrics.json")
    # Of three seeds in a row one or two are even: 1/3 or 2/3 of the repeats search once more.
    per_question = contents("runs/r/evaluation/questions.json")["search_calls"]
    assert {round(3 * value) for value in per_question.values()} <= {7, 8}
    assert metrics["search_calls"] == pytest.approx(sum(per_question.values()) / 6)
    variance = contents("runs/r/evaluation/repeats.json")["variance"]["search_calls"]
    # One of three values differs by 1: the variance within every question is 1/3.
    assert variance["within"] == pytest.approx((1 / 3) ** 0.5)
    (start,) = starts("runs/r")
    assert start["calls"] == sum(
        searches(trajectory) + 1 for part in folder.repeats() for trajectory in part.trajectories()
    )
    assert entry("evaluate", "runs/r") == 0
    assert contents("runs/r/metrics.json") == metrics
    assert "failed" not in capsys.readouterr().out
    assert entry("run", *WAVERING, "llm.wavering=false", "repeats=1", "name=other") == 0
    assert entry("compare", "runs/r", "runs/other", "name=both") == 0
    page = Path("runs/both/report.md").read_text()
    assert "Repeats of a question" in page and "ICC" in page


def test_repeats_are_added_to_a_run_that_keeps_what_it_has(entry):
    assert entry("run", *WAVERING) == 0
    once = contents("runs/r/metrics.json")
    written = {path: path.read_bytes() for path in Path("runs/r/queries").iterdir()}
    assert not Path("runs/r/repeats").exists()
    assert entry("run", *WAVERING, "repeats=2") == 0
    assert {path: path.read_bytes() for path in Path("runs/r/queries").iterdir()} == written
    assert len(list(Path("runs/r/repeats/2/queries").iterdir())) == 6
    values = contents("runs/r/evaluation/repeats.json")["values"]["search_calls"].values()
    first = sum(row[0] for row in values) / 6
    assert first == pytest.approx(once["search_calls"])
    assert contents("runs/r/metrics.json")["search_calls"] == pytest.approx(2.5)


def test_a_judge_with_a_model_judges_every_repeat_once(entry):
    judge = ("judge=llm", "llm@judge_llm=scripted")
    assert entry("run", *WAVERING, *judge, "repeats=2") == 0
    for folder in ("runs/r", "runs/r/repeats/2"):
        (path,) = Path(folder).glob("evaluation/verdicts-llm-*.jsonl")
        verdicts = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        assert len(verdicts) == 6
        assert {verdict["usage"]["calls"] for verdict in verdicts} == {1}
    (start,) = starts("runs/r")
    assert start["judge_calls"] == 12


def test_judges_are_compared_on_every_repeat(entry):
    judge = ("judge=llm", "llm@judge_llm=scripted")
    assert entry("run", *WAVERING, *judge, "repeats=2") == 0
    # One repeat whose request failed has no verdict.
    (path,) = Path("runs/r/repeats/2").glob("evaluation/verdicts-llm-*.jsonl")
    *rows, last = read_json_lines(path)
    path.unlink()
    journal = JsonLinesLog(path)
    for row in (*rows, {**last, "error": "failed", "correct": False}):
        journal.append(row)
    journal.close()
    assert entry("judge", "runs/r") == 0
    (pair,) = contents("runs/r/evaluation/agreement.json")
    assert pair["n"] == 11
    first, second = (
        {trajectory.qid: trajectory for trajectory in part.trajectories()}
        for part in RunFolder("runs/r").repeats()
    )
    names = {*first, *(f"{qid}#repeat2" for qid in second)}
    assert {*pair["only_a"], *pair["only_b"]} <= names
    differing = len(pair["only_a"]) + len(pair["only_b"])
    assert pair["raw"] == pytest.approx(1 - differing / 11)


def test_what_belongs_to_a_question_is_found_in_each_of_its_repeats(entry):
    """Judgements, the facts of the simulated reader, and the question that phrases are made of."""
    says = json.dumps({"keywords": ["a stone mill"]})
    enriched = ("enrichment=sira", "enrichment.sides=query", "enrichment.apply_to=question")
    model = ("llm@enrichment_llm=scripted", f"enrichment_llm.says='{says}'", MODEL[0])
    agent = ("agent=keyword", "name=r", "repeats=2")
    assert entry("run", *TINY, *agent, *model, *enriched, "traces=false") == 0
    first, second = RunFolder("runs/r").repeats()
    assert {*first.statuses().values(), *second.statuses().values()} == {"completed"}
    assert not contents("runs/r/manifest.json")["stages"]["enrichment"].get("without_question")
    oracle = (*agent[:1], "retriever=oracle", "rewriter=q2q", "llm@rewriter_llm=scripted", MODEL[0])
    assert entry("run", *TINY, *oracle, "name=o", "repeats=2", "traces=false") == 0
    values = contents("runs/o/evaluation/repeats.json")["values"]["recall_surfaced"]
    assert all(row == [1.0, 1.0] for row in values.values()) and len(values) == 6


def test_a_manifest_tells_when_a_run_was_under_way_and_how_long_it_held_gpus(entry, peer):
    peer.default = Say(text="Explanation: so\nExact Answer: x\nConfidence: 5%")
    local = ("llm=vllm/qwen3_8b", f"llm.base_url={peer.openai_url}", "agent=pi_serini")
    run = (
        "run",
        *TINY,
        *local,
        "llm.server.options.tensor_parallel_size=4",
        "preflight.questions=0",
    )
    assert entry(*run, "name=r") == 0
    manifest = contents("runs/r/manifest.json")
    (period,) = manifest["periods"]
    began, ended = (datetime.fromisoformat(period[name]) for name in ("started", "ended"))
    assert datetime.fromisoformat(manifest["created"]) <= began <= ended
    held = manifest["stages"]["llm"]["gpu_seconds"]
    # Four GPUs for as long as the questions took, which are in whole seconds.
    assert 0 < held < 4 * ((ended - began).total_seconds() + 2)
    # A start that asks nothing is no period, and one that does is another.
    assert entry(*run, "name=r") == 0
    assert contents("runs/r/manifest.json")["periods"] == [period]
    next(Path("runs/r/queries").glob("*.json")).unlink()
    assert entry(*run, "name=r") == 0
    assert len(contents("runs/r/manifest.json")["periods"]) == 2
    assert contents("runs/r/manifest.json")["stages"]["llm"]["gpu_seconds"] > held


@pytest.mark.parametrize(
    "given",
    [("agent=navigator", *MODEL[::2]), STAGE, (*STAGE, "paths.caches=null")],
    ids=["a planner's model", "a stage that samples", "a stage whose replies are kept nowhere"],
)
def test_whatever_asks_a_model_anew_can_be_repeated(entry, given):
    small = (*TINY, "benchmark.questions=sets:2", "traces=false", "preflight.questions=0")
    assert entry("run", *small, *given, "repeats=2", "name=r") == 0
    folder = RunFolder("runs/r")
    assert [len(part.statuses()) for part in folder.repeats()] == [2, 2]
    assert {status for part in folder.repeats() for status in part.statuses().values()} == {
        "completed"
    }


def test_repeats_search_by_rewritings_of_their_own_also_where_they_are_resumed(entry, peer):
    def rewritten(part):
        notes = {t.qid: t.calls[0].notes["rewrite"]["rewritten"] for t in part.trajectories()}
        return [notes[qid] for qid in sorted(notes)]

    peer.default = lambda _: Say(text=f"Which mill stands by river {len(peer.requests)}?")
    stage = (*served(peer.openai_url, "rewriter_llm"), "rewriter_llm.model=m", "rewriter=q2q")
    run = ("run", *TINY, *stage, "agent=one_shot", "repeats=2", "preflight.questions=0")
    assert entry(*run, "name=r") == 0
    first, second = before = [rewritten(part) for part in RunFolder("runs/r").repeats()]
    assert len({*first, *second}) == len(peer.requests) == 12
    shutil.rmtree("runs/r/repeats/2")
    assert entry(*run, "name=r") == 0
    assert [rewritten(part) for part in RunFolder("runs/r").repeats()] == before
    assert len(peer.requests) == 12
    counted = contents("runs/r/manifest.json")["stages"]["rewriter"]
    assert counted["cache_hits"] == 6 and "samples_of_other_runs" not in counted
    # Another run with the same queries searches by the same samples, and says so.
    assert entry(*run, "name=other") == 0
    assert len(peer.requests) == 12
    manifest = contents("runs/other/manifest.json")
    assert manifest["stages"]["rewriter"]["samples_of_other_runs"] == 12


# What a run has spent outlives replies without usage, and damaged files.

# 100 tokens of input at 1,000 dollars a million.
DOLLARS = 0.1
FLIGHT = 6


@pytest.fixture
def busy():
    with running_peer() as server:
        arguments = json.dumps({"reason": "to find it", "query": "mill"})
        usage = {"input": 100, "cached": 0, "reasoning": 0, "output": 0}
        # It never answers, so that no question ends.
        server.default = Say(calls=[("c1", "search", arguments)], usage=usage)
        yield server


def command(busy, *arguments):
    llm = (
        *("llm=openai_compatible", "llm.model=m", f"llm.base_url={busy.openai_url}"),
        *("llm.price.input=1000", "llm.price.output=0"),
    )
    run = (
        "agent=pi_serini",
        "budget=none",
        "name=r",
        "preflight.questions=0",
        f"concurrency={FLIGHT}",
    )
    return ("run", *TINY, *run, *llm, *arguments)


def test_the_cap_of_a_run_holds_over_a_start_that_was_killed(tmp_path, busy):
    cap = ("budget.run_dollars=8",)
    # The start cannot reach its cap: of 80 requests that the money allows, 60 are answered.
    killed, reply = threading.Event(), busy.default
    busy.script.extend([reply] * 60)

    def held(request):
        killed.wait(120)
        return reply

    busy.default = held
    process = CommandProcess(*command(busy, *cap), folder=tmp_path)
    until = time.monotonic() + 90
    while len(busy.requests) < 40 and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    served = len(busy.requests)
    assert 40 <= served <= 60 + FLIGHT
    busy.script.clear()
    busy.default = reply
    killed.set()
    assert not list(RunFolder(tmp_path / "runs" / "r").trajectories())

    resumed = run_command(*command(busy, *cap), folder=tmp_path)
    assert resumed.returncode == 2 and "budget.run_dollars" in resumed.stderr
    first, second = starts(tmp_path / "runs/r")
    # What had a reply when the kill came is on the ledger, all of it.
    assert DOLLARS * (served - FLIGHT) <= first["dollars"] + 1e-9
    assert first["dollars"] <= DOLLARS * served + 1e-9
    # The second start spends what the first has left, and no more.
    assert first["dollars"] + second["dollars"] == pytest.approx(8.0, abs=DOLLARS)
    assert len(busy.requests) * DOLLARS <= 8.0 + FLIGHT * DOLLARS + 1e-9

    again = run_command(*command(busy, *cap), folder=tmp_path)
    before = len(busy.requests)
    assert again.returncode == 2 and len(busy.requests) == before
    assert len(starts(tmp_path / "runs/r")) == 2


def test_a_reply_without_usage_stops_a_capped_run_and_its_known_money_still_counts(tmp_path, busy):
    reply = busy.default
    busy.script.extend([reply] * 30 + [Say(calls=reply.calls, usage=None)])
    run = command(busy, "budget.run_dollars=5")
    stopped = run_command(*run, folder=tmp_path)
    assert stopped.returncode == 2 and "reported no usage for 1 replies" in stopped.stderr
    (first,) = starts(tmp_path / "runs/r")
    assert first["unpriced"] == 1 and "dollars" not in first
    assert first["known_dollars"]["agent"] >= 30 * DOLLARS - 1e-9

    resumed = run_command(*run, folder=tmp_path)
    assert resumed.returncode == 2
    assert "the cost of 1 replies of earlier starts is unknown" in " ".join(resumed.stderr.split())
    known = starts(tmp_path / "runs/r")[1]["dollars"] + first["known_dollars"]["agent"]
    assert known + DOLLARS <= 5.0 + 1e-9  # The reply without usage counts as one more.


def test_a_server_that_never_reports_usage_is_paid_once_under_a_cap(tmp_path, busy):
    busy.default = Say(calls=busy.default.calls, usage=None)
    run = command(busy, "budget.run_dollars=5")
    sent = []
    for _ in range(2):
        stopped = run_command(*run, folder=tmp_path)
        assert stopped.returncode == 2 and "reported no usage for" in stopped.stderr
        assert "ledger.jsonl away" in stopped.stderr
        sent.append(len(busy.requests))
    assert 1 <= sent[0] == sent[1]


def test_replies_that_are_tried_again_are_paid_for_and_count_towards_the_cap(tmp_path, busy):
    reply, useless = busy.default, Say(text="half", finish="abort", usage=busy.default.usage)
    busy.script.extend([reply, useless, useless] * 8)
    stopped = run_command(*command(busy, "budget.run_dollars=1.75"), folder=tmp_path)
    assert stopped.returncode == 2 and "budget.run_dollars" in stopped.stderr
    (start,) = starts(tmp_path / "runs/r")
    # Every reply that was sent is paid for, and no more were sent than the cap allows.
    assert start["known_dollars"]["agent"] == pytest.approx(len(busy.requests) * DOLLARS)
    assert start["calls"] + start["retries"] == len(busy.requests) <= 17 + 6
    assert start["retries"] > 0 and start["unpriced"] == 0


@pytest.mark.parametrize("count", [-5, 10**400], ids=["negative", "beyond all floats"])
def test_an_impossible_count_stops_a_capped_run_and_the_next_start_reads_the_ledger(
    tmp_path, busy, count
):
    reply = busy.default
    busy.script.extend([reply, replace(reply, usage={**reply.usage, "input": count})])
    run = command(busy, "budget.run_dollars=5", "concurrency=1")
    for started in (1, 2):
        ended = run_command(*run, folder=tmp_path)
        assert ended.returncode == 2
        first = starts(tmp_path / "runs/r")[0]
        assert (first["unpriced"], first["known_dollars"]["agent"]) == (1, DOLLARS)
        assert len(starts(tmp_path / "runs/r")) == started
    spent = sum(row["known_dollars"]["agent"] for row in starts(tmp_path / "runs/r"))
    assert 4.5 <= spent <= 5.0 + 1e-9


def test_a_damaged_ledger_stops_a_run_before_its_first_request(entry, capsys, tmp_path):
    log = tmp_path / "asked"
    run = (*TINY, *MODEL, "name=m", f"llm.log={log}")
    assert entry("run", *run, "llm.failing=e") == 2
    path = Path("runs/m/ledger.jsonl")
    path.write_text('{"starts": [{"dollars"\n')
    asked, damaged = log.read_bytes(), path.read_bytes()
    capsys.readouterr()
    assert entry("run", *run, "llm.failing=e") == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "soundingline:" in each]
    assert "cannot read the ledger runs/m/ledger.jsonl" in line and "restore" in line
    assert log.read_bytes() == asked and path.read_bytes() == damaged


def test_a_disk_without_room_for_the_ledger_stops_the_run(entry, capsys, monkeypatch):
    def full(journal, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("soundingline.toolkit.json_lines.JsonLinesLog.append", full)
    assert entry("run", *TINY, *MODEL, "name=m") == 2
    assert "the run's ledger cannot be written: No space left" in capsys.readouterr().err
    assert list(RunFolder("runs/m").statuses().values()) == ["failed"]


# A language model whose server is absent or ends is reported at once, and runs start llama.cpp's
# server by themselves, with a tiny random model or with the one that SOUNDINGLINE_GGUF names.

ENDED = "http://127.0.0.1:9/v1"  # Nobody listens at the port of the discard protocol.


def served(url, group="llm"):
    option = group if group == "llm" else f"llm@{group}"
    return (
        f"{option}=openai_compatible",
        *(f"{group}.model=m", f"{group}.base_url={url}", f"{group}.context_window=32000"),
    )


@pytest.mark.parametrize(
    "words",
    [
        ("run", *TINY, "agent=pi_serini", *served(ENDED), "name=r"),
        ("evaluate", "judge=llm", *served(ENDED, "judge_llm"), "runs/k"),
    ],
    ids=["an agent", "a judge"],
)
def test_without_its_server_nothing_is_asked(entry, capsys, words):
    assert entry("run", *TINY, "name=k") == 0
    capsys.readouterr()
    assert entry(*words) == 2
    line = told(capsys)
    assert f"no connection to the server of m at {ENDED}: " in line and "refused" in line
    assert words[0] == "evaluate" or "start the server, or set base_url" in line.lower()
    assert not list(Path("runs/r").rglob("queries/*.json"))


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ("m is not a valid model ID", "model to a model of that server"),
        ("Model Not Exist", "model to a model of that server"),
        ("404 page not found", "base_url to the address before /chat/completions"),
    ],
)
def test_a_wrong_model_or_address_ends_the_run_in_one_line_at_the_first_question(
    entry, capsys, peer, words, setting
):
    status = 404 if words.startswith("404") else 400
    peer.default = Fail(status, raw=json.dumps({"error": {"message": words}}))
    run = ("run", *TINY, "agent=pi_serini", *served(peer.openai_url), "name=r", "concurrency=1")
    assert entry(*run) == 2
    line = told(capsys)
    assert f"POST {peer.openai_url}/chat/completions for m at " in line
    assert f"HTTP {status}, {words}" in line and setting in line
    assert len(peer.requests) == 1


def test_a_question_that_a_moderation_refuses_ends_alone(entry, peer):
    flagged = {"code": 403, "message": "Forbidden", "metadata": {"flagged_input": "..."}}
    refusal = Fail(403, raw=json.dumps({"error": flagged}))
    peer.script.append(refusal)
    peer.default = Say(text="Explanation: so\nExact Answer: x\nConfidence: 5%")
    run = ("run", *TINY, "agent=pi_serini", *served(peer.openai_url), "name=r")
    assert entry(*run, "concurrency=1", "preflight.questions=0") == 0
    assert statuses("runs/r").count("failed") == 1 and len(peer.requests) == 6
    (reason,) = [t.reason for t in RunFolder("runs/r").trajectories() if t.status == "failed"]
    assert reason == "refused"


@pytest.mark.parametrize("command", ["run", "rank"])
def test_a_stage_without_its_server_stops_the_command_and_needs_none_for_kept_replies(
    entry, capsys, peer, command
):
    peer.default = Say(text="Which mill stands by the river?")
    rewriting = ("rewriter=q2q", "rewriter_llm.model=m")
    stage = (command, *TINY, *served("URL", "rewriter_llm"), *rewriting)
    if command == "run":
        stage += ("agent=one_shot",)

    def at(url, *more):
        return entry(*(item.replace("URL", url) for item in stage), *more)

    assert at(ENDED, "name=dead") == 2
    assert f"no connection to the server of m at {ENDED}" in told(capsys)

    assert at(peer.openai_url, "name=alive") == 0
    asked = len(peer.requests)
    assert asked > 0
    assert at(ENDED, "name=kept") == 0
    assert len(peer.requests) == asked


@pytest.mark.parametrize("launcher", ["basic", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_sweep_tells_of_a_server_that_is_not_there_once(entry, capfd, launcher):
    if launcher == "processes":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    given = (*served(ENDED)[2:], f"hydra/launcher={launcher}", "llm=openai_compatible")
    cells = ("llm.model=m,n", "unit=document,passage")
    assert entry("run", "-m", *TINY, "agent=pi_serini", *given, *cells, "name=s") == 2
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if "refused" in line]) == 1
    (last,) = [line for line in lines if "cells failed" in line]
    assert last == (
        "4 cells failed (llm.model=m unit=document; llm.model=m unit=passage; "
        f"llm.model=n unit=document; llm.model=n unit=passage): no connection to {ENDED}"
    )
    assert lines[-1] == "soundingline: 4 failed; correct the cause, and the same command continues"
    # A second command, with processes of its own, reports it again.
    if launcher == "processes":
        import_module("joblib.externals.loky").get_reusable_executor().shutdown()
    assert entry("run", "-m", *TINY, "agent=pi_serini", *given, *cells, "name=s") == 2
    assert "refused" in capfd.readouterr().err


def test_the_version_of_a_local_vllm_is_recorded_and_must_stay(entry, capsys, peer):
    answer = "Explanation: so\nExact Answer: x\nConfidence: 5%"
    peer.default = lambda request: Fail(400) if failing else Say(text=answer)
    local = ("llm=vllm/qwen3_8b", f"llm.base_url={peer.openai_url}", "agent=pi_serini")
    run = ("run", *TINY, *local, "concurrency=1", "preflight.questions=0")
    failing, peer.version = True, "0.32.0"
    assert entry(*run, "name=r") == 2
    assert RunFolder("runs/r").manifest()["servers"] == {"llm": "vLLM 0.32.0"}
    failing, peer.version = False, "0.33.0"
    capsys.readouterr()
    assert entry(*run, "name=r") == 2
    line = told(capsys)
    assert "was made with vLLM 0.32.0 for llm, and the server is vLLM 0.33.0 now" in line
    peer.version = "0.32.0"
    assert entry(*run, "name=r") == 0
    # A server that reports none, and one that is not said to be vLLM.
    peer.version = None
    assert entry(*run, "name=unknown") == 0
    peer.version = "0.32.0"
    assert entry("run", *TINY, *served(peer.openai_url), "agent=pi_serini", "name=api") == 0
    for name in ("unknown", "api"):
        assert "servers" not in RunFolder(f"runs/{name}").manifest()


def test_the_version_of_a_stages_server_is_recorded(entry, peer):
    peer.default, peer.version = Say(text="Which mill stands by the river?"), "0.32.0"
    stage = ("llm@rewriter_llm=vllm/qwen3_8b", f"rewriter_llm.base_url={peer.openai_url}")
    assert entry("rank", *TINY, *stage, "rewriter=q2q", "name=r") == 0
    assert RunFolder("runs/r").manifest()["servers"] == {"rewriter": "vLLM 0.32.0"}


def test_the_first_question_that_fails_is_told_with_its_trace_while_others_are_asked(
    entry, capsys, peer
):
    failed, lines = list[Request](), list[str]()

    def answer(request):
        if len(failed) < 2:
            failed.append(request)
            return Fail(400, "the mill has no wind", "invalid_request_error")
        lines.append(capsys.readouterr().err)
        return Say(text="Explanation: so\nExact Answer: x\nConfidence: 5%")

    peer.default = answer
    run = ("agent=pi_serini", "concurrency=1", "preflight.questions=0", "name=r")
    assert entry("run", *TINY, *served(peer.openai_url), *run) == 0
    qid = next(each.qid for each in RunFolder("runs/r").trajectories() if each.status == "failed")
    path = Path(f"runs/r/queries/{qid}.json")
    # It was told before the third question was asked, and nothing was told of the second failure.
    assert f"question {qid} failed: " in lines[0] and "HTTP 400, the mill has no wind" in lines[0]
    assert str(path) in lines[0] and path.exists()
    everything = "".join([*lines, capsys.readouterr().err])
    assert everything.count("its trace: ") == 1


REAL = os.environ.get("SOUNDINGLINE_GGUF", "")
LLAMACPP = needs(("xllamacpp", "gguf", "httpx2"), "llm,llamacpp")
LOCAL = ("name=local", "llm.server.threads=1", "budget.turns=2")
SHORT = (
    "llm.context_window=8192",
    "llm.settings.max_output_tokens=40",
    "budget.answer_tokens=100",
)


def one_cell(weights, *overrides):
    model = ("agent=chat", "llm=llamacpp/gguf", f"llm.server.gguf='{weights}'")
    return ("run", *TINY, *model, *LOCAL, "budget=none", *overrides)


def processes_of(weights):
    """The processes whose command line names the weights."""
    ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(weights).encode() in words:
            ids.append(int(folder.name))
    return ids


def until(condition, process=None):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process is None or process.poll() is None, process.wait()
        time.sleep(0.02)


@LLAMACPP
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_cells_of_the_demo_share_one_server_which_ends_with_the_run_however_that_ends(tmp_path):
    from support.tool_caller import save_gguf

    weights = save_gguf(tmp_path / "tiny.gguf", ["fw0000001"])
    sweep = tmp_path / "runs" / "local"
    few = ("benchmark.limit=3", "preflight.check=false", *LOCAL, *SHORT)
    demo = ("run", "experiment=demo_agent", *few, f"llm.server.gguf='{weights}'")
    for number in (signal.SIGINT, signal.SIGKILL):
        process = CommandProcess(*demo, folder=tmp_path)
        until(lambda: processes_of(weights), process)
        process.send_signal(number)
        process.wait()
        until(lambda: not processes_of(weights))
    done = run_command(*demo, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert processes_of(weights) == []
    cells = sorted(path.parent for path in sweep.glob("*/metrics.json"))
    assert len(cells) == 3
    assert all(name in done.stdout for name in ("neutral", "rag", "closed_book"))
    assert [(cell / "server.log").exists() for cell in cells].count(True) == 1
    for cell in cells:
        trajectories = list(RunFolder(cell).trajectories())
        assert len(trajectories) == 3
        assert all(trajectory.usage["input_tokens"] > 0 for trajectory in trajectories)


@LLAMACPP
@pytest.mark.slow
def test_rankings_of_a_sweep_share_the_rewriters_server(tmp_path):
    from support.tool_caller import save_gguf

    weights = save_gguf(tmp_path / "tiny.gguf", ["fw0000001"])
    rewriter = (
        "rewriter=q2q",
        "llm@rewriter_llm=llamacpp/gguf",
        f"rewriter_llm.server.gguf='{weights}'",
        "rewriter_llm.server.threads=1",
        "rewriter_llm.context_window=4096",
        "rewriter_llm.settings.max_output_tokens=20",
    )
    sweep = ("rank", "-m", *TINY, *rewriter, "retriever=bm25_default,bm25_tuned", "name=s")
    done = run_command(*sweep, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert processes_of(weights) == []
    cells = sorted(path.parent for path in (tmp_path / "runs" / "s").glob("*/metrics.json"))
    assert len(cells) == 2
    assert [(cell / "rewriter-server.log").exists() for cell in cells].count(True) == 1


@LLAMACPP
@pytest.mark.slow
def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path):
    done = run_command(*one_cell(tmp_path / "no.gguf", *SHORT), folder=tmp_path)
    assert done.returncode == 2
    assert "there is no file" in done.stderr and "Traceback" not in done.stderr


@LLAMACPP
@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="SOUNDINGLINE_GGUF names no file of a real model")
def test_every_question_that_a_real_model_is_asked_ends_in_a_way_that_we_know(tmp_path):
    """Nothing is asked of how good its answers are, or whether it searches."""
    given = one_cell(REAL, "benchmark.questions=2", "budget.turns=4", "llm.settings.temperature=0")
    done = run_command(*given, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = RunFolder(tmp_path / "runs" / "local")
    trajectories = list(run.trajectories())
    assert len(trajectories) == 2
    usual = {"", "turns", "context_window", "truncated", "empty_answer"}
    assert {trajectory.reason for trajectory in trajectories} <= usual
    metrics = run.path / "metrics.json"
    assert json.loads(metrics.read_text())["usage_output_tokens"] > 0
