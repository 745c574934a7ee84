"""The generated pages of the reference: they pin defaults, ranges and options of all commands and settings."""

import pytest

import regard.serving.app
import regard.training.tasks.registry  # noqa: F401  imported here, so that the tests take little time
from tools.reference_pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    assert text == PAGES[name](), "run python tools/reference_pages.py"


def test_ranges_are_stated() -> None:
    text = (FOLDER / "settings.md").read_text("utf-8")
    for row in (
        "| `beam` | `null` | integer ≥ 1, ≤ 1,000 | beam width, 5 by default; 1 is greedy search |",
        "| `glancing_ratio` | `[0.5, 0.3]` | [number ≥ 0, < 1, number ≥ 0, < 1] |",
        "| `layers` | `[2, 2, 6, 2]` | list of length ≥ 1, ≤ 8 of integer > 0, ≤ 1,000 |",
        '| `schedule` | `"cosine"` | `noam`, `inverse-sqrt`, `cosine`, `constant` |',
    ):
        assert row in text
    assert "| `api_key` | string of length ≤ 400 |" in (FOLDER / "http.md").read_text("utf-8")
