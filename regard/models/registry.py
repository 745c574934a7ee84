"""The kinds of model that a recipe can train and a folder can hold, by the name that config.json gives them."""

from __future__ import annotations

from typing import Any, NamedTuple

from regard.config import Settings
from regard.models.model import Model
from regard.models.parallel import ParallelTransformer, ParallelTransformerConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import EncoderDecoderConfig, Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig


class ModelKind(NamedTuple):
    """A configuration and what is built from it."""

    config: type[Settings]
    model: type[Model]

    def build(self, values: Any, where: str) -> Model:
        """The model that these values describe.

        Raises:
            UserError: a value is wrong; `where` names the place.
        """
        return self.model(self.config.parse(values, where))


MODELS = {
    "transformer": ModelKind(TransformerConfig, Transformer),
    "parallel": ModelKind(ParallelTransformerConfig, ParallelTransformer),
    "vit": ModelKind(ViTConfig, ViT),
    "swin": ModelKind(SwinConfig, Swin),
}

TRANSLATING = [name for name, kind in MODELS.items() if issubclass(kind.config, EncoderDecoderConfig)]
"""Those that read a text and write one."""
