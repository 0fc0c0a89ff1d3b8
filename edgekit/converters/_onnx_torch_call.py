"""A node of an ONNX graph as its translation to PyTorch sees it."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.errors import ConversionError
from edgekit.tensors import Array


@dataclasses.dataclass(frozen=True)
class Call:
    """A node: attributes by name, its inputs (None where absent), and the values of those that are constants."""

    type: str
    layer: str
    attributes: dict[str, Any]
    inputs: tuple[Any, ...]
    constants: tuple[Array | None, ...]
    outputs: int

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def ints(self, place: int, attribute: str = "") -> list[int] | None:
        """Integers that come as an input, or as an attribute in older opsets; None where absent. Raises when they are computed."""
        if attribute and attribute in self.attributes:
            return [int(x) for x in self.attributes[attribute]]
        if place >= len(self.inputs) or self.inputs[place] is None:
            return None
        value = self.constants[place]
        if value is None:
            raise ConversionError(f"{self.type} in layer {self.layer}: its input {place} is computed at run time", "make it a constant")
        return [int(x) for x in value.reshape(-1)]

    def refuse(self, what: str) -> ConversionError:
        """The error for a form of the operator that is not translated."""
        return ConversionError(f"{self.type} in layer {self.layer}: {what} is not translated to PyTorch", "replace that operator")
