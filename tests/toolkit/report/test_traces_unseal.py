"""The page's own reading of sealed texts, run by Node where there is one, against Python's."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from sealed_benchmark import obfuscated

from toolkit.sealing import Seal

SCRIPT = Path(__file__).resolve().parents[3] / "toolkit/report/templates/traces_unseal.js"
CANARIES = ("a canary", "ümlaut ☂ 𝄞 'quotes' \"and\" \\", "x" * 1000)
TEXTS = (
    "",
    "a",
    "ü☂𝄞" * 40,
    "\ufeff begins with a mark",
    "\x00\x01\n\r\u2028</script>",
    "z" * 99_999,
)
PROGRAM = """
const fs = require("fs");
const { cases } = JSON.parse(fs.readFileSync(0, "utf-8"));
(async () => {
  const results = [];
  for (const [canary, text] of cases) {
    try { results.push([unsealed(text, await sealKey(canary))]); } catch { results.push(null); }
  }
  console.log(JSON.stringify(results));
})();
"""


def opened(cases: list[tuple[str, str]]) -> list[str | None]:
    """What the script reads of each canary and sealed text; None where it refuses."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node")
    done = subprocess.run(
        [node, "-e", SCRIPT.read_text(encoding="utf-8") + PROGRAM],
        input=json.dumps({"cases": cases}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [row[0] if row else None for row in json.loads(done.stdout)]


def test_the_page_opens_what_python_seals() -> None:
    pairs = [(canary, text) for canary in CANARIES for text in TEXTS]
    sealed = [(canary, Seal(canary).close(text)) for canary, text in pairs]
    assert opened(sealed) == [text for _, text in pairs]
    # The published scheme as the tests write it down, without ours.
    assert opened([(c, obfuscated(t, c)) for c, t in pairs]) == [text for _, text in pairs]


def test_another_canary_or_a_damaged_text_gives_nothing_readable() -> None:
    text = json.dumps({"question": "Who built the mill?"})
    sealed = Seal("a canary").close(text)
    for result in opened([("another", sealed), ("a canary", "?!"), ("a canary", sealed[:-5])]):
        if result is not None:
            with pytest.raises(ValueError):
                json.loads(result)
