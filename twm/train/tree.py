"""A nested state as two flat things: a JSON tree, and named tensors for safetensors.

Whatever JSON cannot say is marked in the tree by an object with one key that starts with "$":

    {"$tensor": name}   a torch tensor; "stride" is added where its memory is not in row-major order
    {"$array": name}    a numpy array                    {"$float": "nan" | "inf" | "-inf"}
    {"$bytes": name}    raw bytes, stored as uint8       {"$items": [[key, value], ...]}  keys that are not plain text

A name is the path through the state, joined by "/": ``world_model/encoder.0.weight``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

# What both torch and the safetensors format know; everything else is refused by name instead of converted.
_DTYPES = {torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
_DTYPES |= {torch.int8, torch.int16, torch.int32, torch.int64}
_DTYPES |= {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64}


def pack(state: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Split ``state`` into its JSON tree and its tensors (on the CPU, contiguous, no two sharing memory)."""
    packer = _Packer()
    return packer.pack(state, ""), packer.tensors


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._storages: set[int] = set()

    def pack(self, value: Any, path: str) -> Any:
        match value:
            case Tensor():
                return self._tensor(value, path)
            case np.ndarray():
                return {"$array": self._add(path, _from_numpy(value, path))}
            case bytes():
                return {"$bytes": self._add(path, torch.from_numpy(np.frombuffer(value, np.uint8).copy()))}
            case np.generic():  # a numpy scalar comes back as the Python number of the same value
                return self.pack(value.item(), path)
            case float():
                return value if math.isfinite(value) else {"$float": str(value)}
            case None | bool() | int() | str():
                return value
            case Mapping():
                return self._mapping(value, path)
            case list() | tuple():
                return [self.pack(item, f"{path}/{index}") for index, item in enumerate(value)]
        raise TypeError(
            f"cannot save {path}: expected tensors, arrays, bytes or JSON values, came {type(value).__name__}"
        )

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        items = []
        for key, item in value.items():
            if isinstance(key, bool) or not isinstance(key, (int, str)):
                raise TypeError(f"cannot save {path}: keys must be texts or whole numbers, came {key!r}")
            items.append([key, self.pack(item, f"{path}/{key}" if path else str(key))])
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in items):
            return dict(items)
        return {"$items": items}  # optimisers number their parameters: 0 must not come back as "0"

    def _tensor(self, value: Tensor, path: str) -> Any:
        if value.layout != torch.strided or value.dtype not in _DTYPES:
            raise TypeError(f"cannot save {path}: tensors of {value.dtype}, {value.layout} are not supported")
        # Kernels are chosen by memory layout and add in another order for another layout. A tensor that was
        # channels-last must be so again, or a resumed run would drift from the uninterrupted one.
        stride = list(torch.empty_like(value, device="meta").stride())
        tensor = value.detach().cpu().contiguous()
        node: dict[str, Any] = {"$tensor": self._add(path, tensor)}
        if stride != list(tensor.stride()):
            node["stride"] = stride
        return node

    def _add(self, name: str, tensor: Tensor) -> str:
        if name in self.tensors or name == "__metadata__":
            raise ValueError(f"cannot save two tensors under the name {name}: rename a key of the state")
        storage = tensor.untyped_storage().data_ptr()
        self.tensors[name] = tensor.clone() if storage in self._storages else tensor
        self._storages.add(storage)
        return name


def _from_numpy(value: np.ndarray[Any, Any], path: str) -> Tensor:
    native = value.dtype.newbyteorder("=")
    if native.kind not in "biufc" or native.itemsize > 8:
        raise TypeError(f"cannot save {path}: arrays of {value.dtype} are not supported")
    return torch.from_numpy(value.astype(native, order="C", copy=True))


def unpack(node: Any, fetch: Callable[[str], Tensor]) -> Any:
    """The reverse of :func:`pack`; ``fetch`` gives a tensor of its own for a name. Tuples come back as lists."""
    if isinstance(node, list):
        return [unpack(item, fetch) for item in node]
    match node:
        case {"$tensor": name, "stride": stride}:
            tensor = fetch(name)
            return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)
        case {"$tensor": name}:
            return fetch(name)
        case {"$array": name}:
            return fetch(name).numpy()
        case {"$bytes": name}:
            return fetch(name).numpy().tobytes()
        case {"$float": text}:
            return float(text)
        case {"$items": items}:
            return {key: unpack(item, fetch) for key, item in items}
        case dict():
            return {key: unpack(item, fetch) for key, item in node.items()}
    return node


def select(node: Any, prefixes: Iterable[str]) -> Any:
    """The tree without the branches that lie outside all ``prefixes`` ("world_model/", "policy/actor/")."""
    wanted = [prefix.rstrip("/") + "/" for prefix in prefixes]

    def walk(node: Any, path: str) -> Any:
        """``node`` is on the way to a wanted branch: keep the wanted children, follow those on the way to one."""
        if not isinstance(node, dict):
            return None
        items = node["$items"] if "$items" in node else list(node.items())
        kept = []
        for key, item in items:
            child = f"{path}{key}/"
            if any(child.startswith(prefix) for prefix in wanted):
                kept.append([key, item])
            elif any(prefix.startswith(child) for prefix in wanted) and (inner := walk(item, child)):
                kept.append([key, inner])
        if not kept:
            return None
        return {"$items": kept} if "$items" in node else dict(kept)

    return walk(node, "") or {}
