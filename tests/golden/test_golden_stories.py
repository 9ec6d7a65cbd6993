"""The golden gate: commands that follow each other, runs that are interrupted, and runs that must
be equal.

Where two runs must be equal, the golden file holds one of them and the values in which the other
differs.
"""

import html
import re
import shutil
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from golden_store import differing, hashed, plain, read_json, rows
from golden_workplace import WORLDS, check, json_lines, reply, skip_without
from support.benchmarks import sealed_row, write_jsonl
from support.commands import CommandProcess
from support.llm_server import Fail
from test_golden_runs import (
    CHAINS,
    CLIENT,
    ENRICHMENT_LLM,
    MAXP,
    MODEL,
    PASSAGES,
    PRICED,
    SETS,
    TEST,
)

JUDGE_LLM = MODEL.replace("{group}", "llm@judge_llm").replace("{key}", "judge_llm")
LIBRARIAN_LLM = MODEL.replace("{group}", "llm@librarian_llm").replace("{key}", "librarian_llm")
CANARY = "a canary of the golden gate"
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.+Z-]+)?")


def text_of(path):
    """The lines of a file or of an output, without dates."""
    return lines_of(path.read_text(encoding="utf-8"))


def lines_of(text):
    """The lines but for those of Hydra, which tell the time, and names of classes."""
    lines = (line.rstrip() for line in _DATE.sub("<date>", text).splitlines())
    return [line for line in lines if "[HYDRA]" not in line and "_target_" not in line]


def twin(expected, received):
    """The values in which the second of two runs differs, by path; empty where they are equal."""
    return {each.path: [each.expected, each.received] for each in differing(expected, received)}


# Questions that ask for documents.

NAVIGATOR = (
    f"{SETS} benchmark.limit=2 agent=navigator scorer=chat agent.rounds=3 agent.pool=4"
    f" agent.listed=8 agent.ordered=4 reranker@list_reranker=listwise {PRICED} {LIBRARIAN_LLM}"
    " librarian_llm.price.input=1 librarian_llm.price.output=2"
)


def test_a_navigator_with_librarians_and_one_that_was_stopped(workplace):
    skip_without(CLIENT)
    workplace.run("run", "navigator", NAVIGATOR)
    content = workplace.recorded("navigator")
    content["requests"] = _some_in_full(workplace.requests())

    failed = []

    def stopping(request):
        """The key is refused once, at the second plan of the second question."""
        prompt = str(request.body["messages"][-1]["content"])
        if not failed and "Round 2 of" in prompt and "settlement" in prompt:
            failed.append(request)
            return Fail(401, "the key is wrong")
        return reply(request)

    workplace.reset()
    workplace.server.default = stopping
    stopped = workplace.run("run", "stopped", NAVIGATOR, code=2)
    files = sorted(path.name for path in Path("runs/stopped/queries").iterdir())
    assert "the key is wrong" in stopped.err
    workplace.run("run", "stopped", NAVIGATOR)
    resumed = workplace.recorded("stopped")
    compared = ("trajectories", "metrics", "ledger")
    content["stopped and resumed"] = {
        "files when it stopped": files,
        **{key: hashed(twin(content[key], resumed[key])) for key in compared},
    }
    workplace.run("calibrate", "", "runs/navigator out=calibration.json")
    fitted = read_json(Path("calibration.json"))
    content["calibration"] = plain({key: fitted[key] for key in ("method", "x", "y", "pairs")})
    workplace.run("export", "", "runs/navigator format=judgements out=judgements")
    content["judgements"] = [rows(path) for path in Path("judgements").iterdir()]
    check("navigator", content, workplace.places)


def _some_in_full(requests, full=4):
    """Requests that are long and alike: the first and the last ones in full."""
    return [
        each if place < full or place >= len(requests) - full else hashed(each)
        for place, each in enumerate(requests)
    ]


def test_an_index_is_built_by_a_command_of_its_own(workplace):
    text = f"{CHAINS} unit=passage unit.max_tokens=80 engine.analyzer=english_unstemmed"
    first, second = (workplace.run("index", "", text) for _ in range(2))
    content = {"first": lines_of(first.out), "second": lines_of(second.out)}
    check("index", content, workplace.places)


# Enrichment by a model, which is prepared by a command of its own.


def test_a_corpus_that_a_model_enriches(workplace):
    skip_without(CLIENT)
    sira = f"{TEST} enrichment=sira {ENRICHMENT_LLM} enrichment.corpus.max_characters=600"
    sira += " enrichment.query_filter.tau=0.3 enrichment.corpus_filter.tau=0.3"
    refused = workplace.run("rank", "sira", sira, code=2)
    enriched = workplace.run("enrich", "sira_corpus", f"{sira} paths.caches=caches/sira")
    workplace.run("rank", "sira", sira)
    content = {
        "before": lines_of(refused.err),
        "out": [line for line in lines_of(enriched.out) if "second" not in line],
        "requests": _some_in_full(workplace.requests()),
        "ranked": workplace.recorded("sira"),
    }
    check("sira", content, workplace.places)


# Tuning.


def _tuning(folder):
    return {
        "cells": text_of(folder / "points.csv"),
        "chosen": text_of(folder / "chosen.yaml"),
        "report": _without_settings(text_of(folder / "report.md")),
    }


def _without_settings(lines):
    """A report without the table of all settings, which holds names of classes and versions."""
    tables = ("### All settings", "### Settings that all")
    return lines[: next(n for n, line in enumerate(lines) if line.startswith(tables))]


def test_a_tuning_by_cross_validation_and_what_it_chose(workplace):
    tuning = (
        f"{CHAINS} {PASSAGES} grid.name=range grid.k1=0.5:3:0.5 grid.b=0:1:0.25 tuning.select=null"
        " tuning.folds=3 tuning.objective=AP"
    )
    workplace.run("tune", "folds", tuning)
    content = {**workplace.recorded("folds"), **_tuning(Path("runs/folds"))}
    chosen = f"{CHAINS} {PASSAGES} retriever=bm25_from_tuning retriever.source=runs/folds"
    workplace.run("rank", "chosen", chosen)
    content["ranked"] = workplace.recorded("chosen")
    check("tune_folds", content, workplace.places)


def test_a_tuning_of_an_enrichment(workplace):
    tuning = (
        f"{TEST} grid=sira grid.k1=[0.9,3] grid.b=[0.4,0.75] grid.weight=[0,0.5,2]"
        " grid.tau=[0.1,0.5] enrichment=feedback tuning.references=[[0.9,0.4],[3,0.4,0,0.1]]"
    )
    workplace.run("tune", "tune_sira", tuning)
    content = {**workplace.recorded("tune_sira"), **_tuning(Path("runs/tune_sira"))}
    check("tune_sira", content, workplace.places)


# A judge with a model, and repeated questions.


def test_repeated_questions_and_a_judge_with_a_model(workplace):
    skip_without(CLIENT)
    text = (
        f"{CHAINS} benchmark.limit=3 agent=pi_serini {PRICED} llm.settings.seed=7 repeats=2"
        f" judge=llm {JUDGE_LLM} judge_llm.price.input=1 judge_llm.price.output=1"
    )
    workplace.run("run", "judged", text)
    agreement = workplace.run("judge", "", "runs/judged")
    content = workplace.recorded("judged")
    content["requests of the judge"] = [
        each for each in workplace.requests() if len(each["messages"]) == 1
    ]
    content["agreement, on the terminal"] = lines_of(agreement.out)
    check("judged_repeats", content, workplace.places)


# Runs that must be equal.


def test_a_run_that_was_killed_goes_on_to_the_same_end(workplace):
    skip_without(CLIENT)
    text = f"{CHAINS} benchmark.limit=3 agent=pi_serini {PRICED}"
    workplace.run("run", "undisturbed", text)
    content = workplace.recorded("undisturbed")
    processes = []

    def killing(request):
        """The process dies while its eighth request waits for a reply."""
        if len(workplace.server.requests) == 8:
            until = time.monotonic() + 60
            while not processes and time.monotonic() < until:
                time.sleep(0.01)
            processes[0].kill()
        return reply(request)

    workplace.reset()
    workplace.server.default = killing
    arguments = workplace.arguments("killed", text)
    processes.append(CommandProcess("run", *arguments))
    assert processes[0].wait().returncode == -9
    files = sorted(path.name for path in Path("runs/killed/queries").glob("[!.]*"))
    workplace.reset()
    workplace.run("run", "killed", text)
    killed = workplace.recorded("killed")
    differences = {key: twin(content[key], killed[key]) for key in content if key != "ledger"}
    stored = {
        "undisturbed": content,
        "files after the kill": files,
        "killed and resumed": {key: value for key, value in differences.items() if value},
        "ledger": killed["ledger"],
    }
    check("killed", stored, workplace.places)


def test_an_obfuscated_run_is_equal_to_its_plain_twin(workplace, monkeypatch):
    monkeypatch.setenv("SOUNDINGLINE_CANARY", CANARY)
    folder = _published(workplace)
    benchmark = (
        f"benchmark=browsecomp_plus benchmark.questions={folder}/questions"
        f" benchmark.corpus={folder}/corpus benchmark.limit=2 traces=false"
    )
    exports = {}
    for name, sealed in (("obfuscated", "true"), ("plain", "false")):
        workplace.run("run", name, f"{benchmark} {MAXP} sealed={sealed} agent.max_searches=2")
        workplace.run("export", "", f"runs/{name} format=browsecomp_plus out=export-{name}")
        exports[name] = {
            path.name: _comparable(read_json(path))
            for path in sorted(Path(f"export-{name}").iterdir())
        }
    assert exports["plain"] and "person" not in Path("runs/obfuscated/queries/q1.json").read_text()
    question = read_json(Path("runs/plain/queries/q1.json"))["question"].encode()
    holding = {
        name: [path for path in Path(f"runs/{name}").rglob("*.*") if question in path.read_bytes()]
        for name in exports
    }
    assert holding["plain"] and not holding["obfuscated"]
    content = {
        "plain": workplace.recorded("plain"),
        "obfuscated": twin(exports["plain"], exports["obfuscated"]),
        "metrics": twin(*(plain(read_json(Path(f"runs/{n}/metrics.json"))) for n in exports)),
    }
    check("obfuscated", content, workplace.places)


def _comparable(content):
    """An exported file without the names of its run and without times."""
    metadata = {
        key: value for key, value in content["metadata"].items() if key in ("model", "tools")
    }
    return plain({**content, "metadata": metadata})


def _published(workplace):
    """The stored world in BrowseComp-Plus's published form, its questions obfuscated."""
    documents = {
        row["_id"]: {"docid": row["_id"], "text": f"{row['title']}\n{row['text']}", "url": ""}
        for row in json_lines(WORLDS["world"] / "corpus.jsonl")
    }
    judged = {}
    for path in sorted((WORLDS["world"] / "qrels").iterdir()):
        for line in path.read_text().splitlines()[1:]:
            qid, docid, _ = line.split()
            judged.setdefault(qid, []).append(docid)
    questions = []
    for row in workplace.questions("world"):
        evidence = [documents[docid] for docid in judged[row["_id"]]]
        texts = {"query": row["text"], "answer": row["answers"][0], "evidence_docs": evidence}
        texts |= {"gold_docs": evidence[-1:], "negative_docs": [documents["d00"]]}
        questions.append(sealed_row({"query_id": row["_id"], **texts}, CANARY))
    folder = workplace.folder / "published"
    write_jsonl(folder / "questions" / "rows.jsonl", questions)
    write_jsonl(folder / "corpus" / "rows.jsonl", list(documents.values()))
    return folder


# Exchange.


def test_a_run_goes_out_in_five_formats_and_comes_back(workplace):
    text = f"{TEST} benchmark.limit=2 {MAXP} agent.max_searches=2"
    workplace.run("run", "out", text)
    ours = workplace.recorded("out")
    content = {}
    for form in ("browsecomp_plus", "leaderboard", "trec", "inspect", "inspect_json"):
        out = Path(f"out-{form}")
        workplace.run("export", "", f"runs/out format={form} out={out}")
        content[form] = {_name(path): _file(path) for path in out.iterdir()}
    for form in ("browsecomp_plus", "inspect"):
        back = f"back-{form}"
        benchmark = "benchmark=beir benchmark.path={world} benchmark.limit=2"
        imported = workplace.run("import", back, f"out-{form} format={form} {benchmark}")
        content[f"{form}, imported"] = {
            "differences": _without(twin(ours, workplace.recorded(back)), "factors"),
            "out": lines_of(imported.out),
        }
    before = workplace.recorded("out")
    shutil.rmtree("runs/out/evaluation")
    Path("runs/out/metrics.json").unlink()
    evaluated = workplace.run("evaluate", "", "runs/out")
    content["evaluate"] = {
        "differences": twin(before, workplace.recorded("out")),
        "out": lines_of(evaluated.out),
    }
    check("exchange", content, workplace.places)


def _without(values, beginning):
    return {key: value for key, value in values.items() if not key.startswith(beginning)}


def _name(path):
    """The name of an exported file. Logs of Inspect have their time and an id of the run in it."""
    return re.sub(r"_[0-9a-f]{12}(?=\.)", "_<id>", _DATE.sub("<date>", path.name))


def _file(path):
    """The content of an exported file. Of an archive, the names of its members."""
    if path.suffix == ".eval":
        return sorted(zipfile.ZipFile(path).namelist())
    if path.suffix != ".json":
        return text_of(path)
    return _stable(plain(read_json(path)))


def _stable(value):
    """Without times, versions and random ids, which a log holds in many places."""
    if isinstance(value, Mapping):
        return {key: _stable(inner) for key, inner in value.items() if not _VARYING.fullmatch(key)}
    if isinstance(value, list):
        return [_stable(inner) for inner in value]
    return _DATE.sub("<date>", value) if isinstance(value, str) else value


_VARYING = re.compile(".*(working|time|created|version|revision|packages|commit|uuid).*")


def test_recorded_calls_go_through_another_pipeline(workplace):
    text = f"{TEST} agent.max_searches=2"
    workplace.run("run", "recorded", text)
    replayed = workplace.run("replay", "replayed", "runs/recorded retriever=bm25_tuned")
    content = {
        "cells": workplace.recorded("replayed")["cells"],
        "err": [line for line in lines_of(replayed.err) if "first changed page" in line],
        "verdicts": plain(read_json(Path("runs/replayed/verdicts.json"))),
    }
    check("replay", content, workplace.places)


# Reports.


def test_the_report_of_a_sweep_on_the_terminal_in_a_file_and_its_traces(workplace):
    text = (
        "-m benchmark=beir benchmark.path={world} benchmark.split=null traces=true"
        " unit=document,maxp retriever=bm25_default,bm25_tuned agent.max_searches=2 measures=[AP]"
    )
    swept = workplace.run("run", "demo", text)
    folder = Path("runs/demo")
    cells = {path.parent.name[:-9]: path.parent for path in folder.glob("*/metrics.json")}
    cell = cells["document-bm25_tuned"]
    content = {
        "terminal": lines_of(swept.out),
        "report": _lasting(_without_settings(text_of(folder / "report.md"))),
        "verdicts": plain(read_json(folder / "verdicts.json")),
        "traces": {name: _page(cell / "traces" / name) for name in ("index.html", "1-q1.html")},
        "files": sorted(path.name for path in (cell / "traces").glob("[!.]*")),
    }
    two = " ".join(map(str, sorted(cells.values())[:2]))
    content["compare"] = lines_of(workplace.run("compare", "two", two).out)
    check("report", content, workplace.places)


def _lasting(lines):
    """The tables without measured seconds, names of classes, and the long names of runs."""
    kept = []
    left_out = set()
    for line in lines:
        columns = line.strip("|").split(" | ")
        if line.startswith("|"):
            if not kept or not kept[-1].startswith("|"):
                left_out = {n for n, name in enumerate(columns) if _VARYING_COLUMN.search(name)}
            columns = [each for n, each in enumerate(columns) if n not in left_out]
            line = f"| {' | '.join(each.strip() for each in columns)} |"
        kept.append(line)
    return kept


_VARYING_COLUMN = re.compile(r"seconds|target|^\s*name\s*$")


_NOT_PINNED = re.compile(
    r"<!--.*?-->|<style>.*?</style>|<script>.*?</script>"  # hashes and code
    r"|<td class=\"num\">[^<]*</td>\s*</tr>|<span>[\d.,]+ s</span>|took [\d.]+ s|Started [^<]*",
    re.DOTALL,
)


def _page(path):
    """The lines of a trace without markup and times."""
    text = re.sub(r"<[^>]*>", "", _NOT_PINNED.sub("", path.read_text(encoding="utf-8")))
    return [html.unescape(line) for line in lines_of(text) if line.strip()]
