"""Rendered pairs of views, with the depth and the correspondences that photographs do not come with.

A scene is a room with textured boxes and panels in it, seen by two cameras. Everything follows from a seed and the
scene's number: scene i is the same in every batch, and on every device but for rounding.
"""

from regard.data.two_view.cameras import Cameras
from regard.data.two_view.config import SceneSettings
from regard.data.two_view.pairs import Matches, Pairs, Views, find_matches, render, render_pairs, render_stereo

__all__ = [
    "Cameras",
    "Matches",
    "Pairs",
    "SceneSettings",
    "Views",
    "find_matches",
    "render",
    "render_pairs",
    "render_stereo",
]
