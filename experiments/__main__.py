"""The console script `soundingline`, which `python -m soundingline.experiments` runs too."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "run": "Answer the questions of a benchmark with an agent that searches through a pipeline.",
    "rank": "Rank the questions of a benchmark with a pipeline, without an agent.",
    "tune": "Choose k1 and b of BM25 on one split and report them on another.",
    "enrich": "Ask a language model for phrases that enrich the documents of a corpus.",
    "index": "Build the text store and the indexes of a benchmark.",
    "replay": "Send the recorded searches of a run through another pipeline.",
    "evaluate": "Compute the measures of recorded runs again.",
    "compare": "Compare runs with paired tests and write a report.",
    "judge_agreement": "Measure how far the judges of a run agree.",
    "calibrate": "Fit the probabilities of a requirement scorer to judgements.",
    "export": "Write a run in the format of another project.",
    "import_runs": "Read a run of another project.",
    "lint": "List the faults of published run files.",
    "serve": "Serve a pipeline to agents over MCP and HTTP.",
    "train_reranker": "Train a re-ranker on the judgements of a benchmark.",
    "caches": "Show what the caches hold, and prune them.",
}
BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` (None: those of the process) name first.

    Exits with the exit code of the command, with 2 and one line on standard error if there is no
    such command, and with 1 if the reader of standard output has gone (`| head`).
    """
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left cannot be flushed at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _run(words: list[str]) -> int | None:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    command, *others = words
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        line = f"soundingline: there is no command {command!r}. valid: {', '.join(COMMANDS)}.{hint}"
        print(line, file=sys.stderr)
        return BAD_INPUT
    code: int | None = import_module(f"soundingline.experiments.{command}").start(others)
    return code


def _help() -> str:
    lines = [f"  {name:16} {about}" for name, about in COMMANDS.items()]
    usage = "usage: soundingline COMMAND [KEY=VALUE ...]"
    return "\n".join([usage, "", *lines, "", "soundingline COMMAND --help describes a command."])


if __name__ == "__main__":
    main()
