"""How the gradients of a step are computed: by one process, or by several, which average them or shard the model."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch
import torch.distributed as dist
from torch import Tensor, nn

from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.ops.linear import HalfWeights
from regard.training.distributed import Processes
from regard.training.memory import initial_device, is_out_of_memory
from regard.training.recipe import TrainingSettings
from regard.training.task import BatchT, LossSum, Step, Task


def build_strategy(task: Task[BatchT], processes: Processes, training: TrainingSettings) -> "Strategy[BatchT]":
    """Choose the strategy for these processes. It wraps the task's model, which must not be used otherwise after."""
    if not processes.launched:
        return SingleProcess(task, training)
    if training.sharding == "fsdp":
        return FullyShardedDataParallel(task, training, processes)
    return (CapturedDataParallel if training.uses_cuda_graph else DataParallel)(task, training, processes)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return an autocast to bfloat16 if the precision requires it; weights and reductions remain float32."""
    return torch.autocast(device.type, torch.bfloat16) if _is_bfloat16(device, precision) else nullcontext()


def _is_bfloat16(device: torch.device, precision: str) -> bool:
    return device.type == "cuda" if precision == "auto" else precision == "bfloat16"


@dataclass(frozen=True)
class Accumulated(Generic[BatchT]):
    """Result of accumulating the gradients of a step."""

    losses: list[LossSum]  # of the microbatches, detached
    units: int  # that the loss of the step is a mean over
    split: int  # number of batches that were split
    failed: list[BatchT]  # did not fit into memory and were halved
    dropped: list[BatchT]  # single examples that did not fit into memory


class Strategy(ABC, Generic[BatchT]):
    """Computes the gradients of a step: those of the mean loss over its units, such as tokens (see `Task.unit`).

    Attributes:
        weights: The module whose parameters the optimizer updates and checkpoints hold.
        divisor: Number by which `add_gradients` divides losses; a tensor, so that a CUDA graph reads its value.
    """

    sharded = False

    def __init__(self, task: Task[BatchT], training: TrainingSettings) -> None:
        self.task, self.training = task, training
        self.weights = task.model
        self.device = next(task.model.parameters()).device
        self.divisor = torch.zeros((), device=self.device, dtype=torch.float64)
        self.rounded_weights: AbstractContextManager[Any] = nullcontext()

    def _round_weights_at_once(self) -> None:
        """Round all weights of our own linear layers at once, if they are rounded at all."""
        rounded = self.device.type == "cuda" and _is_bfloat16(self.device, self.training.precision)
        if rounded and not self.training.compile:
            self.rounded_weights = HalfWeights(self.task.model)

    def count_units(self, batches: Sequence[BatchT]) -> int:
        """Return the number of units of a step over all processes, given the batches of this one; at least 1."""
        return max(1, sum(map(self.task.count, batches)))

    def set_divisor(self, units: int) -> None:
        """Divide losses by this number of units of a step from now on. A replayed CUDA graph reads it, too."""
        self.divisor.fill_(units)

    @abstractmethod
    def accumulate(self, batches: Sequence[BatchT], units: int, step: int) -> Accumulated[BatchT]:
        """Compute the gradients of a step.

        Args:
            batches: Batches of this process.
            units: Number of units of the step, from `count_units`.
            step: Number of the step.
        """

    def fits(self, batch: BatchT) -> bool:
        """Return whether no batch of this size or smaller has failed so far."""
        return True

    def add_gradients(self, batch: BatchT, step: Step, last: bool = True) -> LossSum:
        """Compute the loss of a batch and accumulate its gradients, divided by `divisor`.

        Gradients are averaged over processes in the last batch of a step.
        """
        with autocast(self.device, self.training.precision), self.rounded_weights:
            loss = self._loss(batch, step, last)
        (loss.total / self.divisor.to(loss.total.dtype)).backward()  # type: ignore[no-untyped-call]
        return replace(loss, total=loss.total.detach())

    def _loss(self, batch: BatchT, step: Step, last: bool) -> LossSum:
        return self.task.loss(batch, step)

    def collect_gradients(self) -> None:
        """Prepare the gradients of a step for `all_reduce_gradients`; does nothing for a single process."""

    def all_reduce_gradients(self) -> None:
        """Sum the gradients over all processes, if the backward pass has not done that; not captured.

        Does nothing for a single process.
        """

    def clip(self, bound: float) -> Tensor:
        """Clip the gradient norm and return the norm before clipping."""
        return nn.utils.clip_grad_norm_(self.weights.parameters(), bound)

    @contextmanager
    def full_model(self, weights: nn.Module) -> Iterator[nn.Module]:
        """Provide the main process with a complete model that has `weights`: the current weights or an average."""
        yield weights


class SingleProcess(Strategy[BatchT]):
    """One process; batches that do not fit into memory are halved, repeatedly if necessary.

    A loss is a sum, so that the gradients of microbatches add up to those of the batch, up to rounding. If memory is
    exhausted during a backward pass, the gradients are incomplete, and the step starts again with smaller microbatches.
    """

    def __init__(self, task: Task[BatchT], training: TrainingSettings) -> None:
        super().__init__(task, training)
        self.min_failed_size = math.inf  # batches of this size or more are halved without trying them
        self._round_weights_at_once()

    def accumulate(self, batches: Sequence[BatchT], units: int, step: int) -> Accumulated[BatchT]:
        groups = [[batch] for batch in batches]
        failed: list[BatchT] = []
        dropped: list[BatchT] = []
        while True:
            groups = [[half for batch in group for half in self._halve(batch)] for group in groups]
            microbatches = [batch for group in groups for batch in group]
            self.set_divisor(units)
            losses: list[LossSum] = []
            try:
                for batch in microbatches:
                    losses.append(self.add_gradients(batch, step))
                return Accumulated(losses, units, sum(len(group) > 1 for group in groups), failed, dropped)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # After the except block, the error no longer references the graph that was too large.
            self.task.model.zero_grad(set_to_none=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            too_large = microbatches[len(losses)]
            if self.task.split(too_large) is None:
                dropped.append(too_large)
                units = max(1, units - self.task.count(too_large))
                groups = [[batch for batch in group if batch is not too_large] for group in groups]
            else:
                failed.append(too_large)
                self.min_failed_size = min(self.min_failed_size, self.task.size(too_large))

    def fits(self, batch: BatchT) -> bool:
        return self.task.size(batch) < self.min_failed_size

    def _halve(self, batch: BatchT) -> Iterator[BatchT]:
        halves = None if self.fits(batch) else self.task.split(batch)
        if halves is None:
            yield batch
        else:
            for half in halves:
                yield from self._halve(half)


class DataParallel(Strategy[BatchT]):
    """Each process holds the complete model; gradients are averaged (DistributedDataParallel).

    Batches are never split: all processes must run the same number of forward passes.
    """

    def __init__(self, task: Task[BatchT], training: TrainingSettings, processes: Processes) -> None:
        super().__init__(task, training)
        self.processes = processes
        self._wrap()

    def _wrap(self) -> None:
        """Wrap the model and its loss in a module that averages gradients over processes."""
        # Without buffers, because DDP would synchronise them; position tables grow as each process needs.
        module = _LossModule(self.task, _parameters_only(self.task.model, {}))
        self.module = nn.parallel.DistributedDataParallel(module)

    def count_units(self, batches: Sequence[BatchT]) -> int:
        return max(1, self.processes.sum(sum(map(self.task.count, batches))))

    def set_divisor(self, units: int) -> None:
        self.divisor.fill_(units / self.processes.world)  # gradients are averaged over processes, not summed

    def accumulate(self, batches: Sequence[BatchT], units: int, step: int) -> Accumulated[BatchT]:
        self.set_divisor(units)
        losses = []
        for batch in batches:
            try:
                losses.append(self.add_gradients(batch, step, batch is batches[-1]))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                described, advice = self.task.describe(batch), self.task.advise(batch)
                raise UserError(f"out of memory ({described}); try {advice} and a higher optim.accumulate") from None
        return Accumulated(losses, units, 0, [], [])

    def _loss(self, batch: BatchT, step: Step, last: bool) -> LossSum:
        with nullcontext() if last else self.module.no_sync():
            _, loss = self.module(batch, step)
        return loss  # type: ignore[no-any-return]


class CapturedDataParallel(DataParallel[BatchT]):
    """Each process holds the complete model and captures its steps in CUDA graphs.

    Gradients are summed between the graph of the backward pass and that of the update, by one operation. Eager steps
    communicate in the same way, so that a process may run a step eagerly while another one replays it.
    """

    def _wrap(self) -> None:
        self.gradients: Tensor | None = None  # of all parameters, concatenated
        self._round_weights_at_once()
        with torch.no_grad():
            for parameter in self.weights.parameters():
                dist.broadcast(parameter, src=0)

    def set_divisor(self, units: int) -> None:
        self.divisor.fill_(units)  # gradients are summed over processes

    def _loss(self, batch: BatchT, step: Step, last: bool) -> LossSum:
        return self.task.loss(batch, step)

    @torch.no_grad()
    def collect_gradients(self) -> None:
        found = [(parameter, parameter.grad) for parameter in self.weights.parameters()]
        given = [(parameter, gradient) for parameter, gradient in found if gradient is not None]
        sizes = [gradient.numel() for _, gradient in given]
        if self.gradients is None or len(self.gradients) != sum(sizes):
            self.gradients = torch.empty(sum(sizes), dtype=given[0][1].dtype, device=self.device)
        parts = torch.split(self.gradients, sizes)
        views = [part.view_as(gradient) for part, (_, gradient) in zip(parts, given, strict=True)]
        torch._foreach_copy_(views, [gradient for _, gradient in given])
        for (parameter, _), view in zip(given, views, strict=True):
            parameter.grad = view

    def all_reduce_gradients(self) -> None:
        assert self.gradients is not None
        dist.all_reduce(self.gradients)


class FullyShardedDataParallel(DataParallel[BatchT]):
    """Each process holds a shard of every parameter and gathers the parameters of one block at a time (FSDP2)."""

    sharded = True

    def _wrap(self) -> None:
        """Replace the parameters of the model by shards; the main process keeps a complete copy to save."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model, self.device = self.task.model, self.processes.device
        self.divisor = self.divisor.to(self.device)
        mesh = init_device_mesh(self.device.type, (self.processes.world,))
        self.main_model = deepcopy(model) if self.processes.main else None
        for module in reversed(list(model.modules())):  # inner modules first
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        self.loss_module = _LossModule(self.task, model)
        self.sharded_module = fully_shard(self.loss_module, mesh=mesh)  # the same object with the methods of FSDP2
        self.weights = _parameters_only(model, {})

    def _loss(self, batch: BatchT, step: Step, last: bool) -> LossSum:
        self.sharded_module.set_requires_gradient_sync(last)
        _, loss = self.loss_module(batch, step)
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


class _LossModule(nn.Module, Generic[BatchT]):
    """The loss of a task as a forward pass, which DDP and FSDP2 can hook into."""

    def __init__(self, task: Task[BatchT], weights: nn.Module) -> None:
        super().__init__()
        self.task, self.weights = task, weights

    def forward(self, batch: BatchT, step: Step) -> tuple[Tensor, LossSum]:
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
