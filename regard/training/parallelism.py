"""How processes share the work on one model: alone, each with the whole of it (DDP), or each with a part (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Generic, Literal

import torch
from torch import Tensor, nn

from regard.models.folder import distinct_tensors
from regard.training.distributed import Processes, launched
from regard.training.task import B, Loss, Step, Task


def place_model(device: torch.device, sharding: Literal["ddp", "fsdp"]) -> torch.device:
    """Where a model is made: one that is to be divided need not fit onto the device as a whole."""
    return torch.device("cpu") if launched() and sharding == "fsdp" else device


def build_engine(task: Task[B], processes: Processes, sharding: Literal["ddp", "fsdp"]) -> Engine[B]:
    """The engine for these processes; from now on the task's model is in its hands."""
    if not processes.launched:
        return Engine(task)
    return Replicated(task) if sharding == "ddp" else Sharded(task, processes)


class Engine(Generic[B]):
    """One process trains the model as it is."""

    sharded = False

    def __init__(self, task: Task[B]) -> None:
        self.task = task
        self.weights = task.model  # what the optimiser moves and a checkpoint holds

    def loss(self, batch: B, step: Step, last: bool) -> Loss:
        """The loss of a batch; once the step's last one has gone backward, the gradients are means over processes."""
        return self.task.loss(batch, step)

    def clip(self, bound: float) -> Tensor:
        """Bounds the norm of the gradients and returns what it was."""
        return nn.utils.clip_grad_norm_(self.weights.parameters(), bound)

    @contextmanager
    def whole(self, weights: nn.Module) -> Iterator[nn.Module]:
        """A model with `weights`, ours or an average of them, that the main process can use by itself for a while."""
        yield weights


class Replicated(Engine[B]):
    """Each process has the whole model, and gradients are averaged while they come: DistributedDataParallel."""

    def __init__(self, task: Task[B]) -> None:
        super().__init__(task)
        # Bare, since it would keep buffers alike; these are tables of positions, which grow as the batches need.
        self.module = nn.parallel.DistributedDataParallel(_Forward(task, _bare(task.model, {})))

    def loss(self, batch: B, step: Step, last: bool) -> Loss:
        with nullcontext() if last else self.module.no_sync():
            _, loss = self.module(batch, step)
        return loss  # type: ignore[no-any-return]


class Sharded(Engine[B]):
    """Each process has a part of every weight, and gathers a block's weights when it comes to it: FSDP2."""

    sharded = True

    def __init__(self, task: Task[B], processes: Processes) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(task)
        self.device = processes.device
        mesh = init_device_mesh(self.device.type, (processes.world,))
        self.main_model = deepcopy(task.model) if processes.main else None
        for module in reversed(list(task.model.modules())):  # what is inside comes first
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        self.forward = _Forward(task, task.model)
        self.module = fully_shard(self.forward, mesh=mesh)
        self.weights = _bare(task.model, {})

    def loss(self, batch: B, step: Step, last: bool) -> Loss:
        self.module.set_requires_gradient_sync(last)
        _, loss = self.forward(batch, step)
        return loss  # type: ignore[no-any-return]

    def clip(self, bound: float) -> Tensor:
        return _full(super().clip(bound))

    @contextmanager
    def whole(self, weights: nn.Module) -> Iterator[nn.Module]:
        """Gathers one tensor after the other, so that no process but the main one ever holds the whole."""
        home = place_model(self.device, "fsdp")
        judged = None if self.main_model is None else self.main_model.to(self.device)
        places = {} if judged is None else judged.state_dict()
        for name, tensor in distinct_tensors(weights).items():
            full = _full(tensor)
            if name in places:
                places[name].copy_(full)
        yield judged or weights
        if judged is not None:
            judged.to(home)  # where it takes no room away from training


class _Forward(nn.Module, Generic[B]):
    """The loss of a task as a module's forward pass, which is where DDP and FSDP2 do their part."""

    def __init__(self, task: Task[B], weights: nn.Module) -> None:
        super().__init__()
        self.task, self.weights = task, weights

    def forward(self, batch: B, step: Step) -> tuple[Tensor, Loss]:
        loss = self.task.loss(batch, step)
        return loss.total, loss  # a tensor by itself is what FSDP2 looks for


def _bare(module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """The same weights under the same names in plain modules, which unlike those of FSDP2 can be copied."""
    if module not in known:
        bare = known[module] = nn.Module()
        for name, parameter in module.named_parameters(recurse=False):
            bare.register_parameter(name, parameter)
        for name, child in module._modules.items():
            bare.add_module(name, None if child is None else _bare(child, known))
    return known[module]


def _full(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each process has a part."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
