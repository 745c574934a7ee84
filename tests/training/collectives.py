"""Run by test_distributed.py under torchrun; each process writes the results of collective methods to FOLDER/rank.json.

torchrun --nproc-per-node 2 --max-restarts 1 collectives.py FOLDER

Process 1 kills itself, but not after the restart.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.training.distributed import Processes, join_processes, report_errors_once


def fail(message: str) -> Any:
    raise UserError(message)


def error_of(work: Callable[[], Any]) -> str:
    try:
        return f"no error, but {work()}"
    except UserError as error:
        return str(error)


def call_all(processes: Processes, folder: Path) -> dict[str, Any]:
    rank, mark = processes.rank, folder / "mark"

    def on_main() -> str:
        time.sleep(0.2)
        mark.touch()
        return "main"

    def fail_in_one(number: int) -> None:
        with processes.sync_errors():
            if rank == number:
                fail(f"from {number}")

    return {
        "sum": processes.sum(rank + 1),
        "max": processes.max(3 - rank),
        "gather": processes.gather({"rank": rank}),
        "on_main": processes.on_main(lambda: f"by {rank}"),
        "on_main_fails": error_of(lambda: processes.on_main(lambda: fail(f"refused by {rank}"))),
        "sync_errors": [error_of(lambda number=number: fail_in_one(number)) for number in range(2)],  # type: ignore[misc]
        "main_first": processes.main_first(on_main, lambda: f"other, mark {mark.exists()}"),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        with report_errors_once(), join_processes("cpu") as processes:
            if processes.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            (folder / f"{processes.rank}.json").write_text(json.dumps(call_all(processes, folder)))
            with processes.sync_errors():
                if processes.rank == 1:
                    fail("the second process finds no data")
    except UserError as error:
        sys.exit(f"regard: {error}")


if __name__ == "__main__":
    main()
