"""Compressed weights: hand-computed cases, and packages whose decoded weights are computed by numpy from the definition."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.formats import mlprogram
from tests import coreml_packages as packages

pytest.importorskip("torch")

Build = Callable[[packages.Weights], list[bytes]]


def decoded(shape: tuple[int, ...], build: Build, dtype: str = "float32") -> np.ndarray:
    """What the constant `w` that `build` writes holds, read by adding zeros to it."""
    weights = packages.Weights()
    operations = [*build(weights), packages.operation("add", "sum", {"x": "x", "y": "w"}, [packages.named("y", dtype, shape)])]
    body = packages.block(operations, ["y"])
    with tempfile.TemporaryDirectory() as folder:
        data = packages.model({"x": (dtype, shape)}, {"y": dtype}, body, 9, "CoreML8")
        path = packages.write(Path(folder) / "m.mlpackage", data, bytes(weights.data))
        return mlprogram.session(mlprogram.open(str(path), {})).run({"x": np.zeros(shape, dtype)})["y"]


def constexpr(
    kind: str, shape: tuple[int, ...], dtype: str, attributes: dict[str, bytes] | None = None, inputs: dict[str, Any] | None = None
) -> bytes:
    return packages.operation(kind, "w", inputs or {}, [packages.named("w", dtype, shape)], attributes)


def test_affine_per_channel_and_per_tensor() -> None:
    q = np.arange(-12, 12, dtype=np.int8).reshape(2, 3, 4)
    scale, zero = np.array([0.5, 0.25, 2], np.float32), np.array([1, 0, -3], np.int8)

    def per_channel(weights: packages.Weights) -> list[bytes]:
        literal = packages.literal
        return [
            constexpr(
                "constexpr_affine_dequantize",
                q.shape,
                "float32",
                {
                    "quantized_data": weights.add(q, "int8"),
                    "scale": literal(scale),
                    "zero_point": literal(zero, "int8"),
                    "axis": literal(np.int32(1)),
                },
            )
        ]

    np.testing.assert_array_equal(decoded(q.shape, per_channel), scale.reshape(1, 3, 1) * (q.astype(np.float32) - zero.reshape(1, 3, 1)))
    u = (q.astype(np.int16) + 130).astype(np.uint8)

    def per_tensor(weights: packages.Weights) -> list[bytes]:
        literal = packages.literal
        stored = {
            "quantized_data": weights.add(u, "uint8"),
            "scale": literal(np.float32(0.5), "float16"),
            "zero_point": literal(np.uint8(128), "uint8"),
        }
        return [constexpr("constexpr_affine_dequantize", q.shape, "float16", stored | {"axis": literal(np.int32(0))})]

    np.testing.assert_array_equal(decoded(q.shape, per_tensor, "float16"), 0.5 * (u.astype(np.float32) - 128))


@pytest.mark.parametrize("width", [1, 2, 4, 6, 8])
def test_palette_with_a_packed_index_stream(width: int) -> None:
    rng = np.random.RandomState(width)
    indices, lut = rng.randint(0, 2**width, (3, 5)), rng.randn(2**width).astype(np.float32)
    packed = np.packbits([(i >> k) & 1 for i in indices.flatten() for k in range(width)], bitorder="little")

    def build(weights: packages.Weights) -> list[bytes]:
        attributes = {
            "indices": weights.add(packed, "uint8"),
            "lut": weights.add(lut, "float32"),
            "shape": packages.literal(np.array([3, 5]), "uint32"),
        }
        return [constexpr("constexpr_lut_to_dense", (3, 5), "float32", attributes)]

    np.testing.assert_array_equal(decoded((3, 5), build), lut[indices])


def test_sparse_with_a_packed_mask() -> None:
    dense = np.array([[0, 1.5, 0, 0, 2], [3, 0, 0, -1, 0]], np.float32)
    mask = np.packbits(dense.flatten() != 0, bitorder="little")

    def build(weights: packages.Weights) -> list[bytes]:
        attributes = {"nonzero_data": weights.add(dense[dense != 0], "float32"), "mask": packages.literal(mask, "uint8")}
        return [constexpr("constexpr_sparse_to_dense", (2, 5), "float32", attributes | {"shape": packages.literal(np.array([2, 5]), "uint32")})]

    np.testing.assert_array_equal(decoded((2, 5), build), dense)


def test_cast() -> None:
    value = np.array([1.5, -2.25, 65504], np.float16)

    def build(weights: packages.Weights) -> list[bytes]:
        return [constexpr("constexpr_cast", (3,), "float32", {"source_val": weights.add(value, "float16"), "output_dtype": packages.literal("fp32")})]

    np.testing.assert_array_equal(decoded((3,), build), value.astype(np.float32))


@pytest.mark.parametrize(("dtype", "low", "high"), [("int4", -8, 8), ("uint4", 0, 16), ("int8", -128, 128), ("uint8", 0, 256)])
@pytest.mark.parametrize("offset", [True, False])
def test_blocks_along_every_axis(dtype: str, low: int, high: int, offset: bool) -> None:
    rng = np.random.RandomState(3)
    q = rng.randint(low, high, (4, 6))
    scale, shift = rng.rand(2, 3).astype(np.float32), rng.randint(low, high, (2, 3))

    def build(weights: packages.Weights) -> list[bytes]:
        inputs = {"data": weights.add(q, dtype), "scale": packages.literal(scale)}
        inputs |= {"offset": packages.literal(shift, dtype)} if offset else {}
        return [constexpr("constexpr_blockwise_shift_scale", (4, 6), "float32", None, inputs)]

    shifts = np.kron(shift, np.ones((2, 2))) if offset else 0
    np.testing.assert_array_equal(decoded((4, 6), build), (np.kron(scale, np.ones((2, 2))) * (q - shifts)).astype(np.float32))


@pytest.mark.parametrize(("dtype", "width"), [("uint1", 1), ("uint2", 2), ("uint3", 3), ("uint4", 4), ("uint6", 6), ("uint8", 8)])
def test_tables_per_group(dtype: str, width: int) -> None:
    rng = np.random.RandomState(width)
    indices, lut = rng.randint(0, 2**width, (6, 3)), rng.randn(2, 1, 2**width, 1).astype(np.float32)

    def build(weights: packages.Weights) -> list[bytes]:
        return [
            constexpr("constexpr_lut_to_dense", (6, 3), "float32", None, {"indices": weights.add(indices, dtype), "lut": weights.add(lut, "float32")})
        ]

    want = np.array([[lut[i // 3, 0, indices[i, j], 0] for j in range(3)] for i in range(6)])
    np.testing.assert_array_equal(decoded((6, 3), build), want)


@pytest.mark.parametrize("axis", [0, 1])
def test_tables_of_vectors(axis: int) -> None:
    indices, lut = np.array([[0, 1, 1], [1, 0, 1]]), np.array([[10, 11, 12], [20, 21, 22]], np.float32).reshape(1, 1, 2, 3)
    shape = (6, 3) if axis == 0 else (2, 9)

    def build(weights: packages.Weights) -> list[bytes]:
        inputs = {"indices": weights.add(indices, "uint1"), "lut": weights.add(lut, "float32"), "vector_axis": packages.literal(np.int32(axis))}
        return [constexpr("constexpr_lut_to_dense", shape, "float32", None, inputs)]

    first = [10, 11, 12], [20, 21, 22]
    rows = [[v for i in row for v in first[i]] for row in indices.tolist()]
    want = rows if axis == 1 else [[first[i][k] for i in row] for row in indices.tolist() for k in range(3)]
    np.testing.assert_array_equal(decoded(shape, build), want)


def joint(kind: str, inputs: dict[str, Any], count: int, shape: tuple[int, ...], result: tuple[int, ...]) -> list[bytes]:
    """A sparse operator and the `constexpr_sparse_to_dense` that takes its mask and data."""
    outputs = [packages.named("mask", "uint1", result), packages.named("data", "float32", (count,))]
    first = packages.operation(kind, "sparse", inputs, outputs)
    return [first, constexpr("constexpr_sparse_to_dense", result, "float32", None, {"nonzero_data": "data", "mask": "mask"})]


def test_sparse_palette() -> None:
    """The example of the operator's own documentation: scalars, then vectors along axis 0."""
    mask = np.array([[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1], [0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]])
    indices = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1])
    want = np.zeros(mask.shape, np.float32)
    want[mask.astype(bool)] = np.where(indices, 3, 2)

    def scalars(weights: packages.Weights) -> list[bytes]:
        inputs = {"indices_mask": weights.add(mask, "uint1"), "indices_nonzero_data": weights.add(indices, "uint1")}
        lut = packages.literal(np.array([2, 3], np.float32).reshape(1, 1, 2, 1))
        return joint("constexpr_lut_to_sparse", inputs | {"lut": lut}, 9, mask.shape, mask.shape)

    def vectors(weights: packages.Weights) -> list[bytes]:
        inputs = {"indices_mask": weights.add(mask, "uint1"), "indices_nonzero_data": weights.add(indices, "uint1")}
        lut = packages.literal(np.array([[2, 2.5], [3, 3.5]], np.float32).reshape(1, 1, 2, 2))
        return joint("constexpr_lut_to_sparse", inputs | {"lut": lut, "vector_axis": packages.literal(np.int32(0))}, 18, mask.shape, (8, 6))

    np.testing.assert_array_equal(decoded(mask.shape, scalars), want)
    np.testing.assert_array_equal(decoded((8, 6), vectors), np.stack([want, np.where(want, want + 0.5, 0)], 1).reshape(8, 6))


def test_sparse_quantized() -> None:
    """The example of the operator's own documentation."""
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]])
    data, scale, offset = np.array([10, 11, 3, 4, 5, 6, 7, 8, 9]), np.array([[0.1, 0.2, 0.3, 0.4]], np.float32), np.array([[1, 2, 3, 4]])

    def build(weights: packages.Weights) -> list[bytes]:
        inputs = {"data_mask": weights.add(mask, "uint1"), "nonzero_data": weights.add(data, "int8")}
        inputs |= {"scale": packages.literal(scale), "offset": packages.literal(offset, "int8")}
        return joint("constexpr_sparse_blockwise_shift_scale", inputs, 9, mask.shape, mask.shape)

    want = np.zeros((4, 4))
    want[mask.astype(bool)] = [0.9, 1.8, 0.2, 0.4, 0.6, 0.9, 1.2, 0.7, 1.4]
    np.testing.assert_allclose(decoded((4, 4), build), want, rtol=1e-6)


def test_quantized_activations() -> None:
    x = np.array([[-3, -0.25, 0.25], [0.75, 40, 1.25]], np.float32)
    literal = packages.literal
    scale, zero = literal(np.float32(0.5)), literal(np.int8(3), "int8")
    steps = [
        packages.operation(
            "quantize",
            "q",
            {"input": "x", "scale": scale, "zero_point": zero, "output_dtype": literal("int8")},
            [packages.named("q", "int8", x.shape)],
        ),
        packages.operation("dequantize", "d", {"input": "q", "scale": scale, "zero_point": zero}, [packages.named("y", "float32", x.shape)]),
    ]
    with tempfile.TemporaryDirectory() as folder:
        data = packages.model({"x": ("float32", x.shape)}, {"y": "float32"}, packages.block(steps, ["y"]))
        path = packages.write(Path(folder) / "m.mlpackage", data)
        got = mlprogram.session(mlprogram.open(str(path), {})).run({"x": x})["y"]
    np.testing.assert_array_equal(got, [[-3, 0, 0], [1, 40, 1]])  # halves go to even
