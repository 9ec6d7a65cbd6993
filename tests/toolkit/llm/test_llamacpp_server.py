"""llama.cpp's server: its command line, and where its weights come from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from required import needs

from soundingline.pipelines.counts import Counts
from soundingline.pipelines.prompting import CachedLLM
from soundingline.pipelines.q2q import is_empty
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.judge import LlmJudge
from soundingline.toolkit.llm import local_servers
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.local_servers import LlamaCppServer
from soundingline.toolkit.llm.openai_chat import OpenAIChat

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
    with pytest.raises(InputError, match=r"xllamacpp.*soundingline\[llamacpp\]"):
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


def contents(file, **arguments):
    """What a model of that file is beside its name."""
    model = OpenAIChat(model="m", server=LlamaCppServer(gguf=str(file)), **arguments)
    model.fingerprint_weights(None)
    return model.weights_fingerprint


def test_weights_are_told_by_what_the_file_holds(weights, tmp_path):
    first = contents(weights)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(weights.read_bytes())
    assert first and contents(copy) == first
    weights.write_bytes(b"GGUF, another")
    assert contents(weights) != first
    assert contents(weights, base_url="http://127.0.0.1:1/v1") == ""  # somebody else's weights


def test_every_part_of_the_weights_counts(tmp_path):
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in (*parts, tmp_path / "m-00001-of-00003.gguf"):
        part.write_bytes(b"GGUF")
    assert LlamaCppServer(gguf=str(parts[0])).weights_files() == parts
    first = contents(parts[0])
    parts[1].write_bytes(b"GGUF, another")
    assert contents(parts[0]) != first


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
        contents(Path("no.gguf"))


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
