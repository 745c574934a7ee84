"""Pairs of views of random scenes, and correspondences between them.

Shapes: B scenes, H height and W width of a view.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.cameras import Cameras, first_cameras, second_cameras
from regard.data.two_view.scene import SceneRandom, SceneSettings
from regard.data.two_view.worlds import World, cast_rays, random_worlds

STEREO_BASELINE = (0.15, 0.6)
"""Range of the distance between the cameras of a rectified pair."""
TOLERANCE = 1e-3
"""Relative distance by which a ray to a point may end early without the point counting as occluded."""


@dataclass(frozen=True)
class Views:
    """What a camera sees of each scene: colours between 0 and 1, and the depth along the optical axis."""

    image: Tensor  # (B, 3, H, W)
    depth: Tensor  # (B, H, W)


@dataclass(frozen=True)
class ViewPairs:
    """Two cameras in each scene and their views."""

    world: World
    cameras: tuple[Cameras, Cameras]
    views: tuple[Views, Views]

    def disparity(self) -> Tensor:
        """Return the disparity of the first view of rectified pairs: baseline · focal length / depth, (B, H, W)."""
        first, second = self.cameras
        baseline = ((second.position - first.position) * first.axes[:, 0]).sum(-1)
        return (baseline * first.focal)[:, None, None] / self.views[0].depth


def render_pairs(settings: SceneSettings, seed: int, scenes: Tensor) -> ViewPairs:
    """Render the scenes with the given indices (B,), on their device, from two different viewpoints."""
    return _render_pairs(settings, seed, scenes, lambda random, first: second_cameras(random, settings, first))


def render_stereo(settings: SceneSettings, seed: int, scenes: Tensor) -> ViewPairs:
    """Render rectified pairs of the scenes with the given indices (B,): parallel cameras side by side."""
    return _render_pairs(
        settings, seed, scenes, lambda random, first: first.moved_right(random.uniform(*STEREO_BASELINE))
    )


def _render_pairs(
    settings: SceneSettings, seed: int, scenes: Tensor, second: Callable[[SceneRandom, Cameras], Cameras]
) -> ViewPairs:
    with torch.autocast(scenes.device.type, enabled=False):  # half precision would move surfaces by a pixel
        random = SceneRandom(seed, scenes)
        world = random_worlds(random, settings)
        camera = first_cameras(random, settings)
        cameras = camera, second(random, camera)
        return ViewPairs(world, cameras, (render(world, cameras[0]), render(world, cameras[1])))


def render(world: World, cameras: Cameras) -> Views:
    """Render the view of each camera."""
    height, width = cameras.size
    rays = cameras.rays(cameras.pixels())
    hits = cast_rays(world, cameras.position, rays)
    points = cameras.position[:, None] + hits.distance[..., None] * rays
    image = world.colour(points, hits).view(-1, height, width, 3).permute(0, 3, 1, 2).contiguous()
    return Views(image, hits.distance.view(-1, height, width))


@dataclass(frozen=True)
class Matches:
    """The position of every pixel of one view in the other, which may be outside, and NaN behind the camera."""

    xy: Tensor  # (B, H, W, 2)
    covisible: Tensor  # whether the other view shows the same point, (B, H, W)


def find_matches(pairs: ViewPairs) -> tuple[Matches, Matches]:
    """Return the matches from the first view to the second, and from the second to the first."""
    (first, second), (first_views, second_views) = pairs.cameras, pairs.views
    with torch.autocast(first_views.depth.device.type, enabled=False):
        return _match(pairs.world, first, first_views, second), _match(pairs.world, second, second_views, first)


def _match(world: World, cameras: Cameras, views: Views, other: Cameras) -> Matches:
    height, width = cameras.size
    points = cameras.position[:, None] + views.depth.flatten(1)[..., None] * cameras.rays(cameras.pixels())
    xy, _ = other.project(points)
    # The ray from the other camera to the point reaches it at parameter 1 unless something occludes it.
    reached = cast_rays(world, other.position, points - other.position[:, None]).distance
    covisible = other.contains(xy) & (reached > 1 - TOLERANCE)
    return Matches(xy.view(-1, height, width, 2), covisible.view(-1, height, width))
