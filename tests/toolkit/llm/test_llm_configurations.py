"""The options of `llm`: each makes a model without key, network or weights."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.messages import SamplingParams, Turn, user
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.llm.prices import Price

CONF = Path(__file__).resolve().parents[3] / "conf" / "llm"
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
    return compose_config([f"llm={option}", *values]).llm


def compose_config(overrides):
    return Settings.compose(overrides).config


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
        *("tool_choice", "logprobs")
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


@pytest.mark.parametrize("path", INHERITING, ids=lambda path: path.stem)
def test_an_option_says_only_what_is_different_from_what_it_inherits(path, tmp_path):
    group = path.relative_to(CONF.parent).parts[0]
    own = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(own, dict)
    first = own.pop("defaults")[0].partition("@")[0]
    base = first if first.startswith("/") else f"/{path.parent.relative_to(CONF.parent)}/{first}"
    option = tmp_path / group / "inherited.yaml"
    option.parent.mkdir()
    option.write_text(f"defaults: ['{base}@_here_']\n", encoding="utf-8")
    composed = Settings.compose([f"{group}=inherited"], [f"file://{tmp_path}"]).config[group]
    inherited = dict(leaves(OmegaConf.to_container(composed, resolve=False)))
    repeated = [key for key, value in leaves(own) if inherited.get(key, "absent") == value]
    assert repeated == []


@dataclass(kw_only=True, eq=False, repr=False)
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
    with pytest.raises(InputError, match=next(iter(wrong))):
        make(OmegaConf.create(option))


WITHOUT_SDK = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(("openai", "anthropic", "httpx2", "tenacity", "vllm")))
import soundingline.toolkit.llm
for module in pkgutil.iter_modules(soundingline.toolkit.llm.__path__):
    importlib.import_module(f"soundingline.toolkit.llm.{module.name}")
"""


def test_importing_needs_no_sdk():
    root = CONF.parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SDK], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
