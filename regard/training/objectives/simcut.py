"""SimCut: predictions should not change if some token embeddings are cut off (Gao et al., 2022).

The model runs on the batch and on a copy of it in which the embedding of each token is zero with some probability; its
position remains. The divergence of the second predictions from the first is added to the cross-entropy of the first.
END of the source and the first decoder input are never cut off, as in the code of the authors. Random numbers come from
torch's default generator, which is part of a checkpoint.
"""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from regard.config import Settings
from regard.ops.embedding import CUT_OFF
from regard.training.text_batches import TextBatch


class SimCut(Settings):
    """Cuts off token embeddings in a second forward pass."""

    weight: float = Field(3.0, gt=0, description="weight of the divergence between both forward passes (α)")
    p: float = Field(0.05, ge=0, lt=1, description="probability that a token embedding of the second pass is zero")

    def cut_off(self, batch: TextBatch, end: int) -> TextBatch:
        """Return the batch with random tokens replaced by `CUT_OFF`; `end` is the token at the end of a source."""
        first = batch.target_layout.positions() == 0
        return replace(
            batch,
            source=self._cut_off(batch.source, kept=batch.source == end),
            inputs=self._cut_off(batch.inputs, kept=first),
        )

    def _cut_off(self, tokens: Tensor, kept: Tensor) -> Tensor:
        drawn = torch.rand(tokens.shape, device=tokens.device) < self.p
        return tokens.masked_fill(drawn & ~kept, CUT_OFF)
