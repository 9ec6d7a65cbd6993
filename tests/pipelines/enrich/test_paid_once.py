"""A kill between the two writes of a reply, the cache's and the ledger's."""

import json
import os
from collections import Counter

import pytest
from support.llm_model import ScriptedModel
from support.runs import starts

from soundingline.pipelines.cache import ResultCache
from soundingline.pipelines.enrich.llm_phrases import ModelPhrases
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.files import JsonLinesLog
from soundingline.toolkit.llm import Turn
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.ledger import open_ledger

UNITS = [Unit(f"d{number}", "", f"Text number {number}.") for number in range(12)]
ANSWER = json.dumps({"keywords": ["seamark"]})


def ask(folder):
    """Ask for all phrases that are missing; each reply that is paid for leaves a line."""
    paid = (folder / "paid").open("a")

    def reply(messages, settings):
        print(messages[0]["content"].split("number ")[1].split(".")[0], file=paid, flush=True)
        return Turn(text=ANSWER)

    source, blocking = ModelPhrases(), BlockingModel("m", role="enrichment")
    collection = Collection("c", caches=folder / "caches", model=blocking)
    with (
        open_ledger(folder / "ledger.jsonl") as ledger,
        blocking.started(ScriptedModel(choose=reply), ledger),
    ):
        missing = list(source.missing(UNITS, collection))
        for _, phrases, error in source.ask_documents(missing, collection):
            assert list(phrases) == ["seamark"] and not error


def killed(folder, owner, method, call):
    """Ask in a process that dies without a word before it makes this call, counted from 1."""
    process = os.fork()
    if process:
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
        return
    try:
        original = getattr(owner, method)
        calls = iter(range(1, 1000))

        def dying(*arguments, **options):
            if next(calls) == call:
                os._exit(9)
            return original(*arguments, **options)

        setattr(owner, method, dying)
        ask(folder)
    finally:
        os._exit(1)


@pytest.mark.parametrize("kills", [1, 3])
def test_a_reply_that_is_kept_and_not_yet_on_the_ledger_is_paid_for_once(tmp_path, kills):
    for _ in range(kills):
        killed(tmp_path, JsonLinesLog, "append", 3)
    ask(tmp_path)
    paid = Counter((tmp_path / "paid").read_text().split())
    assert len(paid) == len(UNITS) and set(paid.values()) == {1}
    # Each kill leaves off the ledger the one reply that it fell on.
    assert sum(start["calls"] for start in starts(tmp_path)) == len(UNITS) - kills


def test_a_reply_that_is_neither_kept_nor_entered_is_asked_for_again(tmp_path):
    killed(tmp_path, ResultCache, "put", 5)
    ask(tmp_path)
    paid = Counter((tmp_path / "paid").read_text().split())
    assert len(paid) == len(UNITS) and sorted(paid.values())[-2:] == [1, 2]
    assert sum(start["calls"] for start in starts(tmp_path)) == len(UNITS)


def test_an_empty_cache_is_known_to_lack_everything_without_a_look_at_the_units(tmp_path):
    class Units:
        reads = 0

        def __iter__(self):
            Units.reads += 1
            return iter(UNITS)

    source, blocking = ModelPhrases(), BlockingModel("m", role="enrichment")
    collection = Collection("c", caches=tmp_path / "caches", model=blocking)
    assert source.missing_flags(Units(), 12, collection) == bytes([1] * 12)
    assert Units.reads == 0
    killed(tmp_path, ResultCache, "put", 5)
    flags = source.missing_flags(Units(), 12, collection)
    assert sum(flags) == 8 and Units.reads == 1
    lacking = [unit for unit, lacks in zip(UNITS, flags, strict=True) if lacks]
    assert lacking == list(source.missing(UNITS, collection))
