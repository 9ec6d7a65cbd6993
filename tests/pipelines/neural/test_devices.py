import platform
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pipelines.neural.devices import choose_device, choose_dtype, computes_bfloat16  # noqa: E402
from toolkit.errors import InputError  # noqa: E402
from toolkit.extras import require  # noqa: E402

CPU = torch.device("cpu")


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, bfloat16: bool = True) -> None:
    """A machine with that many GPUs, as torch tells it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    # Torch says yes to GPUs that only emulate it, unless it is asked not to.
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: bfloat16 or including_emulation,
    )


def test_a_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    assert choose_device() == CPU
    gpus(monkeypatch, 2)
    assert choose_device() == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "gpu", "", "CPU", "mps"])
def test_a_device_that_is_not_here_is_told_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    gpus(monkeypatch, 0)
    with pytest.raises(
        InputError, match=r"not on this machine\. valid: null, cpu\. set device=null"
    ):
        choose_device(name)


def test_a_gpu_beyond_those_that_are_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    with pytest.raises(InputError, match=r"valid: null, cpu, cuda, cuda:0, cuda:1\."):
        choose_device("cuda:2")


def test_bfloat16_is_taken_where_the_device_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    gpus(monkeypatch, 1)
    assert choose_dtype(None, gpu) == torch.bfloat16
    gpus(monkeypatch, 1, bfloat16=False)
    assert choose_dtype(None, gpu) == torch.float32
    assert choose_dtype("bfloat16", gpu) == torch.bfloat16
    assert choose_dtype("float32", CPU) == torch.float32


@pytest.mark.skipif(platform.system() != "Linux", reason="the kernel tells what the CPU has")
def test_a_cpu_computes_in_bfloat16_where_the_kernel_says_so() -> None:
    flags = Path("/proc/cpuinfo").read_text("utf-8").split()
    known = bool({"amx_bf16", "avx512_bf16"} & set(flags))
    assert computes_bfloat16(CPU) == known
    assert choose_dtype(None, CPU) == (torch.bfloat16 if known else torch.float32)


@pytest.mark.parametrize("name", ["float16", "bf16", "", "half"])
def test_another_dtype_is_told_with_the_valid_ones(name: str) -> None:
    with pytest.raises(InputError, match=r"dtype=.* valid: null, bfloat16, float32"):
        choose_dtype(name, CPU)


def test_a_package_that_is_not_installed_is_told_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name.partition(".")[0])

    monkeypatch.setattr("toolkit.extras.import_module", absent)
    with pytest.raises(InputError, match=r"transformers is not .* 'soundingline\[rerank\]'"):
        require("transformers.utils")
    with pytest.raises(InputError, match=r"pyterrier_dr is not .* 'soundingline\[learned\]'"):
        require("pyterrier_dr")


def test_a_package_that_is_broken_inside_keeps_its_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")

    monkeypatch.setattr("toolkit.extras.import_module", broken)
    with pytest.raises(ModuleNotFoundError, match=r"tokenizers"):
        require("transformers")
