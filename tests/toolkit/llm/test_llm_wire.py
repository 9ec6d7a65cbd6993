"""What is sent can always be sent, whatever a model wrote; how its arguments are read; and which
error each answer of a real server is, as documents and issue threads show them."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import errors, wire
from soundingline.toolkit.llm.messages import SamplingParams, ToolCall, Turn

ANY_TEXT = st.text(st.characters(), max_size=60)  # Lone surrogates included.
JSON_TEXT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
).map(json.dumps)


@settings(max_examples=cases(300), deadline=None)
@given(ANY_TEXT | JSON_TEXT)
def test_whatever_a_model_writes_becomes_an_object_that_utf8_holds(text):
    sent = wire.sendable_arguments(text)
    sent.encode()
    assert isinstance(json.loads(sent), dict)
    assert wire.sendable_arguments(sent) == sent
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wire.sendable_name(text))
    try:
        ToolCall("a", "search", text).parsed()
    except ValueError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "NaN", "-Infinity", "1" * 9999])
def test_hostile_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        ToolCall("a", "search", text).parsed()
    assert wire.sendable_object(text) == {"malformed": text}


def test_valid_text_is_sent_unchanged():
    text = '{"query": "Zoë  😀",\n "offset": 1.0}'
    assert wire.sendable_arguments(text) == text
    assert wire.sendable("a\ud83d\ude00b") == "a😀b"
    assert wire.sendable(None) == ""


def test_a_turn_becomes_the_message_that_trajectories_record():
    turn = Turn(text="I look.", tool_calls=(ToolCall("a", "search", '{"query": "x"}'),))
    function = {"name": "search", "arguments": '{"query": "x"}'}
    assert turn.message() == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    assert Turn(text="Ada.").message() == {"role": "assistant", "content": "Ada."}
    assert Turn(text=" \n").empty
    assert not Turn(tool_calls=(ToolCall("a", "search", ""),)).empty


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 3.0},
        {"temperature": "hot"},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"max_output_tokens": 0},
        {"timeout": 0},
        {"tool_choice": ""},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SamplingParams(**wrong)


def test_settings_record_what_was_set():
    recorded = SamplingParams(temperature=0.0, seed=3).as_dict()
    assert recorded["temperature"] == 0.0 and recorded["seed"] == 3
    assert "top_p" not in recorded


def test_errors_are_short_lines_with_codes_of_their_own():
    error = errors.ModelError("a\nb\t c " + "x" * 1000)
    assert str(error).startswith("a b c xxx") and len(str(error)) <= 401
    kinds = errors.ModelError.__subclasses__()
    assert len({kind.code for kind in kinds} | {errors.ModelError.code}) == len(kinds) + 1
    assert not errors.Truncated.retryable
    assert not any(kind.retryable and kind.stops_run for kind in kinds)


WINDOW = "This model's maximum context length is 40960 tokens"
ANSWERS = {
    "vLLM, overflow": (400, f"{WINDOW}. However, you requested 50000", "ContextOverflow"),
    "vLLM, maximum of output": (
        400,
        f"'max_tokens' or 'max_completion_tokens' is too large: 8192. {WINDOW} and your request "
        "has 33000 input tokens (8192 > 40960 - 33000).",
        "ContextOverflow",
    ),
    "vLLM, by characters": (
        400,
        "You passed 900000 input characters and requested 8192 output tokens. However, the "
        "model's context length is only 40960 tokens, resulting in a maximum input length of 32768",
        "ContextOverflow",
    ),
    "vLLM, no room for a default": (
        400,
        "max_tokens must be at least 1, got -17.",
        "ContextOverflow",
    ),
    "vLLM, a maximum of nothing": (400, "max_tokens must be at least 1, got 0.", "BadRequest"),
    "vLLM, unknown model": (404, "The model `x` does not exist.", "UnknownModel"),
    "Anthropic, prompt and maximum of output": (
        400,
        {
            "error": "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, "
            "decrease input length or `max_tokens` and try again"
        },
        "ContextOverflow",
    ),
    "Anthropic, size": (413, {"type": "request_too_large"}, "ContextOverflow"),
    "llama.cpp, overflow": (400, {"type": "exceed_context_size_error"}, "ContextOverflow"),
    "OpenAI, overflow": (400, {"code": "context_length_exceeded"}, "ContextOverflow"),
    "OpenAI, unknown model under 400": (
        400,
        {"message": "The requested model 'x' does not exist.", "code": "model_not_found"},
        "UnknownModel",
    ),
    "OpenAI, quota": (429, {"code": "insufficient_quota"}, "OutOfQuota"),
    "OpenAI, quota in words": (429, "You exceeded your current quota", "OutOfQuota"),
    "OpenAI, too many": (429, "Rate limit reached", "RateLimited"),
    "DeepSeek, balance": (402, "Insufficient Balance", "OutOfQuota"),
    "Anthropic, credit": (
        400,
        {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low"}},
        "OutOfQuota",
    ),
    "Anthropic, right": (403, {"error": {"type": "permission_error"}}, "AuthenticationFailed"),
    "Anthropic, in a stream": (
        200,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "ServerFailed",
    ),
    "OpenAI, filter": (400, {"code": "invalid_prompt", "message": "flagged"}, "Refused"),
    "Azure, filter": (400, {"code": "content_filter"}, "Refused"),
    "OpenAI, a failed response": (200, {"code": "rate_limit_exceeded"}, "RateLimited"),
    "a missing field": (422, {"detail": "field required"}, "BadRequest"),
    "a proxy without words": (502, None, "ServerFailed"),
    "a proxy with a page": (503, "<html>no</html>", "ServerFailed"),
    "something new": (418, "teapot", "BadRequest"),
}


@pytest.mark.parametrize(("status", "body", "kind"), ANSWERS.values(), ids=ANSWERS.keys())
def test_which_error_an_answer_is(status, body, kind):
    if isinstance(body, str) and "<" not in body:
        body = {"message": body, "type": "BadRequestError", "code": status}
    error = errors.fault(status, body, {}, where="m at host", now=0.0)
    assert type(error).__name__ == kind
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
def test_the_wait_that_a_server_asks_for_is_read(headers, seconds):
    assert errors.retry_after(headers, 1_790_000_000.0) == seconds
