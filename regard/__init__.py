"""Train, inspect and serve attention models.

Public names are imported on first use, so that `import regard` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.attention.core import attend, attention_scores, attention_weights
    from regard.attention.kinds import Kind, KindSettings
    from regard.attention.masks import Mask, Packed, Padded
    from regard.attention.multi_head import Attention
    from regard.attention.positions import Diagonal, Learned, Rotary, Rotary2D, Sinusoidal, Sinusoidal2D, grid_positions
    from regard.config import Settings
    from regard.data.text.tokenizer import Tokenizer
    from regard.data.text.vocabularies import Vocabularies
    from regard.decoding.config import NATSettings, SearchSettings
    from regard.errors import UserError
    from regard.inspection.interventions import ablate
    from regard.inspection.probe import probe
    from regard.layers import AttentionUnit, DecoderBlock, EncoderBlock, FeedForward, ImageModel, Model, PatchEmbedding
    from regard.models.croco import CroCo, CroCoConfig
    from regard.models.nat import NATransformer, NATransformerConfig
    from regard.models.swin import Swin, SwinConfig
    from regard.models.transformer import Transformer, TransformerConfig
    from regard.models.vit import ViT, ViTConfig
    from regard.pipelines.classifier import Classifier
    from regard.pipelines.constraints import Constraints
    from regard.pipelines.hypothesis import Hypothesis
    from regard.pipelines.translator import Translator
    from regard.registry import register
    from regard.training.objectives.registry import Objective
    from regard.training.task import LossSum, Task, Validation
    from regard.training.tasks.simple import SimpleRecipe, SimpleTask, TensorBatch

_MODULES = {
    "Attention": "regard.attention.multi_head",
    "AttentionUnit": "regard.layers",
    "Classifier": "regard.pipelines.classifier",
    "Constraints": "regard.pipelines.constraints",
    "CroCo": "regard.models.croco",
    "CroCoConfig": "regard.models.croco",
    "DecoderBlock": "regard.layers",
    "Diagonal": "regard.attention.positions",
    "EncoderBlock": "regard.layers",
    "FeedForward": "regard.layers",
    "Hypothesis": "regard.pipelines.hypothesis",
    "ImageModel": "regard.layers",
    "Kind": "regard.attention.kinds",
    "KindSettings": "regard.attention.kinds",
    "Learned": "regard.attention.positions",
    "LossSum": "regard.training.task",
    "Mask": "regard.attention.masks",
    "Model": "regard.layers",
    "NATSettings": "regard.decoding.config",
    "NATransformer": "regard.models.nat",
    "NATransformerConfig": "regard.models.nat",
    "Objective": "regard.training.objectives.registry",
    "Packed": "regard.attention.masks",
    "Padded": "regard.attention.masks",
    "PatchEmbedding": "regard.layers",
    "Rotary": "regard.attention.positions",
    "Rotary2D": "regard.attention.positions",
    "SearchSettings": "regard.decoding.config",
    "Settings": "regard.config",
    "SimpleRecipe": "regard.training.tasks.simple",
    "SimpleTask": "regard.training.tasks.simple",
    "Sinusoidal": "regard.attention.positions",
    "Sinusoidal2D": "regard.attention.positions",
    "Swin": "regard.models.swin",
    "SwinConfig": "regard.models.swin",
    "Task": "regard.training.task",
    "TensorBatch": "regard.training.tasks.simple",
    "Tokenizer": "regard.data.text.tokenizer",
    "Transformer": "regard.models.transformer",
    "TransformerConfig": "regard.models.transformer",
    "Translator": "regard.pipelines.translator",
    "UserError": "regard.errors",
    "Validation": "regard.training.task",
    "ViT": "regard.models.vit",
    "ViTConfig": "regard.models.vit",
    "Vocabularies": "regard.data.text.vocabularies",
    "ablate": "regard.inspection.interventions",
    "attend": "regard.attention.core",
    "attention_scores": "regard.attention.core",
    "attention_weights": "regard.attention.core",
    "grid_positions": "regard.attention.positions",
    "probe": "regard.inspection.probe",
    "register": "regard.registry",
}

__all__ = [
    "Attention",
    "AttentionUnit",
    "Classifier",
    "Constraints",
    "CroCo",
    "CroCoConfig",
    "DecoderBlock",
    "Diagonal",
    "EncoderBlock",
    "FeedForward",
    "Hypothesis",
    "ImageModel",
    "Kind",
    "KindSettings",
    "Learned",
    "LossSum",
    "Mask",
    "Model",
    "NATSettings",
    "NATransformer",
    "NATransformerConfig",
    "Objective",
    "Packed",
    "Padded",
    "PatchEmbedding",
    "Rotary",
    "Rotary2D",
    "SearchSettings",
    "Settings",
    "SimpleRecipe",
    "SimpleTask",
    "Sinusoidal",
    "Sinusoidal2D",
    "Swin",
    "SwinConfig",
    "Task",
    "TensorBatch",
    "Tokenizer",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "UserError",
    "Validation",
    "ViT",
    "ViTConfig",
    "Vocabularies",
    "ablate",
    "attend",
    "attention_scores",
    "attention_weights",
    "grid_positions",
    "probe",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
