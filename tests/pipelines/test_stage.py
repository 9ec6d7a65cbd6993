"""What stages share: counts of several threads, notes of a search, and equality by arguments."""

from concurrent.futures import ThreadPoolExecutor

from soundingline.pipelines.stage import Counts, add_note, search_notes


def test_no_addition_of_any_thread_is_lost():
    counts = Counts("asked", "found", "never")

    def work(number):
        for _ in range(2000):
            counts.add(asked=1, found=2)
        counts.raise_to("largest", number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert counts() == {"asked": 16_000, "found": 32_000, "never": 0, "largest": 7}


def test_what_was_read_does_not_change():
    counts = Counts("asked")
    before = counts()
    counts.add(asked=1)
    assert (before, counts()) == ({"asked": 0}, {"asked": 1})


def test_a_note_goes_to_the_innermost_block_and_outer_ones_go_on_after_it():
    with search_notes() as outer:
        add_note("first", 1)
        with search_notes() as inner:
            add_note("second", 2)
        add_note("third", 3)
    add_note("fourth", 4)
    assert outer == {"first": 1, "third": 3}
    assert inner == {"second": 2}


def test_notes_of_one_name_are_numbered():
    with search_notes() as notes:
        for value in "abc":
            add_note("rewrite", value)
        add_note("other", 1)
    assert notes == {"rewrite": "a", "rewrite_2": "b", "rewrite_3": "c", "other": 1}
