"""MCP over server-sent events and streamable HTTP, by the SDK's own client of both eras."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp.client.sse import sse_client
from served import STORE, TOPICS, Served, plain_backend, serving, until
from tiny_tokenizer import write_tokenizer

from experiments.serving.browsecomp_plus import BrowseCompPlusTools
from toolkit.contracts import Hit, SearchRequest, SearchResult
from toolkit.runs import RunFolder
from toolkit.search import DictionaryBackend, DictionaryStore, RankedBrowsing, TopK
from toolkit.tokens import WORDS, tokens_of

ASK = {"reason": "r", "query": "mill"}
PAGE = {"reason": "r", "search_id": "s1", "offset": 6}
Talk = Callable[[mcp.Client], Awaitable[Any]]


def connect(server: Served, door: str) -> mcp.Client:
    """A client at a door: `sse`, `streamable` (a client of a revision with sessions), or
    `sessionless` (the newest revision)."""
    if door == "sse":
        return mcp.Client(sse_client(f"{server.url}/mcp"), mode="legacy")
    mode = "legacy" if door == "streamable" else "auto"
    return mcp.Client(f"{server.url}/mcp-http", mode=mode)


def talk(server: Served, door: str, conversation: Talk) -> Any:
    async def connected() -> Any:
        async with connect(server, door) as client:
            return await conversation(client)

    return asyncio.run(asyncio.wait_for(connected(), 60))


async def text(client: mcp.Client, tool: str, **arguments: Any) -> str:
    """The one text content of a call."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert content.type == "text"
    return f"{'!' if result.is_error else ''}{content.text}"


@pytest.mark.parametrize("door", ["sse", "streamable"])
def test_a_connection_has_a_session_of_its_own(door: str) -> None:
    direct = RankedBrowsing().session(plain_backend(), STORE)
    expected = [direct.call("search", ASK).text, direct.call("read_search_results", PAGE).text]

    async def conversation(client: mcp.Client) -> list[str]:
        async with connect(server, door) as other:
            missing = await text(other, "read_search_results", **PAGE)
            assert missing.startswith("![error code=unknown_search_id")
            first = await text(client, "search", **ASK)
            return [first, await text(client, "read_search_results", **PAGE)]

    with serving() as server:
        assert talk(server, door, conversation) == expected
        if door == "sse":
            until(lambda: len(server.service.sessions) == 0)  # the connections have ended


def test_without_connections_the_state_rides_on_the_handle() -> None:
    async def conversation(client: mcp.Client) -> None:
        refusal = await text(client, "search", **ASK)
        assert refusal.startswith("!") and "open_session" in refusal
        one, two = [json.loads(await text(client, "open_session"))["session"] for _ in range(2)]
        assert "search_id=s1" in await text(client, "search", **ASK, session=one)
        assert "search_id=s2" in await text(client, "search", **ASK, session=one)
        assert "search_id=s1" in await text(client, "search", **ASK, session=two)
        assert (await text(client, "search", **ASK, session="none")).startswith("!")

    with serving() as server:
        talk(server, "sessionless", conversation)


def test_the_tools_are_those_of_the_interface_and_optional_arguments_are_optional() -> None:
    specs = {
        each["name"]: each for each in RankedBrowsing().session(plain_backend(), STORE).specs()
    }

    async def conversation(client: mcp.Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        own = set() if door == "sse" else {"open_session"}
        assert set(tools) == {*specs, *own}
        for name, spec in specs.items():
            schema, parameters = tools[name].input_schema, spec["parameters"]
            assert tools[name].description == spec["description"]
            assert set(schema["properties"]) - {"session"} == set(parameters["properties"])
            assert ("session" in schema["properties"]) == (door != "sse")
        assert tools["read_document"].input_schema["required"] == ["reason", "docid"]
        with pytest.raises(mcp.MCPError):
            await client.list_resources()

    with serving() as server:
        for door in ("sse", "streamable", "sessionless"):
            talk(server, door, conversation)


@pytest.mark.parametrize("door", ["sse", "streamable", "sessionless"])
def test_a_question_answered_over_mcp_is_a_trajectory(door: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    async def conversation(client: mcp.Client) -> None:
        given = json.loads(await text(client, "question"))
        assert (given["qid"], given["question"]) == TOPICS[0]
        handle = {"session": given["session"]} if door == "sessionless" else {}
        await text(client, "search", **ASK, **handle)
        wrong = await text(client, "submit_answer", answer="x", confidence=101, **handle)
        assert wrong.startswith("!confidence")
        answer = {"answer": "Brekke", "explanation": "[mill]", "confidence": 70}
        result = json.loads(await text(client, "submit_answer", **answer, **handle))
        assert result == {"exact": "Brekke", "confidence": 70.0, "citations": ["mill"]}

    with serving(folder=folder) as server:
        talk(server, door, conversation)
    trajectory = folder.read("q1")
    assert trajectory is not None and trajectory.status == "completed"
    assert [call.name for call in trajectory.calls] == ["search"]
    assert trajectory.tiers["cited"] == ("mill",)


@pytest.mark.parametrize("door", ["sse", "streamable"])
def test_the_question_of_a_connection_that_ends_is_handed_out_again(
    door: str, tmp_path: Path
) -> None:
    async def conversation(client: mcp.Client) -> Any:
        return json.loads(await text(client, "question"))["qid"]

    with serving(folder=RunFolder(tmp_path / "run"), topics=TOPICS[:1]) as server:
        for _ in range(3):
            assert talk(server, door, conversation) == TOPICS[0].qid
            until(lambda: len(server.service.sessions) == 0)


@pytest.mark.parametrize(("query", "count"), [("xyz", 0), ("Torvald", 1), ("mill", 3)])
def test_top_k_at_the_sse_door_is_one_json_array_whatever_it_holds(query: str, count: int) -> None:
    interface = TopK(k=3, max_tokens=4, get_document=True)

    async def conversation(client: mcp.Client) -> None:
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert set(tools) == {"search", "get_document"}
        assert list(tools["search"]["properties"]) == tools["search"]["required"] == ["query"]
        assert list(tools["get_document"]["properties"]) == ["docid"]
        rows = json.loads(await text(client, "search", query=query))
        assert len(rows) == count
        shown = interface.session(plain_backend(), STORE).call("search", {"query": query})
        hits = getattr(shown.details, "hits", ())
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

    with serving(interface) as server:
        talk(server, "sse", conversation)


def test_the_record_of_a_json_page_is_what_was_sent(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    sent: list[str] = []

    async def conversation(client: mcp.Client) -> None:
        await text(client, "question")
        sent.append(await text(client, "search", query="Grenholm mill"))
        sent.append(await text(client, "get_document", docid="mill"))
        await text(client, "submit_answer", answer="x")

    with serving(TopK(k=2, get_document=True), folder=folder) as server:
        talk(server, "sse", conversation)
    trajectory = folder.read("q1")
    assert trajectory is not None
    assert [call.output for call in trajectory.calls] == sent
    assert len(trajectory.tiers["previewed"]) == 2 and trajectory.tiers["opened"] == ("mill",)


class Odd:
    """Passages, and scores that JSON cannot hold."""

    def search(self, request: SearchRequest) -> SearchResult:
        rows = [("m1%p0", float("inf")), ("m1%p1", float("nan")), ("m2%p0", 1.5)]
        return SearchResult([Hit(unit[:2], unit, 1, score) for unit, score in rows])


def test_ids_are_those_of_documents_and_scores_without_a_number_are_left_out() -> None:
    passages = {"m1%p0": "A mill.", "m1%p1": "Old.", "m2%p0": "Another."}
    store = DictionaryStore({"m1": "A mill. Old.", "m2": "Another."}, passages)
    session = BrowseCompPlusTools().session(Odd(), store)
    result = session.call("search", {"query": "x"})
    assert json.loads(result.text) == [
        {"docid": "m1", "snippet": "A mill."},
        {"docid": "m1", "snippet": "Old."},
        {"docid": "m2", "score": 1.5, "snippet": "Another."},
    ]
    assert list(result.call.shown) == list(passages)


def test_a_document_that_is_too_long_is_cut_and_says_so() -> None:
    text = "\n".join(f"line {number}" for number in range(100))
    store, backend = DictionaryStore({"d": text}), DictionaryBackend({"d": text})
    session = BrowseCompPlusTools(get_document=True, max_bytes=200).session(backend, store)
    document = json.loads(session.call("get_document", {"docid": "d"}).text)
    assert document["truncated"] is True and text.startswith(document["text"])


def test_a_snippet_is_cut_by_the_tokenizer_that_is_named(tmp_path: Path) -> None:
    path = str(write_tokenizer(tmp_path / "tokenizer.json"))
    text = "antidisestablishment kings of the king " * 60
    store, backend = DictionaryStore({"d": text}), DictionaryBackend({"d": text})
    settings = BrowseCompPlusTools.like(TopK(k=1, max_tokens=16, tokenizer=path))
    result = settings.session(backend, store).call("search", {"query": "king"})
    tokens = tokens_of(path)
    assert json.loads(result.text)[0]["snippet"] == tokens.head(text, 16) != WORDS.head(text, 16)
    assert result.call.tokens == tokens.count(result.text)
