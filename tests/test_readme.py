"""The commands of the README in a clone alone: no `../shared`, no network, nothing but the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from support import demo_figure
from support.benchmarks import HARBOUR, prepare_beir, prepare_vaswani
from support.documents import CONF, ROOT, documents, mentions
from support.needs import SOAK

from soundingline.toolkit.runs import RunFolder

PACKAGES = ("agents", "conf", "experiments", "pipelines", "toolkit")
# What a command needs that the tests do not have. It is composed by test_documented_overrides.
NEEDS = {"llm=": "a language model", "hydra/launcher=slurm": "a cluster"}
PRINTS = ("list", "describe")  # and writes nothing
# The fictional world, unless a command names another benchmark, as small as it gets.
SMALL = ("documents=64", "questions=4", "hops=1", "median_words=60", "p90_words=200")
# Benchmarks that are folders which nobody downloads.
FOLDERS = {
    path.stem
    for path in (CONF / "benchmark").glob("*.yaml")
    if "${paths.data}" in path.read_text(encoding="utf-8")
}
COMMANDS = [item for item in mentions(ROOT / "README.md") if item.command and item.arguments]
RUN = """
import json, sys
from support import compositions
from support.commands import run_entry
compositions.install()
for command, *arguments in json.loads(sys.argv[1]):
    code = run_entry(command, *arguments)
    assert code == 0, (code, command, arguments)
"""


def runs_here(mention):
    needs_more = any(item.startswith(tuple(NEEDS)) for item in mention.arguments)
    return not needs_more and mention.command not in PRINTS


def test_the_commands_that_need_nothing_else_run_in_a_clone_alone(tmp_path):
    clone = tmp_path / "clone"
    for package in PACKAGES:  # with their compiled kernels
        shutil.copytree(ROOT / package, clone / "soundingline" / package)
    texts = [f"{text} {number}" for number in ("one", "two", "three") for text in HARBOUR]
    home = prepare_vaswani(tmp_path / "home", texts)
    prepare_beir(home, "nfcorpus", ("train", "dev", "test"), texts)
    commands = [
        [
            mention.command,
            *mention.arguments,
            *(f"benchmark.{item}" for item in SMALL if "benchmark=" not in str(mention.arguments)),
        ]
        for mention in COMMANDS
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
@pytest.mark.timeout(900)
@pytest.mark.skipif(not SOAK, reason="the demo takes more than a minute: make test-soak")
def test_the_record_is_what_the_demo_measures(tmp_path):
    (command,) = (
        line.split("soundingline ", 1)[1]
        for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
        if "soundingline run" in line and line.endswith("name=demo hydra/launcher=processes")
    )
    subprocess.run(
        [sys.executable, "-m", "soundingline.experiments", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    record = json.loads(demo_figure.RECORD.read_text(encoding="utf-8"))
    assert demo_figure.recorded(tmp_path / "runs/demo") == record
