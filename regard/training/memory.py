"""Memory of training: detection of lack of memory, peak memory, and models that do not fit."""

import resource
import sys
from typing import Any, Literal

import torch
from torch import nn

from regard.errors import UserError
from regard.models.folder import MODELS
from regard.training.distributed import launched
from regard.training.progress import counted

# Messages of the CPU allocator and of CUDA libraries that do not raise torch.OutOfMemoryError.
PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
OVERFLOW = "size calculation overflowed"
"""Message about a tensor whose size exceeds the integers of the machine."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is exhausted, on any device."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in PHRASES)
    return isinstance(error, MemoryError)


def read_peak(device: torch.device) -> float:
    """Return peak memory in megabytes: on a GPU since the last call, otherwise since the start of the process."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return round(peak / 1e6, 1)


def initial_device(device: torch.device, sharding: Literal["ddp", "fsdp"]) -> torch.device:
    """Return where to create the model: a model that will be sharded need not fit on the device as a whole."""
    return torch.device("cpu") if launched() and sharding == "fsdp" else device


def build_model(config: Any, device: torch.device, sharding: Literal["ddp", "fsdp"] = "ddp") -> Any:
    """Build a model with random weights."""
    make = MODELS[config.kind]
    try:
        try:
            return make(config).to(initial_device(device, sharding))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        with torch.device("meta"):
            model = make(config)
    except RuntimeError as error:
        if OVERFLOW not in str(error):
            raise
        raise UserError("the model is too large for any memory; choose smaller model keys") from None
    raise model_too_large(model, 4)


def model_too_large(model: nn.Module, copies: int) -> UserError:
    """Return the error for a model that does not fit; training needs `copies` times the memory of its weights."""
    number, size = sum(p.numel() for p in model.parameters()), sum(p.nbytes for p in model.parameters())
    return UserError(
        f"the model does not fit into memory: its {number / 1e6:,.0f} M parameters take {size / 1e9:,.1f} GB, and "
        f"training takes over {copies} times as much; choose a smaller model.preset or smaller model keys"
    )


def describe_size(model: nn.Module, device: torch.device) -> str:
    """Describe the size of a model and the device that it is trained on."""
    parameters = sum(p.numel() for p in model.parameters())
    where = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else counted(torch.get_num_threads(), "CPU thread")
    )
    return f"{parameters / 1e6:.1f} M parameters on {where}"
