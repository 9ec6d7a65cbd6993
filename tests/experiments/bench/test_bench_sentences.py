"""How the agreement of two sentence splitters is counted."""

from soundingline.experiments.bench.sentences import Agreement, compare


def at(text, *words):
    begins = [0, *(text.index(word) for word in words)]
    return list(zip(begins, [*begins[1:], len(text)], strict=True))


def test_boundaries_are_counted_everywhere_and_within_lines():
    text = "One. Two. Three\nFour. Five"
    ours = at(text, "Two", "Four", "Five")
    theirs = at(text, "Two", "Three", "Four")
    counts = compare([text, text], lambda _: ours, lambda _: theirs)
    assert counts == {"all": Agreement(6, 6, 4), "within lines": Agreement(4, 4, 2)}
    assert counts["within lines"].row("x") == ["x", "4", "4", "2", "0.500", "0.500", "0.500"]
    assert Agreement(3, 1, 1).row("x")[-3:] == ["0.333", "1.000", "0.500"]


def test_no_boundary_has_no_share():
    assert compare(["One"], lambda text: [(0, 3)], lambda text: [(0, 3)])["all"].row("x")[-1] == "—"
