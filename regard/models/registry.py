"""The kinds of model that a folder can hold, by the name that config.json gives them; recipes train most of them."""

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
"""Text is translated; sentences only become vectors."""


class ModelKind(NamedTuple):
    """A configuration, what is built from it, and what that reads."""

    config: type[Settings]
    model: type[Model]
    input_type: InputType

    def build(self, values: Any, where: str) -> Model:
        """The model that these values describe.

        Raises:
            UserError: a value is wrong; `where` names the place.
        """
        return self.model(self.config.parse(values, where))

    def build_on_meta(self, config: Settings, where: str) -> Model:
        """The model of a config without weights or memory: the names and shapes of its tensors.

        Raises:
            UserError: no memory could ever hold it.
        """
        try:
            with torch.device("meta"):
                return self.model(config)
        except (RuntimeError, TypeError, OverflowError) as error:  # from PyTorch: sizes whose product has no number
            reason = str(error).partition("\n")[0]
            raise UserError(f"{where}: describes a model too large for any memory ({reason})") from None


MODELS = {
    "transformer": ModelKind(TransformerConfig, Transformer, "text"),
    "nat": ModelKind(NATransformerConfig, NATransformer, "text"),
    "vit": ModelKind(ViTConfig, ViT, "images"),
    "swin": ModelKind(SwinConfig, Swin, "images"),
    "croco": ModelKind(CroCoConfig, CroCo, "pairs"),
    "bert": ModelKind(BertConfig, Bert, "sentences"),
}
