"""Language models at work, and the servers of ours that runs share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from toolkit.llm.language_model import LanguageModel
from toolkit.llm.protocol import ChatModel
from toolkit.llm.server import Servers

# A sweep's, in the process that runs its cells. They end with the sweep (`end_servers`), or else
# with the process.
_OF_SWEEP = Servers()


@contextmanager
def servers_of_run(multirun: bool) -> Iterator[Servers]:
    """The servers that a run may share: its own, which end with the block, or those of the sweep
    that it belongs to."""
    if multirun:
        yield _OF_SWEEP
        return
    with Servers() as servers:
        yield servers


def end_servers() -> None:
    """End those that cells of a sweep have left running for each other."""
    _OF_SWEEP.close()


@contextmanager
def running(
    llm: LanguageModel | None, log: Path, servers: Servers | None = None
) -> Iterator[Mapping[str, ChatModel]]:
    """`model`, ready to be asked, as long as the block; nothing without a model. A server that we
    start writes to `log`; `servers` are those that run already."""
    if llm is None:
        yield {}
        return
    with llm.running(log, servers) as model:
        yield {"model": model}
