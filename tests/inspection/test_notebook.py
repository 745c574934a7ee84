"""Objects that display themselves in a notebook: executed by a Jupyter kernel, and opened in a browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.errors import UserError
from regard.inspection.html import MAX_MAPS, render_records
from regard.inspection.probe import AttentionRecord
from regard.pipelines.hypothesis import Hypothesis
from tests.browser import Visit
from tests.inspection.scenes import EVIL

SENTENCE = "I love apples"
CELLS = [
    "import regard\ntranslator = regard.Translator.load(RUN)",
    "regard.look(translator, 'I love apples', why='喜欢', contrast='买')",
    "regard.look(translator, 'You buy tea')",
    "translator('I love apples', n_best=2, beam=2)[0]",
    "with regard.probe(translator.model) as seen:\n    translator('I love apples')\nseen",
    "seen['decoder.1.cross']",
]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


@pytest.fixture(scope="module")
def page(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook with all objects, executed and converted to HTML."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    nbconvert = pytest.importorskip("nbconvert")
    sources = [cell.replace("RUN", repr(str(trained_run))) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    assert [output.output_type for output in outputs] == ["execute_result"] * 5
    assert all("text/html" in output.data for output in outputs)
    assert "Scene('I love apples' → '我喜欢苹果'" in outputs[0].data["text/plain"]
    exporter = nbconvert.HTMLExporter(template_name="basic")  # without the libraries of the full template
    folder = tmp_path_factory.mktemp("notebook")
    body = f"<!doctype html><meta charset=utf-8><body>{exporter.from_notebook_node(notebook)[0]}"
    (folder / "notebook.html").write_text(body, encoding="utf-8")
    return folder / "notebook.html"


def test_executed_notebook_displays_every_object_without_requests(browser: Any, page: Path) -> None:
    with Visit(browser, viewport={"width": 1200, "height": 900}, locale="en-GB") as visit:
        opened = visit.page
        opened.goto(page.resolve().as_uri())
        frames = opened.locator("iframe")
        assert frames.count() == 2
        for number, (translation, other) in enumerate((("我喜欢苹果", "你买茶"), ("你买茶", "我喜欢苹果"))):
            frames.nth(number).scroll_into_view_if_needed()
            inner = opened.frame_locator("iframe").nth(number)
            inner.locator("html[data-ready]").wait_for(state="attached", timeout=120_000)
            text = "".join(inner.locator(".tokens.target .token").all_text_contents())
            assert translation in text
            assert other not in text
        first, second = (opened.frame_locator("iframe").nth(number) for number in range(2))
        assert first.locator(".why-question").text_content() == "Why 喜欢, not 买?"
        assert second.locator("#why").is_hidden()
        before = second.locator(".head-title").text_content()
        first.get_by_role("button", name="decoder.0.attention, head 1").click()
        assert first.locator(".head-title").text_content() == "decoder.0.attention · head 1"
        assert second.locator(".head-title").text_content() == before
        images = opened.locator("img[alt^='decoder.1.cross, head']")
        assert images.count() == 2
        assert all(images.nth(i).evaluate("(image) => image.naturalWidth") > 1 for i in range(2))
        assert opened.locator("b", has_text="我喜欢苹果").count() == 1
        assert visit.console == []
        assert [url for url in visit.requests if url.startswith("http")] == []


def test_hypotheses_show_tokens_and_alignment(translator: regard.Translator) -> None:
    best = translator.hypotheses([SENTENCE], alignments=True)[0][0]
    html = best._repr_html_()
    assert "<b>我喜欢苹果</b>" in html
    assert html.count("<tr>") == 1 + len(best.labels)
    assert f'title="{torch.tensor(best.token_log_probs[0]).exp():.1%}"' in html
    several = translator.hypotheses([f"{SENTENCE}! You buy tea"])[0][0]
    assert several._repr_html_().count("END") == 2
    assert "<b>&lt;b&gt;</b>" in Hypothesis("<b>", 0.0)._repr_html_()
    assert "<small>a &lt; b</small>" in Hypothesis("x", 0.0, warning="a < b")._repr_html_()
    subwords = ["x"] * 60
    long = replace(best, source_subwords=subwords, alignment=[[0.0] * 61 for _ in best.labels])
    assert f"alignment: {len(best.labels)} × 61" in long._repr_html_() and "<tr>" not in long._repr_html_()


def test_markup_is_escaped(translator: regard.Translator) -> None:
    html = regard.look(translator, EVIL)._repr_html_()
    assert html.startswith('<iframe srcdoc="&lt;!doctype html')
    assert "<script" not in html
    assert html.count("<") == 2


def test_look_uses_settings_and_checks_them(translator: regard.Translator) -> None:
    scene = regard.look(translator, SENTENCE, beam=2, names=["decoder.1.cross"], bias={0: 0.5})
    assert (scene.translation, [view.name for view in scene.views]) == ("我喜欢苹果", ["decoder.1.cross"])
    assert scene.explanations == []
    explained = regard.look(translator, SENTENCE, why=2).explanations
    assert [each.attribution.word for each in explained] == ["喜欢"]
    for options, message in (({"beams": 2}, "beams"), ({"contrast": "买"}, "name it with why=WORD")):
        with pytest.raises(UserError, match=message):
            regard.look(translator, SENTENCE, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="takes a Translator, not a str"):
        regard.look("runs/demo", SENTENCE)


def test_many_maps_are_counted_and_other_records_are_described() -> None:
    record = AttentionRecord(list(range(MAX_MAPS + 3)), [{"weights": torch.ones(1, MAX_MAPS + 3, 1, 1)}])
    html = render_records({"layer": record})
    assert html.count("<img") == MAX_MAPS
    assert "3 more maps" in html
    assert "q (1, 2, 3, 4)" in render_records({"layer": AttentionRecord([0], [{"q": torch.ones(1, 2, 3, 4)}])})
    assert "no calls" in render_records({})
