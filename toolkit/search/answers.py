"""The three-line final answer (Explanation, Exact Answer, Confidence): reading and writing it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from toolkit.contracts import Answer, parent

_MARKS = r"[*_`#>]*"
_LABEL = r"(?P<label>explanation|exact[ _]answer|confidence)"
# At the start of a line, behind list or heading marks; elsewhere only where no line starts so.
# Marks right behind the colon close those of the label; marks before a word open the word's own.
_COLON = rf"[ \t]*{_MARKS}[ \t]*[:：](?:[*_`]+(?=\s|\Z))?"
_AT_START = re.compile(
    rf"^[ \t]*(?:[-•+]|\d+[.)])?[ \t]*{_MARKS}[ \t]*{_LABEL}{_COLON}", re.IGNORECASE | re.MULTILINE
)
_INSIDE = re.compile(rf"{_MARKS}\b{_LABEL}{_COLON}", re.IGNORECASE)
_NOTHING = re.compile(r"n\s*/\s*a\.?", re.IGNORECASE)
_NUMBER = r"(?<![\w.,-])(\d+(?:[.,]\d+)?)"
_PERCENT = re.compile(_NUMBER + r"\s*(?:%|％|per\s?cent)", re.IGNORECASE)
_RATIO = re.compile(_NUMBER + r"\s*(?:/|out\s+of)\s*(\d+(?:\.\d+)?)", re.IGNORECASE)
_PLAIN = re.compile(_NUMBER + r"(?![\w%])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RELEASED_PASSAGE = re.compile(r"(.+)_\d+")
_PREFIX = re.compile(r"(?:docid|doc|id)\s*[=:]\s*", re.IGNORECASE)


def parse_answer(text: str, known: Collection[str]) -> Answer:
    """The parts of a final answer.

    Labels may carry Markdown and stand in any order; of a repeated label, the last with content
    counts. A text without any label is all explanation. `exact` ends at the first empty line; "N/A"
    is an empty answer. `confidence` is in 0..100: a percentage, `x/y` or `x out of y`, or a number
    alone, which is a fraction if it is written with a decimal point and is at most 1; None if there
    is none in 0..100. Citations: see `find_citations`.
    """
    parts = _sections(text)
    exact = _unmarked(re.split(r"\n\s*\n", parts.get("exact answer", ""))[0])
    cited = find_citations(
        f"{parts.get('explanation', '')}\n{parts.get('exact answer', '')}", known
    )
    return Answer(
        explanation=parts.get("explanation", ""),
        exact="" if _NOTHING.fullmatch(exact) else exact,
        confidence=_confidence(parts.get("confidence", "")),
        citations=cited,
    )


def format_answer(
    explanation: str, exact: str, confidence: float | None, citations: Sequence[str] = ()
) -> str:
    """The three lines; `parse_answer` gives the parts back.

    Each part goes on one line. Citations that the explanation lacks are put behind it. An empty
    `exact` and a `confidence` of None are written `N/A`.
    """
    told = set(find_citations(explanation, citations))
    missing = " ".join(f"[{docid}]" for docid in citations if docid not in told)
    first = " ".join(f"Explanation: {explanation} {missing}".split())
    sure = "N/A" if confidence is None else f"{confidence:g}%"
    answer = " ".join(exact.split()) or "N/A"
    return f"{first}\nExact Answer: {answer}\nConfidence: {sure}"


def find_citations(text: str, known: Collection[str]) -> Sequence[str]:
    """The docids cited in square brackets, each once, in order of appearance.

    `[d1]`, `[d1, d2]`, `[d1; d2]`, `[docid=d1]` and `【d1†L3】` all count. An id counts if it is in
    `known` (docids), or if it is a passage of one: `d1%p3`, or `d1_3` as BrowseComp-Plus wrote it.
    A docid that holds commas or brackets is found where it stands whole.
    """
    text = text.replace("【", "[").replace("】", "]")
    places = [(found.start(), found[1]) for found in _BRACKETS.finditer(text)]
    for docid in known:
        if "[" in docid or "]" in docid:
            places += [(at.start(), docid) for at in re.finditer(re.escape(f"[{docid}]"), text)]
    cited = (docid for _, inner in sorted(places) for docid in _ids(inner, known))
    return tuple(dict.fromkeys(cited))


def _ids(inner: str, known: Collection[str]) -> Iterator[str]:
    """The documents of one pair of brackets: the longest known stretches between separators."""
    parts = re.split(r"([,;])", inner)
    start = 0
    while start < len(parts):
        for end in range(len(parts), start, -2):
            if docid := _document("".join(parts[start:end]), known):
                yield docid
                start = end - 1
                break
        start += 2


def _document(name: str, known: Collection[str]) -> str:
    """The known docid that `name` stands for, or an empty string."""
    plain = name.split("†")[0].strip().strip("`*\"'")
    for form in (name.strip(), plain, _PREFIX.sub("", plain, count=1)):
        if form in known:
            return form
        if parent(form) in known:
            return parent(form)
        passage = _RELEASED_PASSAGE.fullmatch(form)
        if passage and passage[1] in known:
            return passage[1]
    return ""


def _sections(text: str) -> Mapping[str, str]:
    """Text behind each label, up to the next label."""
    labels = list(_AT_START.finditer(text))
    told = {_name(found) for found in labels}
    labels += [found for found in _INSIDE.finditer(text) if _name(found) not in told]
    labels.sort(key=lambda found: found.start())
    if not labels:
        return {"explanation": text.strip()}
    ends = [found.start() for found in labels[1:]] + [len(text)]
    parts: dict[str, str] = {}
    for found, end in zip(labels, ends, strict=True):
        body = text[found.end() : end].strip()
        parts[_name(found)] = body or parts.get(_name(found), "")
    return parts


def _name(found: re.Match[str]) -> str:
    return found["label"].lower().replace("_", " ")


def _unmarked(text: str) -> str:
    """One line without the Markdown around it."""
    line = " ".join(text.split())
    for mark in ("**", "`", "*"):
        if line.startswith(mark) and line.endswith(mark) and len(line) > 2 * len(mark):
            line = line[len(mark) : -len(mark)].strip()
    # A pair that also stood around the label leaves one half here.
    return line.removeprefix("**").removesuffix("**").strip() if line.count("**") == 1 else line


def _confidence(text: str) -> float | None:
    if found := _PERCENT.search(text):
        return _inside(_number(found[1]))
    if (found := _RATIO.search(text)) and float(found[2]) > 0:
        return _inside(100 * _number(found[1]) / float(found[2]))
    if found := _PLAIN.search(text):
        number = _number(found[1])
        fraction = number <= 1 and not found[1].isdecimal()
        return _inside(100 * number if fraction else number)
    return None


def _number(digits: str) -> float:
    return float(digits.replace(",", "."))


def _inside(value: float) -> float | None:
    return round(value, 6) if 0 <= value <= 100 else None
