"""Text completion (`/completions`) with the log-probabilities of what was written; a local vLLM
first.

The prompt is sent as it is, without a chat template: for models that were trained on plain prompts,
and for scores that are read from a token's probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit.errors import InputError
from toolkit.llm import wire
from toolkit.llm.client import ApiModel
from toolkit.llm.errors import BadReply
from toolkit.llm.protocol import Message, Settings, Token, Turn, Usage, user

API = "openai_completions"
_FINISH = {"content_filter": "refusal", None: "stop"}


@dataclass(frozen=True)
class Completion:
    """`text` ends before a stop sequence; `tokens` (of vLLM) with it. `finish_reason` is `stop`,
    `length`, or the server's own word."""

    text: str
    tokens: Sequence[Token] = ()
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    attempts: int = 1

    @classmethod
    def of(cls, turn: Turn) -> Completion:
        """What a turn of `OpenAICompletions` holds."""
        return cls(turn.text, turn.tokens, turn.finish_reason, turn.usage, turn.attempts)


def asking(
    settings: Settings,
    *,
    stop: Sequence[str] = (),
    logprobs: int | None = None,
    max_tokens: int | None = None,
) -> Settings:
    """`settings` with what completions have besides: the texts in `stop` end the reply;
    `logprobs` asks for those of so many tokens at each place (0: of the written one alone);
    `max_tokens` bounds the reply (None: as it was)."""
    extra = {**settings.extra, "stop": list(stop)} if stop else settings.extra
    return replace(
        settings,
        extra=extra,
        logprobs=settings.logprobs if logprobs is None else logprobs,
        max_output_tokens=max_tokens or settings.max_output_tokens,
    )


class OpenAICompletions(ApiModel):
    """A model behind `/completions`.

    Also a `ChatModel` that is given one message, the prompt, so that whatever asks, meters and
    retries chat models does so here; `Completion.of(turn)` is then what came. A reply that reaches
    its limit is a whole one.

    `kept_tokens` (None: all) is of how many of the last tokens the log-probabilities are kept:
    those of a long reply take far more room than its text. The rest as in `ApiModel`.
    """

    sdk = "openai"
    default_url = "http://127.0.0.1:8000/v1"

    def __init__(self, *, kept_tokens: int | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.kept_tokens = kept_tokens

    async def complete(
        self,
        prompt: str,
        settings: Settings | None = None,
        *,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        max_tokens: int | None = None,
    ) -> Completion:
        """What follows `prompt`; keywords as in `asking`. A `ModelError` where there is none."""
        settings = asking(
            settings or self.settings, stop=stop, logprobs=logprobs, max_tokens=max_tokens
        )
        return Completion.of(await self.respond([user(prompt)], (), settings))

    def _client(self, sdk: Any, **arguments: Any) -> Any:
        return sdk.AsyncOpenAI(**arguments)

    async def _send(self, client: Any, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        # Raw and as extra body for the reasons given in `openai_chat`.
        raw = await client.completions.with_raw_response.create(
            model=self.name, prompt="", extra_body=body, timeout=timeout
        )
        return self._object(raw.text)

    def _body(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], settings: Settings
    ) -> dict[str, Any]:
        if len(messages) != 1 or tools:
            raise InputError(
                f"a text completion was given {len(messages)} messages and {len(tools)} tools",
                valid="one message, which is the prompt, and no tools",
                do="use OpenAIChat for conversations",
            )
        parameters = {
            "prompt": wire.sendable(messages[0].get("content")),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_output_tokens,
            "reasoning_effort": settings.reasoning_effort,
            "seed": settings.seed,
            "logprobs": settings.logprobs,
        }
        body = {name: value for name, value in parameters.items() if value is not None}
        return {**body, **settings.extra}

    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        choices = reply.get("choices")
        if not choices:
            raise BadReply(f"{self._where}: the reply has no choices")
        choice = choices[0]
        finish = choice.get("finish_reason")
        usage = reply.get("usage")
        tokens = list(wire.tokens(choice.get("logprobs")))
        last_tokens = tokens if self.kept_tokens is None else tokens[-self.kept_tokens :]
        return Turn(
            text=str(choice.get("text") or ""),
            usage=Usage(
                input=wire.count(usage, "prompt_tokens"),
                cached=wire.count(usage, "prompt_tokens_details", "cached_tokens"),
                output=wire.count(usage, "completion_tokens"),
                cache_write=wire.count(usage, "prompt_tokens_details", "cache_write_tokens"),
            ),
            finish_reason=str(_FINISH.get(finish, finish)),
            model=str(reply.get("model") or ""),
            provider={"api": API},
            tokens=last_tokens,
        )

    def _whole(self, turn: Turn) -> Turn:
        return turn if turn.finish_reason == "length" else super()._whole(turn)
