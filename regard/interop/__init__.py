"""Weights of other libraries as ours, and ours as theirs: a pair of functions for each, from and to."""

from regard.interop.huggingface import from_huggingface, to_huggingface
from regard.interop.timm import from_timm, to_timm
from regard.interop.torchvision import from_torchvision, to_torchvision

__all__ = ["from_huggingface", "from_timm", "from_torchvision", "to_huggingface", "to_timm", "to_torchvision"]
