"""What the re-ranking benchmark computes on: real queries with real candidates, a tokenizer of T5's
kind and vocabulary size, and random weights of monoT5's shapes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from soundingline.experiments.bench.harness import ROOT
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.corpus.segmentation import Passages
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder
from soundingline.toolkit.optional import import_optional

CANDIDATES = 50
VOCABULARY = 32_000
# Of castorini/monot5-base-msmarco, -small- and -3b-; `tiny` is to try the benchmark out.
SHAPES = {
    "base": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "small": {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "3b": {"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32},
    "tiny": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
}
_PROMPT = ("Query", "Document", "Relevant", "true", "false")


class Request(NamedTuple):
    """A query and the texts of its candidates, best first."""

    query: str
    texts: list[str]


def data_root() -> Path:
    """The folder of the real collections."""
    return Path(os.environ.get("SOUNDINGLINE_DATA", ROOT.parent / "shared" / "data"))


def workload(root: Path, collection: Path, pairs: int) -> tuple[list[Request], Path]:
    """Requests of `CANDIDATES` texts, `pairs` in all, and the folder of a tokenizer; made in a
    folder below `root` where they are not there yet. Candidates are BM25's, among passages of at
    most 250 tokens of a `collection` in the BEIR layout."""
    folder = root / f"rerank-{collection.name}-{pairs}"
    if not folder.exists():
        if not collection.is_dir():
            raise InputError(
                f"there is no collection {collection}",
                do="give --collection a BEIR folder; docs/data.md tells where wikimix, the"
                " default, comes from",
            )
        _make(folder, collection, pairs)
    lines = (folder / "requests.jsonl").read_text("utf-8").splitlines()
    return [Request(**json.loads(line)) for line in lines], folder / "tokenizer"


def _make(folder: Path, collection: Path, pairs: int) -> None:
    benchmark, segmenter = BeirBenchmark(collection), Passages(250)
    documents = benchmark.documents()
    units = {unit.unit_id: unit for document in documents for unit in segmenter.units(document)}
    queries = -(-pairs // CANDIDATES)
    # Spread over the questions: their collections follow one another.
    topics = benchmark.topics[:: max(1, len(benchmark.topics) // queries)][:queries]
    with atomic_folder(folder) as partial:
        index = LexicalIndex.build(units.values(), partial / "index")
        frame = pd.DataFrame([{"qid": item.qid, "query": item.text} for item in topics])
        ranking = index.bm25(depth=CANDIDATES).transform(frame)
        requests, left = [], pairs
        for _, rows in ranking.groupby("qid", sort=False):
            texts = [units[docno].contents for docno in rows["docno"][:left]]
            requests.append(json.dumps({"query": rows["query"].iloc[0], "texts": texts}))
            left -= len(texts)
            if not left:
                break
        if left:
            raise InputError(f"{collection} gives {pairs - left} pairs", do="ask for fewer --pairs")
        (partial / "requests.jsonl").write_text("\n".join(requests), "utf-8")
        _tokenizer(units.values()).save_pretrained(partial / "tokenizer")


def _tokenizer(units: Iterable[Unit]) -> Any:
    """T5's own class over a unigram vocabulary learnt from the texts, so that they have about as
    many tokens as T5's gives them."""
    tokenizers = import_optional("tokenizers")
    learnt = tokenizers.Tokenizer(tokenizers.models.Unigram())
    metaspace = tokenizers.pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    learnt.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.WhitespaceSplit(), metaspace]
    )
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=VOCABULARY - 3 - len(_PROMPT), unk_token="<unk>", show_progress=False
    )
    learnt.train_from_iterator((unit.contents for unit in units), trainer)
    vocabulary = dict(json.loads(learnt.to_str())["model"]["vocab"])
    pieces = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0}
    pieces |= {piece: score for piece, score in vocabulary.items() if piece not in pieces}
    pieces |= {f"▁{word}": max(vocabulary.values()) - 5.0 for word in _PROMPT}
    return import_optional("transformers").T5Tokenizer(vocab=list(pieces.items()), extra_ids=0)


def save_random(folder: Path, shape: str, tokenizer: Path) -> None:
    """A checkpoint with random float32 weights and the tokenizer beside them."""
    torch, transformers = import_optional("torch"), import_optional("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=32_128, n_positions=512, decoder_start_token_id=0, **SHAPES[shape]
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    transformers.T5Tokenizer.from_pretrained(tokenizer).save_pretrained(folder)


def encoder_flops(shape: str, lengths: Sequence[int]) -> float:
    """Multiplications and additions of the encoder on texts of these lengths, without padding; the
    one decoder step adds less than a hundredth."""
    sizes = SHAPES[shape]
    inner = sizes["num_heads"] * sizes["d_kv"]
    token = sizes["d_model"] * (4 * inner + 2 * sizes["d_ff"])
    return float(sum(2 * sizes["num_layers"] * n * (token + 2 * n * inner) for n in lengths))
