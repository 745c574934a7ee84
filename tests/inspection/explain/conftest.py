"""The translator that the tests of explanations share."""

from pathlib import Path

import pytest

import regard


@pytest.fixture(scope="session")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)
