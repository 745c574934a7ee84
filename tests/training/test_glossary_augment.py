"""Training with annotated terms."""

from pathlib import Path

import pytest
import torch

from regard import Glossary, Translator
from regard.data.text.annotation import MARKERS
from regard.errors import UserError
from regard.training.progress import Progress
from regard.training.run import run_recipe
from tests.conftest import OBJECTS, build_task, small_recipe

SHORT = {"training__steps": 2, "training__validate_every": 2, "training__valid_sentences": 2}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    path = tmp_path / "terms.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in OBJECTS.items()), encoding="utf-8")
    return {"data__glossary_augment": {"file": str(path), "share": 0.5}}


def test_model_reads_annotated_terms(
    toy: Path, tmp_path: Path, settings: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", **SHORT, **settings), tmp_path / "run")
    assert "terms are annotated in 2" in capsys.readouterr().out
    translator = Translator.load(tmp_path / "run")
    (plain,) = translator("I love apples", n_best=1)
    assert not set(plain.source_subwords) & set(MARKERS)
    glossary = Glossary.of({"apple": "书"})
    best = translator.hypotheses(["I love apples"], glossary=glossary)[0][0]
    assert [subword for subword in best.source_subwords if subword in MARKERS] == list(MARKERS)
    assert "书" in best.text and best.terms[0].kept
    aligned = translator.hypotheses(["I love apples"], alignments=True, glossary=glossary)[0][0]
    assert aligned.source_subwords == plain.source_subwords


def test_terms_that_do_not_occur_are_reported(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "terms.tsv").write_text("quark\t夸克\n", encoding="utf-8")
    augment = {"file": str(tmp_path / "terms.tsv"), "share": 0.5}
    recipe = small_recipe(toy / "train.en", toy / "train.zh", data__glossary_augment=augment)
    build_task(recipe, torch.device("cpu"), Progress(1))
    warning = "warning: no training pair has a term of data.glossary_augment.file and its translation"
    assert warning in " ".join(capsys.readouterr().out.split())


def test_settings_that_exclude_annotation_are_rejected(toy: Path, settings: dict[str, object]) -> None:
    files = toy / "train.en", toy / "train.zh"
    with pytest.raises(UserError, match=r"data\.glossary_augment needs one vocabulary"):
        small_recipe(*files, **settings, tokenizer__joint=False)
    with pytest.raises(UserError, match=r"data\.glossary_augment excludes tokenizer\.dropout"):
        small_recipe(*files, **settings, tokenizer__dropout=0.1)
    with pytest.raises(UserError, match=r"tokenizer\.dropout needs END after every source; omit model\.source_end"):
        small_recipe(*files, tokenizer__dropout=0.1, model__source_end=False)
    with pytest.raises(UserError, match=r"glossary_augment\.share"):
        small_recipe(*files, data__glossary_augment={"file": "x", "share": 0})
