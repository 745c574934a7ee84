"""Entry point of the command `regard` and of `python -m regard`."""

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback from the first import on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # shells ignore SIGINT in background jobs
        signal.signal(signal.SIGINT, _interrupt)
    from regard.threads import configure_threads

    configure_threads()  # before torch is imported
    from regard.cli import main as run_command_line

    run_command_line()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Exit at once if a module is being imported, because some modules catch every exception; otherwise raise."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
