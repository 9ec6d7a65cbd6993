"""JSON and text of others at each place where they enter: decoded once, and valid from there on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.assertions import refused
from support.odd_texts import DEEP, LONE

from soundingline.pipelines.requirements.scorers import FileScorer
from soundingline.toolkit.benchmarks.formats import AnswersRow, rows
from soundingline.toolkit.evaluation.judge import JudgeCase, read_verdict, verdict_in_text
from soundingline.toolkit.exchange import inspect_ai
from soundingline.toolkit.exchange.transcript import call_arguments, docids_shown
from soundingline.toolkit.files import dump_json, read_json, read_record
from soundingline.toolkit.json_lines import JsonLinesLog, read_json_lines
from soundingline.toolkit.json_text import DEEPEST, decode_json, decode_json_at, replace_surrogates
from soundingline.toolkit.llm import FunctionCall, Turn, wire
from soundingline.toolkit.llm.errors import BadReply, read_error
from soundingline.toolkit.llm.openai import call_in_text
from soundingline.toolkit.llm.prompts import json_values
from soundingline.toolkit.locks import writer_lock
from soundingline.toolkit.trajectory import read_outcome

deep = pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
lone = pytest.mark.parametrize(("text", "valid"), LONE.values(), ids=LONE)
CASE = JudgeCase("q", "", "", ())


@given(st.text(st.characters(codec=None)))
def test_what_takes_the_place_of_surrogates_is_what_utf16_decodes_to(text):
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert replace_surrogates(text) == expected
    expected.encode()


@pytest.mark.parametrize("depth", [1, DEEPEST, DEEPEST + 1])
def test_values_of_some_depth_are_read_and_deeper_ones_are_not(depth):
    text = "[" * depth + "]" * depth
    if depth <= DEEPEST:
        assert decode_json(text) == decode_json_at(f"x{text}y", 1)[0] == json.loads(text)
    else:
        with pytest.raises(ValueError, match=r"^nested too deeply$"):
            decode_json(text)
    brackets = "[" * 300  # in a string
    assert decode_json(json.dumps([brackets])) == [brackets]


@pytest.mark.parametrize("text", ["NaN", "-Infinity"])
def test_constants_are_read_or_refused(text):
    assert decode_json(text) != 0
    with pytest.raises(ValueError, match="is not JSON"):
        decode_json(text, constants=False)


@deep
def test_what_is_nested_too_deeply_has_no_value(text):
    with pytest.raises(ValueError, match=r"^nested too deeply$"):
        FunctionCall("a", "search", text).parsed()
    assert wire.sendable_object(text) == {"malformed": text}
    assert call_arguments(text) == {"unreadable": text}
    for body in (text, f'{{"usage": {text}'):
        reply = {}
        with pytest.raises(BadReply, match="not a JSON object"):
            wire.read_body(body.encode(), reply, "m", str)
        assert reply == ({"usage": None} if body.startswith("{") else {})
    assert read_error(text).codes == ""
    assert call_in_text(f'{{"name": "search", "arguments": {text}}}') is None
    assert list(json_values(text)) == []
    assert read_verdict(CASE, Turn(text=text)).error == "unreadable"
    assert verdict_in_text(CASE, f'{{"correct": {text}}}').error == "unreadable"
    assert docids_shown(text) == []


@deep
def test_a_file_that_is_nested_too_deeply_is_refused(text, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{text}\n")
    refused("a.jsonl is damaged: nested too deeply", read_json, path)
    assert read_record(path) == {}
    refused("a.jsonl:1 ", list, rows(path, AnswersRow))
    with pytest.raises(ValueError, match="line 1 is not a JSON object"):
        read_json_lines(path)
    refused("line 1 of .* is not JSON", lambda: FileScorer(str(path)).fingerprint)
    path.write_text(f'{{"samples": [{text}]}}')
    refused("nested too deeply", list, inspect_ai.read(path))
    path.write_text(f'{{"format": {text}\n')
    refused("is damaged", read_outcome, path)
    with writer_lock(path):  # whose text names no holder
        pass


@lone
def test_what_enters_is_valid_unicode(text, valid, tmp_path):
    values = {text: [text, {"a": text}]}
    clean = {valid: [valid, {"a": valid}]}
    assert decode_json(json.dumps(values)) == decode_json(json.dumps(values).encode()) == clean
    assert decode_json_at(json.dumps(values), 0)[0] == clean
    call = FunctionCall(text, text, json.dumps(values))
    assert (call.id, call.name, call.parsed()) == (valid, valid, clean)
    turn = Turn(text=text, reasoning=text, provider=values)
    assert (turn.text, turn.reasoning, turn.provider) == (valid, valid, clean)
    reply = {}
    wire.read_body(json.dumps(values).encode(), reply, "m", str)
    assert reply == clean
    assert json.loads(dump_json(values).encode()) == clean
    path = tmp_path / "log.jsonl"
    log = JsonLinesLog(path)
    log.append(values)
    log.close()
    assert read_json_lines(path) == [clean]
    path.write_text(json.dumps(values))
    assert read_json(path) == clean
