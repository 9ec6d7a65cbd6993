"""What is refused of a command line or of `Experiment.compose`, in one line."""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from typing import Any

from hydra.errors import MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from experiments.schema import Root
from experiments.settings import key_of, missing_option
from toolkit.errors import InputError
from toolkit.llm.errors import ModelError


def one_line(error: BaseException) -> str:
    """The innermost `InputError`'s words; what a language model's server, Hydra and OmegaConf say,
    with the valid set."""
    if isinstance(error, ModelError):
        return str(InputError(str(error), do="mend it and run the same command"))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, MissingConfigException):  # an OSError too
        return missing_option(error)
    if isinstance(error, OSError):
        do = "free or change the disk, or name another folder, then run the same command"
        return str(InputError(f"{error.strerror or error}: {error.filename or 'no file'}", do=do))
    text = " ".join(str(error).split())
    override = text.removeprefix("Error merging override ")
    if override != text and (kind := _type_of(key_of(override))):
        return str(InputError(override, valid=f"a value of type {kind}"))
    if unknown := re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", text):
        return _unknown_key(error, unknown[1] or unknown[2])
    if isinstance(error, MissingMandatoryValue):
        key = getattr(error, "full_key", None) or "a value"
        return str(InputError(f"{key} has no value", do=f"give it: {key}=VALUE"))
    return text.split(" Config search path:")[0]


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


def _unknown_key(error: BaseException, key: str) -> str:
    """A mistyped group or key, with the valid ones at its place: OmegaConf names the node where it
    missed one."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    node = getattr(cause, "parent_node", None)
    key = str(getattr(cause, "full_key", None) or key)
    option, _, name = key.rpartition(".")
    top = sorted(field.name for field in dataclasses.fields(Root))
    if option.partition(".")[0] in top:
        what = f"{key!r} is no argument of the chosen {option}"
        keys = node if isinstance(node, DictConfig) else ()
        valid = sorted(str(item) for item in keys if not str(item).startswith("_"))
        close = [f"{option}.{match}" for match in difflib.get_close_matches(name, valid, n=1)]
    else:
        what, valid = f"there is no group or key {key!r}", top
        close = difflib.get_close_matches(key.partition(".")[0], top, n=1)
    do = f"did you mean {close[0]}?" if close else ""
    return str(InputError(what, valid=", ".join(valid), do=do))
