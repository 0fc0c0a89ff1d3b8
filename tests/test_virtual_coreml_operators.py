"""Elementwise operators, reductions and products against torch or numpy in double precision, or the formula of the operator's definition.

The tolerance follows from the precision: a float32 operator may differ by accumulated rounding, a half operator by one unit in the last place, as it
computes in float32 and rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import ConversionError
from tests.coreml_operator import PRECISIONS, close, quick, run, seeds, shapes, values

torch = pytest.importorskip("torch")
F = torch.nn.functional

UNARY: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "abs": (np.abs, -4, 4),
    "acos": (np.arccos, -1, 1),
    "asin": (np.arcsin, -1, 1),
    "atan": (np.arctan, -4, 4),
    "atanh": (np.arctanh, -0.9, 0.9),
    "ceil": (np.ceil, -4, 4),
    "cos": (np.cos, -4, 4),
    "cosh": (np.cosh, -4, 4),
    "erf": (np.vectorize(math.erf), -4, 4),
    "exp": (np.exp, -4, 4),
    "exp2": (np.exp2, -4, 4),
    "floor": (np.floor, -4, 4),
    "identity": (lambda x: x, -4, 4),
    "round": (np.rint, -4, 4),
    "sign": (np.sign, -4, 4),
    "sin": (np.sin, -4, 4),
    "sinh": (np.sinh, -4, 4),
    "sqrt": (np.sqrt, 0, 9),
    "square": (np.square, -4, 4),
    "tan": (np.tan, -1, 1),
    "tanh": (np.tanh, -4, 4),
    "relu": (lambda x: np.maximum(x, 0), -4, 4),
    "relu6": (lambda x: np.clip(x, 0, 6), -4, 9),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -9, 9),
    "silu": (lambda x: x / (1 + np.exp(-x)), -9, 9),
    "softplus": (lambda x: np.log1p(np.exp(x)), -9, 30),
    "softsign": (lambda x: x / (1 + np.abs(x)), -9, 9),
}


@pytest.mark.parametrize("kind", UNARY)
@quick
@given(seed=seeds, shape=shapes, dtype=st.sampled_from(PRECISIONS))
def test_unary(kind: str, seed: int, shape: tuple[int, ...], dtype: str) -> None:
    function, low, high = UNARY[kind]
    x = values(seed, shape, dtype, low, high)
    close(run(kind, {"x": x}, (dtype, shape)), function(x.astype(np.float64)), dtype)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "real_div": np.divide,
    "floor_div": np.floor_divide,
    "mod": np.mod,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


@pytest.mark.parametrize("kind", BINARY)
@quick
@given(seed=seeds, shape=shapes, dtype=st.sampled_from(PRECISIONS), drop=st.integers(0, 3))
def test_binary_broadcasts(kind: str, seed: int, shape: tuple[int, ...], dtype: str, drop: int) -> None:
    other = tuple(1 if i == drop else n for i, n in enumerate(shape))[min(drop, len(shape) - 1) :]
    x, y = values(seed, shape, dtype), values(seed + 1, other, dtype, 0.25, 4)
    want = BINARY[kind](x.astype(np.float64), y.astype(np.float64))
    if kind in ("floor_div", "mod"):  # a quotient next to a whole number may fall on either side of it
        near = np.abs(x / y - np.rint(x / y)) < 1e-6
        x = np.where(near, np.float32(0.125), x).astype(np.float32)
        want = BINARY[kind](x.astype(np.float64), y.astype(np.float64))
    close(run(kind, {"x": x, "y": y}, (dtype, want.shape)), want, dtype)


COMPARE = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
}


@pytest.mark.parametrize("kind", COMPARE)
@quick
@given(seed=seeds, shape=shapes)
def test_compare_gives_truth_values(kind: str, seed: int, shape: tuple[int, ...]) -> None:
    rng = np.random.RandomState(seed)
    x, y = (rng.randint(-2, 3, shape).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(run(kind, {"x": x, "y": y}, ("bool", shape)), COMPARE[kind](x, y))


@quick
@given(seed=seeds, size=st.integers(1, 9))
def test_integers_stay_integers(seed: int, size: int) -> None:
    rng = np.random.RandomState(seed)
    x, y = rng.randint(-50, 50, size).astype(np.int32), rng.randint(1, 9, size).astype(np.int32)
    for kind, function in (("add", np.add), ("mul", np.multiply), ("floor_div", np.floor_divide), ("mod", np.mod), ("maximum", np.maximum)):
        got = run(kind, {"x": x, "y": y}, ("int32", (size,)))
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, function(x, y))


ACTIVATIONS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "clamped_relu": ({"alpha": np.float32(0.25), "beta": np.float32(1.5)}, lambda x: np.minimum(np.where(x >= 0, x, 0.25 * x), 1.5)),
    "elu": ({"alpha": np.float32(0.75)}, lambda x: np.where(x > 0, x, 0.75 * np.expm1(x))),
    "leaky_relu": ({"alpha": np.float32(0.125)}, lambda x: np.where(x >= 0, x, 0.125 * x)),
    "linear_activation": ({"alpha": np.float32(2), "beta": np.float32(-0.5)}, lambda x: 2 * x - 0.5),
    "scaled_tanh": ({"alpha": np.float32(1.5), "beta": np.float32(0.5)}, lambda x: 1.5 * np.tanh(0.5 * x)),
    "sigmoid_hard": ({"alpha": np.float32(0.25), "beta": np.float32(0.5)}, lambda x: np.clip(0.25 * x + 0.5, 0, 1)),
    "thresholded_relu": ({"alpha": np.float32(0.5)}, lambda x: np.where(x >= 0.5, x, 0)),
    "threshold": ({"alpha": np.float32(0.5)}, lambda x: np.maximum(x, 0.5)),
    "clip": ({"alpha": np.float32(-1), "beta": np.float32(2)}, lambda x: np.clip(x, -1, 2)),
    "inverse": ({"epsilon": np.float32(8)}, lambda x: 1 / (x + 8)),
    "log": ({"epsilon": np.float32(8)}, lambda x: np.log(x + 8)),
    "rsqrt": ({"epsilon": np.float32(8)}, lambda x: 1 / np.sqrt(x + 8)),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
@quick
@given(seed=seeds, shape=shapes, dtype=st.sampled_from(PRECISIONS))
def test_activations_with_parameters(kind: str, seed: int, shape: tuple[int, ...], dtype: str) -> None:
    parameters, function = ACTIVATIONS[kind]
    x = values(seed, shape, dtype)
    close(run(kind, {"x": x}, (dtype, shape), {n: (v, dtype) for n, v in parameters.items()}), function(x.astype(np.float64)), dtype)


@pytest.mark.parametrize(("mode", "approximate"), [("EXACT", "none"), ("TANH_APPROXIMATION", "tanh")])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_gelu(mode: str, approximate: str, dtype: str) -> None:
    x = values(3, (4, 50), dtype, -6, 6)
    close(run("gelu", {"x": x}, (dtype, x.shape), {"mode": mode}), F.gelu(torch.from_numpy(x).double(), approximate=approximate), dtype)


def test_gelu_by_sigmoid() -> None:
    x = values(3, (4, 50), "float32")
    close(run("gelu", {"x": x}, ("float32", x.shape), {"mode": "SIGMOID_APPROXIMATION"}), x / (1 + np.exp(-1.702 * x.astype(np.float64))), "float32")


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_prelu_and_parametric_softplus_are_per_channel(dtype: str) -> None:
    x = values(5, (2, 3, 4, 5), dtype)
    alpha, beta = values(6, (3,), dtype, 0.1, 1), values(7, (3,), dtype, 0.5, 2)
    per_channel = [v.astype(np.float64).reshape(1, 3, 1, 1) for v in (alpha, beta)]
    close(run("prelu", {"x": x}, (dtype, x.shape), {"alpha": (alpha, dtype)}), np.where(x > 0, x, per_channel[0] * x), dtype)
    want = per_channel[0] * np.log1p(np.exp(per_channel[1] * x))
    close(run("softplus_parametric", {"x": x}, (dtype, x.shape), {"alpha": (alpha, dtype), "beta": (beta, dtype)}), want, dtype)


@quick
@given(seed=seeds, shape=shapes, dtype=st.sampled_from(PRECISIONS), axis=st.integers(-1, 0))
def test_softmax(seed: int, shape: tuple[int, ...], dtype: str, axis: int) -> None:
    x = values(seed, shape, dtype, -9, 9)
    close(run("softmax", {"x": x}, (dtype, shape), {"axis": np.int32(axis)}), torch.softmax(torch.from_numpy(x).double(), axis), dtype)


def test_cast_truncates_and_saturates() -> None:
    x = np.array([-2.7, -0.5, 0.5, 2.7, 1e12, -1e12], np.float32)
    np.testing.assert_array_equal(run("cast", {"x": x}, ("int32", (6,)), {"dtype": "int32"}), [-2, 0, 0, 2, 2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(run("cast", {"x": x[:4]}, ("uint8", (4,)), {"dtype": "uint8"}), [0, 0, 0, 2])
    np.testing.assert_array_equal(run("cast", {"x": np.array([0.0, -0.1], np.float32)}, ("bool", (2,)), {"dtype": "bool"}), [False, True])


REDUCE: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_l1_norm": lambda x, axis, keepdims: np.abs(x).sum(axis, keepdims=keepdims),
    "reduce_l2_norm": lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims)),
    "reduce_sum_square": lambda x, axis, keepdims: (x * x).sum(axis, keepdims=keepdims),
    "reduce_log_sum": lambda x, axis, keepdims: np.log(x.sum(axis, keepdims=keepdims)),
    "reduce_log_sum_exp": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis, keepdims=keepdims)),
}


@pytest.mark.parametrize("kind", REDUCE)
@quick
@given(seed=seeds, shape=shapes, dtype=st.sampled_from(PRECISIONS), keep=st.booleans(), data=st.data())
def test_reduce(kind: str, seed: int, shape: tuple[int, ...], dtype: str, keep: bool, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    x = values(seed, shape, dtype, 0.1, 2) if kind in ("reduce_log_sum", "reduce_prod") else values(seed, shape, dtype)
    want = REDUCE[kind](x.astype(np.float64), axis=tuple(axes), keepdims=keep)
    signed = np.array([a - len(shape) if i % 2 else a for i, a in enumerate(axes)], np.int32)
    close(run(kind, {"x": x}, (dtype, want.shape), {"axes": signed, "keep_dims": np.bool_(keep)}), want, dtype, 8)


@quick
@given(seed=seeds, shape=shapes, keep=st.booleans())
def test_argmax_takes_the_first_of_equals(seed: int, shape: tuple[int, ...], keep: bool) -> None:
    x = np.random.RandomState(seed).randint(-2, 3, shape).astype(np.float32)
    for kind, function in (("reduce_argmax", np.argmax), ("reduce_argmin", np.argmin)):
        want = function(x, axis=-1, keepdims=keep)
        np.testing.assert_array_equal(run(kind, {"x": x}, ("int32", want.shape), {"axis": np.int32(-1), "keep_dims": np.bool_(keep)}), want)


@quick
@given(
    seed=seeds, dtype=st.sampled_from(PRECISIONS), m=st.integers(1, 5), k=st.integers(1, 6), n=st.integers(1, 5), tx=st.booleans(), ty=st.booleans()
)
def test_matmul(seed: int, dtype: str, m: int, k: int, n: int, tx: bool, ty: bool) -> None:
    x, y = values(seed, (2, 1, k, m) if tx else (2, 1, m, k), dtype), values(seed + 1, (3, n, k) if ty else (3, k, n), dtype)
    want = np.matmul(np.swapaxes(x, -1, -2) if tx else x, np.swapaxes(y, -1, -2) if ty else y, dtype=np.float64)
    got = run("matmul", {"x": x, "y": y}, (dtype, want.shape), {"transpose_x": np.bool_(tx), "transpose_y": np.bool_(ty)})
    close(got, want, dtype, 8)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_linear_einsum_and_attention(dtype: str) -> None:
    x, w, b = values(1, (2, 5, 7), dtype), values(2, (4, 7), dtype), values(3, (4,), dtype)
    close(run("linear", {"x": x}, (dtype, (2, 5, 4)), {"weight": (w, dtype), "bias": (b, dtype)}), x.astype(np.float64) @ w.T + b, dtype, 8)
    a, c = values(4, (2, 3, 4, 5), dtype), values(5, (2, 5, 4, 6), dtype)
    want = np.einsum("nchw,nwhu->nchu", a.astype(np.float64), c)
    close(run("einsum", {"a": a, "b": c}, (dtype, want.shape), {"equation": "nchw,nwhu->nchu"}, "values"), want, dtype, 8)
    q, k, v, mask = (values(i, s, dtype) for i, s in ((6, (1, 2, 4, 8)), (7, (1, 2, 5, 8)), (8, (1, 2, 5, 3)), (9, (1, 1, 4, 5))))
    want = F.scaled_dot_product_attention(*(torch.from_numpy(z).double() for z in (q, k, v, mask)))
    close(run("scaled_dot_product_attention", {"query": q, "key": k, "value": v, "attn_mask": mask}, (dtype, want.shape)), want, dtype, 2)


def test_an_unknown_mode_is_refused_by_name() -> None:
    x = values(1, (1, 2, 4, 4), "float32")
    with pytest.raises(ConversionError, match="layer_frobnicate"):
        run("frobnicate", {"x": x}, ("float32", x.shape))
