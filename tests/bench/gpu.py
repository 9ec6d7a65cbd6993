"""All models and searches on one GPU, with random weights and vectors that are made on it."""

import gc
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import pyterrier as pt
from harness import SEED, Table, background, benchmark, fastest, interleaved, streamed
from support.checkpoints import t5_tokenizer

from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.device import choose_device
from soundingline.pipelines.learned.colbert import ColBERT
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.splade import Splade
from soundingline.pipelines.learned.vectors import DocumentVectors, TorchSearch
from soundingline.pipelines.rerank.colbert import ColBERTReranker
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.rankllama import RankLLaMA
from soundingline.pipelines.rerank.reranker import Pair, RerankTop
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.search import RankedBrowsing

BATCHES = 16_384, 32_768, 65_536, 131_072  # tokens
LARGE = 64, 128, 256, 512  # texts that a library computes at once, of small networks
WORDS, TERMS, DIMENSIONS, QUERY_TOKENS, DEPTH, EXACT = 200, 200, 128, 32, 1000, 8
DTYPES = "bfloat16", "float32"
AGENTS, CANDIDATES = 10, (10, 20, 50)
# Of castorini/monot5-3b-msmarco, castorini/rankllama-v1-7b-lora-passage's base,
# Qwen/Qwen3-Embedding-0.6B and -8B, and bert-base-uncased, as their config.json have them.
T5_3B = {
    **{"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32},
    "vocab_size": 32_128,
}
LLAMA_7B = {
    **{"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "vocab_size": 32_000, "num_labels": 1},
}
QWEN = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_669}
QWEN_600M = {
    **{**QWEN, "hidden_size": 1024, "intermediate_size": 3072},
    **{"num_hidden_layers": 28, "num_attention_heads": 16},
}
QWEN_8B = {
    **{**QWEN, "hidden_size": 4096, "intermediate_size": 12_288},
    **{"num_hidden_layers": 36, "num_attention_heads": 32},
}
BERT = {
    **{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    **{"num_attention_heads": 12, "vocab_size": 30_522},
}
TINY = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    **{"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "vocab_size": 9000,
}


HEAD = ["model", "system", "texts/s", "ours / it", "% of the products", "GB above the weights"]
HEADS = {
    "models": [*HEAD, "largest error"],
    "searches": [
        *("search", "ms a query", "floor by the copies", "GB above the vectors"),
        *("overlap with float32", "largest error"),
    ],
    "turns": [
        *("candidates", "the GPU computes besides", "requests are computed", "ms of a call"),
        *("ms, 90 %", "pairs/s", "pairs a batch"),
    ],
}


class Options(NamedTuple):
    """What a process that measures a row is told."""

    device: str
    tiny: bool
    texts: int
    rounds: int
    vectors: int
    tokens: int
    calls: int
    products: float
    copies: float


@benchmark(
    "Models and searches on a GPU",
    small={"tiny": 1, "texts": 8, "rounds": 1, "vectors": 3000, "tokens": 6000, "calls": 1}
    | {"size": 256},
    packages=("torch", "transformers", "sentence-transformers"),
    limits="trained weights, other cards, several GPUs, or a real model server on the same GPU",
)
def gpu(
    device="cuda",
    only="",
    tiny=0,
    texts=384,
    rounds=2,
    vectors=1_000_000,
    tokens=20_000_000,
    calls=4,
    size=8192,
    seconds=450,
    limit=100,
):
    """Random weights of the published shapes, made on the device in bfloat16, and texts of 200
    words. Each library runs at its best batch size. Errors are the largest differences from
    float32 on eight texts.

    Each name of --only (all by default) is measured in a process of its own, for at most --limit
    seconds, and none begins after --seconds. With --write, each row is recorded at once."""
    try:
        choose_device(device)
    except InputError:
        raise InputError(
            "this machine has no GPU", do="run `python tests/bench gpu --small --device cpu`"
        ) from None
    names = only.split(",") if only else [*MEASURED]
    if unknown := {*names} - {*MEASURED}:
        raise InputError(f"--only {', '.join(unknown)}", valid=", ".join(MEASURED))
    started, end, spent = time.monotonic(), time.monotonic() + seconds, []
    products = copies = np.nan
    try:
        card, products, copies = next(streamed(limit, _rates, device, size))
        yield (
            f"{card}: {products / 1e12:,.2f} TFLOP/s for bfloat16 products of {size} x {size}, "
            f"{copies / 1e12:.3f} TB/s for copies."
        )
    except RuntimeError as error:
        yield f"The rates of products and copies were not measured: {error}."
    options = Options(device, bool(tiny), texts, rounds, vectors, tokens, calls, products, copies)
    for name in names:
        kind, measure = MEASURED[name]
        began = time.monotonic()
        try:
            if began >= end:
                raise RuntimeError(f"not begun within {seconds} s")
            for row in streamed(min(limit, end - began), measure, options):
                yield Table(HEADS[kind], [row])
        except RuntimeError as error:
            yield Table(HEADS[kind], [[name, f"{error}", *[""] * (len(HEADS[kind]) - 2)]])
        spent.append(f"{name} {time.monotonic() - began:.0f}")
    yield f"Seconds: {', '.join(spent)}; {time.monotonic() - started:.0f} in all."


def _rates(device, size):
    """The card, operations a second of bfloat16 products, and bytes a second, read and written, of
    copies."""
    torch, place = import_optional("torch"), choose_device(device)
    left, right = torch.ones(2, size, size, dtype=torch.bfloat16, device=place)
    products = _seconds(place, lambda: left @ right)
    data = torch.ones(size * size * 16, dtype=torch.uint8, device=place)
    copies = _seconds(place, data.clone)
    card = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
    yield card, 2 * size**3 / products, 2 * data.nbytes / copies


def _seconds(place, compute, times=10):
    """Median seconds of a computation, which has ended on the device."""
    taken = []
    for _ in range(times + 2):
        start = time.perf_counter()
        compute()
        _wait(place)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken[2:]))


def _wait(place):
    if place.type == "cuda":
        import_optional("torch").cuda.synchronize(place)


def _free(place):
    gc.collect()
    if place.type == "cuda":
        import_optional("torch").cuda.empty_cache()


@contextmanager
def _peak(place, into):
    """Put the largest memory that the block takes on the device, in GB, into a list."""
    cuda = import_optional("torch").cuda
    if place.type == "cuda":
        before = cuda.memory_allocated(place)
        cuda.reset_peak_memory_stats(place)
    yield
    taken = place.type == "cuda" and (cuda.max_memory_allocated(place) - before) / 1e9
    into.append(f"{taken:.1f}" if place.type == "cuda" else "")


def _texts(count):
    """Query and text of each pair: two of three words are whole tokens."""
    chance = np.random.default_rng(SEED)
    return [
        (" ".join(chance.choice(KNOWN, 8)), " ".join(chance.choice(KNOWN, WORDS)))
        for _ in range(count)
    ]


def _words(chance, count, letters):
    drawn = chance.integers(97, 123, (count, letters)).astype(np.uint8)
    return list(dict.fromkeys(row.tobytes().decode() for row in drawn))


WHOLE = _words(np.random.default_rng(SEED), 6000, 6)
PROMPT = ["Query", "Document", "Relevant", "true", "false"]
KNOWN = [*WHOLE, *_words(np.random.default_rng(SEED + 1), 800, 3)]


@contextmanager
def _made_on(place):
    """Networks of transformers have random weights on the device where they would be read: in the
    block, equal folders give equal weights."""
    torch, transformers = import_optional("torch"), import_optional("transformers")

    def made(kind, folder, *_, config=None, dtype=None, device_map=None, **options):
        report = {"missing_keys": set()}
        if device_map == "meta":
            return None, report
        config = config or transformers.AutoConfig.from_pretrained(folder)
        torch.manual_seed(SEED)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(place):
                network = kind(config).eval()
        finally:
            torch.set_default_dtype(before)
        if hasattr(network, "cls"):
            _sparse(network, place)
        for weight in network.parameters():
            weight.data = weight.data.to(dtype or torch.float32)
        return (network, report) if options.get("output_loading_info") else network

    with mock.patch.object(transformers.PreTrainedModel, "from_pretrained", classmethod(made)):
        yield


def _sparse(network, place):
    """Lower the bias of a masked language model, so that a text has about 200 terms."""
    torch = import_optional("torch")
    ids = torch.randint(0, network.config.vocab_size, (4, 128), device=place)
    with torch.inference_mode():
        largest = network(input_ids=ids).logits.amax(1).float()
    share = 1 - min(0.5, TERMS / network.config.vocab_size)
    network.get_output_embeddings().bias.data -= largest.quantile(share).to(torch.bfloat16)


def _save(folder, kind, shape, tiny, **more):
    """The name of a folder with a configuration, a tokenizer, and no weights."""
    transformers = import_optional("transformers")
    tokenizer = t5_tokenizer((*PROMPT, *WHOLE))
    tokenizer.add_special_tokens(
        {"bos_token": "<unk>", "cls_token": "<unk>", "mask_token": "<unk>"}
    )
    tokenizer.model_max_length = 512
    tokenizer.save_pretrained(folder)
    sizes = {**shape, **({name: TINY[name] for name in TINY if name in shape} if tiny else {})}
    config = getattr(transformers, f"{kind}Config")(**sizes, pad_token_id=0, **more)
    config.save_pretrained(folder)
    return str(folder)


class Case(NamedTuple):
    """What a row measures. Texts come as pairs of query and text; `library` takes a batch size too,
    of `sizes`; `exact` computes in float32. `operations`: of the linear layers for a token;
    attention is not counted. `small`: our stage, if its network is small; it is then measured with
    other `batch_tokens` and with four times as many texts."""

    name: str
    operations: int
    tokens: Callable
    ours: Callable
    library: Callable
    exact: Callable
    sizes: tuple = (16, 32, 64, 128)
    small: object = None


def _of_model(make, name, options):
    """A row for our system, one for other sizes of its batches, and one for the library at its best
    batch size; each as soon as it is measured."""
    place, rounds = choose_device(options.device), options.rounds
    with tempfile.TemporaryDirectory() as folder, _made_on(place):
        case = make(Path(folder), place, options.tiny)
        drawn = _texts(options.texts * (4 if case.small and not options.tiny else 1))
        few = drawn[: max(case.sizes)]
        exact, tokens = case.exact(drawn[:EXACT]), np.mean(case.tokens(drawn))

        def row(system, answer, base=None):
            peak = []
            with _peak(place, peak):
                answer(few)
            seconds, _ = interleaved({0: answer}, [[drawn]] * rounds, keep_results=False)
            rate = len(drawn) / np.median(seconds[0])
            share = 100 * rate * case.operations * tokens / options.products
            pairs = zip(answer(drawn[:EXACT]), exact, strict=True)
            error = f"{max(np.abs(a - b).max() for a, b in pairs):.1e}"
            times = f"{(base or rate) / rate:.2f}"
            return rate, [name, system, f"{rate:,.1f}", times, f"{share:.0f}", *peak, error]

        case.ours(few)
        ours, cells = row("ours", case.ours)
        yield cells
        for size in BATCHES if case.small else ():
            case.small.placement._batch_tokens = size
            yield row(f"ours, {size:,} tokens a batch", case.ours, ours)[1]
        tried = {size: partial(case.library, size=size) for size in case.sizes}
        best = fastest(tried, few, time.perf_counter)
        yield row(f"library, {best} a batch", tried[best], ours)[1]


def _operations(network):
    """Of the linear layers, for a token."""
    linear = import_optional("torch").nn.Linear
    layers = (each for each in network.modules() if isinstance(each, linear))
    return 2 * sum(each.weight.numel() for each in layers)


def _scored(scorer):
    return lambda drawn: np.array(scorer.score(*zip(*drawn, strict=True)))


def _pair_tokens(scorer):
    return lambda drawn: [
        len(each.ids) for each in scorer._inputs.encode([Pair(*p) for p in drawn])
    ]


def _monot5(folder, place, tiny):
    path = _save(folder, "T5", T5_3B, tiny, decoder_start_token_id=0, n_positions=512)
    ours, exact = (MonoT5(path, tokenizer=path, dtype=dtype, device=str(place)) for dtype in DTYPES)
    reranker = import_optional("pyterrier_t5").MonoT5ReRanker(
        tok_model=path, model=path, device=str(place), verbose=False
    )
    reranker.model.to(import_optional("torch").bfloat16)

    def library(drawn, size):
        reranker.batch_size = size
        frame = pd.DataFrame(drawn, columns=["query", "text"])
        frame = frame.assign(qid="q", docno=[str(row) for row in range(len(frame))])
        return reranker(frame).set_index("docno")["score"][frame["docno"]].to_numpy(float)

    operations = _operations(ours._network.encoder)
    return Case("monoT5-3B", operations, _pair_tokens(ours), _scored(ours), library, _scored(exact))


def _rankllama(folder, place, tiny):
    path = _save(folder, "Llama", LLAMA_7B, tiny, architectures=["LlamaForSequenceClassification"])
    ours, exact = (RankLLaMA(path, dtype=dtype, device=str(place)) for dtype in DTYPES)
    torch, network = import_optional("torch"), ours._network
    tokenizer = import_optional("transformers").AutoTokenizer.from_pretrained(path)

    def library(drawn, size):
        """As on the model's card, and transformers' own choice of the last token."""
        scores = []
        for start in range(0, len(drawn), size):
            part = drawn[start : start + size]
            texts = [f"query: {query}<unk>document: {text}" for query, text in part]
            options = {"truncation": True, "max_length": 512, "add_special_tokens": False}
            batch = tokenizer(texts, padding=True, return_tensors="pt", **options).to(place)
            with torch.inference_mode():
                inputs = batch["input_ids"], batch["attention_mask"]
                scores += network(*inputs).logits[:, 0].tolist()
        return np.array(scores)

    case = "RankLLaMA-7B", _operations(network), _pair_tokens(ours), _scored(ours), library
    return Case(*case, _scored(exact))


def _texts_of(drawn):
    return [text for _, text in drawn]


def _encoding(name, ours, exact, library, network, small=True, as_rows=np.asarray):
    def encoded(encoder):
        return lambda drawn: [as_rows(each) for each in encoder.encode(_texts_of(drawn))]

    def tokens(drawn):
        return ours.tokenize(_texts_of(drawn)).lengths

    def of_library(drawn, size):
        found = library.encode_document(_texts_of(drawn), batch_size=size, show_progress_bar=False)
        return [_rows_of(each) for each in found]

    operations = _operations(network)
    case = Case(name, operations, tokens, encoded(ours), of_library, encoded(exact))
    return case._replace(sizes=LARGE, small=ours) if small else case


def _rows_of(found):
    """What a library gives for a text, in float32."""
    if isinstance(found, np.ndarray):
        return found
    return (found.to_dense() if found.is_sparse else found).float().cpu().numpy()


def _qwen(name, shape, folder, place, tiny):
    path = _save(folder, "Qwen3", shape, tiny, architectures=["Qwen3Model"])
    settings = {"pooling": "last", "append_eos": True, "device": str(place)}
    ours, exact = (Dense(path, dtype=dtype, **settings) for dtype in DTYPES)
    library = import_optional("sentence_transformers")
    parts = import_optional("sentence_transformers.sentence_transformer.modules")
    bodies = import_optional("sentence_transformers.base.modules")
    body = bodies.Transformer(path, model_kwargs={"dtype": import_optional("torch").bfloat16})
    pooling = parts.Pooling(body.get_embedding_dimension(), "lasttoken")
    model = library.SentenceTransformer(
        modules=[body, pooling, bodies.Normalize()], device=str(place)
    )
    return _encoding(name, ours, exact, model, ours._network._network, shape == QWEN_600M)


def _splade(folder, place, tiny):
    path = _save(folder, "Bert", BERT, tiny, architectures=["BertForMaskedLM"])
    ours, exact = (Splade(path, dtype=dtype, device=str(place)) for dtype in DTYPES)
    library = _of_library("SparseEncoder", path, place)

    def as_rows(array):
        row = np.zeros(len(ours.vocabulary), np.float32)
        row[array["term"]] = array["weight"]
        return row

    network = library.transformers_model
    return _encoding("SPLADE", ours, exact, library, network, as_rows=as_rows)


def _of_library(kind, path, place):
    return getattr(import_optional("sentence_transformers"), kind)(
        path, device=str(place), model_kwargs={"dtype": import_optional("torch").bfloat16}
    )


def _save_colbert(folder, tiny):
    """BERT with a projection to 128 dimensions."""
    path = _save(folder / "body", "Bert", BERT, tiny, architectures=["BertModel"])
    library, torch = import_optional("sentence_transformers"), import_optional("torch")
    bodies = import_optional("sentence_transformers.base.modules")
    masks = import_optional("sentence_transformers.multi_vector_encoder.modules")
    expansion = {"strategy": "fixed", "length": QUERY_TOKENS, "attend": False}
    body = bodies.Transformer(path, document_length=300, query_expansion=expansion)
    named = {"module_input_name": "token_embeddings"}
    down = bodies.Dense(
        body.get_embedding_dimension(),
        DIMENSIONS,
        bias=False,
        activation_function=torch.nn.Identity(),
        **named,
    )
    modules = [body, down, masks.MultiVectorMask(skiplist_words=[]), bodies.Normalize(**named)]
    library.MultiVectorEncoder(modules=modules, device="cpu").save_pretrained(str(folder / "model"))
    return str(folder / "model")


def _colbert(folder, place, tiny):
    path = _save_colbert(folder, tiny)
    settings = {"device": str(place), "storage": "float32"}
    ours, exact = (ColBERT(path, dtype=dtype, **settings) for dtype in DTYPES)
    library = _of_library("MultiVectorEncoder", path, place)
    return _encoding("ColBERT", ours, exact, library, library.transformers_model)


def _colbert_reranking(folder, place, tiny):
    path = _save_colbert(folder, tiny)
    ours, exact = (ColBERTReranker(path, dtype=dtype, device=str(place)) for dtype in DTYPES)
    library = _of_library("MultiVectorEncoder", path, place)

    def scored(drawn, size):
        options = {"batch_size": size, "show_progress_bar": False}
        queries = library.encode_query([query for query, _ in drawn], **options)
        texts = library.encode_document(_texts_of(drawn), **options)
        return library.similarity_pairwise(queries, texts).float().cpu().numpy()

    def tokens(drawn):
        return ours.encoder.tokenize(_texts_of(drawn)).lengths

    operations = _operations(library.transformers_model)
    case = "ColBERT re-ranking", operations, tokens, _scored(ours), scored, _scored(exact)
    return Case(*case, LARGE, ours.encoder)


def _unit_rows(place, count, dimensions, dtype):
    """Random vectors of length 1 on the device."""
    torch = import_optional("torch")
    made = torch.empty(count, dimensions, dtype=dtype, device=place)
    for part in made.split(1 << 20):
        drawn = torch.randn(part.shape, device=place)
        part.copy_(torch.nn.functional.normalize(drawn, dim=1))
    return made


def _exact(options):
    """Rows of exact search over single vectors, against a product and top-k in torch."""
    torch, place = import_optional("torch"), choose_device(options.device)
    count, dimensions = options.vectors, 64 if options.tiny else 1024
    named = f"{count:,} x {dimensions}: "
    torch.manual_seed(SEED)
    stored = _unit_rows(place, count, dimensions, torch.float32)
    queries = torch.nn.functional.normalize(
        stored[:64] + torch.randn(64, dimensions, device=place) / dimensions**0.5, dim=1
    )
    asked, depth = list(queries.cpu().numpy()), min(DEPTH, count)
    scores, best = (queries @ stored.T).topk(depth, dim=1)
    ours, floor = TorchSearch(DocumentVectors(stored.cpu().numpy()), place), stored.nbytes
    for batch in (1, 64):
        found = partial(_ours, ours, asked[:batch], depth)
        row = f"{named}ours, {batch} at once"
        yield _searched(row, place, found, batch, floor / options.copies, scores, best)

        def on_device(batch=batch):
            with torch.inference_mode():
                top = ours._scores(asked[:batch], False).topk(depth, dim=1)
            return top.values.cpu().numpy(), top.indices.cpu().numpy()

        row = f"{named}ours without the scores of the CPU, {batch} at once"
        yield _searched(row, place, on_device, batch, floor / options.copies, scores, best)
    for dtype in (torch.float32, torch.float16):
        kept, own = stored.to(dtype), queries.to(dtype)
        name = str(dtype).removeprefix("torch.")
        for batch in (1, 64):

            def plain(kept=kept, own=own, batch=batch):
                found = (own[:batch] @ kept.T).topk(depth, dim=1)
                return found.values.float().cpu().numpy(), found.indices.cpu().numpy()

            row = f"{named}product and top-k, {name}, {batch} at once"
            floor = kept.nbytes / options.copies
            yield _searched(row, place, plain, batch, floor, scores, best)


def _ours(search, queries, depth):
    found = search(queries, depth)
    return np.array([each.scores for each in found]), np.array([each.numbers for each in found])


def _searched(name, place, search, batch, floor, scores, best):
    """A row: milliseconds, the floor, memory, overlap and the largest error of the scores."""
    peak = []
    with _peak(place, peak):
        found, numbers = search()
    taken = 1000 * _seconds(place, search) / batch
    expected = best[:batch].cpu().numpy()
    overlap = np.mean([len({*a} & {*b}) / len(b) for a, b in zip(numbers, expected, strict=True)])
    error = np.abs(found - scores[:batch].cpu().numpy()).max()
    floor = f"{1000 * floor / batch:.3f}"
    return [name, f"{taken:.3f}", floor, *peak, f"{overlap:.4f}", f"{error:.1e}"]


def _late(options):
    """Rows of MaxSim, against a product in half precision and the largest of each hundred."""
    torch, chance = import_optional("torch"), np.random.default_rng(SEED)
    place, tokens, copies = choose_device(options.device), options.tokens, options.copies
    torch.manual_seed(SEED)
    lengths = chance.integers(60, 141, max(2, tokens // 100))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    stored = _unit_rows(place, int(offsets[-1]), DIMENSIONS, torch.float16)
    near = stored[1000 : 1000 + QUERY_TOKENS].float()
    noise = torch.randn(QUERY_TOKENS, DIMENSIONS, device=place) / DIMENSIONS**0.5
    query = torch.nn.functional.normalize(near + noise, dim=1)
    sizes, blocks = torch.tensor(lengths, device=place), []
    for first in range(0, len(lengths), 1 << 14):
        last = min(first + (1 << 14), len(lengths))
        similar = stored[offsets[first] : offsets[last]].float() @ query.T
        largest = torch.segment_reduce(similar, "max", lengths=sizes[first:last], axis=0)
        blocks.append(largest.sum(1))
    scores, best = torch.cat(blocks).topk(min(DEPTH, len(lengths)))
    scores, best, depth = scores[None], best[None], len(scores)
    half = query.half()

    def plain(stored=stored):
        similar = stored[: len(stored) // 100 * 100] @ half.T
        largest = similar.view(-1, 100, QUERY_TOKENS).amax(1)
        found = largest.float().sum(1).topk(min(depth, len(largest)))
        return found.values.cpu().numpy()

    floor, peak = stored.nbytes / copies, []
    name = f"MaxSim, {len(stored):,} x {DIMENSIONS}"
    with _peak(place, peak):
        plain()
    taken = f"{1000 * _seconds(place, plain):.3f}"
    yield [f"{name}: product and max, of 100 each", taken, f"{1000 * floor:.3f}", *peak, "", ""]
    vectors = stored.cpu().numpy()
    del stored, plain
    _free(place)
    ours = TorchSearch(DocumentVectors(vectors, offsets), place)
    asked = partial(_ours, ours, [query.cpu().numpy()], depth)
    yield _searched(f"{name}: ours", place, asked, 1, floor, scores, best)


class Candidates(pt.Transformer):
    """The same passages for each query."""

    def __init__(self, texts):
        self._texts = texts

    def transform(self, inp):
        count = len(self._texts)
        rows = inp.loc[inp.index.repeat(count)].reset_index(drop=True)
        docnos, falling = [f"d{n}" for n in range(count)], np.arange(count, 0.0, -1)
        return rows.assign(docno=docnos, text=self._texts, score=falling, rank=range(count))


class OneByOne:
    """In the place of `SharedBatches`: the requests of threads, one after the other."""

    def __init__(self):
        self._lock = threading.Lock()

    def results(self, items, compute):
        with self._lock:
            return compute(items)

    def check_wanted(self):
        pass


def _turns(options):
    """Rows of calls of the tool of ten agents over monoT5-3B, each of which waits half a second on
    average before its next call."""
    place = choose_device(options.device)
    with tempfile.TemporaryDirectory() as folder, _made_on(place):
        path = _save(folder, "T5", T5_3B, options.tiny, decoder_start_token_id=0, n_positions=512)
        scorer = MonoT5(path, tokenizer=path, dtype="bfloat16", device=options.device)
        texts = [text for _, text in _texts(max(CANDIDATES))]
        scorer.score([texts[0][:50]] * 8, texts[:8])  # loads, and chooses kernels
    batches = {"together": scorer._batches, "one by one": OneByOne()}
    yield from _turns_of(scorer, texts, batches, options, "nothing")
    with background(_decode, options.device, options.tiny):
        yield from _turns_of(scorer, texts, batches, options, "decoding by 8 billion parameters")


def _turns_of(scorer, texts, batches, options, besides):
    store = SqliteStore.in_memory([Document(f"d{n}", "", text) for n, text in enumerate(texts)])
    pause = 0.01 if options.tiny else 0.5
    for count in CANDIDATES:
        backend = PipelineBackend(Candidates(texts[:count]) >> RerankTop(scorer, depth=count))
        for how, shared in batches.items():
            scorer._batches = shared

            def ask(number, backend=backend):
                chance, taken = np.random.default_rng((SEED, number)), []
                session = RankedBrowsing().open(backend, store)
                for _ in range(options.calls):
                    time.sleep(chance.exponential(pause))
                    query = " ".join(chance.choice(KNOWN, 8))
                    start = time.perf_counter()
                    session.call("search", {"reason": "The next clue.", "query": query})
                    taken.append(1000 * (time.perf_counter() - start))
                return taken

            before, start = scorer.counts, time.perf_counter()
            with ThreadPoolExecutor(AGENTS) as pool:
                times = np.concatenate(list(pool.map(ask, range(AGENTS))))
            passed = time.perf_counter() - start
            pairs, made = (scorer.counts[each] - before[each] for each in ("pairs", "batches"))
            cuts = [f"{cut:.0f}" for cut in np.percentile(times, (50, 90))]
            yield [count, besides, how, *cuts, f"{pairs / passed:,.0f}", f"{pairs / made:.0f}"]


def _decode(connection, device, tiny):
    """Load a device as a server does that decodes 32 answers: each step reads all weights."""
    torch, width = import_optional("torch"), 256 if tiny else 16_384
    made = {"dtype": torch.bfloat16, "device": device}
    weights = [torch.randn(width, width, **made) / width**0.5 for _ in range(30)]
    states, steps = torch.randn(32, width, **made), 0
    connection.send("ready")
    while not connection.poll():
        for weight in weights:
            states = torch.nn.functional.normalize(states @ weight)
        steps += 1
        _wait(torch.device(device))


# The largest models come last: their rows were measured with the code that computes them now.
MODELS = {
    "monoT5-3B": _monot5,
    "ColBERT re-ranking": _colbert_reranking,
    "ColBERT": _colbert,
    "SPLADE": _splade,
    "Qwen3-Embedding-0.6B": partial(_qwen, "Qwen3-Embedding-0.6B", QWEN_600M),
}
LARGE_MODELS = {
    "RankLLaMA-7B": _rankllama,
    "Qwen3-Embedding-8B": partial(_qwen, "Qwen3-Embedding-8B", QWEN_8B),
}
MEASURED = {
    **{name: ("models", partial(_of_model, make, name)) for name, make in MODELS.items()},
    "exact": ("searches", _exact),
    "MaxSim": ("searches", _late),
    "turns": ("turns", _turns),
    **{name: ("models", partial(_of_model, make, name)) for name, make in LARGE_MODELS.items()},
}
