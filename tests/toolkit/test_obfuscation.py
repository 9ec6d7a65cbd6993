"""Obfuscated lines: the published scheme, marked folders, and an absent or wrong canary."""

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
CALL = ToolCall("search", {"query": TEXT}, output=TEXT * 50, ranking=("d1",))
TRAJECTORY = Trajectory("q1", TEXT, "completed", calls=(CALL,))


@pytest.fixture(autouse=True)
def canary(monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)


@pytest.fixture
def sealed(tmp_path):
    mark_obfuscated(tmp_path / "sealed")
    return tmp_path / "sealed"


@given(st.text())
def test_the_scheme_is_the_published_one_and_texts_come_back(text):
    content = text.encode("utf-8", "replace")
    text = content.decode()
    assert Canary(CANARY).encrypt(text) == obfuscated(text)
    assert Canary(CANARY).decrypt(obfuscated(text)) == text
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, CANARY)
        assert decrypt_lines(encrypt_lines(content), Path("x")) == content


@pytest.mark.parametrize("broken", ["no base64!", obfuscated(TEXT)[:-1], obfuscated(TEXT, "other")])
def test_damaged_texts_and_those_of_another_canary_are_refused(broken):
    with pytest.raises(NotObfuscated):
        Canary(CANARY).decrypt(broken)


def test_a_marked_folder_obfuscates_all_below_it_but_what_is_declared_clear(sealed):
    deep, outside = sealed / "a" / "b.json", sealed.parent / "outside.txt"
    write_json(deep, {"question": TEXT})
    write_text(sealed / "clear.txt", TEXT, clear=True)
    write_text(outside, TEXT)
    assert TEXT.encode() not in deep.read_bytes()
    assert json.loads(read_text(deep)) == {"question": TEXT}
    assert (sealed / "clear.txt").read_text() == TEXT == outside.read_text()
    assert is_obfuscated(deep) and not is_obfuscated(outside)


def test_a_folder_is_obfuscated_with_one_canary(sealed, monkeypatch):
    mark_obfuscated(sealed)
    assert CANARY not in (sealed / MARKER).read_text()
    monkeypatch.setenv(VARIABLE, "another canary")
    with pytest.raises(InputError, match="cannot be decrypted with the canary"):
        mark_obfuscated(sealed)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(InputError, match=f"{VARIABLE} is not set"):
        mark_obfuscated(sealed / "new")
    assert not (sealed / "new").exists()


def test_a_log_and_a_cache_in_an_obfuscated_folder_hold_no_text(sealed):
    path = sealed / "verdicts.jsonl"
    for number in range(2):
        log = JsonLinesLog(path, head={"head": TEXT})
        log.append({"reason": f"{TEXT} {number}"})
        log.close()
    with path.open("ab") as stream:
        stream.write(b"~sealed:AAAA")  # what a killed process leaves
    rows = [{"head": TEXT}, {"reason": f"{TEXT} 0"}, {"reason": f"{TEXT} 1"}]
    assert read_json_lines(path) == rows
    cache = ResultCache(sealed / "q2q.sqlite")
    cache.put([(("prompt", TEXT), {"text": TEXT}), (("pair",), -2.25)])
    again = ResultCache(sealed / "q2q.sqlite")
    assert again.get([("prompt", TEXT), ("pair",)]) == [{"text": TEXT}, -2.25]
    assert TEXT.encode() not in b"".join(path.read_bytes() for path in sealed.iterdir())


def test_a_trajectory_and_its_outcome_are_read(sealed):
    path = sealed / "q1.json"
    write_text(path, dump_trajectory(TRAJECTORY))
    assert TEXT.encode() not in path.read_bytes()
    assert read_trajectory(path) == TRAJECTORY
    assert read_outcome(path).status == "completed"
    path.write_bytes(path.read_bytes().rpartition(b"\n~sealed:")[0])
    with pytest.raises(InputError, match="is damaged"):
        read_outcome(path)


@pytest.mark.parametrize("value", ["", "another canary"])
def test_an_obfuscated_run_is_not_read_without_its_canary(tmp_path, monkeypatch, value):
    folder = RunFolder(tmp_path / "run")
    with folder.writing({"sealed": True, "fingerprints": {}}):
        folder.write(TRAJECTORY)
    assert folder.manifest()["sealed"] is True
    monkeypatch.setenv(VARIABLE, value)
    for reading in (folder.statuses, lambda: folder.read("q1"), lambda: [*folder.trajectories()]):
        with pytest.raises(InputError, match=VARIABLE) as caught:
            reading()
        assert "delete" not in str(caught.value), "the file is not damaged"
        assert CANARY not in str(caught.value)
