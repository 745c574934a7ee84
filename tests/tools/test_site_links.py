"""Links of the documentation site."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.test_package import DOCS
from tools.site_links import broken_links, on_page_content


def test_missing_files_and_sections_are_broken_links(tmp_path: Path) -> None:
    (tmp_path / "zh").mkdir()
    (tmp_path / "a.png").touch()
    links = ("#one", "a.html#one", "zh/b.html#%E4%BA%8C", "https://x.y/z", "//x.y", "mailto:a@b.c")
    broken = ("#two", "c.html", "zh/b.html#one", "b.png")
    images = '<img src="a.png"><img src="b.png">'
    anchors = "".join(f'<a href="{target}">' for target in (*links, *broken[:3]))
    (tmp_path / "a.html").write_text(f'<h1 id="one">{anchors}{images}')
    (tmp_path / "zh" / "b.html").write_text('<h2 id="二"><a href="../a.html#one"><a href="../zh/c.html">')
    assert broken_links(tmp_path) == [*(("a.html", target) for target in broken), ("zh/b.html", "../zh/c.html")]


def test_links_of_a_notebook_lead_to_pages() -> None:
    known = {name: SimpleNamespace(url_relative_to=lambda _, name=name: f"../{name}.html") for name in ("zh/nat.md",)}
    page = SimpleNamespace(file=SimpleNamespace(src_uri="zh/course/09.ipynb"), toc=[])
    html = '<a href="../nat.md#speed"> <a href="../absent.md"> <a href="#here"> <a href="https://a.b/nat.md">'
    changed = on_page_content(html, page=page, files=SimpleNamespace(get_file_from_path=known.get))
    assert changed == html.replace("../nat.md#", "../zh/nat.md.html#")
    page.file.src_uri = "zh/page.md"
    assert on_page_content(html, page=page, files=None) == html


def test_chinese_sections_of_a_notebook_have_ids() -> None:
    sections = [SimpleNamespace(id="_1", title="长度：惩罚"), SimpleNamespace(id="bpe", title="BPE")]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="a.ipynb"), toc=[SimpleNamespace(children=sections)])
    html = '<h2 id="">长度：惩罚<a class="anchor-link" href="#">¶</a></h2><h2 id="bpe">BPE</h2>'
    changed = on_page_content(html, page=page, files=SimpleNamespace(get_file_from_path={}.get))
    assert [section.id for section in sections] == ["长度-惩罚", "bpe"]
    assert changed == html.replace('id=""', 'id="长度-惩罚"').replace('href="#"', 'href="#长度-惩罚"')


@pytest.mark.parametrize(("option", "given"), [("--strict", True), ("--quiet", False)])
def test_warnings_of_mkdocs_are_errors(option: str, given: bool) -> None:
    """With --quiet, MkDocs ignores warnings although it is strict."""
    commands = [line for line in (DOCS.parent / "Makefile").read_text("utf-8").splitlines() if "mkdocs build" in line]
    assert [option in line for line in commands] == [given]
