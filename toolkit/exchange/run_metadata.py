"""What a manifest tells of a run in the words of other formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RETRIEVAL = ("unit", "rewriter", "retriever", "reranker")


def model_of(manifest: Mapping[str, Any]) -> str:
    """The language model of the agent, or the agent's name where it asks none."""
    imported = manifest.get("imported") or {}
    llm = (manifest.get("config") or {}).get("llm") or {}
    factors = manifest.get("factors") or {}
    known = imported.get("model") or (llm.get("model") if isinstance(llm, Mapping) else "")
    return str(known or factors.get("agent") or "unknown")


def retriever_of(manifest: Mapping[str, Any]) -> str:
    """The pipeline's options in their order, those that are none left out."""
    factors = manifest.get("factors") or {}
    options = [str(factors.get(group, "none")) for group in _RETRIEVAL]
    return " ".join(option for option in options if option != "none") or "unknown"


def settings_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The run's factors as plain text."""
    return {str(name): str(value) for name, value in (manifest.get("factors") or {}).items()}
