"""`soundingline serve`: from its command line to a run that is evaluated, and MCP over server-sent
events and streamable HTTP, by the SDK's own client of both eras."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib import metadata
from urllib.request import Request, urlopen

import mcp
import pytest
from mcp.client.sse import sse_client
from support.assertions import until
from support.benchmarks import (
    ANSWERS,
    CANARY,
    QUESTIONS,
    SENTENCES,
    TINY,
    VARIABLE,
    write_benchmark,
)
from support.commands import CommandProcess, run_command, run_entry
from support.served import STORE, TOPICS, plain_backend, serving

from soundingline.experiments.cli import CommandParser
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import Literature, RankedBrowsing, TopK


class Running(CommandProcess):
    """The command in a process of its own."""

    def address(self):
        until(lambda: "serving at" in self.errors or self.poll() is not None, 90)
        match = re.search(r"serving at (\S+)/ ", self.errors)
        assert match, self.errors
        return match[1]

    def ask(self, path, **body):
        headers = {"Content-Type": "application/json"}
        request = Request(self.address() + path, json.dumps(body).encode(), headers)
        with urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def end(self, number):
        self.send_signal(number)
        return self.wait(60).returncode


@contextmanager
def running(place, *arguments, benchmark=TINY):
    command = Running("serve", *benchmark, *arguments, folder=place)
    try:
        yield command
    finally:
        if command.poll() is None:
            command.kill()
            command.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_finished_questions_and_nothing_half_written(number, tmp_path, entry):
    with running(tmp_path, "port=0", "name=x", "client=stranger") as command:
        first, second = (command.ask("/question") for _ in range(2))
        search = {"tool": "search", "arguments": {"reason": "r", "query": first["question"]}}
        for question in (first, second):
            assert command.ask("/call", session=question["session"], **search)["error"] == ""
        command.ask("/submit_answer", session=first["session"], answer="somebody")
        assert command.end(number) == 0, command.errors
        assert "1 of 6 questions are answered" in command.errors
        assert "Traceback" not in command.errors
    folder = RunFolder(tmp_path / "runs" / "x")
    assert folder.statuses() == {first["qid"]: "completed"}
    assert [path.name for path in folder.queries.iterdir()] == [f"{first['qid']}.json"]
    assert folder.manifest()["factors"]["agent"] == "stranger"
    assert entry("evaluate", str(folder.path)) == 0
    metrics = json.loads((folder.path / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["search_calls"] == 1


def test_a_served_run_tells_what_scored_and_how_often(tmp_path, monkeypatch, capsys):
    rows = tmp_path / "rows.jsonl"
    requirements = [{"requirement": "a town", "score": 1.0}]
    row = {"query": "which towns?", "docid": "nowhere", "requirements": requirements}
    rows.write_text(json.dumps(row) + "\n")
    literature = ("tool=literature", "scorer=file", f"scorer.path={rows}", "port=0", "name=l")
    with running(tmp_path, *literature) as command:
        question = command.ask("/question")
        asked = {"session": question["session"]}
        search = command.ask("/call", **asked, tool="search", arguments={"query": "a town"})
        docids = re.findall(r"docid=(\S+)", search["text"])[:3]
        arguments = {"docids": " ".join(docids), "requirements": "a town", "question": "which?"}
        assert command.ask("/call", **asked, tool="score", arguments=arguments)["error"] == ""
        command.ask("/submit_answer", **asked, answer="somebody")
        assert command.end(signal.SIGINT) == 0, command.errors
    manifest = RunFolder(tmp_path / "runs" / "l").manifest()
    assert manifest["stages"]["scorer"] == {"documents": len(docids), "absent": len(docids)}
    assert manifest["factors"]["scorer"] == "file"
    # Another file at the same place is another scorer, and another run.
    rows.write_text(json.dumps({**row, "docid": "elsewhere"}) + "\n")
    monkeypatch.chdir(tmp_path)
    assert run_entry("serve", *TINY, *literature) == 2
    assert "was made with another scorer.content" in capsys.readouterr().err


def test_a_served_run_on_a_sealed_benchmark_holds_nothing_of_its_texts(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)
    benchmark = write_benchmark(tmp_path / "published")
    with running(tmp_path, "port=0", "name=s", benchmark=benchmark) as command:
        question = command.ask("/question")
        assert question["question"] == QUESTIONS[question["qid"]]
        arguments = {"reason": "r", "query": question["question"]}
        call = {"session": question["session"], "tool": "search", "arguments": arguments}
        page = command.ask("/call", **call)["text"]
        assert any(sentence[:30] in page for sentence in SENTENCES)
        command.ask("/submit_answer", session=question["session"], answer=ANSWERS[question["qid"]])
        assert command.end(signal.SIGINT) == 0, command.errors
    folder = RunFolder(tmp_path / "runs" / "s")
    contents = [path.read_bytes() for path in folder.path.rglob("*") if path.is_file()]
    hidden = [*QUESTIONS.values(), *ANSWERS.values(), *SENTENCES]
    assert not [text for text in hidden for content in contents if text.encode() in content]
    trajectory = folder.read(question["qid"])
    assert trajectory.question == question["question"]
    assert trajectory.answer.exact == ANSWERS[question["qid"]]


def test_what_is_taken_by_another_process_or_client_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with running(tmp_path, "port=0", "name=x") as command:
        port = command.address().rpartition(":")[2]
        assert run_entry("serve", *TINY, f"port={port}") == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "port" in line]
        assert port in line and "choose another" in line
        assert run_entry("serve", *TINY, "port=0", "name=x") == 2
        assert "is being written by process" in capsys.readouterr().err
        assert command.end(signal.SIGINT) == 0
    assert run_entry("serve", *TINY, "port=0", "name=x", "client=other") == 2
    assert "was made with another agent" in capsys.readouterr().err


def test_mcp_over_standard_streams(tmp_path):
    async def conversation():
        words = ["-m", "soundingline.experiments", "serve", *TINY, "stdio=true", "name=y"]
        server = mcp.StdioServerParameters(
            command=sys.executable, args=words, cwd=tmp_path, env=dict(os.environ)
        )
        async with mcp.Client(server) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names[-2:] == ["question", "submit_answer"]
            for tool, arguments in (
                ("question", {}),
                ("search", {"reason": "r", "query": "tower"}),
                ("submit_answer", {"answer": "somebody"}),
                ("question", {}),
            ):
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, result

    asyncio.run(asyncio.wait_for(conversation(), 120))
    assert set(RunFolder(tmp_path / "runs" / "y").statuses().values()) == {"completed"}


def test_random_lines_on_standard_input_end_in_replies_and_the_server_goes_on(tmp_path):
    source = random.Random(4)
    client = {"name": "x", "version": "1"}
    start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": start},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
    ]
    good = [json.dumps(message).encode() for message in messages]
    garbage = [source.randbytes(80).replace(b"\n", b"") for _ in range(50)]
    garbage += [line[: source.randrange(len(line))] for line in good * 10]
    lines = [*good[:2], *garbage, *good[2:]]
    sent = b"".join(line + b"\n" for line in lines)
    done = run_command("serve", *TINY, "stdio=true", folder=tmp_path, stdin=sent)
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert {"jsonrpc": "2.0", "id": 2, "result": {}} in replies
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["port=99999"], "port=99999. valid: a whole number, 0 to 65535"),
        (["port=x"], "port"),
        (["prot=1"], "did you mean port?"),
        (["benchmrk.documents=3"], "did you mean benchmark?"),
        (["host=0.0.0.0"], "SOUNDINGLINE_TOKEN"),
        (["token=abcdefgh123"], "would put a secret where process lists"),
        (["idle_seconds=0"], "idle_seconds"),
        (["client="], "client"),
        (["name=../x"], "cannot be a folder name"),
        (["retriever=none_such"], "none_such"),
        (["port=1,2"], "port"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line_and_leaves_nothing(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert run_entry("serve", *TINY, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_token_comes_from_the_environment_and_is_never_printed(monkeypatch, capsys):
    monkeypatch.setenv("SOUNDINGLINE_TOKEN", "s3cret-of-mine")
    parser = CommandParser("serve")
    options = parser.arguments(parser.read(["host=0.0.0.0", "port=8123"]))["options"]
    assert (options.token, options.port) == ("s3cret-of-mine", 8123)
    assert run_entry("serve", "--cfg=job", "port=8123") == 0
    printed = capsys.readouterr().out
    assert "retriever:" in printed and "s3cret" not in printed


CORE = """
import sys
from soundingline.experiments.cli import main
# As if they were not installed.
sys.modules |= dict.fromkeys(("anyio", "starlette", "fastapi", "uvicorn", "mcp"))
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "code", "output"),
    [
        (["serve", *TINY], 2, "the package fastapi is not installed"),
        (["serve", "--help"], 0, "--max-sessions"),
        (["completion", "bash"], 0, "max-sessions"),
    ],
)
def test_without_the_extra_the_command_describes_itself_and_names_it(words, code, output, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CORE, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, output in done.stdout + done.stderr) == (code, True), done.stderr


def test_help_lists_the_flags_of_the_server(capsys):
    assert run_entry("serve", "--help") == 0
    printed = capsys.readouterr().out
    assert "--max-sessions" in printed and "(default: 8000)" in printed


# MCP over server-sent events and streamable HTTP.

ASK = {"reason": "r", "query": "mill"}
PAGE = {"reason": "r", "search_id": "s1", "offset": 6}


def connect(server, transport):
    """A client of a transport: `sse`, `sse at /mcp`, `streamable` (a client of a revision with
    sessions), or `sessionless` (the newest revision)."""
    if transport.startswith("sse"):
        path = "/sse" if transport == "sse" else "/mcp"
        return mcp.Client(sse_client(f"{server.url}{path}"), mode="legacy")
    mode = "legacy" if transport == "streamable" else "auto"
    return mcp.Client(f"{server.url}/mcp", mode=mode)


def talk(server, transport, conversation):
    async def connected():
        async with connect(server, transport) as client:
            return await conversation(client)

    return asyncio.run(asyncio.wait_for(connected(), 60))


async def text(client, tool, **arguments):
    """The one text content of a call."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert content.type == "text"
    return f"{'!' if result.is_error else ''}{content.text}"


def expected_pages():
    """The first and the second page of `ASK` in a session of this process."""
    direct = RankedBrowsing().open(plain_backend(), STORE)
    return [direct.call("search", ASK).text, direct.call("read_search_results", PAGE).text]


def search_id_of(page):
    match = re.match(r"\[search_id=(\S+) ", page)
    assert match, page
    return match[1]


def without_handle(page):
    """A page as it is where search ids carry no handle."""
    return page.replace(search_id_of(page), search_id_of(page).partition("@")[0])


@pytest.mark.parametrize("transport", ["sse", "streamable", "sessionless"])
def test_a_client_is_told_how_questions_and_answers_work(transport, tmp_path):
    async def conversation(client):
        return client.instructions, [tool.name for tool in (await client.list_tools()).tools]

    with serving() as server:
        instructions, names = talk(server, transport, conversation)
        assert all(name in instructions for name in names) and "[docid]" in instructions
        assert "submit_answer" not in instructions
    with serving(folder=RunFolder(tmp_path / "run"), max_calls=7) as server:
        instructions, names = talk(server, transport, conversation)
        assert all(name in instructions for name in names) and "at most 7 calls" in instructions
        order = [instructions.index(f"Call {name}") for name in ("question", "submit_answer")]
        assert order == sorted(order)


@pytest.mark.parametrize("transport", ["sse", "sse at /mcp", "streamable"])
def test_a_connection_has_a_session_of_its_own(transport):
    async def conversation(client):
        async with connect(server, transport) as other:
            missing = await text(other, "read_search_results", **PAGE)
            assert missing.startswith("![error code=unknown_search_id")
            first = await text(client, "search", **ASK)
            return [first, await text(client, "read_search_results", **PAGE)]

    with serving() as server:
        pages = talk(server, transport, conversation)
        assert [without_handle(page) for page in pages] == expected_pages()
        until(lambda: len(server.service.sessions) == 1)  # the one that searched


@pytest.mark.parametrize("transport", ["sse", "streamable", "sessionless"])
def test_a_search_id_leads_back_from_another_connection(transport):
    async def search(client):
        return await text(client, "search", **ASK)

    async def page(client):
        return await text(client, "read_search_results", **{**PAGE, "search_id": search_id})

    with serving() as server:
        pages = [talk(server, transport, search)]
        search_id = search_id_of(pages[0])
        assert re.fullmatch(r"s1@[0-9a-f]{16}", search_id)
        pages.append(talk(server, transport, page))
        assert [without_handle(each) for each in pages] == expected_pages()
        assert f'search_id="{search_id}"' in pages[0]  # the call that goes on names it as well
        assert search_id_of(talk(server, transport, search)) != search_id
        search_id = search_id[:-1] + ("a" if search_id[-1] != "a" else "b")
        refusal = talk(server, transport, page)
        assert refusal.startswith("![error code=unknown_search_id") and "Call search" in refusal


def test_searches_without_a_connection_are_bounded_and_the_oldest_is_forgotten():
    async def conversation(client):
        return [search_id_of(await text(client, "search", **ASK)) for _ in range(5)]

    with serving(max_sessions=4) as server:
        own = server.ask("/open")["session"]
        search_ids = talk(server, "sessionless", conversation)
        assert len(server.service.sessions) == 4
        server.ask("/call", session=own, tool="search", arguments=ASK)  # not one of these
        present = [server.service.of_search_id(each) is not None for each in search_ids]
        assert present == [False, False, True, True, True]
        for number in range(3):
            server.ask("/open")
            assert len(server.service.sessions) == 4, number
        assert server.post("/open")[0] == 503


def test_what_nobody_uses_or_can_page_through_leaves_nothing_behind():
    async def search(client):
        await text(client, "search", **ASK)

    async def conversation(client):
        await text(client, "read_document", reason="r", docid="mill")
        assert (await text(client, "search", reason="r", query=" ")).startswith("!")

    with serving(idle_seconds=0.2) as server:
        talk(server, "sessionless", search)
        until(lambda: len(server.service.sessions) == 0)
    with serving() as server:
        for transport in ("sse", "streamable", "sessionless"):
            talk(server, transport, conversation)
        until(lambda: len(server.service.sessions) == 0)


def test_search_ids_of_sessions_with_a_handle_of_their_own_are_short(tmp_path):
    with serving() as server:
        handle = server.ask("/open")["session"]
        pages = [
            server.ask("/call", session=handle, tool=tool, arguments=arguments)["text"]
            for tool, arguments in (("search", ASK), ("read_search_results", PAGE))
        ]
    assert pages == expected_pages()

    async def recorded(client):
        await text(client, "question")
        first = await text(client, "search", **ASK)
        return [first, await text(client, "read_search_results", **PAGE)]

    for transport in ("sse", "streamable"):
        with serving(folder=RunFolder(tmp_path / transport)) as server:
            assert talk(server, transport, recorded) == expected_pages()


@pytest.mark.parametrize("transport", ["sse", "sse at /mcp", "streamable", "sessionless"])
def test_the_tools_are_those_of_the_interface_and_optional_arguments_are_optional(
    transport, tmp_path
):
    specs = {each["name"]: each for each in RankedBrowsing().open(plain_backend(), STORE).specs()}
    reads = mcp.types.ToolAnnotations(read_only_hint=True)
    writes = mcp.types.ToolAnnotations(read_only_hint=False, destructive_hint=False)

    async def conversation(client):
        assert client.server_info.name == "search-server"
        assert client.server_info.version == metadata.version("soundingline")
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {*specs, "question", "submit_answer"}
        for name, tool in tools.items():
            assert tool.annotations == (reads if name in specs else writes)
        for name, spec in specs.items():
            schema, parameters = tools[name].input_schema, spec["parameters"]
            assert tools[name].description == spec["description"]
            assert set(schema["properties"]) - {"session"} == set(parameters["properties"])
            assert all(isinstance(each["type"], str) for each in schema["properties"].values())
        assert tools["read_document"].input_schema["required"] == ["reason", "docid"]
        handle = {"session": json.loads(await text(client, "question"))["session"]}
        read = {"reason": "r", "docid": "mill", "offset": None}
        optional = await text(client, "read_document", **read, **handle)
        assert optional.startswith("[docid=mill lines 1-2 of 2]")
        with pytest.raises(mcp.MCPError):
            await client.list_resources()

    with serving(folder=RunFolder(tmp_path / "run")) as server:
        talk(server, transport, conversation)


def test_a_choice_that_may_be_left_out_is_a_choice_of_texts():
    async def conversation(client):
        (_, read) = (await client.list_tools()).tools
        layer = read.input_schema["properties"]["layer"]
        assert (layer["type"], layer["enum"]) == ("string", ["metadata", "abstract", "text"])
        assert read.input_schema["required"] == ["docid"]
        assert (await text(client, "read", docid="mill", layer="metadata")).endswith("] Mill")
        assert "[docid=mill abstract] Mill" in await text(client, "read", docid="mill")

    with serving(Literature()) as server:
        talk(server, "streamable", conversation)


@pytest.mark.parametrize("transport", ["sse", "streamable", "sessionless"])
def test_a_question_answered_over_mcp_is_a_trajectory(transport, tmp_path):
    folder = RunFolder(tmp_path / "run")

    async def conversation(client):
        question = json.loads(await text(client, "question"))
        assert (question["qid"], question["question"]) == TOPICS[0]
        handle = {"session": question["session"]} if transport == "sessionless" else {}
        await text(client, "search", **ASK, **handle)
        wrong = await text(client, "submit_answer", answer="x", confidence=101, **handle)
        assert wrong.startswith("!confidence")
        answer = {"answer": "Brekke", "explanation": "[mill]", "confidence": 70}
        result = json.loads(await text(client, "submit_answer", **answer, **handle))
        assert result == {"exact": "Brekke", "confidence": 70.0, "citations": ["mill"]}

    with serving(folder=folder) as server:
        talk(server, transport, conversation)
    trajectory = folder.read("q1")
    assert trajectory.status == "completed"
    assert [call.name for call in trajectory.calls] == ["search"]
    assert trajectory.tiers["cited"] == ("mill",)


@pytest.mark.parametrize("transport", ["sse", "streamable"])
def test_the_question_of_a_connection_that_ends_is_handed_out_again(transport, tmp_path):
    async def conversation(client):
        return json.loads(await text(client, "question"))["qid"]

    with serving(folder=RunFolder(tmp_path / "run"), topics=TOPICS[:1]) as server:
        for _ in range(3):
            assert talk(server, transport, conversation) == TOPICS[0].qid
            until(lambda: len(server.service.sessions) == 0)


@pytest.mark.parametrize("transport", ["sse at /mcp", "streamable", "sessionless"])
@pytest.mark.parametrize(("query", "count"), [("xyz", 0), ("Torvald", 1), ("mill", 3)])
def test_top_k_at_mcp_is_one_json_array_whatever_it_holds(transport, query, count):
    interface = TopK(k=3, max_tokens=4, get_document=True)

    async def conversation(client):
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "get_document"}
        assert list(tools["search"]["properties"]) == tools["search"]["required"] == ["query"]
        assert list(tools["get_document"]["properties"]) == ["docid"]
        rows = json.loads(await text(client, "search", query=query))
        assert len(rows) == count
        shown = interface.open(plain_backend(), STORE).call("search", {"query": query})
        hits = getattr(shown.page, "hits", ())
        assert rows == [
            {"docid": hit.docid, "score": hit.score, "snippet": hit.text} for hit in hits
        ]
        assert all(isinstance(row["docid"], str) for row in rows)
        assert json.loads(await text(client, "get_document", docid="12")) == {
            "docid": "12",
            "text": "The mill of place twelve is “old”, too.",
        }
        assert await text(client, "get_document", docid="none") == "null"
        assert (await text(client, "search", query=" ")).startswith("!")

    async def configured(client):
        return await text(client, "search", query=query)

    with serving(interface) as server:
        talk(server, transport, conversation)
        page = interface.open(plain_backend(), STORE).call("search", {"query": query}).text
        assert talk(server, "sse", configured) == page


def test_the_record_of_a_json_page_is_what_was_sent(tmp_path):
    folder = RunFolder(tmp_path / "run")
    sent = []

    async def conversation(client):
        await text(client, "question")
        sent.append(await text(client, "search", query="Grenholm mill"))
        sent.append(await text(client, "get_document", docid="mill"))
        await text(client, "submit_answer", answer="x")

    with serving(TopK(k=2, get_document=True), folder=folder) as server:
        talk(server, "sse at /mcp", conversation)
    trajectory = folder.read("q1")
    assert [call.output for call in trajectory.calls] == sent
    assert len(trajectory.tiers["previewed"]) == 2 and trajectory.tiers["opened"] == ("mill",)
