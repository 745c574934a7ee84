"""Contracts 6 and 8 for vision models, and training with every kind of attention."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from regard.errors import UserError
from regard.models.folder import CONFIG, WEIGHTS, load_model, save_model
from regard.models.swin import Swin
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator
from regard.training.run import run_recipe
from tests.contracts.batches import images
from tests.images import TINY, image_recipe, paint


def test_saved_models_can_be_loaded(vision_model: ViT | Swin, tmp_path: Path) -> None:
    save_model(tmp_path, vision_model, {"labels": ["a", "b", "c", "d", "e"]})
    assert {path.name for path in tmp_path.iterdir()} == {CONFIG, WEIGHTS}
    model, metadata = load_model(tmp_path)
    assert metadata["labels"] == ["a", "b", "c", "d", "e"]
    assert model.config == vision_model.config
    assert not model.training
    with torch.no_grad():
        assert torch.equal(model(images(2)), vision_model(images(2)))


def test_folder_with_an_invalid_image_size_is_rejected(tmp_path: Path) -> None:
    save_model(tmp_path, ViT(ViTConfig.micro(3, layers=1)), {})
    config = json.loads((tmp_path / CONFIG).read_text("utf-8"))
    config["model"]["image"] = [30, 32]
    (tmp_path / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=r"config.json: model: an image of 30×32 .*; 28×32 or 32×32 would fit"):
        load_model(tmp_path)


def test_vision_models_cannot_be_loaded_as_translators(tmp_path: Path) -> None:
    save_model(tmp_path, ViT(ViTConfig.micro(3, layers=1)), {})
    with pytest.raises(UserError, match="is an image model; use regard classify"):
        Translator.load(tmp_path)


@pytest.mark.parametrize(
    "vision_model", ["vit-class-learned", "vit-mean-rotary", "vit-registers-scaled"], indirect=True
)
def test_full_attention_of_a_vit_uses_no_mask(vision_model: ViT | Swin, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask, the fastest kernel of a GPU would not be used."""
    calls: list[dict[str, object]] = []
    sdpa = F.scaled_dot_product_attention

    def record(*tensors: Tensor, **options: object) -> Tensor:
        calls.append(options)
        return sdpa(*tensors, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    vision_model.train()(images(2, 32))
    assert [call.get("attn_mask") for call in calls] == [None, None]


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 32×32 images in three classes."""
    return paint(tmp_path_factory.mktemp("squares"), number=12, seed=1, size=32)


ATTENTION = {
    "full": "full",
    "local": "{kind: local, window: 4}",
    "linear": "linear",
    "linear-random": "{kind: linear, features: random}",
    "linear-plain": "{kind: linear, features: plain}",
    "routing": "{kind: routing, clusters: 4}",
}


@pytest.mark.parametrize("attention", ATTENTION.values(), ids=ATTENTION)
def test_vit_can_be_trained_with_every_kind_of_attention(attention: str, squares: Path, tmp_path: Path) -> None:
    recipe = image_recipe(squares, TINY | {"data.size": 32}, model__attention=yaml.safe_load(attention))
    outcome = run_recipe(recipe, tmp_path / "run")
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text("utf-8").splitlines()]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[-1] < losses[0] - 0.3
    assert outcome.scores["accuracy"] > 60  # of three classes
    trained = Classifier.load(tmp_path / "run").model.config
    assert trained == ViTConfig.parse(trained.model_dump() | {"attention": yaml.safe_load(attention)}, "recipe")
    assert trained.image == (32, 32)
