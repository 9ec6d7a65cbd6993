"""Local servers of vLLM and llama.cpp: command lines, weights, start, and that nothing of them is
ever left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from llm_clients import using
from support.benchmarks import CANARY, VARIABLE
from support.commands import CommandProcess
from support.needs import needs

from soundingline.pipelines.counts import Counts
from soundingline.pipelines.prompting import CachedLLM
from soundingline.pipelines.q2q import is_empty
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.judge import LlmJudge
from soundingline.toolkit.files import process_alive
from soundingline.toolkit.llm import local_servers
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.local_servers import LlamaCppServer, VllmServer
from soundingline.toolkit.llm.messages import user
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.llm.server import Servers, serving, tail
from soundingline.toolkit.obfuscation import mark_obfuscated, read_text

pytestmark = pytest.mark.slow

FAKE = Path(__file__).with_name("fake_server.py")
ROOT = Path(__file__).resolve().parents[3]


def fake(how="serve"):
    return lambda port: [sys.executable, str(FAKE), "--port", str(port), "--how", how]


class Place:
    """Where a fake server leaves its log and its process ids."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.log = folder / "logs" / "server.log"
        self.pids_file = folder / "pids"
        self.environment = {"PIDS": str(self.pids_file)}

    def pids(self):
        until(self.pids_file.exists)
        return [int(pid) for pid in self.pids_file.read_text().split()]

    def all_gone(self):
        return not any(running(pid) for pid in self.pids())


def running(pid):
    """Whether the process runs: a killed one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False if Path("/proc/self").exists() else process_alive(pid)
    return state != "Z"


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


def serve(place, how="serve", **more):
    arguments = {"log": place.log, "environment": place.environment, "grace": 5.0, **more}
    return serving(fake(how), **arguments)


def test_it_is_healthy_inside_the_block_and_gone_after(place):
    with serve(place) as address:
        with urllib.request.urlopen(f"{address}/health") as answer:
            assert answer.status == 200
        assert all(map(running, place.pids()))
    until(place.all_gone, 2.0)
    assert "loading weights" in place.log.read_text()
    assert "ended as asked\nthe server ended with code 0\n" in place.log.read_text()


def test_the_log_in_a_sealed_folder_is_sealed_to_its_last_line(place, monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)
    mark_obfuscated(place.log.parent)
    with serve(place):
        assert b"loading" not in place.log.read_bytes()
        assert "loading weights" in tail(place.log)
    assert read_text(place.log).endswith("ended as asked\nthe server ended with code 0\n")
    assert all(line.startswith(b"~sealed:") for line in place.log.read_bytes().splitlines())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_ends_it_with_its_children(place, error):
    with pytest.raises(error), serve(place):
        raise error
    until(place.all_gone, 2.0)


def test_one_that_ignores_the_request_to_end_is_killed(place):
    with serve(place, "stubborn", grace=0.2):
        pass
    until(place.all_gone, 2.0)
    assert "ended as asked" not in place.log.read_text()


def test_one_that_ends_early_is_told_with_its_last_words(any_place):
    place = any_place
    with pytest.raises(InputError, match=r"before it was ready.*out of memory") as raised:
        serve(place, "crash").__enter__()
    assert str(place.log) in str(raised.value)


def test_a_log_that_is_a_symbolic_link_is_refused_before_anything_starts(place):
    target = place.pids_file.with_name("thesis.txt")
    target.write_text("years of work")
    place.log.parent.mkdir()
    place.log.symlink_to(target)
    with pytest.raises(InputError, match="symbolic link"):
        serve(place).__enter__()
    assert target.read_text() == "years of work" and not place.pids_file.exists()


def test_one_that_is_never_healthy_is_ended_and_told(place):
    with pytest.raises(InputError, match=r"not ready within 0\.5 s"):
        serve(place, "silent", start_seconds=0.5).__enter__()
    until(place.all_gone, 2.0)


def test_a_program_that_is_not_installed_is_told_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"no-such-server.*llm\.base_url"):
        serving(lambda port: ["no-such-server"], log=tmp_path / "log").__enter__()


PARENT = """
import signal, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from soundingline.toolkit.llm.server import serving
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
command = lambda port: [sys.executable, {fake!r}, "--port", str(port)]
with serving(command, log=Path({log!r}), environment={{"PIDS": {pids!r}}}, grace=5.0):
    print("ready", flush=True)
    {then}
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, None])
def test_it_ends_with_its_parent_however_that_ends(any_place, end):
    place = any_place
    then = "import os; os._exit(3)" if end is None else "time.sleep(60)"
    script = PARENT.format(
        root=str(ROOT), fake=str(FAKE), log=str(place.log), pids=str(place.pids_file), then=then
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == b"ready\n"
    if end is not None:
        parent.send_signal(end)
    parent.wait(10)
    until(place.all_gone)


def test_two_servers_stand_side_by_side(tmp_path):
    here, there = Place(tmp_path / "a"), Place(tmp_path / "b")
    with serve(here) as one, serve(there) as two:
        assert one != two
        assert set(here.pids()).isdisjoint(there.pids())


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    (tmp_path / "log").write_bytes(b"one\n\ntwo\n\xff three\n")
    assert tail(tmp_path / "log", 2) == "two | � three"


def test_the_command_of_a_plain_model():
    assert VllmServer().command("Qwen/Qwen3-8B", 8001) == [
        *("vllm", "serve", "Qwen/Qwen3-8B"),
        *("--host", "127.0.0.1", "--port", "8001"),
    ]


def test_options_have_the_names_of_vllm():
    options = {
        "tensor_parallel_size": 4,
        "max_model_len": 131072,
        "gpu_memory_utilization": 0.9,
        "tool_call_parser": "glm47",
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "async-scheduling": False,
        "structured-outputs-config": {"backend": "xgrammar"},
        "load-format": None,
    }
    server = VllmServer(weights="/models/glm", options=options)
    assert server.command("zai-org/GLM-4.7-Flash", 8001) == [
        *("vllm", "serve", "/models/glm"),
        *("--host", "127.0.0.1", "--port", "8001"),
        *("--served-model-name", "zai-org/GLM-4.7-Flash"),
        "--enable-auto-tool-choice",
        *("--tensor-parallel-size", "4"),
        *("--max-model-len", "131072", "--gpu-memory-utilization", "0.9"),
        *("--tool-call-parser", "glm47"),
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--no-async-scheduling",
        *("--structured-outputs-config", '{"backend":"xgrammar"}'),
    ]


def test_the_command_of_another_launcher_names_the_model_by_option():
    launcher = ["python", "-m", "vllm.entrypoints.openai.api_server"]
    command = VllmServer(launcher=launcher).command("tiny", 1)
    assert command[:5] == [*launcher, "--model", "tiny"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"weights": "--rm"},
        {"launcher": []},
        {"launcher": "vllm serve"},
        {"options": {"tensor_parallel_size": 0}},
        {"options": {"data-parallel-size": 0}},
        {"options": {"gpu_memory_utilization": 1.5}},
    ],
)
def test_impossible_commands_are_refused(wrong):
    with pytest.raises(InputError):
        VllmServer(**wrong).command("m", 1)


def accepting_fake(place, folder):
    """A server that takes vLLM's options, of which only the port concerns it."""
    script = folder / "accepting_fake.py"
    script.write_text(
        "import runpy, sys\n"
        "sys.argv = [sys.argv[0], '--port', sys.argv[sys.argv.index('--port') + 1]]\n"
        f"runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    return VllmServer(launcher=[sys.executable, str(script)], environment=place.environment)


def test_a_local_model_is_served_and_asked_at_its_own_server(tmp_path):
    place = Place(tmp_path)
    model = OpenAIChat(model="tiny", server=accepting_fake(place, tmp_path))
    with model.running(place.log) as client:
        assert client.name == "tiny"
        assert client.address.startswith("http://127.0.0.1:")
        assert client.address.endswith("/v1")
        assert all(map(running, place.pids()))
    until(place.all_gone, 2.0)


def test_the_key_of_our_server_is_passed_by_environment_and_stands_on_no_command_line(
    tmp_path, monkeypatch
):
    secret = "sk-served-0123456789abcdef"
    monkeypatch.setenv("MY_KEY", secret)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    place = Place(tmp_path)
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"options": {"api_key": "sk-1"}},
        {"options": {"api-key": ["sk-1", "sk-2"]}},
        {"options": {"hf_token": "hf_1"}},
        {"options": {"speculative-config": {"model": "m", "auth_token": "t"}}},
        {"launcher": ["vllm", "serve", "--api-key", "sk-1"]},
        {"launcher": ["env", "VLLM_API_KEY=sk-1", "vllm", "serve"]},
    ],
    ids=str,
)
def test_a_secret_for_a_command_line_is_refused_with_the_variable_to_use(
    wrong,
):
    server = VllmServer(**wrong)
    with pytest.raises(InputError, match="VLLM_API_KEY") as raised:
        OpenAIChat(model="m", server=server)
    assert not any(secret in str(raised.value) for secret in ("sk-1", "hf_1"))


def test_models_of_equal_servers_share_one(tmp_path):
    place = Place(tmp_path)
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


def test_one_run_after_the_other_uses_the_same_server(tmp_path):
    place = Place(tmp_path)
    model = OpenAIChat(model="t", server=accepting_fake(place, tmp_path))
    with Servers() as servers:
        addresses = []
        for cell in ("first", "second"):
            with model.running(tmp_path / cell / "server.log", servers) as client:
                addresses.append(client.address)
        assert addresses[0] == addresses[1]
        assert not (tmp_path / "second").exists()
        assert not place.all_gone()
    until(place.all_gone, 2.0)


def test_a_server_that_nobody_uses_makes_room_for_another(tmp_path):
    place = Place(tmp_path)
    server = accepting_fake(place, tmp_path)
    one, other = (OpenAIChat(model=n, server=server) for n in ("a", "b"))
    with Servers() as servers:
        with one.running(place.log, servers):
            pids = place.pids()
        with other.running(place.log, servers):
            assert not any(map(running, pids))
            assert all(map(running, place.pids()))


def test_a_server_that_has_died_between_two_runs_is_started_again(tmp_path):
    place = Place(tmp_path)
    model = OpenAIChat(model="t", server=accepting_fake(place, tmp_path))
    with Servers() as servers:
        with model.running(place.log, servers):
            pids = place.pids()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with model.running(place.log, servers):
            assert set(pids).isdisjoint(place.pids())
            assert all(map(running, place.pids()))


def test_the_log_of_an_open_run_never_gets_the_lines_of_a_sealed_one(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)
    place = Place(tmp_path)
    model = OpenAIChat(model="t", server=accepting_fake(place, tmp_path))
    mark_obfuscated(tmp_path / "sealed")
    with Servers() as servers:
        with model.running(tmp_path / "open" / "server.log", servers):
            pass
        with model.running(tmp_path / "sealed" / "server.log", servers):
            pass
    sealed = (tmp_path / "sealed" / "server.log").read_bytes()
    assert all(line.startswith(b"~sealed:") for line in sealed.splitlines())


def test_a_server_that_runs_already_is_used_and_none_is_started(tmp_path, peer):
    server = VllmServer(launcher=["no-such-server"])
    model = OpenAIChat(model="tiny", base_url=peer.openai_url, server=server)
    with model.running(tmp_path / "server.log") as client:
        assert using(client, lambda it: it.respond([user("?")])).text == "done"
    assert not (tmp_path / "server.log").exists()


def test_weights_in_a_folder_are_served_under_the_models_name():
    command = VllmServer(weights="/models/x").command("openai/gpt-oss-20b", 1)
    assert command[2] == "/models/x"
    assert command[command.index("--served-model-name") + 1] == "openai/gpt-oss-20b"


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


def test_weights_of_the_hub_are_told_by_their_names_and_revision():
    assert (
        vllm_weights(None, model="owner/model")
        == vllm_weights("owner/model", model="owner/model")
        == ""
    )
    assert vllm_weights("owner/model") == "owner/model"
    revised = {"revision": "abc"}
    assert vllm_weights(None, model="owner/model", **revised) == "abc"
    assert vllm_weights("owner/model", **revised) == "owner/model@abc"


def test_wrong_server_options_are_told_before_anything_starts():
    with pytest.raises(InputError, match="tensor_parallel_size"):
        OpenAIChat(model="m", server=VllmServer(options={"tensor_parallel_size": 0}))


def test_running_needs_the_key_before_a_run_begins(tmp_path, monkeypatch):
    monkeypatch.delenv("PEER_KEY", raising=False)
    model = OpenAIChat(model="m", key_env="PEER_KEY")
    with pytest.raises(InputError, match="PEER_KEY"), model.running(tmp_path / "log"):
        pytest.fail("it ran without a key")


# llama.cpp.

HUB = "Qwen/Qwen2.5-1.5B-Instruct-GGUF"


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


def after(command, option):
    return command[command.index(option) + 1]


def test_every_request_at_once_has_the_whole_window(weights):
    server = LlamaCppServer(
        gguf=str(weights),
        launcher=["llama-server"],
        context_length=4096,
        parallel=3,
        threads=2,
        gpu_layers=0,
        extra={"flash_attn": "on", "no-webui": True, "seed": None},
    )
    assert server.command("m", 8001) == [
        *("llama-server", "--model", str(weights), "--alias", "m"),
        *("--host", "127.0.0.1", "--port", "8001", "--ctx-size", str(3 * 4096)),
        *("--parallel", "3", "--threads", "2", "--gpu-layers", "0"),
        *("--flash-attn", "on", "--no-webui"),
    ]


def test_what_is_not_given_is_left_to_the_server(weights):
    command = LlamaCppServer(gguf=str(weights), launcher=["llama-server"]).command("m", 1)
    assert "--threads" not in command and "--gpu-layers" not in command


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
    with pytest.raises(InputError, match=r"xllamacpp.*\.\[llamacpp\]"):
        LlamaCppServer(gguf=str(weights)).command("m", 1)


def test_a_file_of_the_hub_is_fetched_only_when_the_server_starts(monkeypatch, weights):
    asked = []

    def fetched(name, file):
        asked.append((name, file))
        return weights

    monkeypatch.setattr(local_servers, "hub_file", fetched)
    server = LlamaCppServer(file="q4.gguf", launcher=["llama-server"])
    OpenAIChat(model=HUB, server=server)
    assert asked == []
    assert after(server.command(HUB, 1), "--model") == str(weights)
    assert asked == [(HUB, "q4.gguf")]


def test_a_file_that_is_not_there_is_told_with_what_to_give(tmp_path):
    server = LlamaCppServer(gguf=str(tmp_path / "no.gguf"))
    with pytest.raises(InputError, match=r"no file .*no\.gguf.*llm\.server\.gguf"):
        server.command("m", 1)


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


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, r"llm\.server\.gguf"),
        ({"file": "q4.gguf"}, r"llm\.model=<owner/name"),
        ({"gguf": "model.safetensors"}, r"\.gguf file"),
        ({"gguf": "m.gguf", "parallel": 0}, "parallel"),
        ({"gguf": "m.gguf", "context_length": 0}, "context_length"),
        ({"gguf": "m.gguf", "threads": 0}, "threads"),
        ({"gguf": "m.gguf", "launcher": "llama-server"}, "list of words"),
        ({"gguf": "m.gguf", "extra": {"api_key": "sk-1"}}, "LLAMA_API_KEY"),
    ],
    ids=str,
)
def test_what_cannot_work_is_told_before_anything_starts(wrong, told):
    with pytest.raises(InputError, match=told):
        OpenAIChat(model="m", server=LlamaCppServer(**wrong))


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
    assert LlamaCppServer(gguf=str(parts[0])).weights_files() == parts
    first = gguf_weights(parts[0])
    parts[1].write_bytes(b"GGUF, another")
    assert gguf_weights(parts[0]) != first


def test_files_of_one_repository_on_the_hub_are_different_weights():
    models = {
        file: OpenAIChat(model=HUB, server=LlamaCppServer(file=file))
        for file in ("q4.gguf", "q8.gguf")
    }
    for model in models.values():
        model.fingerprint_weights(None)
    assert {file: model.weights_fingerprint for file, model in models.items()} == {
        "q4.gguf": "q4.gguf",
        "q8.gguf": "q8.gguf",
    }


def test_weights_that_are_not_there_are_told_before_a_run():
    with pytest.raises(InputError, match=r"no file .*no\.gguf"):
        gguf_weights(Path("no.gguf"))


def test_replies_and_verdicts_of_other_weights_are_kept_apart():
    def key(content):
        llm = CachedLLM(name="x", parts=["part"], is_empty=is_empty, counts=Counts())
        return llm.key(BlockingModel("gguf", role="rewriter", weights_fingerprint=content))

    assert key("") == key("") and len({key(""), key("one"), key("other")}) == 3
    model = OpenAIChat(
        model="gguf",
    )
    judges = [LlmJudge().bind(model).fingerprint]
    model.weights_fingerprint = "one"
    judges.append(LlmJudge().bind(model).fingerprint)
    assert judges[0] != judges[1]


def test_a_server_that_runs_already_needs_no_weights():
    OpenAIChat(model="m", server=LlamaCppServer(), base_url="http://127.0.0.1:9/v1")


def test_a_server_of_its_own_job_is_found_by_the_file_of_its_address(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-shared-0123456789abcdef")
    place = Place(tmp_path)
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
