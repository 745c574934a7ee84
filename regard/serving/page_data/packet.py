"""Packets: a binary format for JSON with arrays, which page/packet.js reads.

A packet consists of the length of the JSON part (4 bytes, little-endian), the JSON part, and the data of the arrays.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

ALIGNMENT = 4
LARGEST_CODES = {"u1": 255, "u2": 65535}
Array = npt.NDArray[Any]
Encoding = Literal["u1", "u2", "f4", "b1"]
"""`u1` and `u2`: 8-bit and 16-bit quantisation; `f4`: float32; `b1`: bytes."""
Arrays = dict[str, tuple[Array, Encoding]]


def pack(content: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Return a packet with JSON content and arrays.

    `u1` and `u2` quantise the range of the finite values linearly; the largest code stands for values that are not
    finite. `f4` and `b1` are exact.
    """
    headers: dict[str, dict[str, Any]] = {}
    data = bytearray()
    for name, (array, encoding) in arrays.items():
        value_range, encoded = _encode(array, encoding)
        headers[name] = {"shape": list(array.shape), "type": encoding, "offset": len(data)} | value_range
        data += encoded + b"\0" * (-len(encoded) % ALIGNMENT)
    head = json.dumps({"content": content, "arrays": headers}, ensure_ascii=False, allow_nan=False).encode("utf-8")
    head += b" " * (-len(head) % ALIGNMENT)
    return len(head).to_bytes(4, "little") + head + bytes(data)


def _encode(array: Array, encoding: Encoding) -> tuple[dict[str, float], bytes]:
    """Return the range of a quantised array (empty for exact encodings), and its data."""
    if encoding in ("f4", "b1"):
        return {}, array.astype("<f4" if encoding == "f4" else "u1").tobytes()
    finite = np.isfinite(array)
    low = float(array.min(where=finite, initial=0.0))
    high = float(array.max(where=finite, initial=low + 1e-9))
    not_finite = LARGEST_CODES[encoding]
    codes = np.rint((np.where(finite, array, low) - low) / (high - low) * (not_finite - 1))
    return {"low": low, "high": high}, np.where(finite, codes, not_finite).astype(f"<{encoding}").tobytes()
