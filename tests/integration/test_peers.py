"""Other people's programs, unmodified: clients of our server; readers of our exports, which are
Inspect AI, BrowseComp-Plus's evaluator and Pi-Serini's summary; and Optuna as a sweeper.
`make test-real PART=peers` runs them.

Each program has an environment of its own, in the folder that SOUNDINGLINE_PEERS names.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.benchmarks import TINY, SmallBenchmark
from support.commands import run_entry
from support.documents import ROOT, code_blocks
from support.llm_server import Raw, Say, running_peer
from support.needs import needs_real
from support.runs import answer, browsecomp, call, search, thought, trajectory
from support.served import DOCUMENTS, serving

from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation import evaluate_run, load_run, load_runs
from soundingline.toolkit.exchange import browsecomp_plus, inspect_ai
from soundingline.toolkit.exchange.inspect_ai import sample, sample_messages
from soundingline.toolkit.exchange.transcript import Transcript, run_files, run_paths, trajectory_of
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing, TopK

PEERS = Path(os.environ.get("SOUNDINGLINE_PEERS", ""))
BROWSECOMP_PLUS = os.environ.get("SOUNDINGLINE_BROWSECOMP_PLUS", "")
CLIENTS = Path(__file__).parent / "clients"
TOP_K = TopK(k=3, max_tokens=4, get_document=True)
ANSWER = "Explanation: so [mill]\nExact Answer: Torvald Brekke\nConfidence: 90%"
STEPS = [
    ["search", {"query": "mill"}],
    ["search", {"query": "Torvald"}],
    ["search", {"query": "xyzzy"}],
    ["get_document", {"docid": "12"}],
    ["get_document", {"docid": "none"}],
]
pytestmark = needs_real("peers")


def run(*command, **options):
    """What a program prints."""
    texts = [str(part) for part in command]
    done = subprocess.run(texts, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def replied(*command, **options):
    """The last line that a client prints, as JSON."""
    return json.loads(run(*command, **options).splitlines()[-1])


def python(name):
    """The interpreter of an environment."""
    return PEERS / name / "bin" / "python"


def check_texts(texts):
    """What the tools of BrowseComp-Plus's server say to `STEPS`."""
    many, one, none, document, missing = map(json.loads, texts)
    assert [len(rows) for rows in (many, one, none)] == [3, 1, 0]
    for row in (*many, *one):
        assert set(row) == {"docid", "score", "snippet"} and row["docid"] in DOCUMENTS
        assert len(row["snippet"].split()) <= 4
    assert document == {"docid": "12", "text": DOCUMENTS["12"].text}
    assert missing is None


@pytest.mark.parametrize("kind", ["sse", "http"])
def test_fastmcp_of_browsecomp_plus(kind):
    client, steps = python("fastmcp"), json.dumps(STEPS)
    with serving(TOP_K) as server:
        result = replied(client, CLIENTS / "with_fastmcp.py", f"{server.url}/mcp", kind, steps)
    assert [tool["name"] for tool in result["tools"]] == ["search", "get_document"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in result["tools"])
    assert all(len(texts) == 1 for _, texts in result["results"])
    assert not any(failed for failed, _ in result["results"])
    check_texts([texts[0] for _, texts in result["results"]])


def browsing_steps(search_id):
    page = {"reason": "r", "search_id": search_id, "offset": 6}
    return json.dumps([["search", {"reason": "r", "query": "mill"}], ["read_search_results", page]])


def test_fastmcp_pages_through_a_ranking_of_its_connection():
    steps = browsing_steps("s1")
    with serving(RankedBrowsing()) as server:
        for kind, path in (("sse", "/mcp"), ("sse", "/sse"), ("http", "/mcp")):
            address = server.url + path
            result = replied(python("fastmcp"), CLIENTS / "with_fastmcp.py", address, kind, steps)
            (_, [first]), (_, [second]) = result["results"]
            assert "ranks 1-5 of" in first and "ranks 6-" in second


@pytest.mark.parametrize("mode", ["default", "session"])
@pytest.mark.parametrize(
    ("transport", "path"), [("streamable_http", "/mcp"), ("sse", "/sse"), ("sse", "/mcp")]
)
def test_langchain_pages_through_a_ranking(transport, path, mode):
    """In its default mode each call opens an MCP session of its own."""
    client, steps = python("langchain"), browsing_steps("<first>")
    with serving(RankedBrowsing()) as server:
        url = f"{server.url}{path}"
        result = replied(client, CLIENTS / "with_langchain.py", url, transport, mode, steps)
        left = len(server.service.sessions)
    first, second = result["texts"]
    assert "ranks 1-5 of" in first and "ranks 6-" in second
    assert left == 1
    parameters = result["tools"]["read_search_results"]
    assert parameters["required"] == ["reason", "search_id"]
    assert {each["type"] for each in parameters["properties"].values()} == {"string", "integer"}


def test_langchain_is_told_what_to_do_where_a_run_is_recorded(tmp_path):
    """A question ends with the session that got it, so that one session has to be kept."""
    client = python("langchain")
    searching = ["search", {"reason": "r", "query": "mill"}]
    steps = json.dumps([["question", {}], searching, ["submit_answer", {"answer": "Brekke"}]])
    texts = {}
    for mode in ("default", "session"):
        with serving(RankedBrowsing(), folder=RunFolder(tmp_path / mode)) as server:
            url = f"{server.url}/mcp"
            script = CLIENTS / "with_langchain.py"
            texts[mode] = replied(client, script, url, "streamable_http", mode, steps)["texts"]
    assert "call question first" in texts["default"][1]
    assert "search_id=s1 ranks 1-5" in texts["session"][1]
    ended = RunFolder(tmp_path / "session").read("q1")
    assert ended is not None and ended.answer.exact == "Brekke"


@pytest.mark.parametrize("order", ["first", "last"])
def test_openai_agents_searches_through_our_pipeline(order, tmp_path):
    client = python(f"openai-agents-{order}")
    script = CLIENTS / "with_openai_agents.py"
    assert replied(client, script, tmp_path, cwd=tmp_path) == {"answer": '["d1"]'}


def test_qwen_agent():
    with serving(TOP_K) as server:
        url = f"{server.url}/mcp"
        script = CLIENTS / "with_qwen_agent.py"
        result = replied(python("qwen"), script, url, json.dumps(STEPS))
    assert set(result["tools"]) == {"search-server-search", "search-server-get_document"}
    parameters = result["tools"]["search-server-search"]["parameters"]
    assert set(parameters) == {"type", "properties", "required"}
    assert list(parameters["properties"]) == parameters["required"] == ["query"]
    check_texts(result["results"])


@pytest.mark.skipif(not BROWSECOMP_PLUS, reason="SOUNDINGLINE_BROWSECOMP_PLUS is not set")
def test_the_client_of_browsecomp_plus_unmodified(tmp_path):
    searching = {"name": "search-server-search", "arguments": {"query": "Grenholm mill"}}
    script = Path(BROWSECOMP_PLUS) / "search_agent" / "qwen_client.py"
    with running_peer() as model, serving(TOP_K) as server:
        model.script.append(streamed(f"<tool_call>\n{json.dumps(searching)}\n</tool_call>"))
        model.default = streamed(ANSWER)
        command = [str(python("qwen")), str(script), "--query", "Who built the mill?"]
        command += ["--model", "m", "--model-server", model.openai_url]
        command += ["--mcp-url", f"{server.url}/mcp", "--output-dir", str(tmp_path / "out")]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
        )
    files = list((tmp_path / "out").glob("run_*.json"))
    assert files, done.stdout + done.stderr
    record = json.loads(files[0].read_text(encoding="utf-8"))
    assert (record["status"], record["tool_call_counts"]) == ("completed", {"search": 1})
    rows = json.loads(record["result"][0]["output"])
    assert set(record["retrieved_docids"]) == {row["docid"] for row in rows}
    assert rows[0]["docid"] == "mill" and record["result"][-1]["output"] == ANSWER


@pytest.mark.skipif(not BROWSECOMP_PLUS, reason="SOUNDINGLINE_BROWSECOMP_PLUS is not set")
def test_the_documented_searcher_is_one_of_browsecomp_plus(tmp_path):
    theirs = Path(BROWSECOMP_PLUS) / "searcher" / "searchers" / "base.py"
    ours = Path(__file__).resolve().parents[2] / "docs" / "custom_searcher.py"
    package = tmp_path / "searchers"
    package.mkdir()
    (package / "__init__.py").touch()
    for source, name in ((theirs, "base.py"), (ours, "custom_searcher.py")):
        shutil.copy(source, package / name)
    use = (
        "import argparse, json, sys\n"
        "from searchers.custom_searcher import CustomSearcher as Searcher\n"
        "parser = argparse.ArgumentParser()\n"
        "Searcher.parse_args(parser)\n"
        "s = Searcher(parser.parse_args())\n"
        "print(json.dumps([s.search('mill', 2), s.get_document('12'), s.get_document('none'),\n"
        "    s.search_type, s.search_description(2)]))\n"
    )
    with serving() as server:
        result = replied(python("qwen"), "-c", use, "--url", server.url, cwd=tmp_path)
    hits, document, missing, kind, about = result
    assert [set(hit) for hit in hits] == [{"docid", "score", "text"}] * 2
    assert document == {"docid": "12", "text": DOCUMENTS["12"].text}
    assert missing is None and kind == "soundingline" and "top-2" in about


@pytest.mark.skipif(not BROWSECOMP_PLUS, reason="SOUNDINGLINE_BROWSECOMP_PLUS is not set")
@pytest.mark.parametrize(
    ("client", "tool", "parameter"),
    [
        ("openai_client.py", "search", "query"),
        ("oss_client.py", "local_knowledge_base_retrieval", "user_query"),
    ],
)
def test_clients_of_browsecomp_plus_that_search_in_their_process(client, tool, parameter, tmp_path):
    """As they are, in a copy of their clone that has our searcher in it."""
    clone = tmp_path / "clone"
    for folder in ("searcher", "search_agent"):
        shutil.copytree(Path(BROWSECOMP_PLUS) / folder, clone / folder)
    searcher = Path(__file__).resolve().parents[2] / "docs" / "custom_searcher.py"
    shutil.copy(searcher, clone / "searcher" / "searchers")
    stand_ins(tmp_path / "stand-ins")
    queries = tmp_path / "queries.tsv"
    queries.write_text("q1\tWho built the mill?\n", encoding="utf-8")
    query = json.dumps({parameter: "Grenholm mill"})
    with running_peer() as model, serving(TOP_K) as server:
        command = [sys.executable, str(clone / "search_agent" / client), "--query", str(queries)]
        command += ["--model", "m", "--searcher-type", "custom", "--url", server.url, "--k", "2"]
        command += ["--snippet-max-tokens", "0", "--output-dir", str(tmp_path / "out")]
        model.script.append(Say(calls=[("c1", tool, query)]))
        model.default = Say(text=ANSWER)
        if client == "oss_client.py":
            command += ["--model-url", model.openai_url]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={
                **os.environ,
                "OPENAI_API_KEY": "none",
                "OPENAI_BASE_URL": model.openai_url,
                "PYTHONPATH": str(tmp_path / "stand-ins"),
            },
        )
    assert done.returncode == 0, done.stdout + done.stderr
    files = list((tmp_path / "out").glob("run_*.json"))
    assert files, done.stdout + done.stderr
    (recorded,) = browsecomp_plus.read(run_files(run_paths(tmp_path / "out")))
    assert isinstance(recorded, Transcript)
    ended = trajectory_of(recorded, "Who built the mill?")
    assert (ended.qid, ended.answer.exact) == ("q1", "Torvald Brekke")
    (call_made,) = ended.calls
    assert (call_made.name, call_made.arguments) == ("search", {parameter: "Grenholm mill"})
    rows = json.loads(call_made.output)
    assert rows[0]["docid"] == "mill" and len(rows) == 2
    assert rows[0]["snippet"] == "Mill\n" + DOCUMENTS["mill"].text
    assert set(ended.tiers["previewed"]) == {row["docid"] for row in rows}


def stand_ins(folder):
    """Empty modules for what their other searchers import, which needs a JVM or a GPU."""
    members_of = {
        "pyserini.search.lucene": ["LuceneSearcher"],
        "faiss": [],
        "datasets": ["load_dataset"],
        "tevatron.retriever.arguments": ["ModelArguments"],
        "tevatron.retriever.driver.encode": ["DenseModel"],
        "tevatron.retriever.searcher": ["FaissFlatSearcher"],
    }
    for module, members in members_of.items():
        place = folder
        for part in module.split("."):
            place /= part
            place.mkdir(parents=True, exist_ok=True)
            (place / "__init__.py").touch()
        text = "".join(f"{member} = None\n" for member in members)
        (place / "__init__.py").write_text(text, encoding="utf-8")


def streamed(text):
    """A streamed reply of a chat model."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    lines = [json.dumps({**head, "choices": [each]}) for each in (choice, end)]
    body = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
    return Raw(body, "text/event-stream")


def test_pi_serini_over_http_unmodified():
    place = PEERS / "pi-serini"
    if not (place / "node_modules").exists():
        pytest.skip("SOUNDINGLINE_PI_SERINI was not set when the environments were made")
    shutil.copy(CLIENTS / "with_pi_serini.ts", place)
    runner = place / "node_modules" / ".bin" / "tsx"
    with serving() as server:
        given = (server.url, "Grenholm mill", "mill")
        told = replied(runner, place / "with_pi_serini.ts", *given, cwd=place)
    hits = told["search"]["hits"]
    assert hits[0]["docid"] == "mill" and len(hits) == len(DOCUMENTS) - 1
    assert "Brekke" in hits[0]["snippet"] and told["search"]["hasMore"] is False
    assert told["nothing"]["hits"] == []
    read, rest = told["read"], told["rest"]
    assert (read["found"], read["truncated"], read["nextOffset"]) == (True, True, 2)
    assert (rest["text"], rest["truncated"]) == ("It is old.", False)
    assert (rest["returnedOffsetStart"], rest["returnedOffsetEnd"]) == (2, 2)
    assert (told["empty"]["found"], told["empty"]["text"]) == (True, "")
    assert (told["past"]["found"], told["past"]["text"]) == (True, "")
    assert told["missing"]["found"] is False
    assert "query" in told["blank"]["raised"]


def test_the_wrapper_of_the_page_hands_the_addresses_to_pi(tmp_path):
    """Pi-Serini's benchmark runner, with a program in the place of Pi that writes what it reads."""
    place = PEERS / "pi-serini"
    if not (place / "node_modules").exists():
        pytest.skip("SOUNDINGLINE_PI_SERINI was not set when the environments were made")
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    blocks = [block.content for block in code_blocks(page)]
    (addresses,) = (block for block in blocks if "searchUrl" in block)
    (command,) = (block for block in blocks if "run_pi_benchmark" in block)
    lines = ["#!/bin/sh", 'printf %s "$PI_SEARCH_EXTENSION_CONFIG" >seen.json']
    pi = "\n".join([*lines, """echo '{"type": "agent_end"}'"""])
    for name, text in {
        "bin/pi": pi,
        "soundingline.json": addresses,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "queries.tsv").write_text("1\tWho?\n")
    (tmp_path / "qrels.txt").write_text("1 0 d1 1\n")
    command = command.replace("npx tsx ", f"{place}/node_modules/.bin/tsx {place}/")
    command = command.replace(" ...", " --query queries.tsv --qrels qrels.txt")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    run("sh", "-ec", command, cwd=tmp_path, env={**os.environ, "PATH": path})
    assert json.loads((tmp_path / "seen.json").read_text()) == json.loads(addresses)
    assert (tmp_path / "runs" / "mine" / "1.json").is_file()


def test_the_code_of_the_quickstart_runs_in_a_notebook(tmp_path):
    """One kernel of Jupyter runs the code blocks of `docs/quickstart.md`."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    cells = [block.content for block in code_blocks(page) if block.language == "python"]
    assert any("experiment.run()" in cell for cell in cells)
    cells += ["experiment.run().counts['completed']", "experiment.evaluate().counts['completed']"]
    client = [str(python("notebook")), str(CLIENTS / "as_notebook.py"), str(ROOT)]
    done = subprocess.run(
        [*client, *filter(None, sys.path)],
        input=json.dumps(cells),
        cwd=tmp_path,
        # Jupyter keeps its files of connections below the user's own folder, unless told otherwise.
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, again, evaluated = json.loads(done.stdout)
    assert again.endswith("20") and evaluated.endswith("20")


# Exports, read by the programs that they are for.

QUESTIONS = 260


def answers():
    return {str(number): "Ada" for number in range(QUESTIONS)}


def judged():
    rng = random.Random(3)
    return {qid: dict.fromkeys(map(str, rng.sample(range(50), 3)), 1) for qid in answers()}


def trajectories(count):
    """With reasoning, failed calls, wrong answers, citations of passages, no answer at all."""
    rng = random.Random(5)
    made = []
    for number in range(count):
        docids = [str(n) for n in rng.sample(range(50), 5)]
        items = [thought(f"thought {number}"), search(f"query {number}", docids)]
        items += [call("search", {"query": ""}, "Error executing search: empty")] * (number % 3)
        exact = rng.choice(["Ada", "Grace"])
        cited = f"[{docids[0]}] [{docids[1]}_3] 【{docids[2]}†L1】" if number % 5 else ""
        items += [answer(exact, f"{rng.random() * 100:.4f}%", cited)] if number % 11 else []
        usage = {"input_tokens": 90, "input_tokens_cached": 40, "output_tokens": 10}
        status = "completed" if number % 11 else "incomplete"
        content = browsecomp(str(number), items, usage=usage, status=status)
        made.append(trajectory(content))
    return made


def write_log(folder, form, rows):
    """A log of the trajectories, under the name that an export gives it."""
    head = inspect_ai.header(
        "a_run",
        created="2026-01-01T00:00:00+00:00",
        identity="x",
        benchmark="b",
        model="m",
        factors={},
        versions={},
        means={"accuracy": 0.25},
        sample_ids=[row.qid for row in rows],
    )
    samples = (sample(row, model="m", target=["Ada"], scores=right(row)) for row in rows)
    path = folder / inspect_ai.log_name(head, form)
    inspect_ai.write(path, head, samples)
    return path


def right(row):
    return {"accuracy": float(row.answer.exact == "Ada")}


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspect_reads_every_message_call_and_score_of_a_hundred_questions(tmp_path, form):
    rows = trajectories(100)
    path = write_log(tmp_path, form, rows)
    content = replied(python("inspect"), CLIENTS / "with_inspect.py", "read", path)
    assert content["status"] == "success"
    assert content["means"] == {"accuracy": 0.25}
    seen = {row["id"]: row for row in content["samples"]}
    assert sorted(seen) == sorted(row.qid for row in rows)
    for row in rows:
        theirs = seen[row.qid]
        assert [role for role, _ in theirs["messages"]] == [m["role"] for m in row.messages]
        assert [text for _, text in theirs["messages"]] == [
            str(message["content"]) for message in row.messages
        ]
        assert theirs["calls"] == [
            [record.name, dict(record.arguments), record.output, bool(record.error)]
            for record in row.calls
        ]
        places = [n for n, m in enumerate(sample_messages(row)) if m["role"] == "assistant"]
        assert theirs["sent"] == places  # each reply was sent all that stands before it
        assert theirs["scores"] == right(row)
        assert theirs["tokens"] == {"none/m": 100}


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspect_lists_a_folder_with_our_log_and_reads_its_samples_one_at_a_time(tmp_path, form):
    rows = trajectories(10)
    write_log(tmp_path, form, rows)
    (log,) = json.loads(run(python("inspect"), CLIENTS / "with_inspect.py", "list", tmp_path))
    assert (log["task"], log["task_id"], log["header"]) == ("a-run", "x", "x")
    assert log["ids"] == [row.qid for row in rows]


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspect_scores_our_log_and_the_scored_log_is_the_same_run(tmp_path, form):
    rows = trajectories(20)
    path = write_log(tmp_path, form, rows)
    command = python("inspect").parent / "inspect"
    scorer = CLIENTS / "inspect_scorer.py"
    for way in ([], ["--stream"]):
        flags = ["--scorer", scorer, "--action", "append", "--overwrite", *way]
        run(command, "score", path, *flags)
    content = json.loads(run(python("inspect"), CLIENTS / "with_inspect.py", "scores", path))
    share = sum("Ada" in str(row.messages[-1]["content"]) for row in rows) / len(rows)
    assert 0 < share < 1
    names = ("holds_the_answer", "holds_the_answer1")
    assert content == {"accuracy": 0.25, **dict.fromkeys(names, pytest.approx(share))}
    assert {row.qid: row for row in inspect_ai.read(path)} == {row.qid: row for row in rows}


def test_inspect_bundles_our_logs_for_its_viewer(tmp_path):
    (tmp_path / "logs").mkdir()
    paths = [write_log(tmp_path / "logs", form, trajectories(3)) for form in ("eval", "json")]
    command = python("inspect").parent / "inspect"
    out = tmp_path / "bundle"
    run(command, "view", "bundle", "--log-dir", tmp_path / "logs", "--output-dir", out)
    listing = json.loads((out / "logs" / "listing.json").read_text(encoding="utf-8"))
    assert set(listing) == {path.name for path in paths}


def test_a_log_that_inspect_wrote_is_read(tmp_path):
    pytest.importorskip("zstandard")
    path = tmp_path / "theirs.eval"
    run(python("inspect"), CLIENTS / "with_inspect.py", "write", path)
    (recorded,) = inspect_ai.read(path)
    assert isinstance(recorded, Transcript)
    ended = trajectory_of(recorded, "question")
    assert ended.tiers["previewed"] == ("12",)
    assert ended.answer.exact == "Ada"
    assert ended.usage["input_tokens"] == 8


@pytest.mark.skipif(not BROWSECOMP_PLUS, reason="SOUNDINGLINE_BROWSECOMP_PLUS is not set")
def test_browsecomp_pluss_evaluator_gives_our_published_figures_on_an_export(
    tmp_path,
):
    """Their script as it is; only the judge's model is scripted."""
    rows = trajectories(QUESTIONS - 20)
    runs = tmp_path / "exported"
    runs.mkdir()
    for row in rows:
        content = browsecomp_plus.write(row, {"model": "m"})
        (runs / f"run_{row.qid}.json").write_text(json.dumps(content), encoding="utf-8")
    truth = [
        json.dumps({"query_id": qid, "query": "question?", "answer": text})
        for qid, text in answers().items()
    ]
    (tmp_path / "truth.jsonl").write_text("\n".join(truth), encoding="utf-8")
    qrels = [f"{q} 0 {docid} 1" for q, docids in judged().items() for docid in docids]
    (tmp_path / "qrels.txt").write_text("\n".join(qrels), encoding="utf-8")
    script = Path(BROWSECOMP_PLUS).resolve() / "scripts_evaluation" / "evaluate_run.py"
    flags = ["--input_dir", runs, "--ground_truth", tmp_path / "truth.jsonl"]
    flags += ["--qrel_evidence", tmp_path / "qrels.txt", "--eval_dir", tmp_path / "evals"]
    run(
        sys.executable,
        script,
        *flags,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CLIENTS / "evaluator")},
    )
    (summary,) = tmp_path.rglob("evaluation_summary.json")
    theirs = json.loads(summary.read_text(encoding="utf-8"))
    accepted = {qid: [text] for qid, text in answers().items()}
    topics = [Topic(qid, "question?") for qid in answers()]
    evaluation = evaluate_run(rows, SmallBenchmark(topics, {"evidence": judged()}, accepted))
    right = {row.qid: row.correct for row in evaluation.verdicts}
    ours = browsecomp_plus.leaderboard_entry(
        rows, right, accepted, judged(), llm="m", retriever="r", date="2026-01-01"
    )
    assert list(ours) == list(theirs)
    for name in ("LLM", "Accuracy (%)", "Recall (%)", "avg_tool_stats", "Calibration Error (%)"):
        assert ours[name] == pytest.approx(theirs[name]), name
    by_qid = {row["query_id"]: row for row in theirs["per_query_metrics"]}
    assert {row["query_id"]: row for row in ours["per_query_metrics"]} == by_qid


def test_pi_serinis_summary_reads_an_export(tmp_path, monkeypatch):
    """Its tiers and counts are those of the run's evaluation."""
    place = PEERS / "pi-serini"
    if not (place / "node_modules").exists():
        pytest.skip("SOUNDINGLINE_PI_SERINI was not set when the environments were made")
    monkeypatch.chdir(tmp_path)
    assert run_entry("run", *TINY, "name=mine") == 0
    assert run_entry("export", "runs/mine", "format=pi_serini", "out=exported") == 0
    qrels = [tmp_path / "exported" / f"qrels_{tier}.txt" for tier in ("evidence", "gold")]
    printed = run(
        place / "node_modules" / ".bin" / "tsx",
        *(place / "src" / "evaluation" / "summarize_run.ts", "--runDir", tmp_path / "exported"),
        *("--qrels", qrels[0], "--secondaryQrels", qrels[1]),
        cwd=place,
    )
    lines = dict(line.split(": ", 1) for line in printed.splitlines())
    ours = load_run("runs/mine").metrics
    assert lines["Processed queries"] == "6" and lines["Status counts"] == "completed=6"
    for theirs, tier in (("system-surfaced", "surfaced"), ("agent-previewed", "previewed")):
        recall = float(lines[f"Macro recall ({theirs}, evidence)"])
        assert recall == pytest.approx(ours[f"recall_{tier}"], abs=5e-5)
    behavior = float(lines["Macro recall (agent-behavior, evidence)"])
    assert behavior >= round(max(ours["recall_opened"], ours["recall_cited"]), 4) > 0
    calls = dict(word.split("=") for word in lines["Tool calls"].split())
    assert int(calls["total"]) == round(6 * ours["tool_calls"])
    assert int(calls["search"]) == round(6 * ours["search_calls"])


def test_optuna_optimises_what_a_ranking_returns(tmp_path):
    """Its study is kept in a database, and its second start continues it."""
    command = [python("optuna"), "-m", "soundingline.experiments", "rank", *TINY, "name=s"]
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "optimised.yaml").write_text(OPTIMISED)
    for start in (1, 2):
        run(*command, "--config-dir", "own", "experiment=optimised", cwd=tmp_path)
        values = [
            cell.metrics["R@100"]
            for cell in load_runs(
                sorted(path.parent for path in tmp_path.glob("runs/s/*/metrics.json"))
            )
        ]
        assert len(values) == 2 * start
        found = yaml.safe_load((tmp_path / "runs/s/optimization_results.yaml").read_text())
        assert found["best_value"] == max(values)


OPTIMISED = """\
# @package _global_
# The depth with the best recall.
defaults:
  - override /hydra/sweeper: optuna
optimized_metric: R@100
hydra:
  mode: MULTIRUN
  sweeper:
    direction: maximize
    n_trials: 2
    n_jobs: 1
    study_name: depth
    storage: sqlite:///study.db
    params:
      retriever.depth: range(1, 1000)
"""
