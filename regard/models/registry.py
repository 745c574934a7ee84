"""Kinds of models by their name in config.json."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch

from regard.config import Settings
from regard.errors import UserError
from regard.models.base import Model
from regard.models.bert import Bert, BertConfig
from regard.models.croco import CroCo, CroCoConfig
from regard.models.nat import NATransformer, NATransformerConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig

InputType = Literal["text", "images", "pairs", "sentences"]
"""What a model processes: text to translate, images, pairs of views, or sentences to embed."""


class ModelKind(NamedTuple):
    """Configuration class, model class and input type of a kind of model."""

    config: type[Settings]
    model: type[Model]
    input_type: InputType

    def build(self, values: Any, where: str) -> Model:
        """Build a model from the values of a configuration; `where` names their place in errors.

        Raises:
            UserError: A value is invalid.
        """
        return self.model(self.config.parse(values, where))

    def build_on_meta(self, config: Settings, where: str) -> Model:
        """Build a model on the meta device, which has names and shapes of tensors but takes no memory.

        Raises:
            UserError: The model is too large for any memory.
        """
        try:
            with torch.device("meta"):
                return self.model(config)
        except (RuntimeError, TypeError, OverflowError) as error:  # the number of elements overflows
            reason = str(error).partition("\n")[0]
            raise UserError(f"{where}: describes a model that is too large for any memory ({reason})") from None


MODELS = {
    "transformer": ModelKind(TransformerConfig, Transformer, "text"),
    "nat": ModelKind(NATransformerConfig, NATransformer, "text"),
    "vit": ModelKind(ViTConfig, ViT, "images"),
    "swin": ModelKind(SwinConfig, Swin, "images"),
    "croco": ModelKind(CroCoConfig, CroCo, "pairs"),
    "bert": ModelKind(BertConfig, Bert, "sentences"),
}
