"""Where the commands of the golden gate run, and how a result is compared with its golden file."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import golden_product as product
import golden_store as store
import pytest
from golden_checkpoints import CHECKPOINTS, make
from golden_model import reply, stored_request
from golden_record import Places, cells, record, runs_below
from support.llm_server import Peer

WRITE = os.environ.get("SOUNDINGLINE_GOLDEN") == "write"
WORLDS = {"world": store.DATA / "world", "sets": store.DATA / "sets"}


class Workplace:
    """Where commands are run. All workers share their indexes and checkpoints; each has run folders
    and caches of its own."""

    def __init__(self, folder: Path, shared: Path, server: Peer) -> None:
        self.folder, self.shared, self.server = folder, shared, server
        self.reset()

    def reset(self):
        self.server.reset()
        self.server.default = reply

    def arguments(self, name, text):
        """The words of a command line, with places filled in; `name` is that of its run. Each run
        has caches of its own: no result may depend on what ran before."""
        values = {**{key: str(path) for key, path in WORLDS.items()}, "server": self.address}
        values["root"] = self.address.removesuffix("/v1")
        for checkpoint in CHECKPOINTS:
            if f"{{{checkpoint}}}" in text:
                values[checkpoint] = str(self.checkpoint(checkpoint))
        own = [f"name={name}"] if name else []
        caches = [f"paths.caches=caches/{name}"] if name and "paths.caches=" not in text else []
        return [
            *text.format(**values).split(),
            *own,
            *caches,
            f"paths.indexes={self.shared}/indexes",
        ]

    @property
    def address(self):
        return self.server.openai_url

    @cached_property
    def places(self):
        return Places(
            {
                str(self.shared): "<shared>",
                str(self.folder): "<work>",
                str(store.DATA): "<data>",
                self.address: "<server>",
            }
        )

    def run(self, command, name, text, code=0):
        """Run a command to its end, which must be the one expected."""
        ended = product.command(command, *self.arguments(name, text))
        assert ended.code == code, f"{command} ended with {ended.code}: {ended.err}"
        return ended

    def recorded(self, name, ordered=None):
        """What the run of this name has left; of a sweep, by cell."""
        records = [record(run, ordered) for run in runs_below(self.folder / "runs" / name)]
        return records[0] if len(records) == 1 else {"cells": cells(records)}

    def requests(self, *, scores=True):
        """What the server was sent, in an order that does not depend on which came first."""
        sent = [stored_request(each, scores=scores) for each in self.server.requests]
        return sorted(sent, key=lambda each: json.dumps(each, sort_keys=True))

    def checkpoint(self, name):
        import torch

        torch.set_num_threads(1)  # Sums of floats are then made in one order.
        folder = self.shared / name
        with _alone(self.shared / f"{name}.lock"):
            place = folder / "place"
            if not place.exists():
                made = make(name, folder)
                place.write_text(str(made))
        return Path(place.read_text())

    def questions(self, world):
        return json_lines(WORLDS[world] / "queries.jsonl")


@contextmanager
def _alone(path):
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def json_lines(path):
    """The objects in a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(name, received, places):
    """Compare a result with its golden file, or write the file where that was asked for."""
    received = places.hidden(received)
    if WRITE:
        changed = store.write(name, received)
        pytest.skip(f"{store.path_of(name).name} is {'written' if changed else 'the same'}")
    if message := store.differences(store.read(name), received):
        pytest.fail(f"{name} differs from {store.path_of(name).name}\n{message}", pytrace=False)


def skip_without(packages):
    """Skip the test where one of these optional packages is not installed. None is imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is optional and not installed")
