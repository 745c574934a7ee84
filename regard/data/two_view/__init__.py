"""Rendered pairs of views with exact depth and correspondences.

A scene is a room with textured boxes and panels, seen by two cameras. It is a function of a seed and the index of the
scene: scene i is the same in every batch and, up to rounding, on every device.
"""
