"""Sessions over one pipeline: opened, called, answered and closed, for any number of clients."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from starlette.exceptions import HTTPException

from soundingline.agents.base import Episode
from soundingline.experiments.rollouts import stops_run
from soundingline.experiments.serve import ServerOptions
from soundingline.toolkit.data import DocumentStore, SearchBackend, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import format_answer, parse_answer
from soundingline.toolkit.search.ranked_browsing import RankedBrowsing
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import ToolResult
from soundingline.toolkit.trajectory import Trajectory

T = TypeVar("T")
ANSWER = (  # how clients are told to send an answer
    "The short exact answer, with explanation and confidence beside it; or one text with the three "
    "lines `Explanation:` (which cites documents as [docid]), `Exact Answer:` and `Confidence:`."
)
_LOG = logging.getLogger(__name__)
_MAX_WAITING = 16  # calls that wait for one session
_NO_TOPIC = Topic("", "")
_NO_QUESTION = "there is no question yet: call question first, and send its session"
compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class ApiError(HTTPException):
    """A request that is refused, with the status of HTTP, a stable word as its `code`, and what to
    do next as its `message`, which is one line."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.code = code
        self.message = " ".join(message.split())
        super().__init__(status, self.message)

    def body(self) -> dict[str, str]:
        """The refusal as a JSON object."""
        return {"error": self.code, "message": self.message}


def finite(score: float) -> float | None:
    """A score as JSON can hold it; None for infinity and NaN."""
    return score if math.isfinite(score) else None


def settings_of(tool: object, kind: type[SearchTool]) -> dict[str, Any]:
    """The settings of a search tool of this kind; empty for another one."""
    if not isinstance(tool, kind):
        return {}
    return {each.name: getattr(tool, each.name) for each in fields(kind) if each.init}


def answer_text(answer: str, explanation: str = "", confidence: float | None = None) -> str:
    """An answer in the three-line format; unchanged if it has the line `Exact Answer:` itself."""
    if not explanation and confidence is None and parse_answer(answer, ()).exact:
        return answer
    return format_answer(explanation, answer, confidence)


class QuestionQueue:
    """The questions, of all `topics`, that a run has not answered yet. No two sessions have the
    same question at the same time. Used on the event loop only, except that files are written in a
    thread. The `folder` of the run is open for writing as long as this is used."""

    def __init__(self, folder: RunFolder, topics: Sequence[Topic]) -> None:
        self.folder = folder
        self.total = len(topics)
        self.answered = 0
        self.stopped = ""
        self._waiting = deque(folder.pending(topics))
        self._under_way: set[str] = set()

    @property
    def counts(self) -> dict[str, int]:
        """The number of questions that no session has, and of those that sessions have."""
        return {"waiting": len(self._waiting), "under_way": len(self._under_way)}

    @property
    def has_next(self) -> bool:
        """Whether a question is left, for now or for good."""
        return bool(self._waiting) and not self.stopped

    def next(self) -> Topic:
        """The next question."""
        topic = self._waiting.popleft()
        self._under_way.add(topic.qid)
        return topic

    def give_back(self, topic: Topic) -> None:
        """Append a question whose session ended without an answer to the end of the queue, so that
        a question which ends every client does not keep them from the others."""
        self._under_way.discard(topic.qid)
        self._waiting.append(topic)

    async def record(self, trajectory: Trajectory) -> None:
        """Write a trajectory, which completes its question."""
        await to_thread.run_sync(self.folder.write, trajectory)
        self._under_way.discard(trajectory.qid)
        self.answered += trajectory.status != "failed"


@dataclass(eq=False)
class ClientSession:
    """One client's session: its tools, and the question that it answers. `tool` is the tool as
    configured, of which each question gets a copy with its own state. Nobody can guess the
    `handle`. The request that is served holds `turn`; `waiting` counts those that are served or
    wait for it. A session that was `left` has lost its connection, so that only search ids lead to
    it."""

    tool: SearchTool
    episode: Episode
    topic: Topic | None = None
    connection: str = ""
    handle: str = field(default_factory=lambda: secrets.token_hex(8))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    calls: int = 0
    closed: bool = False
    left: bool = False
    used: float = field(default_factory=time.monotonic)


class SessionTable:
    """The open sessions, at most `limit`. One that is unused for `idle_seconds` is closed; one that
    was left is closed if a new one needs its place, the least recently used first. `ended` is
    called with each session that is closed. Used on the event loop only."""

    def __init__(
        self, limit: int, idle_seconds: float, ended: Callable[[ClientSession], None]
    ) -> None:
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._ended = ended
        self._open: dict[str, ClientSession] = {}  # the least recently used first
        self._connections: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def make_room(self) -> None:
        """`ApiError` if no further session may be opened."""
        if len(self) < self._limit:
            return
        self.close_idle()
        left = [each for each in self._open.values() if each.left and not each.waiting]
        if len(self) >= self._limit and left:
            self.close(left[0])
        if len(self) >= self._limit:
            raise ApiError(
                503,
                "too_many_sessions",
                f"{len(self)} sessions are open, as many as may be. Close one, or wait.",
            )

    def add(self, session: ClientSession) -> None:
        """Add a new session."""
        self._open[session.handle] = session
        if session.connection:
            self._connections[session.connection] = session.handle

    def get(self, handle: object) -> ClientSession:
        """The open session of a handle."""
        session = self.find(handle)
        if session is None:
            raise ApiError(
                404,
                "unknown_session",
                "there is no such session: it was closed, was idle for too long, or ended with its "
                "connection. Open another one and send its handle; over MCP, keep one connection "
                "open from question to submit_answer.",
            )
        return session

    def find(self, handle: object) -> ClientSession | None:
        """The open session of a handle, or None."""
        session = self._open.pop(handle, None) if isinstance(handle, str) else None
        if session is not None:
            session.used = time.monotonic()
            self._open[session.handle] = session
        return session

    def of_connection(self, connection: str) -> ClientSession | None:
        """The open session of a connection, or None."""
        return self.find(self._connections.get(connection))

    def close(self, session: ClientSession) -> None:
        """Close a session."""
        if self._open.pop(session.handle, None) is None:
            return
        if self._connections.get(session.connection) == session.handle:
            del self._connections[session.connection]
        session.closed = True
        self._ended(session)

    def leave(self, session: ClientSession | None) -> None:
        """Close a session whose connection has ended, unless search ids still lead to it."""
        if session is None:
            return
        tool = session.episode.tool
        if tool.search_id_suffix and tool.exposures.tiers["surfaced"]:
            self._connections.pop(session.connection, None)
            session.left = True
        else:
            self.close(session)

    def close_idle(self) -> None:
        """Close the sessions that are unused for too long."""
        oldest = time.monotonic() - self._idle_seconds
        for session in list(self._open.values()):
            if session.used < oldest and not session.waiting:
                self.close(session)

    async def close_idle_forever(self) -> None:
        """`close_idle` at regular times, until cancelled."""
        while True:
            await asyncio.sleep(min(30.0, self._idle_seconds / 4))
            self.close_idle()


class Service:
    """All sessions of a server. Used on the event loop only; searches, reading and writing are done
    in threads, so that a slow one delays its own session only.

    Args:
        search_tools: those that a session can be opened with, by name.
        backend: returns the pipeline of a question by its id; of the empty one, that of none.
        store, options: the documents, and the bounds.
        questions: the run, if one is recorded. A session then has tools only while it has a
            question, and each answer becomes a trajectory.
        ledger: where the stages of the pipeline record their requests.
    """

    def __init__(
        self,
        search_tools: Mapping[str, SearchTool],
        backend: Callable[[str], SearchBackend],
        store: DocumentStore,
        options: ServerOptions,
        *,
        questions: QuestionQueue | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.search_tools = search_tools
        self.backend = backend("")
        self.store = store
        self.options = options
        self.questions = questions
        self.ledger = ledger or Ledger()
        self._backend_of = backend
        self._threads = anyio.CapacityLimiter(options.threads)
        self.sessions = SessionTable(options.max_sessions, options.idle_seconds, self._ended)

    def open(
        self, search_tool: str = "tool", connection: str = "", *, named: bool = False
    ) -> ClientSession:
        """Open a session without a question, which belongs to the `connection` if there is one.
        Search ids of a `named` one carry its handle (`s1@<handle>`)."""
        self.sessions.make_room()
        tool = self.tool(search_tool)
        session = ClientSession(
            self.search_tools[search_tool], Episode(_NO_TOPIC, tool), connection=connection
        )
        if named and isinstance(tool, RankedBrowsing):
            tool.search_id_suffix = f"@{session.handle}"
        tool.keeps_calls = self.questions is not None
        self.sessions.add(session)
        return session

    def of_search_id(self, search_id: object) -> ClientSession | None:
        """The open session whose handle a search id carries, or None."""
        _, _, handle = search_id.rpartition("@") if isinstance(search_id, str) else ("", "", "")
        return self.sessions.find(handle)

    def specs(self, search_tool: str) -> list[dict[str, Any]]:
        """The schemas of the functions of a search tool."""
        return self.tool(search_tool).specs()

    async def run(self, function: Callable[[], T]) -> T:
        """What `function`, which belongs to no session, returns, in a thread; `ApiError` for what
        it raises, and if a run is recorded."""
        if self.questions is not None:
            raise ApiError(
                409,
                "recorded",
                f"the run {self.questions.folder.name} is being recorded, and this request belongs "
                "to no session. Call question first, and send its session; or serve without name=.",
            )
        try:
            return await to_thread.run_sync(function, limiter=self._threads)
        except ApiError:
            raise
        except Exception as error:
            raise _defect(error) from error

    async def call(
        self, session: ClientSession, name: str, arguments: Any, reasoning: str = ""
    ) -> ToolResult:
        """Serve a tool call of a session. `reasoning` is what the agent thought before it."""
        async with self._turn(session):
            if session.calls >= self.options.max_calls:
                raise ApiError(
                    429,
                    "out_of_calls",
                    f"this session has made its {self.options.max_calls} calls. Give the answer, "
                    "or open another session.",
                )
            session.calls += 1
            session.episode.tool.reasoning = reasoning
            return await self._serve(session, name, arguments)

    @asynccontextmanager
    async def _turn(self, session: ClientSession) -> AsyncIterator[None]:
        """The session's turn for one request, which is completed even if its client has gone: two
        calls must not use a session at the same time, and an answer must not be lost."""
        if session.waiting >= _MAX_WAITING:
            raise ApiError(429, "too_many_calls", "too many calls wait for this session")
        session.waiting += 1
        try:
            with anyio.CancelScope(shield=True):
                async with session.turn:
                    if session.closed:
                        raise ApiError(404, "unknown_session", "this session has been closed")
                    if self.questions is not None and session.topic is None:
                        raise ApiError(409, "no_question", _NO_QUESTION)
                    yield
        finally:
            session.waiting -= 1
            session.used = time.monotonic()
            if session.closed:
                self._give_back(session)

    async def _serve(self, session: ClientSession, name: str, arguments: Any) -> ToolResult:
        # Nobody reads the messages if no run is recorded, and their texts would fill the memory.
        call = session.episode.call if self.questions is not None else session.episode.tool.call
        mapping = arguments if isinstance(arguments, Mapping) else {"arguments": arguments}
        try:
            return await to_thread.run_sync(call, name, mapping, limiter=self._threads)
        except Exception as error:
            if (questions := self.questions) is not None:
                # The question of a pipeline that fails is recorded as `failed`.
                trajectory = session.episode.ended_by(error)
                if stops_run(trajectory.reason):
                    questions.stopped = trajectory.reason
                try:
                    await questions.record(trajectory)
                except InputError as unwritten:
                    raise _defect(unwritten) from error
                self._begin(session, None)
            raise _defect(error) from error

    async def next_question(
        self, session: ClientSession | None, search_tool: str = "tool", connection: str = ""
    ) -> dict[str, Any]:
        """The question of the session, or the next one of the run, for which a session is opened
        if there is none. As the reply to a client, with the counts of questions that are not
        answered, and null for a question or session that there is not."""
        questions = self._recorded()
        topic = session.topic if session else None
        if topic is None and questions.has_next:
            session = session or self.open(search_tool, connection)
            topic = questions.next()
            self._begin(session, topic)
        return {
            "session": session.handle if session else None,
            "qid": topic.qid if topic else None,
            "question": topic.text if topic else None,
            **questions.counts,
        }

    async def submit(self, session: ClientSession, text: str) -> dict[str, Any]:
        """Record the session's answer, in the three-line format, and reply how it was read. It ends
        the question, whose trajectory is on disk when this returns."""
        questions = self._recorded()
        async with self._turn(session):
            episode, before = session.episode, len(session.episode.messages)
            try:
                episode.finish(text)
                await episode.read_answer()
                trajectory = episode.trajectory()
                usage = self.ledger.usage(trajectory.qid)
                await questions.record(replace(trajectory, usage=usage))
            except InputError as error:
                del episode.messages[before:]  # the same answer may be sent again
                raise ApiError(507, "not_written", str(error)) from error
            self._begin(session, None)
            answer = trajectory.answer
            return {
                "exact": answer.exact,
                "confidence": answer.confidence,
                "citations": list(answer.citations),
            }

    def _recorded(self) -> QuestionQueue:
        if self.questions is None:
            raise ApiError(
                409,
                "no_run",
                "this server records no run, so that it has no questions: start it with name=...",
            )
        return self.questions

    def _ended(self, session: ClientSession) -> None:
        """Give the question of a closed session back, after the call that is under way."""
        if not session.waiting:
            self._give_back(session)

    def _give_back(self, session: ClientSession) -> None:
        if session.topic is not None and self.questions is not None:
            self.questions.give_back(session.topic)
            session.topic = None

    def _begin(self, session: ClientSession, topic: Topic | None) -> None:
        """Begin a question, or none, with a tool that has no state yet."""
        tool = session.tool.open(self._backend_of(topic.qid if topic else ""), self.store)
        session.topic, session.episode, session.calls = topic, Episode(topic or _NO_TOPIC, tool), 0

    def tool(self, search_tool: str) -> SearchTool:
        """A session of a search tool, without a question."""
        if search_tool not in self.search_tools:
            names = ", ".join(self.search_tools)
            raise ApiError(400, "unknown_interface", f"the interfaces are: {names}")
        return self.search_tools[search_tool].open(self.backend, self.store)


def _defect(error: Exception) -> ApiError:
    """What a pipeline raised, in one line."""
    if isinstance(error, InputError):
        return ApiError(500, "pipeline", str(error))
    _LOG.error("a request failed", exc_info=error)
    line = f"{type(error).__name__} in the pipeline; the server's log has its traceback"
    return ApiError(500, "pipeline", line)
