"""What a command line overrides, and what must not stand there: secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, QuotedString
from hydra.errors import HydraException

from experiments.settings import key_of, override_parser
from toolkit.errors import InputError
from toolkit.masking import MASK, VARIABLE, secrets_in


def refuse_secrets(overrides: Iterable[str]) -> None:
    """`InputError` for the first override that holds a secret, by its key or by a key inside its
    value, with the environment variable to use instead. The value is not repeated. A reference to
    the environment, `'${oc.env:NAME}'`, is none."""
    texts = [text for text in overrides if "=" in text and not text.startswith("-")]
    for text in texts:
        key, value = key_of(text), _value(text)
        if MASK not in text and not list(secrets_in(value, key)):
            continue
        if key.endswith("key_env"):
            raise InputError(
                f"{key} is not the name of an environment variable",
                valid="capital letters, digits and underscores, such as OPENAI_API_KEY",
                do="export the key under such a name, and give that name",
            )
        raise InputError(
            f"{key} would put a secret on the command line, which process lists, histories and run "
            "folders keep",
            do=_instead(key, texts),
        )


def _value(text: str) -> Any:
    """The plain value of an override; all the values of a sweep; the text where it has no value."""
    try:
        return _plain(override_parser().parse_override(text).value())
    except (HydraException, NotImplementedError):
        return text  # Hydra itself says what is wrong with it


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, ChoiceSweep):
        return [_plain(inner) for inner in value.list]
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _instead(key: str, overrides: Iterable[str]) -> str:
    group, last = key.partition(".")[0], key.rpartition(".")[2]
    variable = re.sub(r"\W+", "_", last).strip("_").upper()
    if variable in (last, "HF_TOKEN"):
        return f"export {variable}=... in the shell that starts the run, which hands it on"
    if not group.endswith("llm"):
        return f"export {variable}=... and write {key}='${{oc.env:{variable}}}'"
    named = dict(text.split("=", 1) for text in overrides).get(f"{group}.key_env", "")
    if not VARIABLE.fullmatch(named):
        named = "VLLM_API_KEY" if ".server." in key else f"{group.upper()}_API_KEY"
    return f"export {named}=... in the shell that starts the run, and set {group}.key_env={named}"
