"""`soundingline serve`: from its command line to a run that is evaluated."""

import asyncio
import json
import os
import random
import re
import signal
import sys
from contextlib import contextmanager
from urllib.request import Request, urlopen

import mcp
import pytest
from experiment_samples import TINY
from support.benchmarks import ANSWERS, CANARY, QUESTIONS, SENTENCES, VARIABLE, write_benchmark
from support.commands import CommandProcess, run_command, run_entry
from support.served import until

from soundingline.experiments.cli import CommandParser
from soundingline.toolkit.runs import RunFolder


class Running(CommandProcess):
    """The command in a process of its own."""

    def address(self):
        until(lambda: "serving at" in self.errors or self.poll() is not None, 90)
        match = re.search(r"serving at (\S+)/ ", self.errors)
        assert match, self.errors
        return match[1]

    def ask(self, path, **body):
        request = Request(self.address() + path, json.dumps(body).encode())
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
    if number == signal.SIGINT:
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
        (["token=abcdefgh123"], "on the command line"),
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


def test_help_lists_the_flags_of_the_server(capsys):
    assert run_entry("serve", "--help") == 0
    printed = capsys.readouterr().out
    assert "--max-sessions" in printed and "(default: 8000)" in printed
