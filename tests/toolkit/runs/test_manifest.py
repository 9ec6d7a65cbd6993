"""The manifest tells what a run was made with, and keeps no secrets."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version

from soundingline.toolkit.files import dump_json
from soundingline.toolkit.runs.manifest import make_manifest


def test_it_holds_config_fingerprints_factors_versions_and_machine():
    config = {"retriever": {"k1": 0.9}, "seed": 0}
    manifest = make_manifest(config, {"benchmark": "abc"}, {"unit": "passage"})
    assert manifest["config"] == config
    assert manifest["fingerprints"] == {"benchmark": "abc"}
    assert manifest["factors"] == {"unit": "passage"}
    assert manifest["versions"]["numpy"] == version("numpy")
    assert manifest["machine"]["python"] == platform.python_version()
    assert json.loads(dump_json(manifest)) == manifest


def test_secrets_are_masked_in_all_that_is_given_and_token_limits_are_not():
    config = {
        "llm": {"api_key": "sk-1", "auth_token": "t", "max_tokens": 9, "password": None},
        "list": [{"secret": "s", "extra_headers": {"Authorization": "Bearer sk-2"}}],
        "key_env": "OPENAI_API_KEY",
        "batch_tokens": 4096,
    }
    factors = {"llm": "gpt-5.5", "llm.settings.extra.api_key": "sk-3", "llm.batch_tokens": "4096"}
    benchmark = {"option": "beir", "arguments": {"path": "/data/x", "password": "p"}}
    manifest = make_manifest(config, {"llm": "0123456789ab"}, factors, benchmark)
    assert manifest["config"] == {
        "llm": {"api_key": "***", "auth_token": "***", "max_tokens": 9, "password": None},
        "list": [{"secret": "***", "extra_headers": {"Authorization": "***"}}],
        "key_env": "OPENAI_API_KEY",
        "batch_tokens": 4096,
    }
    assert manifest["factors"] == {**factors, "llm.settings.extra.api_key": "***"}
    assert manifest["benchmark"]["arguments"] == {"path": "/data/x", "password": "***"}
    assert manifest["fingerprints"] == {"llm": "0123456789ab"}


def test_the_commit_is_forty_digits_in_a_checkout_and_absent_elsewhere():
    git = make_manifest({}, {})["git"]
    assert git == {} or (len(git["commit"]) == 40 and isinstance(git["dirty"], bool))


def test_a_process_asks_git_once(monkeypatch):
    first = make_manifest({}, {})["git"]
    monkeypatch.setattr(
        "soundingline.toolkit.runs.manifest.subprocess.run", None
    )  # which nobody could call
    assert make_manifest({}, {})["git"] == first
