"""What each byte of UTF-8 text is to a cutter that looks at no more than its two neighbours.

An analyzer describes by such a table where its words may end, so that text is cut in compiled code
(`piece_table`) and only what was never met before is analysed. A role is a sum of the bits below.
"""

from __future__ import annotations

PART = 1  # always of a word, or next to one
LETTER, DIGIT = 2, 4  # what a mark may stand between
FOREIGN = 8  # not ASCII: what a mark next to it is, the analyzer decides
MARK = 16  # of a word beside a foreign byte, and between the two that it joins; else a gap
JOINS = 5  # LETTER and DIGIT, so many bits higher: what a mark joins


def make_byte_roles(
    *,
    parts: str = "",
    letters: str = "",
    digits: str = "",
    letter_marks: str = "",
    digit_marks: str = "",
    other_marks: str = "",
) -> bytes:
    """The role of each byte, from ASCII characters of each kind; all others part words.

    A character among `letter_marks` joins two letters, one among `digit_marks` two digits; one
    may be both. `other_marks` join nothing.
    """
    kinds = {
        PART: parts,
        PART | LETTER: letters,
        PART | DIGIT: digits,
        MARK | LETTER << JOINS: letter_marks,
        MARK | DIGIT << JOINS: digit_marks,
        MARK: other_marks,
    }
    roles = bytearray(128) + bytes([PART | FOREIGN]) * 128
    for role, characters in kinds.items():
        for character in characters:
            roles[ord(character)] |= role
    return bytes(roles)
