"""The language model of the golden gate: a server that searches, browses, errs, reads and answers.

What it replies depends on the request alone, so that a run of it can be pinned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from golden_record import digest, without_scores
from scripted_peer import Request, Say

_DOCID = re.compile(r"docid=([^\s%]+)")
_QUERY = re.compile(r"<query>\n(.*)\n</query>", re.DOTALL)
_QUESTION = re.compile(r"^Question: (.+)$", re.MULTILINE)
_WORD = re.compile(r"[\w,']{4,}")


def reply(request: Request) -> Say:
    """What the server says: an agent is offered tools, a rewriter is not."""
    body = request.body
    size = 100 * len(body["messages"])
    usage = {"input": size, "cached": size - 100, "reasoning": 3, "output": 20}
    if body.get("tools"):
        return agent_turn(body, usage)
    return Say(text=rewritten(body["messages"][-1]["content"]), usage=usage)


def rewritten(prompt: str) -> str:
    """A question of the query's first words by alphabet."""
    words = _QUERY.findall(prompt)[-1].split()
    return f"Which town knows {' '.join(sorted(words)[:6])}?"


def agent_turn(body: Mapping[str, Any], usage: Mapping[str, int]) -> Say:
    """An agent's next step, by how many it has taken. Some calls are wrong: a tool that another
    interface has, an empty query."""
    messages = body["messages"]
    words = question_words(messages)
    outputs = [str(message["content"]) for message in messages if message["role"] == "tool"]
    docid = [*_DOCID.findall(" ".join(outputs)), "none", "none"][1]
    number = sum(message["role"] == "assistant" for message in messages)
    steps: list[list[tuple[str, dict[str, Any]]]] = [
        [("search", {"query": " ".join(words[-12:])})],
        [
            ("search", {"query": " ".join(words[:8])}),
            ("read_search_results", {"search_id": "s1", "offset": 4, "limit": 3}),
        ],
        [("read_document", {"docid": docid, "offset": 1, "limit": 5})],
        [("get_document", {"docid": docid}), ("search", {"query": ""})],
    ]
    if number == len(steps):
        explanation = f"Explanation: it is told in [{docid}] and [nowhere]."
        text = f"{explanation}\nExact Answer: {words[-1]}\nConfidence: 60%"
        return Say(text=text, usage=usage)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    calls = []
    for place, (name, arguments) in enumerate(steps[number]):
        if "reason" in schemas.get(name, {}).get("properties", {}):
            arguments = {"reason": "as scripted", **arguments}
        calls.append((f"c{number}{place}", name, json.dumps(arguments)))
    return Say(reasoning=f"Step {number}: I think of {words[-1]}.", calls=calls, usage=usage)


def question_words(messages: list[Mapping[str, Any]]) -> list[str]:
    """The longer words of the question: of the first user message, or of its line that a prompt
    labels as the question."""
    prompt = next(message["content"] for message in messages if message["role"] == "user")
    labelled = _QUESTION.search(prompt)
    return _WORD.findall(labelled[1] if labelled else prompt)


def pinned_request(request: Request, *, scores: bool) -> str:
    """What the server was sent, in a line: the settings as they are, the rest as hashes. Without
    `scores`, those on the pages of search results do not count."""
    body = dict(request.body)
    messages, tools = body.pop("messages"), body.pop("tools", [])
    text = json.dumps(messages, ensure_ascii=False)
    names = " ".join(tool["function"]["name"] for tool in tools) or "none"
    sent = f"{len(messages)} messages {digest(text if scores else without_scores(text))}"
    settings = json.dumps(body, sort_keys=True)
    return f"{request.path} {sent}, tools {names} {digest(tools)}, {settings}"
