"""All that the golden gate knows of the product: how a command is started, and the few functions of
the library that it calls. Where names change, they are changed here."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
from pathlib import Path
from typing import NamedTuple

from support.commands import CommandProcess, run_entry

NAMESPACE = "soundingline."
PACKAGES = ("agents", "experiments", "pipelines", "toolkit")


class Ended(NamedTuple):
    """What a command leaves in this process."""

    code: int
    out: str
    err: str


def command(name, *arguments):
    """Run a command to its end in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_entry(name, *arguments)
    return Ended(code, out.getvalue(), err.getvalue())


def process(name, *arguments):
    """Start a command in a process of its own, which can be killed and served by."""
    return CommandProcess(name, *arguments)


def ranked(*overrides, queries):
    """The frame that the pipeline of these overrides gives for queries."""
    import pandas as pd

    experiment = module("experiments").Experiment.compose(*overrides)
    topics = [{"qid": row["_id"], "query": row["text"]} for row in queries]
    return experiment.pipeline().transform(pd.DataFrame(topics))


def cell_name(*overrides):
    """The name that a run of these overrides has in a sweep."""
    settings = module("experiments.config").Settings.compose(overrides)
    return str(module("experiments.naming").cell_name(settings))


def benchmark(**arguments):
    """A generated world."""
    return module("toolkit.benchmarks").FictionalWorld(**arguments)


def module(name):
    return importlib.import_module(f"{NAMESPACE}{name}")


def exported():
    """Every public name of a package that says what it exports, as `package.name`, and its
    value."""
    root = Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        for path in sorted((root / package).rglob("__init__.py")):
            place = ".".join(path.parent.relative_to(root).parts)
            content = module(place)
            for name in sorted(getattr(content, "__all__", ())):
                yield f"{place}.{name}", getattr(content, name)


def write_world(folder, world, prefix="d"):
    """Write a generated world as a BEIR folder: corpus, questions with their answers or checklists,
    judgements, satisfaction and links. Ids become short ones."""
    documents = list(world.documents())
    digits = len(str(len(documents) - 1))
    short = {each.docid: f"{prefix}{n:0{digits}}" for n, each in enumerate(documents)}
    rows = [
        {"_id": short[each.docid], "title": each.title, "text": each.text, "url": each.url}
        for each in documents
    ]
    qids = {topic.qid: f"q{number}" for number, topic in enumerate(world.topics, start=1)}
    checklists = getattr(world, "checklists", None) or {}
    questions = []
    for topic in world.topics:
        row = {"_id": qids[topic.qid], "text": topic.text}
        if answers := world.answers.get(topic.qid):
            row["answers"] = list(answers)
        if checklist := checklists.get(topic.qid):
            row["checklist"] = list(checklist)
        questions.append(row)
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "corpus.jsonl", rows)
    _write_lines(folder / "queries.jsonl", questions)
    (folder / "qrels").mkdir(exist_ok=True)
    for tier, suffix in (("evidence", ""), ("gold", ".gold")):
        judged = world.qrels.get(tier, {})
        lines = [
            f"{qids[qid]}\t{short[docid]}\t{grade}\n"
            for qid, row in judged.items()
            for docid, grade in row.items()
        ]
        if lines:
            text = "query-id\tcorpus-id\tscore\n" + "".join(lines)
            (folder / "qrels" / f"test{suffix}.tsv").write_text(text, encoding="utf-8")
    if satisfaction := getattr(world, "satisfaction", None):
        met = [
            {"query-id": qids[qid], "corpus-id": short[docid], "satisfied": list(values)}
            for qid, row in satisfaction.items()
            for docid, values in row.items()
            if any(values)
        ]
        _write_lines(folder / "satisfaction.jsonl", met)
    if links := list(world.links() or ()):
        text = "".join(f"{short[link.docid]}\t{short[link.linked]}\n" for link in links)
        (folder / "links.tsv").write_text(text, encoding="utf-8")


def _write_lines(path, rows):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def without_addresses(text):
    """The text without what the interpreter tells of places in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)
