"""Malicious files, and valid folders of other libraries."""

import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from regard.interop.huggingface_vision import to_huggingface
from regard.interop.timm import to_timm
from regard.models.vit import ViT, ViTConfig

SIZES = {"image": 8, "patch": 4, "width": 8, "layers": 1, "heads": 2, "hidden": 16, "classes": 3}


class Payload:
    """An object whose unpickling creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def huggingface_weights() -> dict[str, Tensor]:
    """Return the weights of a small ViT with the names of transformers."""
    torch.manual_seed(0)
    config = ViTConfig(**SIZES, norm_eps=1e-12)
    return to_huggingface(ViT(config).state_dict(), config)


def timm_weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    config = ViTConfig(**SIZES)
    return to_timm(ViT(config).state_dict(), config)


CONFIG: dict[str, Any] = {
    "model_type": "vit",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 3,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "qkv_bias": True,
    "id2label": {"0": "bee", "1": "cat", "2": "dog"},
}


def make_folder(path: Path) -> Path:
    """Write a ViT folder as transformers does."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(huggingface_weights(), path / "model.safetensors")
    return path


def write_safetensors(path: Path, header: bytes | dict[str, Any], body: bytes = b"", length: int | None = None) -> Path:
    """Write a safetensors file with the given header; `length` overrides the header length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


def write_archive(path: Path, pickled: bytes, compressed: bool = False, **entries: bytes) -> Path:
    """Write an archive like torch.save, with the given pickle."""
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
        for name, content in entries.items():
            file.writestr(f"archive/{name}", content)
    return path


def pickled_payload(mark: Path) -> bytes:
    return pickle.dumps({"weight": Payload(mark)}, protocol=2)
