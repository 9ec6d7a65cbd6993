"""Workers share the compiling of a new clone."""

from __future__ import annotations

from support import startup

SOURCES = {
    "helper.py": "EXECUTED = open('executed', 'w')\n",
    "test_one.py": "import helper\n\ndef test_one() -> None:\n    assert helper\n",
    "test_two.py": "import helper\n\ndef test_two() -> None:\n    assert helper\n",
    "deeper/conftest.py": "import helper\n",
    "deeper/test_wrong.py": "import helper\ndef\n",
}


def test_every_source_is_compiled_by_one_worker_and_none_is_executed(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deeper").mkdir()
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
    shares = []
    for worker in range(3):
        before = set(tmp_path.rglob("*.pyc"))
        startup.compile_share([tmp_path], worker, 3)
        shares.append(set(tmp_path.rglob("*.pyc")) - before)
    names = sorted(path.name.partition(".")[0] for share in shares for path in share)
    assert names == ["conftest", "helper", "test_one", "test_two"]
    assert all(shares)
    # What pytest has rewritten, it finds again.
    assert {path.name.partition(".")[0] for path in tmp_path.rglob("*-pytest-*.pyc")} == {
        "conftest",
        "test_one",
        "test_two",
    }
    assert not (tmp_path / "executed").exists()


def test_sources_are_named_or_lie_in_a_named_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(SOURCES[name])
    startup.compile_share([tmp_path / "test_two.py"], 0, 1)
    (written,) = tmp_path.rglob("*.pyc")
    assert written.name.startswith("test_two.")
