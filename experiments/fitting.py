"""What is fitted to judgements: re-rankers, and the probabilities of requirement scorers.

`docs/examples/train_reranker.py` trains a re-ranker, and `soundingline distill` a scorer."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.agents.literature.scores import Calibration, logit
from soundingline.experiments.config import Settings
from soundingline.experiments.recorded import recorded_benchmark
from soundingline.pipelines.checkpoint import BODY, T5, Checkpoint, positions
from soundingline.pipelines.device import Placement, choose_device, within_memory
from soundingline.pipelines.rerank.cross_encoder import (
    CLASSIFIER,
    CrossEncoderInputs,
    is_classifier,
)
from soundingline.pipelines.rerank.monot5 import MonoT5Prompts
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.console import Console, print_next
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import atomic_folder, give_usual_rights, write_json
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import Trajectory, scored_documents

Kind = Literal["monot5", "cross_encoder"]
_MAX_LENGTH = 512
_ENCODER = BODY._replace(reader=CLASSIFIER.reader)


class Example(NamedTuple):
    """A pair, and how relevant it is, from 0 to 1; what is not judged is not relevant."""

    pair: Pair
    label: float

    @property
    def relevant(self) -> bool:
        """Whether the label is 0.5 or more."""
        return self.label >= 0.5


def check_steps(steps: int, batch: int) -> None:
    """`InputError` for numbers of steps or of examples of a step that `fit` does not take."""
    check_int("steps", steps, ge=2)
    check_int("batch", batch, ge=2)
    if batch % 2:
        raise InputError(f"batch={batch}", valid="an even number: half of a step is relevant")


def save_checkpoint(folder: Path, network: Any, tokenizer: Any) -> None:
    """Write a network and its tokenizer to a folder, whole or not at all."""
    with atomic_folder(folder) as unfinished:
        network.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        give_usual_rights(unfinished)


def checkpoint_to_train(kind: Kind, start: str) -> Checkpoint:
    """The checkpoint from which training starts. `InputError` if it cannot be read, or is of
    another kind."""
    checkpoint = Checkpoint(T5 if kind == "monot5" else CLASSIFIER, start)
    if kind == "cross_encoder" and not is_classifier(checkpoint):
        checkpoint = Checkpoint(_ENCODER, start, num_labels=1)
    return checkpoint.checked()


def load(kind: Kind, start: str, seed: int = 0) -> tuple[Any, Any]:
    """The network and the tokenizer of a checkpoint. An encoder without a classifier is given one
    with one label and random weights. `InputError` if the checkpoint cannot be loaded, or is of
    another kind."""
    checkpoint = checkpoint_to_train(kind, start)
    tokenizer = checkpoint.tokenizer()
    import_optional("torch").manual_seed(seed)
    new_head = checkpoint.kind is _ENCODER
    return checkpoint.load(Placement("cpu", "float32"), new_head=new_head), tokenizer


def fit(
    kind: Kind,
    network: Any,
    tokenizer: Any,
    learnt: Sequence[Example],
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int = 0,
) -> list[float]:
    """Train the network in place by `transformers.Trainer`; the loss of each step. Half of each
    batch is relevant.

    monoT5 learns the answers `true` and `false` as target tokens among all others, as its paper
    does. A cross-encoder learns by the binary cross-entropy of its logit with the label; with two
    labels, by the cross-entropy of both for whether the pair is relevant, which is that of their
    difference.

    Raises: InputError: if all examples are relevant, or none is, and if a batch does not fit into
        memory.
    """
    transformers = import_optional("transformers")
    rows = _rows(kind, network, tokenizer, learnt)
    by_label = [
        [row for row, example in zip(rows, learnt, strict=True) if example.relevant is relevant]
        for relevant in (True, False)
    ]
    if not all(by_label):
        raise InputError(
            f"{len(by_label[0])} of {len(learnt)} candidates are relevant",
            valid="some that are, and some that are not",
            do="take more questions or candidates",
        )
    chance, device = random.Random(seed), choose_device()
    drawn = [chance.choice(by_label[number % 2]) for number in range(steps * batch)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=rate,
            lr_scheduler_type="constant",
            train_sampling_strategy="sequential",  # the draw is random
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            seed=seed,
            use_cpu=device.type == "cpu",
        )
        collator = transformers.DataCollatorForSeq2Seq(tokenizer)
        if kind == "cross_encoder":
            collator = transformers.DataCollatorWithPadding(tokenizer)
        trainer = transformers.Trainer(network, arguments, collator, train_dataset=drawn)
        trainer.remove_callback(transformers.PrinterCallback)
        with within_memory(device, f"a step of {batch} examples", "set a smaller batch"):
            trainer.train()
    network.eval()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def _rows(
    kind: Kind, network: Any, tokenizer: Any, learnt: Sequence[Example]
) -> list[dict[str, Any]]:
    """The inputs and the label of each example."""
    pairs = [example.pair for example in learnt]
    if kind == "monot5":
        prompts = MonoT5Prompts(tokenizer, _MAX_LENGTH)
        relevant, irrelevant = prompts.answers
        return [
            {"input_ids": prompt.ids, "labels": [relevant if example.relevant else irrelevant]}
            for prompt, example in zip(prompts.encode(pairs), learnt, strict=True)
        ]
    one_label = network.config.num_labels == 1
    # With one label, this is the binary cross-entropy of its logit.
    network.config.problem_type = (
        "multi_label_classification" if one_label else "single_label_classification"
    )
    length = min(_MAX_LENGTH, positions(network.config) or _MAX_LENGTH)
    inputs = CrossEncoderInputs(tokenizer, network.config.name_or_path, length).encode(pairs)
    unused = {"token_type_ids"} if getattr(network.config, "type_vocab_size", 2) < 2 else set()
    return [
        {
            **{name: values for name, values in each.row.items() if name not in unused},
            "labels": [float(example.label)] if one_label else int(example.relevant),
        }
        for each, example in zip(inputs, learnt, strict=True)
    ]


def fit_probabilities(
    probabilities: Sequence[float], met: Sequence[bool], method: str
) -> dict[str, Any]:
    """The parameters of `soundingline.agents.literature.scores.Calibration`: isotonic
    regression (Zadrozny and Elkan, KDD 2002), Platt's logistic regression (1999) over the log-odds,
    or the same without an intercept, which is temperature scaling (Guo et al., ICML 2017), all by
    scikit-learn."""
    labels = np.array(met, dtype=float)
    if method == "isotonic":
        model = import_optional("sklearn.isotonic").IsotonicRegression(
            y_min=0.0, y_max=1.0, out_of_bounds="clip"
        )
        model.fit(np.array(probabilities), labels)
        steps = {"x": model.X_thresholds_.tolist(), "y": model.y_thresholds_.tolist()}
        return {"method": method, **steps}
    odds: NDArray[np.float64] = np.array([[logit(value)] for value in probabilities])
    model = import_optional("sklearn.linear_model").LogisticRegression(
        C=1e6, fit_intercept=method == "platt"
    )
    model.fit(odds, labels)
    return {
        "method": method,
        "slope": float(model.coef_[0, 0]),
        "intercept": float(model.intercept_[0]) if method == "platt" else 0.0,
    }


def expected_calibration_error(
    probabilities: Sequence[float], met: Sequence[bool], bins: int = 10
) -> float:
    """The expected calibration error (Guo et al., ICML 2017), 0 to 1: the mean difference between
    probability and share over bins of equal width, weighted by their size."""
    values, labels = np.asarray(probabilities, float), np.asarray(met, float)
    places = np.minimum((values * bins).astype(int), bins - 1)
    sums = np.bincount(places, values - labels, minlength=bins)
    return float(np.abs(sums).sum() / len(values))


def brier(probabilities: Sequence[float], met: Sequence[bool]) -> float:
    """The Brier score: the mean squared difference of probability and outcome."""
    pairs = zip(probabilities, met, strict=True)
    return sum((value - label) ** 2 for value, label in pairs) / len(met)


def calibrate(
    settings: Settings,
    run: Path,
    *,
    method: Annotated[Literal["isotonic", "temperature", "platt"], "the regression"] = "isotonic",
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
    write_json(out, fitted)
    mapped = list(map(Calibration(str(out)), probabilities))
    Console(soft_wrap=True).print(
        f"{len(met):,} documents, {sum(met):,} of them targets; on these the Brier score is "
        f"{brier(mapped, met):.4f}, without calibration {brier(probabilities, met):.4f}",
    )
    Console(soft_wrap=True).print(str(out))
    print_next(f"soundingline run with agent=navigator agent.calibration='{out}'")


def pairs_of(trajectories: Iterable[Trajectory], targets: Any) -> tuple[list[float], list[bool]]:
    """The probability of each document that was scored, and whether it is a target of its question;
    questions of unknown targets are left out."""
    pairs = [
        (document.probability, docid in targets[trajectory.qid])
        for trajectory in trajectories
        if trajectory.qid in targets
        for docid, document in scored_documents(trajectory.rounds).items()
        if document.probability is not None
    ]
    return [probability for probability, _ in pairs], [met for _, met in pairs]
