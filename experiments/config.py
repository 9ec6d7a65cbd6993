"""The configuration that a command line composes, with or without a Hydra application around it.

Hydra 1.3 silently adds an unknown group to an untyped root, so that the root is a dataclass. Groups
are `Any`: the schema of an option is the signature of its `_target_`."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, QuotedString, Sweep
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from hydra_plugins.soundingline import Cells, ChangeSweeper, RayLauncher, varied_options
from omegaconf import MISSING, DictConfig, OmegaConf, flag_override
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from soundingline.toolkit.errors import InputError, did_you_mean, is_number, our_name, parse
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import VARIED


@dataclass
class Paths:
    data: str = MISSING
    indexes: str = MISSING
    runs: str = MISSING
    caches: str | None = MISSING
    caches_gb: float | None = 10.0


@dataclass
class Tuning:
    objective: str = "nDCG@10"
    select: str | None = "dev"
    report: str = "test"
    folds: int = 5
    seed: int = 0
    depth: int = 1000
    references: list[Any] = field(default_factory=list)
    threads: int | None = None


@dataclass
class Comparison:
    published: str | None = None
    baseline: dict[str, str] = field(default_factory=dict)
    primary: str | None = None
    margin: float | None = None
    accept: list[str] = field(default_factory=list)


@dataclass
class EvaluationSettings:
    forced_answers: bool = True
    prices: str | None = None


@dataclass
class Indexing:
    shards: int = 1
    shard: int | None = None
    confirm: bool = False


@dataclass
class Preflight:
    check: bool = True
    questions: int = 5
    stop: bool = True


@dataclass
class Root:
    benchmark: Any = MISSING
    unit: Any = MISSING
    engine: Any = MISSING
    rewriter: Any = MISSING
    rewriter_llm: Any = None
    enrichment: Any = MISSING
    enrichment_llm: Any = None
    retriever: Any = MISSING
    reranker: Any = MISSING
    reranker_llm: Any = None
    tool: Any = MISSING
    scorer: Any = None
    librarian_llm: Any = None
    list_reranker: Any = None
    llm: Any = None
    budget: Any = MISSING
    agent: Any = MISSING
    judge: Any = MISSING
    judge_llm: Any = None
    grid: Any = MISSING
    logger: Any = None
    paths: Paths = field(default_factory=Paths)
    name: str | None = None
    scale: str = "paper"
    sealed: bool = True
    traces: Any = True
    task: str = "general"
    measures: list[str] = field(default_factory=list)
    optimized_metric: str | None = None
    passage_splitter: str = "rules"
    concurrency: int = 1
    repeats: int = 1
    preflight: Preflight = field(default_factory=Preflight)
    placement: Any = None
    comparison: Comparison = field(default_factory=Comparison)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    indexing: Indexing = field(default_factory=Indexing)
    tuning: Tuning = field(default_factory=Tuning)


# What the first part of an override's key may be.
ROOTS = (*(each.name for each in fields(Root)), "experiment", "hydra")
_SECTIONS: Mapping[str, type] = {
    "preflight": Preflight,
    "comparison": Comparison,
    "evaluation": EvaluationSettings,
    "indexing": Indexing,
}
_GROUPED = {
    each.name: f"{name}.{each.name}" for name, kind in _SECTIONS.items() for each in fields(kind)
}


class CommandCells(NamedTuple):
    """The cells that a command line starts; where it starts no sweep, one cell with its overrides.

    - `cells`: all overrides of each cell.
    - `added`: what each cell adds to the command line. Overrides of one value are in every cell,
      and are left out.
    - `late`: the overrides that the start of the sweep cannot be composed with, and its cells can:
      arguments of an option that the sweep varies, such as `benchmark.limit` of
      `benchmark=vaswani,cacm`, which the default of that option does not have.
    """

    cells: list[list[str]]
    added: list[list[str]]
    late: list[str]

    @classmethod
    def of(
        cls, overrides: Sequence[str], search_path: Sequence[str] = (), *, multirun: bool = False
    ) -> CommandCells:
        """The cells of a command line, which with `multirun` (`-m`), several values, or an
        experiment that says so starts a sweep. Raises what Hydra refuses.

        The cells are those of our sweeper (`hydra_plugins.soundingline`), so that an override
        of a swept key replaces its values. With another sweeper, which chooses cells as it goes,
        one cell with the overrides of one value stands for all.
        """
        register()
        parsed = override_parser().parse_overrides(list(overrides))
        single = [item for item in parsed if not item.is_sweep_override()]
        words = [item.input_line for item in single]
        with composing() as loader:
            config, late, refusal = _start_of(words, search_path)
            multirun |= len(single) < len(parsed) or config.hydra.mode == RunMode.MULTIRUN
            described = Cells.of(config) if multirun else None
            cells = described.named(loader, overrides) if described else [words]
        arguments = tuple(f"{name}." for name in varied_options(cells))
        if refusal and not all(key_of(word).startswith(arguments) for word in late):
            raise refusal
        if described is None:
            return cls(cells, [[]], [])
        shared = {f"{o.get_key_element()}={o.get_value_element_as_str()}" for o in single}
        return cls(cells, [[word for word in cell if word not in shared] for cell in cells], late)


def _start_of(
    words: Sequence[str], search_path: Sequence[str]
) -> tuple[DictConfig, list[str], HydraException | None]:
    """The configuration with which a sweep starts, the overrides whose keys it does not have, and
    the error that says so."""
    late: list[str] = []
    refusal = None
    while True:
        composed = [*search_override(search_path), *(word for word in words if word not in late)]
        try:
            return compose(ROOT_CONFIG, overrides=composed, return_hydra_config=True), late, refusal
        except HydraException as error:
            key, refusal = unknown_key(error), refusal or error
            unknown = [word for word in composed if key and key_of(word) == key]
            if not unknown:
                raise refusal from refusal.__cause__
            late += unknown


def unknown_key(error: BaseException) -> str:
    """The key that a composed configuration does not have, of an error that says so; else empty."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if not isinstance(cause, (ConfigAttributeError, ConfigKeyError)):
        return ""
    return str(cause.full_key or cause.key)


CHOSEN = "chosen.yaml"
TUNED = ("unit", "engine")  # the groups whose settings a choice holds for
_AGAIN = (
    "run soundingline tune first, give retriever.source=runs/<name>, or choose "
    "retriever=bm25_crossfit, which tunes by itself"
)
_FOLDS = "fold_parameters"


def read_chosen(path: str, key: str, *, _root_: Any = None) -> float | list[Any] | None:
    """The `k1` or `b` that a tuning chose, or the `fold_parameters` of a tuning by cross-validation
    (None for another tuning).

    `path` is such a file, a tuning's folder, or the folder of a sweep of tunings; of that, the cell
    is taken that was tuned on the benchmark and with the unit and the engine of `_root_`, the
    configuration, which OmegaConf gives. `InputError` where there is none, or where there are
    several, and for folds of another benchmark's questions.
    """
    file = _chosen_file(Path(path), _root_)
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, OmegaConfBaseException, YAMLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {file}: {reason}", do=_AGAIN) from error
    value = content.get(key) if isinstance(content, Mapping) else None
    if key == _FOLDS:
        return _checked_folds(value, file, _root_)
    if not is_number(value):
        raise InputError(f"{file} has no {key}", valid="k1 and b as numbers", do=_AGAIN)
    return float(value)


def _checked_folds(value: Any, file: Path, root: Any) -> list[Any] | None:
    if value is None:
        return None
    # Here, so that a command starts without PyTerrier.
    from soundingline.pipelines.retrieve import FoldParameters

    parse(list[FoldParameters], value, where=file, do=_AGAIN, strict=True)
    if any("${" in qid for fold in value for qid in fold["questions"]):
        # OmegaConf would resolve it.
        raise InputError(f"{file}: the id of a question holds ${{", do=_AGAIN)
    tuned = RunFolder(file.parent).manifest() if (file.parent / "manifest.json").exists() else {}
    on = _name_of_benchmark((tuned.get("config") or {}).get("benchmark"))
    if on and on != (here := _benchmark_name(_root_=root)):
        raise InputError(
            f"{file} has the folds of the questions of {on}, and this run is on {here}",
            valid="a tuning on the benchmark of the run",
            do=_AGAIN,
        )
    return list(value)


def _chosen_file(path: Path, root: Any) -> Path:
    if not path.is_dir():
        return path
    cells = sorted(file.parent for file in path.glob(f"*/{CHOSEN}"))
    if (path / CHOSEN).exists() or not cells:
        return path / CHOSEN
    from soundingline.experiments.build import (
        identifying_values,
    )  # here, because it imports clients

    # A recorded tuning is data: nothing in it is resolved, and nothing that it names is imported.
    config = {group: plain_values(root[group]) for group in ("benchmark", *TUNED)}
    runtime = {
        group: {*config[group]} - {*identifying_values(config[group], group)} for group in TUNED
    }
    identity = _tuning_identity(redact(config), runtime)
    recorded = {cell: RunFolder(cell).manifest().get("config") for cell in cells}
    matching = [cell for cell in cells if _tuning_identity(recorded[cell], runtime) == identity]
    if len(matching) == 1:
        return matching[0] / CHOSEN
    number = f"{len(matching)} tunings" if matching else "no tuning"
    raise InputError(
        f"{path} holds {number} with the benchmark, the unit and the engine of this run",
        valid=", ".join(cell.name for cell in matching or cells),
        do=f"name one of them: retriever.source={path}/..., or tune with these: "
        f"soundingline tune -m name={path.name} tuning.select=null unit=...",
    )


def _tuning_identity(config: Any, runtime: Mapping[str, set[str]]) -> dict[str, Any]:
    """The name of the benchmark and the settings of unit and engine for which a choice holds, all
    but those that change no result."""
    values = config if isinstance(config, dict) else {}
    tuned: dict[str, Any] = {}
    for group in TUNED:
        option = values.get(group)
        items = option.items() if isinstance(option, dict) else ()
        tuned[group] = {key: value for key, value in items if key not in runtime[group]}
    return {**tuned, "benchmark": _name_of_benchmark(values.get("benchmark"))}


CONF = Path(__file__).resolve().parents[1] / "conf"
ROOT_CONFIG = "config"
NO_OPTION = ("None", "null")  # what Hydra calls the choice of no option
_HOME = re.compile(r"""((?:^|[=,\[({:])\s*["']?)~(?=/)""")
_NONE_BY_DEFAULT = ("llm", "scorer", "experiment", "placement", "scale")


def register() -> None:
    """Make `root_schema` and our resolvers (`chosen`, `benchmark_name`, `home`, `shipped`) known;
    called by what composes, not on import."""
    if "root_schema.yaml" not in ConfigStore.instance().repo:
        root: Any = OmegaConf.structured(Root)
        # comparison.baseline.retriever=ql adds a factor, like any other override without a plus.
        OmegaConf.set_struct(root.comparison.baseline, False)
        ConfigStore.instance().store(name="root_schema", node=root)
    for plugin in (ChangeSweeper, RayLauncher):
        Plugins.instance().register(plugin)
    OmegaConf.register_new_resolver("chosen", read_chosen, replace=True)
    OmegaConf.register_new_resolver("home", os.path.expanduser, replace=True)
    OmegaConf.register_new_resolver("benchmark_name", _benchmark_name, replace=True)
    OmegaConf.register_new_resolver("shipped", _shipped, replace=True)


def _shipped(name: str) -> str:
    """`${shipped:NAME}`: the folder of a collection that comes with this package."""
    return str(resources.files("soundingline.toolkit.benchmarks").joinpath(name))


def _benchmark_name(*, _root_: Any) -> str:
    """`${benchmark_name:}`: the benchmark's name; without one that of its folder, or its dataset's
    id with dashes."""
    return _name_of_benchmark(_root_.benchmark)


def _name_of_benchmark(benchmark: Any) -> str:
    """The same of a benchmark's values; empty without any."""
    if not benchmark:
        return ""
    if name := benchmark.get("name"):
        return str(name)
    if path := benchmark.get("path"):
        return Path(path).resolve().name
    return str(benchmark.get("dataset", "benchmark")).replace("/", "-")


@dataclass(frozen=True)
class Settings:
    """What a command line composes.

    - `config`: the resolved configuration.
    - `choices`: the chosen option by group, such as `retriever` or `llm@rewriter_llm`.
    - `overrides`: the command line, without what is for Hydra itself.
    - `search_path`: folders of one's own options (`--config-dir`, `hydra.searchpath`).
    - `benchmark`: the benchmark's values before references to other settings were resolved.
    - `multirun`: whether this is one job of a sweep.
    - `varied`: the keys in which the cells of this sweep differ; empty if they are not known.
    """

    config: DictConfig
    choices: Mapping[str, str]
    overrides: Sequence[str] = ()
    search_path: Sequence[str] = ()
    benchmark: Mapping[str, Any] = field(default_factory=dict)
    multirun: bool = False
    varied: Sequence[str] = ()
    _options: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_options(self.config)
        with flag_override(self.config, ["readonly", "struct"], [False, False]):
            if self.choices.get("llm") in NO_OPTION:
                self.config.llm = None  # settings that an experiment has for its models
            _expand_values(self.config, OmegaConf.to_container(self.config, resolve=False))
            _expand_values(self.config.paths, plain_values(self.config.paths))
        place(self.config)
        if (traces := self.config.get("traces", True)) not in (True, False, "plain"):
            raise InputError(f"traces={traces}", valid="true, false, plain", do="set one of them")

    @classmethod
    def compose(cls, overrides: Sequence[str] = (), search_path: Sequence[str] = ()) -> Settings:
        """Compose the options of `conf/` and of the folders in `search_path`. What Hydra and
        OmegaConf refuse is raised as they raise it, but for choices that name no option."""
        overrides = [expand_home(override) for override in overrides]
        check_choices(overrides)
        register()
        with composing():
            all_overrides = [*search_override(search_path), *overrides]
            config = compose(ROOT_CONFIG, overrides=all_overrides, return_hydra_config=True)
            check_keys(config)
            unresolved = _unresolved(config)
            of_job: Any = HydraConfig.instance()
            before = of_job.cfg
            of_job.set_config(config)  # `${hydra:...}` reads it
            try:
                values = {key: _resolved(config, key) for key in config if key != "hydra"}
            finally:
                of_job.cfg = before
        resolved = OmegaConf.create(values, flags={"struct": True})
        choices = _choices(config.hydra)
        task, folders = tuple(_task_overrides(config.hydra)), tuple(search_path_of(config.hydra))
        return cls(resolved, choices, task, folders, unresolved)

    @classmethod
    def of_job(cls, config: DictConfig) -> Settings:
        """Those of the Hydra job that runs now."""
        check_keys(config)
        hydra = HydraConfig.get()
        return cls(
            config,
            _choices(hydra),
            tuple(_task_overrides(hydra)),
            tuple(search_path_of(hydra)),
            _unresolved(config),
            hydra.mode == RunMode.MULTIRUN,
            os.environ.get(VARIED, "").split(),
        )

    def option_names(self, group: str) -> list[str]:
        """The options of a group, or of a folder below one, that this command line can choose."""
        if group not in self._options:
            search = search_override(self.search_path)
            with composing() as loader:
                names = loader.get_group_options(group, config_name=ROOT_CONFIG, overrides=search)
            self._options[group] = sorted(names)
        return list(self._options[group])

    def option(self, group: str, name: str) -> dict[str, Any]:
        """The resolved values of an option, its `_target_` included, with this command line's
        paths; what it leaves to its user is `???`."""
        choice = f"{group}={name}"
        if choice not in self._options:
            paths = [item for item in self.overrides if key_of(item).partition(".")[0] == "paths"]
            config = Settings.compose([*paths, choice], self.search_path).config
            self._options[choice] = plain_values(config[group])
        return dict(self._options[choice])


def place(config: DictConfig) -> None:
    """Apply `placement`, which holds for groups such as `llm` and `reranker` any of `gpus` (numbers
    among those that the process sees), `memory` (the share of a vLLM), and `base_url` and `key_env`
    of a server that runs already. Groups that the configuration has no model for stay as they are.

    Raises:
        InputError: If there is no GPU of a number, or nothing is placed.
    """
    layout = plain_values(config.get("placement"))
    placed = False
    for group, settings in layout.items():
        option = config.get(group)
        if not OmegaConf.is_dict(option):
            continue
        with flag_override(option, ["readonly", "struct"], [False, False]):
            placed |= _place(option, **settings)
    if layout and not placed:
        raise InputError(
            "placement= places nothing that this configuration has",
            valid=f"a local model as one of {', '.join(layout)}",
            do="choose one, or write ~placement for none",
        )


def _place(
    option: Any,
    gpus: Sequence[int] = (),
    memory: float | None = None,
    base_url: str | None = None,
    key_env: str | None = None,
) -> bool:
    """Whether a setting of the option was placed. What the command line sets stays."""
    server = option.get("server")
    if gpus and server is not None:
        server.environment.setdefault("CUDA_VISIBLE_DEVICES", ",".join(_visible(gpus)))
    elif gpus and "device" in option:
        option.device = option.device or f"cuda:{gpus[0]}"
    elif not (base_url and server is not None):
        return False
    if base_url:
        option.base_url, option.key_env = option.base_url or base_url, option.key_env or key_env
    options = (server or {}).get("options")
    if options is not None and gpus:
        options.gpu_memory_utilization = options.get("gpu_memory_utilization") or memory
        if options.get("tensor_parallel_size") == options.get("data_parallel_size") == 1:
            options.tensor_parallel_size = len(gpus)
    return True


def _visible(gpus: Sequence[int]) -> list[str]:
    """What CUDA calls the GPUs of these numbers among those that Slurm or the user left us."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(map(str, gpus))
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if max(gpus) >= len(names):
        raise InputError(
            f"placement= needs GPU {max(gpus)}, and this process sees {len(names)} "
            f"(CUDA_VISIBLE_DEVICES={visible})",
            do="ask the cluster for more, or change the numbers: placement.<group>.gpus=[0]",
        )
    return [names[number] for number in gpus]


def expand_home(word: str) -> str:
    """A word of a command line with the home folder in the place of `~` where a value begins with
    `~/`. Shells expand it neither after a key with a dot nor within quotes, and Hydra cannot parse
    it.

    Example:
        >>> expand_home("benchmark.path=~/data") == f"benchmark.path={Path.home()}/data"
        True
    """
    return _HOME.sub(lambda match: match[1] + str(Path.home()), word)


def _expand_values(config: Any, values: Any) -> None:
    """Put the home folder in the place of `~` in the `values` of a configuration that begin with
    `~/`, which files of options and the environment may have."""
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        if isinstance(value, (dict, list)):
            _expand_values(config[key], value)
        elif isinstance(value, str) and value.startswith("~/"):
            config[key] = str(Path(value).expanduser())


def plain_values(option: Any, *, resolve: bool = True) -> dict[str, Any]:
    """The plain values of an option or of a whole configuration; empty for what is none."""
    values = OmegaConf.to_container(option, resolve=resolve) if OmegaConf.is_dict(option) else {}
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


def merged(
    values: Mapping[str, Any],
    others: Mapping[str, Any],
    left_out: Callable[[Any], bool] = lambda value: False,
) -> dict[str, Any]:
    """The values with others over them: mappings are merged, and `???` replaces no value, nor does
    what is `left_out`."""
    result = dict(values)
    for key, value in others.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value, left_out)
        elif not left_out(value) and (value != "???" or key not in result):
            result[key] = value
    return result


def flat_values(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The single values of nested mappings, each with the keys to it, joined by dots."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat_values(inner, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix, value


@cache
def override_parser() -> Any:
    """Hydra's, which keeps nothing of what it has parsed."""
    return OverridesParser.create()


def key_of(override: str) -> str:
    """The key of an override: `retriever.k1` of `+retriever.k1=2`."""
    return override.lstrip("+~").partition("=")[0]


def value_of(override: str) -> Any:
    """The value that an override gives, as Hydra reads it; an empty list where Hydra itself says
    what is wrong with it."""
    try:
        return override_parser().parse_override(override).value()
    except (HydraException, NotImplementedError):
        return []


def choice_of(group: str) -> str:
    """What Hydra calls the choice of a group's option: `llm@judge_llm` of `judge_llm`."""
    if group == "list_reranker":
        return f"reranker@{group}"
    return f"llm@{group}" if group.endswith("_llm") else group


def _check_options(config: DictConfig) -> None:
    """`InputError` for a plain value in the place of an option, such as the option's mere name in
    `list_reranker=monot5`."""
    for group in map(str, config):
        choice = choice_of(group)
        has_options = group != "scale" and (CONF / choice.partition("@")[0]).is_dir()
        if not has_options or OmegaConf.is_missing(config, group):
            continue
        option = config[group]
        if option is None or OmegaConf.is_dict(option):
            continue
        do = f"write {choice}={option}" if isinstance(option, str) else f"choose one: {choice}=NAME"
        raise InputError(f"{group}={option} is not an option", do=do)


def is_choice(override: str) -> bool:
    """Whether an override chooses an option of a group, such as `unit=maxp` or
    `retriever@retriever.second=ql`, rather than a single value."""
    key = key_of(override)
    group = key.partition("@")[0]
    return "@" in key or (CONF / group).is_dir() or "/" in group


def check_keys(config: DictConfig, prefix: str = "") -> None:
    """`InputError` for a key that the dataclass of its node does not have. Hydra adds such a key if
    it is given as `+key=value`, and nothing reads it."""
    schema = OmegaConf.get_type(config)
    if not is_dataclass(schema):
        return
    names = ROOTS if schema is Root else [each.name for each in fields(schema)]
    for key in map(str, config):
        if key not in names:
            raise no_such_key(f"{prefix}{key}", names)
        unset = OmegaConf.is_missing(config, key) or OmegaConf.is_interpolation(config, key)
        # Plugins add keys to Hydra's own part.
        if key != "hydra" and not unset and isinstance(value := config[key], DictConfig):
            check_keys(value, f"{prefix}{key}.")


def no_such_key(key: str, names: Iterable[str]) -> InputError:
    """The error for a key whose last part is not among the `names` at its place."""
    valid = sorted(names)
    last = key.rpartition(".")[2]
    do = f"did you mean {_GROUPED[last]}?" if last in _GROUPED else did_you_mean(last, valid)
    if not do and (ours := our_name(last)):
        return InputError(f"there is no group or key {key!r}", do=ours)
    return InputError(f"there is no group or key {key!r}", valid=", ".join(valid), do=do)


def check_choices(overrides: Iterable[str]) -> None:
    """`InputError` for the first override that chooses of a group what is not the name of an
    option, such as null, a number or a mapping, or names no key. Hydra has no words of its own for
    these.
    """
    for text in overrides:
        if "=" in text and not key_of(text):
            raise InputError(f"{text} names no key", valid="KEY=VALUE")
        if "=" in text and is_number(value_of(text)) and key_of(text) in _SECTIONS:
            section = key_of(text)
            keys = [f"{section}.{each.name}" for each in fields(_SECTIONS[section])]
            do = f"write {keys[1]}={value_of(text)}" if section == "preflight" else ""
            raise InputError(
                f"{text}, and {section} is a group of settings", valid=", ".join(keys), do=do
            )
        if "=" not in text or text.startswith(("-", "~")) or not is_choice(text):
            continue
        value = value_of(text)
        # The options that it names, those of a sweep and of a list too.
        items = value.list if isinstance(value, ChoiceSweep) else [value]
        options = (each for item in items for each in (item if isinstance(item, list) else [item]))
        for option in options:
            if not isinstance(option, (str, QuotedString, Sweep, Glob)):
                raise _no_option(key_of(text), option)


def missing_option(error: MissingConfigException) -> str:
    """A name that no option has, in one line with the valid ones, those in folders below the group
    included."""
    file = error.missing_cfg_file or ""
    start = file.rfind("/") if file.startswith("hydra/") else file.find("/")
    if start < 0:
        return " ".join(str(error).split())
    source = re.match(r"In '([^']+)'", str(error))
    where = f" (in '{source[1]}')" if source and source[1] != ROOT_CONFIG else ""
    return str(_no_option(file[:start], file[start + 1 :], where, error.options or ()))


def _no_option(key: str, value: Any, where: str = "", more: Sequence[str] = ()) -> InputError:
    group, _, package = key.partition("@")
    folder = CONF / group
    files = folder.rglob("*.yaml")
    names = {path.relative_to(folder).with_suffix("").as_posix() for path in files}
    # Those in `base` are what options of several models share, and choose no model.
    valid = sorted(name for name in {*names, *more} if not name.startswith("base/"))
    do = "name one of them" if valid else "name an option of that group"
    if group == "llm" and package:
        do += f", or write {package}=null for none"
    elif "none" in valid:
        do += f", or write {key}=none for none"
    elif group.startswith("hydra/"):
        do += ", or install the plugin of Hydra that has it, such as hydra-optuna-sweeper"
    elif group in _NONE_BY_DEFAULT:
        do += f", or write ~{group} for none"
    if isinstance(value, str):
        do = did_you_mean(value, valid, prefix=f"{key}=") or do
    refused = f"{key}={'null' if value is None else value} names no option{where}"
    if group == "retriever" and isinstance(value, str) and (ours := our_name(value)):
        return InputError(refused, do=ours)
    return InputError(refused, valid=", ".join(valid), do=do)


def search_path_to(folder: Path | str | None) -> list[str]:
    """The search path with a folder of one's own options (`--config-dir`), if there is one."""
    return [f"file://{Path(folder).resolve()}"] if folder else []


def option_folders(search_path: Iterable[str]) -> list[Path]:
    """The folders of a search path, as paths."""
    return [Path(source.removeprefix("file://")) for source in search_path]


def search_override(paths: Sequence[str]) -> list[str]:
    """The override with which Hydra also searches these folders of options; none without any."""
    return [f"hydra.searchpath=[{','.join(paths)}]"] if paths else []


def _unresolved(config: DictConfig) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(config, resolve=False)
    benchmark = values["benchmark"]
    return benchmark if isinstance(benchmark, dict) else {}


def _resolved(config: DictConfig, key: Any) -> Any:
    if OmegaConf.is_missing(config, key):
        return "???"
    value = config[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


@contextmanager
def composing() -> Iterator[ConfigLoader]:
    """Hydra's own composition, also inside a job of Hydra's, which finds itself as before. Yields
    the loader of `conf/` and, after `compose`, of the search path."""
    holder = GlobalHydra.instance()
    before, collects = holder.hydra, gc.isenabled()
    holder.clear()
    gc.disable()  # which takes a fifth off the time
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            yield holder.config_loader()
    finally:
        holder.hydra = before
        if collects:
            gc.enable()


def _choices(hydra: Any) -> dict[str, str]:
    return {str(group): str(option) for group, option in hydra.runtime.choices.items()}


def _task_overrides(hydra: Any) -> Iterator[str]:
    """The overrides of a job as they were given: a reference to the environment stays one."""
    texts: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    yield from map(str, texts)


def search_path_of(hydra: Any) -> Iterator[str]:
    """The folders of one's own options, of Hydra's part of a composed configuration."""
    for source in hydra.runtime.config_sources:
        if source.provider not in ("hydra", "main", "schema"):
            yield f"{source.schema}://{source.path}"
