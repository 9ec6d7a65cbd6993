"""As `with_fastmcp.py`, by qwen-agent's assistant over SSE: `with_qwen_agent.py URL STEPS`. Its
tools are named after the server, as BrowseComp-Plus's client names them."""

import json
import sys

from qwen_agent.agents import Assistant

url, steps = sys.argv[1], json.loads(sys.argv[2])
model = {"model": "none", "model_server": "http://127.0.0.1:9/v1", "api_key": "EMPTY"}
bot = Assistant(llm=model, function_list=[{"mcpServers": {"search-server": {"url": url}}}])
tools = {name: tool.function for name, tool in bot.function_map.items()}
results = [bot._call_tool(f"search-server-{name}", json.dumps(given)) for name, given in steps]
print(json.dumps({"tools": tools, "results": results}))
