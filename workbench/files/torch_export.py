"""The ``.pt2`` archive that `torch.export.save` writes: read without torch, bounded, and never unpickled.

The archive is a zip file of uncompressed entries: the graph as JSON, and the bytes of every tensor. Everything is
checked before it is used, because an archive may come from anywhere.
"""

import json
import math
import os
import zipfile
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from workbench.errors import DataError, shown
from workbench.files.reading import existing_path, reading

__all__ = ["EXPECTED", "Name", "Node", "TorchExport", "read_torch_export"]

EXPECTED = "a .pt2 file that torch.export.save wrote (torch 2.13)"

_SCHEMA = 8
_MOST_ENTRIES = 20_000
_LARGEST_JSON = 64 * 2**20
_LARGEST_ARCHIVE = 4 * 2**30
# The numbers that torch gives to types of numbers; others have no place in an image classifier.
_TYPES: dict[int, Any] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float16,
    7: np.float32,
    8: np.float64,
    12: np.bool_,
    13: jnp.bfloat16,
}


class Name(str):
    """The name of a value in the graph, in contrast to a string that is an argument."""

    __slots__ = ()


@dataclass(frozen=True)
class Node:
    """One operation of the graph.

    Attributes:
        operator: without namespace and overload, e.g. ``conv2d``.
        arguments: by name; a `Name` refers to a value.
        results: the names of its results.
    """

    operator: str
    arguments: dict[str, Any]
    results: tuple[Name, ...]


@dataclass(frozen=True, eq=False, repr=False)
class TorchExport:
    """A network as torch exported it.

    Attributes:
        name: of the file.
        nodes: in the order in which they run.
        image: the name of the graph's input, a batch of images.
        parameters: the names of trained values, as in torch's state dict, by their names in the graph.
        buffers: likewise, running statistics for instance.
        stored_buffers: the names of those that are in the state dict.
        modules: the names of the network's modules, in the order of the state dict.
        tensors: parameters and buffers by their names in the state dict, and constants by their names in the graph.
        sizes: the exported size of every value, None for one that is free.
        output: the name of the result.
    """

    name: str
    nodes: tuple[Node, ...]
    image: Name
    parameters: dict[Name, str]
    buffers: dict[Name, str]
    stored_buffers: tuple[str, ...]
    modules: tuple[str, ...]
    tensors: dict[str, NDArray[Any]]
    sizes: dict[str, list[int | None]]
    output: Name

    @property
    def image_sizes(self) -> list[int | None]:
        """[M, C, H, W]."""
        return self.sizes[self.image]


def read_torch_export(path: str | os.PathLike[str]) -> TorchExport:
    """Read an exported network; what is wrong with the file becomes one sentence."""
    file = existing_path(path, EXPECTED)
    with reading(file, EXPECTED), zipfile.ZipFile(file) as archive:
        return _Archive(archive).export(file.stem)


class _Archive:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        entries = archive.infolist()
        if len(entries) > _MOST_ENTRIES or sum(entry.file_size for entry in entries) > _LARGEST_ARCHIVE:
            raise DataError(f"has more than {_MOST_ENTRIES} entries or {_LARGEST_ARCHIVE} bytes; expected {EXPECTED}.")
        if packed := [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]:
            raise DataError(
                f"has a compressed entry {shown(packed[0])}, which torch never writes; expected {EXPECTED}."
            )
        self._archive = archive
        # All entries are in one folder, named after the file.
        self._entries = {entry.filename.partition("/")[2]: entry for entry in entries}

    def export(self, name: str) -> TorchExport:
        if self._text("archive_format") != "pt2" or self._text("archive_version") != "0":
            raise DataError(f"is not in version 0 of the pt2 format; expected {EXPECTED}.")
        if self._text("byteorder") != "little":
            raise DataError("was written on a big-endian machine; export it on a little-endian one.")
        program = self._json("models/model.json")
        version = program["schema_version"]["major"]
        if version != _SCHEMA:
            raise DataError(f"has version {shown(version)} of torch's export schema; this workbench reads {_SCHEMA}.")
        graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
        weights = self._tensors("data/weights/", "model_weights_config.json")
        constants = self._tensors("data/constants/", "model_constants_config.json")
        images, parameters, buffers, stored, tensors = [], {}, {}, [], dict(weights)
        for spec in signature["input_specs"]:
            ((kind, content),) = spec.items()
            if kind == "user_input":
                images.append(_value(content["arg"]))
            elif kind == "parameter":
                parameters[Name(content["arg"]["name"])] = content["parameter_name"]
            elif kind == "buffer":
                buffers[Name(content["arg"]["name"])] = content["buffer_name"]
                if content["persistent"]:
                    stored.append(content["buffer_name"])
                # A buffer that is in no state dict is stored among the constants.
                if content["buffer_name"] not in tensors:
                    tensors[content["buffer_name"]] = constants[content["buffer_name"]]
            elif kind == "tensor_constant":
                tensors[content["arg"]["name"]] = constants[content["tensor_constant_name"]]
            else:
                raise DataError(f"takes {shown(kind)} as an input; a classifier takes a batch of images.")
        outputs = [_value(s["user_output"]["arg"]) for s in signature["output_specs"] if "user_output" in s]
        if len(images) != 1 or len(outputs) != 1 or not isinstance(images[0], Name) or not isinstance(outputs[0], Name):
            raise DataError(
                f"takes {len(images)} inputs and returns {len(outputs)} outputs; it must take a batch of images and "
                "return logits."
            )
        for owner in (*parameters.values(), *buffers.values()):
            if owner not in tensors:
                raise DataError(f"has no values for {shown(owner)}; it is incomplete.")
        sizes = {value: [s.get("as_int") for s in meta["sizes"]] for value, meta in graph["tensor_values"].items()}
        return TorchExport(
            name,
            tuple(map(_node, graph["nodes"])),
            images[0],
            parameters,
            buffers,
            tuple(stored),
            tuple(module["fqn"] for module in program["graph_module"]["module_call_graph"]),
            tensors,
            sizes,
            outputs[0],
        )

    def _bytes(self, name: str, most: int = _LARGEST_ARCHIVE) -> bytes:
        if name not in self._entries:
            raise DataError(f"has no entry {shown(name)}; expected {EXPECTED}.")
        if self._entries[name].file_size > most:
            raise DataError(f"has an entry {shown(name)} of more than {most} bytes.")
        return self._archive.read(self._entries[name])

    def _text(self, name: str) -> str:
        return self._bytes(name, 1000).decode().strip()

    def _json(self, name: str) -> Any:
        return json.loads(self._bytes(name, _LARGEST_JSON))

    def _tensors(self, folder: str, config: str) -> dict[str, NDArray[Any]]:
        listed = self._json(folder + config)["config"] if folder + config in self._entries else {}
        # Many names of one entry would make a large copy of each of a small file.
        paths = [folder + entry["path_name"] for entry in listed.values()]
        if sum(self._entries[path].file_size for path in paths if path in self._entries) > _LARGEST_ARCHIVE:
            raise DataError(f"lists arrays of more than {_LARGEST_ARCHIVE} bytes; expected {EXPECTED}.")
        return {name: self._tensor(name, folder, entry) for name, entry in listed.items()}

    def _tensor(self, name: str, folder: str, entry: dict[str, Any]) -> NDArray[Any]:
        meta = entry["tensor_meta"]
        if entry["use_pickle"] or meta["dtype"] not in _TYPES:
            raise DataError(f"stores {shown(name)} pickled or in an unknown type, which is not read.")
        stored = np.frombuffer(self._bytes(folder + entry["path_name"]), _TYPES[meta["dtype"]])
        sizes, strides = ([int(n["as_int"]) for n in meta[key]] for key in ("sizes", "strides"))
        first = int(meta["storage_offset"]["as_int"])
        last = first + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        # Strides of 0 or a size beyond the stored bytes would make a large array of a small file.
        if min([first, *sizes, *strides], default=0) < 0 or last >= len(stored) or math.prod(sizes) > len(stored):
            raise DataError(f"stores too few bytes for {shown(name)} of size {shown(sizes)}.")
        view = np.lib.stride_tricks.as_strided(stored[first:], sizes, [s * stored.itemsize for s in strides])
        return view.copy()


def _node(node: dict[str, Any]) -> Node:
    arguments = {argument["name"]: _value(argument["arg"]) for argument in node["inputs"]}
    results = [_value(output) for output in node["outputs"]]
    if len(results) == 1 and isinstance(results[0], list):
        results = results[0]
    operator = node["target"].removeprefix("torch.ops.").removeprefix("aten.").partition(".")[0]
    return Node(operator, arguments, tuple(results))


def _value(argument: dict[str, Any]) -> Any:
    """An argument of the graph: a union of one named kind and its value."""
    ((kind, value),) = argument.items()
    match kind:
        case "as_none":
            return None
        case "as_tensor":
            return Name(value["name"])
        case "as_tensors":
            return [Name(one["name"]) for one in value]
        case "as_name":
            return Name(value)
        case "as_sym_int" | "as_optional_tensor":
            return _value(value)
        case "as_sym_ints" | "as_optional_tensors":
            return [_value(one) for one in value]
    return value
