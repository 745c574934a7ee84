"""The processes of a distributed run, as torchrun starts them: identity, communication, consistent errors."""

import gc
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from regard.console import Interrupted
from regard.errors import UserError
from regard.ops.dispatch import choose_device

T = TypeVar("T")
CPU = torch.device("cpu")
RENDEZVOUS_TIMEOUT, POLL_INTERVAL = 1800.0, 0.01  # seconds
TIMEOUT = timedelta(days=7)  # other processes wait this long while the main process validates or trains a tokenizer


class AgreedError(UserError):
    """Raised in all processes because one of them raised a UserError."""


class LocalError(UserError):
    """Raised in this process and possibly in no other, so that this process must report it."""


@dataclass(frozen=True)
class Processes:
    """All processes of a run, as seen from one of them. Without torchrun there is only one.

    The main process (rank 0) prints and writes files. Every method must be called by all processes at the same point.
    """

    rank: int = 0  # of this process
    world: int = 1  # number of processes
    device: torch.device = CPU  # of this process
    group: dist.ProcessGroup | None = (
        None  # Gloo, for Python objects, with a long timeout; tensors use the default group
    )

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def launched(self) -> bool:
        """Whether torchrun started this run, even if with a single process."""
        return self.group is not None

    def sum(self, number: int) -> int:
        """Return the sum over all processes."""
        return self._reduce(number, dist.ReduceOp.SUM)

    def sum_tensors_(self, scalars: Sequence[Tensor]) -> None:
        """Sum scalar tensors over all processes in place, on their device, without synchronising with the host."""
        if self.group is not None:
            stacked = torch.stack(list(scalars))
            dist.all_reduce(stacked)
            torch._foreach_copy_(list(scalars), list(stacked.unbind()))

    def max(self, number: int) -> int:
        """Return the maximum over all processes."""
        return self._reduce(number, dist.ReduceOp.MAX)

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.group is None:
            return [value]
        values = [value] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    def on_main(self, work: Callable[[], T]) -> T:
        """Call `work` in the main process, and return its result or raise its UserError in all processes."""
        if self.group is None:
            return work()
        result: list[T | AgreedError | None] = [None]
        if self.main:
            try:
                result[0] = work()
            except UserError as error:
                result[0] = AgreedError(str(error))
        dist.broadcast_object_list(result, src=0, group=self.group)
        if isinstance(result[0], AgreedError):
            raise result[0]
        return result[0]  # type: ignore[return-value]

    def main_first(self, on_main: Callable[[], T], on_others: Callable[[], T]) -> T:
        """Call `on_main` in the main process and then `on_others` in the others; raise any UserError in all of them."""
        results: list[T] = []
        with self.sync_errors():
            if self.main:
                results.append(on_main())
        with self.sync_errors():
            if not self.main:
                results.append(on_others())
        return results[0]

    @contextmanager
    def sync_errors(self) -> Iterator[None]:
        """Wait until all processes have left the block, and raise the UserError of the lowest rank, if any, in all."""
        if self.group is None:
            yield
            return
        message = ""
        try:
            yield
        except UserError as error:
            message = str(error)
        messages = [message for message in self.gather(message) if message]
        if messages:
            raise AgreedError(messages[0])

    def _reduce(self, number: int, operation: dist.ReduceOp.RedOpType) -> int:
        if self.group is None:
            return number
        tensor = torch.tensor(number)
        dist.all_reduce(tensor, operation, group=self.group)
        return int(tensor)


def launched() -> bool:
    """Whether torchrun, or a launcher that sets the same environment variables, started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"))


def local_rank() -> int:
    """The rank of this process on its machine."""
    return int(os.environ["LOCAL_RANK"]) if launched() else 0


def is_main() -> bool:
    """Whether this process reports the outcome of the run."""
    return not launched() or os.environ["RANK"] == "0"


@contextmanager
def join_processes(device_name: str) -> Iterator[Processes]:
    """Join the process group if torchrun started this process, and assign a device to each process.

    Raises:
        UserError: The device cannot be used, or there are fewer GPUs than processes.
        LocalError: The block raised a UserError that the processes did not agree on.
    """
    if not launched():
        yield Processes(device=choose_device(device_name))
        return
    device = _own_device(device_name)
    store, rank, world = next(rendezvous("env://"))
    store = fresh_store(store, rank, world)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=world)
    group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    try:
        processes = Processes(rank, world, device, group)
        if len(set(processes.gather(device.type))) > 1:
            raise AgreedError("some processes have a GPU and others do not; set training.device=cpu or remove them")
        yield processes
    except (AgreedError, Interrupted):
        dist.destroy_process_group()
        raise
    except UserError as error:  # the other processes are busy and end when they notice
        raise LocalError(f"process {rank}: {error}" if world > 1 else str(error)) from error
    gc.collect()  # FSDP2 holds process groups in reference cycles; destroyed at exit, their threads abort the process
    dist.destroy_process_group()


def check_accumulation(accumulate: int, world: int) -> None:
    """Check that the batches of a step can be divided evenly among the processes."""
    if accumulate % world == 0:
        return
    below, above = accumulate // world * world, (accumulate // world + 1) * world
    fitting = f"{below} or {above}" if below else str(above)
    raise UserError(
        f"optim.accumulate: a step of {accumulate} {'batch' if accumulate == 1 else 'batches'} cannot be divided among "
        f"{world} processes; set optim.accumulate={fitting} (and adjust batch.tokens), or start another number of them"
    )


@contextmanager
def report_errors_once() -> Iterator[None]:
    """Let one process per machine report an error; the others exit silently with the same exit code."""
    try:
        yield
    except UserError as error:
        if local_rank() and not isinstance(error, LocalError):
            _exit_silently(2)
        raise
    except Interrupted as interrupted:
        if local_rank():
            _exit_silently(128 + interrupted.signal)
        raise
    except RuntimeError as error:
        if not launched() or not _means_lost_process(error):
            raise
        sys.exit(f"regard: process {os.environ['RANK']} stops because another process has ended")


def _exit_silently(code: int) -> NoReturn:
    time.sleep(1.0)  # torchrun kills all processes when one exits: give the reporting process time to print
    sys.exit(code)


def _own_device(name: str) -> torch.device:
    """Return the device of this process: with GPUs, the one with its local rank."""
    device = choose_device(name)
    if device.type != "cuda":
        return device
    if device.index is not None:
        raise UserError(f"training.device: torchrun assigns one GPU to each process; write cuda, not {name}")
    available, wanted = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", local_rank() + 1))
    if wanted > available:
        raise UserError(
            f"this machine has {available} GPUs for {wanted} processes; start torchrun with --nproc-per-node "
            f"{available}, or set training.device=cpu"
        )
    device = torch.device("cuda", local_rank())
    torch.cuda.set_device(device)
    return device


def _means_lost_process(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def fresh_store(store: Store, rank: int, world: int, timeout: float = RENDEZVOUS_TIMEOUT) -> Store:
    """Return a part of the store for this start of the processes alone.

    torchrun keeps one store for all its restarts, in which a process may find the address of one that was killed
    (pytorch#135712). Therefore the main process chooses a new prefix for each start. The other processes announce
    themselves with a random token, and only running processes wait for the answer to their token.

    Raises:
        TimeoutError: A process did not announce itself in time.
    """
    if rank:
        token = uuid.uuid4().hex
        store.set(f"regard/hello/{rank}", token)
        prefix = store.get(f"regard/welcome/{token}").decode()  # waits
        store.set(f"regard/joined/{prefix}/{rank}", "")
    else:
        prefix = uuid.uuid4().hex
        _welcome_all(store, prefix, set(range(1, world)), timeout)
    return PrefixStore(prefix, store)


def _welcome_all(store: Store, prefix: str, missing: set[int], timeout: float) -> None:
    """Answer all tokens, also those of killed processes, until every running process has joined."""
    deadline = time.monotonic() + timeout
    while missing := {rank for rank in missing if not store.check([f"regard/joined/{prefix}/{rank}"])}:
        for rank in missing:
            if store.check([f"regard/hello/{rank}"]):
                token = store.get(f"regard/hello/{rank}").decode()
                store.set(f"regard/welcome/{token}", prefix)
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {min(missing)} has not joined")
        time.sleep(POLL_INTERVAL)
