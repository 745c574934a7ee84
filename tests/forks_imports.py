"""What a process has imported that others are forked from; see `tests.forks`."""

import regard.cli
import regard.pipelines.translator
import regard.training.run  # noqa: F401
