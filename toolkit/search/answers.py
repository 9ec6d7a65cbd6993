"""The final answer of an agent: three lines (Explanation, Exact Answer, Confidence) and citations,
and the texts of documents that the agent was shown before.

Models write anything into an answer, also a megabyte of spaces. No expression here has two ways to
match the same characters, so that parsing takes time proportional to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from soundingline.toolkit.data import StatedFact, parent
from soundingline.toolkit.json_text import try_json
from soundingline.toolkit.tokens import with_zero_width_spaces, without_format_characters
from soundingline.toolkit.trajectory import Answer, RecordedCall

_LABEL = re.compile(r"explanation|exact[ _\u00a0\u202f]answer|confidence", re.IGNORECASE)
_LIST = re.compile(r"^[ \t*_`#>]{0,20}documents[ \t*_`]{0,20}[:：]", re.IGNORECASE | re.MULTILINE)
# A colon, and the marks after it if they close those of its label.
_COLON = re.compile(r"[ \t\u200b]*(?:[*_`#>]+[ \t\u200b]*)?[:：](?:[*_`]+(?=\s|\Z))?")
_MARKS = "*_`#>"
_CLOSING_MARKS = "*_`"
# The beginning of a line: at most a list mark, and heading or emphasis marks.
_OPENING = re.compile(r"[ \t]*(?:(?:[-•+]|\d+[.)])[ \t]*)?(?:[*_`#>]+[ \t]*)?")
_EMPTY_LINE = re.compile(r"\n\s*\n")
_NOTHING = re.compile(r"n\s*/\s*a\.?", re.IGNORECASE)
_NUMBER = r"(?<![\w.,-])(\d+(?:[.,]\d+)?)"
_PERCENT = re.compile(_NUMBER + r"\s*(?:%|％|per\s?cent)", re.IGNORECASE)
_RATIO = re.compile(_NUMBER + r"\s*(?:/|out\s+of)\s*(\d+(?:\.\d+)?)", re.IGNORECASE)
_SCALE = re.compile(r"\b0\s*%?\s*(?:to|-|–|—)\s*100\s*%", re.IGNORECASE)  # the prompt's placeholder
_PLAIN = re.compile(_NUMBER + r"(?![\w%])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_SEPARATOR = re.compile(r"([,;])")
_PREFIX = re.compile(r"(?:docid|doc|id)\s*[=:]\s*", re.IGNORECASE)


_Label = tuple[str, int, int, bool]  # name, start, end, whether it opens a line


def parse_answer(text: str, known: Collection[str]) -> Answer:
    """Parse a final answer.

    - Labels may carry Markdown and occur in any order; of a repeated label, the last one with
      content counts. A text without labels is an explanation.
    - `exact` ends at the first empty line; `N/A` is an empty answer.
    - `confidence` is in [0, 100]: a percentage, `x/y` or `x out of y`, or a plain number, which is
      a fraction if it has a decimal point and is at most 1. It is None if there is no valid value.
    - `documents` are the citations after the last `Documents:` that opens a line.
    - Format characters (zero-width spaces, direction marks) hide no label, number or citation.

    Args:
        text: the answer.
        known: the docids that it can cite, see `find_citations`.

    Example:
        >>> answer = parse_answer("Exact Answer: 1871 [d7]\\nConfidence: 85%", {"d7"})
        >>> answer.exact, answer.confidence, answer.citations
        ('1871 [d7]', 85.0, ('d7',))
    """
    parts = _sections(text)
    exact = exact_part(text)
    visible = without_format_characters(exact).strip()
    cited = find_citations(
        f"{parts.get('explanation', '')}\n{parts.get('exact answer', '')}", known
    )
    return Answer(
        explanation=parts.get("explanation", ""),
        exact="" if not visible or _NOTHING.fullmatch(visible) else exact,
        confidence=_confidence(without_format_characters(parts.get("confidence", ""))),
        citations=cited,
        documents=find_citations(list_part(text) or "", known),
    )


def follows_format(text: str, placeholders: Collection[str] = (), *, listed: bool = False) -> bool:
    """Whether a reply has an answer after `Exact Answer` (`N/A` counts), or lists documents, which
    is the only answer if `listed`. Neither a tool call written as text nor one of the
    `placeholders` of the prompt's description of the format is an answer."""
    documents, exact = list_part(text), exact_part(text)
    if documents and documents not in placeholders:
        return True
    called = exact.startswith("{") and '"arguments"' in exact
    return bool(exact and not called and exact not in placeholders and not listed)


def list_part(text: str) -> str | None:
    """The text from the last `Documents:` that opens a line to the next label that opens one; None
    without such a label."""
    *_, label = [None, *_LIST.finditer(text)]
    if label is None:
        return None
    body = text[label.end() :].lstrip(_CLOSING_MARKS)
    following = (start for _, start, _, opens_line in _labels(body) if opens_line)
    return body[: next(following, len(body))].strip()


def exact_part(text: str) -> str:
    """The text after the label `Exact Answer`, on one line, without the Markdown around it; empty
    without the label."""
    part = _EMPTY_LINE.split(_sections(text).get("exact answer", ""), maxsplit=1)[0]
    line = " ".join(part.split())
    for mark in ("**", "`", "*"):
        if line.startswith(mark) and line.endswith(mark) and len(line) > 2 * len(mark):
            line = line[len(mark) : -len(mark)].strip()
    # A pair of marks around label and text leaves one of them here.
    return line.removeprefix("**").removesuffix("**").strip() if line.count("**") == 1 else line


def format_answer(
    explanation: str,
    exact: str,
    confidence: float | None,
    citations: Sequence[str] = (),
    documents: Sequence[str] = (),
) -> str:
    """Write an answer so that `parse_answer` returns its parts.

    Each part is on one line. Citations that are missing from the explanation are appended to it. An
    empty `exact` and a `confidence` of None become `N/A`. Without `documents` there is no line for
    them.
    """
    present = set(find_citations(explanation, citations))
    missing = " ".join(f"[{docid}]" for docid in citations if docid not in present)
    first = " ".join(f"Explanation: {explanation} {missing}".split())
    sure = "N/A" if confidence is None else f"{confidence:g}%"
    answer = " ".join(exact.split()) or "N/A"
    listed = "\nDocuments: " + " ".join(f"[{docid}]" for docid in documents) if documents else ""
    return f"{first}\nExact Answer: {answer}\nConfidence: {sure}{listed}"


def find_citations(text: str, known: Collection[str]) -> Sequence[str]:
    """The docids cited in square brackets, each once, in order of appearance.

    `[d1]`, `[d1, d2]`, `[d1; d2]`, `[docid=d1]` and `【d1†L3】` are citations. An id counts if it
    is one of `known`, or a passage of one: `d1%p3`, or `d1_3` as BrowseComp-Plus wrote it.
    """
    text = text.replace("【", "[").replace("】", "]")
    positions = [(match.start(), match[1]) for match in _BRACKETS.finditer(text)]
    for docid in known:
        if "[" in docid or "]" in docid:
            positions += [(at.start(), docid) for at in re.finditer(re.escape(f"[{docid}]"), text)]
    widths = sorted({len(_SEPARATOR.findall(docid)) for docid in known}, reverse=True)
    cited = (docid for _, inner in sorted(positions) for docid in _ids(inner, known, widths))
    return tuple(dict.fromkeys(cited))


def invented_citations(text: str, known: Collection[str]) -> Sequence[str]:
    """Citations of documents that are not `known`, each once, in order.

    Such a citation is a part of a text in square brackets, between commas or semicolons, that has a
    digit and no white space. `[sic]` and the text of a Markdown link are not citations; the `[1]`
    of a footnote is.
    """
    text = text.replace("【", "[").replace("】", "]")
    names = []
    for match in _BRACKETS.finditer(text):
        if text[match.end() : match.end() + 1] == "(" or _document(match[1], known):
            continue
        for part in _SEPARATOR.split(match[1])[::2]:
            name = _PREFIX.sub("", _without_locator(part.strip()).strip("`*\"' "), count=1)
            number = any(map(str.isdecimal, name))
            if number and len(name.split()) == 1 and not _document(part, known):
                names.append(name)
    return tuple(dict.fromkeys(names))


def _ids(inner: str, known: Collection[str], widths: Sequence[int]) -> Iterator[str]:
    """The documents that the text inside a pair of brackets cites. A docid may contain separators;
    `widths` are the numbers of separators in known docids, the largest first."""
    parts = _SEPARATOR.split(inner)
    start = 0
    while start < len(parts):
        for width in widths:
            end = start + 2 * width + 1
            if end > len(parts):
                continue
            if docid := _document("".join(parts[start:end]), known):
                yield docid
                start = end - 1
                break
        start += 2


def _document(name: str, known: Collection[str]) -> str:
    """The known docid that `name` refers to, or an empty string."""
    stripped = name.strip()
    plain = without_format_characters(_without_locator(stripped)).strip().strip("`*\"'")
    for form in dict.fromkeys((stripped, plain, _PREFIX.sub("", plain, count=1))):
        if form in known:
            return form
        if parent(form) in known:
            return parent(form)
        docid, _, number = form.rpartition("_")
        if number.isdecimal() and docid in known:  # as BrowseComp-Plus wrote passages
            return docid
    return ""


def _without_locator(name: str) -> str:
    """`d1†L3` -> `d1`. A locator ends at the next separator: `d1†L3, d2` names two documents."""
    head, _, locator = name.partition("†")
    return name if "," in locator or ";" in locator else head


def _sections(text: str) -> Mapping[str, str]:
    """The text after each label, up to the next one. A label inside a line counts only if no label
    of that name opens a line."""
    labels = list(_labels(text))
    opening = {name for name, _, _, opens_line in labels if opens_line}
    labels = [label for label in labels if label[3] or label[0] not in opening]
    if not labels:
        return {"explanation": text.strip()}
    ends = [start for _, start, _, _ in labels[1:]] + [len(text)]
    parts: dict[str, str] = {}
    for (name, _, start, _), end in zip(labels, ends, strict=True):
        parts[name] = text[start:end].strip() or parts.get(name, "")
    return parts


def _labels(text: str) -> Iterator[_Label]:
    """The labels that a colon follows, in order, with the colon and the marks around it. Marks
    right after the colon close those of the label; marks before a word belong to the word."""
    plain = with_zero_width_spaces(text)
    previous = 0
    for match in _LABEL.finditer(text):
        start, before = match.start(), text[previous : match.start()]
        opens_text = previous == 0
        previous = match.end()
        colon = _COLON.match(plain, match.end())
        if not colon:
            continue
        end = colon.end()
        name = "exact answer" if match[0].lower().startswith("exact") else match[0].lower()
        line = before.rpartition("\n")[2]
        opens_line = opens_text or len(line) < len(before)
        if opens_line and _OPENING.fullmatch(without_format_characters(line)):
            yield name, start - len(line), end, True
        elif start == 0 or not (text[start - 1].isalnum() or text[start - 1] == "_"):
            marks = len(before) - len(before.rstrip(_MARKS))
            yield name, start - marks, end, False


def _confidence(text: str) -> float | None:
    text = _SCALE.sub("", text)
    value = None
    if match := _PERCENT.search(text):
        value = float(match[1].replace(",", "."))
    elif (match := _RATIO.search(text)) and float(match[2]) > 0:
        value = 100 * float(match[1].replace(",", ".")) / float(match[2])
    elif match := _PLAIN.search(text):
        value = float(match[1].replace(",", "."))
        if value <= 1 and not match[1].isdecimal():
            value *= 100
    return round(value, 6) if value is not None and 0 <= value <= 100 else None


# What an agent was shown, as the record of its calls has it.

# The head of a document page, with its lines, or of a hit; then the title.
_HEAD = re.compile(
    r'^(?:\[docid=(\S+?)(?: evidence for "(?:[^"\\\n]|\\.)*"| metadata| abstract'
    r"| lines (\d+)-(\d+) of \d+)?\]|(?:\d+\. )?docid=(\S+)(?: score=\S+)?(?: title=)?)"
    r"(?: (.*)|(?<==)(.*)|)(?:\n|\Z)",
    re.MULTILINE,
)
_HINT = re.compile(
    r"(?:\A|\n)(?:End of the (?:ranking|document)\.|Next (?:hits|lines): .*"
    r"|\[cut after \d+ tokens\])\s*\Z"
)


class ShownText(NamedTuple):
    """A text that an agent was shown, under the title with which it was shown."""

    docid: str
    title: str
    text: str


def shown_texts(calls: Iterable[RecordedCall]) -> list[ShownText]:
    """The texts of documents in the outputs of calls, in their order: hits with their excerpts, and
    pages of documents. A page that begins at the line after one that was read before is joined to
    it. Queries, requirements and hints are left out, because no document states them.

    An output in another form counts if it is JSON with an object for each document (all its texts,
    whose first line is the title), if the ids of all its documents begin lines, in their order,
    as in `[d1] text` and `2. d1: text`, or if it shows one document alone (the whole output).
    """
    texts: list[ShownText] = []
    last_lines: dict[str, tuple[int, int]] = {}  # docid -> the place of its text, its last line
    for call in calls:
        for (first, last), each in [] if call.error else _parts(call):
            index, last_line = last_lines.get(each.docid, (0, -1))
            if first and first == last_line + 1:
                joined = f"{texts[index].text}\n{each.text}"
                texts[index] = texts[index]._replace(text=joined)
            else:
                index = len(texts)
                texts.append(each)
            if first:
                last_lines[each.docid] = index, last
    return texts


def _parts(call: RecordedCall) -> Iterator[tuple[tuple[int, int], ShownText]]:
    """The first and last line (0 if it has none) and the text of each document of an output."""
    heads: list[re.Match[str]] = []
    for match in _HEAD.finditer(call.output):  # a document may quote a head: the order decides
        if len(heads) < len(call.shown) and (match[1] or match[4]) == call.shown[len(heads)]:
            heads.append(match)
    if not heads:
        yield from (((0, 0), each) for each in _foreign_parts(call))
    for head, shown in zip(heads, _texts_after(heads, call.output), strict=True):
        text = _HINT.sub("", shown)
        title = head[5] or head[6] or ("" if head[1] else text.strip().partition("\n")[0])
        lines = (int(head[2]), int(head[3])) if head[2] else (0, 0)
        yield lines, ShownText(parent(head[1] or head[4]), title, text)


def _foreign_parts(call: RecordedCall) -> Iterator[ShownText]:
    rows = list(_objects(try_json(call.output) if call.output[:1] in ("[", "{") else None))
    # An import may have changed the form of the ids; their order stays.
    names = list(dict.fromkeys(str(row["docid"]) for row in rows))
    if names and len(names) == len(call.shown):
        ids = dict(zip(names, call.shown, strict=True))
        for row in rows:
            values = [
                text for name, text in row.items() if isinstance(text, str) if name != "docid"
            ]
            text = "\n".join(values).strip()
            yield ShownText(parent(ids[str(row["docid"])]), text.partition("\n")[0], text)
    elif heads := _line_heads(call):
        for unit_id, text in zip(call.shown, _texts_after(heads, call.output), strict=True):
            yield ShownText(parent(unit_id), "", text.strip())
    elif len(call.shown) == 1:
        yield ShownText(parent(call.shown[0]), "", call.output)


def _texts_after(heads: Sequence[re.Match[str]], output: str) -> list[str]:
    """The text after each head, up to the next one."""
    ends = [*(head.start() for head in heads[1:]), len(output)]
    return [output[head.end() : end] for head, end in zip(heads, ends, strict=False)]


def _line_heads(call: RecordedCall) -> list[re.Match[str]]:
    """Where the ids of the shown documents begin lines of an output; empty unless all do."""
    heads: list[re.Match[str]] = []
    for unit_id in call.shown:
        name = re.escape(unit_id)
        pattern = re.compile(rf"^(?:\d+[.)] )?(?:\[{name}\]|{name}:)", re.MULTILINE)
        head = pattern.search(call.output, heads[-1].end() if heads else 0)
        if head is None:
            return []
        heads.append(head)
    return heads


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """The objects with a docid in a JSON value."""
    if isinstance(value, Mapping) and "docid" in value:
        yield value
    elif isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        yield from chain.from_iterable(map(_objects, inner))


def stating_documents(facts: Sequence[StatedFact], shown: Iterable[ShownText]) -> list[str | None]:
    """For each fact the first document whose shown text states it; None if no text does.

    A text states a fact if it contains one of the fact's wordings whole, white space and capitals
    aside, and names its subject in the wording or the title.
    """
    texts = [(each.docid, _plain(each.title), _plain(each.text)) for each in shown]
    everything = "\n".join(text for _, _, text in texts)
    sources = []
    for fact in facts:
        # Most facts have not been shown, which a search for plain strings tells quickly.
        named = [wording for wording in map(_plain, fact.named) if wording in everything]
        titled = [wording for wording in map(_plain, fact.titled) if wording in everything]
        stating = (
            docid
            for docid, title, text in texts
            for wording in (named + titled if title == _plain(fact.subject) else named)
            if _states(text, wording)
        )
        sources.append(next(stating, None))
    return sources


def _plain(text: str) -> str:
    """The text without differences of white space and capitals."""
    return " ".join(text.split()).casefold()


def _states(text: str, wording: str) -> bool:
    """Whether a text has the wording, not inside a longer word or number."""
    whole = rf"(?<!\w){re.escape(wording)}(?!\w|[.,]\d)"
    return wording in text and re.search(whole, text) is not None
