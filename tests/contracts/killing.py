"""Runs `regard` again and again in forked processes that are killed with SIGKILL, then once to its end.

    python killing.py PLAN.json WORDS...

PLAN.json lists how each process dies: {"call": 7} in the midst of its 7th call that changes the disk, {"call": 2,
"of": "rename"} in its second rename, {"seconds": 0.3} after some time; with "signal" it gets another one than SIGKILL,
and the call goes on; {"limit": 1000} lets it write no larger file. Torch is imported once, before the first fork, so
that a process costs a fraction of a second. Prints a JSON list: for every process its exit status as `waitpid` gives
it, and the name of the call it died in.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch._dynamo  # which the optimiser would import, a second in every process

import regard.cli
import regard.training.run

CALLS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "save_file")


def die_in_call(death: dict[str, Any], report: int) -> None:
    """Lets this process die at its n-th call: where n is even before it has happened, else after."""
    number, names, deadly_signal = death["call"], death.get("of", CALLS), death.get("signal", signal.SIGKILL)
    made = 0

    def deadly(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made != number:
                return function(*words, **options)
            os.write(report, name.encode())
            if deadly_signal != signal.SIGKILL:
                os.kill(os.getpid(), deadly_signal)
                return function(*words, **options)
            if name == "save_file":  # half of it is on the disk
                function(*words, **options)
                os.truncate(words[1], Path(words[1]).stat().st_size // 2)
            elif number % 2:
                with suppress(OSError):  # such as that of a folder which is there already
                    function(*words, **options)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("still alive")

        return call

    for name in [names] if isinstance(names, str) else names:
        home = safetensors.torch if name == "save_file" else os
        setattr(home, name, deadly(name, getattr(home, name)))


def be_regard(words: list[str], death: dict[str, Any], report: int) -> None:
    """What a child does; never returns."""
    code: Any = 1
    try:
        torch.set_num_threads(1)
        if "limit" in death:
            resource.setrlimit(resource.RLIMIT_FSIZE, (death["limit"], death["limit"]))
        if "call" in death:
            die_in_call(death, report)
        sys.argv = ["regard", *words]
        regard.cli.main()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def main() -> None:
    plan, words = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]
    ends = []
    for death in [*plan, {}]:
        ear, mouth = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)  # what regard says goes to stderr, the result alone to stdout
            be_regard(words, death, mouth)
        os.close(mouth)
        if "seconds" in death:
            time.sleep(death["seconds"])
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        ends.append((status, os.read(ear, 99).decode()))
        os.close(ear)
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
