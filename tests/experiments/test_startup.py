"""What starting a command imports, and what its help says. Times are measured by
`soundingline.experiments.bench.startup`; what is imported is what they depend on."""

import json
import os
import shutil
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.checkpoints import write_tokenizer

from soundingline.pipelines.lexical import index

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["torch", "transformers", "sentence_transformers"]
# What takes longer than a tenth of a second to import.
PACKAGES = ("agents", "experiments", "pipelines", "toolkit")
HEAVY = [*MODELS, "numba", "scipy", "matplotlib", "statsmodels", "spacy", "openai", "anthropic"]

PROGRAM = """
import sys
{code}
print(*(name for name in sys.argv[1:] if name in sys.modules), "end", file=sys.stderr)
"""


def imported(code, names):
    """Which of the modules a fresh process has imported after running `code`."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=code), *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stderr.strip().splitlines()[-1].split()[:-1]


def test_the_help_of_a_command_waits_for_no_large_library():
    code = """
from soundingline.experiments.cli import main
try:
    main(["run", "--help"])
except SystemExit as end:
    assert not end.code
"""
    assert imported(code, [*HEAVY, "pyterrier", "numpy", "pandas"]) == []


def test_a_reader_that_has_read_enough_causes_no_traceback():
    """`soundingline --help | head -1`."""
    command = f"{sys.executable} -m soundingline.experiments --help | true"
    process = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_importing_the_library_imports_nothing_else():
    assert (
        imported("import soundingline.pipelines", [*HEAVY, "pyterrier", "numpy", "pandas", "hydra"])
        == []
    )


LEARNED = """
from soundingline.experiments import Experiment
from soundingline.experiments.build import make
from soundingline.experiments.naming import cell_name
given = {"dense": ["retriever.pooling=last"], "splade": [], "colbertv2": []}
for retriever, arguments in given.items():
    experiment = Experiment.compose(
        f"retriever={retriever}", "retriever.model=/absent", *arguments,
        "reranker=monot5", "reranker.model=/absent",
    )
    config = experiment.settings.config
    make(config.retriever), make(config.reranker), cell_name(experiment.settings)
"""


def test_composing_learned_stages_imports_no_library_of_models():
    assert imported(LEARNED, MODELS) == []


def test_a_dense_run_that_searches_nothing_yet_imports_no_library_of_models(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("sentence_transformers")
    from support import checkpoints

    from soundingline.experiments import Experiment

    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    model = checkpoints.save_qwen(tmp_path / "model")
    dense = ("retriever=dense", f"retriever.model={model}", "retriever.pooling=last")
    given = [*TINY, *dense, "retriever.dtype=float32"]
    Experiment.compose(*given).pipeline()  # builds the indexes
    code = f"""
import os
os.chdir({str(tmp_path)!r})
from soundingline.experiments import Experiment
assert len(Experiment.compose(*{given!r}).collection.prepared.index) == 64
"""
    assert imported(code, MODELS) == []


CHECKED = """
from soundingline.pipelines import ColBERT, Dense, Splade
exact = {{"dtype": "float32", "device": "cpu"}}
for made in (
    Splade({splade!r}, max_length=64, **exact),
    ColBERT({late!r}, **exact),
    Dense({dense!r}, **exact),
):
    made.validate(None)
"""


def test_checking_a_retrievers_checkpoint_imports_no_library_of_models(tmp_path):
    pytest.importorskip("sentence_transformers")
    from support import checkpoints

    places = {
        "splade": checkpoints.write_splade(tmp_path / "splade"),
        "late": checkpoints.save_multi_vector(tmp_path / "late"),
        "dense": checkpoints.save_sentence_model(tmp_path / "dense"),
    }
    code = CHECKED.format(**{name: str(place) for name, place in places.items()})
    assert imported(code, MODELS) == []


@pytest.fixture
def own(tmp_path):
    """A folder of options with one of a group."""
    folder = tmp_path / "options"
    (folder / "unit").mkdir(parents=True)
    comment = "# Paragraphs, cut at \x1b[31mblank\n# lines. They may be long.\n"
    (folder / "unit" / "paragraphs.yaml").write_text(comment + "size: 1  # in lines\n")
    return folder


def test_the_help_lists_every_option_and_what_it_is(entry, own, capsys):
    assert entry("run", "--help", "--config-dir", str(own), "unit=passage") == 0
    page = capsys.readouterr().out
    assert page.startswith("Answer the questions of a benchmark")
    assert max(map(len, page.splitlines())) <= 100
    assert "concurrency=1" in page
    words = set(page.replace(",", " ").split())
    for path in (ROOT / "conf").glob("*/**/*.yaml"):
        name = path.relative_to(ROOT / "conf").with_suffix("").as_posix().partition("/")[2]
        name = name.removeprefix("launcher/").removeprefix("sweeper/")
        assert words & {name, f"*{name}"}, path
    assert "*bm25_default" in words
    assert "paragraphs" in words


def test_the_help_of_a_group_describes_its_options_and_their_arguments(entry, own, capsys):
    assert entry("run", "--help", "unit", "--config-dir", str(own)) == 0
    page = capsys.readouterr().out
    about = (
        "    Paragraphs, cut at ␛[31mblank lines. They may be long.\n      unit.size: 1  # in lines"
    )
    assert f"unit=paragraphs\n{about}" in page
    assert "unit=document  (default)\n" in page
    assert entry("run", "--help", "unti") == 2
    assert "there is no group 'unti'" in (said := capsys.readouterr().err)
    assert "did you mean unit?" in said
    assert entry("run", "--mutlirun") == 2
    assert "did you mean --multirun?" in capsys.readouterr().err


def completed(script, folder, *words):
    """What bash would complete the last word to, which it divides at signs."""
    words = " ".join(f"'{word}'" for word in words)
    asked = f"source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
    asked += "_soundingline; printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "-c", asked], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_flags_groups_and_options(entry, capsys, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    assert entry("completion", "bash") == 0
    script = tmp_path / "completion.sh"
    script.write_text(capsys.readouterr().out)
    assert len(script.read_text().splitlines()) <= 60
    (tmp_path / "files").mkdir()
    (tmp_path / "runs").mkdir()
    ask = partial(completed, script, tmp_path, "soundingline")
    assert ask("r") == ["run", "rank", "replay"]
    assert ask("run", "retr") == ["retriever="]
    assert ask("run", "concu") == ["concurrency="]
    assert ask("run", "unit", "=") == ["document", "document_head", "maxp", "passage"]
    assert ask("run", "unit", "=", "document,pa") == ["document,passage"]
    assert ask("run", "llm", "@", "judge_llm", "=", "vllm/g") == [
        "vllm/glm_4_7_flash",
        "vllm/gpt_oss_20b",
    ]
    assert ask("run", "--multi") == ["--multirun"]
    assert ask("compare", "--pub") == ["--published"]
    # Bash completes paths itself where nothing is returned.
    assert ask("evaluate", "ru") == [] and ask("evaluate", "bench") == ["benchmark="]
    assert entry("completion") == 2
    assert 'eval "$(soundingline completion bash)"' in capsys.readouterr().err


def test_every_option_has_a_comment_that_describes_it():
    for path in (ROOT / "conf").glob("*/**/*.yaml"):
        first, second, *_ = path.read_text(encoding="utf-8").split("\n")
        assert (second if "@package" in first else first).startswith("# "), path


def test_the_options_of_a_group_are_listed_with_what_they_are(entry, capsys):
    assert entry("list", "unit", "unit=maxp") == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in rows if row[0] == "*"] == ["maxp"]
    assert {"document", "passage"} <= {row[0] for row in rows}
    assert entry("list") == 0
    assert "retriever" in capsys.readouterr().out
    assert entry("list", "nothing") == 2
    assert "there is no group 'nothing'" in capsys.readouterr().err


def write_collection(folder):
    """Two documents of 8 and 3 words and marks, in passages of 4, 4 and 3."""
    texts = {"d1": "Brel is old. The mill burned.", "d2": "Two words."}
    corpus = [{"_id": key, "title": "A title", "text": text} for key, text in texts.items()]
    queries = [
        {"_id": "q1", "text": "What is Brel?"},
        {"_id": "q2", "text": "Which mill burned down?"},
    ]
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("q1\td1\t1\nq2\td1\t1\n")
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"benchmark.path={folder}"


def described(printed):
    return dict(
        line.strip().rsplit("  ", 1) for line in printed.splitlines() if "  " in line.strip()
    )


def test_a_benchmark_is_described_by_counts_and_mean_lengths(entry, capsys, tmp_path):
    chosen = ("benchmark=beir", write_collection(tmp_path), "unit=passage", "unit.max_tokens=5")
    assert entry("describe", *chosen) == 0
    printed = capsys.readouterr().out
    rows = {name.strip(): value for name, value in described(printed).items()}
    expected = {
        "questions": "2",
        "tokens a question": "4.50",
        "documents": "2",
        "tokens a document": "5.50",
        "passages": "3",
        "tokens a passage": "3.67",
        "passages a document": "1.50",
    }
    assert {name: rows.get(name) for name in expected} == expected
    assert "words and punctuation marks" in printed and "published" not in printed
    own = write_tokenizer(tmp_path / "tokenizer.json")
    assert entry("describe", *chosen, f"tokenizer={own}") == 0
    assert f"Tokens are tokens of {own}" in capsys.readouterr().out
    assert entry("describe", "experiment=demo_learned", "tokenizer=x") == 2
    assert "name a benchmark" in capsys.readouterr().err


def test_the_published_statistics_are_shown_where_the_benchmark_cannot_be_opened(entry, capsys):
    missing = "benchmark.questions=/nowhere/rows"
    assert entry("describe", "benchmark=browsecomp_plus", missing) == 2
    printed = capsys.readouterr()
    rows = {name.strip(): value for name, value in described(printed.out).items()}
    assert rows["passages"] == "2,772,255" and rows["tokens a passage"] == "279.64"
    assert rows["tokens a document"] == "7,845.55" and rows["tokens a question"] == "132.19"
    assert "/nowhere/rows" in printed.err


def test_a_command_line_is_described_by_what_it_chooses_and_sweeps(entry, capsys):
    given = ("experiment=pi_serini/tuning_effect", "retriever.depth=7")
    assert entry("describe", *given) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cell", "1", "retriever=bm25_default"] in rows
    assert ["cell", "2", "retriever=bm25_tuned"] in rows
    assert ["retriever.depth", "7"] in rows and ["agent", "pi_serini"] in rows


def test_the_stack_from_the_command_line_to_the_kernel_of_bm25_is_short(entry, monkeypatch):
    """A traceback of a search can be read, and each layer of it does something."""
    packages = tuple(f"{ROOT / name}{os.sep}" for name in PACKAGES)
    deepest = []

    def kernel(*arguments):
        frames = [each for each in traceback.extract_stack() if each.filename.startswith(packages)]
        deepest[:] = max(deepest, frames, key=len)
        add_bm25(*arguments)

    add_bm25 = index.add_bm25
    monkeypatch.setattr(index, "add_bm25", kernel)
    assert entry("run", *TINY, "name=x") == 0
    names = [f"{Path(each.filename).stem}.{each.name}" for each in deepest]
    assert names[0] == "cli.main" and names[-1] == "bm25.best"
    assert len(names) <= 20, names
