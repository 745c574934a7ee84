"""The scene renderer: exact depth, correspondences and covisibility; reproducible scenes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.two_view.cameras import Cameras, camera_axes
from regard.data.two_view.pairs import ViewPairs, find_matches, render, render_pairs, render_stereo
from regard.data.two_view.scene import SceneRandom, SceneSettings
from regard.data.two_view.worlds import World, cast_rays
from regard.errors import UserError

SMALL = SceneSettings(size=(24, 32), disjoint=0.0)
SMOOTH = SMALL.changed(wavelength=(4.0, 8.0), size=(48, 48), sharpness=0.5, objects=3)


def numbers(count: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + count)


def angles(*degrees: float) -> tuple[Tensor, ...]:
    return tuple(torch.deg2rad(torch.tensor([value])) for value in degrees)


def camera(position: tuple[float, float, float], yaw: float = 0, pitch: float = 0, roll: float = 0) -> Cameras:
    return Cameras(torch.tensor([position]), camera_axes(*angles(yaw, pitch, roll)), torch.tensor([20.0]), (24, 32))


def room_with(*boxes: tuple[tuple[float, float, float], tuple[float, float, float], float]) -> World:
    """Create a room with half edges 4, 3 and 5 at the origin, and boxes given by centre, half edges and yaw."""
    world = render_pairs(SMALL.changed(objects=len(boxes)), 0, numbers(1)).world
    centres, halves, turns = [(0.0, 0.0, 0.0)], [(4.0, 3.0, 5.0)], [0.0]
    for centre, half, turn in boxes:
        centres.append(centre)
        halves.append(half)
        turns.append(turn)
    axes = torch.cat([camera_axes(*angles(turn, 0, 0)) for turn in turns])
    return replace(world, centre=torch.tensor([centres]), half=torch.tensor([halves]), axes=axes[None])


def render_both(world: World, first: Cameras, second: Cameras) -> ViewPairs:
    return ViewPairs(world, (first, second), (render(world, first), render(world, second)))


# Depth


def test_the_depth_of_walls_is_exact() -> None:
    seen = render(room_with(), camera((0.5, -0.25, -1.0)))
    x, y = (camera((0, 0, 0)).pixels() - torch.tensor([16.0, 12.0])).unbind(-1)
    x, y = x / 20, y / 20
    side_depth = torch.where(x > 0, (4 - 0.5) / x, (-4 - 0.5) / x)
    floor_depth = torch.where(y > 0, (3 + 0.25) / y, (-3 + 0.25) / y)
    expected = torch.minimum(torch.minimum(side_depth, floor_depth), torch.tensor(6.0)).view(24, 32)
    torch.testing.assert_close(seen.depth[0], expected)


def test_depth_is_measured_along_the_optical_axis() -> None:
    seen = render(room_with(), camera((0, 0, 0), yaw=90))
    # The wall at the right is perpendicular to the optical axis.
    assert seen.depth[0, 11:13, 15:17].sub(4).abs().max() < 1e-5
    assert torch.allclose(seen.depth[0, 12], torch.full((32,), 4.0))


def test_a_box_occludes_only_the_wall_behind_it() -> None:
    box = ((0.0, 0.0, 2.0), (0.5, 0.5, 0.5), 0.0)
    empty, full = (render(world, camera((0, 0, 0))).depth[0] for world in (room_with(), room_with(box)))
    hidden = torch.zeros(24, 32, dtype=torch.bool)
    hidden[12 - 6 : 12 + 6, 16 - 6 : 16 + 6] = True  # half a unit at a depth of 1.5 is 6.7 pixels
    assert torch.allclose(full[hidden], torch.tensor(1.5))
    assert torch.equal(full[~hidden][full[~hidden] != 1.5], empty[~hidden][full[~hidden] != 1.5])
    assert (full == 1.5).sum() <= 14 * 14


def test_rays_hit_the_faces_of_a_rotated_box() -> None:
    world = room_with(((0.0, 0.0, 2.0), (0.5, 0.5, 0.5), 45.0))
    origin = torch.zeros(1, 3)
    rays = torch.tensor([[[0.0, 0.0, 1.0], [0.1, 0.05, 1.0], [-0.2, 0.1, 1.0]]])
    hits = cast_rays(world, origin, rays)
    # The two visible faces are planes at a distance of 0.5 from the centre along (±1, 0, 1)/√2.
    edge = 2 - 0.5 * 2**0.5
    expected = edge / (1 - rays[0, :, 0].abs())
    expected = torch.minimum(expected, edge / (1 + rays[0, :, 0].abs()))
    assert hits.box.tolist() == [[1, 1, 1]]
    assert torch.allclose(hits.distance[0, 0], torch.tensor(edge))
    points = (hits.distance[..., None] * rays - torch.tensor([0.0, 0.0, 2.0])) @ world.axes[0, 1].T
    assert torch.allclose(points.abs().amax(-1), torch.tensor(0.5), atol=1e-5)


def test_a_box_behind_the_camera_is_not_visible() -> None:
    behind = room_with(((0.0, 0.0, -2.0), (0.5, 0.5, 0.5), 0.0))
    assert torch.equal(render(behind, camera((0, 0, 0))).depth, render(room_with(), camera((0, 0, 0))).depth)


def test_the_tiles_of_a_room_have_different_textures() -> None:
    world = room_with()
    mean = {}
    for name, yaw in (("ahead", 0), ("right", 90), ("behind", 180), ("left", 270)):
        image = render(world, camera((0, 0, 0), yaw=yaw)).image[0]
        mean[name] = [image[:, 6:12, 4:14].mean((1, 2)), image[:, 12:18, 18:28].mean((1, 2))]
    colours = torch.stack([colour for both in mean.values() for colour in both])
    assert (torch.cdist(colours, colours) + torch.eye(8)).min() > 0.02
    surfaces = world._surface(torch.tensor([[[4.0, 1, 1], [-4, 1, 1], [4, -1, 1], [1, 1, 5]]]), cast_rays(
        world, torch.zeros(1, 3), torch.tensor([[[4.0, 1, 1], [-4, 1, 1], [4, -1, 1], [1, 1, 5]]])
    ))  # fmt: skip
    assert len(set(surfaces[0].tolist())) == 4


def test_every_pixel_has_a_depth_and_a_colour() -> None:
    pairs = render_pairs(SMALL, 3, numbers(20))
    for views in pairs.views:
        assert views.image.shape == (20, 3, 24, 32)
        assert views.depth.isfinite().all() and (views.depth > 0).all()
        assert (views.image >= 0).all() and (views.image <= 1).all()
        assert (views.image.flatten(2).std(-1) > 0.02).all()


# Correspondences


def test_covisible_points_have_the_same_colour_in_both_views() -> None:
    pairs = render_pairs(SMALL, 5, numbers(12))
    for here, matches in enumerate(find_matches(pairs)):
        there = pairs.cameras[1 - here]
        xy = matches.xy.flatten(1, 2)
        rays = there.rays(xy.nan_to_num())
        hits = cast_rays(pairs.world, there.position, rays)
        points = there.position[:, None] + hits.distance[..., None] * rays
        colour = pairs.world.colour(points, hits)
        own = pairs.views[here].image.permute(0, 2, 3, 1).flatten(1, 2)
        different = (colour - own).abs().amax(-1) > 0.01
        covisible = matches.covisible.flatten(1)
        assert covisible.float().mean() > 0.5
        assert different[covisible].float().mean() < 0.002  # pixels at edges
        hidden = there.contains(xy) & ~covisible
        assert different[hidden].float().mean() > 0.95


def test_matches_have_the_right_position_in_the_other_view() -> None:
    pairs = render_pairs(SMOOTH, 5, numbers(8))
    matches = find_matches(pairs)[0]

    def error(shift: float) -> float:
        where = (matches.xy.nan_to_num() + shift) / 48 * 2 - 1
        found = F.grid_sample(pairs.views[1].image, where, align_corners=False)
        return float(
            (found - pairs.views[0].image).abs().mean(1)[matches.covisible].median()
        )  # the median ignores pixels at edges

    assert error(0.0) < 0.01
    assert error(0.0) < 0.5 * min(error(1.0), error(-1.0))


def test_matches_in_both_directions_agree() -> None:
    pairs = render_pairs(SMALL.changed(size=(48, 48)), 6, numbers(8))
    forth, back = find_matches(pairs)
    pixel = forth.xy.nan_to_num().long().clamp(0, 47)
    scenes = torch.arange(8)[:, None, None]
    both = forth.covisible & back.covisible[scenes, pixel[..., 1], pixel[..., 0]]
    returned = back.xy[scenes, pixel[..., 1], pixel[..., 0]]
    own = pairs.cameras[0].pixels().view(48, 48, 2)
    distance = (returned - own).norm(dim=-1)[both]
    assert both.float().mean() > 0.5
    assert distance.quantile(0.9) < 1.5  # the position was rounded to a pixel
    swapped = find_matches(ViewPairs(pairs.world, pairs.cameras[::-1], pairs.views[::-1]))
    assert torch.equal(swapped[0].covisible, back.covisible)
    assert torch.equal(swapped[1].xy.nan_to_num(), forth.xy.nan_to_num())


def test_an_occluder_removes_covisibility_only_behind_it() -> None:
    first, second = camera((-1, 0, -2)), camera((1, 0, -2))
    before_second = ((1.0, 0.0, 0.0), (0.3, 0.3, 0.3), 0.0)
    free, _ = find_matches(render_both(room_with(), first, second))
    blocked, _ = find_matches(render_both(room_with(before_second), first, second))
    # The far wall at (1, 0, 5), straight ahead of the second camera, is 2 to the right and 7 ahead of the first.
    x, y = int(16 + 2 / 7 * 20), 12
    assert free.covisible[0, y, x] and not blocked.covisible[0, y, x]
    lost = free.covisible & ~blocked.covisible
    assert 0 < lost.sum() < 0.3 * free.covisible.sum()


def test_points_outside_the_other_view_are_not_covisible() -> None:
    away, _ = find_matches(render_both(room_with(), camera((0, 0, 0)), camera((0, 0, 0), yaw=180)))
    assert not away.covisible.any() and away.xy.isnan().all()
    same, _ = find_matches(render_both(room_with(), camera((0, 0, 0)), camera((0, 0, 0))))
    assert same.covisible.all()
    assert torch.allclose(same.xy.view(-1, 2), camera((0, 0, 0)).pixels(), atol=1e-4)


def test_disjoint_pairs_do_not_overlap() -> None:
    disjoint = find_matches(render_pairs(SMALL.changed(disjoint=1.0), 1, numbers(40)))[0].covisible
    mixed = find_matches(render_pairs(SMALL.changed(disjoint=0.5), 1, numbers(40)))[0].covisible
    assert disjoint.float().mean() < 0.01
    assert 8 <= (mixed.flatten(1).float().mean(1) < 0.01).sum() <= 32


def test_gradual_pairs_have_varying_distances() -> None:
    far = SMALL.changed(max_turn=40.0, max_baseline=1.2)
    own = camera((0, 0, 0)).pixels().view(24, 32, 2)

    def median_motion(settings: SceneSettings) -> Tensor:
        matches = find_matches(render_pairs(settings, 4, numbers(60)))[0]
        return (matches.xy - own).norm(dim=-1).flatten(1).nanmedian(1).values

    maximal, gradual = median_motion(far), median_motion(far.changed(gradual=True))
    assert gradual.quantile(0.1) < 0.6 * maximal.quantile(0.1)
    assert gradual.quantile(0.95) > 0.5 * maximal.quantile(0.95)


def test_the_disparity_of_rectified_pairs_agrees_with_the_matches() -> None:
    pairs = render_stereo(SMALL, 2, numbers(10))
    first, second = pairs.cameras
    assert torch.equal(first.axes, second.axes)
    matches, own = find_matches(pairs)[0], first.pixels().view(24, 32, 2)
    disparity = pairs.disparity()
    baseline = (second.position - first.position).norm(dim=-1)
    assert torch.allclose(disparity, (baseline * first.focal)[:, None, None] / pairs.views[0].depth, atol=1e-4)
    assert torch.allclose(own[..., 0] - disparity, matches.xy[..., 0], atol=1e-3)
    assert torch.allclose(own[..., 1].expand_as(disparity), matches.xy[..., 1], atol=1e-3)
    assert disparity.min() > 0


# Reproducibility


def test_a_scene_is_the_same_in_every_batch() -> None:
    together = render_pairs(SMALL, 7, numbers(6))
    again = render_pairs(SMALL, 7, numbers(6))
    alone = render_pairs(SMALL, 7, torch.tensor([4]))
    for view in (0, 1):
        assert torch.equal(together.views[view].image, again.views[view].image)
        assert torch.allclose(together.views[view].image[4], alone.views[view].image[0], atol=1e-5)
        assert torch.allclose(together.views[view].depth[4], alone.views[view].depth[0], atol=1e-5)


def test_scenes_differ_between_indices_and_seeds() -> None:
    images = render_pairs(SMALL, 7, numbers(30)).views[0].image.flatten(1)
    other = render_pairs(SMALL, 8, numbers(30)).views[0].image.flatten(1)
    distances = torch.cdist(torch.cat((images, other)), torch.cat((images, other)))
    assert (distances + 100 * torch.eye(60)).min() > 1


def test_random_numbers_follow_splitmix64() -> None:
    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    step = 0x9E3779B97F4A7C15
    key = mix((mix((5 * step + 1) % 2**64) + 2 * 9) % 2**64)
    expected = [(mix((key + counter * step) % 2**64) >> 40) / 2**24 for counter in (1, 2, 3)]
    random = SceneRandom(9, torch.tensor([5]))
    assert [*random.uniform(0, 1, 2)[0].tolist(), *random.uniform(0, 1, 1)[0].tolist()] == expected


def test_random_numbers_are_uniform_and_independent() -> None:
    drawn = SceneRandom(1, numbers(2000)).uniform(-1, 3, 20)
    assert drawn.min() >= -1 and drawn.max() < 3
    assert torch.allclose(drawn.mean(0), torch.tensor(1.0), atol=0.15)
    assert torch.allclose(drawn.var(0), torch.tensor(16 / 12), atol=0.15)
    correlations = torch.corrcoef(drawn.T) - torch.eye(20)
    assert correlations.abs().max() < 0.1
    vectors = SceneRandom(1, numbers(2000)).unit_vectors()
    assert torch.allclose(vectors.norm(dim=-1), torch.tensor(1.0), atol=1e-5)
    assert vectors.mean(0).abs().max() < 0.06


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"size": (0, 8)}, "size: a view must have at least one pixel, not 0 × 8"),
        ({"wavelength": (2.0, 1.0)}, "wavelength: must be two numbers above 0"),
        ({"wavlength": (1.0, 2.0)}, "did you mean wavelength"),
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        SceneSettings.parse(changes, "data.scenes")
