"""From one ONNX operator over int8 operands to a function that gives its exact accumulator: integers of a known position and bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from edgekit.tensors import Array
from edgekit.virtual.dpu import kernels
from edgekit.virtual.dpu.arithmetic import accumulator_type, fraction, product_type
from edgekit.virtual.dpu.operands import (
    INT8_BOUND,
    Accumulated,
    Attributes,
    Builder,
    Operand,
    any_operand,
    constant_operand,
    data_operand,
    integers,
    moved,
    names,
    no_ceil,
    optional,
    refuse,
    taker,
    window_of,
)


def _conv(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    data, weight = data_operand(name, operands[0]), constant_operand(name, operands[1])
    stored, groups = integers(weight), int(attributes.get("group", 1))
    window = window_of(name, attributes, stored.shape[2:])
    dtype = product_type(kernels.weight_bound(stored))
    ready = stored.astype(dtype)
    linear = Accumulated(
        "Conv",
        name,
        (data.name,),
        data.position + weight.position,
        kernels.weight_bound(stored),
        lambda arrays: kernels.conv(arrays[0], ready, window, groups, dtype),
    )
    return _with_bias(linear, optional(operands, 2), (1, -1, 1, 1))


def _conv_transpose(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    data, weight = data_operand(name, operands[0]), constant_operand(name, operands[1])
    stored, groups = integers(weight), int(attributes.get("group", 1))
    window = window_of(name, attributes, stored.shape[2:])
    more = tuple(attributes.get("output_padding", (0, 0)))
    if "output_shape" in attributes:
        raise refuse(name, "ConvTranspose with output_shape", "give pads and output_padding")
    bound = int(abs(stored.astype("int64")).sum(axis=(0, 2, 3)).max(initial=0)) * INT8_BOUND
    dtype = product_type(bound)
    ready = stored.astype(dtype)
    linear = Accumulated(
        "ConvTranspose",
        name,
        (data.name,),
        data.position + weight.position,
        bound,
        lambda arrays: kernels.conv_transpose(arrays[0], ready, window, groups, (more[0], more[1]), dtype),
    )
    return _with_bias(linear, optional(operands, 2), (1, -1, 1, 1))


def _gemm(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    if attributes.get("transA") or any(attributes.get(key, 1.0) != 1.0 for key in ("alpha", "beta")):
        raise refuse(name, "Gemm with transA, or alpha or beta other than 1")
    return _dense("Gemm", name, operands, transposed=bool(attributes.get("transB")))


def _matmul(name: str, _attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    return _dense("MatMul", name, operands, transposed=False)


def _dense(kind: str, name: str, operands: Sequence[Operand | Array | None], *, transposed: bool) -> Accumulated:
    import numpy as np

    data, weight = data_operand(name, operands[0]), constant_operand(name, operands[1])
    stored = integers(weight)
    if stored.ndim != 2:
        raise refuse(name, f"{kind} with weights of {stored.ndim} dimensions")
    columns = np.ascontiguousarray(stored.T) if transposed else stored
    bound = kernels.weight_bound(columns, 1)
    dtype = product_type(bound)
    ready = columns.astype(dtype)
    linear = Accumulated(kind, name, (data.name,), data.position + weight.position, bound, lambda arrays: np.matmul(arrays[0].astype(dtype), ready))
    return _with_bias(linear, optional(operands, 2), (-1,))


def _with_bias(linear: Accumulated, bias: Operand | Array | None, shape: tuple[int, ...]) -> Accumulated:
    """`linear` with a bias of its own position: the coarser of both is shifted left to the finer, so that nothing is lost."""
    import numpy as np

    position = linear.position if bias is None else max(linear.position, constant_operand(linear.name, bias).position)
    up = position - linear.position
    if bias is None:
        added, largest = None, 0
    else:
        operand = constant_operand(linear.name, bias)
        added = (integers(operand).astype(np.int64) << (position - operand.position)).reshape(shape)
        largest = int(abs(added).max(initial=0))
    bound = (linear.bound << up) + largest
    if bound >= 1 << 31:
        raise refuse(linear.name, f"the accumulator can reach {bound}, which 32 bits do not hold", "use a coarser bias or weight scale")
    ready = None if added is None else added.astype(np.int32)

    def compute(arrays: Sequence[Array]) -> Array:
        total = linear.compute(arrays).astype(np.int32)
        if up:
            total <<= up
        if ready is not None:
            total += ready
        return total

    return dataclasses.replace(linear, position=position, bound=bound, compute=compute)


def _add(name: str, _attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    return _joined("Add", name, operands, 1)


def _sub(name: str, _attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    return _joined("Sub", name, operands, -1)


def _joined(kind: str, name: str, operands: Sequence[Operand | Array | None], sign: int) -> Accumulated:
    """Sum or difference: the coarser operand is shifted left to the finer position, so that only the final shift rounds."""
    import numpy as np

    pair = [any_operand(name, operand) for operand in operands[:2]]
    position = max(operand.position for operand in pair)
    ups = [position - operand.position for operand in pair]
    if max(ups) > 22:
        raise refuse(name, f"the operands' scales differ by 2^{max(ups)}, which 32 bits do not hold")
    take = taker(pair)

    def compute(arrays: Sequence[Array]) -> Array:
        first, second = (value.astype(np.int32) << up for value, up in zip(take(arrays), ups, strict=True))
        found: Array = first + sign * second
        return found

    return Accumulated(kind, name, names(pair), position, sum(INT8_BOUND << up for up in ups), compute)


def _mul(name: str, _attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    import numpy as np

    pair = [any_operand(name, operand) for operand in operands[:2]]
    take = taker(pair)

    def compute(arrays: Sequence[Array]) -> Array:
        first, second = take(arrays)
        found: Array = first.astype(np.int32) * second
        return found

    return Accumulated("Mul", name, names(pair), sum(operand.position for operand in pair), INT8_BOUND**2, compute)


def _max_pool(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    data, window = data_operand(name, operands[0]), window_of(name, attributes, attributes["kernel_shape"])
    no_ceil(name, attributes)
    return moved("MaxPool", name, data, lambda x: kernels.window_max(x, window))


def _average_pool(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    data, window = data_operand(name, operands[0]), window_of(name, attributes, attributes["kernel_shape"])
    no_ceil(name, attributes)
    if any(window.pads) and not attributes.get("count_include_pad", 0):
        raise refuse(name, "AveragePool that leaves its border out of the count", "pad before it, or use count_include_pad=1")
    area = window.kernel[0] * window.kernel[1]
    return averaged("AveragePool", name, data, area, lambda x: kernels.window_sum(x, window))


def averaged(kind: str, name: str, data: Operand, area: int, total: Callable[[Array], Array]) -> Accumulated:
    """The mean of `area` values from their sum; a power of two is a shift, anything else stays a divisor."""
    bits = area.bit_length() - 1
    plain = area == 1 << bits
    position, divisor = (data.position + bits, 1) if plain else (data.position, area)
    return Accumulated(kind, name, (data.name,), position, INT8_BOUND * area, lambda arrays: total(arrays[0]), divisor)


def scaled(made: Accumulated, factor: float) -> Accumulated | None:
    """`made` times a constant that leaves a fraction k / 2^n; None where it does not."""
    share = fraction(factor / made.divisor)
    if share is None:
        return None
    k, bits = share
    return dataclasses.replace(
        made, position=made.position + bits, bound=made.bound * max(abs(k), 1), compute=lambda arrays: _widened(made, k, arrays) * k, divisor=1
    )


def _widened(made: Accumulated, factor: int, arrays: Sequence[Array]) -> Array:
    found: Array = made.compute(arrays).astype(accumulator_type(made.bound * max(abs(factor), 1)))
    return found


def _resize(name: str, attributes: Attributes, operands: Sequence[Operand | Array | None]) -> Accumulated:
    import numpy as np

    data = data_operand(name, operands[0])
    scales = operands[2] if len(operands) > 2 else None
    if not isinstance(scales, np.ndarray) or len(scales) != 4 or any(float(s) != int(s) for s in scales) or tuple(scales[:2]) != (1, 1):
        raise refuse(name, "Resize by other than constant whole factors of height and width", "resize by 2")
    up, across = int(scales[2]), int(scales[3])
    mode, grid = attributes.get("mode", b"nearest"), attributes.get("coordinate_transformation_mode", b"half_pixel")
    if mode == b"nearest":
        return moved("Resize", name, data, lambda x: x.repeat(up, axis=2).repeat(across, axis=3))
    if mode != b"linear" or (up, across) != (2, 2) or grid not in (b"half_pixel", b"pytorch_half_pixel", b"asymmetric"):
        raise refuse(name, f"Resize {mode.decode()} by {up}x{across}, {grid.decode()}", "only nearest, and bilinear by 2 without align_corners")
    half_pixel = grid != b"asymmetric"
    return Accumulated(
        "Resize", name, (data.name,), data.position + 4, INT8_BOUND * 16, lambda arrays: kernels.bilinear_double(arrays[0], half_pixel)
    )


BUILDERS: dict[str, Builder] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "Resize": _resize,
}
"""Operators that compute, by ONNX type. GlobalAveragePool needs its input's size and is built by the reader."""
