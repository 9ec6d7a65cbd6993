"""What each start of a run has spent, read from its ledger as flat numbers."""

from __future__ import annotations

from pathlib import Path

from soundingline.toolkit.llm import prices
from soundingline.toolkit.llm.ledger import read_starts


def starts(run):
    """One dictionary for each start in the ledger of the run folder `run`."""
    return [
        {
            "started": start.started,
            "cap": start.cap,
            **prices.flatten(start.by_role),
            "known_dollars": {role: account.dollars for role, account in start.by_role.items()},
            "highest_cost": dict(start.highest_cost),
        }
        for start in read_starts(Path(run) / "ledger.jsonl")
    ]
