"""Counting and cutting by words and marks, and by the tokenizer of a model."""

import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.benchmarks import WordBackend, store_of
from support.checkpoints import write_tokenizer

from soundingline.toolkit.corpus import DocumentHead
from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.tokens import (
    WORDS,
    count_tokens,
    load_tokenizer,
    token_starts,
    truncate,
    without_format_characters,
)

TOKEN = re.compile(r"\w+|[^\w\s]")
LONG = "the harbour kings antidisestablishment  \u00e9\u6f22\U0001f6a2\tx " * 400


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokens") / "tokenizer.json")


@pytest.fixture(scope="module")
def reference(path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def head_of(reference, text, limit):
    ends = [end for _, end in reference.encode(text).offsets]
    return text if len(ends) < limit else text[: ends[limit - 1]] if limit else ""


def test_tokens_are_counted_as_the_library_counts_them(path, reference):
    tokens = load_tokenizer(str(path))
    assert tokens.count(LONG) == len(reference.encode(LONG).ids) != count_tokens(LONG)
    assert tokens.count("") == 0 and tokens.count("\ud800 x") > 0


@given(text=st.text(), limit=st.integers(min_value=0, max_value=30))
@example(text=LONG, limit=1)
@example(text=LONG, limit=100)
@example(text=LONG, limit=511)
@example(text="harbour" * 3000 + " end", limit=20)
def test_a_head_has_the_first_tokens_of_the_complete_text(path, reference, text, limit):
    assert load_tokenizer(str(path)).truncate(text, limit) == head_of(reference, text, limit)


def test_only_a_beginning_of_a_long_text_is_read_for_its_head(path, monkeypatch):
    tokens, read = load_tokenizer(str(path)), []
    encoded = tokens._encoded
    monkeypatch.setattr(tokens, "_encoded", lambda text: read.append(len(text)) or encoded(text))
    tokens.truncate(LONG * 50, 10)
    assert max(read) < 2000


def test_a_folder_and_a_name_of_the_hub_are_read_and_named(path, monkeypatch):
    import huggingface_hub

    files = []

    def download(name, file, revision=None):
        files.append((name, file))
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    named = load_tokenizer("owner/tiny-tokens")
    assert files == [("owner/tiny-tokens", "tokenizer.json")]
    content = load_tokenizer(str(path)).fingerprint.rpartition("@")[2]
    assert named.fingerprint == f"owner/tiny-tokens@{content}"
    assert load_tokenizer(str(path.parent)).count("king") == named.count("king")


@pytest.mark.parametrize("source", ["nowhere.json", "/a/b/c", "{folder}/empty", "{folder}"])
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, source):
    (tmp_path / "empty").write_text("{}")
    with pytest.raises(InputError, match="no tokenizer"):
        load_tokenizer(source.format(folder=tmp_path))


def test_tools_and_heads_use_the_tokenizer(path, reference):
    text = "the harbour of the king " * 60
    document = Document("d1", "", text)
    backend, store = WordBackend({"d1": text}), store_of({"d1": document})
    expected = head_of(reference, text, 16)
    tool = TopK(k=1, max_tokens=16, tokenizer=str(path)).open(backend, store)
    result = tool.call("search", {"query": "king"})
    assert result.text.endswith(f"\n{expected}\n[cut after 16 tokens]")
    assert result.call.tokens == len(reference.encode(result.text).ids)
    browsing = RankedBrowsing(tokenizer=str(path)).open(backend, store)
    page = browsing.call("search", {"reason": "r", "query": "king"})
    assert page.call.tokens == len(reference.encode(page.text).ids)
    unit = DocumentHead(16, str(path))
    assert [each.text for each in unit.units(document)] == [expected]
    assert unit.fingerprint != DocumentHead(16).fingerprint


def test_without_a_tokenizer_words_and_visible_marks_count():
    assert load_tokenizer(None) is WORDS and WORDS.fingerprint == "words and marks"
    assert count_tokens("It cost $3.50, didn't it?") == 12
    assert count_tokens("") == count_tokens(" \n\t ") == 0


@given(st.text(max_size=900))
@example("a \ud800b")
def test_the_array_path_has_the_tokens_of_the_expression(text):
    starts = [match.start() for match in TOKEN.finditer(text)]
    assert token_starts(text).tolist() == starts
    assert count_tokens(text) == len(starts)


@pytest.mark.parametrize("length", [0, 30, 399, 401, 3000])
def test_the_head_of_a_text_ends_with_its_last_token_whatever_its_length(length):
    draw = random.Random(length)
    for _ in range(100):
        pieces = ["word" * draw.randint(1, 300), *"ab é字.,\n_ ", "\u200d", "\ud83d", "😀"]
        text = "".join(draw.choice(pieces) for _ in range(length))[:length]
        spans = [match.span() for match in TOKEN.finditer(text)]
        for limit in (0, 1, len(spans) // 2, len(spans) - 1, len(spans), len(spans) + 1):
            complete = limit > len(spans)
            expected = text if complete else text[: spans[limit - 1][1]] if limit > 0 else ""
            assert truncate(text, limit) == expected


def test_format_characters_are_dropped_and_no_others():
    # The general category Cf of the Unicode Character Database, by name.
    dropped = "\u200b\u200d\ufeff\u00ad\u202e\u2066\U000e0041"
    visible = "a é\u0301\u00a0\u20e3漢\U0001f600\ud800"
    assert without_format_characters(dropped.join(visible)) == visible
    assert without_format_characters(dropped) == ""
