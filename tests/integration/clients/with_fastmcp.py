"""Talks to a server by fastmcp's client: `with_fastmcp.py URL sse|http STEPS`, where STEPS is JSON:
`[[tool, arguments], ...]`. Prints the tools and, for each step, its texts, as JSON."""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import SSETransport, StreamableHttpTransport


async def main(url, kind, steps):
    transport = (SSETransport if kind == "sse" else StreamableHttpTransport)(url)
    async with Client(transport) as client:
        tools = await client.list_tools()
        results = []
        for name, arguments in steps:
            result = await client.call_tool_mcp(name, arguments)
            results.append([result.isError, [content.text for content in result.content]])
        return {"tools": [tool.model_dump() for tool in tools], "results": results}


print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))))
