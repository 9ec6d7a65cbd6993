"""`soundingline serve`: any agent searches through a pipeline, and is measured. One process serves
the pipeline over MCP, JSON over HTTP and the protocols of BrowseComp-Plus and Pi-Serini. With
`name=x`, clients ask for the questions of the benchmark, and each answer becomes a trajectory of
run x, which `soundingline evaluate runs/x` measures like any other."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from soundingline.agents.base import Budget
from soundingline.experiments.build import make, make_search_tool
from soundingline.experiments.config import Settings
from soundingline.experiments.naming import RANKING, factors, fingerprints
from soundingline.experiments.pipeline import (
    BoundPipeline,
    build_pipeline,
    parts_of,
    with_literature_tools,
)
from soundingline.experiments.run_context import open_run
from soundingline.experiments.serve import ServerOptions
from soundingline.pipelines.backend import PipelineBackend
from soundingline.toolkit.console import EscapingFormatter, notify
from soundingline.toolkit.data import DocumentStore, SearchBackend
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint, mark_obfuscated
from soundingline.toolkit.llm.blocking import run_coroutine
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.optional import check_optional
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import SINGLE_RUN, check_kind
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.snippets import load_tables as prepare_snippets

if TYPE_CHECKING:  # not in the core install
    from soundingline.experiments.serve.sessions import QuestionQueue, Service

_GROUPS = (*RANKING, "tool")
READ_SECONDS = 30.0  # in which a client must read something of what it was sent
# Worker threads hold the interpreter for this long before the event loop gets its turn; the
# default of 5 ms is longer than a short request takes.
_SWITCH_SECONDS = 0.0005


def serve(settings: Settings, *, options: ServerOptions) -> None:
    """Serve a pipeline to agents over MCP and HTTP.

    Until Ctrl-C or SIGTERM, or, over standard streams, until the client has gone. With `name=`, the
    questions of the benchmark are handed out, and a run folder records the answers.
    """
    options.check()
    for package in ("fastapi", "uvicorn", "mcp"):
        check_optional(package)
    config = settings.config
    search_tool = make_search_tool(config.tool)
    folder = RunFolder.named(config.paths.runs, config.name) if config.name else None
    if folder:
        check_kind(folder.path, SINGLE_RUN)
    built = build_pipeline(config, make(config.budget))
    search_tool, operator_prints = with_literature_tools(search_tool, built, config)
    with _started(settings, options.client, folder, search_tool, built, operator_prints) as ledger:
        from soundingline.experiments.serve.sessions import QuestionQueue

        questions = QuestionQueue(folder, built.benchmark.topics) if folder else None
        backend = PipelineBackend(built.pipeline)
        with prepared_process(), suppress(KeyboardInterrupt):
            service = make_service(
                search_tool,
                backend.for_question,
                built.collection.store,
                options,
                questions=questions,
                ledger=ledger,
            )
            run_coroutine(_serve(service))
    if folder:
        done, total = len(folder.done()), len(built.benchmark.topics)
        notify(
            f"{done} of {total} questions are answered; measure them by: "
            f"soundingline evaluate {folder.path}"
        )


@contextmanager
def _started(
    settings: Settings,
    client: str,
    folder: RunFolder | None,
    search_tool: SearchTool,
    built: BoundPipeline,
    operator_prints: Mapping[str, str],
) -> Iterator[Ledger]:
    """The language models of the stages run as long as the block, which gets the ledger of their
    requests: that of the run in `folder` by the agent `client`, if a run is recorded."""
    budget: Budget = make(settings.config.budget)
    if folder is None:
        logs = Path(settings.config.paths.runs)
        if built.obfuscated:
            logs /= "served"
            mark_obfuscated(logs)
        ledger = Ledger(cap=budget.run_dollars, question_cap=budget.dollars)
        with built.stages.asking(ledger, logs):
            yield ledger
        return
    groups = (*_GROUPS, "scorer", "list_reranker") if operator_prints else _GROUPS
    prints = {**fingerprints(settings, built, groups), **operator_prints}
    prints["agent"] = fingerprint("client", client)  # two would be one row of a table
    chosen = {**factors(settings, groups), "agent": client}
    settings.config.logger = None  # the run has no measures yet
    with (
        open_run(settings, folder, prints, chosen, budget, question_cap=True) as run,
        run.running(built.stages, parts_of(search_tool, built), timed=False),
    ):
        yield run.ledger


async def _serve(service: Service) -> None:
    from soundingline.experiments.serve.http import http_server
    from soundingline.experiments.serve.mcp import serve_stdio

    options = service.options
    if options.stdio:
        await serve_stdio(service)
        return
    server = http_server(service)
    with listen(options.host, options.port) as listener, _ended_by_signals():
        host, port = options.host, listener.getsockname()[1]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        notify(f"serving at {address}/ (MCP: {address}/mcp, and {address}/sse by SSE)")
        # uvicorn ends at a signal, which it receives in the main thread only; elsewhere, as in a
        # notebook, this task is cancelled, and uvicorn must still close its connections.
        serving = asyncio.ensure_future(server.serve([listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True
            await serving
            raise


def make_service(
    tool: SearchTool,
    backend: Callable[[str], SearchBackend],
    store: DocumentStore,
    options: ServerOptions,
    *,
    questions: QuestionQueue | None = None,
    ledger: Ledger | None = None,
) -> Service:
    """The service over a tool and its forms for the clients of BrowseComp-Plus and Pi-Serini.
    `InputError` if the tool has a function of a name that the server uses."""
    from soundingline.experiments.serve.foreign_tools import BrowseCompPlusTools, PiSeriniTools
    from soundingline.experiments.serve.mcp import SESSION_TOOLS
    from soundingline.experiments.serve.sessions import Service

    search_tools = {
        "tool": tool,
        "browsecomp_plus": BrowseCompPlusTools.like(tool),
        "pi_serini": PiSeriniTools.like(tool),
    }
    service = Service(search_tools, backend, store, options, questions=questions, ledger=ledger)
    for spec in service.specs("tool"):
        if spec["name"] in SESSION_TOOLS:
            raise InputError(
                f"the tool has a function {spec['name']}, which the server needs for its own",
                do="give it another name",
            )
    return service


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port={port}: {error.strerror or error}",
            do="choose another port=, or stop the process that has it",
        ) from error
    # Connections inherit it. Headers and body are sent apart, and on a kept connection the body
    # would wait until the client's system acknowledges the headers, which takes 40 ms. asyncio sets
    # it only for sockets whose protocol is given.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux: it drops a client that does not read
        milliseconds = round(1000 * READ_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listener


@contextmanager
def prepared_process() -> Iterator[None]:
    """What a server of many connections needs of its process; undone afterwards."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter("%(name)s: %(message)s"))
    log = logging.getLogger()
    level, switch = log.level, sys.getswitchinterval()
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Imported objects live as long as the process; walking them would delay every request.
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
    """uvicorn ends well at SIGTERM and then raises it again, which would end this process before
    its run is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
