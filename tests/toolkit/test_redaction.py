"""Secrets are recognised by their names, and obfuscated lines follow the published scheme."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.benchmarks import CANARY, VARIABLE, obfuscated

from soundingline.pipelines.cache import ResultCache
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import JsonLinesLog, read_json_lines, write_json, write_text
from soundingline.toolkit.obfuscation import (
    MARKER,
    Canary,
    NotObfuscated,
    decrypt_lines,
    encrypt_lines,
    is_obfuscated,
    mark_obfuscated,
    read_text,
)
from soundingline.toolkit.redaction import REDACTED, find_secrets, is_secret_key, redact
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import (
    ToolCall,
    Trajectory,
    dump_trajectory,
    read_outcome,
    read_trajectory,
)

CONF = Path(__file__).resolve().parents[2] / "conf"
SECRET = [
    *("api_key", "apikey", "apiKey", "APIKey", "api-key", "x-api-key", "openai_api_key"),
    *("api_keys", "OPENAI_API_KEY", "VLLM_API_KEY", "HF_TOKEN", "hf-token", "token"),
    *("auth_token", "access_token", "Authorization", "extra_headers.Authorization"),
    *("Proxy-Authorization", "Cookie", "password", "clientSecret", "client_secret"),
    *("aws_secret_access_key", "private_key", "db_passwd", "key", "llm.settings.extra.api_key"),
    *("api_key.value", "passphrase", "credentials", "API_KEY_2"),
]
PLAIN = [
    *("max_output_tokens", "batch_tokens", "max_tokens", "prompt_token_details", "output_tokens"),
    *("key_env", "token_env", "tokenizer", "pad_token", "eos_token", "mask_token", "true_token"),
    *("keyword", "keys", "tokens", "monkey", "author", "key_field", "secret_name", "password_file"),
    *("usage_input_tokens", "k1", "ssl-keyfile", "", ".", "base_url", "tokens_per_second"),
]


def test_names_of_secrets_are_recognised_and_no_others():
    assert [name for name in SECRET if not is_secret_key(name)] == []
    assert [name for name in PLAIN if is_secret_key(name)] == []
    options = {path: yaml.safe_load(path.read_text("utf-8")) for path in CONF.rglob("*.yaml")}
    assert len(options) > 50
    assert [path for path, option in options.items() if redact(option) != option] == []


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("+llm.settings.extra.api_key=sk-1,sk-2", "+llm.settings.extra.api_key=***"),
        ("+llm.settings.extra={api_key: sk-1, n: 2}", "+llm.settings.extra={api_key: ***, n: 2}"),
        ('{"api_key": "sk 1", "top_k": 20}', '{"api_key": ***, "top_k": 20}'),
        ("Authorization: Bearer sk-1", "Authorization: ***"),
        ("Bearer 0123456789abcdef", "Bearer ***"),
        ("https://user:pass@host/v1?api_key=sk-1&n=2", "https://user:***@host/v1?api_key=***&n=2"),
        ("--api-key=sk-1", "--api-key=***"),
        (
            ["vllm", "--api-key", "sk-1", "--port", "80"],
            ["vllm", "--api-key", "***", "--port", "80"],
        ),
        *(({"key_env": value}, {"key_env": "***"}) for value in ("sk-live-1", "lower_case", 7)),
        *(
            (value, value)
            for value in (
                "api_key=${oc.env:MY_KEY}",
                "llm.key_env=OPENAI_API_KEY",
                "llm.settings.max_output_tokens=8192",
                "http://127.0.0.1:8000/v1?n=2",
                "Basic search, explained",
                "retriever.k1=0.9",
                {"key_env": "MY_KEY"},
                {"api_key": None, "auth": False, "password": "", "token": "${oc.env:MY_TOKEN}"},
            )
        ),
    ],
)
def test_secrets_are_masked_and_the_rest_stays(value, wanted):
    assert redact(value) == wanted


leaves = st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "b c", "0.9", "/x/y"])
plain_names = st.sampled_from([name for name in PLAIN if name and not name.endswith("_env")])
plain = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(plain_names, inner), max_leaves=10
)
PLANTED = "planted-0123456789abcdef"


@given(
    value=plain,
    path=st.lists(st.sampled_from(["list", *PLAIN[:5]]), max_size=4),
    name=st.sampled_from(SECRET),
    form=st.sampled_from(["{}", "Bearer {}", "x {} y"]),
)
def test_a_secret_is_masked_at_any_depth_and_nothing_around_it(value, path, name, form):
    assert redact(value) == value and list(find_secrets(value)) == []
    planted = {name: form.format(PLANTED), "beside": value}
    for step in path:
        planted = [value, planted] if step == "list" else {step: planted}
    safe = redact(planted)
    assert PLANTED not in json.dumps(safe) and REDACTED in json.dumps(safe)
    assert redact(safe) == safe
    (secret,) = find_secrets(planted)
    assert PLANTED in secret


# Obfuscated lines: the published scheme, marked folders, and an absent or wrong canary.


TEXT = "The keeper of the light at Brel carved oak benches."
CALL = ToolCall("search", {"query": TEXT}, output=TEXT * 50, ranking=("d1",))
TRAJECTORY = Trajectory("q1", TEXT, "completed", calls=(CALL,))


@pytest.fixture(autouse=True)
def canary(monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)


@pytest.fixture
def sealed(tmp_path):
    mark_obfuscated(tmp_path / "sealed")
    return tmp_path / "sealed"


@given(st.text())
def test_the_scheme_is_the_published_one_and_texts_come_back(text):
    content = text.encode("utf-8", "replace")
    text = content.decode()
    assert Canary(CANARY).encrypt(text) == obfuscated(text)
    assert Canary(CANARY).decrypt(obfuscated(text)) == text
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, CANARY)
        assert decrypt_lines(encrypt_lines(content), Path("x")) == content


@pytest.mark.parametrize("broken", ["no base64!", obfuscated(TEXT)[:-1], obfuscated(TEXT, "other")])
def test_damaged_texts_and_those_of_another_canary_are_refused(broken):
    with pytest.raises(NotObfuscated):
        Canary(CANARY).decrypt(broken)


def test_a_marked_folder_obfuscates_all_below_it_but_what_is_declared_clear(sealed):
    deep, outside = sealed / "a" / "b.json", sealed.parent / "outside.txt"
    write_json(deep, {"question": TEXT})
    write_text(sealed / "clear.txt", TEXT, clear=True)
    write_text(outside, TEXT)
    assert TEXT.encode() not in deep.read_bytes()
    assert json.loads(read_text(deep)) == {"question": TEXT}
    assert (sealed / "clear.txt").read_text() == TEXT == outside.read_text()
    assert is_obfuscated(deep) and not is_obfuscated(outside)


def test_a_folder_is_obfuscated_with_one_canary(sealed, monkeypatch):
    mark_obfuscated(sealed)
    assert CANARY not in (sealed / MARKER).read_text()
    monkeypatch.setenv(VARIABLE, "another canary")
    with pytest.raises(InputError, match="cannot be decrypted with the canary"):
        mark_obfuscated(sealed)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(InputError, match=f"{VARIABLE} is not set"):
        mark_obfuscated(sealed / "new")
    assert not (sealed / "new").exists()


def test_a_log_and_a_cache_in_an_obfuscated_folder_hold_no_text(sealed):
    path = sealed / "verdicts.jsonl"
    for number in range(2):
        log = JsonLinesLog(path, head={"head": TEXT})
        log.append({"reason": f"{TEXT} {number}"})
        log.close()
    with path.open("ab") as stream:
        stream.write(b"~sealed:AAAA")  # what a killed process leaves
    rows = [{"head": TEXT}, {"reason": f"{TEXT} 0"}, {"reason": f"{TEXT} 1"}]
    assert read_json_lines(path) == rows
    cache = ResultCache(sealed / "q2q.sqlite")
    cache.put([(("prompt", TEXT), {"text": TEXT}), (("pair",), -2.25)])
    again = ResultCache(sealed / "q2q.sqlite")
    assert again.get([("prompt", TEXT), ("pair",)]) == [{"text": TEXT}, -2.25]
    assert TEXT.encode() not in b"".join(path.read_bytes() for path in sealed.iterdir())


def test_a_trajectory_and_its_outcome_are_read(sealed):
    path = sealed / "q1.json"
    write_text(path, dump_trajectory(TRAJECTORY))
    assert TEXT.encode() not in path.read_bytes()
    assert read_trajectory(path) == TRAJECTORY
    assert read_outcome(path).status == "completed"
    path.write_bytes(path.read_bytes().rpartition(b"\n~sealed:")[0])
    with pytest.raises(InputError, match="is damaged"):
        read_outcome(path)


@pytest.mark.parametrize("value", ["", "another canary"])
def test_an_obfuscated_run_is_not_read_without_its_canary(tmp_path, monkeypatch, value):
    folder = RunFolder(tmp_path / "run")
    with folder.writing({"sealed": True, "fingerprints": {}}):
        folder.write(TRAJECTORY)
    assert folder.manifest()["sealed"] is True
    monkeypatch.setenv(VARIABLE, value)
    for reading in (folder.statuses, lambda: folder.read("q1"), lambda: [*folder.trajectories()]):
        with pytest.raises(InputError, match=VARIABLE) as caught:
            reading()
        assert "delete" not in str(caught.value), "the file is not damaged"
        assert CANARY not in str(caught.value)
