"""Stubs for missing packages that only text models need. Import before regard to run image benchmarks without them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

PACKAGES = ("sacrebleu", "tokenizers")


class StandIn(MetaPathFinder, Loader):
    """A package, and every module in it, that has whatever is asked of it."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == self.package else None

    def exec_module(self, module: ModuleType) -> None:
        def give(name: str) -> MagicMock:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module.__getattr__ = give  # type: ignore[method-assign]


for package in PACKAGES:
    if importlib.util.find_spec(package) is None:
        sys.meta_path.append(StandIn(package))
