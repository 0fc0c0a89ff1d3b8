"""Field numbers of a Core ML specification (Model, ML Program and feature types), as tables for `wire.decode`.

Source of the numbers: Apple's published Model.proto, MIL.proto and FeatureTypes.proto (specification version 10).
"""

from __future__ import annotations

from collections.abc import Callable

from edgekit.virtual.coreml.wire import Field, Table

NEWEST_SPECIFICATION = 10
"""iOS 26. A package of a later version may hold what this reader would silently skip."""

DTYPES = {
    1: "bool",
    2: "string",
    10: "float16",
    11: "float32",
    12: "float64",
    21: "int8",
    22: "int16",
    23: "int32",
    24: "int64",
    25: "int4",
    31: "uint8",
    32: "uint16",
    33: "uint32",
    34: "uint64",
    35: "uint4",
    36: "uint2",
    37: "uint1",
    38: "uint6",
    39: "uint3",
}

FEATURE_DTYPES = {65552: "float16", 65568: "float32", 65600: "float64", 131080: "int8", 131104: "int32"}

COLOR_CHANNELS = {10: 1, 20: 3, 30: 3, 40: 1}
"""Image color spaces: grayscale, RGB, BGR, grayscale float16."""

BGR = 30

MODEL_KINDS = {
    200: "a pipeline",
    201: "a pipeline",
    202: "a pipeline",
    303: "a neural network",
    403: "a neural network",
    500: "a neural network",
    502: "an ML Program",
    555: "a custom model",
}


def _many(name: str, message: Callable[[], Table]) -> Field:
    return Field(name, "message", True, message)


def _one(name: str, message: Callable[[], Table]) -> Field:
    return Field(name, "message", False, message)


def _map(name: str, message: Callable[[], Table]) -> Field:
    return Field(name, "map", True, message)


def _strings(name: str) -> Field:
    return Field(name, "string", True)


def model() -> Table:
    """`Model`."""
    return _MODEL


def _program() -> Table:
    return _PROGRAM


def _value() -> Table:
    return _VALUE


def _type() -> Table:
    return _VALUE_TYPE


def _block() -> Table:
    return _BLOCK


def _dimension() -> Table:
    return _DIMENSION


_DIMENSION: Table = {
    1: _one("constant", lambda: {1: Field("size", "uint")}),
    2: _one("unknown", lambda: {1: Field("variadic", "bool")}),
}
_VALUE_TYPE: Table = {
    1: _one("tensor", lambda: {1: Field("dtype", "int"), 2: Field("rank", "int"), 3: _many("dimensions", _dimension)}),
    2: _one("list", lambda: {1: _one("type", _type), 2: _one("length", _dimension)}),
    3: _one("tuple", lambda: {1: _many("types", _type)}),
    4: _one("dictionary", lambda: {1: _one("key", _type), 2: _one("value", _type)}),
    5: _one("state", lambda: {1: _one("wrapped", _type)}),
}


def _repeated(kind: str) -> Callable[[], Table]:
    table: Table = {1: Field("values", kind, True)}
    return lambda: table


_TENSOR_VALUE: Table = {
    1: _one("floats", _repeated("float")),
    2: _one("ints", _repeated("int")),
    3: _one("bools", _repeated("bool")),
    4: _one("strings", _repeated("string")),
    5: _one("longs", _repeated("int")),
    6: _one("doubles", _repeated("double")),
    7: _one("bytes", lambda: {1: Field("values", "bytes")}),
}
_IMMEDIATE: Table = {
    1: _one("tensor", lambda: _TENSOR_VALUE),
    2: _one("tuple", lambda: {1: _many("values", _value)}),
    3: _one("list", lambda: {1: _many("values", _value)}),
}
_VALUE: Table = {
    2: _one("type", _type),
    3: _one("immediate", lambda: _IMMEDIATE),
    5: _one("blob", lambda: {1: Field("file", "string"), 2: Field("offset", "uint")}),
}
_NAMED_TYPE: Table = {1: Field("name", "string"), 2: _one("type", _type)}
_BINDING: Table = {1: Field("name", "string"), 2: _one("value", _value)}
_ARGUMENT: Table = {1: _many("bindings", lambda: _BINDING)}
_OPERATION: Table = {
    1: Field("type", "string"),
    2: _map("inputs", lambda: _ARGUMENT),
    3: _many("outputs", lambda: _NAMED_TYPE),
    4: _many("blocks", _block),
    5: _map("attributes", _value),
}
_BLOCK: Table = {1: _many("inputs", lambda: _NAMED_TYPE), 2: _strings("outputs"), 3: _many("operations", lambda: _OPERATION)}
_FUNCTION: Table = {1: _many("inputs", lambda: _NAMED_TYPE), 2: Field("opset", "string"), 3: _map("blocks", _block)}
_PROGRAM: Table = {1: Field("version", "int"), 2: _map("functions", lambda: _FUNCTION)}
_RANGE: Table = {1: Field("lower", "uint"), 2: Field("upper", "int")}
_ARRAY: Table = {
    1: Field("shape", "int", True),
    2: Field("dtype", "int"),
    21: _one("enumerated", lambda: {1: _many("shapes", lambda: {1: Field("shape", "int", True)})}),
    31: _one("range", lambda: {1: _many("sizes", lambda: _RANGE)}),
}
_IMAGE: Table = {
    1: Field("width", "int"),
    2: Field("height", "int"),
    3: Field("color", "int"),
    21: _one("enumerated", lambda: {1: _many("sizes", lambda: {1: Field("width", "uint"), 2: Field("height", "uint")})}),
    31: _one("range", dict),
}
_FEATURE_TYPE: Table = {
    1: _one("int64", dict),
    3: _one("string", dict),
    4: _one("image", lambda: _IMAGE),
    5: _one("array", lambda: _ARRAY),
    6: _one("dictionary", dict),
    8: _one("state", lambda: {1: _one("array", lambda: _ARRAY)}),
}
_FEATURE: Table = {1: Field("name", "string"), 3: _one("type", lambda: _FEATURE_TYPE)}
_FUNCTION_DESCRIPTION: Table = {
    1: Field("name", "string"),
    2: _many("inputs", lambda: _FEATURE),
    3: _many("outputs", lambda: _FEATURE),
    6: _many("states", lambda: _FEATURE),
}
_DESCRIPTION: Table = {
    1: _many("inputs", lambda: _FEATURE),
    10: _many("outputs", lambda: _FEATURE),
    13: _many("states", lambda: _FEATURE),
    20: _many("functions", lambda: _FUNCTION_DESCRIPTION),
    21: Field("default_function", "string"),
}
_MODEL: Table = {1: Field("specification_version", "int"), 2: _one("description", lambda: _DESCRIPTION), 502: _one("program", _program)}
