"""The agent without a language model: the reference that any model has to beat.

From the ground: `words`, `answer_types`, `evidence` (what was seen), `queries`, `vote`, `research`
(the steps on one question), `agent`.
"""

from soundingline.agents.keyword.agent import KeywordAgent

__all__ = ["KeywordAgent"]
