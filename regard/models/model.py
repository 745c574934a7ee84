"""What all models have in common, and what those of images share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveInt
from torch import nn

from regard.config import Settings


class Model(nn.Module):
    """A module that knows the settings it was built from, so that a folder can hold it."""

    config: Settings


def _square(value: Any) -> Any:
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


Size = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_square)]
"""Height and width, in pixels or patches; one number stands for both."""
