from hypothesis import given
from hypothesis import strategies as st

from toolkit.corpus.lines import LINE_WIDTH, line_spans, without_break

TEXTS = st.text(st.sampled_from("ab1 .!?\n\r\tÉ\u2003”")) | st.text()


def lines(text: str, width: int = LINE_WIDTH) -> list[str]:
    return [text[start:end] for start, end in line_spans(text, width)]


@given(TEXTS, st.integers(1, 30))
def test_lines_joined_give_the_text_back(text: str, width: int) -> None:
    assert "".join(lines(text, width)) == text


@given(TEXTS, st.integers(1, 30))
def test_no_line_is_wider_than_asked_and_none_is_empty(text: str, width: int) -> None:
    assert all(len(without_break(line)) <= width for line in lines(text, width))
    assert all(lines(text, width)) or text == ""


@given(st.lists(st.text(st.characters(exclude_characters="\r\n"), max_size=40), min_size=1))
def test_short_lines_stay_as_they_are(written: list[str]) -> None:
    text = "\n".join(written)
    shown = [without_break(line) for line in lines(text, 40)]
    assert shown == (written if written[-1] or len(written) == 1 else written[:-1])


def test_a_line_break_of_two_characters_does_not_count_as_width() -> None:
    assert lines("abc\r\nabc", 3) == ["abc\r\n", "abc"]


def test_a_long_line_is_wrapped_behind_its_last_fitting_sentence() -> None:
    text = "One two. Three Mr. Four. Five six seven. End."
    assert lines(text, 30) == ["One two. Three Mr. Four. ", "Five six seven. End."]


def test_a_sentence_far_from_the_width_is_found_too() -> None:
    text = "Short one. " + "Word " * 300
    assert lines(text)[0] == "Short one. "


def test_a_long_sentence_is_wrapped_behind_its_last_fitting_word() -> None:
    assert lines("alpha beta gamma delta", 12) == ["alpha beta ", "gamma delta"]


def test_a_word_wider_than_a_line_is_cut() -> None:
    assert lines("a" * 25, 10) == ["a" * 10, "a" * 10, "a" * 5]


def test_an_empty_text_is_one_empty_line() -> None:
    assert line_spans("") == [(0, 0)]
