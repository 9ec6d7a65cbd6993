"""Counting and cutting by words and marks, and by the tokenizer of a model."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.checkpoints import write_tokenizer
from support.search import WordBackend, store_of

from soundingline.toolkit.corpus import DocumentHead
from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.tokens import (
    WORDS,
    count_tokens,
    load_tokenizer,
    token_spans,
    token_starts,
    truncate,
    without_format_characters,
)

LONG = "the harbour kings antidisestablishment  \u00e9\u6f22\U0001f6a2\tx " * 400


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokens") / "tokenizer.json")


@pytest.fixture(scope="module")
def reference(path):
    """The library's own tokenizer, without what its file says of truncation and padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def test_tokens_are_counted_as_the_library_counts_them(path, reference):
    tokens = load_tokenizer(str(path))
    assert tokens.count(LONG) == len(reference.encode(LONG).ids) != count_tokens(LONG)
    assert tokens.count("") == 0 and tokens.count("\ud800 x") > 0


@pytest.mark.parametrize("limit", [1, 2, 7, 100, 511])
def test_a_head_has_the_first_tokens_of_the_whole_text(path, reference, limit):
    head = load_tokenizer(str(path)).truncate(LONG, limit)
    whole = reference.encode(LONG)
    assert LONG.startswith(head) and len(head) == whole.offsets[limit - 1][1]


@given(text=st.text(), limit=st.integers(min_value=0, max_value=30))
def test_a_head_is_a_prefix_and_whole_where_it_is_short(path, reference, text, limit):
    head = load_tokenizer(str(path)).truncate(text, limit)
    ends = [end for _, end in reference.encode(text).offsets]
    expected = text if len(ends) < limit else text[: ends[limit - 1]] if limit else ""
    assert head == expected


def test_a_long_text_is_not_read_whole_for_its_head(path, monkeypatch):
    tokens = load_tokenizer(str(path))
    read = []
    encoded = tokens._encoded
    monkeypatch.setattr(tokens, "_encoded", lambda text: read.append(len(text)) or encoded(text))
    tokens.truncate(LONG * 50, 10)
    assert max(read) < 2000


def test_a_run_without_a_space_is_cut_as_in_the_whole_text(path, reference):
    text = "harbour" * 3000 + " end"
    head = load_tokenizer(str(path)).truncate(text, 20)
    assert len(head) == reference.encode(text).offsets[19][1]


def test_without_a_tokenizer_words_and_marks_count(path):
    assert load_tokenizer(None) is WORDS
    assert WORDS.count("two words.") == 3 and WORDS.truncate("two words.", 2) == "two words"
    assert WORDS.fingerprint == "words and marks"


def test_a_folder_and_a_name_of_the_hub_are_found_and_named(path, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, file, revision=None):
        asked.append((name, file))
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    named = load_tokenizer("owner/tiny-tokens")
    assert asked == [("owner/tiny-tokens", "tokenizer.json")]
    content = load_tokenizer(str(path)).fingerprint.rpartition("@")[2]
    assert named.fingerprint == f"owner/tiny-tokens@{content}"
    assert load_tokenizer(str(path.parent)).count("king") == named.count("king")


@pytest.mark.parametrize("source", ["nowhere.json", "/a/b/c", "{folder}/empty", "{folder}"])
def test_what_is_no_tokenizer_is_told_in_one_line(tmp_path, source):
    (tmp_path / "empty").write_text("{}")
    with pytest.raises(InputError, match="no tokenizer"):
        load_tokenizer(source.format(folder=tmp_path))


def test_tools_and_heads_use_the_tokenizer(path, reference):
    text = "the harbour of the king " * 60
    document = Document("d1", "", text)
    backend, store = WordBackend({"d1": text}), store_of({"d1": document})
    expected = text[: reference.encode(text).offsets[15][1]]
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


def test_words_and_visible_marks_are_tokens():
    assert count_tokens("It cost $3.50, didn't it?") == 12
    assert count_tokens("") == 0
    assert count_tokens(" \n\t ") == 0


@given(st.text(max_size=900))
@example("a \ud800b")
def test_array_path_finds_the_tokens_of_the_expression(text):
    starts = [start for start, _ in token_spans(text)]
    assert token_starts(text).tolist() == starts
    assert count_tokens(text) == len(starts)


@given(st.text(max_size=200), st.integers(0, 60))
def test_head_is_the_shortest_prefix_with_that_many_tokens(text, limit):
    cut = truncate(text, limit)
    total = count_tokens(text)
    assert text.startswith(cut)
    assert count_tokens(cut) == min(limit, total)
    if limit > total:
        assert cut == text
    elif limit:
        assert count_tokens(cut[:-1]) <= limit and not cut[-1:].isspace()


@pytest.mark.parametrize("length", [0, 399, 401, 3000])
def test_the_head_of_a_text_ends_with_its_last_token_whatever_its_length(length):
    draw = random.Random(length)
    for _ in range(200):
        pieces = ["word" * draw.randint(1, 300), *"ab é字.,\n_ ", "\u200d", "\ud83d", "😀"]
        text = "".join(draw.choice(pieces) for _ in range(length))[:length]
        spans = list(token_spans(text))
        for limit in (1, len(spans) // 2, len(spans) - 1, len(spans), len(spans) + 1):
            whole = limit > len(spans)
            expected = text if whole else text[: spans[limit - 1][1]] if limit > 0 else ""
            assert truncate(text, limit) == expected


def test_format_characters_are_dropped_and_no_others():
    # The general category Cf of the Unicode Character Database, by name.
    dropped = "\u200b\u200d\ufeff\u00ad\u202e\u2066\U000e0041"
    visible = "a é\u0301\u00a0\u20e3漢\U0001f600\ud800"
    for _ in range(2):
        assert without_format_characters(dropped.join(visible)) == visible
        assert without_format_characters(dropped) == ""
