"""Whether the prompt of an agent fits the tools that it is offered, and what the first questions of
a run show of its structure. Accuracy never stops a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from soundingline.agents.prompt import AgentPrompt
from soundingline.experiments.preflight.findings import Finding
from soundingline.toolkit.evaluation.judge import ExactAnswerJudge
from soundingline.toolkit.llm.errors import Truncated
from soundingline.toolkit.trajectory import Trajectory

FEWEST = 3  # questions: what is so in one or two of them may be chance
EXPECTED_ACCURACY = 0.2  # where no paper states that of the run


def check_prompt(
    prompt: AgentPrompt, specs: Sequence[Mapping[str, Any]], opening: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """Check that the prompt names only tools and arguments that the session has, and that each tool
    and each argument is described by its schema or named in the prompt.

    Args:
        prompt: the agent's prompt.
        specs: the tools that the model is offered (`SearchTool.specs`).
        opening: the messages with which a question opens.
    """
    named = ", ".join(spec["name"] for spec in specs) or "none"
    do = f"choose a prompt for the tools of the session ({named}), or other tools"
    found = [
        Finding("prompt", "fault", f"the prompt {prompt.name} names {name}, which no tool has", do)
        for name in prompt.missing_names(specs)
    ]
    words = set(re.findall(r"\w+", " ".join(str(each.get("content")) for each in opening)))
    for spec in specs:
        described = {spec["name"]: spec.get("description", "")}
        properties = spec["parameters"]["properties"]
        described |= {name: each.get("description", "") for name, each in properties.items()}
        for name, text in described.items():
            if not text and name not in words:
                message = f"neither the prompt {prompt.name} nor a description says what {name} is"
                do = f"describe {name} in the specification of the tool {spec['name']}"
                found.append(Finding("prompt", "fault", message, do))
    return found


def check_first_questions(
    trajectories: Sequence[Trajectory],
    accepted: Mapping[str, Sequence[str]],
    *,
    calls_tools: bool,
    expected: float | None = None,
) -> list[Finding]:
    """The faults that all of the first questions share, and a note if no answer is right.

    Args:
        trajectories: of the first questions; fewer than three show nothing.
        accepted: the accepted answers by question.
        calls_tools: whether the agent is offered tools.
        expected: the accuracy at which the note states the probability of no right answer; None
            for 0.2.
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
            expected = EXPECTED_ACCURACY if expected is None else expected
            chance = (1 - expected) ** len(judged)
            message = (
                f"none of the first {len(judged)} answers is right by the exact rule, which has a "
                f"probability of {chance:.2f} at an accuracy of {expected:g}"
            )
            found.append(Finding("first_questions", "note", message, "read some of them"))
    return found


def _answers(trajectory: Trajectory) -> bool:
    answer = trajectory.answer
    return bool(answer.exact.strip() or answer.explanation.strip() or answer.documents)
