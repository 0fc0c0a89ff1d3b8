"""A Core ML specification as frozen values: features, functions, blocks, operations and the constants they name."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.errors import BundleError, ConversionError
from edgekit.virtual.coreml import schema, wire

UNKNOWN = -1
"""A size that is known only at run time."""


@dataclasses.dataclass(frozen=True)
class Type:
    """A tensor's dtype and shape. `kind` is `tensor`, `list`, `tuple`, `dictionary` or `state`; a state's dtype and shape are of what it holds."""

    dtype: str
    shape: tuple[int, ...]
    kind: str = "tensor"


@dataclasses.dataclass(frozen=True)
class Named:
    """A name with its type."""

    name: str
    type: Type


@dataclasses.dataclass(frozen=True)
class Constant:
    """A literal: `payload` is the decoded `TensorValue` message, a tuple of constants, or the (file, offset) of a blob."""

    type: Type
    payload: Any
    kind: str = "tensor"


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation: `inputs` bind a parameter to names and literals (several for a tuple parameter)."""

    type: str
    name: str
    inputs: dict[str, tuple[str | Constant, ...]]
    outputs: tuple[Named, ...]
    attributes: dict[str, Constant]
    blocks: tuple[Block, ...] = ()


@dataclasses.dataclass(frozen=True)
class Block:
    """Operations in execution order, what they take from outside by name (control flow only) and which names they yield."""

    inputs: tuple[Named, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]


@dataclasses.dataclass(frozen=True)
class Feature:
    """An input, output or state as the app sees it. `channels` is above 0 for an image, `shape` is then (1, channels, height, width), as the
    program takes it; with `reversed` in the order blue, green, red.

    `flexible` says that the interface allows other shapes than `shape`; `shapes` are those that it lists, if it does.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    channels: int = 0
    flexible: bool = False
    reversed: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """The function that a package runs, with its interface. `opset` is `CoreML6` (iOS 16), `CoreML7` (iOS 17), `CoreML8` (iOS 18) or older.

    `function` is its name; `listed` says that the interface stands in the list of functions (iOS 18), not in the model's own description.
    """

    version: int
    opset: str
    inputs: tuple[Named, ...]
    block: Block
    features_in: tuple[Feature, ...]
    features_out: tuple[Feature, ...]
    function: str = "main"
    listed: bool = False


def parse(data: bytes) -> Program:
    """The program of a specification file.

    Raises `BundleError` when the bytes are damaged or of a newer specification, `ConversionError` when the model is no ML Program.
    """
    try:
        message = wire.decode(memoryview(data), schema.model())
        version = message.get("specification_version", 0)
        if not 1 <= version <= schema.NEWEST_SPECIFICATION:
            raise BundleError(
                f"model specification version {version}, but this edgekit reads up to {schema.NEWEST_SPECIFICATION}",
                "convert for an older deployment target, or update edgekit",
            )
        if "program" not in message:
            raise ConversionError(f"the package holds {_kind(data)}, not an ML Program", "convert with convert_to='mlprogram'")
        return _program(message, version)
    except (wire.WireError, KeyError, TypeError) as error:
        raise BundleError(f"the model specification is damaged: {error}", "copy the package again, or convert the model again") from error


def _kind(data: bytes) -> str:
    numbers = {number for number, _, _ in wire.fields(memoryview(data))}
    return next((kind for number, kind in schema.MODEL_KINDS.items() if number in numbers), "no model that edgekit knows")


def _program(message: dict[str, Any], version: int) -> Program:
    description = message.get("description", {})
    functions = message["program"].get("functions", {})
    wanted = description.get("default_function") or "main"
    if wanted not in functions:
        raise BundleError(f"the program has no function {wanted!r}: {', '.join(sorted(functions)) or 'it has none'}")
    interface = next((f for f in description.get("functions", ()) if f.get("name") == wanted), description)
    function = functions[wanted]
    opset = function.get("opset", "")
    blocks = function.get("blocks", {})
    if opset not in blocks:
        raise BundleError(f"the function {wanted} has no block for its operator set {opset!r}")
    inputs, block = tuple(_named(x) for x in function.get("inputs", ())), _block(blocks[opset])
    _check_names(block, {x.name for x in inputs})
    return Program(
        version,
        opset,
        inputs,
        block,
        tuple(_feature(x) for x in interface.get("inputs", ())),
        tuple(_feature(x) for x in interface.get("outputs", ())),
        wanted,
        interface is not description,
    )


def _check_names(block: Block, outer: set[str]) -> None:
    """Every name is made before it is read, and every constant has a value. Raises `BundleError`."""
    known = outer | {x.name for x in block.inputs}
    for operation in block.operations:
        if operation.type == "const" and ("val" not in operation.attributes or len(operation.outputs) != 1):
            raise BundleError(f"the constant {operation.name} has no value")
        reads = {name for bound in operation.inputs.values() for name in bound if isinstance(name, str)}
        if not reads <= known:
            raise BundleError(f"{operation.type} (layer {operation.name}) reads {', '.join(sorted(reads - known))}, which nothing makes before it")
        for inner in operation.blocks:
            _check_names(inner, known)
        known |= {x.name for x in operation.outputs}
    if not set(block.outputs) <= known:
        raise BundleError(f"the output {', '.join(sorted(set(block.outputs) - known))} is made by no operation")


def _feature(message: dict[str, Any]) -> Feature:
    name, kind = message["name"], message.get("type", {})
    if "image" in kind:
        image = kind["image"]
        channels = schema.COLOR_CHANNELS.get(image.get("color", 0), 3)
        dtype = "float16" if image.get("color") == 40 else "uint8"
        return Feature(
            name,
            dtype,
            (1, channels, image.get("height", UNKNOWN), image.get("width", UNKNOWN)),
            channels,
            "enumerated" in image or "range" in image,
            image.get("color") == schema.BGR,
            tuple((1, channels, size.get("height", 0), size.get("width", 0)) for size in image.get("enumerated", {}).get("sizes", ())),
        )
    if "array" in kind:
        array = kind["array"]
        return Feature(
            name,
            schema.FEATURE_DTYPES.get(array.get("dtype", 0), "float32"),
            tuple(array.get("shape", ())),
            0,
            "enumerated" in array or "range" in array,
            shapes=tuple(tuple(shape.get("shape", ())) for shape in array.get("enumerated", {}).get("shapes", ())),
        )
    return Feature(name, next(iter(kind), "unknown"), ())


def _block(message: dict[str, Any]) -> Block:
    return Block(
        tuple(_named(x) for x in message.get("inputs", ())),
        tuple(message.get("outputs", ())),
        tuple(_operation(x) for x in message.get("operations", ())),
    )


def _operation(message: dict[str, Any]) -> Operation:
    attributes = {name: constant(value) for name, value in message.get("attributes", {}).items()}
    outputs = tuple(_named(x) for x in message.get("outputs", ()))
    fallback = outputs[0].name if outputs else message["type"]
    return Operation(
        message["type"],
        _attribute_text(attributes.get("name")) or fallback,
        {name: tuple(_binding(x) for x in argument.get("bindings", ())) for name, argument in message.get("inputs", {}).items()},
        outputs,
        attributes,
        tuple(_block(x) for x in message.get("blocks", ())),
    )


def _attribute_text(value: Constant | None) -> str:
    if value is None or not isinstance(value.payload, dict):
        return ""
    texts = value.payload.get("strings", {}).get("values", ())
    return texts[0] if texts else ""


def _binding(message: dict[str, Any]) -> str | Constant:
    return constant(message["value"]) if "value" in message else str(message.get("name", ""))


def constant(message: dict[str, Any]) -> Constant:
    """A `Value` message as a constant, not yet decoded."""
    kind = _type(message.get("type", {}))
    if "blob" in message:
        blob = message["blob"]
        return Constant(kind, (blob.get("file", ""), blob.get("offset", 0)), "blob")
    immediate = message.get("immediate", {})
    for name in ("tuple", "list"):
        if name in immediate:
            return Constant(kind, tuple(constant(x) for x in immediate[name].get("values", ())), name)
    return Constant(kind, immediate.get("tensor", {}))


def _named(message: dict[str, Any]) -> Named:
    return Named(message["name"], _type(message.get("type", {})))


def _type(message: dict[str, Any]) -> Type:
    if "tensor" in message:
        tensor = message["tensor"]
        return Type(_dtype(tensor), tuple(_size(x) for x in tensor.get("dimensions", ())))
    if "state" in message:
        held = _type(message["state"].get("wrapped", {}))
        return Type(held.dtype, held.shape, "state")
    if "list" in message:
        element = _type(message["list"].get("type", {}))
        return Type(element.dtype, element.shape, "list")
    return Type("", (), next(iter(message), "tensor"))


def _dtype(tensor: dict[str, Any]) -> str:
    number = tensor.get("dtype", 0)
    if number not in schema.DTYPES:
        raise ConversionError(
            f"data type {number} in the specification is not one that edgekit runs", "float8 and bfloat16 programs have no interpreter here"
        )
    return schema.DTYPES[number]


def _size(message: dict[str, Any]) -> int:
    return int(message["constant"].get("size", 0)) if "constant" in message else UNKNOWN
