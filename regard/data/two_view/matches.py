"""Where what one view shows is found in the other, and whether it can be seen there.

Shapes: B scenes, H and W of a view.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.cameras import Cameras
from regard.data.two_view.pairs import Pairs, Views
from regard.data.two_view.worlds import World, cast

TOLERANCE = 1e-3
"""How much sooner than at a point itself a ray towards it may meet a surface without the point being hidden."""


@dataclass(frozen=True)
class Matches:
    """For every pixel of one view, its place (x, y) in the other, (B, H, W, 2), and whether that shows the same point.

    The place of a point behind the other camera is NaN; that of a point outside its view or hidden there is a place
    all the same. A pixel's own centre is at (x + 0.5, y + 0.5).
    """

    place: Tensor
    covisible: Tensor  # (B, H, W)


def find_matches(pairs: Pairs) -> tuple[Matches, Matches]:
    """The matches from the first view to the second, and from the second to the first."""
    (first, second), (one, other) = pairs.cameras, pairs.views
    with torch.autocast(one.depth.device.type, enabled=False):
        return _match(pairs.world, first, one, second), _match(pairs.world, second, other, first)


def _match(world: World, here: Cameras, views: Views, there: Cameras) -> Matches:
    height, width = here.size
    points = here.place[:, None] + views.depth.flatten(1)[..., None] * here.rays(here.pixels())
    place, _ = there.project(points)
    # A ray that is as long as the way to the point reaches it at 1, unless something stands before it.
    reached = cast(world, there.place, points - there.place[:, None]).distance
    covisible = there.contains(place) & (reached > 1 - TOLERANCE)
    return Matches(place.view(-1, height, width, 2), covisible.view(-1, height, width))
