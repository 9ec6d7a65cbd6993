"""`python -m experiments.train_reranker FOLDER benchmark=...`: a monoT5 adapted to a corpus.

Writes a checkpoint for `reranker=monot5 reranker.model=FOLDER`. It learns from the judgements of
the benchmark's candidates: the best `--depth` units that the pipeline (`retriever=`, `unit=`) ranks
for each question beyond the first `--held-out`, which are left for `benchmark.limit=`. `--start` is
the checkpoint to go on from (`castorini/monot5-base-msmarco`). Without one, a T5 of some hundred
thousand parameters begins from nothing, and learns in minutes on a CPU what a few questions teach.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pandas as pd

from experiments.entry import CommandParser, one_path, run_command
from experiments.pipeline import ranking
from experiments.settings import Settings
from pipelines.neural.checkpoints import NO_CODE, opening, within_memory
from pipelines.neural.devices import choose_device
from pipelines.rerank.base import Pair
from pipelines.rerank.monot5_prompt import MonoT5Prompts
from pipelines.stage import Texts
from toolkit.checks import check_integer, check_number
from toolkit.console import tell
from toolkit.contracts import parent
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import folder_made_whole, give_usual_rights
from toolkit.progress import track

WORDS = 8000
# Of the T5 that begins from nothing.
SHAPE = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 1, "num_heads": 4}
_PROMPT = ("query", "document", "relevant", "true", "false")
_MAX_LENGTH = 512


class Example(NamedTuple):
    """A candidate, and whether it is judged relevant; what is not judged is not."""

    pair: Pair
    relevant: bool


def examples(
    candidates: pd.DataFrame, judgements: Mapping[str, Mapping[str, int]], texts: Texts
) -> list[Example]:
    """Of a ranking with `qid, query, docno`. A passage is judged as its document is."""
    units = texts(candidates["docno"].tolist())
    rows = zip(candidates["qid"], candidates["query"], units, strict=True)
    return [
        Example(Pair(query, unit.contents), judgements[qid].get(parent(unit.unit_id), 0) > 0)
        for qid, query, unit in rows
    ]


def small_t5(texts: Sequence[str], seed: int = 0) -> tuple[Any, Any]:
    """A T5 with random weights, and a tokenizer of T5's kind: the most frequent words of `texts`
    in small letters are a token each, other words one a character."""
    transformers, tokenizers = require("transformers"), require("tokenizers")
    words = Counter(word for text in texts for word in text.lower().split())
    frequent = [word for word, _ in words.most_common(WORDS) if len(word) > 1]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -8.0)]
    pieces += [(chr(number), -10.0) for number in range(33, 127)]
    pieces += [(f"▁{word}", -5.0) for word in dict.fromkeys((*_PROMPT, *frequent))]
    backend = transformers.T5Tokenizer(vocab=pieces, extra_ids=0).backend_tokenizer
    backend.normalizer = tokenizers.normalizers.Lowercase()
    # T5's own class would be loaded with T5's own normalizer.
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    require("torch").manual_seed(seed)
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        n_positions=_MAX_LENGTH,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        initializer_factor=0.5,
        **SHAPE,
    )
    return transformers.T5ForConditionalGeneration(config), tokenizer


def checkpoint(start: str) -> tuple[Any, Any]:
    """The T5 and the tokenizer of a checkpoint. `InputError` where it cannot be had."""
    transformers = require("transformers")
    with opening(start):
        network = transformers.T5ForConditionalGeneration.from_pretrained(start, **NO_CODE)
        return network, transformers.AutoTokenizer.from_pretrained(start, **NO_CODE)


def train(
    network: Any,
    tokenizer: Any,
    learnt: Sequence[Example],
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int = 0,
) -> list[float]:
    """Train in place; the loss of each step. As monoT5's paper does: the answers `true` and `false`
    are target tokens among all others, and half of each batch is relevant. AdamW at a constant
    learning rate `rate`, on the first GPU where there is one. `InputError` where the examples are
    all relevant, or none is, and where a batch does not fit into memory."""
    torch = require("torch")
    prompts = MonoT5Prompts(tokenizer, _MAX_LENGTH)
    inputs = prompts.encode([example.pair for example in learnt])
    by_label: dict[bool, list[list[int]]] = {True: [], False: []}
    for example, prompt in zip(learnt, inputs, strict=True):
        by_label[example.relevant].append(prompt.ids)
    if not all(by_label.values()):
        raise InputError(
            f"{len(by_label[True])} of {len(learnt)} candidates are relevant",
            valid="some that are, and some that are not",
            do="take more questions (held_out) or candidates (depth)",
        )
    chance, device = random.Random(seed), choose_device()
    network.to(device)
    answers = dict(zip((True, False), prompts.answers, strict=True))
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.0)
    network.train()
    losses = []
    for _ in track(range(steps), "training", steps):
        labels = [True, False] * (batch // 2)
        rows = [torch.tensor(chance.choice(by_label[label]), device=device) for label in labels]
        pad = torch.nn.utils.rnn.pad_sequence
        optimizer.zero_grad()
        with within_memory(device, f"a step of {batch} examples", "set a smaller batch"):
            loss = network(
                input_ids=pad(rows, batch_first=True),
                attention_mask=pad([torch.ones_like(row) for row in rows], batch_first=True),
                labels=torch.tensor([[answers[label]] for label in labels], device=device),
            ).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        losses.append(loss.item())
    network.eval()
    return losses


def train_reranker(
    settings: Settings,
    paths: Sequence[str],
    *,
    start: str | None,
    held_out: int,
    depth: int,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
) -> None:
    """Train and write the checkpoint; nothing is written before it is whole."""
    folder = one_path(paths, "the folder of the checkpoint that is made")
    if folder.exists():
        raise InputError(
            f"there is something at '{folder}'", do="name another folder, or remove it"
        )
    for name, count in {"depth": depth, "steps": steps, "batch": batch}.items():
        check_integer(name, count, least=2)
    if batch % 2:
        raise InputError(f"batch={batch}", valid="an even number: half of a step is relevant")
    check_integer("held_out", held_out, least=0)
    check_number("rate", rate)
    built = ranking(settings.config)
    judged = built.benchmark.judgements.get("evidence", {})
    topics = [topic for topic in built.benchmark.topics[held_out:] if judged.get(topic.qid)]
    if not topics:
        raise InputError(
            f"no judged question is left beyond the first {held_out}", do="set fewer held_out"
        )
    questions = pd.DataFrame([{"qid": topic.qid, "query": topic.text} for topic in topics])
    ranked = built.pipeline.transform(questions)
    candidates = ranked.sort_values(["qid", "rank"]).groupby("qid", sort=False).head(depth)
    learnt = examples(candidates, judged, built.prepared.store.texts)
    texts = [text for example in learnt for text in example.pair]
    network, tokenizer = checkpoint(start) if start else small_t5(texts, seed)
    losses = train(network, tokenizer, learnt, steps=steps, batch=batch, rate=rate, seed=seed)
    with folder_made_whole(folder) as unfinished:
        network.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        give_usual_rights(unfinished)
    relevant = sum(example.relevant for example in learnt)
    last = list(islice(reversed(losses), 10))
    tell(
        f"{len(topics)} questions, {relevant} relevant of {len(learnt)} candidates; loss "
        f"{losses[0]:.2f} at first, {sum(last) / len(last):.2f} at last: '{folder}'"
    )


PARSER = CommandParser(__doc__, "FOLDER")
PARSER.add_argument("--start", metavar="MODEL", help="the checkpoint to go on from")
PARSER.add_argument("--held-out", type=int, default=0, metavar="N", help="first questions left out")
PARSER.add_argument("--depth", type=int, default=50, help="candidates of a question")
PARSER.add_argument("--steps", type=int, default=300)
PARSER.add_argument("--batch", type=int, default=24, help="examples of a step, even")
PARSER.add_argument("--rate", type=float, default=0.01, help="learning rate; 1e-4 with --start")
PARSER.add_argument("--seed", type=int, default=0)

if __name__ == "__main__":
    run_command(train_reranker, PARSER)
