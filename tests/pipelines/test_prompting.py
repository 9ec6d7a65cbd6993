"""Replies to prompts: what they took; processes with one cache pay for each prompt once."""

import errno
import fcntl
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
from support.llm_model import ScriptedModel, ScriptedPrompts, saying, used
from support.llm_server import Fail, Say, Stall, running_peer
from support.needs import cases

from soundingline.pipelines import cache as caches
from soundingline.pipelines.cache import Claims, ResultCache
from soundingline.pipelines.prompting import CachedLLM
from soundingline.pipelines.stage import Counts
from soundingline.toolkit import files
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import Refused, Truncated
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import SamplingParams, Usage
from soundingline.toolkit.llm.openai_chat import OpenAIChat
from soundingline.toolkit.llm.prices import Price

DOLLAR = Price(input=0.0, output=1_000_000.0)


def replies(model, folder, ledger=None, stored=None):
    """The counts of a stage that requests the reply to one prompt. `stored` is in the cache."""
    settings = SamplingParams(seed=1)
    blocking = BlockingModel("m", role="rewriter", settings=settings, price=DOLLAR)
    counts = Counts()
    llm = CachedLLM(name="test", parts=[], is_empty=lambda text: not text, counts=counts)
    if stored:
        key = llm.key(blocking)
        ResultCache(folder / f"test-{key}.sqlite").put([((key, "prompt"), stored)])
    with blocking.started(model, ledger):
        llm.of(blocking, folder).replies({"prompt": "q"})
    return counts()


@pytest.mark.parametrize(
    ("cached", "counted"),
    [
        ([100, 10], {"reply_input_tokens": 100, "reply_output_tokens": 10}),
        ([-5, 10], {"reply_unmetered": 1}),
        ([10**400, 10], {"reply_unmetered": 1}),
    ],
)
def test_the_tokens_of_a_cached_reply_are_known_only_where_they_are_possible(
    tmp_path, cached, counted
):
    value = {"text": "yes", "retried": False, "tokens": cached}
    assert replies(ScriptedModel(), tmp_path, stored=value) == counted
    # Tokens that the server did not count are unknown now and from the cache.
    for steps in ([saying("yes", usage=Usage(input=5))], []):
        assert replies(ScriptedModel(*steps), tmp_path / "other")["reply_unmetered"] == 1


@pytest.mark.parametrize(
    "first",
    [saying("", usage=used(0, 1)), Truncated("cut", turn=saying("y", usage=used(0, 1)))],
    ids=["empty", "truncated"],
)
def test_a_second_request_for_a_prompt_is_on_the_ledger_beside_the_first(tmp_path, first):
    ledger = Ledger()
    model = ScriptedModel(first, saying("yes", usage=used(0, 1)))
    counted = replies(model, tmp_path, ledger)
    assert counted["asked"] == counted["retried"] == 1
    assert (ledger.total.calls, ledger.total.dollars) == (2, 2.0)
    assert [request.settings.seed for request in model.requests] == [1, 2]


FORK = multiprocessing.get_context("fork")
PROMPTS = [f"Which mill is number {number}?" for number in range(cases(200, 120))]


@pytest.fixture(scope="module")
def server():
    for name in ("openai", "tenacity", "httpx2"):
        import_module(name)  # Once, and not in each of the processes that are forked.
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    return server


def prompt_of(request):
    """Empty where the process was killed before it had sent the request whole."""
    messages = request.body.get("messages", [{"content": ""}])
    return str(messages[-1]["content"])


def paid(peer):
    """How often each prompt has come to the server."""
    return Counter(filter(None, map(prompt_of, peer.requests)))


def answering(seconds):
    """A server that takes about so long for each reply."""

    def step(request):
        time.sleep(seconds * random.random() * 2)
        return Say(text=f"It is {prompt_of(request)}")

    return step


def client_of(folder, model, counts=None):
    counts = counts or Counts()
    llm = CachedLLM(name="test", parts=["test"], is_empty=lambda text: not text, counts=counts)
    return llm.of(model, folder)


def ask(folder, url, batches, timeout, threads):
    """What a process does; its exit code is 0 where it has the right reply to each prompt."""
    settings = SamplingParams(timeout=timeout)
    chat = OpenAIChat(model="m", base_url=url, settings=settings, concurrency=16, attempts=1)
    blocking = BlockingModel("m", role="enrichment", settings=settings)
    client = client_of(folder, blocking)

    def replies(batch):
        texts = {
            prompt: one.text for prompt, one in client.replies(dict.fromkeys(batch, "")).items()
        }
        return texts == {prompt: f"It is {prompt}" for prompt in batch}

    with blocking.started(chat), ThreadPoolExecutor(threads) as pool:
        right = all(pool.map(replies, batches))
    os._exit(0 if right else 1)


def begun(folder, peer, batches, timeout=60.0, threads=1):
    arguments = (folder, peer.openai_url, batches, timeout, threads)
    process = FORK.Process(target=ask, args=arguments)
    process.start()
    return process


def ended(*processes, seconds=60.0):
    for process in processes:
        process.join(seconds)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
    return codes


def in_batches(size, seed, count=None):
    """The first `count` prompts in the order of the seed."""
    prompts = PROMPTS[:count]
    random.Random(seed).shuffle(prompts)
    return [prompts[start : start + size] for start in range(0, len(prompts), size)]


@pytest.mark.parametrize(
    ("size", "threads", "kind"),
    [(len(PROMPTS), 1, None), (16, 4, None), (1, 8, None), (16, 4, "nfs4"), (16, 4, "nfs")],
)
def test_two_processes_pay_for_each_prompt_once(tmp_path, peer, monkeypatch, size, threads, kind):
    if kind:
        table = tmp_path / "mountinfo"
        options = {"nfs4": "local_lock=none", "nfs": "nolock,local_lock=all"}[kind]
        table.write_text(f"1 0 0:1 / {tmp_path.resolve()} rw - {kind} server:/export rw,{options}")
        monkeypatch.setattr(files, "MOUNTS", table)
    count = cases(200, 40) if kind else len(PROMPTS)  # each reply is synced there
    peer.default = answering(0.002)
    processes = [
        begun(tmp_path / "caches", peer, in_batches(size, seed, count), threads=threads)
        for seed in (1, 2)
    ]
    assert ended(*processes) == [0, 0]
    assert paid(peer) == Counter(PROMPTS[:count]), f"{len(peer.requests)} requests"


@pytest.mark.parametrize("seed", range(cases(20, 2)))
def test_more_processes_some_of_which_are_killed_pay_twice_only_for_what_was_in_flight(
    tmp_path, peer, seed
):
    chance = random.Random(seed)
    peer.default = answering(0.01)
    processes = [begun(tmp_path, peer, in_batches(50, seed * 4 + number)) for number in range(4)]
    killed = chance.sample(processes, 2)
    for process in killed:
        seen = len(peer.requests) + chance.randrange(20, 40)
        while len(peer.requests) < seen and process.is_alive():
            time.sleep(0.001)
        process.kill()
    left = [process for process in processes if process not in killed]
    assert ended(*left) == [0, 0]
    assert set(paid(peer)) == set(PROMPTS)
    # Each process has at most 16 requests in flight.
    assert paid(peer).total() <= len(PROMPTS) + 16 * len(killed)


def stalled(folder, peer):
    """A process that waits for the server with 16 requests in flight."""
    peer.default = Stall(60)
    process = begun(folder, peer, [PROMPTS])
    while len(peer.requests) < 16:
        time.sleep(0.001)
    return process


def test_the_claims_of_a_killed_process_are_free_at_once(tmp_path, peer):
    first = stalled(tmp_path, peer)
    second = begun(tmp_path, peer, [PROMPTS])
    second.join(0.5)
    assert second.is_alive() and len(peer.requests) == 16, "it waits"
    peer.default = answering(0.001)
    first.kill()
    began = time.monotonic()
    assert ended(first, second) == [-signal.SIGKILL, 0]
    assert time.monotonic() - began < 10
    assert len(peer.requests) == 16 + len(PROMPTS)


def test_a_process_that_was_stopped_is_waited_for_no_longer_than_an_attempt_may_last(
    tmp_path, peer, capfd
):
    first = stalled(tmp_path, peer)
    os.kill(first.pid, signal.SIGSTOP)
    peer.default = answering(0.001)
    began = time.monotonic()
    assert ended(begun(tmp_path, peer, [PROMPTS], timeout=1.0)) == [0]
    assert 1 <= time.monotonic() - began < 20
    assert f"asking for {len(PROMPTS)} of the same prompts" in capfd.readouterr().err
    first.kill()
    first.join()


def test_prompts_that_another_process_got_no_reply_to_are_asked_for_here(tmp_path, peer):
    refused = set(random.Random(3).sample(PROMPTS, 20))
    told = set[str]()

    def step(request):
        prompt = prompt_of(request)
        time.sleep(0.002)
        if prompt in refused - told:
            told.add(prompt)
            return Fail(400, "no", "content_filter")
        return Say(text=f"It is {prompt}")

    peer.default = step
    first = begun(tmp_path, peer, [PROMPTS])
    while not peer.requests:  # until it has claimed all prompts
        time.sleep(0.001)
    second = begun(tmp_path, peer, [PROMPTS])
    assert ended(first, second) == [1, 0], "the first lacks the replies that were refused"
    assert paid(peer) == Counter(PROMPTS) + Counter(refused)


def test_two_clients_of_one_process_share_a_file_and_neither_frees_the_others_claims(tmp_path):
    cache = tmp_path / "c.sqlite"
    one, other = Claims(cache, 60), Claims(cache, 60)
    first, second = one.in_turn(["a", "b"]), other.in_turn(["b", "c"])
    assert next(first) == ["a", "b"] and next(second) == ["c"]
    one.release("b")
    assert next(second) == ["b"]
    first.close()
    assert next(Claims(cache, 60).in_turn(["a"])) == ["a"]
    waiting = Claims(cache, 0.0).in_turn(["b"])
    assert next(waiting) == ["b"], "given without a claim, because nobody waits so long"
    assert not cache.with_name("c.sqlite.claims").read_bytes()
    second.close()


def test_no_descriptor_stays_open_without_a_claim(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(50):
        for part in Claims(tmp_path / f"{number}.sqlite", 60).in_turn(["a", "b"]):
            assert part == ["a", "b"]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_forked_child_has_none_of_its_parents_claims_and_respects_them(tmp_path):
    cache = tmp_path / "c.sqlite"
    mine = Claims(cache, 60).in_turn(["a"])
    assert next(mine) == ["a"]

    def child():
        parts = Claims(cache, 60).in_turn(["b", "a"])
        os._exit(0 if [next(parts), next(parts)] == [["b"], ["a"]] else 1)

    process = FORK.Process(target=child)
    process.start()
    process.join(0.3)
    assert process.is_alive(), "it waits for its parent"
    mine.close()
    assert ended(process) == [0]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_where_there_are_no_locks_every_prompt_is_given_at_once(tmp_path, monkeypatch, code):
    def without(handle, command, *range_):
        if command != fcntl.LOCK_UN:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(caches.fcntl, "lockf", without)
    assert list(Claims(tmp_path / "c.sqlite", 60).in_turn(["a", "b"])) == [["a", "b"]]
    assert list(Claims(None, 60).in_turn(["a", "b"])) == [["a", "b"]]


def test_replies_of_another_process_count_as_shared(tmp_path):
    counts = Counts("asked", "shared")
    model = ScriptedPrompts(lambda prompt: f"It is {prompt}")
    client = client_of(tmp_path, model, counts)
    (file,) = tmp_path.glob("test-*.sqlite")
    key = file.stem.removeprefix("test-")
    other = Claims(file, 60).in_turn(PROMPTS[:3])
    assert next(other) == PROMPTS[:3]
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.replies, dict.fromkeys(PROMPTS[:5], ""))
        while not model.rounds:
            time.sleep(0.001)
        value = {"text": "theirs", "retried": False, "tokens": (1, 2)}
        ResultCache(file).put(((key, prompt), value) for prompt in PROMPTS[:3])
        other.close()
        replies = asking.result(60)
    assert [replies[prompt].text for prompt in PROMPTS[:3]] == ["theirs"] * 3
    assert model.prompts == PROMPTS[3:5]
    assert counts() == {
        "asked": 2,
        "shared": 3,
        "reply_input_tokens": 3,
        "reply_output_tokens": 6,
        "reply_unmetered": 2,  # the scripted model tells no tokens
    }
    assert client.lookups == {"cache_hits": 0, "cache_misses": 5}


def test_an_error_frees_the_claims(tmp_path):
    failing = client_of(tmp_path, ScriptedPrompts(lambda prompt: "unused"))
    failing._model.respond_many = None
    with pytest.raises(TypeError):
        failing.replies({"a": ""})
    refusing = client_of(tmp_path, ScriptedPrompts(lambda prompt: Refused("no")))
    assert refusing.replies({"a": ""})["a"].error == "refused"
    working = client_of(tmp_path, ScriptedPrompts(lambda prompt: "yes"))
    assert working.replies({"a": ""})["a"].text == "yes"
