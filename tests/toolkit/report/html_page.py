"""Reads a HTML page into its elements, and fails on elements that are not closed."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "input"}


class Page(HTMLParser):
    """The elements of a page (a text or a path) in order, as (tag, attributes, pieces of text)."""

    def __init__(self, source):
        super().__init__()
        self.source = source if isinstance(source, str) else source.read_text(encoding="utf-8")
        self.elements, self.comments, self._open = [], [], []
        self.feed(self.source)
        self.close()
        assert not self._open, "every element is closed"

    def handle_starttag(self, tag, attrs):
        element = (tag, {name: value or "" for name, value in attrs}, [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, pieces in self._open:
            pieces.append(data)

    def handle_comment(self, data):
        self.comments.append(data)

    @property
    def tags(self):
        return [tag for tag, _, _ in self.elements]

    def attributes(self, *names, tag=None):
        """The values of the attributes of these names, of all elements or those of a tag."""
        return [
            value
            for each, attributes, _ in self.elements
            for name, value in attributes.items()
            if name in names and tag in (None, each)
        ]

    def raw(self, tag):
        return ["".join(pieces) for name, _, pieces in self.elements if name == tag]

    def texts(self, tag, kind=""):
        """The texts of the elements of a tag (and of a class), with spaces for line breaks."""
        return [
            " ".join("".join(pieces).split())
            for name, attributes, pieces in self.elements
            if name == tag and (not kind or kind in attributes.get("class", "").split())
        ]

    def tables(self):
        """The tables, as lists of rows of texts. Small print is separated by a space."""
        tables = []
        for tag, _, pieces in self.elements:
            if tag == "table":
                tables.append([])
            elif tag == "tr":
                tables[-1].append([])
            elif tag in ("td", "th"):
                tables[-1][-1].append("".join(pieces))
            elif tag == "small":
                small = "".join(pieces)
                tables[-1][-1][-1] = tables[-1][-1][-1].removesuffix(small) + f" {small}"
        return tables

    def rows(self):
        """The rows of all tables, with spaces for line breaks."""
        return [
            [" ".join(text.split()) for text in row] for table in self.tables() for row in table
        ]
