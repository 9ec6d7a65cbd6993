"""The golden gate: which settings make one run and which make another, and conversations of clients
with each of the server's interfaces.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from golden_store import plain
from golden_workplace import check, skip_without
from support.commands import CommandProcess
from test_golden_runs import SETS, TEST

from soundingline.experiments import naming
from soundingline.experiments.config import Settings

CHAT = "agent=pi_serini llm=vllm/gpt_oss_20b"
T5 = "reranker=monot5"
NAMES = (
    "",
    "unit=document",
    "retriever=bm25_default",
    "retriever.k1=0.9 retriever.b=0.4",
    "retriever.k1=2",
    "retriever=bm25_tuned",
    "retriever.k1=25 retriever.b=1",
    "retriever.depth=100",
    "retriever=ql",
    "retriever=bm25_rm3",
    "retriever=bm25_sira",
    "unit=passage",
    "unit=passage unit.max_tokens=250",
    "unit=maxp",
    "unit=document_head",
    "engine=pisa",
    "engine.analyzer=standard",
    "engine.memory_mb=64",
    "tool=top_k",
    "tool=top_k tool.k=7",
    "tool.page=7",
    "tool.tokenizer=null",
    "agent=one_shot",
    "agent.max_searches=2",
    "agent.max_searches=3",
    "benchmark.limit=7",
    "benchmark.split=dev",
    "benchmark.name=mine",
    "reranker=none reranker.depth=10",
    "rewriter=none rewriter.max_words=9",
    "enrichment=none enrichment.weight=0.3",
    "enrichment=feedback",
    "enrichment=feedback enrichment.weight=0.5",
    "enrichment=feedback enrichment.sides=query",
    "concurrency=8 preflight.questions=0 preflight.check=false measures=[AP]",
    "paths.runs=elsewhere paths.indexes=elsewhere paths.caches=null",
    "name=other",
    "traces=false sealed=false",
    "judge=llm",
    "budget.turns=3",
    CHAT,
    f"{CHAT} budget.turns=3",
    f"{CHAT} budget.dollars=1",
    f"{CHAT} budget.run_dollars=50",
    f"{CHAT} llm.concurrency=3 llm.price.input=0.1",
    f"{CHAT} llm.base_url=http://127.0.0.1:9000/v1 llm.key_env=KEY",
    f"{CHAT} llm.server.options.tensor_parallel_size=4",
    f"{CHAT} llm.settings.temperature=0",
    f"{CHAT} agent.remind=true",
    f"{CHAT} agent.remind=false agent.first_call=null",
    "agent=chat llm=vllm/gpt_oss_20b",
    T5,
    f"{T5} reranker.depth=10",
    f"{T5} reranker.device=cpu reranker.batch_tokens=512",
    f"{T5} reranker.dtype=float32",
    f"{T5} reranker.model=other/model",
    "benchmark=cacm",
    "benchmark=cacm benchmark.origin=elsewhere paths.data=/data",
    "benchmark=beir benchmark.path=/data/a/mine",
    "benchmark=beir benchmark.path=/elsewhere/mine",
    "benchmark=fictional benchmark.questions=sets agent=navigator",
    "benchmark=fictional benchmark.questions=sets agent=navigator scorer=overlap",
    "scorer=overlap",
)


def cell_name(*overrides):
    """The name that a run of these overrides has in a sweep."""
    return naming.cell_name(Settings.compose(overrides))


def test_settings_make_the_runs_that_are_stored(workplace):
    """Command lines that mean the same share a run folder, and no others do."""
    labels, meanings = {}, {}
    for overrides in NAMES:
        label, _, identity = cell_name(*overrides.split()).rpartition("-")
        labels.setdefault(identity, label)
        meanings.setdefault(identity, []).append(overrides)
    groups = {label: [] for label in labels.values()}
    for identity, lines in meanings.items():
        groups[labels[identity]].append(sorted(lines))
    check("cell_names", groups, workplace.places)


# Conversations of clients with the server.

SERVE = ("mcp", "uvicorn", "fastapi")
# Where clients of the Model Context Protocol connect: server-sent events, and streamable HTTP.
SSE, STREAMABLE = "/mcp", "/mcp"
LIMIT = "benchmark.limit=2"


class Conversation:
    """Requests to one server and its replies. Sessions get names in the order in which they
    appear."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.lines = []
        self._names = {}
        match = self._announced(r"serving at (\S+)/ ", lambda: process.errors)
        self.url = match[1]
        self.port = int(self.url.rpartition(":")[2])

    def _announced(self, pattern, text):
        until = time.monotonic() + 120
        while not (match := re.search(pattern, text())):
            assert self.process.poll() is None, self.process.errors
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.01)
        return match

    def post(self, path, **body):
        headers = {"Content-Type": "application/json"}
        return self._send(path, Request(self.url + path, json.dumps(body).encode(), headers), body)

    def get(self, path):
        return self._send(path, Request(self.url + path))

    def _send(self, path, request, body=None):
        try:
            with urlopen(request, timeout=60) as reply:
                status, text = reply.status, reply.read().decode()
        except HTTPError as error:
            status, text = error.code, error.read().decode()
        value = json.loads(text)
        self.note({"request": path, "body": body, "status": status, "reply": value})
        return value

    def note(self, line):
        """Add to the transcript, without times and with sessions by their names."""
        text = json.dumps(plain(without_times(line)), ensure_ascii=False)
        for handle in re.findall(r'"session": "([^"]+)"', text):
            self._names.setdefault(handle, f"<session {len(self._names) + 1}>")
        for handle, name in self._names.items():
            text = text.replace(handle, name)
        text = text.replace(self.url, "<url>").replace(str(self.port), "<port>")
        self.lines.append(json.loads(text))


def without_times(value):
    """The value without the keys below which a server tells how long it took."""
    if isinstance(value, dict):
        return {k: without_times(inner) for k, inner in value.items() if k not in _TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


_TIMES = ("timingMs", "version", "seconds")


@contextmanager
def serving(workplace, name, text):
    process = CommandProcess("serve", *workplace.arguments(name, f"{text} port=0"))
    try:
        conversation = Conversation(process)
        yield conversation
        process.send_signal(signal.SIGINT)
        assert process.wait(60).returncode == 0, process.errors
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_a_run_by_a_client_of_the_json_interface(workplace):
    skip_without(SERVE)
    with serving(workplace, "served", f"{TEST} {LIMIT} client=golden") as talk:
        talk.get("/tools")
        described = talk.get("/openapi.json")
        talk.lines[-1]["reply"] = sorted(described["paths"])
        given = talk.post("/question")
        session, question = given["session"], given["question"]
        words = " ".join(question.split()[:9])
        search = {"tool": "search", "arguments": {"reason": "first", "query": words}}
        found = talk.post("/call", session=session, reasoning="I look for it.", **search)
        page = {"reason": "more", "search_id": "s1", "offset": 6, "limit": 3}
        talk.post("/call", session=session, tool="read_search_results", arguments=page)
        reading = {"reason": "to be sure", "docid": found["shown"][0], "offset": 2, "limit": 4}
        talk.post("/call", session=session, tool="read_document", arguments=reading)
        talk.post("/call", session=session, tool="search", arguments={"query": ""})
        talk.post("/call", session=session, tool="erase", arguments={})
        talk.post("/call", session="nobody", **search)
        talk.post("/call", tool="search")
        talk.post("/browsecomp-plus/search", query=words)
        answer = {"answer": "573", "explanation": f"See [{found['shown'][0]}].", "confidence": 40}
        talk.post("/submit_answer", session=session, **answer)
        second = talk.post("/question", interface="pi_serini")
        place = f"?session={second['session']}"
        talk.post(f"/pi-serini/search{place}", query="customs house slate", limit=3, offset=2)
        talk.post(f"/pi-serini/search{place}", query="", limit=3)
        talk.post(f"/pi-serini/read{place}", docid="d60", offset=1, limit=3)
        talk.post(f"/pi-serini/read{place}", docid="nowhere")
        talk.post("/submit_answer", session=second["session"])
        text = "Explanation: so says [d60]\nExact Answer: a river\nConfidence: 20%"
        talk.post("/submit_answer", session=second["session"], answer=text)
        talk.get("/status")
        talk.post("/question")
    workplace.run("evaluate", "", "runs/served")
    run = workplace.recorded("served")
    # What Pi-Serini's interface replied is on record with its times, and part of the conversation.
    for key in ("calls", "messages"):
        del run["trajectories"]["q4"][key]
    content = {"conversation": talk.lines, "run": run}
    check("serve_json", content, workplace.places)


def test_searchers_of_browsecomp_plus(workplace):
    skip_without(SERVE)
    text = f"{TEST} tool=top_k tool.k=3 tool.max_tokens=40 tool.get_document=true"
    with serving(workplace, "", f"{text} unit=passage unit.max_tokens=60") as talk:
        talk.post("/browsecomp-plus/search", query="customs house slate")
        talk.post("/browsecomp-plus/search", query="customs house", k=1)
        talk.post("/browsecomp-plus/search", query="zzzz")
        talk.post("/browsecomp-plus/search")
        talk.post("/browsecomp-plus/get_document", docid="d60")
        talk.post("/browsecomp-plus/get_document", docid="nowhere")
        asyncio.run(_mcp(talk))
    check("serve_browsecomp_plus", {"conversation": talk.lines}, workplace.places)


def test_clients_of_the_model_context_protocol(workplace):
    skip_without(SERVE)
    with serving(workplace, "served-sets", f"{SETS} {LIMIT} agent=navigator") as talk:
        asyncio.run(_mcp_run(talk))
    workplace.run("evaluate", "", "runs/served-sets")
    content = {"conversation": talk.lines, "run": workplace.recorded("served-sets")}
    check("serve_mcp", content, workplace.places)


LITERATURE = [
    ("read", {"docid": "d22", "layer": "abstract"}),
    ("read", {"docid": "d22", "layer": "text", "offset": 2}),
    ("locate", {"docid": "d22", "requirement": "Jukusul Works owned it"}),
    ("expand", {"docids": "d22", "direction": "out"}),
    ("resolve", {"findings": "Lady Teivalast\nLady Teivalost\nhttps://nowhere.example/x"}),
    (
        "score",
        {
            "docids": "d22 d38",
            "requirements": "The owner was Jukusul Works\nnot a bridge",
            "question": "ships of Jukusul Works",
        },
    ),
    ("erase", {}),
    ("read", {"docid": "d22", "layer": "soul"}),
    ("submit_answer", {"answer": "Explanation: x\nConfidence: 9%\nDocuments: [d22] [d38] [d99]"}),
]


async def _mcp(talk):
    """A conversation over server-sent events, as BrowseComp-Plus's clients have it."""
    import mcp
    from mcp.client.sse import sse_client

    async with mcp.Client(sse_client(f"{talk.url}{SSE}"), mode="legacy") as client:
        await _listed(talk, client)
        await _called(talk, client, "search", query="customs house slate")
        await _called(talk, client, "get_document", docid="d60")
        await _called(talk, client, "get_document", docid="nowhere")
        await _called(talk, client, "search")


async def _mcp_run(talk):
    """A run over streamable HTTP, by a client with a session and by one without."""
    import mcp

    async with mcp.Client(f"{talk.url}{STREAMABLE}", mode="legacy") as client:
        await _listed(talk, client)
        await _called(talk, client, "question")
        await _called(talk, client, "search", query="ship last owner Jukusul Works")
        for tool, arguments in LITERATURE:
            await _called(talk, client, tool, **arguments)
    async with mcp.Client(f"{talk.url}{STREAMABLE}", mode="auto") as client:
        given = await _called(talk, client, "question")
        session = json.loads(given)["session"]
        await _called(talk, client, "search", query="settlement River Reitaugeth", session=session)
        await _called(talk, client, "submit_answer", answer="d11", session=session)


async def _listed(talk, client):
    tools = (await client.list_tools()).tools
    listed = [tool.model_dump(exclude_none=True) for tool in tools]
    for tool in listed:  # Annotations and metadata of the protocol's revisions.
        tool.pop("meta", None)
    talk.note({"request": "list_tools", "reply": listed})


async def _called(talk, client, tool, **arguments):
    try:
        result = await client.call_tool(tool, arguments)
    except Exception as error:
        talk.note({"request": tool, "arguments": arguments, "error": type(error).__name__})
        return ""
    texts = [content.text for content in result.content]
    reply = {"texts": texts, "is_error": result.is_error}
    talk.note({"request": tool, "arguments": arguments, "reply": reply, **_handles(texts)})
    return str(texts[0])


def _handles(texts):
    """The session that a reply gives in its text."""
    found = re.search(r'"session": ?"([^"]+)"', texts[0])
    return {"session": found[1]} if found else {}
