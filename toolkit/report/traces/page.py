"""The page that shows traces: the same file for every run, with no text of any."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from toolkit.report.page import templates

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
_STYLES = ("palette.css", "traces.css")
_SCRIPTS = tuple(
    f"traces{part}.js" for part in ("_unseal", "_parts", "_list", "_rounds", "_trace", "")
)


@cache
def trace_page() -> str:
    """`index.html`. Its policy lets no script and no style run but its own two, which are named by
    their hashes, and the scripts that its script asks for (`strict-dynamic`): an address that is no
    `http` belongs to no origin that a policy could name."""
    style, script = (_joined(names) for names in (_STYLES, _SCRIPTS))
    policy = (
        "default-src 'none'",
        f"script-src '{_hash(script)}' 'strict-dynamic'",
        f"style-src '{_hash(style)}'",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types data",
    )
    return (
        templates()
        .get_template("traces.html")
        .render(policy="; ".join(policy), style=style, script=script)
    )


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
