"""Worlds of three settings, pinned byte for byte.

The digests have no independent source. The generator of the commit that added this file computed
them, and they hold it still, because published figures and recorded runs depend on its worlds. If
a world must change, raise `VERSION` or `SETS_VERSION` in `fictional/benchmark.py`, pin the new
digests, and compute the figures of the documentation again.
"""

from __future__ import annotations

import hashlib

import pytest

from soundingline.toolkit.benchmarks.fictional import FictionalWorld

SETTINGS = {
    "chained": {"documents": 160, "questions": 40},
    "four hops": {
        "documents": 640,
        "questions": 16,
        "hops": 4,
        "seed": 11,
        "median_words": 80,
        "p90_words": 900,
        "twins": 0.45,
        "clues": 2,
        "obfuscation": 0.9,
        "split": "dev",
    },
    "sets": {
        "documents": 800,
        "questions": "sets:25",
        "seed": 3,
        "median_words": 120,
        "p90_words": 200,
        "obfuscation": 0.25,
    },
}
PINNED = {
    "chained": {
        "documents": "6afc7c37ed3965196c436c6bab8b952e2998264160e07549c35c795ee00d926d",
        "topics": "2017c91a20b33310592e2782e67cfc1405c6d359d1432d2d2a50535834a30165",
        "qrels": "bfc8decffb1eed077c6e879899b4e1a29004b991aa5869c8a973e49c8440f380",
        "sets": "46e254fa25c7e746950e3762616d085b99c03c8046bab11667a5cbf76226d394",
        "links": "79194d9a59cda8aaa6f30aebedda959ce0d09ed50078c71565a23f6a080032a7",
        "facts": "35386d38b10bd8403077ed95e6a7e1dc7c9cf8e31a1573af305b6098efd546dd",
        "fingerprints": "fa165efa138fd3332d3b9e837441c1befb9f1aaed23e927722f5b64e92eee975",
    },
    "four hops": {
        "documents": "78d7e87bdf565e4b3ebb09004a9477cde8a0099afe08e81600e29382c127e90c",
        "topics": "ab06a15fee0324ddfa4444987a9c4e1a25752317f72cb0b65bb4673e0af2f28d",
        "qrels": "f881931c9bcd535b9bc64a4f70273df7abd631954c96a00dc5b905a3f3eacaa2",
        "sets": "46e254fa25c7e746950e3762616d085b99c03c8046bab11667a5cbf76226d394",
        "links": "6baaf70803de725cba2375f4301e0184dbde701912a9e584c4ad32631bb10cd8",
        "facts": "7d8e0b1a42d876d3826a079e2bbe80dba216204ed5990eab11050c512387aeaa",
        "fingerprints": "3ef42ec8579aa682502f9674420ca9975854f2b978e0982677409acf746ce1ae",
    },
    "sets": {
        "documents": "532743625ac620dcaea8a03cb48ed1a25b44e3b47c4e5471e4d5a3eed394bfa8",
        "topics": "d108e309d276d7694482116b0ac1c567ff7537e9577d384e31f25ba1e173012a",
        "qrels": "de3e33fc34b2c5001457fb53fbfc88151d06da118b8845dac9dc9636ee74cfbf",
        "sets": "d6e15228dac6c9b2c31588fa4ab4460790898a9718209aaaf60e79cc0dbb57bf",
        "links": "609701d63887ae50e1a58d95bd7e4c6f32578f17a49a5b6981aa3ff57e481155",
        "facts": "3f595122e35220f0ffcc91d31e8dc261a53f6bcdddd47acbea0a9b511f372cc8",
        "fingerprints": "e2b12d95ad62c5a5f1b5bf8efa46801be545c6b55e0177bf02007395b799112f",
    },
}


def digest(values):
    return hashlib.sha256(repr(values).encode()).hexdigest()


def digests(world):
    docids = [document.docid for document in world.documents()]
    return {
        "documents": digest([tuple(document) for document in world.documents()]),
        "topics": digest([tuple(topic) for topic in world.topics]),
        "qrels": digest([world.qrels, world.answers]),
        "sets": digest(
            [
                [(qid, sorted(targets)) for qid, targets in world.targets.items()],
                world.checklists,
                [[rows[docid] for docid in docids] for rows in world.satisfaction.values()],
            ]
        ),
        "links": digest([tuple(link) for link in world.links()]),
        "facts": digest([tuple(map(tuple, world.facts(docid))) for docid in docids[::7]]),
        "fingerprints": digest([world.corpus_fingerprint, world.fingerprint]),
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_the_generator_makes_the_pinned_world(name):
    assert digests(FictionalWorld(**SETTINGS[name])) == PINNED[name]
