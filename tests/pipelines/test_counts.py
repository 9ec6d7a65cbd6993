"""Counts that threads share."""

from concurrent.futures import ThreadPoolExecutor

from soundingline.pipelines.counts import Counts


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
