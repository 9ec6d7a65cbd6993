"""Runs of an agent with a language model: capped, repeated, and what they have spent."""

import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import CommandProcess, run_command
from support.llm_model import wavers
from support.llm_server import Say, running_peer
from support.runs import starts

from soundingline.experiments.planning import measured_runs
from soundingline.toolkit.files import JsonLinesLog, read_json_lines
from soundingline.toolkit.runs import RunFolder, read_trajectory
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY

OPTIONS = Path(__file__).resolve().parent / "options"
MODEL = (f"hydra.searchpath=[file://{OPTIONS}]", "agent=pi_serini", "llm=scripted")
WAVERING = (*TINY, *MODEL, "llm.wavering=true", "concurrency=4", "preflight=0", "name=r")
SEED = 7  # the scripted model's
STAGE = ("agent=one_shot", MODEL[0], "rewriter=q2q", "llm@rewriter_llm=scripted")


def contents(path):
    return json.loads(Path(path).read_text())


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


def test_a_finished_run_is_priced_by_the_list_of_another_month(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m") == 0
    path = Path("runs/m/manifest.json")
    manifest = contents(path)
    table = {"_target_": "soundingline.toolkit.llm.prices.Price", "dated": "2026-11-21"}
    old = {"input": 10.0, "cached_input": 2.0, "output": 100.0}
    table |= {"input": 1.0, "output": 1.0, "lists": {"2026-05": old}}
    manifest["config"]["llm"]["price"] = table
    path.write_text(json.dumps(manifest))
    assert entry("evaluate", "prices=2026-05", "runs/m") == 0
    # 600 input tokens, 300 of them from the cache, and 30 output tokens a question.
    by_hand = (300 * 10 + 300 * 2 + 30 * 100) / 1e6
    assert contents("runs/m/metrics.json")["usage_dollars"] == pytest.approx(by_hand)
    assert contents("runs/m/evaluation/summary.json")["prices"]["agent"] == "2026-05"
    assert entry("evaluate", "runs/m") == 0  # as it was billed
    assert contents("runs/m/metrics.json")["usage_dollars"] == pytest.approx(630 / 1e6)
    capsys.readouterr()
    assert entry("evaluate", "prices=2025-01", "runs/m") == 2
    assert "no price list 2025-01. valid: 2026-05, 2026-11-21." in capsys.readouterr().err


def test_the_first_questions_tell_what_the_others_will_take(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m", "preflight=3", "llm.price=1000") == 0
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
    ("words", "group", "setting", "file"),
    [
        ("run agent=chat llm=llamacpp/gguf", "llm", "gguf", "model.gguf"),
        ("run agent=chat llm=vllm/qwen3_8b", "llm", "weights", "model.safetensors"),
        (
            "rank rewriter=hyde llm@rewriter_llm=llamacpp/gguf",
            *("rewriter_llm", "gguf", "model.gguf"),
        ),
    ],
    ids=["llama.cpp", "vLLM", "a stage's model"],
)
def test_other_weights_at_the_same_place_are_another_model(
    entry, tmp_path, capsys, words, group, setting, file
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
    if setting == "gguf":
        weights.unlink()
        assert entry(*command) == 2
        assert "there is no file" in " ".join(capsys.readouterr().err.split())


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
    command = (*TINY, *MODEL, "name=m", "preflight=0", "llm.price=1000")
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
    assert "0/18" in capsys.readouterr().out
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


@pytest.mark.parametrize(
    "given",
    [("agent=navigator", *MODEL[::2]), (*STAGE, "paths.caches=null")],
    ids=["a planner's model", "a stage whose replies are kept nowhere"],
)
def test_whatever_asks_a_model_anew_can_be_repeated(entry, given):
    small = (*TINY, "benchmark.questions=sets:2", "traces=false", "preflight=0")
    assert entry("run", *small, *given, "repeats=2", "name=r") == 0
    folder = RunFolder("runs/r")
    assert [len(part.statuses()) for part in folder.repeats()] == [2, 2]
    assert {status for part in folder.repeats() for status in part.statuses().values()} == {
        "completed"
    }


# What a run has spent outlives replies without usage, and damaged files.

# 100 tokens of input at 1,000 dollars a million.
DOLLARS = 0.1
FLIGHT = 6


@pytest.fixture
def peer():
    with running_peer() as server:
        arguments = json.dumps({"reason": "to find it", "query": "mill"})
        usage = {"input": 100, "cached": 0, "reasoning": 0, "output": 0}
        # It never answers, so that no question ends.
        server.default = Say(calls=[("c1", "search", arguments)], usage=usage)
        yield server


def command(peer, *arguments):
    llm = (
        *("llm=openai_compatible", "llm.model=m", f"llm.base_url={peer.openai_url}"),
        *("llm.price.input=1000", "llm.price.output=0"),
    )
    run = ("agent=pi_serini", "budget=none", "name=r", "preflight=0", f"concurrency={FLIGHT}")
    return ("run", *TINY, *run, *llm, *arguments)


def test_the_cap_of_a_run_holds_over_a_start_that_was_killed(tmp_path, peer):
    cap = ("budget.run_dollars=8",)
    # The start cannot reach its cap: of 80 requests that the money allows, 60 are answered.
    killed, reply = threading.Event(), peer.default
    peer.script.extend([reply] * 60)

    def held(request):
        killed.wait(120)
        return reply

    peer.default = held
    process = CommandProcess(*command(peer, *cap), folder=tmp_path)
    until = time.monotonic() + 90
    while len(peer.requests) < 40 and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    served = len(peer.requests)
    assert 40 <= served <= 60 + FLIGHT
    peer.script.clear()
    peer.default = reply
    killed.set()
    assert not list(RunFolder(tmp_path / "runs" / "r").trajectories())

    resumed = run_command(*command(peer, *cap), folder=tmp_path)
    assert resumed.returncode == 2 and "budget.run_dollars" in resumed.stderr
    first, second = starts(tmp_path / "runs/r")
    # What had a reply when the kill came is on the ledger, all of it.
    assert DOLLARS * (served - FLIGHT) <= first["dollars"] + 1e-9
    assert first["dollars"] <= DOLLARS * served + 1e-9
    # The second start spends what the first has left, and no more.
    assert first["dollars"] + second["dollars"] == pytest.approx(8.0, abs=DOLLARS)
    assert len(peer.requests) * DOLLARS <= 8.0 + FLIGHT * DOLLARS + 1e-9

    again = run_command(*command(peer, *cap), folder=tmp_path)
    before = len(peer.requests)
    assert again.returncode == 2 and len(peer.requests) == before
    assert len(starts(tmp_path / "runs/r")) == 2


def test_a_reply_without_usage_stops_a_capped_run_and_its_known_money_still_counts(tmp_path, peer):
    reply = peer.default
    peer.script.extend([reply] * 30 + [Say(calls=reply.calls, usage=None)])
    run = command(peer, "budget.run_dollars=5")
    stopped = run_command(*run, folder=tmp_path)
    assert stopped.returncode == 2 and "reported no usage for 1 replies" in stopped.stderr
    (first,) = starts(tmp_path / "runs/r")
    assert first["unpriced"] == 1 and "dollars" not in first
    assert first["known_dollars"]["agent"] >= 30 * DOLLARS - 1e-9

    resumed = run_command(*run, folder=tmp_path)
    assert resumed.returncode == 2
    assert "1 replies of earlier starts reported no usage" in " ".join(resumed.stderr.split())
    assert starts(tmp_path / "runs/r")[1]["dollars"] + first["known_dollars"]["agent"] <= 5.0 + 1e-9


def test_replies_that_are_tried_again_are_paid_for_and_count_towards_the_cap(tmp_path, peer):
    reply, useless = peer.default, Say(text="half", finish="abort", usage=peer.default.usage)
    peer.script.extend([reply, useless, useless] * 8)
    stopped = run_command(*command(peer, "budget.run_dollars=1.75"), folder=tmp_path)
    assert stopped.returncode == 2 and "budget.run_dollars" in stopped.stderr
    (start,) = starts(tmp_path / "runs/r")
    # Every reply that was sent is paid for, and no more were sent than the cap allows.
    assert start["known_dollars"]["agent"] == pytest.approx(len(peer.requests) * DOLLARS)
    assert start["calls"] + start["retries"] == len(peer.requests) <= 17 + 6
    assert start["retries"] > 0 and start["unpriced"] == 0


@pytest.mark.parametrize("count", [-5, 10**400], ids=["negative", "beyond all floats"])
def test_an_impossible_count_stops_a_capped_run_and_the_next_start_reads_the_ledger(
    tmp_path, peer, count
):
    reply = peer.default
    peer.script.extend([reply, replace(reply, usage={**reply.usage, "input": count})])
    run = command(peer, "budget.run_dollars=5", "concurrency=1")
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

    monkeypatch.setattr("soundingline.toolkit.files.JsonLinesLog.append", full)
    assert entry("run", *TINY, *MODEL, "name=m") == 2
    assert "the run's ledger cannot be written: No space left" in capsys.readouterr().err
    assert list(RunFolder("runs/m").statuses().values()) == ["failed"]
