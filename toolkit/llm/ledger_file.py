"""A run's ledger on disk, so that no start of a run forgets what an earlier one has spent."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from toolkit.checks import is_number
from toolkit.errors import InputError
from toolkit.files import write_json
from toolkit.journal import Journal, read_journal
from toolkit.llm import accounts
from toolkit.llm.accounts import ROLES, Account
from toolkit.llm.ledger import Ledger

Row = dict[str, Any]
_TEXTS = ("started", "id")
_BY_ROLE = ("known_dollars", "dearest")
_ACCOUNT = {"role", "qid"}  # whose account a line belongs to
_COUNTS = {field.name for field in fields(Account)}


@contextmanager
def ledger_on_record(
    path: Path, *, cap: float | None = None, question_cap: float | None = None
) -> Iterator[Ledger]:
    """The ledger of one start of a run, for the block; caps as in `Ledger`.

    `path` (`ledger.json`) has one row for each start that made requests. Beside it, `ledger.jsonl`
    has one line for each request of the start under way, written when the request ends: kill -9
    loses only the requests that had no reply yet. The lines become a row when the block ends, or
    when the run is started again. What earlier starts have spent counts towards `cap`.

    In a row, `known_dollars` are by role and leave out the `unpriced` replies, whose money is not
    known; `dollars` is there only where all of it is known. `dearest` is the dearest request by
    role, and `cap` what the start was allowed.

    The caller holds the run's lock. `InputError` where either file cannot be read, and where there
    is a cap but a row of an earlier version does not tell what was spent.
    """
    record = _Record(path, cap)
    spent = sum(_known_dollars(path, row, capped=cap is not None) for row in record.rows)
    ledger = Ledger(
        cap=cap,
        question_cap=question_cap,
        spent_before=spent,
        unpriced_before=sum(int(row.get("unpriced", 0)) for row in record.rows),
        dearest=_dearest(record.rows),
        enter=record.enter,
    )
    try:
        yield ledger
    finally:
        record.close(ledger)


def last_cap(path: Path, otherwise: float | None = None) -> float | None:
    """The cap in dollars of the newest start in a run's `ledger.json`, None where it had none;
    `otherwise` where no start tells. `InputError` for a file that cannot be read."""
    rows = _rows(path)
    return rows[-1].get("cap", otherwise) if rows else otherwise


def spent(path: Path) -> dict[str, float]:
    """What all starts of a run took together, as `accounts.flat` has it without roles: calls,
    tokens, seconds; tokens and dollars only where every start tells them."""
    rows = [{name: row[name] for name in row if name in _COUNTS} for row in _rows(path)]
    shared = set.intersection(*map(set, rows)) if rows else set()
    return {name: math.fsum(row[name] for row in rows) for name in sorted(shared)}


class _Record:
    """The two files. `rows` are the earlier starts, a killed one included."""

    def __init__(self, path: Path, cap: float | None) -> None:
        self._path = path
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._head = {"started": started, "id": uuid4().hex[:12], "cap": cap}
        self._journal = Journal(path.with_suffix(".jsonl"), head=self._head, clear=True)
        self.rows = _rows(path)
        self._end_killed_start()

    def enter(self, role: str, qid: str, account: Account) -> None:
        """Append one request."""
        self._journal.append({"role": role, "qid": qid, **account.nonzero()})

    def close(self, ledger: Ledger) -> None:
        """Turn the lines into a row; a start without requests has none."""
        self._journal.close()
        if by_role := ledger.by_role():
            self._add(_row(self._head, by_role, ledger.dearest))

    def _end_killed_start(self) -> None:
        head, by_role, dearest = _read_lines(self._journal.path)
        # A kill between the writing of the row and the removal of the lines leaves both.
        if by_role and head["id"] not in {row.get("id") for row in self.rows}:
            self._add(_row(head, by_role, dearest))
        self._journal.path.unlink(missing_ok=True)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        write_json(self._path, {"starts": self.rows}, clear=True)
        self._journal.path.unlink(missing_ok=True)


def _row(head: Row, by_role: Mapping[str, Account], dearest: Mapping[str, float]) -> Row:
    known = {role: account.dollars for role, account in by_role.items()}
    return {**head, **accounts.flat(by_role), "known_dollars": known, "dearest": dict(dearest)}


def _known_dollars(path: Path, row: Row, *, capped: bool) -> float:
    if "known_dollars" in row:
        return math.fsum(row["known_dollars"].values())
    if "dollars" in row:
        return float(row["dollars"])
    # An earlier version left out all dollars of a role when one of its replies had none.
    roles = [role for role in ROLES if row.get(f"{role}_calls")]
    for role in roles:
        replies = row[f"{role}_calls"] - row.get(f"{role}_failed", 0)
        priced = replies - row.get(f"{role}_unpriced", 0)
        if capped and f"{role}_dollars" not in row and priced > 0:
            raise InputError(
                f"{path} does not say what the {role} spent in the start of {row['started']}, so "
                "the cap cannot be enforced",
                do=f'add "known_dollars": {{"{role}": DOLLARS}} to that row, or remove the cap',
            )
    return math.fsum(row.get(f"{role}_dollars", 0.0) for role in roles)


def _dearest(rows: list[Row]) -> dict[str, float]:
    pairs = [pair for row in rows for pair in row.get("dearest", {}).items()]
    return {role: max(price for name, price in pairs if name == role) for role, _ in pairs}


def _rows(path: Path) -> list[Row]:
    with _readable(path):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        record = json.loads(text)
        rows = record.get("starts") if isinstance(record, dict) else None
        if not isinstance(rows, list):
            raise ValueError("it has no list of starts")
        for number, row in enumerate(rows, start=1):
            _check(row, _is_row, f"start {number}")
        return rows


def _read_lines(path: Path) -> tuple[Row, dict[str, Account], dict[str, float]]:
    """The head of a killed start's lines, and its accounts and dearest requests by role."""
    with _readable(path):
        lines = read_journal(path)
        if not lines:
            return {}, {}, {}
        head, sums, dearest = lines[0], dict[str, Counter[str]](), dict[str, float]()
        _check(head, _is_head, "line 1")
        for number, line in enumerate(lines[1:], start=2):
            _check(line, _is_request, f"line {number}")
            role = line["role"]
            dearest[role] = max(dearest.get(role, 0.0), line.get("dollars", 0.0))
            total = sums.setdefault(role, Counter())
            for name in line.keys() - _ACCOUNT:
                total[name] += line[name]
        return head, {role: Account(**total) for role, total in sums.items()}, dearest


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot read the ledger {path}: {reason}",
            do="restore it from a copy; or, if its money must not count, move it away",
        ) from error


def _check(value: Any, right: Callable[[Row], bool], where: str) -> None:
    if not (isinstance(value, dict) and right(value)):
        raise ValueError(f"{where} has a missing or impossible value")


def _is_row(row: Row) -> bool:
    special = (*_TEXTS, *_BY_ROLE, "cap")
    return (
        isinstance(row.get("started"), str)
        and _is_amount(row.get("calls"))
        and _is_head({"id": "", **row})
        and all(_is_amounts(row.get(name, {})) for name in _BY_ROLE)
        and all(_is_amount(row[name]) for name in row if name not in special)
    )


def _is_head(head: Row) -> bool:
    cap = head.get("cap")
    return all(isinstance(head.get(name), str) for name in _TEXTS) and (
        cap is None or _is_amount(cap)
    )


def _is_request(line: Row) -> bool:
    return (
        line.get("role") in ROLES
        and isinstance(line.get("qid"), str)
        and _is_amount(line.get("calls"))
        and all(name in _COUNTS and _is_amount(line[name]) for name in line.keys() - _ACCOUNT)
    )


def _is_amounts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        role in ROLES and _is_amount(amount) for role, amount in value.items()
    )


def _is_amount(value: Any) -> bool:
    return is_number(value) and value >= 0
