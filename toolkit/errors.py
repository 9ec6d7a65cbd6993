"""The one error that a user is meant to read."""


class InputError(Exception):
    """Bad input, told in one line: what came, what is valid, what to do next.

    Entry points print it without a traceback and leave with exit code 2; in other code it is an
    ordinary exception. Anything that is not an `InputError` is a defect and keeps its traceback.
    """

    def __init__(self, what: str, *, valid: str = "", do: str = "") -> None:
        parts = [what, f"valid: {valid}" if valid else "", do]
        super().__init__(" ".join(_sentence(part) for part in parts if part))


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    return line if line.endswith(("?", "...")) else line.rstrip(". ") + "."
