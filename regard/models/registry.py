"""The kinds of model that a recipe can train and a folder can hold, by the name that config.json gives them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from regard.config import Settings
from regard.models.croco import CroCo, CroCoConfig
from regard.models.model import Model
from regard.models.parallel import ParallelTransformer, ParallelTransformerConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig

Reads = Literal["text", "images", "pairs"]


class ModelKind(NamedTuple):
    """A configuration, what is built from it, and what that reads."""

    config: type[Settings]
    model: type[Model]
    reads: Reads

    def build(self, values: Any, where: str) -> Model:
        """The model that these values describe.

        Raises:
            UserError: a value is wrong; `where` names the place.
        """
        return self.model(self.config.parse(values, where))


MODELS = {
    "transformer": ModelKind(TransformerConfig, Transformer, "text"),
    "parallel": ModelKind(ParallelTransformerConfig, ParallelTransformer, "text"),
    "vit": ModelKind(ViTConfig, ViT, "images"),
    "swin": ModelKind(SwinConfig, Swin, "images"),
    "croco": ModelKind(CroCoConfig, CroCo, "pairs"),
}
