"""Questions, judgements, answers and corpora. How to search or to score them belongs elsewhere."""

from typing import TYPE_CHECKING, Any

from toolkit.benchmarks.beir import BeirBenchmark
from toolkit.benchmarks.browsecomp_plus import BrowseCompPlus
from toolkit.benchmarks.ir_datasets import IrDatasetsBenchmark
from toolkit.benchmarks.judged import JudgedBenchmark

if TYPE_CHECKING:
    from toolkit.benchmarks.fictional import FictionalWorld

__all__ = [
    "BeirBenchmark",
    "BrowseCompPlus",
    "FictionalWorld",
    "IrDatasetsBenchmark",
    "JudgedBenchmark",
]


def __getattr__(name: str) -> Any:
    # At its first use: twenty modules that runs on other benchmarks do not need.
    if name == "FictionalWorld":
        from toolkit.benchmarks.fictional import FictionalWorld

        return FictionalWorld
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
