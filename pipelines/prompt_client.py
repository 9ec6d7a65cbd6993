"""Asking a model for texts: each prompt once, whoever wants it and whenever."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from soundingline.pipelines.cache import Claims, ResultCache, text_hash
from soundingline.pipelines.counts import Counts, MadeOnce
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.blocking import identity
from soundingline.toolkit.llm.errors import (
    ContextOverflow,
    ModelError,
    OutOfMoney,
    Refused,
    Truncated,
)
from soundingline.toolkit.llm.messages import Message, SamplingParams, Token, Turn, Usage, user

# What this one prompt brought about. Anything else (no server, a wrong setting, no money) would
# befall any prompt, so it ends the search instead of turning into an ablation without a rewriter.
_OF_THE_PROMPT = (Refused, Truncated, ContextOverflow)


# Settings that change no reply.
_UNSAMPLED = ("timeout", "tool_choice")

Turns = dict[str, Turn | ModelError]
Telling = Callable[[Sequence[Token]], Sequence[Token]]


class BlockingChatModel(Protocol):
    """A model that is asked from threads (`soundingline.toolkit.llm.blocking.BlockingModel`)."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> SamplingParams: ...

    def respond_many(
        self,
        requests: Sequence[Sequence[Message]],
        qids: Sequence[str] | None = None,
        settings: SamplingParams | None = None,
        concurrency: int | None = None,
        arrived: Callable[[int, Turn], None] | None = None,
    ) -> list[Turn | ModelError]: ...


class Reply(NamedTuple):
    """What came of a prompt. `error` is the code of the `ModelError` that came instead of a text;
    `cached`: it cost no request now. The counts of tokens are those of the request that brought it,
    None where the server did not tell; `tokens` are those of the text with their log-probabilities,
    where these were asked for."""

    text: str
    retried: bool = False
    error: str = ""
    cached: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: tuple[Token, ...] = ()

    @property
    def is_unmetered(self) -> bool:
        """Whether it is a reply of the model's whose tokens are not known."""
        return not self.error and None in (self.input_tokens, self.output_tokens)


class PromptClient:
    """Replies of `model` to prompts, sampled by `settings`. A reply that `is_empty` (or cut off by
    the output limit) is asked for once more, with the next seed where there is one.

    Replies are kept in `cache` under `key` and the prompt; errors, and replies without the
    log-probabilities that were asked for, nowhere. Prompts that several threads want at once are
    asked for once, and where there is a cache those that several processes want as well
    (`Claims`). `counts`: `asked` prompts, `retried` ones, and `shared` ones
    that another thread or process was asking for; `reply_input_tokens` and `reply_output_tokens` of
    the replies that were given, whether asked for now or kept: what they cost where nothing is
    kept. Replies whose tokens are not known are in neither, and are counted as `reply_unmetered`.

    `telling` chooses those of a reply's tokens that its reader wants, for a long reply has many;
    one without any is kept then as well. `keeps_empty`: whether a second reply that is empty too is
    kept; without it the next start asks again, and one that was kept earlier is passed over. What
    is not kept for the next start (a second reply that is empty or cut off, or one without
    log-probabilities) this client remembers, where there is a cache: it is not paid for again
    within a start. `as_far`: prompts for which the money of their question does not reach come back
    with the error `out_of_money`; without it, that is raised.
    """

    def __init__(
        self,
        model: BlockingChatModel,
        settings: SamplingParams,
        *,
        key: str,
        cache: ResultCache,
        is_empty: Callable[[str], bool],
        counts: Counts,
        telling: Telling | None = None,
        keeps_empty: bool = True,
        as_far: bool = False,
    ) -> None:
        self._telling = telling
        self._keeps_empty = keeps_empty
        self._as_far = as_far
        self._model = model
        self._settings = settings
        self._key = key
        self._cache = cache
        # An attempt lasts no longer: who waits for another process longer waits for a dead one, or
        # for one that has to try again.
        self._claims = Claims(cache.file, patience=settings.timeout)
        self._is_empty = is_empty
        self._counts = counts
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Reply]] = {}
        self._until_next_start: dict[str, Reply] = {}  # by hash, because prompts are long

    def replies(self, prompts: Mapping[str, str]) -> dict[str, Reply]:
        """The reply to each prompt; the values are the questions on whose account they are."""
        replies: dict[str, Reply] = {}
        while left := [prompt for prompt in prompts if prompt not in replies]:
            mine, others = self._claim(left)
            if mine:
                replies |= self._fulfilled({prompt: prompts[prompt] for prompt in mine})
            for prompt, future in others.items():
                if reply := _awaited(future):
                    replies[prompt] = reply._replace(cached=True)
                    self._counts.add(shared=1)
        tokens = {
            "reply_input_tokens": sum(reply.input_tokens or 0 for reply in replies.values()),
            "reply_output_tokens": sum(reply.output_tokens or 0 for reply in replies.values()),
            "reply_unmetered": sum(reply.is_unmetered for reply in replies.values()),
        }
        self._counts.add(**{name: number for name, number in tokens.items() if number})
        return replies

    @property
    def lookups(self) -> Mapping[str, int]:
        """Hits and misses of the cache; nothing without one."""
        return self._cache.lookups if self._cache.path else {}

    @property
    def keeps_any(self) -> bool:
        """Whether any reply is kept."""
        return not self._cache.is_empty

    def known(self, prompts: Sequence[str]) -> list[str | None]:
        """The text of each cached reply; None where there is none. Nothing is asked."""
        replies = self._from_cache(prompts)
        return [replies[prompt].text if prompt in replies else None for prompt in prompts]

    def _claim(self, prompts: Sequence[str]) -> tuple[list[str], dict[str, Future[Reply]]]:
        with self._lock:
            others = {
                prompt: self._under_way[prompt] for prompt in prompts if prompt in self._under_way
            }
            mine = [prompt for prompt in prompts if prompt not in others]
            self._under_way.update((prompt, Future()) for prompt in mine)
        return mine, others

    def _fulfilled(self, prompts: Mapping[str, str]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}
        try:
            # Only now: another thread may have finished since this one looked.
            replies = self._from_cache(list(prompts))
            missing = [prompt for prompt in prompts if prompt not in replies]
            with closing(self._claims.in_turn(missing)) as parts:
                for claimed in parts:
                    # Another process may have finished since this one looked.
                    known = self._from_cache(claimed, counted=False)
                    self._counts.add(shared=len(known))
                    asked = {prompt: prompts[prompt] for prompt in claimed if prompt not in known}
                    replies |= {**known, **self._from_model(asked)}
        finally:
            with self._lock:
                futures = {prompt: self._under_way.pop(prompt) for prompt in prompts}
            for prompt, future in futures.items():
                if prompt in replies:
                    future.set_result(replies[prompt])
                else:
                    future.cancel()
        return replies

    def _from_cache(self, prompts: Sequence[str], *, counted: bool = True) -> dict[str, Reply]:
        values = self._cache.get([(self._key, prompt) for prompt in prompts], counted=counted)
        replies: dict[str, Reply] = {}
        for prompt, value in zip(prompts, values, strict=True):
            reply = None if value is None else _kept_reply(value)
            if reply is None or (not self._keeps_empty and self._is_empty(reply.text)):
                reply = self._remembered(prompt)
            if reply is not None:
                replies[prompt] = reply
        return replies

    def _from_model(self, prompts: Mapping[str, str]) -> dict[str, Reply]:
        if not prompts:
            return {}
        self._counts.add(asked=len(prompts))
        turns = self._turns(prompts, self._settings, retried=False)
        again = {
            prompt: prompts[prompt] for prompt, turn in turns.items() if self._worth_another(turn)
        }
        replies = {
            prompt: self._reply(turn) for prompt, turn in turns.items() if prompt not in again
        }
        if again:
            self._counts.add(retried=len(again))
            seed = self._settings.seed
            next_seed = replace(self._settings, seed=None if seed is None else seed + 1)
            second = self._turns(again, next_seed, retried=True)
            for prompt, turn in second.items():
                replies[prompt] = self._reply(turn)._replace(retried=True)
        return replies

    def _turns(
        self, prompts: Mapping[str, str], settings: SamplingParams, *, retried: bool
    ) -> Turns:
        texts = list(prompts)

        def keep(position: int, turn: Turn) -> None:
            # At once, so that nothing is paid for twice whatever becomes of the others.
            if retried or not self._worth_another(turn):
                self._keep(texts[position], self._reply(turn)._replace(retried=retried))

        requests = [[user(prompt)] for prompt in texts]
        turns = self._model.respond_many(requests, list(prompts.values()), settings, arrived=keep)
        by_prompt = dict(zip(prompts, turns, strict=True))
        for turn in turns:
            if isinstance(turn, ModelError) and not self._of_the_prompt(turn):
                raise turn
        for prompt, turn in by_prompt.items():
            if retried and isinstance(turn, Truncated) and not self._keeps_empty:
                self._remember(prompt, self._reply(turn)._replace(retried=True))
        return by_prompt

    def _of_the_prompt(self, error: ModelError) -> bool:
        unpaid = isinstance(error, OutOfMoney) and error.scope == "question"
        return isinstance(error, _OF_THE_PROMPT) or (self._as_far and unpaid)

    def _worth_another(self, turn: Turn | ModelError) -> bool:
        if isinstance(turn, ModelError):
            return isinstance(turn, Truncated)
        return self._is_empty(turn.text)

    def _reply(self, turn: Turn | ModelError) -> Reply:
        if isinstance(turn, ModelError):
            return Reply("", error=turn.code)
        usage = turn.usage
        return Reply(
            turn.text,
            input_tokens=usage.input,
            output_tokens=usage.output,
            tokens=tuple(self._telling(turn.tokens) if self._telling else turn.tokens),
        )

    def _keep(self, prompt: str, reply: Reply) -> None:
        without_tokens = self._settings.logprobs is not None and not (reply.tokens or self._telling)
        unreadable = not self._keeps_empty and self._is_empty(reply.text)
        if without_tokens or unreadable:
            # The next start may find a server that gives them, or a reply that can be read.
            self._remember(prompt, reply)
            return
        usage = (reply.input_tokens, reply.output_tokens)
        value: dict[str, Any] = {"text": reply.text, "retried": reply.retried, "tokens": usage}
        if reply.tokens:
            value["logprobs"] = reply.tokens
        self._cache.put([((self._key, prompt), value)])
        self._claims.release(prompt)

    def _remember(self, prompt: str, reply: Reply) -> None:
        if self._cache.path:
            self._until_next_start[text_hash(prompt)] = reply._replace(cached=True)

    def _remembered(self, prompt: str) -> Reply | None:
        # Most clients remember none, and a prompt holds a whole document.
        return self._until_next_start.get(text_hash(prompt)) if self._until_next_start else None


class PromptClients:
    """The clients of a stage: one for each model and cache folder that it is bound to.

    The cache is `<folder>/<name>-<key>.sqlite`; `key` hashes `parts` (what stage it is, and what
    changes a reply and is not in the prompt), the model, and how it samples. `settings` are fields
    of `SamplingParams` that every request has, whatever the model's; `extra` is added to the
    model's. `telling`, `keeps_empty`, `as_far`: see `PromptClient`.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Any],
        is_empty: Callable[[str], bool],
        counts: Counts,
        settings: Mapping[str, Any] | None = None,
        telling: Telling | None = None,
        keeps_empty: bool = True,
        as_far: bool = False,
    ) -> None:
        self._telling = telling
        self._keeps_empty = keeps_empty
        self._as_far = as_far
        self._name, self._parts, self._is_empty = name, parts, is_empty
        self._changed = dict(settings or {})
        self._counts = counts
        self._made = MadeOnce()

    def key(self, model: BlockingChatModel) -> str:
        """What replies of `model` are kept under."""
        settings = self._settings(model).as_dict()
        sampled = {name: settings[name] for name in settings if name not in _UNSAMPLED}
        return fingerprint(*self._parts, identity(model), sampled)

    def of(self, model: BlockingChatModel, folder: Path | None) -> PromptClient:
        """The client that asks `model` and keeps replies in `folder` (None: nowhere)."""
        client: PromptClient = self._made.get(
            (id(model), folder), lambda: self._make(model, folder)
        )
        return client

    def _settings(self, model: BlockingChatModel) -> SamplingParams:
        extra = {**model.settings.extra, **self._changed.get("extra", {})}
        return replace(model.settings, **{**self._changed, "extra": extra})

    @property
    def lookups(self) -> Mapping[str, int]:
        """Hits and misses of the caches, where there are any."""
        total = Counter[str]()
        for client in self._made.values():
            total.update(client.lookups)
        return total

    def _make(self, model: BlockingChatModel, folder: Path | None) -> PromptClient:
        key = self.key(model)
        cache = ResultCache(folder / f"{self._name}-{key}.sqlite" if folder else None)
        return PromptClient(
            model,
            self._settings(model),
            key=key,
            cache=cache,
            is_empty=self._is_empty,
            counts=self._counts,
            telling=self._telling,
            keeps_empty=self._keeps_empty,
            as_far=self._as_far,
        )


def json_answer(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a server of chat completions answer with one JSON object of these
    `properties` alone (structured output: vLLM, OpenAI and others; one that does not know it says
    so)."""
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
    described = {"name": name, "strict": True, "schema": schema}
    return {"extra": {"response_format": {"type": "json_schema", "json_schema": described}}}


def _awaited(future: Future[Reply]) -> Reply | None:
    """Another thread's reply; None where it got none, which may be for its own reasons (its
    question's money is spent, say), so that this one asks itself."""
    try:
        return future.result()
    except CancelledError:
        return None


def _kept_reply(value: Mapping[str, Any]) -> Reply:
    """A reply as `PromptClient` keeps it."""
    counted = value.get("tokens") or (0, 0)
    # Earlier versions kept zeros where the server did not tell; no reply takes no tokens at all.
    usage = Usage(input=counted[0], output=counted[1]) if any(counted) else Usage()
    return Reply(
        value["text"],
        value["retried"],
        cached=True,
        input_tokens=usage.input,
        output_tokens=usage.output,
        tokens=tuple(Token(*fields) for fields in value.get("logprobs", ())),
    )
