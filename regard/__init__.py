"""Train, inspect and serve attention models.

Public names are imported on first use, so that `import regard` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.attention.core import attend, attention_scores, attention_weights
    from regard.attention.kinds import Kind, KindSettings
    from regard.attention.multi_head import Attention, Rotary, Rotary2D, grid_positions
    from regard.config import Settings
    from regard.data.text.glossary import Glossary
    from regard.data.text.tokenizer import Tokenizer, Vocabularies
    from regard.decoding.settings import NATSettings, SearchSettings
    from regard.errors import UserError
    from regard.inspection.interventions import ablate
    from regard.inspection.look import look
    from regard.inspection.probe import probe
    from regard.layers import (
        AttentionUnit,
        DecoderBlock,
        Diagonal,
        EncoderBlock,
        FeedForward,
        ImageModel,
        Learned,
        Model,
        PatchEmbedding,
        Sinusoidal,
        Sinusoidal2D,
    )
    from regard.masks import Mask, Packed, Padded
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
    from regard.training.objectives.registry import Objective, ObjectiveSettings
    from regard.training.task import LossSum, Task, Validation
    from regard.training.tasks.simple_task import SimpleRecipe, SimpleTask, TensorBatch

_NAMES = {
    "regard.attention.core": "attend attention_scores attention_weights",
    "regard.attention.kinds": "Kind KindSettings",
    "regard.masks": "Mask Packed Padded",
    "regard.attention.multi_head": "Attention Rotary Rotary2D grid_positions",
    "regard.config": "Settings",
    "regard.data.text.glossary": "Glossary",
    "regard.data.text.tokenizer": "Tokenizer Vocabularies",
    "regard.decoding.settings": "NATSettings SearchSettings",
    "regard.errors": "UserError",
    "regard.inspection.interventions": "ablate",
    "regard.inspection.look": "look",
    "regard.inspection.probe": "probe",
    "regard.layers": "AttentionUnit DecoderBlock Diagonal EncoderBlock FeedForward ImageModel Learned Model "
    "PatchEmbedding Sinusoidal Sinusoidal2D",
    "regard.models.croco": "CroCo CroCoConfig",
    "regard.models.nat": "NATransformer NATransformerConfig",
    "regard.models.swin": "Swin SwinConfig",
    "regard.models.transformer": "Transformer TransformerConfig",
    "regard.models.vit": "ViT ViTConfig",
    "regard.pipelines.classifier": "Classifier",
    "regard.pipelines.constraints": "Constraints",
    "regard.pipelines.hypothesis": "Hypothesis",
    "regard.pipelines.translator": "Translator",
    "regard.registry": "register",
    "regard.training.objectives.registry": "Objective ObjectiveSettings",
    "regard.training.task": "LossSum Task Validation",
    "regard.training.tasks.simple_task": "SimpleRecipe SimpleTask TensorBatch",
}
"""Public names of each module."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Attention", "AttentionUnit", "Classifier", "Constraints", "CroCo", "CroCoConfig", "DecoderBlock", "Diagonal",
    "EncoderBlock", "FeedForward", "Glossary", "Hypothesis", "ImageModel", "Kind", "KindSettings", "Learned", "LossSum",
    "Mask", "Model", "NATSettings", "NATransformer", "NATransformerConfig", "Objective", "ObjectiveSettings", "Packed",
    "Padded", "PatchEmbedding", "Rotary", "Rotary2D", "SearchSettings", "Settings", "SimpleRecipe", "SimpleTask",
    "Sinusoidal", "Sinusoidal2D", "Swin", "SwinConfig", "Task", "TensorBatch", "Tokenizer", "Transformer",
    "TransformerConfig", "Translator", "UserError", "Validation", "ViT", "ViTConfig", "Vocabularies", "ablate",
    "attend", "attention_scores", "attention_weights", "grid_positions", "look", "probe", "register",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
