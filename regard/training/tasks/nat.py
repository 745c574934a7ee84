"""Training of non-autoregressive (NAT) translators, with the data, batches and validation of other translators."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import Field, SerializeAsAny, model_validator

from regard.data.text.tokens import SCAN_ROWS, RaggedArray
from regard.decoding.settings import NATSettings
from regard.errors import UserError
from regard.models.nat import NATransformer, NATransformerConfig
from regard.models.transformer import EncoderDecoderConfig
from regard.pipelines.sentence_translator import check_reranker
from regard.training.objectives.nat import NATObjective, NATObjectiveSettings, count_predicted
from regard.training.objectives.registry import Objective, select_objective
from regard.training.progress import Progress, counted
from regard.training.tasks.translation.recipe import TranslationRecipe
from regard.training.tasks.translation.task import TranslationTask

DEFAULT = NATObjectiveSettings()


class NATRecipe(TranslationRecipe):
    """Settings of a training run of a non-autoregressive translator."""

    search_type = NATSettings

    # The kind of the model determines the keys of these groups.
    objective: Annotated[SerializeAsAny[NATObjectiveSettings], select_objective(NATObjectiveSettings)] = DEFAULT  # type: ignore[assignment]
    search: NATSettings = Field(NATSettings(), description="decoding of the validation sentences")  # type: ignore[assignment]

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        return self  # depends on the model: see check_model

    def packs_on_gpu(self) -> bool:
        """Return False if the loss needs padded rows: then batches of sentences of similar length are faster."""
        return self.model.get("length") not in ("ctc", "dag")

    def check_model(self) -> None:
        config = self.model_settings()
        assert isinstance(config, NATransformerConfig)
        if self.training.compile:
            raise UserError("training.compile: supports autoregressive models only; set training.cuda_graph instead")
        self.check_fixed_shapes(config)
        config.check_effect()
        self.objective.check_model(config)
        try:
            self.search.resolve(config.length)
            if self.search.rerank is not None:
                check_reranker(self.search.rerank)
        except UserError as error:
            raise UserError(f"search.{error}") from None

    def choose_residual_dtype(self, device: torch.device) -> str:
        return "float32"  # bfloat16 has not been compared for these models

    def obstacle_to_fixed_shapes(self, config: EncoderDecoderConfig) -> str | None:
        assert isinstance(config, NATransformerConfig)
        positions = config.max_positions
        if config.length != "classifier" and positions is not None:
            limit = (positions - config.upsample_extra) // config.upsampling
            if (self.max_length() or positions) > limit:
                key = "max_length" if config.positions == "learned" else "width"
                return f"model.{key}={positions} is too small for upsampled text; set data.max_length={limit} or less"
        return super().obstacle_to_fixed_shapes(config)


class NATTask(TranslationTask):
    """Trains a decoder to predict the masked tokens of a NAT target."""

    name = "nat"
    model_type = NATransformer
    recipe_type = NATRecipe
    recipe: NATRecipe

    def _validation_objective(self) -> Objective:
        """Return the loss that reveals no tokens."""
        settings = self.recipe.objective if isinstance(self.recipe.objective, NATObjectiveSettings) else DEFAULT
        return NATObjective(length_weight=settings.length_weight, ngram_overlap=settings.ngram_overlap)

    def _count_function(self) -> Callable[[RaggedArray, RaggedArray], int]:
        return partial(count_predicted, self.model.config)

    def report(self, progress: Progress) -> None:
        """Print how many targets are longer than the upsampled source; they do not contribute to the loss.

        CTC paths need a blank between repeated tokens, so that some more targets may not fit; the log counts those too.
        """
        config: Any = self.model.config
        if config.length == "classifier":
            return
        too_long = 0
        for start in range(0, len(self.train_tokens), SCAN_ROWS):
            rows = np.arange(start, min(start + SCAN_ROWS, len(self.train_tokens)))
            needed = self.train_tokens.target.lengths_at(rows) - {"ctc": 2, "end": 1, "dag": 0}[config.length]
            too_long += int((needed > config.upsampled_lengths(self.train_tokens.source.lengths_at(rows))).sum())
        self.train_tokens.release_pages()
        advice = "raise model.upsample_ratio or model.upsample_extra"
        if too_long == len(self.train_tokens):
            raise UserError(f"no training pair is left: every target is longer than its upsampled source; {advice}")
        if too_long:
            progress.print(
                f"skipped: {counted(too_long, 'pair')} with a target longer than its upsampled source; {advice}"
            )
