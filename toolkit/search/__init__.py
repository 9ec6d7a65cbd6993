"""The search tool: what an agent calls, and the record of what it was exposed to. Each interface is
a subclass of `SearchTool`: `RankedBrowsing` (the tools of Pi-Serini), `TopK` (BrowseComp-Plus),
and `Literature` (PaSaMaster). Its fields are settings; `open(backend, store)` returns a copy that
serves one question. See `docs/agents.md` for outputs, error codes and an interface of your own."""

from soundingline.toolkit.search.answers import format_answer, parse_answer
from soundingline.toolkit.search.literature import Literature, Located, Operators
from soundingline.toolkit.search.ranked_browsing import RankedBrowsing
from soundingline.toolkit.search.session import (
    CachedSearch,
    ExposureLog,
    SearchTool,
    Tool,
    ToolOutput,
)
from soundingline.toolkit.search.tool import (
    Continuation,
    DocumentPage,
    Page,
    Parameter,
    ResultsPage,
    ToolError,
)
from soundingline.toolkit.search.top_k import TopK

__all__ = [
    "CachedSearch",
    "Continuation",
    "DocumentPage",
    "ExposureLog",
    "Literature",
    "Located",
    "Operators",
    "Page",
    "Parameter",
    "RankedBrowsing",
    "ResultsPage",
    "SearchTool",
    "Tool",
    "ToolError",
    "ToolOutput",
    "TopK",
    "format_answer",
    "parse_answer",
]
