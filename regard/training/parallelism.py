"""How processes share the training of one model: single process, DistributedDataParallel or FSDP2."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Generic, Literal

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.training.distributed import Processes, launched
from regard.training.memory import Accumulated, is_out_of_memory
from regard.training.task import B, LossSum, Step, Task


def initial_device(device: torch.device, sharding: Literal["ddp", "fsdp"]) -> torch.device:
    """Return where to create the model: a model that will be sharded need not fit on the device as a whole."""
    return torch.device("cpu") if launched() and sharding == "fsdp" else device


def build_strategy(task: Task[B], processes: Processes, sharding: Literal["ddp", "fsdp"]) -> "Strategy[B]":
    """Choose the strategy for these processes. It wraps the task's model, which must not be used otherwise after."""
    if not processes.launched:
        return Strategy(task)
    return DataParallel(task) if sharding == "ddp" else FullyShardedDataParallel(task, processes)


class Strategy(Generic[B]):
    """A single process trains the model as it is.

    Attributes:
        weights: The module whose parameters the optimizer updates and checkpoints hold.
    """

    sharded = False

    def __init__(self, task: Task[B]) -> None:
        self.task = task
        self.weights = task.model

    def loss(self, batch: B, step: Step, last: bool) -> LossSum:
        """Return the loss of a batch. Gradients are averaged over processes in the backward pass of the last batch."""
        return self.task.loss(batch, step)

    def clip(self, bound: float) -> Tensor:
        """Clip the gradient norm and return the norm before clipping."""
        return nn.utils.clip_grad_norm_(self.weights.parameters(), bound)

    @contextmanager
    def full_model(self, weights: nn.Module) -> Iterator[nn.Module]:
        """Provide the main process with a complete model that has `weights`: the current weights or an average."""
        yield weights


class DataParallel(Strategy[B]):
    """Each process holds the complete model; gradients are averaged (DistributedDataParallel)."""

    def __init__(self, task: Task[B]) -> None:
        super().__init__(task)
        # Without buffers, because DDP would synchronise them; position tables grow as each process needs.
        self.module = nn.parallel.DistributedDataParallel(_LossModule(task, _parameters_only(task.model, {})))

    def loss(self, batch: B, step: Step, last: bool) -> LossSum:
        with nullcontext() if last else self.module.no_sync():
            _, loss = self.module(batch, step)
        return loss  # type: ignore[no-any-return]


class FullyShardedDataParallel(Strategy[B]):
    """Each process holds a shard of every parameter and gathers the parameters of one block at a time (FSDP2)."""

    sharded = True

    def __init__(self, task: Task[B], processes: Processes) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(task)
        self.device = processes.device
        mesh = init_device_mesh(self.device.type, (processes.world,))
        self.main_model = deepcopy(task.model) if processes.main else None
        for module in reversed(list(task.model.modules())):  # inner modules first
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        self.forward = _LossModule(task, task.model)
        self.module = fully_shard(self.forward, mesh=mesh)
        self.weights = _parameters_only(task.model, {})

    def loss(self, batch: B, step: Step, last: bool) -> LossSum:
        self.module.set_requires_gradient_sync(last)
        _, loss = self.forward(batch, step)
        return loss  # type: ignore[no-any-return]

    def clip(self, bound: float) -> Tensor:
        return _full(super().clip(bound))

    @contextmanager
    def full_model(self, weights: nn.Module) -> Iterator[nn.Module]:
        """Gather one tensor at a time, so that only the main process ever holds the complete model."""
        model = None if self.main_model is None else self.main_model.to(self.device)
        own = {} if model is None else model.state_dict()
        for name, tensor in unique_tensors(weights).items():
            full = _full(tensor)
            if name in own:
                own[name].copy_(full)
        yield model or weights
        if model is not None:
            model.to(initial_device(self.device, "fsdp"))  # frees device memory for training


class DistributedStep(Generic[B]):
    """Accumulates the gradients of one step over several processes.

    Unlike the microbatches of a single process, batches are never split: all processes must run the same number of
    forward passes.

    Args:
        task: What is trained.
        backward: Called as backward(batch, tokens, step, last); adds the gradients of the batch's loss, divided by
            the number of tokens; gradients are averaged over processes in the last batch.
        processes: The processes that share the step.
    """

    def __init__(self, task: Task[B], backward: Callable[[B, float, int, bool], LossSum], processes: Processes) -> None:
        self.task, self.backward, self.processes = task, backward, processes

    def accumulate(self, batches: Sequence[B], step: int) -> Accumulated[B]:
        """Compute the gradients of the mean loss over all tokens of all processes."""
        tokens = int(self.processes.sum(sum(map(self.task.count, batches)))[0])
        per_process = tokens / self.processes.world  # because gradients are averaged over processes, not summed
        losses = [self._backward(batch, per_process, step, batch is batches[-1]) for batch in batches]
        return Accumulated(losses, tokens, 0, [], [])

    def fits(self, batch: B) -> bool:
        return True

    def _backward(self, batch: B, tokens: float, step: int, last: bool) -> LossSum:
        try:
            return self.backward(batch, tokens, step, last)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            described, advice = self.task.describe(batch), self.task.advise(batch)
            raise UserError(f"out of memory ({described}); try {advice} and a higher optim.accumulate") from None


class _LossModule(nn.Module, Generic[B]):
    """The loss of a task as a forward pass, which DDP and FSDP2 can hook into."""

    def __init__(self, task: Task[B], weights: nn.Module) -> None:
        super().__init__()
        self.task, self.weights = task, weights

    def forward(self, batch: B, step: Step) -> tuple[Tensor, LossSum]:
        loss = self.task.loss(batch, step)
        return loss.total, loss  # FSDP2 needs a tensor among the outputs


def _parameters_only(module: nn.Module, copied: dict[nn.Module, nn.Module]) -> nn.Module:
    """Plain modules with the same parameters under the same names; unlike FSDP2's modules, they can be copied."""
    if module not in copied:
        copy = copied[module] = nn.Module()
        for name, parameter in module.named_parameters(recurse=False):
            copy.register_parameter(name, parameter)
        for name, child in module._modules.items():
            copy.add_module(name, None if child is None else _parameters_only(child, copied))
    return copied[module]


def _full(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
