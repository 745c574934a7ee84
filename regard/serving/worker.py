"""The process that owns one model: an order, then batches come in, answers go out, until the other side hangs up.

python -m regard.serving.worker DESCRIPTOR
"""

from __future__ import annotations

import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from regard.errors import UserError
from regard.serving.messages import Batch, BatchResult, Failed, LoadRequest, Rejected


def main() -> None:
    """Serves the connection with the given descriptor."""
    # A terminal and systemd tell the whole family to stop; the parent lets this process end once its work is done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the other side has left


def serve(connection: Connection[Any, Any]) -> None:
    """Answers the order, then one batch after another.

    Raises:
        EOFError: the other side has hung up.
    """
    from regard.serving.model_runner import open_engine

    order: LoadRequest = connection.recv()
    try:
        engine = open_engine(order)
        engine.warm_up()
    except UserError as error:
        connection.send(Rejected(str(error)))
        return
    connection.send(engine.about)
    while True:
        batch: Batch = connection.recv()
        answer: BatchResult | Rejected | Failed
        try:
            answer = BatchResult(engine.run(batch.operation, batch.items, dict(batch.options)))
        except UserError as error:
            answer = Rejected(str(error), error.kind)
        except Exception as error:
            answer = Failed(describe(error))
        connection.send(answer)


def describe(error: BaseException) -> str:
    """The kind of an error and where it was raised; not its message, which may quote a user's text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name}, {frame.filename}:{frame.lineno}"


if __name__ == "__main__":
    main()
