"""Local servers of vLLM and llama.cpp, and the options of llm."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pytest
from hydra.utils import instantiate
from llm_clients import using
from omegaconf import OmegaConf
from support.assertions import refused
from support.benchmarks import CANARY, VARIABLE
from support.commands import CommandProcess, forked
from support.needs import needs

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings
from soundingline.pipelines.prompting import CachedLLM
from soundingline.pipelines.stage import Counts
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.judge import LlmJudge
from soundingline.toolkit.files import mark_obfuscated
from soundingline.toolkit.llm import local_servers
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.local_servers import (
    LlamaCppServer,
    LocalServer,
    Servers,
    VllmServer,
    _stop,
    serving,
    tail,
)
from soundingline.toolkit.llm.messages import SamplingParams, Turn, user
from soundingline.toolkit.llm.openai import OpenAIChat
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.locks import process_alive
from soundingline.toolkit.obfuscation import is_obfuscated, read_text

FAKE = Path(__file__).with_name("fake_server.py")
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True)
class FakeServer(LocalServer):
    """A server that takes no model."""

    program: str = sys.executable
    how: str = "serve"
    name = "fake server"
    key_variable = "FAKE_KEY"
    installed_by = "vllm"

    def check(self, model):
        """All is well."""

    def weights_fingerprint(self, model, hashed):
        return ""

    def command(self, model, port):
        return [self.program, str(FAKE), "--port", str(port), "--how", self.how]


class Place:
    """Where a fake server leaves its log and its process ids."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.log = folder / "logs" / "server.log"
        self.pids_file = folder / "pids"
        self.environment = {"PIDS": str(self.pids_file)}

    def pids(self):
        until(self.pids_file.exists)
        return [int(pid) for pid in self.pids_file.read_text().split()]

    def runs(self):
        return all(map(running, self.pids()))

    def all_gone(self):
        return not any(map(running, self.pids()))


def running(pid):
    """Whether the process runs: a killed one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False if Path("/proc/self").exists() else process_alive(pid)


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture(params=["clear", "sealed"])
def any_place(request, place, monkeypatch):
    """One whose log is as the server writes it, and one whose log is sealed."""
    if request.param == "sealed":
        monkeypatch.setenv(VARIABLE, CANARY)
        mark_obfuscated(place.log.parent)
    return place


def serve(place, how="serve", grace=5.0, **arguments):
    server = FakeServer(how=how, environment=place.environment, **arguments)
    return serving(server, "m", log=place.log, grace=grace)


@pytest.mark.slow
def test_it_is_healthy_inside_the_block_and_gone_after_with_its_log(any_place):
    place = any_place
    sealed = is_obfuscated(place.log)
    with serve(place) as address:
        with urllib.request.urlopen(f"{address}/health") as answer:
            assert answer.status == 200
        assert place.runs()
        assert (b"loading weights" in place.log.read_bytes()) != sealed
        assert "loading weights" in tail(place.log)
    until(place.all_gone, 2.0)
    assert read_text(place.log).endswith("ended as asked\nthe server ended with code 0\n")
    lines = place.log.read_bytes().splitlines()
    assert all(line.startswith(b"~sealed:") for line in lines) == sealed


@pytest.mark.slow
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("how", ["serve", "stubborn"])
def test_an_exception_ends_it_with_its_children(place, error, how):
    with pytest.raises(error), serve(place, how, grace=5.0 if how == "serve" else 0.2):
        raise error
    until(place.all_gone, 2.0)
    assert ("ended as asked" in place.log.read_text()) == (how == "serve")


@pytest.mark.slow
def test_one_that_ends_early_is_reported_with_its_last_words(any_place):
    told = rf"before it was ready.*out of memory.*{any_place.log}"
    refused(told, serve(any_place, "crash").__enter__)


def test_a_log_that_is_a_symbolic_link_is_refused_before_anything_starts(place):
    target = place.pids_file.with_name("thesis.txt")
    target.write_text("years of work")
    place.log.parent.mkdir()
    place.log.symlink_to(target)
    refused("symbolic link", serve(place).__enter__)
    assert target.read_text() == "years of work" and not place.pids_file.exists()


@pytest.mark.slow
def test_one_that_is_never_healthy_is_ended_and_reported(place):
    refused(r"not ready within 3 s", serve(place, "silent", start_seconds=3.0).__enter__)
    until(place.all_gone, 2.0)


def test_a_program_that_is_not_installed_is_reported_with_what_to_do(tmp_path):
    server = FakeServer(program="no-such-server")
    with pytest.raises(InputError, match=r"no-such-server.*\[vllm\].*llm\.base_url"):
        serving(server, "m", log=tmp_path / "log").__enter__()


def serve_until_ended(ready, place, end):
    # What runs in the background ignores an interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with serve(place):
        ready()
        if end is None:
            os._exit(3)
        time.sleep(60)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, None])
def test_it_ends_with_its_parent_however_that_ends(any_place, end):
    parent = forked(serve_until_ended, any_place, end)
    if end is not None:
        os.kill(parent.pid, end)
    parent.join(10)
    until(any_place.all_gone)


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    (tmp_path / "log").write_bytes(b"one\n\ntwo\n\xff three\n")
    assert tail(tmp_path / "log", 2) == "two | � three"


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


MODULE = ["python", "-m", "vllm.entrypoints.openai.api_server"]
AT = ["--host", "127.0.0.1", "--port", "8001"]
COMMANDS = {
    "vllm": (VllmServer(), ["vllm", "serve", "m", *AT]),
    "vllm by another launcher": (VllmServer(launcher=MODULE), [*MODULE, "--model", "m", *AT]),
    "vllm with options": (
        VllmServer(
            weights="/models/glm",
            options={
                "tensor_parallel_size": 4,
                "gpu_memory_utilization": 0.9,
                "tool_call_parser": "glm47",
                "enable_prefix_caching": False,
                "enforce_eager": True,
                "async-scheduling": False,
                "structured-outputs-config": {"backend": "xgrammar"},
                "load-format": None,
            },
        ),
        [
            *("vllm", "serve", "/models/glm", *AT),
            *("--served-model-name", "m", "--enable-auto-tool-choice"),
            *("--tensor-parallel-size", "4", "--gpu-memory-utilization", "0.9"),
            *("--tool-call-parser", "glm47", "--no-enable-prefix-caching", "--enforce-eager"),
            *("--no-async-scheduling", "--structured-outputs-config", '{"backend":"xgrammar"}'),
        ],
    ),
    "llama.cpp": (
        LlamaCppServer(launcher=["llama-server"], context_length=4096),
        ["--ctx-size", "4096", "--parallel", "1"],
    ),
    "llama.cpp with a window for each request": (
        LlamaCppServer(
            launcher=["llama-server"],
            context_length=4096,
            parallel=3,
            threads=2,
            gpu_layers=0,
            extra={"flash_attn": "on", "no-webui": True, "seed": None},
        ),
        [
            *("--ctx-size", str(3 * 4096), "--parallel", "3", "--threads", "2"),
            *("--gpu-layers", "0", "--flash-attn", "on", "--no-webui"),
        ],
    ),
}


@pytest.mark.parametrize(("server", "command"), COMMANDS.values(), ids=COMMANDS.keys())
def test_the_command_line_has_the_servers_own_options(server, command, weights):
    if isinstance(server, LlamaCppServer):
        server = replace(server, gguf=str(weights))
        command = ["llama-server", "--model", str(weights), "--alias", "m", *AT, *command]
    assert server.command("m", 8001) == command


SECRET = "VLLM_API_KEY"
REFUSED = [
    (VllmServer(weights="--rm"), "the model to serve"),
    (VllmServer(launcher=[]), "list of words"),
    (VllmServer(launcher="vllm serve"), "list of words"),
    (VllmServer(options={"api_key": "sk-1"}), SECRET),
    (VllmServer(options={"api-key": ["sk-1", "sk-2"]}), SECRET),
    (VllmServer(options={"hf_token": "hf_1"}), SECRET),
    (VllmServer(options={"speculative-config": {"model": "m", "auth_token": "t"}}), SECRET),
    (VllmServer(launcher=["vllm", "serve", "--api-key", "sk-1"]), SECRET),
    (VllmServer(launcher=["env", "VLLM_API_KEY=sk-1", "vllm", "serve"]), SECRET),
    (LlamaCppServer(), r"llm\.server\.gguf"),
    (LlamaCppServer(file="q4.gguf"), r"llm\.model=<owner/name"),
    (LlamaCppServer(gguf="model.safetensors"), r"\.gguf file"),
    (LlamaCppServer(gguf="m.gguf", parallel=0), "parallel"),
    (LlamaCppServer(gguf="m.gguf", context_length=0), "context_length"),
    (LlamaCppServer(gguf="m.gguf", threads=0), "threads"),
    (LlamaCppServer(gguf="m.gguf", launcher="llama-server"), "list of words"),
    (LlamaCppServer(gguf="m.gguf", extra={"api_key": "sk-1"}), "LLAMA_API_KEY"),
]


@pytest.mark.parametrize(("server", "told"), REFUSED, ids=str)
def test_what_cannot_work_or_holds_a_secret_is_refused_before_anything_starts(server, told):
    with pytest.raises(InputError, match=told) as raised:
        OpenAIChat(model="m", server=server)
    assert not any(secret in str(raised.value) for secret in ("sk-1", "hf_1"))
    OpenAIChat(model="m", server=server, base_url="http://127.0.0.1:9/v1")  # which starts none


def accepting_fake(place, folder):
    """A server that takes vLLM's options, of which only the port concerns it."""
    script = folder / "accepting_fake.py"
    script.write_text(
        "import runpy, sys\n"
        "sys.argv = [sys.argv[0], '--port', sys.argv[sys.argv.index('--port') + 1]]\n"
        f"runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    return VllmServer(launcher=[sys.executable, str(script)], environment=place.environment)


@pytest.mark.slow
def test_a_local_model_is_served_and_asked_at_its_own_server(place, tmp_path):
    model = OpenAIChat(model="tiny", server=accepting_fake(place, tmp_path))
    with model.running(place.log) as client:
        assert client.name == "tiny"
        assert client.address.startswith("http://127.0.0.1:")
        assert client.address.endswith("/v1")
        assert place.runs()
    until(place.all_gone, 2.0)


@pytest.mark.slow
def test_the_key_of_our_server_is_passed_by_environment_and_stands_on_no_command_line(
    place, tmp_path, monkeypatch
):
    secret = "sk-served-0123456789abcdef"
    monkeypatch.setenv("MY_KEY", secret)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    server = accepting_fake(place, tmp_path)
    model = OpenAIChat(model="tiny", key_env="MY_KEY", server=server)
    with model.running(place.log):
        (pid, _) = place.pids()
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert f"VLLM_API_KEY={secret}".encode() in environment
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        for process in (str(pid), parent):
            assert secret.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()
    until(place.all_gone, 2.0)
    assert secret not in place.log.read_text()


@pytest.mark.slow
def test_models_of_equal_servers_share_one(place, tmp_path):
    server = accepting_fake(place, tmp_path)
    agent, rewriter = (OpenAIChat(model="t", server=server) for _ in "ab")
    other = OpenAIChat(model="other", server=server)
    with Servers() as servers:
        with agent.running(place.log, servers) as first:
            pids = place.pids()
            with rewriter.running(place.log, servers) as second:
                assert second is not first
                assert second.address == first.address
                assert place.pids() == pids
            # The one that started it is still at work.
            assert all(map(running, pids))
            with other.running(tmp_path / "other.log", servers) as third:
                assert third.address != first.address
                assert all(map(running, pids))
        assert all(map(running, pids))
    until(lambda: not any(map(running, pids)), 2.0)
    until(place.all_gone, 2.0)


@pytest.mark.slow
def test_a_server_outlives_its_run_until_another_needs_its_room_or_it_dies(place, tmp_path):
    server = accepting_fake(place, tmp_path)
    one, other = (OpenAIChat(model=n, server=server) for n in ("a", "b"))
    with Servers() as servers:
        addresses = []
        for cell in ("first", "second"):
            with one.running(tmp_path / cell / "server.log", servers) as client:
                addresses.append(client.address)
        assert addresses[0] == addresses[1]
        assert not (tmp_path / "second").exists()
        pids = place.pids()
        assert all(map(running, pids))
        with other.running(place.log, servers):
            assert not any(map(running, pids))
            pids = place.pids()
            assert all(map(running, pids))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with other.running(place.log, servers):
            assert set(pids).isdisjoint(place.pids()) and place.runs()
    until(place.all_gone, 2.0)


@pytest.mark.slow
def test_the_log_of_an_open_run_never_gets_the_lines_of_a_sealed_one(place, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)
    model = OpenAIChat(model="t", server=accepting_fake(place, tmp_path))
    mark_obfuscated(tmp_path / "sealed")
    logs = [tmp_path / name / "server.log" for name in ("open", "sealed")]
    with Servers() as servers:
        for log in logs:
            with model.running(log, servers):
                pass
    # Each has the lines of a server of its own.
    assert [read_text(log).count("loading weights") for log in logs] == [1, 1]
    lines = [log.read_bytes().splitlines() for log in logs]
    assert not any(line.startswith(b"~sealed:") for line in lines[0])
    assert all(line.startswith(b"~sealed:") for line in lines[1])


def test_a_server_that_runs_already_is_used_and_none_is_started(tmp_path, peer):
    server = VllmServer(launcher=["no-such-server"])
    model = OpenAIChat(model="tiny", base_url=peer.openai_url, server=server)
    with model.running(tmp_path / "server.log") as client:
        assert using(client, lambda it: it.respond([user("?")])).text == "done"
    assert not (tmp_path / "server.log").exists()


def vllm_weights(weights, model="m", **options):
    """What a model of these weights is beside its name."""
    server = VllmServer(weights=str(weights) if weights else None, options=options)
    llm = OpenAIChat(model=model, server=server)
    llm.fingerprint_weights(None)
    return llm.weights_fingerprint


def test_weights_in_a_folder_are_told_by_what_it_holds(tmp_path):
    folder, copy = tmp_path / "weights", tmp_path / "copy"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "model-00001.safetensors").write_bytes(b"first")
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer" / "vocabulary.txt").write_text("a b")
    first = vllm_weights(folder)
    shutil.copytree(folder, copy)
    (copy / ".cache").mkdir()
    (copy / ".cache" / "downloaded").write_text("yesterday")
    assert first and vllm_weights(copy) == first
    assert vllm_weights(None, model=str(copy)) == first, (
        "vLLM takes a folder for the model's name too"
    )

    changes = [
        lambda copy: (copy / "model-00001.safetensors").write_bytes(b"other"),
        lambda copy: (copy / "tokenizer" / "vocabulary.txt").write_text("a c"),
        lambda copy: (copy / "config.json").rename(copy / "config.json.old"),
        lambda copy: (copy / "chat_template.jinja").write_text("{{ messages }}"),
    ]
    for change in changes:
        shutil.rmtree(copy)
        shutil.copytree(folder, copy)
        change(copy)
        assert vllm_weights(copy) != first


def test_weights_of_the_hub_are_identified_by_their_names_files_and_revision():
    name = "owner/model"
    assert vllm_weights(None, model=name) == vllm_weights(name, model=name) == ""
    assert vllm_weights(name) == name
    assert vllm_weights(None, model=name, revision="abc") == "abc"
    assert vllm_weights(name, revision="abc") == f"{name}@abc"
    for file in ("q4.gguf", "q8.gguf"):
        model = OpenAIChat(model=HUB, server=LlamaCppServer(file=file))
        model.fingerprint_weights(None)
        assert model.weights_fingerprint == file


# llama.cpp.

HUB = "Qwen/Qwen2.5-1.5B-Instruct-GGUF"


@pytest.mark.parametrize("installed", [True, False])
def test_the_program_on_the_path_is_preferred_to_the_one_in_the_package(
    installed, weights, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(local_servers, "check_optional", lambda package: None)
    if installed:
        program = tmp_path / "llama-server"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    command = LlamaCppServer(gguf=str(weights)).command("m", 1)
    assert command[0] == ("llama-server" if installed else sys.executable)


def test_without_program_and_package_both_are_named(weights, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("soundingline.toolkit.optional.find_spec", lambda package: None)
    refused(r"xllamacpp.*\.\[llamacpp\]", LlamaCppServer(gguf=str(weights)).command, "m", 1)


def test_a_file_of_the_hub_is_fetched_only_when_the_server_starts(monkeypatch, weights):
    asked = []

    def fetched(name, file):
        asked.append((name, file))
        return weights

    monkeypatch.setattr(local_servers, "hub_file", fetched)
    server = LlamaCppServer(file="q4.gguf", launcher=["llama-server"])
    OpenAIChat(model=HUB, server=server)
    assert asked == []
    command = server.command(HUB, 1)
    assert command[command.index("--model") + 1] == str(weights)
    assert asked == [(HUB, "q4.gguf")]


@pytest.mark.slow
@needs(("xllamacpp",), "llamacpp")
def test_a_file_that_holds_no_model_is_told_in_llamacpps_words(weights, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    server = LlamaCppServer(gguf=str(weights))
    model = OpenAIChat(model="m", server=server)
    running = model.running(tmp_path / "server.log")
    with (
        pytest.raises(InputError, match=r"^llama\.cpp ended before it was ready") as raised,
        running,
    ):
        pass
    assert f"failed to load model '{weights}'" in str(raised.value)
    assert "Traceback" not in str(raised.value)


def gguf_weights(file, **arguments):
    """What a model of that file is beside its name."""
    model = OpenAIChat(model="m", server=LlamaCppServer(gguf=str(file)), **arguments)
    model.fingerprint_weights(None)
    return model.weights_fingerprint


def test_weights_are_told_by_what_the_file_holds(weights, tmp_path):
    first = gguf_weights(weights)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(weights.read_bytes())
    assert first and gguf_weights(copy) == first
    weights.write_bytes(b"GGUF, another")
    assert gguf_weights(weights) != first
    assert gguf_weights(weights, base_url="http://127.0.0.1:1/v1") == ""  # somebody else's weights


def test_every_part_of_the_weights_counts(tmp_path):
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in (*parts, tmp_path / "m-00001-of-00003.gguf"):
        part.write_bytes(b"GGUF")
    hashed = []
    server = LlamaCppServer(gguf=str(parts[0]))
    server.weights_fingerprint("m", lambda path: hashed.append(path) or "")
    assert hashed == parts
    first = gguf_weights(parts[0])
    parts[1].write_bytes(b"GGUF, another")
    assert gguf_weights(parts[0]) != first


def test_weights_that_are_absent_are_reported_before_a_run():
    refused(r"no file .*no\.gguf.*llm\.server\.gguf", gguf_weights, Path("no.gguf"))


def test_replies_and_verdicts_of_other_weights_are_kept_apart():
    def key(content):
        llm = CachedLLM(name="x", parts=["part"], is_empty=lambda text: not text, counts=Counts())
        return llm.key(BlockingModel("gguf", role="rewriter", weights_fingerprint=content))

    assert key("") == key("") and len({key(""), key("one"), key("other")}) == 3
    model = OpenAIChat(model="gguf")
    judges = [LlmJudge().bind(model).fingerprint]
    vars(model)["weights_fingerprint"] = "one"
    judges.append(LlmJudge().bind(model).fingerprint)
    assert judges[0] != judges[1]


@pytest.mark.slow
def test_a_server_of_its_own_job_is_found_by_the_file_of_its_address(place, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-shared-0123456789abcdef")
    server = accepting_fake(place, tmp_path)
    launcher = ",".join(f"'{word}'" for word in server.launcher)
    model = OpenAIChat(
        model="tiny",
        key_env="VLLM_API_KEY",
        base_url=f"file:{tmp_path}/runs/model.address",
        server=VllmServer(start_seconds=60),
    )
    options = ("llm=vllm/qwen3_8b", "llm.model=tiny", f"llm.server.launcher=[{launcher}]")
    environment = f"++llm.server.environment={{PIDS:'{place.pids_file}'}}"
    job = CommandProcess("model", "placement=shared_server", *options, environment, folder=tmp_path)
    # It is waited for, and the file is there when it is ready.
    with model.running(place.log) as client:
        assert re.fullmatch(rf"http://{re.escape(socket.gethostname())}:\d+/v1", client.address)
        assert all(map(running, place.pids()))
        command = Path(f"/proc/{place.pids()[0]}/cmdline").read_bytes()
    assert b"sk-shared" not in command
    assert job.poll() is None  # the run that asked it has ended
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=60).returncode == 0
    until(place.all_gone, 5.0)
    assert not (tmp_path / "runs" / "model.address").exists()


def test_a_file_without_an_address_is_told_with_what_to_start(tmp_path):
    absent = f"file:{tmp_path}/address"
    model = OpenAIChat(model="tiny", base_url=absent, server=VllmServer(start_seconds=0.1))
    with (
        pytest.raises(InputError, match="start one with the same options"),
        model.running(tmp_path),
    ):
        pass
    (tmp_path / "address").write_text("node7:8000\n")
    with pytest.raises(InputError, match="base_url is 'node7:8000'"), model.running(tmp_path):
        pass


# The options of `llm`: each makes a model without key, network or weights.


CONF = ROOT / "conf" / "llm"
# Not with_suffix, because the names of models have dots.
FILES = sorted(str(path.relative_to(CONF)).removesuffix(".yaml") for path in CONF.rglob("*.yaml"))
OPTIONS = [name for name in FILES if not name.startswith("base/")]
BILLED = ["claude-opus-4.7", "deepseek-v4-flash", "gpt-5.5"]


def composed(option, **overrides):
    if option == "openai_compatible":
        overrides = {"model": "m", "base_url": "http://127.0.0.1:9/v1", **overrides}
    if option == "llamacpp/gguf":
        overrides = {"server.gguf": "/models/any.gguf", **overrides}
    values = [f"llm.{key}={value}" for key, value in overrides.items()]
    return Settings.compose([f"llm={option}", *values]).config.llm


def leaves(value, place=""):
    """Keys with dots, and their values, of nested mappings."""
    if not isinstance(value, Mapping):
        yield place, value
        return
    for key, inner in value.items():
        yield from leaves(inner, f"{place}.{key}".lstrip("."))


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_makes_a_model_whose_request_is_json_and_whose_settings_can_be_set(option):
    config = composed(option, **{"settings.temperature": 0.5, "concurrency": 3})
    # The others are set by the agent and by the stage that asks.
    assert set(SamplingParams.__dataclass_fields__) - set(config.settings) == {
        *("tool_choice", "logprobs", "answer")
    }
    model = instantiate(config)
    assert model.settings.temperature == 0.5 and model.concurrency == 3
    assert isinstance(model, LanguageModel) and isinstance(model.price, Price)
    assert model.price.known == (option in BILLED)
    tool = {"name": "t", "description": "", "parameters": {"type": "object", "properties": {}}}
    body = model._body([user("?")], [] if model.continues_text else [tool], model.settings)
    assert json.loads(json.dumps(body)) == body
    assert config.key_env is None or re.fullmatch(r"[A-Z]+_API_KEY", config.key_env)
    assert "sk-" not in (CONF / f"{option}.yaml").read_text()


@pytest.mark.parametrize("option", BILLED)
def test_a_billed_model_has_a_dated_price_with_its_source(option):
    price = instantiate(composed(option)).price
    assert price.known and price.cached_input is not None and price.source
    assert date(2026, 1, 1) <= date.fromisoformat(price.dated)


def test_prices_that_a_paper_printed_are_the_paper_s():
    # arXiv 2605.10848 prints input, output and cache read of gpt-5.5.
    price = instantiate(composed("gpt-5.5")).price
    assert (price.input, price.output, price.cached_input) == (5.0, 30.0, 0.5)


@pytest.mark.parametrize(
    ("option", "parsers"),
    [
        ("vllm/gpt_oss_20b", ["--tool-call-parser", "openai"]),
        ("vllm/glm_4_7_flash", ["--tool-call-parser", "glm47"]),
        ("vllm/glm_4_7_flash", ["--reasoning-parser", "glm45"]),
        ("vllm/qwen3_8b", ["--tool-call-parser", "hermes"]),
        ("vllm/qwen3_8b", ["--reasoning-parser", "qwen3"]),
    ],
)
def test_a_local_model_is_served_with_its_parsers(option, parsers):
    model = instantiate(composed(option))
    command = model.server.command(model.name, 8000)
    assert command[:3] == ["vllm", "serve", model.name]
    assert command[command.index(parsers[0]) + 1] == parsers[1]
    assert "--enable-auto-tool-choice" in command
    assert str(model.context_window) == command[command.index("--max-model-len") + 1]


INHERITING = [
    path
    for group in ("llm", "budget")
    for path in sorted((CONF.parent / group).rglob("*.yaml"))
    if "defaults" in OmegaConf.load(path)
]


def loaded(path):
    """What an option says itself, and the path of the option that it inherits."""
    own = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    first = own.pop("defaults")[0].partition("@")[0]
    above = first if first.startswith("/") else f"/{path.parent.relative_to(CONF.parent)}/{first}"
    return own, above


@pytest.fixture(scope="module")
def inherited(tmp_path_factory):
    """What each option inherits, by its path; each group is composed once."""
    folder, values = tmp_path_factory.mktemp("conf"), {}
    for group in ("llm", "budget"):
        paths = [path for path in INHERITING if path.is_relative_to(CONF.parent / group)]
        lines = [f"- {loaded(path)[1]}@of_{n}\n" for n, path in enumerate(paths)]
        (folder / group).mkdir()
        (folder / group / "inherited.yaml").write_text(f"defaults:\n{''.join(lines)}")
        config = Settings.compose([f"{group}=inherited"], [f"file://{folder}"]).config[group]
        composed = OmegaConf.to_container(config, resolve=False)
        values |= {path: composed[f"of_{n}"] for n, path in enumerate(paths)}
    return values


@pytest.mark.parametrize("path", INHERITING, ids=lambda path: path.stem)
def test_an_option_says_only_what_is_different_from_what_it_inherits(path, inherited):
    before, (option, _) = list(leaves(inherited[path])), loaded(path)
    assert [leaf for leaf in leaves(option) if leaf in before] == []


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Loud(OpenAIChat):
    """A model of one's own: it repeats the last message, in capitals if it is loud."""

    loud: bool = True

    async def respond(self, messages, tools=(), settings=None):
        text = messages[-1]["content"]
        return Turn(text=text.upper() if self.loud else text)


@pytest.mark.parametrize("loud", [True, False])
def test_a_model_of_one_s_own_is_a_class_with_its_arguments(loud, tmp_path):
    option = {
        "_target_": f"{__name__}.Loud",
        "model": "mine",
        "base_url": "http://127.0.0.1:9",
        "concurrency": 3,
        "loud": loud,
    }
    model = make(OmegaConf.create(option))
    with model.running(tmp_path / "log") as running:
        turn = asyncio.run(running.respond([user("aloud")]))
    assert turn.text == ("ALOUD" if loud else "aloud")
    assert (running.name, running.address, running.concurrency) == ("mine", option["base_url"], 3)


@pytest.mark.parametrize("wrong", [{"lod": True}, {"loud": "very"}, {"concurrency": 0.5}])
def test_a_mistyped_argument_of_a_model_is_refused(wrong):
    option = {"_target_": f"{__name__}.Loud", "model": "mine", **wrong}
    refused(next(iter(wrong)), make, OmegaConf.create(option))


WITHOUT_HTTP = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(("httpx2", "vllm")))
import soundingline.toolkit.llm
for module in pkgutil.iter_modules(soundingline.toolkit.llm.__path__):
    importlib.import_module(f"soundingline.toolkit.llm.{module.name}")
"""


def test_importing_needs_no_http_library():
    command = [sys.executable, "-c", WITHOUT_HTTP]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_guard_that_hangs_is_killed():
    """It does not end when its standard input is closed."""
    guard = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, start_new_session=True)
    with pytest.raises(subprocess.TimeoutExpired):
        _stop(guard, grace=-4.9)  # It waits five seconds longer than that.
    assert guard.poll() == -signal.SIGKILL
