"""Reads a HTML page into its elements, and fails on elements that are not closed."""

import re
from collections import Counter

from bs4 import BeautifulSoup, Comment

VOID = {"meta", "br", "wbr", "input"}


class Page:
    """The elements of a page (a text or a path)."""

    def __init__(self, source):
        self.source = source if isinstance(source, str) else source.read_text(encoding="utf-8")
        self.soup = BeautifulSoup(self.source, "html.parser")
        self.elements = self.soup.find_all(True)
        self.tags = [element.name for element in self.elements]
        self.comments = self.soup.find_all(string=lambda text: isinstance(text, Comment))
        ends = re.findall(r"</(\w+)>|<(\w+)[^<>]*/>", self.source.lower())
        counts = Counter(one or other for one, other in ends)
        unclosed = Counter(tag for tag in self.tags if tag not in VOID) - counts
        assert not unclosed, "every element is closed"

    def attributes(self, *names, tag=True):
        """The values of the attributes of these names, of all elements or those of a tag."""
        values = [element.attrs.get(name) for element in self.soup.find_all(tag) for name in names]
        return [" ".join(v) if isinstance(v, list) else v for v in values if v is not None]

    def raw(self, tag):
        return [element.get_text() for element in self.soup.find_all(tag)]

    def texts(self, tag, kind=""):
        """The texts of the elements of a tag (and of a class), with spaces for line breaks."""
        elements = self.soup.select(f"{tag}.{kind}" if kind else tag)
        return [" ".join(element.get_text().split()) for element in elements]

    def tables(self):
        """The tables, as lists of rows of texts. Small print is separated by a space."""
        return [
            [[_text(cell) for cell in row.find_all(["td", "th"])] for row in table.find_all("tr")]
            for table in self.soup.find_all("table")
        ]

    def rows(self):
        """The rows of all tables, with spaces for line breaks."""
        return [
            [" ".join(text.split()) for text in row] for table in self.tables() for row in table
        ]


def _text(cell):
    return "".join(" " * (part.name == "small") + part.get_text() for part in cell.children)
