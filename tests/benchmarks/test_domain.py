"""The data and the glossary of the benchmark that follows docs/guides/domain.md."""

import lzma
from pathlib import Path

from benchmarks import domain
from benchmarks.reports.domain import write_domain


def write_split(folder: Path, split: str, count: int) -> list[str]:
    """Write sources and targets, and return them as tab-separated lines."""
    pairs = [(f'{split} "{i}" \\n: use ``%s``', f"{split} 第 {i} 行") for i in range(count)]
    for language, texts in zip(("en", "zh"), zip(*pairs, strict=True), strict=True):
        with lzma.open(folder / f"{split}.{language}.xz", "wt", encoding="utf-8") as file:
            file.write("".join(f"{text}\n" for text in texts))
    return ["\t".join(pair) for pair in pairs]


def test_script_of_the_guide_restores_every_split(tmp_path: Path) -> None:
    lines = {split: write_split(tmp_path, split, count) for split, count in (("train", 65), ("valid", 21), ("test", 2))}
    domain.write_po_files(tmp_path, tmp_path / "locale", None)
    domain.read_po_files(tmp_path)
    for split, expected in lines.items():
        assert sorted((tmp_path / f"{split}.en-zh.tsv").read_text("utf-8").splitlines()) == sorted(expected)


def test_terms_are_whole_words_outside_markup() -> None:
    assert domain.terms_in("Two directories and a module") == ("目录", "模块")
    assert domain.terms_in("``string``, *module*, threading and submodule") == ()


def test_report_has_a_row_for_each_training_and_translation() -> None:
    scores = {
        metric: {"value": value, "signature": f"of {metric}"} for metric, value in (("bleu", 40.123), ("chrf", 35.0))
    }
    conditions = {"date": "2026-11-19", "versions": {"torch": "2.11.0", "ctranslate2": "4.8.1"}, "command": "python x"}
    result = {
        "what": "strings",
        "rows": [
            {"settings": [], "training_seconds": 50.2, **scores},
            {"settings": ["model.dropout=0.3", "batch.tokens=8192"], "training_seconds": 70.0, **scores},
        ],
        **conditions,
    }
    text = write_domain(result)
    assert "| defaults | 40.12 | 35.00 |" in text
    assert "| `--set model.dropout=0.3 --set batch.tokens=8192` | 40.12 | 35.00 |" in text
    assert "training took 50, 70 s; signatures `of bleu` and `of chrf`; torch 2.11.0, 2026-11-19; `python x`." in text
    rows = [{"name": name, "terms": terms, **scores} for name, terms in (("without", 80), ("with", 90))]
    glossary = {"entries": 17, "strings": 60, "terms": 90, "in_references": 85, "seconds": 1.0, "rows": rows}
    exported = {"seconds": 61.7, "size": 13_400_000, **scores, **conditions}
    text = write_domain(result | {"glossary": glossary, "exported": exported})
    assert "60 test strings contain a term, and 85 of 90 required translations are in the references:" in text
    assert "| without | 40.12 | 35.00 | 80 of 90 |\n| with | 40.12 | 35.00 | 90 of 90 |" in text
    assert "(13.4 MB): 40.12 BLEU, 35.00 chrF, beam 5, in 62 s; torch 2.11.0, ctranslate2 4.8.1, 2026-11-19" in text
