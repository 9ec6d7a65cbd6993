"""`soundingline caches [FOLDER]`: what the caches there, or in `paths.caches`, hold.

`--keep-gb 5` keeps the most recently used 5 GB, `--keep-days 30` what was used in the last 30 days.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.table import Table

from soundingline.experiments.cli import CommandParser, run_command
from soundingline.experiments.config import Settings
from soundingline.pipelines.cache import (
    GB,
    CacheSummary,
    checked_amount,
    megabytes,
    network_note,
    prune,
    survey,
)
from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError

_DAY = 86400


def caches(
    settings: Settings,
    paths: Sequence[str] = (),
    *,
    keep_gb: float | None = None,
    keep_days: float | None = None,
) -> None:
    """Prune where that is asked for; then print each cache's path, entries, size and last use."""
    if len(paths) > 1:
        raise InputError(f"{len(paths)} folders were named", valid="one folder of caches")
    chosen = paths[0] if paths else settings.config.paths.caches
    if chosen is None:
        raise InputError("paths.caches is null: nothing is kept", do="name a folder of caches")
    folder = Path(chosen)
    gb, days = checked_amount("--keep-gb", keep_gb), checked_amount("--keep-days", keep_days)
    if not folder.is_dir():
        raise InputError(f"there is no folder of caches at {folder}", do="name one that is there")
    console = Console(soft_wrap=True)
    if gb is not None or days is not None:
        limit = None if gb is None else int(gb * GB)
        before = None if days is None else int(time.time() - days * _DAY)
        console.print(f"{megabytes(prune(folder, limit=limit, before=before))} freed")
    console.print(table(survey(folder)))
    if note := network_note(folder):
        console.print(note)


def table(summaries: list[CacheSummary]) -> Table:
    """A row a cache, and their sum."""
    shown = Table("cache", box=None, show_footer=True)
    shown.columns[0].footer = f"{len(summaries)} caches"
    shown.columns[0].overflow = "fold"
    shown.add_column("entries", justify="right")
    total = megabytes(sum(summary.bytes for summary in summaries))
    shown.add_column("size", justify="right", footer=total)
    shown.add_column("last use")
    for summary in summaries:
        entries = "another host's" if summary.entries is None else f"{summary.entries:,}"
        shown.add_row(str(summary.path), entries, megabytes(summary.bytes), day(summary.used))
    return shown


def day(seconds: int) -> str:
    """A time to the day, which is how it is kept."""
    return time.strftime("%Y-%m-%d", time.localtime(seconds)) if seconds else "unknown"


PARSER = CommandParser(__doc__, "FOLDER")
PARSER.add_argument("--keep-gb", type=float, metavar="GB", help="prune down to this size")
PARSER.add_argument("--keep-days", type=float, metavar="DAYS", help="prune what is older")

start = partial(run_command, caches, PARSER)
