"""How much of the evidence each exposure tier reached, at what exposure, and where it was lost.

Tiers of agents that rank other numbers of documents cannot be compared directly. The funnel has the
number of exposed documents with every recall, and the curves show recall at equal exposure. Only
questions with a relevant document (grade above 0) count; one without a trajectory counts as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import and_
from typing import NamedTuple

import numpy as np

from soundingline.toolkit.corpus.segmentation import rule_spans
from soundingline.toolkit.data import Qrels, StatedFact, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.answers import (
    answer_tokens,
    findable,
    found_in,
    needs_sentence,
)
from soundingline.toolkit.evaluation.retrieval import PerQuestion, Texts, by_measure
from soundingline.toolkit.evaluation.statistics import Values
from soundingline.toolkit.search.answers import ShownText, shown_texts, stating_documents
from soundingline.toolkit.search.tool import LAYERS
from soundingline.toolkit.trajectory import NO_FORMAT, TIERS, Trajectory, final_message

SHOWN = ("previewed", "opened")


def relevant_documents(qrels: Qrels) -> dict[str, frozenset[str]]:
    """The documents with a grade above 0 of each question that has any."""
    relevant = {
        qid: frozenset(docid for docid, grade in grades.items() if grade > 0)
        for qid, grades in qrels.items()
    }
    return {qid: docids for qid, docids in relevant.items() if docids}


def evidence_funnel(
    trajectories: Sequence[Trajectory], qrels: Mapping[str, Qrels]
) -> dict[str, dict[str, dict[str, float]]]:
    """Recall and exposure by tier.

    Args:
        trajectories: at most one for each question.
        qrels: judged tier -> question -> docid -> grade.

    Returns: Judged tier -> exposure tier -> `macro` (the mean of the questions' recalls), `micro`
        (reached of all relevant documents) and `documents` (the mean number of documents that a
        question exposed). Judged tiers without relevant documents are left out. If the search tool
        shows layers of documents (`soundingline.toolkit.search.literature`), each layer has a row
        as well, with `tokens`, the mean tokens of the calls of a question that showed it.
    """
    tokens = Counter[str]()  # of the calls that showed a layer, over all questions
    layers: dict[str, dict[str, set[str]]] = {}  # layer -> question -> the documents shown so
    for row in trajectories:
        for call in row.calls:
            tokens[str(call.notes.get("layer"))] += call.tokens
        for exposure in row.exposures:
            layers.setdefault(exposure.layer, {}).setdefault(row.qid, set()).add(exposure.docid)
    exposed: dict[str, Mapping[str, Collection[str]]] = {
        tier: {row.qid: row.tiers.get(tier, ()) for row in trajectories} for tier in TIERS
    }
    exposed |= {layer: layers[layer] for layer in LAYERS if layer in layers}
    funnel = {}
    for judged, grades in qrels.items():
        if relevant := relevant_documents(grades):
            funnel[judged] = {
                step: _reached(documents, relevant) for step, documents in exposed.items()
            }
            for layer in exposed.keys() & tokens.keys():
                funnel[judged][layer]["tokens"] = tokens[layer] / len(relevant)
    return funnel


def _reached(
    exposed: Mapping[str, Collection[str]], relevant: Mapping[str, frozenset[str]]
) -> dict[str, float]:
    """`macro`, `micro` and `documents` of the step that `exposed` these documents by question."""
    seen = {qid: set(exposed.get(qid, ())) for qid in relevant}
    counts = [(len(docids & seen[qid]), len(docids)) for qid, docids in relevant.items()]
    reached, relevant_counts = np.array(counts).T
    return {
        "macro": float(np.mean(reached / relevant_counts)),
        "micro": float(reached.sum() / relevant_counts.sum()),
        "documents": float(np.mean([*map(len, seen.values())])),
    }


def exposure_curves(
    trajectories: Sequence[Trajectory], qrels: Qrels, points: int = 60
) -> dict[str, list[tuple[float, float]]]:
    """Mean recall of the shown (previewed or opened) documents against exposure.

    The recall of a question is a step function, and a question that stopped keeps its last value.

    Args:
        trajectories: at most one for each question.
        qrels: question -> docid -> grade.
        points: the largest number of points of a curve.

    Returns:
        `documents` and `tokens` -> a list of (exposed so far, mean recall over the questions),
        ascending. The exposures are whole numbers, evenly spaced by logarithm from 1 to the largest
        exposure of any question; `[(1, 0)]` if nothing was shown.
    """
    relevant = relevant_documents(qrels)
    curves = {}
    for unit in ("documents", "tokens"):
        steps: list[tuple[int, float]] = []
        top = 1
        for trajectory in trajectories:
            evidence = relevant.get(trajectory.qid, frozenset())
            first: dict[str, int] = {}
            for exposure in trajectory.exposures if evidence else ():
                if exposure.tier in SHOWN:
                    exposed = getattr(exposure, unit)
                    top = max(top, exposed)
                    first.setdefault(exposure.docid, exposed)
            steps += [
                (exposed, 1 / (len(evidence) * len(relevant)))
                for docid, exposed in first.items()
                if docid in evidence
            ]
        steps.sort()
        grid = np.unique(np.rint(np.geomspace(1, top, points)).astype(np.int64))
        gained = np.concatenate([[0.0], np.cumsum([gain for _, gain in steps])])
        reached = gained[np.searchsorted([exposed for exposed, _ in steps], grid, side="right")]
        # Shares of several questions may add up to a little more than 1.
        recalls = np.minimum(reached, 1.0).tolist()
        curves[unit] = list(zip(map(float, grid), recalls, strict=True))
    return curves


# The steps from the evidence to a right answer.

STEPS = ("surfaced", "previewed", "opened", "answer_shown", "right")
STEP_MEASURES = ("step_surfaced", "step_previewed", "step_opened", "answer_shown", "label_right")
UNSUPPORTED = "label_right_unsupported"
LABELS = {
    "not_surfaced": "no evidence document was in a ranking or shown",
    "not_previewed": "surfaced and not previewed",
    "not_opened": "previewed and not opened",
    "not_shown": "opened, and the answer was not shown",
    "no_answer": "shown, and no answer was given",
    "wrong": "shown, and answered wrong",
    "right_unsupported": "right, and the answer was not shown",
    "failed": "failed, or without a trajectory",
    "right": "shown, and answered right",
}
LEFT_OUT = "left_out"  # the label of a question for which no answer can be shown


@dataclass(frozen=True)
class NeededTexts:
    """What an agent must be shown of the answer to a question.

    Args:
        phrases: qid -> docid -> normalised texts (`answers.findable`), one of which the shown
            characters of that document must contain as whole tokens.
        facts: qid -> facts that the shown texts must state, all of them.
        left_out: the number of other questions with accepted answers, by reason.
    """

    phrases: Mapping[str, Mapping[str, Sequence[str]]]
    facts: Mapping[str, Sequence[StatedFact]]
    left_out: Mapping[str, int]

    @property
    def qids(self) -> list[str]:
        """The questions for which it is known what must be shown."""
        return [*self.facts, *self.phrases]

    def sources(self, qid: str, shown: Iterable[ShownText]) -> list[str | None]:
        """For each fact, or for the answer, the document whose shown text states it; None where
        none does. For a question of which it is not known what must be shown, `[None]`."""
        if qid in self.facts:
            return stating_documents(self.facts[qid], shown)
        phrases = self.phrases.get(qid, {})
        holding = (
            text.docid
            for text in shown
            if text.docid in phrases and found_in(f"{text.title}\n{text.text}", phrases[text.docid])
        )
        return [next(holding, None)]

    def are_shown(self, trajectory: Trajectory) -> bool:
        """Whether the outputs of the trajectory's calls show what its question needs."""
        return None not in self.sources(trajectory.qid, shown_texts(trajectory.calls))


def needed_texts(
    topics: Sequence[Topic],
    accepted: Mapping[str, Sequence[str]],
    evidence: Qrels,
    facts: Mapping[str, Sequence[StatedFact]],
    texts: Texts,
) -> NeededTexts:
    """What must be shown for the questions with accepted answers: all `facts` of a question that
    has any; else an accepted answer, where an evidence document has it. Numbers, and answers of
    fewer than three characters, need a whole sentence of the document with the answer.

    Left out are questions with the answer `yes` or `no` (`yes_no`), with an accepted answer in
    their own text (`in_question`), and whose answers no evidence document has (`not_in_evidence`).
    `texts` has the titles and texts of documents.
    """
    left_out: dict[str, int] = dict.fromkeys(("yes_no", "in_question", "not_in_evidence"), 0)
    answers: dict[str, list[str]] = {}
    for topic in topics:
        if topic.qid in accepted and not facts.get(topic.qid):
            found = findable(accepted[topic.qid])
            if not found:
                left_out["yes_no"] += 1
            elif found_in(topic.text, found):
                left_out["in_question"] += 1
            else:
                answers[topic.qid] = found
    questions: dict[str, list[str]] = {}  # docid -> the questions whose evidence it is
    relevant = relevant_documents(evidence)
    for qid in answers:
        for docid in sorted(relevant.get(qid, ())):
            questions.setdefault(docid, []).append(qid)
    phrases: dict[str, dict[str, list[str]]] = {}
    for docid, text in texts(questions.keys()) if questions else ():
        in_text = found_in(text, {phrase for qid in questions[docid] for phrase in answers[qid]})
        for qid in questions[docid]:
            if present := [phrase for phrase in answers[qid] if phrase in in_text]:
                phrases.setdefault(qid, {})[docid] = _with_sentences(text, present)
    left_out["not_in_evidence"] = len(answers) - len(phrases)
    with_facts = {qid: facts[qid] for qid in accepted if facts.get(qid)}
    return NeededTexts(phrases, with_facts, left_out)


def _with_sentences(text: str, phrases: Sequence[str]) -> list[str]:
    """The phrases, with the sentences that have it in place of one that needs a sentence."""
    short = [phrase for phrase in phrases if needs_sentence(phrase)]
    sentences = [text[start:end] for start, end in rule_spans(text)] if short else []
    long = [phrase for phrase in phrases if phrase not in short]
    return [*long, *findable([sentence for sentence in sentences if found_in(sentence, short)])]


class StepRecord(NamedTuple):
    """What happened on a question: the five `STEPS`, whether an answer was given, and whether the
    question failed.

    Example:
        >>> record = StepRecord(True, True, False, False, right=True)
        >>> record.passed, record.label
        ((True, True, False, False, False), 'right_unsupported')
    """

    surfaced: bool
    previewed: bool
    opened: bool
    answer_shown: bool
    right: bool
    answered: bool = True
    failed: bool = False

    @property
    def passed(self) -> tuple[bool, ...]:
        """For each step, whether the question passed it and all before it."""
        return tuple(accumulate([step and not self.failed for step in self[: len(STEPS)]], and_))

    @property
    def label(self) -> str:
        """The one of `LABELS` that describes the question."""
        if self.failed:
            return "failed"
        passed = sum(self.passed)
        if self.right:
            return "right" if passed == len(STEPS) else "right_unsupported"
        if passed < len(STEPS) - 1:
            return ("not_surfaced", "not_previewed", "not_opened", "not_shown")[passed]
        return "wrong" if self.answered else "no_answer"


def step_record(
    trajectory: Trajectory, relevant: Collection[str], *, shown: bool, right: bool
) -> StepRecord:
    """The record of a trajectory. A step that a tool does not have is passed together with a later
    one: what was opened counts as previewed and surfaced, and so does an answer that was shown. An
    excerpt with the answer therefore counts as opened. An answer that is not in the required
    format, or that names nothing, was not given."""
    opened, previewed, surfaced = (
        not set(relevant).isdisjoint(trajectory.tiers.get(tier, ()))
        for tier in ("opened", "previewed", "surfaced")
    )
    opened |= shown
    previewed |= opened
    lacks_format = (final_message(trajectory) or {}).get(NO_FORMAT)
    named = answer_tokens(trajectory.answer.exact) not in ([], ["unknown"])
    return StepRecord(
        surfaced=surfaced | previewed,
        previewed=previewed,
        opened=opened,
        answer_shown=shown,
        right=right,
        answered=named and not lacks_format,
        failed=trajectory.status == "failed",
    )


def step_measures(records: Mapping[str, StepRecord]) -> PerQuestion:
    """The steps that each question passed and its label, as values of 0 and 1."""
    rows: dict[str, dict[str, float]] = {}
    for qid, record in records.items():
        rows[qid] = dict(zip(STEP_MEASURES[:-1], record.passed, strict=False))
        rows[qid] |= {f"label_{label}": label == record.label for label in LABELS}
    return by_measure(rows)


class StepTerm(NamedTuple):
    """A number with its bootstrap interval over questions."""

    value: float
    low: float
    high: float


_BOOTSTRAP_ROWS = 256
Measured = Mapping[str, Mapping[str, float]]  # measure -> question -> value


def conditional_shares(per_question: Measured) -> dict[str, StepTerm]:
    """For each of `STEPS`, the share of those questions that passed it among those that passed the
    step before, with its interval. The first one is of all questions. Not a number where no
    question passed the step before."""
    shares = _share_matrix(per_question, list(per_question[STEP_MEASURES[0]]))
    return dict(zip(STEPS, _bootstrapped(_conditional, shares), strict=True))


def decomposed_difference(a: Measured, b: Measured, *, samples: int = 2000) -> dict[str, StepTerm]:
    """Decompose the paired difference in accuracy, `a` - `b`, over the steps.

    Let p(k) be the share of questions that passed step k and all before it, p(0) = 1,
    c(k) = p(k) / p(k-1) the conditional share, and u the share of questions that were answered
    right without passing the step `answer_shown`. The accuracy is c(1) c(2) ... c(5) + u, and the
    term of step k is the mean of the two polar decompositions (Dietzenbacher and Los, 1998):

        (c_a(k) - c_b(k)) (p_a(k-1) q_b(k) + p_b(k-1) q_a(k)) / 2,  q(k) = c(k+1) ... c(5)

    With the term u_a - u_b, they sum exactly to the difference, and change sign when a and b are
    exchanged. A conditional share of no questions is taken to be that of the other run.

    Args:
        a, b: the values by question of two runs (`Evaluation.per_question`). The questions that
            both have count.
        samples: bootstrap samples of questions for the percentile intervals; 0 for none.

    Returns:
        The term of each step and of `right_unsupported`, and their sum, `difference`, with 95 %
        intervals.

    Raises:
        InputError: if the runs share no such question.
    """
    qids = [qid for qid in a.get(STEP_MEASURES[0], {}) if qid in b.get(STEP_MEASURES[0], {})]
    if not qids:
        raise InputError(
            "the two runs share no question for which it is known what must be shown",
            valid="two evaluated runs over the same questions with answers and evidence",
            do="evaluate both runs again",
        )
    shares = np.concatenate([_share_matrix(per_question, qids) for per_question in (a, b)], axis=1)
    names = (*STEPS, "right_unsupported", "difference")
    return dict(zip(names, _bootstrapped(_terms, shares, samples), strict=True))


def _share_matrix(per_question: Measured, qids: Sequence[str]) -> Values:
    columns = [per_question[name] for name in (*STEP_MEASURES, UNSUPPORTED)]
    return np.array([[column[qid] for column in columns] for qid in qids], dtype=float)


def _conditional(shares: Values) -> Values:
    """c(k) of samples [samples, columns of `_share_matrix`]."""
    passed = shares[:, : len(STEPS)]
    before = np.concatenate([np.ones((len(passed), 1)), passed[:, :-1]], axis=1)
    return np.divide(passed, before, out=np.full_like(passed, np.nan), where=before > 0)


def _terms(shares: Values) -> Values:
    """The terms of samples [samples, 12], the columns of both runs, and their sum."""
    half = len(STEPS) + 1
    a, b = shares[:, :half], shares[:, half:]
    first, second = _conditional(a), _conditional(b)
    first, second = (
        np.nan_to_num(np.where(np.isnan(one), other, one))
        for one, other in ((first, second), (second, first))
    )
    ones = np.ones((len(shares), 1))
    before = [np.cumprod(np.hstack([ones, c[:, :-1]]), axis=1) for c in (first, second)]
    after = [np.cumprod(np.hstack([ones, c[:, :0:-1]]), axis=1)[:, ::-1] for c in (first, second)]
    weights = (before[0] * after[1] + before[1] * after[0]) / 2
    terms = np.hstack([(first - second) * weights, a[:, half - 1 :] - b[:, half - 1 :]])
    return np.hstack([terms, terms.sum(axis=1, keepdims=True)])


def _bootstrapped(
    statistic: Callable[[Values], Values], values: Values, samples: int = 2000
) -> list[StepTerm]:
    """A statistic of the means of `values` [questions, columns], with its 95 % intervals."""
    random, count = np.random.default_rng(0), len(values)
    rows = []
    for first in range(0, samples, _BOOTSTRAP_ROWS):
        size = min(_BOOTSTRAP_ROWS, samples - first)
        drawn = random.multinomial(count, np.full(count, 1 / count), size=size)
        rows.append(statistic(drawn @ values / count))
    observed = statistic(values.mean(axis=0, keepdims=True))
    resampled = np.concatenate([observed[:0], *rows])
    terms = []
    for value, column in zip(observed[0], resampled.T, strict=True):
        column = column[~np.isnan(column)]
        low, high = np.percentile(column, [2.5, 97.5]) if len(column) else (np.nan, np.nan)
        terms.append(StepTerm(float(value), float(low), float(high)))
    return terms
