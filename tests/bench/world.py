"""What the fictional world takes from a real collection: lengths, repetition, shared words."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import yaml
from data import collection_path
from harness import ROOT, Table, benchmark

from soundingline.agents.keyword.clues import WORD, is_content, stem
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld

LENGTHS = ((0, 200), (200, 2000), (2000, 4000), (4000, 8000), (8000, 10**6))
ARTICLE = 500  # words; the paragraphs of wikimix are shorter, and its articles longer but for five
RARE = 0.02  # a term in more of the documents is common, and occurs for other reasons too
MOST = 4  # terms of an answer that is a name, a number or a phrase, and no sentence


class Terms(NamedTuple):
    """A term of a question or of its answer, in a document that answers the question."""

    asked: bool
    words: int
    frequency: int
    rare: bool


def stems(text):
    return [stem(word) for word in WORD.findall(text)]


def content(text):
    return {stem(word) for word in WORD.findall(text) if is_content(word)}


class Measured:
    """The statistics of a collection. `sample`: of the documents without judgements, every
    `sample`-th counts."""

    def __init__(self, source, sample=1):
        gold = source.qrels.get("gold") or source.qrels["evidence"]
        relevant = {docid for grades in gold.values() for docid in grades}
        frequencies, titles, words = {}, {}, {}
        for number, document in enumerate(source.documents()):
            if number % sample and document.docid not in relevant:
                continue
            frequencies[document.docid] = Counter(stems(f"{document.title} {document.text}"))
            titles[document.docid] = content(document.title)
            words[document.docid] = len(document.text.split())
        df = Counter(term for counts in frequencies.values() for term in counts)
        self.lengths = np.array([count for count in words.values() if count >= ARTICLE])
        self.terms, self.rivals = [], []
        articles = [docid for docid, count in words.items() if count >= ARTICLE]
        for topic in source.topics:
            asked = content(topic.text)
            answer = content(source.answers[topic.qid][0]) - asked
            for docid in gold.get(topic.qid, {}):
                counts, title = frequencies[docid], titles[docid]
                rows = [(True, asked - title)]
                if len(answer) <= MOST:
                    rows.append((False, answer - title))
                for kind, terms in rows:
                    for term in sorted(terms):
                        rare = df[term] <= RARE * len(words)
                        self.terms.append(Terms(kind, words[docid], counts[term], rare))
                found = sum(term in counts for term in asked - title)
                if words[docid] >= ARTICLE and len(asked - title) > 1:
                    others = [
                        sum(term in frequencies[other] for term in asked - title) >= found
                        for other in articles
                        if other != docid
                    ]
                    self.rivals.append(np.mean(others))

    def repetition(self):
        """Scale, exponent and deviation of the frequency of the rare terms of answers."""
        found = [
            (math.log(term.words), math.log(term.frequency))
            for term in self.terms
            if not term.asked and term.rare and term.frequency and term.words
        ]
        lengths, counts = np.array(found).T
        exponent, intercept = np.polyfit(lengths, counts, 1)
        rest = counts - intercept - exponent * lengths
        return math.exp(intercept), exponent, float(rest.std())

    def shared(self):
        """The share of the words of a question, without those of the title, that the article that
        answers it has."""
        asked = [term.frequency > 0 for term in self.terms if term.asked and term.words >= ARTICLE]
        return float(np.mean(asked))

    def frequencies(self, low, high):
        """25th, 50th and 75th percentile of the frequency of rare terms of answers in documents of
        `low` to `high` words."""
        counts = [
            term.frequency
            for term in self.terms
            if not term.asked and term.rare and term.frequency and low <= term.words < high
        ]
        quartiles = np.percentile(counts, [25, 50, 75]) if len(counts) > 4 else []
        return " / ".join(f"{value:.0f}" for value in quartiles) or "—"


@benchmark("The fictional world and a real collection", sample=(10, 40))
def world(options):
    """The measures of wikimix from which `benchmark=fictional_wikimix` takes its parameters, and
    the same measures of that world."""
    settings = yaml.safe_load((ROOT / "conf/benchmark/fictional_wikimix.yaml").read_text())
    del settings["defaults"]
    real = Measured(BeirBenchmark(collection_path("wikimix"), split=None))
    made = Measured(FictionalWorld(**settings), max(1, options.sample))
    yield (
        f"Articles are documents of {ARTICLE} words or more. Rare terms are in at most {RARE:.0%} "
        "of the documents. Terms of a title do not count."
    )
    rows = [
        ["words of an article, median", *(f"{np.median(m.lengths):,.0f}" for m in (real, made))],
        ["90th percentile", *(f"{np.percentile(m.lengths, 90):,.0f}" for m in (real, made))],
        [
            "repetition: scale, exponent, deviation",
            *(", ".join(f"{value:.2f}" for value in m.repetition()) for m in (real, made)),
        ],
        ["words of a question that its article has", *(f"{m.shared():.2f}" for m in (real, made))],
        [
            "other articles that have as many of them",
            *(f"{np.mean(m.rivals):.3f}" for m in (real, made)),
        ],
    ]
    rows += [
        [f"frequency in {low:,} to {high:,} words, quartiles", m[0], m[1]]
        for low, high in LENGTHS
        for m in [(real.frequencies(low, high), made.frequencies(low, high))]
    ]
    yield Table(["measure", "wikimix", "fictional_wikimix"], rows)
