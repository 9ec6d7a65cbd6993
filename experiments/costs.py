"""What a ranking costs: once, for enriching the corpus, and for each query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from experiments.pipeline import Stages, Transformers
from toolkit.files import write_json
from toolkit.llm.ledger_file import spent
from toolkit.llm.protocol import Usage
from toolkit.runs import RunFolder

_SHOWN = ("calls", "input_tokens", "output_tokens", "dollars")
_TOKENS = ("reply_input_tokens", "reply_output_tokens")


def note_phrases(folder: Path, phrases: str, run: RunFolder) -> None:
    """Keep what a run has paid for phrases beside the indexes of the collection in `folder`, for
    every overlay of these phrases. A run that goes on is counted once, with all of its starts."""
    path = _phrases_path(folder, phrases)
    runs = json.loads(path.read_text("utf-8")) if path.exists() else {}
    total = spent(run.ledger_path)
    if total:
        runs[str(run.path.absolute())] = total
        write_json(path, runs)


def corpus_costs(parts: Transformers) -> dict[str, float]:
    """What enriching the corpus took: `seconds` of building the overlay, and what was paid for its
    phrases where a language model proposed them; nothing for bound stages without such a corpus."""
    collection = getattr(parts.get("enrichment"), "collection", None)
    index = collection.index if collection else None
    if index is None:
        return {}
    # Here, so that a command starts without the kernels of our index.
    from pipelines.enrich.overlay_engine import SECONDS
    from pipelines.lexical.enriched import EnrichedIndex

    if not isinstance(index, EnrichedIndex):
        return {}
    overlay = index.overlay
    costs: dict[str, float] = {"documents": len(index)}
    if (overlay.path / SECONDS).exists():
        costs |= json.loads((overlay.path / SECONDS).read_text("utf-8"))
    phrases = str(overlay.manifest["provenance"].get("phrases", ""))
    path = _phrases_path(overlay.path.parent, phrases)
    if path.exists():
        runs = list(json.loads(path.read_text("utf-8")).values())
        for name in _SHOWN:
            if all(name in run for run in runs):
                costs[name] = sum(run[name] for run in runs)
    return costs


def query_costs(
    stages: Stages, counted: Mapping[str, Mapping[str, float]], seconds: float, queries: int
) -> dict[str, float]:
    """The mean of a query: `seconds` of the whole pipeline; tokens of the replies that it used,
    asked for now or kept; dollars where the price of every model is known."""
    costs = {"seconds": seconds / max(1, queries)}
    dollars: float | None = 0.0
    for group, (model, _) in stages.models.items():
        numbers = counted.get(group, {})
        tokens = [_of_queries(numbers, name) for name in _TOKENS]
        costs["input_tokens"] = costs.get("input_tokens", 0.0) + tokens[0] / max(1, queries)
        costs["output_tokens"] = costs.get("output_tokens", 0.0) + tokens[1] / max(1, queries)
        price = model.price.cost(Usage(input=round(tokens[0]), output=round(tokens[1])))
        dollars = None if price is None or dollars is None else dollars + price
    if stages.models and dollars is not None:
        costs["dollars"] = dollars / max(1, queries)
    return costs


def _of_queries(numbers: Mapping[str, float], name: str) -> float:
    """The count of a stage, or of the query side of an enrichment."""
    return numbers.get(name, 0) + numbers.get(f"query_{name}", 0)


def _phrases_path(folder: Path, phrases: str) -> Path:
    return folder / f"phrases-{phrases}.json"
