"""Libraries that only some formats need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from regard.errors import UserError


def need(module: str, extra: str) -> Any:
    """The module of a library that comes with an extra of regard.

    Raises:
        UserError: it is not installed; says how to come by it.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UserError(f"this needs the package {package}; to get it, run: pip install 'regard[{extra}]'") from None
