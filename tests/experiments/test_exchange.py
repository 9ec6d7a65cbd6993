"""Runs are exported in the formats of others and imported again. An import warns of each fault of
the files that changes a published figure."""

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import get_args

import ir_measures
import pytest
from support.benchmarks import TINY, write_beir
from support.commands import run_entry
from support.runs import answer, browsecomp, call, pi_serini, read, said, search, write_files

from soundingline.experiments.config import Settings
from soundingline.experiments.exchange import ExportFormat, triplets
from soundingline.experiments.replay import with_tool
from soundingline.toolkit.obfuscation import Canary
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import RecordedCall, Trajectory

WORLD = Path(__file__).resolve().parents[1] / "data" / "golden" / "world"
OPTIONS = Path(__file__).resolve().parent / "options"
BENCHMARK = ("benchmark=beir", f"benchmark.path={WORLD}", "benchmark.split=null")


@pytest.fixture(scope="module")
def working(tmp_path_factory):
    """A folder with the evaluated run `runs/demo`, which is the working folder."""
    folder = tmp_path_factory.mktemp("exchange")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        citing = "agent._target_=support.agents.CitingAgent"
        assert run_entry("run", "name=demo", citing, *BENCHMARK) == 0
        yield folder


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def metrics(run):
    return read_json(run / "metrics.json")


def exported(working, form, *words):
    out = working / f"out-{form}"
    shutil.rmtree(out, ignore_errors=True)
    assert run_entry("export", "runs/demo", f"format={form}", f"out={out}", *words) == 0
    return out


def import_run(name, path, form, *words):
    return run_entry("import", str(path), f"format={form}", f"name={name}", *BENCHMARK, *words)


def imported(name, path, form, *words):
    shutil.rmtree(Path("runs") / name, ignore_errors=True)
    assert import_run(name, path, form, *words) == 0
    return Path("runs") / name


@pytest.mark.parametrize("form", ["browsecomp_plus", "pi_serini", "inspect", "inspect_json"])
def test_a_round_trip_changes_no_measure_and_no_trajectory(working, form):
    back = imported("back", exported(working, form), form.removesuffix("_json"))
    assert metrics(back) == metrics(working / "runs/demo")
    before = list(RunFolder(working / "runs/demo").trajectories())
    assert list(RunFolder(back).trajectories()) == before


def test_without_our_own_key_what_pages_showed_is_read_from_them(working):
    files = exported(working, "browsecomp_plus")
    for path in files.iterdir():
        content = read_json(path)
        del content["metadata"]["soundingline"]
        path.write_text(json.dumps(content), encoding="utf-8")
    foreign = metrics(imported("foreign", files, "browsecomp_plus"))
    ours = metrics(working / "runs/demo")
    same = [name for name in ours if name.endswith("_published")]
    same += ["accuracy", "recall_previewed", "recall_opened", "recall_cited", "search_calls"]
    assert {name: foreign[name] for name in same} == {name: ours[name] for name in same}
    assert foreign["recall_surfaced"] == ours["recall_previewed"]  # no more is on record


def test_an_export_for_pi_serini_has_what_its_programs_read(working):
    out, values = exported(working, "pi_serini"), metrics(working / "runs/demo")
    relevant = {}
    for line in (out / "qrels_evidence.txt").read_text(encoding="utf-8").splitlines():
        qid, _, docid, grade = line.split()
        relevant.setdefault(qid, set()).update([docid] if int(grade) > 0 else [])
    files = [read_json(out / f"{n + 1}.json") for n in range(len(list(out.glob("*.json"))))]
    for tier in ("surfaced", "previewed", "opened", "cited"):
        recalls = [
            len(relevant[row["query_id"]] & {*row[f"{tier}_docids"]})
            / len(relevant[row["query_id"]])
            for row in files
            if relevant.get(row["query_id"])
        ]
        assert sum(recalls) / len(recalls) == pytest.approx(values[f"recall_{tier}"])
    for row in files:
        assert {*row["agent_docids"]} == {*row["opened_docids"], *row["cited_docids"]}
        del row["metadata"]["soundingline"]
    foreign = metrics(imported("pi", write_files(working / "foreign", files), "pi_serini"))
    same = ["accuracy", "search_calls", *(f"recall_{tier}" for tier in ("surfaced", "opened"))]
    assert {name: foreign[name] for name in same} == {name: values[name] for name in same}


def test_files_for_pi_serini_have_the_ids_of_questions_that_are_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus = '{"_id": "7", "title": "", "text": "The old mill burned."}\n'
    queries = '{"_id": "12", "text": "mill"}\n{"_id": "3", "text": "old"}\n'
    qrels = "query-id\tcorpus-id\tscore\n12\t7\t1\n3\t7\t2\n"
    path = write_beir(tmp_path / "numbers", corpus=corpus, queries=queries, qrels=qrels)
    assert run_entry("run", "benchmark=beir", f"benchmark.path={path}", "name=x") == 0
    assert run_entry("export", "runs/x", "format=pi_serini", "out=out") == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "12.json",
        "3.json",
        "qrels_evidence.txt",
    ]
    assert Path("out/qrels_evidence.txt").read_text() == "12 0 7 1\n3 0 7 2\n"


def inspect_log(path, change):
    """A log of another task: our exported log without our records, and with other inputs."""
    content = read_json(path)
    content["samples"] = [
        {**row, "store": {}, **fields} for row in content["samples"] for fields in change(row)
    ]
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_log_of_another_task_with_the_same_ids_is_not_imported(working, capsys):
    (path,) = exported(working, "inspect_json").iterdir()
    asked = "How many legs does an insect have?"
    inspect_log(path, lambda row: [{"input": asked}])
    assert import_run("other-task", path, "inspect") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(r"sample 1 has another question than '\S+' of \w+\..*choose another", told)
    assert not Path("runs/other-task").exists()
    (path,) = exported(working, "inspect_json").iterdir()

    def prompted(row):
        text = row["input"].upper().replace(" ", "\n")
        return [{"input": [{"role": "user", "content": f"Answer: {text} Be brief."}]}]

    imported("prompted", inspect_log(path, prompted), "inspect")


def test_epochs_of_a_log_are_repeats_of_the_questions(working, capsys):
    (path,) = exported(working, "inspect_json").iterdir()
    inspect_log(path, lambda row: [{"epoch": 1}, {"epoch": 2, "messages": []}])
    run = RunFolder(imported("epochs", path, "inspect"))
    first, second = run.repeats()
    assert set(first.statuses()) == set(second.statuses()) and len(first.statuses()) > 3
    assert "questions imported in 2 repeats" in capsys.readouterr().err
    once = metrics(imported("first-epoch", inspect_log(path, _only_first), "inspect"))
    assert once["accuracy"] > 0
    assert metrics(run.path)["accuracy"] == pytest.approx(once["accuracy"] / 2)
    assert import_run("no-first", inspect_log(path, _only_second), "inspect") == 2
    assert "the first epoch is missing; those on record are 2" in capsys.readouterr().err


def _only_first(row):
    return [{}] if row["epoch"] == 1 else []


def _only_second(row):
    return [{"epoch": 2}]


def test_the_leaderboard_entry_and_the_trec_run_contain_the_values_of_the_evaluation(working):
    (path,) = exported(working, "leaderboard").iterdir()
    content, values = read_json(path), metrics(working / "runs/demo")
    assert content["Accuracy (%)"] == round(100 * values["accuracy_published"], 2)
    assert content["Recall (%)"] == round(100 * values["recall_published"], 2)
    assert content["avg_tool_stats"]["search"] == values["search_calls_published"]
    right = [row["correct"] for row in content["per_query_metrics"]]
    assert sum(right) / len(right) == values["accuracy_published"]
    (trec,) = exported(working, "trec").iterdir()
    ours = (working / "runs/demo/run.trec").read_text(encoding="utf-8")
    assert sorted(trec.read_text(encoding="utf-8").splitlines()) == sorted(ours.splitlines())


FORMATS = get_args(ExportFormat)


@pytest.fixture(scope="module")
def without_trajectories(working):
    """Runs of other commands: a ranking, a sweep of rankings, a tuning, and a run that was stopped
    before its first answer."""
    assert run_entry("rank", "name=ranked", *BENCHMARK) == 0
    assert run_entry("rank", "-m", "name=swept", "unit=document,maxp", *BENCHMARK) == 0
    grid = ("grid.k1=0:4:0.5", "grid.b=0:1:0.25")
    assert run_entry("tune", "name=tuned", *grid, *BENCHMARK[:-1]) == 0
    shutil.copytree("runs/demo", "runs/empty")
    shutil.rmtree("runs/empty/queries")
    for name in ("run.trec", "metrics.json"):
        Path("runs/empty", name).unlink()
    return {name: working / "runs" / name for name in ("ranked", "swept", "tuned", "empty")}


def test_the_rankings_of_a_run_without_an_agent_are_exported_as_a_trec_run(
    working, without_trajectories
):
    out = working / "out-ranked"
    ranked = without_trajectories["ranked"]
    assert run_entry("export", str(ranked), "format=trec", f"out={out}") == 0
    (path,) = out.iterdir()
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    assert path.name == "ranked.trec" and rows
    measured = ir_measures.calc_aggregate(
        [ir_measures.nDCG @ 10],
        ir_measures.read_trec_qrels("\n".join(f"{q} 0 {d} {grade}" for q, d, grade in qrels())),
        ir_measures.read_trec_run(str(path)),
    )
    assert measured[ir_measures.nDCG @ 10] == pytest.approx(metrics(ranked)["nDCG@10"], abs=1e-6)


def test_a_run_is_exported_as_both_files_of_trec_rag(working, capsys):
    """By the rules of validation in the organizers' guidelines."""
    out = exported(working, "trec_rag", "team=ours")
    trajectories = {row.qid: row for row in RunFolder(working / "runs/demo").trajectories()}
    ranked = defaultdict(list)
    for line in (out / "r_output_trec_rag_2026.tsv").read_text().splitlines():
        qid, q0, docid, rank, score, run = line.split()
        previous = ranked[qid]
        assert q0 == "Q0" and int(rank) == len(previous) + 1 and run
        assert not previous or float(score) <= previous[-1][1]
        previous.append((docid, float(score)))
    for qid, row in trajectories.items():
        tiers = defaultdict(tuple, row.tiers)
        read = [*tiers["cited"], *tiers["opened"]]
        assert {docid for docid, _ in ranked[qid]} == set(read or tiers["previewed"])
    lines = (out / "rag_output_trec_rag_2026.jsonl").read_text().splitlines()
    rows = {row["metadata"]["narrative_id"]: row for row in map(json.loads, lines)}
    assert rows.keys() == trajectories.keys() and len(lines) == len(rows)
    for qid, row in rows.items():
        references = row["references"]
        assert row.keys() == {"metadata", "references", "answer"}
        assert row["metadata"]["narrative"] == trajectories[qid].question
        assert all(row["metadata"][name] for name in ("team_id", "run_id", "run_desc"))
        assert all(isinstance(docid, str) and docid for docid in references)
        assert len(set(references)) == len(references)
        assert sum(len(item["text"].split()) for item in row["answer"]) <= 1024
        for item in row["answer"]:
            assert item.keys() == {"text", "citations"} and item["text"].strip()
            assert len(item["citations"]) <= 3 and {*item["citations"]} <= {*range(len(references))}
    assert run_entry("export", "runs/demo", "format=trec_rag", "out=no") == 2
    assert "team= is missing" in capsys.readouterr().err and not Path("no").exists()


REFUSED = [(kind, form) for kind in ("ranked", "swept", "tuned", "empty") for form in FORMATS]


REFUSED.remove(("ranked", "trec"))


REFUSED.remove(("tuned", "trec"))  # the rankings of the questions that it reports on


@pytest.mark.parametrize(("kind", "form"), REFUSED)
def test_an_export_without_content_is_refused(working, without_trajectories, kind, form, capsys):
    out = working / f"out-{kind}-{form}"
    capsys.readouterr()
    arguments = (str(without_trajectories[kind]), f"format={form}", f"out={out}")
    assert run_entry("export", *arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("agent", "rewriter", "named"),
    [
        ("keyword", "none", "keyword"),
        ("keyword", "q2q", "keyword"),
        ("pi_serini", "none", "big-model"),
        ("navigator", "none", "big-model"),
    ],
)
def test_an_export_names_a_language_model_only_where_the_agent_asked_it(
    working, agent, rewriter, named
):
    for place in ("runs/asking", "out-asking"):
        shutil.rmtree(place, ignore_errors=True)
    options = (f"hydra.searchpath=[file://{OPTIONS}]", "llm=scripted")
    choices = (f"agent={agent}", f"rewriter={rewriter}", "name=asking")
    assert run_entry("run", *TINY, *options, *choices) == 0
    manifest = Path("runs/asking/manifest.json")
    content = read_json(manifest)
    content["config"]["llm"]["model"] = "big-model"  # Scripts have no name of their own.
    manifest.write_text(json.dumps(content), encoding="utf-8")
    assert run_entry("export", "runs/asking", "format=browsecomp_plus", "out=out-asking") == 0
    models = [read_json(path)["metadata"]["model"] for path in Path("out-asking").iterdir()]
    assert models == [named] * 6


def test_an_export_does_not_replace_what_is_there(working, capsys):
    out = exported(working, "trec")
    before = sorted(out.iterdir())
    assert run_entry("export", "runs/demo", "format=trec", f"out={out}") == 2
    assert "is not empty" in capsys.readouterr().err
    assert sorted(out.iterdir()) == before


def qrels():
    """The judgements of the world: question, document, grade."""
    paths = [path for path in (WORLD / "qrels").glob("*.tsv") if "." not in path.stem]
    lines = [line for path in sorted(paths) for line in path.read_text("utf-8").splitlines()[1:]]
    return [tuple(line.split("\t")) for line in lines]


def world():
    """The first questions of the world and the judged documents of each."""
    evidence = {}
    for qid, docid, grade in qrels():
        if int(grade) > 0:
            evidence.setdefault(qid, []).append(docid)
    lines = (WORLD / "queries.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["_id"] for line in lines[:3]], evidence


def test_a_foreign_run_goes_through_evaluation_and_comparison(working):
    qids, evidence = world()
    seen = evidence[qids[0]][0]
    files = [
        browsecomp(qids[0], [search("one", [seen, "x"]), answer("no", citing=f"[{seen}]")]),
        browsecomp(qids[1], [search("two", ["x"])], status="incomplete"),
        browsecomp(qids[2], [search("three", ["y"]), read("y"), answer("no", "10%")]),
    ]
    run = imported("others", write_files(working / "others", files), "browsecomp_plus")
    manifest = read_json(run / "manifest.json")
    assert manifest["imported"]["model"] == manifest["factors"]["llm"] == "gpt-oss-20b"
    values = metrics(run)
    assert values["completion"] == pytest.approx(2 / 6)
    assert values["completion_published"] == pytest.approx(2 / 3)
    assert values["search_calls"] == 1
    assert values["recall_opened"] == 0
    assert "seconds" not in values
    expected = 1 / len(evidence[qids[0]])
    assert values["recall_previewed"] == pytest.approx(expected / 6)
    assert values["recall_published"] == pytest.approx(expected / 3)
    assert run_entry("compare", "runs/demo", "runs/others", "name=compared") == 0
    verdicts = read_json(working / "runs/compared/verdicts.json")
    assert {row["measure"] for row in verdicts} >= {"accuracy", "recall_opened"}


def test_a_run_of_pi_serini_keeps_its_tiers_and_counts_no_failed_reading_as_opened(working):
    qids, evidence = world()
    first, *_ = evidence[qids[0]]
    page = f"Showing ranks 1-2 of 1000 cached hits\n\n1. docid={first} score=9.1000\n   Title: t\n"
    page += "   Excerpt: words\n\n2. docid=x score=8.0000\n   Excerpt: words"
    failure = "docid 'gone' was not found."
    items = [
        call("search", {"reason": "r", "query": "words"}, page),
        call("read_document", {"reason": "r", "docid": "gone"}, failure),
        said(f"pi-search extension failure (read_document): {failure}"),
        call("read_document", {"reason": "r", "docid": "x"}, "[docid=x lines 1-2 of 2]\n\ntext"),
        answer("no", citing="[x]"),
    ]
    tiers = {
        "surfaced_docids": [first, "x", "deep"],
        "previewed_docids": [first, "x"],
        "opened_docids": ["gone", "x"],
    }
    ended = [answer("none"), said("pi stderr:\nkilled")]
    files = [pi_serini(qids[0], items, **tiers), pi_serini(qids[1], ended, status="timeout")]
    folder = write_files(working / "pi", files)
    (folder / "run_setup.json").write_text("{}", encoding="utf-8")
    run = imported("pi", folder, "pi_serini")
    one, two = RunFolder(run).trajectories()
    assert one.tiers == {
        "surfaced": (first, "x", "deep"),
        "previewed": (first, "x"),
        "opened": ("x",),
        "cited": ("x",),
    }
    assert one.seconds == 12.5
    assert [call.error for call in one.calls] == ["", "tool_error", ""]
    assert (two.status, two.answer.exact) == ("timed_out", "none")
    assert metrics(run)["read_calls"] == 0.5


def test_an_import_that_was_killed_before_its_evaluation_is_repeated(working, capsys):
    exported_files = exported(working, "browsecomp_plus")
    run = imported("killed", exported_files, "browsecomp_plus")
    expected = metrics(run)
    shutil.rmtree(run / "evaluation")
    (run / "metrics.json").unlink()
    assert import_run("killed", exported_files, "browsecomp_plus") == 0
    assert metrics(run) == expected
    other = write_files(working / "other-files", [browsecomp(world()[0][0], [answer("no")])])
    capsys.readouterr()
    assert import_run("killed", other, "browsecomp_plus") == 2
    assert "which holds something else" in capsys.readouterr().err
    assert metrics(run) == expected


@pytest.mark.parametrize(
    ("case", "form", "says"),
    [
        ("changed", "browsecomp_plus", "was changed after it was exported"),
        ("twice", "browsecomp_plus", "a second file of question"),
        ("other questions", "browsecomp_plus", "none of the 1 questions"),
        ("obfuscated", "browsecomp_plus", "is obfuscated"),
        ("obfuscated", "browsecomp_plus canary_env=WRONG", "does not decrypt"),
        ("obfuscated", "browsecomp_plus canary_env=NONE", "not set"),
        *[
            (case, form, "")
            for case in ("cut", "bytes")
            for form in ("browsecomp_plus", "pi_serini")
        ],
    ],
)
def test_a_refused_import_ends_in_one_line_and_leaves_no_run(
    working, case, form, says, capsys, monkeypatch
):
    monkeypatch.setenv("WRONG", "another canary")
    qids, _ = world()
    good = browsecomp(qids[1], [answer("no")])
    if case == "changed":
        place = exported(working, "browsecomp_plus")
        path, *_ = sorted(place.iterdir())
        content = read_json(path)
        content["retrieved_docids"] += ["another"]
        path.write_text(json.dumps(content), encoding="utf-8")
    else:
        sealed = said(Canary("a canary").encrypt("Exact Answer: no" + " and more" * 9))
        files = {
            "twice": [good, good],
            "other questions": [browsecomp("831", [answer("no")])],
            "obfuscated": [browsecomp(qids[0], [sealed])],
        }
        shutil.rmtree(working / "refused", ignore_errors=True)
        place = write_files(working / "refused", files.get(case, [good]))
    if case in ("cut", "bytes"):
        content = json.dumps(browsecomp(qids[0], [search("q", ["x"]), answer("no")])).encode()
        (place / "z.json").write_bytes(content[:200] if case == "cut" else b"\xff\xfe{}")
    capsys.readouterr()
    assert import_run("refused", place, *form.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("soundingline: ") and says in line
    assert not Path("runs/refused").exists() and not list(Path("runs").glob(".refused*"))


def test_a_run_of_a_sealed_benchmark_is_sealed_when_it_comes_in_and_told_when_it_goes_out(
    working, monkeypatch, capsys
):
    monkeypatch.setenv("SOUNDINGLINE_CANARY", "canary of this test")
    place = working / "secret"
    place.mkdir()
    row = {"query_id": "1", "query": "who wove the quilt", "answer": "Wilhelmina"}
    documents = [{"docid": "12", "text": "Wilhelmina wove the quilt", "url": ""}]
    (place / "rows.jsonl").write_text(
        json.dumps({**row, "evidence_docs": documents, "gold_docs": documents}), encoding="utf-8"
    )
    (place / "corpus.jsonl").write_text(json.dumps(documents[0]), encoding="utf-8")
    benchmark = (
        "benchmark=browsecomp_plus",
        f"benchmark.questions={place / 'rows.jsonl'}",
        f"benchmark.corpus={place / 'corpus.jsonl'}",
        "benchmark.obfuscated=false",
    )
    content = browsecomp("1", [search("quilt weaver", ["12"]), answer("Wilhelmina")])
    files = write_files(working / "plain", [content])
    words = ("format=browsecomp_plus", "name=secret", *benchmark)
    assert run_entry("import", str(files), *words) == 0
    held = [path.read_bytes() for path in Path("runs/secret").rglob("*") if path.is_file()]
    assert held
    assert not any(b"Wilhelmina" in data or b"quilt" in data for data in held)
    capsys.readouterr()
    out = working / "told"
    assert run_entry("export", "runs/secret", "format=browsecomp_plus", f"out={out}") == 0
    assert "sealed benchmark" in capsys.readouterr().err
    assert "Wilhelmina" in (out / "run_1.json").read_text(encoding="utf-8")


def test_a_replay_through_the_recorded_pipeline_changes_nothing(working, capsys):
    assert run_entry("replay", "runs/demo", "name=again") == 0
    assert "(100.0%) before the first changed page" in capsys.readouterr().err
    assert run_entry("replay", "runs/demo", "name=again", "retriever=bm25_tuned") == 0
    cells = {path.name: metrics(path) for path in Path("runs/again").iterdir() if path.is_dir()}
    assert len(cells) == 3
    recorded = cells.pop("recorded")
    same, other = sorted(cells.values(), key=lambda cell: -cell["unchanged_calls"])
    assert same["unchanged_calls"] == same["overlap@10"] == 1
    assert same["evidence_moved"] == 0
    ours = metrics(working / "runs/demo")
    for name in ("recall_surfaced", "recall_previewed", "recall_opened", "tokens_exposed"):
        assert recorded[name] == same[name] == same[f"{name}_unchanged"] == ours[name]
    assert other["unchanged_calls"] < 1
    assert other["recall_previewed_unchanged"] <= other["recall_previewed"]
    verdicts = read_json(working / "runs/again/verdicts.json")
    assert {row["b"] for row in verdicts} == {"recorded"}
    assert "first_evidence_call" in {row["measure"] for row in verdicts}


def test_a_replay_counts_recorded_queries_with_operators(working, capsys):
    """Four queries: two with a phrase, one of these also with an exclusion."""
    queries = ['"tide mill" town -river', '"tide mill" 1900', "tide mill - town", 'town "mill']
    document, *_ = read_json(Path("runs/demo/queries/q1.json"))["calls"][0]["ranking"]
    steps = [search(query, [document.partition("%")[0]]) for query in queries]
    halves = {"q1": steps[:2], "q2": steps[2:]}
    contents = [browsecomp(qid, [*half, answer("none")]) for qid, half in halves.items()]
    files = write_files(working / "operators", contents)
    assert import_run("operators", files, "browsecomp_plus") == 0
    capsys.readouterr()
    chosen = ("+retriever.operators=phrases", "name=operators-again")
    assert run_entry("replay", "runs/operators", *chosen) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "4 recorded queries: 50.0% with a quoted phrase, 25.0% with an exclusion" in told
    verdicts = read_json(Path("runs/operators-again/verdicts.json"))
    assert {row["b"] for row in verdicts} == {"recorded"}


def test_a_replay_of_several_questions_at_once_writes_the_same_files(working):
    written = []
    for count in (1, 3):
        words = (f"name=at-once-{count}", f"concurrency={count}", "retriever=bm25_tuned")
        assert run_entry("replay", "runs/demo", *words) == 0
        root = working / f"runs/at-once-{count}"
        paths = [path for path in root.glob("*/**/*") if path.is_file()]
        contents = {str(path.relative_to(root)): path.read_bytes() for path in paths}
        # A manifest holds the setting itself.
        written.append({k: v for k, v in contents.items() if Path(k).name != "manifest.json"})
    one, three = written
    assert {Path(name).name for name in one} >= {"metrics.json", "replay.json", "run.trec"}
    assert one == three


def test_a_replay_takes_the_texts_of_the_recorded_tool_too(working, capsys):
    json = ("tool=top_k", "tool.query_argument=user_query", "tool.output=json")
    assert run_entry("run", "name=words", *BENCHMARK, *json) == 0
    assert run_entry("replay", "runs/words", "name=words-again") == 0
    assert "(100.0%) before the first changed page" in capsys.readouterr().err
    (cell,) = (path for path in Path("runs/words-again").glob("*top_k*") if path.is_dir())
    assert metrics(cell)["search_calls"] == metrics(Path("runs/words"))["search_calls"] > 0


def test_replays_with_different_scorers_are_different_cells(working):
    world = (*TINY, "benchmark.questions=sets:2", "agent=navigator", "agent.pool=6")
    assert run_entry("run", "name=scored", *world) == 0
    Path("scores.jsonl").write_text("", encoding="utf-8")
    assert run_entry("replay", "runs/scored", "name=scored-again") == 0
    of_file = ("scorer=file", "scorer.path=scores.jsonl")
    assert run_entry("replay", "runs/scored", "name=scored-again", *of_file) == 0
    cells = [path.parent for path in Path("runs/scored-again").glob("*/replay.json")]
    manifests = [read_json(cell / "manifest.json") for cell in cells]
    assert sorted(row["factors"]["scorer"] for row in manifests) == ["file", "overlap"]
    targets = {row["factors"]["scorer"]: row["config"]["scorer"]["_target_"] for row in manifests}
    assert targets["file"] == "soundingline.pipelines.requirements.scorers.FileScorer"
    assert targets["overlap"] == "soundingline.agents.literature.OverlapScorer"


def test_no_value_of_a_manifest_reaches_the_environment(working, monkeypatch):
    monkeypatch.setenv("SECRET", "json")
    config = {"tool": {"output": "${oc.env:SECRET}", "query_argument": "user_query"}}
    manifest = {"factors": {"tool": "top_k"}, "config": config}
    tool = with_tool(Settings.compose(), manifest).config.tool
    assert (tool.output, tool.query_argument) == ("text", "user_query")


def test_triplets_of_a_question_are_those_found_by_hand():
    calls = [
        RecordedCall(
            "search", {"query": "mill"}, "", ranking=("a%p0", "b", "c", "d"), shown=("a%p0", "b")
        ),
        RecordedCall("search", {"query": "town"}, "", ranking=("e", "b"), shown=("e", "b")),
        # A later page of the first ranking; d is listed there without an excerpt.
        RecordedCall("read_search_results", {"search_id": "s1"}, "", shown=("c", "d")),
        RecordedCall("search", {"query": "refused"}, "", error="empty", shown=("a", "b")),
        RecordedCall("read_document", {"docid": "a"}, "", shown=("a",)),
        RecordedCall("read_document", {"docid": "e"}, "", shown=("e",)),
    ]
    tiers = {
        "surfaced": ("a", "b", "c", "d", "e"),
        "previewed": ("a", "b", "e", "c"),
        "opened": ("a", "e"),
        "cited": ("a",),
    }
    found = list(triplets(Trajectory("q", "?", "completed", calls=calls, tiers=tiers)))
    # e was opened and not cited: it is neither, and the second query has no positive.
    assert found == [("mill", "a", "b"), ("mill", "a", "c")]


@pytest.mark.slow
def test_a_retriever_takes_a_step_of_training_from_a_run(working, tmp_path):
    pytest.importorskip("sentence_transformers", reason="needs the extra [learned]")
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from support.checkpoints import save_sentence_model

    (path,) = exported(working, "training").iterdir()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(list(row) == ["anchor", "positive", "negative"] for row in rows)
    assert all(row["positive"] != row["negative"] for row in rows)
    model = SentenceTransformer(str(save_sentence_model(tmp_path / "model")), device="cpu").train()
    ranking_loss = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    # The step on all triplets lowers their loss; without dropout both values are of one function.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    losses = []
    for _ in range(2):
        columns = [model.tokenize([row[name] for row in rows[:8]]) for name in rows[0]]
        loss = ranking_loss(columns, labels=None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


IDS = ("12", "34", "56")
CORPUS = "".join(f'{{"_id": "{docid}", "text": "text of {docid}"}}\n' for docid in IDS)
QUERIES = "".join(f'{{"_id": "{qid}", "text": "q", "answers": ["Ada"]}}\n' for qid in "1234")
QRELS = "query-id\tcorpus-id\tscore\n" + "".join(f"{qid}\t12\t1\n" for qid in "1234")
WRONG = [search("q", ["34"]), answer("Grace")]
FAILED = call("search", {"query": "x"}, "Error executing search: the server is gone")
PAGE = call("search", {"query": "q"}, "1. docid=12 score=1.0000\n   Excerpt: words")
PI_ITEMS = [PAGE, answer("Ada", citing="[12]")]
PI_TIERS = {"surfaced_docids": ["12"], "previewed_docids": ["12"]}


def good(qid, before=(), after=(), **changed):
    """A file without faults but for what is `changed`, and items at its beginning and end."""
    items = [search("q", ["12", "34"]), answer("Ada", citing="[12]")]
    content = browsecomp(qid, items, **changed)
    content["result"] = [*before, *content["result"], *after]
    return content


def listed(qid, docids, retrieved):
    items = [search("q", docids), answer("Ada")]
    return browsecomp(qid, items, **({"retrieved_docids": retrieved} if retrieved else {}))


# Files, and by fault the beginning of its number and places, and the figures that change.
CASES = {
    "clean files": ("browsecomp_plus", [good(qid) for qid in "1234"], {}),
    "pi-serini's files, known by their tiers": (
        "pi_serini",
        [pi_serini(qid, PI_ITEMS, **PI_TIERS) for qid in "1234"],
        {},
    ),
    "a harness may count failed calls or leave them out": (
        "browsecomp_plus",
        [
            good("1", [FAILED], tool_call_counts={"search": 1}),
            good("2", [FAILED], tool_call_counts={"search": 2}),
            *map(good, "34"),
        ],
        {},
    ),
    # 1 of 2 files is right, and 1 of 4 questions.
    "missing questions": (
        "browsecomp_plus",
        [good("1"), browsecomp("2", WRONG)],
        {"questions without a file": ("2 (3, 4)", {"accuracy_published": (0.5, 0.25)})},
    ),
    "several models": (
        "browsecomp_plus",
        [*map(good, "123"), browsecomp("4", WRONG, metadata={"model": "gpt-5"})],
        {
            "files of other models or settings": (
                "1 (gpt-oss-20b",
                {"accuracy_published": (0.75, 1.0)},
            )
        },
    ),
    "an answer that is not last": (
        "browsecomp_plus",
        [*map(good, "123"), good("4", after=[{"type": "reasoning", "output": ["on"]}])],
        {
            "answers that are not the last item": (
                "1 (",
                {"accuracy_published": (0.75, 1.0)},
            )
        },
    ),
    # Incomplete files, lost outputs and empty answers change no figure by themselves.
    "what changes no figure": (
        "browsecomp_plus",
        [
            good("1", status="incomplete"),
            good("2", [call("search", {"query": "gone"}, None)], tool_call_counts={"search": 1}),
            browsecomp("3", [search("q", ["12"]), said("")]),
            good("4"),
        ],
        {},
    ),
    # Question 1 lists no evidence, question 2 passages of it: 2 of 4 are retrieved as published.
    "retrieved ids that contradict the outputs and the corpus": (
        "browsecomp_plus",
        [
            good("1", retrieved_docids=["34"]),
            listed("2", ["12_3", "34_0"], ["12_3", "34_0"]),
            listed("3", ["12", "99"], None),
            good("4"),
        ],
        {
            "retrieved_docids that contradict the calls": (
                "2 (",
                {"recall_published": (0.5, 1.0)},
            ),
            "retrieved_docids that name passages": (
                "1 (",
                {"recall_published": (0.5, 0.75)},
            ),
        },
    ),
    # The evaluator reads 56, 12 and 3 in the first answer, of which 12 is right: a third, and a
    # half without 56. The other three answers cite what is right.
    "citations that were never shown": (
        "browsecomp_plus",
        [
            browsecomp("1", [search("q", ["12"]), answer("Ada", citing="[56] and [12_3]")]),
            *map(good, "234"),
        ],
        {
            "citations of ids that were never shown": (
                "1 (",
                {"citation_precision_published": (0.8333, 0.875)},
            )
        },
    ),
    # Nine searches and three times one are three a question.
    "counts that contradict the calls": (
        "browsecomp_plus",
        [good("1"), good("2", tool_call_counts={"search": 9}), *map(good, "34")],
        {
            "tool_call_counts that contradict the calls": (
                "1 (",
                {"search_calls_published": (3.0, 1.0)},
            )
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_import_warns_of_each_fault_that_changes_a_published_figure(
    case, tmp_path, monkeypatch, capsys
):
    form, files, expected = CASES[case]
    monkeypatch.chdir(tmp_path)
    world = write_beir(tmp_path / "world", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    words = (f"format={form}", "name=x", "benchmark=beir", f"benchmark.path={world}")
    assert run_entry("import", str(write_files(tmp_path / "files", files)), *words) == 0
    printed = re.findall(
        r"^soundingline: (.*?): (.*), with which (.*)$", capsys.readouterr().err, re.M
    )
    assert [fault for fault, _, _ in printed] == list(expected)
    published = metrics(tmp_path / "runs" / "x")
    for fault, places, effect in printed:
        beginning, changes = expected[fault]
        assert places.startswith(beginning)
        figures = {
            name: (float(a), float(b))
            for name, a, b in re.findall(r"(\w+) is ([\d.]+), not ([\d.]+)", effect)
        }
        assert changes.items() <= figures.items()
        for name, (before, _) in figures.items():
            assert published[name] == pytest.approx(before, abs=5e-5)
