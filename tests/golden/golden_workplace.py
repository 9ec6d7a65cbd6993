"""Where the commands of the golden gate run, the checkpoints that they load, and how a result is
compared with its golden file."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import io
import json
import os
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import golden_store as store
import pytest
from golden_model import reply, stored_request
from golden_record import Places, cells, record, runs_below
from support.commands import run_entry
from support.llm_server import Peer

WRITE = os.environ.get("SOUNDINGLINE_GOLDEN") == "write"
WORLDS = {"world": store.DATA / "world", "sets": store.DATA / "sets"}
CHECKPOINTS = ("t5", "doc2query", "splade", "dense", "colbert", "cross_encoder", "rankllama")


class Ended(NamedTuple):
    """What a command leaves in this process."""

    code: int
    out: str
    err: str


def run_here(name, *arguments):
    """Run a command to its end in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_entry(name, *arguments)
    return Ended(code, out.getvalue(), err.getvalue())


def ranked(*overrides, queries):
    """The frame that the pipeline of these overrides gives for queries."""
    import pandas as pd

    from soundingline.experiments import Experiment

    experiment = Experiment.compose(*overrides)
    topics = [{"qid": row["_id"], "query": row["text"]} for row in queries]
    return experiment.pipeline().transform(pd.DataFrame(topics))


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
        ended = run_here(command, *self.arguments(name, text))
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
                made = make_checkpoint(name, folder)
                place.write_text(str(made))
        return Path(place.read_text())

    def questions(self, world):
        return json_lines(WORLDS[world] / "queries.jsonl")


@contextlib.contextmanager
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


# Tiny checkpoints with random weights, made on the spot, whose vocabulary is that of the stored
# world. With these seeds scores are far apart where their order is stored.


def _words(lower=True):
    """The 400 most frequent words of the documents."""
    rows = (store.DATA / "world" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    text = " ".join(json.loads(row)["text"] for row in rows)
    counts = Counter(re.findall(r"[A-Za-z]+", text))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:400]
    return tuple(dict.fromkeys(word.lower() for word in frequent)) if lower else tuple(frequent)


def cross_encoder(folder):
    import torch
    from support import checkpoints
    from transformers import BertConfig, BertForSequenceClassification

    words = checkpoints.whole_word_tokenizer(("[Q]", "[D]"), _words())
    words.model_max_length = 128
    torch.manual_seed(3)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    size |= {"num_attention_heads": 4, "initializer_range": 0.3, "num_labels": 1}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), **size))
    torch.nn.init.normal_(model.classifier.weight, std=1.0)
    return checkpoints.save_network(folder, model.eval(), words)


def make_checkpoint(name, folder):
    """Save the checkpoint of this name; where it is."""
    from support import checkpoints

    if name == "cross_encoder":
        return cross_encoder(folder)
    cased = _words(lower=False)
    t5 = {"words": (*checkpoints.T5_WORDS, *cased)}
    llama = (*checkpoints.LLAMA_WORDS, *_words()[:200])
    save, settings = {
        "t5": (checkpoints.save_t5, {**t5, "seed": 2}),
        # As many layers on both sides: transformers counts the encoder's where it caches the
        # decoder's.
        "doc2query": (checkpoints.save_t5, {**t5, "seed": 4, "num_decoder_layers": 2}),
        "splade": (
            checkpoints.write_splade,
            {"words": cased, "kind": "distilbert", "seed": 7},
        ),
        "dense": (checkpoints.save_sentence_model, {"words": _words(), "seed": 1}),
        "colbert": (checkpoints.save_multi_vector, {"words": _words(), "seed": 1}),
        "rankllama": (checkpoints.save_rankllama, {"words": llama, "seed": 5}),
    }[name]
    return save(folder, **settings)
