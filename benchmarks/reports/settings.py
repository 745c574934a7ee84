"""Tables of settings: key, default and description, from the settings classes."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from regard.attention.linear import LinearSettings
from regard.attention.local import LocalSettings
from regard.attention.routing import RoutingSettings
from regard.data.images.augmentation import PRESETS, AugmentationSettings
from regard.data.images.image_sets import ImageSettings
from regard.decoding.config import NATSettings
from regard.models.nat import NATransformerConfig
from regard.models.swin import SwinConfig
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViTConfig
from regard.training.objectives.nat import NATObjectiveSettings
from regard.training.recipe import TrainingSettings
from regard.training.tasks.classification.recipe import ClassificationRecipe
from regard.training.tasks.translation.recipe import TranslationRecipe

from .markdown import paragraphs, table

HIDDEN = {f"model.{name}" for name in ("source_vocab", "target_vocab", "kind", "pad", "bos", "eos")}
PRESET = ("`model.preset`", "`small`", "tiny, small, base or big: defaults of the other model keys")
Row = tuple[str, str, str]


def write_translation() -> str:
    rows: list[Row] = []
    for group in TranslationRecipe.model_fields:
        kind = TransformerConfig if group == "model" else _group_of(TranslationRecipe, group)
        rows += (_row(name, field) for name, field in _flatten(kind, f"{group}.") if name not in HIDDEN)
        if group == "model":
            rows.append(PRESET)
    return _tabulate(rows)


def write_nat() -> str:
    """Settings of non-autoregressive models."""
    known = TransformerConfig.model_fields
    own = {name: field for name, field in NATransformerConfig.model_fields.items() if name not in known}
    groups = {
        "model": own,
        "objective": NATObjectiveSettings.model_fields,
        "search": NATSettings.model_fields,
    }
    return _tabulate(
        _row(f"{group}.{name}", field) for group, fields in groups.items() for name, field in fields.items()
    )


def write_classification() -> str:
    """Settings specific to classification."""
    return _tabulate(
        _row(f"{group}.{name}", field)
        for group in ("data", "batch", "training")
        for name, field in _group_of(ClassificationRecipe, group).model_fields.items()
        if name not in TrainingSettings.model_fields
    )


def write_image_model(config: type[ViTConfig | SwinConfig]) -> str:
    """Settings of an image model."""
    defaults = config.parse({}, config.__name__).model_dump(mode="json")
    return _tabulate(
        (f"`model.{name}`", f"`{json.dumps(defaults[name])}`", field.description or "")
        for name, field in config.model_fields.items()
    )


def tabulate_settings(fields: Mapping[str, FieldInfo]) -> str:
    """Tabulate settings that belong to no group."""
    return _tabulate(_row(name, field) for name, field in fields.items())


def write_images() -> str:
    return tabulate_settings(ImageSettings.model_fields)


def write_augmentation() -> str:
    keys = _tabulate(_row(name, field) for name, field in AugmentationSettings.model_fields.items())
    shown = (
        f"`{name}`: {', '.join(f'{k} {v}' for k, v in values.items())}" for name, values in PRESETS.items() if values
    )
    return paragraphs(keys, f"{'; '.join(shown)}.")


def write_kinds_of_attention() -> str:
    rows = (
        (settings.model_fields["kind"].get_default(), *_row(name, field))
        for settings in (LocalSettings, LinearSettings, RoutingSettings)
        for name, field in settings.model_fields.items()
        if name != "kind"
    )
    return table(("kind", "key", "default", ""), rows)


def _tabulate(rows: Iterable[Row]) -> str:
    return table(("key", "default", ""), rows)


def _row(name: str, field: FieldInfo) -> Row:
    return f"`{name}`", _show_default(field), field.description or ""


def _group_of(recipe: type[BaseModel], group: str) -> type[BaseModel]:
    kind = recipe.model_fields[group].annotation
    assert isinstance(kind, type) and issubclass(kind, BaseModel)
    return kind


def _flatten(settings: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield keys and fields, with optional groups flattened."""
    for attribute, field in settings.model_fields.items():
        name = field.alias or attribute
        groups = [kind for kind in get_args(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if len(groups) == 1:
            yield from _flatten(groups[0], f"{prefix}{name}.")
        else:  # a plain value, or a choice among groups, which is documented elsewhere
            yield prefix + name, field


def _show_default(field: FieldInfo) -> str:
    value: Any = field.get_default()
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, BaseModel):
        value = value.model_dump()
    return "" if field.is_required() else f"`{json.dumps(value, default=str)}`"
