"""Question ids as file names: reversible, injective on case-insensitive file systems too, and
unable to leave their folder."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

# File systems allow 255 bytes a name; `.json` and a temporary file's affixes need room beside it.
_LONGEST = 180
_KEPT = 140


def escape_qid(qid: str) -> str:
    """A file name (without suffix) of lower-case ASCII letters, digits and `- _ . ~ % + =`.

    Characters outside `A-Za-z0-9_.-~` become `%xx` of their UTF-8 bytes, an upper-case letter
    becomes `+` and its lower-case one (so that `A1` and `a1` differ where the file system folds
    case), a leading dot is escaped, the empty id is `%`. A name over 180 characters keeps 140 of
    them and ends in `=` and 32 hexadecimal digits of the id's SHA-256.
    """
    name = re.sub(
        r"%[0-9A-F]{2}|[A-Z]",
        lambda match: match[0].lower() if match[0][0] == "%" else f"+{match[0].lower()}",
        quote(qid, safe="", errors="surrogatepass"),
    )
    if name.startswith("."):
        name = "%2e" + name[1:]
    if len(name) > _LONGEST:
        digest = hashlib.sha256(qid.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        name = f"{name[:_KEPT]}={digest}"
    return name or "%"


def unescape_qid(name: str) -> str | None:
    """The id that `escape_qid` was given; None for a shortened name, whose file tells the id."""
    if "=" in name:
        return None
    if name == "%":
        return ""
    upper = re.sub(r"\+([a-z])", lambda match: match[1].upper(), name)
    return unquote(upper, errors="surrogatepass")


def question_of(name: str, repeat: int) -> str:
    """The question's own id of what `repeat_id` gives."""
    return name if repeat == 1 else name.removesuffix(f"#repeat{repeat}")


def repeat_id(qid: str, repeat: int) -> str:
    """What a question is called where all its repeats meet, such as on a ledger: the first, repeat
    1, has the question's own id."""
    return qid if repeat == 1 else f"{qid}#repeat{repeat}"
