"""A generated world of entities, pages and questions about them; see `docs/fictional-world.md`."""

from soundingline.toolkit.benchmarks.fictional.benchmark import FictionalWorld

__all__ = ["FictionalWorld"]
