"""Tables of settings: key, default and description, from the settings classes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from regard.attention.linear import LinearSettings
from regard.attention.local import LocalSettings
from regard.attention.routing import RoutingSettings
from regard.data.images.augmentation import PRESETS, AugmentationSettings
from regard.data.images.image_sets import ImageSettings
from regard.decoding.settings import NATSettings
from regard.models.nat import NATransformerConfig
from regard.models.transformer import TransformerConfig
from regard.training.objectives.nat import NATObjectiveSettings

from .markdown import paragraphs, table

Row = tuple[str, str, str]


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


def _show_default(field: FieldInfo) -> str:
    value: Any = field.get_default()
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, BaseModel):
        value = value.model_dump()
    return "" if field.is_required() else f"`{json.dumps(value, default=str)}`"
