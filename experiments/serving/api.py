"""The plain JSON API: one table of endpoints, from which routes, checks and OpenAPI are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from soundingline.experiments.serving import browsecomp_plus, pi_serini
from soundingline.experiments.serving.answers import HOW, answer_text
from soundingline.experiments.serving.endpoint import Body, Endpoint, Schema, record
from soundingline.experiments.serving.errors import RequestRefused
from soundingline.experiments.serving.json_bodies import reply, text_reply
from soundingline.experiments.serving.service import Handout, Service
from soundingline.experiments.serving.sessions import ServedSession
from soundingline.toolkit.search.tool import LARGEST_OFFSET, MAX_CHARACTERS

_HANDLE: Schema = {"type": "string", "description": "The handle of a session."}
_INTERFACE: Schema = {
    "type": "string",
    "description": "Whose tools the session has: tool (as configured), browsecomp_plus, pi_serini.",
}
_TEXT: Schema = {"type": "string"}
_DOCID: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS}
_QUERY: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS}
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": LARGEST_OFFSET}
_NUMBER: Schema = {"type": "integer", "minimum": 0}


async def _status(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    questions = service.questions
    counts = questions and {
        "total": questions.total,
        "answered": questions.answered,
        "under_way": questions.under_way,
        "waiting": questions.waiting,
    }
    return {
        "run": questions.folder.name if questions else None,
        "questions": counts,
        "sessions": len(service.sessions),
        "interfaces": list(service.interfaces),
    }


async def _tools(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    return {"tools": service.specs(_known(service, query.get("interface", "tool")))}


async def _open(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    interface = body.get("interface", "tool")
    return {"session": service.open(interface).handle, "tools": service.specs(interface)}


async def _close(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    service.sessions.drop(service.sessions.get(body["session"]))
    return {"closed": True}


async def _call(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    session = service.sessions.get(body["session"])
    result = await service.call(session, body["tool"], body["arguments"], body.get("reasoning", ""))
    shown = [] if result.page is None else list(getattr(result.page, "shown", ()))
    return {
        "text": result.text,
        "error": result.call.error,
        "shown": shown,
        "seconds": round(result.call.seconds, 6),
    }


async def _question(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    session = service.sessions.get(body["session"]) if "session" in body else None
    return handout(await service.question(session, _known(service, body.get("interface", "tool"))))


async def _submit(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    session = service.sessions.get(body["session"])
    text = answer_text(body["answer"], body.get("explanation", ""), body.get("confidence"))
    return await submitted(service, session, text)


async def _bcp_search(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    k, text, most = body.get("k", 10), body["query"], service.options.max_result_bytes
    # The reply is written in the thread as well: where the event loop wrote it, it would fall
    # behind, and results of many megabytes would wait for it.
    return await service.run(
        lambda: reply(
            browsecomp_plus.whole_hits(service.backend, service.store, text, k), most=most
        )
    )


async def _bcp_document(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    docid = body["docid"]
    return await service.run(lambda: browsecomp_plus.whole_document(service.store, docid))


async def _pi_search(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    return await _pi(service, pi_serini.SEARCH, body, query)


async def _pi_read(service: Service, body: Body, query: Mapping[str, str]) -> Any:
    return await _pi(service, pi_serini.READ, body, query)


async def _pi(service: Service, tool: str, body: Body, query: Mapping[str, str]) -> Response:
    """A call of Pi-Serini's client, whose text is the reply; `?session=` names the session."""
    if "session" in query:
        session = service.sessions.get(query["session"])
        if not isinstance(session.interface, pi_serini.PiSeriniTools):
            message = "this session was not opened with the interface pi_serini"
            raise RequestRefused(409, "wrong_interface", message)
        result = await service.call(session, tool, body)
    else:
        result = await service.call_once("pi_serini", tool, body)
    if result.failed:
        raise RequestRefused(400, result.call.error, result.text)
    return text_reply(result.text)


def handout(question: Handout) -> dict[str, Any]:
    """A question as clients get it; null where none is left."""
    return {
        "session": question.session.handle if question.session else None,
        "qid": question.topic.qid if question.topic else None,
        "question": question.topic.text if question.topic else None,
        "waiting": question.waiting,
        "under_way": question.under_way,
    }


async def submitted(service: Service, session: ServedSession, text: str) -> dict[str, Any]:
    """Submit an answer; how it was read."""
    answer = await service.submit(session, text)
    return {
        "exact": answer.exact,
        "confidence": answer.confidence,
        "citations": list(answer.citations),
    }


def _known(service: Service, interface: str) -> str:
    if interface not in service.interfaces:
        names = ", ".join(service.interfaces)
        raise RequestRefused(400, "unknown_interface", f"the interfaces are: {names}")
    return interface


_TOOLS_RESULT: Schema = {"type": "array", "items": {"type": "object"}}
_NULLABLE: Schema = {"type": ["string", "null"]}
ENDPOINTS = (
    Endpoint("GET", "/status", "Sessions, and how far the run is.", _status),
    Endpoint(
        "GET",
        "/tools",
        "The tools of an interface, in the function-calling form.",
        _tools,
        result=record({"tools": _TOOLS_RESULT}),
        query=("interface",),
    ),
    Endpoint(
        "POST",
        "/open",
        "Open a session without a question.",
        _open,
        body=record({}, interface=_INTERFACE),
        result=record({"session": _HANDLE, "tools": _TOOLS_RESULT}),
    ),
    Endpoint(
        "POST",
        "/question",
        "The run's next question, and the session to work on it.",
        _question,
        body=record({}, session=_HANDLE, interface=_INTERFACE),
        result=record(
            {
                "session": _NULLABLE,
                "qid": _NULLABLE,
                "question": _NULLABLE,
                "waiting": _NUMBER,
                "under_way": _NUMBER,
            }
        ),
    ),
    Endpoint(
        "POST",
        "/call",
        "Call a tool; its text is for the agent.",
        _call,
        body=record(
            {"session": _HANDLE, "tool": _TEXT, "arguments": {"type": "object"}},
            reasoning={"type": "string", "description": "What the agent thought last."},
        ),
        result=record(
            {
                "text": _TEXT,
                "error": _TEXT,
                "seconds": {"type": "number"},
                "shown": {"type": "array", "items": _TEXT},
            }
        ),
    ),
    Endpoint(
        "POST",
        "/submit_answer",
        "Answer the session's question, which ends it.",
        _submit,
        body=record(
            {"session": _HANDLE, "answer": {"type": "string", "description": HOW}},
            explanation=_TEXT,
            confidence={"type": "number", "minimum": 0, "maximum": 100},
        ),
        result=record(
            {
                "exact": _TEXT,
                "confidence": {"type": ["number", "null"]},
                "citations": {"type": "array", "items": _TEXT},
            }
        ),
    ),
    Endpoint(
        "POST",
        "/close",
        "Close a session; its question is handed out again.",
        _close,
        body=record({"session": _HANDLE}),
        result=record({"closed": {"type": "boolean"}}),
    ),
    Endpoint(
        "POST",
        "/browsecomp-plus/search",
        "Hits with whole texts, for their searcher.",
        _bcp_search,
        body=record({"query": _QUERY}, k={**_COUNT, "maximum": browsecomp_plus.MOST_HITS}),
        result={"type": "array", "items": {"type": "object"}},
    ),
    Endpoint(
        "POST",
        "/browsecomp-plus/get_document",
        "A document, or null.",
        _bcp_document,
        body=record({"docid": _DOCID}),
        result={"type": ["object", "null"]},
    ),
    Endpoint(
        "POST",
        "/pi-serini/search",
        "Pi-Serini's contract: rank.",
        _pi_search,
        body=record({"query": _QUERY, "limit": _COUNT}, offset=_COUNT),
        result={"type": "object"},
        query=("session",),
    ),
    Endpoint(
        "POST",
        "/pi-serini/read",
        "Pi-Serini's contract: read lines.",
        _pi_read,
        body=record({"docid": _DOCID}, offset=_COUNT, limit=_COUNT),
        result={"type": "object"},
        query=("session",),
    ),
)
