"""Runs pytest in forked processes that have already imported torch and other libraries, but nothing of regard.

    python -m tools.mutation.fork_server LIBRARIES... < COMMANDS

Each line of standard input is a JSON object {"folder": ..., "environment": {...}, "arguments": [...]}: pytest runs in
the folder. Its wait status is written to standard output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

# Not torch._dynamo, which imports triton: tests set TRITON_INTERPRET before that.
LIBRARIES = (
    "torch", "safetensors.torch", "numpy", "pydantic", "yaml", "typer", "rich.console", "tokenizers", "sacrebleu",
    "matplotlib.figure", "PIL.Image", "hypothesis", "hypothesis.strategies", "pytest", "httpx", "fastapi",
)  # fmt: skip


def main() -> None:
    """Run the commands one after the other."""
    for name in sys.argv[1:]:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        process = os.fork()
        if not process:
            run_pytest(json.loads(line))
        status = os.waitpid(process, 0)[1]
        with suppress(ProcessLookupError):  # servers and workers that the tests have left
            os.killpg(process, signal.SIGKILL)
        print(status, flush=True)


def run_pytest(command: dict[str, Any]) -> NoReturn:
    """Replace the standard streams and run pytest."""
    import pytest

    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.chdir(command["folder"])
    os.environ.update(command["environment"])
    sys.path[0] = command["folder"]
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]
    code: int = 1
    try:
        code = int(pytest.main(command["arguments"]))
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
