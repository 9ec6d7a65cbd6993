"""The name, the number of digits, the direction and the definition of each measure.

Names are those of `ir_measures` for rankings and those of `metrics.json` for agents. The file
`measures.yaml` has their definitions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources
from typing import Any

import yaml

from soundingline.toolkit.evaluation.funnel import LABELS
from soundingline.toolkit.queries import TURNS
from soundingline.toolkit.trajectory import ROLES

HIGHER, LOWER, NEITHER = 1, -1, 0


@dataclass(frozen=True)
class Measure:
    """How a report prints and defines a measure."""

    name: str
    digits: int  # after the point
    better: int  # `HIGHER`, `LOWER`, or `NEITHER` for costs and descriptions
    definition: str  # one sentence; empty for an unknown measure
    source: str = ""  # the paper or program that defines the measure


_TREC = "trec_eval; ir_measures (MacAvaney et al., 2022)"
_FILE = "measures.yaml"
_BETTER = {"higher": HIGHER, "lower": LOWER, "neither": NEITHER}


@cache
def read_data(name: str) -> dict[str, Any]:
    """The content of a YAML file of this package."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


@cache
def _by_name() -> dict[str, Measure]:
    """The measures of `measures.yaml`, and the share of questions with each label."""
    shares = {f"label_{label}": f"Share of questions: {text}." for label, text in LABELS.items()}
    groups = [
        *read_data(_FILE)["measures"],
        {"digits": 3, "better": "neither", "definitions": shares},
    ]
    return {
        name: Measure(
            name, group["digits"], _BETTER[group["better"]], text, group.get("source", "")
        )
        for group in groups
        for name, text in group["definitions"].items()
    }


_IR_NAME = re.compile(r"(?P<family>[A-Za-z]+1?)(\([^)]*\))?(@(?P<k>\d+))?$")

HEADLINE = (
    "accuracy",
    "F1@20",
    "nDCG@20",
    "recall_surfaced",
    "recall_previewed",
    "recall_opened",
    "recall_cited",
    "search_calls",
    "completion",
    "nDCG@10",
    "AP",
    "P@30",
    "R@100",
    "R@1000",
)
"""The order of measures; the first one that a comparison has is its main measure."""


@cache
def look_up_measure(name: str) -> Measure:
    """Look up a measure; an unknown one has four digits and neither direction nor definition."""
    if name in _by_name():
        return _by_name()[name]
    if is_usage(name):
        used = name.removeprefix("usage_")
        role = next((role for role in ROLES if used.startswith(f"{role}_")), "")
        quantity = used.removeprefix(f"{role}_")
        digits = 4 if quantity == "dollars" else 0 if "tokens" in quantity else 2
        definition = (
            read_data(_FILE)["usage"].get(quantity, "").format(f" of the {role}" if role else "")
        )
        return Measure(name, digits, NEITHER, definition)
    if name.endswith("_unchanged"):
        measure = look_up_measure(name.removesuffix("_unchanged"))
        definition = f"{measure.definition} Of the calls before the first page that differs."
        return replace(measure, name=name, definition=definition)
    if of_turn(name):
        whole, _, turn = name.rpartition("_")
        definition = f"{look_up_measure(whole).definition} Of {TURNS[turn]} of a question."
        return replace(look_up_measure(whole), name=name, definition=definition)
    match = _IR_NAME.fullmatch(name)
    text = read_data(_FILE)["rankings"].get(match["family"]) if match else None
    if match and text:
        depth = match["k"]
        text = text.format(k=depth) if depth else text.replace(" of the first {k} results", "")
        source = read_data(_FILE)["sources_of_rankings"].get(match["family"], _TREC)
        better = NEITHER if match["family"] == "Judged" else HIGHER
        return Measure(name, 4, better, text.replace("first {k} results", "ranking"), source)
    if name.endswith("_calls"):
        return Measure(name, 2, NEITHER, f"Mean number of {name[:-6]} calls per question.")
    return Measure(name, 0 if "tokens" in name else 4, NEITHER, "")


def is_usage(name: str) -> bool:
    """Whether a measure is a usage of language models, which may be unknown for a question."""
    return name.startswith("usage_")


def of_turn(name: str) -> bool:
    """Whether a measure is of one turn of the query log, such as `query_words_first`."""
    measure, _, turn = name.rpartition("_")
    return turn in TURNS and measure.startswith("query_") and measure in _by_name()


def headline_first(names: Iterable[str]) -> list[str]:
    """Distinct names, those of `HEADLINE` first and in its order."""
    present = list(dict.fromkeys(names))
    return [n for n in HEADLINE if n in present] + [n for n in present if n not in HEADLINE]


def main_measure(names: Iterable[str], tested: Container[str]) -> str:
    """The first tested measure in the order of `HEADLINE`. Without one, it is the first measure;
    without any, it is empty."""
    known = headline_first(names)
    return next((name for name in known if name in tested), next(iter(known), ""))


def number(value: float | None, digits: int, *, sign: bool = False) -> str:
    """Format a number with thousands separators and a minus sign; an em dash if it is unknown.

    >>> number(-0.04, 3), number(1204.26, 1), number(0.12, 3, sign=True), number(None, 2)
    ('−0.040', '1,204.3', '+0.120', '—')
    """
    if value is None or not math.isfinite(value):
        return "—"
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    if not text.strip("+-0.,"):
        return text.lstrip("+-")
    return text.replace("-", "−")


def decimals(count: int) -> Callable[[float], str]:
    """`number` with so many digits after the point."""
    return partial(number, digits=count)


def value_text(value: float | None, measure: str, *, sign: bool = False) -> str:
    """Format a value, or a difference, of a measure with its digits."""
    return number(value, look_up_measure(measure).digits, sign=sign)


def interval_text(low: float, high: float, measure: str) -> str:
    """Format an interval of a measure.

    >>> interval_text(-0.1, 0.25, "search_calls")
    '[−0.10, 0.25]'
    """
    return f"[{value_text(low, measure)}, {value_text(high, measure)}]"


def probability(p: float | None) -> str:
    """Format a p value with three digits, never as 0.

    >>> probability(0.0004), probability(0.0312)
    ('<0.001', '0.031')
    """
    return "<0.001" if p is not None and p < 0.001 else number(p, 3)


def percent(share: float | None) -> str:
    """Format a share as a whole percentage."""
    return "—" if share is None else number(100 * share, 0) + "%"
