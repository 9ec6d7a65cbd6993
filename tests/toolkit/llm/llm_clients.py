"""The clients under test, and requests to the fake server."""

import asyncio
from dataclasses import dataclass, fields
from pathlib import Path

from soundingline.toolkit.llm.anthropic import AnthropicMessages
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.openai import OpenAIChat, OpenAICompletions, OpenAIResponses

SEARCH = {
    "name": "search",
    "description": "Ranks documents.",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "offset": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": 1000,
                "description": "First rank.",
            },
        },
        "required": ["query", "offset"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ChatFromThreads(OpenAIChat):
    """`OpenAIChat`, whose requests are those of a `BlockingModel`. It has no tools."""

    continues_text = True

    async def respond(self, messages, tools=(), settings=None):
        blocking = BlockingModel(self.name, role="agent", settings=self.settings)
        given = [item.name for item in fields(OpenAIChat) if item.init]
        model = OpenAIChat(**{name: getattr(self, name) for name in given})
        with blocking.started(model):
            return await asyncio.to_thread(blocking.respond, messages, settings)


ADAPTERS = {
    "chat": OpenAIChat,
    "responses": OpenAIResponses,
    "messages": AnthropicMessages,
    "completions": OpenAICompletions,
}


def address(peer, adapter):
    return peer.anthropic_url if adapter is AnthropicMessages else peer.openai_url


def client(peer, adapter, **arguments):
    """A client of the fake server."""
    return adapter(**{"model": "m", "base_url": address(peer, adapter), **arguments})


def using(model, work):
    """What `work` returns for the model, which is closed afterwards."""

    async def main():
        try:
            return await work(model)
        finally:
            await model.close()

    return asyncio.run(main())


def ask(model, messages, tools=None, settings=None):
    if tools is None:
        tools = () if model.continues_text else (SEARCH,)
    return using(model, lambda it: it.respond(messages, tools, settings))


def count_sockets():
    """Open sockets of this process."""

    def is_socket(link):
        try:
            return str(link.readlink()).startswith("socket:")
        except OSError:  # Closed since it was listed.
            return False

    return sum(map(is_socket, Path("/proc/self/fd").iterdir()))
