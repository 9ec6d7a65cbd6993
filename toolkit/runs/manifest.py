"""The manifest of a run: configuration, fingerprints, versions, commit and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.redaction import redact

FORMAT = 1
SEALED = "sealed"
EVIDENCE = "evidence"  # among fingerprints: whether it was removed from the rankings
# The parts of a manifest, besides `created`, that may differ between the starts of one run.
PROVENANCE = ("versions", "git", "machine")
PACKAGES = (
    "soundingline",
    "pyterrier",
    "python-terrier",
    "hydra-core",
    "numba",
    "numpy",
    "pandas",
    "scipy",
    "statsmodels",
    "ir_measures",
    "pytrec-eval-terrier",
    "regex",
    "spacy",
    "torch",
    "transformers",
    "tokenizers",
    "sentence-transformers",
    "peft",
    "pyterrier-t5",
    "vllm",
    "httpx2",
)


class CheckRecord(TypedDict, total=False):
    """What the check before a start found (`soundingline.experiments.preflight`): for each finding
    `check`, `level` (`fault` or `note`), `message` and `do`."""

    findings: list[dict[str, str]]


class Manifest(TypedDict, total=False):
    """The types that readers of a manifest rely on; see `make_manifest`. `benchmark` is checked
    when a benchmark is made from it."""

    format: int
    created: str
    factors: dict[str, str | bool | float | None]
    benchmark: Any
    sealed: bool
    fingerprints: dict[str, str]
    config: dict[str, Any]
    versions: dict[str, str]
    git: dict[str, Any]
    machine: dict[str, Any]
    resumed: list[dict[str, Any]]
    stages: dict[str, dict[str, float]]
    costs: dict[str, dict[str, float]]
    servers: dict[str, str]
    chosen_parameters: dict[str, dict[str, Any]]
    periods: list[dict[str, str]]
    preflight: CheckRecord
    imported: dict[str, Any]


def make_manifest(
    config: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    factors: Mapping[str, str] | None = None,
    benchmark: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The manifest of a run that starts now, with redacted secrets
    (`soundingline.toolkit.redaction`), because it may be published.

    Args:
        config: the resolved configuration as plain values, a record for readers.
        fingerprints: hashes by name of everything that changes results (benchmark, index, pipeline,
            agent, tool, prompts). A run cannot be resumed with other fingerprints. For a run on an
            obfuscated benchmark, `sealed` is `yes` or `no`: whether texts are obfuscated on disk.
        factors: option names by configuration group: the coordinates of the run in a sweep.
        benchmark: `option` (a name) and `arguments` (plain values), from which an evaluation makes
            the benchmark again.
    """
    return {
        "format": FORMAT,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "factors": redact(dict(factors or {})),
        **({} if benchmark is None else {"benchmark": redact(benchmark)}),
        **({SEALED: True} if fingerprints.get(SEALED) == "yes" else {}),
        "fingerprints": dict(fingerprints),
        "config": redact(config),
        "versions": {package: version for package in PACKAGES if (version := version_of(package))},
        "git": dict(_git()),
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "processor": platform.machine(),
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
    }


def check_same(path: Path, written: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """`InputError` that names the fingerprints in which the manifest on disk (`written`) differs
    from that of this start (`expected`)."""
    old, new = written.get("fingerprints", {}), expected.get("fingerprints", {})
    changes = [
        f"{key} (was {old.get(key, 'absent')}, now {new.get(key, 'absent')})"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]
    if changes:
        raise InputError(
            f"the run {path} was made with another {', '.join(changes)}",
            valid="the configuration that it was started with",
            do="choose another name=, or delete that folder to start again",
        )


@cache
def version_of(package: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _git() -> Mapping[str, Any]:
    """The commit of the checkout that contains this file; empty for an installed copy. It is read
    once, because a process keeps the code that it imported."""
    here = Path(__file__).resolve()
    if _git_output("ls-files", "--error-unmatch", here.name) is None:
        return {}
    changes = _git_output("status", "--porcelain", "--untracked-files=no")
    return {"commit": _git_output("rev-parse", "HEAD") or "", "dirty": bool(changes)}


def _git_output(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
