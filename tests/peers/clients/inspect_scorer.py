"""A scorer of Inspect AI: whether the last message holds an accepted answer."""

from inspect_ai.scorer import Score, accuracy, scorer


@scorer(metrics=[accuracy()])
def holds_the_answer():
    async def score(state, target):
        found = any(text in state.output.completion for text in target)
        return Score(value="C" if found else "I")

    return score
