"""Stages that ask a language model: their base class, prompt files, replies that are paid once, and
answers by token probabilities."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

from soundingline.pipelines.cache import Claims, ResultCache, text_hash
from soundingline.pipelines.stage import Collection, Counts, LazyValues
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.blocking import BlockingModel, identity
from soundingline.toolkit.llm.errors import (
    ContextOverflow,
    ModelError,
    OutOfMoney,
    Refused,
    Truncated,
)
from soundingline.toolkit.llm.messages import (
    Message,
    SamplingParams,
    Token,
    Turn,
    object_schema,
    user,
)
from soundingline.toolkit.runs.run_folder import repeat_of
from soundingline.toolkit.search.scoring import ScorerResources

PROMPTS = Path(__file__).resolve().parent / "prompts"
TASKS = (
    "general",
    "question_answering",
    "multi_hop",
    "claim",
    "argument",
    "duplicate_question",
    "finance",
    "citation",
)
"""What is searched for, which chooses among the package's prompts."""
_PLACE = re.compile(r"\{(\w+)\}")
# Errors that one prompt causes. All others (no server, a wrong setting, no money) would befall any
# prompt, and are raised, so that no run silently becomes one without the stage.
_OF_THE_PROMPT = (Refused, Truncated, ContextOverflow)
Given: TypeAlias = Collection | ScorerResources | None
"""What a run gives a step."""
# Settings that change no reply.
_UNSAMPLED = ("timeout", "tool_choice")


class PromptTemplate:
    """The text of a prompt file, by default that of the package (`default`, relative to
    `pipelines/prompts`), with placeholders such as `{query}`: each of `places` at least once and no
    others. `InputError` for other files."""

    def __init__(self, path: str | None, default: str, places: tuple[str, ...]) -> None:
        file = Path(path) if path else PROMPTS / default
        self.text = read_prompt_file(file)
        present = set(_PLACE.findall(self.text))
        if present != set(places):
            shown = ", ".join(f"{{{name}}}" for name in sorted(present))
            raise InputError(
                f"the prompt {file} has the places {shown or 'none'}",
                valid=" and ".join(f"{{{name}}}" for name in places),
                do="write each of them once, and no other word in braces",
            )

    def filled(self, parts: Mapping[str, str]) -> str:
        """The text with a part in each place. All are filled in one pass, because a part may
        contain anything, also a placeholder."""
        return _PLACE.sub(lambda match: parts[match[1]], self.text)


def read_prompt_file(file: Path) -> str:
    """The text of a prompt file; `InputError` if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the prompt {file}: {error}",
            valid="a text file, or null for our own prompt",
        ) from error


def last_words(text: str, limit: int) -> str:
    """The last `limit` words of a text, after `...` if it is longer: the end of a reasoning holds
    its conclusions."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    if len(starts) <= limit:
        return text.strip()
    return f"... {text[starts[-limit] :].strip()}"


def json_answer(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling settings that request one JSON object of `properties` and nothing else (structured
    output of chat completions: vLLM, OpenAI and others; other servers report an error)."""
    described = {"name": name, "strict": True, "schema": object_schema(properties)}
    return {"extra": {"response_format": {"type": "json_schema", "json_schema": described}}}


class Reply(NamedTuple):
    """The reply to a prompt, `retried` if it is that of a second request, and `cached` if it cost
    no request now; or the code of the `error` instead. Numbers of tokens are None if the server
    did not count them. `tokens` have the log-probabilities, if these were requested."""

    text: str
    retried: bool = False
    error: str = ""
    cached: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: tuple[Token, ...] = ()


@dataclass(kw_only=True, eq=False, repr=False)
class CachedLLM:
    """Replies of a language model to the prompts of a stage, cached on disk.

    `of` returns a copy that is bound to a model and a folder. The cache is the file
    `<folder>/<name>-<key>.sqlite`; the key hashes `parts`, the model and how it samples. A reply is
    in the cache when its last byte has arrived. A prompt that several threads need at once is
    requested once, and if there is a cache, also one that several processes need (`Claims`).

    The repeats of a run share the replies that do not differ between requests: those at
    temperature 0, and those of one token that is read for its log-probabilities. Other replies are
    sampled. Each repeat has a cache of its own for them, so that it gets its own replies, and the
    same ones when it is resumed. A seed is raised by one with each repeat.

    An empty reply, or one that is cut off by the output limit, is requested once more, with the
    next seed if there is one. Errors are not cached, nor replies without the log-probabilities that
    were requested. The process remembers a second reply that is empty or cut off, and one without
    log-probabilities, if there is a cache: it is not paid for again before the next start.

    Args:
        name: The stage, for the name of the cache.
        parts: What else changes a reply and is not in the prompt.
        is_empty: Whether a reply has nothing that the stage can read.
        counts: Receives `asked` prompts, `retried` ones, and `shared` ones that another thread or
            process was requesting; `reply_input_tokens` and `reply_output_tokens` of all replies,
            cached ones included, and `reply_unreported` replies of unknown tokens;
            `samples_of_other_runs`, the cached replies that were sampled in another run; and with a
            cache `cache_hits` and `cache_misses`.
        settings: Fields of `SamplingParams` that replace those of the model; `extra` is added.
        select_tokens: Selects the tokens of a reply that are stored. A reply without any of them is
            cached as well.
        messages: The messages of the request for a prompt; by default one of the user.
        caches_empty: Whether a second reply that is empty is cached. Without it the next start
            requests it again.
        returns_unpaid: Whether a prompt that the budget of its question does not cover has the
            error `out_of_money`. Without it that error is raised.
        model: The model of a bound copy.
        folder: The folder of its cache; None: no cache.
        repeat: The repeat of the questions that a bound copy replies to.
    """

    name: str
    parts: Sequence[Any]
    is_empty: Callable[[str], bool]
    counts: Counts
    settings: Mapping[str, Any] = field(default_factory=dict)
    select_tokens: Callable[[Sequence[Token]], Sequence[Token]] | None = None
    messages: Callable[[str], Sequence[Message]] = lambda prompt: [user(prompt)]
    caches_empty: bool = True
    returns_unpaid: bool = False
    model: BlockingModel | None = None
    folder: Path | None = None
    repeat: int = 1

    def __post_init__(self) -> None:
        self._bound = LazyValues()
        if self.model is None:
            return
        self._model, self._key = self.model, self.key(self.model)
        self._sampling = self._sampling_of(self.model)
        self._is_sampled = is_sampled(self._sampling)
        if self.repeat > 1:
            self._key = fingerprint(self._key, "repeat", self.repeat)
            if self._sampling.seed is not None:
                seed = self._sampling.seed + self.repeat - 1
                self._sampling = replace(self._sampling, seed=seed)
        file = self.folder / f"{self.name}-{self._key}.sqlite" if self.folder else None
        self._cache = ResultCache(file, self.counts)
        # No attempt lasts longer. A process that waits longer for another one waits for a dead
        # process, or for one that has to try again.
        self._claims = Claims(self._cache.file, patience=self._sampling.timeout)
        self._lock = threading.Lock()
        self._in_flight: dict[str, Future[Reply]] = {}
        self._until_next_start: dict[str, Reply] = {}  # by hash, because prompts are long

    def key(self, model: BlockingModel | None) -> str:
        """A hash of `parts`, the model and how it samples; of `parts` alone without a model."""
        if model is None:
            return fingerprint(*self.parts)
        settings = self._sampling_of(model).as_dict()
        sampled = {name: settings[name] for name in settings if name not in _UNSAMPLED}
        return fingerprint(*self.parts, identity(model), sampled)

    def of(self, model: BlockingModel, folder: Path | None) -> CachedLLM:
        """The copy that is bound to `model` and caches replies in `folder` (None: nowhere)."""
        return self._bound.get(
            (id(model), folder), lambda: replace(self, model=model, folder=folder)
        )

    @property
    def has_cached(self) -> bool:
        """Whether the cache has any reply."""
        return not self._cache.is_empty

    def cached(self, prompts: Sequence[str]) -> list[str | None]:
        """The text of each cached reply, None for a prompt without one; requests nothing."""
        replies = self._from_cache(prompts)
        return [replies[prompt].text if prompt in replies else None for prompt in prompts]

    def replies(self, prompts: Mapping[str, str]) -> dict[str, Reply]:
        """The reply to each prompt. The values are the questions that pay for them, by `repeat_id`,
        whose repeats have replies of their own if these are sampled."""
        own: dict[int, dict[str, str]] = {}
        for prompt, qid in prompts.items():
            repeat = repeat_of(qid) if self._is_sampled else 1
            own.setdefault(repeat, {})[prompt] = qid
        replies: dict[str, Reply] = {}
        for repeat, some in own.items():
            replies |= self._of_repeat(repeat)._replies(some)
        return replies

    def _of_repeat(self, repeat: int) -> CachedLLM:
        if repeat == self.repeat:
            return self
        return self._bound.get(repeat, lambda: replace(self, repeat=repeat))

    def _replies(self, prompts: Mapping[str, str]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}
        while left := [prompt for prompt in prompts if prompt not in replies]:
            with self._lock:
                others = {
                    prompt: self._in_flight[prompt] for prompt in left if prompt in self._in_flight
                }
                mine = {prompt: prompts[prompt] for prompt in left if prompt not in others}
                self._in_flight.update((prompt, Future()) for prompt in mine)
            if mine:
                replies |= self._for_all(mine)
            for prompt, future in others.items():
                # Another thread may have no reply for reasons of its own, such as the money of its
                # question; this one requests it then.
                try:
                    replies[prompt] = future.result()._replace(cached=True)
                except CancelledError:
                    continue
                self.counts.add(shared=1)
        tokens = Counter[str]()
        for reply in replies.values():
            tokens["reply_input_tokens"] += reply.input_tokens or 0
            tokens["reply_output_tokens"] += reply.output_tokens or 0
            unknown = None in (reply.input_tokens, reply.output_tokens)
            tokens["reply_unreported"] += unknown and not reply.error
        self.counts.add(**+tokens)
        return replies

    def _for_all(self, prompts: Mapping[str, str]) -> dict[str, Reply]:
        """The replies to prompts that this thread requests, also for the threads that wait."""
        replies: dict[str, Reply] = {}
        try:
            # Only now: another thread may have finished since this one looked.
            replies = self._from_cache(list(prompts))
            missing = [prompt for prompt in prompts if prompt not in replies]
            with closing(self._claims.in_turn(missing)) as parts:
                for claimed in parts:
                    # Another process may have finished since this one looked.
                    known = self._from_cache(claimed, counted=False)
                    self.counts.add(shared=len(known))
                    unknown = {prompt: prompts[prompt] for prompt in claimed if prompt not in known}
                    replies |= {**known, **self._from_model(unknown)}
        finally:
            with self._lock:
                futures = {prompt: self._in_flight.pop(prompt) for prompt in prompts}
            for prompt, future in futures.items():
                if prompt in replies:
                    future.set_result(replies[prompt])
                else:
                    future.cancel()
        return replies

    def _from_cache(self, prompts: Sequence[str], *, counted: bool = True) -> dict[str, Reply]:
        values = self._cache.get([(self._key, prompt) for prompt in prompts], counted=counted)
        replies: dict[str, Reply] = {}
        others = 0
        for prompt, value in zip(prompts, values, strict=True):
            reply = None if value is None else _read_reply(value)
            if reply is None:
                # The hash of a prompt, which holds a whole document, only if it is needed.
                known = self._until_next_start
                reply = known.get(text_hash(prompt)) if known else None
            elif value is not None and self._is_sampled:
                others += value.get("run", "") != self._model.run
            if reply is not None:
                replies[prompt] = reply
        if others:
            self.counts.add(samples_of_other_runs=others)
        return replies

    def _from_model(self, prompts: Mapping[str, str]) -> dict[str, Reply]:
        if not prompts:
            return {}
        self.counts.add(asked=len(prompts))
        replies = self._request(prompts, self._sampling, retried=False)
        again = {
            prompt: prompts[prompt] for prompt, reply in replies.items() if self._useless(reply)
        }
        if again:
            self.counts.add(retried=len(again))
            seed = self._sampling.seed
            next_seed = replace(self._sampling, seed=None if seed is None else seed + 1)
            replies |= self._request(again, next_seed, retried=True)
        return replies

    def _request(
        self, prompts: Mapping[str, str], sampling: SamplingParams, *, retried: bool
    ) -> dict[str, Reply]:
        texts = list(prompts)

        def arrived(position: int, turn: Turn) -> None:
            # At once, so that nothing is paid for twice whatever becomes of the other prompts.
            reply = self._reply(turn, retried)
            if retried or not self._useless(reply):
                self._store(texts[position], reply)

        requests = list(map(self.messages, texts))
        turns = self._model.respond_many(
            requests, list(prompts.values()), sampling, arrived=arrived
        )
        for turn in turns:
            if isinstance(turn, ModelError) and not self._is_of_the_prompt(turn):
                raise turn
        replies = {
            prompt: self._reply(turn, retried) for prompt, turn in zip(texts, turns, strict=True)
        }
        for prompt, reply in replies.items():
            if retried and reply.error == Truncated.code and not self.caches_empty:
                self._remember(prompt, reply)
        return replies

    def _is_of_the_prompt(self, error: ModelError) -> bool:
        unpaid = isinstance(error, OutOfMoney) and error.scope == "question"
        return isinstance(error, _OF_THE_PROMPT) or (self.returns_unpaid and unpaid)

    def _useless(self, reply: Reply) -> bool:
        """Whether a reply is worth a second request."""
        return reply.error == Truncated.code or (not reply.error and self.is_empty(reply.text))

    def _reply(self, turn: Turn | ModelError, retried: bool) -> Reply:
        if isinstance(turn, ModelError):
            return Reply("", retried, turn.code)
        tokens = self.select_tokens(turn.tokens) if self.select_tokens else turn.tokens
        usage = turn.usage
        return Reply(turn.text, retried, "", False, usage.input, usage.output, tuple(tokens))

    def _store(self, prompt: str, reply: Reply) -> None:
        logprobs = self._sampling.logprobs is not None
        without_tokens = logprobs and not (reply.tokens or self.select_tokens)
        if without_tokens or (not self.caches_empty and self.is_empty(reply.text)):
            # The next start may find a server that gives them, or a reply that can be read.
            self._remember(prompt, reply)
            return
        usage = (reply.input_tokens, reply.output_tokens)
        value: dict[str, Any] = {"text": reply.text, "retried": reply.retried, "tokens": usage}
        if self._is_sampled and self._model.run:
            value["run"] = self._model.run
        if reply.tokens:
            value["logprobs"] = reply.tokens
        self._cache.put([((self._key, prompt), value)])
        self._claims.release(prompt)

    def _remember(self, prompt: str, reply: Reply) -> None:
        if self._cache.path:
            self._until_next_start[text_hash(prompt)] = reply._replace(cached=True)

    def _sampling_of(self, model: BlockingModel) -> SamplingParams:
        extra = {**model.settings.extra, **self.settings.get("extra", {})}
        return replace(model.settings, **{**self.settings, "extra": extra})


def is_sampled(settings: SamplingParams) -> bool:
    """Whether two requests with these settings may have different replies. A server that chooses
    the temperature samples. The log-probabilities of a first token do not depend on the sample."""
    one_token = settings.logprobs is not None and settings.max_output_tokens == 1
    return settings.temperature != 0 and not one_token


class LlmStep:
    """Base of the steps of a pipeline that ask a language model.

    A step makes prompts and reads the replies. This class has the rest: the model, the cached
    replies, the counts, the fingerprint, and the refusal to work without a model. The constructor
    of a step calls `prepare_llm`; then `ask` returns the reply to each prompt.

    The model and the folder of the cached replies are the arguments `model` and `cache` of a step
    that has these, if they are set, or else those of the collection that it is bound to.
    """

    needs_llm: bool = True
    counted: ClassVar[tuple[str, ...]] = ()
    """Names of the counts that the class itself adds to."""

    model: BlockingModel | None = None
    cache: Path | None = None
    collection: Collection | None = None

    def prepare_llm(
        self, name: str, parts: Sequence[Any], *, reading: Sequence[Any] = (), **options: Any
    ) -> None:
        """Prepare the requests. `reading` is what changes the result of the step, and neither the
        prompt file nor the model has; the other arguments are fields of `CachedLLM`."""
        self._reading = reading
        # Bound copies are shallow: both are shared between them.
        self._counts = Counts(*self.counted, "asked", "retried", "shared")
        self._llm = CachedLLM(
            name=name, parts=parts, is_empty=self.is_empty, counts=self._counts, **options
        )

    def is_empty(self, answer: str) -> bool:
        """Whether nothing can be read from an answer, so that it is requested once more; by default
        whether it is white space."""
        return not answer.strip()

    @property
    def fingerprint(self) -> str:
        """Hash of the prompt file and of how replies are read, and of the model and how it samples
        if it is known."""
        key = self._llm.key(model_of(self))
        return fingerprint(key, *self._reading) if self._reading else key

    @property
    def counts(self) -> Mapping[str, float]:
        """Cumulative counts of the step and its bound copies: those that the class names; prompts
        `asked`, `retried`, and `shared` with another thread or process; tokens of the replies; with
        a cache `cache_hits` and `cache_misses`."""
        return self._counts()

    def ask(self, prompts: Sequence[str], qids: Iterable[str], given: Given = None) -> list[Reply]:
        """The reply to each prompt; equal prompts are requested once. `qids` are the questions that
        pay for them. `InputError` without a model."""
        llm = self._llm.of(*self.model_and_cache(given))
        replies = llm.replies(dict(zip(prompts, qids, strict=True)))
        return [replies[prompt] for prompt in prompts]

    def model_and_cache(self, given: Given = None) -> tuple[BlockingModel, Path | None]:
        """The model and the folder of its cached replies: those of `given`, by default those of the
        step (see the class). `InputError` without a model."""
        model = given.model if given else model_of(self)
        if model is None:
            raise InputError(
                f"{type(self).__name__} asks a language model, and there is none",
                do="choose one (llm=...); in Python, give it one by model=..., or bind it to a "
                "collection that has one",
            )
        resources = given or self.collection
        return model, self.cache or (resources.caches if resources else None)


def model_of(stage: Any) -> BlockingModel | None:
    """The language model of a stage: its own, or else that of its collection, if there is one."""
    model: BlockingModel | None = stage.model
    return model or (stage.collection.model if stage.collection else None)


def _read_reply(value: Mapping[str, Any]) -> Reply:
    """A reply as `CachedLLM` stores it."""
    read, written = value["tokens"]
    tokens = tuple(Token(*fields) for fields in value.get("logprobs", ()))
    return Reply(value["text"], value["retried"], "", True, read, written, tokens)


# Answers that are read from the probabilities of a token.

# Some servers write a token's space as its vocabulary does.
SPACES = " \t\r\n\u0120\u2581"
LIKELIEST = 20
"""Alternatives to request for each token: the most that OpenAI and by default vLLM return."""
_DIGITS = frozenset("0123456789")
_SMALLEST_MASS = 1e-12


class Relevance(NamedTuple):
    """P(first) / (P(first) + P(second)) of two words, and whether the server did not list one of
    them."""

    score: float
    one_sided: bool


def first_place(tokens: Sequence[Token]) -> Mapping[str, float]:
    """The log-probabilities of the alternatives to the first token of a reply that is not white
    space, itself included; empty if the server returned none."""
    for token in tokens:
        if token.text.strip(SPACES):
            written = {} if token.logprob is None else {token.text: token.logprob}
            return {**written, **token.top}
    return {}


def word(text: str) -> str:
    """The word of a token, without the space in front of it, in lower case."""
    return text.strip(SPACES).lower()


def share(top: Mapping[str, float], first: str, second: str) -> Relevance | None:
    """The share of the word `first` in the probability of both words, by the listed alternatives of
    a token; None if neither is listed.

    All spellings of a word count together (` true`, `true`, `True`). A word that is not listed has
    at most the probability of the least likely alternative, and at most what all of them leave; it
    gets the smaller of the two.
    """
    sides: dict[str, list[float]] = {first: [], second: []}
    for text, logprob in top.items():
        if (side := word(text)) in sides:
            sides[side].append(logprob)
    if not any(sides.values()):
        return None
    rest = 1.0 - math.fsum(math.exp(logprob) for logprob in top.values())
    bound = min(min(top.values()), math.log(max(rest, _SMALLEST_MASS)))
    logs = [_log_sum(sides[side]) if sides[side] else bound for side in (first, second)]
    return Relevance(sigmoid(logs[0] - logs[1]), not all(sides.values()))


def expected_digit(top: Mapping[str, float]) -> float | None:
    """The expectation of a digit, 0 to 9, over the listed alternatives; None if no digit is
    listed."""
    masses: dict[int, float] = {}
    for text, logprob in top.items():
        if (digit := text.strip(SPACES)) in _DIGITS:
            masses[int(digit)] = masses.get(int(digit), 0.0) + math.exp(logprob)
    total = math.fsum(masses.values())
    if not total:
        return None
    return math.fsum(digit * mass for digit, mass in masses.items()) / total


def _log_sum(logs: Sequence[float]) -> float:
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(log - largest) for log in logs))


def sigmoid(value: float) -> float:
    """The logistic function."""
    # Each branch takes the exponential of a number below 0, which cannot overflow.
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
