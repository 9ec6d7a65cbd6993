"""Rank1 (Weller et al., "Rank1: Test-Time Compute for Reranking in Information Retrieval", 2025):
a language model that reasons about one passage, then says whether it is relevant.

It runs behind a server for text completions: `vllm serve jhu-clsp/rank1-7b --max-model-len 4000`.
llama.cpp's leaves out the tokens of the verdict, so that each has to be asked for once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipelines.rerank.answer_tokens import Relevance
from pipelines.rerank.base import Pair
from pipelines.rerank.rank1_model import Answers, ReasoningModel
from pipelines.rerank.rank1_prompt import Rank1Prompts, forced
from pipelines.rerank.rank1_relevance import closing_token, verdict
from pipelines.rerank.stage import Reranker
from pipelines.stage import Texts
from toolkit.counts import Counts
from toolkit.files import fingerprint
from toolkit.llm.completions import Completion
from toolkit.llm.errors import ContextOverflow
from toolkit.llm.ledger import Ledger
from toolkit.llm.prices import UNKNOWN, Price

RANK1 = "jhu-clsp/rank1-7b"
UNDECIDED = 0.5
_SHORTENINGS = 3
_COUNTS = (
    *("truncated", "queries_truncated", "shortened", "forced", "one_sided", "undecided"),
    *("input_tokens", "output_tokens"),
)


class Rank1Scorer:
    """P(true) / (P(true) + P(false)) of the verdict that Rank1 gives each pair. Thread-safe.

    The model reasons until it says `</think> true` or `</think> false`, of which the log-
    probabilities are read (see `rank1_verdict.verdict`). Where it does not in `max_tokens`, its
    reasoning is closed for it, and one token is asked for; where that says neither, the score is
    0.5. Decoding is greedy.

    The document is cut so that prompt and reasoning fit `context_window` tokens as `rank1_prompt`
    estimates them; where the server finds them too many anyway, it is halved up to three times.

    `base_url`, `key_env`, `concurrency` (requests in flight) and `attempts` as in `ApiModel`;
    `timeout` seconds are for one request. Requests are entered in `ledger`, where one is given, on
    the account of the question whose search it is (`pipelines.search_notes`); `price` is what their
    tokens cost. `InputError` for a server without log-probabilities. A `ModelError` ends the call
    (no server, say), and what else was asked in it is lost."""

    def __init__(
        self,
        model: str = RANK1,
        *,
        base_url: str = "http://127.0.0.1:8000/v1",
        key_env: str | None = None,
        max_tokens: int = 2000,
        context_window: int = 4000,
        concurrency: int = 64,
        timeout: float = 600.0,
        attempts: int = 6,
        ledger: Ledger | None = None,
        price: Price = UNKNOWN,
    ) -> None:
        self.model = model
        self.price = price
        self._prompts = Rank1Prompts(max_tokens, context_window)
        self._model = ReasoningModel(
            model,
            base_url=base_url,
            key_env=key_env,
            max_tokens=max_tokens,
            concurrency=concurrency,
            timeout=timeout,
            attempts=attempts,
            ledger=ledger,
            price=price,
        )
        self._counts = Counts(*_COUNTS)
        self._fingerprint = fingerprint(
            "rank1", model, max_tokens, context_window, self._prompts.prompt(Pair("", "")).text
        )

    def __repr__(self) -> str:
        return f"Rank1Scorer({self._model!r})"

    @property
    def fingerprint(self) -> str:
        """See `PairScorer`. Of the model its name alone is known."""
        return self._fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        """Cumulative: pairs with the document `truncated` or the query
        (`queries_truncated`), cut again for the server (`shortened`), closed by us (`forced`), with
        one side not listed (`one_sided`), at 0.5 for want of a verdict (`undecided`). Tokens of all
        replies: `input_tokens`, `output_tokens`."""
        return self._counts()

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """See `PairScorer`."""
        prompts, replies = self._reasoned(pairs)
        verdicts = [self._own_verdict(reply) for reply in replies]
        undecided = [position for position, relevance in enumerate(verdicts) if relevance is None]
        closed = self._decided(
            [forced(prompts[position], replies[position].text) for position in undecided]
        )
        for position, relevance in zip(undecided, closed, strict=True):
            verdicts[position] = relevance
        self._counts.add(
            forced=len(undecided),
            undecided=verdicts.count(None),
            one_sided=sum(relevance.one_sided for relevance in verdicts if relevance),
        )
        return [relevance.score if relevance else UNDECIDED for relevance in verdicts]

    def split(self, pair: Pair) -> list[Pair]:
        """The document in windows that each fit, one at least. Each costs a reasoning."""
        return [Pair(pair.query, text) for text in self._prompts.windows(pair)]

    @contextmanager
    def asking(self, ledger: Ledger) -> Iterator[None]:
        """Requests of the block are entered in `ledger`; its connections end with it."""
        self.close()
        before, self._model.ledger = self._model.ledger, ledger
        try:
            yield
        finally:
            self.close()
            self._model.ledger = before

    def close(self) -> None:
        """End the connections and the thread that holds them; the next `score` opens new ones."""
        self._model.close()

    def _reasoned(self, pairs: Sequence[Pair]) -> tuple[list[str], list[Completion]]:
        """The prompt that was answered and its answer, a pair each."""
        prompts = [self._prompts.prompt(pair) for pair in pairs]
        turns = self._model.reason([prompt.text for prompt in prompts])
        shortened: set[int] = set()
        for halvings in range(1, _SHORTENINGS + 1):
            too_long = [
                position for position, turn in enumerate(turns) if isinstance(turn, ContextOverflow)
            ]
            for position in too_long:
                prompts[position] = self._prompts.prompt(pairs[position], 0.5**halvings)
            again = self._model.reason([prompts[position].text for position in too_long])
            for position, turn in zip(too_long, again, strict=True):
                turns[position] = turn
            shortened.update(too_long)
        self._counts.add(
            shortened=len(shortened),
            truncated=sum(prompt.truncated for prompt in prompts),
            queries_truncated=sum(prompt.query_truncated for prompt in prompts),
        )
        return [prompt.text for prompt in prompts], self._completions(turns)

    def _own_verdict(self, reply: Completion) -> Relevance | None:
        """What the model said of its own accord."""
        token = closing_token(reply.tokens)
        return verdict(self._model.likeliest(reply, [token] if token else []))

    def _decided(self, prompts: Sequence[str]) -> list[Relevance | None]:
        """What the model says where its reasoning is closed for it."""
        replies = self._completions(self._model.decide(prompts))
        return [verdict(self._model.likeliest(reply, reply.tokens[-1:])) for reply in replies]

    def _completions(self, answers: Answers) -> list[Completion]:
        replies = self._model.completions(answers)
        self._counts.add(
            input_tokens=sum(reply.usage.input or 0 for reply in replies),
            output_tokens=sum(reply.usage.output or 0 for reply in replies),
        )
        return replies


class Rank1(Reranker):
    """Re-ranks the best `depth` rows of each query by Rank1 (Weller et al., 2025). Columns and
    errors as in `Reranker`, of which it takes the arguments too; those of the model and its server
    as in `Rank1Scorer`.

    `long_documents` None is `truncate` whatever the unit: each window would cost a reasoning.
    """

    def __init__(
        self,
        model: str = RANK1,
        *,
        base_url: str = "http://127.0.0.1:8000/v1",
        key_env: str | None = None,
        depth: int = 50,
        max_tokens: int = 2000,
        context_window: int = 4000,
        concurrency: int = 64,
        timeout: float = 600.0,
        price: Price | None = None,
        long_documents: str | None = None,
        texts: Texts | None = None,
        cache: Path | str | None = None,
    ) -> None:
        self.model, self.base_url, self.key_env = model, base_url, key_env
        self.max_tokens, self.context_window = max_tokens, context_window
        self.concurrency, self.timeout, self.price = concurrency, timeout, price
        self._asks = scorer = self._part(Rank1Scorer, price=price or UNKNOWN)
        # Not gathered: the server batches what comes, and a slow reasoning would hold up others.
        super().__init__(
            scorer,
            texts=texts,
            depth=depth,
            cache=cache,
            long_documents=long_documents or "truncate",
            max_wait_ms=None,
        )

    @property
    def request_price(self) -> Price:
        """See `Stage`."""
        return self._asks.price

    @contextmanager
    def asking(self, ledger: Ledger) -> Iterator[None]:
        """See `Stage`."""
        with self._asks.asking(ledger):
            yield
