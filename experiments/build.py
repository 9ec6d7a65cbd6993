"""From a group's composed option to a live object: its arguments are checked against its signature,
and a language model's price against the budget."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from soundingline.toolkit.errors import FILE, RUNTIME, InputError, RuntimeKeys, check_int
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import AGENTS, Price
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.search.session import SearchTool

if TYPE_CHECKING:
    from soundingline.agents.base import Budget
    from soundingline.pipelines.index_folder import Shard

_WEIGHTS = "weights.json"


def make(config: DictConfig) -> Any:
    """Instantiate one group's option: what its `_target_` gives, or a partial of it.

    `InputError` for an argument that the target does not take, a value of another type than its
    signature says, and whatever the target itself refuses.
    """
    check_option(config)
    try:
        return instantiate(config)
    except InstantiationException as error:
        raised = error.__cause__
        if isinstance(raised, InputError):
            raise raised from None
        if raised is None:
            raise
        message = f"{_group(config)}: {type(raised).__name__}: {raised}"
        raise InstantiationException(message) from raised


def declares(option: DictConfig, name: str) -> bool:
    """Whether what an option gives declares `name`, such as `needs_llm`, to be true. It is made
    only where its class does not tell."""
    target = _located(option.get("_target_"), _group(option))
    if inspect.isclass(target):
        value = getattr(target, name, False)
        if isinstance(value, bool):
            return value
    return bool(getattr(make(option), name, False))


def make_search_tool(config: DictConfig) -> SearchTool:
    """The search tool of an option; `InputError` if it is anything else."""
    search_tool = make(config)
    if not isinstance(search_tool, SearchTool):
        raise InputError(
            f"tool={config._target_} gives no search tool",
            valid="a subclass of soundingline.toolkit.search.SearchTool, without _partial_",
            do="name such a class as _target_",
        )
    return search_tool


def language_model(config: DictConfig, group: str) -> LanguageModel | None:
    """The option of `llm`, `judge_llm` and the like; None where none is chosen. Weights in a file
    of ours are hashed, and their hashes kept in `paths.caches`."""
    option = config[group]
    if option is None:
        return None
    model: LanguageModel = make(option)
    if isinstance(model, LanguageModel):
        caches = config.paths.caches
        model.fingerprint_weights(Path(caches) / _WEIGHTS if caches else None)
    return model


def check_price(budget: Budget, role: str, price: Price, group: str) -> None:
    """`InputError` where the budget caps what the role may spend and the price that the `group`'s
    option has for its model is unknown."""
    ledger = Ledger(cap=budget.run_dollars, question_cap=budget.dollars)
    ledger.check_price(role, price, f"{group}.price.input and {group}.price.output")


def shard_of(config: DictConfig) -> Shard | None:
    """The shard of this process, of `indexing.shards`; None: it has none. `InputError` for numbers
    that are out of range."""
    from soundingline.pipelines.index_folder import Shard

    indexing = config.indexing
    check_int("indexing.shards", indexing.shards)
    return None if indexing.shard is None else Shard(indexing.shard, indexing.shards)


def stage_model(config: DictConfig, group: str, budget: Budget) -> LanguageModel:
    """The stage's own language model, else the agent's. `InputError` if none is chosen, or for an
    unknown price under a cap of the budget."""
    own = "llm" if group in AGENTS else f"{group}_llm"
    llm = language_model(config, own) or language_model(config, "llm")
    if llm is None:
        raise InputError(
            f"the {group} asks a language model, and none is chosen",
            do="choose one: llm=..."
            if own == "llm"
            else f"choose one for it: llm@{own}=... (or llm=..., which it shares)",
        )
    check_price(budget, group, llm.price, own if config[own] else "llm")
    return llm


def check_option(config: DictConfig) -> None:
    """Check an option's values, and those of the options among them, against the signature of its
    target. `InputError` for an argument that the target does not take, and for a value of another
    type than its annotation."""
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    for word in ("_target_", "_partial_", "_convert_"):
        values.pop(word, None)
    group = _group(config)
    target = _located(config.get("_target_"), group)
    parameters = inspect.signature(target).parameters
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    unknown = sorted(set(values) - set(parameters))
    if unknown and not takes_any:
        raise InputError(
            f"{group} has no argument {', '.join(unknown)}", valid=", ".join(parameters)
        )
    hints = _annotations(target)
    for name, value in values.items():
        argument = config.get(name)
        if isinstance(argument, DictConfig) and "_target_" in argument:
            check_option(argument)
        elif not fits(value, hints.get(name, Any)):
            annotation = parameters[name].annotation
            plain = inspect.isclass(annotation) and not typing.get_args(annotation)
            kind = annotation.__name__ if plain else str(annotation).replace("'", "")
            kind = re.sub(r"^(?:Runtime|FileName|Annotated)\[(.*?)(?:, _\w+)?\]$", r"\1", kind)
            received = f"{group}.{name}={redact(value, name)!r}"
            raise InputError(received, valid=f"a value of type {kind}")


def identifying_values(option: Any, group: str) -> Any:
    """The plain values of a group's option that can change a result: no argument that its class
    declares as `Runtime`, of a `FileName` the last part, and the same of the options among its
    arguments."""
    if not isinstance(option, Mapping):
        return option
    metadata: dict[str, tuple[Any, ...]] = {}
    if "_target_" in option:
        hints = _annotations(_located(str(option["_target_"]), group), include_extras=True)
        metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    lasting: dict[str, Any] = {}
    for name, value in option.items():
        declared = metadata.get(name, ())
        if RUNTIME in declared:
            continue
        keys = [each for each in declared if isinstance(each, RuntimeKeys)]
        if keys and isinstance(value, Mapping):
            value = {key: inner for key, inner in value.items() if key not in keys[0].names}
        if FILE in declared and isinstance(value, str):
            value = PurePath(value).name
        lasting[name] = identifying_values(value, group)
    return lasting


def _annotations(target: Any, include_extras: bool = False) -> dict[str, Any]:
    """The types of a target's arguments."""
    # Inherited fields of a dataclass are resolved in the module of the class that declares them.
    initializer = inspect.isclass(target) and not dataclasses.is_dataclass(target)
    function = target.__init__ if initializer else target
    return typing.get_type_hints(function, include_extras=include_extras)


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is valid for an annotation by pydantic's strict rules for JSON: an int
    is a float, a bool is not a number, a scalar is not a sequence. What an annotation of another
    class accepts is left to the target, but for null."""
    try:
        _adapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return False
    except PydanticUserError:  # no type of JSON
        return value is not None or type(None) in typing.get_args(hint)
    return True


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _located(target: str | None, group: str) -> Any:
    """What an option names as `_target_`; `InputError` if there is nothing of that name. An error
    of the module itself is raised with its own traceback."""
    if target is None:
        do = "choose one of the options of its group"
        raise InputError(f"{group} has no _target_", do=do)
    unknown = InputError(
        f"{group}._target_={target} names nothing that can be imported",
        do="check its spelling; a package outside the environment needs its folder in PYTHONPATH: "
        "export PYTHONPATH=<folder>",
    )
    target_object, name = None, ""
    for part in str(target).split("."):
        name = f"{name}.{part}".lstrip(".")
        if target_object is not None and hasattr(target_object, part):
            target_object = getattr(target_object, part)
        elif part and (target_object is None or inspect.ismodule(target_object)):
            try:
                target_object = import_module(name)
            except ModuleNotFoundError as error:
                if error.name and f"{target}.".startswith(f"{error.name}."):
                    raise unknown from None
                raise
        else:
            raise unknown
    return target_object


def _group(option: DictConfig) -> str:
    return str(option._get_full_key(None) or "an option")
