"""Simulation of colour blindness, and colour differences.

The simulations are of complete dichromacy, the most severe form.
"""

import numpy as np
import numpy.typing as npt

Colours = npt.NDArray[np.float64]
"""sRGB from 0 to 255, (…, 3)."""

VISIONS: dict[str, Colours] = {
    "normal": np.eye(3),
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
    "achromatopsia": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}
"""Matrices from linear RGB to the linear RGB that a person perceives."""
_RGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def to_lab(colours: Colours, vision: str = "normal") -> Colours:
    """Return the CIELAB coordinates (D65) of colours as perceived with a kind of vision."""
    xyz = (_linear(colours) @ VISIONS[vision].T).clip(0, 1) @ _RGB_TO_XYZ.T / _RGB_TO_XYZ.sum(1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def colour_difference(first: Colours, second: Colours, vision: str = "normal") -> Colours:
    """Return the difference ΔE (CIE 1976): 2 is barely visible, 100 separates black from white."""
    return np.asarray(np.linalg.norm(to_lab(first, vision) - to_lab(second, vision), axis=-1))


def contrast_ratio(first: Colours, second: Colours) -> float:
    """Return the contrast ratio of WCAG, from 1 to 21."""
    darker, lighter = sorted(float(_linear(colour) @ VISIONS["achromatopsia"][0]) for colour in (first, second))
    return (lighter + 0.05) / (darker + 0.05)


def _linear(colours: Colours) -> Colours:
    values = np.asarray(colours, float) / 255
    return np.asarray(np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4))
