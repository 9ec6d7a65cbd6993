"""Index folders: repeated unit ids, and damage, which is refused in one line."""

import json
import os
import random
import shutil
import time
import tracemalloc
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.engines import StubSparse, vector_engine
from support.needs import cases

from soundingline.pipelines import index_folder
from soundingline.pipelines.enrich.enrichment import EnrichedEngine
from soundingline.pipelines.enrich.phrases import PhraseFile
from soundingline.pipelines.index_folder import (
    UniqueUnits,
    is_index,
    read_manifest,
    signed,
    write_manifest,
)
from soundingline.pipelines.learned.encoding import encode_corpus
from soundingline.pipelines.learned.splade import ImpactIndex
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.stage import Collection
from soundingline.toolkit import files
from soundingline.toolkit.corpus import SqliteStore, WholeDocument
from soundingline.toolkit.data import Document, Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import CHECKSUM_LIST, VERIFIED


def check(names):
    checked = UniqueUnits(Unit(name, "", "") for name in names)
    assert [unit.unit_id for unit in checked] == list(names)
    return checked.finish()


def remember(patch, number):
    patch.setattr(index_folder, "_RECENT", number)
    patch.setattr(index_folder, "_LARGEST_BLOCK", 4 * number)


@settings(max_examples=cases(200))
@given(
    st.lists(st.text(st.characters(exclude_categories=[]), max_size=2), max_size=60),
    st.sampled_from([1, 3, 1 << 16]),
)
def test_ids_are_refused_if_a_set_of_them_is_smaller(names, recent):
    with pytest.MonkeyPatch.context() as patch:
        remember(patch, recent)
        if len(set(names)) == len(names) > 0:
            assert check(names) == len(names)
        else:
            refused("comes twice" if names else "corpus is empty", lambda: check(names))


def test_one_repeated_id_among_very_many_is_found_in_random_order():
    names = [f"{n:x}" for n in range(300_000)]
    random.Random(1).shuffle(names)
    refused(f"'{names[7]}' comes twice", lambda: check([*names, names[7]]))


def test_an_id_takes_few_bytes_whatever_its_length(monkeypatch):
    remember(monkeypatch, 1 << 8)
    peaks = {}
    for count in (12_500, 37_500):
        checked = UniqueUnits(Unit(f"{'long ' * 20}{number}", "", "") for number in range(count))
        tracemalloc.start()
        try:
            assert sum(1 for _ in checked) == count
            peaks[count] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # A set takes more than 150 bytes for each of these.
    assert peaks[37_500] - peaks[12_500] < 20 * 25_000


def test_a_folder_is_an_index_of_its_own_kind_alone(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"1234")
    write_manifest(tmp_path, "ours", {"corpus_fingerprint": "c"})
    assert is_index(tmp_path, "ours") and not is_index(tmp_path, "theirs")
    crc32 = f"{files.zlib.crc32(b'1234'):08x}"
    recorded = read_manifest(tmp_path, "ours", "c")["files"]
    assert recorded == {"data.bin": {"bytes": 4, "crc32": crc32}}
    with pytest.raises(InputError, match=r"the format soundingline-ours, version 3\. valid: sound"):
        read_manifest(tmp_path, "theirs", "c")


UNITS = [
    Unit(f"d{number}", f"Tide {number}", f"The tide rises {number} metres at {'Brel ' * number}")
    for number in range(40)
] + [Unit("long", "", "tide " * 300)]


def write_lexical(folder):
    LexicalIndex.build(UNITS, folder)


def open_lexical(folder):
    return LexicalIndex.open(folder)


def base_of(folder):
    path = folder.parent / "base"
    return LexicalIndex.open(path) if path.exists() else LexicalIndex.build(UNITS, path)


def enriched_engine(folder):
    phrases = folder.parent / "source" / "phrases.jsonl"
    phrases.parent.mkdir(exist_ok=True)
    phrases.write_text(
        '{"id": "d1", "phrases": ["quay tide"]}\n{"id": "d2", "phrases": ["mole"]}\n'
    )
    collection = Collection("", index=base_of(folder))
    return EnrichedEngine(LexicalEngine(), PhraseFile(path=str(phrases)), None, collection)


def write_enriched(folder):
    enriched_engine(folder).build(UNITS, folder, corpus_fingerprint="")


def open_enriched(folder):
    return enriched_engine(folder).open(folder, corpus_fingerprint="")


def write_impacts(folder):
    made = encode_corpus(UNITS, StubSparse(), folder.with_name("encoding"), corpus_fingerprint="c")
    ImpactIndex.build(made, [f"t{number}" for number in range(60)], folder)


def engine(kind):
    if kind != "pisa":
        return vector_engine(kind)
    from soundingline.pipelines.engines.pisa import PisaEngine

    return PisaEngine()


def write_by(kind):
    return lambda folder: engine(kind).build(UNITS, folder, corpus_fingerprint="c")


def open_by(kind):
    return lambda folder: engine(kind).open(folder, corpus_fingerprint="c")


def write_store(folder):
    documents = [Document(unit.unit_id, unit.title, unit.text) for unit in UNITS]
    SqliteStore.build(folder, documents, corpus_fingerprint="c").close()


def texts_of(folder):
    path = folder.parent / "texts"
    if not path.exists():
        write_store(path)
    return path


def write_spans(folder):
    with SqliteStore(texts_of(folder)) as store:
        store.add_units(folder, WholeDocument())


KINDS = {
    "lexical": (write_lexical, open_lexical),
    "enriched": (write_enriched, open_enriched),
    "impacts": (write_impacts, ImpactIndex.open),
    "store": (write_store, SqliteStore),
    "spans": (write_spans, lambda folder: SqliteStore(texts_of(folder), folder)),
}
if find_spec("torch") and find_spec("sentence_transformers"):
    KINDS |= {kind: (write_by(kind), open_by(kind)) for kind in ("dense", "colbert")}
if find_spec("pyterrier_pisa"):
    KINDS["pisa"] = (write_by("pisa"), open_by("pisa"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An index or a store of each kind, whole."""
    root = tmp_path_factory.mktemp("whole")
    for kind, (write, _) in KINDS.items():
        (root / kind).mkdir()
        write(root / kind / "index")
    return {kind: root / kind / "index" for kind in KINDS}


def files_of(folder):
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != VERIFIED]
    return [path.relative_to(folder).as_posix() for path in paths]


def flip(path, chance):
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def zero(path, chance):
    content = bytearray(path.read_bytes())
    held = [place for place, byte in enumerate(content) if byte]
    start = chance.choice(held)
    content[start : start + 16] = bytes(len(content[start : start + 16]))
    path.write_bytes(content)


def truncate(path, chance):
    os.truncate(path, chance.randrange(path.stat().st_size))


def extend(path, chance):
    with path.open("ab") as stream:
        stream.write(chance.randbytes(8) + b"\xff")


def remove(path, chance):
    path.unlink()


def swap(path, chance):
    """With another file of the folder that holds something else, of the same size if there is."""
    content = path.read_bytes()
    folder = next(
        p for p in path.parents if (p / "manifest.json").exists() or (p / CHECKSUM_LIST).exists()
    )
    others = [folder / name for name in files_of(folder)]
    others = [other for other in others if other.read_bytes() != content]
    equal = [other for other in others if other.stat().st_size == len(content)]
    other = chance.choice(equal or others)
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


DAMAGES = (flip, zero, truncate, extend, remove, swap)


def possible(path, damage):
    content = path.read_bytes()
    return {flip: bool(content), truncate: bool(content), zero: any(content)}.get(damage, True)


def trials(built):
    """Each kind, file and damage once, in an order that has all kinds in any part of it."""
    every = [
        (kind, name, damage)
        for kind, folder in built.items()
        for name in files_of(folder)
        for damage in DAMAGES
        if possible(folder / name, damage)
    ]
    random.Random(24).shuffle(every)
    return every


def test_each_damage_of_each_file_is_told_with_its_name_and_how_to_rebuild(built, tmp_path):
    every = trials(built)
    assert len(every) >= 240
    for number, (kind, name, damage) in enumerate(every[: cases(len(every), 60)]):
        folder = tmp_path / str(number) / "index"
        for other in built[kind].parent.iterdir():
            shutil.copytree(other, folder.parent / other.name)
        before = {file: (folder / file).read_bytes() for file in files_of(folder)}
        damage(folder / name, random.Random(number))
        after = {file: (folder / file).read_bytes() for file in files_of(folder)}
        changed = {file for file in before if before[file] != after.get(file)}
        assert changed, (kind, name, damage.__name__)
        with pytest.raises(InputError) as told:
            KINDS[kind][1](folder)
        line = str(told.value)
        assert "\n" not in line
        assert "build it again" in line or "delete that folder and run" in line, line
        # A manifest that names another format says so instead.
        named = any(Path(file).name in line for file in changed)
        assert named or ("manifest.json" in changed and "has the format" in line), line
        shutil.rmtree(folder.parent)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_whole_opens_and_is_read_once_for_each_state_of_its_files(
    kind, built, tmp_path, monkeypatch
):
    for other in built[kind].parent.iterdir():
        shutil.copytree(other, tmp_path / other.name)
    folder, open_ = tmp_path / "index", KINDS[kind][1]
    time.sleep(2 * files._SETTLED_NS / 1e9)  # until a copy's times tell a later change
    read = []
    crc32 = files._crc32

    def noted(path, start):
        read.append(path)
        return crc32(path, start)

    monkeypatch.setattr(files, "_crc32", noted)
    open_(folder)
    first = [path for path in read if path.is_relative_to(folder)]
    assert sorted(first) == [
        folder / n for n in files_of(folder) if Path(n).name not in ("manifest.json", CHECKSUM_LIST)
    ]
    read.clear()
    open_(folder)
    assert read == []
    # A change that leaves size and time of the content as they were is seen by the change's time.
    target = max(first, key=lambda path: path.stat().st_size)
    status = target.stat()
    flip(target, random.Random(1))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert target.stat().st_size == status.st_size
    refused(target.name, lambda: open_(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"documents.bin": 5}', b"\xff\xfe"])
def test_a_damaged_record_of_openings_is_made_again(content, built, tmp_path):
    shutil.copytree(built["lexical"], tmp_path / "index")
    (tmp_path / "index" / VERIFIED).write_bytes(content)
    time.sleep(2 * files._SETTLED_NS / 1e9)
    assert LexicalIndex.open(tmp_path / "index").search(["tide"])[0].tolist()
    record = json.loads((tmp_path / "index" / VERIFIED).read_text("utf-8"))
    content = (tmp_path / "index" / "documents.bin").read_bytes()
    assert record["documents.bin"][0] == f"{files.zlib.crc32(content):08x}"


@pytest.mark.parametrize(
    ("kind", "name", "type_", "place", "value"),
    [
        ("lexical", "documents.bin", "<u4", 3, 2**32 - 1),
        ("lexical", "offsets.bin", "<i8", 2, 2**40),
        ("lexical", "lengths.bin", "<i4", 0, -5),
        ("lexical", "units.offsets", "<i8", -1, 2**40),
        ("lexical", "texts.offsets", "<i8", 1, -8),
        ("impacts", "documents.bin", "<u4", 0, 2**31),
        ("impacts", "offsets.bin", "<i8", 0, 1),
        ("colbert", "offsets.npy", "", 1, 0),
    ],
)
def test_numbers_that_lead_out_of_an_index_are_refused_although_their_checksums_are_right(
    kind, name, type_, place, value, built, tmp_path
):
    if kind not in built:
        pytest.skip(f"the packages of {kind} are not installed")
    for other in built[kind].parent.iterdir():
        shutil.copytree(other, tmp_path / other.name)
    folder = tmp_path / "index"
    numbers = np.fromfile(folder / name, type_) if type_ else np.load(folder / name)
    numbers[place] = value
    if type_:
        numbers.tofile(folder / name)
    else:
        np.save(folder / name, numbers)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    (folder / "manifest.json").unlink()
    rows = files.checksums(folder)
    (folder / VERIFIED).unlink(missing_ok=True)
    (folder / "manifest.json").write_text(json.dumps(signed({**manifest, "files": rows})))
    refused(rf"is damaged: {name}.*build it again", lambda: KINDS[kind][1](folder))
