"""The clients under test, and requests to the fake server."""

from __future__ import annotations

import asyncio

from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.openai_chat import OpenAIChat, OpenAICompletions
from soundingline.toolkit.llm.openai_responses import OpenAIResponses

ADAPTERS = {
    "chat": OpenAIChat,
    "responses": OpenAIResponses,
    "messages": AnthropicMessages,
    "completions": OpenAICompletions,
}


def address(peer, adapter):
    return peer.anthropic_url if adapter is AnthropicMessages else peer.openai_url


class Waits(list[float]):
    """The waits that were asked for; none takes any time."""

    async def __call__(self, seconds):
        self.append(seconds)


def client(peer, adapter, **arguments):
    """A client of the fake server that waits for nothing."""
    defaults = {"model": "m", "base_url": address(peer, adapter)}
    return adapter(**{**defaults, "sleep": Waits(), "chance": lambda: 1.0, **arguments})


def using(model, work):
    """What `work` returns for the model, which is closed afterwards."""

    async def main():
        try:
            return await work(model)
        finally:
            await model.close()

    return asyncio.run(main())
