"""Machines and budgets that lack one thing, and those that lack nothing."""

import shutil
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.benchmarks import TINY

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings, plain_values
from soundingline.experiments.pipeline import build_pipeline
from soundingline.experiments.planning import ExperimentEstimate, Model, TypicalQuestion
from soundingline.experiments.preflight.machine import (
    DiskUse,
    Machine,
    Memory,
    check_machine,
    disk_uses,
    expected,
    loaded_models,
    this_machine,
)
from soundingline.toolkit.llm.prices import forecast

LARGE = Memory(64.0, 60.0)
CARD = Memory(80.0, 79.0)
EIGHT = Model("llm", "Qwen/Qwen3-8B", "", True)  # 8 billion parameters of two bytes
RERANKER = Model("reranker", "castorini/monot5-3b-msmarco", "", True)


def machine(memory=LARGE, gpus=(), disk=100.0, hours=None):
    return Machine(memory, gpus, lambda path: disk, hours)


def estimate(dollars=None, hours=1.0):
    typical = TypicalQuestion(20.0, 200_000, 180_000, 5000, None, 210.0, "by formula")
    costs = [] if dollars is None else [{"dollars": dollars / 830}]
    return ExperimentEstimate(830, 1, typical, forecast(costs, 830, hours * 3600))


def uses(tmp_path, *, caches=10.0):
    return [
        DiskUse(tmp_path / "runs", 1.0, "the run"),
        DiskUse(tmp_path / "indexes", 4.0, "the index"),
        DiskUse(tmp_path / "caches", caches, "the caches", at_most=True),
    ]


FAULTS = {
    "no disk": (
        machine(disk=4.9),
        {"disk": uses},
        "has 4.9 GB free, and the run needs 5.0 GB (the run 1.0, the index 4.0)",
    ),
    "no memory": (machine(Memory(64.0, 0.4)), {}, "0.4 GB of memory are free, and a run takes"),
    "a model beyond the GPU": (
        machine(gpus=[Memory(12.0, 11.0)]),
        {"models": [EIGHT]},
        "the weights (Qwen/Qwen3-8B 16.0) take 16.0 GB, and this machine has 12.0 GB of GPU memory",
    ),
    "two models beyond the GPUs": (
        machine(gpus=[Memory(10.0, 10.0), Memory(11.0, 11.0)]),
        {"models": [EIGHT, RERANKER]},
        "take 22.0 GB, and this machine has 21.0 GB of GPU memory",
    ),
    "a model without a GPU": (
        machine(Memory(15.0, 14.0)),
        {"models": [EIGHT]},
        "take 16.0 GB, and this machine has 15.0 GB of memory, and no NVIDIA GPU",
    ),
    "a stage in float32": (
        machine(Memory(11.0, 10.0)),
        {"models": [RERANKER]},
        "(castorini/monot5-3b-msmarco 12.0) take 12.0 GB",
    ),
}
NOTES = {
    "caches that may grow": (
        machine(disk=14.9),
        {"disk": uses},
        "has 14.9 GB free, and the run needs at most 15.0 GB",
    ),
    "a GPU that is in use": (
        machine(gpus=[Memory(80.0, 3.0)]),
        {"models": [EIGHT]},
        "of GPU memory; 3.0 GB are free",
    ),
    "memory that is in use": (
        machine(Memory(64.0, 12.0)),
        {"models": [EIGHT]},
        "no NVIDIA GPU; 12.0 GB are free",
    ),
    "a formula beyond the cap": (
        machine(),
        {"estimate": estimate(291.6), "cap": 100.0},
        "830 questions are expected to cost $291.60 (by formula), and budget.run_dollars is $100",
    ),
    "a job that ends before": (
        machine(hours=4.0),
        {"estimate": estimate(hours=4.6)},
        "is expected to take 4.6 hours, and the job ends in 4.0",
    ),
}


@pytest.mark.parametrize("name", [*FAULTS, *NOTES])
def test_what_is_missing_is_one_line_that_says_what_to_do(name, tmp_path):
    has, needs, message = {**FAULTS, **NOTES}[name]
    needs = {key: value(tmp_path) if callable(value) else value for key, value in needs.items()}
    (finding,) = check_machine(has, **needs)
    assert message in finding.message
    assert (finding.check, finding.level) == ("machine", "fault" if name in FAULTS else "note")
    assert finding.do
    assert "\n" not in finding.message + finding.do


HEALTHY = {
    "a laptop": (machine(Memory(8.0, 2.0), disk=3.0), {}),
    "a GPU": (machine(gpus=[CARD]), {"models": [EIGHT, RERANKER]}),
    "disk": (machine(disk=15.1), {"disk": uses}),
    "a cap": (machine(), {"estimate": estimate(99.0), "cap": 100.0}),
    "no cap": (machine(), {"estimate": estimate(9999.0)}),
    "no price": (machine(), {"estimate": estimate(None), "cap": 1.0}),
    "a long job": (machine(hours=5.0), {"estimate": estimate(hours=4.9)}),
    "an unknown size": (machine(), {"models": [Model("llm", "somebody/model", "", True)]}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_machine_that_has_enough_gives_no_finding(name, tmp_path):
    has, needs = HEALTHY[name]
    needs = {key: value(tmp_path) if callable(value) else value for key, value in needs.items()}
    assert check_machine(has, **needs) == []


def test_the_folders_of_one_disk_share_its_free_space(tmp_path, monkeypatch):
    """Two of 3 GB do not fit into 5 GB of one disk, and do on two disks of 5 GB."""
    both = [DiskUse(tmp_path / name, 3.0, name) for name in ("runs", "indexes")]
    assert len(check_machine(machine(disk=5.0), disk=both)) == 1
    (tmp_path / "runs").mkdir()
    plain = Path.stat

    def other_disk(path, **options):
        there = plain(path, **options)
        if path.name != "runs":
            return there
        return SimpleNamespace(st_dev=there.st_dev + 1, st_mode=there.st_mode)

    monkeypatch.setattr(Path, "stat", other_disk)
    assert check_machine(machine(disk=5.0), disk=both) == []


def test_this_machine_is_measured(tmp_path, monkeypatch):
    listing = tmp_path / "nvidia-smi"
    listing.write_text("#!/bin/sh\necho '81559, 1000'\necho '81559, 81000'\n")
    listing.chmod(listing.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 7200))
    found = this_machine()
    # MiB, as its manual says.
    assert found.gpus == [
        Memory(pytest.approx(85.52, abs=0.01), pytest.approx(1.05, abs=0.01)),
        Memory(pytest.approx(85.52, abs=0.01), pytest.approx(84.93, abs=0.01)),
    ]
    assert found.hours == pytest.approx(2.0, abs=0.01)
    assert 0 < found.memory.free <= found.memory.total
    free = shutil.disk_usage(tmp_path).free / 1e9
    assert found.disk(tmp_path / "not" / "there") == pytest.approx(free, rel=0.1)


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "echo '[N/A], 3'"])
def test_a_machine_without_a_readable_gpu_has_none(script, tmp_path, monkeypatch):
    listing = tmp_path / "nvidia-smi"
    listing.write_text(f"#!/bin/sh\n{script}\n")
    listing.chmod(listing.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    found = this_machine()
    assert (found.gpus, found.hours) == ([], None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert this_machine().gpus == []


def test_only_models_that_the_run_loads_count():
    words = ("agent=pi_serini", "llm=vllm/qwen3_8b", "reranker=monot5")
    loaded = loaded_models(plain_values(Settings.compose(words).config))
    assert [model.name for model in loaded][:1] == ["Qwen/Qwen3-8B"]
    running = (*words, "llm.base_url=http://127.0.0.1:8000/v1")
    rest = loaded_models(plain_values(Settings.compose(running).config))
    assert [model.name for model in rest] == [model.name for model in loaded][1:]
    assert loaded_models(plain_values(Settings.compose(["llm=gpt-5.5"]).config)) == []


def test_the_estimate_of_a_plan_is_that_of_the_questions_that_are_run():
    words = ("agent=pi_serini", "llm=gpt-5.5", "benchmark.limit=20", "repeats=2", "concurrency=4")
    settings = Settings.compose(["benchmark=browsecomp_plus", *words])
    found = expected(plain_values(settings.config), settings.choices, 20)
    # 830 questions of Pi-Serini cost $291.6 with this model; each of 20 is asked twice.
    assert found.total.dollars == pytest.approx(291.6 / 830 * 20 * 2, rel=0.05)
    # 21 requests of 10 seconds, four questions at once.
    assert found.total.seconds == pytest.approx(21 * 10 * 40 / 4)
    assert (found.questions, found.repeats) == (20, 2)
    settings = Settings.compose(["agent=keyword"])
    assert expected(plain_values(settings.config), settings.choices, 20) is None


def test_what_a_run_still_writes_is_the_run_a_missing_index_and_caches(tmp_path):
    words = [*TINY, f"paths.indexes={tmp_path}/indexes", "rewriter=none"]
    config = Settings.compose(words).config
    built = build_pipeline(config, make(config.budget))
    runs, caches = tmp_path / "runs", tmp_path / "caches"
    assert [use.what for use in disk_uses(built, 830, runs, caches, 10.0)] == ["the run"]
    shutil.rmtree(built.collection.path)
    (run, index) = disk_uses(built, 830, runs, caches, 10.0)
    assert run.gigabytes == pytest.approx(0.83)
    size = sum(file.stat().st_size for file in built.collection.store.path.iterdir())
    assert index.gigabytes == pytest.approx(size / 1e9)
    built.parts["reranker"] = built.parts["retriever"]
    (*_, cached) = disk_uses(built, 830, runs, caches, 10.0)
    assert (cached.folder, cached.gigabytes, cached.at_most) == (caches, 10.0, True)
    assert len(disk_uses(built, 830, runs, caches, None)) == 2
    assert len(disk_uses(built, 830, runs, None, 10.0)) == 2
