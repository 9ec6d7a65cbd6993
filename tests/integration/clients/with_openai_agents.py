"""An agent of openai-agents searches through our pipeline: `with_openai_agents.py FOLDER`.

Both packages are installed in one environment; openai-agents has a top-level package `agents`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from soundingline.pipelines import LexicalIndex

set_tracing_disabled(True)
documents = [
    {"docno": "d1", "text": "The tide at Brel rises nine metres."},
    {"docno": "d2", "text": "Brel is a harbour town."},
]
bm25 = LexicalIndex.build(documents, Path(sys.argv[1], "index")).bm25()


@function_tool
def search(query):
    """The ids of the documents that match."""
    return json.dumps(list(bm25.search(query)["docno"]))


class Scripted(Model):
    """Calls the tool once, then answers with what it returned."""

    async def get_response(self, system_instructions, input, *args, **kwargs):
        outputs = [item["output"] for item in input if item.get("type") == "function_call_output"]
        if outputs:
            text = ResponseOutputText(text=outputs[-1], type="output_text", annotations=[])
            item = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            item = ResponseFunctionToolCall(
                call_id="c", name="search", arguments='{"query": "tide"}', type="function_call"
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise RuntimeError("this client does not stream")


agent = Agent(name="searcher", model=Scripted(), tools=[search])
result = Runner.run_sync(agent, input=[{"role": "user", "content": "How high is the tide?"}])
print(json.dumps({"answer": result.final_output}))
