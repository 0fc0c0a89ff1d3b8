"""What a program is read from: an ONNX file of a known opset, with static shapes at its ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import ConversionError, require
from edgekit.tensors import Array, TensorSpec

OPSETS = range(13, 24)
"""QuantizeLinear with an axis is 13; from 24 on operators are unknown here."""


def load(source: Path | Any) -> Any:
    """A `ModelProto` with inferred shapes, from a file or as given. Raises `ConversionError` for an unreadable file or an opset outside `OPSETS`."""
    onnx = require("onnx", extra="onnx", purpose="reading an ONNX model")
    if isinstance(source, Path):
        try:
            source = onnx.load(source)
        except Exception as error:  # protobuf raises its own types
            raise ConversionError(f"{source.name}: not a readable ONNX file") from error
    version = next((o.version for o in source.opset_import if o.domain in ("", "ai.onnx")), 0)
    if version not in OPSETS:
        raise ConversionError(f"the model has opset {version}; the accelerator's reference reads {OPSETS.start} to {OPSETS.stop - 1}", "export again")
    try:
        return onnx.shape_inference.infer_shapes(source)
    except Exception:  # inference is a help: what it cannot tell is refused where it is needed
        return source


def shapes_of(proto: Any) -> dict[str, tuple[int, ...]]:
    """Known shapes by name."""
    values = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    return {value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in values}


def edge(values: Sequence[Any], constants: dict[str, Array]) -> tuple[TensorSpec, ...]:
    """Inputs or outputs. Raises `ConversionError` for a dynamic shape."""
    import onnx

    specs = []
    for value in values:
        if value.name in constants:
            continue
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        if any(size < 1 for size in shape):
            raise ConversionError(f"{value.name}: a dynamic shape, and the accelerator is compiled for one", "fix it when exporting, or with --input")
        specs.append(TensorSpec(value.name, shape, onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name))
    return tuple(specs)


def with_scales(specs: tuple[TensorSpec, ...], positions: dict[str, int]) -> tuple[TensorSpec, ...]:
    """int8 edges with their scale."""
    return tuple(TensorSpec(s.name, s.shape, s.dtype, 2.0 ** -positions[s.name]) if s.name in positions else s for s in specs)


def attributes_of(node: Any) -> dict[str, Any]:
    """A node's attributes; texts are bytes."""
    import onnx

    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
