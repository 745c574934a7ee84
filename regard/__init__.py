"""regard: the Transformer, whole.

The public names are loaded when first used: `import regard` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.attention import Attention, Mask, Packed, Padded, attend
    from regard.decoding.hypothesis import Hypothesis
    from regard.decoding.settings import ParallelSettings, SearchSettings
    from regard.decoding.translator import Translator
    from regard.decoding.wishes import Wishes
    from regard.errors import UserError
    from regard.inspection.heads import ablate
    from regard.inspection.probe import probe
    from regard.models.croco import CroCo, CroCoConfig
    from regard.models.parallel import ParallelTransformer, ParallelTransformerConfig
    from regard.models.swin import Swin, SwinConfig
    from regard.models.transformer import Transformer, TransformerConfig
    from regard.models.vit import ViT, ViTConfig
    from regard.recognition.classifier import Classifier
    from regard.text.tokenizer import Tokenizer

_HOMES = {
    "Attention": "regard.attention",
    "Classifier": "regard.recognition.classifier",
    "CroCo": "regard.models.croco",
    "CroCoConfig": "regard.models.croco",
    "Hypothesis": "regard.decoding.hypothesis",
    "Mask": "regard.attention",
    "Packed": "regard.attention",
    "Padded": "regard.attention",
    "ParallelSettings": "regard.decoding.settings",
    "ParallelTransformer": "regard.models.parallel",
    "ParallelTransformerConfig": "regard.models.parallel",
    "SearchSettings": "regard.decoding.settings",
    "Swin": "regard.models.swin",
    "SwinConfig": "regard.models.swin",
    "Tokenizer": "regard.text.tokenizer",
    "Transformer": "regard.models.transformer",
    "TransformerConfig": "regard.models.transformer",
    "Translator": "regard.decoding.translator",
    "UserError": "regard.errors",
    "ViT": "regard.models.vit",
    "ViTConfig": "regard.models.vit",
    "Wishes": "regard.decoding.wishes",
    "ablate": "regard.inspection.heads",
    "attend": "regard.attention",
    "probe": "regard.inspection.probe",
}

__all__ = [
    "Attention",
    "Classifier",
    "CroCo",
    "CroCoConfig",
    "Hypothesis",
    "Mask",
    "Packed",
    "Padded",
    "ParallelSettings",
    "ParallelTransformer",
    "ParallelTransformerConfig",
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
    "Wishes",
    "ablate",
    "attend",
    "probe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
