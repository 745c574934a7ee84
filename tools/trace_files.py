"""Count the files of regard/ that a command enters: files in which at least one function runs.

    python tools/trace_files.py translate runs/demo "I love apples"
    python tools/trace_files.py --step train demo --out runs/traced

What runs while modules are imported does not count. With --step the command is a training run: what counts is the call
stack from the command line to `optimizer.step`, and everything that runs in the three steps after the first one, which
includes the preparation of batches in another thread. Then the run is stopped.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HOME = Path(__file__).parent.parent / "regard"


class FileTracer:
    """Records the code objects of regard that are executed, in all threads."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code not in self.functions and _is_ours(code) and not _is_importing(frame):
            self.functions[code] = None

    def restart_with_stack(self) -> None:
        """Forget what ran so far, except for the functions on the stack."""
        self.functions.clear()
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if _is_ours(frame.f_code):
                self.functions[frame.f_code] = None
            frame = frame.f_back

    def start(self) -> None:
        """Trace this thread and those started from now on."""
        threading.setprofile(self)
        sys.setprofile(self)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def files(self) -> list[str]:
        """The files entered, relative to regard/."""
        return sorted({str(Path(code.co_filename).relative_to(HOME)) for code in self.functions})


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(str(HOME)) and code.co_name != "<module>"


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module of regard is being imported further up the stack."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(str(HOME)):
            return True
        frame = frame.f_back
    return False


class EnoughStepsError(Exception):
    """Raised when the traced steps are done."""


def trace_steps(tracer: FileTracer) -> None:
    """Restart the trace at the first optimizer step and end the run after three more."""
    import torch

    optimizer_step = torch.optim.AdamW.step
    steps = 0

    def step(*args: Any, **options: Any) -> None:
        nonlocal steps
        optimizer_step(*args, **options)
        steps += 1
        if steps == 1:
            tracer.restart_with_stack()
        elif steps == 4:
            tracer.stop()  # what runs while the run is stopped does not count
            raise EnoughStepsError

    torch.optim.AdamW.step = step  # type: ignore[method-assign, assignment]


def main() -> None:
    """Run a command of regard and print the files that it enters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="store_true", help="trace a training step")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a regard command line, without `regard`")
    arguments = parser.parse_args()
    sys.path.insert(0, str(HOME.parent))
    from regard.cli import main as run_command_line

    sys.argv = ["regard", *arguments.command]
    tracer = FileTracer()
    if arguments.step:
        trace_steps(tracer)
    tracer.start()
    try:
        run_command_line()
    except (SystemExit, EnoughStepsError):
        pass
    finally:
        tracer.stop()
    files = tracer.files()
    print(*files, f"{len(files)} files", sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
