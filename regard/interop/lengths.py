"""How long texts may be in the formats of others, whose tables of sines end where ours go on."""

from __future__ import annotations

from regard.models.transformer import EncoderDecoderConfig


def longest_input(config: EncoderDecoderConfig, rows: int) -> int | None:
    """How many tokens, END counted, either side may have where sines have so many rows; None: no limit."""
    if config.positions == "rotary":
        return None
    return config.max_length if config.positions == "learned" else rows
