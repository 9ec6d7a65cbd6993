"""A generated world of entities, pages and questions about them; see `docs/data.md`."""

from soundingline.toolkit.benchmarks.fictional.benchmark import FictionalWorld

__all__ = ["FictionalWorld"]
