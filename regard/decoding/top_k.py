"""The likeliest tokens after every hypothesis.

Shapes: R rows, V vocabulary, C candidates a row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 128


def top(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest numbers of every row, (R, V), and where they stand, (R, C) each, the highest first.

    They stand in the chunks of the row that have the highest maxima, so that all other numbers are looked at only once;
    `topk` alone would read the whole row a dozen times.
    """
    V = x.shape[1]
    if 4 * count * CHUNK > V:
        values, places = x.topk(count, -1)
        return values, places
    chunks = V // CHUNK
    whole = x[:, : chunks * CHUNK].view(-1, chunks, CHUNK)
    chosen = whole.amax(-1).topk(count, -1, sorted=False).indices
    inside = whole.gather(1, chosen[:, :, None].expand(-1, -1, CHUNK)).flatten(1)
    values, place = torch.cat((inside, x[:, chunks * CHUNK :]), 1).topk(count, -1)
    chosen = F.pad(chosen, (0, 1), value=chunks)  # behind the chosen chunks stands the rest of the row
    return values, chosen.gather(1, place // CHUNK) * CHUNK + place % CHUNK
