"""Sealed lines: the published scheme, marked folders, and what an absent or wrong canary brings."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.benchmarks import CANARY, VARIABLE, obfuscated

from soundingline.pipelines.cache import ResultCache
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import JsonLinesLog, read_json_lines, write_json, write_text
from soundingline.toolkit.obfuscation import (
    MARKER,
    Canary,
    NotObfuscated,
    decrypt_lines,
    encrypt_lines,
    is_obfuscated,
    mark_obfuscated,
    read_text,
)
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import (
    ToolCall,
    Trajectory,
    dump_trajectory,
    read_outcome,
    read_trajectory,
)

TEXT = "The keeper of the light at Brel carved oak benches."


@pytest.fixture(autouse=True)
def canary(monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)


@pytest.fixture
def sealed(tmp_path):
    mark_obfuscated(tmp_path / "sealed")
    return tmp_path / "sealed"


def trajectory(**more):
    call = ToolCall("search", {"query": TEXT}, output=TEXT * 50, ranking=("d1",))
    return Trajectory("q1", TEXT, "completed", calls=(call,), **more)


@given(st.text())
def test_the_seal_is_the_published_scheme_and_is_opened_again(text):
    text = text.encode("utf-8", "replace").decode()
    assert Canary(CANARY).encrypt(text) == obfuscated(text)
    assert Canary(CANARY).decrypt(obfuscated(text)) == text


@pytest.mark.parametrize("broken", ["no base64!", obfuscated(TEXT)[:-1], obfuscated(TEXT, "other")])
def test_what_another_canary_sealed_or_what_is_damaged_is_not_opened(broken):
    with pytest.raises(NotObfuscated):
        Canary(CANARY).decrypt(broken)


@given(st.text())
def test_lines_of_any_text_come_back(text):
    content = text.encode("utf-8", "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, CANARY)
        assert decrypt_lines(encrypt_lines(content), Path("x")) == content


def test_a_marked_folder_seals_all_below_it_but_what_is_declared_clear(sealed):
    deep = sealed / "a" / "b.json"
    write_json(deep, {"question": TEXT})
    write_text(sealed / "clear.txt", TEXT, clear=True)
    write_text(sealed.parent / "outside.txt", TEXT)
    assert TEXT.encode() not in deep.read_bytes()
    assert json.loads(read_text(deep)) == {"question": TEXT}
    assert (sealed / "clear.txt").read_text() == TEXT == (sealed.parent / "outside.txt").read_text()
    assert is_obfuscated(deep) and not is_obfuscated(sealed.parent / "outside.txt")


def test_a_folder_is_sealed_with_one_canary(sealed, monkeypatch):
    mark_obfuscated(sealed)
    assert CANARY not in (sealed / MARKER).read_text()
    monkeypatch.setenv(VARIABLE, "another canary")
    with pytest.raises(InputError, match="cannot be decrypted with the canary"):
        mark_obfuscated(sealed)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(InputError, match=f"{VARIABLE} is not set"):
        mark_obfuscated(sealed / "new")
    assert not (sealed / "new").exists()


def test_a_journal_is_sealed_line_by_line_and_goes_on(sealed):
    path = sealed / "verdicts.jsonl"
    for number in range(2):
        journal = JsonLinesLog(path, head={"head": TEXT})
        journal.append({"reason": f"{TEXT} {number}"})
        journal.close()
    with path.open("ab") as stream:
        stream.write(b"~sealed:AAAA")  # what a killed process leaves
    assert TEXT.encode() not in path.read_bytes()
    rows = [{"head": TEXT}, {"reason": f"{TEXT} 0"}, {"reason": f"{TEXT} 1"}]
    assert read_json_lines(path) == rows


def test_a_cache_in_a_sealed_folder_holds_no_text(sealed):
    cache = ResultCache(sealed / "q2q.sqlite")
    cache.put([(("prompt", TEXT), {"text": TEXT}), (("pair",), -2.25)])
    again = ResultCache(sealed / "q2q.sqlite")
    assert again.get([("prompt", TEXT), ("pair",)]) == [{"text": TEXT}, -2.25]
    written = b"".join(path.read_bytes() for path in sealed.glob("q2q*"))
    assert TEXT.encode() not in written


def test_a_trajectory_and_its_outcome_are_read_through_the_seal(sealed):
    path = sealed / "q1.json"
    write_text(path, dump_trajectory(trajectory()))
    assert TEXT.encode() not in path.read_bytes()
    assert read_trajectory(path) == trajectory()
    assert read_outcome(path) == ("q1", "completed", "")
    path.write_bytes(path.read_bytes().rpartition(b"\n~sealed:")[0])
    with pytest.raises(InputError, match="is damaged"):
        read_outcome(path)


@pytest.mark.parametrize("value", [None, "another canary"])
def test_a_sealed_run_is_not_read_without_its_canary(tmp_path, monkeypatch, value):
    folder = RunFolder(tmp_path / "run")
    with folder.writing({"sealed": True, "fingerprints": {}}):
        folder.write(trajectory())
    assert folder.manifest()["sealed"] is True
    if value is None:
        monkeypatch.delenv(VARIABLE)
    else:
        monkeypatch.setenv(VARIABLE, value)
    for reading in (
        folder.statuses,
        lambda: folder.read("q1"),
        lambda: list(folder.trajectories()),
    ):
        with pytest.raises(InputError, match=VARIABLE) as caught:
            reading()
        assert "delete" not in str(caught.value), "the file is not damaged"
        assert CANARY not in str(caught.value)
