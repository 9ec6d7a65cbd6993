"""`make recordings GGUF=path`: the replies of a small model that laptop forms use.

The experiments of `RECORDED` run with the model, and every reply is written to
`toolkit/llm/recordings.jsonl` (`RecordedChat`). A model is known by the hash of its weights; only
models under the licences Apache-2.0 and MIT may be recorded.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from soundingline.toolkit.llm.openai import RecordedChat

# By the SHA-256 of the weights. https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct
MODELS = {
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32": {
        "model": "Qwen2.5-Coder-0.5B-Instruct (Q4_K_M)",
        "licence": "Apache-2.0",
    }
}
RECORDED = {
    "text_ranking/table8": "run",
    "text_ranking/table9": "run",
    "text_ranking/table11": "run",
    "text_ranking/table13": "run",
    "sira/weights": "rank",
}


def known_model(weights):
    """The name, the licence and the hash of the model of these weights."""
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    if sha256 not in MODELS:
        sys.exit(
            f"recordings: {weights} has the SHA-256 {sha256}, which MODELS in {__file__} does not "
            "list. Add the model's name and licence there, and both to conf/llm/recorded.yaml."
        )
    return {**MODELS[sha256], "sha256": sha256}


def record(weights):
    """Make the file anew with the model of these weights."""
    path = RecordedChat.recordings
    path.write_text(json.dumps(known_model(weights)) + "\n", encoding="utf-8")
    environment = {**os.environ, "SOUNDINGLINE_RECORD": str(weights.resolve())}
    with tempfile.TemporaryDirectory() as folder:
        for experiment, command in RECORDED.items():
            words = [command, f"experiment={experiment}", "scale=laptop"]
            entry = [sys.executable, "-m", "soundingline.experiments", *words]
            subprocess.run(entry, check=True, cwd=folder, env=environment)
    print(f"{path}: {len(path.read_text(encoding='utf-8').splitlines()) - 1} replies")  # noqa: T201


if __name__ == "__main__":
    record(Path(sys.argv[1]))
