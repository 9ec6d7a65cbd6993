"""Rank1 (Weller et al., "Rank1: Test-Time Compute for Reranking in Information Retrieval", 2025):
a language model that reasons about a passage and then says whether it is relevant.

The model runs on a server for text completions: `vllm serve jhu-clsp/rank1-7b --max-model-len
4000`. llama.cpp's server omits the tokens of the verdict, so that each needs a second request.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pandas as pd

from soundingline.pipelines.prompting import LIKELIEST, SPACES, Relevance, model_of, share, word
from soundingline.pipelines.rerank.reranker import Pair, Scorer
from soundingline.pipelines.stage import not_bound
from soundingline.pipelines.windows import split_from_front
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.blocking import BlockingModel, identity
from soundingline.toolkit.llm.errors import ContextOverflow, ModelError, ServerGone, Unreachable
from soundingline.toolkit.llm.messages import SamplingParams, Token, Turn, user
from soundingline.toolkit.tokens import count_tokens, truncate

UNDECIDED = 0.5
CLOSE = "</think>"
_SIDES = ("true", "false")
_STOPS = tuple(f"{CLOSE} {side}" for side in _SIDES)
# Tokens that `</think>` and the white space after it may take.
_CLOSING_TOKENS = 8
# The prompt that the published checkpoints were trained on.
_FRAME = (
    "Determine if the following passage is relevant to the query. "
    "Answer only with 'true' or 'false'.\nQuery: ",
    "\nPassage: ",
    "\n<think>",
)
_SENTENCE_ENDS = ".!?"
_TOKENS_A_WORD = 4 / 3
_BYTES_A_TOKEN = 4
# For `</think>`, the verdict, and what joins the parts.
_RESERVE = 16
_LEAST_ROOM = 128
_SHORTENINGS = 3


@dataclass(kw_only=True, eq=False, repr=False)
class Rank1(Scorer):
    """Scores by Rank1 (Weller et al., 2025): a score is P(true) / (P(true) + P(false)) of the
    verdict that ends a reasoning about the pair.

    The model reasons until it says `</think> true` or `</think> false`, of which the
    log-probabilities are read. If it does not within `max_tokens`, its reasoning is closed and one
    more token is requested; if that is neither word, the score is 0.5. Decoding is greedy. A
    document is cut so that prompt and reasoning fit `context_window` tokens by our estimate. If the
    server counts more, the document is halved up to three times.

    Args:
        model: A `BlockingModel` of a client for text completions (`OpenAICompletions`). The default
            is the collection's. Its requests for a row belong to the question `qid`.
        max_tokens: Tokens of a reasoning.
        context_window: Tokens of a prompt and its reasoning.
        prompt_tokens: Most tokens of a prompt, by our estimate; None for what the window leaves.
            The study of text ranking cut prompts to 1,024 (arXiv 2602.21456).
        long_documents: As for `Scorer`, but the default is always `truncate`, because each window
            costs a reasoning.

    Columns, `InputError`s and other arguments are those of `Scorer`; there must be a model, whose
    server returns log-probabilities. If a request fails, its error is raised, and the scores of its
    batch are lost. The `counts` add pairs with the document `truncated` or the query
    (`queries_truncated`), cut again for the server (`shortened`), closed before a verdict
    (`forced`), with one word not listed (`one_sided`), and without a verdict (`undecided`); the
    tokens of the replies (`reply_input_tokens`, `reply_output_tokens`), and replies and cached
    scores of unknown tokens (`reply_unreported`).

    Example:
        >>> rank1 = RerankTop(Rank1(max_tokens=500), depth=20, texts=index.texts)
        >>> pipe = index.bm25() >> rank1 >> MaxP()
        >>> pipe.search("old river")  # doctest: +SKIP
    """

    model: BlockingModel | None = field(default=None, kw_only=False)
    max_tokens: int = 2000
    context_window: int = 4000
    prompt_tokens: int | None = None

    needs_llm = True
    needs_completions = True
    # The server batches requests as they come, and a slow reasoning would delay the others.
    shares_batches = False
    counted = (
        "truncated",
        "queries_truncated",
        "shortened",
        "forced",
        "one_sided",
        "undecided",
        "reply_input_tokens",
        "reply_output_tokens",
        "reply_unreported",
    )

    def __post_init__(self) -> None:
        self.long_documents = self.long_documents or "truncate"
        super().__post_init__()
        self._prompts = Rank1Prompts(self.max_tokens, self.context_window, self.prompt_tokens)
        self._qids: Mapping[str, str] = {}

    @property
    def fingerprint(self) -> str:
        """It names the model as far as its identity is known."""
        model = model_of(self)
        prompt = self._prompts.prompt(Pair("", "")).text
        name = identity(model) if model else ""
        limit = [] if self.prompt_tokens is None else [self.prompt_tokens]
        return fingerprint("rank1", name, self.max_tokens, self.context_window, prompt, *limit)

    @property
    def counts(self) -> Mapping[str, float]:
        counts = super().counts
        unreported = counts["reply_unreported"] + counts.get("cache_hits", 0)
        return {**counts, "reply_unreported": unreported}

    def score_rows(self, rows: pd.DataFrame) -> Sequence[float]:
        asking = copy.copy(self)
        qids = map(str, rows["qid"].tolist())
        asking._qids = dict(zip(rows["query"].tolist(), qids, strict=True))
        return super(Rank1, asking).score_rows(rows)

    def score(self, queries: Sequence[str], texts: Sequence[str]) -> list[float]:
        prompts, replies = self._reasoned(list(map(Pair, queries, texts)))
        verdicts = [self._verdict(reply, closing_token(reply.tokens)) for reply in replies]
        undecided = [position for position, relevance in enumerate(verdicts) if relevance is None]
        closed = self._metered(
            self._respond(
                [forced(prompts[position], replies[position].text) for position in undecided],
                [queries[position] for position in undecided],
                max_tokens=1,
            )
        )
        for position, reply in zip(undecided, closed, strict=True):
            token = reply.tokens[-1] if reply.tokens else None
            verdicts[position] = self._verdict(reply, token)
        self.count.add(
            forced=len(undecided),
            undecided=verdicts.count(None),
            one_sided=sum(relevance.one_sided for relevance in verdicts if relevance),
        )
        return [relevance.score if relevance else UNDECIDED for relevance in verdicts]

    def windows(self, query: str, text: str) -> list[str]:
        return self._prompts.windows(Pair(query, text))

    def _reasoned(self, pairs: Sequence[Pair]) -> tuple[list[str], list[Turn]]:
        """The prompt of each pair that was answered, and the reply with the reasoning."""
        prompts = [self._prompts.prompt(pair) for pair in pairs]
        replies: list[Turn | ModelError] = [ContextOverflow("")] * len(pairs)
        shortened: set[int] = set()
        for halvings in range(_SHORTENINGS + 1):
            left = [at for at, reply in enumerate(replies) if isinstance(reply, ContextOverflow)]
            if halvings:
                shortened.update(left)
                for at in left:
                    prompts[at] = self._prompts.prompt(pairs[at], 0.5**halvings)
            texts = [prompts[at].text for at in left]
            queries = [pairs[at].query for at in left]
            answers = self._respond(texts, queries, max_tokens=self.max_tokens, stop=_STOPS)
            for at, reply in zip(left, answers, strict=True):
                replies[at] = reply
        self.count.add(
            shortened=len(shortened),
            truncated=sum(prompt.truncated for prompt in prompts),
            queries_truncated=sum(prompt.query_truncated for prompt in prompts),
        )
        return [prompt.text for prompt in prompts], self._metered(replies)

    @property
    def _bound_model(self) -> BlockingModel:
        if model := model_of(self):
            return model
        raise not_bound(self, "give it a model, or bind it to a collection that has one")

    def _respond(
        self,
        prompts: Sequence[str],
        queries: Sequence[str],
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
    ) -> list[Turn | ModelError]:
        model = self._bound_model
        # If `</think>` is a special token, omitting it from the reply would end no reasoning.
        extra = {**model.settings.extra, "skip_special_tokens": False}
        settings: SamplingParams = replace(
            model.settings,
            temperature=0.0,
            logprobs=LIKELIEST,
            max_output_tokens=max_tokens,
            extra={**extra, "stop": list(stop)} if stop else extra,
        )
        requests = [[user(prompt)] for prompt in prompts]
        qids = [self._qids.get(query, "") for query in queries]
        return model.respond_many(requests, qids, settings)

    def _metered(self, replies: Sequence[Turn | ModelError]) -> list[Turn]:
        """The replies, whose tokens are counted; raises the first error among them."""
        turns = []
        for reply in replies:
            if isinstance(reply, (ServerGone, Unreachable)):
                name = self._bound_model.name
                start = f"start it with `vllm serve {name}`, or set the base_url of its llm"
                raise type(reply)(f"{reply}; {start}") from reply
            if isinstance(reply, ModelError):
                raise reply
            turns.append(reply)
        usages = [turn.usage for turn in turns]
        self.count.add(
            reply_input_tokens=sum(usage.input or 0 for usage in usages),
            reply_output_tokens=sum(usage.output or 0 for usage in usages),
            reply_unreported=sum(None in (usage.input, usage.output) for usage in usages),
        )
        return turns

    def _verdict(self, reply: Turn, token: Token | None) -> Relevance | None:
        """The verdict at a token of a reply. `InputError` if the server lists no alternatives."""
        if reply.text and not any(each.top for each in reply.tokens):
            raise InputError(
                f"the server of {self._bound_model.name} gives no log-probabilities",
                valid=f"a server whose /completions has logprobs={LIKELIEST}",
                do="use vLLM, and not with --max-logprobs below that",
            )
        return verdict(token.top) if token else None


def closing_token(tokens: Sequence[Token], closing: str = CLOSE) -> Token | None:
    """The last token that says true or false directly after the text `closing`, or None."""
    for position in range(len(tokens) - 1, -1, -1):
        before = tokens[max(0, position - _CLOSING_TOKENS) : position]
        text = "".join(token.text for token in before).rstrip(SPACES)
        if word(tokens[position].text) in _SIDES and text.endswith(closing):
            return tokens[position]
    return None


def verdict(top: Mapping[str, float]) -> Relevance | None:
    """P(true) / (P(true) + P(false)) by the log-probabilities of the likeliest tokens at the
    position of the verdict; None if neither word is among them (see `share`)."""
    return share(top, *_SIDES)


class Rank1Prompt(NamedTuple):
    text: str
    truncated: bool
    query_truncated: bool


class Rank1Prompts:
    """Makes prompts that fit a `context_window` together with `max_tokens` of reasoning, by an
    estimate of their tokens, and have at most `prompt_tokens`. The document is cut first, and the
    query only beyond half of the room."""

    def __init__(
        self, max_tokens: int, context_window: int, prompt_tokens: int | None = None
    ) -> None:
        around = sum(map(estimated_tokens, _FRAME)) + _RESERVE
        self._room = context_window - max_tokens - around
        if prompt_tokens is not None:
            check_int("prompt_tokens", prompt_tokens, ge=around + _LEAST_ROOM)
            self._room = min(self._room, prompt_tokens - around)
        if max_tokens < 1 or self._room < _LEAST_ROOM:
            raise InputError(
                f"max_tokens={max_tokens} of reasoning in a context_window of {context_window}",
                valid=f"1 or more, and {around + _LEAST_ROOM} tokens or more besides",
                do="set context_window to the server's --max-model-len, or fewer max_tokens",
            )

    def prompt(self, pair: Pair, share: float = 1.0) -> Rank1Prompt:
        """The prompt of a pair. A `share` below 1 keeps only that part of the document, for servers
        that count more tokens than the estimate."""
        query, room = self._query(pair)
        document = pair.text
        text = shortened(document, room)
        if share < 1:
            text = shortened(text, max(1, int(estimated_tokens(text) * share)))
        opening, between, ending = _FRAME
        return Rank1Prompt(
            f"{opening}{query}{between}{text}{ending}",
            len(text) < len(document),
            len(query) < len(pair.query),
        )

    def windows(self, pair: Pair) -> list[str]:
        """The text of the document in at least one part, each of which fits."""
        _, room = self._query(pair)
        return split_from_front(pair.text, lambda rest: shortened(rest, room))

    def _query(self, pair: Pair) -> tuple[str, int]:
        """The query, and the tokens that it leaves to the document."""
        query = shortened(pair.query, self._room // 2)
        return query, self._room - estimated_tokens(query)


def forced(prompt: str, reasoning: str) -> str:
    """A prompt for the verdict alone: the reasoning up to its last complete sentence, closed."""
    thoughts = reasoning.partition(CLOSE)[0].strip()
    if not thoughts.endswith(tuple(_SENTENCE_ENDS)):
        # All of it where it has no sentence.
        thoughts = thoughts[: max(map(thoughts.rfind, _SENTENCE_ENDS)) + 1] or thoughts
    return f"{prompt}\n{thoughts}\n{CLOSE}"


def estimated_tokens(text: str) -> int:
    """An estimate of a language model's tokens: 4/3 of our words and marks, which holds for
    English, and at least a quarter of the bytes, for scripts without spaces."""
    return math.ceil(max(count_tokens(text) * _TOKENS_A_WORD, len(text.encode()) / _BYTES_A_TOKEN))


def shortened(text: str, room: int) -> str:
    """A beginning of `text` of at most `room` tokens by the estimate. It ends between words if
    there is white space in its second half."""
    text = truncate(text, int(room / _TOKENS_A_WORD))
    size = room * _BYTES_A_TOKEN
    if len(text.encode()) <= size:
        return text
    cut = text.encode()[:size].decode(errors="ignore")
    space = max(map(cut.rfind, (" ", "\n")))
    return cut[:space] if space > len(cut) // 2 else cut
