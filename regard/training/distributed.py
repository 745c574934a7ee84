"""The processes that train one model together, as torchrun starts them: who they are, and how they agree."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from regard.errors import UserError
from regard.runtime import Interrupted, choose_device
from regard.training.rendezvous import meet

T = TypeVar("T")
CPU = torch.device("cpu")
LONGEST_WAIT = timedelta(days=7)  # for the main process, while it validates or learns a tokenizer


class AgreedError(UserError):
    """What all processes raise, since one of them did."""


class OwnError(UserError):
    """What perhaps only this process raises, so that it must say so itself."""


class Processes:
    """All processes of a run, seen from one of them. Without torchrun there is one.

    The first, `main`, is the one that speaks and writes. Every method is called by all of them at the same place.

    Args:
        rank: the number of this one.
        world: how many there are.
        device: where this one computes.
        talk: for messages of plain values, which go by the CPU and may wait long; the default group is for tensors.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        device: torch.device = CPU,
        talk: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.world, self.device, self._talk = rank, world, device, talk

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def launched(self) -> bool:
        """Whether torchrun started this, be it a single process."""
        return self._talk is not None

    @property
    def group(self) -> dist.ProcessGroup | None:
        """For messages of plain values."""
        return self._talk

    def sum(self, *numbers: float) -> list[float]:
        """Each of the numbers, summed over all processes."""
        return self._reduce(numbers, dist.ReduceOp.SUM)

    def totals(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each of these single numbers, summed over all processes where it lies: nobody waits for a GPU."""
        if self._talk is None:
            return tensors
        together = torch.stack(list(tensors))
        dist.all_reduce(together)
        return together.unbind()

    def largest(self, number: int) -> int:
        """The largest of the numbers that the processes gave."""
        return int(self._reduce((number,), dist.ReduceOp.MAX)[0])

    def gather(self, value: T) -> list[T]:
        """What each process gave, in order."""
        if self._talk is None:
            return [value]
        values: list[T | None] = [None] * self.world
        dist.all_gather_object(values, value, group=self._talk)
        return values  # type: ignore[return-value]

    def on_main(self, work: Callable[[], T]) -> T:
        """What `work` gives to the main process, which alone does it, for all of them.

        Raises:
            UserError: in all of them, where `work` raised it.
        """
        if self._talk is None:
            return work()
        found: list[T | AgreedError | None] = [None]
        if self.main:
            try:
                found[0] = work()
            except UserError as error:
                found[0] = AgreedError(str(error))
        dist.broadcast_object_list(found, src=0, group=self._talk)
        if isinstance(found[0], AgreedError):
            raise found[0]
        return found[0]  # type: ignore[return-value]

    def in_turn(self, lead: Callable[[], T], follow: Callable[[], T]) -> T:
        """`lead` in the main process; once that is done, `follow` in the others.

        Raises:
            UserError: in all of them, where one raised it.
        """
        done: list[T] = []
        with self.agreeing():
            if self.main:
                done.append(lead())
        with self.agreeing():
            if not self.main:
                done.append(follow())
        return done[0]

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Ends the block alike in all processes.

        Raises:
            UserError: the block raised it in some process; that of the first one, in all.
        """
        if self._talk is None:
            yield
            return
        sentence = ""
        try:
            yield
        except UserError as error:
            sentence = str(error)
        raised = [sentence for sentence in self.gather(sentence) if sentence]
        if raised:
            raise AgreedError(raised[0])

    def _reduce(self, numbers: tuple[float, ...], how: dist.ReduceOp.RedOpType) -> list[float]:
        if self._talk is None:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, how, group=self._talk)
        found: list[float] = tensor.tolist()
        return found


def launched() -> bool:
    """Whether torchrun, or something that sets the same environment, started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"))


def local_rank() -> int:
    """The number of this process among those on its machine."""
    return int(os.environ["LOCAL_RANK"]) if launched() else 0


def is_main() -> bool:
    """Whether this is the process that reports a run's outcome."""
    return not launched() or os.environ["RANK"] == "0"


@contextmanager
def joined(device_name: str) -> Iterator[Processes]:
    """Joins the processes that torchrun started, if it did, and gives each its device.

    Raises:
        UserError: the device cannot be used, or there are fewer GPUs than processes.
        OwnError: the block raised a UserError on which the processes had not agreed.
    """
    if not launched():
        yield Processes(device=choose_device(device_name))
        return
    device = _own_device(device_name)
    store, rank, world = next(rendezvous("env://"))
    store = meet(store, rank, world)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=world)
    talk = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
    try:
        processes = Processes(rank, world, device, talk)
        if len(set(processes.gather(device.type))) > 1:
            raise AgreedError("some processes have a GPU and some have none; set training.device=cpu, or drop those")
        yield processes
    except (AgreedError, Interrupted):
        dist.destroy_process_group()
        raise
    except UserError as error:  # the others are in the middle of something, and end when they notice
        raise OwnError(f"process {rank}: {error}" if world > 1 else str(error)) from error
    dist.destroy_process_group()


def check_share(accumulate: int, world: int) -> None:
    """Refuses a step that cannot be divided among the processes.

    Raises:
        UserError: the batches of a step are no multiple of the processes; the nearest multiples are named.
    """
    if accumulate % world == 0:
        return
    below, above = accumulate // world * world, (accumulate // world + 1) * world
    fitting = f"{below} or {above}" if below else str(above)
    raise UserError(
        f"optim.accumulate: a step of {accumulate} {'batch' if accumulate == 1 else 'batches'} cannot be divided among "
        f"{world} processes; set optim.accumulate={fitting} (with batch.tokens to match), or start other processes"
    )


@contextmanager
def one_voice() -> Iterator[None]:
    """Lets one process of each machine report what ended all of them; the others leave with the same exit code."""
    try:
        yield
    except UserError as error:
        if local_rank() and not isinstance(error, OwnError):
            _leave_quietly(2)
        raise
    except Interrupted as interrupted:
        if local_rank():
            _leave_quietly(128 + interrupted.signal)
        raise
    except RuntimeError as error:
        if not launched() or not _means_lost(error):
            raise
        sys.exit(f"regard: process {os.environ['RANK']} stops, since another one has ended")


def _leave_quietly(code: int) -> NoReturn:
    time.sleep(1.0)  # torchrun ends all when it notices that one has left: let the one that reports do so
    sys.exit(code)


def _own_device(name: str) -> torch.device:
    device = choose_device(name)
    if device.type != "cuda":
        return device
    if device.index is not None:
        raise UserError(f"training.device: torchrun gives each process a GPU of its own; write cuda, not {name}")
    there, wanted = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", local_rank() + 1))
    if wanted > there:
        raise UserError(
            f"this machine has {there} GPUs for {wanted} processes; start torchrun with --nproc-per-node {there}, or "
            "set training.device=cpu"
        )
    device = torch.device("cuda", local_rank())
    torch.cuda.set_device(device)
    return device


def _means_lost(error: RuntimeError) -> bool:
    """Whether an error says that another process is gone."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)
