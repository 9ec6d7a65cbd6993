"""BrowseComp-Plus's published files: what is read, opened, selected and refused."""

import pytest
from support.assertions import refused
from support.benchmarks import (
    ANSWERS,
    CANARY,
    DOCUMENTS,
    EVIDENCE,
    QUESTIONS,
    VARIABLE,
    obfuscated,
    plain_row,
    sealed_row,
    write_benchmark,
    write_jsonl,
    write_parquet,
)

from soundingline.experiments.collection import prepare
from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.pipelines.requirements.locators import LexicalLocator
from soundingline.toolkit import optional
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.browsecomp_plus import BrowseCompPlus, BrowseCompWikipedia
from soundingline.toolkit.corpus import Passages, SqliteStore, WholeDocument
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.exchange import browsecomp_plus
from soundingline.toolkit.exchange.transcript import trajectory_of


@pytest.fixture(autouse=True)
def canary(monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)


@pytest.fixture
def folder(tmp_path):
    write_benchmark(tmp_path)
    return tmp_path


def opened(folder, questions="questions", corpus="corpus", **settings):
    return BrowseCompPlus(str(folder / questions), str(folder / corpus), **settings)


def with_corpus(folder, rows, **settings):
    write_jsonl(folder / "own-corpus.jsonl", rows)
    return opened(folder, corpus="own-corpus.jsonl", **settings)


def test_questions_answers_judgements_and_corpus_are_opened(folder):
    benchmark = opened(folder)
    assert isinstance(benchmark, Benchmark)
    assert {topic.qid: topic.text for topic in benchmark.topics} == QUESTIONS
    assert benchmark.answers == {qid: [answer] for qid, answer in ANSWERS.items()}
    evidence = {qid: dict.fromkeys(docids, 1) for qid, docids in EVIDENCE.items()}
    assert benchmark.qrels["evidence"] == evidence
    assert benchmark.qrels["gold"] == {qid: {d[1]: 1} for qid, d in EVIDENCE.items()}
    documents = list(benchmark.documents())
    assert {document.docid: document.text for document in documents} == DOCUMENTS
    assert documents[0].url == f"http://{documents[0].docid}"


@pytest.mark.parametrize("suffix", [".jsonl", ".json.gz"])
@pytest.mark.parametrize("obfuscated", [True, False])
def test_json_lines_give_what_parquet_gives(folder, monkeypatch, obfuscated, suffix):
    parquet = opened(folder)
    rows = [plain_row(qid) for qid in QUESTIONS]
    write_jsonl(folder / f"r{suffix}", [sealed_row(row) for row in rows] if obfuscated else rows)
    texts = [{"docid": docid, "text": text} for docid, text in DOCUMENTS.items()]
    write_jsonl(folder / f"c{suffix}", texts)
    if not obfuscated:
        monkeypatch.delenv(VARIABLE)
    lines = opened(folder, f"r{suffix}", f"c{suffix}", obfuscated=obfuscated)
    assert (lines.topics, lines.answers) == (parquet.topics, parquet.answers)
    assert lines.qrels == parquet.qrels
    assert [d.text for d in lines.documents()] == [d.text for d in parquet.documents()]


FRONT_MATTER = {
    "a": (
        "---\ntitle: The Mill of Brel\nauthor: A. Kord\ndate: 2011-04-02\n---\nIt burned.",
        "The Mill of Brel",
    ),
    "b": ("---\nauthor: B\ntitle: \"Brel: a 'town'\"  \n---\n", "Brel: a 'town'"),
    "c": ("---\r\ntitle: Ostvik\r\n---\r\nText.", "Ostvik"),
    "no title": ("---\nauthor: B\n---\ntitle: This is the text.", ""),
    "empty": ("---\ntitle:\n---\nText.", ""),
    "open": ("---\ntitle: Never closed\nText.", ""),
    "later": ("Text.\n---\ntitle: No\n---\n", ""),
    "rule": ("----\ntitle: No\n----\n", ""),
    "nested": ("---\nseo:\n  title: No\n---\nText.", ""),
}


def test_titles_are_those_of_the_front_matter(folder):
    rows = [{"docid": docid, "text": text} for docid, (text, _) in FRONT_MATTER.items()]
    rows.append({"docid": "own", "title": "Own", "text": FRONT_MATTER["a"][0]})
    benchmark = with_corpus(folder, rows)
    documents = {document.docid: document for document in benchmark.documents()}
    expected = {docid: title for docid, (_, title) in FRONT_MATTER.items()} | {"own": "Own"}
    assert {docid: document.title for docid, document in documents.items()} == expected
    assert [document.text for document in documents.values()] == [row["text"] for row in rows]
    plain = with_corpus(folder, rows, front_matter=False)
    assert [d.title for d in plain.documents()] == [""] * len(FRONT_MATTER) + ["Own"]
    assert plain.corpus_fingerprint != benchmark.corpus_fingerprint
    assert plain.fingerprint != benchmark.fingerprint


def test_the_words_of_a_title_count_once(folder):
    """BrowseComp-Plus's index has the field `text` of its rows alone, which states the title."""
    text, title = FRONT_MATTER["a"]
    rows = [{"docid": "a", "text": text}, {"docid": "own", "title": "Own", "text": text}]
    rows.append({"docid": "b", "text": "The mill burned."})
    titled, plain = (with_corpus(folder, rows, front_matter=on) for on in (True, False))
    units = {
        benchmark: [unit for each in benchmark.documents() for unit in WholeDocument().units(each)]
        for benchmark in (titled, plain)
    }
    assert [unit.title for unit in units[titled]] == [title, "Own", ""]
    assert [unit.contents for unit in units[titled]] == [text, f"Own\n{text}", "The mill burned."]
    assert [u.contents for u in units[plain]] == [u.contents for u in units[titled]]
    # A passage has the title in front, unless it begins with the front matter.
    first, *others = Passages(max_tokens=40).units(
        Document("a", title, f"{text} {'It stood by the river for long. ' * 8}")
    )
    assert first.contents.count(title) == 1 and first.contents.startswith("---")
    assert others and all(each.contents.startswith(f"{title}\n") for each in others)


# As trec-cast-tools and the authors' script write passages: numbers from 1, spaces around
# sentences, and a passage once more behind a sentence of 250 tokens or more.
LONG = "The register lists " + "mills and " * 130 + "ferries."
PASSAGES = {
    "browsecomp_plus_9_1": (" The mill burned twice.  The council met. ", "The Mill of Brel"),
    "browsecomp_plus_9_2": (LONG, "The Mill of Brel"),
    "browsecomp_plus_9_3": (" The mill burned twice.  The council met. ", "The Mill of Brel"),
    "browsecomp_plus_x_7_1": ("A harvest of\fplums.", None),
}


def released_rows():
    rows = PASSAGES.items()
    return [{"docid": name, "title": title, "text": body} for name, (body, title) in rows]


def test_the_released_passages_are_read_with_their_numbers(folder, tmp_path):
    benchmark = with_corpus(folder, released_rows())
    assert benchmark.in_passages and not opened(folder).in_passages
    documents = {document.docid: document for document in benchmark.documents()}
    assert list(documents) == ["9", "x_7"] and documents["9"].title == "The Mill of Brel"
    store = SqliteStore.in_memory(benchmark.documents(), Passages(splitter="released"))
    released = {
        f"{name.removeprefix('browsecomp_plus_').rpartition('_')[0]}%p{name[-1]}": body.strip()
        for name, (body, _) in PASSAGES.items()
    } | {"x_7%p1": "A harvest of plums."}
    assert {unit.unit_id: unit.text for unit in store.units()} == released
    assert [unit.text for unit in store.texts(list(released))] == list(released.values())
    with pytest.raises(KeyError):
        store.texts(["9%p0"])
    index = LexicalIndex.build(store.units(), tmp_path / "index")
    ranked = set(index.bm25(depth=10).search("brel ferries")["docno"])
    assert ranked == {"9%p1", "9%p2", "9%p3"}
    ((evidence,),) = LexicalLocator(index).locate(["9"], ["ferries"], 1)
    assert [located.unit_id for located in evidence] == ["9%p2"]
    # An agent's file of the authors names the same passage by the same number.
    found = {"type": "tool_call", "tool_name": "search", "arguments": "{}"}
    found["output"] = '[{"docid": "browsecomp_plus_9_2", "snippet": "The register"}]'
    record = {"query_id": "11", "status": "completed", "result": [found]}
    (call,) = trajectory_of(next(browsecomp_plus.read([("f", record)])), "q", {"9"}).calls
    assert store.texts(call.ranking)[0].text == LONG


def test_a_released_passage_out_of_order_is_one_line(folder):
    first, _, *others = released_rows()
    message = r"jsonl:2 has the passage browsecomp_plus_9_3\. valid: passage 2 of document 9\."
    refused(message, lambda: list(with_corpus(folder, [first, *others]).documents()))


def test_released_passages_of_a_corpus_of_documents_are_refused(folder, tmp_path):
    segmenter = Passages(splitter="released")
    with pytest.raises(InputError, match=r"not released in passages\. set passage_splitter"):
        prepare(opened(folder), segmenter, LexicalEngine(), tmp_path / "indexes")


def test_odd_rows_come_back_with_their_texts(folder):
    row = {
        **plain_row("11"),
        "query": 'A tab\there, an unclosed "quotation mark, and\na line?',
        "answer": "Łódź — 100 %",
        "gold_docs": [],
        "evidence_docs": [{"docid": "no number/at all", "text": "", "url": ""}],
    }
    bare = {**plain_row("12"), "evidence_docs": [], "gold_docs": None}
    write_parquet(folder / "own.parquet", [sealed_row(row), sealed_row(bare)])
    benchmark = opened(folder, "own.parquet")
    assert benchmark.topics[0] == Topic("11", row["query"])
    assert benchmark.answers["11"] == ["Łódź — 100 %"]
    assert benchmark.qrels == {"evidence": {"11": {"no number/at all": 1}}, "gold": {}}


@pytest.mark.parametrize(
    ("value", "message"),
    [("", f"{VARIABLE} is not set"), ("another canary", f"canary in .{VARIABLE} does not open")],
)
def test_an_absent_or_wrong_canary_is_one_line_without_it(folder, monkeypatch, value, message):
    monkeypatch.setenv(VARIABLE, value)
    assert "another canary" not in refused(message, opened, folder)


def test_a_truncated_row_or_file_is_one_line(folder):
    rows = [sealed_row(plain_row("11")), sealed_row(plain_row("12"))]
    rows[1]["query"] = rows[1]["query"][:-3]
    write_parquet(folder / "cut.parquet", rows)
    refused(r"does not open .*cut\.parquet:2\..* fetch the file", opened, folder, "cut.parquet")
    questions = next((folder / "questions").iterdir())
    questions.write_bytes(questions.read_bytes()[:-40])
    refused("cannot be read after row 0", opened, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_id": ""}, "1: query_id is an empty string"),
        ({"evidence_docs": obfuscated("d1")}, "1: evidence_docs is .*string.*valid list"),
        ({"query": 3.5}, r"1: query is 3\.5"),
        ({"gold_docs": ...}, "1 has no field 'gold_docs'"),
        ({}, "2 has the qid '11' a second time"),
    ],
)
def test_malformed_rows_are_refused_with_their_place(folder, change, message):
    row = {**sealed_row(plain_row("11")), **change}
    row = {name: value for name, value in row.items() if value is not ...}
    write_jsonl(folder / "r.jsonl", [row, row])
    refused(rf"r.jsonl:{message}", opened, folder, "r.jsonl")


def test_topics_and_qrels_of_files_replace_those_of_the_rows(folder):
    topics, qrels, golds = folder / "t.tsv", folder / "e.txt", folder / "g.txt"
    topics.write_text('12\tan unquoted "mark and\ta tab\n13\tplain\n', encoding="utf-8")
    qrels.write_text("12 Q0 1101 1\n12 0 x-1 0\n99 Q0 x-2 1\n", encoding="utf-8")
    golds.write_text("13 Q0 1302 1\n", encoding="utf-8")
    files = {"topics": str(topics), "qrels": str(qrels), "gold_qrels": str(golds)}
    benchmark = opened(folder, **files)
    assert benchmark.topics == [Topic("12", 'an unquoted "mark and\ta tab'), Topic("13", "plain")]
    evidence, gold = {"12": {"1101": 1, "x-1": 0}}, {"13": {"1302": 1}}
    assert benchmark.qrels == {"evidence": evidence, "gold": gold}
    assert benchmark.answers == {"12": [ANSWERS["12"]], "13": [ANSWERS["13"]]}
    without = BrowseCompPlus(None, str(folder / "corpus"), **files)
    assert without.topics == benchmark.topics and not without.answers
    topics.write_text("12 no tab\n", encoding="utf-8")
    refused(r"t.tsv:1 is not a question", opened, folder, **files)
    refused(r"there is no file .*absent", lambda: opened(folder, topics=str(folder / "absent")))
    refused("questions is null", lambda: BrowseCompPlus(None, str(folder / "corpus")))


def many(folder, **settings):
    topics, qrels = folder / "many.tsv", folder / "many.txt"
    topics.write_text("".join(f"{n}\tquestion {n}\n" for n in range(830)), encoding="utf-8")
    qrels.write_text("1 Q0 x-1 1\n", encoding="utf-8")
    files = {"topics": str(topics), "qrels": str(qrels)}
    benchmark = BrowseCompPlus(None, str(folder / "corpus"), **files, **settings)
    return [topic.qid for topic in benchmark.topics]


def test_dev_and_test_share_out_the_questions_by_their_ids(folder):
    dev, test = many(folder, split="dev"), many(folder, split="test")
    assert sorted([*dev, *test], key=int) == many(folder)
    assert 350 < len(dev) < 480


def test_samples_are_seeded_nested_and_in_order(folder):
    small, large = many(folder, sample=100), many(folder, sample=300)
    assert (len(small), len(large)) == (100, 300)
    assert set(small) < set(large)
    assert large == sorted(large, key=int)
    other = many(folder, sample=100, seed=1)
    assert 0 < len(set(other) & set(small)) < 40, "two samples of 100 share some 12 by chance"
    assert many(folder, sample=100, limit=7) == small[:7]


@pytest.mark.parametrize(
    "wrong", [{"sample": 831}, {"sample": 0}, {"limit": True}, {"split": "train"}, {"seed": True}]
)
def test_impossible_slices_are_refused(folder, wrong):
    refused(f"^{next(iter(wrong))}=", many, folder, **wrong)


def test_fingerprints_follow_content_and_slice_and_not_the_path(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("copy")
    write_benchmark(elsewhere)
    one, copy, part = opened(folder), opened(elsewhere), opened(folder, limit=2)
    assert (one.fingerprint, one.corpus_fingerprint) == (copy.fingerprint, copy.corpus_fingerprint)
    assert part.corpus_fingerprint == one.corpus_fingerprint
    assert part.fingerprint != one.fingerprint


def test_a_name_is_fetched_from_the_hub_and_a_missing_path_is_refused(folder, monkeypatch):
    import huggingface_hub

    fetched = []

    def snapshot(name, **settings):
        fetched.append((name, settings["repo_type"], settings["revision"]))
        if name == "gone/away":
            raise OSError("no such repository")
        return str(folder / name.partition("/")[2])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    benchmark = BrowseCompPlus("hub/questions", "hub/corpus", revision="r1", corpus_revision="r2")
    assert len(list(benchmark.documents())) == len(DOCUMENTS)
    assert fetched == [("hub/questions", "dataset", "r1"), ("hub/corpus", "dataset", "r2")]
    assert benchmark.document_count is None
    # As docs/data.md states it.
    assert BrowseCompPlus("hub/questions").document_count == 100_195
    with pytest.raises(InputError, match="gone/away cannot be downloaded from the Hugging Face"):
        BrowseCompPlus("gone/away", "hub/corpus")
    with pytest.raises(InputError, match="there are no rows at /nowhere/rows"):
        BrowseCompPlus("/nowhere/rows.parquet", "hub/corpus")
    assert optional.is_hub_name("Tevatron/browsecomp-plus") and not optional.is_hub_name("../x")


# BrowseComp-Wikipedia: rows as in the authors' two files.

PAGES = [
    *[
        (
            0,
            "Brel",
            "harbour town",
            ["1820_establishments", "Towns by the sea"],
            "'''Brel''' is a town.",
        )
    ],
    *[(0, "Ostvik (mill)", None, None, "A mill in [[Brel]].")],
    *[(0, "Brel, old", None, None, "#REDIRECT [[Brel]]")],
    *[(14, "Towns by the sea", None, ["Towns"], "")],
]


@pytest.fixture
def wikipedia(tmp_path):
    import pyarrow
    from pyarrow import parquet

    names = ("namespace", "title", "description", "categories", "text")
    pages = [{"page_id": n, **dict(zip(names, page, strict=True))} for n, page in enumerate(PAGES)]
    path = tmp_path / "pages_with_categories.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(pages), path)
    row = {
        **{"query_id": "12", "problem": "Which mill burned?", "answer": "Ostvik"},
        "wiki_gold_titles": {"1": "Ostvik (mill)", "2": "Brel"},
        "wiki_gold_urls": {"1": "https://en.wikipedia.org/wiki/Ostvik_%28mill%29", "2": "..."},
        "wiki_gold_categories": {"1": [], "2": ["1820_establishments"]},
    }
    write_jsonl(tmp_path / "wiki.jsonl", [row])
    questions = str(tmp_path / "wiki.jsonl")
    return BrowseCompWikipedia(questions, str(path), obfuscated=False, front_matter=False)


def test_browsecomp_wikipedia_has_pages_by_title_and_their_categories(wikipedia):
    assert wikipedia.topics == [Topic("12", "Which mill burned?")]
    assert wikipedia.answers == {"12": ["Ostvik"]} and wikipedia.obfuscated
    gold = {"12": {"Ostvik_(mill)": 1, "Brel": 1}}
    assert wikipedia.qrels == {"evidence": gold, "gold": gold}
    town, mill, old, category = wikipedia.documents()
    assert town.text == (
        "harbour town\n\n'''Brel''' is a town.\n\n1820 establishments\nTowns by the sea"
    )
    assert (town.docid, town.title, town.url) == (
        *("Brel", "Brel", "https://en.wikipedia.org/wiki/Brel"),
    )
    assert (mill.docid, mill.title) == ("Ostvik_(mill)", "Ostvik (mill)")
    # In the form of the addresses that the authors give for gold pages.
    assert mill.url == "https://en.wikipedia.org/wiki/Ostvik_%28mill%29"
    assert old.docid == "Brel,_old"  # a redirect is a page too
    assert (category.docid, category.text, category.url) == ("14:Towns_by_the_sea", "Towns", "")


def test_a_row_of_browsecomp_plus_is_not_one_of_browsecomp_wikipedia(folder):
    with pytest.raises(InputError, match="has no field 'problem'"):
        BrowseCompWikipedia(str(folder / "questions"), str(folder / "corpus"), obfuscated=False)
