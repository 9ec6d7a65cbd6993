from __future__ import annotations

from soundingline.pipelines.search_notes import collecting, note


def test_a_note_goes_to_the_innermost_block_and_outer_ones_go_on_after_it():
    with collecting() as outer:
        note("first", 1)
        with collecting() as inner:
            note("second", 2)
        note("third", 3)
    note("fourth", 4)
    assert outer == {"first": 1, "third": 3}
    assert inner == {"second": 2}


def test_notes_of_one_name_are_numbered():
    with collecting() as notes:
        for value in "abc":
            note("rewrite", value)
        note("other", 1)
    assert notes == {"rewrite": "a", "rewrite_2": "b", "rewrite_3": "c", "other": 1}
