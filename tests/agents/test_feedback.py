from __future__ import annotations

import os
import subprocess
import sys

from soundingline.agents.keyword.agent import feedback_terms
from soundingline.agents.keyword.clues import Rarity, stem
from soundingline.agents.keyword.evidence import Reader

CLUES = {stem("mill"): 1.0, stem("Grenholm"): 1.0, stem("built"): 0.5}
SENTENCES = [
    *Reader(CLUES).sentences("d1", "", "Grenholm Mill was built by Torvald Brekke for wool."),
    *Reader(CLUES).sentences("d2", "", "Some mill is near Oslo. A mill is near Bergen."),
]


def terms(limit, known=None):
    return feedback_terms(SENTENCES, known or set(CLUES), Rarity(), limit=limit)


def test_the_name_in_the_sentence_that_covers_most_comes_first_and_whole():
    assert terms(1) == ["Torvald Brekke"]


def test_words_of_the_question_and_of_terms_taken_are_not_asked_again():
    found = terms(10)
    assert not {"Grenholm", "Grenholm Mill", "built", "Torvald", "Brekke"} & set(found)
    assert {"wool", "Oslo", "Bergen"} <= set(found)


def test_terms_asked_before_are_left_out():
    assert "Torvald Brekke" not in terms(10, {*CLUES, "torvald", stem("Brekke")})


def test_their_number_is_limited_and_may_be_none():
    assert len(terms(2)) == 2
    assert terms(0) == []
    assert feedback_terms([], set(), Rarity(), limit=3) == []


def test_a_word_that_the_index_lacks_is_not_asked():
    rarity = Rarity(lambda word: 0 if word == "wool" else 3, 100)
    assert "wool" not in feedback_terms(SENTENCES, set(CLUES), rarity, limit=10)


SCORES = """
from soundingline.agents.keyword.evidence import Evidence
from soundingline.agents.keyword.agent import feedback_terms
clues = {f"clue{number:02}x": 1 / (number + 3) for number in range(40)}
evidence = Evidence(clues)
evidence.rank([f"d{number}" for number in range(30)])
for number in range(30):
    clause = " ".join(list(clues)[number % 7 : number + 9])
    text = f"Brel {clause} harbour {number}. The Slate {clause[:40]} mill slate."
    evidence.read(f"d{number}", "", text)
scores = [sentence.score for sentence in evidence.trusted()]
print(scores, feedback_terms(evidence.sentences, (), len, limit=50))
"""


def test_scores_and_terms_do_not_depend_on_the_seed_of_hashes():
    outputs = set()
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCORES]
        outputs.add(subprocess.check_output(command, env=environment))
    assert len(outputs) == 1 and b"harbour" in outputs.pop()
