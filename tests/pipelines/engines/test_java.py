"""Finding a jar and a Java machine, on folders made to look like them. No machine starts."""

from __future__ import annotations

import zipfile

import pytest

from soundingline.pipelines.engines import java
from soundingline.toolkit.errors import InputError

SEARCHER = "io/anserini/search/SimpleSearcher.class"


@pytest.fixture(autouse=True)
def no_java_here(monkeypatch):
    for variable in ("JAVA_HOME", "ANSERINI_JAR", "ANSERINI_CLASSPATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(java, "find_spec", lambda module: None)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)


def make_jar(path, class_version=65):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(SEARCHER, b"\xca\xfe\xba\xbe\x00\x00" + class_version.to_bytes(2, "big"))
    return path


def make_home(path, version):
    (path / "lib" / "server").mkdir(parents=True)
    (path / "lib" / "server" / "libjvm.so").touch()
    (path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return path


def test_a_jar_is_found_by_argument_then_by_environment(tmp_path, monkeypatch):
    given = make_jar(tmp_path / "other.jar")
    held = make_jar(tmp_path / "anserini-1.7.1-fatjar.jar")
    monkeypatch.setenv("ANSERINI_CLASSPATH", str(tmp_path))
    assert java.find_jar(given) == given
    assert java.find_jar() == held
    monkeypatch.setenv("ANSERINI_JAR", str(given))
    assert java.find_jar() == given


def test_no_jar_is_one_clear_line(tmp_path):
    with pytest.raises(InputError, match=r"jar was not found.*make anserini"):
        java.find_jar()
    with pytest.raises(InputError, match="no file"):
        java.find_jar(tmp_path / "absent.jar")


def test_the_jar_tells_which_java_it_needs(tmp_path):
    # JVM specification, table 4.1-A: class file version 65 is Java 21, 55 is Java 11.
    assert java.java_needed(make_jar(tmp_path / "a.jar", 65)) == 21
    assert java.java_needed(make_jar(tmp_path / "b.jar", 55)) == 11


def test_a_jar_is_read_once_as_long_as_it_stays_as_it_is(tmp_path, monkeypatch):
    opened = []
    archive = zipfile.ZipFile
    jar = make_jar(tmp_path / "a.jar", 65)
    with monkeypatch.context() as patch:
        patch.setattr(java.zipfile, "ZipFile", lambda path: opened.append(path) or archive(path))
        assert [java.java_needed(jar) for _ in range(3)] == [21] * 3
    assert opened == [jar]
    make_jar(jar, 55)
    assert java.java_needed(jar) == 11


def test_a_jar_of_something_else_is_refused(tmp_path):
    (tmp_path / "text.jar").write_text("no archive")
    with pytest.raises(InputError, match="not Anserini's jar"):
        java.java_needed(tmp_path / "text.jar")
    with zipfile.ZipFile(tmp_path / "empty.jar", "w"):
        pass
    with pytest.raises(InputError, match="not Anserini's jar"):
        java.java_needed(tmp_path / "empty.jar")


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("25.0.2", 25), ("1.8.0_392", 8), ("21", 21)]
)
def test_versions_of_old_and_new_spelling_are_read(tmp_path, text, version):
    assert java.java_version(make_home(tmp_path / "home", text)) == version


def test_the_first_machine_new_enough_is_taken(tmp_path, monkeypatch):
    old, new = make_home(tmp_path / "old", "17.0.1"), make_home(tmp_path / "new", "21.0.1")
    (new / "bin").mkdir()
    (new / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setattr(java.shutil, "which", lambda name: str(new / "bin" / "java"))
    assert java.find_java(21) == new
    assert java.find_java(17) == old


def test_a_machine_too_old_is_named_with_the_version_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(make_home(tmp_path / "old", "17.0.1")))
    with pytest.raises(InputError, match=r"Java 17 at .*old.*Java 21 or newer.*make anserini"):
        java.find_java(21)


def test_a_machine_given_is_not_replaced_by_another(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(make_home(tmp_path / "new", "25.0.1")))
    with pytest.raises(InputError, match="Java 17"):
        java.find_java(21, make_home(tmp_path / "old", "17.0.1"))


def test_no_machine_at_all_is_one_clear_line():
    with pytest.raises(InputError, match="none was found"):
        java.find_java(21)
