"""A stranger's re-ranker, agent and search tool: a package of their own, named in YAML files of a
`--config-dir`, swept beside ours. Nothing of this repository is edited."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import run_command

ROOT = Path(__file__).resolve().parents[2]

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "stranger"
version = "1.0"
[tool.setuptools]
py-modules = ["stranger"]
"""
PACKAGE = '''
import pyterrier as pt
from dataclasses import dataclass

from soundingline.agents.base import Agent
from soundingline.toolkit.search.tool import ResultsPage
from soundingline.toolkit.search import (ToolOutput, SearchTool, Parameter, Tool, ToolSpec)


class Shortest(pt.Transformer):
    """A re-ranker that knows nothing of Soundingline."""

    def __init__(self, factor: float = 1.0):
        self.factor = factor

    def transform(self, frame):
        return frame.assign(score=-self.factor * frame["text"].str.len())


class OneSearch(Agent):
    name = "one_search"

    def __init__(self, words: int = 8):
        self.words = words

    async def work(self, episode):
        query = " ".join(episode.topic.text.split()[: self.words])
        page = episode.call("find", {"query": query}).page
        first = page.hits[0].docid if page.hits else ""
        episode.finish(f"Explanation: seen [{first}]\\nExact Answer: none\\nConfidence: 1%")


@dataclass
class Find(SearchTool):
    shown: int = 3

    def tools(self):
        spec = ToolSpec("find", "Search.", (Parameter("query", "Words."),))
        yield Tool(spec, self.find, searches_by="query")

    def find(self, query):
        _, search = self.rank(query, depth=20)
        hits = search.hits[: self.shown]
        page = ResultsPage(query, tuple(hits), len(search.hits))
        return ToolOutput("\\n".join(hit.docid for hit in hits), page, search)
'''
OPTIONS = {
    "reranker/shortest.yaml": "_target_: stranger.Shortest\nfactor: 1.0\n",
    "reranker/shortest_head.yaml": "_target_: soundingline.pipelines.rerank.reranker.RerankHead\n"
    "depth: 5\n"
    "stage:\n  _target_: stranger.Shortest\n  factor: 2.0\n",
    "agent/one_search.yaml": "_target_: stranger.OneSearch\nwords: 8\n",
    "tool/find.yaml": "_target_: stranger.Find\nshown: 3\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where the stranger's package is installed, from a wheel."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "stranger.py").write_text(PACKAGE)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    # As one command, which builds the wheel: pip starts slowly.
    install = [*pip, "install", "--no-deps", "--no-build-isolation", "--target", str(place), "."]
    subprocess.run(install, cwd=source, check=True, capture_output=True)
    return place


def command(folder, *overrides):
    """The arguments of a sweep whose options of the stranger's lie in `folder`."""
    for name, text in OPTIONS.items():
        (folder / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "own" / name).write_text(text)
    return ("-m", "--config-dir", "own", *TINY, "name=s", *overrides)


def paths(site):
    return {"PYTHONPATH": str(site)}


def test_a_strangers_agent_and_tool_are_swept_beside_ours(tmp_path, site):
    # In a process that has imported nothing, as the stranger starts it.
    done = subprocess.run(
        [
            *(sys.executable, "-m", "soundingline.experiments", "run"),
            *command(tmp_path, "tool=find", "agent=one_search,keyword"),
        ],
        cwd=tmp_path,
        env={**os.environ, **paths(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sweep = tmp_path / "runs" / "s"
    cells = {
        path.parent.name: json.loads(path.read_text()) for path in sweep.glob("*/metrics.json")
    }
    assert len(cells) == 2
    (own,) = (metrics for name, metrics in cells.items() if "one_search" in name)
    assert own["completion"] == 1.0 and own["recall_surfaced"] > 0
    assert (sweep / "report.html").exists()


def test_a_strangers_reranker_is_given_texts_and_swept_beside_none(tmp_path, site):
    rerankers = command(tmp_path, "reranker=none,shortest,shortest_head")
    done = run_command("rank", *rerankers, folder=tmp_path, environment=paths(site))
    assert done.returncode == 0, done.stderr
    rankings = {}
    for path in (tmp_path / "runs" / "s").glob("*/run.trec"):
        lines = [line.split() for line in path.read_text().splitlines()]
        rankings[path.parent.name.split("-")[2]] = [
            row[2] for row in lines if row[0] == lines[0][0]
        ]
    assert len(rankings) == 3
    head, whole = rankings["shortest_head"], rankings["shortest"]
    (plain,) = (docids for name, docids in rankings.items() if not name.startswith("shortest"))
    # Its head alone has a new order; without a depth, all of the ranking has.
    assert sorted(head[:5]) == sorted(plain[:5]) and head[5:] == plain[5:] and head != plain
    assert sorted(whole) == sorted(plain) and whole[5:] != plain[5:]


def test_pyterriers_own_monot5_is_a_reranker_as_it_is(tmp_path):
    pytest.importorskip("pyterrier_t5")
    import pandas as pd
    from support import checkpoints

    from soundingline.experiments.build import make
    from soundingline.pipelines.lexical.index import LexicalIndex
    from soundingline.pipelines.rerank.reranker import RerankHead

    config = pytest.importorskip("omegaconf").OmegaConf.create(
        {
            "reranker": {
                "_target_": "pyterrier_t5.MonoT5ReRanker",
                "tok_model": str(checkpoints.save_t5(tmp_path / "model")),
                "model": str(tmp_path / "model"),
                "verbose": False,
            }
        }
    )
    rows = [{"docno": f"d{n}", "text": f"the old mill {n}"} for n in range(4)]
    index = LexicalIndex.build(rows, tmp_path / "index")
    pipeline = index.bm25() >> RerankHead(make(config.reranker), depth=2)
    ranking = pipeline(pd.DataFrame({"qid": ["1"], "query": ["mill"]}))
    assert sorted(ranking["docno"]) == ["d0", "d1", "d2", "d3"]
    assert ranking["docno"].tolist()[2:] == ["d2", "d3"]
    assert ranking["score"].iloc[0] < 0
