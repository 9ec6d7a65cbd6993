import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.lexical.analyzer import make_analyzer

NAMES = ["english", "english_unstemmed", "standard", "whitespace"]
# Joining and parting marks, blanks of Java and of Python, scripts and pictures of several kinds.
ALPHABET = (
    "aZs09_.':,;-\"#* \t\n\x1c\x85\xa0\u200d\u202f\u3000éאבกข漢カ\u0301\U0001f600\U0001f1e9\u20e3"
)
texts = st.one_of(
    st.text(alphabet=ALPHABET, max_size=60),
    st.text(alphabet="ab1_.':,; -", max_size=60),
    st.text(max_size=60),
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=cases(300), deadline=None)
@given(text=texts)
def test_terms_of_the_pieces_are_the_terms_of_the_text(name: str, text: str) -> None:
    analyzer = make_analyzer(name)
    parts = analyzer.pieces(text)
    assert [term for part in parts for term in analyzer.terms(part)] == analyzer.terms(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_word_too_long_for_one_token_is_cut_alike_in_its_piece(name: str) -> None:
    analyzer = make_analyzer(name)
    for text in ("a" * 600 + " b", ("ab." * 200) + "c d", "x" * 254 + "\U0001f600y " + "1,2" * 99):
        parts = analyzer.pieces(text)
        assert [term for part in parts for term in analyzer.terms(part)] == analyzer.terms(text)
