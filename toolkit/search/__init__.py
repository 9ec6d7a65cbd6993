"""The search tool: one session per question, which shows rankings and remembers what it showed.

Two interfaces over one session: `RankedBrowsing` (search, page through the ranking, read by lines;
the tools of Pi-Serini) and `TopK` (the best k texts, cut to a token budget; BrowseComp-Plus). What
ranks stands behind `contracts.SearchBackend`, the text behind `contracts.DocumentStore`; agents,
messages and run folders belong elsewhere. `docs/search-tool.md` shows the output and the codes.
"""

from toolkit.search.answers import format_answer, parse_answer
from toolkit.search.backends import DictionaryBackend, DictionaryStore
from toolkit.search.errors import ToolError
from toolkit.search.evidence import EvidenceLog
from toolkit.search.ranked_browsing import RankedBrowsing
from toolkit.search.session import Session
from toolkit.search.top_k import TopK

__all__ = [
    "DictionaryBackend",
    "DictionaryStore",
    "EvidenceLog",
    "RankedBrowsing",
    "Session",
    "ToolError",
    "TopK",
    "format_answer",
    "parse_answer",
]
