"""What is sent can always be sent, whatever a model wrote; and how its arguments are read."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import wire
from soundingline.toolkit.llm.anthropic import strict_schema
from soundingline.toolkit.llm.errors import ModelError, Truncated
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
    name = wire.sendable_name(text)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)


@settings(max_examples=cases(300), deadline=None)
@given(ANY_TEXT | JSON_TEXT)
def test_arguments_are_read_or_refused_as_a_value_error(text):
    try:
        ToolCall("a", "search", text).parsed()
    except ValueError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "NaN", "-Infinity", "1" * 9999])
def test_hostile_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        ToolCall("a", "search", text).parsed()
    assert wire.sendable_object(text) == {"malformed": text}


def test_whole_text_is_sent_unchanged():
    text = '{"query": "Zoë  😀",\n "offset": 1.0}'
    assert wire.sendable_arguments(text) == text
    assert wire.sendable("a\ud83d\ude00b") == "a😀b"
    assert wire.sendable(None) == ""


def test_a_schema_for_strict_anthropic_tools_has_no_bounds_and_no_lists_of_types():
    schema = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words."},
            "limit": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": 50,
                "description": "Hits.",
            },
        },
        "required": ["query", "limit"],
        "additionalProperties": False,
    }
    assert strict_schema(schema) == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words."},
            "limit": {
                "anyOf": [
                    {"type": "integer", "description": "minimum: 1, maximum: 50"},
                    {"type": "null"},
                ],
                "description": "Hits.",
            },
        },
        "required": ["query", "limit"],
        "additionalProperties": False,
    }


def test_a_turn_becomes_the_message_that_trajectories_record():
    turn = Turn(text="I look.", tool_calls=(ToolCall("a", "search", '{"query": "x"}'),))
    function = {"name": "search", "arguments": '{"query": "x"}'}
    assert turn.message() == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    assert Turn(text="Ada.").message() == {"role": "assistant", "content": "Ada."}


def test_a_turn_of_white_space_is_empty_and_one_with_a_call_is_not():
    assert Turn(text=" \n").empty
    assert not Turn(tool_calls=(ToolCall("a", "search", ""),)).empty


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 3.0},
        {"temperature": "hot"},
        {"top_p": -0.1},
        {"max_output_tokens": 0},
        {"timeout": 0},
        {"tool_choice": ""},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        SamplingParams(**wrong)  # type: ignore[arg-type]


def test_settings_tell_what_was_given():
    given_settings = SamplingParams(temperature=0.0, seed=3).as_dict()
    assert given_settings["temperature"] == 0.0 and given_settings["seed"] == 3
    assert "top_p" not in given_settings


def test_an_error_is_one_short_line():
    error = ModelError("a\nb\t c " + "x" * 1000)
    assert str(error).startswith("a b c xxx") and len(str(error)) <= 401


def test_every_error_has_a_code_of_its_own():
    kinds = ModelError.__subclasses__()
    assert len({kind.code for kind in kinds} | {ModelError.code}) == len(kinds) + 1
    assert not Truncated.retryable
    assert not any(kind.retryable and kind.stops_run for kind in kinds)
