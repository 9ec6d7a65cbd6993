"""Plans of the navigator: what a round searches for, and plans by a language model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soundingline.agents.base import Episode, OutOfTime, within
from soundingline.agents.chat import message_bytes
from soundingline.agents.literature.scores import CandidateScores
from soundingline.agents.prompt import prompt_sections
from soundingline.toolkit.corpus.links import DIRECTIONS
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import ContextOverflow, Refused, Truncated
from soundingline.toolkit.llm.messages import ChatModel, SamplingParams, Turn, system, user
from soundingline.toolkit.llm.prompts import json_values, spotlight
from soundingline.toolkit.search.scoring import NOT, SATISFIED
from soundingline.toolkit.search.tool import one_line

SEARCH, EXPAND, RESOLVE = "search", "expand", "resolve"
MOST_REQUIREMENTS = 30  # that a call of `score` takes
_LONGEST_REQUIREMENT = 300  # characters
_LONGEST_QUERY = 2000  # characters

FOLDER = Path(__file__).resolve().parent / "prompts"
_PLACE = re.compile(r"\{(\w+)\}")
# The sections of a prompt and the places that each must have.
_SECTIONS: Mapping[str, set[str]] = {
    "system": {"requirements", "queries", "operators"},
    "question": {"question"},
    "revise": {
        "question",
        "round",
        "rounds",
        "checklist",
        "queries",
        "shown",
        "coverage",
        "table",
        "strategy",
    },
    "again": set(),
}
_OPERATORS = {
    "expand": '{"operator": "expand", "docids": [DOCID], "direction": "in", "out" or "both"}: '
    "documents that refer to these, that these refer to, or both",
    "resolve": '{"operator": "resolve", "findings": [TITLE_OR_URL_OR_IDENTIFIER]}: the documents '
    "of the collection that these mean",
}
_BYTES_PER_TOKEN = 3
_LONGEST_TITLE = 100
_LONGEST_RATIONALE = 200  # characters of the evidence that a model sees
_LONGEST_PASSAGE = 500

# The texts of passages by their ids; unknown ids are left out.
PassageTexts = Callable[[Iterable[str]], Mapping[str, str]]


@dataclass(frozen=True)
class PlanQuery:
    """The task of one librarian.

    - `search`: search for `text`. `title_has` and `title_lacks` filter the hits that the interface
      shows: the title must contain one of the words of the former and none of the latter.
    - `expand`: the documents linked with `docids`, by `direction`.
    - `resolve`: the documents that the lines of `text` (titles, urls, identifiers) mean; with a
      `direction`, the documents linked with those instead.

    `reason` is recorded.
    """

    operator: str = SEARCH
    text: str = ""
    docids: tuple[str, ...] = ()
    direction: str = ""
    title_has: tuple[str, ...] = ()
    title_lacks: tuple[str, ...] = ()
    reason: str = ""

    def row(self) -> dict[str, Any]:
        """The query as JSON values, without empty ones."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if value
        }


@dataclass(frozen=True)
class SearchPlan:
    """The plan of a round.

    `missing` names what the evidence does not cover yet, and `strategy` how this round looks for
    it. `checklist` are the requirements from this round on. `stop` says that no further round is
    wanted; there are no queries then. `left_out` counts queries and requirements that were unusable
    or too many. `by` is `rules` or `model`.
    """

    queries: tuple[PlanQuery, ...] = ()
    checklist: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    strategy: str = ""
    stop: bool = False
    reason: str = ""
    left_out: int = 0
    by: str = "rules"


def normalize_requirement(requirement: str) -> str:
    """A requirement on one line, cut after 300 characters."""
    text = " ".join(requirement.split())
    return text[:_LONGEST_REQUIREMENT].strip()


def normalize_checklist(requirements: Sequence[str], most: int) -> tuple[str, ...]:
    """The first `most` different requirements that are not empty."""
    return tuple(dict.fromkeys(filter(None, map(normalize_requirement, requirements))))[:most]


def read_plan(
    text: str, known: Collection[str], *, queries: int, requirements: int
) -> SearchPlan | None:
    """The plan in the last JSON object of a reply that has `queries`, a `checklist` or `stop`.

    None if there is none. `known` are the docids that a query may name; `queries` and
    `requirements` are the largest numbers of these.
    """
    stated: Mapping[str, Any] | None = None
    for value in json_values(text):
        if isinstance(value, dict) and {"queries", "checklist", "stop"} & set(value):
            stated = value
    if stated is None:
        return None
    listed = _texts(stated.get("checklist"))
    checklist = normalize_checklist(listed, requirements)
    rows = stated.get("queries")
    rows = rows if isinstance(rows, list) else []
    usable = [query for row in rows for query in _queries(row, known)]
    stop = stated.get("stop") is True
    chosen = () if stop else tuple(dict.fromkeys(usable))[:queries]
    left_out = 0 if stop else max(0, len(rows) - len(chosen))
    left_out += len(listed) - len(checklist)
    return SearchPlan(
        chosen,
        checklist,
        normalize_checklist(_texts(stated.get("missing")), requirements),
        str(stated.get("strategy") or "")[:_LONGEST_QUERY],
        stop,
        str(stated.get("reason") or "")[:_LONGEST_QUERY],
        left_out,
        by="model",
    )


def _queries(row: Any, known: Collection[str]) -> Iterator[PlanQuery]:
    """The query of a row, if it is usable."""
    if isinstance(row, str):
        row = {"query": row}
    if not isinstance(row, dict):
        return
    operator = str(row.get("operator") or SEARCH).strip().lower()
    direction = str(row.get("direction") or "").strip().lower()
    direction = direction if direction in DIRECTIONS else ""
    lines = _texts(row.get("query") or row.get("findings") or "")
    text = "\n".join(line for part in lines for line in part.splitlines() if line.strip())
    text = text[:_LONGEST_QUERY]
    if operator == EXPAND:
        docids = tuple(dict.fromkeys(d for d in _texts(row.get("docids")) if d in known))
        if docids:
            yield PlanQuery(EXPAND, docids=docids, direction=direction or "both")
    elif operator == RESOLVE and text:
        yield PlanQuery(RESOLVE, text, direction=direction)
    elif operator == SEARCH and text:
        yield PlanQuery(
            SEARCH,
            " ".join(text.split()),
            title_has=tuple(_texts(row.get("title_has"))),
            title_lacks=tuple(_texts(row.get("title_lacks"))),
        )


def _texts(value: Any) -> list[str]:
    items = value if isinstance(value, list) else [value]
    return [str(item) for item in items if isinstance(item, (str, int)) and str(item).strip()]


def load_sections(name: str) -> dict[str, str]:
    """The sections of a prompt of the package, or of a `.txt` file with the same sections.
    `InputError` if it cannot be read, or if a section or a place is missing."""
    path, sections = prompt_sections(name, FOLDER)
    wrong = [
        section
        for section, places in _SECTIONS.items()
        if section not in sections or not places <= set(_PLACE.findall(sections[section]))
    ]
    if wrong or set(sections) - set(_SECTIONS):
        raise InputError(
            f"the navigator's prompt {path} is wrong in {', '.join(wrong) or 'its sections'}",
            valid="; ".join(
                f"{section} with {' '.join(f'{{{place}}}' for place in sorted(places))}"
                for section, places in _SECTIONS.items()
            ),
        )
    return sections


def fill(section: str, parts: Mapping[str, str]) -> str:
    """A section with its places filled in one pass. Other braces stay."""
    return _PLACE.sub(lambda match: parts.get(match[1], match[0]), section)


@dataclass(kw_only=True, eq=False)
class ModelPlanner:
    """Asks a language model for the plan of each round.

    A request has the question, the plan so far and the ranked evidence: the best documents, their
    verdict, score and rationale for each requirement, and the passages that these rest on. It never
    has the transcript, so that it does not grow with the rounds. A reply without a plan is followed
    by one more request. The documents shown are halved until the request fits the context window.

    `rounds`, `queries` and `requirements` are the largest numbers of a question, a round and a
    checklist, and `shown` that of the documents in a request. `plan` raises `OutOfTime` if there is
    no reply, `ContextOverflow` if no request fits the window, and what the model raises.
    """

    episode: Episode
    model: ChatModel
    sampling: SamplingParams
    prompt: Mapping[str, str]
    rounds: int
    queries: int
    requirements: int
    shown: int
    tools: Collection[str]
    passages: PassageTexts

    def __post_init__(self) -> None:
        budget = self.episode.budget
        window = budget.context_window
        longest = max(budget.answer_tokens, self.sampling.max_output_tokens or 0)
        self._room = None if window is None else window - longest
        operators = "\n  ".join(text for name, text in _OPERATORS.items() if name in self.tools)
        self._system = fill(
            self.prompt["system"],
            {
                "requirements": str(self.requirements),
                "queries": str(self.queries),
                "operators": operators or "(there is no other operator)",
            },
        )

    async def plan(self, scores: CandidateScores, number: int) -> SearchPlan | None:
        """The plan of round `number`, from 1. None if two replies have none."""
        transcript = self.episode.messages
        messages = [system(self._system), user(self._request(scores, number))]
        if not transcript or transcript[0]["role"] != "system":
            transcript[:] = [messages[0]]
        transcript.append(messages[1])
        for attempt in range(2):
            if attempt:
                messages.append(user(self.prompt["again"]))
                transcript.append(messages[-1])
            turn = await self._reply(messages)
            plan = read_plan(
                turn.text,
                set(scores.retrieval),
                queries=self.queries,
                requirements=self.requirements,
            )
            if plan is not None:
                return plan
            # APIs refuse a message without content.
            messages.append({"role": "assistant", "content": turn.text.strip() or "(nothing)"})
        self.episode.warnings.append(f"round {number}: the navigator gave no plan, twice")
        return None

    async def _reply(self, messages: Sequence[Mapping[str, object]]) -> Turn:
        patience = self.episode.budget.patience(self.episode.seconds)
        try:
            turn = await within(self.model.respond(messages, (), self.sampling), patience)
        except (Truncated, Refused) as error:
            turn = error.turn or Turn()
        message = turn.message()
        counts = {"input": turn.usage.input, "output": turn.usage.output}
        message["usage"] = {name: value for name, value in counts.items() if value is not None}
        self.episode.messages.append(message)
        input, output = turn.usage.input, turn.usage.output
        self.episode.charge(
            sum(map(message_bytes, messages)) // _BYTES_PER_TOKEN if input is None else input,
            message_bytes(message) // _BYTES_PER_TOKEN if output is None else output,
        )
        if self.episode.budget.is_over(self.episode.seconds):
            raise OutOfTime
        return turn

    def _request(self, scores: CandidateScores, number: int) -> str:
        shown = self.shown
        while True:
            if number == 1:
                text = fill(self.prompt["question"], {"question": self.episode.topic.text})
            else:
                text = self._revision(scores, number, shown)
            size = len((self._system + text).encode()) // _BYTES_PER_TOKEN
            if self._room is None or size <= self._room:
                return text
            if number == 1 or shown <= 1:
                raise ContextOverflow(f"a request of {size} tokens, estimated by its bytes")
            shown //= 2

    def _revision(self, scores: CandidateScores, number: int, shown: int) -> str:
        rounds = self.episode.rounds
        strategy = str(rounds[-1].get("strategy") or "") if rounds else ""
        checklist = [f"{n}. {need}" for n, need in enumerate(scores.checklist, start=1)]
        best = scores.best()[:shown]
        queries = []
        for row in (row for record in rounds for row in record["librarians"]):
            text = " ".join((row.get("text") or " ".join(row.get("docids", ()))).split())[:200]
            error = f", {row['error']}" if row.get("error") else ""
            queries.append(f"- {row['operator']}: {text} ({row['new']} new{error})")
        table = "\n".join(_shown_document(scores, docid, self.passages) for docid in best)
        return fill(
            self.prompt["revise"],
            {
                "question": self.episode.topic.text,
                "round": str(number),
                "rounds": str(self.rounds),
                "strategy": strategy or "(none)",
                "checklist": "\n".join(checklist) or "(empty)",
                "queries": "\n".join(queries[-2 * self.queries :]) or "(none)",
                "shown": str(len(best)),
                "coverage": "\n".join(_coverage(scores, best)) or "(nothing was scored)",
                "table": spotlight("{table}", {"table": table or "(none)"}),
            },
        )


def _coverage(scores: CandidateScores, best: Sequence[str]) -> Iterator[str]:
    """A line for each requirement: how many of the best documents satisfy it."""
    for number, need in enumerate(scores.checklist, start=1):
        verdicts = [row.verdict for d in best if (row := scores.scores[d].get(need))]
        satisfied, not_satisfied = verdicts.count(SATISFIED), verdicts.count(NOT)
        undecided = len(best) - satisfied - not_satisfied
        yield f"{number}. {satisfied} satisfied, {not_satisfied} not, {undecided} open"


def _shown_document(scores: CandidateScores, docid: str, passages: PassageTexts) -> str:
    """A document as the model sees it: its title and score, a line for each requirement with the
    rationale and the id of the passage, and each of these passages once."""
    cells = scores.scores[docid]
    title = one_line(scores.titles.get(docid, ""))[:_LONGEST_TITLE]
    lines = [f"{docid} | {title} | {scores.score(docid):.2f}"]
    for number, need in enumerate(scores.checklist, start=1):
        if cell := cells.get(need):
            passage = f" in {cell.passage}" if cell.passage else ""
            rationale = (
                f": {one_line(cell.rationale)[:_LONGEST_RATIONALE]}" if cell.rationale else ""
            )
            lines.append(f"  {number} {cell.verdict} {cell.score:.2f}{passage}{rationale}")
    named = dict.fromkeys(cells[need].passage for need in scores.checklist if need in cells)
    texts = passages(filter(None, named))
    lines += [f"  {name} | {one_line(text)[:_LONGEST_PASSAGE]}" for name, text in texts.items()]
    return "\n".join(lines)
