"""Which values each option key has in conf/, the pages, the sheets of the papers and the examples.

    python tests/option_values.py [--all]

A key with one value everywhere is a constant that somebody can set: `one value`. Left out are
`llm`'s options of other programs' servers. Keys that say where or how fast something is computed,
or which file or model is read, are printed apart (`place`). A sheet of a paper that states a key's
value uses the key.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

import yaml

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CONF = ROOT / "conf"
# Files that set options, besides conf/ itself: sheets of papers, pages and examples.
SHEETS = sorted((TESTS / "papers").glob("*.py"))
TEXTS = [ROOT / "README.md", ROOT / "Makefile", *SHEETS, *(ROOT / "skills").rglob("*.md")]
TEXTS += sorted(path for end in ("md", "py") for path in (ROOT / "docs").rglob(f"*.{end}"))
# Settings of servers that other programs define, and options that have no keys of their own.
FOREIGN = re.compile(r"llm\.(server|settings|extra_body|extra|options|price)\b.*")
NO_OPTIONS = {"experiment", "scale", "laptop_benchmark", "placement", "hydra", "base"}
# Where and how fast: machines, files, limits of a process, names.
PLACES = {
    *("device", "dtype", "threads", "concurrency", "memory_mb", "batch_tokens", "heap", "jar"),
    *("java_home", "url", "index", "ca_certs", "timeout_s", "path", "origin", "name", "shards"),
    *("replicas", "shard", "base_url", "key_env", "tracking_uri", "mode", "project", "experiment"),
    *("data", "indexes", "runs", "caches", "caches_gb", "librarians", "librarian_seconds"),
    *("gpus", "memory", "block_bytes", "questions", "confirm", "limit", "qids", "traces"),
    *("qrels", "gold_qrels", "force_merge"),
}
# Hydra's names of options that a package renames: `judge_llm.model` is `llm.model`.
RENAMED = {
    **dict.fromkeys(
        ("reranker_llm", "rewriter_llm", "enrichment_llm", "judge_llm", "librarian_llm"), "llm"
    ),
    "list_reranker": "reranker",
    "scorer.locator": "retriever",
    "scorer.scorer": "reranker",
}
_OVERRIDE = re.compile(
    r"(?<![\w./])\+{0,2}((?:\w+\.)+\w+|\w+)="
    r"(\[[^\]]*\]|\{[^}]*\}|(?:[^\s`\"',\])]|,(?=[^\s,=]+(?:[\s`,]|$)))+)"
)
_YAML = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Options that are mappings: their entries count as one key.
MAPPINGS = {"budget.stage_seconds", "budget.speed", "comparison.baseline"}


def flat(values, prefix=""):
    """Each key with dots, and its value as text."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and name not in MAPPINGS:
            yield from flat(value, f"{name}.")
        elif key not in ("_target_", "_convert_", "defaults"):
            yield name, str(value)


def renamed(key):
    key = next((name for name in MAPPINGS if key.startswith(f"{name}.")), key)
    for old, new in RENAMED.items():
        if key.startswith(f"{old}."):
            return new + key[len(old) :]
    return key


def option_values():
    """Key -> value -> the files in which it has that value."""
    found = defaultdict(lambda: defaultdict(set))
    declared = set()
    setting = []
    for path in sorted(CONF.rglob("*.yaml")):
        parts = path.relative_to(CONF).parts
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        source = str(path.relative_to(ROOT))
        setting.append((source, path.read_text(encoding="utf-8")))
        if parts[0] in NO_OPTIONS or path.name == "hydra_settings.yaml":
            pairs = {k: v for k, v in values.items() if k not in ("hydra", "defaults")}
            for key, value in flat(pairs):
                setting.append((source, f"{key}={value}"))
            continue
        prefix = f"{parts[0]}." if len(parts) > 1 else ""
        for key, value in flat(values, prefix):
            declared.add(key)
            found[key][value].add(source)
    setting += [(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in TEXTS]
    for source, text in setting:
        blocks = [yaml.safe_load(block) for block in _YAML.findall(text)]
        blocks = [block for block in blocks if isinstance(block, dict)]
        settings = [pair for block in blocks for pair in flat(block)]
        for key, value in [*settings, *_OVERRIDE.findall(text)]:
            if renamed(key) in declared or key.split(".")[0] in declared:
                for each in [value] if value[0] in "[{" else value.split(","):
                    found[renamed(key)][each].add(source)
    for path in SHEETS:  # a constant that a sheet names is used, whatever its value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for key in getattr(node, "keys", ()):
                name = renamed(key.value) if isinstance(getattr(key, "value", None), str) else ""
                if name in declared:
                    found[name]["stated by a paper's sheet"].add(str(path.relative_to(ROOT)))
    for key in declared:  # null in one option, and a mapping in another
        if any(other.startswith(f"{key}.") for other in [*declared, *found]):
            found[key]["a mapping"].add("conf")
    return {key: found[key] for key in sorted(declared) if not FOREIGN.fullmatch(key)}


def with_one_value():
    """The keys with one value, without and with those that only say where or how fast."""
    values = option_values()
    single = [key for key in values if len(values[key]) == 1]
    places = [key for key in single if key.rpartition(".")[2] in PLACES]
    return [key for key in single if key not in places], places, values


def main():
    single, places, values = with_one_value()
    listed = values if "--all" in sys.argv else [*single, *places]
    lines = []
    for key in listed:
        kind = "place" if key in places else "one value" if key in single else ""
        lines.append(f"{key} {kind}".rstrip())
        for value, sources in sorted(values[key].items()):
            lines.append(f"    {value!r}: {', '.join(sorted(sources))}")
    lines.append(
        f"{len(single)} of {len(values)} keys have one value; so have {len(places)} that say where"
        " or how fast"
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
