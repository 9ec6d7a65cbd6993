"""The questions of a run: handed out once each, and written when they are answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from soundingline.toolkit.data import Topic
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import Trajectory


class QuestionQueue:
    """The questions of a run that are left to ask. No two sessions have the same question at a
    time. Used on the event loop only, but for the writing of a file.

    `folder` is open for writing as long as this is used; `topics` are all of its benchmark.
    """

    def __init__(self, folder: RunFolder, topics: Sequence[Topic]) -> None:
        self.folder = folder
        self.total = len(topics)
        self.answered = 0
        self.stopped = ""
        self._waiting = deque(folder.pending(topics))
        self._under_way: set[str] = set()

    @property
    def waiting(self) -> int:
        """Questions that nobody works on yet."""
        return len(self._waiting)

    @property
    def under_way(self) -> int:
        """Questions that sessions work on."""
        return len(self._under_way)

    def next(self) -> Topic | None:
        """The next question; None where none is left, for now or for good."""
        if not self._waiting or self.stopped:
            return None
        topic = self._waiting.popleft()
        self._under_way.add(topic.qid)
        return topic

    def give_back(self, topic: Topic) -> None:
        """A question whose session ended without an answer. It goes behind the others, so that one
        which ends every client does not keep them from the rest."""
        self._under_way.discard(topic.qid)
        self._waiting.append(topic)

    async def record(self, trajectory: Trajectory) -> None:
        """Write a trajectory, after which its question is done."""
        await asyncio.to_thread(self.folder.write, trajectory)
        self._under_way.discard(trajectory.qid)
        self.answered += trajectory.status != "failed"
