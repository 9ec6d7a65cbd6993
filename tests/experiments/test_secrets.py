"""Secrets are refused on the command line and are in nothing that is written, texts of benchmarks
and servers cannot control the terminal, and no text of a sealed benchmark is on disk."""

import json
import logging
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from support.benchmarks import (
    ANSWERS,
    CANARY,
    CORPUS,
    QUESTIONS,
    SENTENCES,
    TEXTS,
    TINY,
    VARIABLE,
    leaks,
    write_beir,
    write_benchmark,
)
from support.checkpoints import write_tokenizer
from support.llm_server import Fail, Peer, Say, running_peer

from soundingline.experiments.evaluate import agreement_table
from soundingline.experiments.refusals import refuse_secrets
from soundingline.toolkit import tokens
from soundingline.toolkit.console import Console, print_traceback
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.judge import verdicts_in
from soundingline.toolkit.evaluation.statistics import agreement
from soundingline.toolkit.llm.errors import AuthenticationFailed, ModelError
from soundingline.toolkit.obfuscation import read_text
from soundingline.toolkit.runs import RunFolder, make_manifest

Planted = tuple[Peer, tuple[str, ...]]
SECRET = "sk-planted-0123456789abcdef"


@pytest.mark.parametrize(
    ("override", "variable"),
    [
        ("+llm.settings.extra.api_key={}", "llm.key_env=LLM_API_KEY"),
        ("++llm.settings.extra.extra_headers.Authorization=Bearer {}", "llm.key_env=LLM_API_KEY"),
        ("+llm.settings.extra={{top_k: 20, extra_headers: {{x-api-key: {}}}}}", "LLM_API_KEY"),
        ("+llm.settings.extra.list=[{{token: {}}}]", "LLM_API_KEY"),
        ("+judge_llm.settings.extra.api_key={}", "judge_llm.key_env=JUDGE_LLM_API_KEY"),
        ("+llm.server.options.api-key={}", "llm.key_env=VLLM_API_KEY"),
        ("++llm.server.options={{api-key: '{}'}}", "llm.key_env=VLLM_API_KEY"),
        ("llm.server.launcher=[vllm,serve,--api-key,{}]", "llm.key_env=VLLM_API_KEY"),
        ("+llm.server.options.hf-token={}", "export HF_TOKEN="),
        ("+llm.server.environment.HF_TOKEN={}", "export HF_TOKEN="),
        ("+hydra.job.env_set.OPENAI_API_KEY={}", "export OPENAI_API_KEY="),
        ("llm.base_url=http://user:{}@host/v1", "LLM_API_KEY"),
        ("llm.base_url=https://host/v1?api_key={}", "LLM_API_KEY"),
        ("engine.url=https://user:{}@host", "reads OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD"),
        ("llm.key_env={}", "OPENAI_API_KEY"),
        ("+benchmark.password={}", "${oc.env:PASSWORD}"),
        ("+benchmark.password=12345", "${oc.env:PASSWORD}"),
        ("+llm.settings.extra.api_key={},other", "LLM_API_KEY"),
        ("+llm.settings.extra.api_key={} {{", "LLM_API_KEY"),
        ("+llm.settings.extra.api_key=***", "LLM_API_KEY"),
        ("+llm.settings.extra.api_key='${{oc.env:NONE,{}}}'", "LLM_API_KEY"),
    ],
)
@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["one run", "sweep"])
def test_a_secret_on_the_command_line_is_refused_with_the_variable_to_use(
    override,
    variable,
    sweep,
    entry,
    capfd,
):
    assert entry("run", *sweep, *TINY, "agent=pi_serini", override.format(SECRET)) == 2
    told = capfd.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith("soundingline: ") and variable in line
    assert SECRET not in told.err + told.out
    assert not list(Path().iterdir())


@pytest.mark.parametrize("name", ["evaluate", "rank", "index", "tune", "compare"])
def test_every_command_refuses_them(name, entry, capfd):
    assert entry(name, f"+llm.settings.extra.api_key={SECRET}") == 2
    assert SECRET not in capfd.readouterr().err


def test_the_variable_that_is_named_already_is_told():
    given = ["llm.key_env=MY_OWN_KEY", f"+llm.settings.extra.api_key={SECRET}"]
    with pytest.raises(InputError, match=r"export MY_OWN_KEY=.*llm\.key_env=MY_OWN_KEY"):
        refuse_secrets(given)


def test_what_is_no_secret_is_not_refused():
    refuse_secrets(
        [
            *(
                "llm.settings.max_output_tokens=8192",
                "reranker.batch_tokens=4096",
                "budget.tokens=5",
            ),
            *(
                "llm.key_env=MY_KEY",
                "llm.key_env=null",
                "reranker.tokenizer=t5-base",
                "-m",
                "a.b=nan",
            ),
            *("+llm.settings.extra.api_key='${oc.env:MY_KEY}'", "+llm.settings.extra.api_key=null"),
            *("+llm.settings.extra.extra_headers.Authorization='Bearer ${oc.env:MY_KEY}'", "~name"),
            *("llm.base_url=http://127.0.0.1:8000/v1", "unit=document,passage", "name=key=1"),
            *("retriever.k1=range(1,3)", "measures=[nDCG@10]", "tuning.references=[[0.9,0.4]]"),
        ]
    )


@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["one run", "sweep"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llm.settings.extra.password", "12345"),
        ("llm.settings.extra.proxy", f"http://user:{SECRET}@proxy:3128"),
        ("llm.settings.extra.proxy", "http://user:${oc.env:USER}@proxy:3128"),
        ("llm.settings.extra.note", f"the key is {SECRET}"),
        ("llm.key_env", SECRET),
    ],
)
def test_a_secret_in_a_file_of_options_is_refused(key, value, sweep, entry, tmp_path, capfd):
    preset = tmp_path / "options" / "experiment" / "leaky.yaml"
    preset.parent.mkdir(parents=True)
    values = OmegaConf.create({})
    OmegaConf.update(values, key, value)
    text = OmegaConf.to_yaml(values)
    preset.write_text(f"# @package _global_\ndefaults:\n  - override /llm: gpt-5.5\n{text}")
    given = (f"--config-dir={tmp_path / 'options'}", *TINY, "experiment=leaky", "name=x")
    assert entry("run", *sweep, *given) == 2
    told = capfd.readouterr()
    assert key in told.err and SECRET not in told.err + told.out and "12345" not in told.err
    written = [path.read_text() for path in Path("runs").rglob("*") if path.is_file()]
    assert not [text for text in written if SECRET in text or "12345" in text]
    assert not list(Path("runs").rglob("manifest.json"))


# A whole run, in which everything that could be written down is a secret.

PLANTED = {
    "key": "k1-planted-bd1f6c9e0a7355d2",
    "api_key": "k2-planted-7c01d2b4e9f88a36",
    "bearer": "k3-planted-52e7a0c41f96bb8d",
    "header": "k4-planted-e80d13c6a2745f9b",
    "password": "k5-planted-19ab47fd03ce682e",
    "hub": "k8-planted-3f9c72e5d0b84a16",
    "number": "9401736251840937",
    "reference": "k10-planted-a5d8e1370c94f62b",
}
# What a server says that quotes all that it was sent, which is all but the hub's token.
QUOTED = " ".join(secret for name, secret in PLANTED.items() if name != "hub")
OPTION = """\
_target_: soundingline.toolkit.llm.openai.OpenAIChat
model: m
base_url: ???
key_env: PLANTED_KEY
concurrency: 2
attempts: 1
settings:
  _target_: soundingline.toolkit.llm.messages.SamplingParams
  _convert_: all
  max_output_tokens: 777
  extra:
    api_key: ${oc.env:PLANTED_API_KEY}
    extra_headers:
      Authorization: Bearer ${oc.env:PLANTED_BEARER}
      X-Api-Key: ${oc.env:PLANTED_HEADER}
    hooks: [{url: http://hook, password: "${oc.env:PLANTED_PASSWORD}"}]
    client_secret: ${oc.env:PLANTED_NUMBER}
    webhook_secret: ${oc.env:PLANTED_REFERENCE}
server:
  _target_: soundingline.toolkit.llm.local_servers.VllmServer
  _convert_: all
  environment:
    HF_TOKEN: ${oc.env:PLANTED_HUB}
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A server that speaks chat completions, and the command of a run that asks it."""
    options = tmp_path / "options" / "llm"
    options.mkdir(parents=True)
    (options / "planted.yaml").write_text(OPTION)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for name, secret in PLANTED.items():
        monkeypatch.setenv(f"PLANTED_{name.upper()}", secret)
    with running_peer() as peer:
        yield (
            peer,
            (
                f"--config-dir={options.parent}",
                *TINY,
                "agent=pi_serini",
                "llm=planted",
                f"llm.base_url={peer.openai_url}",
                "preflight.questions=0",
            ),
        )


def secrets_in(folder):
    """Secrets in names and contents of all files below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [
        f"{name} in {path}"
        for path in files
        for name, secret in PLANTED.items()
        if secret.encode() in path.read_bytes() or secret in str(path)
    ]


def test_no_secret_is_in_anything_that_a_run_writes(entry, planted, capfd, monkeypatch):
    peer, command = planted
    peer.default = Say(text="Explanation: none\nExact Answer: x\nConfidence: 1%")
    peer.script.append(Fail(400, message=QUOTED))
    judge = ("judge=llm", "llm@judge_llm=planted", f"judge_llm.base_url={peer.openai_url}")
    assert entry("run", *command, *judge, "name=one") == 0
    sent = json.dumps([{**request.body, **request.headers} for request in peer.requests])
    # A test of secrets that are not used would tell nothing.
    assert [name for name, secret in PLANTED.items() if secret not in sent] == ["hub"]
    told = capfd.readouterr()
    assert secrets_in(Path()) == []
    assert [secret for secret in PLANTED.values() if secret in told.out + told.err] == []
    answers = "".join(path.read_text() for path in Path("runs/one/queries").glob("*.json"))
    assert "HTTP 400, ***" in answers
    config = json.loads(Path("runs/one/manifest.json").read_text())["config"]["llm"]
    assert config["key_env"] == "PLANTED_KEY" and config["settings"]["max_output_tokens"] == 777
    assert config["settings"]["extra"]["extra_headers"] == dict.fromkeys(
        ("Authorization", "X-Api-Key"), "***"
    )
    # Another key is not another model.
    monkeypatch.setenv("PLANTED_API_KEY", "renewed-" + SECRET)
    assert entry("run", *command, "name=one") == 0


# What a job writes does not depend on how many there are.
@pytest.mark.parametrize(
    ("launcher", "units"), [("basic", ["document", "passage"]), ("jobs_here", ["document"])]
)
def test_no_secret_is_in_anything_that_a_sweep_writes(launcher, units, entry, planted, capfd):
    if launcher != "basic":
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    peer, command = planted
    peer.default = Fail(400, message=QUOTED)
    given = (
        "+llm.settings.extra.other_key='${oc.env:PLANTED_REFERENCE}'",
        f"unit={','.join(units)}",
    )
    entry("run", "-m", *command, "name=s", f"hydra/launcher={launcher}", *given)
    told = capfd.readouterr()
    # Every request was refused, and nothing else went wrong.
    *lines, last = [line for line in told.err.splitlines() if line.startswith("soundingline:")]
    assert all("all 6 questions of the run" in line for line in lines)
    assert (
        last
        == f"soundingline: {len(units)} failed; correct the cause, and the same command continues"
    )
    assert len(list(Path("runs/s").glob("*/manifest.json"))) == len(units)
    assert "PLANTED_REFERENCE" in Path("runs/s/multirun.yaml").read_text()
    assert secrets_in(Path()) == []
    assert [secret for secret in PLANTED.values() if secret in told.out + told.err] == []


def test_a_secret_in_the_sweep_of_a_preset_is_refused(entry, tmp_path, capfd):
    preset = tmp_path / "options" / "experiment" / "leaky.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text(
        "# @package _global_\nname: leaky\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n"
        f"      +benchmark.api_key: {SECRET},other\n"
    )
    assert entry("run", f"--config-dir={tmp_path / 'options'}", *TINY, "experiment=leaky") == 2
    told = capfd.readouterr()
    assert "oc.env:API_KEY" in told.err and SECRET not in told.err + told.out
    assert SECRET not in "".join(path.read_text() for path in Path("runs").rglob("*.yaml"))
    assert not list(Path("runs").rglob("manifest.json"))


def test_reports_of_runs_of_earlier_versions_keep_their_secrets(entry):
    for name in ("a", "b"):
        assert entry("run", *TINY, f"name={name}") == 0
        path = Path(f"runs/{name}/manifest.json")
        manifest = json.loads(path.read_text())
        manifest["factors"]["llm.settings.extra.api_key"] = SECRET + name
        manifest["config"]["extra"] = {"extra_headers": {"Authorization": SECRET}}
        path.write_text(json.dumps(manifest))
    assert entry("compare", "runs/a", "runs/b", "name=c") == 0
    report = "".join(path.read_text() for path in Path("runs/c").rglob("*.*"))
    assert "Authorization" in report and SECRET not in report


def test_a_value_of_a_wrong_type_is_told_without_the_secret_in_it(entry, tmp_path, capfd):
    option = tmp_path / "options" / "benchmark" / "odd.yaml"
    option.parent.mkdir(parents=True)
    target = "soundingline.toolkit.benchmarks.fictional.FictionalWorld"
    text = f"_target_: {target}\nseed: {{api_key: {SECRET}}}\n"
    option.write_text(text)
    assert entry("rank", f"--config-dir={tmp_path / 'options'}", "benchmark=odd") == 2
    told = capfd.readouterr().err
    assert "benchmark.seed" in told and SECRET not in told


ATTACK = "\x1b]0;owned\x07\x1b[2J[/red]"
SHOWN = "␛]0;owned␇␛[2J[/red]"


def output(capsys):
    """All that was written, which holds nothing that a terminal obeys."""
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert not [char for char in text if unicodedata.category(char) == "Cc" and char not in "\t\n"]
    return text


@pytest.mark.parametrize(
    "error",
    [
        InputError(f"question {ATTACK}"),
        ModelError(f"m at host: HTTP 500, {ATTACK}"),
        OSError(5, f"no {ATTACK}", ATTACK),
        OmegaConfBaseException(f"value {ATTACK}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_told_in_a_line_that_the_terminal_does_not_obey(
    error,
    entry,
    monkeypatch,
    capsys,
):
    def fail(config):
        logging.getLogger("some.library").error("log of %s", ATTACK)
        raise error

    monkeypatch.setattr("soundingline.experiments.run.run", fail)
    assert entry("run", *TINY, "name=x") == 2
    text = output(capsys)
    assert f"log of {SHOWN}" in text and text.count(SHOWN) >= 2
    assert sys.excepthook is print_traceback  # and so is a defect's traceback


def test_ids_titles_and_names_of_a_benchmark_are_shown(entry, tmp_path, capsys):
    qids = [f"q{number}{ATTACK}" for number in range(3)]
    queries = [{"_id": qid, "text": f"{ATTACK} tide?", "answers": [ATTACK]} for qid in qids]
    evil = {"_id": "d9", "title": f"Tides {ATTACK}", "text": f"{ATTACK} The tide."}
    path = write_beir(
        tmp_path / f"tides{ATTACK.replace('/', '')}",
        corpus=CORPUS + json.dumps(evil) + "\n",
        queries="".join(f"{json.dumps(query)}\n" for query in queries),
        qrels=f"query-id\tcorpus-id\tscore\n{qids[0]}\tgone\t1\n{qids[1]}\td9\t1\n",
    )
    given = ("benchmark=beir", f"benchmark.path='{path}'")
    assert entry("index", *given) == 0
    assert entry("run", *given, "name=a") == 0
    assert entry("run", *given, "name=b", "tool=top_k") == 0
    assert entry("evaluate", "runs/a") == 0
    assert entry("compare", "runs/a", "runs/b", "name=c") == 0
    text = output(capsys)
    assert f"1 judged documents of {path.name}".translate({0x1B: "␛", 0x07: "␇"}) in text
    report = Path("runs/c/report.md").read_text()
    assert "\x1b" not in report


def test_a_servers_words_are_shown(entry, monkeypatch, capsys):
    def refuse(self, *_):
        raise AuthenticationFailed(f"the key is wrong {ATTACK}")

    monkeypatch.setattr("support.llm_model.ScriptedLanguageModel._choose", refuse)
    options = f"hydra.searchpath=[file://{Path(__file__).with_name('options')}]"
    assert entry("run", *TINY, options, "agent=pi_serini", "llm=scripted", "name=m") == 2
    assert f"the key is wrong {SHOWN}" in output(capsys)


def test_the_questions_that_judges_differ_on_are_shown(capsys):
    one, other = {ATTACK: True, "2": True}, {ATTACK: False, "2": True}
    Console(width=200).print(
        agreement_table(ATTACK, {("exact", f"llm {ATTACK}"): agreement(one, other)})
    )
    assert output(capsys).count(SHOWN) == 3


def test_each_command_ends_with_what_to_open_or_do_next(entry, capfd):
    for command, next_step in {
        "run": "open runs/run/traces/index.html, or soundingline compare runs/run ANOTHER_RUN",
        "rank": "soundingline compare runs/rank ANOTHER_RUN",
        "tune": "rank or run with retriever=bm25_from_tuning retriever.source=runs/tune",
        "index": "soundingline rank, or run, with the same options",
        "describe": f"soundingline run {' '.join(TINY)} name=describe",
    }.items():
        more = ("tuning.select=null", "tuning.report=test") if command == "tune" else ()
        named = () if command == "index" else (f"name={command}",)
        assert entry(command, *TINY, *more, *named) == 0, capfd.readouterr().err
        assert capfd.readouterr().err.splitlines()[-1] == f"Next: {next_step}"
    exported = ("runs/run", "format=browsecomp_plus", "out=exported")
    for command, words, next_step in (
        ("evaluate", ["runs/run"], "soundingline compare runs/run ANOTHER_RUN"),
        ("export", exported, "open exported"),
        ("import", ["exported", *exported[1:2], *TINY, "name=i"], "soundingline compare runs/i"),
        ("list", ["retriever"], "soundingline run --help retriever shows the arguments of each"),
        ("caches", ["caches"], "soundingline caches caches keep_gb=5 keeps the 5 GB that were"),
    ):
        Path("caches").mkdir(exist_ok=True)
        entry(command, *words)
        assert capfd.readouterr().err.splitlines()[-1].startswith(f"Next: {next_step}"), command
    # A sweep ends with the path of its report, once.
    assert entry("rank", "-m", *TINY, "name=s", "unit=document,passage") == 0
    captured = capfd.readouterr()
    assert captured.out.endswith("Report: runs/s/report.html\n") and "Next" not in captured.err


# Whole runs on a sealed benchmark: nothing of its texts is on disk, and everything is readable
# again.

OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = (
    f"hydra.searchpath=[file://{OPTIONS}]",
    "agent=pi_serini",
    "llm=scripted",
    "rewriter=q2q",
    "llm@rewriter_llm=scripted",
    "preflight.stop=false",
    "judge=llm",
    "llm@judge_llm=scripted",
)


@pytest.fixture
def benchmark(entry, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)
    return write_benchmark(tmp_path / "published")


def one_line(capsys):
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "soundingline: " in each]
    return line


def test_no_text_of_a_sealed_benchmark_is_on_disk(entry, benchmark, monkeypatch):
    assert entry("run", *benchmark, "name=rules", "tool=top_k", "unit=passage") == 0
    assert entry("run", *benchmark, *SCRIPTED, "name=chat") == 0
    assert entry("rank", *benchmark, *SCRIPTED, "name=ranked") == 0
    assert entry("tune", *benchmark, "tuning.select=null", "grid.k1=[0.9]", "name=tuned") == 0
    assert entry("replay", "runs/rules", "name=again", "retriever=ql") == 0
    assert entry("compare", "runs/rules", "runs/chat", "name=both") == 0
    published = ("published", "indexes")  # which say so
    written = [path for path in Path().iterdir() if path.name not in published]
    assert {"runs", "caches"} <= {path.name for path in written} and len(TEXTS) >= 10
    assert not list(leaks(*written))
    (verdicts,) = Path("runs/chat/evaluation").glob("verdicts-llm-*.jsonl")
    for path in (Path("runs/ranked/rewrites.jsonl"), verdicts):
        assert path.read_bytes().startswith(b"~sealed:")
    # What was to be hidden is there, and is read back.
    for name in ("rules", "chat"):
        recorded = {t.qid: t for t in RunFolder(f"runs/{name}").trajectories()}
        assert {qid: t.question for qid, t in recorded.items()} == QUESTIONS
        shown = " ".join(call.output for t in recorded.values() for call in t.calls)
        assert any(sentence in shown for sentence in SENTENCES)
    assert set(verdicts_in(verdicts)) == set(QUESTIONS)
    assert ANSWERS["11"] in read_text(Path("runs/rules/evaluation/verdicts.json"))
    assert list(Path("caches/sealed").glob("*.sqlite")) and not list(Path("caches").glob("*.sql*"))


def test_a_sealed_run_is_resumed_evaluated_and_compared_with_the_canary(entry, benchmark, capsys):
    cells = (*benchmark, "name=s", "retriever=bm25_default,bm25_tuned")
    assert entry("run", "-m", *cells) == 0
    cell = next(Path("runs/s").glob("*/metrics.json")).parent
    before = (cell / "metrics.json").read_text()
    removed = next((cell / "queries").glob("*.json"))
    removed.unlink()
    assert entry("run", "-m", *cells) == 0
    assert removed.exists()
    assert entry("evaluate", str(cell)) == 0
    assert json.loads((cell / "metrics.json").read_text()).keys() == json.loads(before).keys()
    moved = shutil.copytree(cell, "elsewhere")
    assert entry("evaluate", str(moved)) == 0
    assert entry("judge", str(moved)) == 2  # one judge alone has judged it
    assert "only exact_answer has judged" in capsys.readouterr().err
    assert not list(leaks("runs", "elsewhere"))


@pytest.mark.parametrize("value", ["", "another canary"])
def test_without_the_canary_every_command_ends_in_one_line(
    entry,
    benchmark,
    monkeypatch,
    capsys,
    value,
):
    assert entry("run", *benchmark, "name=s") == 0
    capsys.readouterr()
    monkeypatch.setenv(VARIABLE, value)
    for command in (("run", *benchmark, "name=s"), ("evaluate", "runs/s")):
        assert entry(*command) == 2
        line = one_line(capsys)
        assert VARIABLE in line and CANARY not in line and "another" not in line
    assert entry("run", *benchmark, "name=new") == 2
    assert not Path("runs/new").exists()


def test_numbers_of_a_sealed_run_need_no_canary(entry, benchmark, monkeypatch):
    assert entry("run", *benchmark, "name=a") == 0
    assert entry("run", *benchmark, "name=b", "retriever=bm25_tuned") == 0
    monkeypatch.delenv(VARIABLE)
    assert entry("compare", "runs/a", "runs/b", "name=both") == 0
    assert Path("runs/both/report.html").exists()


def test_sealed_false_leaves_texts_as_they_are_and_is_another_run(entry, benchmark, capsys):
    assert entry("run", *benchmark, "name=s", "sealed=false") == 0
    assert {text for _, text in leaks("runs")} >= {*QUESTIONS.values(), *ANSWERS.values()}
    capsys.readouterr()
    assert entry("run", *benchmark, "name=s") == 2
    assert "another sealed (was no, now yes)" in one_line(capsys)


def test_indexes_are_in_the_clear_and_say_so(entry, benchmark):
    assert entry("index", *benchmark) == 0
    folder = Path("indexes/browsecomp_plus")
    assert "Do not publish" in (folder / "NOT-SEALED.txt").read_text()
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_failed_cell_is_told_on_the_terminal_and_quotes_nothing_on_disk(
    entry, benchmark, capsys, tmp_path
):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "failing_judge.py").write_text(
        "from soundingline.toolkit.evaluation import ExactAnswerJudge\n"
        "class FailingJudge(ExactAnswerJudge):\n"
        "    def verdict(self, qid, answer, accepted):\n"
        "        raise RuntimeError('cannot judge ' + accepted[0])\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "own"))
        target = "judge._target_=failing_judge.FailingJudge"
        code = entry("run", "-m", *benchmark, "name=s", target, "retriever=bm25_default,ql")
    assert code == 1
    assert ANSWERS["11"] in capsys.readouterr().err
    assert not list(leaks("runs"))


def test_the_manifest_names_the_tokenizer_and_another_one_is_another_run(
    entry,
    benchmark,
    tmp_path,
    capsys,
):
    path = write_tokenizer(tmp_path / "tiny.json")
    command = ("run", *benchmark, "name=t", "tool=top_k", f"tool.tokenizer={path}")
    assert entry(*command) == 0
    manifest = json.loads(Path("runs/t/manifest.json").read_text())
    assert manifest["config"]["tool"]["tokenizer"] == str(path)
    assert manifest["fingerprints"]["tool.tokenizer"].startswith("tiny.json@")
    capsys.readouterr()
    path.write_text(path.read_text() + "\n")
    tokens._loaded.cache_clear()
    assert entry(*command) == 2
    assert "another tool.tokenizer" in one_line(capsys)
    assert entry("run", *benchmark, "name=u", "tool=top_k", "tool.tokenizer=nowhere.json") == 2
    assert "no tokenizer at nowhere.json" in one_line(capsys)
    assert not Path("runs/u").exists()


def test_phrases_of_a_sealed_corpus_are_sealed(entry, benchmark):
    phrases = json.dumps({"keywords": [SENTENCES[0].rstrip(".")]})
    model = ("llm@enrichment_llm=scripted", f"enrichment_llm.says='{phrases}'")
    enrichment = (SCRIPTED[0], *model, "enrichment=sira", "enrichment.sides=corpus")
    assert entry("enrich", *benchmark, *enrichment) == 0
    assert list(Path("caches/sealed").glob("*.sqlite"))
    assert not list(leaks("caches"))  # the run's manifest has what the test tells its model


def test_any_run_that_says_so_in_its_fingerprints_is_sealed():
    assert make_manifest({}, {"sealed": "yes"})["sealed"] is True
    assert "sealed" not in make_manifest({}, {"sealed": "no"})
