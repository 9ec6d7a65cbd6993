"""The error for a user's mistakes, and checks of values from outside."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeGuard, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M")
T = TypeVar("T")
RUNTIME = "runtime"
Runtime = Annotated[T, RUNTIME]
"""The type of an argument that says where, how fast or for how much money something is computed,
and so changes no result: `threads: Runtime[int] = 1`. A run may be resumed with another value."""

FILE = "file"
FileName = Annotated[T, FILE]
"""The type of an argument that names a file or a folder, of which the last part counts alone: what
was moved is the same, and its content has a fingerprint of its own."""


class RuntimeKeys(NamedTuple):
    """The same of single keys of an argument that is a mapping, as metadata of its annotation."""

    names: frozenset[str]


class InputError(Exception):
    """Bad input, described in one line: what was received, what is valid, what to do next. The
    commands print it without a traceback and exit with code 2. Any other exception is a defect.

    Attributes:
        shared_cause: What would end other commands in the same way, such as `no connection to
            <host>`. A sweep prints it once.
    """

    shared_cause = ""

    def __init__(self, what: str, *, valid: str = "", do: str = "") -> None:
        parts = [what, f"valid: {valid}" if valid else "", do]
        super().__init__(" ".join(_sentence(part) for part in parts if part))


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    return line if line.endswith(("?", "...")) else line.rstrip(". ") + "."


_SIMILAR = 0.75  # at least, of a name that is offered: `tuen` and `tune`, not `bm25` and `bm25_rm3`
_DEPTH = "retriever.depth"
# Names of PyTerrier and Pyserini, in lower case, with what we call the same.
_ELSEWHERE = {
    **{"num_results": _DEPTH, "hits": _DEPTH, "k": _DEPTH},
    **{"controls": "retriever.k1 and retriever.b", "k1": "retriever.k1", "b": "retriever.b"},
    **{"wmodel": "retriever=bm25_default", "bm25": "retriever=bm25_default"},
    **{"qld": "retriever=ql", "dirichletlm": "retriever=ql", "rm3": "retriever=bm25_rm3"},
    **{"fb_terms": "retriever.fb_terms", "fb_docs": "retriever.fb_docs"},
    "contents": "the field text of corpus.jsonl",
}


def our_name(name: str, key: str = "") -> str:
    """What is called otherwise in PyTerrier or Pyserini, in a sentence with our name for it; empty
    for other names, and for one that is named like the `key` where it was found.

    Example:
        >>> our_name("num_results")
        'num_results is retriever.depth here'
    """
    ours = _ELSEWHERE.get(name.lower(), key)
    return "" if ours == key else f"{name} is {ours} here"


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`did you mean <prefix>x?` for the known name that is nearest to an unknown one, or means the
    same as in PyTerrier and Pyserini; empty if none is near.

    Example:
        >>> did_you_mean("dept", ["depth", "index"])
        'did you mean depth?'
    """
    names = {other.lower(): other for other in known}
    ours = _ELSEWHERE.get(name.lower(), "").rpartition(".")[2]
    close = [ours] if ours in names else get_close_matches(name.lower(), names, 1, _SIMILAR)
    return f"did you mean {prefix}{names[close[0]]}?" if close else ""


def check_argument_names(function: Callable[..., Any], arguments: Iterable[str]) -> None:
    """Raise a `TypeError` with the nearest valid name for a keyword argument that a function or a
    constructor does not have."""
    parameters = inspect.signature(function).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    for name in arguments:
        if name not in parameters:
            what = f"{function.__name__} has no argument {name!r}"
            do = did_you_mean(name, parameters)
            raise TypeError(str(InputError(what, valid=", ".join(parameters), do=do)))


def check_call(function: F) -> F:
    """Check the keyword arguments of each call by `check_argument_names`."""

    @wraps(function)
    def checked(*values: Any, **arguments: Any) -> Any:
        check_argument_names(function, arguments)
        return function(*values, **arguments)

    return checked  # type: ignore[return-value]


def parse(
    model: type[M] | TypeAdapter[M], data: Any, *, where: object, do: str = "", strict: bool = False
) -> M:
    """`data` (plain values, such as those of `decode_json`) checked and converted by pydantic.

    Args:
        model: any type that pydantic can check, or a `TypeAdapter`. A `TypedDict` must be that of
            `typing_extensions`.
        data: the values.
        where: where they come from, such as a file and a line, for the error message.
        do: what the user can do about bad data, for the error message.
        strict: refuse values that need a conversion, such as the string of a number, and infinite
            numbers. A list is refused for a tuple, but not for a `NamedTuple`.

    Raises:
        InputError: with the place of the first misfit within the data, and never a text of the
            data, which may be confidential.

    Example:
        >>> parse(dict[str, int], {"a": "1"}, where="x.json")
        {'a': 1}
        >>> parse(dict[str, int], {"a": []}, where="x.json")
        Traceback (most recent call last):
        soundingline.toolkit.errors.InputError: x.json: a is an empty list. valid: a valid integer.
    """
    try:
        return _validator(model, strict)(data)  # type: ignore[arg-type, no-any-return]
    except ValueError as error:
        from pydantic import ValidationError

        if not isinstance(error, ValidationError):
            raise
        misfits = error.errors(include_url=False)
        first, more = misfits[0], len(misfits) - 1
        place = ".".join(map(str, first["loc"][1 if strict else 0 :]))
        valid = ""
        if first["type"] == "missing":
            what = f"{where} has no field {place!r}"
            if isinstance(first["input"], dict) and first["input"]:
                valid = f"its fields: {', '.join(map(str, first['input']))}"
        elif first["type"] == "value_error":  # of a validator of ours
            what = f"{where}: {f'{place}: ' if place else ''}{first['ctx']['error']}"
        else:
            what = f"{where}: {f'{place} is ' if place else ''}{_received(first['input'])}"
            valid = first["msg"].removeprefix("Input should be ")
            valid = valid[:1].lower() + valid[1:]
        what += f" (and {more} more)" if more else ""
        raise InputError(what, valid=valid, do=do) from None


@cache
def _validator(model: Any, strict: bool) -> Callable[[Any], Any]:
    # Imported here, so that a command that reads no such data starts without it.
    from pydantic import ConfigDict, TypeAdapter

    if not strict:
        return (model if isinstance(model, TypeAdapter) else TypeAdapter(model)).validate_python
    # A configuration is not for a TypedDict itself, but for one inside of a list.
    within = TypeAdapter(list[model], config=ConfigDict(strict=True, allow_inf_nan=False))
    return lambda data: within.validate_python([data])[0]


def _received(value: Any) -> str:
    """A value in words, without its texts."""
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)[:40]
    kinds: dict[type, str] = {str: "string", list: "list", tuple: "list", dict: "object"}
    kind = kinds.get(type(value), type(value).__name__)
    return f"an empty {kind}" if kind in kinds.values() and not value else f"a value of type {kind}"


def is_number(value: object) -> TypeGuard[float]:
    """Whether a plain value (of JSON or YAML) is a finite number. `True` is not a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)


def check_int(
    name: str, value: object, *, ge: int = 1, le: int | None = None, do: str = ""
) -> None:
    """Raise an `InputError` with the `name` of the setting unless its value is a whole number from
    `ge` to `le`, both included. Integers of NumPy are valid; `True` and `2.0` are not."""
    integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not (integer and ge <= value and (le is None or value <= le)):  # type: ignore[operator]
        bounds = f"{ge} or more" if le is None else f"{ge} to {le}"
        raise InputError(f"{name}={value!r}", valid=f"a whole number, {bounds}", do=do)


def check_number(
    name: str,
    value: object,
    *,
    ge: float = 0,
    gt: float | None = None,
    le: float = math.inf,
    do: str = "",
) -> None:
    """Raise an `InputError` with the `name` of the setting unless its value is a finite number from
    `ge` to `le`, both included, or above `gt` instead. Numbers of NumPy are valid; `True` is not.
    """
    real = isinstance(value, Real) and not isinstance(value, bool)
    least = ge if gt is None else gt
    inside = real and _is_finite(value) and least <= value <= le  # type: ignore[arg-type,operator]
    if not inside or value == gt:
        lower = f"{ge} or more" if gt is None else f"above {gt}"
        upper = "finite" if le == math.inf else f"at most {le}"
        raise InputError(f"{name}={value!r}", valid=f"{lower}, {upper}", do=do)


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise an `InputError` unless the weight of each term is finite and 0 or more."""
    for term, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise InputError(f"weight {weight} of term '{term}'", valid="0 or more, finite")


def _is_finite(value: Real | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
