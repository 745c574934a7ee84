"""Scene geometry, ray casting and textures: a room with boxes and panels, all of them oriented boxes.

Textures are procedural: the colour is a function of the point in space, so that all views of a point agree. A texture
is the sum of several fields of noise, stripes, checks or blobs, each with its own scale, direction and colour and
composed of a few waves. The fields are defined in space, not on the faces of a box.

Shapes: B scenes, K boxes of which the first is the room (or textured surfaces), P rays or points, F fields, M waves.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.two_view.cameras import camera_axes, random_angle
from regard.data.two_view.scene import SceneRandom, SceneSettings

PANEL_PROBABILITY = 0.4
"""Probability that an object is flat."""
ROOM_TILES = 24
"""Every wall, the floor and the ceiling have four tiles with different textures, so that no two parts look alike."""
FIELDS, WAVES = 3, 4
NOISE, STRIPES, CHECKS, BLOBS = range(4)


@dataclass(frozen=True)
class Textures:
    """The textures of all surfaces."""

    waves: Tensor  # wave vectors and phases, (B, K, F, M, 4)
    kinds: Tensor  # kind of each field, (B, K, F)
    colours: Tensor  # RGB colour that a field adds, (B, K, F, 3)
    base: Tensor  # RGB colour of each surface, (B, K, 3)
    sharpness: float  # of edges

    def colour(self, points: Tensor, surface: Tensor) -> Tensor:
        """Return the colours of points (B, P, 3) on surfaces (B, P): (B, P, 3), between 0 and 1."""
        total = _gather(self.base, surface)
        for field in range(FIELDS):
            strength = self._field(field, points, surface)
            total = total + strength[..., None] * _gather(self.colours[:, :, field], surface)
        return 0.5 + 0.5 * total.tanh()

    def _field(self, field: int, points: Tensor, surface: Tensor) -> Tensor:
        vectors = _gather(self.waves[:, :, field].flatten(2), surface).view(*surface.shape, WAVES, 4)
        waves = ((points[..., None, :] * vectors[..., :3]).sum(-1) + vectors[..., 3]).cos()
        kind = _gather(self.kinds[:, :, field, None], surface)[..., 0]
        wave_sum = waves.sum(-1)
        first, second = (self.sharpness * waves[..., :2]).tanh().unbind(-1)
        blobs = (self.sharpness * (wave_sum - 0.7)).tanh()
        value = torch.where(kind == NOISE, wave_sum / math.sqrt(WAVES / 2), blobs)
        value = torch.where(kind == STRIPES, first, value)
        return torch.where(kind == CHECKS, first * second, value)


@dataclass(frozen=True)
class World:
    """The boxes of each scene, seen from outside, except for the room (box 0), which is seen from inside."""

    centre: Tensor  # (B, K, 3)
    axes: Tensor  # directions of the edges as rows, (B, K, 3, 3)
    half: Tensor  # half of the edge lengths, (B, K, 3)
    brightness: Tensor  # of the two faces perpendicular to each axis, (B, K, 3)
    textures: Textures  # of the tiles of the room and of the other boxes, (B, ROOM_TILES + K - 1)

    def colour(self, points: Tensor, hits: "RayHits") -> Tensor:
        """Return the colours of points (B, P, 3) that rays hit, (B, P, 3)."""
        brightness = self.brightness.flatten(1).gather(1, hits.box * 3 + hits.axis)
        return self.textures.colour(points, self._surface(points, hits)) * brightness[..., None]

    def _surface(self, points: Tensor, hits: "RayHits") -> Tensor:
        """Return the texture of each point: for the room, by the axis of the wall and the octant of the point."""
        x, y, z = ((points - self.centre[:, :1]) @ self.axes[:, 0].transpose(1, 2) > 0).long().unbind(-1)
        return torch.where(hits.box == 0, hits.axis * 8 + 4 * x + 2 * y + z, hits.box + ROOM_TILES - 1)


@dataclass(frozen=True)
class RayHits:
    """The first intersection of each ray: ray parameter, index of the box, and axis perpendicular to the face."""

    distance: Tensor  # (B, P)
    box: Tensor  # (B, P)
    axis: Tensor  # (B, P)


def random_worlds(random: SceneRandom, settings: SceneSettings) -> World:
    """Draw rooms with objects of random position, size and orientation."""
    K = settings.objects
    room = torch.stack((random.uniform(3.8, 4.8), random.uniform(2.0, 2.8), random.uniform(3.8, 4.8)), -1)
    zero = torch.zeros_like(room[:, 0])
    room_axes = camera_axes(random_angle(random, 45), zero, zero)
    x, y, z = random.uniform(-2.2, 2.2, K), random.uniform(-1.4, 1.4, K), random.uniform(-0.6, 2.6, K)
    half = random.uniform(0.25, 0.9, K, 3)
    is_panel = random.uniform(0, 1, K) < PANEL_PROBABILITY
    half = torch.where(is_panel[..., None] & (torch.arange(3, device=half.device) == 2), 0.02, half)
    axes = camera_axes(random_angle(random, 180, K), random_angle(random, 30, K), random_angle(random, 30, K))
    centre = torch.cat((torch.zeros_like(room)[:, None], torch.stack((x, y, z), -1)), 1)
    axes = torch.cat((room_axes[:, None], axes), 1)
    light = random.unit_vectors()
    brightness = 0.55 + 0.45 * (axes @ light[:, None, :, None]).squeeze(-1).abs()
    if not settings.shading:
        brightness = torch.ones_like(brightness)
    tiles = torch.zeros(ROOM_TILES, dtype=torch.long, device=centre.device)
    box_of_texture = torch.cat((tiles, torch.arange(1, K + 1, device=centre.device)))
    textures = random_textures(random, settings, centre[:, box_of_texture], axes[:, box_of_texture])
    return World(centre, axes, torch.cat((room[:, None], half), 1), brightness, textures)


def cast_rays(world: World, origin: Tensor, rays: Tensor) -> RayHits:
    """Return the first intersection of rays (B, P, 3) from the origin (B, 3) of each scene."""
    _, far = _slab_intersections(world, 0, origin, rays)
    distance, axis = far.min(-1)  # the walls of the room
    box = torch.zeros_like(axis)
    for k in range(1, world.centre.shape[1]):
        near, far = _slab_intersections(world, k, origin, rays)
        entry, entry_axis = near.max(-1)
        closer = (entry > 0) & (entry <= far.amin(-1)) & (entry < distance)
        distance = torch.where(closer, entry, distance)
        axis = torch.where(closer, entry_axis, axis)
        box = box.masked_fill(closer, k)
    return RayHits(distance, box, axis)


def _slab_intersections(world: World, k: int, origin: Tensor, rays: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each ray enters and leaves the three slabs whose intersection is box k, (B, P, 3) each."""
    axes = world.axes[:, k]
    start = (axes @ (origin - world.centre[:, k])[..., None]).squeeze(-1)[:, None]
    direction = rays @ axes.transpose(1, 2)
    one, other = ((side * world.half[:, None, k] - start) / direction for side in (-1, 1))
    return torch.minimum(one, other), torch.maximum(one, other)


def random_textures(random: SceneRandom, settings: SceneSettings, centre: Tensor, axes: Tensor) -> Textures:
    """Draw textures that move with their boxes, given the centres (B, K, 3) and axes (B, K, 3, 3) of the boxes."""
    K, shape = centre.shape[1], (centre.shape[1], FIELDS, WAVES)
    shortest, longest = settings.wavelength
    wavelength = shortest * (longest / shortest) ** random.uniform(0, 1, K, FIELDS, 1)
    wavelength = wavelength * random.uniform(0.8, 1.25, *shape)
    vectors = (2 * math.pi / wavelength)[..., None] * random.unit_vectors(*shape)
    vectors = vectors @ axes[:, :, None]
    phase = random.uniform(0, 2 * math.pi, *shape) - (vectors @ centre[:, :, None, :, None]).squeeze(-1)
    kinds = random.uniform(0, BLOBS + 1, K, FIELDS).long().clamp(max=BLOBS)
    colours = random.unit_vectors(K, FIELDS) * random.uniform(0.4, 1.0, K, FIELDS, 1)
    base = random.uniform(-0.7, 0.7, K, 3)
    return Textures(torch.cat((vectors, phase[..., None]), -1), kinds, colours, base, settings.sharpness)


def _gather(table: Tensor, surface: Tensor) -> Tensor:
    """Select the row of a table (B, K, N) for the surface of each point: (B, P, N)."""
    return table.gather(1, surface[..., None].expand(-1, -1, table.shape[2]))
