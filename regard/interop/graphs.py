"""A Transformer as two programs with tensors in and out, for runtimes that know no Python: encoder, and decoder step.

Shapes: B rows, S source tokens, P target tokens so far, L layers, H heads, D head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.cache import KeyValues, KVCache
from regard.attention.masks import Mask
from regard.errors import UserError
from regard.layers import DecoderBlock
from regard.models.transformer import Embedding, EncoderDecoderConfig, Transformer, TransformerConfig

POSITIONS = 2048
"""Rows of a sinusoidal table in a program, which has no limit in our model."""


def check_programs(config: EncoderDecoderConfig) -> None:
    """Does nothing where a model of this config can be written as two programs.

    Raises:
        UserError: it cannot; says why.
    """
    if not isinstance(config, TransformerConfig):
        raise UserError("a model that writes all tokens at once has no decoder step to export")
    if config.attention.kind == "local":
        raise UserError(
            "local attention cuts a text into blocks by its length, and programs take any length; they can be written "
            "of models with full attention"
        )
    if config.attention.kind == "routing":
        raise UserError(
            "routing attention sorts tokens by clusters whose sizes a program cannot know; programs can be written of "
            "models with full attention"
        )
    if config.attention.kind != "full":
        raise UserError(
            f"attention of kind {config.attention.kind} keeps no keys and values that a decoder step could be given"
        )


class EncoderProgram(nn.Module):
    """Source tokens to what every layer of the decoder looks at."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model, self.embed = model, _Placed(model.source_embedding)

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (B, S) with END, and how many of each row are real, (B,), to keys and values, (L, B, H, S, D)."""
        places = torch.arange(source.shape[1], device=source.device)
        mask = Mask(allowed=_real(places, lengths))
        x = self.embed(source, places[None])
        for block in self.model.encoder:
            x = block(x, mask, places[None])
        memory = self.model.encoder_norm(x)
        pairs = [cast(DecoderBlock, block).cross.project(memory) for block in self.model.decoder]
        return torch.stack([pair.keys for pair in pairs]), torch.stack([pair.values for pair in pairs])


class StepProgram(nn.Module):
    """The next target token to the log-probabilities of the one behind it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model, self.embed = model, _Placed(model.target_embedding)

    def forward(
        self,
        token: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
        memory_keys: Tensor,
        memory_values: Tensor,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Reads a token a row, (B, 1), behind P others, (L, B, H, P, D), with the encoder's results and `lengths`.

        Gives the log-probabilities of what comes next, (B, V), and the keys and values of now P + 1 tokens.
        """
        place = torch.full((1, 1), 1, device=token.device) * past_keys.shape[3]
        seen = torch.arange(memory_keys.shape[3], device=token.device)
        memory_mask = Mask(allowed=_real(seen, lengths))
        x = self.embed(token, place)
        kinds = [cast(DecoderBlock, block).attention.kind for block in self.model.decoder]
        caches = [_Given(*given) for given in zip(kinds, past_keys.unbind(0), past_values.unbind(0), strict=True)]
        for layer, block in enumerate(self.model.decoder):
            memory = KeyValues(memory_keys[layer], memory_values[layer])
            x = block(x, memory, Mask(), memory_mask, place, caches[layer])
        logits = self.model.logits(self.model.decoder_norm(x))[:, 0]
        return (
            logits.log_softmax(-1),
            torch.stack([cache.keys for cache in caches]),
            torch.stack([cache.values for cache in caches]),
        )


class _Given(KVCache):
    """A cache that was handed in, and goes out again one token longer."""

    def __init__(self, kind: Callable[..., Tensor], keys: Tensor, values: Tensor) -> None:
        super().__init__(kind)
        self.keys, self.values = keys, values

    def append(self, keys: Tensor, values: Tensor) -> KeyValues:
        self.keys, self.values = torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2)
        return KeyValues(self.keys, self.values)


class _Placed(nn.Module):
    """An embedding with a table of positions that does not grow."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        table: Any = None
        if embedding.positions is not None:
            learned = getattr(embedding.positions, "weight", None)
            longest = POSITIONS if learned is None else len(learned)
            table = embedding.positions(torch.arange(longest), longest).detach()
        self.table: Tensor | None
        self.register_buffer("table", table)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embedding.weight) * self.embedding.scale
        return x if self.table is None else x + self.table[places]


def _real(places: Tensor, lengths: Tensor) -> Tensor:
    """Which places of each row hold a token, as a mask over keys, (B, 1, 1, S)."""
    return (places < lengths[:, None])[:, None, None]
