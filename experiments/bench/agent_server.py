"""A server for chat completions that answers at once: searches for some turns, then an answer.

Run as a process of its own, so that its time is not ours; prints its port, and ends when its
standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
ANSWER = "Explanation: seen there [d1]\nExact Answer: Torvald Brekke\nConfidence: 50%"
REASONING = "The mill was named in the question; its builder should be told where it is described. "


def reply(body: dict[str, Any], turns: int, answer: str = ANSWER) -> dict[str, Any]:
    """The completion that follows the transcript in `body`; `answer` after `turns` searches."""
    messages = body["messages"]
    turn = sum(message["role"] == "assistant" for message in messages)
    message: dict[str, Any] = {"role": "assistant", "content": answer}
    if turn < turns:
        arguments = json.dumps({"reason": "to find it", "query": f"mill river {turn}"})
        function = {"name": "search", "arguments": arguments}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "reasoning": REASONING * 4}
        message["tool_calls"] = [call]
    finish = "tool_calls" if turn < turns else "stop"
    return {
        "id": "c",
        "object": "chat.completion",
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": 1000 * (turn + 1),
            "completion_tokens": 100,
            "prompt_tokens_details": {"cached_tokens": 1000 * turn},
        },
    }


async def serve(turns: int, answer: str = ANSWER) -> None:
    """Serve on a free loopback port until standard input closes."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = json.loads(await reader.readexactly(int(length[1]) if length else 0))
                data = json.dumps(reply(body, turns, answer)).encode()
                kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                writer.write(kind + b"content-length: %d\r\n\r\n" % len(data) + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), *sys.argv[2:3]))
