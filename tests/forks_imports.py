"""Modules that the fork server imports in advance; see `tests.forks`."""

import regard.cli
import regard.pipelines.translator
import regard.training.run  # noqa: F401
