"""A generated world that exists nowhere: entities, pages, and chained questions. See
`docs/fictional-world.md`.

From the ground: `hashing`, `lexicon`, `schema`; `people`, `places`, `makers`,
`structures`, `events` (types of entities);
`names`, `world` (facts); `words`, `sentences`, `filler`, `articles` (pages); `solving`,
`questions`, `wording`; `benchmark`, which is all that others need.
"""

from toolkit.benchmarks.fictional.benchmark import FictionalWorld

__all__ = ["FictionalWorld"]
