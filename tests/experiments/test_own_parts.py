"""Tools, agents, re-rankers and benchmarks of third parties: one module or package, and options
that name its classes; errors in them name the line in the user's file."""

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.agents import bound, reading_agent
from support.benchmarks import TINY, WordBackend, store_of
from support.commands import run_command
from support.llm_model import ScriptedModel, call, calling, saying

from soundingline.agents.keyword import KeywordAgent
from soundingline.toolkit.data import Topic
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import Parameter, Tool, TopK
from soundingline.toolkit.search.session import ToolOutput
from soundingline.toolkit.search.tool import Continuation, DocumentPage

TEXTS = {
    "mill": "Grenholm Mill was built by Torvald Brekke in 1871.",
    **{f"m{number}": f"The mill of place {number} is old." for number in range(5)},
}
QUESTION = Topic("q", "Who built Grenholm Mill?")
CODE = r'''\
"""search shows the first hits; next shows the hits that follow."""

from dataclasses import dataclass

from soundingline.toolkit.search import (
    Continuation,
    Parameter,
    ResultsPage,
    SearchTool,
    Tool,
    ToolError,
    ToolOutput,
)


@dataclass
class SearchAndNext(SearchTool):
    page: int = 3
    characters: int = 300

    def begin(self):
        self.search = None
        self.shown = 0

    def tools(self):
        query = Parameter("query", "What to look for.")
        yield Tool("search", "Rank the collection.", (query,), self._search, searches_by="query")
        yield Tool("next", "Show the hits that follow.", (), self._next)

    def _search(self, query):
        _, self.search = self.rank(query, depth=100)
        self.shown = 0
        return self._page()._replace(search=self.search)

    def _next(self):
        if self.search is None or self.shown == len(self.search.hits):
            raise ToolError("past_the_end", "No more hits. Call search(...).", tool="next")
        return self._page()

    def _page(self):
        hits = []
        following = self.search.hits[self.shown : self.shown + self.page]
        for hit, unit in zip(following, self.units([hit.unit_id for hit in following])):
            hits.append(hit._replace(title=unit.title, text=unit.contents[: self.characters]))
        first, total = self.shown + 1, len(self.search.hits)
        self.shown += len(hits)
        more = Continuation("next", {}) if self.shown < total else None
        query = self.search.request.query
        page = ResultsPage(query, tuple(hits), total, first, continuation=more)
        text = "\n\n".join(f"[{hit.unit_id}] {hit.text}" for hit in hits)
        return ToolOutput(text or "Nothing matched. Call search with other words.", page)
'''
OPTION = """\
_target_: my_tools.SearchAndNext
page: 3
characters: 300
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder of somebody else's on Python's path, with the tool in `my_tools.py`."""
    folder = tmp_path / "theirs"
    (folder / "tool").mkdir(parents=True)
    (folder / "my_tools.py").write_text(CODE, encoding="utf-8")
    (folder / "tool" / "search_and_next.yaml").write_text(OPTION, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("my_tools", None)


def session(**settings):
    interface = importlib.import_module("my_tools").SearchAndNext(**settings)
    return interface.open(WordBackend(TEXTS), store_of(TEXTS))


def ask(agent, tool):
    trajectory = asyncio.run(agent.run(QUESTION, tool))
    assert trajectory.status == "completed", trajectory.traceback
    return trajectory


def test_the_keyword_agent_searches_with_it(package):
    agent = reading_agent("Torvald Brekke", "mill", qid=QUESTION.qid, max_searches=1)
    trajectory = ask(agent, session(page=2))
    assert [(call.name, call.error) for call in trajectory.calls] == [("search", "")]
    assert trajectory.answer.exact == "Torvald Brekke"
    assert trajectory.tiers["surfaced"] == tuple(TEXTS)
    assert trajectory.tiers["previewed"] == tuple(TEXTS)[:2]


def test_a_tool_calling_agent_is_shown_and_served_its_tools(package):
    model = ScriptedModel(
        calling(call("search", "a", query="mill")),
        calling(call("next", "b"), call("next", "c")),
        saying("Explanation: so [mill]\nExact Answer: Torvald Brekke\nConfidence: 90%"),
    )
    trajectory = ask(bound(model), session())
    assert [tool["name"] for tool in model.requests[0].tools] == ["search", "next"]
    assert [call.error for call in trajectory.calls] == ["", "", "past_the_end"]
    assert trajectory.tiers["previewed"] == tuple(TEXTS)
    assert trajectory.tiers["cited"] == ("mill",)


def test_the_names_of_its_tools_and_arguments_decide_nothing(package):
    code = CODE
    for name, other in {"search": "look_up", "next": "further", "query": "words"}.items():
        assert f'"{name}"' in code
        code = code.replace(f'"{name}"', f'"{other}"')
    code = code.replace("self, query)", "self, words)").replace("rank(query,", "rank(words,")
    (package / "my_tools.py").write_text(code, encoding="utf-8")
    tool = session()
    assert (tool.search_tool, tool.read_tool) == (("look_up", "words"), None)
    agent = reading_agent("Torvald Brekke", "mill", qid=QUESTION.qid, max_searches=1)
    trajectory = ask(agent, tool)
    assert [call.name for call in trajectory.calls] == ["look_up"]
    assert trajectory.answer.exact == "Torvald Brekke"


class LineByLine(TopK):
    """Reads one line at a call."""

    def tools(self):
        yield from super().tools()
        what, start = (
            Parameter("what", "A docid."),
            Parameter("start", "The line.", bounds=(1, 1000)),
        )
        yield Tool("peruse", "Read a line.", (what, start), self._line, reads_by="what")

    def _line(self, what, start):
        lines = self.store.lines(what, start or 1, 1)
        following = {"what": what, "start": lines.first + 1}
        more = Continuation("peruse", following) if lines.first < lines.total else None
        page = DocumentPage(what, lines.title, lines.lines, lines.total, lines.first, more)
        return ToolOutput(lines.lines[0], page)


def test_a_tool_that_reads_is_found_by_what_it_declares():
    text = "Grenholm Mill is old.\nIt stands on a river.\nTorvald Brekke built Grenholm Mill."
    backend, store = WordBackend({"d": text}), store_of({"d": text})
    agent = reading_agent("Torvald Brekke", "d", qid=QUESTION.qid)
    trajectory = ask(agent, LineByLine(max_tokens=5).open(backend, store))
    starts = [call.arguments.get("start") for call in trajectory.calls if call.name == "peruse"]
    assert starts == [None, 2, 3]
    assert trajectory.answer.exact == "Torvald Brekke"
    assert trajectory.tiers["opened"] == ("d",)


def test_an_interface_that_declares_no_search_is_told_so_by_the_agent(package):
    code = CODE.replace(', searches_by="query"', "")
    (package / "my_tools.py").write_text(code, encoding="utf-8")
    trajectory = asyncio.run(KeywordAgent().run(QUESTION, session()))
    assert trajectory.status == "failed"
    assert "declares no tool that searches" in trajectory.traceback


def test_an_option_that_gives_no_search_tool_is_refused(entry, package, capsys):
    option = package / "tool" / "search_and_next.yaml"
    option.write_text(OPTION + "_partial_: true\n", encoding="utf-8")
    assert entry("run", "--config-dir", str(package), *TINY, "tool=search_and_next") == 2
    assert "without _partial_" in capsys.readouterr().err
    assert not Path("runs").exists() and not Path("indexes").exists()


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
from soundingline.toolkit.search import (ToolOutput, SearchTool, Parameter, Tool)


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
        query = Parameter("query", "Words.")
        yield Tool("find", "Search.", [query], self.find, searches_by="query")

    def find(self, query):
        _, search = self.rank(query, depth=20)
        hits = search.hits[: self.shown]
        page = ResultsPage(query, tuple(hits), len(search.hits))
        return ToolOutput("\\n".join(hit.docid for hit in hits), page, search)
'''
OPTIONS = {
    "reranker/shortest.yaml": "_target_: stranger.Shortest\nfactor: 1.0\n",
    "reranker/shortest_top.yaml": "_target_: stranger.Shortest\nfactor: 2.0\ndepth: 5\n",
    "agent/one_search.yaml": "_target_: stranger.OneSearch\nwords: 8\n",
    "tool/find.yaml": "_target_: stranger.Find\nshown: 3\n",
}


@pytest.fixture(scope="module")
def site(once):
    """Where the stranger's package is installed, from a wheel."""

    def make(folder):
        source, target = folder / "source", folder / "site"
        source.mkdir()
        (source / "pyproject.toml").write_text(PYPROJECT)
        (source / "stranger.py").write_text(PACKAGE)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        # As one command, which builds the wheel: pip starts slowly.
        install = ["install", "--no-deps", "--no-build-isolation", "--target", str(target), "."]
        subprocess.run([*pip, *install], cwd=source, check=True, capture_output=True)

    return once("stranger", make) / "site"


def command(folder, *overrides):
    """The arguments of a sweep whose options of the stranger's lie in `folder`."""
    for name, text in OPTIONS.items():
        (folder / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "own" / name).write_text(text)
    return ("-m", "--config-dir", "own", *TINY, "name=s", *overrides)


def paths(site):
    return {"PYTHONPATH": str(site)}


def test_a_strangers_agent_and_tool_are_swept_beside_ours(tmp_path, site):
    words = command(tmp_path, "tool=find", "agent=one_search,keyword")
    done = run_command("run", *words, folder=tmp_path, environment=paths(site))
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
    rerankers = command(tmp_path, "reranker=none,shortest,shortest_top")
    done = run_command("rank", *rerankers, folder=tmp_path, environment=paths(site))
    assert done.returncode == 0, done.stderr
    rankings = {}
    for path in (tmp_path / "runs" / "s").glob("*/run.trec"):
        lines = [line.split() for line in path.read_text().splitlines()]
        rankings[path.parent.name.split("-")[0]] = [
            row[2] for row in lines if row[0] == lines[0][0]
        ]
    assert len(rankings) == 3
    top, whole = rankings["shortest_top"], rankings["shortest"]
    (plain,) = (docids for name, docids in rankings.items() if not name.startswith("shortest"))
    # The best rows alone have a new order; without a depth, all of the ranking has.
    assert sorted(top[:5]) == sorted(plain[:5]) and top[5:] == plain[5:] and top != plain
    assert sorted(whole) == sorted(plain) and whole[5:] != plain[5:]


def test_pyterriers_own_monot5_is_a_reranker_as_it_is(tmp_path):
    pytest.importorskip("pyterrier_t5")
    import pandas as pd
    from support import checkpoints

    from soundingline.experiments.build import make
    from soundingline.pipelines.lexical.index import LexicalIndex
    from soundingline.pipelines.rerank.reranker import RerankTop

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
    pipeline = index.bm25() >> RerankTop(make(config.reranker), depth=2, texts=index.texts)
    ranking = pipeline(pd.DataFrame({"qid": ["1"], "query": ["mill"]}))
    assert sorted(ranking["docno"]) == ["d0", "d1", "d2", "d3"]
    assert ranking["docno"].tolist()[2:] == ["d2", "d3"]
    assert ranking["score"].iloc[0] < 0


STRANGER = """\
from soundingline.agents.base import Agent
from soundingline.agents.keyword import KeywordAgent
from soundingline.pipelines.retrieve import BM25
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.search import RankedBrowsing
import pyterrier as pt

class Plain(Agent):
    name = "plain"
    async def run(self, topic, tool):
        tool.call("search", {"query": topic.text, "reason": "r"})
        raise ValueError("in a plain agent")

class Forgetful(Agent):
    name = "forgetful"
    async def run(self, topic, tool):
        pass

class Based(Agent):
    name = "based"
    async def work(self, episode):
        raise ValueError("in an agent")

class Rarely(KeywordAgent):
    async def run(self, topic, tool):
        if topic.qid == "q0003":
            raise ValueError("in an agent, once")
        return await super().run(topic, tool)

class Unmade(Agent):
    def __init__(self):
        raise ValueError("in a constructor")
    async def run(self, topic, tool):
        pass

class Failing(BM25):
    def __init__(self, *, k1=0.9, b=0.4, depth=1000):
        super().__init__(k1=k1, b=b, depth=depth)
    def transform(self, inp):
        return self.rescore(super().transform(inp))
    def rescore(self, ranking):
        raise ValueError("in a stage")

class World(FictionalWorld):
    def documents(self):
        raise ValueError("in a benchmark")
"""
FAILING_OPTIONS = {
    "agent/plain": "Plain",
    "agent/forgetful": "Forgetful",
    "agent/based": "Based",
    "agent/rarely": "Rarely",
    "agent/unmade": "Unmade",
    "retriever/failing": "Failing\nk1: 0.9\nb: 0.4\ndepth: 1000",
}


def place(error):
    """Where the user's code raises this."""
    lines = STRANGER[: STRANGER.index(error)].count("\n") + 1
    return f"stranger.py:{lines} raised ValueError: {error}"


@pytest.fixture
def stranger(entry, tmp_path, monkeypatch):
    """`entry` in a folder with classes and options of a user's."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    for option, target in FAILING_OPTIONS.items():
        path = tmp_path / "options" / f"{option}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"_target_: stranger.{target}\n")
    world = (ROOT / "conf" / "benchmark" / "fictional.yaml").read_text()
    (tmp_path / "options" / "benchmark").mkdir()
    (tmp_path / "options" / "benchmark" / "world.yaml").write_text(
        world.replace("soundingline.toolkit.benchmarks.fictional.FictionalWorld", "stranger.World")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda command, *words: entry(command, "--config-dir=options", *words)
    sys.modules.pop("stranger", None)


def in_a_process(folder, command, *words):
    environment = {"PYTHONPATH": f"{ROOT}:{folder}"}
    words = ("--config-dir=options", *words)
    return run_command(command, *words, folder=folder, environment=environment)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("agent=plain", place("in a plain agent")),
        ("agent=based", place("in an agent")),
        ("retriever=failing", place("in a stage")),
    ],
)
def test_a_run_that_fails_in_the_users_code_names_the_line_and_a_trajectory(
    stranger, capsys, given, error
):
    assert stranger("run", *TINY, given, "name=r") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("soundingline: all 6 questions of the run runs/r failed (defect 6), ")
    path = Path("runs/r/queries/q0001.json")
    assert f"for example question q0001: {error} ({path})" in line
    trajectory = json.loads(path.read_text())
    assert "in run_coroutine\n    " in trajectory["traceback"] and trajectory["status"] == "failed"
    assert len(trajectory["calls"]) == (1 if given == "agent=plain" else 0)


def test_one_question_that_fails_is_named_beside_the_count(stranger, capsys):
    assert stranger("run", *TINY, "agent=rarely", "name=r") == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "1 of 6 questions failed (defect 1)" in told
    error = place("in an agent, once")
    assert f"For example, question q0003: {error} (runs/r/queries/q0003.json)" in told
    assert RunFolder("runs/r").failures() == {"defect": 1}


def test_an_agent_that_returns_no_trajectory_is_told_so(stranger, capsys):
    assert stranger("run", *TINY, "agent=forgetful", "name=r") == 2
    error = "TypeError: Forgetful.run returned NoneType, and a run needs a Trajectory"
    assert error in capsys.readouterr().err.splitlines()[-1]


def test_a_class_that_cannot_be_made_is_named_with_its_line(stranger, capsys):
    assert stranger("run", *TINY, "agent=unmade", "name=r") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "agent: ValueError: in a constructor (stranger.py:" in line
    assert place("in a constructor").split()[0] in line


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("given", "error"),
    [("retriever=failing", "in a stage"), ("benchmark=world", "in a benchmark")],
)
def test_an_error_in_the_users_code_ends_with_its_line_behind_the_traceback(tmp_path, given, error):
    ended = in_a_process(tmp_path, "rank", *TINY, given, "name=r")
    assert ended.returncode == 1
    *before, last = ended.stderr.splitlines()
    assert last == f"soundingline: {place(error)}"
    assert before[-1] == f"ValueError: {error}"


def test_a_cell_that_fails_in_the_users_code_names_the_line(stranger, capsys):
    assert stranger("rank", "-m", *TINY, "retriever=failing,bm25_default", "name=s") == 1
    lines = capsys.readouterr().err.splitlines()
    assert place("in a stage") in lines
    assert lines.index(place("in a stage")) > lines.index("ValueError: in a stage")
