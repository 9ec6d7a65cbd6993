"""What a language model's server must do before a run pays for it, checked by the requests and the
client of the run.

A conversation of two tool calls, a forced call and a reply that is cut show most of it. The prompt
of the conversation is long enough for a prefix cache (OpenAI's begins at 1,024 tokens), and longer
where the server does not say how large its context window is: a server that drops the beginning of
a prompt without an error (Ollama's window has 4,096 tokens unless it is set) counts fewer tokens
than the prompt has words.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import TypedDict

from soundingline.agents.base import Budget
from soundingline.experiments.preflight.findings import Finding
from soundingline.toolkit.errors import InputError, parse
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.actions import unconstrained_reply
from soundingline.toolkit.llm.blocking import BlockingModel, run_coroutine
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.errors import (
    ContextOverflow,
    ModelError,
    OutOfMoney,
    Truncated,
    Unreachable,
)
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.messages import (
    ChatModel,
    Message,
    SamplingParams,
    Tools,
    Turn,
    system,
    tool_result,
    tool_spec,
    user,
)
from soundingline.toolkit.llm.openai import OpenAIChat

ROLE = "preflight"
# Marks of chat templates, and what is left of gpt-oss's where a server drops them alone.
_MARKS = re.compile(r"<\|\w+\|>|</?think(?:ing)?>|\[/?THINK\]|assistantfinal|</?seed:think>")
_TOOL = tool_spec(
    "record_place",
    "Records a place. The result names the next place to record.",
    {
        "name": {"type": "string", "description": "The name of the place."},
        "year": {"type": "integer", "description": "The year in which it was founded."},
        "aliases": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Its other names.",
        },
    },
)


class _Place(TypedDict):
    name: str
    year: int
    aliases: list[str]


_WRITTEN_CALL = re.compile(rf"<tool_call|<function|\[TOOL_CALLS\]|{_TOOL['name']}")
_RULES = "Record each place that you are told by one call of record_place. Say nothing else."
_FIRST = 'Record this place: name "Oslo", year 1048, aliases "Kristiania" and "Christiania".'
_NEXT = 'Recorded. The next place: name "Bergen", year 1070, aliases "Bjorgvin".'
_GREETING = "Reply with the one word: ready"
_COUNT = "Count from 1 to 500 in digits, with commas between the numbers."
_LINE = "Line {} of this list has no meaning and asks for nothing."
# Words, which have a token each at least: for a server that we start, which may be a small machine,
# for one whose window is known, and for another.
_SHORT_PREFIX, _PREFIX, _LONG_PREFIX = 60, 1200, 6000
_SHORTEST = 16  # tokens, the smallest limit of the Responses API
_BYTES_PER_TOKEN = 5  # at least as many as texts in English have, so that no prompt is overrated
_NO_EFFORT = (None, "none", "minimal", "low")  # with which a model may leave out its reasoning
_PARSER = "correct the server's parser of tool calls (--tool-call-parser of vLLM)"


def server_key(llm: LanguageModel, *arguments: Any) -> str:
    """What identifies a server and how it is asked, so that it is checked once."""
    values = [type(llm).__name__, llm.name, getattr(llm, "address", ""), getattr(llm, "calls", "")]
    return fingerprint(*values, llm.settings.as_dict(), *map(repr, arguments))


def check_server(
    model: ChatModel,
    llm: LanguageModel,
    ledger: Ledger,
    *,
    budget: Budget,
    opening: Sequence[Any] = (),
    tools: bool = True,
    forced: bool = False,
    seconds: float = 60.0,
) -> list[Finding]:
    """Check the server of an agent's model by up to seven requests, which the ledger records under
    the role `preflight`.

    Args:
        model: the running model.
        llm: its configuration.
        budget: of a question, whose limits need usage and room in the context window.
        opening: the longest messages with which a question opens, and the tools.
        tools: whether the agent offers the model tools.
        forced: whether the agent forces a call.
        seconds: after which the check ends without a result.
    """
    probe = _ServerProbe(model, llm, ledger, budget, opening)

    async def limited() -> None:
        try:
            await asyncio.wait_for(probe.run(tools, forced), seconds)
        finally:
            await model.close()

    try:
        run_coroutine(limited())
    except (asyncio.TimeoutError, TimeoutError):
        probe.note(
            f"{llm.name} took more than {seconds:.0f} s for the check, which is not complete",
            "expect slow replies, or set preflight.check=false",
        )
    return probe.found


def check_text_model(blocking: BlockingModel, group: str, seconds: float = 60.0) -> list[Finding]:
    """Check by one request of so many seconds that the model of a stage replies in plain text. A
    server that cannot be reached is a note: the stage may have all replies in its cache."""
    longest = max(64, blocking.settings.max_output_tokens or 512)
    timeout = min(seconds, blocking.settings.timeout)
    settings = replace(blocking.settings, max_output_tokens=longest, logprobs=None, timeout=timeout)
    where = f"{blocking.name}, which the {group} asks,"
    try:
        turn = blocking.respond([user(_GREETING)], settings)
    except (Truncated, OutOfMoney):
        return []
    except Unreachable as error:
        do = "start it, unless all replies are cached"
        return [Finding("server", "note", f"{where} cannot be reached: {error}", do)]
    except ModelError as error:
        return [Finding("server", "fault", f"{where} does not reply: {error}", "correct it")]
    if mark := _MARKS.search(turn.text):
        do = "set the server's parser of reasoning (--reasoning-parser of vLLM)"
        return [Finding("server", "fault", f"{where} writes {mark[0]} into its replies", do)]
    return []


class _ServerProbe:
    """The requests of one check, and what they have found so far."""

    def __init__(
        self,
        model: ChatModel,
        llm: LanguageModel,
        ledger: Ledger,
        budget: Budget,
        opening: Sequence[Any],
    ) -> None:
        self.found: list[Finding] = []
        self._model, self._llm, self._ledger = model, llm, ledger
        self._budget, self._opening = budget, opening
        self._turns: list[Turn] = []
        self._calls = getattr(llm, "calls", "native")

    def fault(self, message: str, do: str) -> None:
        self.found.append(Finding("server", "fault", message, do))

    def note(self, message: str, do: str) -> None:
        self.found.append(Finding("server", "note", message, do))

    async def run(self, tools: bool, forced: bool) -> None:
        """Make all checks; what cannot be found out after a fault is left out."""
        try:
            if await self._check_window() and await self._check_schema():
                calls = await (self._check_calls() if tools else self._check_text())
                if tools and calls:
                    await self._check_forced_call(needed=forced)
                if calls and not getattr(self._llm, "continues_text", False):
                    await self._check_cut_reply()
        except OutOfMoney:
            pass  # for want of usage, which is told below; else the run says it
        except Truncated as error:
            self.fault(
                f"a short reply was cut: {error}",
                "set a larger llm.settings.max_output_tokens, or start the server with more tokens",
            )
        except ContextOverflow as error:
            window = f"llm.context_window={error.window}" if error.window else "another model"
            self.fault(f"a prompt of {self._words} words is too long: {error}", f"set {window}")
        except ModelError as error:
            self.fault(f"{self._llm.name} does not reply: {error}", "correct it")
        self._check_turns()

    def _metered(self, model: ChatModel) -> MeteredModel:
        return MeteredModel(model, self._ledger, role=ROLE, qid="", price=self._llm.price)

    async def _ask(self, messages: Sequence[Message], tools: Tools = (), **settings: Any) -> Turn:
        sampling: SamplingParams = replace(self._llm.settings, **settings)
        turn = await self._metered(self._model).respond(messages, tools, sampling)
        self._turns.append(turn)
        return turn

    async def _check_window(self) -> bool:
        """Whether the longest prompt fits the context window that the server reports, or that is
        set; and the number of words of the prompt that shows whether it is the real one."""
        reported_by = getattr(self._model, "reported_window", lambda: None)
        reported = await asyncio.to_thread(reported_by)
        declared, fits = self._llm.context_window, True
        if reported and declared and reported < declared:
            self.fault(
                f"the context window of {self._llm.name} has {reported:,} tokens, and "
                f"llm.context_window={declared} is set",
                f"set llm.context_window={reported}, or start the server with a larger one",
            )
        window = min(filter(None, (reported, declared)), default=None)
        longest = len(json.dumps(self._opening, ensure_ascii=False).encode()) // _BYTES_PER_TOKEN
        reply = max(self._budget.answer_tokens, self._llm.settings.max_output_tokens or 0)
        if window and longest + reply >= window:
            self.fault(
                f"the longest question opens with about {longest:,} tokens, and a reply may take "
                f"{reply:,}, which do not fit the context window of {window:,} tokens",
                "lower llm.settings.max_output_tokens and budget.answer_tokens, or choose a model "
                "with a larger window",
            )
            fits = False
        default = getattr(self._llm, "default_url", None) == getattr(self._llm, "address", "")
        self._words = _PREFIX if reported or default else _LONG_PREFIX
        if getattr(self._llm, "own_server", None):
            self._words = _SHORT_PREFIX
        if window:
            self._words = min(self._words, window // 4)
        return fits

    async def _check_schema(self) -> bool:
        """Whether the server constrains replies by a schema, if that is how the model calls
        tools."""
        if self._calls != "schema":
            return True
        reply = await unconstrained_reply(self._metered(self._model), self._llm.settings)
        if reply is None:
            return True
        self.fault(
            f"the server of {self._llm.name} does not constrain replies by a JSON schema "
            f"(response_format), which llm.calls=schema needs; it replied {reply[:80]!r}",
            "set llm.calls=native or llm.calls=text, or choose a server that does, such as "
            "llama.cpp, vLLM or SGLang",
        )
        return False

    def _prefix(self) -> str:
        words = len(_LINE.split())
        lines = (_LINE.format(number) for number in range(1, self._words // words + 1))
        return "\n".join([_RULES, *lines])

    async def _check_text(self) -> bool:
        if getattr(self._llm, "continues_text", False):
            messages: list[Message] = [user(_GREETING)]
        else:
            messages = [system(self._prefix()), user(_GREETING)]
        first = await self._ask(messages)
        if first.empty:
            self.fault(f"{self._llm.name} replied with nothing", "look at the server's log")
            return False
        if len(messages) > 1:
            self._check_input(first, await self._ask(messages))
        return True

    async def _check_calls(self) -> bool:
        messages: list[Message] = [system(self._prefix()), user(_FIRST)]
        first = await self._called(messages, "the first call")
        if first is None:
            return False
        results = [tool_result(each.id, _NEXT) for each in first.tool_calls]
        second = await self._called([*messages, first.message(), *results], "the second call")
        if second is not None:
            self._check_input(first, second)
        return second is not None

    async def _called(self, messages: Sequence[Message], which: str) -> Turn | None:
        """A reply with a correct call, from two requests at most; None without one."""
        # Only a demand, or the labels of an answer, make the client constrain a reply by a schema.
        choice = "required" if self._calls == "schema" else "auto"
        problem = ""
        for _ in range(2):
            try:
                turn = await self._ask(messages, (_TOOL,), tool_choice=choice)
            except (OutOfMoney, Truncated, ContextOverflow):
                raise
            except ModelError as error:
                problem = f"the request with a tool failed ({error})"
                if error.stops_run or error.retryable:
                    raise
                break
            if not (problem := _wrong_call(turn)):
                return turn
        schema = await self._schema_works()
        self._turns.clear()  # What they show beside it comes of the same fault.
        do = f"set llm.calls=schema, which works here, or {_PARSER}" if schema else _PARSER
        self.fault(f"{which} of a tool went wrong with {self._llm.name}: {problem}", do)
        return None

    async def _schema_works(self) -> bool:
        """Whether the server constrains a reply by a JSON schema, where calls are native."""
        if not (isinstance(self._model, OpenAIChat) and self._calls != "schema"):
            return False
        constrained = replace(self._model, base_url=self._model.address, calls="schema")
        try:
            reply = await unconstrained_reply(self._metered(constrained), self._llm.settings)
            return reply is None
        except (ModelError, InputError):
            return False
        finally:
            await constrained.close()

    async def _check_forced_call(self, *, needed: bool) -> None:
        if self._calls != "native" or getattr(self._llm, "thinking", None):
            return  # The client forces none there, or each by the schema that was tried already.
        try:
            turn = await self._ask([user("Hello.")], (_TOOL,), tool_choice=_TOOL["name"])
            problem = "" if turn.tool_calls else "the reply has none"
        except (OutOfMoney, Truncated):
            raise
        except ModelError as error:
            problem = str(error)
        if not problem:
            return
        message = f"{self._llm.name} does not make a call that is forced: {problem}"
        do = "set agent.first_call=null and agent.query=question, or choose another server"
        if needed:
            self.fault(message, do)
        else:
            self.note(message, "expect agents and judges that force a call to fail with it")

    async def _check_cut_reply(self) -> None:
        """A reply that reaches its limit must say so: its answer would pass for a complete one."""
        try:
            turn = await self._ask([user(_COUNT)], max_output_tokens=_SHORTEST)
        except OutOfMoney:
            raise
        except ModelError:
            return  # cut, as it should be, or a limit that this model refuses
        written = turn.usage.output or 0
        if turn.finish_reason == "length" or turn.tool_calls or written < _SHORTEST:
            return
        if written > 2 * _SHORTEST:
            self.note(
                f"{self._llm.name} wrote {written} tokens where {_SHORTEST} were the limit",
                "see which field of the request its server reads (llm.output_limit)",
            )
        elif not turn.text.rstrip().endswith((".", "!", "?", "500")):
            self.fault(
                f"a reply of {self._llm.name} that was cut after {written} tokens has the finish "
                f"reason {turn.finish_reason!r}",
                "choose another version of the server: cut answers would count as complete",
            )

    def _check_input(self, first: Turn, second: Turn) -> None:
        """By the counts of two requests with one prefix: whether all of it was read, and whether
        the second read it from a cache."""
        counted = first.usage.input
        if counted is not None and counted < 0.75 * self._words:
            self.fault(
                f"the server counted {counted:,} tokens of a prompt with {self._words:,} words, so "
                "that it drops a part of long prompts without an error",
                "start it with a larger context window (num_ctx of Ollama), or lower "
                "llm.context_window",
            )
        if counted is not None and not second.usage.cached:
            self.note(
                "a second request with the same prefix read nothing from a prefix cache",
                "switch it on where the server has one, or expect to pay for each transcript anew "
                "with each reply",
            )

    def _check_turns(self) -> None:
        """What all replies show."""
        name, settings = self._llm.name, self._llm.settings
        for turn in self._turns:
            written = (turn.text, *(call.arguments for call in turn.tool_calls))
            if mark := next(filter(None, map(_MARKS.search, written)), None):
                self.fault(
                    f"{name} writes {mark[0]}, a mark of its chat template, into its replies",
                    "set the server's parser of reasoning (--reasoning-parser of vLLM)",
                )
                break
        if any(turn.usage.input is None or turn.usage.output is None for turn in self._turns):
            limits = (self._ledger.cap, self._ledger.question_cap, self._budget.output_tokens)
            tell = self.fault if any(limits) else self.note
            do = "choose a server that reports it, or set no budget of dollars or output tokens"
            tell(f"the server of {name} reports no usage of tokens", do)
        reasoned = any(turn.reasoning or turn.usage.reasoning for turn in self._turns)
        if self._turns and settings.reasoning_effort not in _NO_EFFORT and not reasoned:
            self.fault(
                f"no reply of {name} has reasoning, and llm.settings.reasoning_effort="
                f"{settings.reasoning_effort} asks for it",
                "set the server's parser of reasoning (--reasoning-parser of vLLM), or "
                "llm.settings.reasoning_effort=null",
            )
        known = {"stop", "tool_calls", "length"}
        if unknown := {turn.finish_reason for turn in self._turns} - known:
            self.note(
                f"replies of {name} have the finish reason {', '.join(sorted(unknown))}",
                "see what the server means by it: a reply may be incomplete",
            )
        served = {turn.model for turn in self._turns if turn.model}
        asked = name.rpartition("/")[2].lower()
        if served and not any(asked in reply.lower() or reply.lower() in asked for reply in served):
            self.note(
                f"{', '.join(sorted(served))} replies to requests for {name}",
                "see whether the server serves that model under the name",
            )


def _wrong_call(turn: Turn) -> str:
    """What is wrong with a reply that had to be one call of the tool; empty if nothing is."""
    if not turn.tool_calls:
        if _WRITTEN_CALL.search(turn.text):
            return f"it arrived as text ({turn.text[:60]!r})"
        return f"there is none, although it was asked for (the reply is {turn.text[:60]!r})"
    call = turn.tool_calls[0]
    if call.name != _TOOL["name"]:
        return f"it names {call.name!r} in place of {_TOOL['name']!r}"
    try:
        parse(_Place, call.parsed(), where="its call", strict=True)
    except InputError as error:
        return f"{error} The arguments are {call.arguments[:60]!r}"
    except ValueError:
        return f"its arguments are not JSON ({call.arguments[:60]!r})"
    return ""
