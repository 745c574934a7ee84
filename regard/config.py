"""Base class of all settings, with error messages in one sentence, types of settings, and YAML."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from regard.errors import UserError, one_line
from regard.files import MAX_DEPTH

MAX_YAML_BYTES, MAX_YAML_VALUES = 2**17, 2**14
"""Size of a recipe, and number of its values after aliases have been expanded."""
MAX_QUOTED = 200
"""Characters of a key or value in an error message."""


class Settings(BaseModel):
    """Immutable settings that reject unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: object, where: str) -> Self:
        """Build the settings from plain values.

        Raises:
            UserError: A key is unknown or a value is invalid. The message names `where`, the key and the correct form.
        """
        if not isinstance(values, Mapping):
            raise UserError(f"{where}: expected keys and values, found {type(values).__name__}")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(f"{where}: {_explain(error, cls)}") from None

    def changed(self, **values: Any) -> Self:
        """Return a copy with changed values, which are validated."""
        return self.parse(self.model_dump() | values, type(self).__name__)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the fields that differ from their defaults, so that `repr` is short."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field.is_required() or value != field.get_default(call_default_factory=True, validated_data={}):
                yield name, value

    def __str__(self) -> str:
        return repr(self)


def unknown_key_message(key: str, known: Iterable[str]) -> str:
    """Return an error message that suggests the most similar known key, or lists the known keys of the group."""
    known = list(known)
    group, _, leaf = key.rpartition(".")
    same_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    similar = same_leaf or difflib.get_close_matches(key, [name for name in known if name != group], n=1, cutoff=0.5)
    if similar:
        return f"unknown key {key}; did you mean {similar[0]}?"
    siblings = [name for name in known if name.rpartition(".")[0] == group] or known
    return f"unknown key {key}; known are {', '.join(siblings)}"


def _explain(error: ValidationError, settings: type[Settings]) -> str:
    """Return one sentence about the first error."""
    # A misspelt required key is both unknown and missing: the unknown key is the better explanation.
    first = min(error.errors(), key=lambda one: one["type"] == "missing")
    kind, location = first["type"], first["loc"]
    too_short = kind == "missing" and isinstance(location[-1], int)  # an element of a list is missing
    if too_short:
        location = location[:-1]
    key = _shorten(".".join(str(part) for part in location))
    if kind == "extra_forbidden":
        if isinstance(first["input"], Mapping) and first["input"]:  # an unknown group: name a key in it
            key = f"{key}.{next(iter(first['input']))}"
        return unknown_key_message(key, _all_keys(settings))
    field = _find_field(settings, [part for part in location if isinstance(part, str)])
    if kind == "missing" and not too_short:
        return f"{key} is missing" + (f" ({field.description})" if field and field.description else "")
    if kind == "value_error":  # raised by a validator of the settings, which may concern several keys
        return (f"{key}: " if key else "") + str(first["ctx"]["error"])
    expected = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    if kind in ("model_type", "dict_type"):
        meaning = f" ({field.description})" if field and field.description else ""
        expected = f"input should be a group of keys and values{meaning}"
    if field and (too_short or kind in ("tuple_type", "too_long")):
        expected = _describe_list(field) or expected
    return f"{key}: {expected}, found {_shorten(repr(first['input']))}"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def _describe_list(field: FieldInfo) -> str | None:
    """Describe the expected value of a tuple field, which is written as a list; None for other fields."""
    annotations = (field.annotation, *get_args(field.annotation))  # optional fields are "tuple | None"
    elements = next((get_args(one) for one in annotations if get_origin(one) is tuple), None)
    if elements is None:
        return None
    noun = "words" if str in elements else "numbers"
    expected = "a list" if ... in elements else f"{'two' if len(elements) == 2 else len(elements)} {noun}"
    example = list(field.default) if isinstance(field.default, tuple) and any(field.default) else None
    return f"input should be {expected}" + (f", such as {example}" if example else "")


def _find_field(settings: type[BaseModel], names: Sequence[str]) -> FieldInfo | None:
    """Return the field with this path of group and key names, or None."""
    for attribute, field in settings.model_fields.items():
        if names and (field.alias or attribute) == names[0]:
            nested = (_find_field(group, names[1:]) for group in _groups(field))
            return field if len(names) == 1 else next(filter(None, nested), None)
    return None


def _groups(field: FieldInfo) -> Iterator[type[BaseModel]]:
    """Yield the settings classes in the annotation of a field."""
    for annotation in (field.annotation, *get_args(field.annotation)):  # optional groups are "Group | None"
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation


def _all_keys(settings: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for attribute, field in settings.model_fields.items():
        name = field.alias or attribute
        yield prefix + name
        for group in _groups(field):
            yield from _all_keys(group, f"{prefix}{name}.")


def _as_pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


SideLength = Annotated[int, Field(gt=0, le=2**16)]
"""Height or width in pixels, bounded so that damaged files cannot ask for unlimited memory."""
Size = Annotated[tuple[SideLength, SideLength], BeforeValidator(_as_pair)]
"""Height and width in pixels or patches; one number stands for both."""


# YAML of limited size and depth


def parse_yaml(text: str) -> Any:
    """Parse YAML without dates, which are strings, and with 3e-4 as a number, which YAML 1.1 reads as a string.

    Raises:
        ValueError: It is invalid, or exceeds the limits of this module.
    """
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"longer than {MAX_YAML_BYTES:,} characters")
    try:
        return yaml.load(text, _YamlLoader)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = one_line(getattr(error, "problem", None) or error)
        raise ValueError(problem if mark is None else f"line {mark.line + 1}: {problem}") from None


class _YamlLoader(yaml.SafeLoader):
    """Safe loader that limits what aliases expand to, and reports invalid values with their line."""

    def get_single_node(self) -> Any:
        root = super().get_single_node()
        level, values = [root], 0
        for _ in range(MAX_DEPTH):
            values += sum(len(node.value) for node in level if isinstance(node, yaml.CollectionNode))
            if values > MAX_YAML_VALUES:
                raise yaml.MarkedYAMLError(problem=f"more than {MAX_YAML_VALUES:,} values, aliases included")
            level = [child for node in level for child in _children(node)]
            if not level:
                return root
        raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} levels deep")

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        found: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if (key.tag, key.value) in found:  # PyYAML would use the last value
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value[:40]!r} is given twice", problem_mark=key.start_mark
                    )
                found.add((key.tag, key.value))
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            problem = f"{str(node.value)[:40]!r} is not a valid value of type {kind}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


# The types of JSON: no dates, binary data or sets.
_YamlLoader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
}
_YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Possessive quantifiers: without them, a long row of digits takes quadratic time.
_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:(?:\d[\d_]*+(?:\.[\d_]*+)?|\.\d++)[eE][-+]?\d++|\d[\d_]*+\.[\d_]*+)\Z"),
    list("-+0123456789."),
)


def _children(node: Any) -> Sequence[Any]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()
