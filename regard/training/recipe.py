"""What a training run is told: a YAML file, with `--set group.key=value` on top."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import ConfigDict, Field, model_validator

from regard.config import Settings, explain_unknown
from regard.decoding.settings import ParallelSettings, SearchSettings
from regard.errors import UserError
from regard.models.parallel import ParallelTransformerConfig
from regard.models.registry import MODELS, TRANSLATING
from regard.models.transformer import TransformerConfig
from regard.text.suffixes import BOTH_SIDES, COMPRESSIONS
from regard.training.parallel.settings import ParallelTeachingSettings
from regard.training.teaching.settings import TeachingSettings

PRESETS = ("tiny", "small", "base", "big")
TEXTS = ("source", "target", "alignments", "valid_source", "valid_target")
FROM_TOKENIZER = ("source_vocab", "target_vocab", "pad", "bos", "eos")


class CorpusSettings(Settings):
    """One of several corpora."""

    source: Path = Field(description="of each of several corpora, where data.source is not given; a list of such keys")
    target: Path | None = Field(None, description="the line file beside source, where that is one")
    weight: float = Field(1.0, gt=0, description="how many times an epoch shows each sentence")
    alignments: Path | None = Field(None, description='linked words, a line a pair, such as "0-0 1-2"')
    keys: tuple[str, str] = Field(("source", "target"), description="keys of .jsonl, columns of .parquet")
    columns: tuple[int, int] = Field((0, 1), description="columns of .tsv, counted from 0")


class DataSettings(Settings):
    """Where the sentences come from: files, folders of shards, several corpora, or the built-in one."""

    source: Path | None = Field(
        None, description="a line file, a .tsv, .jsonl or .parquet file, or a folder of such shards"
    )
    target: Path | None = Field(None, description="the line file beside source, where that is one")
    alignments: Path | None = Field(None, description='linked words, a line a pair, such as "0-0 1-2"')
    corpora: tuple[CorpusSettings, ...] = Field(
        (), description="several in place of source, each with source, target, weight, alignments, keys, columns"
    )
    keys: tuple[str, str] = Field(("source", "target"), description="keys of .jsonl, columns of .parquet")
    columns: tuple[int, int] = Field((0, 1), description="columns of .tsv, counted from 0")
    valid_source: Path | None = None
    valid_target: Path | None = None
    store: Path | None = Field(None, description="a folder for the tokens that several runs share; else the run's own")
    hold_out: int = Field(
        1000, ge=1, description="pairs taken from training, a tenth of it at most, for validation where none are given"
    )
    builtin: Literal["en-zh"] | None = None
    languages: tuple[str, str] = Field(
        ("", ""), description="codes such as en and zh; if empty, read off the files' names"
    )
    longest: int | None = Field(
        256, gt=1, description="pairs with a side of more tokens are left out, counted and listed"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if [self.builtin is not None, self.source is not None, bool(self.corpora)].count(True) != 1:
            raise ValueError("give either source (with target), or corpora, or builtin")
        if self.builtin and (self.target or self.valid_source or self.valid_target):
            raise ValueError(f"builtin {self.builtin} brings its own files; give source and target without it")
        if self.source is None and (self.target or self.alignments):
            raise ValueError("target and alignments need source beside them")
        if self.valid_target is not None and self.valid_source is None:
            raise ValueError("valid_target needs valid_source beside it")
        return self

    def all_corpora(self) -> tuple[CorpusSettings, ...]:
        """The corpora, be there one or more; none where the built-in one is used."""
        if self.source is None:
            return self.corpora
        values = {key: getattr(self, key) for key in ("source", "target", "alignments", "keys", "columns")}
        return (CorpusSettings.parse(values, "data"),)

    def paths(self) -> dict[str, Path]:
        """Every file or folder that holds text, by its key."""
        named = {key: getattr(self, key) for key in TEXTS}
        for number, corpus in enumerate(self.corpora):
            named |= {f"corpora.{number}.{key}": getattr(corpus, key) for key in TEXTS[:3]}
        return {key: path for key, path in named.items() if path is not None}

    def language_pair(self) -> tuple[str, str]:
        """The codes of both languages, as given or as the files' names end."""
        if self.builtin:
            source, target = self.builtin.split("-")
            return source, target
        first = self.all_corpora()[0]
        guesses = [_language_of(path) for path in (first.source, first.target)]
        if first.target is None and re.fullmatch(r"[a-z]{2,3}-[a-z]{2,3}", guesses[0]):  # train.en-de.tsv
            guesses = guesses[0].split("-")
        return (self.languages[0] or guesses[0] or "source"), (self.languages[1] or guesses[1] or "target")


class StartSettings(Settings):
    """What a run begins with in place of random weights and a new tokenizer: those of a model folder."""

    model_config = ConfigDict(serialize_by_alias=True)

    folder: Path | None = Field(None, alias="from", description="a model folder, or a run that holds one")
    parts: Literal["all", "encoder"] = Field(
        "all", description="all of the model; or only its encoder, while the rest begins anew"
    )
    tokens: tuple[str, ...] = Field((), description="new words of the vocabulary, never split")
    tokens_file: Path | None = Field(None, description="further new words, one a line")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.folder is None and (self.tokens or self.tokens_file or self.parts != "all"):
            raise ValueError("parts and tokens belong to the model that a run begins with; give start.from too")
        return self


class TokenizerSettings(Settings):
    """How text is cut into pieces."""

    kind: Literal["bpe", "word"] = "bpe"
    size: int = Field(8000, gt=260, description="pieces of a vocabulary, the 260 fixed ones included")
    joint: bool = Field(True, description="one vocabulary for both languages")
    sample: int = Field(1_000_000, gt=0, description="pairs at most, evenly spaced, from which it is learned")


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
    smoothing: float = Field(0.1, ge=0, lt=1, description="label smoothing")
    accumulate: int = Field(1, ge=1, description="batches a step, of all processes together")


class BatchSettings(Settings):
    """How sentences share a step."""

    tokens: int = Field(4096, gt=0, description="places of each side of a batch")
    layout: Literal["auto", "padded", "packed"] = Field(
        "auto", description="auto: packed on a GPU, but for CTC; padded elsewhere"
    )


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
    sharding: Literal["ddp", "fsdp"] = Field(
        "ddp", description="under torchrun: each process holds the whole model, or a part of every weight"
    )
    average: float = Field(0.0, ge=0, lt=1, description="share of the last steps whose weights are averaged")
    ema: float = Field(
        0.0, ge=0, lt=1, description="decay a step, such as 0.999, of a moving average of the weights; 0: none"
    )
    valid_sentences: int = Field(500, ge=0, description="how many validation sentences are translated for BLEU, chrF")
    samples: int = Field(3, ge=0, description="how many of these translations are shown and logged at each validation")
    watch: Literal["auto", "loss", "bleu", "chrf"] = Field(
        "auto", description="which score tells the best model; auto: BLEU where sentences are translated, else the loss"
    )
    patience: int | None = Field(None, gt=0, description="the run ends after so many validations without a better one")
    tensorboard: bool = Field(False, description="also write for TensorBoard, into RUN/tensorboard")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.average and self.ema:
            raise ValueError("average and ema are two ways to one thing; give only one of them")
        if self.watch in ("bleu", "chrf") and not self.valid_sentences:
            raise ValueError(f"watch {self.watch} needs translations; set valid_sentences above 0")
        return self

    @property
    def average_from(self) -> int:
        """The first step whose weights are averaged; beyond the last one where none are."""
        return 1 if self.ema else self.steps - int(self.average * self.steps) + 1

    def is_over(self, step: int, stale: int) -> bool:
        """Whether a run has come to its end after so many steps, the last `stale` validations without a better one."""
        return step >= self.steps or self.ran_out(stale)

    def ran_out(self, stale: int) -> bool:
        """Whether the patience has come to its end."""
        return self.patience is not None and stale >= self.patience


class Recipe(Settings):
    """A whole training run."""

    data: DataSettings = Field(description="the corpus: source and target, or builtin")
    start: StartSettings = StartSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: dict[str, Any] = Field(
        {}, description="kind, preset (tiny, small, base or big) and any key of the model to change"
    )
    optim: OptimSettings = OptimSettings()
    batch: BatchSettings = BatchSettings()
    teaching: TeachingSettings = TeachingSettings()
    training: TrainingSettings = TrainingSettings()
    search: SearchSettings = Field(SearchSettings(), description="for the translations of a validation")

    @staticmethod
    def load(path: Path | None, changes: Sequence[str] = (), given: dict[str, Any] | None = None) -> Recipe:
        """Reads a recipe, by path or by the name of a built-in one, then lays `given` and `key=value` changes over it.

        Raises:
            UserError: the file is missing or not YAML, a key is unknown, a value is wrong.
        """
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
        recipe = _RECIPES.get(_kind_of(values), Recipe).parse(values, where)
        if recipe.start.folder is None:  # else the folder decides about the keys that are not given
            recipe.check_model()  # a wrong model key is refused now, not after the data has been read
        guide = recipe.teaching.guided_attention
        if guide and guide.prior == "alignments" and not any(c.alignments for c in recipe.data.all_corpora()):
            raise UserError(f"{where}: teaching.guided_attention.prior: alignments needs data.alignments beside it")
        return recipe

    def check_model(self) -> None:
        """Refuses keys that the model does not have, and teaching that it cannot be given.

        Raises:
            UserError: the first that is wrong.
        """
        config = self.model_config_for(8, 8)
        assert isinstance(config, TransformerConfig)
        self.teaching.check_model(config)

    def model_config_for(self, source_vocab: int, target_vocab: int) -> TransformerConfig | ParallelTransformerConfig:
        """The model's configuration, once the sizes of the vocabularies are known."""
        changes = dict(self.model)
        preset = changes.pop("preset", "small")
        if preset not in PRESETS:
            raise UserError(f"model.preset: {preset!r} is not one of {', '.join(PRESETS)}")
        kind = changes.get("kind", "transformer")
        if kind not in TRANSLATING:
            raise UserError(f"model.kind: {kind!r} is not one of {', '.join(TRANSLATING)}, which translate")
        configs = MODELS[kind].config
        known = ["preset", *(key for key in configs.model_fields if key not in FROM_TOKENIZER)]
        for key in changes:
            if key in FROM_TOKENIZER:
                raise UserError(f"model.{key}: follows from the tokenizer, so a recipe cannot set it")
            if key not in known:
                raise UserError(explain_unknown(f"model.{key}", [f"model.{name}" for name in known]))
        if changes.get("tie") == "all" and not self.tokenizer.joint:
            raise UserError("model.tie: 'all' needs one vocabulary for both sides; set model.tie=target")
        vocab = source_vocab if self.tokenizer.joint else (source_vocab, target_vocab)
        try:
            config: TransformerConfig | ParallelTransformerConfig = getattr(configs, preset)(vocab, **changes)
        except UserError as error:
            raise UserError(str(error).replace(f"{configs.__name__}: ", "model: ", 1)) from None
        return config

    @property
    def packs(self) -> bool:
        """Whether batches on a GPU are packed unless they are asked to be padded."""
        return True

    def longest_readable(self) -> int | None:
        """How many tokens the model has positions for, where these are learned."""
        config = self.model_config_for(8, 8)
        return config.max_length if config.positions == "learned" else None

    def longest(self) -> int | None:
        """The most tokens that a side of a training pair may have."""
        limits = [limit for limit in (self.data.longest, self.longest_readable()) if limit is not None]
        return min(limits, default=None)


class ParallelRecipe(Recipe):
    """A training run of a model that writes all tokens at once."""

    parallel: ParallelTeachingSettings = ParallelTeachingSettings()
    # Other settings in the same place, which the kind of the model decides on: no recipe is read as the wrong one.
    search: ParallelSettings = Field(  # type: ignore[assignment]
        ParallelSettings(), description="for the translations of a validation"
    )

    @property
    def packs(self) -> bool:
        """CTC's loss needs a row a sentence, so that sentences of one length should share a batch."""
        return self.model.get("length") != "ctc"

    def check_model(self) -> None:
        """Refuses keys that the model does not have, and teaching and search of which it is not capable.

        Raises:
            UserError: the first that is wrong.
        """
        config = self.model_config_for(8, 8)
        assert isinstance(config, ParallelTransformerConfig)
        if self.teaching != TeachingSettings():
            raise UserError("teaching: for a model that writes one token after another; for this one there is parallel")
        self.parallel.choose(config)
        self.search.fit(config.length)


_RECIPES = {"transformer": Recipe, "parallel": ParallelRecipe}


def _kind_of(values: dict[str, Any]) -> str:
    model = values.get("model")
    return str(model.get("kind", "transformer")) if isinstance(model, dict) else "transformer"


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 3e-4 for a string; people who write recipes do not."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][-+]?\d+)$|^[-+]?\d[\d_]*\.[\d_]*$"),
    list("-+0123456789."),
)


def builtin_recipes() -> list[str]:
    """The names of the recipes that come with regard."""
    names = [entry.name for entry in resources.files("regard").joinpath("recipes").iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _read_yaml(path: Path) -> Any:
    name = path.name.removesuffix(".yaml")
    try:
        # "demo" is always the built-in one, whatever else of that name stands here; "demo.yaml" may be a file.
        named = str(path) == name or (str(path) == f"{name}.yaml" and not path.exists())
        if named and name in builtin_recipes():
            text = resources.files("regard").joinpath("recipes", f"{name}.yaml").read_text("utf-8")
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


def _language_of(path: Path | None) -> str:
    """ "en" of train.en.gz; nothing where the name does not end in a short code."""
    if path is None:
        return ""
    suffixes = [s[1:] for s in path.suffixes if s.lower() not in (*COMPRESSIONS, *BOTH_SIDES, ".txt")]
    return suffixes[-1] if suffixes and re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z]+)?", suffixes[-1]) else ""
