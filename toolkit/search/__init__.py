"""The search tool: one session per question, which shows rankings and remembers what it showed.

Four interfaces over one session: `RankedBrowsing` (search, page through the ranking, read by lines;
the tools of Pi-Serini), `Grep` (the same by patterns), `TopK` (the best k texts, cut to a token
budget; BrowseComp-Plus) and `Literature` (search, links, layers of reading, evidence, findings of
others). Each is a class of settings whose `session(backend, store)` serves one question; an
interface of your own is such a class and a subclass of `ToolSession`. What ranks stands behind
`contracts.SearchBackend`, the text behind `contracts.DocumentStore`; agents, messages and run
folders belong elsewhere.
`docs/search-tool.md` shows the output and the codes."""

from toolkit.search.answers import format_answer, parse_answer
from toolkit.search.backends import DictionaryBackend, DictionaryStore
from toolkit.search.errors import ToolError
from toolkit.search.evidence import EvidenceLog
from toolkit.search.grep import Grep, GrepSession
from toolkit.search.literature import Literature, LiteratureSession, Located, Operators
from toolkit.search.ranked_browsing import RankedBrowsing, RankedBrowsingSession
from toolkit.search.schemas import ChoiceParameter, IntegerParameter, TextParameter, ToolSpec
from toolkit.search.session import CachedRanking, Page, SessionSettings, Tool, ToolSession
from toolkit.search.top_k import TopK, TopKSession

__all__ = [
    "CachedRanking",
    "ChoiceParameter",
    "DictionaryBackend",
    "DictionaryStore",
    "EvidenceLog",
    "Grep",
    "GrepSession",
    "IntegerParameter",
    "Literature",
    "LiteratureSession",
    "Located",
    "Operators",
    "Page",
    "RankedBrowsing",
    "RankedBrowsingSession",
    "SessionSettings",
    "TextParameter",
    "Tool",
    "ToolError",
    "ToolSession",
    "ToolSpec",
    "TopK",
    "TopKSession",
    "format_answer",
    "parse_answer",
]
