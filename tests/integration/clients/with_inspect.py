"""Inspect AI: `read LOG` prints what a log holds, `write LOG` writes one of its own, `list FOLDER`
prints the logs of a folder and the ids of the samples that are read from them one at a time,
`scores LOG` prints each score's first metric."""

from __future__ import annotations

import json
import sys

from inspect_ai.event import ModelEvent, ToolEvent
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalSample,
    EvalSpec,
    list_eval_logs,
    read_eval_log,
    read_eval_log_samples,
    write_eval_log,
)
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ChatMessageUser, ModelUsage
from inspect_ai.tool import ToolCall


def content(place):
    log = read_eval_log(place, resolve_attachments="full")
    return {
        "status": log.status,
        "means": {row.name: row.metrics["mean"].value for row in log.results.scores},
        "samples": [
            {
                "id": row.id,
                "messages": [[message.role, message.text] for message in row.messages],
                "calls": [
                    [event.function, event.arguments, event.result, bool(event.error)]
                    for event in row.events
                    if isinstance(event, ToolEvent)
                ],
                "sent": [len(event.input) for event in row.events if isinstance(event, ModelEvent)],
                "scores": {name: score.value for name, score in row.scores.items()},
                "tokens": {name: usage.total_tokens for name, usage in row.model_usage.items()},
            }
            for row in log.samples
        ],
    }


def listed(folder):
    return [
        {
            "task": info.task,
            "task_id": info.task_id,
            "header": read_eval_log(info, header_only=True).eval.task_id,
            "ids": [row.id for row in read_eval_log_samples(info)],
        }
        for info in list_eval_logs(folder)
    ]


def scores(place):
    log = read_eval_log(place, header_only=True)
    return {row.name: next(iter(row.metrics.values())).value for row in log.results.scores}


def write(place):
    call = ToolCall(id="1", function="search", arguments={"query": "q"})
    hits = json.dumps([{"docid": "12", "snippet": "text " * 50}])
    messages = [
        ChatMessageUser(content="question"),
        ChatMessageAssistant(content="I look", tool_calls=[call]),
        ChatMessageTool(content=hits, tool_call_id="1", function="search"),
        ChatMessageAssistant(content="Explanation: [12]\nExact Answer: Ada\nConfidence: 70%"),
    ]
    usage = ModelUsage(input_tokens=5, input_tokens_cache_read=3, output_tokens=2, total_tokens=10)
    sample = EvalSample(
        id="q1",
        epoch=1,
        input="question",
        target="Ada",
        messages=messages,
        model_usage={"m": usage},
    )
    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00",
        task="t",
        dataset=EvalDataset(),
        model="m",
        config=EvalConfig(),
    )
    write_eval_log(EvalLog(status="success", eval=spec, samples=[sample]), place)


if __name__ == "__main__":
    command, log = sys.argv[1:]
    if command == "write":
        write(log)
    readers = {"read": content, "list": listed, "scores": scores}
    print(json.dumps(readers[command](log) if command in readers else {}))
