"""Questions, judgements, answers and corpora. How to search or to score them belongs elsewhere."""

from toolkit.benchmarks.beir import BeirBenchmark
from toolkit.benchmarks.fictional import FictionalWorld

__all__ = ["BeirBenchmark", "FictionalWorld"]
