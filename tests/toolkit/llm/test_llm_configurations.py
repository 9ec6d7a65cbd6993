"""The options of `llm`: each makes a model without key, network or weights."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from toolkit.llm.language_model import LanguageModel
from toolkit.llm.prices import Price
from toolkit.llm.protocol import Settings, user

CONF = Path(__file__).resolve().parents[3] / "conf" / "llm"
# Not with_suffix, because the names of models have dots.
OPTIONS = sorted(str(path.relative_to(CONF)).removesuffix(".yaml") for path in CONF.rglob("*.yaml"))
BILLED = ["claude-opus-4.7", "deepseek-v4-flash", "gpt-5.5"]


def composed(option: str, **overrides: Any) -> Any:
    config = OmegaConf.load(CONF / f"{option}.yaml")
    if option == "openai_compatible":
        overrides = {"model": "m", "base_url": "http://127.0.0.1:9/v1", **overrides}
    for key, value in overrides.items():
        OmegaConf.update(config, key, value)
    return config


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_makes_a_model_whose_request_is_json(option: str) -> None:
    model = instantiate(composed(option))
    assert isinstance(model, LanguageModel)
    assert isinstance(model.price, Price) and isinstance(model.settings, Settings)
    adapter: Any = model._made
    tool = {"name": "t", "description": "", "parameters": {"type": "object", "properties": {}}}
    body = adapter._body([user("?")], [tool], model.settings)
    assert json.loads(json.dumps(body)) == body


@pytest.mark.parametrize("option", OPTIONS)
def test_every_setting_can_be_overridden(option: str) -> None:
    config = composed(option)
    fields = set(Settings.__dataclass_fields__) - {"tool_choice"}  # The agent's own matter.
    assert fields <= set(config.settings)
    changed = composed(option, **{"settings.temperature": 0.5, "concurrency": 3})
    model = instantiate(changed)
    assert model.settings.temperature == 0.5 and model._made.concurrency == 3


@pytest.mark.parametrize("option", BILLED)
def test_a_billed_model_has_a_dated_price_with_its_source(option: str) -> None:
    price = instantiate(composed(option)).price
    assert price.known and price.cached_input is not None and price.source
    assert date(2026, 1, 1) <= date.fromisoformat(price.dated)


@pytest.mark.parametrize("option", sorted(set(OPTIONS) - set(BILLED)))
def test_an_unknown_price_is_unknown(option: str) -> None:
    assert not instantiate(composed(option)).price.known


def test_prices_that_a_paper_printed_are_the_paper_s() -> None:
    # arXiv 2605.10848 prints input, output and cache read of gpt-5.5.
    price = instantiate(composed("gpt-5.5")).price
    assert (price.input, price.output, price.cached_input) == (5.0, 30.0, 0.5)


@pytest.mark.parametrize("option", OPTIONS)
def test_no_key_is_in_the_configuration(option: str) -> None:
    config = composed(option)
    assert config.key_env is None or re.fullmatch(r"[A-Z]+_API_KEY", config.key_env)
    assert "sk-" not in (CONF / f"{option}.yaml").read_text()


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
def test_a_local_model_is_served_with_its_parsers(option: str, parsers: list[str]) -> None:
    model = instantiate(composed(option))
    command = model._server.command(model.name, 8000)
    assert command[:3] == ["vllm", "serve", model.name]
    assert command[command.index(parsers[0]) + 1] == parsers[1]
    assert "--enable-auto-tool-choice" in command
    assert str(model.context_window) == command[command.index("--max-model-len") + 1]


WITHOUT_SDK = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(("openai", "anthropic", "httpx2", "tenacity", "vllm")))
import toolkit.llm
for module in pkgutil.iter_modules(toolkit.llm.__path__):
    importlib.import_module(f"toolkit.llm.{module.name}")
"""


def test_importing_needs_no_sdk() -> None:
    root = CONF.parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SDK], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
