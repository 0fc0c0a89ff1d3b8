"""Changing an ML Program with coremltools: constants, half precision, compressed weights, 8-bit activations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit.backends.coreml.layers import KINDS, TAKEN
from edgekit.backends.coreml.rounding import Stored
from edgekit.errors import ConversionError
from edgekit.formats import mlprogram_write
from edgekit.formats._quiet import quiet
from edgekit.quantize.grid import Affine
from edgekit.tensors import Array, TensorSpec

Changed = Mapping[str, Mapping[str, Array]]

HALF_SUFFIX = "_cast_fp16"
"""What coremltools appends to the name of an operator that it moved to half precision."""


def single(folder: Path, deployment: str) -> Any:
    """The float32 program of a package, for a deployment target (`iOS16` ...), as a coremltools model."""
    ct = mlprogram_write.coremltools()
    return _convert(mlprogram_write.load(folder), ct.precision.FLOAT32, deployment)


def with_image(folder: Path, deployment: str, name: str, spec: TensorSpec) -> Any:
    """The float32 program of a package with its input `name` as the image `spec`, as a coremltools model."""
    ct = mlprogram_write.coremltools()
    program = mlprogram_write.load(folder)
    _scale_pixels(program, name, spec)
    assert spec.pixels is not None
    _, height, width, channels = spec.shape
    color = {1: "GRAYSCALE", 3: "BGR" if spec.pixels.reversed else "RGB"}[channels]
    planar = spec.pixels.layout == "NCHW"
    shape = (1, channels, height, width) if planar else spec.shape
    image = ct.ImageType(name, shape=shape, color_layout=getattr(ct.colorlayout, color), channel_first=planar)
    program.functions["main"].set_input_types((image,))
    return _convert(program, ct.precision.FLOAT32, deployment)


def half(folder: Path, deployment: str, stored: Sequence[Stored], changed: Changed, kept: Collection[str]) -> Any:
    """The program with the layers' values of `stored`, in half precision but for the operators `kept`, as a coremltools model.

    `changed` are other constants of single operators, by result name and parameter.
    """
    ct = mlprogram_write.coremltools()
    program = mlprogram_write.load(folder)
    operations = {operation.outputs[0].name: operation for operation in program.functions["main"].operations if operation.outputs}
    for result, values in changed.items():
        _set_constants(program, operations[result], result, values)
    for item in stored:
        _set_values(program, operations[item.layer.name], item)
    chosen = ct.transform.FP16ComputePrecision(op_selector=lambda operation: operation.name not in kept)
    return _convert(program, chosen, deployment)


def compressed(model: Any, deployment: str, stored: Sequence[Stored], grids: Mapping[str, Affine]) -> Any:
    """A half-precision model with the weights of `stored` as integers or tables, its layers reading through the 8-bit `grids` of their inputs.

    `grids` are by the layer's name.
    """
    ct = mlprogram_write.coremltools()
    program = mlprogram_write.program_of(model)
    operations = _by_name(program)
    for item in stored:
        operation = operations[item.layer.layer]
        if not item.half or _real(operation, item).__name__ == "float32":
            _compress(program, operation, item)
    quantized: dict[str, Any] = {}
    for name, chosen in grids.items():
        _quantize_input(program, operations[name], chosen, quantized)
    return _convert(program, ct.precision.FLOAT32, deployment)


def _convert(program: Any, precision: Any, deployment: str) -> Any:
    ct = mlprogram_write.coremltools()
    target = getattr(ct.target, deployment)
    try:
        with quiet():
            return ct.convert(
                program,
                source="milinternal",
                convert_to="mlprogram",
                minimum_deployment_target=target,
                compute_precision=precision,
                skip_model_load=True,
            )
    except Exception as error:  # coremltools raises what its passes raise
        raise ConversionError(f"coremltools failed: {mlprogram_write.first_line(error)}") from error


def _scale_pixels(program: Any, name: str, spec: TensorSpec) -> None:
    """Let everything that reads the input read (input + offset / scale) * scale."""
    import numpy as np

    assert spec.pixels is not None
    scale, offset = np.array(spec.pixels.scale), np.array(spec.pixels.offset)
    shape = (1, -1, 1, 1) if spec.pixels.layout == "NCHW" else (1, 1, 1, -1)
    main = program.functions["main"]
    read, first = main.inputs[name], main.operations[0]
    with main:
        value = read
        if offset.any():
            value = _builder().add(x=value, y=(offset / scale).astype(np.float32).reshape(shape), before_op=first, name=f"{name}_centered")
        if (scale != 1).any():
            value = _builder().mul(x=value, y=scale.astype(np.float32).reshape(shape), before_op=first, name=f"{name}_scaled")
        if value is not read:
            main.replace_uses_of_var_after_op(anchor_op=value.op, old_var=read, new_var=value)


def _by_name(program: Any) -> dict[str, Any]:
    """Operators with weights of the main block by their name in the float program."""
    operations = [operation for operation in program.functions["main"].operations if operation.op_type in KINDS or operation.op_type in TAKEN]
    return {operation.name.removesuffix(HALF_SUFFIX): operation for operation in operations}


def _set_values(program: Any, operation: Any, item: Stored) -> None:
    values = {item.layer.parameter: item.weight}
    if item.bias is not None and item.layer.kind != "matmul" and (operation.inputs.get("bias") is not None or item.bias.any()):
        values["bias"] = item.bias
    _set_constants(program, operation, item.layer.name, values)


def _set_constants(program: Any, operation: Any, name: str, values: Mapping[str, Array]) -> None:
    with program.functions["main"]:
        made = {parameter: _builder().const(val=value, before_op=operation, name=f"{name}_{parameter}") for parameter, value in values.items()}
        operation.set_inputs(**made, type_inference=False)


def _real(operation: Any, item: Stored) -> Any:
    """The type of an operator's weight: half precision, and single for the recurrent operators that a half-precision program keeps so."""
    import numpy as np
    from coremltools.converters.mil.mil import types

    return np.float32 if operation.inputs[item.layer.parameter].dtype == types.fp32 else np.float16


def _compress(program: Any, operation: Any, item: Stored) -> None:
    import numpy as np

    name, real = f"{item.layer.name}_{item.layer.parameter}_stored", _real(operation, item)
    with program.functions["main"] as block:
        newer = block.opset_version.value >= mlprogram_write.coremltools().target.iOS18.value
        at = {"before_op": operation, "name": name}
        if item.half:
            made = _builder().constexpr_cast(source_val=item.weight.astype(np.float16), output_dtype="fp32", **at)
        elif item.mask is not None:
            made = _sparse(item, newer, at)
        elif item.entries is not None:
            made = _table(item, newer, at, real)
        else:
            made = _steps(item, newer, at, real)
        operation.set_inputs(**{item.layer.parameter: made}, type_inference=False)


def _steps(item: Stored, newer: bool, at: dict[str, Any], real: Any) -> Any:
    import numpy as np

    assert item.integers is not None and item.scales is not None
    if newer:
        kind = _small(f"int{item.bits}") if item.bits < 8 else np.int8
        return _builder().constexpr_blockwise_shift_scale(data=item.integers.astype(np.int8).astype(kind), scale=_scales(item).astype(real), **at)
    _refuse_newer(item.bits != 8, "4-bit steps")
    return _builder().constexpr_affine_dequantize(
        quantized_data=item.integers.astype(np.int8),
        zero_point=np.int8(0),
        scale=item.scales[:, 0].astype(real),
        axis=np.int32(item.layer.axis),
        **at,
    )


def _scales(item: Stored) -> Any:
    """Scales of [outputs, blocks of inputs] in the rank of the weight."""
    import numpy as np

    assert item.integers is not None and item.scales is not None
    shape = [1] * item.integers.ndim
    shape[item.layer.axis], shape[0 if item.layer.axis else 1] = item.scales.shape
    return (item.scales.T if item.layer.axis else item.scales).astype(np.float16).reshape(shape)


def _table(item: Stored, newer: bool, at: dict[str, Any], real: Any) -> Any:
    import numpy as np

    assert item.integers is not None and item.entries is not None
    bits = int(np.log2(item.entries.shape[1]))
    if newer:
        return _builder().constexpr_lut_to_dense(indices=item.integers.astype(_small(f"uint{bits}")), lut=_tables(item).astype(real), **at)
    _refuse_newer(len(item.entries) > 1, "several tables a layer")
    shape = np.array(item.integers.shape, np.uint32)
    return _builder().constexpr_lut_to_dense(indices=_packed(item.integers, bits), lut=item.entries[0].astype(real), shape=shape, **at)


def _tables(item: Stored) -> Any:
    """Tables of [groups, entries] as [..., groups along the outputs, ..., entries, 1]."""
    import numpy as np

    assert item.entries is not None and item.integers is not None
    shape = [1] * item.integers.ndim
    shape[item.layer.axis] = len(item.entries)
    return item.entries.astype(np.float16).reshape([*shape, -1, 1])


def _sparse(item: Stored, newer: bool, at: dict[str, Any]) -> Any:
    """Only the values where the mask is set: half-precision ones, or from iOS 18 on integers or indices too."""
    import numpy as np

    assert item.mask is not None
    if not newer:
        _refuse_newer(item.integers is not None, "pruned weights with steps or tables")
        shape = np.array(item.mask.shape, np.uint32)
        values = item.weight[item.mask].astype(np.float16)
        return _builder().constexpr_sparse_to_dense(nonzero_data=values, mask=_packed(item.mask, 1), shape=shape, **at)
    mask, values = item.mask.astype(_small("uint1")), item.weight[item.mask].astype(np.float16)
    if item.integers is not None:
        inner = {**at, "name": f"{at['name']}_values"}
        held = item.integers[item.mask]
        if item.entries is not None:
            indices = held.astype(_small(f"uint{int(np.log2(item.entries.shape[1]))}"))
            mask, values = _builder().constexpr_lut_to_sparse(indices_mask=mask, indices_nonzero_data=indices, lut=_tables(item), **inner)
        else:
            steps = {"nonzero_data": held.astype(np.int8), "scale": _scales(item)}
            mask, values = _builder().constexpr_sparse_blockwise_shift_scale(data_mask=mask, **steps, **inner)
    return _builder().constexpr_sparse_to_dense(nonzero_data=values, mask=mask, **at)


def _packed(values: Array, bits: int) -> Array:
    """Unsigned integers as a stream of `bits` each, from the least significant bit of every byte on."""
    import numpy as np

    digits = np.unpackbits(values.reshape(-1, 1).astype(np.uint8), axis=1, bitorder="little")[:, :bits]
    return np.packbits(digits.reshape(-1), bitorder="little")


def _small(name: str) -> Any:
    """The numpy type by which coremltools knows integers of less than 8 bits."""
    mlprogram_write.coremltools()
    from coremltools.converters.mil.mil import types

    return types.nptype_from_builtin(types.string_to_builtin(name))


def _refuse_newer(asked: bool, what: str) -> None:
    if asked:
        raise ConversionError(f"{what} need iOS 18 or macOS 15", "use the target ios18-coreml or macos15-coreml")


def _quantize_input(program: Any, operation: Any, chosen: Affine, made: dict[str, Any]) -> None:
    import numpy as np

    read = operation.inputs["x"]
    with program.functions["main"]:
        if read.name not in made:
            step = {"scale": np.float16(chosen.scale), "zero_point": np.int8(chosen.zero_point), "before_op": operation}
            stored = _builder().quantize(input=read, output_dtype="int8", name=f"{read.name}_int8", **step)
            made[read.name] = _builder().dequantize(input=stored, name=f"{read.name}_from_int8", **step)
        operation.set_inputs(x=made[read.name], type_inference=False)


def _builder() -> Any:
    from coremltools.converters.mil import Builder

    return Builder
