"""The pages cli.md, settings.md and http.md in docs/reference, generated from the commands, settings and HTTP API.

python tools/reference_pages.py           update the pages
python tools/reference_pages.py --check   exit with code 1 if they are out of date
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.config import Settings

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
LENGTHS = {"minLength": "≥", "maxLength": "≤", "minItems": "≥", "maxItems": "≤"}


def cli_page() -> str:
    """One section per command: what it does, its arguments and its options."""
    import typer

    from regard.cli import app

    group: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "Generated from the program by `tools/reference_pages.py`; `regard COMMAND --help` prints the same. "
        "Exit codes: 0, 1 if a comparison or a check fails, 2 for an error that you can correct, "
        "130 or 143 after Ctrl-C or SIGTERM.",
    ]
    for name, command in sorted(group.commands.items()):
        context = command.make_context(f"regard {name}", [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += ["", f"## regard {name}", "", inspect.cleandoc(command.help or ""), ""]
        lines += [
            "```text",
            f"regard {name} {usage}",
            "```",
            "",
            "| argument or option | default | |",
            "| --- | --- | --- |",
        ]
        lines += [_parameter_row(parameter, context) for parameter in command.get_params(context)]
    return "\n".join(lines) + "\n"


def _parameter_row(parameter: Any, context: Any) -> str:
    record = parameter.get_help_record(context)
    names, description = record if record else (parameter.make_metavar(context), getattr(parameter, "help", "") or "")
    default = parameter.default
    shown = "" if default in (None, False, ()) or callable(default) else f"`{getattr(default, 'value', default)}`"
    return f"| `{_escape(names)}` | {_escape(shown)} | {_escape(description.split('  [')[0])} |"


def settings_page() -> str:
    """One section per group of settings: the keys, their defaults and the values that they may have."""
    lines = [
        "# Settings",
        "",
        "A recipe is a YAML file with these groups and keys; `--set group.key=value` overrides a key on the command "
        "line. The groups `model`, `objective` and `search` depend on the kind of model. `model.preset` sets defaults "
        "of the other keys of a model: `tiny`, `small` (the default), `base` or `big` for translation, and the presets "
        "of [ViT, Swin](../vision.md#models) and [CroCo](../croco.md#model).",
        "",
        "Generated from the program by `tools/reference_pages.py`.",
    ]
    for settings, (prefix, users) in _settings().items():
        title = ": ".join(filter(None, (prefix.rstrip("."), ", ".join(users))))
        summary = inspect.cleandoc(settings.__doc__ or "").splitlines()[0]
        lines += ["", f"## {title}", "", f"`{settings.__name__}`: {summary}"]
        lines += ["", "| key | default | values | |", "| --- | --- | --- | --- |"]
        for key, field in settings.model_json_schema()["properties"].items():
            default = f"`{json.dumps(field['default'], ensure_ascii=False)}`" if "default" in field else ""
            cells = (f"`{prefix}{key}`", default, _type_name(field), field.get("description", ""))
            lines.append(f"| {' | '.join(_escape(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _settings() -> dict[type[Settings], tuple[str, list[str]]]:
    """Return the classes of settings with the prefix of their keys, and the tasks, kinds or commands that use them."""
    from regard.attention.kinds import KINDS, KindSettings
    from regard.config import _groups
    from regard.models.folder import MODELS
    from regard.serving.config import Limits
    from regard.training.distillation import Distillation
    from regard.training.objectives.registry import OBJECTIVES
    from regard.training.tasks.registry import TASKS

    found: dict[type[Settings], tuple[str, list[str]]] = {}

    def add(settings: type[Settings], prefix: str, user: str) -> None:
        if settings is KindSettings:  # each kind has a section
            return
        users = found.setdefault(settings, (prefix, []))[1]
        if user not in users:
            users.append(user)
        for name, field in settings.model_fields.items():
            for part in _groups(field):
                add(part, f"{prefix}{name}.", user)

    for name, task in TASKS.items():
        for group, field in task.recipe_type.model_fields.items():
            for settings in _groups(field):
                add(settings, f"{group}.", name)
    for kind, model in MODELS.items():
        if model.task:  # regard trains it
            add(model.config_type(), "model.", kind)
    for prefix, classes in (("model.attention.", KINDS), ("objective.", OBJECTIVES)):
        for kind, settings in classes.items():
            add(settings, prefix, kind)
    add(Distillation, "", "regard distill")
    add(Limits, "", "regard serve")
    return found


def http_page() -> str:
    """One section per endpoint of the HTTP API: fields of the request and of the response."""
    from regard.serving.app import make_app
    from regard.serving.config import ServingConfig
    from regard.serving.service import Service

    schema = make_app(Service(ServingConfig(load_requests=()))).openapi()
    lines = [
        "# HTTP API",
        "",
        "Generated from the OpenAPI schema by `tools/reference_pages.py`. A running server has it at `/openapi.json`; "
        '[serving](../serving.md) explains limits, keys and errors. Errors are `{"error": message}`.',
    ]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            lines += [
                "",
                f"## {method.upper()} {path}",
                "",
                operation.get("description") or operation.get("summary", ""),
            ]
            content = operation.get("requestBody", {}).get("content", {})
            lines += _fields("Request", content, schema)
            lines += _fields("Response", operation["responses"].get("200", {}).get("content", {}), schema)
    return "\n".join(lines) + "\n"


def _fields(title: str, content: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    if not content:
        return []
    kinds = ", ".join(f"`{kind}`" for kind in content)
    found = next((_resolve(kind["schema"], schema) for kind in content.values() if kind.get("schema")), {})
    suffix = " (a list)" if found.get("type") == "array" else ""
    found = _resolve(found.get("items", found), schema)
    lines = ["", f"{title}: {kinds}{suffix}"]
    if properties := found.get("properties"):
        required = set(found.get("required", ()))
        lines += ["", "| field | type | |", "| --- | --- | --- |"]
        for name, field in properties.items():
            note = field.get("description", "") or ("required" if name in required and title == "Request" else "")
            lines.append(f"| `{name}` | {_escape(_type_name(field))} | {_escape(note)} |")
    return lines


def _resolve(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in part:
        return part
    return schema["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]]


def _type_name(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return field["$ref"].rsplit("/", 1)[1]
    for union in ("anyOf", "oneOf", "allOf"):
        if union in field:
            return " or ".join(_type_name(part) for part in field[union] if part.get("type") != "null")
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    limits = _limits(field, LIMITS)
    if lengths := _limits(field, LENGTHS):
        limits = f"of length {lengths}"
    if "prefixItems" in field:
        return f"[{', '.join(map(_type_name, field['prefixItems']))}]"
    if field.get("type") == "array":
        return " ".join(filter(None, ("list", limits, "of", _type_name(field.get("items", {})))))
    return f"{field.get('type', 'any')} {limits}".rstrip()


def _limits(field: dict[str, Any], signs: dict[str, str]) -> str:
    found = ((sign, field[name]) for name, sign in signs.items() if name in field)
    return ", ".join(f"{sign} {int(number) if number == int(number) else number:,}" for sign, number in found)


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES = {"cli.md": cli_page, "settings.md": settings_page, "http.md": http_page}


def main() -> None:
    """Write the pages, or check them."""
    sys.path.insert(0, str(ROOT))
    outdated = []
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not path.is_file() or path.read_text("utf-8") != text:
            outdated.append(name)
            if "--check" not in sys.argv[1:]:
                path.write_text(text, "utf-8")
    if outdated and "--check" in sys.argv[1:]:
        sys.exit(f"docs/reference: {', '.join(outdated)} out of date; run python tools/reference_pages.py")


if __name__ == "__main__":
    main()
