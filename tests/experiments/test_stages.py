"""Pipelines of several stages, run from the configuration: what they rank, record and refuse, and
the command that shows and prunes their caches."""

import gc
import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from support.benchmarks import TINY
from support.checkpoints import save_multi_vector, save_rankllama, save_sentence_model, write_splade
from support.commands import run_command
from support.llm_server import Raw, running_peer
from support.needs import SOAK
from support.runs import contents, starts

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings
from soundingline.experiments.pipeline import build_pipeline
from soundingline.pipelines.cache import ResultCache, notify_once
from soundingline.toolkit import locks
from soundingline.toolkit.runs import RunFolder

OPTIONS = Path(__file__).resolve().parent / "options"
SEARCHPATH = f"hydra.searchpath=[file://{OPTIONS}]"
QUESTION = "Which mill stands by the river?"
REWRITER = (SEARCHPATH, "rewriter=q2q", "llm@rewriter_llm=scripted", "rewriter_llm.price=1000")
# The tokens of a tiny checkpoint are single characters, and attention is quadratic in them.
SHORT = "reranker.max_length=128"
SAYS = f"rewriter_llm.says='{QUESTION}'"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_rankllama(folder / "rankllama")
    save_rankllama(folder / "another", seed=9)
    write_splade(folder / "splade")
    return folder


def reranked(models, name="rankllama"):
    return ("reranker=rankllama", f"reranker.model={models / name}", "reranker.depth=5", SHORT)


def trajectories(run):
    return list(RunFolder(run).trajectories())


def rankings(run):
    return [list(call.ranking) for each in trajectories(run) for call in each.calls if call.ranking]


def test_a_reranker_changes_heads_only_and_its_scores_are_kept(entry, models):
    given = (*TINY, *reranked(models), "agent.max_searches=1")
    assert entry("run", *TINY, "agent.max_searches=1", "name=raw") == 0
    assert entry("run", *given, "name=first") == 0
    raw, first = rankings("runs/raw"), rankings("runs/first")
    assert raw != first
    # The agent goes by what it is shown, but its first query is of the question alone.
    for old, new in zip(raw[:1], first[:1], strict=True):
        assert sorted(old[:5]) == sorted(new[:5]) and old[5:] == new[5:]
    counted = contents("runs/first/manifest.json")["stages"]["reranker"]
    assert counted["cache_hits"] == 0 and counted["pairs_scored"] == counted["cache_misses"] > 0

    assert entry("run", *given, "name=second") == 0
    assert rankings("runs/second") == first
    counted = contents("runs/second/manifest.json")["stages"]["reranker"]
    assert counted["pairs_scored"] == 0 and counted["cache_hit_rate"] == 1.0


def test_a_run_is_not_resumed_with_another_checkpoint_at_the_same_place(
    entry, models, tmp_path, capsys
):
    place = tmp_path / "model"
    place.symlink_to(models / "rankllama")
    model = ("reranker=rankllama", f"reranker.model={place}", "reranker.depth=5", SHORT)
    command = (*TINY, *model, "name=x")
    assert entry("rank", *command) == 0
    place.unlink()
    place.symlink_to(models / "another")
    assert entry("rank", *command) == 2
    assert "reranker.content" in capsys.readouterr().err


def test_what_changes_no_score_may_change_between_starts(entry, models):
    command = (*TINY, *reranked(models), "name=x")
    assert entry("rank", *command) == 0
    assert entry("rank", *command, "reranker.batch_tokens=512") == 0
    assert entry("rank", *command, "reranker.max_length=100") == 2


def test_a_learned_sparse_retriever_is_indexed_beside_the_engine(entry, models):
    sparse = ("retriever=splade", f"retriever.model={models / 'splade'}", "retriever.max_length=64")
    assert entry("run", *TINY, *sparse, "unit=passage", "name=s") == 0
    prints = contents("runs/s/manifest.json")["fingerprints"]
    (index,) = (name for name in prints if name.startswith("passage-splade-"))
    assert (Path("indexes/fictional") / index).is_dir()
    assert all(hits for hits in rankings("runs/s"))


def test_queries_and_their_rewriting_are_in_the_trajectory_and_on_the_ledger(entry, capsys):
    assert entry("run", *TINY, *REWRITER, SAYS, "name=q", "agent.max_searches=1") == 0
    searches = [
        (each, call) for each in trajectories("runs/q") for call in each.calls if call.ranking
    ]
    assert len({tuple(call.ranking) for _, call in searches}) == 1
    for each, call in searches:
        assert call.notes["query"] == QUESTION
        assert call.notes["query_0"] == call.arguments["query"]
        assert each.usage["rewriter_calls"] >= 1
    stages = contents("runs/q/manifest.json")["stages"]
    assert stages["rewriter"]["queries"] == len(searches)
    (start,) = starts("runs/q")
    assert start["rewriter_input_tokens"] == 40 * start["calls"] > 0


def reasoning(peer):
    """A pipeline with Rank1 behind the server, which finds every passage relevant."""
    top = {" true": -0.1, " false": -2.4}
    logprobs = {"tokens": ["</think>", " true"], "token_logprobs": [0.0, -0.1]}
    choice = {"text": "It is.", "finish_reason": "stop"}
    choice["logprobs"] = {**logprobs, "top_logprobs": [{"</think>": 0.0}, top]}
    usage = {"prompt_tokens": 100, "completion_tokens": 40}
    peer.default = Raw(json.dumps({"model": "m", "choices": [choice], "usage": usage}))
    rank1 = ("reranker=rank1", "reranker_llm.model=m", "reranker.depth=2", "paths.caches=null")
    return (*TINY, *rank1, f"reranker_llm.base_url={peer.openai_url}", "name=r", "concurrency=3")


def test_rank1_is_on_the_ledger_and_on_its_questions_account(entry):
    with running_peer() as peer:
        given = reasoning(peer)
        assert entry("run", *given, "agent.max_searches=2") == 0
        asked = len(peer.requests)
    (start,) = starts("runs/r")
    assert start["reranker_calls"] == asked > 6
    # Its price is not known, and what is unknown is not zero.
    assert start["reranker_unpriced"] == asked and "dollars" not in start
    of_questions = [each.usage["reranker_input_tokens"] for each in trajectories("runs/r")]
    assert min(of_questions) >= 200 and sum(of_questions) == 100 * asked


def test_rank1_counts_towards_the_cap_on_a_runs_money(entry, capsys):
    with running_peer() as peer:
        given = (*reasoning(peer), "budget.run_dollars=1.5", "concurrency=1")
        assert entry("run", *given) == 2
        assert "reranker_llm.price.input" in capsys.readouterr().err
        assert not peer.requests and not Path("runs/r").exists()
        # 100 tokens of input are 0.1 dollars.
        priced = (*given, "reranker_llm.price.input=1000", "reranker_llm.price.output=0")
        assert entry("run", *priced) == 2
        assert "has used up budget.run_dollars" in capsys.readouterr().err
        assert 14 <= len(peer.requests) <= 15
        # A price may be corrected between the starts of a run.
        assert entry("run", *priced, "budget.run_dollars=99", "reranker_llm.price.input=500") == 0


def test_stages_without_an_agent_are_bounded_by_the_cap_of_a_run_too(entry, capsys):
    # Each of the six queries takes 4.8 cents.
    given = (*TINY, *REWRITER, SAYS, "name=q", "paths.caches=null")
    assert entry("rank", *given, "budget.run_dollars=1") == 0
    assert entry("rank", *given, "budget.run_dollars=0.3") == 2
    assert "the run's cap is $0.3" in capsys.readouterr().err
    (start,) = starts("runs/q")
    assert start["dollars"] == pytest.approx(6 * 0.048)


def test_a_ranking_with_a_model_tells_its_requests_while_it_works(entry, terminal):
    assert entry("rank", *TINY, *REWRITER, SAYS, "name=r") == 0
    assert re.search(r"Ranking.* requests", terminal.getvalue())
    terminal.truncate(0)
    assert entry("rank", *TINY, "name=none") == 0
    assert "requests" not in terminal.getvalue()


def test_a_ranking_keeps_and_tells_what_became_of_each_query(entry, capsys):
    assert entry("rank", *TINY, *REWRITER, SAYS, "name=r") == 0
    lines = Path("runs/r/rewrites.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    ranked = {line.split()[0] for line in Path("runs/r/run.trec").read_text().splitlines()}
    assert {row["qid"] for row in rows} == ranked and len(rows) == len(ranked)
    assert {row["rewritten"] for row in rows} == {QUESTION}
    assert {row["apply_to"] for row in rows} == {"both"}
    example = "rewriter_llm.says='does legionella pneumophila cause pneumonia'"
    assert entry("rank", *TINY, *REWRITER, example, "paths.caches=null", "name=copied") == 0
    told = " ".join(capsys.readouterr().err.split())
    assert f"{len(rows)} of {len(rows)} queries were searched as they were" in told
    assert f"(copied {len(rows)})" in told
    assert entry("rank", *TINY, "name=none") == 0
    assert not Path("runs/none/rewrites.jsonl").exists()


def test_rankings_by_several_models_that_a_stage_shares_have_folders_of_their_own(entry):
    stage = (SEARCHPATH, "rewriter=q2q", "llm=scripted", "llm.says='',harbour,tower")
    assert entry("rank", "-m", *TINY, *stage, "name=s") == 0
    cells = [path.parent for path in Path("runs/s").glob("*/metrics.json")]
    factors = [contents(cell / "manifest.json")["factors"] for cell in cells]
    assert {factor["llm"] for factor in factors} == {"scripted"}
    assert {factor.get("llm.says") for factor in factors} == {"", "harbour", "tower"}


def test_a_rewriter_asks_the_agents_model_where_it_has_none_of_its_own(entry):
    given = (*TINY, SEARCHPATH, "agent=pi_serini", "llm=scripted", "rewriter=q2q_reasoning")
    assert entry("run", *given, "name=shared", "concurrency=3") == 0
    (start,) = starts("runs/shared")
    assert start["agent_calls"] == 18 and start["rewriter_calls"] > 0


def test_only_the_reranker_sees_the_question_where_that_is_asked(entry, models):
    given = (*TINY, *REWRITER, SAYS, "agent.max_searches=1", *reranked(models))
    assert entry("run", *TINY, "agent.max_searches=1", "name=raw") == 0
    assert entry("run", *given, "rewriter.apply_to=reranker", "name=r") == 0
    assert entry("run", *given, "rewriter.apply_to=both", "name=both") == 0
    raw, only, both = (rankings(f"runs/{name}") for name in ("raw", "r", "both"))
    assert sorted(raw[0]) == sorted(only[0]) and raw[0][5:] == only[0][5:]
    assert both[0][5:] != raw[0][5:]


def test_loading_checkpoints_says_nothing(entry, tmp_path, capfd):
    dense = ("retriever=dense", f"retriever.model={save_sentence_model(tmp_path / 'dense')}")
    late = ("reranker=colbert", f"reranker.model={save_multi_vector(tmp_path / 'late')}")
    capfd.readouterr()
    assert entry("rank", *TINY, *dense, *late, "name=x", "unit=document_head") == 0
    said = capfd.readouterr()
    assert "oading" not in said.out + said.err


def learned(tmp_path, kind):
    save = {"dense": save_sentence_model, "splade": write_splade, "colbertv2": save_multi_vector}
    folder = save[kind](tmp_path / "saved") or tmp_path / "saved"
    model = (f"retriever={kind}", f"retriever.model={folder}", "unit=passage")
    return (*TINY, *model, "retriever.max_length=64", "retriever.depth=1000")


def ranked_in(indexes, options):
    """The name of the learned index in a folder, and what it ranks for some questions."""
    config = Settings.compose([*options, f"paths.indexes={indexes}"]).config
    built = build_pipeline(config, make(config.budget))
    topics = built.benchmark.topics
    frame = pd.DataFrame([(topic.qid, topic.text) for topic in topics], columns=["qid", "query"])
    return list(built.collection.others.items()), built.parts["retriever"].transform(frame)


@pytest.mark.parametrize("kind", ["dense", "splade", "colbertv2"])
@pytest.mark.parametrize("shards", [4, 16] if SOAK else [4])
def test_an_index_of_shards_is_that_of_one_process(entry, tmp_path, capsys, kind, shards):
    options = learned(tmp_path, kind)
    assert entry("index", *options, "paths.indexes=whole") == 0
    words = ("index", "-m", *options, f"indexing.shards={shards}", "name=s")
    if SOAK:
        # As a command of its own, whose processes end with it: they keep its working folder.
        assert run_command(*words, "hydra/launcher=processes", folder=tmp_path).returncode == 0
    else:
        assert entry(*words) == 0
        done = re.findall(rf"shard (\d) of {shards} is done", capsys.readouterr().out)
        assert done == [*map(str, range(shards - 1))]  # the last one makes the index
    assert not list(Path("indexes/fictional").glob("passage-*.encoding*"))
    (names, ranking), (whole_names, whole) = (
        ranked_in(indexes, options) for indexes in ("indexes", "whole")
    )
    assert names == whole_names and len(names) == 1
    assert ranking["docno"].tolist() == whole["docno"].tolist()
    assert ranking["score"].tolist() == pytest.approx(whole["score"].tolist(), abs=1e-4)


def test_a_missing_shard_is_told_with_the_command_that_computes_it(entry, tmp_path, capsys):
    options = learned(tmp_path, "dense")
    assert entry("index", *options, "indexing.shards=4", "indexing.shard=2") == 0
    assert "shard 2 of 4 is done" in capsys.readouterr().out
    assert entry("index", *options, "indexing.shards=4") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "3 of 4 shards of the index" in error and "are missing: 0, 1, 3." in error
    command = error.partition("run soundingline index ")[2].rstrip(".").split()
    assert command[-2:] == ["indexing.shards=4", "indexing.shard=0,1,3"]
    before = {path: path.stat().st_mtime_ns for path in Path("indexes").rglob("values.npy")}
    assert entry("index", *command[:-1], "indexing.shard=0,1") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    folders = [path.name for path in Path("indexes/fictional").glob("passage-dense-*")]
    assert len(folders) == 3 and all(".encoding-" in name for name in folders)
    assert entry("index", *command[:-1], "indexing.shard=3") == 0
    assert entry("index", *options, "indexing.shards=4") == 0
    assert "units of 64 documents" in capsys.readouterr().out


MONTH = 30 * 86400


@pytest.fixture
def filled(tmp_path, monkeypatch):
    """Two caches: one of 5,000 entries used in 2001, one with an entry of 2033."""
    folder = tmp_path / "caches"
    for name, number, now in (("rerank-[old]", 5000, 1e9), ("rewrite-new", 1, 2e9)):
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda now=now: now)
            cache = ResultCache(folder / f"{name}.sqlite")
            cache.put(((str(n),), "x" * 100) for n in range(number))
    return folder


def entries(folder):
    """The number of entries of each cache of a folder, by its name."""
    counts = []
    for file in sorted(folder.glob("*.sqlite")):
        with closing(sqlite3.connect(file)) as connection:
            counts += connection.execute("SELECT COUNT(*) FROM results").fetchone()
    return counts


def test_caches_are_shown_with_size_and_last_change(entry, filled, capsys):
    gc.collect()  # closes the connections, as the end of their process would
    for name, at in (("rerank-[old]", 1e9), ("rewrite-new", 2e9)):
        os.utime(filled / f"{name}.sqlite", (at, at))
    assert entry("caches") == 0
    shown = capsys.readouterr().out
    assert re.search(r"caches/rerank-\[old\].sqlite +0\.\d MB +2001-09-09", shown)
    assert re.search(r"caches/rewrite-new.sqlite +0.0 MB +2033-05-18", shown)
    assert re.search(r"2 caches +[01]\.\d MB", shown)


def test_caches_are_pruned_to_an_age_or_a_size(entry, filled, capsys):
    assert entry("caches", "--keep-days", "30") == 0
    assert re.match(r"0\.\d MB freed", capsys.readouterr().out)
    assert entries(filled) == [0, 1]
    assert entry("caches", str(filled), "--keep-gb=0") == 0
    assert entries(filled) == [0, 0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--keep-gb=-1", r"--keep-gb=-1.0. valid: 0 or more, finite"),
        ("--keep-days=nan", r"--keep-days=nan. valid: 0 or more, finite"),
        ("--keep-gb=inf", r"--keep-gb=inf. valid: 0 or more, finite"),
        ("--keep-gb=much", r"--keep-gb: invalid float value: .much.. --help lists"),
        ("--keep-gbs=1", r"--keep-gbs=1. did you mean --keep-gb\? --help lists"),
        ("paths.caches=null", r"paths.caches is null"),
        ("paths.caches=absent", r"no folder of caches at absent"),
    ],
)
def test_what_cannot_be_pruned_is_refused_in_one_line(entry, filled, capsys, given, message):
    assert entry("caches", given) == 2
    assert re.search(message, capsys.readouterr().err)
    assert entries(filled) == [5000, 1]


def test_a_run_holds_the_caches_at_their_bound(entry, filled, capsys):
    given = (*TINY, *REWRITER, SAYS, "agent.max_searches=1")
    assert entry("run", *given, "name=within") == 0
    assert "caches_gb" not in capsys.readouterr().err
    assert entries(filled)[0] == 5000
    assert entry("run", *given, "name=above", "paths.caches_gb=0.0003") == 0
    assert re.search(r"above paths.caches_gb=0.0003: 0\.\d MB freed", capsys.readouterr().err)
    assert entries(filled)[0] < 2000
    assert entry("run", *given, "name=wrong", "paths.caches_gb=-1") == 2
    assert "caches_gb=-1.0. valid: 0 or more, finite" in capsys.readouterr().err


def test_a_damaged_cache_that_a_run_does_not_use_stops_nothing(entry, filled, capsys):
    (filled / "rerank-other.sqlite").write_bytes(b"damaged " * 1000)
    given = (*TINY, *REWRITER, SAYS, "agent.max_searches=1")
    assert entry("run", *given, "name=x") == 0
    assert "rerank-other.sqlite is damaged" in capsys.readouterr().err


def test_a_run_tells_once_what_a_network_file_system_asks_for(entry, tmp_path, monkeypatch, capsys):
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {tmp_path.resolve()} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(locks, "MOUNTS", table)
    notify_once.cache_clear()
    given = (*TINY, *REWRITER, SAYS, "agent.max_searches=1")
    assert entry("run", *given, "name=one") == 0
    assert entry("run", *given, "name=two") == 0
    assert capsys.readouterr().err.count("rollback journal") == 1
    assert not list((tmp_path / "caches").glob("*-wal"))
