"""The evidence log: order, first showings, and the counts beside them."""

from __future__ import annotations

from toolkit.contracts import EvidenceRecord, Exposure
from toolkit.search import EvidenceLog


def test_tiers_keep_the_order_of_first_exposure() -> None:
    log = EvidenceLog()
    log.surface(["c", "a"])
    log.surface(["a", "b", "c"])
    assert log.tiers["surfaced"] == ("c", "a", "b")


def test_an_exposure_is_written_for_the_first_showing_in_each_tier_only() -> None:
    log = EvidenceLog()
    log.count(10)
    log.show("previewed", ["a", "b"])
    log.count(5)
    log.show("previewed", ["b", "c"])
    log.count(7)
    log.show("opened", ["a"])
    log.show("cited", ["a"])
    assert log.exposures == (
        Exposure(1, "previewed", "a", 1, 10),
        Exposure(1, "previewed", "b", 2, 10),
        Exposure(2, "previewed", "c", 3, 15),
        Exposure(3, "opened", "a", 3, 22),
        Exposure(3, "cited", "a", 3, 22),
    )


def test_surfaced_documents_have_no_exposures() -> None:
    log = EvidenceLog()
    log.surface(["a", "b"])
    assert log.exposures == ()


def test_citing_a_document_that_was_only_surfaced_does_not_count_it_as_shown() -> None:
    log = EvidenceLog()
    log.count(4)
    log.surface(["a"])
    log.show("cited", ["a"])
    assert log.exposures == (Exposure(1, "cited", "a", 0, 4),)


def test_known_are_all_documents_brought_up_so_far() -> None:
    log: EvidenceLog = EvidenceLog()
    log.surface(["a"])
    log.show("opened", ["b"])
    assert set(log.known) == {"a", "b"}
    record: EvidenceRecord = log
    assert set(record.tiers) == {"surfaced", "previewed", "opened", "cited"}
