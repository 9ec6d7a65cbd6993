"""What an experiment needs before it is started: keys, GPU memory, a canary, dollars and hours.

Tokens and seconds of a question are those of a run on disk with the same benchmark, agent, tool and
model, if there is one. Otherwise dollars are the paper's if it states them, else those of a formula
(`ExperimentPlan._estimate`), which `soundingline describe experiment=...` prints.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from soundingline.experiments.cells import Cells
from soundingline.experiments.config import (
    CONF,
    ROOT_CONFIG,
    choice_of,
    composing,
    is_choice,
    key_of,
    merged,
)
from soundingline.experiments.published_figures import RUN_DOLLARS, factors_of
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import load_runs
from soundingline.toolkit.evaluation.published_tables import (
    PublishedTable,
    published_questions,
    read_published,
)
from soundingline.toolkit.evaluation.statistics import smallest_difference
from soundingline.toolkit.llm.messages import Usage
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.obfuscation import VARIABLE

CALLS, PROMPT, REPLY, CALL, SECONDS = 20.0, 1500, 250, 880, 10.0
CHANGED = (0.1, 0.3)  # shares of answers that are right in one of two cells alone
WIDTH = 100
_PRECISION = {"4bit": 0.65, "fp8": 1.05}  # bytes a parameter, with scales; else two
# Billions of parameters that a name does not state, and precisions that it does not.
_BILLIONS = {
    "zai-org/GLM-4.7-Flash": 30.0,
    "colbert-ir/colbertv2.0": 0.11,
    "naver/splade-v3": 0.11,
    "naver/splade-cocondenser-ensembledistil": 0.11,
    "intfloat/e5-base-v2": 0.11,
    "BeIR/sparta-msmarco-distilbert-base-v1": 0.07,
    "sentence-transformers/all-MiniLM-L6-v2": 0.02,
}
_FOUR_BITS = ("openai/gpt-oss-20b",)
_SMALL = 1.0  # gigabytes: a processor can run such a model over a small corpus
_MEASURED = (
    "tool_calls",
    "usage_agent_calls",
    "usage_agent_input_tokens",
    "usage_agent_cached_tokens",
    "usage_agent_output_tokens",
    "seconds",
)
_WITHOUT_MODELS = frozenset({"benchmark", "unit", "engine", "tool", "judge", "budget", "grid"})


class Model(NamedTuple):
    """A model of a cell: its group, its name, the variable of its key, and whether it runs on this
    machine."""

    group: str
    name: str
    key: str
    local: bool

    @property
    def gigabytes(self) -> float | None:
        """The size of the weights of a model that runs here; None if its name does not tell it."""
        stated = re.search(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z])", self.name.lower())
        billions = _BILLIONS.get(self.name, float(stated[1]) if stated else None)
        if not self.local or billions is None:
            return None
        form = "4bit" if self.name in _FOUR_BITS else "fp8" if "fp8" in self.name.lower() else ""
        return billions * _PRECISION.get(form, 2.0)


class ExperimentEstimate(NamedTuple):
    """Tokens of a question, and dollars and hours of a cell with its repeats; None where
    unknown."""

    questions: int
    repeats: int
    calls: float
    input: int
    cached: int
    output: int
    dollars: float | None
    hours: float
    source: str  # of the dollars, or of the tokens where there are none


class Measured(NamedTuple):
    """What the questions of a run on disk have taken on average, without judge and stages.

    `key` is its benchmark, agent, tool and model; `calls` are those of tools, `requests` those to
    the model, and `seconds` those of the clock.
    """

    key: tuple[str, ...]
    run: str
    questions: int
    calls: float
    requests: float
    input: float
    cached: float
    output: float
    seconds: float


def measured_runs(runs: Path) -> list[Measured]:
    """The evaluated runs of agents with a model below a folder of runs, whose tokens are known."""
    measured = []
    for path in sorted({*runs.glob("*/metrics.json"), *runs.glob("*/*/metrics.json")}):
        with suppress(InputError):  # a run that is damaged or from another version tells nothing
            (run,) = load_runs([path.parent])
            config, factors = run.manifest.get("config", {}), run.factors
            rows = [run.per_question.get(name, {}) for name in _MEASURED]
            known = set(rows[0]).intersection(*rows[1:3], *rows[4:])  # not all servers have a cache
            if not known or not config.get("llm"):
                continue
            means = (sum(row.get(qid, 0.0) for qid in known) / len(known) for row in rows)
            groups = (factors.get(group, "") for group in ("benchmark", "agent", "tool"))
            key = (*groups, str(config["llm"].get("model")))
            measured.append(Measured(key, path.relative_to(runs).parts[0], len(known), *means))
    return measured


class Option(NamedTuple):
    """What the file of an option holds, with the files that it includes.

    - `values`: its settings. References to other settings are not resolved.
    - `choices`: the options that it chooses elsewhere, as `group/name` by key; None for none.
    """

    values: dict[str, Any]
    choices: dict[str, str | None]


class OptionFiles:
    """The options of `conf/` and of the folders in `search_path`, read without Hydra, which needs
    0.2 seconds for each of the many configurations that a list of all experiments depends on.

    It follows lists of defaults as Hydra does, for the forms that `conf/` uses.
    """

    def __init__(self, search_path: Sequence[str] = ()) -> None:
        self._folders = [CONF, *(Path(each.removeprefix("file://")) for each in search_path)]
        self._contents: dict[str, dict[str, Any]] = {}
        self._options: dict[str, Option] = {}

    def option(self, path: str) -> Option:
        """An option by its group and name, such as `llm/vllm/gpt_oss_20b`."""
        if path not in self._options:
            self._options[path] = self._merged(path, path.partition("/")[0], {})
        return self._options[path]

    def compose(
        self, choices: Mapping[str, str | None] = {}, values: Mapping[str, Any] = {}
    ) -> dict[str, Any]:
        """The root configuration with these options, as `group/name` by key, and these values."""
        root, chosen = self._content(ROOT_CONFIG), self.chosen(choices)
        config = {key: value for key, value in root.items() if key != "defaults"}
        for key, path in chosen.items():
            group, _, inner = key.partition(".")
            if inner and group in config:
                parts = {k.removeprefix(f"{group}."): p for k, p in chosen.items()}
                config[group] = self._merged(chosen[group] or "", group, parts).values
            elif not inner:
                config[group] = self.option(path).values if path else None
        return merged(config, values)

    def chosen(self, choices: Mapping[str, str | None]) -> dict[str, str | None]:
        """The option of every group, as `group/name` by key, where these are chosen."""
        root = self._content(ROOT_CONFIG)["defaults"]
        every = [read_default(each) for each in root if not isinstance(each, str)]
        chosen = {key: path for override, key, path in every if not override} | dict(choices)
        fixed = set(choices)
        for key in reversed(list(chosen)):  # Hydra lets the choices of later options win
            for other, path in self.option(chosen[key] or "").choices.items():
                if other not in fixed:
                    chosen[other] = path
                    fixed.add(other)
        return chosen

    def _merged(self, path: str, folder: str, replaced: Mapping[str, str | None]) -> Option:
        """`folder` is where the files are that this one includes; `replaced` chooses other options
        for its parts."""
        content = dict(self._content(path))
        defaults = content.pop("defaults", None) or []
        everywhere = path.startswith(("experiment/", "scale/"))
        own: dict[str, str | None] = {}
        parts: dict[str, str | None] = {}
        for override, key, chosen in map(read_default, defaults):
            if override:
                elsewhere = everywhere or key.startswith("_global_.")
                (own if elsewhere else parts)[key.removeprefix("_global_.")] = chosen
        parts |= replaced
        values: dict[str, Any] = {}
        choices: dict[str, str | None] = {}
        for entry in [*defaults, *(() if "_self_" in defaults else ["_self_"])]:
            override, key, chosen = read_default(entry)
            if entry == "_self_":
                values = merged(values, content)
            elif isinstance(entry, str):
                name = entry.partition("@")[0]
                file = name[1:] if name[0] == "/" else f"{folder}/{name}"
                part = self._merged(file, file.rpartition("/")[0], parts)
                values, choices = merged(values, part.values), choices | part.choices
            elif not override and (nested := parts.get(key, chosen)):
                values = merged(values, {key: self.option(nested).values})
        return Option(values, choices | own)

    def text(self, path: str) -> str:
        """Of the first folder that has the option's file; empty where none has."""
        files = (folder / f"{path}.yaml" for folder in self._folders)
        file = next((each for each in files if path and each.is_file()), None)
        return file.read_text(encoding="utf-8") if file else ""

    def _content(self, path: str) -> dict[str, Any]:
        if path not in self._contents:
            content: Any = OmegaConf.to_container(OmegaConf.create(self.text(path)))
            self._contents[path] = content or {}
        return self._contents[path]


def read_default(entry: Any) -> tuple[bool, str, str | None]:
    """Whether an entry of a list of defaults overrides another, its key, and the option it
    chooses."""
    ((group, name),) = entry.items() if isinstance(entry, Mapping) else [(str(entry), None)]
    override = group.startswith("override ")
    group, _, package = group.removeprefix("override ").strip().lstrip("/").partition("@")
    return override, package or group, f"{group}/{name}" if name else None


def models_of(config: Mapping[str, Any]) -> dict[str, Model]:
    """The models of a configuration by group: language models, and what a stage loads."""
    models = {}
    for group, option in config.items():
        if not isinstance(option, Mapping) or option.get("model", "???") == "???":
            continue
        (name,) = OmegaConf.create([option["model"]])  # which may name an environment variable
        if group.endswith("llm"):
            key, server = option.get("key_env") or "", option.get("server")
            # A llama.cpp needs no GPU.
            address = str(option.get("base_url"))
            here = address.startswith(("http://127.0.0.1", "http://localhost"))
            local = "Vllm" in server["_target_"] if server else here
        elif "device" in option:
            key, local = "", True
        else:
            continue
        models[group] = Model(group, str(name), str(key), local)
    return models


class ExperimentPlan:
    """An experiment: its configuration, its cells, and the models of all cells.

    Args:
        config: its values.
        choices: the option of each group.
        cells: the overrides of each cell, as `overrides_of_cells` gives them.
        files: the options that cells choose from.
        measured: what runs on disk have taken.
        questions: the number of questions of a cell; None for the published one, or that of a whole
            benchmark where it is known.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        choices: Mapping[str, str],
        cells: Sequence[Sequence[str]],
        files: OptionFiles,
        measured: Sequence[Measured] = (),
        questions: int | None = None,
    ) -> None:
        self.config, self.cells, self._asked = config, cells, questions
        self._choices, self._files, self._measured = choices, files, measured
        self.models = [self._models(cell) for cell in self.cells]

    @classmethod
    def of(
        cls, name: str, files: OptionFiles, measured: Sequence[Measured] = ()
    ) -> tuple[ExperimentPlan, int]:
        """The plan of the experiment of this name, and the number of cells of its laptop form."""
        option = files.option(f"experiment/{name}")
        config = files.compose(option.choices, option.values)
        sweeper = option.values.get("hydra", {}).get("sweeper", {})
        if "hydra/sweeper" in option.choices:  # which chooses cells as it goes
            sweeper = {}
        with composing() as loader:
            forms = (Cells.read(sweeper, laptop=scale) for scale in (False, True))
            cells, laptop = (form.named(loader) for form in forms)
        chosen = files.chosen(option.choices)
        choices = {key: path.partition("/")[2] for key, path in chosen.items() if path}
        return cls(config, choices, cells, files, measured), len(laptop)

    def _models(self, cell: Sequence[str]) -> dict[str, Model]:
        """The models of a cell: those of the configuration, with the options that it chooses. What
        an option chooses in its turn, such as a re-ranker's language model, counts too."""
        models = models_of(self.config)
        for word in filter(is_choice, cell):
            key = key_of(word)
            if key in _WITHOUT_MODELS:
                continue
            group = next((g for g in self.config if choice_of(g) == key), key)
            models.pop(group, None)
            models |= models_of(self._chosen(word))
        return models

    def _chosen(self, word: str) -> dict[str, Any]:
        """The configuration in which a cell's choice, such as `llm=gpt-5.5`, is the only one."""
        _, key, path = read_default(dict([word.split("=", 1)]))
        return self._files.compose({key: path})

    @property
    def published(self) -> PublishedTable | None:
        """The paper's table for these cells, if there is one."""
        name = self.config["comparison"]["published"]
        return read_published(name) if name else None

    def command(self, name: str) -> str:
        """The command that runs the experiment of this name, which the comment of its file states
        where it is another one than `run`."""
        text = self._files.text(f"experiment/{name}")
        stated = re.search(rf"soundingline (\w+) experiment={re.escape(name)}\b", text)
        return stated[1] if stated else "run"

    @property
    def needs(self) -> list[str]:
        """Keys by their variables, the canary, and the gigabytes of weights of the largest cell."""
        every = [model for models in self.models for model in models.values()]
        keys = sorted({model.key for model in every if model.key})
        canary = [VARIABLE] if self.config["benchmark"].get("obfuscated") else []
        return [*keys, *canary, *self._gpu()]

    def _gpu(self) -> list[str]:
        cells = [{m.name: m.gigabytes for m in cell.values() if m.local} for cell in self.models]
        large = [
            {name: size for name, size in cell.items() if size is not None and size >= _SMALL}
            for cell in cells
        ]
        largest = max(large, key=lambda cell: sum(cell.values()), default={})
        parts = ", ".join(f"{name.split('/')[-1]} {size:.0f}" for name, size in largest.items())
        text = f"GPU: {sum(largest.values()):.0f} GB of weights in the largest cell ({parts})"
        others = {name: size for cell in cells for name, size in cell.items()}
        unknown = [name.split("/")[-1] for name, size in sorted(others.items()) if size is None]
        small = [n.split("/")[-1] for n, size in sorted(others.items()) if size and size < _SMALL]
        return [
            *([text] if largest else []),
            *([f"GPU for {', '.join(unknown)}"] if unknown else []),
            *([f"a GPU for {', '.join(small)} on a large corpus"] if small else []),
        ]

    def estimates(self) -> Iterator[ExperimentEstimate | None]:
        """The estimate of each cell; None without an agent that asks a model, and where the number
        of questions is unknown."""
        for cell, models in zip(self.cells, self.models, strict=True):
            yield self._estimate(cell, models)

    def _estimate(
        self, cell: Sequence[str], models: Mapping[str, Model]
    ) -> ExperimentEstimate | None:
        """After n calls, an agent has sent n + 1 requests. Each repeats the prompt and all that
        earlier calls added, which servers with a prefix cache bill as cached: input = (n + 1)
        prompt + n (n + 1) / 2 call, of which fresh = prompt + n call.

        n is the published number of calls, or 20: Pi-Serini's agents make 15 to 24. A call adds k
        max_tokens + 250 tokens with `tool=top_k`. With other tools it adds 880, for which 20 calls
        cost gpt-5.5 the $291.6 that 830 questions of Pi-Serini cost; the share of cached tokens is
        then 91 %, in the paper 82 to 90 %. A request takes 10 seconds: 20 calls end where that
        agent is told to answer, after 210. Enrichment, re-rankers and the judge do not count."""
        values = dict(word.split("=", 1) for word in cell)
        agent, llm, tool = (
            (self._chosen(f"{group}={values[group]}") if group in values else self.config)[group]
            for group in ("agent", "llm", "tool")
        )
        questions = self._questions
        if "llm" not in models or not questions or not agent["_target_"].endswith("ChatAgent"):
            return None
        repeats = int(self.config["repeats"])
        asked = questions * repeats
        if run := self._measurement(values, str(llm["model"])):
            tokens = {"input": run.input, "cached": run.cached, "output": run.output}
            one = Usage(**{k: round(n / run.requests) for k, n in tokens.items()})
            cost = Price.of_record(llm["price"]).cost(one)
            return ExperimentEstimate(
                questions,
                repeats,
                run.calls,
                round(run.input),
                round(run.cached),
                round(run.output),
                None if cost is None else cost * run.requests * asked,
                asked * run.seconds / self.config["concurrency"] / 3600,
                f"measured on {run.questions:,} questions of {run.run}",
            )
        row: Mapping[str, Any] = next(
            (
                row
                for row in (self.published.cells if self.published else ())
                if all(values.get(key, str(v)) == str(v) for key, v in factors_of(row).items())
            ),
            {},
        )
        calls = sum(row.get(name) or 0.0 for name in ("search_calls", "read_calls")) or CALLS
        origin = "by formula" if calls is CALLS else "by formula from the paper's calls"
        added = tool["k"] * tool["max_tokens"] + REPLY if "k" in tool else CALL
        fresh = PROMPT + calls * added
        read = (calls + 1) * PROMPT + calls * (calls + 1) / 2 * added
        written = (calls + 1) * REPLY
        usage = Usage(input=round(read), cached=round(read - fresh), output=round(written))
        cost = Price.of_record(llm["price"]).cost(usage)
        paper = None if self._asked else row.get(RUN_DOLLARS)  # of all its questions
        budget = self.config["budget"]
        limit = None if budget.get("clock") == "virtual" else budget.get("seconds")
        seconds = min((calls + 1) * SECONDS, limit or float("inf"))
        return ExperimentEstimate(
            questions,
            repeats,
            calls,
            round(read),
            round(read - fresh),
            round(written),
            paper * repeats if paper is not None else None if cost is None else cost * asked,
            asked * seconds / self.config["concurrency"] / 3600,
            "the paper's figure" if paper is not None else origin,
        )

    def _measurement(self, values: Mapping[str, str], model: str) -> Measured | None:
        """The run with the same benchmark, agent, tool and model that has the most questions."""
        names = (values.get(g, self._choices.get(g, "")) for g in ("benchmark", "agent", "tool"))
        key = (*names, model)
        runs = [run for run in self._measured if run.key == key]
        return max(runs, key=lambda run: run.questions, default=None)

    @property
    def _questions(self) -> int | None:
        """That of the constructor, else the published number, else that of a whole benchmark where
        it is known."""
        if self._asked:
            return self._asked
        if self.published and self.published.questions:
            return self.published.questions
        return published_questions(self.config["benchmark"], self._choices.get("benchmark", ""))

    def estimate_text(self) -> str:
        """The dollars and hours of all cells."""
        known = [each for each in self.estimates() if each]
        if not known:
            return ""
        hours = sum(each.hours for each in known)
        priced = [each.dollars for each in known if each.dollars is not None]
        origin = "; ".join(dict.fromkeys(each.source for each in known))
        dollars = f"${sum(priced):,.0f}" if priced else "no bill for served models"
        dollars += f" ({origin})"
        if priced and len(priced) < len(self.cells):
            dollars += f" for {len(priced)} of {len(self.cells)} cells"
        return f"{dollars}; {hours:,.0f} hours at concurrency={self.config['concurrency']}"

    def power_text(self) -> str:
        """The smallest difference in accuracy from the baseline that the design can find; empty
        where it has one cell, or where the number of questions is unknown.

        A comparison is tested at .05 over the number of comparisons, which is the first step of
        Holm's correction.
        """
        questions, compared = self._questions or self.config["benchmark"].get("limit"), self.cells
        if not questions or questions < 2 or len(compared) < 2:
            return ""
        tests = len(compared) - 1
        found = [
            smallest_difference(questions, math.sqrt(share), alpha=0.05 / tests)
            for share in CHANGED
        ]
        low, high = (f"{share:.0%}" for share in CHANGED)
        return (
            f"power: with {questions:,} questions and {tests} comparison{'s' * (tests > 1)}, a "
            f"difference in accuracy of {found[0]:.3f} is significant with probability 0.8 if "
            f"{low} of the answers change between right and wrong, and one of {found[1]:.3f} if "
            f"{high} change"
        )

    def formula(self) -> Iterator[str]:
        """The numbers behind the estimate, one line for each cell."""
        for number, each in enumerate(self.estimates(), start=1):
            if each:
                share = each.cached / each.input
                dollars = "unknown price" if each.dollars is None else f"${each.dollars:,.2f}"
                dollars += f" ({each.source})"
                repeats = f"{each.repeats} repeats x " if each.repeats > 1 else ""
                yield (
                    f"estimate of cell {number}: {each.questions:,} questions x {repeats}"
                    f"({each.calls:g} calls: {each.input:,} tokens in, {share:.0%} cached, "
                    f"{each.output:,} out): {dollars}; "
                    f"{each.hours:,.1f} hours"
                )


def block(name: str, about: str, plan: ExperimentPlan, laptop: int) -> str:
    """What `soundingline list experiments` prints of an experiment, in at most `WIDTH` columns."""
    published = plan.published
    source = published.title if published else "none"
    if published and published.questions:
        source += f"; {published.questions:,} questions"
    lines = {
        "about": about,
        "paper": source,
        "command": f"soundingline {plan.command(name)} experiment={name}",
        "cells": f"{len(plan.cells)}; with scale=laptop {laptop}",
        "needs": "; ".join(plan.needs) or "nothing but its data",
        "estimate": plan.estimate_text(),
        "state": published.state if published else "",
        "differs": "; ".join(published.differences) if published else "",
    }
    shown = [f"experiment={name}"]
    for title, text in lines.items():
        for place, line in enumerate(text.splitlines()):
            head = f"  {title if not place else '':10} "
            shown += textwrap.wrap(
                line, WIDTH, initial_indent=head, subsequent_indent=" " * 15, break_on_hyphens=False
            )
    return "\n".join(shown)
