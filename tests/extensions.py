"""Extensions in tests: the classes of the tutorials, and a fixture that removes what a test registers."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard import registry

TUTORIALS = Path(__file__).parent.parent / "docs" / "extending"


def titled_files(page: str) -> dict[str, str]:
    """Return the files of a tutorial by name: blocks such as ```python title="mine.py"."""
    text = (TUTORIALS / f"{page}.md").read_text("utf-8")
    return dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', text, re.M | re.S))


@pytest.fixture
def extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Changes to a folder that modules can be imported from; afterwards, extensions are no longer registered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(registry.VARIABLE, "")  # what a test sets is restored
    monkeypatch.delenv(registry.VARIABLE)
    monkeypatch.setattr(registry, "_FILES", {})
    registered = {noun: dict(one) for noun, one in registry._REGISTRIES.items()}
    registry._import_installed.cache_clear()
    modules = set(sys.modules)
    yield tmp_path
    for noun, classes in registered.items():
        registry._REGISTRIES[noun].clear()
        registry._REGISTRIES[noun].update(classes)
    registry._import_installed.cache_clear()
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
