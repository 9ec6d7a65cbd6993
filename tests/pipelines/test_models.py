"""Checkpoints, adapters and fingerprints; device, dtype and memory; defaults of all models; packed
linear layers; batches and text windows."""

import inspect
import json
import os
import platform
import re
import shutil
import time
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import checkpoints
from support.assertions import refused
from support.odd_texts import DEEP
from support.pairs import sides

from soundingline import pipelines
from soundingline.pipelines import device
from soundingline.pipelines.checkpoint import (
    BODY,
    Checkpoint,
    checkpoint_fingerprint,
    own_length,
)
from soundingline.pipelines.device import (
    OutOfMemory,
    Placement,
    by_tokens,
    choose_device,
    choose_dtype,
    computes_bfloat16,
    free_bytes,
    in_batches,
    pack_linear_layers,
    padded,
    within_memory,
)
from soundingline.pipelines.learned.colbert import ColBERT
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.splade import Splade
from soundingline.pipelines.rerank.colbert import ColBERTReranker
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.rankllama import RankLLaMA
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.pipelines.windows import split_at_tokens, split_from_front, split_into_windows
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")

CPU = torch.device("cpu")
PLACE = Placement("cpu", "float32")


def bert(folder, seed=0):
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=30, intermediate_size=8, **sizes))
    model.save_pretrained(folder)
    return folder


def config_of(name):
    return Checkpoint(BODY, name).config


@pytest.fixture
def checkpoint(tmp_path):
    return bert(tmp_path / "bert")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A hub cache of our own and no network; where the hub's snapshots of `org/name` lie."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub" / "models--org--name"


def cached(repository, commit, seed=0):
    """As the hub's client lays out what it has downloaded."""
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    bert(repository / "snapshots" / commit, seed)


def cut_short(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_text("{not json"),
        cut_short,
    ],
    ids=["no model", "no json", "weights cut short"],
)
def test_a_folder_without_a_sound_model_is_refused(damage, checkpoint):
    damage(checkpoint)
    with pytest.raises(InputError, match=r"cannot be loaded, in that folder .*save_pretrained"):
        Checkpoint(BODY, str(checkpoint)).load(PLACE)


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_a_configuration_that_is_nested_too_deeply_is_refused(text, checkpoint):
    (checkpoint / "config.json").write_text(text)
    read = Checkpoint(BODY, str(checkpoint))
    refused("nested too deeply", lambda: read.stored_config)
    refused("nested too deeply", read.stored_json, "config.json")


@pytest.mark.parametrize("name", ["/no/such/folder", "./models/none", "~/none", "a/b/c"])
def test_a_path_without_a_folder_is_told_as_such(name):
    refused(r"there is no folder '.*' with a model\. check the path", config_of, name)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("read", [config_of, checkpoint_fingerprint])
def test_a_hub_model_that_cannot_be_had_is_told_in_one_line_with_what_to_run(read):
    line = refused(r"neither on this machine .*`hf download org/name`", read, "org/name")
    assert "HF_HOME" in line
    refused("cannot be loaded", lambda: read("no such name!"))


def test_equal_content_has_one_fingerprint_wherever_it_lies(checkpoint, tmp_path):
    copy = Path(shutil.copytree(checkpoint, tmp_path / "another" / "place"))
    (copy / "README.md").write_text("notes change no score")
    assert checkpoint_fingerprint(str(copy)) == checkpoint_fingerprint(str(checkpoint))


def overwritten(folder):
    """One bit of the weights, in place, as a copy does that keeps times."""
    path = folder / "model.safetensors"
    known, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    time.sleep(0.02)  # more than a step of the file system's clock
    path.write_bytes(content)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))


def written(name, text="one"):
    def write(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return write


def renamed(name):
    return lambda folder: (folder / "1_Pooling/config.json").rename(folder / name)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: bert(folder, seed=1),
        overwritten,
        *map(written, ("tokenizer.json", "vocab.txt", "2_Dense/config.json")),
        written("1_Pooling/config.json", "another"),
        *map(renamed, ("aa.json", "z.json", "1_Pooling/z.json")),
    ],
)
def test_other_weights_files_and_names_have_another_fingerprint(checkpoint, change):
    written("1_Pooling/config.json")(checkpoint)
    before = checkpoint_fingerprint(str(checkpoint))
    change(checkpoint)
    assert checkpoint_fingerprint(str(checkpoint)) != before


def test_a_hub_models_fingerprint_is_its_commit(offline):
    cached(offline, "0" * 40)
    assert checkpoint_fingerprint("org/name") == f"org/name@{'0' * 40}"
    cached(offline, "f" * 40, seed=1)
    assert checkpoint_fingerprint("org/name") == f"org/name@{'f' * 40}"
    assert checkpoint_fingerprint("org/name", "0" * 40).endswith(f"@{'0' * 40}")


def test_the_size_of_the_weights_is_that_of_their_files(checkpoint, offline):
    size = (checkpoint / "model.safetensors").stat().st_size
    (checkpoint / "pytorch_model.bin").write_bytes(b"the same weights in an older form")
    assert Checkpoint(BODY, str(checkpoint)).weight_bytes() == size
    (checkpoint / "model.safetensors").unlink()
    assert Checkpoint(BODY, str(checkpoint)).weight_bytes() == 33
    (checkpoint / "pytorch_model.bin").unlink()
    assert Checkpoint(BODY, str(checkpoint)).weight_bytes() == 0
    cached(offline, "c" * 40)
    assert Checkpoint(BODY, "org/name").weight_bytes() == size


def test_free_memory_is_what_the_kernel_can_give(tmp_path, monkeypatch):
    """Free pages and those that it can free; of a system without that file, all pages."""
    monkeypatch.setattr(device, "Path", lambda name: tmp_path / Path(name).name)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert free_bytes(CPU) == pages
    sizes = "MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable: 700 kB\n"
    (tmp_path / "meminfo").write_text(sizes, "ascii")
    assert free_bytes(CPU) == 700 * 1024


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA"), None])
def test_running_out_of_memory_is_told_with_what_was_computed(error):
    message = r"a batch of 9 does not fit into the memory of cpu, .* GB free.* batch_tokens"
    with pytest.raises(InputError, match=message), within_memory(CPU, "a batch of 9"):
        if error:
            raise error
        torch.empty(2**55, dtype=torch.uint8)


def test_batches_that_do_not_fit_are_halved_and_the_rest_with_them(capsys):
    """A device that holds 100 tokens of a batch, padding included."""
    sizes = []

    def compute(items):
        sizes.append(len(items) * max(items))
        if sizes[-1] > 100:
            raise OutOfMemory("no room")
        return (torch.tensor(items) * 10,)

    lengths = [3, 40, 9, 40, 12, 8, 7, 30, 21, 5]
    results = in_batches(compute, lengths, lengths, 320, lambda tensors: tensors[0].tolist())
    assert results == [length * 10 for length in lengths]
    # 320, then 160, then 80 tokens at most; what was computed is not computed again.
    assert sizes[:3] == [320, 160, 80] and max(sizes[2:]) <= 80
    assert sum(size <= 100 for size in sizes) == len(sizes) - 2
    assert "a batch of 8 texts did not fit" in capsys.readouterr().err
    with pytest.raises(OutOfMemory, match="no room"):
        in_batches(compute, [3, 101], [3, 101], 320, list)


@pytest.mark.parametrize(
    ("place", "unread", "order"),
    [
        ("meta", 1 << 28, "ccccrrrr"),
        ("meta", 23, "ccrrccrr"),
        ("meta", 0, "crcrcrcr"),
        ("cpu", 1 << 28, "crcrcrcr"),
    ],
)
def test_what_a_gpu_computes_is_read_in_blocks(place, unread, order, monkeypatch):
    """Batches of two float64 numbers, on a device that holds none."""
    monkeypatch.setattr(device, "_UNREAD", unread)
    steps = []

    def compute(items):
        steps.append("c")
        return (torch.empty(len(items), dtype=torch.float64, device=place),)

    def read(tensors):
        steps.append("r")
        return ["read"] * len(tensors[0])

    assert in_batches(compute, range(8), [5] * 8, 10, read) == ["read"] * 8
    assert "".join(steps) == order


def test_batches_are_read_before_what_does_not_fit_is_tried_again():
    """Which frees memory of the device."""
    steps = []

    def compute(items):
        steps.append(len(items))
        if steps == [1, 4]:
            raise OutOfMemory("no room")
        return (torch.empty(len(items), device="meta"),)

    def read(tensors):
        steps.append("read")
        return [0] * len(tensors[0])

    assert in_batches(compute, range(5), [40, 10, 10, 10, 10], 40, read) == [0] * 5
    assert steps == [1, 4, "read", 2, 2, "read", "read"]


def test_a_copy_to_a_gpu_waits_for_nothing(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: calls.append("pinned") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *to, **how: calls.append((to, how)))
    gpu = torch.device("cuda")
    device.moved(torch.ones(2), gpu)
    assert calls == ["pinned", ((gpu,), {"non_blocking": True})]


@pytest.mark.parametrize("in_front", [False, True])
def test_a_batch_is_as_wide_as_its_longest_text(in_front, monkeypatch):
    monkeypatch.setattr(device, "moved", lambda tensor, place: tensor)
    rows = [list(range(1, length + 1)) for length in (3, 1, 15, 9)]
    full = device.pad_rows([row[::-1] if in_front else row for row in rows], 0, "cuda")
    if in_front:
        full = {name: value.flip(1) for name, value in full.items()}
    tokens = device.TokenizedTexts({**full, "modality": "text"}, list(map(len, rows)), in_front)
    narrow = tokens.batch([1, 0], CPU)
    assert narrow["input_ids"].tolist() == (
        [[0, 0, 1], [1, 2, 3]] if in_front else [[1, 0, 0], [1, 2, 3]]
    )
    assert narrow["attention_mask"].sum().item() == 4 and narrow["modality"] == "text"
    widths = [tokens.batch([row], torch.device("cuda"))["input_ids"].shape[1] for row in range(4)]
    assert widths == [8, 8, 16, 16]


def test_rows_on_a_gpu_are_a_multiple_of_eight_wide(monkeypatch):
    monkeypatch.setattr(device, "moved", lambda tensor, place: tensor)
    rows = [[5, 6, 7], [8]]
    wide = padded(rows, 1, torch.device("cuda"))
    assert wide["input_ids"].tolist() == [[5, 6, 7, 1, 1, 1, 1, 1], [8, 1, 1, 1, 1, 1, 1, 1]]
    assert wide["attention_mask"].sum(1).tolist() == [3, 1]
    narrow = padded(rows, 1, torch.device("cpu"))
    assert narrow["input_ids"].tolist() == [[5, 6, 7], [8, 1, 1]]
    assert padded([[1] * 16], 0, torch.device("cuda"))["input_ids"].shape == (1, 16)


def test_other_faults_of_a_computation_pass_through():
    with pytest.raises(RuntimeError, match=r"mat1"), within_memory(CPU, "x"):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_weights_are_read_onto_the_device_in_the_dtype(tmp_path, monkeypatch):
    model = checkpoints.save_base(tmp_path / "model")
    kind, asked = transformers.AutoModel, {}
    read = kind.from_pretrained

    def noted(*args, **settings):
        asked.update(settings)
        return read(*args, **settings)

    monkeypatch.setattr(kind, "from_pretrained", noted)
    network = Checkpoint(BODY, str(model)).load(Placement("cpu", "bfloat16"))
    assert asked["device_map"] == {"": CPU} and asked["dtype"] == torch.bfloat16
    assert {(each.device, each.dtype) for each in network.parameters()} == {(CPU, torch.bfloat16)}


def test_tries_of_a_download_are_not_shown(monkeypatch, tmp_path, caplog):
    import logging

    def unreachable(*_, **__):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("no network")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", unreachable)
    logger = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(logger, "propagate", True)
    level = logger.level
    refused("hf download org/name", lambda: config_of("org/name"))
    assert not caplog.records and logger.level == level


def test_a_hub_whose_name_is_not_resolved_is_not_waited_for(offline, monkeypatch):
    import socket

    from huggingface_hub import constants

    from soundingline.toolkit import optional

    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(optional, "getproxies", dict)
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    optional._is_known.cache_clear()
    with pytest.raises(InputError, match=r"\(no connection to huggingface.co\)") as told:
        config_of("org/name")
    assert told.value.shared_cause == "no connection to huggingface.co"
    cached(offline, "c" * 40)
    assert config_of("org/name").model_type == "bert"
    assert constants.HF_HUB_OFFLINE is False
    optional._is_known.cache_clear()


def gpus(monkeypatch, count, bfloat16=True):
    """A machine with that many GPUs, as torch tells it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    # Torch says yes to GPUs that only emulate it, unless it is asked not to.
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: bfloat16 or including_emulation,
    )


@pytest.mark.parametrize(
    ("count", "name", "device"),
    [
        *((0, None, "cpu"), (2, None, "cuda"), (2, "cuda:1", "cuda:1"), (2, "cpu", "cpu")),
        *((0, name, "null, cpu. set device=null") for name in ("cuda", "cuda:0", "", "CPU", "mps")),
        (2, "cuda:2", "null, cpu, cuda, cuda:0, cuda:1."),
    ],
)
def test_a_device_is_one_of_this_machine_by_default_a_gpu(monkeypatch, count, name, device):
    gpus(monkeypatch, count)
    if "null" not in device:
        assert choose_device(name) == torch.device(device)
    else:
        refused(r"not on this machine\. valid: " + re.escape(device), lambda: choose_device(name))


def test_a_gpu_computes_in_bfloat16_where_it_can_and_a_cpu_only_if_told(monkeypatch):
    gpu = torch.device("cuda")
    for computes in (True, False):
        gpus(monkeypatch, 1, bfloat16=computes)
        assert choose_dtype(None, gpu) == (torch.bfloat16 if computes else torch.float32)
        assert choose_dtype("bfloat16", gpu) == choose_dtype("bfloat16", CPU) == torch.bfloat16
        monkeypatch.setattr(device, "computes_bfloat16", lambda device: True)
        assert choose_dtype(None, CPU) == choose_dtype("float32", CPU) == torch.float32
        monkeypatch.setattr(device, "computes_bfloat16", computes_bfloat16)
    for name in ("float16", "bf16", ""):
        refused(r"dtype=.* valid: null, bfloat16, float32", choose_dtype, name, CPU)


@pytest.mark.parametrize(
    ("kind", "parameters", "given", "tokens"),
    [
        ("cuda", 0, None, 16_384),
        ("cuda", 8_000_000_000, None, 16_384),
        ("cuda", 500_000_000, None, 32_768),
        ("cuda", 110_000_000, None, 65_536),
        ("cuda", 110_000_000, 100, 100),
        ("cpu", 110_000_000, None, 2048),
    ],
)
def test_small_networks_get_larger_batches_on_a_gpu(kind, parameters, given, tokens):
    place = Placement(None, "float32", given)
    place.device, place.parameters = SimpleNamespace(type=kind), parameters
    assert place.batch_tokens == tokens


def test_a_scorer_knows_the_size_of_its_network_before_its_first_batch(tmp_path, monkeypatch):
    scorer = CrossEncoder(str(save_cross_encoder(tmp_path)), device="cpu")
    network = transformers.AutoModel.from_pretrained(tmp_path)
    sizes = []

    def batches(compute, items, lengths, size, read):
        sizes.append(scorer.placement.parameters)
        return in_batches(compute, items, lengths, size, read)

    monkeypatch.setattr("soundingline.pipelines.rerank.reranker.in_batches", batches)
    scorer.score(["mill"], ["river"])
    assert sizes[0] >= sum(weight.numel() for weight in network.parameters())


@pytest.mark.skipif(platform.system() != "Linux", reason="the kernel tells what the CPU has")
def test_a_cpu_computes_in_bfloat16_where_the_kernel_says_so():
    flags = Path("/proc/cpuinfo").read_text("utf-8").split()
    known = bool({"amx_bf16", "avx512_bf16"} & set(flags))
    assert computes_bfloat16(CPU) == known


def test_a_package_that_is_broken_inside_keeps_its_own_error(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")

    monkeypatch.setattr("soundingline.toolkit.optional.import_module", broken)
    with pytest.raises(ModuleNotFoundError, match=r"tokenizers"):
        import_optional("transformers")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    if find_spec("peft") is None:
        pytest.skip("peft is not installed")
    folder = tmp_path_factory.mktemp("adapters")
    base = checkpoints.save_llama(folder / "llama")
    checkpoints.save_embedder_adapter(folder / "adapter", base)
    return folder


def test_an_adapter_of_another_part_of_the_network_is_refused(adapters):
    # Made for the bare body; the language model holds the body under another name.
    it = Checkpoint(BODY._replace(reader="AutoModelForCausalLM"), str(adapters / "adapter"))
    refused("is not one of", lambda: it.load(PLACE))


def test_a_checkpoint_that_lacks_weights_is_refused(adapters):
    kind = BODY._replace(reader="AutoModelForSequenceClassification")
    it = Checkpoint(kind, str(adapters / "llama"), num_labels=1)
    refused(r"no weights for score\.weight", lambda: it.load(PLACE))
    assert not it.load(PLACE, new_head=True).training


def test_an_adapter_that_names_no_base_needs_one(adapters, tmp_path):
    for path in (adapters / "adapter").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": None})
    )
    refused("set base", lambda: Checkpoint(BODY, str(tmp_path)).whole)
    it = Checkpoint(BODY, str(tmp_path), base=str(adapters / "llama"))
    assert it.config.model_type == "llama"


def test_loading_and_merging_say_nothing(adapters, capfd, recwarn):
    capfd.readouterr()
    network = Checkpoint(BODY, str(adapters / "adapter")).load(PLACE)
    said = capfd.readouterr()
    assert said.out + said.err == "" and not list(recwarn)
    assert not any("lora" in name for name, _ in network.named_parameters())


@pytest.mark.parametrize("answer", ["y\n", ""])
def test_code_that_a_checkpoint_brings_is_not_run_and_nobody_is_asked(
    answer, tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or answer)
    model = checkpoints.save_llama(tmp_path / "llama")
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
    it = Checkpoint(BODY, str(model))
    for load in (lambda: it.config, lambda: it.load(PLACE)):
        refused("cannot be loaded", load)
    with suppress(InputError):  # a tokenizer that needs no code of theirs may be loaded
        it.tokenizer()
    assert not canary.exists() and not asked


@pytest.mark.parametrize("kind", ["llama", "adapter"])
def test_pickled_weights_run_nothing(kind, adapters, tmp_path):
    model = tmp_path / kind
    model.mkdir()
    for path in (adapters / kind).glob("*.json"):
        (model / path.name).write_bytes(path.read_bytes())
    name = {"llama": "pytorch_model.bin", "adapter": "adapter_model.bin"}[kind]
    torch.save({"embed_tokens.weight": checkpoints.Canary(tmp_path / "canary")}, model / name)
    refused("cannot be loaded", lambda: Checkpoint(BODY, str(model)).load(PLACE))
    assert not (tmp_path / "canary").exists()


LENGTH = 40


def says(folder, length):
    """The checkpoint with a tokenizer that names this length."""
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, "model_max_length": length}), "utf-8")
    return folder


def save_cross_encoder(folder):
    body = checkpoints.save_bert(folder / "body")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(body, num_labels=1)
    loaded.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(body).save_pretrained(folder)
    return folder


def scored(kind, **fixed):
    """The score of a long document by a scorer of this kind."""

    def result(folder, **given):
        words = " ".join(("mill", "river", "old", "the") * 40)
        return kind(str(folder), **fixed, **given).score(*sides([Pair("the mill", words)]))

    return result


def encoded(kind, **fixed):
    """The tokens that an encoder of this kind reads of a long document."""

    def result(folder, **given):
        words = (*checkpoints.SPLADE_WORDS[:4], "mill", "river", "old", "the")
        return kind(str(folder), **fixed, **given).tokenize([" ".join(words * 40)])[1]

    return result


# How a checkpoint is saved, with a tokenizer or a configuration that names the last: its length.
MODELS = {
    "monoT5": (checkpoints.save_t5, scored(MonoT5), LENGTH),
    "RankLLaMA": (checkpoints.save_rankllama, scored(RankLLaMA), LENGTH),
    "cross-encoder": (save_cross_encoder, scored(CrossEncoder), LENGTH),
    "SPLADE": (checkpoints.write_splade, encoded(Splade), LENGTH),
    "SPLADE, positions": (checkpoints.write_splade, encoded(Splade), checkpoints.SPLADE_POSITIONS),
    "dense, pooling": (checkpoints.save_bert, encoded(Dense, pooling="mean"), LENGTH),
    "dense, sentence-transformers": (checkpoints.save_sentence_model, encoded(Dense), 64),
    "ColBERT, retriever": (checkpoints.save_multi_vector, encoded(ColBERT), 48),
    "ColBERT, re-ranker": (checkpoints.save_multi_vector, scored(ColBERTReranker), 48),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_reads_as_many_tokens_as_its_checkpoint_was_made_for(name, tmp_path):
    save, result, length = MODELS[name]
    folder = save(tmp_path / "model")
    if length == LENGTH:
        says(folder, LENGTH)
    own = result(folder)
    np.testing.assert_array_equal(own, result(folder, max_length=length))
    others = (length - 2, length + 2) if length == LENGTH else (length - 2,)
    assert own not in [result(folder, max_length=other) for other in others]


KINDS = {
    MonoT5: checkpoints.save_t5,
    RankLLaMA: checkpoints.save_rankllama,
    CrossEncoder: save_cross_encoder,
    Splade: checkpoints.write_splade,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_own_length_that_is_given_as_well_changes_no_fingerprint(kind, tmp_path):
    folder = str(says(KINDS[kind](tmp_path / "model"), LENGTH))
    own = kind(folder, device="cpu").fingerprint
    assert kind(folder, device="cpu", max_length=LENGTH).fingerprint == own
    assert kind(folder, device="cpu", max_length=LENGTH + 1).fingerprint != own


@pytest.mark.parametrize(
    ("positions", "tokenizer", "expected"),
    [(512, 180, 180), (128, 512, 128), (128, 1e30, 128), (None, 77, 77), (None, 1e30, 512)],
)
def test_the_tokenizer_names_the_length_and_the_positions_bound_it(positions, tokenizer, expected):
    config = SimpleNamespace(max_position_embeddings=positions)
    assert own_length(config, tokenizer) == expected


def test_no_model_sets_a_length_or_a_precision_of_its_own():
    signatures = [inspect.signature(getattr(pipelines, name)) for name in pipelines.__all__]
    models = [each.parameters for each in signatures if "dtype" in each.parameters]
    assert len(models) == 8
    for parameters in models:
        named = {"dtype", "max_length", "query_max_length"} & {*parameters}
        assert {parameters[name].default for name in named} == {None}


# Half of the distance between neighbours of 8 bits, and a little for the order of the sum.
ROUNDING = 2**-8 * 1.01


@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_of_a_network_give_its_results(bias):
    network = torch.nn.Sequential(torch.nn.Linear(16, 8, bias=bias), torch.nn.Linear(8, 3))
    states = torch.randn(2, 5, 16)
    with torch.inference_mode():
        expected = network(states)
        pack_linear_layers(network)
        assert network[0].weight.numel() == 0 and network[0].weight.dtype == torch.float32
        torch.testing.assert_close(network(states), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not computes_bfloat16(CPU), reason="no instructions for bfloat16")
def test_in_bfloat16_a_sum_is_rounded_once_after_the_bias():
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(48, 80)).bfloat16()
    rows = torch.randn(300, 48).bfloat16()
    weight, bias = (value.detach().double() for value in network.parameters())
    expected = rows.double() @ weight.T + bias
    with torch.inference_mode():
        pack_linear_layers(network)
        result = network(rows).double()
    assert ((result - expected).abs() <= ROUNDING * expected.abs() + 1e-5).all()


def test_a_torch_without_the_operators_keeps_its_layers(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    network = torch.nn.Sequential(torch.nn.Linear(16, 8))
    pack_linear_layers(network)
    assert type(network[0]) is torch.nn.Linear


@given(
    text=st.text(alphabet="ab ", min_size=1, max_size=60),
    size=st.integers(1, 7),
    repeated=st.integers(1, 3),
)
def test_pieces_are_the_text_and_hold_no_more_tokens_than_asked(text, size, repeated):
    # A token a character, and several at every fifth, as a tokenizer of bytes has them.
    begins = [at for at in range(len(text)) for _ in range(1 if at % 5 else repeated)]
    pieces = split_at_tokens(text, begins, size)
    assert "".join(pieces) == text
    start = 0
    for piece in pieces:
        tokens = [at for at in begins if start <= at < start + len(piece)]
        assert len(tokens) <= size or len(set(tokens)) == 1
        start += len(piece)


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (10, ["the old mill"]),
        (8, ["the old ", "mill"]),
        (4, ["the ", "old ", "mill"]),
        (2, ["th", "e ", "ol", "d ", "mi", "ll"]),
    ],
)
def test_cuts_stand_between_words_where_one_begins(size, pieces):
    text = "the old mill"
    letters = [match.start() for match in re.finditer(r"\S", text)]
    assert split_at_tokens(text, letters, size) == pieces


def test_pieces_taken_off_the_front_leave_out_white_space_alone():
    assert split_from_front("  the old  mill ", lambda rest: rest[:3]) == ["the", "old", "mil", "l"]
    assert split_from_front(" \n ", lambda rest: rest[:3]) == [""]


def test_pieces_that_have_more_tokens_by_themselves_are_cut_again():
    text = "the old mill by the river"

    def tokenize(texts, return_offsets_mapping=False, **_):
        """A token a character; a text by itself has two more, and the last word nine besides."""
        if return_offsets_mapping:
            return {"offset_mapping": [(at, at + 1) for at in range(len(texts))]}
        return {"input_ids": [[0] * (len(each) + 2 + 9 * (each == "river")) for each in texts]}

    pieces = split_into_windows(text, 10, tokenize)
    assert "".join(pieces) == text
    assert max(len(piece) + 2 for piece in pieces) <= 10
    assert "river" not in pieces
    by_characters = split_into_windows(text, 10, tokenize, lambda texts: map(len, texts))
    assert by_characters == ["the old ", "mill by ", "the river"]


LENGTHS = st.lists(st.integers(0, 600), max_size=60)


@pytest.mark.parametrize(
    ("lengths", "most", "batches"),
    [
        ([10, 500, 20, 490, 15], 1000, [[1, 3], [2, 4, 0]]),
        ([5, 2000, 1500, 5], 1000, [[1], [2], [0, 3]]),
        ([7] * 6, 21, [[0, 1, 2], [3, 4, 5]]),
        ([0, 0, 3], 2, [[2], [0, 1]]),
        ([], 10, []),
    ],
)
def test_the_longest_come_first_and_texts_of_like_length_share_a_batch(lengths, most, batches):
    assert by_tokens(lengths, most) == batches


@given(LENGTHS, st.integers(1, 2000))
def test_every_text_is_in_one_batch_that_fits(lengths, max_tokens):
    batches = by_tokens(lengths, max_tokens)
    assert sorted(position for batch in batches for position in batch) == [*range(len(lengths))]
    for batch in batches:
        longest = max(lengths[position] for position in batch)
        assert len(batch) == 1 or len(batch) * longest <= max_tokens
        assert lengths[batch[0]] == longest
    for first, second in pairwise(batches):
        assert (len(first) + 1) * max(1, lengths[first[0]]) > max_tokens
        assert lengths[first[-1]] >= lengths[second[0]]


@pytest.mark.parametrize("tokens", [0, -5])
def test_batches_of_no_token_are_refused(tokens):
    refused(f"max_tokens={tokens}", lambda: by_tokens([1], tokens))
