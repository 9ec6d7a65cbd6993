"""What an experiment needs before it is started: keys, GPU memory, a canary, dollars and hours.

Tokens and seconds of a question are those of a run on disk with the same benchmark, agent, tool and
model, if there is one. Otherwise dollars are the paper's if it states them, else those of a formula
(`ExperimentPlan._question_by_formula`), which `soundingline describe experiment=...` prints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from soundingline.experiments.config import CONF, option_folders
from soundingline.experiments.published_figures import RUN_DOLLARS, rows_of
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import load_runs
from soundingline.toolkit.evaluation.published_tables import PublishedTable, read_published
from soundingline.toolkit.evaluation.statistics import smallest_difference
from soundingline.toolkit.evaluation.threats import ComposedCell
from soundingline.toolkit.llm.messages import Usage
from soundingline.toolkit.llm.prices import CostForecast, Price, forecast
from soundingline.toolkit.obfuscation import VARIABLE

CALLS, PROMPT, REPLY, CALL, SECONDS = 20.0, 1500, 250, 880, 10.0
CHANGED = (0.1, 0.3)  # shares of answers that are right in one of two cells alone
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


class TypicalQuestion(NamedTuple):
    """What one question takes: calls of tools, tokens, dollars (None: unknown) and seconds, and the
    source of the dollars, or of the tokens where there are none."""

    calls: float
    input: int
    cached: int
    output: int
    dollars: float | None
    seconds: float
    source: str


class ExperimentEstimate(NamedTuple):
    """What a cell takes with its repeats, by a typical question."""

    questions: int
    repeats: int
    typical: TypicalQuestion
    total: CostForecast


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


def _measured_question(run: Measured, price: Price) -> TypicalQuestion:
    means = (round(tokens / run.requests) for tokens in (run.input, run.cached, run.output))
    read, cached, written = means  # of a request
    cost = price.cost(Usage(input=read, cached=cached, output=written))
    dollars = None if cost is None else cost * run.requests
    tokens = round(run.input), round(run.cached), round(run.output)
    source = f"measured on {run.questions:,} questions of {run.run}"
    return TypicalQuestion(run.calls, *tokens, dollars, run.seconds, source)


def measured_runs(runs: Path) -> list[Measured]:
    """The evaluated runs of agents with a model below a folder of runs, whose tokens are known."""
    measured = []
    for path in sorted({*runs.glob("*/metrics.json"), *runs.glob("*/*/metrics.json")}):
        with suppress(InputError):  # a run that is damaged or from another version tells nothing
            (run,) = load_runs([path.parent])
            config, factors = run.manifest.get("config", {}), run.factors
            rows = [run.per_question.get(name, {}) for name in _MEASURED]
            qids = set(rows[0]).intersection(*rows[1:3], *rows[4:])  # not all servers have a cache
            if not qids or not config.get("llm"):
                continue
            means = (sum(row.get(qid, 0.0) for qid in qids) / len(qids) for row in rows)
            groups = (factors.get(group, "") for group in ("benchmark", "agent", "tool"))
            key = (*groups, str(config["llm"].get("model")))
            measured.append(Measured(key, path.relative_to(runs).parts[0], len(qids), *means))
    return measured


def command_of(name: str, search_path: Sequence[str] = ()) -> str:
    """The command that runs the experiment of this name, which the comment of its file states where
    it is another one than `run`."""
    for folder in (CONF, *option_folders(search_path)):
        file = folder / "experiment" / f"{name}.yaml"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if stated := re.search(rf"soundingline (\w+) experiment={re.escape(name)}\b", text):
            return stated[1]
    return "run"


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
            on_this_machine = address.startswith(("http://127.0.0.1", "http://localhost"))
            local = "Vllm" in server["_target_"] if server else on_this_machine
        elif "device" in option:
            key, local = "", True
        else:
            continue
        models[group] = Model(group, str(name), str(key), local)
    return models


class ExperimentPlan:
    """An experiment: its cells, and the models of each.

    Args:
        cells: its composed cells, one or more.
        measured: what runs on disk have taken.
        questions: the number of questions of a cell; None for the published one, or that of a whole
            benchmark where it is known.
    """

    def __init__(
        self,
        cells: Sequence[ComposedCell],
        measured: Sequence[Measured] = (),
        questions: int | None = None,
    ) -> None:
        self.cells, self._measured, self._asked = cells, measured, questions
        self.models = [models_of(cell.config) for cell in cells]

    @property
    def published(self) -> PublishedTable | None:
        """The paper's table for these cells, if there is one."""
        name = self.cells[0].value("comparison", "published")
        return read_published(name) if name else None

    @property
    def needs(self) -> list[str]:
        """Keys by their variables, the canary, and the gigabytes of weights of the largest cell."""
        every = [model for models in self.models for model in models.values()]
        keys = sorted({model.key for model in every if model.key})
        obfuscated = any(cell.value("benchmark", "obfuscated") for cell in self.cells)
        canary = [VARIABLE] if obfuscated else []
        return [*keys, *canary, *self._gpu()]

    def _gpu(self) -> list[str]:
        cells = [{m.name: m.gigabytes for m in cell.values() if m.local} for cell in self.models]
        large = [
            {name: size for name, size in cell.items() if size is not None and size >= _SMALL}
            for cell in cells
        ]
        largest = max(large, key=lambda cell: sum(cell.values()), default={})
        weights = ", ".join(f"{name.split('/')[-1]} {size:.0f}" for name, size in largest.items())
        text = f"GPU: {sum(largest.values()):.0f} GB of weights in the largest cell ({weights})"
        sizes = sorted({name: size for cell in cells for name, size in cell.items()}.items())
        unknown = [name.split("/")[-1] for name, size in sizes if size is None]
        small = [name.split("/")[-1] for name, size in sizes if size and size < _SMALL]
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
        self, cell: ComposedCell, models: Mapping[str, Model]
    ) -> ExperimentEstimate | None:
        questions, repeats = self._questions(cell), int(cell.value("repeats"))
        agent = str(cell.value("agent", "_target_"))
        if "llm" not in models or not questions or not agent.endswith("ChatAgent"):
            return None
        price = Price.of_record(cell.value("llm", "price"))
        if run := self._measurement(cell):
            typical = _measured_question(run, price)
        else:
            typical = self._question_by_formula(cell, price, questions)
        asked = questions * repeats
        cost = {} if typical.dollars is None else {"dollars": typical.dollars}
        seconds = asked * typical.seconds / cell.value("concurrency")
        return ExperimentEstimate(questions, repeats, typical, forecast([cost], asked, seconds))

    def _question_by_formula(
        self, cell: ComposedCell, price: Price, questions: int
    ) -> TypicalQuestion:
        """After n calls, an agent has sent n + 1 requests. Each repeats the prompt and all that
        earlier calls added, which servers with a prefix cache bill as cached: input = (n + 1)
        prompt + n (n + 1) / 2 call, of which fresh = prompt + n call.

        n is the published number of calls, or 20: Pi-Serini's agents make 15 to 24. A call adds k
        max_tokens + 250 tokens with `tool=top_k`. With other tools it adds 880, for which 20 calls
        cost gpt-5.5 the $291.6 that 830 questions of Pi-Serini cost; the share of cached tokens is
        then 91 %, in the paper 82 to 90 %. A request takes 10 seconds: 20 calls end where that
        agent is told to answer, after 210. Enrichment, re-rankers and the judge do not count."""
        rows = rows_of(self.published, cell.config, cell.factors) if self.published else []
        row, tool, budget = rows[0] if rows else {}, cell.value("tool"), cell.value("budget")
        calls = sum(row.get(name) or 0.0 for name in ("search_calls", "read_calls")) or CALLS
        source = "by formula" if calls is CALLS else "by formula from the paper's calls"
        added = tool["k"] * tool["max_tokens"] + REPLY if "k" in tool else CALL
        fresh = PROMPT + calls * added
        read = (calls + 1) * PROMPT + calls * (calls + 1) / 2 * added
        written = (calls + 1) * REPLY
        tokens = round(read), round(read - fresh), round(written)
        dollars = price.cost(Usage(input=tokens[0], cached=tokens[1], output=tokens[2]))
        paper = None if self._asked else row.get(RUN_DOLLARS)  # of all its questions
        if paper is not None:
            dollars, source = float(paper) / questions, "the paper's figure"
        limit = None if budget.get("clock") == "virtual" else budget.get("seconds")
        seconds = min((calls + 1) * SECONDS, limit or float("inf"))
        return TypicalQuestion(calls, *tokens, dollars, seconds, source)

    def _measurement(self, cell: ComposedCell) -> Measured | None:
        """The run with the same benchmark, agent, tool and model that has the most questions."""
        names = (cell.factors.get(group, "") for group in ("benchmark", "agent", "tool"))
        key = (*names, cell.model("llm"))
        runs = [run for run in self._measured if run.key == key]
        return max(runs, key=lambda run: run.questions, default=None)

    def _questions(self, cell: ComposedCell) -> int | None:
        """That of the constructor, else the published number, else that of the cell's benchmark
        where it is known."""
        return self._asked or (self.published and self.published.questions) or cell.questions

    def estimate_text(self) -> str:
        """The dollars and hours of all cells."""
        estimates = list(filter(None, self.estimates()))
        if not estimates:
            return ""
        hours = sum(cell.total.seconds for cell in estimates) / 3600
        priced = [cell.total.dollars for cell in estimates if cell.total.dollars is not None]
        origin = "; ".join(dict.fromkeys(cell.typical.source for cell in estimates))
        dollars = f"${sum(priced):,.0f}" if priced else "no bill for served models"
        dollars += f" ({origin})"
        if priced and len(priced) < len(self.cells):
            dollars += f" for {len(priced)} of {len(self.cells)} cells"
        return f"{dollars}; {hours:,.0f} hours at concurrency={self.cells[0].value('concurrency')}"

    def power_text(self) -> str:
        """The smallest difference in accuracy from the baseline that the design can find; empty
        where it has one cell, or where the number of questions is unknown.

        A comparison is tested at .05 over the number of comparisons, which is the first step of
        Holm's correction.
        """
        questions, tests = self._questions(self.cells[0]), len(self.cells) - 1
        if not questions or questions < 2 or tests < 1:
            return ""
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

    def lines(self) -> Iterator[str]:
        """What `soundingline describe` prints of it."""
        if estimate := self.estimate_text():
            yield f"estimate: {estimate}"
        yield f"needs: {'; '.join(self.needs) or 'nothing but its data'}"
        if table := self.published:
            questions = f"; {table.questions:,} questions" if table.questions else ""
            yield f"paper: {table.title}{questions}"
            yield f"state: {table.state}"
            yield from (f"differs: {each}" for each in table.differences)
        yield from self.formula()
        if power := self.power_text():
            yield power

    def formula(self) -> Iterator[str]:
        """The numbers of the estimate, one line for each cell."""
        for number, estimate in enumerate(self.estimates(), start=1):
            if estimate:
                typical, total = estimate.typical, estimate.total
                dollars = "unknown price" if total.dollars is None else f"${total.dollars:,.2f}"
                repeats = f"{estimate.repeats} repeats x " if estimate.repeats > 1 else ""
                yield (
                    f"estimate of cell {number}: {estimate.questions:,} questions x {repeats}"
                    f"({typical.calls:g} calls: {typical.input:,} tokens in, "
                    f"{typical.cached / typical.input:.0%} cached, {typical.output:,} out): "
                    f"{dollars} ({typical.source}); {total.seconds / 3600:,.1f} hours"
                )
