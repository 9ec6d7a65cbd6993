"""`python -m experiments.enrich`: ask a language model for the phrases of a corpus, and index them.

Everything that is answered is kept at once, so the same command goes on after a kill, pays for
nothing twice, and tries again what failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress, islice
from pathlib import Path
from typing import NamedTuple

from experiments.build import make
from experiments.collection import PreparedCollection, StoredUnits, prepare
from experiments.costs import note_phrases
from experiments.entry import main
from experiments.models import servers_of_run
from experiments.naming import RANKING, cell_label, factors, form_of, lasting, run_folder
from experiments.pipeline import Stages, caches_folder, make_stages, seals
from experiments.recorded import recorded_option
from experiments.run_progress import duration, expected
from experiments.settings import Settings, plain_values
from pipelines.enrich.model_phrases import ModelPhrases
from pipelines.enrich.overlay_engine import REASONS
from pipelines.enrich.stage import Enrichment
from pipelines.lexical.enriched import EnrichedIndex
from pipelines.stage import Collection
from toolkit.console import Console
from toolkit.contracts import Benchmark, Unit
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.llm.errors import OutOfMoney
from toolkit.llm.estimate import estimate
from toolkit.llm.ledger import Ledger
from toolkit.llm.ledger_file import ledger_on_record
from toolkit.progress import bar
from toolkit.runs import make_manifest

SAMPLE = 20
"""Documents after which the estimate for the rest is made."""
ENRICHING = (*RANKING, "budget")
_ANSWERS = {
    "unreadable": "answers hold no list of phrases, though they were asked for twice",
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

    documents: int = 0
    failed: Mapping[str, int] = {}
    again: Sequence[Unit] = ()


def enrich(settings: Settings) -> None:
    """Ask for what is missing, then build the overlay and say what it holds."""
    config = settings.config
    if config.paths.caches is None:
        raise InputError(
            "paths.caches is null, and phrases are kept there", do="name a folder for caches"
        )
    engine, segmenter = make(config.engine), make(config.unit)
    stages = make_stages(config)
    stages.check(engine)
    stage = stages.transformers.get("enrichment")
    if not isinstance(stage, Enrichment) or stage.corpus is None:
        raise InputError(
            "this enrichment has no corpus side",
            valid="one with phrases for documents, such as enrichment=sira",
        )
    benchmark: Benchmark = make(config.benchmark)
    prepared = prepare(benchmark, segmenter, engine, Path(config.paths.indexes))
    caches = caches_folder(config, seals(config, benchmark))
    collection = stages.collection(prepared, segmenter, caches)
    if isinstance(stage.corpus, ModelPhrases):
        form = form_of(config, benchmark)
        ask_missing(settings, stages, stage.corpus, prepared, collection, form)
    enriched = stage.enriched(collection).index
    tell_overlay(enriched)


def ask_missing(
    settings: Settings,
    stages: Stages,
    source: ModelPhrases,
    prepared: PreparedCollection,
    collection: Collection,
    form: Mapping[str, str],
) -> None:
    """Ask for the documents without phrases: some first, then an estimate, then the rest. `form` is
    that of texts on disk."""
    config = settings.config
    units = StoredUnits(prepared.store)
    lacking = source.lacking(units, collection)
    missing = sum(lacking)
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"{missing:,} of {len(units):,} documents have no phrases yet", highlight=False)
    if not missing:
        return
    digest = fingerprint(lasting(settings, RANKING), source.fingerprint)[:8]
    folder = run_folder(settings, f"enrichment-{cell_label(settings, RANKING)}-{digest}")
    prints = {"corpus": prepared.corpus, "phrases": source.fingerprint, **form}
    manifest = make_manifest(
        plain_values(config), prints, factors(settings, RANKING), recorded_option(settings)
    )
    cap = make(config.budget).run_dollars
    with (
        folder.writing(manifest),
        ledger_on_record(folder.ledger_path, cap=cap) as ledger,
        servers_of_run(settings.multirun) as servers,
        stages.asking(ledger, folder.path, servers),
    ):
        left = compress(units, lacking)
        sample = list(islice(left, SAMPLE))
        began = time.monotonic()

        def estimate_rest(answered: list[str]) -> None:
            tell_estimate(console, ledger, answered, missing, time.monotonic() - began)
            check_money(ledger, answered, missing, cap, config.confirm)

        try:
            sampled = [unit.unit_id for unit in sample]
            try:
                first = ask_all(ask_sample(source, sample, collection), len(sample))
            except OutOfMoney:
                # What was answered tells all the same what the rest will take.
                if answered := [unit_id for unit_id in sampled if ledger.usage(unit_id)]:
                    estimate_rest(answered)
                raise
            estimate_rest(sampled)
            rest = source.ask_documents(chain(first.again, left), collection)
            second = ask_all(rest, missing - first.documents + sum(first.failed.values()))
        finally:
            folder.add_counts({"enrichment": source.counts})
            tell_answers(console, source.counts)
        failed = dict(second.failed) if second.documents else dict(first.failed)
    note_phrases(prepared.folder, source.content(collection), folder)
    if failed:
        shown = ", ".join(f"{count:,} {code}" for code, count in sorted(failed.items()))
        console.print(f"failed: {shown}; the same command tries them again", highlight=False)


def ask_sample(
    source: ModelPhrases, sample: Sequence[Unit], collection: Collection
) -> Iterator[tuple[Unit, object, str]]:
    """Ask for the first document alone and then for the others together: from its reply on, the
    ledger knows what a request may cost, and holds the cap."""
    yield from source.ask_documents(sample[:1], collection, accounts=True)
    yield from source.ask_documents(sample[1:], collection, accounts=True)


def ask_all(answers: Iterator[tuple[Unit, object, str]], total: int) -> AnswerTally:
    """Ask for everything, with a bar."""
    documents, failed, again = 0, dict[str, int](), list[Unit]()
    with bar() as progress:
        task = progress.add_task("Asking for phrases", total=total, note="")
        for unit, _, error in answers:
            documents += 1
            if error:
                failed[error] = failed.get(error, 0) + 1
                again += [unit] if len(again) < SAMPLE else []
            progress.update(
                task, advance=1, note=f"{sum(failed.values())} failed" if failed else ""
            )
    return AnswerTally(documents, failed, again)


def tell_estimate(
    console: Console, ledger: Ledger, sample: list[str], missing: int, seconds: float
) -> None:
    """What all missing documents will take, judged by the first."""
    costs = [ledger.usage(unit_id) for unit_id in sample]
    longest = duration(seconds / len(sample) * missing)
    amounts = [part for part in (expected(costs, missing), f"{longest} at most") if part]
    console.print(
        f"{missing:,} documents will take about {'; '.join(amounts)} (by the first {len(sample)})",
        highlight=False,
    )


def check_money(
    ledger: Ledger, sample: list[str], missing: int, cap: float | None, confirm: bool
) -> None:
    """`InputError` where the estimate passes the cap and nobody has confirmed it."""
    if cap is None or confirm:
        return
    dollars = [ledger.usage(unit_id).get("dollars", 0.0) for unit_id in sample]
    total = estimate(dollars, missing).total
    if ledger.spent_before + total > cap:
        raise InputError(
            f"enriching the corpus is expected to cost ${ledger.spent_before + total:,.2f}, more "
            f"than budget.run_dollars={cap:g}",
            do="raise budget.run_dollars, or set confirm=true to go on until it is spent; the same "
            "command then goes on with what is left",
        )


def tell_answers(console: Console, counts: Mapping[str, float]) -> None:
    """What was out of the ordinary in the model's answers, if anything was."""
    for name, words in _ANSWERS.items():
        if counts[name]:
            console.print(f"{counts[name]:,} of {counts['texts']:,} {words}", highlight=False)
    left_out = [f"{counts[name]:,} {words}" for name, words in _LEFT_OUT.items() if counts[name]]
    if left_out:
        console.print(f"phrases left out: {', '.join(left_out)}", highlight=False)


def tell_overlay(index: EnrichedIndex) -> None:
    """Where the overlay stands, and what was proposed, kept and left out."""
    path, counts = index.overlay.path, index.overlay.manifest["counts"]
    reasons = json.loads((path / REASONS).read_text("utf-8"))
    shown = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    Console().print(
        f"{path}: {counts['phrases']:,} phrases for {counts['enriched']:,} documents, "
        f"{counts['postings']:,} postings of {counts['terms']:,} terms ({shown or 'no phrase'})",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main(enrich)
