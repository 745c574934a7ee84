"""Run by test_distributed.py under torchrun: `regard ...` that ends itself at a step, so that no test has to be quick.

torchrun --nproc-per-node 2 ending_run.py SIGTERM|SIGKILL STEP WORDS...

SIGTERM is sent to torchrun, which passes it on, when the main process has logged the step; the process waits for it.
SIGKILL is sent by process 1 to itself in the step, unless torchrun has restarted it.
"""

import os
import signal
import sys
import threading
from types import FrameType

from torch.optim.optimizer import register_optimizer_step_post_hook

from regard.cli import main
from regard.runtime import Interruptions
from regard.training.progress import Progress

kind, at, sys.argv[1:] = signal.Signals[sys.argv[1]], int(sys.argv[2]), sys.argv[3:]
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
show, receive = Progress.step, Interruptions._receive
received = threading.Event()
steps: list[int] = []


def show_and_wait(progress: Progress, step: int, report: dict[str, float]) -> None:
    show(progress, step, report)
    if step == at:
        for _ in range(6):  # torchrun raises an exception in its handler, which is lost if a destructor is running
            os.kill(os.getppid(), kind)
            if received.wait(10):
                return
        raise AssertionError("torchrun has not passed on the signal")


def record(interruptions: Interruptions, number: int, frame: FrameType | None) -> None:
    received.set()
    receive(interruptions, number, frame)


def count(*_: object) -> None:
    steps.append(len(steps))
    if len(steps) == at:
        os.kill(os.getpid(), kind)


if kind == signal.SIGTERM and rank == "0":
    Progress.step, Interruptions._receive = show_and_wait, record  # type: ignore[method-assign]
if kind == signal.SIGKILL and rank == "1" and restarts == "0":
    register_optimizer_step_post_hook(count)
main()
