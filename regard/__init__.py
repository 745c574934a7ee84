"""Train, inspect and serve attention models.

Public names are imported on first use, so that `import regard` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.attention.core import attend
    from regard.attention.masks import Mask, Packed, Padded
    from regard.attention.multi_head import Attention
    from regard.data.text.tokenizer import Tokenizer
    from regard.decoding.config import NATSettings, SearchSettings
    from regard.errors import UserError
    from regard.inspection.interventions import ablate
    from regard.inspection.probe import probe
    from regard.models.croco import CroCo, CroCoConfig
    from regard.models.nat import NATransformer, NATransformerConfig
    from regard.models.swin import Swin, SwinConfig
    from regard.models.transformer import Transformer, TransformerConfig
    from regard.models.vit import ViT, ViTConfig
    from regard.pipelines.classifier import Classifier
    from regard.pipelines.constraints import Constraints
    from regard.pipelines.hypothesis import Hypothesis
    from regard.pipelines.translator import Translator

_MODULES = {
    "Attention": "regard.attention.multi_head",
    "Classifier": "regard.pipelines.classifier",
    "Constraints": "regard.pipelines.constraints",
    "CroCo": "regard.models.croco",
    "CroCoConfig": "regard.models.croco",
    "Hypothesis": "regard.pipelines.hypothesis",
    "Mask": "regard.attention.masks",
    "NATSettings": "regard.decoding.config",
    "NATransformer": "regard.models.nat",
    "NATransformerConfig": "regard.models.nat",
    "Packed": "regard.attention.masks",
    "Padded": "regard.attention.masks",
    "SearchSettings": "regard.decoding.config",
    "Swin": "regard.models.swin",
    "SwinConfig": "regard.models.swin",
    "Tokenizer": "regard.data.text.tokenizer",
    "Transformer": "regard.models.transformer",
    "TransformerConfig": "regard.models.transformer",
    "Translator": "regard.pipelines.translator",
    "UserError": "regard.errors",
    "ViT": "regard.models.vit",
    "ViTConfig": "regard.models.vit",
    "ablate": "regard.inspection.interventions",
    "attend": "regard.attention.core",
    "probe": "regard.inspection.probe",
}

__all__ = [
    "Attention",
    "Classifier",
    "Constraints",
    "CroCo",
    "CroCoConfig",
    "Hypothesis",
    "Mask",
    "NATSettings",
    "NATransformer",
    "NATransformerConfig",
    "Packed",
    "Padded",
    "SearchSettings",
    "Swin",
    "SwinConfig",
    "Tokenizer",
    "Transformer",
    "TransformerConfig",
    "Translator",
    "UserError",
    "ViT",
    "ViTConfig",
    "ablate",
    "attend",
    "probe",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
