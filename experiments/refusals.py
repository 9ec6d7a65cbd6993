"""What is refused of a command line or of `Experiment.compose`, in one line."""

from __future__ import annotations

import dataclasses
import re
import traceback
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, QuotedString
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException, ValidationError

from soundingline.experiments.config import (
    ROOTS,
    Root,
    key_of,
    missing_option,
    no_such_key,
    override_parser,
    unknown_key,
)
from soundingline.toolkit.console import users_frame
from soundingline.toolkit.errors import InputError, did_you_mean, our_name
from soundingline.toolkit.llm.errors import ModelError, Unreachable
from soundingline.toolkit.redaction import REDACTED, VARIABLE, find_secrets


def refuse_secrets(overrides: Iterable[str], config: DictConfig | None = None) -> None:
    """`InputError` for the first override, and then for the first value of a configuration, that
    holds a secret, by its key or by its form, with the environment variable to use instead. The
    value is not repeated. A reference to the environment, `'${oc.env:NAME}'`, is not a secret."""
    texts = [text for text in overrides if "=" in text and not text.startswith("-")]
    secret_keys = [
        key_of(text)
        for text in texts
        if REDACTED in text or list(find_secrets(_value(text), key_of(text)))
    ]
    if config is not None:
        raw = OmegaConf.to_container(config, resolve=False)
        names = (name.rpartition("sweeper.params.")[2] for name, _ in find_secrets(raw))
        # Hydra joins the overrides, which are checked above, in the name of a folder.
        secret_keys += [name.lstrip("+~") for name in names if name != "hydra.job.override_dirname"]
    for key in secret_keys:
        if key.endswith("key_env"):
            raise InputError(
                f"{key} is not the name of an environment variable",
                valid="capital letters, digits and underscores, such as OPENAI_API_KEY",
                do="export the key under such a name, and give that name",
            )
        raise InputError(
            f"{key} would put a secret where process lists, histories and run folders keep it",
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
    if key == "engine.url":
        return (
            "write the address without them; engine=opensearch reads OPENSEARCH_USERNAME and "
            "OPENSEARCH_PASSWORD of the environment"
        )
    variable = re.sub(r"\W+", "_", last).strip("_").upper()
    if variable in (last, "HF_TOKEN"):
        return f"export {variable}=... in the shell that starts the run, which hands it on"
    if not group.endswith("llm"):
        return f"export {variable}=... and write {key}='${{oc.env:{variable}}}'"
    named = dict(text.split("=", 1) for text in overrides).get(f"{group}.key_env", "")
    if not VARIABLE.fullmatch(named):
        named = "VLLM_API_KEY" if ".server." in key else f"{group.upper()}_API_KEY"
    return f"export {named}=... in the shell that starts the run, and set {group}.key_env={named}"


def refusal_line(error: BaseException) -> str:
    """The innermost `InputError`'s words; what a language model's server, Hydra and OmegaConf say,
    with the valid set."""
    if isinstance(error, ModelError):
        do = "correct it"
        if isinstance(error, Unreachable):
            do = "start the server, or set base_url to one that runs"
        return str(InputError(str(error), do=f"{do}, and run the same command"))
    for cause in _causes(error):
        if isinstance(cause, InputError):
            return str(cause)
    if isinstance(error, MissingConfigException):  # an OSError too
        return missing_option(error)
    if isinstance(error, OverrideParseException):
        return _unreadable(error)
    if isinstance(error, OSError):
        do = "free or change the disk, or name another folder, then run the same command"
        return str(InputError(f"{error.strerror or error}: {error.filename or 'no file'}", do=do))
    text = " ".join(str(error).split())
    raised = error.__cause__
    if isinstance(raised, ValidationError) and (kind := _type_of(raised.full_key or "")):
        value = "null" if raised.value is None else raised.value
        return str(InputError(f"{raised.full_key}={value}", valid=f"a value of type {kind}"))
    if key := unknown_key(error):
        return _with_valid_keys(error, key)
    if isinstance(error, MissingMandatoryValue):
        key = getattr(error, "full_key", None) or "a value"
        return str(InputError(f"{key} has no value", do=f"give it: {key}=VALUE"))
    frame = users_frame("".join(traceback.format_exception(error)))  # of a class of the user's
    return text.split(" Config search path:")[0] + (f" ({frame})" if frame else "")


def _unreadable(error: OverrideParseException) -> str:
    """An override that Hydra cannot read. The parser's own words list its grammar, those about a
    function such as `range` say what is wrong with its arguments."""
    text = " ".join(error.message.splitlines()[:-1])
    _, of_function, reason = text.partition(" while evaluating ")
    return str(
        InputError(
            f"{error.override!r}: {reason}"
            if of_function
            else f"{error.override!r} is not KEY=VALUE",
            valid="KEY=VALUE, or KEY=VALUE,VALUE with -m",
            do="write no space after a comma, and put a value with other signs into quotes: "
            "'KEY=\"VALUE\"'",
        )
    )


def shared_cause_of(error: BaseException) -> str:
    """What other cells of a sweep would meet too, such as `no connection to <host>`; else empty."""
    return next(filter(None, (getattr(each, "shared_cause", "") for each in _causes(error))), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and the chain of what it was raised from. The chain may be a cycle: OmegaConf
    raises one exception object more than once."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__


def _type_of(key: str) -> str:
    """The type of a key of the root, such as `int`; empty for a key of an option."""
    kind: Any = Root
    for part in key.split("."):
        hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        kind = hints.get(part, Any)
    if kind is Any:
        return ""
    # In Python 3.10 `list[str]` passes for a class.
    return str(kind) if typing.get_args(kind) else kind.__name__


def _with_valid_keys(error: BaseException, key: str) -> str:
    """A mistyped group or key, with the valid ones at its place: OmegaConf names the node where it
    missed one."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    node = getattr(cause, "parent_node", None)
    key = str(getattr(cause, "full_key", None) or key)
    option, _, name = key.rpartition(".")
    if option.partition(".")[0] not in ROOTS:
        return str(no_such_key(key, ROOTS))
    keys = node if isinstance(node, DictConfig) else ()
    valid = sorted(str(item) for item in keys if not str(item).startswith("_"))
    do = did_you_mean(name, valid, prefix=f"{option}.") or our_name(name, key)
    refused = f"{key!r} is not an argument of the chosen {option}"
    return str(InputError(refused, valid=", ".join(valid), do=do))
