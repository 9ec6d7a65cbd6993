"""Links between the articles: who names whom, thinned at random.

All links would solve questions that name an entity, so a part of them is left out. The part was
fixed before any retrieval was run on the links, and is tuned to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.benchmarks.fictional.articles import Articles, docid
from toolkit.benchmarks.fictional.hashing import key, mix
from toolkit.contracts import Link

LINK_RATE = 0.5  # share of the links that are there
LINK_SEED = 1


def links(articles: Articles) -> Iterator[Link]:
    """The links in the order of the documents, each once. Whether one is there is a function of its
    two ends and the world's seed."""
    size = articles.world.size
    own = key("links", LINK_SEED, articles.world.seed)
    threshold = round(LINK_RATE * (1 << 20))
    for source in range(size):
        for target in articles.named(source):
            if mix(own ^ (source * size + target)) >> 44 < threshold:
                yield Link(docid(source), docid(target))
