"""Lists of tensors, as loops use them. A list is a tuple: writing makes a new one."""

from __future__ import annotations

from typing import Any

import torch

from edgekit.virtual.coreml.kernels.arguments import Tensor, integer, ints

TensorList = tuple[Tensor, ...]


def make_list(init_length: Any = 1, dynamic_length: Any = True, elem_shape: Any = (), dtype: str = "fp32") -> TensorList:
    """A list of zeros; an element's size that is known only at run time starts as 0."""
    del dynamic_length
    sizes = [0 if isinstance(size, str) else integer(size) for size in elem_shape]
    kind = {"bool": torch.bool, "int32": torch.int32}.get(dtype, torch.float32)
    return tuple(torch.zeros(sizes, dtype=kind) for _ in range(integer(init_length)))


def list_length(ls: TensorList) -> Tensor:
    """Number of elements."""
    return torch.tensor(len(ls), dtype=torch.int32)


def list_read(ls: TensorList, index: Any) -> Tensor:
    """The element at `index`."""
    return ls[integer(index)]


def list_write(ls: TensorList, index: Any, value: Tensor) -> TensorList:
    """The list with one element replaced, grown where it is too short."""
    return list_scatter(ls, [integer(index)], value.unsqueeze(0))


def list_gather(ls: TensorList, indices: Any) -> Tensor:
    """Elements stacked along a new first axis."""
    return torch.stack([ls[i] for i in ints(indices)])


def list_scatter(ls: TensorList, indices: Any, value: Tensor) -> TensorList:
    """The list with elements replaced by the rows of `value`, grown where it is too short."""
    out = list(ls)
    for i, row in zip(ints(indices), value, strict=True):
        out += [torch.zeros_like(row)] * (i + 1 - len(out))
        out[i] = row
    return tuple(out)


OPERATORS = {
    "make_list": make_list,
    "list_length": list_length,
    "list_read": list_read,
    "list_write": list_write,
    "list_gather": list_gather,
    "list_scatter": list_scatter,
}
