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
from soundingline.experiments.pipeline import (
    Stages,
    caches_folder,
    make_stages,
    note_phrases,
    writes_obfuscated,
)
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
from soundingline.toolkit.files import fingerprint, read_json
from soundingline.toolkit.llm.errors import OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import forecast
from soundingline.toolkit.runs import RunFolder

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
    indexed = prepare(benchmark, segmenter, engine, Path(config.paths.indexes))
    caches = caches_folder(config, writes_obfuscated(config, benchmark))
    collection = stages.collection(indexed, segmenter, caches)
    units, shard = StoredUnits(indexed.store), shard_of(config)
    left = 0
    if isinstance(stage.corpus, ModelPhrases):
        form = form_of(config, benchmark)
        ask_missing(settings, budget, stages, stage.corpus, indexed, collection, form)
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
    indexed: IndexedCollection,
    collection: Collection,
    form: Mapping[str, str],
) -> None:
    """Ask for the documents without phrases: some first, then a forecast, then the rest. `form` is
    that of texts on disk."""
    stored, shard = StoredUnits(indexed.store), shard_of(settings.config)
    units = shard.of(stored) if shard else stored
    prints = {"corpus": indexed.corpus, "phrases": source.fingerprint, **form}
    console = Console(stderr=True, soft_wrap=True)
    folder = enrichment_folder(settings, source)
    with open_run(settings, folder, prints, factors(settings, RANKING), budget) as run:
        # Only now: a process that is refused as the second one of the run needs no cache.
        lacking = source.missing_flags(units, len(units), collection)
        missing = sum(lacking)
        console.print(f"{missing:,} of {len(units):,} documents have no phrases yet")
        if not missing:
            return
        with run.running(stages):
            try:
                failed = ask_units(
                    settings, source, compress(units, lacking), missing, collection, run.ledger
                )
            finally:
                run.folder.add_counts({"enrichment": source.counts})
                for line in lines_of_counts(source.counts):
                    console.print(line)
    note_phrases(indexed.folder, source.content(collection), run.folder)
    if failed:
        shown = ", ".join(f"{number:,} {code}" for code, number in sorted(failed.items()))
        console.print(f"failed: {shown}; the same command tries them again")


def enrichment_folder(settings: Settings, source: ModelPhrases) -> RunFolder:
    """The folder of the run that asks for phrases. Shards are asked for at once, and each has a run
    of its own."""
    shard = shard_of(settings.config)
    parts = [str(shard)] if shard and shard.count > 1 else []
    digest = fingerprint(identity_of(settings, RANKING), source.fingerprint, *parts)[:8]
    return run_folder(settings, f"enrichment-{cell_label(settings, RANKING)}-{digest}")


def ask_units(
    settings: Settings,
    source: ModelPhrases,
    units: Iterator[Unit],
    missing: int,
    collection: Collection,
    ledger: Ledger,
) -> Counter[str]:
    """Ask for all `missing` units, the first `SAMPLE` of them before a forecast of the others.
    Returns how many got each error in the place of an answer."""
    sample = list(islice(units, SAMPLE))
    began = time.monotonic()

    # The first document alone: from its reply on, the ledger knows what a request may cost, and
    # holds the cap.
    asked = (
        answer
        for some in (sample[:1], sample[1:])
        for answer in source.ask_documents(some, collection, accounts=True)
    )
    try:
        first = ask_all(asked, len(sample))
    except OutOfMoney:
        # What was answered tells all the same what the rest will take.
        if answered := [usage for unit in sample if (usage := ledger.usage(unit.unit_id))]:
            check_forecast(settings, answered, missing, time.monotonic() - began, ledger)
        raise
    costs = [ledger.usage(unit.unit_id) for unit in sample]
    check_forecast(settings, costs, missing, time.monotonic() - began, ledger)
    rest = source.ask_documents(chain(first.again, units), collection)
    second = ask_all(rest, missing - first.documents + first.failed.total())
    return second.failed if second.documents else first.failed


def check_forecast(
    settings: Settings,
    costs: Sequence[Mapping[str, float]],
    missing: int,
    seconds: float,
    ledger: Ledger,
) -> None:
    """Print what all `missing` documents will take, by the `costs` of the first, which took these
    `seconds`. `InputError` if that is more than the cap, and nobody has confirmed it."""
    expected = forecast(costs, missing, seconds / len(costs) * missing)
    amounts = [part for part in (str(expected), f"{expected.duration} at most") if part]
    Console(stderr=True, soft_wrap=True).print(
        f"{missing:,} documents will take about {'; '.join(amounts)} (by the first {len(costs)})"
    )
    cap = ledger.cap
    total = ledger.spent_before + (expected.dollars or 0.0)
    if cap is not None and not settings.config.indexing.confirm and total > cap:
        raise InputError(
            f"enriching the corpus is expected to cost ${total:,.2f}, more than "
            f"budget.run_dollars={cap:g}",
            do="raise budget.run_dollars, or set indexing.confirm=true to continue until it is "
            "spent; the same command then continues with what is left",
        )


def lines_of_counts(counts: Mapping[str, float]) -> Iterator[str]:
    """A line for each kind of answer without a phrase, and one for phrases that were left out."""
    for name, words in _ANSWERS.items():
        if counts[name]:
            yield f"{counts[name]:,} of {counts['texts']:,} {words}"
    left_out = [f"{counts[name]:,} {text}" for name, text in _LEFT_OUT.items() if counts[name]]
    if left_out:
        yield f"phrases left out: {', '.join(left_out)}"


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
