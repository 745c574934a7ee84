"""Settings that refuse what they do not know and say what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from regard.errors import UserError


class Settings(BaseModel):
    """Base of every configuration: immutable, strict about keys, one sentence for each mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: object, where: str) -> Self:
        """Builds the settings from plain values.

        Raises:
            UserError: a key is unknown or a value is wrong; names `where`, the key and what would be right.
        """
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: expected keys and values, found {type(values).__name__}")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(f"{where}: {_explain(error, cls)}") from None

    def changed(self, **values: Any) -> Self:
        """A copy with some values changed, checked like the original."""
        return self.parse(self.model_dump() | values, type(self).__name__)


def _explain(error: ValidationError, settings: type[Settings]) -> str:
    """One sentence about the first mistake."""
    # A misspelt key is also a missing one: what it was taken for helps more.
    first = min(error.errors(), key=lambda mistake: mistake["type"] == "missing")
    place = first["loc"]
    short = first["type"] == "missing" and isinstance(place[-1], int)  # a list of fewer values than there should be
    if short:
        place = place[:-1]
    key = ".".join(str(part) for part in place)
    if first["type"] == "extra_forbidden":
        if isinstance(first["input"], Mapping) and first["input"]:  # a group: "optm.lr" tells more than "optm"
            key = f"{key}.{next(iter(first['input']))}"
        return unknown_key_message(key, _keys(settings))
    field = _find(settings, [part for part in place if isinstance(part, str)])
    if first["type"] == "missing" and not short:
        return f"{key} is missing" + (f" ({field.description})" if field and field.description else "")
    if first["type"] == "value_error":  # a sentence of our own, about more keys than one
        return (f"{key}: " if key else "") + str(first["ctx"]["error"])
    counted = short or first["type"] in ("tuple_type", "too_long")
    right = (_say_how_many(field) if counted and field else None) or f"{first['msg'][0].lower()}{first['msg'][1:]}"
    return f"{key}: {right}, found {first['input']!r}"


def unknown_key_message(key: str, known: Iterable[str]) -> str:
    """One sentence about a key that is not among the known ones: the one that was probably meant, or all of them."""
    known = list(known)
    group, _, leaf = key.rpartition(".")
    elsewhere = [name for name in known if name.rpartition(".")[2] == leaf]
    close = elsewhere or difflib.get_close_matches(key, [name for name in known if name != group], n=1, cutoff=0.5)
    siblings = [name for name in known if name.rpartition(".")[0] == group] or known
    return f"unknown key {key}; " + (f"did you mean {close[0]}?" if close else f"known are {', '.join(siblings)}")


def _say_how_many(field: FieldInfo) -> str | None:
    """What would be right where several values are meant: a tuple to pydantic, a list to whoever writes it."""
    kinds = (field.annotation, *get_args(field.annotation))  # what may be left away is "tuple | None"
    parts = next((get_args(kind) for kind in kinds if get_origin(kind) is tuple), None)
    if parts is None:
        return None
    of_what = "words" if str in parts else "numbers"
    what = "a list" if ... in parts else f"{'two' if len(parts) == 2 else len(parts)} {of_what}"
    example = list(field.default) if isinstance(field.default, tuple) and any(field.default) else None
    return f"input should be {what}" + (f", such as {example}" if example else "")


def _find(settings: type[BaseModel], names: Sequence[str]) -> FieldInfo | None:
    """The field of this name, whose parts are the groups that it is in; None where it cannot be told."""
    for attribute, field in settings.model_fields.items():
        if names and (field.alias or attribute) == names[0]:
            inner = (_find(group, names[1:]) for group in _groups(field))
            return field if len(names) == 1 else next(filter(None, inner), None)
    return None


def _groups(field: FieldInfo) -> Iterator[type[BaseModel]]:
    for kind in (field.annotation, *get_args(field.annotation)):  # a group that may be off is "Group | None"
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield kind


def _keys(settings: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for attribute, field in settings.model_fields.items():
        name = field.alias or attribute
        yield prefix + name
        for group in _groups(field):
            yield from _keys(group, f"{prefix}{name}.")
