"""A generated world that exists nowhere: entities, pages, and chained questions. See
`docs/fictional-world.md`.

From the ground: `data` (words and sentences, from YAML), `hashing`, `schema` (types of entities);
`names`, `world` (facts); `words`, `filler`, `articles` (pages); `solving`, `questions`, `wording`;
`benchmark`, which is all that others need.
"""

from toolkit.benchmarks.fictional.benchmark import FictionalWorld

__all__ = ["FictionalWorld"]
