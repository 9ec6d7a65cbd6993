"""Search-R1: an agent that searches by marks in its text instead of tool calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from soundingline.agents.base import search_tool_of
from soundingline.agents.chat import ChatAgent, Conversation
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import ContextOverflow, Truncated
from soundingline.toolkit.llm.messages import Message, SamplingParams, Turn
from soundingline.toolkit.search.answers import format_answer
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import ResultsPage, ToolResult

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_MARKS = re.compile(r"</?think>")
_CONTINUE = {"add_generation_prompt": False, "continue_final_message": True}


@dataclass(kw_only=True, eq=False, repr=False)
class SearchR1Agent(ChatAgent):
    """Search-R1 (Jin et al., 2025, arXiv 2503.09516), as its authors' code runs it.

    One message of the user has the rules and the question, which ends in a question mark. The first
    `<search>query</search>` or `<answer>text</answer>` of a reply is its action, and what follows
    it is dropped. Results come back as `<information>Doc 1(Title: t) text</information>`. A reply
    without an action, or one that the limit of tokens cuts before it, gets a correction (the
    section `empty` of the prompt). What precedes a search is its reasoning, for rewriters that
    read it. When a budget is used up, the model replies once more; a search
    in that reply is not made. A trajectory has the replies and the results as messages.

    Args:
        prompt: as in `ChatAgent`. An empty section `final` demands nothing after the last turn, as
            the authors' code does.

    Replies and results are one text of the model that it continues, which is how it was trained;
    vLLM can do that for chat completions. The other arguments are those of `ChatAgent`; `remind`
    and `first_call` concern tool calls.

    Raises:
        InputError: for a tool whose search needs other arguments than a query.

    Example:
        >>> agent = SearchR1Agent()
        >>> bound = agent.bind(RunResources(Budget(turns=4), model=model))  # doctest: +SKIP
        >>> asyncio.run(bound.run(topic, tool))  # doctest: +SKIP
    """

    name = "search_r1"
    offers_tools = False

    prompt: str = "search_r1"

    def check_tool(self, tool: SearchTool) -> None:
        """See `Agent`: the search must need a query alone, and the prompt must name no tool."""
        super().check_tool(tool)
        name, argument = search_tool_of(tool)
        needed = tool.arguments(name, required=True)
        if needed != [argument]:
            raise InputError(
                f"the tool {name} needs {', '.join(needed)}, and Search-R1 writes queries alone",
                valid="a tool that takes a query",
                do="set tool=search_r1 or tool=top_k",
            )

    def opening(self, topic: Topic, tool: SearchTool) -> list[dict[str, str]]:
        """See `Agent`: the authors' prompt, with a question mark."""
        question = topic.text.strip()
        question += "" if question.endswith("?") else "?"
        return super().opening(topic._replace(text=question), tool)

    def request(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> tuple[Sequence[Message], SamplingParams]:
        """See `ChatAgent`: sends all messages after that of the user as one text of the assistant,
        which the model continues."""
        first = next(n for n, each in enumerate(messages, start=1) if each["role"] == "user")
        text = "".join(message.get("content") or "" for message in messages[first:])
        if not text:
            return messages[:first], sampling
        extra = {**sampling.extra, **_CONTINUE}
        reply = {"role": "assistant", "content": text}
        return [*messages[:first], reply], replace(sampling, extra=extra)

    async def _converse(self, conversation: Conversation) -> None:
        while not (reason := conversation.exhausted_budget()):
            conversation.steer_if_due()
            try:
                turn = await conversation.ask()
            except Truncated as cut:
                turn = cut.turn or Turn()
            except ContextOverflow as overflow:
                return await self._demand_answer(conversation, overflow.code)
            text = turn.text
            action = _ACTION.search(text)
            if action is None:
                conversation.say(f"\n{self.texts.words('empty')}\n")
                continue
            conversation.episode.messages[-1]["content"] = text[: action.end()]
            if action[1] == "answer":
                return self._accept(conversation, _formatted(action))
            tool = conversation.episode.tool
            thought = _MARKS.sub("", text[: action.start()]).strip()
            if reasoning := turn.reasoning or thought:
                tool.reasoning = reasoning
            name, argument = search_tool_of(tool)
            search = asyncio.to_thread(tool.call, name, {argument: action[2].strip()})
            result = await conversation.with_deadline(search)
            conversation.say(f"\n\n<information>{_information(result)}</information>\n\n")
        await self._demand_answer(conversation, reason)

    async def _last_reply(self, conversation: Conversation, demand: str = "") -> str | None:
        text = await super()._last_reply(conversation, demand)
        return text if text is None else _formatted(_ACTION.search(text))


def _formatted(action: re.Match[str] | None) -> str:
    """An answer in the format of all agents; empty without one."""
    text = action[2].strip() if action and action[1] == "answer" else ""
    return format_answer("", text, None) if text else ""


def _information(result: ToolResult) -> str:
    """The hits of a search as Search-R1 was trained on them: the first line of a text is its title.
    The output of the tool if it refused the search."""
    if not isinstance(result.page, ResultsPage):
        return result.text
    lines = []
    for number, hit in enumerate(result.page.hits, start=1):
        title, _, text = (hit.text or hit.snippet).partition("\n")
        lines.append(f"Doc {number}(Title: {title}) {text}")
    return "\n".join(lines)
