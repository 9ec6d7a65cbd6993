"""What each measure is called, how it is printed, which way is better, and where it is defined.

Names are `ir_measures`' for rankings and the flat names of `metrics.json` for agents. No measure
is computed here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from toolkit.llm.accounts import ROLES

HIGHER, LOWER, NEITHER = 1, -1, 0


class Measure(NamedTuple):
    """`digits` after the point; `better` is `HIGHER`, `LOWER` or `NEITHER` (a cost or a
    description, which no cell wins); `source` names the paper or programme that defines it."""

    name: str
    digits: int
    better: int
    definition: str
    source: str = ""


_PI_SERINI = "Pi-Serini (Hsu, Yang and Lin, 2026)"
_BCP = "BrowseComp-Plus (Chen et al., 2025)"
_SQUAD = "SQuAD (Rajpurkar et al., 2016)"
_HENDRYCKS = "Hendrycks et al. (2019)"
_PASAMASTER = "PaSaMaster (Du et al., 2026)"
_SIRA = "SIRA (Yang et al., 2026)"
_TREC = "trec_eval; ir_measures (MacAvaney et al., 2022)"

_RECALL = "Share of a question’s evidence documents that the agent {}."
_AGENT = (
    Measure("accuracy", 3, HIGHER, "Share of questions whose final answer is right.", _BCP),
    Measure(
        "answer_f1", 3, HIGHER, "Token F1 of the answer with the closest accepted one.", _SQUAD
    ),
    Measure(
        "recall_surfaced",
        3,
        HIGHER,
        _RECALL.format("had in a ranking, whether or not it was shown"),
        _PI_SERINI,
    ),
    Measure("recall_previewed", 3, HIGHER, _RECALL.format("saw on a result page"), _PI_SERINI),
    Measure("recall_opened", 3, HIGHER, _RECALL.format("read from"), _PI_SERINI),
    Measure("recall_cited", 3, HIGHER, _RECALL.format("cited in its answer"), _PI_SERINI),
    Measure("citation_precision", 3, HIGHER, "Share of cited documents that are evidence.", _BCP),
    Measure("citation_recall", 3, HIGHER, "Share of evidence documents that are cited.", _BCP),
    Measure(
        "citations_invented",
        2,
        LOWER,
        "Citations an answer that name no document which its question brought up.",
    ),
    Measure(
        "hallucination_rate",
        3,
        LOWER,
        "Share of the documents returned that the corpus lacks.",
        _PASAMASTER,
    ),
    Measure(
        "documents_returned",
        1,
        NEITHER,
        "Length of the list that the answer gives.",
    ),
    Measure("completion", 3, HIGHER, "Share of questions with exit status completed.", _BCP),
    Measure(
        "calibration_error",
        2,
        LOWER,
        "Root mean squared gap of stated confidence and accuracy over bins of answers, 0 to 100.",
        _HENDRYCKS,
    ),
    Measure("search_calls", 2, NEITHER, "Successful search calls a question.", _BCP),
    Measure("browse_calls", 2, NEITHER, "Calls for a further result page a question."),
    Measure("read_calls", 2, NEITHER, "Calls to read a document a question."),
    Measure("tool_calls", 2, NEITHER, "Tool calls a question, failed ones included."),
    Measure("tool_errors", 2, NEITHER, "Tool calls a question that were refused or failed."),
    Measure("documents_exposed", 1, NEITHER, "Documents previewed or opened a question."),
    Measure(
        "tokens_exposed",
        0,
        NEITHER,
        "Tokens of tool output a question, as tool.tokenizer counts them; words and single marks "
        "where that is null.",
    ),
    Measure("seconds", 2, NEITHER, "Wall-clock seconds a question."),
    Measure(
        "phrases_with_answer",
        3,
        NEITHER,
        "Different phrases that enriched a question’s queries and hold an accepted answer: "
        "guesses, unless an agent had read it before.",
    ),
    Measure(
        "rewrites_with_answer",
        3,
        NEITHER,
        "Different rewritten queries of a question that hold an accepted answer which neither the "
        "question nor the query before rewriting holds: guesses of the rewriter.",
    ),
)
# What BrowseComp-Plus's own evaluator gives: see toolkit.evaluation.published.
_PUBLISHED = tuple(
    Measure(
        f"{name}_published",
        digits,
        NEITHER,
        f"As the published evaluator computes it: {definition}",
        _BCP,
    )
    for name, digits, definition in (
        ("accuracy", 3, "over the questions that have a file."),
        ("recall", 3, "share of judged documents among those that searches showed."),
        ("completion", 3, "over the questions that have a file."),
        ("calibration_error", 2, "the last bin left out, 0 below 100 answers."),
        ("citation_precision", 3, "any digits in brackets, over the answers that cite."),
        ("citation_recall", 3, "any digits in brackets, over the answers that cite."),
        ("search_calls", 2, "the file's own count."),
    )
)
# Of recorded calls through another pipeline: see toolkit.evaluation.replayed.
_UNCHANGED = "_unchanged"
_REPLAYED = (
    Measure("first_evidence_call", 2, LOWER, "Call that first showed evidence; calls + 1 if none."),
    Measure("overlap@10", 3, NEITHER, "Share of a recorded ranking’s top 10 in the new top 10."),
    Measure("evidence_moved", 1, HIGHER, "Ranks by which evidence came nearer to the top."),
    Measure("unchanged_calls", 3, NEITHER, "Share of calls before the first page that differs."),
)
_BY_NAME = {measure.name: measure for measure in (*_AGENT, *_PUBLISHED, *_REPLAYED)}

_RANKING = {
    "AnswerCoverage": "Share of questions with an accepted answer, as normalised for exact match, "
    "in the text of one of the first {k} documents.",
    "AP": "Average precision of the ranking.",
    "P": "Share of the first {k} results that are relevant.",
    "nDCG": "Normalised discounted cumulative gain of the first {k} results.",
    "F1": "Harmonic mean of precision and recall of the first {k} results; where there are fewer, "
    "the rest counts as wrong.",
    "checklist": "Mean share of the requirements that each of the first {k} results meets.",
    "R": "Share of the relevant documents found in the first {k} results.",
    "RR": "Reciprocal rank of the first relevant result.",
    "Success": "Whether the first {k} results hold a relevant one.",
    "Rprec": "Precision at the number of relevant documents.",
    "Bpref": "Share of judged irrelevant documents ranked below the relevant ones.",
    "Judged": "Share of the first {k} results that have a judgement.",
}
_SOURCES = {"F1": _PASAMASTER, "checklist": _PASAMASTER, "AnswerCoverage": _SIRA}
_USAGE = "usage_"
_WHERE_KNOWN = "{} a question, over the questions of which this is known."
_USED = {
    "dollars": f"Dollars{_WHERE_KNOWN}",
    "input_tokens": f"Input tokens{_WHERE_KNOWN}",
    "cached_tokens": f"Input tokens from a prefix cache{_WHERE_KNOWN}",
    "reasoning_tokens": f"Reasoning tokens{_WHERE_KNOWN}",
    "output_tokens": f"Output tokens, reasoning included{_WHERE_KNOWN}",
    "calls": "Requests to language models{} a question.",
    "failed": "Requests to language models{} a question that brought no reply.",
    "retries": "Attempts{} a question beyond the first of each request.",
    "seconds": "Seconds that the requests to language models{} were in flight, a question.",
    "unmetered": "Replies{} a question for which the server reported no usage.",
    "unpriced": "Replies{} a question whose cost is unknown.",
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
"""The order in which measures are shown; the first that a comparison has is its main measure."""


def describe(name: str) -> Measure:
    """The entry of `name`; an unknown name gets four digits and no claim about direction."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if is_usage(name):
        return _usage(name)
    if name.endswith(_UNCHANGED):
        unchanged = describe(name.removesuffix(_UNCHANGED))
        definition = f"{unchanged.definition} Of the calls before the first page that differs."
        return unchanged._replace(name=name, definition=definition)
    match = _IR_NAME.fullmatch(name)
    text = _RANKING.get(match["family"]) if match else None
    if match and text:
        depth = match["k"]
        text = text.format(k=depth) if depth else text.replace(" of the first {k} results", "")
        source = _SOURCES.get(match["family"], _TREC)
        return Measure(name, 4, HIGHER, text.replace("first {k} results", "ranking"), source)
    if name.endswith("_calls"):
        return Measure(name, 2, NEITHER, f"Mean number of {name[:-6]} calls a question.")
    return Measure(name, 0 if "tokens" in name else 4, NEITHER, "")


def is_usage(name: str) -> bool:
    """Whether it is what models took, which may be unknown of a question."""
    return name.startswith(_USAGE)


def _usage(name: str) -> Measure:
    used = name.removeprefix(_USAGE)
    role = next((role for role in ROLES if used.startswith(f"{role}_")), "")
    quantity = used.removeprefix(f"{role}_")
    digits = 0 if "tokens" in quantity else 2
    if quantity == "dollars":
        digits = 4
    of = f" of the {role}" if role else ""
    return Measure(name, digits, NEITHER, _USED.get(quantity, "").format(of))


def ordered(names: Iterable[str]) -> list[str]:
    """`HEADLINE` measures first and in that order, the rest as they came; no name twice."""
    present = list(dict.fromkeys(names))
    return [n for n in HEADLINE if n in present] + [n for n in present if n not in HEADLINE]


def number(value: float | None, digits: int, *, sign: bool = False) -> str:
    """A number for people: thousands separated, a real minus sign, an em dash where there is none.

    >>> number(-0.04, 3), number(1204.26, 1), number(0.12, 3, sign=True), number(None, 2)
    ('−0.040', '1,204.3', '+0.120', '—')
    """
    if value is None or not math.isfinite(value):
        return "—"
    text = f"{value:{'+' if sign else ''},.{digits}f}"
    if not text.strip("+-0.,"):
        return text.lstrip("+-")
    return text.replace("-", "−")


def probability(p: float | None) -> str:
    """A p value to three digits, and never a bare zero.

    >>> probability(0.0004), probability(0.0312)
    ('<0.001', '0.031')
    """
    return "<0.001" if p is not None and p < 0.001 else number(p, 3)
