"""A scorer of Inspect AI: whether the last message holds an accepted answer."""

from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import TaskState


@scorer(metrics=[accuracy()])
def holds_the_answer():
    async def score(state: TaskState, target: Target) -> Score:
        found = any(text in state.output.completion for text in target)
        return Score(value="C" if found else "I")

    return score
