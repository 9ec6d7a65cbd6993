"""What a loaded single-vector checkpoint shows, however its vectors are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Side(NamedTuple):
    """How a query or a text goes into the model. `prefix` None: the checkpoint's own, or none;
    `limit` None: as many tokens as the checkpoint says that it was made for."""

    role: str
    prefix: str | None
    limit: int | None


class DenseModel(Protocol):
    """A loaded checkpoint. Not safe for threads."""

    def read(self, texts: Sequence[str], side: Side) -> tuple[list[Any], list[int]]:
        """What `vectors` takes for each text, and how many tokens of it the model will see."""
        ...

    def vectors(self, items: Sequence[Any], side: Side) -> NDArray[np.float32]:
        """One padded batch: [items, dimensions]."""
        ...
