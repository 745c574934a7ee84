"""What a process has imported that others are forked from; see `tests.forks`."""

import regard.cli
import regard.decoding.translator
import regard.training.run  # noqa: F401
