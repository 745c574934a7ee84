"""Colours as people see them who lack one of the three kinds of cones, and how far apart colours are.

Nobody sees exactly so; it is the usual worst case, with one kind of cone gone.
"""

import numpy as np
import numpy.typing as npt

Colours = npt.NDArray[np.float64]
"""sRGB from 0 to 255, (…, 3)."""

SIGHTS: dict[str, Colours] = {
    "usual": np.eye(3),
    # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
    "none of colour": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}
_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colours: Colours, sight: str = "usual") -> Colours:
    """Lightness, redness and yellowness, CIELAB under daylight, as somebody of this sight sees them."""
    xyz = (_linear(colours) @ SIGHTS[sight].T).clip(0, 1) @ _TO_XYZ.T / _TO_XYZ.sum(1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def distance(one: Colours, other: Colours, sight: str = "usual") -> Colours:
    """How far apart colours are, ΔE of 1976: 2 is barely seen, 100 is black from white."""
    return np.asarray(np.linalg.norm(lab(one, sight) - lab(other, sight), axis=-1))


def contrast(one: Colours, other: Colours) -> float:
    """How well writing of one colour is read on the other, as WCAG counts it, from 1 to 21."""
    darker, lighter = sorted(float(_linear(colour) @ SIGHTS["none of colour"][0]) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def _linear(colours: Colours) -> Colours:
    share = np.asarray(colours, float) / 255
    return np.asarray(np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4))
