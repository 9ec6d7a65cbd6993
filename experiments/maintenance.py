"""Indexes, caches and options: what is there, and what a command line would use."""

from __future__ import annotations

import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from rich.table import Table

from soundingline.experiments.build import make, shard_of
from soundingline.experiments.collection import IndexedCollection, notes, prepare
from soundingline.experiments.config import (
    NO_OPTION,
    CommandCells,
    Settings,
    is_choice,
    key_of,
    option_folders,
)
from soundingline.experiments.options import first_sentence, option_files, options_in
from soundingline.experiments.pipeline import Stages
from soundingline.experiments.planning import ExperimentPlan, command_of, measured_runs
from soundingline.experiments.validity import composed_cells, lines_of, threats_of
from soundingline.pipelines.cache import (
    GB,
    list_caches,
    megabytes,
    network_note,
    prune,
)
from soundingline.pipelines.stage import Collection, Stage
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, print_next, track
from soundingline.toolkit.corpus.segmentation import Segmenter
from soundingline.toolkit.errors import InputError, check_number
from soundingline.toolkit.evaluation.published_tables import published_statistics
from soundingline.toolkit.files import write_text
from soundingline.toolkit.llm.client import ADDRESS_FILE, LanguageModel
from soundingline.toolkit.llm.local_servers import is_healthy
from soundingline.toolkit.tokens import load_tokenizer

if TYPE_CHECKING:
    from soundingline.pipelines.learned.retriever import LearnedRetriever

_DAY = 86400
_OF_STATISTICS = frozenset({"benchmark", "unit", "tool"})


def index(settings: Settings) -> None:
    """Build the text store and the indexes of a benchmark and a unit: the engine's, and that of a
    learned retriever. Prints where they are and what they hold.

    `-m indexing.shards=4` encodes the units in four jobs, the last of which makes the indexes;
    `indexing.shards=4 indexing.shard=2` does so for one shard; `indexing.shards=4` makes the
    indexes of all.
    """
    config = settings.config
    engine, segmenter, benchmark = make(config.engine), make(config.unit), make(config.benchmark)
    stages = Stages({"retriever": make(config.retriever)})
    stages.validate(engine)
    shard_of(config)  # raises for numbers out of range
    sharded = config.indexing.shards > 1
    if sharded and not any(_learned(stages.transformers["retriever"])):
        raise InputError(
            f"indexing.shards={config.indexing.shards} for "
            f"retriever={settings.choices['retriever']}",
            valid="a learned retriever, such as dense, splade or colbertv2",
            do="leave it out: one process builds that index",
        )
    indexes = Path(config.paths.indexes)
    collection = prepare(benchmark, segmenter, engine, indexes, indexed=not sharded)
    if sharded:
        if not _built_shards(settings, stages, collection, segmenter):
            return
        collection = replace(collection, shards=config.indexing.shards)
    stages.bind(collection, segmenter, None)
    console = Console()
    size = f"{len(collection.index):,} units of {len(collection.store):,} documents"
    console.print(f"{collection.path}: {size}", highlight=False, soft_wrap=True)
    for name in collection.others:
        console.print(collection.folder / name, highlight=False, soft_wrap=True)
    for note in notes(benchmark, collection):
        console.print(note, soft_wrap=True)
    if not settings.multirun:
        print_next("soundingline rank, or run, with the same options")


def _built_shards(
    settings: Settings, stages: Stages, collection: IndexedCollection, segmenter: Segmenter
) -> bool:
    """Make the shard of this process, if it has one, for each index that can be divided. Whether
    all shards are there then; `InputError` if this process has no shard, and one is missing."""
    from soundingline.pipelines.index_folder import shards_missing

    count, shard = settings.config.indexing.shards, shard_of(settings.config)
    engines: list[Any] = []
    noting = Collection(
        collection.fingerprint,
        open_index=engines.append,
        whole_documents=segmenter.whole_documents,
    )
    for retriever in _learned(stages.transformers["retriever"]):
        retriever.index_in(noting)
    if shard:
        for engine in engines:
            collection.build_shard(engine, shard)
    lacking = [collection.missing_shards(engine, count) for engine in engines]
    missing = sorted({number for _, numbers in lacking for number in numbers})
    if missing and shard:
        waiting = ", ".join(map(str, missing))
        line = f"{shard} is done; the last one makes the index (missing: {waiting})"
        Console().print(line, highlight=False, soft_wrap=True)
    elif missing:
        path = next(path for path, numbers in lacking if numbers)
        given = [item for item in settings.overrides if key_of(item) != "indexing.shard"]
        command = shlex.join([*given, f"indexing.shard={','.join(map(str, missing))}"])
        raise shards_missing(path, missing, count, do=f"run soundingline index -m {command}")
    return not missing


def _learned(stage: Any) -> Iterator[LearnedRetriever]:
    """The learned retrievers among a stage and its parts."""
    from soundingline.pipelines.learned.retriever import LearnedRetriever

    if isinstance(stage, LearnedRetriever):
        yield stage
    elif isinstance(stage, Stage):
        for part in stage.parts().values():
            yield from _learned(part)


def serve_model(settings: Settings) -> None:
    """Run the local server that `llm` describes, and write its address to the file that
    `placement=shared_server` names, until the command is ended.

    The server listens at all addresses of this machine, and requires the key in the environment
    variable `llm.key_env`. Runs with the same options wait for the file and ask this server.
    """
    config = settings.config.llm
    llm: LanguageModel | None = make(config) if config else None
    address = str(llm.base_url or "") if llm else ""
    if llm is None or llm.server is None or not address.startswith(ADDRESS_FILE):
        raise InputError(
            "no local language model, or no file for its address, is chosen",
            do="add placement=shared_server llm=vllm/qwen3_8b, or another local model",
        )
    if llm.key_env is None:
        raise InputError(
            "a server that other machines reach has no key",
            do="set llm.key_env=VLLM_API_KEY and export that variable",
        )
    path = Path(address.removeprefix(ADDRESS_FILE))
    path.parent.mkdir(parents=True, exist_ok=True)
    server = replace(llm.server, host="0.0.0.0")
    # Slurm ends a job with this signal, and the server ends with the block.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with replace(llm, base_url=None, server=server).running(path.with_suffix(".log")) as model:
        parts = urlsplit(model.address)
        write_text(path, f"http://{socket.gethostname()}:{parts.port}/v1\n")
        Console().print(f"{llm.name} is served; its address is in {path}", soft_wrap=True)
        print_next("soundingline run with the same options uses it until Ctrl-C here")
        try:
            while is_healthy(f"http://{parts.netloc}/health"):
                time.sleep(5)
        finally:
            path.unlink(missing_ok=True)
    raise InputError(f"the server of {llm.name} has ended", do=f"see {path.with_suffix('.log')}")


def caches(
    settings: Settings,
    folder: Path | None = None,
    *,
    keep_gb: Annotated[float | None, "prune down to this size"] = None,
    keep_days: Annotated[float | None, "prune what was last used before"] = None,
) -> None:
    """Show the path, the size and the last change of each cache in FOLDER or in `paths.caches`.

    `--keep-gb 5` keeps the most recently used 5 GB, and `--keep-days 30` what was used in the last
    30 days.
    """
    chosen = folder or settings.config.paths.caches
    if chosen is None:
        raise InputError("paths.caches is null: nothing is cached", do="name a folder of caches")
    folder = Path(chosen)
    for name, amount in (("--keep-gb", keep_gb), ("--keep-days", keep_days)):
        if amount is not None:
            check_number(name, amount)
    if not folder.is_dir():
        raise InputError(f"there is no folder of caches at {folder}", do="name one that is there")
    console = Console(soft_wrap=True)
    if keep_gb is not None or keep_days is not None:
        limit = None if keep_gb is None else int(keep_gb * GB)
        before = None if keep_days is None else int(time.time() - keep_days * _DAY)
        console.print(f"{megabytes(prune(folder, limit=limit, before=before))} freed")
    console.print(_cache_table(list_caches(folder)))
    if note := network_note(folder):
        console.print(note)
    if keep_gb is None and keep_days is None:
        print_next(f"soundingline caches {folder} keep_gb=5 keeps the 5 GB that were used last")


def _cache_table(files: Sequence[Path]) -> Table:
    """One row for each cache, and their sum."""
    shown = Table("cache", box=None, show_footer=True)
    shown.columns[0].footer = f"{len(files)} caches"
    shown.columns[0].overflow = "fold"
    found = [file.stat() for file in files]
    total = megabytes(sum(status.st_size for status in found))
    shown.add_column("size", justify="right", footer=total)
    shown.add_column("last change")
    for file, status in zip(files, found, strict=True):
        day = time.strftime("%Y-%m-%d", time.localtime(status.st_mtime))
        shown.add_row(str(file), megabytes(status.st_size), day)
    return shown


def list_options(settings: Settings, group: str = "") -> None:
    """List the options of GROUP, such as retriever, or experiments, with what each is; without a
    group, the groups with the option that is chosen."""
    folders = option_folders(settings.search_path)
    rows = Table(box=None, show_header=False)
    group = "experiment" if group == "experiments" else group
    if not group:
        options = option_files(folders)
        for name, choice in sorted(settings.choices.items()):
            if name in options:
                rows.add_row(name, choice, f"{len(options[name])} options")
    else:
        for name, path in options_in(group, folders).items():
            chosen = "*" if settings.choices.get(group) == name else ""
            rows.add_row(chosen, name, first_sentence(path))
    Console().print(rows)
    if group == "experiment":
        print_next(
            "soundingline describe experiment=NAME shows cells, needs, cost and the paper's state, "
            "and soundingline run experiment=NAME scale=laptop needs no model"
        )
    else:
        print_next(f"soundingline run --help {group or 'GROUP'} shows the arguments of each option")


def describe(
    settings: Settings,
    *,
    tokenizer: Annotated[
        str | None, "counts tokens: a tokenizer.json or a model of the hub (default: the tool's)"
    ] = None,
) -> None:
    """Show which option of each group a command line chooses, the values that it changes, and the
    overrides of each cell of its experiment, with what it needs and an estimate of its cost.

    `describe benchmark=X [unit=Y]`, with overrides of these two groups and of the tool only, also
    reads the benchmark, and shows the number and the mean length of its questions, documents and
    units. Titles are not counted. Without a tokenizer, words and punctuation marks are counted.
    """
    rows = Table(box=None, show_header=False)
    for group, option in sorted(settings.choices.items()):
        if not group.startswith("hydra/") and option not in ("None", "none", "null"):
            rows.add_row(group, option)
    for override in settings.overrides:
        if not is_choice(override):
            rows.add_row(*override.split("=", 1))
    cells = CommandCells.of(settings.overrides, settings.search_path).added
    for number, cell in enumerate(cells if len(cells) > 1 else (), start=1):
        rows.add_row(f"cell {number}", " ".join(cell) or "the baseline")
    Console().print(rows)
    experiment, command = settings.choices.get("experiment", "null"), "run"
    if experiment not in NO_OPTION:
        command = command_of(experiment, settings.search_path)
        for line in _experiment_lines(experiment, settings, cells):
            Console(soft_wrap=True).print(line, highlight=False)
    keys = set(map(key_of, settings.overrides))
    changed = {key.partition("@")[0].split(".")[0] for key in keys}
    if "benchmark" in keys and changed <= _OF_STATISTICS:
        _describe_benchmark(settings, tokenizer)
    elif tokenizer is not None:
        raise InputError("there is nothing to count", do="name a benchmark: benchmark=...")
    print_next(shlex.join(["soundingline", command, *settings.overrides]))


def _experiment_lines(
    name: str, settings: Settings, cells: Sequence[Sequence[str]]
) -> Iterator[str]:
    """The cells of an experiment, its estimate and needs, the paper's table and its state, the
    difference that it can find, and its threats to validity."""
    search_path = settings.search_path
    laptop = CommandCells.of([f"experiment={name}", "scale=laptop"], search_path).cells
    if len(cells) > 1 or len(laptop) > 1:
        yield f"cells: {len(cells)}; with scale=laptop {len(laptop)}"
    composed = composed_cells([[*settings.overrides, *cell] for cell in cells], search_path)
    yield from ExperimentPlan(composed, measured_runs(Path(settings.config.paths.runs))).lines()
    yield from lines_of(threats_of(composed))


def _describe_benchmark(settings: Settings, tokenizer: str | None) -> None:
    """Print the statistics of the benchmark with the published ones, also where the benchmark
    cannot be opened."""
    config, option = settings.config, settings.choices["benchmark"]
    source = tokenizer or config.tool.get("tokenizer")
    published = published_statistics(config.benchmark, option)
    try:
        counter = load_tokenizer(source)
        ours = collection_statistics(make(config.benchmark), make(config.unit), counter.count)
    except InputError:
        if published[1]:
            Console().print(_statistics_table({}, *published))
        raise
    tokens = "words and punctuation marks" if source is None else f"tokens of {source}"
    Console().print(_statistics_table(ours, *published))
    Console(soft_wrap=True).print(f"Tokens are {tokens}; titles are not counted.", highlight=False)


def collection_statistics(
    benchmark: Benchmark, segmenter: Segmenter, count: Callable[[str], int]
) -> dict[str, float]:
    """Number and mean length of the questions, documents and units of a benchmark, and the mean
    number of its judged documents, in the order and with the names of the published ones. Reads the
    corpus once; `count` gives the tokens of a text. Titles are not counted."""
    questions = [count(topic.text) for topic in benchmark.topics]
    documents = units = document_tokens = unit_tokens = 0
    for document in track(benchmark.documents(), f"Reading {benchmark.name}"):
        documents += 1
        document_tokens += count(document.text)
        if not segmenter.whole_documents:
            for unit in segmenter.units(document):
                units += 1
                unit_tokens += count(unit.text)
    found: dict[str, float] = {
        "questions": len(questions),
        "tokens a question": sum(questions) / max(1, len(questions)),
        "documents": documents,
        "tokens a document": document_tokens / max(1, documents),
    }
    if not segmenter.whole_documents:
        name = "passage" if segmenter.passages else segmenter.name
        found[f"{name}s"] = units
        found[f"tokens a {name}"] = unit_tokens / max(1, units)
        found[f"{name}s a document"] = units / max(1, documents)
    for tier, grades in benchmark.qrels.items():
        relevant = [grade for of in grades.values() for grade in of.values() if grade > 0]
        found[f"{tier} documents a question"] = len(relevant) / max(1, len(questions))
    return found


def _statistics_table(
    ours: Mapping[str, float], source: str, published: Mapping[str, float]
) -> Table:
    table = Table("", box=None)
    for title in [*(["here"] if ours else []), *([f"published ({source})"] if source else [])]:
        table.add_column(title, justify="right")
    for name in ours or published:
        columns = [*([ours] if ours else []), *([published] if source else [])]
        cells = [column.get(name) for column in columns]
        forms = {int: "{:,}", float: "{:,.2f}", type(None): "—"}
        table.add_row(name, *(forms[type(cell)].format(cell) for cell in cells))
    return table
