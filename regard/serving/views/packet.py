"""Arrays for the page, with what is to be said of them: JSON, then bytes, which page/packet.js reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

ALIGNED = 4
Array = npt.NDArray[Any]
Precision = Literal["u1", "u2", "f4", "b1"]


def pack(about: Mapping[str, Any], arrays: Mapping[str, tuple[Array, Precision]]) -> bytes:
    """A packet: the length of the JSON as four bytes, the JSON, and each array where the JSON says.

    Arrays of "u1" and "u2" are steps between their lowest and highest finite value, the last step being what is not
    finite; "f4" keeps every number as it is, and so does "b1" bytes.
    """
    described: dict[str, dict[str, Any]] = {}
    body = bytearray()
    for name, (array, precision) in arrays.items():
        scale, data = _steps(array, precision)
        described[name] = {"shape": list(array.shape), "type": precision, "at": len(body)} | scale
        body += data + b"\0" * (-len(data) % ALIGNED)
    head = json.dumps({"about": about, "arrays": described}, ensure_ascii=False, allow_nan=False).encode("utf-8")
    head += b" " * (-len(head) % ALIGNED)
    return len(head).to_bytes(4, "little") + head + bytes(body)


def unpack(packet: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float64]]]:
    """What `pack` was given, as closely as it was kept."""
    start = 4 + int.from_bytes(packet[:4], "little")
    head = json.loads(packet[4:start])
    arrays = {}
    for name, one in head["arrays"].items():
        count = int(np.prod(one["shape"]))
        kind = "u1" if one["type"] == "b1" else f"<{one['type']}"
        numbers = np.frombuffer(packet, kind, count, start + one["at"]).astype(float)
        if "low" in one:
            last = _last(one["type"])
            steps = np.where(numbers == last, np.nan, numbers)
            numbers = one["low"] + steps * (one["high"] - one["low"]) / (last - 1)
        arrays[name] = numbers.reshape(one["shape"])
    return head["about"], arrays


def _steps(array: Array, precision: Precision) -> tuple[dict[str, float], bytes]:
    if precision in ("f4", "b1"):
        return {}, array.astype("<f4" if precision == "f4" else "u1").tobytes()
    finite = np.isfinite(array)
    low = float(array.min(where=finite, initial=0.0))
    high = float(array.max(where=finite, initial=low + 1e-9))
    last = _last(precision)
    steps = np.rint((np.where(finite, array, low) - low) / (high - low) * (last - 1))
    return {"low": low, "high": high}, np.where(finite, steps, last).astype(f"<{precision}").tobytes()


def _last(precision: str) -> int:
    return 255 if precision == "u1" else 65535
