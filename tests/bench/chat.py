"""An agent on a model server that runs already, such as a vLLM on a GPU."""

import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

import numpy as np
from harness import Table, benchmark

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import read_json
from soundingline.toolkit.runs import RunFolder

# What vLLM's /metrics say, of all requests since it began.
METRICS = {
    "prompt tokens": "vllm:prompt_tokens_total",
    "tokens of replies": "vllm:generation_tokens_total",
    "prefix tokens that were looked up": "vllm:prefix_cache_queries_total",
    "prefix tokens that were found": "vllm:prefix_cache_hits_total",
    "s of requests in the queue": "vllm:request_queue_time_seconds_sum",
    "s of requests in prefill": "vllm:request_prefill_time_seconds_sum",
    "s of requests in decoding": "vllm:request_decode_time_seconds_sum",
}
NOW = "vllm:num_requests_running", "vllm:num_requests_waiting"


@benchmark(
    "Agent on a model server",
    small={"questions": 3, "flight": 2},
    packages=("httpx2",),
    limits="other models or servers, or an agent that reads longer texts",
)
def chat(
    address="http://127.0.0.1:8000/v1",
    model="model",
    calls="schema",
    questions=200,
    flight=32,
    turns=8,
    window=32_768,
    seconds=420,
):
    """`agent=chat` with structured actions (--calls) on wikidemo, --flight questions at once:
    accuracy, tokens a second, the share of the prompts that the prefix cache served against
    1 - 2 / (N + 1) of N requests of a question, whose prompts grow evenly, and the server's queue
    against the time of the searches. A run of more than --seconds is ended, and what it has
    finished is reported. vLLM's options: --enable-prefix-caching, --enable-prompt-tokens-details.
    """
    before, now = _metrics(address), []
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "soundingline.experiments", "run", "name=chat"]
        command += ["benchmark=wikidemo", f"benchmark.limit={questions}", "agent=chat"]
        command += ["llm=openai_compatible", f"llm.model={model}", f"llm.base_url={address}"]
        command += ["llm.key_env=null", f"llm.calls={calls}", f"llm.context_window={window}"]
        command += ["llm.settings.temperature=0.0", "llm.settings.max_output_tokens=1000"]
        command += [f"budget.turns={turns}", f"concurrency={flight}", "preflight.check=false"]
        # The corpus is indexed before the time counts.
        options = {"cwd": place, "capture_output": True, "text": True}
        indexed = [*command[:3], "index", "benchmark=wikidemo"]
        subprocess.run(indexed, timeout=300, check=True, **options)
        ended = threading.Event()
        watching = threading.Thread(target=_watch, args=(address, ended, now))
        watching.start()
        try:
            done = subprocess.run(command, timeout=seconds, check=False, **options)
            end = f"code {done.returncode}: {_last(done.stderr)}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            end = f"it took longer than {seconds} s"
        finally:
            ended.set()
            watching.join()
        folder = RunFolder(Path(place) / "runs" / "chat")
        trajectories = list(folder.trajectories()) if folder.path.exists() else []
        if not trajectories:
            raise InputError(f"no question was answered ({end})", do=f"look at {address}")
        whole = folder.path / "metrics.json"
        measures = read_json(whole, dict[str, float], do="") if whole.exists() else {}
    yield (
        f"{len(trajectories)} of {questions} questions of wikidemo by {model}, {flight} at once, "
        f"llm.calls={calls}, at most {turns} turns. {end}"
    )
    yield Table(["measure", "value"], _rows(trajectories, measures))
    if now:
        changed = {name: value - before[name] for name, value in _metrics(address).items()}
        rows = [[name, f"{changed[metric]:,.0f}"] for name, metric in METRICS.items()]
        means = np.mean(now, axis=0)
        rows.append(["requests in work and in the queue, mean", "{:.1f}, {:.1f}".format(*means)])
        yield Table(["of the server", "value"], rows)


def _rows(trajectories, measures):
    usage = {
        name: np.array([each.usage.get(name, 0.0) for each in trajectories])
        for name in ("calls", "input_tokens", "output_tokens", "cached_tokens", "seconds")
    }
    searches = [1000 * call.seconds for each in trajectories for call in each.calls]
    total, cuts = max(1.0, usage["input_tokens"].sum()), (50, 90, 99)
    cached = usage["cached_tokens"].sum() / total
    could = (usage["input_tokens"] * (1 - 2 / (usage["calls"] + 1))).sum() / total
    began = [np.datetime64(each.started.partition("+")[0]) for each in trajectories]
    last = max(
        start + np.timedelta64(round(1000 * each.seconds), "ms")
        for start, each in zip(began, trajectories, strict=True)
    )
    seconds = max(0.001, (last - min(began)) / np.timedelta64(1, "s"))
    wall = sum(each.seconds for each in trajectories)
    errors = sum(bool(call.error) for each in trajectories for call in each.calls)
    return [
        ["accuracy", measures.get("accuracy", "")],
        ["questions that failed", sum(each.status == "failed" for each in trajectories)],
        ["seconds from the first question to the last answer", f"{seconds:,.1f}"],
        ["requests", f"{usage['calls'].sum():,.0f}"],
        ["tool calls, and those with an error", f"{len(searches):,}, {errors:,}"],
        ["prompt tokens a second", f"{usage['input_tokens'].sum() / seconds:,.0f}"],
        ["reply tokens a second", f"{usage['output_tokens'].sum() / seconds:,.0f}"],
        ["share of the prompts from the prefix cache", f"{cached:.3f}"],
        ["share that could come from it", f"{could:.3f}"],
        ["share of a question's time in requests", f"{usage['seconds'].sum() / wall:.3f}"],
        ["share of a question's time in tools", f"{sum(searches) / 1000 / wall:.3f}"],
        [
            "ms of a tool call (50, 90, 99 %)",
            ", ".join(f"{cut:.1f}" for cut in np.percentile(searches or [0.0], cuts)),
        ],
    ]


def _last(text):
    return (text.strip().splitlines() or [""])[-1]


def _metrics(address):
    """The values of a server by name, summed over their labels; none where it does not say them."""
    url = f"{address.rstrip('/').removesuffix('/v1')}/metrics"
    values = dict.fromkeys([*METRICS.values(), *NOW], 0.0)
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            lines = reply.read().decode().splitlines()
    except (OSError, ValueError):
        return values
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0]
        if name in values:
            values[name] += float(line.rpartition(" ")[2])
    return values


def _watch(address, ended, into):
    """Note once a second how many requests are in work and in the queue, where the server says."""
    while not ended.wait(1):
        values = _metrics(address)
        if any(values.values()):
            into.append([values[name] for name in NOW])
