"""Runs of other projects, what a ledger holds, and trajectories without their times."""

import json
from dataclasses import replace
from pathlib import Path

from soundingline.toolkit.exchange import browsecomp_plus
from soundingline.toolkit.exchange.transcript import trajectory_of
from soundingline.toolkit.llm import prices
from soundingline.toolkit.llm.ledger import read_starts
from soundingline.toolkit.trajectory import dump_trajectory


def contents(path):
    """What a file of JSON holds."""
    return json.loads(Path(path).read_text())


def search(query, docids, **extra):
    hits = [{"docid": docid, "score": 1.5, "snippet": f"text of {docid}"} for docid in docids]
    return call("search", {"query": query}, json.dumps(hits, indent=2)) | extra


def read(docid):
    output = json.dumps({"docid": docid, "text": f"text of {docid}"})
    return call("get_document", {"docid": docid}, output)


def call(tool, arguments, output):
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "tool_call", "tool_name": tool, "arguments": written, "output": output}


def thought(text):
    return {"type": "reasoning", "tool_name": None, "arguments": None, "output": [text]}


def said(text):
    return {"type": "output_text", "tool_name": None, "arguments": None, "output": text}


def answer(exact, confidence="80%", citing=""):
    text = f"Explanation: because {citing}\nExact Answer: {exact}\nConfidence: {confidence}"
    return said(text)


def browsecomp(qid, result, **changed):
    """A run file whose counts and ids follow from its items, but for what is `changed`."""
    calls = [item for item in result if item["type"] == "tool_call"]
    counts = {}
    retrieved = {}
    for item in calls:
        counts[item["tool_name"]] = counts.get(item["tool_name"], 0) + 1
        output = item["output"]
        if item["tool_name"] == "search" and isinstance(output, str) and output.startswith("["):
            retrieved |= {hit["docid"]: None for hit in json.loads(output)}
    return {
        "metadata": {"model": "gpt-oss-20b", "reasoning": {"effort": "high"}, "output_dir": "x"},
        "query_id": qid,
        "tool_call_counts": counts,
        "status": "completed",
        "retrieved_docids": list(retrieved),
        "result": list(result),
        **changed,
    }


def pi_serini(qid, result, **changed):
    """A run file of Pi-Serini's runner."""
    return {
        "metadata": {"model": "openai-codex/gpt-5.5", "query": "?", "output_dir": "x"},
        "query_id": qid,
        "tool_call_counts": {},
        "status": "completed",
        "completion_source": "assistant_text",
        "surfaced_docids": [],
        "previewed_docids": [],
        "agent_docids": [],
        "opened_docids": [],
        "cited_docids": [],
        "stats": {"elapsed_seconds": 12.5, "timed_out": False},
        "result": list(result),
        **changed,
    }


def trajectory(content, question="question?"):
    """The trajectory of a run file of BrowseComp-Plus."""
    (transcript,) = browsecomp_plus.read([("f", content)])
    return trajectory_of(transcript, question)


def write_files(folder, files):
    """One file a question, named as their clients name them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(files):
        name = folder / f"run_20250101T{number:06}Z.json"
        name.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return folder


def starts(run):
    """One dictionary for each start in the ledger of the run folder `run`."""
    return [
        {
            "started": start.started,
            "cap": start.cap,
            **prices.flatten(start.by_role),
            "known_dollars": {role: account.dollars for role, account in start.by_role.items()},
            "highest_cost": dict(start.highest_cost),
        }
        for start in read_starts(Path(run) / "ledger.jsonl")
    ]


def ended(trajectory):
    return trajectory.status, trajectory.reason


def without_times(trajectory, roles=None):
    """The text of a trajectory without its times, and of its usage only that of the `roles`."""
    calls = tuple(replace(each, seconds=0.0) for each in trajectory.calls)
    usage = {
        name: value
        for name, value in trajectory.usage.items()
        if "seconds" not in name and (roles is None or name.startswith(tuple(roles)))
    }
    return dump_trajectory(replace(trajectory, started="", seconds=0.0, calls=calls, usage=usage))
