"""What a recipe says about teaching. Everything is off unless asked for; what is left is teacher forcing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from regard.config import Settings
from regard.errors import UserError
from regard.models.transformer import TransformerConfig

Index = Annotated[int, Field(strict=True)]


class SamplingSettings(Settings):
    """Scheduled sampling: the decoder reads more and more of its own predictions in place of the reference."""

    decay: Literal["linear", "exponential", "inverse-sigmoid"] = Field(
        "inverse-sigmoid", description="how the share of the reference falls"
    )
    half_life: int = Field(gt=0, description="steps after `start` at which it would have fallen to one half")
    start: int = Field(0, ge=0, description="steps of teacher forcing before it begins to fall")
    floor: float = Field(0.5, ge=0, le=1, description="below which it never falls")
    choice: Literal["argmax", "sample"] = Field(
        "argmax", description="a prediction is the likeliest token, or one drawn from the model's distribution"
    )


class GuideSettings(Settings):
    """Guided attention: cross-attention is asked to look where a prior says, less and less."""

    prior: Literal["diagonal", "alignments"] = Field(
        "diagonal", description="where to look: along the sentence as the target goes on, or at the aligned words"
    )
    weight: float = Field(1.0, gt=0, description="of its loss beside the cross-entropy, at the first step")
    steps: int = Field(gt=0, description="over which the weight falls to zero; from then on no weights are made")
    layers: tuple[Index, ...] | None = Field(
        None, min_length=1, description="of the decoder, counted from 0 or, below it, from the end; all unless given"
    )
    heads: tuple[Index, ...] | None = Field(None, min_length=1, description="of these layers, likewise")
    width: float = Field(0.2, gt=0, description="of the diagonal, as a share of the sentence: one standard deviation")


class ObjectiveSettings(Settings):
    """What is laid over teacher forcing."""

    scheduled_sampling: SamplingSettings | None = None
    guided_attention: GuideSettings | None = None
    r_drop: float = Field(
        0.0, ge=0, description="weight of the divergence between two readings with different dropout; 0: one reading"
    )

    def check_model(self, model: TransformerConfig) -> None:
        """Refuses layers and heads that the model does not have.

        Raises:
            UserError: the first that is missing, with its key.
        """
        guide = self.guided_attention
        if guide is None:
            return
        for key, chosen, size in (
            ("layers", guide.layers, model.decoder_layers),
            ("heads", guide.heads, model.heads),
        ):
            for number in chosen or ():
                if not -size <= number < size:
                    raise UserError(
                        f"objective.guided_attention.{key}: the model has 0 to {size - 1}, so there is no {number}"
                    )
