"""Modules that the fork server imports in advance; see `tests.forks`."""

import torch._dynamo  # noqa: F401  the optimizer would import it in every process, which takes a second

import regard.cli
import regard.pipelines.translator  # noqa: F401
import tests.conftest  # noqa: F401  the training, and what functions of tests that run in the process need
