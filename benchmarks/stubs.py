"""Stubs for missing packages that only text models use; import it before regard to run a benchmark without them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

PACKAGES = ("sacrebleu", "tokenizers")


class StubFinder(MetaPathFinder, Loader):
    """Imports a package and its submodules as modules in which every attribute is a mock."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == self.package else None

    def exec_module(self, module: ModuleType) -> None:
        def get_attribute(name: str) -> MagicMock:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module.__getattr__ = get_attribute  # type: ignore[method-assign]


for package in PACKAGES:
    if importlib.util.find_spec(package) is None:
        sys.meta_path.append(StubFinder(package))
