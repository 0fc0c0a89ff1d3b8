"""C text that several writers share: the model interface of `apps/mcu`, constants of a signature, tables of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgekit.tensors import Signature, TensorSpec

ITEM_BYTES = {"int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8}
C_TYPES = {name: "float" if name == "float32" else f"{name}_t" for name in ITEM_BYTES} | {"bool": "uint8_t"}
ALIGNMENT_BYTES = 16
ERRORS = ("NOT_READY", "RESOLVER", "VERSION", "ALIGNMENT", "ARENA", "INVOKE", "SELF_TEST")
_COLUMNS = 20


def header(signature: Signature, arena_bytes: int) -> str:
    """`edgekit_model.h` as `apps/mcu/README.md` describes it, with scales and zero points."""
    sides = (("INPUT", signature.inputs), ("OUTPUT", signature.outputs))
    lines = ["#ifndef EDGEKIT_MODEL_H", "#define EDGEKIT_MODEL_H", "", "#define EDGEKIT_MODEL_INTERFACE 1"]
    for side, specs in sides:
        lines.append(f"#define EDGEKIT_{side}S {len(specs)}")
        lines.append(f"#define EDGEKIT_{side}_BYTES {{{', '.join(str(size(spec)) for spec in specs)}}}")
    lines += [f"#define EDGEKIT_ARENA_BYTES {arena_bytes}", f"#define EDGEKIT_BUFFER_BYTES {buffer_bytes(signature)}u", ""]
    for side, specs in sides:
        for index, spec in enumerate(specs):
            lines += constants(f"EDGEKIT_{side}_{index}", spec)
    lines += ["", *(f"#define EDGEKIT_ERROR_{name} (-{number})" for number, name in enumerate(ERRORS, 1)), ""]
    lines += ["int edgekit_model_init(void);", "int edgekit_model_run(const void *const inputs[], void *const outputs[]);", "", "#endif", ""]
    return "\n".join(lines)


def description(signature: Signature, arena_bytes: int, defines: Sequence[str] = ()) -> bytes:
    """`edgekit_model.json` of the same interface."""
    sides = {
        side: [{"name": s.name, "shape": s.shape, "dtype": s.dtype} for s in specs]
        for side, specs in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
    document = {"interface": 1, **sides, "arena_bytes": arena_bytes, "defines": list(defines)}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def constants(prefix: str, spec: TensorSpec) -> list[str]:
    """Elements of a tensor, and its scale and zero point where it is quantized."""
    lines = [f"#define {prefix}_ELEMENTS {spec.elements}"]
    if spec.scale is not None:
        lines.append(f"#define {prefix}_SCALE {_float(spec.scale)}")
        lines += [f"#define {prefix}_ZERO_POINT ({spec.zero_point})"]
    return lines


def _float(value: float) -> str:
    digits = f"{value:.9g}"
    return f"{digits}f" if any(mark in digits for mark in ".e") else f"{digits}.0f"


def size(spec: TensorSpec) -> int:
    """Bytes of a tensor."""
    return spec.elements * ITEM_BYTES[spec.dtype]


def buffer_bytes(signature: Signature) -> int:
    """All tensors, each rounded up to the alignment."""
    return sum(-(-size(spec) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for spec in (*signature.inputs, *signature.outputs))


def byte_rows(data: bytes) -> str:
    """The bytes as rows of a C initializer."""
    return "\n".join("  " + ",".join(map(str, data[at : at + _COLUMNS])) + "," for at in range(0, len(data), _COLUMNS))
