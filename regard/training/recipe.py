"""Recipes: the settings of a training run, read from YAML and changed by `--set group.key=value`."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from pydantic import ConfigDict, Field, model_validator

from regard.config import MAX_YAML_BYTES, Settings, parse_yaml, unknown_key_message
from regard.errors import UserError
from regard.files import MissingFileError, read_text
from regard.models.folder import MODELS
from regard.registry import find_extensions

DEFAULT_KIND = "transformer"
MACHINE_SETTINGS = ("threads", "cuda_graph", "residual_dtype")
"""Settings of the training group that are left to the machine when a run begins, and kept when it is resumed."""
REGULARISATION = ("dropout", "drop_path")
"""Ends of the names of keys of the model that do not affect its weights."""


class InitSettings(Settings):
    """A trained model from which the weights are initialised."""

    model_config = ConfigDict(serialize_by_alias=True)

    folder: Path | None = Field(
        None, alias="from", description="model folder, or run that contains one, to start from; default: random weights"
    )


class OptimSettings(Settings):
    """Optimizer, learning rate schedule and gradient checks."""

    lr: float = Field(1e-3, gt=0, description="peak learning rate; for noam a factor on width^-0.5")
    schedule: Literal["noam", "inverse-sqrt", "cosine", "constant"] = Field(
        "inverse-sqrt", description="learning rate schedule after the warm-up"
    )
    warmup: int = Field(1000, ge=0, description="steps of linear warm-up")
    betas: tuple[float, float] = Field((0.9, 0.98), description="betas of AdamW")
    eps: float = Field(1e-9, gt=0, description="epsilon of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="decay of matrices; vectors and embeddings are not decayed")
    clip: float | None = Field(1.0, gt=0, description="maximum gradient norm")
    skip_above: float | None = Field(
        None,
        gt=0,
        description="skip steps with a larger gradient norm; NaN is always skipped; default: 100 times the mean norm "
        "so far, after 100 steps",
    )
    max_skips: int = Field(10, gt=0, description="number of consecutive skipped steps after which the run fails")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="label smoothing")
    accumulate: int = Field(1, ge=1, description="batches per step, over all processes")


class TrainingSettings(Settings):
    """Duration, device, precision, validation and checkpoints."""

    steps: int = Field(10_000, gt=0, description="number of optimizer steps")
    validate_every: int = Field(1000, gt=0, description="steps between validations")
    log_every: int = Field(50, gt=0, description="steps between lines of the metrics log; the first ones follow sooner")
    checkpoint_every: int = Field(1000, gt=0, description="steps between checkpoints, from which a run resumes")
    keep_checkpoints: int = Field(2, gt=0, description="number of checkpoints to keep")
    seed: int = Field(1, ge=0, lt=2**63, description="seed of weights, dropout and the order of the data")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    threads: int | None = Field(
        None, gt=0, le=1024, description="CPU threads; default: one for each CPU that the process may use"
    )
    workers: int = Field(0, ge=0, le=64, description="processes that prepare batches; 0: a thread")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU")
    compile: bool = Field(
        False, description="compile the model with torch.compile; sentences are packed into batches of fixed shape"
    )
    cuda_graph: Literal["auto"] | bool = Field(
        "auto",
        description="on a GPU, capture a training step in a CUDA graph and replay it; sentences are packed into "
        "batches of fixed shape; auto: where it is possible",
    )
    sharding: Literal["ddp", "fsdp"] = Field(
        "ddp", description="with torchrun: each process holds the complete model, or a shard of every weight"
    )
    average: float = Field(0.0, ge=0, lt=1, description="fraction of the last steps whose weights are averaged")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of an exponential moving average of the weights; 0: none")
    samples: int = Field(3, ge=0, description="samples to print and log at each validation")
    patience: int | None = Field(None, gt=0, description="stop after this many validations without improvement")
    task: str | None = Field(None, description="what to train the model for; default: the usual task of its kind")
    tensorboard: bool = Field(False, description="also write TensorBoard files to RUN/tensorboard")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("compile", "cuda_graph"):
            if getattr(self, key) is True and self.sharding == "fsdp":
                raise ValueError(f"{key} needs the complete model in every process; set sharding=ddp")
        if self.average and self.ema:
            raise ValueError("average and ema exclude each other; give only one of them")
        return self

    @property
    def uses_cuda_graph(self) -> bool:
        """Whether steps are captured in a CUDA graph where possible."""
        return self.compile if self.cuda_graph == "auto" else self.cuda_graph

    @property
    def fixed_shapes(self) -> bool:
        """Whether all batches must have the same shape."""
        return self.compile or self.uses_cuda_graph

    @property
    def average_from(self) -> int:
        """First step whose weights are averaged; greater than `steps` if none are."""
        return 1 if self.ema else self.steps - round(self.average * self.steps) + 1

    @property
    def keeps_newest(self) -> bool:
        """Whether the newest model counts as the best regardless of its score."""
        return False

    def is_over(self, step: int, stale: int) -> bool:
        """Return whether a run ends after a step, given the number of validations without improvement."""
        return step >= self.steps or (self.patience is not None and stale >= self.patience)


class Recipe(Settings):
    """Settings of a training run. Each task has its own subclass, which declares the fields."""

    presets: ClassVar[Sequence[str]] = ()  # class methods of the model's configuration; used if they exist
    default_preset: ClassVar[str] = ""
    derived: ClassVar[Mapping[str, str]] = {}  # keys of the model that a recipe must not set: what they follow from
    captured_by_default: ClassVar[bool] = False  # whether the losses of the task never synchronise with a GPU

    if TYPE_CHECKING:  # declared here, the fields would precede `data` in the subclasses
        data: Settings
        init: InitSettings
        model: dict[str, Any]
        optim: OptimSettings
        training: TrainingSettings

    @property
    def kind(self) -> str:
        """Kind of the model."""
        return kind_of(self.model)

    def with_group(self, group: str, **values: Any) -> Self:
        """Return the recipe with changed values of a group, which are validated."""
        return self.changed(**{group: getattr(self, group).model_dump() | values})

    def check_model(self) -> None:
        """Check the keys of the model and everything that depends on them."""
        self.model_settings()

    def model_settings(self) -> Any:
        """Return the configuration of the model; keys that follow from the data have arbitrary values."""
        return self._build_config()

    def _build_config(self, **derived: Any) -> Any:
        """Build the configuration of the model, given the keys that follow from the data."""
        config_type = MODELS[self.kind].config_type()
        presets = [name for name in self.presets if hasattr(config_type, name)]
        changes = dict(self.model)
        preset = changes.pop("preset", None)
        if preset is None and presets:
            preset = self.default_preset
        if preset is not None and preset not in presets:
            problem = (
                f"not one of {', '.join(presets)}" if presets else "given, but this kind of model has none; omit it"
            )
            raise UserError(f"model.preset: {preset!r} is {problem}")
        known = ["preset", *(key for key in config_type.model_fields if key not in self.derived)]
        for key in changes:
            if key in self.derived:
                raise UserError(f"model.{key}: follows from {self.derived[key]}, so a recipe cannot set it")
            if key not in known:
                raise UserError(unknown_key_message(f"model.{key}", [f"model.{name}" for name in known]))
        try:
            if preset is None:
                return config_type.parse(changes | derived, config_type.__name__)
            return getattr(config_type, preset)(**derived, **changes)
        except UserError as error:
            raise UserError(str(error).replace(f"{config_type.__name__}: ", "model: ", 1)) from None

    def keys_of(self, config: Settings) -> dict[str, Any]:
        """Return the keys of a model that a recipe may set, as plain values."""
        return {key: value for key, value in config.model_dump(mode="json").items() if key not in self.derived}

    def with_model(self, own: Mapping[str, Any], where: str) -> Self:
        """Return the recipe with the keys `own` of the initial model, which is in the folder `where`."""
        completed = self.changed(model=({} if "preset" in self.model else dict(own)) | self.model)
        completed.check_model()
        keys = self.keys_of(completed.model_settings())
        for key, value in own.items():
            if keys[key] != value and not key.endswith(REGULARISATION):
                raise contradiction(f"model.{key}", keys[key], value, where)
        return completed.changed(model=keys)

    def fixed_settings(self) -> dict[str, Any]:
        """Return every setting that must not change when a run is resumed, by its full name, as plain values.

        Paths are only marked as given, because files may move; presets are expanded.
        """
        values = self.model_dump(mode="json") | {"model": self.keys_of(self.model_settings())}
        values |= {group: _mark_paths(part) for group, part in self.model_dump(include={"data", "init"}).items()}
        return {f"{group}.{key}": value for group, part in values.items() for key, value in part.items()}

    def resolve(self, device: torch.device) -> Self:
        """Return the recipe with the settings that are left to the machine, given the device of the run."""
        if self.training.cuda_graph != "auto":
            return self
        captured = self.training.compile or self.capture_obstacle(device) is None
        return self.with_group("training", cuda_graph=captured)

    def capture_obstacle(self, device: torch.device) -> str | None:
        """Return why `training.cuda_graph=auto` does not capture steps; None if it does."""
        if device.type != "cuda":
            return "there is no GPU"
        if self.training.sharding == "fsdp":
            return "training.sharding=fsdp"
        extensions = find_extensions([MODELS[self.kind], type(getattr(self, "objective", self))])
        if extensions or not self.captured_by_default:
            return "extensions may synchronise with the GPU; if they do not, set training.cuda_graph=true"
        return None

    def describe_execution(self, device: torch.device) -> str:
        """Describe how steps run on a GPU, for the log."""
        if self.training.uses_cuda_graph:
            steps = "steps captured in a CUDA graph"
        else:
            obstacle = self.capture_obstacle(device) or "training.cuda_graph=false"
            steps = f"steps not captured in a CUDA graph ({obstacle})"
        precision = "float32" if self.training.precision == "float32" else "bfloat16"
        return ", ".join((precision, *self.describe_batches(), steps))

    def describe_batches(self) -> Sequence[str]:
        """Describe what else determines the speed of a step, for the log."""
        return ()

    def keep_machine_settings(self, old: Self) -> Self:
        """Return the recipe with settings that were left to the machine when the run began, whose recipe is `old`."""
        ours, theirs = self.training.model_dump(), old.training.model_dump()
        kept = {key: theirs[key] for key in MACHINE_SETTINGS if key in ours and ours[key] in (None, "auto")}
        return self.with_group("training", **kept)

    def resolve_resumed(self, old: Self, out: Path) -> Self:
        """Return the recipe with what was decided when the run in `out` began, whose recipe is `old`."""
        return self


def _mark_paths(value: Any) -> Any:
    """Replace paths in nested values."""
    if isinstance(value, Mapping):
        return {key: _mark_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_paths(inner) for inner in value]
    return "a path" if isinstance(value, Path) else value


def read_recipe_values(path: Path | None, overrides: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Read the values of a recipe, without validating them; see `load_recipe`."""
    where = str(path) if path else "settings"
    values: Any = {} if path is None else _read_yaml(path) or {}
    if not isinstance(values, dict):
        raise UserError(f"{where}: a recipe consists of keys and values, not {type(values).__name__}")
    for key, value in given.items():
        _set_value(values, key, value, where)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"--set {override}: write key=value, such as optim.lr=3e-4")
        _set_value(values, key.strip(), parse_setting(text, f"--set {override}"), f"--set {override}")
    return values


def parse_setting(text: str, where: str) -> Any:
    """Parse the YAML value of a KEY=VALUE option; `where` names the option in errors."""
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise UserError(f"{where}: the value is not valid YAML ({error})") from None


def kind_of(model: dict[str, Any]) -> str:
    """Return the kind of model that the model keys of a recipe select."""
    return str(model.get("kind", DEFAULT_KIND))


def contradiction(key: str, given: Any, own: Any, where: str) -> UserError:
    """Return the error for a setting that contradicts the model in the folder `where`."""
    return UserError(f"{key}: {given} contradicts {own} of {where}, from which the run is initialised; omit it")


def builtin_recipes() -> list[str]:
    """Return the names of the built-in recipes."""
    names = [entry.name for entry in resources.files("regard.training").joinpath("recipes").iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _read_yaml(path: Path) -> Any:
    """Read the YAML of a file or of the built-in recipe with this name."""
    name = path.name.removesuffix(".yaml")
    # "demo" always means the built-in recipe; "demo.yaml" may be a file.
    is_name = str(path) == name or (str(path) == f"{name}.yaml" and not path.exists())
    try:
        if is_name and name in builtin_recipes():
            text = resources.files("regard.training").joinpath("recipes", f"{name}.yaml").read_text("utf-8")
        else:
            text = read_text(path, MAX_YAML_BYTES)
        return parse_yaml(text)
    except MissingFileError:
        raise UserError(
            f"{path}: no such recipe; give a YAML file or one of the built-in recipes {', '.join(builtin_recipes())}"
        ) from None
    except ValueError as error:
        raise UserError(f"{path}: not valid YAML ({error})") from None


def _set_value(values: dict[str, Any], key: str, value: Any, where: str) -> None:
    *groups, name = key.split(".")
    for group in groups:
        if values.get(group) is None:  # a group that is switched off has no keys yet
            values[group] = {}
        values = values[group]
        if not isinstance(values, dict):
            raise UserError(
                f"{where}: {group} must be a group of keys and values, such as {group}: {{{name}: {value}}}"
            )
    values[name] = value
