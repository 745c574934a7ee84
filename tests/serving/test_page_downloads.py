"""Downloads of the page: panels as SVG, PNG and CSV, and the sentence as an HTML page."""

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from tests.serving.page import Page


def save(page: Page, name: str, format_name: str, folder: Path) -> bytes:
    """Open the menu, download a panel, and return the contents of the file."""
    if page.page.locator(".downloads[open]").count() == 0:
        page.page.locator(".downloads summary").click()
    with page.page.expect_download() as download:
        page.page.locator(".menu-entry", has_text=name).get_by_role("button", name=format_name).first.click()
    download.value.save_as(folder / "file")
    return (folder / "file").read_bytes()


def test_panel_is_saved_as_svg_png_and_csv(page: Page, tmp_path: Path) -> None:
    page.open("beam")
    tree = ElementTree.fromstring(save(page, "Search", "SVG", tmp_path))
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "我喜欢苹果" in texts
    shown = page.page.locator(".tree .node").count()
    assert sum(element.tag.endswith("rect") for element in tree.iter()) >= shown
    with Image.open(io.BytesIO(save(page, "Search", "PNG", tmp_path))) as image:
        assert np.unique(np.asarray(image.convert("L"))).size > 20
    rows = list(csv.reader(io.StringIO(save(page, "Search", "CSV", tmp_path).decode("utf-8-sig"))))
    start = next(i for i, row in enumerate(rows) if row[0] == "node")
    table = [dict(zip(rows[start], row, strict=True)) for row in rows[start + 1 : start + 1 + shown]]
    assert table[0]["token"] == "我"
    assert float(table[0]["score"]) == float(table[0]["log_prob"])
    assert len(table) == shown


def test_numbers_of_pictures_are_saved(page: Page, tmp_path: Path) -> None:
    page.open("attention")
    title = page.text(".head-title")
    rows = list(csv.reader(io.StringIO(save(page, title, "CSV", tmp_path).decode("utf-8-sig"))))
    weights = {row[0]: [float(weight) for weight in row[1:]] for row in rows if row[0] in ("我", "喜欢", "苹果")}
    assert len(weights) == 3
    assert all(abs(sum(row) - 1) < 1e-3 for row in weights.values())


def test_texts_that_look_like_formulas_are_quoted(page: Page, tmp_path: Path) -> None:
    page.enter('=1+1, "x"', "translate")
    page.open("attention")
    text = save(page, page.text(".head-title"), "CSV", tmp_path).decode("utf-8-sig")
    assert all(not row or not row[0].startswith(("=", "+", "@")) for row in csv.reader(io.StringIO(text)))


def test_sentence_is_saved_as_a_page(page: Page, tmp_path: Path) -> None:
    text = save(page, "opens from disk", "look.html", tmp_path).decode()
    assert text.startswith("<!doctype html>")
    assert '"source":"I love apples"' in text


def test_every_panel_of_every_section_is_offered(page: Page, tmp_path: Path) -> None:
    for section in ("overview", "translate", "attention", "arithmetic", "beam", "change", "positions"):
        page.open(section)
        panels = page.page.locator("#panel .card").count()
        page.page.locator(".downloads summary").click()
        page.wait_until(lambda panels=panels: page.page.get_by_role("button", name=": SVG").count() == panels)
        drawing = ElementTree.fromstring(save(page, page.text(".menu-entry:last-child span"), "SVG", tmp_path))
        assert drawing.get("width") != "0"
