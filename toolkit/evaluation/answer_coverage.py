"""Whether what was retrieved holds an accepted answer (Answer Coverage: SIRA, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from toolkit.evaluation.answers import findable, phrase_of

DEPTHS = (5, 10)
MEASURES = tuple(f"AnswerCoverage@{depth}" for depth in DEPTHS)

# The texts of those of some documents that the corpus has: docid, and title and text.
Texts = Callable[[Collection[str]], Iterable[tuple[str, str]]]


def no_texts(docids: Collection[str]) -> Iterable[tuple[str, str]]:
    """For evaluations without a corpus, which have no answer coverage."""
    return ()


def answer_coverage(
    rankings: Mapping[str, Sequence[str]],
    accepted: Mapping[str, Sequence[str]],
    qids: Collection[str],
    texts: Texts,
) -> dict[str, dict[str, float]]:
    """`AnswerCoverage@5` and `@10` of those of the questions `qids` that have an accepted answer:
    1 where title or text of one of the first documents of its ranking holds one.

    Both are normalised as `ExactAnswerJudge` does, and the answer has to stand there as whole
    tokens in their order. Documents count whole, whatever the unit of the index is, so that units
    can be compared. A `yes` or `no` can stand in no text in a way that says anything: questions
    with no other answer are left out. An answer that is a common word or a small number is
    often there by chance. A question without a ranking counts 0. Nothing with `no_texts`.
    """
    if texts is no_texts:
        return {}
    answers = {qid: findable(accepted.get(qid, ())) for qid in qids}
    answers = {qid: phrases for qid, phrases in answers.items() if phrases}
    if not answers:
        return {}
    positions: dict[str, list[tuple[str, int]]] = {}
    for qid in answers:
        for rank, docid in enumerate(rankings.get(qid, ())[: max(DEPTHS)], start=1):
            positions.setdefault(docid, []).append((qid, rank))
    first: dict[str, int] = {}
    for docid, text in texts(positions.keys()):
        content = phrase_of(text)
        for qid, rank in positions[docid]:
            if any(phrase in content for phrase in answers[qid]):
                first[qid] = min(rank, first.get(qid, rank))
    return {
        name: {qid: float(first.get(qid, depth + 1) <= depth) for qid in answers}
        for name, depth in zip(MEASURES, DEPTHS, strict=True)
    }
