# %% [markdown]
# # A served pipeline with an MCP client
# `soundingline serve` offers a pipeline to any client of the Model Context Protocol (extra
# `serve`). With `name=` it records a run: it hands out the questions of the benchmark, and a
# submitted answer becomes a trajectory.

# %%
import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import mcp

from soundingline.toolkit.runs import RunFolder

OPTIONS = ["benchmark=fictional", "benchmark.documents=64", "benchmark.questions=5"]
OPTIONS += ["benchmark.hops=1", "unit=maxp"]
COMMAND = [sys.executable, "-m", "soundingline.experiments", "serve", *OPTIONS]


def start():
    """The server, and the address that it prints when it is ready."""
    command = [*COMMAND, "port=0", "name=served", "client=example"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    ready = next(line for line in server.stderr if "serving at" in line)
    return server, ready.partition("MCP: ")[2].partition(",")[0]


# %%
async def answer(address):
    """Take a question, search for its words, and cite the best result."""
    async with mcp.Client(address) as client:

        async def call(tool, **arguments):
            result = await client.call_tool(tool, arguments)
            return result.content[0].text

        tools = [tool.name for tool in (await client.list_tools()).tools]
        task = json.loads(await call("question"))
        session, question = task["session"], task["question"]
        page = await call("search", reason="A first look.", query=question, session=session)
        await call("submit_answer", answer="unknown", explanation=page[:200], session=session)
        return tools, page


# %%
server, address = start()
try:
    with ThreadPoolExecutor(1) as thread:  # because a notebook has a running event loop
        tools, page = thread.submit(asyncio.run, answer(address)).result()
finally:
    server.terminate()
    server.wait()
statuses = RunFolder("runs/served").statuses()
