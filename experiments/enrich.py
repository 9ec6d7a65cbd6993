"""Enriching a corpus: a language model proposes phrases for its documents, which are indexed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple

from soundingline.agents.base import Budget
from soundingline.experiments.build import make, shard_of
from soundingline.experiments.collection import IndexedCollection, StoredUnits, prepare
from soundingline.experiments.config import Settings
from soundingline.experiments.naming import (
    RANKING,
    cell_label,
    factors,
    form_of,
    identity_of,
    run_folder,
)
from soundingline.experiments.pipeline import Stages, caches_folder, make_stages, writes_obfuscated
from soundingline.experiments.rank import note_phrases
from soundingline.experiments.rollouts import duration, expected
from soundingline.experiments.run_context import open_run
from soundingline.pipelines.enrich.enrichment import (
    REASONS_FILE,
    Enrichment,
    phrases_folder,
    phrases_manifest,
)
from soundingline.pipelines.enrich.llm_phrases import ModelPhrases
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, print_next, progress_bar
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint, read_json, remove_leftovers
from soundingline.toolkit.llm.errors import OutOfMoney
from soundingline.toolkit.llm.prices import estimate

SAMPLE = 20
"""Documents after which the estimate for the rest is made."""
_ANSWERS = {
    "unreadable": "answers hold no list of phrases, although they were requested twice",
    "no_phrase": "answers hold no usable phrase",
}
_LEFT_OUT = {
    "beyond": "beyond the number allowed",
    "too_long": "too long",
    "repeated": "repeated",
    "empty": "without a visible character, or no text",
}


class AnswerTally(NamedTuple):
    """Documents that were asked for, how many of them got an error instead of an answer, and the
    first `SAMPLE` of these."""

    documents: int
    failed: Counter[str]
    again: Sequence[Unit]


def enrich(settings: Settings) -> None:
    """Ask a language model for the phrases of a corpus, and index them.

    Every answer is written at once, so that the same command continues after a kill, pays for
    nothing twice, and tries again what failed. `-m indexing.shards=4` asks in four jobs, the last
    of which makes the index; `indexing.shards=4 indexing.shard=2` asks for one shard.
    """
    config = settings.config
    if config.paths.caches is None:
        raise InputError(
            "paths.caches is null, and phrases are stored there", do="name a folder for caches"
        )
    engine, segmenter = make(config.engine), make(config.unit)
    budget: Budget = make(config.budget)
    stages = make_stages(config, budget)
    stages.validate(engine)
    stage = stages.transformers.get("enrichment")
    if not isinstance(stage, Enrichment) or stage.corpus is None:
        raise InputError(
            "this enrichment has no corpus side",
            valid="one with phrases for documents, such as enrichment=sira",
        )
    benchmark: Benchmark = make(config.benchmark)
    prepared = prepare(benchmark, segmenter, engine, Path(config.paths.indexes))
    caches = caches_folder(config, writes_obfuscated(config, benchmark))
    collection = stages.collection(prepared, segmenter, caches)
    units, shard = StoredUnits(prepared.store), shard_of(config)
    left = 0
    if isinstance(stage.corpus, ModelPhrases):
        form = form_of(config, benchmark)
        ask_missing(settings, budget, stages, stage.corpus, prepared, collection, form)
        if shard:
            left = sum(stage.corpus.missing_flags(units, len(units), collection))
    elif shard:
        left = len(units) - sum(1 for _ in stage.corpus.for_documents(shard.of(units), collection))
    if left:
        line = f"{shard} is enriched; without shard= this command enriches what is left and indexes"
        Console().print(line, soft_wrap=True)
        return
    print_enriched(stage.enriched(collection).index)
    if not settings.multirun:
        print_next("soundingline rank, or run, with the same options")


def ask_missing(
    settings: Settings,
    budget: Budget,
    stages: Stages,
    source: ModelPhrases,
    prepared: IndexedCollection,
    collection: Collection,
    form: Mapping[str, str],
) -> None:
    """Ask for the documents without phrases: some first, then an estimate, then the rest. `form` is
    that of texts on disk."""
    config = settings.config
    stored, shard = StoredUnits(prepared.store), shard_of(config)
    units = shard.of(stored) if shard else stored
    count = len(units)
    lacking = source.missing_flags(units, count, collection)
    missing = sum(lacking)
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"{missing:,} of {count:,} documents have no phrases yet")
    # Shards are asked for at once, and each has a run of its own.
    own = [str(shard)] if shard and shard.count > 1 else []
    digest = fingerprint(identity_of(settings, RANKING), source.fingerprint, *own)[:8]
    folder = run_folder(settings, f"enrichment-{cell_label(settings, RANKING)}-{digest}")
    if not missing:
        remove_leftovers(folder.path)  # of a start that was killed after its last reply
        return
    prints = {"corpus": prepared.corpus, "phrases": source.fingerprint, **form}
    cap = budget.run_dollars
    with (
        open_run(settings, folder, prints, factors(settings, RANKING), budget) as run,
        run.running(stages),
    ):
        folder, ledger = run.folder, run.ledger
        left = compress(units, lacking)
        sample = list(islice(left, SAMPLE))
        began = time.monotonic()

        def estimate_rest(answered: list[str]) -> None:
            """Tell what all missing documents will take, judged by the first. `InputError` if that
            is more than the cap and nobody has confirmed it."""
            costs = [ledger.usage(unit_id) for unit_id in answered]
            longest = duration((time.monotonic() - began) / len(answered) * missing)
            amounts = [part for part in (expected(costs, missing), f"{longest} at most") if part]
            console.print(
                f"{missing:,} documents will take about {'; '.join(amounts)} (by the first "
                f"{len(answered)})",
            )
            dollars = [cost.get("dollars", 0.0) for cost in costs]
            total = ledger.spent_before + estimate(dollars, missing).total
            if cap is not None and not config.indexing.confirm and total > cap:
                raise InputError(
                    f"enriching the corpus is expected to cost ${total:,.2f}, more than "
                    f"budget.run_dollars={cap:g}",
                    do="raise budget.run_dollars, or set indexing.confirm=true to continue until "
                    "it is spent; the same command then continues with what is left",
                )

        try:
            sampled = [unit.unit_id for unit in sample]
            # The first document alone: from its reply on, the ledger knows what a request may cost,
            # and holds the cap.
            asked = (
                answer
                for some in (sample[:1], sample[1:])
                for answer in source.ask_documents(some, collection, accounts=True)
            )
            try:
                first = ask_all(asked, len(sample))
            except OutOfMoney:
                # What was answered tells all the same what the rest will take.
                if answered := [unit_id for unit_id in sampled if ledger.usage(unit_id)]:
                    estimate_rest(answered)
                raise
            estimate_rest(sampled)
            rest = source.ask_documents(chain(first.again, left), collection)
            second = ask_all(rest, missing - first.documents + first.failed.total())
        finally:
            folder.add_counts({"enrichment": source.counts})
            counts = source.counts
            for name, words in _ANSWERS.items():
                if counts[name]:
                    line = f"{counts[name]:,} of {counts['texts']:,} {words}"
                    console.print(line)
            left_out = [
                f"{counts[name]:,} {text}" for name, text in _LEFT_OUT.items() if counts[name]
            ]
            if left_out:
                console.print(f"phrases left out: {', '.join(left_out)}")
        failed = second.failed if second.documents else first.failed
    note_phrases(prepared.folder, source.content(collection), folder)
    if failed:
        shown = ", ".join(f"{number:,} {code}" for code, number in sorted(failed.items()))
        console.print(f"failed: {shown}; the same command tries them again")


def ask_all(answers: Iterator[tuple[Unit, object, str]], total: int) -> AnswerTally:
    """Ask for everything, with a bar."""
    documents, failed, again = 0, Counter[str](), list[Unit]()
    with progress_bar() as progress:
        task = progress.add_task("Asking for phrases", total=total, note="")
        for unit, _, error in answers:
            documents += 1
            if error:
                failed[error] += 1
                again += [unit] if len(again) < SAMPLE else []
            note = f"{failed.total()} failed" if failed else ""
            progress.update(task, advance=1, note=note)
    return AnswerTally(documents, failed, again)


def print_enriched(index: LexicalIndex) -> None:
    """Print the folder of the index, and how many phrases were kept and left out."""
    folder = phrases_folder(index)
    assert folder is not None
    counts = phrases_manifest(folder)["counts"]
    reasons = read_json(folder / REASONS_FILE, dict[str, int], do="remove the folder and run again")
    shown = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    Console().print(
        f"{folder.parent}: {counts['phrases']:,} phrases for {counts['enriched']:,} documents "
        f"({shown or 'no phrase'})",
        soft_wrap=True,
    )
