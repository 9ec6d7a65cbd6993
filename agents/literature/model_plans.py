"""The navigator's plans by a language model, from a compact table of the evidence so far."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from soundingline.agents.base import Episode
from soundingline.agents.conversation import within
from soundingline.agents.literature.plans import Plan, read_plan
from soundingline.agents.literature.rules import Rules
from soundingline.agents.literature.survey import Survey
from soundingline.agents.prompt import read_prompt
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.errors import ContextOverflow, Refused, Truncated
from soundingline.toolkit.llm.messages import ChatModel, SamplingParams, Turn, system, user
from soundingline.toolkit.llm.prompts import spotlight
from soundingline.toolkit.search.scoring import NOT, SATISFIED

FOLDER = Path(__file__).resolve().parent / "prompts"
_SECTIONS = ("system", "question", "revise", "again")
_PLACE = re.compile(r"\{(\w+)\}")
_PLACES = {
    "system": {"requirements", "queries", "operators"},
    "question": {"question"},
    "revise": {
        *("question", "round", "rounds", "checklist", "queries", "shown", "coverage", "table"),
    },
}
_OPERATORS = {
    "expand": '{"operator": "expand", "docids": [DOCID], "direction": "in", "out" or "both"}: '
    "documents that refer to these, that these refer to, or both",
    "resolve": '{"operator": "resolve", "findings": [TITLE_OR_URL_OR_IDENTIFIER]}: the documents '
    "of the collection that these mean",
}
_BYTES_A_TOKEN = 3
_LONGEST_TITLE = 100


class NavigatorPrompt:
    """The sections of `name`: ours, or the path of a `.txt` file of one's own. `InputError` where
    it cannot be read, or lacks a section or a place."""

    def __init__(self, name: str) -> None:
        path, self.sections = read_prompt(name, FOLDER)
        wrong = [
            section
            for section in _SECTIONS
            if section not in self.sections
            or not _PLACES.get(section, set()) <= set(_PLACE.findall(self.sections[section]))
        ]
        if wrong or set(self.sections) - set(_SECTIONS):
            raise InputError(
                f"the navigator's prompt {path} is wrong in {', '.join(wrong) or 'its sections'}",
                valid="; ".join(
                    f"{name} with {' '.join(f'{{{p}}}' for p in sorted(_PLACES.get(name, ())))}"
                    for name in _SECTIONS
                ),
            )

    @property
    def fingerprint(self) -> str:
        """A hash of every word of it."""
        return fingerprint(dict(self.sections))

    def filled(self, section: str, parts: Mapping[str, str]) -> str:
        """A section with its places filled, in one pass; braces that are no place stay."""
        return _PLACE.sub(lambda match: parts.get(match[1], match[0]), self.sections[section])


class OutOfContext(Exception):
    """No request fits the context window."""


class ModelPlans:
    """Asks `model` for each round's plan. A request holds the question, the plan so far and the
    table, never the transcript, so that it does not grow with the rounds.

    A reply without a plan is asked for once more. Then round 1 is planned by `fallback`, and a
    later one is the last. `rounds`, `queries`, `requirements`: the limits that the model is told;
    `shown`: rows of the table, halved until the request fits `context_window` beside
    `answer_tokens`. `OutOfTime` and `OutOfContext` where there is no reply; what the model raises
    is raised.
    """

    def __init__(
        self,
        episode: Episode,
        model: ChatModel,
        settings: SamplingParams,
        prompt: NavigatorPrompt,
        *,
        fallback: Rules,
        tools: Collection[str],
        rounds: int,
        queries: int,
        requirements: int,
        shown: int,
        context_window: int | None,
        answer_tokens: int,
        seconds: float | None,
    ) -> None:
        self._episode, self._model, self._settings = episode, model, settings
        self._prompt, self._fallback = prompt, fallback
        self._rounds, self._queries, self._requirements = rounds, queries, requirements
        self._shown = shown
        longest = max(answer_tokens, settings.max_output_tokens or 0)
        self._room = None if context_window is None else context_window - longest
        self._seconds = seconds
        operators = "\n  ".join(text for name, text in _OPERATORS.items() if name in tools)
        self._system = prompt.filled(
            "system",
            {
                "requirements": str(requirements),
                "queries": str(queries),
                "operators": operators or "(there is no other operator)",
            },
        )

    async def plan(self, survey: Survey, number: int) -> Plan:
        """The plan of round `number`, from 1."""
        messages = [system(self._system), user(self._request(survey, number))]
        if not self._episode.messages or self._episode.messages[0]["role"] != "system":
            self._episode.messages[:] = [messages[0]]
        self._episode.messages.append(messages[1])
        for attempt in range(2):
            if attempt:
                self._episode.messages.append(user(self._prompt.sections["again"]))
                messages.append(self._episode.messages[-1])
            turn = await self._reply(messages)
            plan = read_plan(
                turn.text,
                set(survey.retrieval),
                queries=self._queries,
                requirements=self._requirements,
            )
            if plan is not None:
                return plan
            # APIs refuse a message without content.
            messages.append({"role": "assistant", "content": turn.text.strip() or "(nothing)"})
        self._episode.warnings.append(f"round {number}: the navigator gave no plan, twice")
        if number == 1:
            return await self._fallback.plan(survey, number)
        return Plan(stop=True, reason="no plan")

    async def _reply(self, messages: Sequence[Mapping[str, object]]) -> Turn:
        left = None if self._seconds is None else self._seconds - self._episode.seconds
        try:
            turn = await within(self._model.respond(messages, (), self._settings), left)
        except ContextOverflow as error:
            raise OutOfContext from error
        except (Truncated, Refused) as error:
            turn = error.turn or Turn()
        message = turn.message()
        counts = {"input": turn.usage.input, "output": turn.usage.output}
        message["usage"] = {name: value for name, value in counts.items() if value is not None}
        self._episode.messages.append(message)
        return turn

    def _request(self, survey: Survey, number: int) -> str:
        question = self._episode.topic.text
        if number == 1:
            text = self._prompt.filled("question", {"question": question})
            if self._fits(text):
                return text
            raise OutOfContext
        shown = self._shown
        while True:
            text = self._revision(survey, number, shown)
            if self._fits(text):
                return text
            if shown <= 1:
                raise OutOfContext
            shown //= 2

    def _fits(self, text: str) -> bool:
        size = len((self._system + text).encode("utf-8", "replace")) // _BYTES_A_TOKEN
        return self._room is None or size <= self._room

    def _revision(self, survey: Survey, number: int, shown: int) -> str:
        checklist = [f"{n}. {need}" for n, need in enumerate(survey.checklist, start=1)]
        best = [docid for docid in survey.ranked() if survey.judged(docid)][:shown]
        queries = [
            f"- {row['operator']}: {_short(row)} ({row['new']} new{_trouble(row)})"
            for record in self._episode.rounds
            for row in record["librarians"]
        ]
        table = "\n".join(_line(survey, docid) for docid in best)
        nonce = fingerprint(table, number)
        return self._prompt.filled(
            "revise",
            {
                "question": self._episode.topic.text,
                "round": str(number),
                "rounds": str(self._rounds),
                "checklist": "\n".join(checklist) or "(empty)",
                "queries": "\n".join(queries[-2 * self._queries :]) or "(none)",
                "shown": str(len(best)),
                "coverage": "\n".join(_coverage(survey, best)) or "(nothing was scored)",
                "table": spotlight("{table}", {"table": table or "(none)"}, nonce),
            },
        )


def _coverage(survey: Survey, best: Sequence[str]) -> list[str]:
    lines = []
    for number, need in enumerate(survey.checklist, start=1):
        verdicts = [row.verdict for d in best if (row := survey.scores[d].get(need))]
        counts = verdicts.count(SATISFIED), verdicts.count(NOT)
        open_ = len(best) - sum(counts)
        lines.append(f"{number}. {counts[0]} satisfied, {counts[1]} not, {open_} open")
    return lines


def _line(survey: Survey, docid: str) -> str:
    known = survey.scores[docid]
    cells = [
        f"{number} {known[need].verdict} {known[need].score:.2f}"
        for number, need in enumerate(survey.checklist, start=1)
        if need in known
    ]
    title = survey.titles.get(docid, "")[:_LONGEST_TITLE]
    return f"{docid} | {title} | {survey.score(docid):.2f} | {'; '.join(cells)}"


def _short(row: Mapping[str, object]) -> str:
    docids = row.get("docids")
    text = row.get("text") or (" ".join(map(str, docids)) if isinstance(docids, list) else "")
    return " ".join(str(text).split())[:200]


def _trouble(row: Mapping[str, object]) -> str:
    return f", {row['error']}" if row.get("error") else ""
