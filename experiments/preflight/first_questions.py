"""What the first questions of a run show of its structure. Accuracy never stops a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from soundingline.experiments.preflight.findings import Finding
from soundingline.toolkit.evaluation.judge import ExactAnswerJudge
from soundingline.toolkit.llm.errors import Truncated
from soundingline.toolkit.trajectory import Trajectory

FEWEST = 3  # questions: what is so in one or two of them may be chance
# The accuracy at which the probability of no right answer is stated.
EXPECTED_ACCURACY = 0.2


def check_first_questions(
    trajectories: Sequence[Trajectory],
    accepted: Mapping[str, Sequence[str]],
    *,
    calls_tools: bool,
) -> list[Finding]:
    """The faults that all of the first questions share, and a note if no answer is right.

    Args:
        trajectories: of the first questions; fewer than three show nothing.
        accepted: the accepted answers by question.
        calls_tools: whether the agent is offered tools.
    """
    asked = len(trajectories)
    if asked < FEWEST:
        return []
    calls = [call for each in trajectories for call in each.calls]
    searches = [call for call in calls if call.searched]
    shared = (
        (
            calls_tools and not calls,
            f"none of the first {asked} questions has a tool call",
            "look at a trajectory: calls that are in the text need llm.calls=schema or text",
        ),
        (
            bool(searches) and not any(call.ranking or call.shown for call in searches),
            f"all {len(searches)} searches of the first {asked} questions found nothing",
            "see whether the index holds the benchmark's corpus: soundingline rank",
        ),
        (
            all(each.reason == Truncated.code for each in trajectories),
            f"a reply of each of the first {asked} questions was cut at its limit",
            "raise llm.settings.max_output_tokens",
        ),
        (
            not any(_answers(each) for each in trajectories),
            f"all answers to the first {asked} questions are empty",
            "look at a trajectory: the prompt may ask for another format of the answer",
        ),
    )
    found = [Finding("first_questions", "fault", what, do) for holds, what, do in shared if holds]
    judged = [each for each in trajectories if accepted.get(each.qid)]
    if judged and not found:
        judge = ExactAnswerJudge()
        right = sum(
            judge.verdict(each.qid, each.answer, accepted[each.qid]).correct for each in judged
        )
        if not right:
            chance = (1 - EXPECTED_ACCURACY) ** len(judged)
            message = (
                f"none of the first {len(judged)} answers is right by the exact rule, which has a "
                f"probability of {chance:.2f} at an accuracy of {EXPECTED_ACCURACY}"
            )
            found.append(Finding("first_questions", "note", message, "read some of them"))
    return found


def _answers(trajectory: Trajectory) -> bool:
    answer = trajectory.answer
    return bool(answer.exact.strip() or answer.explanation.strip() or answer.documents)
