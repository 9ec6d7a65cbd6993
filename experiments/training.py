"""What is fitted to judgements: re-rankers, and the probabilities of requirement scorers."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soundingline.agents.literature.scores import Calibration, logit
from soundingline.experiments.config import Settings
from soundingline.experiments.pipeline import build_pipeline
from soundingline.experiments.recorded import recorded_benchmark
from soundingline.pipelines.models import (
    NO_CODE,
    Checkpoint,
    by_tokens,
    check_kind,
    checkpoint_config,
    choose_device,
    opening,
    positions,
    within_memory,
)
from soundingline.pipelines.rerank.cross_encoder import (
    CLASSIFIER,
    CrossEncoderInputs,
    Row,
    check_labels,
    is_classifier,
    margins,
)
from soundingline.pipelines.rerank.monot5 import MonoT5Prompts
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.pipelines.stage import Texts
from soundingline.toolkit.console import Console, notify, track
from soundingline.toolkit.data import Qrels, parent
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.files import atomic_folder, give_usual_rights, write_json
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import Trajectory, scored_documents

WORDS = 8000
# Of what begins from nothing. A BERT compares query and text in its second layer only.
T5_SHAPE = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 1, "num_heads": 4}
BERT_SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_CHARACTERS = tuple(map(chr, range(33, 127)))
_PROMPT = ("query", "document", "relevant", "true", "false")
_MAX_LENGTH = 512
# Of what is computed at once, padding included.
_PART_TOKENS = {"cpu": 1024, "cuda": 16_384}


class Example(NamedTuple):
    """A candidate, and whether it is judged relevant; what is not judged is not."""

    pair: Pair
    relevant: bool


def examples(candidates: pd.DataFrame, qrels: Qrels, texts: Texts) -> list[Example]:
    """Of a ranking with `qid, query, docno`. A passage is judged as its document is."""
    units = texts(candidates["docno"].tolist())
    rows = zip(candidates["qid"], candidates["query"], units, strict=True)
    return [
        Example(Pair(query, unit.contents), qrels[qid].get(parent(unit.unit_id), 0) > 0)
        for qid, query, unit in rows
    ]


def small_t5(texts: Sequence[str], seed: int = 0) -> tuple[Any, Any]:
    """A T5 with random weights, and a tokenizer of T5's kind: the most frequent words of `texts`
    in small letters are a token each, other words one a character."""
    transformers, tokenizers = import_optional("transformers"), import_optional("tokenizers")
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -8.0)]
    pieces += [(character, -10.0) for character in _CHARACTERS]
    frequent = _frequent(word for text in texts for word in text.lower().split())
    pieces += [(f"▁{word}", -5.0) for word in dict.fromkeys((*_PROMPT, *frequent))]
    backend = transformers.T5Tokenizer(vocab=pieces, extra_ids=0).backend_tokenizer
    backend.normalizer = tokenizers.normalizers.Lowercase()
    # T5's own class would be loaded with T5's own normalizer.
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    import_optional("torch").manual_seed(seed)
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        n_positions=_MAX_LENGTH,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        initializer_factor=0.5,
        **T5_SHAPE,
    )
    return transformers.T5ForConditionalGeneration(config), tokenizer


def small_bert(texts: Sequence[str], seed: int = 0) -> tuple[Any, Any]:
    """A BERT with random weights and one label, and a tokenizer of BERT's kind, with a vocabulary
    as that of `small_t5`."""
    transformers = import_optional("transformers")
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    small = dict.fromkeys(character.lower() for character in _CHARACTERS)
    pieces = [*special, *small, *(f"##{character}" for character in small)]
    backend = transformers.BertTokenizer(vocab=_numbered(pieces)).backend_tokenizer
    words = (
        word
        for text in texts
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(
            backend.normalizer.normalize_str(text)
        )
    )
    tokenizer = transformers.BertTokenizer(
        vocab=_numbered([*pieces, *_frequent(words)]), model_max_length=_MAX_LENGTH
    )
    import_optional("torch").manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=_MAX_LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        # BERT's own 0.02 is for wide layers: these would learn nothing for long.
        initializer_range=0.2,
        num_labels=1,
        **BERT_SHAPE,
    )
    return transformers.BertForSequenceClassification(config), tokenizer


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def _frequent(words: Iterable[str]) -> list[str]:
    return [word for word, _ in Counter(words).most_common(WORDS) if len(word) > 1]


class Learner(ABC):
    """A re-ranker that learns: its network and its tokenizer."""

    rates: tuple[float, float]
    """Learning rates: of weights that are random at first, and of trained ones."""

    def __init__(self, network: Any, tokenizer: Any) -> None:
        self.network, self.tokenizer = network, tokenizer

    @classmethod
    @abstractmethod
    def from_nothing(cls, texts: Sequence[str], seed: int) -> Learner:
        """A small one, with the vocabulary of `texts`."""

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, start: str, seed: int) -> Learner:
        """`InputError` where the checkpoint cannot be had, or is none to start from."""

    @abstractmethod
    def encode(self, pairs: Sequence[Pair]) -> list[Any]:
        """What `loss` takes for each pair."""

    @abstractmethod
    def length(self, row: Any) -> int:
        """Tokens of one of them."""

    @abstractmethod
    def loss(self, rows: Sequence[Any], labels: Sequence[bool]) -> Any:
        """The mean over a batch."""


class MonoT5Learner(Learner):
    """As monoT5's paper does: the answers `true` and `false` are target tokens among all others."""

    rates = 0.01, 1e-4

    def __init__(self, network: Any, tokenizer: Any) -> None:
        super().__init__(network, tokenizer)
        self._prompts = MonoT5Prompts(tokenizer, _MAX_LENGTH)

    @classmethod
    def from_nothing(cls, texts: Sequence[str], seed: int) -> MonoT5Learner:
        return cls(*small_t5(texts, seed))

    @classmethod
    def from_checkpoint(cls, start: str, seed: int) -> MonoT5Learner:
        transformers = import_optional("transformers")
        check_kind(checkpoint_config(start), start, ("t5",), "monoT5")
        with opening(start):
            network = transformers.T5ForConditionalGeneration.from_pretrained(start, **NO_CODE)
            return cls(network, transformers.AutoTokenizer.from_pretrained(start, **NO_CODE))

    def encode(self, pairs: Sequence[Pair]) -> list[list[int]]:
        return [prompt.ids for prompt in self._prompts.encode(pairs)]

    def length(self, row: list[int]) -> int:
        return len(row)

    def loss(self, rows: Sequence[list[int]], labels: Sequence[bool]) -> Any:
        torch, device = import_optional("torch"), self.network.device
        pad = torch.nn.utils.rnn.pad_sequence
        ids = [torch.tensor(row, device=device) for row in rows]
        relevant, irrelevant = self._prompts.answers
        answers = [[relevant if label else irrelevant] for label in labels]
        return self.network(
            input_ids=pad(ids, batch_first=True),
            attention_mask=pad([torch.ones_like(row) for row in ids], batch_first=True),
            labels=torch.tensor(answers, device=device),
        ).loss


class CrossEncoderLearner(Learner):
    """Binary cross-entropy of the logit; with two labels, of their difference."""

    rates = 0.003, 5e-5

    def __init__(self, network: Any, tokenizer: Any, name: str = "") -> None:
        super().__init__(network, tokenizer)
        length = min(_MAX_LENGTH, positions(network.config) or _MAX_LENGTH)
        self._inputs = CrossEncoderInputs(tokenizer, name, length)

    @classmethod
    def from_nothing(cls, texts: Sequence[str], seed: int) -> CrossEncoderLearner:
        return cls(*small_bert(texts, seed))

    @classmethod
    def from_checkpoint(cls, start: str, seed: int) -> CrossEncoderLearner:
        """A checkpoint without a classifier is given one with one label and random weights."""
        torch = import_optional("torch")
        torch.manual_seed(seed)
        config = checkpoint_config(start)
        classifier = is_classifier(config)
        if classifier:
            check_labels(config, start)
        labels: dict[str, Any] = {} if classifier else {"num_labels": 1}
        checkpoint = Checkpoint(start, automatic=CLASSIFIER, **labels)
        tokenizer = checkpoint.tokenizer()
        network, missing = checkpoint.load(torch.device("cpu"), torch.float32, absent=("",))
        body = f"{network.base_model_prefix}."
        for name in sorted(missing):
            if classifier or (name.startswith(body) and ".pooler." not in name):
                raise InputError(f"'{start}' has no weights for {name}", do="choose another start")
        return cls(network, tokenizer, start)

    def encode(self, pairs: Sequence[Pair]) -> list[Row]:
        return [one.row for one in self._inputs.encode(pairs)]

    def length(self, row: Row) -> int:
        return len(row["input_ids"])

    def loss(self, rows: Sequence[Any], labels: Sequence[bool]) -> Any:
        torch = import_optional("torch")
        logits = margins(self.network(**self._inputs.batch(rows, self.network)).logits)
        targets = torch.tensor(labels, dtype=logits.dtype, device=logits.device)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)


LEARNERS: Mapping[str, type[Learner]] = {
    "monot5": MonoT5Learner,
    "cross_encoder": CrossEncoderLearner,
}


def fit_network(
    model: Learner,
    learnt: Sequence[Example],
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int = 0,
) -> list[float]:
    """Train in place; the loss of each step. Half of each batch is relevant. AdamW at a constant
    learning rate `rate`, on the first GPU where there is one. `InputError` where the examples are
    all relevant, or none is, and where a batch does not fit into memory."""
    torch = import_optional("torch")
    by_label: dict[bool, list[Any]] = {True: [], False: []}
    rows = model.encode([example.pair for example in learnt])
    for example, row in zip(learnt, rows, strict=True):
        by_label[example.relevant].append(row)
    if not all(by_label.values()):
        raise InputError(
            f"{len(by_label[True])} of {len(learnt)} candidates are relevant",
            valid="some that are, and some that are not",
            do="take more questions (held_out) or candidates (depth)",
        )
    chance, device, network = random.Random(seed), choose_device(), model.network
    network.to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.0)
    network.train()
    losses = []
    for _ in track(range(steps), "training", steps):
        labels = [True, False] * (batch // 2)
        chosen = [chance.choice(by_label[label]) for label in labels]
        optimizer.zero_grad()
        loss = 0.0
        with within_memory(device, f"a step of {batch} examples", "set a smaller batch"):
            # Parts of like length have little padding, and gradients that add up to the batch's.
            lengths = [model.length(row) for row in chosen]
            for part in by_tokens(lengths, _PART_TOKENS[device.type]):
                of_part = model.loss([chosen[i] for i in part], [labels[i] for i in part])
                share = of_part * (len(part) / batch)
                share.backward()
                loss += share.item()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        losses.append(loss)
    network.eval()
    return losses


def train(
    settings: Settings,
    folder: Path,
    *,
    kind: Annotated[Literal["monot5", "cross_encoder"], "the re-ranker"] = "monot5",
    start: Annotated[str | None, "the checkpoint to go on from"] = None,
    held_out: Annotated[int, "first questions that are left out"] = 0,
    depth: Annotated[int, "candidates of a question"] = 50,
    steps: Annotated[int, "optimisation steps"] = 300,
    batch: Annotated[int, "examples of a step, even"] = 24,
    rate: Annotated[
        float | None,
        "learning rate (monot5: 0.01, with --start 1e-4; cross_encoder: 0.003 and 5e-5)",
    ] = None,
    seed: Annotated[int, "of the order of the examples"] = 0,
) -> None:
    """Train a re-ranker on the judgements of a benchmark, and write its checkpoint to FOLDER.

    The checkpoint is for `reranker=KIND reranker.model=FOLDER`. The examples are candidates of the
    benchmark: the best `--depth` units that the pipeline (`retriever=`, `unit=`) ranks for each
    question beyond the first `--held-out`, which are left for `benchmark.limit=`. `--start` is the
    checkpoint to go on from: `castorini/monot5-base-msmarco`; for a cross-encoder
    `cross-encoder/ms-marco-MiniLM-L6-v2`, or any encoder, which is given a classifier. Without one,
    a model of some hundred thousand parameters begins with random weights, and learns in minutes on
    a CPU what a few questions teach. Nothing is written before the checkpoint is complete.
    """
    if folder.exists():
        raise InputError(
            f"there is something at '{folder}'", do="name another folder, or remove it"
        )
    for name, count in {"depth": depth, "steps": steps, "batch": batch}.items():
        check_int(name, count, ge=2)
    if batch % 2:
        raise InputError(f"batch={batch}", valid="an even number: half of a step is relevant")
    check_int("held_out", held_out, ge=0)
    learner = LEARNERS[kind]
    from_nothing, from_checkpoint = learner.rates
    if rate is None:
        rate = from_checkpoint if start else from_nothing
    check_number("rate", rate)
    built = build_pipeline(settings.config)
    judged = built.benchmark.qrels.get("evidence", {})
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
    model = learner.from_checkpoint(start, seed) if start else learner.from_nothing(texts, seed)
    losses = fit_network(model, learnt, steps=steps, batch=batch, rate=rate, seed=seed)
    with atomic_folder(folder) as unfinished:
        model.network.save_pretrained(unfinished)
        model.tokenizer.save_pretrained(unfinished)
        give_usual_rights(unfinished)
    relevant = sum(example.relevant for example in learnt)
    last = list(islice(reversed(losses), 10))
    notify(
        f"{len(topics)} questions, {relevant} relevant of {len(learnt)} candidates; loss "
        f"{losses[0]:.2f} at first, {sum(last) / len(last):.2f} at last: '{folder}'"
    )


def calibrate(
    settings: Settings,
    run: Path,
    *,
    method: Annotated[Literal["isotonic", "platt"], "the regression"] = "isotonic",
    out: Annotated[Path, "the file that is written"],
) -> None:
    """Fit the probabilities of a requirement scorer to judgements.

    Fits, on what a run of `agent=navigator` has scored, how often a document with such a
    probability is one of its question's targets. The run should be one on questions that nothing is
    reported of (a dev split); another run takes the file by `agent.calibration=FILE`.
    """
    folder = RunFolder(run)
    benchmark = recorded_benchmark(folder, settings)
    targets = benchmark.targets
    probabilities, met = pairs_of(
        (trajectory for part in folder.repeats() for trajectory in part.trajectories()), targets
    )
    if len(set(met)) < 2:
        raise InputError(
            f"{folder.path} has {len(met)} documents with a probability, of which {sum(met)} are "
            "targets",
            valid="some of both kinds",
            do="take a run of agent=navigator on questions with targets, with a scorer that tells "
            "an overall probability",
        )
    manifest = folder.manifest()
    fitted = {
        **fit_probabilities(probabilities, met, method),
        "pairs": len(met),
        "targets": sum(met),
        "run": folder.name,
        "scorer": manifest.get("fingerprints", {}).get("scorer.content", ""),
        "benchmark": manifest.get("benchmark"),
    }
    write_json(out, fitted, clear=True)
    mapped = list(map(Calibration(str(out)), probabilities))
    Console(soft_wrap=True).print(
        f"{len(met):,} documents, {sum(met):,} of them targets; on these the Brier score is "
        f"{_brier(mapped, met):.4f}, without calibration {_brier(probabilities, met):.4f}",
        highlight=False,
    )
    Console(soft_wrap=True).print(str(out), highlight=False)


def pairs_of(trajectories: Iterable[Trajectory], targets: Any) -> tuple[list[float], list[bool]]:
    """The probability of each document that was scored, and whether it is a target of its question;
    questions of unknown targets are left out."""
    probabilities: list[float] = []
    met: list[bool] = []
    for trajectory in trajectories:
        if trajectory.qid not in targets:
            continue
        newest = {
            docid: document.probability
            for docid, document in scored_documents(trajectory.rounds).items()
            if document.probability is not None
        }
        probabilities += newest.values()
        met += [docid in targets[trajectory.qid] for docid in newest]
    return probabilities, met


def fit_probabilities(
    probabilities: Sequence[float], met: Sequence[bool], method: str
) -> dict[str, Any]:
    """The parameters of `soundingline.agents.literature.scores.Calibration`: isotonic
    regression (Zadrozny and Elkan, KDD 2002), or Platt's logistic regression (1999) over the
    log-odds, both by scikit-learn."""
    labels = np.array(met, dtype=float)
    if method == "isotonic":
        model = import_optional("sklearn.isotonic").IsotonicRegression(
            y_min=0.0, y_max=1.0, out_of_bounds="clip"
        )
        model.fit(np.array(probabilities), labels)
        steps = {"x": model.X_thresholds_.tolist(), "y": model.y_thresholds_.tolist()}
        return {"method": method, **steps}
    odds: NDArray[np.float64] = np.array([[logit(value)] for value in probabilities])
    model = import_optional("sklearn.linear_model").LogisticRegression(C=1e6)
    model.fit(odds, labels)
    return {
        "method": method,
        "slope": float(model.coef_[0, 0]),
        "intercept": float(model.intercept_[0]),
    }


def _brier(probabilities: Sequence[float], met: Sequence[bool]) -> float:
    pairs = zip(probabilities, met, strict=True)
    return sum((value - label) ** 2 for value, label in pairs) / len(met)
