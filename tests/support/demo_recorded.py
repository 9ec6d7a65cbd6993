"""A run of `make demo-agent` with a real small model, recorded: `make demo-recorded` unpacks its
trajectories, evaluates them, and writes its report and traces, without asking a model.

    python tests/support/demo_recorded.py                          into runs/demo-recorded
    python tests/support/demo_recorded.py runs/demo-agent WEIGHTS  records that run
"""

import io
import json
import sys
import tarfile
from pathlib import Path

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings
from soundingline.experiments.evaluate import compare_folders, evaluate_recorded, make_judge
from soundingline.experiments.recorded import recorded_benchmark
from soundingline.toolkit.console import Console
from soundingline.toolkit.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "tests/data/demo_recorded.tar.xz"
SHOWN, NOTICE = Path("runs/demo-recorded"), "NOTICE.txt"
# What a manifest holds of the machine, and of other starts of the run.
LEFT_OUT = ("git", "machine", "periods", "resumed", "servers", "stages", "versions")
COMMAND = "make demo-agent GGUF=FILE"


def record(sweep, weights):
    """Pack the trajectories and manifests of a sweep, with a notice on model, command and texts."""
    from recordings import known_model

    model, cells = known_model(weights), sorted(Path(sweep).glob("*/manifest.json"))
    files, dates = {}, []
    for place, path in enumerate(cells, start=1):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        dates.append(manifest["created"][:10])
        option = Settings.compose([f"benchmark={manifest['benchmark']['option']}"]).benchmark
        texts = manifest["config"]["benchmark"]
        texts |= {"notice": option["notice"], "path": option["path"]}
        kept = {name: value for name, value in manifest.items() if name not in LEFT_OUT}
        cell = f"{place}-{manifest['factors']['agent']}"
        files[f"{cell}/manifest.json"] = json.dumps(kept, indent=1) + "\n"
        for trajectory in sorted(path.parent.glob("queries/*.json")):
            files[f"{cell}/queries/{trajectory.name}"] = trajectory.read_text(encoding="utf-8")
    said = (
        f"A recorded run: {COMMAND} with {model['model']}, whose licence is {model['licence']}, "
        f"on {max(dates)}, on two cores with other work. No model is asked now."
    )
    files[NOTICE] = f"{said}\n{option['notice']}\n"
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for name, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def recorded_files():
    """The names and contents of the files in the archive."""
    with tarfile.open(ARCHIVE) as archive:
        return [(each.name, archive.extractfile(each).read()) for each in archive]


def show(folder=SHOWN):
    """Unpack, evaluate and compare the recorded run."""
    for name, content in recorded_files():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    said, _ = (folder / NOTICE).read_text(encoding="utf-8").splitlines()
    settings = Settings.compose()
    judge = make_judge(settings.config, make(settings.config.budget))
    cells = sorted(path.parent for path in folder.glob("*/manifest.json"))
    for cell in map(RunFolder, cells):
        evaluate_recorded(cell, recorded_benchmark(cell, settings), settings.config, judge)
    compare_folders(cells, folder, title="A small language model on wikidemo", unfinished=[said])
    Console(soft_wrap=True).print(said)


if __name__ == "__main__":
    record(*map(Path, sys.argv[1:])) if sys.argv[1:] else show()
