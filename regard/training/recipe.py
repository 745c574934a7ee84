"""What a training run is told: a YAML file, with `--set group.key=value` on top."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import yaml
from pydantic import ConfigDict, Field, model_validator

from regard.config import Settings
from regard.errors import UserError

DEFAULT_KIND = "transformer"


class InitSettings(Settings):
    """What a run begins with in place of random weights: those of a model folder."""

    model_config = ConfigDict(serialize_by_alias=True)

    folder: Path | None = Field(None, alias="from", description="a model folder, or a run that holds one")


class OptimSettings(Settings):
    """How weights move."""

    lr: float = Field(1e-3, gt=0, description="the peak rate; for noam a factor on width^-0.5")
    schedule: Literal["noam", "inverse-sqrt", "cosine", "constant"] = "inverse-sqrt"
    warmup: int = Field(1000, ge=0, description="steps of linear rise")
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(1.0, gt=0, description="bound on the gradient's norm")
    skip_above: float | None = Field(
        None,
        gt=0,
        description="a step whose gradient has a larger norm is skipped, as one that is no number always is; "
        "by default 100 times the mean norm of the steps before, once there are 100",
    )
    max_skips: int = Field(10, gt=0, description="after so many skipped steps in a row the run ends, with advice")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="label smoothing")
    accumulate: int = Field(1, ge=1, description="batches a step, of all processes together")


class TrainingSettings(Settings):
    """How long, where, and how often to look."""

    steps: int = Field(10_000, gt=0)
    validate_every: int = Field(1000, gt=0)
    log_every: int = Field(50, gt=0)
    checkpoint_every: int = Field(1000, gt=0, description="steps between checkpoints, from which a killed run goes on")
    keep_checkpoints: int = Field(2, gt=0, description="how many of the newest checkpoints stay")
    seed: int = 1
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 ...")
    workers: int = Field(0, ge=0, le=64, description="processes that make batches; 0: a thread")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU")
    compile: bool = Field(
        False,
        description="compile the model (torch.compile): the first steps take a minute, all others less time; "
        "sentences are packed then, in batches of one size",
    )
    cuda_graph: bool | None = Field(
        None,
        description="on a GPU, record a whole step once and replay it (a CUDA graph), which spares the host nearly all "
        "work; sentences are packed then, in batches of one size; unless given, where the model is compiled",
    )
    sharding: Literal["ddp", "fsdp"] = Field(
        "ddp", description="under torchrun: each process holds the whole model, or a part of every weight"
    )
    average: float = Field(0.0, ge=0, lt=1, description="share of the last steps whose weights are averaged")
    ema: float = Field(
        0.0, ge=0, lt=1, description="decay a step, such as 0.999, of a moving average of the weights; 0: none"
    )
    samples: int = Field(3, ge=0, description="how many results are shown and logged at each validation")
    patience: int | None = Field(None, gt=0, description="the run ends after so many validations without a better one")
    tensorboard: bool = Field(False, description="also write for TensorBoard, into RUN/tensorboard")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.compile and self.sharding == "fsdp":
            raise ValueError("compile is for a model that is whole in every process; set sharding=ddp")
        if self.cuda_graph and self.sharding == "fsdp":
            raise ValueError("cuda_graph is for a model that is whole in every process; set sharding=ddp")
        if self.average and self.ema:
            raise ValueError("average and ema are two ways to one thing; give only one of them")
        return self

    @property
    def uses_cuda_graph(self) -> bool:
        """Whether steps are recorded where they can be."""
        return self.compile if self.cuda_graph is None else self.cuda_graph

    @property
    def fixed_sizes(self) -> bool:
        """Whether all batches must be of one size."""
        return self.compile or self.uses_cuda_graph

    @property
    def average_from(self) -> int:
        """The first step whose weights are averaged; beyond the last one where none are."""
        return 1 if self.ema else self.steps - int(self.average * self.steps) + 1

    @property
    def keeps_newest(self) -> bool:
        """Whether the newest model is the best, whatever its score."""
        return False

    def is_over(self, step: int, stale: int) -> bool:
        """Whether a run has come to its end after so many steps, the last `stale` validations without a better one."""
        return step >= self.steps or self.ran_out(stale)

    def ran_out(self, stale: int) -> bool:
        """Whether the patience has come to its end."""
        return self.patience is not None and stale >= self.patience


class Recipe(Settings, ABC):
    """A whole training run: what all recipes share, each of which is made from this one and says all its groups."""

    if TYPE_CHECKING:  # no fields yet: those of a class come after those of its base, and a reader wants data first
        data: Settings
        init: InitSettings
        model: dict[str, Any]
        optim: OptimSettings
        training: TrainingSettings

    @classmethod
    def load(cls, path: Path | None, changes: Sequence[str] = (), given: dict[str, Any] | None = None) -> Self:
        """Reads a recipe, by path or by the name of a built-in one, then lays `given` and `key=value` changes over it.

        Raises:
            UserError: the file is missing or not YAML, a key is unknown, a value is wrong, or the model is of a kind
                that this sort of recipe is not for.
        """
        # These know the recipes that are made from this one.
        from regard.training.families import family_of, has_key, kinds_with

        where = str(path) if path else "settings"
        values: Any = {} if path is None else _read_yaml(path) or {}
        if not isinstance(values, dict):
            raise UserError(f"{where}: a recipe is keys and values, not {type(values).__name__}")
        for key, value in (given or {}).items():
            _put(values, key, value, where)
        for change in changes:
            key, equals, text = change.partition("=")
            if not equals:
                raise UserError(f"--set {change}: write key=value, such as optim.lr=3e-4")
            try:
                _put(values, key.strip(), yaml.load(text, _Loader), f"--set {change}")
            except yaml.YAMLError:
                raise UserError(f"--set {change}: the value is not valid YAML") from None
        model = values.get("model")
        kind = kind_of(model) if isinstance(model, dict) else DEFAULT_KIND
        wanted = family_of(kind).recipe
        for group, inner in values.items():
            if not has_key(wanted, group) and (others := kinds_with(group)):
                raise UserError(f"{where}: {group} is for model.kind={' or '.join(others)}, not {kind}")
            for key in inner if group == "objective" and isinstance(inner, dict) else ():
                if not has_key(wanted, group, key) and (others := kinds_with(group, key)):
                    raise UserError(f"{where}: {group}.{key} is for model.kind={' or '.join(others)}, not {kind}")
        recipe = wanted.parse(values, where)
        if not isinstance(recipe, cls):
            raise UserError(f"{where}: a recipe for a model of the kind {kind}, which is of no use here")
        if recipe.init.folder is None:  # else the folder decides about the keys that are not given
            recipe.check_model()  # a wrong model key is refused now, not after the data has been read
        return recipe

    @property
    def kind(self) -> str:
        """Of the model."""
        return kind_of(self.model)

    @abstractmethod
    def check_model(self) -> None:
        """Refuses keys that the model does not have, and wishes that it cannot be trained by.

        Raises:
            UserError: the first that is wrong.
        """


def kind_of(model: dict[str, Any]) -> str:
    """The kind that a recipe's model keys name."""
    return str(model.get("kind", DEFAULT_KIND))


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 3e-4 for a string; people who write recipes do not."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][-+]?\d+)$|^[-+]?\d[\d_]*\.[\d_]*$"),
    list("-+0123456789."),
)


def builtin_recipes() -> list[str]:
    """The names of the recipes that come with regard."""
    names = [entry.name for entry in resources.files("regard.training").joinpath("recipes").iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _read_yaml(path: Path) -> Any:
    name = path.name.removesuffix(".yaml")
    try:
        # "demo" is always the built-in one, whatever else of that name stands here; "demo.yaml" may be a file.
        named = str(path) == name or (str(path) == f"{name}.yaml" and not path.exists())
        if named and name in builtin_recipes():
            text = resources.files("regard.training").joinpath("recipes", f"{name}.yaml").read_text("utf-8")
        else:
            text = path.read_text("utf-8")
        return yaml.load(text, _Loader)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such recipe; give a YAML file or one of the built-in {', '.join(builtin_recipes())}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None


def _put(values: dict[str, Any], key: str, value: Any, where: str) -> None:
    *groups, name = key.split(".")
    for group in groups:
        if values.get(group) is None:  # a group that is off has no keys yet
            values[group] = {}
        values = values[group]
        if not isinstance(values, dict):
            raise UserError(f"{where}: {group} is a value, not a group of keys")
    values[name] = value
