"""A server that speaks the four APIs and says what a test tells it to.

`Peer.script` holds the steps of the next requests, in order; when it is empty, `Peer.default` is
said. A step may be a function, which is given the request and returns the step: a rule of the
server. Every request is recorded, as it came.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True)
class Say:
    """A reply. `finish` is one of stop, length, refusal, overflow, or the server's own word (of the
    Responses API a status, or a status and a reason: `incomplete:steered`). `usage` is input (all
    of it), cached, reasoning, output, and optionally what was written to a cache, `written`, and
    `written_long` of it for the longer lifetime; None leaves it out. `calls` are (id, name,
    arguments as text). `top` are the likeliest tokens and their probabilities at each place of the
    text, the written one first; only chat completions give them, and only where they are asked for.
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, str, str]] = ()
    finish: str = "stop"
    usage: Mapping[str, int] | None = field(
        default_factory=lambda: {"input": 100, "cached": 80, "reasoning": 5, "output": 20}
    )
    top: Sequence[Mapping[str, float]] = ()


@dataclass(frozen=True)
class Fail:
    """An HTTP error with the API's own error body, or with `raw` as the body."""

    status: int
    message: str = "no"
    kind: str = "some_error"
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: str | None = None


@dataclass(frozen=True)
class Cut:
    """A reply whose connection ends in its middle."""

    reply: Say = field(default_factory=lambda: Say(text="never whole " * 50))


@dataclass(frozen=True)
class Stall:
    """Nothing for `seconds` or until `Peer.reset`, then a reply that nobody may still want."""

    seconds: float


@dataclass(frozen=True)
class Raw:
    """Status 200 and this body, whatever it is."""

    body: str
    content_type: str = "application/json"


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


class Peer:
    """A running server, whose address ends in `/v1` for the clients of OpenAI's APIs."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.script = deque()
        self.default = Say(text="done")
        self.requests = []
        self.most_in_flight = 0
        self.version = None  # what /version replies, as vLLM does
        self.models = None  # the names in the list of models; None: there is no such list
        self.window = None  # the context window that the list states, as vLLM does
        self.properties = None  # what /props replies, as llama.cpp does
        self.gathered = 0  # so many must have been in flight at once before any has a reply
        self._in_flight = 0
        self._lock = threading.Lock()
        self._released = threading.Event()

    @property
    def openai_url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def anthropic_url(self):
        return f"http://127.0.0.1:{self.port}"

    def reset(self):
        """As at the start, with nothing in flight."""
        self._released.set()
        while self._in_flight:
            time.sleep(0.001)
        self._released.clear()
        self.script.clear()
        self.requests.clear()
        self.default = Say(text="done")
        self.models = self.window = self.properties = None
        self.most_in_flight = self.gathered = 0

    def stall(self, seconds):
        self._released.wait(seconds)

    def enter(self, request):
        with self._lock:
            self.requests.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            step = self.script.popleft() if self.script else self.default
        until = time.monotonic() + 60
        while self.most_in_flight < self.gathered and time.monotonic() < until:
            time.sleep(0.001)
        return step

    def leave(self):
        with self._lock:
            self._in_flight -= 1


@contextmanager
def running_peer():
    server = _Server(("127.0.0.1", 0), _Handler)
    server.peer = Peer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.peer
    finally:
        server.peer.reset()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    peer: Peer

    def handle_error(self, request, client_address):
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Headers and body in one packet, or delayed acknowledgements cost 40 ms.
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format, *args):
        pass

    def do_GET(self):
        peer = self.server.peer
        if self.path.partition("?")[0].endswith("/models"):
            more = {"max_model_len": peer.window} if peer.window else {}
            more |= {"owned_by": "llamacpp"} if peer.properties else {}
            listed = [{"id": name, **more} for name in peer.models or ()]
            status = 501 if peer.models is None else 200
            self._write(status, json.dumps({"data": listed}), "application/json")
            return
        if self.path == "/props" and peer.properties is not None:
            self._write(200, json.dumps(peer.properties), "application/json")
            return
        known = self.path == "/version" and peer.version is not None
        text = json.dumps({"version": peer.version})
        self._write(200 if known else 404, text, "application/json")

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        peer = self.server.peer
        request = Request(self.path, dict(self.headers), body)
        step = peer.enter(request)
        if callable(step):
            step = step(request)
        if isinstance(step, Stall):
            peer.stall(step.seconds)
            step = Say(text="too late")
        peer.leave()  # Before the answer, after which the client may send its next at once.
        self._answer(step, body)

    def _answer(self, step, body):
        if isinstance(step, Fail):
            text = error_body(self.path, step) if step.raw is None else step.raw
            self._write(step.status, text, "application/json", step.headers)
        elif isinstance(step, Raw):
            self._write(200, step.body, step.content_type)
        else:
            reply = step.reply if isinstance(step, Cut) else step
            text = RENDER[self.path](reply, str(body.get("model")))
            if self.path == CHAT and body.get("logprobs"):
                text = with_logprobs(text, reply.top)
            kind = "text/event-stream" if body.get("stream") else "application/json"
            self._write(200, text, kind, cut=isinstance(step, Cut))

    def _write(self, status, text, content_type, headers=None, *, cut=False):
        data = text.encode("utf-8", "surrogatepass")
        self.send_response(status)
        for name, value in {"content-type": content_type, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        self.wfile.flush()
        if cut:
            self.close_connection = True


def error_body(path, step):
    if path == MESSAGES:
        error = {"type": step.kind, "message": step.message}
        return json.dumps({"type": "error", "error": error})
    error = {"message": step.message, "type": "error", "param": None, "code": step.kind}
    return json.dumps({"error": error})


def chat_body(reply, model):
    message = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": arguments}}
            for one, name, arguments in reply.calls
        ]
    finish = {"refusal": "content_filter"}.get(reply.finish, reply.finish)
    if finish == "stop" and reply.calls:
        finish = "tool_calls"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    body = {"id": "c1", "object": "chat.completion", "model": f"{model}-served"}
    body["choices"] = [choice]
    return json.dumps({**body, **completion_usage(reply)})


def completions_body(reply, model):
    finish = {"refusal": "content_filter"}.get(reply.finish, reply.finish)
    choice = {"index": 0, "text": reply.text, "finish_reason": finish}
    body = {"id": "c1", "object": "text_completion", "model": f"{model}-served"}
    return json.dumps({**body, "choices": [choice], **completion_usage(reply)})


def completion_usage(reply):
    if reply.usage is None:
        return {}
    usage = {
        "prompt_tokens": reply.usage["input"],
        "completion_tokens": reply.usage["output"],
        "prompt_tokens_details": {
            "cached_tokens": reply.usage["cached"],
            "cache_write_tokens": reply.usage.get("written", 0),
        },
        "completion_tokens_details": {"reasoning_tokens": reply.usage["reasoning"]},
    }
    return {"usage": usage}


def with_logprobs(body, places):
    """A chat completion with what OpenAI and vLLM give beside the message."""
    value = json.loads(body)
    content = []
    for place in places:
        listed = [{"token": text, "logprob": math.log(share)} for text, share in place.items()]
        content.append({**listed[0], "bytes": None, "top_logprobs": listed})
    value["choices"][0]["logprobs"] = {"content": content or None}
    return json.dumps(value)


def responses_body(reply, model):
    output = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        output.append(
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": summary,
                "encrypted_content": "opaque==",
                "status": None,
            }
        )
    if reply.text:
        kind = "refusal" if reply.finish == "refusal" else "output_text"
        part = {"type": kind, "refusal" if kind == "refusal" else "text": reply.text}
        output.append({"type": "message", "id": "m1", "role": "assistant", "content": [part]})
    output += [
        {
            "type": "function_call",
            "id": f"fc_{one}",
            "call_id": one,
            "name": name,
            "arguments": text,
        }
        for one, name, text in reply.calls
    ]
    body = {"id": "r1", "object": "response", "model": f"{model}-served"}
    body |= {"output": output, "status": "completed", "error": None, "incomplete_details": None}
    status = {"stop": "completed", "refusal": "completed", "length": "incomplete:max_output_tokens"}
    word, _, reason = status.get(reply.finish, reply.finish).partition(":")
    body |= {"status": word, "incomplete_details": {"reason": reason} if reason else None}
    if reply.usage is not None:
        written, written_long = reply.usage.get("written", 0), reply.usage.get("written_long", 0)
        body["usage"] = {
            "input_tokens": reply.usage["input"],
            "output_tokens": reply.usage["output"],
            "total_tokens": reply.usage["input"] + reply.usage["output"],
            "input_tokens_details": {
                "cached_tokens": reply.usage["cached"],
                "cache_write_tokens": written,
                "cache_write_tokens_details": {
                    "ttl_30m_tokens": written - written_long,
                    "ttl_12h_tokens": written_long,
                },
            },
            "output_tokens_details": {"reasoning_tokens": reply.usage["reasoning"]},
        }
    return json.dumps(body)


def messages_body(reply, model):
    """The stream's events. `input_tokens` excludes the cached ones, as the API has it."""
    usage = {"input_tokens": 0, "output_tokens": 1}
    final = {"output_tokens": 1}
    if reply.usage is not None:
        cached, written = reply.usage["cached"], reply.usage.get("written", 0)
        written_long = reply.usage.get("written_long", 0)
        usage = {
            "input_tokens": reply.usage["input"] - cached - written,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
            "output_tokens": 1,
        }
        if written:
            usage["cache_creation"] = {
                "ephemeral_5m_input_tokens": written - written_long,
                "ephemeral_1h_input_tokens": written_long,
            }
        thinking = {"thinking_tokens": reply.usage["reasoning"]}
        final = {"output_tokens": reply.usage["output"], "output_tokens_details": thinking}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": f"{model}-served",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events = [{"type": "message_start", "message": message}]
    for index, (block, deltas) in enumerate(_message_blocks(reply)):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    reason = {
        "stop": "tool_use" if reply.calls else "end_turn",
        "length": "max_tokens",
        "overflow": "model_context_window_exceeded",
    }.get(reply.finish, reply.finish)
    delta = {"stop_reason": reason, "stop_sequence": None}
    events += [{"type": "message_delta", "delta": delta, "usage": final}, {"type": "message_stop"}]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def _message_blocks(reply):
    if reply.reasoning:
        yield (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                *({"type": "thinking_delta", "thinking": part} for part in halves(reply.reasoning)),
                {"type": "signature_delta", "signature": "signed=="},
            ],
        )
    if reply.text:
        yield (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": part} for part in halves(reply.text)],
        )
    for one, name, arguments in reply.calls:
        yield (
            {"type": "tool_use", "id": one, "name": name, "input": {}},
            [{"type": "input_json_delta", "partial_json": part} for part in halves(arguments)],
        )


def halves(text):
    return text[: len(text) // 2], text[len(text) // 2 :]


RENDER = {
    CHAT: chat_body,
    COMPLETIONS: completions_body,
    RESPONSES: responses_body,
    MESSAGES: messages_body,
}
