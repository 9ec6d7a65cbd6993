"""Rules for `support.llm_server.Peer`: what a good server says to the requests of the check before
a run, in each of the four APIs, and what one with a fault says."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from support.llm_server import Say

_PLACE = re.compile(r'name \\"(\w+)\\", year (\d+), aliases (.*?)\.')
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def healthy(request):
    """The reply of a good server with a prefix cache."""
    text = json.dumps(request.body)
    words = len(re.findall(r"\w+", text))
    cached = words // 2 if "Recorded" in text or "word: ready" in text else 0
    usage = {"input": words, "cached": cached, "reasoning": 0, "output": 12}
    limit = next((request.body[name] for name in LIMITS if name in request.body), None)
    if "Count from 1 to 500" in text:
        return Say(text="1, 2, 3,", finish="length", usage={**usage, "output": limit})
    places = _PLACE.findall(text)
    forced = "record_place" in json.dumps(request.body.get("tool_choice"))
    forced |= "response_format" in request.body and "record_place" in text
    if "cormorant" in text:  # whether the server constrains replies at all
        return Say(text=json.dumps({"action": {"note": {"word": "cormorant"}}}), usage=usage)
    if not (places or forced):
        return Say(text="ready", usage=usage)
    name, year, aliases = places[-1] if places else ("Oslo", "1048", "")
    arguments = {"name": name, "year": int(year), "aliases": re.findall(r'\\"(\w+)\\"', aliases)}
    if "response_format" in request.body:
        return Say(text=json.dumps({"action": {"record_place": arguments}}), usage=usage)
    return Say(calls=[(f"c{len(places)}", "record_place", json.dumps(arguments))], usage=usage)


def changed(change, only=lambda request: True):
    """The rule of a server that changes the reply of a good one to the requests that are `only`."""

    def rule(request):
        said = healthy(request)
        return change(said) if only(request) else said

    return rule


def second(request):
    """Whether a request has the result of a call."""
    return "Recorded. The next" in json.dumps(request.body)


def plain(request):
    """Whether a request has neither a response format nor a forced call."""
    chosen = "record_place" in json.dumps(request.body.get("tool_choice"))
    return "response_format" not in request.body and not chosen


def counting(request):
    return "Count from 1 to 500" in json.dumps(request.body)


def arguments(**values):
    """A change of the arguments of calls; None leaves one out."""

    def change(said):
        calls = []
        for identifier, name, text in said.calls:
            merged = {**json.loads(text), **values}
            kept = {key: value for key, value in merged.items() if value is not None}
            calls.append((identifier, name, json.dumps(kept)))
        return replace(said, calls=calls)

    return change


def as_text(said):
    """gpt-oss's call without a parser."""
    if not said.calls:
        return said
    _, name, text = said.calls[0]
    written = f"<|channel|>commentary to=functions.{name} <|message|>{text}"
    return replace(said, text=written, calls=())


def with_usage(**counts):
    return lambda said: replace(said, usage={**said.usage, **counts})
