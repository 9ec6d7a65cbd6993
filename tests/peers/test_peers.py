"""Other people's clients, unmodified, against our server: `tests/peers/run.sh`.

Not part of the ordinary run: each client has an environment of its own, in the folder that
SOUNDINGLINE_PEERS names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import ROOT, code_blocks
from support.llm_server import Raw, Say, running_peer
from support.served import DOCUMENTS, serving

from soundingline.toolkit.exchange import browsecomp_plus
from soundingline.toolkit.exchange.transcript import Transcript, run_files, run_paths, trajectory_of
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing, TopK

PEERS = Path(os.environ.get("SOUNDINGLINE_PEERS", ""))
BROWSECOMP_PLUS = os.environ.get("SOUNDINGLINE_BROWSECOMP_PLUS", "")
CLIENTS = Path(__file__).parent / "clients"
TOP_K = TopK(k=3, max_tokens=4, get_document=True)
STEPS = [
    ["search", {"query": "mill"}],
    ["search", {"query": "Torvald"}],
    ["search", {"query": "xyzzy"}],
    ["get_document", {"docid": "12"}],
    ["get_document", {"docid": "none"}],
]
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not PEERS.is_absolute(), reason="SOUNDINGLINE_PEERS is not set"),
]


def run(*command, cwd=None):
    """The last line that a client prints, as JSON."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=120, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def python(name):
    place = PEERS / name / "bin" / "python"
    if not place.exists():
        pytest.skip(f"{place} is absent")
    return place


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
        result = run(client, CLIENTS / "with_fastmcp.py", f"{server.url}/mcp", kind, steps)
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
            result = run(python("fastmcp"), CLIENTS / "with_fastmcp.py", address, kind, steps)
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
        result = run(client, CLIENTS / "with_langchain.py", url, transport, mode, steps)
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
    search = ["search", {"reason": "r", "query": "mill"}]
    steps = json.dumps([["question", {}], search, ["submit_answer", {"answer": "Brekke"}]])
    texts = {}
    for mode in ("default", "session"):
        with serving(RankedBrowsing(), folder=RunFolder(tmp_path / mode)) as server:
            url = f"{server.url}/mcp"
            script = CLIENTS / "with_langchain.py"
            texts[mode] = run(client, script, url, "streamable_http", mode, steps)["texts"]
    assert "call question first" in texts["default"][1]
    assert "search_id=s1 ranks 1-5" in texts["session"][1]
    trajectory = RunFolder(tmp_path / "session").read("q1")
    assert trajectory is not None and trajectory.answer.exact == "Brekke"


@pytest.mark.parametrize("order", ["first", "last"])
def test_openai_agents_searches_through_our_pipeline(order, tmp_path):
    client = python(f"openai-agents-{order}")
    script = CLIENTS / "with_openai_agents.py"
    assert run(client, script, tmp_path, cwd=tmp_path) == {"answer": '["d1"]'}


def test_qwen_agent():
    with serving(TOP_K) as server:
        url = f"{server.url}/mcp"
        script = CLIENTS / "with_qwen_agent.py"
        result = run(python("qwen"), script, url, json.dumps(STEPS))
    assert set(result["tools"]) == {"search-server-search", "search-server-get_document"}
    parameters = result["tools"]["search-server-search"]["parameters"]
    assert set(parameters) == {"type", "properties", "required"}
    assert list(parameters["properties"]) == parameters["required"] == ["query"]
    check_texts(result["results"])


@pytest.mark.skipif(not BROWSECOMP_PLUS, reason="SOUNDINGLINE_BROWSECOMP_PLUS is not set")
def test_the_client_of_browsecomp_plus_unmodified(tmp_path):
    call = {"name": "search-server-search", "arguments": {"query": "Grenholm mill"}}
    answer = "Explanation: so [mill]\nExact Answer: Torvald Brekke\nConfidence: 90%"
    script = Path(BROWSECOMP_PLUS) / "search_agent" / "qwen_client.py"
    with running_peer() as model, serving(TOP_K) as server:
        model.script.append(streamed(f"<tool_call>\n{json.dumps(call)}\n</tool_call>"))
        model.default = streamed(answer)
        done = subprocess.run(
            [
                *(str(python("qwen")), str(script), "--query", "Who built the mill?"),
                *("--model", "m", "--model-server", model.openai_url),
                *("--mcp-url", f"{server.url}/mcp", "--output-dir", str(tmp_path / "out")),
            ],
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
    assert rows[0]["docid"] == "mill" and record["result"][-1]["output"] == answer


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
        result = run(python("qwen"), "-c", use, "--url", server.url, cwd=tmp_path)
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
    answer = "Explanation: so [mill]\nExact Answer: Torvald Brekke\nConfidence: 90%"
    query = json.dumps({parameter: "Grenholm mill"})
    with running_peer() as model, serving(TOP_K) as server:
        command = [sys.executable, str(clone / "search_agent" / client), "--query", str(queries)]
        command += ["--model", "m", "--searcher-type", "custom", "--url", server.url, "--k", "2"]
        command += ["--snippet-max-tokens", "0", "--output-dir", str(tmp_path / "out")]
        model.script.append(Say(calls=[("c1", tool, query)]))
        model.default = Say(text=answer)
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
    trajectory = trajectory_of(recorded, "Who built the mill?")
    assert (trajectory.qid, trajectory.answer.exact) == ("q1", "Torvald Brekke")
    (call_made,) = trajectory.calls
    assert (call_made.name, call_made.arguments) == ("search", {parameter: "Grenholm mill"})
    rows = json.loads(call_made.output)
    assert rows[0]["docid"] == "mill" and len(rows) == 2
    assert rows[0]["snippet"] == "Mill\n" + DOCUMENTS["mill"].text
    assert set(trajectory.tiers["previewed"]) == {row["docid"] for row in rows}


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
        told = run(runner, place / "with_pi_serini.ts", *given, cwd=place)
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
    assert again.endswith("6") and evaluated.endswith("6")
