"""The contracts of the design for models that read images."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.inspection.probe import probe
from regard.models.folder import CONFIG, WEIGHTS, load_model, save_model
from regard.models.swin import Swin
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator
from regard.training.run import run_recipe
from tests.images import TINY, image_recipe, paint

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
Seeing = ViT | Swin


def images(batch: int, size: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_an_images_result_does_not_depend_on_its_batch_nor_its_place_in_it(seeing: Seeing) -> None:
    x = images(5)
    together = seeing(x)
    torch.testing.assert_close(torch.cat([seeing(image[None]) for image in x]), together, **CLOSE)
    torch.testing.assert_close(seeing(x.flip(0)), together.flip(0), **CLOSE)
    assert together.std(0).min() > 1e-3, "images differ, so must their results"


@torch.no_grad()
def test_seeing_the_weights_changes_nothing_and_they_exist_under_probe_alone(
    seeing: Seeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = images(2)
    expected = seeing(x)
    with probe(seeing) as seen:
        torch.testing.assert_close(seeing(x), expected, **CLOSE)
    attentions = {name for name, module in seeing.named_modules() if isinstance(module, Attention)}
    assert seen.keys() == attentions
    assert len(attentions) == (4 if isinstance(seeing, Swin) else 2)
    for name in attentions:
        kind = type(seeing.get_submodule(name).kind)  # type: ignore[arg-type]
        monkeypatch.setattr(kind, "weights", lambda *_: pytest.fail("weights were made though nobody looks"))
    torch.testing.assert_close(seeing(x), expected, **CLOSE)


@torch.no_grad()
def test_the_weights_of_softmax_say_how_the_context_is_mixed(seeing: Seeing) -> None:
    with probe(seeing) as seen:
        seeing(images(2))
    for name, record in seen.items():
        assert record.weights.isfinite().all()
        if not isinstance(seeing.config, ViTConfig) or seeing.config.attention.kind in ("full", "local"):
            sums = record.weights.sum(-1)
            torch.testing.assert_close(sums, (record.weights != 0).any(-1).to(sums), msg=name)


@torch.no_grad()
def test_fused_paths_say_what_the_reference_says(seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(2)
    expected = seeing(x)
    monkeypatch.setattr("regard.attention.core.select_attention", lambda *_: "reference")
    torch.testing.assert_close(seeing(x), expected, **CLOSE)


def test_a_saved_model_comes_back_the_same(seeing: Seeing, tmp_path: Path) -> None:
    save_model(tmp_path, seeing, {"labels": ["a", "b", "c", "d", "e"]})
    assert {path.name for path in tmp_path.iterdir()} == {CONFIG, WEIGHTS}
    model, about = load_model(tmp_path)
    assert about["labels"] == ["a", "b", "c", "d", "e"]
    assert model.config == seeing.config
    assert not model.training
    with torch.no_grad():
        assert torch.equal(model(images(2)), seeing(images(2)))


def test_a_folder_with_a_size_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, ViT(ViTConfig.micro(3, layers=1)), {})
    config = json.loads((tmp_path / CONFIG).read_text("utf-8"))
    config["model"]["image"] = [30, 32]
    (tmp_path / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=r"config.json: model: an image of 30×32 .*; 28×32 or 32×32 would fit"):
        load_model(tmp_path)


def test_a_model_of_images_is_not_asked_to_translate(tmp_path: Path) -> None:
    save_model(tmp_path, ViT(ViTConfig.micro(3, layers=1)), {})
    with pytest.raises(UserError, match="is an image model; use regard classify"):
        Translator.load(tmp_path)


@pytest.mark.parametrize("seeing", ["vit-class-learned", "vit-mean-rotary", "vit-registers-scaled"], indirect=True)
def test_full_attention_to_all_patches_needs_no_mask(seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask would keep a GPU from its fastest kernel."""
    calls: list[dict[str, object]] = []
    fused = F.scaled_dot_product_attention

    def spy(*tensors: Tensor, **options: object) -> Tensor:
        calls.append(options)
        return fused(*tensors, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    seeing.train()(images(2, 32))
    assert [call.get("attn_mask") for call in calls] == [None, None]


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 32×32 in three classes."""
    return paint(tmp_path_factory.mktemp("squares"), number=12, seed=1, size=32)


ONE_LINE = {
    "full": "full",
    "local": "{kind: local, window: 4}",
    "linear": "linear",
    "linear random": "{kind: linear, features: random}",
    "linear plain": "{kind: linear, features: plain}",
    "routing": "{kind: routing, clusters: 4}",
}


@pytest.mark.parametrize("attention", ONE_LINE.values(), ids=ONE_LINE)
def test_a_vit_learns_with_every_kind_of_attention_by_one_line(attention: str, squares: Path, tmp_path: Path) -> None:
    recipe = image_recipe(squares, TINY | {"data.size": 32}, model__attention=yaml.safe_load(attention))
    outcome = run_recipe(recipe, tmp_path / "run")
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text("utf-8").splitlines()]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[-1] < losses[0] - 0.3
    assert outcome.scores["accuracy"] > 60  # of three classes
    trained = Classifier.load(tmp_path / "run").model.config
    assert trained == ViTConfig.parse(trained.model_dump() | {"attention": yaml.safe_load(attention)}, "recipe")
    assert trained.image == (32, 32)


@pytest.mark.parametrize("seeing", ["vit-class-rotary", "swin"], indirect=True)
@torch.no_grad()
def test_compiled_models_say_the_same(seeing: Seeing) -> None:
    torch.testing.assert_close(torch.compile(seeing, backend="aot_eager")(images(2)), seeing(images(2)), **CLOSE)
