"""Read model.bin of CTranslate2, binary versions 2 to 6, without the engine, and dequantise its weights.

The file is a sequence of variables, each with its name, shape, dtype and values, followed by aliases: further names of
variables. Quantised weights have a variable of the same name with the suffix "_scale": value = integer / scale.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.errors import UserError
from regard.files import check_regular, report_unreadable

Array = npt.NDArray[Any]
VERSIONS = range(2, 7)
MAX_VARIABLES = 100_000
"""Maximum number of variables or aliases. A model of 100 layers has about 3,000."""
MAX_SHARING = 8
"""Maximum ratio of the elements of all names to those in the file, because aliases cost no space in it."""
GLOBAL_INT16_SCALE = 1000.0
"""Scale of int16 weights in old files, which do not contain it."""
BFLOAT16 = "bfloat16"
_DTYPES = ("float32", "int8", "int16", "int32", "float16", BFLOAT16)
_DTYPES_BY_SIZE = {4: "float32", 2: "int16", 1: "int8"}
"""Before version 4, the dtype is given by its size."""


class EngineFile(NamedTuple):
    """Contents of model.bin.

    Attributes:
        version: Version of the format.
        specification: Kind of model, such as "TransformerSpec", and its revision.
        tensors: Values by name. Weights are dequantised to float32; flags and sizes keep their integer dtype.
        precision: dtype in which the weights are stored.
    """

    version: int
    specification: str
    revision: int
    tensors: dict[str, Tensor]
    precision: str


def read_engine_file(path: Path) -> EngineFile:
    """Read a model.bin.

    Raises:
        UserError: The file is damaged, has an unknown version, or needs more memory than its size permits.
    """
    check_regular(path)
    with report_unreadable(path):
        reader = _Reader(path, np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8))
    version = reader.integer(4, "the version")
    if version not in VERSIONS:
        raise UserError(
            f"{path}: has binary version {version}, or is no model of CTranslate2; supported are {VERSIONS[0]} to "
            f"{VERSIONS[-1]}"
        )
    specification, revision = reader.text("the name of the model"), reader.integer(4, "the revision")
    arrays, dtypes = _read_variables(reader, version)
    sizes = sum(array.size for array in arrays.values())
    if version >= 3:
        _read_aliases(reader, arrays)
    if sum(array.size for array in arrays.values()) > MAX_SHARING * sizes:
        raise UserError(f"{path}: its aliases repeat variables, so that the model is many times larger than the file")
    weights = Counter(dtype for name, dtype in dtypes.items() if name.endswith("weight"))
    precision = weights.most_common(1)[0][0] if weights else "float32"
    return EngineFile(version, specification, revision, _dequantise(arrays, path), precision)


class _Reader:
    """Reads the file from the beginning; reading past its end is a `UserError`."""

    def __init__(self, path: Path, content: Array) -> None:
        self.path, self.content, self.position = path, content, 0

    def take(self, size: int, what: str) -> Array:
        if size > len(self.content) - self.position:
            raise UserError(f"{self.path}: ends within {what} (byte {self.position:,}), so it is damaged or incomplete")
        start, self.position = self.position, self.position + size
        return self.content[start : start + size]

    def integer(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what).tobytes(), "little")

    def text(self, what: str) -> str:
        content = self.take(self.integer(2, what), what).tobytes()
        try:
            return content.rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{self.path}: {what} is not UTF-8 text, so the file is damaged") from None

    def count(self, what: str) -> int:
        number = self.integer(4, f"the number of {what}")
        if number > MAX_VARIABLES:
            raise UserError(f"{self.path}: states {number:,} {what}, but a model has at most {MAX_VARIABLES:,}")
        return number


def _read_variables(reader: _Reader, version: int) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the values of the variables and their dtypes."""
    dtypes: dict[str, str] = {}
    arrays: dict[str, Array] = {}
    for _ in range(reader.count("variables")):
        name = reader.text("the name of a variable")
        rank = reader.integer(1, name)
        shape = [reader.integer(4, name) for _ in range(rank)]
        code = reader.integer(1, name)
        dtype = _DTYPES_BY_SIZE.get(code) if version < 4 else _DTYPES[code] if code < len(_DTYPES) else None
        if dtype is None:
            raise UserError(f"{reader.path}: {name} has the unknown dtype {code}")
        storage = np.dtype("uint16" if dtype == BFLOAT16 else dtype).newbyteorder("<")
        size = reader.integer(4, name) * (code if version < 4 else 1)
        # Larger variables exceed the 32-bit field, so their size follows from the shape.
        if size != math.prod(shape) * storage.itemsize % 2**32:
            raise UserError(f"{reader.path}: {name} has {size:,} bytes, but its shape is {shape} of {dtype}")
        if name in arrays:
            raise UserError(f"{reader.path}: contains {name} twice")
        values = reader.take(math.prod(shape) * storage.itemsize, name).view(storage)
        try:
            values = values.reshape(shape)
        except ValueError:  # too many dimensions, or an empty array with huge ones
            raise UserError(f"{reader.path}: {name} has an impossible shape, so the file is damaged") from None
        arrays[name], dtypes[name] = (_from_bfloat16(values) if dtype == BFLOAT16 else values), dtype
    return arrays, dtypes


def _read_aliases(reader: _Reader, arrays: dict[str, Array]) -> None:
    """Add further names of variables and of their scales."""
    for _ in range(reader.count("aliases")):
        alias, name = reader.text("an alias"), reader.text("an alias")
        for suffix in ("", "_scale"):
            if name + suffix in arrays:
                arrays.setdefault(alias + suffix, arrays[name + suffix])


def _from_bfloat16(values: Array) -> Array:
    return (values.astype(np.uint32) << 16).view(np.float32)


def _dequantise(arrays: dict[str, Array], path: Path) -> dict[str, Tensor]:
    """Return the variables as tensors, without scales. Aliases share memory."""
    tensors: dict[str, Tensor] = {}
    shared: dict[tuple[int, int], Tensor] = {}
    for name, values in arrays.items():
        if name.endswith("weight_scale"):
            continue
        scale = arrays.get(f"{name}_scale") if name.endswith("weight") else None
        key = (id(values), id(scale))
        if name.endswith("weight") and values.dtype.kind == "i":
            if scale is None and values.dtype == np.int8:
                raise UserError(f"{path}: {name} is quantised, but {name}_scale is missing")
            if key not in shared:
                shared[key] = _divide(values, scale, f"{path}: {name}_scale")
        elif key not in shared:
            is_float = values.dtype.kind == "f"
            shared[key] = torch.from_numpy(values.astype(np.float32 if is_float else values.dtype.newbyteorder("=")))
        tensors[name] = shared[key]
    return tensors


def _divide(values: Array, scale: Array | None, where: str) -> Tensor:
    """Dequantise: a scale is a single number, or one per row."""
    factor = np.float32(GLOBAL_INT16_SCALE) if scale is None else scale.astype(np.float32)
    if factor.size > 1 or factor.ndim:
        if factor.shape != values.shape[:1]:
            raise UserError(f"{where} has shape {list(factor.shape)}, but the weight has {list(values.shape)}")
        factor = factor.reshape(-1, *[1] * (values.ndim - 1))
    if not np.isfinite(factor).all() or not factor.all():
        raise UserError(f"{where} contains values that are zero or not finite")
    return torch.from_numpy(np.divide(values, factor, dtype=np.float32))
