"""What the documents say works: commands and overrides compose, code runs, and the commands of the
README run in a clone alone. The examples in the docstrings of public classes run too.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import doctest
import importlib
import inspect
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pandas as pd
import pyterrier as pt
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from support import demo_figure
from support.benchmarks import HARBOUR, TINY, WordBackend, prepare_beir, prepare_vaswani, store_of
from support.commands import run_entry
from support.documents import (
    CONF,
    FLAGS,
    GROUPS,
    ROOT,
    TAKES_PATHS,
    block_commands,
    code_blocks,
    documents,
    mentions,
    named_files,
)
from support.needs import SOAK

from soundingline import agents, experiments, pipelines, toolkit
from soundingline.experiments.cli import COMMANDS
from soundingline.experiments.serve import ServerOptions
from soundingline.pipelines import BM25, LexicalIndex, RerankTop
from soundingline.pipelines.enrich.df_filter import DfFilter
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.toolkit.data import Document, Topic, Unit
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import RankedBrowsing, TopK

# Of a generated world that is as small as it gets.
SMALL = (*TINY, "benchmark.questions=4")

# No document mentions an override that does not compose; nothing is run, built or downloaded. Each
# command is composed by its own entry point (`--cfg=job`). A list of options is a sweep, of which
# each value is composed. Overrides that stand alone are composed by `soundingline run`, with the
# option that has the setting where they name none.

MENTIONS = [mention for path in documents() for mention in mentions(path)]
# What documents name in the form of overrides and is none: arguments of Python functions.
NO_OVERRIDES = {"lengths", "query_weighted", "n", "offset"}
NO_OVERRIDES |= {"canary_env", "team", "description"}  # flags of export and import
NO_OVERRIDES |= {"verbose", "overwrite"}  # arguments in Python
NO_OVERRIDES |= {"controls", "wmodel", "num_results", "texts"}  # of PyTerrier
PAGES = [path for path in documents() if path.suffix == ".md"]
OPTIONS = {
    f"{group}={path.relative_to(CONF / group).with_suffix('')}": path.read_text(encoding="utf-8")
    for group in GROUPS
    for path in sorted((CONF / group).rglob("*.yaml"))
}
SWEPT = ("run", "rank", "index", "tune")  # Hydra's own command lines
SERVER = {field.name for field in dataclasses.fields(ServerOptions)}
SETTINGS = {name for text in OPTIONS.values() for name in re.findall(r"^ *(\w+):", text, re.M)}


@pytest.fixture(scope="module")
def files_of_documents(tmp_path_factory):
    """A folder that holds the files which documents give by name."""
    folder = tmp_path_factory.mktemp("documented")
    for path in documents():
        for name, content in named_files(path.read_text(encoding="utf-8")).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
    return folder


@pytest.mark.parametrize("mention", MENTIONS, ids=lambda mention: mention.source)
def test_what_a_document_mentions_composes(mention, files_of_documents, monkeypatch):
    monkeypatch.chdir(files_of_documents)
    complaint = wrong(mention)
    assert not complaint, f"{mention.source}: {' '.join(mention.arguments)}\n{complaint}"


def wrong(mention):
    """What is wrong with a mention; empty where nothing is."""
    if mention.command:
        return wrong_command(mention)
    keys = [override.partition("=")[0].lstrip("+") for override in mention.overrides]
    if all(re.split("[.@/]", key)[0] in roots() for key in keys):
        return wrong_alone(mention)
    # A setting without its group, or a variable of the environment.
    known = SETTINGS | NO_OVERRIDES | SERVER
    unknown = [key for key in keys if key not in known and not key.isupper()]
    if not unknown:
        return ""
    return f"no group or setting is called {', '.join(unknown)} (no override? See NO_OVERRIDES)"


@cache
def roots():
    """Names that an override may begin with: those of the composed configuration."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert run_entry("run", "--cfg=job") == 0
    return frozenset({*re.findall(r"^(\w+):", output.getvalue(), re.M), "experiment", "hydra"})


@pytest.mark.parametrize("page", ["pyterrier.md", "pyserini.md"])
def test_what_takes_the_place_of_another_library_is_python_that_runs(page, tmp_path):
    """The right columns of the tables, with an index of two documents."""
    from soundingline import pipelines

    docs = [{"docno": "d1", "text": "an old river"}, {"docno": "d2", "text": "tides"}]
    path = str(tmp_path / "index")
    names = {name: getattr(pipelines, name) for name in pipelines.__all__}
    names |= {"docs": docs, "path": path, "docid": "d1", "pt": pt}
    names["index"] = pipelines.LexicalIndex.build(docs, path, overwrite=True)
    names |= {"a": names["index"].bm25(), "b": names["index"].ql()}
    rows = re.findall(r"^\|.*\|(.*)\|$", (ROOT / "docs" / page).read_text("utf-8"), re.M)
    code = [each for row in rows for each in re.findall(r"`([^`]+\(.*?\).*?)`", row)]
    assert len(code) >= 6
    for expression in code:
        names["index"] = pipelines.LexicalIndex.build(docs, path, overwrite=True)
        if "build" in expression:
            shutil.rmtree(path)
        assert eval(expression, dict(names)) is not None, expression


def wrong_command(mention):
    if mention.command not in COMMANDS:
        return f"there is no command {mention.command}"
    if mention.command in TAKES_PATHS:
        # Without arguments, a command is only named.
        return refusal(mention.command, *mention.arguments) if mention.arguments else ""
    arguments = [item for item in mention.arguments if item not in FLAGS]
    plain = [item for item in arguments if "=" not in item]
    directory = plain.index("--config-dir") if "--config-dir" in plain else None
    given = [] if directory is None else plain[directory : directory + 2]
    paths = [item for item in plain if item not in given]
    if paths:
        return f"{' '.join(paths)} are no overrides"
    cells = expanded(mention.overrides)
    if len(cells) > 1 and not sweeps(mention):
        return "a list of options needs -m here"
    complaints = (refusal(mention.command, *given, *cell) for cell in cells)
    return next(filter(None, complaints), "")


def sweeps(mention):
    """Whether a command reads a list of options as a sweep."""
    experiments = [item for item in mention.overrides if item.startswith("experiment=")]
    return bool({"-m", "--multirun"} & set(mention.arguments)) or any(
        "mode: MULTIRUN" in OPTIONS[item] for item in experiments
    )


def wrong_alone(mention):
    # Each option by itself is composed in tests/experiments/test_conf.py.
    cells = [cell for cell in expanded(mention.overrides) if not set(cell) <= OPTIONS.keys()]
    first = ""
    for option in options_with(mention):
        complaints = [refusal("run", *option, *cell) for cell in cells]
        complaint = next(filter(None, complaints), "")
        if not complaint:
            return ""
        first = first or complaint
    return first


def options_with(mention):
    """The option in whose file a mention stands, or none, then those of its first setting's group:
    `llm.key_env=...` composes only where an option of `llm` is chosen."""
    chosen = {override.partition("=")[0] for override in mention.overrides}
    own = mention.option
    yield [own] if own and own.partition("=")[0] not in chosen else []
    setting = next((key.lstrip("+") for key in chosen if "." in key and "@" not in key), "")
    group, *names = setting.split(".")
    if group in chosen:
        return
    options = [option for option in OPTIONS if option.startswith(f"{group}=")]
    for option in sorted(options, key=lambda option: -sum(n in OPTIONS[option] for n in names)):
        yield [option]


def expanded(overrides):
    """Overrides without lists of options: the first value of each, then the others in turn. What
    is added (`+a.b=c`) must have a place to go, and is composed with `~a` too, which Hydra refuses
    where there is no `a`."""
    values = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        line, key = str(override.input_line), str(override.key_or_group)
        if override.is_sweep_override():
            key = override.get_key_element()
            values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        elif override.is_add() and "." in key:
            values.append([line, f"~{key.rpartition('.')[0]}"])
        else:
            values.append([line])
    first = [options[0] for options in values]
    others = [
        [*first[:place], option, *first[place + 1 :]]
        for place, options in enumerate(values)
        for option in options[1:]
    ]
    return [first, *others]


@cache
def refusal(command, *arguments):
    """What an entry point says to a command line that it does not compose; else empty."""
    errors = io.StringIO()
    little = ["--package=paths"] if command in SWEPT else []  # nobody reads what is printed
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = run_entry(command, "--cfg=job", *little, *arguments)
    return errors.getvalue() or f"exit code {code}" if code else ""


# What is found, so that nothing is passed over in silence.


def test_the_documents_mention_every_command_and_nearly_every_group():
    commands = Counter(mention.command for mention in MENTIONS if mention.command)
    assert sum(commands.values()) >= 40
    assert {"run", "rank", "index", "tune", "evaluate", "compare"} <= set(commands)
    alone = [mention for mention in MENTIONS if not mention.command]
    assert len(alone) >= 90
    keys = {item.partition("=")[0] for mention in MENTIONS for item in mention.overrides}
    assert len(set(GROUPS) - keys) <= 1, set(GROUPS) - keys


DOCUMENT = """\
Write `retriever=bm25_defualt`, `unit.tokens=3`, `+judge.setings.x=1`, or `exeriment=demo`.
```
soundingline run unit=document,passage
soundingline run -m unit=document,pasage \\
    agent=keyword
make demo && soundingline rnak benchmark=...
soundingline rank benchmark=cacm runs/<name>
```
"""


def test_what_does_not_compose_is_found_wherever_it_stands():
    results = mentions(Path("document.md"), DOCUMENT)
    complaints = {" ".join(mention.arguments): wrong(mention) for mention in results}
    assert len(complaints) == 8 and all(complaints.values()), complaints
    assert complaints["unit=document,passage"] == "a list of options needs -m here"
    assert "pasage" in complaints["-m unit=document,pasage agent=keyword"]
    assert "rnak" in complaints["benchmark=fictional"]
    assert "runs/name" in complaints["benchmark=cacm runs/name"]


def test_placeholders_are_filled_in_and_what_composes_is_passed():
    text = "`soundingline run benchmark=... llm=... llm.key_env=<variable> ...`, `agent=`"
    command, alone = mentions(Path("document.md"), text)
    assert " ".join(command.arguments) == (
        "benchmark=fictional llm=openai_compatible llm.key_env=API_KEY"
    )
    assert alone.arguments == ("agent=keyword",)
    assert not wrong(command) and not wrong(alone)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_sections_that_a_page_links_to_exist(page):
    for link, section in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", page.read_text(encoding="utf-8")):
        target = page.parent / link if link else page
        titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert section in anchors, f"{page.name}: {link}#{section}"


# The code blocks of the README and of pages in docs/ run in their order.

CODE_PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("quickstart", "pipelines", "models", "extending")),
]


@pytest.fixture
def working(tmp_path, monkeypatch):
    """A folder with `my-data`, whose modules are importable and are forgotten afterwards."""
    data = tmp_path / "my-data"
    data.mkdir()
    (data / "documents.tsv").write_text("d1\tan old mill\nd2\tby the sea\n")
    (data / "questions.tsv").write_text("q1\told mills\nq2\tsea\n")
    (data / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\nq2 0 d9 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    sys.modules.pop("my_package", None)


@pytest.mark.parametrize("page", CODE_PAGES)
def test_the_code_of_a_page_runs(page, working):
    """In its order: files are written where they say, other code runs, and so do the commands of
    `docs/extending.md` (those of the README: below)."""
    names = {}
    blocks = code_blocks((ROOT / page).read_text(encoding="utf-8"))
    assert any(block.language == "python" for block in blocks)
    for block in blocks:
        if block.file:
            path = working / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.content, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.content, f"{page}:{block.line}", "exec"), names)
        elif page == "docs/extending.md":
            run_commands(block)


RUNS = {"experiment=mine": 6}  # of a command that names no values of a sweep


def run_commands(block):
    for command, arguments in block_commands(block):
        generated = not any(item.startswith("benchmark=") for item in arguments)
        assert run_entry(command, *arguments, *(SMALL if generated else ())) == 0, arguments
        (name,) = (item for item in arguments if item.startswith(("name=", "experiment=")))
        expected = RUNS.get(name, 1 + max(item.count(",") for item in arguments))
        reports = sorted(Path("runs", name.partition("=")[2]).rglob("metrics.json"))
        assert len(reports) == expected, arguments
        for report in reports:
            assert not RunFolder(report.parent).failures(), arguments


# What the parts on docs/extending.md do, besides running in their commands.


@pytest.fixture
def part(working):
    """A function that imports a module of `docs/extending.md` by its name in `my_package`."""
    for block in code_blocks((ROOT / "docs/extending.md").read_text(encoding="utf-8")):
        if block.file.startswith("my_package/"):
            path = working / block.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.content, encoding="utf-8")
    return lambda name: importlib.import_module(f"my_package.{name}")


def test_the_reranker_orders_the_first_results_by_shared_words(part, tmp_path):
    texts = {"d1": "mill mill mill", "d2": "the old mill", "d3": "mill of old"}
    rows = [{"docno": docno, "text": text} for docno, text in texts.items()]
    index = LexicalIndex.build(rows, tmp_path / "index")
    stage = RerankTop(part("overlap").Overlap(), depth=3, texts=index.texts)
    ranking = (index.bm25() >> stage).search("the old mill")
    assert ranking["docno"].tolist() == ["d2", "d3", "d1"]


def test_a_reranker_of_ones_own_is_at_most_forty_lines_with_its_option():
    blocks = code_blocks((ROOT / "docs/extending.md").read_text(encoding="utf-8"))
    files = ("my_package/overlap.py", "my-options/reranker/overlap.yaml")
    contents = {block.file: block.content for block in blocks if block.file in files}
    assert set(contents) == set(files)
    assert sum(len(content.splitlines()) for content in contents.values()) <= 40
    assert contents[files[0]].count("def ") == 1


def test_the_engine_ranks_units_by_their_terms(part, tmp_path):
    units = [Unit("d1", "", "an old mill"), Unit("d2", "", "mill by mill"), Unit("d3", "", "sea")]
    engine = part("counting").CountingEngine()
    engine.build(units, tmp_path / "index", corpus_fingerprint="c")
    index = engine.open(tmp_path / "index", corpus_fingerprint="c")
    assert BM25(index=index).search("mills")["docno"].tolist() == ["d2", "d1"]
    assert (len(index), index.document_frequency("mill")) == (3, 2)


def test_the_tool_shows_the_first_hits_and_records_them_as_previewed(part):
    texts = {f"d{number}": "the old mill" for number in range(5)}
    tool = part("find").Find(shown=2).open(WordBackend(texts), store_of(texts))
    result = tool.call("find", {"query": "mill"})
    assert len(result.page.hits) == 2 and not result.failed
    assert list(tool.exposures.tiers["previewed"]) == list(result.page.shown)
    assert tool.call("find", {}).failed


def test_the_benchmark_reads_questions_judgements_and_documents(part):
    tabbed = part("tabbed").TabbedBenchmark
    benchmark = tabbed("my-data")
    assert [topic.text for topic in benchmark.topics] == ["old mills", "sea"]
    docids = {document.docid for document in benchmark.documents()}
    assert benchmark.unknown_judged(docids) == [("q2", "d9")]
    assert tabbed("my-data", limit=1).corpus_fingerprint == benchmark.corpus_fingerprint


def test_the_agent_cites_the_first_hit(part):
    texts = {"d1": "the old mill", "d2": "the sea"}
    tool = TopK().open(WordBackend(texts), store_of(texts))
    agent = part("one_search").OneSearch()
    trajectory = asyncio.run(agent.run(Topic("q", "old mill"), tool))
    assert trajectory.status == "completed" and list(trajectory.tiers["cited"]) == ["d1"]


EXAMPLES = {
    "ablation": lambda names: (
        [run.counts["failed"] for run in names["runs"]] == [0, 0, 0]
        and list(names["table"].columns) == ["accuracy", "recall_opened"]
        and {len(values) for values in names["opened"].values()} == {12}
    ),
    # By hand: BM25 ranks the shorter text first for one of the two questions.
    "reranker": lambda names: names["table"]["RR"].tolist() == [0.75, 1.0],
    "agent": lambda names: (
        [run.counts["failed"] for run in names["runs"]] == [0, 0, 0]
        and names["runs"][2].metrics["recall_opened"] >= names["runs"][1].metrics["recall_opened"]
        and names["runs"][1].metrics["search_calls"] == 1
    ),
    "served": lambda names: (
        {"search", "question", "submit_answer"} <= set(names["tools"])
        and names["statuses"] == {"q0001": "completed"}
        and names["page"].startswith("[search_id=")
    ),
    # The questions that it learns from are not those that it is measured on.
    "train_reranker": lambda names: (
        len(names["topics"]) == 12
        and {example.relevant for example in names["examples"]} == {True, False}
        and [len(run.per_question["nDCG@10"]) for run in names["runs"]] == [12, 12]
        and not {topic.qid for topic in names["topics"]}
        & set(names["runs"][1].per_question["nDCG@10"])
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_is_short(name, working, monkeypatch):
    if name == "train_reranker":
        pytest.importorskip("torch")
        from support.checkpoints import save_network, small_bert

        start = save_network(working / "start", *small_bert(["the old mill by the river"]))
        monkeypatch.setenv("START", start)
    path = ROOT / "docs/examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    assert EXAMPLES[name](runpy.run_path(str(path), run_name="__main__"))


def test_every_example_is_tested_and_linked():
    names = {path.stem for path in (ROOT / "docs/examples").glob("*.py")}
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    assert names == set(EXAMPLES) == set(re.findall(r"\(examples/(\w+)\.py\)", page))


@pytest.mark.slow
def test_the_quickstart_runs_as_a_notebook(working):
    """In a Jupyter kernel, where its last expressions are shown as tables."""
    reason = "jupytext, nbclient and ipykernel are in the extra docs"
    jupytext = pytest.importorskip("jupytext", reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    notebook = jupytext.read(ROOT / "docs/quickstart.md")
    blocks = code_blocks((ROOT / "docs/quickstart.md").read_text(encoding="utf-8"))
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in cells] == [
        block.content.strip() for block in blocks if block.language == "python"
    ]
    outputs = [output for cell in cells for output in cell.outputs]
    pages = [output["data"].get("text/html") for output in outputs if "data" in output]
    assert any("<table" in page for page in pages if page)
    assert not [output for output in outputs if output.get("name") == "stdout"]


def test_a_class_and_an_option_take_about_twenty_lines():
    blocks = code_blocks((ROOT / "docs/extending.md").read_text(encoding="utf-8"))
    options = [block.content for block in blocks if block.file.endswith(".yaml")]
    sources = [block.content for block in blocks if re.match(r"my_package/.*\.py", block.file)]
    nodes = [node for source in sources for node in ast.parse(source).body]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    assert 0 < max(len(option.splitlines()) for option in options) <= 20
    assert 0 < max(node.end_lineno - node.lineno for node in classes) < 22


# The commands of the README in a clone alone: no `../shared`, no network, only the tree.

CLONED = ("agents", "conf", "experiments", "pipelines", "toolkit")
# What a command needs that the tests do not have. It is composed above.
NEEDS = {"llm=": "a language model", "hydra/launcher=slurm": "a cluster"}
PRINTS = ("list", "describe")  # and writes nothing
# Benchmarks that are folders which nobody downloads.
FOLDERS = {
    path.stem
    for path in (CONF / "benchmark").glob("*.yaml")
    if "${paths.data}" in path.read_text(encoding="utf-8")
}
README_COMMANDS = [item for item in mentions(ROOT / "README.md") if item.command and item.arguments]
RUN = """
import json, sys
from support import sharing
from support.commands import run_entry
sharing.install_compositions()
for command, *arguments in json.loads(sys.argv[1]):
    code = run_entry(command, *arguments)
    assert code == 0, (code, command, arguments)
"""


def runs_here(mention):
    needs_more = any(item.startswith(tuple(NEEDS)) for item in mention.arguments)
    return not needs_more and mention.command not in PRINTS


def test_the_commands_that_need_nothing_else_run_in_a_clone_alone(tmp_path):
    clone = tmp_path / "clone"
    for package in CLONED:  # with their compiled kernels
        shutil.copytree(ROOT / package, clone / "soundingline" / package)
    texts = [f"{text} {number}" for number in ("one", "two", "three") for text in HARBOUR]
    home = prepare_vaswani(tmp_path / "home", texts)
    prepare_beir(home, "nfcorpus", ("train", "dev", "test"), texts)
    commands = [
        [
            mention.command,
            *mention.arguments,
            *(SMALL if "benchmark=" not in str(mention.arguments) else ()),
        ]
        for mention in README_COMMANDS
        if runs_here(mention)
    ]
    assert {command for command, *_ in commands} >= {"run", "rank", "tune"}
    environment = {key: value for key, value in os.environ.items() if key != "SOUNDINGLINE_DATA"}
    paths = os.pathsep.join([str(clone), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands)],
        cwd=clone,
        env={**environment, "PYTHONPATH": paths, "IR_DATASETS_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folders = list((clone / "runs").iterdir())
    assert len(folders) == len(commands)
    for folder in folders:
        runs = [path.parent for path in folder.rglob("metrics.json")]
        assert len(runs) >= 2 or runs == [folder]  # a sweep, or a single run
        assert not any(RunFolder(run).failures() for run in runs), folder
        assert (folder / "report.html").is_file(), folder


@pytest.mark.parametrize(
    "mention",
    [
        mention
        for path in documents()
        for mention in mentions(path)
        if mention.command and path.name != "results.md"
    ],
    ids=lambda mention: mention.source,
)
def test_no_documented_command_reads_a_folder_that_a_clone_lacks(mention):
    """docs/results.md reports what was run where those folders were."""
    chosen = [item.partition("=")[2] for item in mention.arguments if item.startswith("benchmark=")]
    options = {option for value in chosen for option in value.split(",")}
    assert not options & FOLDERS, mention.source


def test_the_readme_shows_the_record_of_the_demo():
    """Table, headline and plot; `make demo-figure` makes the record of a run, and writes all."""
    part, plot = demo_figure.shown(json.loads(demo_figure.RECORD.read_text(encoding="utf-8")))
    assert demo_figure.PART.findall(demo_figure.README.read_text(encoding="utf-8")) == [part]
    assert demo_figure.PLOT.read_text(encoding="utf-8") == plot


@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="the demo takes more than a minute: make test-soak")
def test_the_record_is_what_the_demo_measures(tmp_path):
    (command,) = (
        line.split("soundingline ", 1)[1]
        for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
        if line.endswith("soundingline run experiment=demo hydra/launcher=processes")
    )
    ended = subprocess.run(
        [sys.executable, "-m", "soundingline.experiments", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    record = json.loads(demo_figure.RECORD.read_text(encoding="utf-8"))
    assert demo_figure.recorded(tmp_path / "runs/demo") == record


# The examples in the docstrings of public classes: each class has one, and doctest runs it. In an
# example, `index` is a small `LexicalIndex`, `queries` a frame of one query, and `tool` an opened
# `RankedBrowsing` over `backend` and `store`, whose documents answer `topic`.

SUBPACKAGES = [importlib.import_module(f"soundingline.toolkit.{name}") for name in toolkit.__all__]
PACKAGES = [pipelines, agents, experiments, *SUBPACKAGES]
NAMES = {
    name: getattr(package, name) for package in PACKAGES for name in getattr(package, "__all__", ())
}
CLASSES = {name: each for name, each in NAMES.items() if inspect.isclass(each)}
CLASSES |= {each.__name__: each for each in (DfFilter, LexicalEngine, Price)}  # of options
DOCUMENTS = [
    Document("d1", "Mill", "The old mill stands by the river.\nIt was built in 1820."),
    Document("d2", "Harbour", "Ships leave the harbour by the river."),
]


@pytest.fixture(scope="module")
def names_of_examples(tmp_path_factory):
    """What an example may use."""
    rows = [
        {"docno": f"{each.docid}%p{number}", "title": each.title, "text": text}
        for each in DOCUMENTS
        for number, text in enumerate(each.text.split("\n"))
    ]
    index = NAMES["LexicalIndex"].build(rows, tmp_path_factory.mktemp("examples") / "index")
    pipe = index.bm25() >> NAMES["MaxP"]()
    return {
        **NAMES,
        "asyncio": asyncio,
        "pt": pt,
        "index": index,
        "queries": pd.DataFrame({"qid": ["1"], "query": ["old mill"]}),
        "backend": NAMES["PipelineBackend"](pipe),
        "store": NAMES["SqliteStore"].in_memory(DOCUMENTS),
        "topic": Topic("q1", "In which year was the old mill built?"),
    }


@pytest.mark.parametrize("name", CLASSES)
def test_the_example_of_a_public_class_is_true(name, names_of_examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = CLASSES[name]
    assert re.search(r"^Examples?:\n +>>> ", inspect.getdoc(kind) or "", re.MULTILINE), name
    tool = NAMES["RankedBrowsing"]().open(names_of_examples["backend"], names_of_examples["store"])
    globs = {**vars(sys.modules[kind.__module__]), **names_of_examples, "tool": tool}
    (found,) = doctest.DocTestFinder(recurse=False).find(kind, name, globs=globs)
    assert any(doctest.SKIP not in example.options for example in found.examples)
    written = []
    done = doctest.DocTestRunner(verbose=False).run(found, out=written.append)
    assert not done.failed, "".join(written)


# The examples in docstrings of functions of the toolkit, and those of the pages on data and agents.

MODULES_WITH_EXAMPLES = (
    "errors",
    "obfuscation",
    "redaction",
    "tokens",
    "corpus.store",
    "corpus.resolve",
    "runs.run_folder",
    "search.answers",
    "evaluation.answers",
    "evaluation.evaluation",
    "evaluation.grid",
    "evaluation.statistics",
    "report.measures",
    "report.page",
    "report.results",
    "report.traces",
)


@pytest.mark.parametrize("module", MODULES_WITH_EXAMPLES)
def test_the_examples_of_a_module_are_true(module):
    result = doctest.testmod(importlib.import_module(f"soundingline.toolkit.{module}"))
    assert result.attempted and not result.failed


def test_the_example_of_a_world_prints_what_its_comments_say(capsys):
    blocks = code_blocks((ROOT / "docs" / "data.md").read_text("utf-8"))
    (block,) = (block for block in blocks if block.language == "python")
    exec(compile(block.content, "data.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "['Baridoll Water']\n{'fw0001449': 1}\n" in printed
    assert "title='Kruvy Keipuveth'" in printed


def test_the_documented_pages_are_what_the_tools_show():
    texts = {f"d{n}": f"king number {n}\nsecond line\nthird line" for n in range(1, 13)}
    documents = {docid: Document(docid, f"Title of {docid}", text) for docid, text in texts.items()}
    backend, store = WordBackend(texts), store_of(documents)
    browsing = RankedBrowsing(page=2).open(backend, store)
    calls = [
        ("search", {"query": "king 1"}),
        ("read_document", {"docid": "d3", "limit": 2}),
        ("read_search_results", {"search_id": "s9"}),
    ]
    outputs = [browsing.call(name, {"reason": "", **arguments}).text for name, arguments in calls]
    top = TopK(k=1, max_tokens=9).open(backend, store)
    outputs.append(top.call("search", {"query": "king 1"}).text)
    blocks = code_blocks((ROOT / "docs" / "agents.md").read_text("utf-8"))
    shown = {block.content.rstrip("\n") for block in blocks}
    assert not [output for output in outputs if output not in shown]
