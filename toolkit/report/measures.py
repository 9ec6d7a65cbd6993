"""The name, the number of digits, the direction and the definition of each measure.

Names are those of `ir_measures` for rankings and those of `metrics.json` for agents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial

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


_PI_SERINI = "Pi-Serini (Hsu, Yang and Lin, 2026)"
_BCP = "BrowseComp-Plus (Chen et al., 2025)"
_SQUAD = "SQuAD (Rajpurkar et al., 2016)"
_HENDRYCKS = "Hendrycks et al. (2019)"
_PASAMASTER = "PaSaMaster (Du et al., 2026)"
_SIRA = "SIRA (Yang et al., 2026)"
_TREC = "trec_eval; ir_measures (MacAvaney et al., 2022)"


def _published(**definitions: str) -> dict[str, str]:
    """Measures of BrowseComp-Plus's own evaluator: soundingline.toolkit.evaluation.published."""
    begin = "As the published evaluator computes it: "
    return {f"{name}_published": begin + text for name, text in definitions.items()}


_SHARES_OF_QUERIES = {  # of the query log: soundingline.toolkit.evaluation.agent_run
    "quoted": "queries with a quoted phrase",
    "operators": "queries with an exclusion, +word, AND, OR, NOT, or a field such as site:",
    "from_question": "a query’s distinct words, function words apart, that the question has",
    "from_shown": "a query’s distinct words that are not in the question and that some "
    "output of a tool held before the agent first searched for them",
    "from_neither": "a query’s distinct words with neither source",
    "repeated": "queries after the first that equal an earlier query of the question",
    "added": "queries after the first with all words of the query before and further ones",
    "dropped": "queries after the first with a part of the words of the query before",
    "exchanged": "queries after the first that keep words of the query before, drop words "
    "and add words",
    "new": "queries after the first without a word of the query before",
}

# (digits, direction, source) -> measure -> definition.
_MEASURES: dict[tuple[int, int, str], dict[str, str]] = {
    (3, HIGHER, _BCP): {
        "accuracy": "Share of questions with a correct final answer.",
        "accuracy_with_forced": "The accuracy if answers count that were demanded at a limit.",
        "citation_precision": "Share of cited documents that are evidence.",
        "citation_recall": "Share of evidence documents that are cited.",
        "completion": "Share of questions with exit status completed.",
    },
    (3, HIGHER, ""): {
        "answer_shown": "Share of questions with an accepted answer, normalised as for exact "
        "match, in the shown characters of an evidence document; with all needed facts shown, "
        "where these are known.",
        **{
            f"step_{tier}": f"Share of questions of which {text}, or whose answer was shown."
            for tier, text in (
                ("surfaced", "an evidence document was in a ranking or shown"),
                ("previewed", "an evidence document was on a result page or opened"),
                ("opened", "an evidence document was opened"),
            )
        },
    },
    (3, HIGHER, _SQUAD): {"answer_f1": "Token F1 of the answer with the closest accepted one."},
    (3, HIGHER, _PI_SERINI): {
        f"recall_{tier}": f"Share of a question’s evidence documents that the agent {did}."
        for tier, did in (
            ("surfaced", "had in a ranking, shown or not"),
            ("previewed", "saw on a result page"),
            ("listed", "saw on a result page, with an excerpt or without (the paper’s previewed)"),
            ("opened", "read in part"),
            ("cited", "cited in its answer"),
        )
    },
    (2, LOWER, ""): {
        "citations_invented": "Citations per answer of documents that no search for the question "
        "returned.",
        "first_evidence_call": "The first call that showed evidence; the number of calls + 1 if "
        "there is none.",
    },
    (3, LOWER, _PASAMASTER): {
        "hallucination_rate": "Share of the returned documents that are not in the corpus."
    },
    (2, LOWER, _HENDRYCKS): {
        "calibration_error": "Root mean squared difference between stated confidence and accuracy "
        "over bins of answers, 0 to 100.",
    },
    (2, NEITHER, _BCP): {
        "search_calls": "Successful search calls per question.",
        **_published(
            search_calls="the count in the file.",
            calibration_error="without the last bin, and 0 below 100 answers.",
        ),
    },
    (3, NEITHER, _BCP): _published(
        accuracy="over the questions that have a file.",
        recall="share of judged documents among those that searches showed.",
        completion="over the questions that have a file.",
        citation_precision="all numbers in brackets, over the answers with citations.",
        citation_recall="all numbers in brackets, over the answers with citations.",
    ),
    (2, NEITHER, ""): {
        "browse_calls": "Calls for a further result page per question.",
        "read_calls": "Calls to read a document per question.",
        "tool_calls": "Tool calls per question, failed ones included.",
        "tool_errors": "Refused or failed tool calls per question.",
        "seconds": "Wall-clock seconds per question.",
        "text_queries": "Successful searches per question with a query of the agent; patterns and "
        "what a pipeline made of a query do not count.",
        "query_words": "Words of a query of the agent, as separated by white space.",
    },
    (2, NEITHER, _PI_SERINI): {
        "candidate_searches": "Searches per question with a name that the tools showed and the "
        "question does not have.",
        "branches_abandoned": "Series of searches for one such name per question that the agent "
        "gave up.",
        "returns_to_question": "Searches per question with the question’s terms only, directly "
        "after a search for such a name.",
    },
    (1, NEITHER, ""): {
        "documents_returned": "Length of the list of documents in the answer.",
        "documents_exposed": "Documents previewed or opened per question.",
    },
    (0, NEITHER, ""): {
        "tokens_exposed": "Tokens of tool output per question, counted by tool.tokenizer; words "
        "and punctuation marks where that is null.",
    },
    (3, NEITHER, ""): {
        **{f"query_{name}": f"Share of {text}." for name, text in _SHARES_OF_QUERIES.items()},
        "phrases_with_answer": "Distinct phrases that were added to a question’s queries and "
        "contain an accepted answer: guesses, unless an agent had read the answer before.",
        "rewrites_with_answer": "Distinct rewritten queries of a question that contain an accepted "
        "answer which neither the question nor the original query contains: guesses of the "
        "rewriter.",
        **{f"label_{label}": f"Share of questions: {text}." for label, text in LABELS.items()},
        # Of recorded calls through another pipeline: soundingline.toolkit.evaluation.replay.
        "overlap@10": "Share of the recorded top 10 that is in the new top 10.",
        "unchanged_calls": "Share of calls before the first page that differs.",
    },
    (1, HIGHER, ""): {"evidence_moved": "Ranks by which evidence moved towards the top."},
}
_BY_NAME = {
    name: Measure(name, digits, better, definition, source)
    for (digits, better, source), definitions in _MEASURES.items()
    for name, definition in definitions.items()
}
_RANKING = {
    "AnswerCoverage": "Share of questions with an accepted answer, normalised as for exact match, "
    "in the text of one of the first {k} documents.",
    "AP": "Average precision of the ranking.",
    "P": "Share of the first {k} results that are relevant.",
    "nDCG": "Normalised discounted cumulative gain of the first {k} results.",
    "F1": "Harmonic mean of precision and recall of the first {k} results; missing results count "
    "as not relevant.",
    "checklist": "Mean share of the requirements that each of the first {k} results satisfies.",
    "R": "Share of the relevant documents that are among the first {k} results.",
    "RR": "Reciprocal rank of the first relevant result.",
    "Success": "Whether a relevant result is among the first {k} results.",
    "Rprec": "Precision at the number of relevant documents.",
    "Bpref": "Share of judged irrelevant documents ranked below the relevant ones.",
    "Judged": "Share of the first {k} results that have a judgement.",
}
_SOURCES = {"F1": _PASAMASTER, "checklist": _PASAMASTER, "AnswerCoverage": _SIRA}
_KNOWN = "{} per question, over the questions for which this is known."
_USED = {
    "dollars": f"Dollars{_KNOWN}",
    "input_tokens": f"Input tokens{_KNOWN}",
    "cached_tokens": f"Input tokens from a prefix cache{_KNOWN}",
    "reasoning_tokens": f"Reasoning tokens{_KNOWN}",
    "output_tokens": f"Output tokens, reasoning included{_KNOWN}",
    "calls": "Requests to language models{} per question.",
    "failed": "Requests to language models{} without a reply per question.",
    "retries": "Further attempts of requests{} per question.",
    "resampled": "Replies{} without text and call that were sampled again, per question.",
    "seconds": "Seconds in which a request to a language model{} was open, per question.",
    "unmetered": "Replies{} without a report of usage per question.",
    "unpriced": "Replies{} of unknown cost per question.",
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
def describe(name: str) -> Measure:
    """Look up a measure; an unknown one has four digits and neither direction nor definition."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if is_usage(name):
        used = name.removeprefix("usage_")
        role = next((role for role in ROLES if used.startswith(f"{role}_")), "")
        quantity = used.removeprefix(f"{role}_")
        digits = 4 if quantity == "dollars" else 0 if "tokens" in quantity else 2
        definition = _USED.get(quantity, "").format(f" of the {role}" if role else "")
        return Measure(name, digits, NEITHER, definition)
    if name.endswith("_unchanged"):
        measure = describe(name.removesuffix("_unchanged"))
        definition = f"{measure.definition} Of the calls before the first page that differs."
        return replace(measure, name=name, definition=definition)
    if of_turn(name):
        whole, _, turn = name.rpartition("_")
        definition = f"{describe(whole).definition} Of {TURNS[turn]} of a question."
        return replace(describe(whole), name=name, definition=definition)
    match = _IR_NAME.fullmatch(name)
    text = _RANKING.get(match["family"]) if match else None
    if match and text:
        depth = match["k"]
        text = text.format(k=depth) if depth else text.replace(" of the first {k} results", "")
        source = _SOURCES.get(match["family"], _TREC)
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
    return turn in TURNS and measure.startswith("query_") and measure in _BY_NAME


def ordered(names: Iterable[str]) -> list[str]:
    """Distinct names, those of `HEADLINE` first and in its order."""
    present = list(dict.fromkeys(names))
    return [n for n in HEADLINE if n in present] + [n for n in present if n not in HEADLINE]


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
    return number(value, describe(measure).digits, sign=sign)


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
