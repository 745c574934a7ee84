"""The contracts of the design for models that read images."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from regard.attention import Attention
from regard.decoding.translator import Translator
from regard.errors import UserError
from regard.inspection.probe import probe
from regard.models.folder import CONFIG, WEIGHTS, load_model, save_model
from regard.models.swin import Swin
from regard.models.vit import ViT, ViTConfig

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
    monkeypatch.setattr("regard.attention.core._fastest", lambda *_: "reference")
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


ONE_LINE = ["full", "{kind: local, window: 4}", "linear", "{kind: routing, clusters: 4}"]


@pytest.mark.parametrize("attention", ONE_LINE)
def test_a_vit_learns_with_every_kind_of_attention_by_one_line(attention: str) -> None:
    torch.manual_seed(0)
    sizes = {"image": 16, "width": 32, "layers": 2, "heads": 2, "hidden": 64}
    model = ViT(ViTConfig.mini(4, **sizes, attention=yaml.safe_load(attention)))
    x, labels = images(16, seed=3), torch.arange(16) % 4
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        loss = F.cross_entropy(model(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert (model.eval()(x).argmax(1) == labels).all()


@pytest.mark.parametrize("seeing", ["vit-class-rotary", "swin"], indirect=True)
@torch.no_grad()
def test_compiled_models_say_the_same(seeing: Seeing) -> None:
    torch.testing.assert_close(torch.compile(seeing, backend="aot_eager")(images(2)), seeing(images(2)), **CLOSE)
