"""The server's event loop: from the parts of a pipeline to open doors, and to their end."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple

import uvicorn

from soundingline.experiments.serving.app import MCP, SSE, application
from soundingline.experiments.serving.browsecomp_plus import BrowseCompPlusTools
from soundingline.experiments.serving.flight import ReadingClients
from soundingline.experiments.serving.mcp_doors import serve_stdio, taken_names
from soundingline.experiments.serving.options import ServerOptions
from soundingline.experiments.serving.pi_serini import PiSeriniTools
from soundingline.experiments.serving.pi_serini_rpc import HOST, RpcDoor
from soundingline.experiments.serving.recording import QuestionQueue
from soundingline.experiments.serving.service import Service
from soundingline.toolkit.console import EscapingFormatter, notify
from soundingline.toolkit.data import DocumentStore, SearchBackend, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.blocking import run_coroutine
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import TopK
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.snippets import prepare as prepare_snippets

_GRACE = 5  # seconds that open connections have at the end
# Worker threads hold the interpreter for this long before the event loop gets its turn; the
# default of 5 ms is longer than a short request takes.
_SWITCH_SECONDS = 0.0005
_BACKLOG = 2048
_MORE_CONNECTIONS = 100


class Parts(NamedTuple):
    """What is served: the configured tool, the pipeline of a question, the documents, the plain
    values of the retriever, and the ledger of the stages."""

    interface: SearchTool
    backend: Callable[[str], SearchBackend]
    store: DocumentStore
    retriever: Mapping[str, Any]
    ledger: Ledger


def run_server(
    parts: Parts, options: ServerOptions, folder: RunFolder | None, topics: Sequence[Topic]
) -> None:
    """Serve until Ctrl-C or SIGTERM. `folder`, if any, is open for writing, and gets a trajectory
    of each of the `topics` that is answered."""
    questions = QuestionQueue(folder, topics) if folder else None
    with prepared_process(), suppress(KeyboardInterrupt):
        run_coroutine(_serve(parts, options, questions))


async def _serve(parts: Parts, options: ServerOptions, questions: QuestionQueue | None) -> None:
    service = make_service(parts, options, questions)
    if options.stdio:
        await serve_stdio(service)
        await service.close()
        return
    server = http_server(service)
    with listening(options.host, options.port, "port") as listener:
        async with _rpc(service, parts, options):
            started = asyncio.create_task(_tell_address(server, options))
            try:
                with _ended_by_signals():
                    await _serve_until_ended(server, listener)
            finally:
                started.cancel()


async def _serve_until_ended(server: uvicorn.Server, listener: socket.socket) -> None:
    """uvicorn ends at a signal, which it receives in the main thread only; elsewhere, as in a
    notebook, this task is cancelled, and uvicorn must still close its connections."""
    serving = asyncio.ensure_future(server.serve([listener]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await serving
        raise


@contextmanager
def listening(host: str, port: int, name: str) -> Iterator[socket.socket]:
    """A socket that listens; `InputError` where there can be none. `name` is the setting's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} {name}={port}: {error.strerror or error}",
            do=f"choose another {name}=, or stop the process that has it",
        ) from error
    with listener:
        yield listener


def make_service(parts: Parts, options: ServerOptions, questions: QuestionQueue | None) -> Service:
    """The service over these parts; `InputError` where the tool's names are the server's own."""
    interfaces = {
        "tool": parts.interface,
        "browsecomp_plus": BrowseCompPlusTools.like(parts.interface),
        "pi_serini": PiSeriniTools.like(parts.interface),
    }
    service = Service(
        interfaces, parts.backend, parts.store, options, questions=questions, ledger=parts.ledger
    )
    if taken := taken_names([spec["name"] for spec in service.specs("tool")]):
        raise InputError(
            f"the tool has a function {taken[0]}, which the server needs for its own",
            do="give it another name",
        )
    return service


def http_server(service: Service) -> uvicorn.Server:
    """The server of all HTTP doors, which is not started yet."""
    options = service.options
    return uvicorn.Server(
        uvicorn.Config(
            application(service, mcp_interface(service.interfaces["tool"])),
            host=options.host,
            port=options.port,
            http=ReadingClients,
            # A session over SSE has two connections; the rest is for clients without sessions.
            limit_concurrency=2 * options.max_sessions + _MORE_CONNECTIONS,
            log_config=None,
            access_log=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_GRACE,
            ws="none",
        )
    )


def mcp_interface(interface: SearchTool) -> str:
    """The interface at `/mcp`: for `TopK` it is BrowseComp-Plus's form of the same."""
    return "browsecomp_plus" if isinstance(interface, TopK) else "tool"


@asynccontextmanager
async def _rpc(service: Service, parts: Parts, options: ServerOptions) -> AsyncIterator[None]:
    if options.rpc_port is None:
        yield
        return
    settings = service.interfaces["pi_serini"]
    assert isinstance(settings, PiSeriniTools)
    door = RpcDoor(service, settings, parts.retriever)
    with listening(HOST, options.rpc_port, "rpc_port") as listener:
        server = await door.start(listener)
        print(door.ready_line(server), flush=True)
        try:
            yield
        finally:
            await door.close(server)


async def _tell_address(server: uvicorn.Server, options: ServerOptions) -> None:
    while not server.started:
        await asyncio.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    name = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{name}:{port}"
    notify(f"serving at {address}/ (MCP: {address}{MCP}, and {address}{SSE} by SSE)")


@contextmanager
def prepared_process() -> Iterator[None]:
    """What a server of many connections wants of its process, and as it was behind it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter("%(name)s: %(message)s"))
    log = logging.getLogger()
    level, switch = log.level, sys.getswitchinterval()
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What importing made lives as long as the process; walking it would hold up every request.
    prepare_snippets()
    gc.collect()
    gc.freeze()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(switch)
        log.setLevel(level)
        log.removeHandler(handler)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """uvicorn ends well at SIGTERM and raises it again behind that, which would end this process
    before its run is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
