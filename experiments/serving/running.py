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

from experiments.serving.app import SSE, STREAMABLE, application
from experiments.serving.browsecomp_plus import BrowseCompPlusTools
from experiments.serving.mcp_doors import serve_stdio, taken_names
from experiments.serving.options import ServerOptions
from experiments.serving.pi_serini import PiSeriniTools
from experiments.serving.pi_serini_rpc import HOST, RpcDoor
from experiments.serving.recording import QuestionQueue
from experiments.serving.service import Service
from toolkit.console import VisibleFormatter, tell
from toolkit.contracts import DocumentStore, SearchBackend, ToolInterface, Topic
from toolkit.errors import InputError
from toolkit.llm.ledger import Ledger
from toolkit.runs import RunFolder
from toolkit.search import TopK
from toolkit.search.excerpts import prepare as prepare_excerpts

_GRACE = 5  # seconds that open connections have at the end
# Worker threads hold the interpreter for this long before the event loop gets its turn; the
# default of 5 ms is longer than a short request takes.
_SWITCH_SECONDS = 0.0005
_BACKLOG = 2048


class Parts(NamedTuple):
    """What is served: the configured tool, the pipeline of a question, the documents, the plain
    values of the retriever, and the ledger of the stages."""

    interface: ToolInterface
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
        asyncio.run(_serve(parts, options, questions))


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
                    await server.serve([listener])
            finally:
                started.cancel()


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
            application(service, sse_interface(service.interfaces["tool"])),
            host=options.host,
            port=options.port,
            log_config=None,
            access_log=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_GRACE,
            ws="none",
        )
    )


def sse_interface(interface: ToolInterface) -> str:
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
    tell(f"serving at {address}/ (MCP: {address}{SSE} by SSE, {address}{STREAMABLE})")


@contextmanager
def prepared_process() -> Iterator[None]:
    """What a server of many connections wants of its process, and as it was behind it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(VisibleFormatter("%(name)s: %(message)s"))
    log = logging.getLogger()
    level, switch = log.level, sys.getswitchinterval()
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What importing made lives as long as the process; walking it would hold up every request.
    prepare_excerpts()
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
