"""What a recipe says about teaching a model that writes all tokens at once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from regard.config import Settings
from regard.errors import UserError
from regard.models.nat import NATransformerConfig

Share = Annotated[float, Field(ge=0, lt=1)]


class NATObjectiveSettings(Settings):
    """Which tokens of the reference stand on the canvas that is to be filled."""

    reveal: Literal["auto", "uniform", "glancing", "none"] = Field(
        "auto",
        description="random ones, all shares alike, as mask-predict needs; some of those that a first look gets wrong; "
        "or none; auto: uniform where the length is classified, else glancing",
    )
    glancing_ratio: tuple[Share, Share] = Field(
        (0.5, 0.3), description="share of the wrong tokens that glancing reveals, at the first step and at the last"
    )
    length_weight: float = Field(0.5, ge=0, description="of the length classifier's loss beside that of the tokens")

    def choose(self, model: NATransformerConfig) -> Literal["uniform", "glancing", "none"]:
        """What is revealed to this model.

        Raises:
            UserError: it cannot learn like that.
        """
        if self.reveal == "auto":
            return "uniform" if model.length == "classifier" else "glancing"
        if self.reveal == "uniform" and model.length != "classifier":
            raise UserError(f"objective.reveal: uniform is for model.length=classifier, not {model.length}")
        return self.reveal

    def check_effect(self, model: NATransformerConfig) -> None:
        """Does nothing where this model can learn like that, and by all that is set.

        Raises:
            UserError: it cannot, or something would have no effect.
        """
        usual, reveal = NATObjectiveSettings(), self.choose(model)
        if self.glancing_ratio != usual.glancing_ratio and reveal != "glancing":
            raise UserError(f"objective.glancing_ratio: is for objective.reveal=glancing, not {reveal}; leave it away")
        if self.length_weight != usual.length_weight and model.length != "classifier":
            raise UserError(
                f"objective.length_weight: is for model.length=classifier, not {model.length}; leave it away"
            )
