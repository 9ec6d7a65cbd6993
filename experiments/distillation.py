"""A small scorer of requirements, distilled from a large one as PaSaMaster's (Du et al., 2026).

Questions are written for clusters of documents, the system itself collects candidates, a teacher
scores them, a student learns its scores and is calibrated on other questions (section 2.3).
"""

from __future__ import annotations

import copy
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.agents.base import Budget
from soundingline.agents.literature.scores import Calibration
from soundingline.experiments.build import language_model, make, make_search_tool
from soundingline.experiments.config import Settings
from soundingline.experiments.fitting import (
    Example,
    brier,
    check_steps,
    checkpoint_to_train,
    expected_calibration_error,
    fit,
    fit_probabilities,
    load,
    save_checkpoint,
)
from soundingline.experiments.naming import identity_of
from soundingline.experiments.pipeline import (
    blocking_model,
    build_pipeline,
    caches_folder,
    evidence_encoder,
    evidence_passages,
    option_of,
    with_literature_tools,
    writes_obfuscated,
)
from soundingline.experiments.run import run
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.prompting import CachedLLM, PromptTemplate
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.pipelines.stage import Counts
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import notify, print_next
from soundingline.toolkit.data import Document, Topic, Unit
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.files import dump_json, fingerprint, read_json, write_json, write_text
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.ledger import open_ledger
from soundingline.toolkit.llm.prompts import spotlight
from soundingline.toolkit.locks import file_lock
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import Literature
from soundingline.toolkit.search.literature import first_sentences
from soundingline.toolkit.search.scoring import (
    CandidateDocument,
    Evidence,
    RequirementScorer,
    training_rows,
)

_MOST_DOCUMENTS = 20_000  # of a larger corpus, these are clustered
_SHOWN = 5  # documents of a cluster that a question is written from
_SHOWN_TOKENS = 150  # of each of these
_DIMENSIONS = 64  # of the vectors of words that stand in for an encoder
_SATISFIED = 0.5  # the teacher's overall judgement from which a document counts as relevant
_CANDIDATES = "candidates"


class _Inputs(NamedTuple):
    """What the steps work with, each made once; `folder` holds their results."""

    settings: Settings
    benchmark: Benchmark
    search_tool: Literature
    budget: Budget
    folder: Path


class WrittenQuestion(NamedTuple):
    """A generated question, its cluster, and the documents that it was written from."""

    qid: str
    text: str
    cluster: int
    docids: Sequence[str]
    by: str


def distill(
    settings: Settings,
    folder: Path,
    *,
    start: Annotated[str, "the checkpoint to start from: a folder or a name on the hub"],
    clusters: Annotated[int, "clusters of documents (20)"] = 20,
    questions: Annotated[int, "questions of a cluster (2)"] = 2,
    held_out: Annotated[float, "share of the questions for calibration and its check (0.4)"] = 0.4,
    steps: Annotated[int, "optimisation steps (300)"] = 300,
    batch: Annotated[int, "examples of a step, even (24)"] = 24,
    rate: Annotated[float, "learning rate (5e-5)"] = 5e-5,
    method: Annotated[Literal["isotonic", "temperature", "platt"], "the calibration"] = "isotonic",
    seed: Annotated[int, "of the clusters, the draw of examples and new weights (0)"] = 0,
) -> None:
    """Distil a requirement scorer: write questions, let a teacher score, train a student.

    The teacher is the scorer (`scorer=chat llm@librarian_llm=...`) of a navigator
    (`agent=navigator`, `agent=pasamaster`), which also collects the candidates; `llm=` writes the
    questions. Without a model, a question is the subject of a document. Clusters are those of
    `scorer.locator`'s vectors, or of words. FOLDER holds the result of each step:
    `questions.json`, the run `candidates`, `judgements.jsonl`, the checkpoint `student`,
    `calibration.json` and `report.json`. The same command goes on after the last complete step.
    Use: `scorer=cross_encoder scorer.scorer.model=FOLDER/student
    agent.calibration=FOLDER/calibration.json`.
    """
    check_int("clusters", clusters, ge=2)
    check_int("questions", questions)
    check_number("held_out", held_out, gt=0, le=0.9)
    check_number("rate", rate, gt=0)
    check_steps(steps, batch)
    config = settings.config
    benchmark: Benchmark = make(config.benchmark)
    budget: Budget = make(config.budget)
    search_tool = make_search_tool(config.tool)
    if not isinstance(search_tool, Literature) or config.scorer is None:
        raise InputError(
            "there is no teacher: the agent scores no requirements",
            valid="a navigator and its scorer",
            do="add agent=navigator, and scorer=chat llm@librarian_llm=... or another scorer",
        )
    if writes_obfuscated(config, benchmark):
        raise InputError(
            f"the texts of {benchmark.name} must not be written in plain text",
            do="choose another benchmark, or set sealed=false where you may",
        )
    checkpoint_to_train("cross_encoder", start)  # before anything is paid for
    training = {"start": start, "steps": steps, "batch": batch, "rate": rate, "method": method}
    data = {
        **{"clusters": clusters, "questions": questions, "held_out": held_out, "seed": seed},
        **{"settings": identity_of(settings), "corpus": benchmark.corpus_fingerprint},
    }
    inputs = _Inputs(settings, benchmark, search_tool, budget, folder)
    with file_lock(folder / ".lock"):
        _claim(folder, json.loads(dump_json(data)), training)
        written = _questions(inputs, clusters, questions, seed)
        rows = _judgements(inputs, written)
        learning, calibrating, checking = split(written, held_out)
        if not (student := folder / "student").exists():
            (folder / "report.json").unlink(missing_ok=True)
            learnt = [e for row in rows if row["query"] in learning for e in student_examples(row)]
            network, tokenizer = load("cross_encoder", start, seed)
            losses = fit(
                "cross_encoder", network, tokenizer, learnt,
                steps=steps, batch=batch, rate=rate, seed=seed,
            )  # fmt: skip
            save_checkpoint(student, network, tokenizer)
            last = losses[-10:]
            notify(f"{len(learnt)} examples; loss {losses[0]:.3f}, then {np.mean(last):.3f}")
        _calibrate(inputs, rows, calibrating, checking, method)
    print_next(
        "soundingline run with agent=navigator scorer=cross_encoder "
        f"scorer.scorer.model={folder}/student agent.calibration={folder}/calibration.json"
    )


def _claim(folder: Path, data: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """Write what the folder is made from. `InputError` if it is made from something else; how a
    student is trained may change before there is one."""
    path, recipe = folder / "recipe.json", {**data, **training}
    begun = read_json(path, dict) if path.exists() else {}
    if not begun and any(item.name != ".lock" for item in folder.iterdir()):
        raise InputError(f"'{folder}' is not empty", do="name another folder, or remove it")
    fixed = recipe if (folder / "student").exists() else data
    if begun and (changed := [name for name in fixed if begun.get(name) != fixed[name]]):
        raise InputError(
            f"'{folder}' was begun with another {', '.join(changed)}",
            do="repeat the command as it was, or name another folder; to train another student "
            "from the same scores, remove 'student' in the folder",
        )
    if begun != recipe:
        (folder / "report.json").unlink(missing_ok=True)
        write_json(path, recipe)


# Step 1: questions for clusters of documents.


def _questions(inputs: _Inputs, clusters: int, count: int, seed: int) -> list[WrittenQuestion]:
    config, path = inputs.settings.config, inputs.folder / "questions.json"
    if path.exists():
        return [WrittenQuestion(**row) for row in read_json(path, list[dict[str, Any]])]
    chosen = heapq.nsmallest(
        _MOST_DOCUMENTS,
        inputs.benchmark.documents(),
        key=lambda document: fingerprint(document.docid),
    )
    encoder = evidence_encoder(config)
    texts = [f"{document.title}\n{document.text}" for document in chosen]
    vectors = np.stack(encoder.encode(texts)) if encoder else word_vectors(texts, seed)
    groups = cluster(vectors, clusters, seed)
    shown = [
        (number, [chosen[n] for n in members[start : start + _SHOWN]])
        for number, members in enumerate(groups)
        for start in range(0, min(len(members), _SHOWN * count), _SHOWN)
    ]
    llm = language_model(config, "llm")
    if llm is None:
        by = "the subject of a document"
        written = [f"Find documents about {subject(documents[0])}" for _, documents in shown]
    else:
        by = llm.name
        written = _asked(inputs, llm, [documents for _, documents in shown])
    by_text: dict[str, WrittenQuestion] = {}
    for number, ((group, documents), text) in enumerate(zip(shown, written, strict=True), start=1):
        if text:
            docids = [document.docid for document in documents]
            question = WrittenQuestion(f"g{number}", text, group, docids, by)
            by_text[" ".join(text.split()).casefold()] = question
    result = list(by_text.values())
    write_json(path, [question._asdict() for question in result])
    notify(f"{len(result)} questions for {len(groups)} clusters of {len(chosen)} documents")
    return result


def word_vectors(texts: Sequence[str], seed: int) -> NDArray[np.float32]:
    """Vectors of length 1 from the words of texts: tf-idf, reduced by a singular value
    decomposition. float32 [texts, up to 64]."""
    features = import_optional("sklearn.feature_extraction.text")
    weights = features.TfidfVectorizer(stop_words="english", sublinear_tf=True).fit_transform(texts)
    dimensions = min(_DIMENSIONS, weights.shape[1] - 1, len(texts) - 1)
    decomposition = import_optional("sklearn.decomposition")
    reduce = decomposition.TruncatedSVD(max(1, dimensions), random_state=seed)
    vectors = import_optional("sklearn.preprocessing").normalize(reduce.fit_transform(weights))
    return vectors.astype(np.float32)  # type: ignore[no-any-return]


def cluster(vectors: NDArray[np.float32], clusters: int, seed: int) -> list[list[int]]:
    """The members of each cluster of k-means, nearest to its centre first. Empty clusters are left
    out."""
    kmeans = import_optional("sklearn.cluster").KMeans(
        min(clusters, len(vectors)), n_init=1, random_state=seed
    )
    distances = kmeans.fit_transform(vectors)
    members = [np.flatnonzero(kmeans.labels_ == number) for number in range(distances.shape[1])]
    return [
        rows[np.argsort(distances[rows, number], kind="stable")].tolist()
        for number, rows in enumerate(members)
        if len(rows)
    ]


def subject(document: Document) -> str:
    """The title of a document, or the first line of its text."""
    lines = [document.title, *document.text.splitlines()]
    return next((" ".join(line.split()) for line in lines if line.strip()), document.docid)


def _asked(inputs: _Inputs, llm: LanguageModel, shown: Sequence[Sequence[Document]]) -> list[str]:
    """The question that the model writes for each group of documents. Replies are cached."""
    folder, template = inputs.folder, PromptTemplate(None, "scorer/question.txt", ("documents",))
    prompts = []
    for documents in shown:
        texts = "\n\n".join(
            f"{subject(one)}\n{first_sentences(one.text, _SHOWN_TOKENS)}" for one in documents
        )
        section = spotlight("{documents}", {"documents": texts})
        prompts.append(template.filled({"documents": section}))
    model = CachedLLM(
        name="distillation-questions",
        parts=[template.text],
        is_empty=lambda text: not text.strip(),
        counts=Counts("asked", "retried", "shared"),
    )
    blocking = blocking_model(llm, "navigator")
    with (
        open_ledger(folder / "ledger.jsonl", cap=inputs.budget.run_dollars) as ledger,
        llm.running(folder / "server.log") as served,
        blocking.started(served, ledger),
    ):
        replies = model.of(blocking, caches_folder(inputs.settings.config, False)).replies(
            {prompt: f"g{number}" for number, prompt in enumerate(prompts, start=1)}
        )
    return [" ".join(replies[prompt].text.split()) for prompt in prompts]


# Step 2: candidates of the system, with the teacher's scores.


def _judgements(inputs: _Inputs, written: Sequence[WrittenQuestion]) -> list[dict[str, Any]]:
    settings, benchmark, folder = inputs.settings, inputs.benchmark, inputs.folder
    path = folder / "judgements.jsonl"
    if not path.exists():
        config = copy.deepcopy(settings.config)
        config.name, config.paths.runs, config.repeats = _CANDIDATES, str(folder), 1
        own = replace(settings, config=config, multirun=False)
        run(own, lambda: build_pipeline(config, inputs.budget, generated(benchmark, written)))
        runs = RunFolder(folder / _CANDIDATES)
        if failed := runs.failures():
            raise InputError(
                f"{failed.total()} of {len(written)} questions failed",
                do="repeat the command, which tries them again",
            )
        passages = evidence_passages(benchmark, settings.config).store
        rows = [
            row for trajectory in runs.trajectories() for row in training_rows(trajectory, passages)
        ]
        write_text(path, "".join(dump_json(row, indent=None) for row in rows))
        notify(f"{len(rows)} documents with the teacher's scores")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def generated(benchmark: Benchmark, written: Sequence[WrittenQuestion]) -> Benchmark:
    """The corpus of a benchmark with other questions, about which nothing is judged."""
    unjudged = copy.copy(benchmark)
    unjudged.topics = [Topic(question.qid, question.text) for question in written]
    unjudged.qrels, unjudged.answers, unjudged.targets = {"evidence": {}}, {}, {}
    unjudged.checklists, unjudged.satisfaction = {}, {}
    return unjudged


# Step 3: the student.


def overall(row: Mapping[str, Any]) -> float:
    """The teacher's probability that a document is relevant; of a teacher that gives none, the mean
    of its scores."""
    stated = row["overall"]
    return float(np.mean([c["score"] for c in row["requirements"]]) if stated is None else stated)


def student_examples(row: Mapping[str, Any]) -> Iterator[Example]:
    """What a student learns from a document: the score of each requirement in the passage that it
    rests on, and the overall probability of the question with each of these passages."""
    texts = {chunk["id"]: chunk["text"] for chunk in row["chunks"]}
    for cell in row["requirements"]:
        if cell["passage"] in texts:
            yield Example(Pair(cell["requirement"], texts[cell["passage"]]), cell["score"])
    for text in texts.values():
        yield Example(Pair(row["query"], text), overall(row))


def split(
    written: Sequence[WrittenQuestion], held_out: float
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The texts of the questions to learn from, to calibrate with, and to check the calibration,
    by the hashes of the texts. `InputError` for fewer than three."""
    texts = sorted((question.text for question in written), key=fingerprint)
    held = min(max(2, round(held_out * len(texts))), len(texts) - 1)
    if held < 2:
        raise InputError(
            f"there are {len(texts)} questions", valid="3 or more", do="take more clusters"
        )
    return frozenset(texts[held:]), frozenset(texts[:held:2]), frozenset(texts[1:held:2])


# Step 4: calibration.


def _calibrate(
    inputs: _Inputs,
    rows: Sequence[Mapping[str, Any]],
    calibrating: frozenset[str],
    checking: frozenset[str],
    method: str,
) -> None:
    settings, folder = inputs.settings, inputs.folder
    if (folder / "report.json").exists():
        notify(f"complete: '{folder}'")
        return
    chosen = Settings.compose(
        [
            "scorer=cross_encoder",
            f"scorer.scorer.model={dump_json(str(folder / 'student')).strip()}",
        ]
    )
    student: RequirementScorer = make(option_of(chosen.config, "scorer"))
    held = [row for row in rows if row["query"] in calibrating | checking]
    scored = student.score(_candidates(inputs, held))
    student.close()

    def outcomes(questions: frozenset[str]) -> tuple[list[float], list[bool]]:
        """Probabilities of the student, and whether the teacher finds the document relevant."""
        pairs = [pair for pair in zip(held, scored, strict=True) if pair[0]["query"] in questions]
        probabilities = [score.probability or 0.0 for _, score in pairs]
        return probabilities, [overall(row) >= _SATISFIED for row, _ in pairs]

    (to_fit, relevant), (probabilities, met) = outcomes(calibrating), outcomes(checking)
    if len(set(relevant)) < 2 or not met:
        raise InputError(
            f"the teacher finds {sum(relevant)} of {len(relevant)} documents of the "
            "held-out questions relevant",
            valid="some that are, and some that are not",
            do="take more clusters or questions, in another folder",
        )
    path = folder / "calibration.json"
    fitted = fit_probabilities(to_fit, relevant, method)
    write_json(path, {**fitted, "pairs": len(relevant), "scorer": student.fingerprint})
    by_time = {"before": probabilities, "after": list(map(Calibration(str(path)), probabilities))}
    error = {time: expected_calibration_error(values, met) for time, values in by_time.items()}
    report = {
        "teacher": settings.choices["scorer"],
        "teacher_llm": getattr(language_model(settings.config, "librarian_llm"), "name", None),
        "questions": {"calibrating": len(calibrating), "checking": len(checking)},
        "documents": {"calibrating": len(relevant), "checking": len(met)},
        "relevant": {"calibrating": sum(relevant), "checking": sum(met)},
        "ece": error,
        "brier": {time: brier(values, met) for time, values in by_time.items()},
    }
    write_json(folder / "report.json", report)
    notify(
        f"on {len(met)} documents of {len(checking)} other questions the expected calibration "
        f"error is {error['before']:.3f} before and {error['after']:.3f} after "
        f"calibration: '{folder}'"
    )


def _candidates(inputs: _Inputs, rows: Sequence[Mapping[str, Any]]) -> list[CandidateDocument]:
    """The documents with the evidence that the system locates for their requirements."""
    config = inputs.settings.config
    built = build_pipeline(config, inputs.budget, inputs.benchmark, searched=False)
    search_tool, _ = with_literature_tools(inputs.search_tool, built, config)
    backend = PipelineBackend(built.pipeline)
    session = search_tool.open(backend.for_question(""), built.collection.store)
    assert isinstance(session, Literature) and session.operators.locator is not None
    candidates = []
    for row in rows:
        needs = [cell["requirement"] for cell in row["requirements"]]
        (located,) = session.operators.locator.locate([row["docid"]], needs, session.passages)
        texts = session.passage_texts(one.unit_id for found in located for one in found)
        evidence = tuple(
            Evidence(need, tuple(Unit(one.unit_id, "", texts[one.unit_id]) for one in found))
            for need, found in zip(needs, located, strict=True)
        )
        candidates.append(CandidateDocument(row["query"], row["docid"], "", evidence))
    return candidates
