"""A scorer of Inspect AI: whether the last message holds an accepted answer."""

from inspect_ai.scorer import Score, Scorer, accuracy, scorer


# Inspect refuses a scorer without annotations.
@scorer(metrics=[accuracy()])
def holds_the_answer() -> Scorer:
    async def score(state, target) -> Score:
        found = any(text in state.output.completion for text in target)
        return Score(value="C" if found else "I")

    return score
