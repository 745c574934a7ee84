"""Weights of ViT and Swin from and to timm, torchvision and transformers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.huggingface_vision import from_huggingface, read_vision_config, to_huggingface
from regard.interop.import_model import import_model
from regard.interop.timm import from_timm, infer_timm, to_timm
from regard.interop.torchvision import from_torchvision, to_torchvision
from regard.models.folder import load_model
from regard.models.swin import Swin, SwinConfig
from regard.models.vit import ViT, ViTConfig
from tests.interop.comparison import CLOSE, SMALL, assert_same_weights, build_model, random_images, randomise
from tests.interop.foreign_vits import TimmViT, TorchvisionViT

transformers = pytest.importorskip("transformers")

HF_SMALL = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_labels": 7,
}
HF_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "num_labels": 7}
OUR_SWIN = {"image": 32, "patch": 2, "width": 16, "layers": (2, 2), "heads": (2, 4), "window": 4, "classes": 7}


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], ViTConfig | SwinConfig], Callable[..., Any], Any]] = {
    "timm-vit": (lambda: TimmViT(**SMALL), lambda: ViTConfig(**SMALL), from_timm, to_timm),
    "torchvision-vit": (
        lambda: TorchvisionViT(**SMALL),
        lambda: ViTConfig(**SMALL),
        from_torchvision,
        to_torchvision,
    ),
    "huggingface-vit": (
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**HF_SMALL)),
        lambda: ViTConfig(**SMALL, norm_eps=1e-12),
        from_huggingface,
        to_huggingface,
    ),
    "huggingface-vit-without-bias": (
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**HF_SMALL, qkv_bias=False)),
        lambda: ViTConfig(**SMALL, norm_eps=1e-12, qkv_bias=False),
        from_huggingface,
        to_huggingface,
    ),
    "huggingface-swin": (
        lambda: transformers.SwinForImageClassification(transformers.SwinConfig(**HF_SWIN, window_size=4)),
        lambda: SwinConfig(**OUR_SWIN),
        from_huggingface,
        to_huggingface,
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, ViTConfig | SwinConfig, Callable[..., Any], Any]:
    build, config, convert_from, convert_to = CASES[request.param]
    return randomise(build()), config(), convert_from, convert_to


def logits_of(model: nn.Module, x: Tensor) -> Tensor:
    output = model(x)
    return output if isinstance(output, Tensor) else output.logits


@torch.no_grad()
def test_outputs_are_equal(case: Any) -> None:
    foreign, config, convert_from, _ = case
    x = random_images(32)
    expected = logits_of(foreign, x)
    assert expected.std() > 0.01
    torch.testing.assert_close(build_model(config, convert_from(foreign.state_dict(), config))(x), expected, **CLOSE)


@pytest.mark.parametrize("size", [(28, 28), (27, 42), (16, 24)], ids=str)
@torch.no_grad()
def test_swin_pads_incomplete_windows_like_transformers(size: tuple[int, int]) -> None:
    foreign = randomise(transformers.SwinForImageClassification(transformers.SwinConfig(**HF_SWIN, window_size=4)))
    config = read_vision_config(foreign.config.to_dict(), foreign.state_dict(), "config.json")
    model = build_model(config, from_huggingface(foreign.state_dict(), config))
    x = torch.randn(4, 3, *size, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), foreign(x).logits, **CLOSE)


def test_incomplete_patches_that_timm_drops_are_rejected() -> None:
    tensors = to_timm(Swin(SwinConfig(**OUR_SWIN)).state_dict(), SwinConfig(**OUR_SWIN))
    assert infer_timm(tensors, {"image": 34}).image == (34, 34)
    with pytest.raises(UserError, match="image 33×34 is no multiple of patch 2×2: timm would drop"):
        infer_timm(tensors, {"image": (33, 34)})


@torch.no_grad()
def test_outputs_are_equal_in_double_precision(case: Any) -> None:
    foreign, config, convert_from, _ = case
    x, foreign = random_images(32).double(), foreign.double()
    model = build_model(config, convert_from(foreign.state_dict(), config)).double()
    # regard's relative position tables are float32.
    torch.testing.assert_close(model(x), logits_of(foreign, x), atol=1e-6, rtol=0)


def test_export_restores_every_imported_tensor(case: Any) -> None:
    foreign, config, convert_from, convert_to = case
    assert_same_weights(convert_to(convert_from(foreign.state_dict(), config), config), foreign.state_dict())


def test_missing_tensor_is_named(case: Any) -> None:
    foreign, config, convert_from, _ = case
    for missing in foreign.state_dict():
        rest = {name: tensor for name, tensor in foreign.state_dict().items() if name != missing}
        name = re.escape(missing.removeprefix("vit.").removeprefix("swin."))
        with pytest.raises(UserError, match=f"tensor {name} is missing"):
            convert_from(rest, config)


def test_unknown_tensor_is_named(case: Any) -> None:
    foreign, config, convert_from, _ = case
    with pytest.raises(UserError, match=r"unknown tensor blocks\.9\.gate"):
        convert_from(foreign.state_dict() | {"blocks.9.gate": torch.zeros(1)}, config)


def test_tensor_of_another_shape_is_named(case: Any) -> None:
    foreign, config, convert_from, _ = case
    with pytest.raises(UserError, match=r"has shape \[7(, \d+)?\], but head\.\w+ of this config has \[8"):
        convert_from(foreign.state_dict(), config.changed(classes=8))


def test_head_is_dropped_without_classes(case: Any) -> None:
    foreign, config, convert_from, _ = case
    headless = config.changed(classes=0)
    tensors = convert_from(foreign.state_dict(), headless)
    assert not [name for name in tensors if name.startswith("head")]
    build_model(headless, tensors)


def test_vit_names_of_transformers_4_are_converted() -> None:
    model = randomise(transformers.ViTForImageClassification(transformers.ViTConfig(**HF_SMALL)))
    config = ViTConfig(**SMALL, norm_eps=1e-12)
    old_names = {
        r"vit\.layers\.": "vit.encoder.layer.",
        r"attention\.q_proj": "attention.attention.query",
        r"attention\.k_proj": "attention.attention.key",
        r"attention\.v_proj": "attention.attention.value",
        r"attention\.o_proj": "attention.output.dense",
        r"mlp\.fc1": "intermediate.dense",
        r"mlp\.fc2": "output.dense",
    }
    old = dict(model.state_dict())
    for new_name, old_name in old_names.items():
        old = {re.sub(new_name, old_name, name): tensor for name, tensor in old.items()}
    assert "vit.encoder.layer.0.attention.attention.query.weight" in old
    assert_same_weights(from_huggingface(old, config), from_huggingface(model.state_dict(), config))


def test_swin_names_of_transformers_4_are_converted() -> None:
    config = SwinConfig(**OUR_SWIN)
    model = randomise(transformers.SwinForImageClassification(transformers.SwinConfig(**HF_SWIN, window_size=4)))
    old_names = {
        r"attention\.q_proj": "attention.self.query",
        r"attention\.k_proj": "attention.self.key",
        r"attention\.v_proj": "attention.self.value",
        r"attention\.o_proj": "attention.output.dense",
        r"attention\.relative_position_bias\.": "attention.self.",
        r"mlp\.fc1": "intermediate.dense",
        r"mlp\.fc2": "output.dense",
    }
    old = dict(model.state_dict())
    for new_name, old_name in old_names.items():
        old = {re.sub(new_name, old_name, name): tensor for name, tensor in old.items()}
    old["swin.encoder.layers.0.blocks.0.attention.self.relative_position_index"] = torch.zeros(16, 16)
    assert_same_weights(from_huggingface(old, config), from_huggingface(model.state_dict(), config))


def test_unsupported_options_are_rejected() -> None:
    model = ViT(ViTConfig(**SMALL, registers=2))
    with pytest.raises(UserError, match="registers: the other library has no such parameter"):
        to_timm(model.state_dict(), model.config)


def test_exported_swin_has_the_names_of_timm() -> None:
    with torch.device("meta"):
        model = Swin(SwinConfig.tiny())
    names = to_timm(model.state_dict(), model.config)
    shapes = {
        "patch_embed.proj.weight": (96, 3, 4, 4),
        "patch_embed.norm.bias": (96,),
        "layers.0.blocks.1.attn.relative_position_bias_table": (169, 3),
        "layers.2.blocks.5.attn.qkv.weight": (1152, 384),
        "layers.1.downsample.norm.weight": (384,),
        "layers.3.downsample.reduction.weight": (768, 1536),
        "layers.3.blocks.0.mlp.fc1.bias": (3072,),
        "head.fc.weight": (1000, 768),
    }
    assert {name: tuple(names[name].shape) for name in shapes} == shapes
    assert len(names) == len(model.state_dict())


SWIN = {"image": 32, "patch": 4, "window": 2, "width": 8, "layers": (1, 3), "heads": (2, 4), "expansion": 3}


@pytest.mark.parametrize("changes", [{"classes": 5}, {"classes": 0}, {"classes": 7, "channels": 1, "window": 4}])
def test_config_of_a_swin_is_inferred_from_the_names_of_timm(changes: dict[str, Any], tmp_path: Path) -> None:
    config = SwinConfig(**SWIN | changes)
    torch.manual_seed(0)
    model = randomise(Swin(config))
    tensors = to_timm(model.state_dict(), config)
    inferred = infer_timm(tensors, {"image": 32})
    assert [getattr(inferred, key) for key in SWIN | changes] == [getattr(config, key) for key in SWIN | changes]
    torch.save(tensors, tmp_path / "swin.pt")
    import_model(tmp_path / "swin.pt", tmp_path / "imported", {"image": 32})
    imported, _ = load_model(tmp_path / "imported")
    images = torch.randn(2, config.channels, 32, 32)
    torch.testing.assert_close(imported(images), model.eval()(images), **CLOSE)


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_config_of_a_vit_is_inferred_from_the_names_of_timm(pooling: str) -> None:
    sizes = {"image": (24, 16), "patch": (8, 4), "width": 128, "layers": 3, "heads": 2, "hidden": 96}
    config = ViTConfig(**sizes, classes=5, pooling=pooling, channels=1)
    tensors = to_timm(ViT(config).state_dict(), config)
    assert infer_timm(tensors, {"image": [24, 16]}) == config
    with pytest.raises(UserError, match="has 12 patch positions, which are not a square"):
        infer_timm(tensors, {})
    headless = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    assert infer_timm(headless, {"image": [24, 16]}).classes == 0


def test_heads_that_cannot_be_inferred_must_be_given() -> None:
    config = ViTConfig(image=8, patch=4, width=32, layers=1, heads=4, hidden=8, classes=2)
    tensors = to_timm(ViT(config).state_dict(), config)
    with pytest.raises(UserError, match=r"a width of 32 is not a multiple of 64; give it, for example --set heads=8"):
        infer_timm(tensors, {})
    assert infer_timm(tensors, {"heads": 4}) == config


@pytest.mark.parametrize("size", [48, 16])
@torch.no_grad()
def test_positions_are_resized_like_in_transformers(size: int) -> None:
    foreign = randomise(transformers.ViTForImageClassification(transformers.ViTConfig(**HF_SMALL)))
    config = ViTConfig(**SMALL, norm_eps=1e-12)
    model = build_model(config, from_huggingface(foreign.state_dict(), config)).resized(size, antialias=False)
    expected = foreign(random_images(size), interpolate_pos_encoding=True).logits
    torch.testing.assert_close(model(random_images(size)), expected, **CLOSE)


@torch.no_grad()
def test_full_size_vit_of_transformers() -> None:
    foreign = randomise(transformers.ViTModel(transformers.ViTConfig()))
    config = ViTConfig.base(classes=0, norm_eps=1e-12)
    model = build_model(config, from_huggingface(foreign.state_dict(), config))
    torch.testing.assert_close(
        model.tokens(random_images(224, 1)), foreign(random_images(224, 1)).last_hidden_state, **CLOSE
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "deit"}, "config.json: model_type is 'deit'; supported are vit and swin"),
        (
            {"model_type": "swin", "hidden_act": "relu"},
            "config.json: hidden_act is 'relu', but regard's Swin uses gelu",
        ),
        (
            {"model_type": "swin", "hidden_act": "gelu", "use_absolute_embeddings": True},
            "config.json: use_absolute_embeddings is true, but regard's Swin has only relative positions",
        ),
    ],
)
def test_models_of_transformers_without_a_counterpart_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        read_vision_config(values, {}, "config.json")
