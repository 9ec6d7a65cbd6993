"""A search tool of a third party: one module, which an option names."""

import asyncio
import importlib
import sys
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.llm_model import ScriptedModel, call, calling, saying
from support.search import WordBackend, store_of

from soundingline.agents.chat import ChatAgent
from soundingline.agents.keyword import KeywordAgent
from soundingline.toolkit.data import Topic
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import Parameter, Tool, ToolSpec, TopK
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
    ToolSpec,
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
        search = ToolSpec("search", "Rank the collection.", (query,))
        yield Tool(search, self._search, searches_by="query")
        yield Tool(ToolSpec("next", "Show the hits that follow.", ()), self._next)

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
    trajectory = ask(KeywordAgent(max_searches=1), session(page=2))
    assert [(call.name, call.error) for call in trajectory.calls] == [("search", "")]
    assert trajectory.answer.exact == "Torvald Brekke"
    assert trajectory.tiers["surfaced"] == tuple(TEXTS)
    assert trajectory.tiers["previewed"] == tuple(TEXTS)[:2]
    assert trajectory.tiers["cited"] == ("mill",)


def test_a_tool_calling_agent_is_shown_and_served_its_tools(package):
    model = ScriptedModel(
        calling(call("search", "a", query="mill")),
        calling(call("next", "b"), call("next", "c")),
        saying("Explanation: so [mill]\nExact Answer: Torvald Brekke\nConfidence: 90%"),
    )
    trajectory = ask(ChatAgent(model=model), session())
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
    trajectory = ask(KeywordAgent(max_searches=1), tool)
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
        yield Tool(ToolSpec("peruse", "Read a line.", (what, start)), self._line, reads_by="what")

    def _line(self, what, start):
        lines = self.store.lines(what, start or 1, 1)
        following = {"what": what, "start": lines.first + 1}
        more = Continuation("peruse", following) if lines.first < lines.total else None
        page = DocumentPage(what, lines.title, lines.lines, lines.total, lines.first, more)
        return ToolOutput(lines.lines[0], page)


def test_a_tool_that_reads_is_found_by_what_it_declares():
    text = "Grenholm Mill is old.\nIt stands on a river.\nTorvald Brekke built Grenholm Mill."
    backend, store = WordBackend({"d": text}), store_of({"d": text})
    trajectory = ask(KeywordAgent(), LineByLine(max_tokens=5).open(backend, store))
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


def test_one_that_asks_the_pipeline_and_declares_that_it_does_not_is_told(entry, package):
    code = CODE.replace("    page: int", "    uses_pipeline = False\n    page: int")
    (package / "my_tools.py").write_text(code, encoding="utf-8")
    given = ("--config-dir", str(package), "tool=search_and_next")
    assert entry("run", *given, *TINY, "name=own") == 2
    for trajectory in RunFolder("runs/own").trajectories():
        assert trajectory.status == "failed"
        assert "declares uses_pipeline = False" in trajectory.traceback


def test_an_option_that_gives_no_search_tool_is_refused(entry, package, capsys):
    option = package / "tool" / "search_and_next.yaml"
    option.write_text(OPTION + "_partial_: true\n", encoding="utf-8")
    assert entry("run", "--config-dir", str(package), *TINY, "tool=search_and_next") == 2
    assert "without _partial_" in capsys.readouterr().err
    assert not Path("runs").exists() and not Path("indexes").exists()
