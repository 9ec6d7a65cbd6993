"""From a group's composed option to a live object: its arguments are checked against its signature,
and a language model's price against the budget."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.utils import _locate
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import ChatModel
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.llm.server import Servers
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.search.session import SearchTool

_SCALARS = (bool, int, float, str)
_WEIGHTS = "weights.json"


def make(config: DictConfig) -> Any:
    """Instantiate one group's option: what its `_target_` gives, or a partial of it.

    `InputError` for an argument that the target does not take, a value of another type than its
    signature says, and whatever the target itself refuses.
    """
    check_arguments(config)
    try:
        return instantiate(config)
    except InstantiationException as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise


def declares(option: DictConfig, name: str) -> bool:
    """Whether what an option gives declares `name`, such as `needs_llm`, to be true. It is made
    only where its class does not tell."""
    target = _called(option)
    if inspect.isclass(target):
        value = getattr(target, name, False)
        if isinstance(value, bool):
            return value
    return bool(getattr(make(option), name, False))


def make_interface(config: DictConfig) -> SearchTool:
    """The search tool of an option; `InputError` if it is anything else."""
    interface = make(config)
    if not isinstance(interface, SearchTool):
        raise InputError(
            f"tool={config._target_} gives no search tool",
            valid="a subclass of soundingline.toolkit.search.SearchTool, without _partial_",
            do="name such a class as _target_",
        )
    return interface


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


def check_price(config: DictConfig, role: str, price: Price, group: str) -> None:
    """`InputError` where the budget caps what the role may spend and the price that the `group`'s
    option has for its model is unknown."""
    budget = make(config.budget)
    ledger = Ledger(cap=budget.run_dollars, question_cap=budget.dollars)
    ledger.check_price(role, price, f"{group}.price.input and {group}.price.output")


def stage_model(config: DictConfig, group: str) -> LanguageModel:
    """The stage's own language model, else the agent's."""
    own = f"{group}_llm"
    llm = language_model(config, own) or language_model(config, "llm")
    if llm is None:
        raise InputError(
            f"the {group} asks a language model, and none is chosen",
            do=f"choose one for it: llm@{own}=... (or llm=..., which it shares)",
        )
    check_price(config, group, llm.price, own if config[own] else "llm")
    return llm


def check_arguments(config: DictConfig) -> None:
    """Hold an option's values against the signature of its target, and likewise those of the
    options that are among them."""
    values = settings(config)
    for word in ("_target_", "_partial_", "_convert_"):
        values.pop(word, None)
    group = _group(config)
    called = _called(config)
    parameters = inspect.signature(called).parameters
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    unknown = sorted(set(values) - set(parameters))
    if unknown and not takes_any:
        raise InputError(
            f"{group} has no argument {', '.join(unknown)}", valid=", ".join(parameters)
        )
    # Inherited fields of a dataclass are resolved in the module of the class that declares them.
    initializer = inspect.isclass(called) and not dataclasses.is_dataclass(called)
    hints = typing.get_type_hints(called.__init__ if initializer else called)
    for name, value in values.items():
        if not fits(value, hints.get(name, Any)):
            wanted = _type_name(parameters[name].annotation)
            shown = redact(value, name)
            raise InputError(f"{group}.{name}={shown!r}", valid=f"a value of type {wanted}")
        part = config.get(name)
        if isinstance(part, DictConfig) and "_target_" in part:
            check_arguments(part)


def _called(option: DictConfig) -> Any:
    """What an option names as `_target_`; `InputError` where there is nothing of that name. What a
    module lacks itself is its defect, and keeps its traceback."""
    target = _target(option)
    if not all(target.split(".")):
        raise _no_such(option, target)
    try:
        return _locate(target)  # `hydra.utils.get_object` logs what it raises
    except ImportError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if isinstance(cause, AttributeError) or f"{target}.".startswith(f"{missing}."):
            raise _no_such(option, target) from None
        raise


def _no_such(option: DictConfig, target: str) -> InputError:
    return InputError(
        f"{_group(option)}._target_={target} names nothing that can be imported",
        do="check its spelling, and that Python finds its package (PYTHONPATH)",
    )


def _type_name(annotation: Any) -> str:
    """As it is written: `int`, `list[str]`, `float | None`."""
    if inspect.isclass(annotation) and not typing.get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("'", "")


def _target(option: DictConfig) -> str:
    target = option.get("_target_")
    if target is None:
        do = "choose one of the options of its group"
        raise InputError(f"{_group(option)} has no _target_", do=do)
    return str(target)


def _group(option: DictConfig) -> str:
    return str(option._get_full_key(None) or "an option")


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is of an annotated scalar type (or a union with one). An int is a
    float, a bool is no number, a scalar is no sequence, and null is only what may be None; other
    annotations that are no scalars are left to the target."""
    origin = typing.get_origin(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return any(fits(value, option) for option in typing.get_args(hint))
    if inspect.isclass(origin) and issubclass(origin, Sequence) and isinstance(value, _SCALARS):
        return False
    if value is None:
        return hint in (types.NoneType, Any, object)
    if hint is types.NoneType:
        return False
    if hint not in _SCALARS:
        return True
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def settings(config: DictConfig) -> dict[str, Any]:
    """The group's resolved plain values."""
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if not isinstance(values, Mapping):
        raise InputError(f"a group came as {values!r}", valid="an option with a _target_")
    return {str(key): value for key, value in values.items()}


# A sweep's, in the process that runs its cells. They end with the sweep (`end_servers`), or else
# with the process.
_OF_SWEEP = Servers()


@contextmanager
def servers_of_run(multirun: bool) -> Iterator[Servers]:
    """The servers that a run may share: its own, which end with the block, or those of the sweep
    that it belongs to."""
    if multirun:
        yield _OF_SWEEP
        return
    with Servers() as servers:
        yield servers


def end_servers() -> None:
    """End those that cells of a sweep have left running for each other."""
    _OF_SWEEP.close()


@contextmanager
def running(
    llm: LanguageModel | None, log: Path, servers: Servers | None = None
) -> Iterator[Mapping[str, ChatModel]]:
    """`model`, ready to be asked, as long as the block; nothing without a model. A server that we
    start writes to `log`; `servers` are those that run already. `Unreachable` where there is no
    connection to its server, so that no question waits for one."""
    if llm is None:
        yield {}
        return
    with llm.running(log, servers) as model:
        getattr(model, "reach", lambda: None)()
        yield {"model": model}
