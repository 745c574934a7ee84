"""`Translator` with reduced precision."""

from pathlib import Path

import pytest
import torch

from regard import Translator, UserError, probe
from regard.decoding.autoregressive import TransformerStepper
from regard.decoding.settings import SearchSettings
from regard.interop.ctranslate2 import load_translator
from regard.ops.linear import Precision, choose_precision, supports
from regard.pipelines.constraints import Constraints
from tests.conftest import Command, toy_pairs
from tests.decoding.cuda_graph.models import peaked_model
from tests.interop.random_models import random_translator

TEXTS = ["I love apples", "", "You buy tea and books"]


@pytest.fixture(params=["bfloat16", "int8"])
def precision(request: pytest.FixtureRequest) -> Precision:
    if not supports(request.param):
        pytest.skip(f"this CPU does not support {request.param}")
    chosen: Precision = request.param
    return chosen


def test_translations_are_nearly_the_same(trained_run: Path, precision: Precision) -> None:
    exact, small = Translator.load(trained_run), Translator.load(trained_run, precision=precision)
    texts = [pair.source for pair in toy_pairs()][:100]
    found, other = exact(texts, beam=4), small(texts, beam=4)
    assert sum(a == b for a, b in zip(found, other, strict=True)) >= 97
    assert len(set(found)) > 60


def test_vectors_and_scores_are_close_but_not_equal(trained_run: Path, precision: Precision) -> None:
    exact, small = Translator.load(trained_run), Translator.load(trained_run, precision=precision)
    a, b = (torch.stack(translator.embed(TEXTS)) for translator in (exact, small))
    assert 1e-5 < float((a - b).norm() / a.norm()) < 0.05
    scores = [translator.score("I love apples", "我喜欢苹果").score for translator in (exact, small)]
    assert scores[0] == pytest.approx(scores[1], abs=0.05) and scores[0] != scores[1]


def test_score_is_close_to_that_of_search(trained_run: Path, precision: Precision) -> None:
    small = Translator.load(trained_run, precision=precision)
    (best,) = small.hypotheses(["I love apples"], SearchSettings(beam=4, n_best=1))[0]
    assert small.score("I love apples", best.text).score == pytest.approx(best.score, abs=5e-3)


def test_ensembles_constraints_and_probes_work(trained_run: Path, precision: Precision) -> None:
    small = Translator.load(trained_run, trained_run, precision=precision)
    assert small("I love apples", beam=2) == "我喜欢苹果"
    single = Translator.load(trained_run, precision=precision)
    (best,) = single.hypotheses(["I love apples"], constraints=Constraints(prefix="你"), alignments=True)[0]
    assert best.text.startswith("你") and best.alignment is not None
    with probe(single.model) as seen:
        single("I love apples")
    assert seen["decoder.0.cross"].weights.shape[0] == 1


def test_changed_weights_are_used(precision: Precision) -> None:
    small = Translator(random_translator("post").model, random_translator("post").vocabularies, precision=precision)
    before = small.score("the dog", "a tree").score
    with torch.no_grad():
        small.model.target_embedding.weight.mul_(-1)
    assert small.score("the dog", "a tree").score != before


def test_unsupported_precision_is_rejected(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    with pytest.raises(UserError, match="precision: 'int4' is not one of float32, bfloat16, float16, int8"):
        Translator.load(trained_run, precision="int4")
    with pytest.raises(UserError, match=r"precision: 'int4' is not one of .*, which CTranslate2 supports"):
        load_translator(trained_run, precision="int4", engine="ctranslate2")
    with pytest.raises(UserError, match="precision int8 is for a CPU, but the device is cuda"):
        Translator.load(trained_run, precision="int8", device="cuda")
    with pytest.raises(UserError, match="precision float16 is for a GPU, but the device is cpu"):
        Translator.load(trained_run, precision="float16")
    with pytest.raises(UserError, match="precision bfloat16 is for a CPU and a GPU, but the device is mps"):
        Translator.load(trained_run, precision="bfloat16", device="mps")
    monkeypatch.setattr("regard.ops.linear.supports", lambda precision: False)
    with pytest.raises(UserError, match="precision int8: this CPU or this build of PyTorch does not support it"):
        Translator.load(trained_run, precision="int8")
    assert "int4" in command("translate", trained_run, "You buy tea", "--precision", "int4").error


def test_commands_accept_a_precision(trained_run: Path, tmp_path: Path, command: Command, precision: Precision) -> None:
    on_cpu = "--device", "cpu"
    answer = command("translate", trained_run, "I love apples", "--precision", precision, *on_cpu)
    assert answer.out == "我喜欢苹果\n"
    lines = tmp_path / "lines"
    lines.write_text("I love apples\nYou buy tea\n")
    few = "--src", lines, "--batch", 1, "--seconds", 0
    timed = command("bench", f"{trained_run}:precision={precision}", *few, *on_cpu)
    assert timed.code == 0 and f"precision={precision}" in timed.out


# On GPU, the whole model has half precision


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_is_available_on_gpu(name: str) -> None:
    assert choose_precision(name, torch.device("cuda", 1)) == name


def test_half_precision_model_supports_all_operations(trained_run: Path) -> None:
    exact = Translator.load(trained_run)
    half = Translator(Translator.load(trained_run).model.bfloat16(), exact.vocabularies)
    texts = [pair.source for pair in toy_pairs()][:40]
    assert sum(a == b for a, b in zip(exact(texts, beam=4), half(texts, beam=4), strict=True)) >= 36
    (best,) = half.hypotheses(["I love apples"], SearchSettings(beam=4, n_best=1), alignments=True)[0]
    assert best.alignment is not None
    assert half.score("I love apples", best.text).score == pytest.approx(best.score, abs=0.05)
    a, b = (torch.stack(translator.embed(TEXTS)) for translator in (exact, half))
    assert b.dtype == torch.float32 and 1e-4 < float((a - b).norm() / a.norm()) < 0.05
    with probe(half.model) as seen:
        half("I love apples")
    torch.testing.assert_close(
        seen["decoder.0.cross"].weights.float().sum(-1).mean(), torch.tensor(1.0), atol=0.01, rtol=0
    )


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_coverage_penalty_is_finite_in_half_precision(precision: torch.dtype) -> None:
    models = peaked_model(), peaked_model().to(precision)
    a, b = (TransformerStepper(model, coverage=True).start([[5, 6, 7]], 2).coverage_penalties() for model in models)
    assert torch.equal(a, b) and bool((a < 0).all()) and bool(a.isfinite().all())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_on_gpu_gives_nearly_the_same_translations(trained_run: Path, name: str) -> None:
    exact, half = (Translator.load(trained_run, device="cuda", precision=one) for one in ("float32", name))
    assert half.model.target_embedding.weight.dtype == getattr(torch, name)
    texts = [pair.source for pair in toy_pairs()][:40]
    assert sum(a == b for a, b in zip(exact(texts, beam=4), half(texts, beam=4), strict=True)) >= 36
