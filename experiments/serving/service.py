"""Sessions over one pipeline: opened, called, answered and dropped, for any number of clients."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from soundingline.agents.base import Episode
from soundingline.experiments.rollouts import stops_run
from soundingline.experiments.serving.errors import RequestRefused
from soundingline.experiments.serving.flight import BytesInFlight
from soundingline.experiments.serving.options import ServerOptions
from soundingline.experiments.serving.recording import QuestionQueue
from soundingline.experiments.serving.sessions import NO_TOPIC, ServedSession, SessionTable
from soundingline.experiments.serving.threads import Threads
from soundingline.toolkit.data import DocumentStore, SearchBackend, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.search.ranked_browsing import Browsing
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import ToolResult
from soundingline.toolkit.trajectory import Answer

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_MOST_WAITING = 16  # calls that wait for one session
_NO_QUESTION = "there is no question yet: call question first, and send its session"


class Handout(NamedTuple):
    """A question and the session that works on it; `topic` is None where none is left. `waiting`
    and `under_way` count the questions of the run that are not answered."""

    session: ServedSession | None
    topic: Topic | None
    waiting: int
    under_way: int


class Service:
    """All sessions of a server. Every method belongs to the event loop; searches, reading and
    writing are done in threads, so that a slow one holds up its own session only.

    `interfaces` are the tools that a session can be opened with, by name; `backend` gives the
    pipeline of one question. With `questions`, a session has tools only while it works on one, and
    each answer becomes a trajectory of the run.
    """

    def __init__(
        self,
        interfaces: Mapping[str, SearchTool],
        backend: Callable[[str], SearchBackend],
        store: DocumentStore,
        options: ServerOptions,
        *,
        questions: QuestionQueue | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.interfaces = interfaces
        self.backend = backend("")
        self.store = store
        self.options = options
        self.questions = questions
        self.ledger = ledger or Ledger()
        self.in_flight = BytesInFlight(options.max_bytes_in_flight)
        self.began = time.perf_counter()
        self._backend_of = backend
        self._threads = Threads(options.threads)
        self.sessions = SessionTable(options.max_sessions, options.idle_seconds, self._ended)

    def open(
        self, interface: str = "tool", connection: str = "", *, named: bool = False
    ) -> ServedSession:
        """A new session without a question; `connection` is the one that it belongs to. `named`:
        its search ids carry its handle (`s1@<handle>`), so that they lead back to it."""
        if interface not in self.interfaces:
            names = ", ".join(self.interfaces)
            raise RequestRefused(400, "unknown_interface", f"the interfaces are: {names}")
        self.sessions.make_room()
        tool = self._tool(interface, "")
        episode = Episode(NO_TOPIC, tool)
        session = ServedSession(self.interfaces[interface], episode, connection=connection)
        if named and isinstance(tool, Browsing):
            tool.search_id_suffix = f"@{session.handle}"
        tool.keeps_calls = self.questions is not None
        self.sessions.add(session)
        return session

    def of_connection(
        self, connection: str, interface: str = "tool", *, named: bool = False
    ) -> ServedSession:
        """The session of a connection, opened with its first call as `open` does."""
        return self.sessions.of_connection(connection) or self.open(
            interface, connection, named=named
        )

    def of_search_id(self, search_id: object) -> ServedSession | None:
        """The session whose handle a search id carries; None where it carries none that is open."""
        _, _, handle = search_id.rpartition("@") if isinstance(search_id, str) else ("", "", "")
        return self.sessions.find(handle)

    async def close(self) -> None:
        """Let what has begun end. Trajectories that were being written are on disk."""
        await self._threads.close()

    def specs(self, interface: str) -> list[dict[str, Any]]:
        """The tools of an interface, as its sessions describe them."""
        return self._tool(interface, "").specs()

    # Calls.

    async def call(
        self, session: ServedSession, name: str, arguments: Any, reasoning: str = ""
    ) -> ToolResult:
        """Serve one tool call of a session."""
        return await self._threads.whole(self._call(session, name, arguments, reasoning))

    async def call_once(self, interface: str, name: str, arguments: Any) -> ToolResult:
        """Serve a tool call that belongs to no session, which no run can record."""
        self.refuse_unrecorded()
        tool = self._tool(interface, "")
        return await self._guarded(lambda: tool.call(name, arguments))

    async def run(self, work: Callable[[], T]) -> T:
        """Do work that belongs to no session in a thread."""
        self.refuse_unrecorded()
        return await self._guarded(work)

    def refuse_unrecorded(self) -> None:
        """Refuse what would be served outside the run that is recorded."""
        if self.questions is not None:
            raise RequestRefused(
                409,
                "recorded",
                f"the run {self.questions.folder.name} is being recorded, and this request belongs "
                "to no session. Call question first, and send its session; or serve without name=.",
            )

    async def _call(
        self, session: ServedSession, name: str, arguments: Any, reasoning: str
    ) -> ToolResult:
        if session.waiting >= _MOST_WAITING:
            raise RequestRefused(429, "too_many_calls", "too many calls wait for this session")
        session.waiting += 1
        try:
            async with session.turn:
                self._check_open(session)
                session.calls += 1
                session.episode.tool.reasoning = reasoning
                return await self._served(session, name, arguments)
        finally:
            session.waiting -= 1
            session.used = time.monotonic()

    def _check_open(self, session: ServedSession) -> None:
        if session.closed:
            raise RequestRefused(404, "unknown_session", "this session has been closed")
        if self.questions is not None and session.topic is None:
            raise RequestRefused(409, "no_question", _NO_QUESTION)
        if session.calls >= self.options.max_calls:
            raise RequestRefused(
                429,
                "out_of_calls",
                f"this session has made its {self.options.max_calls} calls. Give the answer, or "
                "open another session.",
            )

    async def _served(self, session: ServedSession, name: str, arguments: Any) -> ToolResult:
        # Without a run, nobody asks for the messages, and their texts would fill the memory.
        call = session.episode.call if self.questions is not None else session.episode.tool.call
        named = name if isinstance(name, str) else repr(name)
        mapping = arguments if isinstance(arguments, Mapping) else {"arguments": arguments}
        try:
            return await self._threads.run(lambda: call(named, mapping))
        except RequestRefused:
            raise
        except Exception as error:
            if self.questions is None:
                raise self._defect(error) from error
            try:
                await self._failed(session, error)
            except InputError as unwritten:
                raise self._defect(unwritten) from error
            raise self._defect(error) from error

    async def _failed(self, session: ServedSession, error: Exception) -> None:
        """End a question whose pipeline is broken, as a run does: with its traceback on record."""
        assert self.questions is not None
        trajectory = session.episode.ended_by(error)
        if stops_run(trajectory.reason):
            self.questions.stopped = trajectory.reason
        await self.questions.record(trajectory)
        session.begin(None, self._tool_of(session.interface, ""))

    # Questions and answers.

    async def question(
        self, session: ServedSession | None, interface: str = "tool", connection: str = ""
    ) -> Handout:
        """The question that the session works on, or the next one of the run. Without a session, a
        new one is opened for it."""
        questions = self._recorded()
        if session is None or session.topic is None:
            if not questions.waiting or questions.stopped:
                return Handout(session, None, questions.waiting, questions.under_way)
            session = session or self.open(interface, connection)
            topic = questions.next()
            session.begin(topic, self._tool_of(session.interface, topic.qid if topic else ""))
        return Handout(session, session.topic, questions.waiting, questions.under_way)

    async def submit(self, session: ServedSession, text: str) -> Answer:
        """The session's answer, in the three-line format. It ends the question, whose trajectory is
        on disk when this returns."""
        return await self._threads.whole(self._submit(session, text))

    async def _submit(self, session: ServedSession, text: str) -> Answer:
        questions = self._recorded()
        async with session.turn:
            if session.closed:
                raise RequestRefused(404, "unknown_session", "this session has been closed")
            if session.topic is None:
                raise RequestRefused(409, "no_question", _NO_QUESTION)
            episode, before = session.episode, len(session.episode.messages)
            try:
                episode.finish(text)
                await episode.read_answer()
                trajectory = episode.trajectory()
                usage = self.ledger.usage(session.topic.qid)
                await questions.record(replace(trajectory, usage=usage))
            except InputError as error:
                del episode.messages[before:]  # the same answer may be sent again
                raise RequestRefused(507, "not_written", str(error)) from error
            session.begin(None, self._tool_of(session.interface, ""))
            return trajectory.answer

    def _recorded(self) -> QuestionQueue:
        if self.questions is None:
            raise RequestRefused(
                409,
                "no_run",
                "this server records no run, so that it has no questions: start it with name=...",
            )
        return self.questions

    def _ended(self, session: ServedSession) -> None:
        """Hand out the question of a closed session again, behind the call that is under way."""
        if session.turn.locked():
            self._threads.task(self._give_back_later(session))
        else:
            self._give_back(session)

    async def _give_back_later(self, session: ServedSession) -> None:
        async with session.turn:
            self._give_back(session)

    def _give_back(self, session: ServedSession) -> None:
        if session.topic is not None and self.questions is not None:
            self.questions.give_back(session.topic)
            session.topic = None

    # Threads.

    def _tool(self, interface: str, qid: str) -> SearchTool:
        return self._tool_of(self.interfaces[interface], qid)

    def _tool_of(self, interface: SearchTool, qid: str) -> SearchTool:
        return interface.open(self._backend_of(qid), self.store)

    async def _guarded(self, work: Callable[[], T]) -> T:
        """Work in a thread; what it raises is told in one line."""
        try:
            return await self._threads.run(work)
        except RequestRefused:
            raise
        except Exception as error:
            raise self._defect(error) from error

    def _defect(self, error: Exception) -> RequestRefused:
        if isinstance(error, InputError):
            return RequestRefused(500, "pipeline", str(error))
        _LOG.error("a request failed", exc_info=error)
        line = f"{type(error).__name__} in the pipeline; the server's log has its traceback"
        return RequestRefused(500, "pipeline", line)
