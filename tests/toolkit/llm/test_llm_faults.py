"""Answers of real servers, as their documents and issue threads show them, told apart."""

from __future__ import annotations

import pytest

from soundingline.toolkit.llm import errors
from soundingline.toolkit.llm.errors import fault, retry_after

NOW = 1_790_000_000.0

ANSWERS = {
    "vLLM, overflow": (
        400,
        {
            "message": "This model's maximum context length is 4096 tokens. However, you requested "
            "5000 tokens (4000 in the messages, 1000 in the completion).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        errors.ContextOverflow,
    ),
    "vLLM, maximum of output": (
        400,
        {
            "message": "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's "
            "maximum context length is 40960 tokens and your request has 33000 input tokens (8192 "
            "> 40960 - 33000).",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        errors.ContextOverflow,
    ),
    "vLLM, prompt and maximum of output": (
        400,
        {
            "message": "This model's maximum context length is 40960 tokens. However, you "
            "requested 8192 output tokens and your prompt contains at least 32769 input tokens, "
            "for a total of at least 40961 tokens. Please reduce the length of the input prompt "
            "or the number of requested output tokens. (parameter=input_tokens, value=32769)",
            "type": "BadRequestError",
            "param": "input_tokens",
            "code": 400,
        },
        errors.ContextOverflow,
    ),
    "vLLM, told by characters": (
        400,
        {
            "message": "You passed 900000 input characters and requested 8192 output tokens. "
            "However, the model's context length is only 40960 tokens, resulting in a maximum "
            "input length of 32768 tokens (at most 589824 characters). Please reduce the length "
            "of the input prompt.",
            "type": "BadRequestError",
            "param": "input_text",
            "code": 400,
        },
        errors.ContextOverflow,
    ),
    "vLLM, no room for a default": (
        400,
        {"message": "max_tokens must be at least 1, got -17.", "type": "BadRequestError"},
        errors.ContextOverflow,
    ),
    "vLLM, a maximum of nothing": (
        400,
        {"message": "max_tokens must be at least 1, got 0.", "type": "BadRequestError"},
        errors.BadRequest,
    ),
    "Anthropic, prompt and maximum of output": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "input length and `max_tokens` exceed context limit: 188240 + 21333 > "
                "200000, decrease input length or `max_tokens` and try again",
            },
        },
        errors.ContextOverflow,
    ),
    "llama.cpp, overflow": (
        400,
        {
            "code": 400,
            "message": "the request exceeds the available context size",
            "type": "exceed_context_size_error",
        },
        errors.ContextOverflow,
    ),
    "vLLM, unknown model": (
        404,
        {"message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404},
        errors.UnknownModel,
    ),
    "OpenAI, unknown model under 400": (
        400,
        {"message": "The requested model 'x' does not exist.", "code": "model_not_found"},
        errors.UnknownModel,
    ),
    "OpenAI, quota": (
        429,
        {"message": "You exceeded your current quota", "code": "insufficient_quota"},
        errors.OutOfQuota,
    ),
    "DeepSeek, balance": (402, {"message": "Insufficient Balance"}, errors.OutOfQuota),
    "Anthropic, credit": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the Anthropic API.",
            },
        },
        errors.OutOfQuota,
    ),
    "Anthropic, in a stream": (
        200,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        errors.ServerFailed,
    ),
    "OpenAI, filter": (
        400,
        {"message": "Invalid prompt: flagged", "code": "invalid_prompt"},
        errors.Refused,
    ),
    "OpenAI, a failed response": (
        200,
        {"code": "rate_limit_exceeded", "message": "Rate limit"},
        errors.RateLimited,
    ),
    "a proxy without words": (502, None, errors.ServerFailed),
    "a proxy with a page": (503, "<html>no</html>", errors.ServerFailed),
    "something new": (418, {"message": "teapot"}, errors.BadRequest),
}


@pytest.mark.parametrize(("status", "body", "kind"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_is_told_apart(status, body, kind):
    error = fault(status, body, {}, where="m at host", now=NOW)
    assert type(error) is kind
    assert str(error).startswith(f"m at host: HTTP {status}")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Mon, 21 Sep 2026 14:13:25 GMT"}, 5.0),
        ({"retry-after": "Mon, 21 Sep 2020 13:33:25 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_the_wish_to_wait_is_read(headers, seconds):
    assert retry_after(headers, NOW) == seconds
