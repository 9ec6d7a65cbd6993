"""The server behind Rank1: what it is asked, and what comes back."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pipelines.rerank.answer_tokens import LIKELIEST
from pipelines.rerank.rank1_relevance import CLOSE
from pipelines.search_notes import question
from toolkit.errors import InputError
from toolkit.llm.blocking import BlockingModel
from toolkit.llm.completions import Completion, OpenAICompletions, Token, asking
from toolkit.llm.errors import ModelError, ServerGone
from toolkit.llm.ledger import Ledger
from toolkit.llm.prices import Price
from toolkit.llm.protocol import Settings, Turn, user

_STOPS = (f"{CLOSE} true", f"{CLOSE} false")
_KEPT_TOKENS = 16

Answers = list[Turn | ModelError]


class ReasoningModel:
    """Asked from any number of threads; the first request opens the connections, on an
    event loop in a thread of its own, and `close` ends them. `ledger` may be changed while they are
    closed. Arguments as in `Rank1Scorer`."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        key_env: str | None,
        max_tokens: int,
        concurrency: int,
        timeout: float,
        attempts: int,
        ledger: Ledger | None,
        price: Price,
    ) -> None:
        self.name = model
        # Where `</think>` is a special token, a skipped one would stop nothing.
        settings = Settings(temperature=0.0, timeout=timeout, extra={"skip_special_tokens": False})
        self._reason = asking(settings, stop=_STOPS, logprobs=LIKELIEST, max_tokens=max_tokens)
        self._decide = asking(settings, logprobs=LIKELIEST, max_tokens=1)
        self._client = OpenAICompletions(
            model=model,
            base_url=base_url,
            key_env=key_env,
            settings=settings,
            concurrency=concurrency,
            attempts=attempts,
            kept_tokens=_KEPT_TOKENS,
        )
        self._client.ready()
        self.ledger = ledger
        self._blocking = BlockingModel(model, role="reranker", settings=settings, price=price)
        self._running = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{self.name} at {self._client.base_url}"

    def reason(self, prompts: Sequence[str]) -> Answers:
        """A reasoning for each prompt, with the verdict that ends it."""
        return self._respond(prompts, self._reason)

    def decide(self, prompts: Sequence[str]) -> Answers:
        """The next token of each prompt."""
        return self._respond(prompts, self._decide)

    def close(self) -> None:
        with self._lock:
            self._running = False
        self._blocking.close()

    def completions(self, answers: Answers) -> list[Completion]:
        """The answers, or the first error among them."""
        for answer in answers:
            if isinstance(answer, ServerGone):
                start = f"start it with `vllm serve {self.name}`, or set the re-ranker's base_url"
                raise ServerGone(f"{answer}; {start}") from answer
            if isinstance(answer, ModelError):
                raise answer
        return [Completion.of(answer) for answer in answers if isinstance(answer, Turn)]

    def likeliest(self, reply: Completion, tokens: Sequence[Token]) -> dict[str, float]:
        """The likeliest tokens in the place of the one token of `reply`, if there is one.
        `InputError` where the server tells none."""
        if reply.text and not any(token.top for token in reply.tokens):
            raise InputError(
                f"the server of {self.name} gives no log-probabilities",
                valid=f"a server whose /completions has logprobs={LIKELIEST}",
                do="use vLLM, and not with --max-logprobs below that",
            )
        return {text: logprob for token in tokens for text, logprob in token.top.items()}

    def _respond(self, prompts: Sequence[str], settings: Settings) -> Answers:
        with self._lock:
            if not self._running:
                self._blocking.start(self._client, self.ledger)
                self._running = True
        requests = [[user(prompt)] for prompt in prompts]
        return self._blocking.respond_many(requests, [question()] * len(requests), settings)
