"""Runs Python programs in processes that cannot import regard.

The processes are forked from one that has imported torch, which takes seconds, but nothing of regard.
"""

import json
import os
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path


def run_without_regard(program: str, folder: Path) -> str:
    """Run a program in a folder and return its output."""
    server, streams = _start_server(), [folder / "output of the program", folder / "errors of the program"]
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps([program, str(folder), *map(str, streams)]) + "\n")
    server.stdin.flush()
    status = int(server.stdout.readline())
    output, errors = (stream.read_text(encoding="utf-8") for stream in streams)
    assert status == 0, errors
    return output.strip()


@cache
def _start_server() -> subprocess.Popen[str]:
    """Start the process, which ends when its input is closed."""
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _run(program: str, folder: str, *streams: str) -> None:
    os.chdir(folder)
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.modules["regard"] = None  # type: ignore[assignment]
    code = 0
    try:
        exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def main() -> None:
    """Run the programs of standard input, each in a process of its own, and write their exit codes."""
    import torch  # noqa: F401

    for line in sys.stdin:
        process = os.fork()
        if not process:
            _run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
