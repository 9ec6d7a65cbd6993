"""The command line: what starting a command imports, what its help says, and how bad input is
refused."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import traceback
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from traceback import format_exception

import pytest
from support.assertions import told
from support.benchmarks import CORPUS, QRELS, QUERIES, TINY, write_beir
from support.checkpoints import save_rankllama, write_splade, write_tokenizer

from soundingline.experiments.config import Settings
from soundingline.experiments.experiment import Experiment
from soundingline.experiments.refusals import refusal_line
from soundingline.pipelines.index_folder import signed
from soundingline.pipelines.lexical import index
from soundingline.toolkit.console import in_one_line
from soundingline.toolkit.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["torch", "transformers", "sentence_transformers"]
# What takes longer than a tenth of a second to import.
PACKAGES = ("agents", "experiments", "pipelines", "toolkit")
HEAVY = [*MODELS, "numba", "scipy", "matplotlib", "statsmodels", "spacy", "httpx2"]

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
from soundingline.experiments.pipeline import option_of
given = {"dense": ["retriever.pooling=last"], "splade": [], "colbertv2": []}
for retriever, arguments in given.items():
    experiment = Experiment.compose(
        f"retriever={retriever}", "retriever.model=/absent", *arguments,
        "reranker=monot5", "reranker.model=/absent",
    )
    config = experiment.settings.config
    make(config.retriever), make(option_of(config, "reranker")), cell_name(experiment.settings)
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
assert len(Experiment.compose(*{given!r}).built.collection.index) == 64
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
    assert made.fingerprint
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
        if "base" in path.parts:  # what options share
            continue
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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run", "interrupted (2 of 6 questions are done); the same command continues"),
        ("tune", "interrupted (2 of 6 questions are done); the same command continues"),
        ("rank", "interrupted (2 of 6 questions are done)"),
        ("compare", "interrupted (2 of 6 questions are done)"),
    ],
)
def test_a_command_continues_where_it_keeps_what_was_done(
    command, said, entry, capsys, monkeypatch
):
    def task(settings):
        raise KeyboardInterrupt("2 of 6 questions are done")

    monkeypatch.setattr("soundingline.experiments.cli._task", lambda name: task)
    assert entry(command) == 130
    assert capsys.readouterr().err == f"soundingline: {said}\n"


# What ends the line that a shell asks for: `compadd` and `compset` exist where zsh completes only.
ASK = {
    "zsh": "compdef() {{ }}; compset() {{ }}; _files() {{ print FILES }}; compadd() {{ print -l "
    "-- ${{@[4,-1]}} }}; source {0}; words=({1}); CURRENT=${{#words}}; _soundingline",
    "fish": "source {0}; complete -C {1}",
}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_complete_commands_flags_groups_and_options(shell, entry, capsys, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert entry("completion", shell) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "runs").mkdir()

    def ask(*words):
        words = ["soundingline", *words]
        line = " ".join(f"'{word}'" for word in words)
        line = f"'{' '.join(words)}'" if shell == "fish" else line
        asked = [shell, "-c", ASK[shell].format(script, line)]
        env = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, env=env)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return {line.partition("\t")[0] for line in done.stdout.splitlines()}

    def value(head, option):
        return option if shell == "zsh" else f"{head}{option}"

    assert {"run", "rank", "replay", "completion"} <= ask("r") | ask("c")
    assert "retriever=" in ask("run", "retr") and "concurrency=" in ask("run", "concu")
    assert value("unit=", "maxp") in ask("run", "unit=m")
    assert value("unit=document,", "passage") in ask("run", "unit=document,pa")
    models = ask("run", "llm@judge_llm=vllm/g")
    assert value("llm@judge_llm=", "vllm/gpt_oss_20b") in models
    assert not {"document", "unit=document"} & models
    assert "--multirun" in ask("run", "--multi") and "--published" in ask("compare", "--pub")
    assert {"FILES", "runs/"} & ask("evaluate", "ru")
    assert not {"FILES", "runs/"} & ask("run", "ru")
    assert {"bash", "zsh", "fish"} <= ask("completion", "")


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
        "evidence documents a question": "1.00",
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
    assert entry(
        "describe", "benchmark=ir_datasets", "benchmark.dataset=beir/nq", "tool.tokenizer=x"
    )
    printed = capsys.readouterr()
    rows = {name.strip(): value for name, value in described(printed.out).items()}
    assert rows["evidence documents a question"] == "1.22" and rows["documents"] == "2,680,000"


def test_a_command_line_is_described_by_what_it_chooses_and_sweeps(entry, capsys):
    given = ("experiment=pi_serini/tuning_effect", "retriever.depth=7")
    assert entry("describe", *given) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cell", "1", "retriever=bm25_default"] in rows
    assert ["cell", "2", "retriever=bm25_tuned"] in rows
    assert ["retriever.depth", "7"] in rows and ["agent", "pi_serini"] in rows


READ = re.compile(r"^\| [^|]+ \| `(?:\w+\.)?(\w+)` in `([\w/.]+)` \|$", re.MULTILINE)


@contextmanager
def called():
    """The functions that all threads call meanwhile: (file, name)."""
    seen = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # not a class's body
            seen.add((frame.f_code.co_filename, frame.f_code.co_name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_the_functions_that_the_map_of_the_code_names_are_called(entry, capsys):
    places = READ.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(places) == 4
    with called() as seen:
        assert entry("run", *TINY, *MODEL.split(), "name=x") == 0
        assert entry("run", *TINY, "tool.page=0") == 2
    missing = [place for place in places if (str(ROOT / place[1]), place[0]) not in seen]
    assert not missing


def test_one_question_needs_few_files(entry):
    """Those with a called function, composing, indexing, answering, reports."""
    packages = [ROOT / name for name in PACKAGES]
    with called() as seen:
        assert entry("run", *TINY, "benchmark.questions=1", "name=x") == 0
    called_in = {Path(file) for file, name in seen if file.endswith(".py") and name[0] != "<"}
    files = [file for file in called_in if any(file.is_relative_to(each) for each in packages)]
    assert 60 < len(files) <= 80, sorted(str(file.relative_to(ROOT)) for file in files)


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


# Bad input, and what cannot work, is refused in one line that names it: exit code 2, no traceback,
# nothing half-made and nothing paid for.

PHRASES = "enrichment=file enrichment.query=null enrichment.corpus.path=phrases.jsonl"
BROKEN = {
    "malformed JSON": (
        {"corpus": CORPUS + '{"_id": "d4", "text":\n', "queries": QUERIES, "qrels": QRELS},
        r"corpus.jsonl:4",
    ),
    "duplicate docid": (
        {"corpus": CORPUS + CORPUS.splitlines()[0] + "\n", "queries": QUERIES, "qrels": QRELS},
        "d1",
    ),
    "empty corpus": ({"corpus": "", "queries": QUERIES, "qrels": QRELS}, "corpus"),
    "malformed judgement": (
        {"corpus": CORPUS, "queries": QUERIES, "qrels": QRELS + "q2\td2\thigh\n"},
        r"test.tsv:5",
    ),
    "no queries": ({"corpus": CORPUS, "qrels": QRELS}, "queries.jsonl"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_told_with_its_place(case, entry, tmp_path, capsys):
    files, said = BROKEN[case]
    path = write_beir(tmp_path / "broken", **files)
    code = entry("rank", "benchmark=beir", f"benchmark.path={path}", "name=x")
    assert code == 2
    assert said in told(capsys)
    assert not list(Path("runs").glob("*/metrics.json"))
    assert not [p for p in Path("indexes").rglob("*") if p.is_dir() and p.parent.name == "broken"]


# By command: command lines, and what the one line says of each.
OWN = "agent=one_shot agent._target_=own_agent.{} ~agent.listed"
REFUSED = {
    "run": [
        ("llm@rewriter_llm=null", "or write rewriter_llm=null for none"),
        ("+llm@judge_llm=null", "or write judge_llm=null for none"),
        ("llm=null", "valid: claude-opus-4.7, .*or write ~llm for none"),
        ("scorer=null", "or write ~scorer for none"),
        ("experiment=null", "or write ~experiment for none"),
        ("hydra/job_logging=null", "name an option of that group"),
        ("reranker=null", "or write reranker=none for none"),
        ("agent=null", "names no option.*keyword"),
        ("-m agent=keyword,null", "agent=null names no option"),
        ("retriever=1", "names no option.*bm25_default"),
        ("retriever={a:1}", "names no option"),
        ("experiment=[demo,null]", "names no option.*pasamaster/librarians"),
        ("rewriter_llm=openai_compatible", "is not an option.*llm@rewriter_llm=openai_compatible"),
        ("enrichment_llm=5", "enrichment_llm=5 is not an option.*llm@enrichment_llm=NAME"),
        ("reranker_llm=gpt-5.5", "is not an option.*llm@reranker_llm=gpt-5.5"),
        ("librarian_llm=gpt-5.5", "is not an option.*llm@librarian_llm=gpt-5.5"),
        ("list_reranker=monot5", "is not an option.*reranker@list_reranker=monot5"),
        (
            "agent=chat llm=vllm/qwen3_8b llm.server.options=null",
            r"llm.server.options=None\. valid: a value of type Mapping\[str, Any\]",
        ),
        ("agent._target_=null", "agent has no _target_"),
        *(
            (f"agent._target_={target}", f"agent._target_={target} names nothing")
            for target in ("no_package.Agent", "soundingline.agents.keyword.No", "a..b")
        ),
        ("agent._target_=soundingline.agents.base.Agent.no", "names nothing"),
        (OWN.format("Typed") + " +agent.n=many", r"agent.n='many'\. valid: a value of type int\."),
        (OWN.format("Reader"), r"agent: FileNotFoundError:.*'absent.tsv' \(own_agent.py:4\)"),
        ("concurrency=0", "concurrency=0"),
        ("tool.page=0", "page=0"),
        ("agent.max_searches=-1", "max_searches=-1"),
    ],
    "rank": [
        ("list_reranker=monot5", "is not an option.*reranker@list_reranker=monot5"),
        ("-m --cfg job", "--cfg/-c: not allowed with argument --multirun/-m"),
        ("--cfg job --info", "--info/-i: not allowed with argument --cfg/-c"),
        ("--resolve", "--resolve"),
        ("benchmrk=fictional", r"did you mean benchmark\?"),
        ("+retriver.k1=25", "no group or key 'retriver'.*did you mean retriever"),
        ("+retriver=bm25_tuned", "no group or key 'retriver'.*did you mean retriever"),
        ("+tuning.dept=5", "no group or key 'tuning.dept'.*did you mean depth"),
        ("-m +retriver.k1=1,2", "no group or key 'retriver'.*did you mean retriever"),
        ("-m retriver.k1=1,2", "no group or key 'retriver'.*did you mean retriever"),
        ("--config-name=config", "unrecognized arguments: --config-name=config\\. --help lists"),
        ("--config-path conf", "unrecognized arguments: --config-path"),
        ("--experimental-rerun x", "unrecognized arguments: --experimental-rerun"),
        ("-m retriever=glob(bm26_*)", r"glob\(bm26_\*\) matches no option"),
        (  # no cells without -m
            "hydra.sweeper.axes={b:[['benchmark=fictional']]} benchmark.questions=2",
            "'benchmark.questions' is not an argument of the chosen benchmark",
        ),
        ("retriever=ql, bm25_default", "'retriever=ql,' is not KEY=VALUE.*no space after a comma"),
        ("-m retriever=ql, bm25_default", "'retriever=ql,' is not KEY=VALUE"),
        ("ql", "'ql' is not KEY=VALUE"),
        ("-m retriever.k1=range(a,2)", "retriever.k1=range.*mismatch type argument start"),
        ("-m hydra/sweeper=optun", "names no option.*hydra-optuna-sweeper"),
        ("measures=[]", r"measures=\[\] names no measure"),
        ("benchmark=fictionl", "fictional"),
        ("retriever.kk=1", "retriever.kk"),
        ("enrichment=feedback enrichment.query.kk=1", "valid: b, fb_docs, k1, phrases"),
        ("retriever.k1=-1", "k1=-1"),
        ("retriever.k1=much", "retriever.k1='much'"),
        ("retriever.k1=null", r"retriever.k1=None\. valid: a value of type float"),
        ("concurrency=null", r"concurrency=null\. valid: a value of type int\."),
        ("repeats=much", r"repeats=much\. valid: a value of type int\."),
        ("measures=null", r"measures=null\. valid: a value of type list\[str\]\."),
        (
            "comparison.baseline=null",
            r"comparison.baseline=null\. valid: a value of type dict\[str, str\]\.",
        ),
        ("tuning.depth=null", r"tuning.depth=null\. valid: a value of type int\."),
        ("paths.caches_gb=much", r"caches_gb=much\. valid: a value of type float \| None\."),
        ("paths.runs=null", r"paths.runs=null\. valid: a value of type str\."),
        ("=null", r"=null names no key\. valid: KEY=VALUE"),
        ("retriever.b=1.5", "b=1.5"),
        ("retriever.depth=0", "depth=0"),
        ("measures=[nDCG@ten]", "nDCG@ten"),
        ("name=../x", r"\.\./x"),
        ("-m name=../x", r"'\.\./x' cannot be a folder name"),
        ("-m name=", "'' cannot be a folder name"),
        ("-m name=x,y", "name=x,y gives several names"),
        ("benchmark=beir benchmark.path=/no/such/folder", "/no/such/folder"),
        ("benchmark=beir", "benchmark.path=VALUE"),
        ("benchmark=cacm paths.data=/none", "castorini/anserini"),
        ("benchmark=wikimix paths.data=/none", "docs/data.md"),
        ("benchmark=ir_datasets", "benchmark.dataset=VALUE"),
        (
            "benchmark=ir_datasets benchmark.dataset=beir/scifat/test",
            "no dataset 'beir/scifat/test'",
        ),
        ("benchmark=nfcorpus benchmark.split=tset", "beir/nfcorpus/test"),
        ("engine.analyzer=klingon", "klingon"),
        ("engine.analyzer=english:5", r"n-grams of 5 words\. valid: 2 to 4"),
        ("enrichment=feedback enrichment.weight=-0.1", r"weight is -0.1\. valid: 0 or more"),
        ("enrichment=feedback enrichment.weight=much", "enrichment.weight='much'"),
        ("enrichment=feedback enrichment.query_filter.tau=0", r"tau is 0\. valid: above 0"),
        (f"{PHRASES} enrichment.corpus_filter.tau=1.01", r"tau is 1.01\. valid: above"),
        ("enrichment=feedback enrichment.sides=corpus", "the enrichment has neither side"),
        ("enrichment=feedback enrichment.query_filter.tau=much", "query_filter.tau='much'"),
        ("enrichment=feedback enrichment.query_filter.tau=null", "query_filter.tau=None"),
        ("enrichment=feedback +enrichment.query_filter.tua=1", "has no argument tua"),
        ("enrichment=feedback enrichment.query.phrases=0", "phrases=0"),
        (
            f"{PHRASES.replace('phrases.jsonl', 'own_agent.py')} retriever=ql",
            "QueryLikelihood does not support",
        ),
        ("retriever.k3=1", r"not an argument of the chosen retriever\. valid: b, depth, k1"),
        ("agent.max_serches=1", r"did you mean agent.max_searches\?"),
        ("agent.tool.depth=1", "'agent.tool' is not an argument of the chosen agent"),
        ("retreiver.k1=1", "there is no group or key 'retreiver'"),
        ("retreiver=ql", r"did you mean retriever\?"),
        ("retriever=bm26", r"retriever=bm26 names no option\. valid: agentir_4b, bm25_crossfit, "),
        # Names of PyTerrier and Pyserini.
        ("num_results=10", "no group or key 'num_results'. num_results is retriever.depth here"),
        ("+hits=10", "'hits'. hits is retriever.depth here"),
        ("retriever.num_results=10", "valid: b, depth, k1. did you mean retriever.depth?"),
        ("-m wmodel=BM25,DPH", "'wmodel'. wmodel is retriever=bm25_default here"),
        ("retriever.wmodel=BM25", "valid: b, depth, k1. wmodel is retriever=bm25_default here"),
        ("controls.k1=2", "'controls'. controls is retriever.k1 and retriever.b here"),
        ("k1=1.2", "no group or key 'k1'. k1 is retriever.k1 here"),
        ("retriever=ql retriever.k1=2", r"'retriever.k1' is no.* valid: depth, mu\.$"),
        ("bm25.k1=2", "'bm25'. bm25 is retriever=bm25_default here"),
        ("retriever=BM25", "BM25 names no option. BM25 is retriever=bm25_default here"),
        ("retriever=fusion_rrf retriever@retriever.second=bm25", "bm25 is retriever=bm25_default"),
        ("llm=vllm/qwen3-8b", r"did you mean llm=vllm/qwen3_8b\?"),
        ("experiment=pi_serini/x", "text_ranking/table3"),
        ("unit=doc", r"names no option\. valid: document, document_head, maxp, passage"),
        ("rewriter=x", "or write rewriter=none for none"),
    ],
}
OWN_AGENTS = """\
class Typed:
    def __init__(self, n: int): ...
class Reader:
    def __init__(self): open('absent.tsv')
"""


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [(command, *row) for command, rows in REFUSED.items() for row in rows],
)
def test_a_wrong_setting_is_told_and_nothing_is_made(
    command, words, said, entry, monkeypatch, capsys
):
    monkeypatch.delitem(sys.modules, "own_agent", raising=False)
    Path("own_agent.py").write_text(OWN_AGENTS)
    monkeypatch.syspath_prepend(Path.cwd())
    base = [] if "benchmark=" in words else TINY
    assert entry(command, *base, *words.split(" ")) == 2
    line = told(capsys)
    assert re.search(said, line) and "disk" not in line
    assert not Path("runs").exists()


def test_the_version_is_printed(entry, capsys):
    for words in (["--version"], ["rank", "--version"]):
        assert entry(*words) == 0
        assert capsys.readouterr().out == f"soundingline {version('soundingline')}\n"


def test_it_is_told_by_every_command_and_in_python(entry, capsys):
    assert entry("evaluate", "runs/x", "llm@judge_llm=null") == 2
    assert "llm@judge_llm=null names no option" in told(capsys)
    for command in (["evaluate", "runs/x"], ["describe"], ["serve"], ["run"]):
        assert entry(*command, "retriever=none_such") == 2
        assert "retriever=none_such names no option" in told(capsys)
    assert entry("serve", "llm=null") == 2
    assert "llm=null names no option" in told(capsys)
    for command in (["evaluate", "runs/x"], ["describe"], ["serve"]):
        assert entry(*command, "+retriver=ql") == 2
        assert "no group or key 'retriver'" in told(capsys)
    with pytest.raises(InputError, match="no group or key 'retriver'"):
        Experiment.compose("+retriver.k1=25")
    with pytest.raises(InputError, match="llm=null names no option"):
        Experiment.compose("llm=null")
    with pytest.raises(InputError, match=r"'retriever.k3' is not an argument .*: b, depth, k1"):
        Experiment.compose("retriever.k3=1")


def test_a_defect_of_ones_own_module_keeps_its_traceback(entry, monkeypatch):
    Path("lacking.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.syspath_prepend(Path.cwd())
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there") as raised:
        entry("run", *TINY, "agent._target_=lacking.Agent", "name=x")
    assert "lacking.py:1 raised" in in_one_line("".join(format_exception(raised.value)))


def test_a_ranking_needs_no_agent(entry):
    assert entry("rank", *TINY, "~agent", "name=x") == 0
    assert Path("runs/x/metrics.json").exists()


def test_none_is_chosen_as_the_line_says():
    chosen = ("llm=openai_compatible", "llm@rewriter_llm=openai_compatible")
    config = Settings.compose(chosen).config
    assert config.llm and config.rewriter_llm
    config = Settings.compose(("llm@rewriter_llm=openai_compatible", "rewriter_llm=null")).config
    assert config.rewriter_llm is None
    assert Settings.compose(("~llm",)).config.llm is None
    config = Settings.compose(("scorer=overlap", "~scorer", "~experiment")).config
    assert config.scorer is None


HOME_PATHS = {
    "as it is": ["benchmark.path=~/data"],
    "in quotes": ['benchmark.path="~/data"'],
    "a sweep": ["-m", "benchmark.path=~/data,~/other"],
    "a file": ["--config-dir=~/conf", "experiment=mine"],
    "a sweep of a file": ["--config-dir=~/conf", "experiment=mine", "-m", "retriever=ql,bm25_rm3"],
}


@pytest.mark.parametrize("words", HOME_PATHS.values(), ids=HOME_PATHS)
def test_a_tilde_is_the_home_folder_in_every_path(words, entry, beir, tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    for name in ("data", "other"):
        shutil.copytree(beir, home / name)
    own = "# @package _global_\nbenchmark: {path: ~/data}\npaths: {runs: ~/out}\n"
    (home / "conf" / "experiment").mkdir(parents=True)
    (home / "conf" / "experiment" / "mine.yaml").write_text(own)
    runs = [] if "experiment=mine" in words else ["paths.runs=~/out"]
    assert entry("rank", "benchmark=beir", "paths.indexes=~/idx", "name=x", *runs, *words) == 0
    folders = [path.parent for path in (home / "out").rglob("metrics.json")]
    assert len(folders) == (2 if "-m" in words else 1)
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
    paths = {manifest["config"]["benchmark"]["path"] for manifest in manifests}
    named = [name for name in ("data", "other") if any(f"~/{name}" in word for word in words)]
    assert paths == {str(home / name) for name in named or ["data"]}
    assert (home / "idx" / "data").is_dir()
    run = folders[0].relative_to(home)
    assert entry("export", f"~/{run}", "out=~/t", "format=trec") == 0
    assert any((home / "t").iterdir()) and not (tmp_path / "~").exists()


def test_a_tilde_of_the_environment_and_of_python_is_the_home_folder(entry, beir, monkeypatch):
    monkeypatch.setenv("HOME", str(beir.parent))
    monkeypatch.setenv("SOUNDINGLINE_DATA", "~/collections")
    composed = Settings.compose(["benchmark=cacm", "paths.caches=~/kept"]).config
    assert composed.benchmark.path == f"{beir.parent}/collections/cacm"
    assert composed.paths.caches == f"{beir.parent}/kept"
    experiment = Experiment.compose("benchmark=beir", "benchmark.path=~/beir")
    assert experiment.settings.config.benchmark.path == str(beir)


def test_an_index_of_another_corpus_is_refused(entry, beir, capsys):
    given = ("benchmark=beir", f"benchmark.path={beir}")
    assert entry("index", *given) == 0
    manifest = next(Path("indexes").glob("*/document-lexical-*/manifest.json"))
    content = json.loads(manifest.read_text())
    content["corpus_fingerprint"] = "another"
    manifest.write_text(json.dumps(signed(content)))
    capsys.readouterr()
    assert entry("index", *given) == 2
    line = told(capsys)
    assert "another" in line and "remove the folder, and the same command" in line
    shutil.rmtree(manifest.parent)
    assert entry("index", *given) == 0


@pytest.mark.parametrize("damage", ["another index", "cut short"])
def test_an_enriched_index_that_does_not_fit_is_refused_until_it_is_removed(
    damage, entry, beir, capsys
):
    Path("phrases.jsonl").write_text('{"id": "d1", "phrases": ["quay"]}\n')
    given = ("benchmark=beir", f"benchmark.path={beir}", *PHRASES.split())
    assert entry("rank", *given, "name=x") == 0
    enriched = next(Path("indexes").glob("*/document-enriched-*"))
    if damage == "another index":
        path = enriched / "phrases" / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["corpus_fingerprint"] = "another"
        path.write_text(json.dumps(signed(manifest)))
    else:
        (enriched / "index" / "lengths.bin").write_bytes(b"1")
    capsys.readouterr()
    assert entry("rank", *given, "name=y") == 2
    line = told(capsys)
    says = (
        "is of another corpus ('another')"
        if damage == "another index"
        else "lengths.bin has 1 bytes, and was written with 12"
    )
    assert says in line and "remove the folder, and the same command" in line
    assert not Path("runs/y").exists()
    shutil.rmtree(enriched)
    assert entry("rank", *given, "name=y") == 0


def test_a_run_under_a_taken_name_with_other_settings_is_refused(entry, beir, capsys):
    given = ("benchmark=beir", f"benchmark.path={beir}", "name=x")
    assert entry("rank", *given) == 0
    before = Path("runs/x/metrics.json").read_bytes()
    capsys.readouterr()
    assert entry("rank", *given, "retriever.k1=2") == 2
    assert "retriever" in told(capsys)
    assert Path("runs/x/metrics.json").read_bytes() == before


def test_comparing_needs_two_evaluated_runs(entry, capsys):
    assert entry("compare", "runs/nothing") == 2
    assert "two or more" in told(capsys)
    assert entry("compare", "runs/a", "runs/b") == 2
    assert "runs/a" in told(capsys)


def test_the_innermost_input_error_is_printed():
    error = RuntimeError("outer")
    error.__context__ = ValueError("middle")
    error.__context__.__cause__ = InputError("inner")
    assert refusal_line(error) == "inner."


def test_a_cycle_of_causes_ends():
    """A library that raises one exception object again can make it part of its own context."""
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert refusal_line(first) == "first"


OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = f"hydra.searchpath=[file://{OPTIONS}]"
MODEL = f"{SCRIPTED} agent=pi_serini llm=scripted"
JUDGE = "judge=llm llm@judge_llm=scripted"
ENRICH = f"enrich {SCRIPTED} llm@enrichment_llm=scripted enrichment=sira enrichment.sides=corpus"
FUSION = "retriever=fusion_rrf retriever@retriever.first=bm25_default retriever@retriever.second="
CHAT = "llm@reranker_llm=openai_compatible reranker_llm.model=m"
GREEDY = (
    "llm@rewriter_llm=openai_compatible rewriter_llm.model=m rewriter_llm.base_url=http://x/v1 "
    "rewriter_llm.settings.temperature=0"
)
SAME = "would do the same each time"
BEFORE_BUILDING = {
    # Checkpoints.
    "rank retriever=splade retriever.model=/nowhere": "there is no folder '/nowhere'",
    "rank retriever=splade retriever.model={rankllama}": "gives terms no weights",
    "rank retriever=splade retriever.model={splade}": "max_length=512",
    "rank retriever=dense retriever.model={splade}": "how its vectors are pooled",
    "rank retriever=repllama retriever.model={splade} retriever.base={splade}": "adapter",
    "rank retriever=colbertv2 retriever.model={splade}": "not a multi-vector checkpoint",
    "rank retriever=colbertv2 retriever.batch_tokens=0": "batch_tokens=0",
    f"rank {FUSION}bm25_default retriever.k=-1": "k=-1",
    f"rank {FUSION}splade retriever.second.model=/nowhere": "there is no folder '/nowhere'",
    "rank reranker=colbert reranker.model={splade}": "not a multi-vector checkpoint",
    "rank reranker=cross_encoder reranker.model={splade}": "no output that was trained",
    "rank reranker=rankllama reranker.model={splade}": "kind bert",
    "rank reranker=rankllama reranker.model={rankllama} reranker.max_length=5000": "1024",
    # Language models.
    "run agent=pi_serini": "llm=...",
    "run rewriter=q2q": "llm@rewriter_llm=",
    "run judge=llm": "judge_llm",
    "run judge=llm judge_llm=scripted": "llm@judge_llm=scripted",
    f"rank reranker=rank1 {CHAT} reranker_llm.base_url=http://127.0.0.1:9/v1": "rank1",
    **{
        f"rank reranker=pointwise reranker.score=p_yes llm@reranker_llm={llm} budget=none": (
            "reads log-probabilities, and the API of"
        )
        for llm in ("claude-opus-4.7", "gpt-5.5")
    },
    # The model's own window, which the budget does not name.
    f"run {MODEL} budget.answer_tokens=100000": "context window of 100000",
    f"run {MODEL} llm.price=null budget.dollars=1": "price",
    f"run {MODEL} {JUDGE} judge_llm.price=null budget.run_dollars=9": "judge_llm.price.input",
    # Repeats.
    "run agent=keyword repeats=2": SAME,
    f"run agent=keyword {SCRIPTED} llm=scripted repeats=2": SAME,
    "run agent=navigator repeats=2": SAME,
    f"run agent=one_shot rewriter=q2q {GREEDY} repeats=2": SAME,
    "run repeats=0": "repeats=0. valid: a whole number, 1 or more",
    # Enrichment and shards.
    f"{ENRICH} enrichment=none": "this enrichment has no corpus side",
    f"{ENRICH} enrichment.sides=query": "this enrichment has no corpus side",
    f"{ENRICH} paths.caches=null": "paths.caches is null",
    f"{ENRICH} engine=pisa": "engine=pisa does not support",
    "index indexing.shards=4 indexing.shard=4": "shard=4. valid: a whole number, 0 to 3.",
    "index indexing.shard=1": "shard=1. valid: a whole number, 0 to 0.",
    "index indexing.shards=0": "indexing.shards=0",
    "index indexing.shards=4": "indexing.shards=4 for retriever=bm25_default. valid: a learned",
    "run indexing.shards=4": "indexing.shards=4 for soundingline run. valid: soundingline index",
    # Bytes that are not UTF-8 reach Python as lone surrogates.
    "run name=m\udcfchle": r"'name=m\udcfchle' is not UTF-8",
}
LATER = {
    "run traces=plane": "traces=plane. valid: true, false, plain",
    "rank benchmark=beir benchmark.path={beir} retriever=oracle retriever.tier=gold": (
        "no judgements of the tier 'gold'"
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_rankllama(folder / "rankllama")
    write_splade(folder / "splade")
    return {name: folder / name for name in ("rankllama", "splade")}


@pytest.mark.parametrize(("line", "named"), [*BEFORE_BUILDING.items(), *LATER.items()])
def test_what_cannot_work_is_refused_in_one_line(line, named, entry, models, beir, capsys):
    command, *words = line.format(beir=beir, **models).split()
    small = () if "benchmark=" in line else TINY
    assert entry(command, *small, *words) == 2
    captured = capsys.readouterr()
    lines = [each for each in captured.err.splitlines() if each.startswith("soundingline: ")]
    assert len(lines) == 1 and named in lines[0] and not captured.out
    assert not Path("runs").exists()
    assert line in LATER or not Path("indexes").exists()
