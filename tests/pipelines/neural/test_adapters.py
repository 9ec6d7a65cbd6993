"""Checkpoints that are whole or adapters: what is refused, and what is said meanwhile."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny_embedder

from pipelines.neural.adapters import Checkpoint
from toolkit.errors import InputError

torch = pytest.importorskip("torch")
# Not imported here: that takes seconds in each worker of the suite.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    base = tiny_embedder.save_llama(folder / "llama")
    tiny_embedder.save_adapter(folder / "adapter", base)
    return folder


def test_an_adapter_of_another_part_of_the_network_is_refused(folder: Path) -> None:
    # Made for the bare body; the language model holds the body under another name.
    it = Checkpoint(str(folder / "adapter"), automatic="AutoModelForCausalLM")
    with pytest.raises(InputError, match="is not one of"):
        it.load(CPU, torch.float32)


def test_a_checkpoint_that_lacks_weights_is_refused(folder: Path) -> None:
    it = Checkpoint(
        str(folder / "llama"), automatic="AutoModelForSequenceClassification", num_labels=1
    )
    with pytest.raises(InputError, match=r"no weights for score\.weight"):
        it.load(CPU, torch.float32)
    network, missing = it.load(CPU, torch.float32, absent=("score.",))
    assert missing == {"score.weight"}
    assert not network.training


def test_an_adapter_that_names_no_base_needs_one(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "adapter").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": None})
    )
    with pytest.raises(InputError, match="set base"):
        _ = Checkpoint(str(tmp_path)).whole
    assert Checkpoint(str(tmp_path), str(folder / "llama")).config.model_type == "llama"


def test_loading_and_merging_say_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    capfd.readouterr()
    network, missing = Checkpoint(str(folder / "adapter")).load(CPU, torch.float32)
    said = capfd.readouterr()
    assert said.out + said.err == "" and not list(recwarn) and not missing
    assert not any("lora" in name for name, _ in network.named_parameters())


class Canary:
    """Unpickled, it makes a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.place,)


@pytest.mark.parametrize("answer", ["y\n", ""])
def test_code_that_a_checkpoint_brings_is_not_run_and_nobody_is_asked(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or answer)
    model = tiny_embedder.save_llama(tmp_path / "llama")
    canary = tmp_path / "canary"
    (model / "theirs.py").write_text(
        "from pathlib import Path\nfrom transformers import LlamaConfig, LlamaModel\n"
        f"Path({str(canary)!r}).touch()\n"
        "class C(LlamaConfig):\n    model_type = 'theirs'\n"
        "class M(LlamaModel):\n    config_class = C\n"
    )
    config = json.loads((model / "config.json").read_text())
    theirs = {"AutoConfig": "theirs.C", "AutoModel": "theirs.M", "AutoTokenizer": ["theirs.T"] * 2}
    config |= {"model_type": "theirs", "auto_map": theirs}
    (model / "config.json").write_text(json.dumps(config))
    it = Checkpoint(str(model))
    for load in (lambda: it.config, lambda: it.load(CPU, torch.float32)):
        with pytest.raises(InputError, match="cannot be loaded"):
            load()
    with suppress(InputError):  # a tokenizer that needs no code of theirs may be loaded
        it.tokenizer()
    assert not canary.exists() and not asked


def test_pickled_weights_run_nothing(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "llama"
    model.mkdir()
    for path in (folder / "llama").glob("*.json"):
        (model / path.name).write_bytes(path.read_bytes())
    torch.save({"embed_tokens.weight": Canary(tmp_path / "canary")}, model / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        Checkpoint(str(model)).load(CPU, torch.float32)
    assert not (tmp_path / "canary").exists()


def test_a_pickled_adapter_runs_nothing(folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = folder / "adapter" / "adapter_config.json"
    (adapter / config.name).write_bytes(config.read_bytes())
    torch.save({"x": Canary(tmp_path / "canary")}, adapter / "adapter_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        Checkpoint(str(adapter), str(folder / "llama")).load(CPU, torch.float32)
    assert not (tmp_path / "canary").exists()
