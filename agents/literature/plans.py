"""What a navigator wants done in a round: queries for the librarians, and a checklist."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from soundingline.toolkit.benchmarks.links import DIRECTIONS
from soundingline.toolkit.llm.prompts import json_values

SEARCH, EXPAND, RESOLVE = OPERATORS = ("search", "expand", "resolve")
_LONGEST = 300  # characters of a requirement
# That many fit a call of `score`.
MOST_REQUIREMENTS = 30
_LONGEST_QUERY = 2000


@dataclass(frozen=True)
class Query:
    """What one librarian is sent for.

    - `search`: `text` is the query. `title_has` and `title_lacks` are filters: of the hits whose
      titles the interface shows they keep those whose title has one of these words, and none of
      those.
    - `expand`: the documents linked with `docids`, by `direction`.
    - `resolve`: the documents that the lines of `text` (titles, urls, identifiers) mean; with a
      `direction`, those linked with them in their place.

    `reason` is for the record.
    """

    operator: str = SEARCH
    text: str = ""
    docids: tuple[str, ...] = ()
    direction: str = ""
    title_has: tuple[str, ...] = ()
    title_lacks: tuple[str, ...] = ()
    reason: str = ""

    def row(self) -> dict[str, Any]:
        """The query as JSON values, without what is empty."""
        named = {key: getattr(self, key) for key in self.__dataclass_fields__}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in named.items()
            if value
        }


@dataclass(frozen=True)
class Plan:
    """`checklist`: the requirements from this round on. `stop`: no further round is wanted, and
    there are no queries. `left_out` counts queries and requirements that were not usable or too
    many. `by`: `rules` or `model`."""

    queries: tuple[Query, ...] = ()
    checklist: tuple[str, ...] = ()
    stop: bool = False
    reason: str = ""
    left_out: int = 0
    by: str = "rules"


def tidy(requirement: str) -> str:
    """A requirement on one line, cut where it is too long."""
    text = " ".join(requirement.split())
    return text.encode("utf-8", "replace").decode("utf-8")[:_LONGEST].strip()


def tidy_checklist(requirements: Sequence[str], most: int) -> tuple[str, ...]:
    """The first `most` different requirements that say anything."""
    return tuple(dict.fromkeys(filter(None, map(tidy, requirements))))[:most]


def read_plan(text: str, known: Collection[str], *, queries: int, requirements: int) -> Plan | None:
    """The plan in the last JSON object of a reply that has `queries`, a `checklist` or `stop`; None
    where there is none. At most `queries` queries and `requirements` requirements; of docids only
    those `known`."""
    stated: Mapping[str, Any] | None = None
    for value in json_values(text):
        if isinstance(value, dict) and {"queries", "checklist", "stop"} & set(value):
            stated = value
    if stated is None:
        return None
    listed = _texts(stated.get("checklist"))
    checklist = tidy_checklist(listed, requirements)
    rows = stated.get("queries")
    rows = rows if isinstance(rows, list) else []
    usable = [query for row in rows for query in _queries(row, known)]
    stop = stated.get("stop") is True
    chosen = () if stop else tuple(dict.fromkeys(usable))[:queries]
    left_out = 0 if stop else max(0, len(rows) - len(chosen))
    left_out += len(listed) - len(checklist)
    reason = str(stated.get("reason") or "")[:_LONGEST_QUERY]
    return Plan(chosen, checklist, stop, reason, left_out, by="model")


def _queries(row: Any, known: Collection[str]) -> Iterator[Query]:
    """The query of a row, where it is usable."""
    if isinstance(row, str):
        row = {"query": row}
    if not isinstance(row, dict):
        return
    operator = str(row.get("operator") or SEARCH).strip().lower()
    direction = str(row.get("direction") or "").strip().lower()
    direction = direction if direction in DIRECTIONS else ""
    text = row.get("query") or row.get("findings") or ""
    lines = _texts(text if isinstance(text, list) else [text])
    joined = "\n".join(line for part in lines for line in part.splitlines() if line.strip())
    joined = joined.encode("utf-8", "replace").decode("utf-8")[:_LONGEST_QUERY]
    if operator == EXPAND:
        docids = tuple(dict.fromkeys(d for d in _texts(row.get("docids")) if d in known))
        if docids:
            yield Query(EXPAND, docids=docids, direction=direction or "both")
    elif operator == RESOLVE and joined:
        yield Query(RESOLVE, joined, direction=direction)
    elif operator == SEARCH and joined:
        yield Query(
            SEARCH,
            " ".join(joined.split()),
            title_has=tuple(_texts(row.get("title_has"))),
            title_lacks=tuple(_texts(row.get("title_lacks"))),
        )


def _texts(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [str(item) for item in items if isinstance(item, (str, int)) and str(item).strip()]
