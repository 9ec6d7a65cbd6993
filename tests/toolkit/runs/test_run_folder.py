"""The run folder: one writer, nothing half-made, resume, refusal of another configuration."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.runs.run_folder import RunFolder
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY, Trajectory

MANIFEST = {"fingerprints": {"benchmark": "b1", "index": "i1"}, "versions": {}}
TOPICS = [Topic(qid, f"question {qid}") for qid in ("3", "1", "../../x", "2")]


def trajectory(qid, status="completed"):
    return Trajectory(qid, f"question {qid}", status, tiers={"surfaced": ()})


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "a")


def test_what_is_written_is_read_in_topic_order_or_id_order(folder):
    with folder.writing(MANIFEST):
        for qid in ("2", "../../x", "3"):
            folder.write(trajectory(qid))
    assert [t.qid for t in folder.trajectories(TOPICS)] == ["3", "../../x", "2"]
    assert [t.qid for t in folder.trajectories()] == ["../../x", "2", "3"]
    assert folder.read("3") == trajectory("3")
    assert folder.read("1") is None


def test_a_hostile_qid_stays_inside_the_folder(folder, tmp_path):
    with folder.writing(MANIFEST):
        folder.write(trajectory("../../x"))
    (found,) = tmp_path.rglob("*x.json")
    assert found.parent == folder.queries


def test_pending_skips_what_ended_well_and_asks_failed_ones_again(folder):
    with folder.writing(MANIFEST):
        assert folder.pending(TOPICS) == TOPICS
        folder.write(trajectory("3", "timed_out"))
        folder.write(trajectory("1", "failed"))
        assert [topic.qid for topic in folder.pending(TOPICS)] == ["1", "../../x", "2"]
    assert folder.done() == {"3"}


def test_a_question_that_the_end_of_the_runs_money_cut_short_is_asked_again(
    folder,
):
    cut = Trajectory("1", "?", "out_of_money", reason=RUN_OUT_OF_MONEY)
    own = Trajectory("3", "?", "out_of_money")
    with folder.writing(MANIFEST):
        folder.write(cut)
        folder.write(own)
        assert [topic.qid for topic in folder.pending(TOPICS)] == ["1", "../../x", "2"]
        folder.write(trajectory("1"))
        assert folder.attempts("1") == 2
        with pytest.raises(RuntimeError, match="ended well"):
            folder.write(own)
    assert folder.done() == {"1", "3"}


def test_a_retry_takes_the_place_of_a_failure_and_the_failure_is_kept(folder):
    with folder.writing(MANIFEST):
        folder.write(trajectory("1", "failed"))
        folder.write(trajectory("1", "failed"))
        folder.write(trajectory("1", "completed"))
    assert folder.statuses() == {"1": "completed"}
    assert folder.attempts("1") == 3
    assert folder.attempts("2") == 0


def test_a_trajectory_that_ended_well_is_never_overwritten(folder):
    with folder.writing(MANIFEST):
        folder.write(trajectory("1"))
        with pytest.raises(RuntimeError, match="ended well"):
            folder.write(trajectory("1", "failed"))
    assert folder.statuses() == {"1": "completed"}


def test_writing_needs_the_lock(folder):
    with pytest.raises(RuntimeError, match="writing"):
        folder.write(trajectory("1"))


def test_the_manifest_is_there_before_the_first_trajectory(folder):
    with folder.writing(MANIFEST):
        assert folder.manifest() == MANIFEST


def test_another_configuration_is_refused_with_the_keys_that_differ(folder):
    with folder.writing(MANIFEST):
        folder.write(trajectory("1"))
    other = {**MANIFEST, "fingerprints": {"benchmark": "b1", "index": "i2", "tool": "t"}}
    with pytest.raises(InputError) as error, folder.writing(other):
        pytest.fail("must not start")
    told = str(error.value)
    assert "index (was i1, now i2)" in told and "tool (was absent, now t)" in told
    assert "benchmark" not in told and "name=" in told
    assert folder.manifest() == MANIFEST


def test_a_session_with_other_versions_is_added_to_the_manifest(folder):
    newer = {**MANIFEST, "versions": {"numpy": "9"}, "created": "later"}
    for manifest in (MANIFEST, MANIFEST, newer, newer):
        with folder.writing(manifest):
            pass
    written = folder.manifest()
    assert written["versions"] == {}
    assert [session["versions"] for session in written["resumed"]] == [{"numpy": "9"}]


def test_leftovers_of_killed_writers_are_removed(folder):
    folder.queries.mkdir(parents=True)
    leftover = folder.queries / ".1.json.abc.tmp"
    leftover.write_text("half")
    with folder.writing(MANIFEST):
        assert not leftover.exists()


def test_trajectories_without_a_manifest_are_not_adopted(folder):
    with folder.writing(MANIFEST):
        folder.write(trajectory("1"))
    folder.manifest_path.unlink()
    with pytest.raises(InputError, match=r"no manifest\.json"), folder.writing(MANIFEST):
        pytest.fail("must not start")


def test_a_file_under_another_questions_name_is_refused(folder):
    with folder.writing(MANIFEST):
        folder.write(trajectory("1"))
    (folder.queries / "1.json").rename(folder.queries / "2.json")
    with pytest.raises(InputError, match=r"2\.json holds the trajectory of question '1'"):
        folder.done()


def test_a_truncated_trajectory_is_named_on_resume(folder):
    with folder.writing(MANIFEST):
        folder.write(trajectory("1"))
    path = folder.queries / "1.json"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"1\.json is damaged"):
        folder.pending(TOPICS)


def test_statuses_do_not_depend_on_how_the_json_is_laid_out(folder):
    with folder.writing(MANIFEST):
        folder.write(trajectory("1", "steered"))
    path = folder.queries / "1.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert folder.statuses() == {"1": "steered"}


def test_state_changes_when_a_trajectory_is_added(folder):
    with folder.writing(MANIFEST):
        before = folder.state()
        folder.write(trajectory("1"))
    assert folder.state() != before


def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with folder.writing(MANIFEST):
        monkeypatch.setattr("soundingline.toolkit.files.os.fsync", full)
        with pytest.raises(InputError, match="No space left"):
            folder.write(trajectory("1"))
    assert list(folder.queries.iterdir()) == []


def test_an_error_of_the_network_is_not_taken_for_a_full_disk(folder):
    with pytest.raises(ConnectionError), folder.writing(MANIFEST):
        raise ConnectionError("refused")


@pytest.mark.parametrize("path", ["absent", "damaged"])
def test_a_folder_that_is_no_run_is_told(tmp_path, path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text('{"a":')
    with pytest.raises(InputError, match=path):
        RunFolder(tmp_path / path).manifest()


@pytest.mark.parametrize("name", ["../x", "", ".", "..", "a/b", ".a", "a b", "x" * 201])
def test_a_run_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="name="):
        RunFolder.named(tmp_path, name)


def test_a_run_name_gives_its_folder(tmp_path):
    assert RunFolder.named(tmp_path, "bm25,unit=maxp").path == tmp_path / "bm25,unit=maxp"


WRITER = """
import sys
from soundingline.toolkit.data import Topic
from soundingline.toolkit.trajectory import (RUN_OUT_OF_MONEY, Trajectory)
from soundingline.toolkit.runs.run_folder import RunFolder

path, session, total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
topics = [Topic(f"Q{i}", "?") for i in range(total)]
folder = RunFolder(path)
with folder.writing({"fingerprints": {"benchmark": "b"}}):
    print("locked", flush=True)
    for number, topic in enumerate(folder.pending(topics)):
        failing = number % 7 == 3 and session == 0
        message = {"role": "user", "content": f"{session} " + "x" * 20000}
        folder.write(
            Trajectory(topic.qid, "?", "failed" if failing else "completed", messages=(message,))
        )
"""


def test_kill_9_at_any_moment_loses_doubles_and_halves_nothing(tmp_path):
    total, sessions = 250, 8
    folder = RunFolder(tmp_path / "run")
    root = Path(__file__).resolve().parents[3]
    moments = random.Random(7)
    seen = {}
    killed_midway = 0
    for session in range(sessions + 1):
        arguments = [sys.executable, "-c", WRITER, str(folder.path), str(session), str(total)]
        writer = subprocess.Popen(arguments, cwd=root, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None and writer.stdout.readline() == "locked\n"
        if session < sessions:
            wanted = len(list(folder.queries.glob("*.json"))) + 3 * session + 2
            while writer.poll() is None and len(list(folder.queries.glob("*.json"))) < wanted:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.005))
            writer.kill()
        assert writer.wait(60) == (-9 if session < sessions else 0)
        writer.stdout.close()
        ended = {t.qid for t in folder.trajectories() if t.status == "completed"}
        files = {path.stem: path.read_bytes() for path in folder.queries.glob("[!.]*.json")}
        assert all(files[name] == content for name, content in seen.items())
        seen = {name: content for name, content in files.items() if f"Q{name[2:]}" in ended}
        killed_midway += 0 < len(ended) < total
    assert killed_midway == sessions
    assert ended == {f"Q{number}" for number in range(total)}
    assert len(files) == total
    assert not list(folder.queries.glob(".*"))
    assert json.loads(folder.manifest_path.read_text())["fingerprints"] == {"benchmark": "b"}


@pytest.mark.parametrize("name", ["queries", "retried", "evaluation", "ranks", "retried/1"])
def test_a_folder_of_a_run_that_leads_elsewhere_is_refused(name, folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".left.tmp").touch()
    with folder.writing(MANIFEST):
        folder.write(trajectory("3"))
    place = folder.path / name
    if place.is_dir():
        place.rename(tmp_path / "away")
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(elsewhere)
    with pytest.raises(InputError, match="symbolic link"), folder.writing(MANIFEST):
        pytest.fail("it was opened for writing")
    with pytest.raises(InputError, match="symbolic link"):
        folder.manifest()
    assert [path.name for path in elsewhere.iterdir()] == [".left.tmp"]


def test_a_manifest_that_leads_elsewhere_is_refused(folder, tmp_path):
    with folder.writing(MANIFEST):
        pass
    folder.manifest_path.rename(tmp_path / "manifest.json")
    folder.manifest_path.symlink_to(tmp_path / "manifest.json")
    with pytest.raises(InputError, match="symbolic link"):
        folder.manifest()


def test_a_link_to_a_run_is_a_run(folder, tmp_path):
    with folder.writing(MANIFEST):
        folder.write(trajectory("3"))
    (tmp_path / "link").symlink_to(folder.path)
    assert RunFolder(tmp_path / "link").manifest() == MANIFEST


@pytest.mark.parametrize("depth", [5_000, 500_000])
def test_a_manifest_that_is_nested_without_end_is_refused(folder, depth):
    folder.path.mkdir(parents=True)
    folder.manifest_path.write_text('{"a":' + "[" * depth + "]" * depth + "}")
    with pytest.raises(InputError, match=r"manifest\.json"):
        folder.manifest()
