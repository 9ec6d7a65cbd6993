"""Whether the prompt of an agent fits the tools that it is offered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from soundingline.agents.prompt import AgentPrompt
from soundingline.experiments.preflight.findings import Finding


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
