"""Talks to a server by LangChain's MCP adapters: `with_langchain.py URL TRANSPORT MODE STEPS`.

TRANSPORT is `streamable_http` or `sse`. MODE `default` opens an MCP session for each call, as
`MultiServerMCPClient.get_tools` does; `session` keeps one. STEPS is JSON: `[[tool, arguments],
...]`, where the argument `search_id` of `"<first>"` is the one that the first step's page shows.
Prints the tools' arguments and the texts of the steps as JSON."""

import asyncio
import json
import re
import sys

from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


async def talk(tools, steps):
    by_name = {tool.name: tool for tool in tools}
    texts = []
    for name, arguments in steps:
        if arguments.get("search_id") == "<first>":
            found = re.match(r"\[search_id=(\S+)", texts[0])
            arguments = {**arguments, "search_id": found[1]}
        try:
            content = await by_name[name].ainvoke(arguments)
            texts.append("".join(block["text"] for block in content))
        except Exception as error:
            texts.append(f"!{error}")
    return {"tools": {tool.name: tool.args_schema for tool in tools}, "texts": texts}


async def main(url, transport, mode, steps):
    client = MultiServerMCPClient({"search": {"url": url, "transport": transport}})
    if mode == "default":
        return await talk(await client.get_tools(), steps)
    async with client.session("search") as session:
        return await talk(await load_mcp_tools(session), steps)


url, transport, mode, steps = sys.argv[1:]
print(json.dumps(asyncio.run(main(url, transport, mode, json.loads(steps)))))
