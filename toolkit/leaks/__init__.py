"""Finding texts of a sealed benchmark where they should not be."""

from toolkit.leaks.shingles import Finding, Shingles
from toolkit.leaks.sources import contents

__all__ = ["Finding", "Shingles", "contents"]
