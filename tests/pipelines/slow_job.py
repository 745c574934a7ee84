"""A slow job over shards, in a module that workers can import without the fixtures of the tests."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.pipelines.shards import Column, Job, Part, Results, Rows


@dataclass(frozen=True)
class Slow(Job):
    """Adds the process of each row, slowly; logs the start of each part."""

    columns: ClassVar[dict[str, Column]] = {"process": "number"}
    log: Path
    seconds: float = 0.5
    die: bool = False

    def load(self) -> Callable[[Part, Rows], Results]:
        def run(part: Part, rows: Rows) -> Results:
            first = not self.log.exists() or str(part) not in self.log.read_text()
            with self.log.open("a") as file:
                file.write(f"{part}\n")
            time.sleep(self.seconds)
            if self.die and first and part.number == 1:
                os._exit(1)
            return Results(range(len(rows)), {"process": [os.getpid()] * len(rows)})

        return run
