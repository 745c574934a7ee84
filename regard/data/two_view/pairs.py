"""Pairs of views of random scenes.

Shapes: B scenes, H and W of a view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.cameras import Cameras, first_cameras, second_cameras
from regard.data.two_view.config import SceneSettings
from regard.data.two_view.random import Draws
from regard.data.two_view.worlds import World, build_worlds, cast

STEREO_BASELINE = (0.15, 0.6)
"""How far apart the two cameras of a rectified pair are."""


@dataclass(frozen=True)
class Views:
    """What a camera sees of each scene: colours between 0 and 1, (B, 3, H, W), and the depth of every pixel."""

    image: Tensor
    depth: Tensor  # (B, H, W), along the optical axis


@dataclass(frozen=True)
class Pairs:
    """Two cameras in each scene, and what they see."""

    world: World
    cameras: tuple[Cameras, Cameras]
    views: tuple[Views, Views]

    def disparity(self) -> Tensor:
        """How far left in the second view each pixel of the first is found, (B, H, W), for rectified pairs.

        Baseline times focal length by depth.
        """
        first, second = self.cameras
        baseline = ((second.place - first.place) * first.axes[:, 0]).sum(-1)
        return (baseline * first.focal)[:, None, None] / self.views[0].depth


def render_pairs(settings: SceneSettings, seed: int, scenes: Tensor) -> Pairs:
    """Scenes by number, (B,), seen by two cameras apart from and turned against each other; on the numbers' device."""
    return _render(settings, seed, scenes, lambda draws, first: second_cameras(draws, settings, first))


def render_stereo(settings: SceneSettings, seed: int, scenes: Tensor) -> Pairs:
    """Scenes by number, (B,), seen by two cameras side by side that look in one direction: a rectified pair."""
    return _render(settings, seed, scenes, lambda draws, first: first.moved(draws.uniform(*STEREO_BASELINE)))


def _render(settings: SceneSettings, seed: int, scenes: Tensor, second: Callable[[Draws, Cameras], Cameras]) -> Pairs:
    with torch.autocast(scenes.device.type, enabled=False):  # half precision would move surfaces by a pixel
        draws = Draws(seed, scenes)
        world = build_worlds(draws, settings)
        camera = first_cameras(draws, settings)
        cameras = camera, second(draws, camera)
        return Pairs(world, cameras, (render(world, cameras[0]), render(world, cameras[1])))


def render(world: World, cameras: Cameras) -> Views:
    """What the cameras see."""
    height, width = cameras.size
    rays = cameras.rays(cameras.pixels())
    hits = cast(world, cameras.place, rays)
    points = cameras.place[:, None] + hits.distance[..., None] * rays
    image = world.colour(points, hits).view(-1, height, width, 3).permute(0, 3, 1, 2).contiguous()
    return Views(image, hits.distance.view(-1, height, width))


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
