"""MCP over server-sent events and streamable HTTP, by the SDK's own client of both eras."""

import asyncio
import json
import re
from importlib import metadata

import mcp
import pytest
from mcp.client.sse import sse_client
from support.served import STORE, TOPICS, plain_backend, serving, until

from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import Literature, RankedBrowsing, TopK

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
