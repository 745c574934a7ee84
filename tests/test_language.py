"""The language guide as a test: phrases that the project has replaced by standard terms."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PHRASES = (
    r"whoever",
    r"nobody",
    r"somebody",
    r"the way back",
    r"\bno number\b",
    r"leav(e|es|ing) (it|them|that|these|this) away",
    r"\bleft away\b",
    r"by so many",
    r"\bso many (steps|queries|tokens|words|rows|places|sentences)",
    r"is all one\b",
    r"of the one make",
    r"\bin company\b",
    r"\bits company\b",
    r"all tokens at once",
    r"\bcanvas(es)? of masks\b",
    r"products? with weights",
    r"packed products?",
    r"blind rows?",
    r"\bstands? abreast\b",
    r"\btold apart\b",
    r"\bmended\b",
    r"\bof late\b",
    r"\bgone on with\b",
    r"\bhow far it has come\b",
    r"\bno more than that asks\b",
    r"optimiser",
)
CHINESE_PHRASES = ("集束", "波束", "令牌", "位置嵌入", "自关注", "计划抽样", "[「」]")
"""Other translations of terms in docs/zh/glossary.md."""
SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".yaml", ".yml", ".toml", ".sh", ".cfg", ""}
EXEMPT = ("tests/test_language.py", "docs/LOG.md", "tools/corpus/")
"""The log may quote old names, and sentences of the corpus contain ordinary words."""


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.splitlines() if not name.startswith(EXEMPT)]
    return [ROOT / name for name in names if Path(name).suffix in SUFFIXES and (ROOT / name).is_file()]


def test_prose_uses_standard_terms() -> None:
    pattern = re.compile("|".join(PHRASES), re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_chinese_texts_use_the_terms_of_the_glossary() -> None:
    pattern = re.compile("|".join(CHINESE_PHRASES))
    pages = [*ROOT.glob("docs/zh/**/*.md"), *ROOT.glob("tools/course/*.py"), ROOT / "README.zh-CN.md"]
    found = [str(page.relative_to(ROOT)) for page in pages if pattern.search(page.read_text("utf-8"))]
    assert found == []
    assert pattern.search("集束搜索")


def test_old_phrases_are_recognised() -> None:
    pattern = re.compile("|".join(PHRASES), re.IGNORECASE)
    for line in ("Whoever reads this", "the way back through a product", "leave them away", "a loss that is no number"):
        assert pattern.search(line)
    assert not pattern.search("The backward pass of the linear layer, NaN if there are no batches.")
