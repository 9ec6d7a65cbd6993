"""Secrets are recognised by their names, at any depth, and nothing else is."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from soundingline.toolkit.redaction import REDACTED, find_secrets, is_secret_key, redact

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
