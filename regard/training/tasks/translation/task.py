"""Training of autoregressive translators."""

import math
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from regard.data.batching import EpochOrder, plan_packed, plan_padded, prefetch_iterator
from regard.data.text.encoding import tokenise_pairs
from regard.data.text.languages import tokenisation_for
from regard.data.text.readers import read_lines
from regard.data.text.tokenizer import Vocabularies
from regard.data.text.tokens import Ints, ParallelTokens, RaggedArray
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.errors import UserError
from regard.evaluation.calibration import MIN_SENTENCES, calibrate
from regard.evaluation.metrics import bleu, check_tokenisation, chrf
from regard.layers import Model
from regard.models.folder import unique_tensors
from regard.models.transformer import EncoderDecoderConfig, Transformer
from regard.models.warmstart import ENCODER, copy_tensors, grow_vocabulary
from regard.ops.linear import use_prepacked
from regard.pipelines.confidence import FILE as CONFIDENCE
from regard.pipelines.confidence import Calibration
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator
from regard.training.memory import build_model, describe_size
from regard.training.objectives.registry import Objective
from regard.training.objectives.teacher_forcing import TeacherForcing, TeacherForcingSettings
from regard.training.prepared_data import check_files, read_fingerprints, require_paths
from regard.training.progress import Progress, Sample, counted
from regard.training.state import DataPosition, DataShard, Positioned
from regard.training.task import DivergedError, InitialModel, LossSum, Step, Task, Validation, sample_indices
from regard.training.tasks.translation.data import (
    CLEANING,
    SKIPPED,
    TranslationData,
    complete_languages,
    open_data,
    prepare_data,
)
from regard.training.tasks.translation.recipe import TranslationRecipe, TranslatorInitSettings
from regard.training.text_batches import PackedShape, TextBatch, collate, count_labels
from regard.training.workers import map_in_workers

PREFETCHED = 4
"""Number of batches that are prepared in advance."""
VALIDATION_MEMORY_FRACTION = 16
"""Captured decoding steps, which are kept between validations, use at most this fraction of the GPU's memory."""


class TranslationTask(Task[TextBatch]):
    """Trains a decoder to predict each next token of the reference."""

    name = "translation"
    model_type: ClassVar[type[Model]] = Transformer
    recipe_type = TranslationRecipe

    def __init__(
        self, translator: Translator, data: TranslationData, recipe: TranslationRecipe, device: torch.device
    ) -> None:
        self.translator, self.recipe, self.device = translator, recipe, device
        self.train_tokens, self.valid_pairs = data.train, data.valid
        self.model: Any = translator.model
        self.width = self.model.config.width
        self.tokenisation = tokenisation_for(translator.languages[1])
        if recipe.training.residual_dtype == "bfloat16":
            self.model.residual_dtype = torch.bfloat16
        self.objective: Objective = recipe.objective.build(recipe, self.model.config)
        self.validation_objective = self._validation_objective()
        self.shape = PackedShape.of(self.train_tokens, recipe.batch.tokens) if recipe.training.fixed_shapes else None
        self.packed = recipe.batch.layout == "packed" or (recipe.batch.layout == "auto" and device.type == "cuda")
        self.collate: Callable[..., TextBatch] = partial(
            collate, packed=self.packed, pad=self.model.config.pad, count_loss_terms=self._count_function()
        )
        vocabularies = translator.vocabularies
        self.valid_tokens = tokenise_pairs(
            self.valid_pairs, vocabularies.source, vocabularies.target, self.model.config.source_end
        )
        weights = [corpus.weight for corpus in recipe.data.all_corpora()] or [1.0]
        weights = [weights[use.corpus] for use in recipe.data.uses()]
        self._validated: Translator | None = None
        self.order = EpochOrder.of(recipe.training.seed, self.train_tokens.sizes, weights)

    def _validation_objective(self) -> Objective:
        """Return the plain loss without label smoothing."""
        return TeacherForcing(TeacherForcingSettings(), label_smoothing=0.0)

    def _count_function(self) -> Callable[[RaggedArray, RaggedArray], int]:
        """Return what counts the tokens that the loss of a batch is a sum over, by sources and targets.

        Overridden for non-autoregressive models, whose loss leaves out targets that do not fit.
        """
        return count_labels

    # Preparation

    @classmethod
    def load_initial_model(cls, recipe: TranslationRecipe) -> InitialModel:
        folder = recipe.init.folder
        assert folder is not None
        loaded = Translator.load(folder)
        old = loaded.vocabularies
        if loaded.directions and not recipe.data.directions:
            listed = ", ".join("-".join(pair) for pair in loaded.directions)
            raise UserError(f"init.from: {folder} has the directions {listed}; set data.directions to some of them")
        tokenizer = {"kind": old.source.kind, "size": len(old.source), "joint": old.joint}
        completed = recipe.complete(tokenizer, recipe.keys_of(loaded.model.config), loaded.languages, str(folder))
        tokens = _new_tokens(recipe.init)
        tokens += [tag for tag in old.missing(recipe.data.tags()) if tag not in tokens]
        try:
            vocabularies = old.with_tokens(tokens)
        except UserError as error:
            raise UserError(f"init.new_tokens: {error}") from None
        model = loaded.model
        _check_special_ids(model.config, old, folder)
        if tokens:
            spellings = [[side.encode_continuation(token) for token in tokens] for side in (old.source, old.target)]
            model = grow_vocabulary(model, spellings[0], spellings[1], recipe.training.seed)
        return InitialModel(folder, completed, unique_tensors(model), vocabularies)

    @classmethod
    def complete_recipe(cls, recipe: TranslationRecipe, progress: Progress) -> TranslationRecipe:
        data = recipe.data
        require_paths({"--src": data.source, "--tgt": data.target})
        require_paths({"--valid-src": data.valid_source, "--valid-tgt": data.valid_target})
        return complete_languages(recipe, progress)

    @classmethod
    def prepare_data(
        cls, folder: Path, recipe: TranslationRecipe, progress: Progress, initial: InitialModel | None
    ) -> None:
        prepare_data(folder, recipe, progress, None if initial is None else initial.extras)

    @classmethod
    def check_data(cls, folder: Path, recipe: TranslationRecipe, owner: str) -> None:
        check_files(recipe.data.files(), read_fingerprints(folder)["files"], owner)

    @classmethod
    def open(
        cls, folder: Path, recipe: TranslationRecipe, device: torch.device, progress: Progress
    ) -> "TranslationTask":
        data = open_data(folder, recipe, progress)
        vocabularies, languages = data.vocabularies, recipe.data.language_pair()
        config = recipe.model_settings(len(vocabularies.source), len(vocabularies.target))
        config = config.changed(**vocabularies.target.special_ids)
        model = build_model(config, device, recipe.training.sharding)
        sizes = f"{len(vocabularies.source):,}" + ("" if vocabularies.joint else f" and {len(vocabularies.target):,}")
        progress.print(
            f"{languages[0]} → {languages[1]}: {counted(len(data.train), 'training pair')}, {len(data.valid):,} for "
            f"validation; vocabulary of {sizes} tokens"
        )
        if data.removed:
            removed = ", ".join(f"{rule} {number:,}" for rule, number in data.removed.items())
            pairs = counted(sum(data.removed.values()), "pair")
            progress.print(f"cleaning removed {pairs} ({removed}); see {data.folder / CLEANING}")
        for reason, number in data.skipped.items():
            progress.print(f"skipped: {counted(number, 'pair')} with {reason}; see {data.folder / SKIPPED}")
        progress.print(describe_size(model, device))
        longest, directions = data.train.longest_source(), recipe.data.directions
        translator = Translator(model, vocabularies, languages, longest_source=longest, directions=directions)
        task = cls(translator, data, recipe, device)
        try:
            check_tokenisation(task.tokenisation)
        except UserError as error:
            task.tokenisation = "char"
            progress.print(f"validation computes BLEU of characters: {error}")
        task.report(progress)
        return task

    def report(self, progress: Progress) -> None:
        """Print what else is worth knowing about the data."""

    def initialise(self, initial: InitialModel) -> str:
        encoder_only = self.recipe.init.parts == "encoder"
        copy_tensors(self.model, initial.tensors, str(initial.folder), ENCODER if encoder_only else ("",))
        return f"initialised with the {'encoder' if encoder_only else 'weights'} of {initial.folder}"

    @classmethod
    def next_command(cls, out: Path) -> str:
        return f"regard translate {out} < FILE"

    # Training

    def batches(self, position: DataPosition, shard: DataShard) -> Generator[Positioned[TextBatch], None, None]:
        plans = shard.select(self._plan_from(position))
        # Worker processes collate rows of the corpus to batches on the CPU; without workers, the thread below does.
        # The thread copies batches to the device, up to PREFETCHED of them before the loop asks for them.
        collate_plan = partial(_collate_plan, self.train_tokens, partial(self.collate, shape=self.shape))
        with map_in_workers(collate_plan, plans, self.recipe.training.workers) as collated:
            loaded = (Positioned(batch.item.to(self.device), batch.after) for batch in collated)
            yield from prefetch_iterator(loaded, PREFETCHED)

    def largest_batch(self) -> TextBatch:
        """Return a batch of the longest sentences: no batch has longer ones, and hardly any has more tokens."""
        longest = self.train_tokens.longest_pairs(self.recipe.batch.tokens)
        source, target = self.train_tokens.source.lengths_at(longest), self.train_tokens.target.lengths_at(longest) - 1
        if self.packed:
            padded_tokens = np.maximum(np.cumsum(source), np.cumsum(target))
        else:
            padded_tokens = max(source[0], target[0]) * np.arange(1, len(longest) + 1)
        fitting = int(np.searchsorted(padded_tokens, self.recipe.batch.tokens, side="right"))
        return self.collate(self.train_tokens, longest[: max(1, fitting)], shape=self.shape).to(self.device)

    def count(self, batch: TextBatch) -> int:
        return batch.count

    def size(self, batch: TextBatch) -> int:
        return batch.padded_tokens

    def split(self, batch: TextBatch) -> tuple[TextBatch, TextBatch] | None:
        half = batch.sentences // 2
        if not half:
            return None
        first, second = (self.collate(self.train_tokens, rows) for rows in (batch.rows[:half], batch.rows[half:]))
        return first.to(self.device), second.to(self.device)

    def describe(self, batch: TextBatch) -> str:
        if batch.sentences == 1:
            return f"a sentence of {batch.longest} tokens"
        return f"{batch.sentences} sentences of up to {batch.longest} tokens"

    def advise(self, batch: TextBatch) -> str:
        if batch.sentences == 1:
            return f"data.max_length={batch.longest // 2}, or a smaller model"
        return f"batch.tokens={batch.padded_tokens // 2}"

    def begin_step(self, step: int) -> None:
        self.objective.begin_step(step)

    def operations_key(self) -> Hashable:
        return self.objective.operations_key()

    def loss(self, batch: TextBatch, step: Step) -> LossSum:
        return self.objective.loss(self.model, batch, step)

    def _plan_from(self, position: DataPosition) -> Iterator[Positioned[Ints]]:
        """Iterate over the rows of every training batch from a position on."""
        windows = range(position.window, self.order.windows)
        used = position.batch
        for epoch in count(position.epoch):
            for window in windows:
                rng = np.random.default_rng((self.recipe.training.seed, epoch, window))
                window_rows = self.order.rows(epoch, window)
                if self.recipe.tokenizer.dropout:
                    # The rows as segmented for this epoch; see `DropoutTokens`.
                    window_rows += (epoch + 1) * len(self.train_tokens)
                plan = self._plan(self.train_tokens, window_rows, rng, self.shape)
                for number, batch_rows in enumerate(plan[used:], used + 1):
                    yield Positioned(batch_rows, DataPosition(epoch, number, window))
                used = 0
            windows = range(self.order.windows)

    def _plan(
        self, corpus: ParallelTokens, rows: Ints, rng: np.random.Generator, shape: PackedShape | None = None
    ) -> list[Ints]:
        """Group rows into batches."""
        tokens, (source, target) = self.recipe.batch.tokens, corpus.lengths_at(rows)
        if self.packed:
            plan = plan_packed(source, target - 1, tokens, rng, None if shape is None else shape.sentences)
        else:
            plan = plan_padded(source, target - 1, tokens, rng)
        return [rows[chosen] for chosen in plan]

    # Validation

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """Compute the loss without label smoothing, perplexity, and BLEU and chrF of translations."""
        model.eval()
        loss = self._validation_loss(model)
        if not math.isfinite(loss):
            raise DivergedError(loss)
        scores = {"loss": loss, "perplexity": math.exp(min(loss, 100))}
        samples: list[Sample] = []
        calibration: Calibration | None = None
        pairs = self.valid_pairs[: self.recipe.training.valid_sentences]
        if pairs:
            translator = self._validated_translator(model)
            # Autocast would copy all weights in each decoding step, which could not be captured either.
            exact = torch.autocast(self.device.type, enabled=False) if self.device.type == "cuda" else nullcontext()
            with use_prepacked(model), exact:
                hypotheses = translator.hypotheses([pair.source for pair in pairs], self.recipe.search, split=False)
            translations, references = [best[0].text for best in hypotheses], [pair.target for pair in pairs]
            scores["bleu"] = bleu(translations, references, self.tokenisation).value
            scores["chrf"] = chrf(translations, references).value
            shown = sample_indices(self.recipe.training.samples, len(pairs))
            samples = [Sample(*pairs[i], translations[i]) for i in shown]
            if len(pairs) >= MIN_SENTENCES:
                calibration = self._calibrate([best[0] for best in hypotheses], references)
        monitor = self.recipe.training.monitor
        if monitor == "auto":
            monitor = "bleu" if pairs else "loss"
        scores["score"] = -loss if monitor == "loss" else scores[monitor]
        if calibration is None:
            return Validation(scores, samples)
        details = {"confidence": calibration.error.model_dump(mode="json")}
        return Validation(scores, samples, details, {CONFIDENCE: calibration.model_dump(mode="json")})

    def _calibrate(self, hypotheses: list[Hypothesis], references: list[str]) -> Calibration:
        tokens = self.translator.vocabularies.target.encode_batch(references)
        return calibrate(hypotheses, tokens, references)

    def _validation_loss(self, model: nn.Module) -> float:
        plan = self._plan(self.valid_tokens, np.arange(len(self.valid_tokens)), np.random.default_rng(0))
        batches = (self.collate(self.valid_tokens, rows).to(self.device) for rows in plan)
        losses = [self.validation_objective.loss(model, batch, 0) for batch in batches]
        tokens = sum(loss.count for loss in losses)
        return sum(float(loss.total) for loss in losses) / max(1, tokens)

    def save(self, folder: Path, model: nn.Module) -> None:
        self._translator(model).save(folder)

    def _validated_translator(self, model: Any) -> Translator:
        """Return the translator of a model that is validated; it keeps captured steps from validation to validation."""
        if self._validated is not None and self._validated.model is model:
            return self._validated
        translator = self._translator(model)
        if self.device.type == "cuda" and isinstance(translator.generator, AutoregressiveGenerator):
            memory = torch.cuda.get_device_properties(self.device).total_memory
            translator.generator.graph_memory = memory // VALIDATION_MEMORY_FRACTION
        if self.recipe.training.sharding == "ddp":  # a sharded model leaves the device after each validation
            self._validated = translator
        return translator

    def _translator(self, model: Any) -> Translator:
        own, longest = self.translator, self.translator.longest_source
        return Translator(model, own.vocabularies, own.languages, longest_source=longest, directions=own.directions)


def _collate_plan(
    corpus: ParallelTokens, collate: Callable[..., TextBatch], planned: Positioned[Ints]
) -> Positioned[TextBatch]:
    batch = collate(corpus, planned.item)
    corpus.release_pages()  # frees the pages of the memory-mapped corpus that were read
    return Positioned(batch, planned.after)


def _check_special_ids(config: EncoderDecoderConfig, vocabularies: Vocabularies, folder: Path) -> None:
    """Check that the tokenizers of an imported model name the special tokens that the model has."""
    for tokenizer in (vocabularies.source, vocabularies.target):
        for name, index in tokenizer.special_ids.items():
            if getattr(config, name) != index:
                raise UserError(
                    f"init.from: {folder}: {name} is {getattr(config, name)} in config.json, but {index} in the "
                    "tokenizer, so training would use another token than the model"
                )


def _new_tokens(settings: TranslatorInitSettings) -> list[str]:
    lines = [] if settings.new_tokens_file is None else read_lines(settings.new_tokens_file)
    return [*settings.new_tokens, *(line for line in lines if line.strip())]
