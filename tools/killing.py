"""Run `regard` repeatedly in forked processes that are killed, then once to its end; see kill_and_resume.py.

A plan lists how each process is killed: {"call": 7} in its 7th call that changes a file or folder of the run,
{"call": 2, "of": "rename"} in its second rename there, {"step": 3} in its third optimizer step, {"replay": 3} after its
third replay of a captured step, with "later" that many seconds after it, {"seconds": 0.3} after some time. {"worker":
2, "batch": 5, "at": "within"} kills a data worker instead, while it sends its fifth batch. With "signal" the process
receives another signal than SIGKILL, and the call continues. {"limit": 1000} limits the size of the files that it
writes.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from regard.cli import main
from regard.training import workers
from regard.training.cuda_graph import StepGraph
from regard.training.loop import TrainingLoop

CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "save_file")


def changed_path(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Path:
    """Return the path that a call changes: of two paths the target; the path of a file descriptor."""
    path = arguments[1 if name in ("rename", "replace", "save_file") else 0]
    if isinstance(path, int):
        return Path(f"/proc/self/fd/{path}").readlink()
    if options.get("dir_fd") is not None:
        return Path(f"/proc/self/fd/{options['dir_fd']}").readlink() / path
    return Path(path).absolute()


def die() -> NoReturn:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process was not killed")


def kill_in_call(death: dict[str, Any], out: Path, report: int) -> None:
    """Kill this process in its n-th call that concerns the folder: if n is even before the call, otherwise after it."""
    number, names, sent = death["call"], death.get("of", CALLS), death.get("signal", signal.SIGKILL)
    calls = 0

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += changed_path(name, arguments, options).is_relative_to(out)
            if calls != number:
                return function(*arguments, **options)
            calls += 1  # only once
            os.write(report, name.encode())
            if sent != signal.SIGKILL:
                os.kill(os.getpid(), sent)
                return function(*arguments, **options)
            if name == "save_file":  # a half-written file
                function(*arguments, **options)
                os.truncate(arguments[1], Path(arguments[1]).stat().st_size // 2)
            elif number % 2:
                with suppress(OSError):  # for example because the folder exists
                    function(*arguments, **options)
            die()

        return call

    for name in [names] if isinstance(names, str) else names:
        module = safetensors.torch if name == "save_file" else os
        setattr(module, name, wrap(name, getattr(module, name)))


def kill_in_step(number: int, report: int) -> None:
    """Kill this process in its n-th optimizer step: if n is even before the update, otherwise after it."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == number:
            os.write(report, b"step")
            die()

    register = register_optimizer_step_post_hook if number % 2 else register_optimizer_step_pre_hook
    register(count)


def kill_in_replay(number: int, later: float, report: int) -> None:
    """Kill this process after it has started its n-th replay of a captured step, or some seconds later."""
    replay = StepGraph.try_replay
    replays = 0

    def count(self: Any, *arguments: Any) -> Any:
        nonlocal replays
        result = replay(self, *arguments)
        replays += result is not None
        if result is not None and replays == number:
            os.write(report, b"replay")
            threading.Timer(later, die).start() if later else die()
        return result

    StepGraph.try_replay = count  # type: ignore[method-assign]


def dying_worker(worker: int, batch: int, at: str, report: int | None = None) -> Callable[..., None]:
    """Return a constructor of data workers, of which one is killed when it prepares its n-th batch.

    Args:
        worker: Number of the worker, from 1.
        batch: Number of the batch, from 1.
        at: "before" the batch is made, "within" the message that contains it, or "after" the message.
        report: Pipe that receives the word "worker" when it is killed.
    """
    start, send = workers._Worker.__init__, Connection.send_bytes

    def send_and_die(connection: Connection, message: bytes) -> None:
        if at == "after":
            send(connection, message)
        else:
            os.write(connection.fileno(), len(message).to_bytes(4, "big") + message[: len(message) // 2])
        die()

    def start_dying(self: Any, make: Callable[[Any], Any], number: int) -> None:
        batches = count(1)

        def make_or_die(plan: Any) -> Any:
            if number == worker and next(batches) == batch:
                if report is not None:
                    os.write(report, b"worker")
                if at == "before":
                    die()
                Connection.send_bytes = send_and_die  # type: ignore[method-assign,assignment]  # in this process only
            return make(plan)

        start(self, make_or_die, number)

    return start_dying


def run_child(arguments: list[str], death: dict[str, Any], out: Path, report: int) -> None:
    """Run regard in a forked process; never returns."""
    code: Any = 1
    try:
        if "limit" in death:
            resource.setrlimit(resource.RLIMIT_FSIZE, (death["limit"], death["limit"]))
        if "call" in death:
            kill_in_call(death, out, report)
        if "step" in death:
            kill_in_step(death["step"], report)
        if "replay" in death:
            kill_in_replay(death["replay"], death.get("later", 0), report)
        if "worker" in death:
            workers._Worker.__init__ = dying_worker(**death, report=report)  # type: ignore[method-assign]
        sys.argv = ["regard", *arguments]
        main()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def run_plan(
    plan: list[dict[str, Any]], out: Path, arguments: list[str], folder: Path, background: bool = False
) -> None:
    """Run `regard ARGUMENTS...` once for each kill and once more, with all output in FOLDER/output.txt.

    FOLDER/ends.json contains the exit status of every process and what it was killed in. If `background`, files are
    written in the background, as on a GPU.
    """
    if background:
        TrainingLoop.background_devices = ("cpu", "cuda")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may ignore it
    with (folder / "output.txt").open("w") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    ends = []
    for death in [*plan, {}]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            run_child(arguments, death, out, writing)
        os.close(writing)
        if "seconds" in death:
            time.sleep(death["seconds"])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        ends.append((status, os.read(reading, 99).decode()))
        os.close(reading)
    (folder / "ends.json").write_text(json.dumps(ends))
