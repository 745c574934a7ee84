"""Rendered pairs of views, with the depth and the correspondences that photographs do not come with.

A scene is a room with textured boxes and panels in it, seen by two cameras. Everything follows from a seed and the
scene's number: scene i is the same in every batch, and on every device but for rounding.
"""

from regard.vision.scenes.cameras import Cameras
from regard.vision.scenes.matches import Matches, find_matches
from regard.vision.scenes.pairs import Pairs, Views, render, render_pairs, render_stereo
from regard.vision.scenes.settings import SceneSettings

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
