"""What a recipe says about training a translator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from regard.config import Settings, unknown_key_message
from regard.data.text.readers import COMPRESSION_SUFFIXES, PAIR_SUFFIXES
from regard.decoding.config import DecodingSettings, NATSettings, SearchSettings, check_setting_keys
from regard.errors import UserError
from regard.models.nat import NATransformerConfig
from regard.models.registry import MODELS
from regard.models.transformer import TransformerConfig
from regard.pipelines.translator import check_reranker
from regard.training.objectives.config import ObjectiveSettings
from regard.training.recipe import InitSettings, OptimSettings, Recipe, TrainingSettings
from regard.training.tasks.nat.config import NATObjectiveSettings

PRESETS = ("tiny", "small", "base", "big")
TEXTS = ("source", "target", "alignments", "valid_source", "valid_target")
TRANSLATORS = [name for name, model in MODELS.items() if model.input_type == "text"]
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
    max_length: int | None = Field(
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


class TranslatorInitSettings(InitSettings):
    """What a run begins with in place of random weights and a new tokenizer: those of a model folder."""

    parts: Literal["all", "encoder"] = Field(
        "all", description="all of the model; or only its encoder, while the rest begins anew"
    )
    new_tokens: tuple[str, ...] = Field((), description="new words of the vocabulary, never split")
    new_tokens_file: Path | None = Field(None, description="further new words, one a line")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.folder is None and (self.new_tokens or self.new_tokens_file or self.parts != "all"):
            raise ValueError("parts and new_tokens belong to the model that a run begins with; give init.from too")
        return self


class TokenizerSettings(Settings):
    """How text is cut into pieces."""

    kind: Literal["bpe", "word"] = "bpe"
    size: int = Field(8000, gt=260, description="pieces of a vocabulary, the 260 fixed ones included")
    joint: bool = Field(True, description="one vocabulary for both languages")
    sample: int = Field(1_000_000, gt=0, description="pairs at most, evenly spaced, from which it is learned")


class BatchSettings(Settings):
    """How sentences share a step."""

    tokens: int = Field(4096, gt=0, description="places of each side of a batch")
    layout: Literal["auto", "padded", "packed"] = Field(
        "auto", description="auto: packed on a GPU, but for CTC; padded elsewhere"
    )


class TranslatorTrainingSettings(TrainingSettings):
    """How long, where, and how often to look at what is translated how well."""

    valid_sentences: int = Field(500, ge=0, description="how many validation sentences are translated for BLEU, chrF")
    samples: int = Field(3, ge=0, description="how many of these translations are shown and logged at each validation")
    monitor: Literal["auto", "loss", "bleu", "chrf"] = Field(
        "auto", description="which score tells the best model; auto: BLEU where sentences are translated, else the loss"
    )

    residual_dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="what flows from block to block where products are bfloat16: as precise as they are, it takes half "
        "the time of all that is no product",
    )

    @model_validator(mode="after")
    def _check_monitor(self) -> Self:
        if self.residual_dtype == "bfloat16" and self.precision == "float32":
            raise ValueError("residual_dtype bfloat16 goes with bfloat16 products; set precision to bfloat16 or auto")
        if self.monitor in ("bleu", "chrf") and not self.valid_sentences:
            raise ValueError(f"monitor {self.monitor} needs translations; set valid_sentences above 0")
        return self


class TranslationRecipe(Recipe):
    """A whole training run of a translator."""

    searches_by: ClassVar[type[DecodingSettings]] = SearchSettings

    data: DataSettings = Field(description="the corpus: source and target, or builtin")
    init: TranslatorInitSettings = TranslatorInitSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: dict[str, Any] = Field(
        {}, description="kind, preset (tiny, small, base or big) and any key of the model to change"
    )
    optim: OptimSettings = OptimSettings()
    batch: BatchSettings = BatchSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    training: TranslatorTrainingSettings = TranslatorTrainingSettings()
    search: SearchSettings = Field(SearchSettings(), description="for the translations of a validation")

    @field_validator("search", mode="before")
    @classmethod
    def _check_way_of_writing(cls, values: object) -> object:
        if isinstance(values, Mapping):
            check_setting_keys(cls.searches_by, values, "search")
        return values

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if not self.training.fixed_sizes:
            return self
        if self.batch.layout == "padded":
            raise ValueError(f"{self._asked} is for batches of one size; set batch.layout to packed or auto")
        if isinstance(self.objective, ObjectiveSettings) and self.objective != ObjectiveSettings():
            raise ValueError(f"{self._asked} is for plain teacher forcing; leave out objective, or set it to false")
        return self

    @property
    def _asked(self) -> str:
        """The setting for which batches must be of one size."""
        return "training.compile" if self.training.compile else "training.cuda_graph"

    @model_validator(mode="after")
    def _check_guide(self) -> Self:
        guide = self.objective.guided_attention if isinstance(self.objective, ObjectiveSettings) else None
        if guide and guide.prior == "alignments" and not any(c.alignments for c in self.data.all_corpora()):
            raise ValueError("objective.guided_attention.prior: alignments needs data.alignments beside it")
        return self

    def check_model(self) -> None:
        """Refuses keys that the model does not have, and teaching that it cannot be given.

        Raises:
            UserError: the first that is wrong.
        """
        config = self.model_config_for(8, 8)
        assert isinstance(config, TransformerConfig)
        if self.training.fixed_sizes and config.attention.kind != "full":
            raise UserError(f"{self._asked}: is for full attention, not {config.attention.kind}")
        self.objective.check_model(config)

    def model_config_for(self, source_vocab: int, target_vocab: int) -> TransformerConfig | NATransformerConfig:
        """The model's configuration, once the sizes of the vocabularies are known."""
        changes = dict(self.model)
        preset = changes.pop("preset", "small")
        if preset not in PRESETS:
            raise UserError(f"model.preset: {preset!r} is not one of {', '.join(PRESETS)}")
        kind = self.kind
        configs = MODELS[kind].config
        known = ["preset", *(key for key in configs.model_fields if key not in FROM_TOKENIZER)]
        for key in changes:
            if key in FROM_TOKENIZER:
                raise UserError(f"model.{key}: follows from the tokenizer, so a recipe cannot set it")
            if others := [name for name in TRANSLATORS if key not in known and key in MODELS[name].config.model_fields]:
                raise UserError(f"model.{key}: is for model.kind={' or '.join(others)}, not {kind}")
            if key not in known:
                raise UserError(unknown_key_message(f"model.{key}", [f"model.{name}" for name in known]))
        if changes.get("tie") == "all" and not self.tokenizer.joint:
            raise UserError("model.tie: 'all' needs one vocabulary for both sides; set model.tie=target")
        vocab = source_vocab if self.tokenizer.joint else (source_vocab, target_vocab)
        try:
            config: TransformerConfig | NATransformerConfig = getattr(configs, preset)(vocab, **changes)
        except UserError as error:
            raise UserError(str(error).replace(f"{configs.__name__}: ", "model: ", 1)) from None
        return config

    def with_layout(self, layout: str) -> Self:
        """The same with batches of this layout."""
        return self.changed(batch=self.batch.model_dump() | {"layout": layout})

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
        limits = [limit for limit in (self.data.max_length, self.longest_readable()) if limit is not None]
        return min(limits, default=None)


class NATRecipe(TranslationRecipe):
    """A training run of a model that writes all tokens at once."""

    searches_by = NATSettings

    # The kind of the model decides which settings these two groups have.
    objective: NATObjectiveSettings = NATObjectiveSettings()  # type: ignore[assignment]
    search: NATSettings = Field(  # type: ignore[assignment]
        NATSettings(), description="for the translations of a validation"
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
        assert isinstance(config, NATransformerConfig)
        if self.training.compile:
            raise UserError(
                "training.compile: is for a model that writes one token after another; this one can be recorded, by "
                "training.cuda_graph"
            )
        if self.training.uses_cuda_graph:
            self._check_recording(config)
        config.check_effect()
        self.objective.check_effect(config)
        try:
            self.search.resolve(config.length)
            if self.search.rerank is not None:
                check_reranker(self.search.rerank)
        except UserError as error:
            raise UserError(f"search.{error}") from None

    def _check_recording(self, config: NATransformerConfig) -> None:
        if config.attention.kind != "full":
            raise UserError(f"training.cuda_graph: is for full attention, not {config.attention.kind}")
        if config.length != "classifier" and config.positions == "learned":
            fits = (config.max_length - config.upsample_extra) // config.upsample_ratio
            if (self.longest() or config.max_length) > fits:
                raise UserError(
                    "training.cuda_graph: needs a place of the canvas for every position, and model.max_length="
                    f"{config.max_length} bounds the longest; set data.max_length={fits} or less"
                )


def _language_of(path: Path | None) -> str:
    """ "en" of train.en.gz; nothing where the name does not end in a short code."""
    if path is None:
        return ""
    suffixes = [s[1:] for s in path.suffixes if s.lower() not in (*COMPRESSION_SUFFIXES, *PAIR_SUFFIXES, ".txt")]
    return suffixes[-1] if suffixes and re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z]+)?", suffixes[-1]) else ""
