"""`soundingline serve`: any agent searches through a pipeline, and is measured.

One process serves the pipeline over MCP, JSON over HTTP and the protocols of BrowseComp-Plus and
Pi-Serini. With `name=x`, questions are handed out, and each answer becomes a trajectory of run x,
which `soundingline evaluate runs/x` measures as it does any other.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf

from soundingline.experiments.build import make, make_interface
from soundingline.experiments.cli import BAD_INPUT, BAD_INPUTS, INTERRUPTED, is_bad_input, usage
from soundingline.experiments.config import Root, Settings, key_of, override_parser, plain_values
from soundingline.experiments.naming import RANKING, SINGLE_RUN, check_kind, factors, fingerprints
from soundingline.experiments.pipeline import (
    BoundPipeline,
    build_pipeline,
    parts_of,
    stage_counts,
    with_literature_tools,
)
from soundingline.experiments.recorded import recorded_option
from soundingline.experiments.refusals import one_line, refuse_secrets
from soundingline.experiments.serving.options import ServerOptions
from soundingline.pipelines.backend import PipelineBackend
from soundingline.toolkit.console import notify, print_traceback
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.ledger import Ledger, open_ledger
from soundingline.toolkit.obfuscation import mark_obfuscated
from soundingline.toolkit.optional import check_optional
from soundingline.toolkit.runs import RunFolder, make_manifest

TOKEN = "SOUNDINGLINE_TOKEN"
_OWN = {field.name for field in dataclasses.fields(ServerOptions)}
_GROUPS = (*RANKING, "tool")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line: the server's own options, and the settings of the pipeline."""

    options: ServerOptions
    settings: Settings


def serve(command: Command) -> None:
    """Serve until Ctrl-C, or, over standard streams, until the client has gone."""
    settings, options = command.settings, command.options
    options.check()
    for package in ("starlette", "uvicorn", "mcp"):
        check_optional(package)
    config = settings.config
    interface = make_interface(config.tool)
    folder = RunFolder.named(config.paths.runs, config.name) if config.name else None
    if folder:
        check_kind(folder.path, SINGLE_RUN)
    if folder and options.rpc_port is not None:
        raise InputError(
            "rpc_port and name do not go together, because the TCP protocol has no sessions that "
            "could be recorded",
            do="leave one of them out; /pi-serini/search?session=... is recorded",
        )
    built = build_pipeline(config)
    interface, operator_prints = with_literature_tools(interface, built, config)
    manifest = _manifest(settings, options, built, operator_prints) if folder else {}
    parts = parts_of(interface, built)
    with _accounts(settings, built, parts, folder, manifest) as ledger:
        # Imported late: none of it is in the core install.
        from soundingline.experiments.serving.running import Parts, run_server

        backend = PipelineBackend(built.pipeline, built.segmenter.name)
        retriever = plain_values(config.retriever)
        run_server(
            Parts(interface, backend.asked_by, built.prepared.store, retriever, ledger),
            options,
            folder,
            built.benchmark.topics,
        )
    if folder:
        done, questions = len(folder.done()), len(built.benchmark.topics)
        notify(
            f"{done} of {questions} questions are answered; measure them by: "
            f"soundingline evaluate {folder.path}"
        )


@contextmanager
def _accounts(
    settings: Settings,
    built: BoundPipeline,
    parts: Mapping[str, Any],
    folder: RunFolder | None,
    manifest: Mapping[str, Any],
) -> Iterator[Ledger]:
    """The stages at work, their requests entered in the run's ledger, and what `parts` count in its
    manifest; without a run, in a ledger that nobody keeps."""
    budget = make(settings.config.budget)
    with ExitStack() as stack:
        if folder is None:
            ledger = Ledger(cap=budget.run_dollars, question_cap=budget.dollars)
            logs = Path(settings.config.paths.runs)
            if built.obfuscated:
                logs /= "served"
                mark_obfuscated(logs)
        else:
            stack.enter_context(folder.writing(manifest))
            stack.callback(lambda: folder.add_counts(stage_counts(parts)))
            ledger = stack.enter_context(
                open_ledger(folder.ledger_path, cap=budget.run_dollars, question_cap=budget.dollars)
            )
            logs = folder.path
        stack.enter_context(built.stages.asking(ledger, logs))
        yield ledger


def _manifest(
    settings: Settings,
    options: ServerOptions,
    built: BoundPipeline,
    operator_prints: Mapping[str, str],
) -> dict[str, Any]:
    groups = (*_GROUPS, "scorer", "list_reranker") if operator_prints else _GROUPS
    prints = {**fingerprints(settings, built, groups), **operator_prints}
    # Two agents in one run would be one row of a table.
    prints["agent"] = fingerprint("client", options.client)
    chosen = {**factors(settings, groups), "agent": options.client}
    return make_manifest(plain_values(settings.config), prints, chosen, recorded_option(settings))


def read_command(arguments: Sequence[str]) -> Command:
    """The command line; `InputError` and what Hydra raises for a wrong one."""
    flags = _parser().parse_args(arguments)
    refuse_secrets(flags.overrides)
    own = [item for item in flags.overrides if key_of(item) in _OWN]
    others = [item for item in flags.overrides if key_of(item) not in _OWN]
    for item in others:
        _check_known(re.split("[./@]", key_of(item))[0])
    search = [f"file://{Path(flags.config_dir).resolve()}"] if flags.config_dir else []
    return Command(_options(own), Settings.compose(others, search))


def _check_known(root: str) -> None:
    """`InputError` for a key that belongs neither to the server nor to the pipeline."""
    known = _OWN | {field.name for field in dataclasses.fields(Root)}
    if root not in known | {"experiment", "hydra"}:
        close = difflib.get_close_matches(root, known, n=1)
        raise InputError(
            f"there is no group or key {root!r}",
            valid=", ".join(sorted(known)),
            do=f"did you mean {close[0]}?" if close else "",
        )


def _options(overrides: Sequence[str]) -> ServerOptions:
    schema = OmegaConf.structured(ServerOptions)
    OmegaConf.set_readonly(schema, False)
    values: dict[str, Any] = {"token": os.environ.get(TOKEN) or None}
    for override in override_parser().parse_overrides(list(overrides)):
        if override.is_sweep_override() or override.is_add() or override.is_delete():
            raise InputError(f"{override.input_line} is no value", do="write KEY=VALUE")
        values[str(override.key_or_group)] = override.value()
    merged: Any = OmegaConf.to_object(OmegaConf.merge(schema, values))
    return ServerOptions(**{name: getattr(merged, name) for name in _OWN})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="soundingline serve", add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--cfg", "-c", choices=["job"])
    parser.add_argument("--help", "-h", action="store_true")
    return parser


def start(arguments: Sequence[str] | None = None) -> int:
    """The entry point; its exit code: 0 when it ended well, Ctrl-C included, 2 for bad input."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.excepthook = print_traceback
    flags = _parser().parse_args(words)
    if flags.help:
        print(usage(serve, words))
        print(f"The server's own settings:\n\n{ServerOptions.__doc__}")
        return 0
    try:
        command = read_command(words)
        if flags.cfg:
            own = dataclasses.replace(command.options, token=None)
            print(OmegaConf.to_yaml(command.settings.config), OmegaConf.to_yaml(own), sep="")
            return 0
        serve(command)
    except (*BAD_INPUTS, HydraException) as error:
        if not isinstance(error, HydraException) and not is_bad_input(error):
            raise
        notify(one_line(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        notify("interrupted before the server had started.")
        return INTERRUPTED
    return 0
