"""Arrays of an update from elsewhere: files, dictionaries, lists and Flower's messages; bounded, never unpickled."""

import io
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors import deserialize

from workbench.errors import DataError, shown
from workbench.files.reading import existing_path, reading

__all__ = ["read_arrays"]

EXPECTED = "a .safetensors or .npz file with the arrays of a state dict"

_LARGEST = 4 * 2**30
_MOST_ARRAYS = 100_000
_TYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")


def read_arrays(source: Any, field: str) -> dict[str, Any] | list[Any]:
    """The named arrays of a source, or a list of arrays that have an order but no names.

    Args:
        source: the path of a ``.safetensors`` or ``.npz`` file, ``{name: array}``, ``{layer: {name: array}}``, a list
            of arrays, or an ``ArrayRecord`` or ``Parameters`` of Flower, which are recognised by their shape.
        field: what it is called in messages.
    """
    if isinstance(source, str | os.PathLike):
        return _listed(_from_file(source))
    with reading(Path(field), "arrays"):
        if isinstance(source, Mapping):
            return _listed({str(name): _array(value) for name, value in _flat(source)})
        tensors = getattr(source, "tensors", source)
        if isinstance(tensors, list | tuple):
            return [_from_npy(one) if isinstance(one, bytes) else _array(one) for one in tensors]
    raise DataError(
        f"{field} = {shown(source)} must be the path of a .safetensors or .npz file, {{name: array}}, a list of arrays "
        "or a message of Flower."
    )


def _listed(arrays: dict[str, Any]) -> dict[str, Any] | list[Any]:
    """A list where names are only numbers: Flower calls its arrays '0', '1' and so on, numpy.savez 'arr_0', 'arr_1'."""
    numbers = [name.removeprefix("arr_") for name in arrays]
    is_list = bool(arrays) and numbers == [str(i) for i in range(len(arrays))]
    return list(arrays.values()) if is_list else arrays


def _flat(source: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """{layer: {name: array}} as 'layer/name', the name that files use."""
    return [
        (f"{layer}/{name}", array) if is_nested else (layer, value)
        for layer, value in source.items()
        for is_nested in (isinstance(value, Mapping),)
        for name, array in (value.items() if is_nested else [(None, value)])
    ]


def _array(value: Any) -> Any:
    data, kind = getattr(value, "data", None), getattr(value, "stype", None)
    if isinstance(data, bytes) and kind is not None:
        if kind != "numpy.ndarray":
            raise DataError(f"stype = {shown(kind)} must be 'numpy.ndarray'.")
        return _from_npy(data)
    # A torch tensor that requires gradients has to be detached first.
    detach = getattr(value, "detach", None)
    return np.asarray(value if detach is None else detach().cpu())


def _from_npy(data: bytes) -> NDArray[Any]:
    """The array in the bytes that `numpy.save` writes; its size is compared with what is there before it is made."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject:
        raise DataError("an array holds pickled objects, which are not read.")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise DataError(f"an array of shape {shown(shape)} has {len(data) - file.tell()} bytes.")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if is_fortran else "C")


def _from_safetensors(name: str, tensor: dict[str, Any]) -> NDArray[Any]:
    """One tensor; the library's NumPy reader has no bfloat16."""
    if tensor["dtype"] not in _TYPES:
        raise DataError(f"stores {shown(name)} as {tensor['dtype']}, which is not read.")
    return np.frombuffer(tensor["data"], _TYPES[tensor["dtype"]]).reshape(tensor["shape"])


def _from_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    file = existing_path(path, EXPECTED)
    if file.suffix in _PICKLED:
        raise DataError(
            f"{file} is pickled, and unpickling can run any code, so it is not read. Convert it where torch is: "
            f"`from safetensors.torch import save_file` and `save_file(torch.load({file.name!r}, weights_only=True), "
            f"{file.stem + '.safetensors'!r})`."
        )
    with reading(file, EXPECTED):
        if file.stat().st_size > _LARGEST:
            raise DataError(f"is larger than {_LARGEST} bytes.")
        if file.suffix != ".npz":
            tensors = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
            return {name: _from_safetensors(name, tensor) for name, tensor in tensors}
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > _MOST_ARRAYS or sum(entry.file_size for entry in entries) > _LARGEST:
                raise DataError(f"has more than {_MOST_ARRAYS} arrays or {_LARGEST} bytes unpacked.")
            return {entry.filename.removesuffix(".npy"): _from_npy(archive.read(entry)) for entry in entries}
