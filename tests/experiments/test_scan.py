"""Plain text of a sealed benchmark is found wherever it lies, and nothing else is."""

from __future__ import annotations

import gzip
import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealed_benchmark import (
    ANSWERS,
    CANARY,
    DOCUMENTS,
    QUESTIONS,
    VARIABLE,
    plain_row,
    sealed_row,
    write_benchmark,
    write_jsonl,
)

from toolkit.leaks.shingles import SURE

Entry = Callable[..., int]
WORDS = [f"w{number * 7919 % 1000}" for number in range(900)]
LONG = " ".join(WORDS)


@pytest.fixture
def scan(
    entry: Entry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """`scan(PATH, ...)`: the exit code, and what was printed."""
    monkeypatch.setenv(VARIABLE, CANARY)
    overrides = list(write_benchmark(tmp_path / "published"))
    texts = [*DOCUMENTS.items(), ("long", LONG)]
    corpus = write_jsonl(
        tmp_path / "corpus.jsonl", [{"docid": docid, "text": text} for docid, text in texts]
    )
    overrides[-1] = f"benchmark.corpus={corpus}"
    Path("place").mkdir()

    def call(*arguments: str) -> tuple[int, str]:
        code = entry("scan", *overrides, *arguments)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


FORMS: dict[str, Callable[[str], bytes]] = {
    "as it is": lambda text: text.encode(),
    "in JSON": lambda text: json.dumps({"a": f"x\n{text}\t"}).encode(),
    "in JSON inside JSON": lambda text: json.dumps(json.dumps({"a": f"x\n{text}"})).encode(),
    "in capitals and markup": lambda text: f"<p>{text.upper()}</p>".replace(" ", "<b> ").encode(),
    "wrapped as a comment": lambda text: text.replace(" ", "\n# ").encode(),
    "among bytes": lambda text: b"\x00\xff" + text.encode() + b"\x00\xfe",
    "far behind": lambda text: b"filler, " * 400_000 + text.encode() + b" end" * 9,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (" ".join(QUESTIONS["13"].split()[5:20]), "question 13"),
        (ANSWERS["12"], "answer 12"),
        (" ".join(WORDS[300 : 300 + SURE]), "document long"),
    ],
)
def test_a_text_is_found_in_any_form(
    scan: Callable[..., tuple[int, str]], form: str, text: str, told: str
) -> None:
    Path("place/file").write_bytes(FORMS[form](text))
    code, printed = scan("place")
    assert code == 1 and told in printed
    assert text not in printed, "what is printed leaks nothing itself"


def test_every_stretch_of_the_sure_length_is_found(
    scan: Callable[..., tuple[int, str]],
) -> None:
    for start in range(0, len(WORDS) - SURE, 97):
        Path(f"place/{start}").write_text(" ".join(WORDS[start : start + SURE]))
    code, printed = scan("place")
    files = len(list(Path("place").iterdir()))
    assert code == 1 and printed.count("document long") == files


def test_other_texts_are_not_found_and_the_line_of_one_is_told(
    scan: Callable[..., tuple[int, str]],
) -> None:
    Path("place/own.md").write_text(
        f"{QUESTIONS['11'].split('oak')[0]}\nKordway of Brel\n{LONG[:50]}"
    )
    code, printed = scan("place")
    assert code == 0 and "0 of 1 contents" in printed
    Path("place/own.md").write_text(f"one\n\n{ANSWERS['11']}\n")
    code, printed = scan("place")
    assert code == 1 and "line 3 answer 11" in printed


def git(*arguments: str) -> None:
    named = ("-c", "user.name=t", "-c", "user.email=t@t.example")
    subprocess.run(["git", "-C", "place", *named, *arguments], check=True, capture_output=True)


def test_the_history_of_a_repository_is_scanned_dropped_commits_included(
    scan: Callable[..., tuple[int, str]],
) -> None:
    git("init", "-q")
    path = Path("place/notes.txt")
    path.write_text("nothing")
    git("add", ".")
    git("commit", "-qm", "first")
    assert scan("place")[0] == 0
    path.write_text(f"secret: {ANSWERS['14']}")
    git("commit", "-qam", "second")
    path.write_text("nothing again")
    git("commit", "-qam", "third")
    code, printed = scan("place")
    assert code == 1 and "notes.txt: line 1 answer 14" in printed
    git("reset", "-q", "--hard", "HEAD~2")
    code, printed = scan("place")
    assert code == 1 and "answer 14" in printed, "no branch has it any more, the repository does"
    assert scan("place", "--no-history")[0] == 0
    git("commit", "-q", "--allow-empty", "-m", QUESTIONS["15"])
    assert "question 15" in scan("place")[1]


def test_archives_are_opened(scan: Callable[..., tuple[int, str]]) -> None:
    Path("place/a.gz").write_bytes(gzip.compress(ANSWERS["11"].encode()))
    with zipfile.ZipFile("place/b.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1.json", json.dumps(QUESTIONS["12"]))
    Path("place/broken.gz").write_bytes(gzip.compress(b"x" * 99)[:-9])
    code, printed = scan("place")
    assert code == 1
    assert "a.gz (unpacked): line 1 answer 11" in printed
    assert "samples/1.json: line 1 question 12" in printed
    assert "not read: place/broken.gz" in printed


def test_sealed_rows_and_marked_indexes_are_no_leak(
    scan: Callable[..., tuple[int, str]],
) -> None:
    write_jsonl(Path("place/rows.jsonl"), [sealed_row(plain_row(qid)) for qid in QUESTIONS])
    store = Path("place/indexes/browsecomp_plus")
    store.mkdir(parents=True)
    (store / "NOT-SEALED.txt").write_text("marked")
    (store / "documents").write_text(LONG)
    code, printed = scan("place")
    assert code == 0 and "not read: place/indexes/browsecomp_plus" in printed
    write_jsonl(Path("place/plain.jsonl"), [plain_row("11")])
    assert scan("place")[0] == 1


def test_without_documents_the_corpus_is_not_read(
    scan: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    Path("place/long").write_text(LONG)
    assert scan("place")[0] == 1
    (tmp_path / "corpus.jsonl").write_text("broken")
    assert scan("place", "--no-documents")[0] == 0


@pytest.mark.parametrize("arguments", [(), ("nowhere",)])
def test_bad_input_is_one_line(
    scan: Callable[..., tuple[int, str]], arguments: tuple[Any, ...]
) -> None:
    code, printed = scan(*arguments)
    assert code == 2 and len(printed.strip().splitlines()) == 1
