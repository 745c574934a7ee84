"""Recipes of autoregressive translators."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator, model_validator

from regard.config import Settings
from regard.data.text.annotation import MARKERS
from regard.data.text.cleaning.settings import CleaningSettings
from regard.data.text.languages import find_language, language_of
from regard.data.text.readers import find_shards, languages_in_names
from regard.decoding.settings import DecodingSettings, SearchSettings, check_setting_keys
from regard.errors import UserError
from regard.models.folder import MODELS
from regard.models.transformer import EncoderDecoder, EncoderDecoderConfig, TransformerConfig
from regard.training.objectives.registry import select_objective
from regard.training.objectives.teacher_forcing import TeacherForcingSettings
from regard.training.recipe import InitSettings, OptimSettings, Recipe, TrainingSettings, contradiction

TEXTS = ("source", "target", "alignments", "valid_source", "valid_target")
UNKNOWN = ("source", "target")
"""What unknown languages are called."""
LanguagePair = tuple[str, str]
"""Codes of a source and a target language."""
DECODER_KEYS = ("decoder_layers", "tie")
"""Keys of the model that do not concern the encoder."""


def _cleaning_values(value: object) -> object:
    """Return the values of `data.clean`: true stands for the defaults, false for no cleaning."""
    return {} if value is True else None if value is False else value


class CorpusUse(NamedTuple):
    """A use of a corpus for training: its number, whether its sides are exchanged, and the token of its sources."""

    corpus: int
    reverse: bool
    tag: str = ""
    direction: LanguagePair | None = None


class CorpusSettings(Settings):
    """One of several corpora."""

    source: Path = Field(
        description="file or folder of each corpus, if data.source is not given; a list of such groups"
    )
    target: Path | None = Field(None, description="line file of the targets, if source is a line file")
    weight: float = Field(1.0, gt=0, description="how often each sentence occurs per epoch")
    alignments: Path | None = Field(None, description='word alignments, one line per pair, such as "0-0 1-2"')
    keys: tuple[str, str] = Field(
        ("source", "target"), description="keys of .jsonl, columns of .parquet, languages of .tmx"
    )
    columns: tuple[int, int] = Field((0, 1), description="columns of .tsv, from 0")
    tag: str = Field("", description="token before every source, such as <BT>; marks synthetic sources")
    languages: tuple[str, str] = Field(
        ("", ""), description="language codes, for directions; if empty, taken from file names or keys"
    )


class GlossaryAugmentSettings(Settings):
    """Inline annotation of terms in training sources."""

    file: Path = Field(description="terms that are annotated in training sources: .tsv with source and target")
    share: float = Field(0.5, gt=0, le=1, description="share of the pairs with a term and its translation to annotate")


class DataSettings(Settings):
    """Training and validation data: files, folders of shards, several corpora, or the built-in corpus."""

    source: Path | None = Field(
        None, description="line file, .tsv, .jsonl, .parquet, .tmx or .xlf file, or a folder of such files (shards)"
    )
    target: Path | None = Field(None, description="line file of the targets, if source is a line file")
    alignments: Path | None = Field(None, description='word alignments, one line per pair, such as "0-0 1-2"')
    corpora: tuple[CorpusSettings, ...] = Field(
        (),
        description="several corpora instead of source, with source, target, weight, alignments, keys, columns, tag, "
        "languages",
    )
    keys: tuple[str, str] = Field(
        ("source", "target"), description="keys of .jsonl, columns of .parquet, languages of .tmx"
    )
    columns: tuple[int, int] = Field((0, 1), description="columns of .tsv, from 0")
    tag: str = Field("", description="token before every source, such as <BT>; marks synthetic sources")
    valid_source: Path | None = Field(None, description="validation data; default: held out from the training data")
    valid_target: Path | None = Field(None, description="line file of the validation targets")
    store: Path | None = Field(None, description="folder for the tokens, shared by several runs; default: in the run")
    hold_out: int = Field(
        1000, ge=1, description="sources held out for validation if valid_source is not given, at most a tenth"
    )
    builtin: Literal["en-zh"] | None = Field(None, description="a built-in corpus instead of files")
    both_directions: bool = Field(
        False, description="train on each pair in both directions; needs one vocabulary for both languages"
    )
    directions: tuple[LanguagePair, ...] = Field(
        (), description="directions of a model for several, such as [[en, zh], [zh, en]]; a token selects the target"
    )
    glossary_augment: GlossaryAugmentSettings | None = Field(
        None, description="annotate terms in training sources with their translations; needs one vocabulary"
    )
    languages: tuple[str, str] = Field(
        ("", ""),
        description="language codes such as en and zh; if empty, taken from column names, file names or the script",
    )
    max_length: int | None = Field(
        256, gt=1, description="maximum number of tokens per side; longer pairs are skipped, counted and listed"
    )

    clean: Annotated[CleaningSettings | None, BeforeValidator(_cleaning_values)] = Field(
        None, description="true, or thresholds of the rules of `regard clean`, which are applied to the training data"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if [self.builtin is not None, self.source is not None, bool(self.corpora)].count(True) != 1:
            raise ValueError("give either source (with target), or corpora, or builtin")
        if self.builtin and (self.target or self.valid_source or self.valid_target):
            raise ValueError(f"builtin {self.builtin} excludes files; give source and target without it")
        if self.source is None and (self.target or self.alignments or self.tag):
            raise ValueError("target, alignments and tag need source")
        tagged = [corpus for corpus in self.all_corpora() if corpus.tag]
        if any((corpus.tag or self.directions) and corpus.alignments for corpus in self.all_corpora()):
            raise ValueError("tag and directions exclude alignments, whose source words they would shift")
        if self.directions and (tagged or self.both_directions or self.glossary_augment):
            raise ValueError("directions exclude tag, both_directions and glossary_augment; omit these")
        if self.valid_target is not None and self.valid_source is None:
            raise ValueError("valid_target needs valid_source")
        return self

    def all_corpora(self) -> tuple[CorpusSettings, ...]:
        """Return the corpora, one or more; none if the built-in corpus is used."""
        if self.source is None:
            return self.corpora
        keys = ("source", "target", "alignments", "keys", "columns", "tag", "languages")
        return (CorpusSettings.parse({key: getattr(self, key) for key in keys}, "data"),)

    def uses(self) -> list[CorpusUse]:
        """Return how the corpora are used: for each direction, or as they are and perhaps exchanged."""
        if self.directions:
            pairs = [_codes(corpus) for corpus in self.all_corpora()]
            return _uses_by_direction(self.directions, pairs or [_builtin_pair(self.builtin)])
        tags = [corpus.tag for corpus in self.all_corpora()] or [""]
        uses = [CorpusUse(i, False, tag) for i, tag in enumerate(tags)]
        return uses + [CorpusUse(use.corpus, True) for use in uses if self.both_directions]

    def tags(self) -> list[str]:
        """Return the tokens that are added to the vocabulary: tags of corpora, and the markers of annotated terms."""
        tags = sorted({corpus.tag for corpus in self.all_corpora() if corpus.tag})
        tags += dict.fromkeys(f">>{target}<<" for _, target in self.directions)
        return tags if self.glossary_augment is None else [*tags, *MARKERS]

    def files(self) -> dict[str, Path]:
        """Return every text file by its key, those in folders included."""
        named = {key: getattr(self, key) for key in TEXTS}
        for number, corpus in enumerate(self.corpora):
            named |= {f"corpora.{number}.{key}": getattr(corpus, key) for key in TEXTS[:3]}
        for number, path in enumerate(self.clean.exclude if self.clean else ()):
            named[f"clean.exclude.{number}"] = path
        files: dict[str, Path] = {} if self.glossary_augment is None else {"glossary": self.glossary_augment.file}
        for key, path in named.items():
            if path is not None and path.is_dir():
                shards = [Path(shard.name) for shard in find_shards(path)]
                files |= {f"{key}/{shard.name}": shard for shard in shards}
            elif path is not None:
                files[key] = path
        return files

    def language_pair(self, header: tuple[str, str] = ("", "")) -> tuple[str, str]:
        """Return the language codes: as given, or from the names of the columns, or as the file names end.

        Languages that remain unknown are called "source" and "target". `header` is the first line of a .tsv file.
        """
        if self.directions:
            return self.directions[0]
        if self.builtin:
            return _builtin_pair(self.builtin)
        codes = zip(self.languages, _codes(self.all_corpora()[0], header), UNKNOWN, strict=True)
        source, target = (next(filter(None, candidates)) for candidates in codes)
        return source, target


def _codes(corpus: CorpusSettings, header: tuple[str, str] = ("", "")) -> tuple[str, str]:
    """Return the language codes of a corpus: as given, or from the names of its columns or files; "" if unknown."""
    named = languages_in_names(corpus.source, corpus.target)
    columns = [find_language(name) or find_language(key) for name, key in zip(header, corpus.keys, strict=True)]
    candidates = zip(corpus.languages, columns, named, strict=True)
    source, target = (next(filter(None, codes), "") for codes in candidates)
    return source, target


def _builtin_pair(name: str | None) -> LanguagePair:
    source, _, target = (name or "").partition("-")
    return source, target


def _uses_by_direction(directions: Sequence[LanguagePair], pairs: Sequence[LanguagePair]) -> list[CorpusUse]:
    """Return the corpora of every direction, which are exchanged where they have the opposite one.

    Args:
        directions: The directions of the model.
        pairs: Languages of each corpus.

    Raises:
        UserError: A direction has no corpus, or a corpus no direction.
    """
    uses = []
    known = [(language_of(source), language_of(target)) for source, target in pairs]
    for source, target in directions:
        wanted = language_of(source), language_of(target)
        found = [i for i, pair in enumerate(known) if pair in (wanted, wanted[::-1])]
        if not found:
            listed = ", ".join("-".join(code or "?" for code in pair) for pair in pairs)
            raise UserError(f"data.directions: no corpus for {source}-{target}, only for {listed}; set its languages")
        uses += [CorpusUse(i, known[i] != wanted, f">>{target}<<", (source, target)) for i in found]
    if unused := set(range(len(pairs))) - {use.corpus for use in uses}:
        raise UserError(f"data.directions: no direction for the corpus {'-'.join(pairs[min(unused)])}; add or omit it")
    return uses


class TranslatorInitSettings(InitSettings):
    """A trained model from which weights and tokenizer are taken."""

    parts: Literal["all", "encoder"] = Field("all", description="take all weights, or only those of the encoder")
    new_tokens: tuple[str, ...] = Field((), description="words to add to the vocabulary, never split")
    new_tokens_file: Path | None = Field(None, description="file with further words to add, one per line")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.folder is None and (self.new_tokens or self.new_tokens_file or self.parts != "all"):
            raise ValueError("parts and new_tokens need a trained model; give init.from too")
        return self


class TokenizerSettings(Settings):
    """Tokenizer that is trained on the corpus."""

    kind: Literal["bpe", "word", "sentencepiece"] = Field(
        "bpe", description="subword units (byte pair encoding), words, or the tokenizer of an imported model"
    )
    size: int = Field(8000, gt=260, description="vocabulary size, including 260 fixed tokens")
    joint: bool = Field(True, description="one vocabulary for both languages")
    dropout: float = Field(0.0, ge=0, lt=1, description="BPE-dropout: probability of skipping a merge in training")
    sample: int = Field(1_000_000, gt=0, description="maximum number of pairs to train it on, evenly spaced")


class BatchSettings(Settings):
    """Size and layout of batches."""

    tokens: int = Field(4096, gt=0, description="maximum number of tokens per side, including padding")
    layout: Literal["auto", "padded", "packed"] = Field(
        "auto", description="auto: packed on a GPU except for CTC, padded elsewhere"
    )


class TranslatorTrainingSettings(TrainingSettings):
    """Duration, device, precision, validation and checkpoints."""

    valid_sentences: int = Field(500, ge=0, description="validation sentences to translate for BLEU and chrF")
    samples: int = Field(3, ge=0, description="translations to print and log at each validation")
    monitor: Literal["auto", "loss", "bleu", "chrf"] = Field(
        "auto", description="score that selects the best model; auto: BLEU if sentences are translated, else the loss"
    )
    residual_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="dtype of the residual stream if precision is bfloat16; auto: bfloat16 for autoregressive models "
        "with norm=post on a GPU",
    )

    @model_validator(mode="after")
    def _check_monitor(self) -> Self:
        if self.residual_dtype == "bfloat16" and self.precision == "float32":
            raise ValueError("residual_dtype bfloat16 needs precision bfloat16 or auto")
        if self.monitor in ("bleu", "chrf") and not self.valid_sentences:
            raise ValueError(f"monitor {self.monitor} needs translations; set valid_sentences above 0")
        return self


class TranslationRecipe(Recipe):
    """Settings of a training run of a translator."""

    presets, default_preset = ("tiny", "small", "base", "big"), "small"
    derived = dict.fromkeys(("source_vocab", "target_vocab", "pad", "bos", "eos"), "the tokenizer")
    search_type: ClassVar[type[DecodingSettings]] = SearchSettings
    captured_by_default = True

    data: DataSettings = Field(description="the corpus: source and target, or builtin")
    init: TranslatorInitSettings = TranslatorInitSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: dict[str, Any] = Field({}, description="kind, preset (tiny, small, base or big) and any key of the model")
    optim: OptimSettings = OptimSettings()
    batch: BatchSettings = BatchSettings()
    objective: Annotated[SerializeAsAny[TeacherForcingSettings], select_objective(TeacherForcingSettings)] = (
        TeacherForcingSettings()
    )
    training: TranslatorTrainingSettings = TranslatorTrainingSettings()
    search: SearchSettings = Field(SearchSettings(), description="decoding of the validation sentences")

    @field_validator("search", mode="before")
    @classmethod
    def _check_search(cls, values: object) -> object:
        if isinstance(values, Mapping):
            check_setting_keys(cls.search_type, values, "search")
        return values

    @model_validator(mode="after")
    def _check_glossary(self) -> Self:
        if self.data.glossary_augment is None:
            return self
        if not self.tokenizer.joint:
            raise ValueError("data.glossary_augment needs one vocabulary for both languages; set tokenizer.joint=true")
        for key, given in (
            ("data.both_directions", self.data.both_directions),
            ("tokenizer.dropout", self.tokenizer.dropout),
            ("alignments", any(corpus.alignments for corpus in self.data.all_corpora())),
        ):
            if given:
                raise ValueError(f"data.glossary_augment excludes {key}; set one of the two")
        return self

    @model_validator(mode="after")
    def _check_tokenizer(self) -> Self:
        for key, given in (("directions", self.data.directions), ("both_directions", self.data.both_directions)):
            if given and not self.tokenizer.joint:
                raise ValueError(f"data.{key} needs one vocabulary for all languages; set tokenizer.joint=true")
        if self.tokenizer.dropout and self.tokenizer.kind != "bpe":
            raise ValueError(f"tokenizer.dropout needs tokenizer.kind=bpe, not {self.tokenizer.kind}")
        if self.tokenizer.dropout and self.model.get("source_end") is False:
            raise ValueError("tokenizer.dropout needs END after every source; omit model.source_end=false")
        if self.tokenizer.dropout and any(corpus.alignments for corpus in self.data.all_corpora()):
            raise ValueError("tokenizer.dropout excludes alignments, whose tokens would change; set one of the two")
        return self

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        if self.training.fixed_shapes and self.batch.layout == "padded":
            raise ValueError(f"{self.fixed_shapes_key} needs batches of fixed shape; set batch.layout=packed or auto")
        return self

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        if self.training.compile and self.objective != TeacherForcingSettings():
            raise ValueError("training.compile supports plain teacher forcing only; set training.cuda_graph instead")
        guide = getattr(self.objective, "guided_attention", None)  # other objectives have none
        if guide and guide.prior == "alignments" and not any(c.alignments for c in self.data.all_corpora()):
            raise ValueError("objective.guided_attention.prior: alignments needs data.alignments")
        return self

    @property
    def fixed_shapes_key(self) -> str:
        """The setting that requires batches of fixed shape."""
        return "training.compile" if self.training.compile else "training.cuda_graph"

    def check_model(self) -> None:
        config = self.model_settings()
        assert isinstance(config, TransformerConfig)
        self.check_fixed_shapes(config)
        self.objective.check_model(config)

    def check_fixed_shapes(self, config: EncoderDecoderConfig) -> None:
        """Check that the model supports batches of fixed shape, if the recipe needs them."""
        obstacle = self.obstacle_to_fixed_shapes(config)
        if self.training.fixed_shapes and obstacle is not None:
            raise UserError(f"{self.fixed_shapes_key}: {obstacle}")

    def obstacle_to_fixed_shapes(self, config: EncoderDecoderConfig) -> str | None:
        """Return why the model does not support batches of fixed shape; None if it does."""
        return None if config.attention.kind == "full" else f"needs full attention, not {config.attention.kind}"

    def model_settings(self, source_vocab: int = 8, target_vocab: int = 8) -> EncoderDecoderConfig:
        """Return the configuration of the model; before the vocabulary sizes are known, with arbitrary ones."""
        self._check_model_keys()
        if self.model.get("tie") == "all" and not self.tokenizer.joint:
            raise UserError("model.tie: 'all' needs one vocabulary for both sides; set model.tie=target")
        vocab = source_vocab if self.tokenizer.joint else (source_vocab, target_vocab)
        config: EncoderDecoderConfig = self._build_config(vocab=vocab)
        return config

    def _check_model_keys(self) -> None:
        """Reject keys of the group `model` that only other kinds of translation models have."""
        own = MODELS[self.kind].config_type().model_fields
        translators = {name: model for name, model in MODELS.items() if issubclass(model, EncoderDecoder)}
        for key in sorted(self.model.keys() - own.keys() - {"preset"}):
            if others := [name for name, model in translators.items() if key in model.config_type().model_fields]:
                raise UserError(f"model.{key}: is for model.kind={' or '.join(others)}, not {self.kind}")

    def max_positions(self) -> int | None:
        """Return the maximum number of positions of the model; None if it has no limit."""
        return self.model_settings().max_positions

    def max_length(self) -> int | None:
        """Return the maximum number of tokens per side of a training pair."""
        limits = [limit for limit in (self.data.max_length, self.max_positions()) if limit is not None]
        return min(limits, default=None)

    def packs_on_gpu(self) -> bool:
        """Return whether layout auto means packed on a GPU."""
        return True

    def resolve(self, device: torch.device) -> Self:
        """Choose how steps run, and the batch layout, on which positions in the data depend."""
        recipe = super().resolve(device)
        if recipe.training.residual_dtype == "auto":
            recipe = recipe.with_group("training", residual_dtype=recipe.choose_residual_dtype(device))
        if recipe.batch.layout != "auto":
            return recipe
        packed = recipe.training.fixed_shapes or (device.type == "cuda" and recipe.packs_on_gpu())
        return recipe.with_group("batch", layout="packed" if packed else "padded")

    def choose_residual_dtype(self, device: torch.device) -> str:
        """Return the dtype of the residual stream that is used by default.

        With norm=pre, nothing normalises the stream between layers, so that rounding errors add up.
        """
        rounds = self.model_settings().norm == "post" and self.training.precision != "float32"
        return "bfloat16" if device.type == "cuda" and rounds else "float32"

    def capture_obstacle(self, device: torch.device) -> str | None:
        if obstacle := super().capture_obstacle(device):
            return obstacle
        if self.batch.layout == "padded":
            return "batch.layout=padded"
        return self.obstacle_to_fixed_shapes(self.model_settings())

    def describe_batches(self) -> Sequence[str]:
        return f"{self.training.residual_dtype} residual stream", f"{self.batch.layout} batches"

    def resolve_resumed(self, old: Self, out: Path) -> Self:
        recipe = self
        if self.init.folder is not None and old.init.folder is not None:
            tokenizer = {key: getattr(old.tokenizer, key) for key in ("kind", "size", "joint")}
            recipe = self.complete(tokenizer, old.model, old.data.languages, str(out))
        recipe = recipe.with_languages(old.data.languages)
        return recipe.with_group("batch", layout=old.batch.layout) if recipe.batch.layout == "auto" else recipe

    def complete(
        self, tokenizer: Mapping[str, Any], model: Mapping[str, Any], languages: tuple[str, str], where: str
    ) -> Self:
        """Return the recipe with the settings of the model that the run is initialised from, in the folder `where`."""
        for key in sorted(self.tokenizer.model_fields_set & tokenizer.keys()):
            given, own = getattr(self.tokenizer, key), tokenizer[key]
            if given < own if key == "size" else given != own:  # a vocabulary may be smaller than its maximum size
                raise contradiction(f"tokenizer.{key}", given, own, where)
        taken = dict(model)
        if self.init.parts == "encoder":
            shared = EncoderDecoderConfig.model_fields.keys() & model.keys()
            taken = {key: model[key] for key in shared if key not in DECODER_KEYS}
        elif self.kind != model["kind"]:
            raise UserError(
                f"model.kind: {where} has kind {model['kind']}, not {self.kind}; set model.kind or init.parts"
            )
        return self.with_languages(languages).with_group("tokenizer", **tokenizer).with_model(taken, where)

    def with_languages(self, languages: LanguagePair) -> Self:
        """Return the recipe with these languages where it states none; with directions, these are the languages."""
        if self.data.directions:
            return self
        known = [code if code not in UNKNOWN else "" for code in languages]
        return self.with_group("data", languages=[a or b for a, b in zip(self.data.languages, known, strict=True)])

    def fixed_settings(self) -> dict[str, Any]:
        return super().fixed_settings() | {"data.languages": list(self.data.language_pair())}
