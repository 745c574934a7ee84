"""Rendered pairs of views with exact depth and correspondences, and stereo photographs.

A scene is a room with textured boxes and panels, seen by two cameras. It is a function of a seed and the index of the
scene: scene i is the same in every batch and, up to rounding, on every device.
"""

from regard.data.two_view.cameras import Cameras
from regard.data.two_view.config import SceneSettings
from regard.data.two_view.pairs import Matches, ViewPairs, Views, find_matches, render, render_pairs, render_stereo

__all__ = ["Cameras", "Matches", "SceneSettings", "ViewPairs", "Views"]
__all__ += ["find_matches", "render", "render_pairs", "render_stereo"]
