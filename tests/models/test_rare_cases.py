"""Rare cases of models: sizes that do not change, interrupted replacements of folders, and configurations."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from regard.attention.multi_head import Rotary2D
from regard.errors import UserError
from regard.layers import ImageModel, Learned, Sinusoidal, make_head, resize_grid
from regard.masks import Mask, Padded
from regard.models import folder as module
from regard.models.bert import BertConfig
from regard.models.card import _has_saved_weights
from regard.models.folder import model_on_meta, read_config, recover_folder, save_model
from regard.models.swin import Swin, SwinConfig
from regard.models.vit import ViT, ViTConfig
from regard.ops.dispatch import fused_block_applies
from regard.serving.page_data.positions import _choose_positions

TINY = ViTConfig(image=8, patch=4, width=8, layers=1, heads=2, hidden=8, classes=2)


def test_positions_of_an_unchanged_grid_are_returned_as_they_are() -> None:
    table = torch.randn(6, 4)
    assert resize_grid(table, (2, 3), (2, 3)) is table
    resized = resize_grid(table, (2, 3), (4, 6))
    assert resized.shape == (24, 4)
    assert resized.view(4, 6, 4).mean((0, 1)) == pytest.approx(table.mean(0), abs=0.3)


def test_sinusoidal_positions_need_an_even_width() -> None:
    for width in (4, 6, 9, 15):
        if width % 2:
            with pytest.raises(ValueError, match=f"sinusoidal positions need an even width, not {width}"):
                Sinusoidal(width)
        else:
            assert Sinusoidal(width).width == width


def test_a_mask_without_conditions_has_no_tensor() -> None:
    assert Mask().dense(2, 3, torch.device("cpu")) is None
    assert Mask().fully_masked(2, 3, torch.device("cpu")) is None
    lengths = Padded(torch.tensor([0, 2]), 3)
    masked = Mask(keys=lengths).fully_masked(1, 3, torch.device("cpu"))
    assert masked is not None
    assert masked.flatten().tolist() == [True, False]


def test_an_image_model_of_a_fixed_size_cannot_be_resized() -> None:
    class Fixed(ImageModel):
        def __init__(self, **config: Any) -> None:
            torch.nn.Module.__init__(self)
            self.config = SimpleNamespace(**config)  # type: ignore[assignment]

    model = Fixed(image=(8, 8))
    assert model.resized(8) is model
    assert model.resized((8, 8)) is model
    with pytest.raises(UserError, match=r"a model of kind Fixed supports only images of size \(8, 8\), not 16"):
        model.resized(16)
    with pytest.raises(UserError, match="only images of size None, not"):
        Fixed().resized((8, 16))


def test_a_model_without_classes_has_no_head() -> None:
    assert isinstance(make_head(4, 0), torch.nn.Identity)
    head = make_head(4, 3)
    assert isinstance(head, torch.nn.Linear)
    assert head.weight.shape == (3, 4)
    assert head.bias.tolist() == [0, 0, 0]


def test_padding_must_be_in_the_vocabulary() -> None:
    assert BertConfig(vocab=9, pad=8, width=8, heads=2).pad == 8
    with pytest.raises(ValueError, match="pad 9 is not in the vocabulary"):
        BertConfig(vocab=9, pad=9, width=8, heads=2)


def test_saved_weights_are_compared_with_those_of_a_model(tmp_path: Path) -> None:
    model = ViT(TINY)
    assert not _has_saved_weights(model, tmp_path)
    save_model(tmp_path, model, {})
    assert _has_saved_weights(model, tmp_path)
    assert not _has_saved_weights(Swin(SwinConfig.mini(classes=2)), tmp_path)
    with torch.no_grad():
        model.head.bias += 1
    assert not _has_saved_weights(model, tmp_path)


def test_a_missing_model_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{tmp_path}/none: no such model folder$"):
        read_config(tmp_path / "none")


def test_errors_of_an_extension_are_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: object) -> None:
        raise TypeError("a bug of the extension")

    monkeypatch.setitem(module.MODELS, "vit", fail)
    with pytest.raises(UserError, match="config: describes a model that is too large for any memory"):
        model_on_meta(TINY, "config")
    monkeypatch.setattr(module, "find_extensions", lambda classes: {"model": {"vit": "own.py"}})
    with pytest.raises(TypeError, match="a bug of the extension"):
        model_on_meta(TINY, "config")


def test_shapes_are_computed_without_importing_the_compiler() -> None:
    """The import takes a second, in every process that loads a model."""
    program = """
import sys, torch
from regard.models.folder import model_on_meta
from regard.models.nat import NATransformerConfig
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViTConfig
translators = [make.tiny(9, positions=positions) for make in (TransformerConfig, NATransformerConfig)
               for positions in ("sinusoidal", "learned", "rotary")]
for config in (*translators, ViTConfig.micro(3), ViTConfig.micro(3, positions="sincos", pooling="class")):
    model = model_on_meta(config, "config")
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
sys.exit(str(sys.modules.keys() & {"torch._dynamo", "sympy"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stderr.strip() == "set()"


def test_tables_on_the_meta_device_have_the_same_shapes() -> None:
    for width, order in ((8, "interleaved"), (6, "halves")):
        with torch.device("meta"):
            table = Sinusoidal(width, order).table
        assert table.is_meta
        assert (table.shape, table.dtype) == (Sinusoidal(width, order).table.shape, torch.float32)
    with torch.device("meta"):
        rotary = Rotary2D(8)
    assert (rotary.frequency.shape, rotary.frequency.dtype) == (Rotary2D(8).frequency.shape, torch.float32)


@pytest.mark.parametrize(("replaced", "kept"), [(False, "old"), (True, "new")])
def test_an_interrupted_replacement_is_undone_or_completed(replaced: bool, kept: str, tmp_path: Path) -> None:
    workspace = tmp_path / ".run.abc"
    (workspace / "old").mkdir(parents=True)
    (workspace / "old" / "name").write_text("old")
    (workspace / "new").mkdir()
    if replaced:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "name").write_text("new")
    recover_folder(tmp_path / "run")
    assert (tmp_path / "run" / "name").read_text() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_recovery_removes_no_folders_of_the_user(tmp_path: Path) -> None:
    (tmp_path / ".a[1].backup").mkdir()
    (tmp_path / ".a[1].backup" / "notes.txt").write_text("precious")
    (tmp_path / ".a[1].txt").write_text("precious")
    (tmp_path / ".a1.x").mkdir()
    (tmp_path / ".a[1].link").symlink_to(tmp_path / ".a1.x", target_is_directory=True)
    (tmp_path / ".a[1].abcdefgh" / "new").mkdir(parents=True)
    recover_folder(tmp_path / "a[1]")
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert names == {".a[1].backup", ".a[1].backup/notes.txt", ".a[1].txt", ".a1.x", ".a[1].link"}


def test_fused_blocks_do_not_replace_options_that_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.ops import dispatch

    block = ViT(TINY).encoder[0]
    x = torch.zeros(1, 5, 8)
    assert not fused_block_applies(block, x)  # a CPU has no kernel
    monkeypatch.setattr(dispatch, "fused_kernels_apply", lambda x, norm: True)
    assert fused_block_applies(block, x)
    block.attention.projection_dropout.p = 0.1
    assert not fused_block_applies(block, x)
    block.attention.projection_dropout.p = 0.0
    block.pre_norm = False
    assert fused_block_applies(block, x)
    block.drop_path.rate = 0.1
    assert not fused_block_applies(block, x)
    block.drop_path.rate = 0.0
    block.scale1 = torch.nn.Parameter(torch.ones(8))
    assert not fused_block_applies(block, x)
    block.pre_norm = True
    assert fused_block_applies(block, x)
    block.norm1.register_forward_hook(lambda *_: None)
    assert not fused_block_applies(block, x)


def test_positions_that_exist_are_shown() -> None:
    assert _choose_positions(Sinusoidal(4), 5).tolist() == [0, 1, 2, 3, 4]
    assert _choose_positions(Learned(3, 4), 5).tolist() == [0, 1, 2]
    assert _choose_positions(Learned(9, 4), 5).tolist() == [0, 1, 2, 3, 4]
    grid = _choose_positions(Rotary2D(8), 5)
    assert grid.shape == (64, 2)
    assert grid[[0, 1, 8, 63]].tolist() == [[0, 0], [0, 1], [1, 0], [7, 7]]
    assert np.issubdtype(grid.dtype, np.integer)
