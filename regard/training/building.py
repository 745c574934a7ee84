"""New models, with a sentence for those that are too large."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.models.registry import MODELS
from regard.training.memory import explain_too_large, is_out_of_memory
from regard.training.progress import counted


def build_model(config: Any, device: torch.device) -> Any:
    """A new model of the configuration's kind, with weights drawn at random.

    Raises:
        UserError: it does not fit into memory.
    """
    make = MODELS[config.kind].model
    try:
        return make(config).to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    with torch.device("meta"):  # shapes without memory
        outline = make(config)
    raise explain_too_large(outline, 4)


def describe_model(model: nn.Module, device: torch.device) -> str:
    """Its size, and where it is trained."""
    parameters = sum(p.numel() for p in model.parameters())
    where = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else counted(torch.get_num_threads(), "CPU thread")
    )
    return f"{parameters / 1e6:.1f} M parameters on {where}"
