"""What a run was made with: configuration, fingerprints, versions, commit, machine."""

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

from toolkit.errors import InputError
from toolkit.masking import masked

FORMAT = 1
SEALED = "sealed"
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
    "pyterrier-dr",
    "pyterrier-alpha",
    "vllm",
    "openai",
)


def make_manifest(
    config: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    factors: Mapping[str, str] | None = None,
    benchmark: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The manifest of a run that starts now.

    - `config`: the resolved configuration, plain values. A record for readers: nothing is made
      from it again.
    - `fingerprints`: hash by name of whatever changes results (benchmark, index, pipeline, agent,
      tool, prompts). Resuming with other fingerprints is refused. Of a run on a sealed benchmark
      they hold `SEALED`, `yes` or `no`: whether what it writes of the texts is obfuscated.
    - `factors`: option names by configuration group, shown as the run's coordinates in a sweep.
    - `benchmark`: `option`, a name, and `arguments`, plain values, from which an evaluation makes
      the benchmark again.

    Secrets are masked in all of it (`toolkit.masking`): a manifest is made to be shown.
    """
    return {
        "format": FORMAT,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "factors": masked(dict(factors or {})),
        **({} if benchmark is None else {"benchmark": masked(benchmark)}),
        **({SEALED: True} if fingerprints.get(SEALED) == "yes" else {}),
        "fingerprints": dict(fingerprints),
        "config": masked(config),
        "versions": _versions(),
        "git": dict(_git()),
        "machine": _machine(),
    }


def check_same(path: Path, written: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """`InputError` that lists the fingerprints in which a run on disk differs from `expected`."""
    old, new = written.get("fingerprints", {}), expected.get("fingerprints", {})
    differing = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    if differing:
        changes = ", ".join(
            f"{key} (was {old.get(key, 'absent')}, now {new.get(key, 'absent')})"
            for key in differing
        )
        raise InputError(
            f"the run {path} was made with another {changes}",
            valid="the configuration that it was started with",
            do="choose another name=, or delete that folder to start again",
        )


def provenance(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a manifest that may differ between the sessions of one run."""
    return {key: manifest.get(key) for key in ("created", "versions", "git", "machine")}


def _versions() -> dict[str, str]:
    versions = {package: _version(package) for package in PACKAGES}
    return {package: version for package, version in versions.items() if version}


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _git() -> Mapping[str, Any]:
    """Commit of the checkout that this code runs from; empty for an installed copy. Read once:
    what the process has imported is what was there first."""
    here = Path(__file__).resolve()
    if _git_output(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return {}
    commit = _git_output(here.parent, "rev-parse", "HEAD") or ""
    changes = _git_output(here.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes)}


def _git_output(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
