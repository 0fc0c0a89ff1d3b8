"""Every operator against an independent reference: torch or numpy in double precision, or the formula of the operator's definition.

The tolerance follows from the precision: a float32 operator may differ by accumulated rounding, a half operator by one unit in the last place, as it
computes in float32 and rounds once.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgekit.errors import ConversionError
from edgekit.formats import mlprogram
from tests import coreml_packages as packages

torch = pytest.importorskip("torch")
F = torch.nn.functional

quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
PRECISIONS = ("float32", "float16")


def run(kind: str, tensors: dict[str, np.ndarray], output: tuple[str, Sequence[int]], parameters: dict[str, Any] | None = None, tuple_input: str = "") -> np.ndarray:
    """One operator through a package on disk; float inputs take the output's precision where that is a float."""
    dtype = output[0] if output[0].startswith("float") else "float32"
    kinds = {n: ("float16" if dtype == "float16" else "float32") if a.dtype.kind == "f" else "int32" for n, a in tensors.items()}
    with tempfile.TemporaryDirectory() as folder:
        specs = {n: (kinds[n], a.shape) for n, a in tensors.items()}
        path = packages.one_operator(Path(folder) / "m.mlpackage", kind, specs, output, parameters, tuple_input)
        model = mlprogram.open(str(path), {})
        return mlprogram.session(model).run(tensors)["y"]


def close(got: np.ndarray, want: Any, dtype: str, scale: float = 1.0) -> None:
    want = np.asarray(want, np.float64)
    assert got.shape == want.shape
    if dtype == "float16":
        want = np.where(np.abs(want) >= 65520, np.copysign(np.inf, want), want)
        bound = np.abs(want) * 2**-10 + 2**-24 + 4e-7 * scale
    else:
        bound = np.abs(want) * 2e-6 + 4e-6 * scale
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    off = np.abs(got[finite].astype(np.float64) - want[finite]) - bound[finite]
    assert off.size == 0 or off.max() <= 0, f"off by {off.max()} beyond the bound"


def values(seed: int, shape: Sequence[int], dtype: str, low: float = -4, high: float = 4) -> np.ndarray:
    """Random values that the precision holds exactly, some of them at the edges: zeros, tiny and round ones."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(low, high, shape).astype(np.float32)
    edges = np.array([v for v in (0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 6.0, 2**-14) if low <= v <= high] or [low], np.float32)
    x = np.where(rng.rand(*shape) < 0.2, rng.choice(edges, shape), x).astype(np.float32)
    return x.astype(dtype).astype(np.float32)


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**16)

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


COMPARE = {"equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal, "less": np.less, "less_equal": np.less_equal}


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


# --- convolution and pooling

pads = st.sampled_from(("valid", "same", "same_lower", "custom"))


def same_pads(size: int, kernel: int, stride: int, lower: bool) -> tuple[int, int]:
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return (total - total // 2, total // 2) if lower else (total // 2, total - total // 2)


def resolved(pad_type: str, custom: Sequence[int], sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        return [(custom[2 * i], custom[2 * i + 1]) for i in range(len(sizes))]
    return [same_pads(n, k, s, pad_type == "same_lower") for n, k, s in zip(sizes, kernel, strides, strict=True)]


def naive_conv(x: np.ndarray, w: np.ndarray, b: np.ndarray, strides: Sequence[int], pad: Sequence[tuple[int, int]], dilations: Sequence[int], groups: int) -> np.ndarray:
    """Convolution by its definition, in double precision."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pad])
    extent = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    sizes = [(n - e) // s + 1 for n, e, s in zip(x.shape[2:], extent, strides, strict=True)]
    out = np.zeros([x.shape[0], w.shape[0], *sizes])
    per_out, per_in = w.shape[0] // groups, w.shape[1]
    for channel in range(w.shape[0]):
        part = x[:, channel // per_out * per_in : (channel // per_out + 1) * per_in]
        for at in itertools.product(*map(range, sizes)):
            window = part[(slice(None), slice(None), *[slice(i * s, i * s + e, d) for i, s, e, d in zip(at, strides, extent, dilations, strict=True)])]
            out[(slice(None), channel, *at)] = (window * w[channel].astype(np.float64)).reshape(x.shape[0], -1).sum(1) + b[channel]
    return out


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), rank=st.integers(1, 3), pad_type=pads, dtype=st.sampled_from(PRECISIONS), seed=seeds)
def test_conv(data: st.DataObject, rank: int, pad_type: str, dtype: str, seed: int) -> None:
    groups = data.draw(st.sampled_from((1, 2)))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    strides = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    dilations = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    custom = [data.draw(st.integers(0, 2)) for _ in range(2 * rank)]
    sizes = [data.draw(st.integers(5, 7)) for _ in range(rank)]
    x = values(seed, (2, 4, *sizes), dtype)
    w, b = values(seed + 1, (6, 4 // groups, *kernel), dtype, -1, 1), values(seed + 2, (6,), dtype)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    want = naive_conv(x, w, b, strides, resolved(pad_type, custom, sizes, extent, strides), dilations, groups)
    parameters = {"weight": (w, dtype), "bias": (b, dtype), "strides": np.array(strides, np.int32), "dilations": np.array(dilations, np.int32)}
    parameters |= {"pad_type": pad_type, "pad": np.array(custom, np.int32), "groups": np.int32(groups)}
    close(run("conv", {"x": x}, (dtype, want.shape), parameters), want, dtype, 4)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), rank=st.integers(1, 3), groups=st.sampled_from((1, 2)), dtype=st.sampled_from(PRECISIONS), seed=seeds)
def test_conv_transpose_is_the_gradient_of_conv(data: st.DataObject, rank: int, groups: int, dtype: str, seed: int) -> None:
    """By definition: the transposed operator's matrix is the transpose of the convolution's."""
    kernel = [data.draw(st.integers(2, 3)) for _ in range(rank)]
    strides = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    pad = [data.draw(st.integers(0, 1)) for _ in range(2 * rank)]
    sizes = [data.draw(st.integers(3, 4)) for _ in range(rank)]
    x, w = values(seed, (1, 4, *sizes), dtype), values(seed + 1, (4, 3, *kernel), dtype, -1, 1)
    b = values(seed + 2, (3 * groups,), dtype)
    outer = [(n - 1) * s + k - pad[2 * i] - pad[2 * i + 1] for i, (n, s, k) in enumerate(zip(sizes, strides, kernel, strict=True))]
    image = torch.zeros((1, 3 * groups, *outer), dtype=torch.float64, requires_grad=True)
    padded = F.pad(image, [n for i in reversed(range(rank)) for n in (pad[2 * i], pad[2 * i + 1])])
    conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    forward = conv(padded, torch.from_numpy(w).double(), stride=strides, groups=groups)
    (gradient,) = torch.autograd.grad(forward, image, torch.from_numpy(x).double())
    want = gradient.numpy() + b.reshape(1, -1, *[1] * rank)
    parameters = {"weight": (w, dtype), "bias": (b, dtype), "pad": np.array(pad, np.int32), "pad_type": "custom"}
    parameters |= {"strides": np.array(strides, np.int32), "groups": np.int32(groups)}
    close(run("conv_transpose", {"x": x}, (dtype, want.shape), parameters), want, dtype, 4)
    parameters["output_shape"] = np.array([1, 3 * groups, *outer], np.int32)
    close(run("conv_transpose", {"x": x}, (dtype, want.shape), parameters), want, dtype, 4)


def test_conv_transpose_same_gives_input_times_stride() -> None:
    x, w = values(1, (1, 2, 4, 5), "float32"), values(2, (2, 3, 3, 3), "float32")
    full = F.conv_transpose2d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), stride=2).numpy()
    got = run("conv_transpose", {"x": x}, ("float32", (1, 3, 8, 10)), {"weight": w, "pad_type": "same", "strides": np.array([2, 2], np.int32)})
    close(got, full[:, :, :8, :10], "float32", 4)


def naive_pool(x: np.ndarray, kind: str, kernel: Sequence[int], strides: Sequence[int], pad: Sequence[tuple[int, int]], ceil: bool, exclude: bool) -> np.ndarray:
    sizes = []
    for n, k, s, (before, after) in zip(x.shape[2:], kernel, strides, pad, strict=True):
        room = n + before + after - k
        out = (math.ceil(room / s) if ceil else room // s) + 1
        if ceil and (out - 1) * s >= n + before and before + after > 0:
            out -= 1
        sizes.append(out)
    result = np.zeros((*x.shape[:2], *sizes))
    for at in itertools.product(*map(range, sizes)):
        starts = [i * s - before for i, s, (before, _) in zip(at, strides, pad, strict=True)]
        inner = [slice(max(a, 0), min(a + k, n)) for a, k, n in zip(starts, kernel, x.shape[2:], strict=True)]
        window = x[(slice(None), slice(None), *inner)].astype(np.float64).reshape(*x.shape[:2], -1)
        counted = math.prod(min(a + k, n + after) - a for a, k, n, (_, after) in zip(starts, kernel, x.shape[2:], pad, strict=True))
        divisor = window.shape[2] if exclude else counted
        pooled = {"max_pool": lambda w: w.max(2), "avg_pool": lambda w: w.sum(2) / divisor, "l2_pool": lambda w: np.sqrt((w**2).sum(2))}  # noqa: B023 (used at once)
        result[(slice(None), slice(None), *at)] = pooled[kind](window)
    return result


@pytest.mark.parametrize("kind", ["max_pool", "avg_pool", "l2_pool"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), pad_type=pads, dtype=st.sampled_from(PRECISIONS), ceil=st.booleans(), exclude=st.booleans(), seed=seeds)
def test_pool(kind: str, data: st.DataObject, pad_type: str, dtype: str, ceil: bool, exclude: bool, seed: int) -> None:
    rank = data.draw(st.integers(1, 2))
    kernel = [data.draw(st.integers(2, 3)) for _ in range(rank)]
    strides = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    sizes = [data.draw(st.integers(4, 8)) for _ in range(rank)]
    ceil = ceil and pad_type in ("valid", "custom")
    custom = [n for _ in range(rank) for n in [data.draw(st.integers(0, 1))] * 2]
    x = values(seed, (2, 3, *sizes), dtype)
    want = naive_pool(x, kind, kernel, strides, resolved(pad_type, custom, sizes, kernel, strides), ceil, exclude)
    parameters: dict[str, Any] = {"kernel_sizes": np.array(kernel, np.int32), "strides": np.array(strides, np.int32), "pad_type": pad_type}
    parameters |= {"pad": np.array(custom, np.int32), "ceil_mode": np.bool_(ceil)}
    if kind == "avg_pool":
        parameters["exclude_padding_from_average"] = np.bool_(exclude)
    close(run(kind, {"x": x}, (dtype, want.shape), parameters), want, dtype, 2)


# --- normalization, reduction, products


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 5), (2, 3, 4, 5), (1, 3, 2, 3, 4)])
def test_batch_norm(shape: tuple[int, ...], dtype: str) -> None:
    x = values(1, shape, dtype)
    mean, variance, gamma, beta = (values(i, (3,), dtype, 0.25, 2) for i in range(4))
    want = F.batch_norm(*(torch.from_numpy(a).double() for a in (x, mean, variance, gamma, beta)), False, 0.0, float(np.dtype(dtype).type(1e-3)))
    parameters = {"mean": (mean, dtype), "variance": (variance, dtype), "gamma": (gamma, dtype), "beta": (beta, dtype), "epsilon": (np.float32(1e-3), dtype)}
    close(run("batch_norm", {"x": x}, (dtype, shape), parameters), want, dtype, 2)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_layer_instance_and_l2_norm(dtype: str) -> None:
    x = values(1, (2, 4, 5, 6), dtype)
    t = torch.from_numpy(x).double()
    gamma, beta = values(2, (5, 6), dtype, 0.5, 2), values(3, (5, 6), dtype)
    want = F.layer_norm(t, (5, 6), torch.from_numpy(gamma).double(), torch.from_numpy(beta).double(), 2**-10)
    epsilon = (np.float32(2**-10), dtype)
    parameters = {"axes": np.array([-1, 2], np.int32), "gamma": (gamma, dtype), "beta": (beta, dtype), "epsilon": epsilon}
    close(run("layer_norm", {"x": x}, (dtype, x.shape), parameters), want, dtype, 2)
    across = run("layer_norm", {"x": x}, (dtype, x.shape), {"axes": np.array([1], np.int32), "epsilon": epsilon})
    close(across, ((t - t.mean(1, True)) / (t.var(1, False, keepdim=True) + 2**-10).sqrt()), dtype, 2)
    scale = values(4, (4,), dtype, 0.5, 2)
    want = F.instance_norm(t, weight=torch.from_numpy(scale).double(), eps=2**-10)
    close(run("instance_norm", {"x": x}, (dtype, x.shape), {"gamma": (scale, dtype), "epsilon": epsilon}), want, dtype, 2)
    close(run("l2_norm", {"x": x}, (dtype, x.shape), {"epsilon": epsilon}), t / (t.square().sum((1, 2, 3), True) + 2**-10).sqrt(), dtype)


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_local_response_norm(size: int) -> None:
    x = values(1, (2, 6, 4, 5), "float32")
    parameters = {"size": np.int32(size), "alpha": np.float32(0.5), "beta": np.float32(0.75), "k": np.float32(2)}
    want = F.local_response_norm(torch.from_numpy(x).double(), size, 0.5, 0.75, 2.0)
    close(run("local_response_norm", {"x": x}, ("float32", x.shape), parameters), want, "float32")


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
@given(seed=seeds, dtype=st.sampled_from(PRECISIONS), m=st.integers(1, 5), k=st.integers(1, 6), n=st.integers(1, 5), tx=st.booleans(), ty=st.booleans())
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


# --- recurrent layers


def weights(seed: int, gates: int, hidden: int, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(values(seed + i, s, "float32", -1, 1) for i, s in enumerate(((gates * hidden, features), (gates * hidden, hidden), (gates * hidden,))))  # type: ignore[return-value]


def torch_order(w: np.ndarray, order: Sequence[int]) -> Any:
    parts = np.split(w, len(order))
    return torch.from_numpy(np.concatenate([parts[i] for i in order]))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("sequence", [True, False])
def test_lstm(direction: str, sequence: bool) -> None:
    steps, batch, features, hidden = 6, 2, 5, 4
    both = direction == "bidirectional"
    x = values(1, (steps, batch, features), "float32")
    width = hidden * (2 if both else 1)
    h, c = values(2, (batch, width), "float32"), values(3, (batch, width), "float32")
    sets = [weights(10, 4, hidden, features), weights(20, 4, hidden, features)][: 2 if both else 1]
    reference = torch.nn.LSTM(features, hidden, bidirectional=both)
    for (w_ih, w_hh, b), suffix in zip(sets, ("", "_reverse"), strict=False):
        for name, value in (("weight_ih_l0", w_ih), ("weight_hh_l0", w_hh), ("bias_ih_l0", b)):  # torch: i f g o, Core ML: i f o g
            getattr(reference, name + suffix).data = torch_order(value, (0, 1, 3, 2))
        getattr(reference, "bias_hh_l0" + suffix).data.zero_()
    fed = torch.from_numpy(x).flip(0) if direction == "reverse" else torch.from_numpy(x)
    states = tuple(torch.from_numpy(s).reshape(batch, -1, hidden).permute(1, 0, 2).contiguous() for s in (h, c))
    with torch.no_grad():
        out, (last, _) = reference(fed, states)
    want = out.numpy() if sequence else last.permute(1, 0, 2).reshape(1, batch, width).numpy()
    parameters: dict[str, Any] = {"weight_ih": sets[0][0], "weight_hh": sets[0][1], "bias": sets[0][2]}
    if both:
        parameters |= {"weight_ih_back": sets[1][0], "weight_hh_back": sets[1][1], "bias_back": sets[1][2]}
    parameters |= {"direction": direction, "output_sequence": np.bool_(sequence)}
    got = run_first("lstm", {"x": x, "initial_h": h, "initial_c": c}, want.shape, parameters, 3)
    close(got, want, "float32", 2)


def run_first(kind: str, tensors: dict[str, np.ndarray], shape: Sequence[int], parameters: dict[str, Any], outputs: int) -> np.ndarray:
    """The first output of an operator that has several."""
    with tempfile.TemporaryDirectory() as folder:
        bound = {n: n for n in tensors} | {n: packages.literal(v) for n, v in parameters.items()}
        named = [packages.named(f"y{i}", "float32", shape if i == 0 else ()) for i in range(outputs)]
        body = packages.block([packages.operation(kind, "layer", bound, named)], ["y0"])
        data = packages.model({n: ("float32", a.shape) for n, a in tensors.items()}, {"y0": "float32"}, body)
        model = mlprogram.open(str(packages.write(Path(folder) / "m.mlpackage", data)), {})
        return mlprogram.session(model).run(tensors)["y0"]


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_rnn_and_gru(direction: str) -> None:
    x, h = values(1, (6, 2, 5), "float32"), values(2, (2, 4), "float32")
    fed = torch.from_numpy(x).flip(0) if direction == "reverse" else torch.from_numpy(x)
    w_ih, w_hh, b = weights(10, 1, 4, 5)
    plain = torch.nn.RNN(5, 4)
    for name, value in (("weight_ih_l0", w_ih), ("weight_hh_l0", w_hh), ("bias_ih_l0", b), ("bias_hh_l0", 0 * b)):
        getattr(plain, name).data = torch.from_numpy(value)
    parameters: dict[str, Any] = {"direction": direction, "output_sequence": np.bool_(True)}
    with torch.no_grad():
        want = plain(fed, torch.from_numpy(h)[None])[0].numpy()
    close(run_first("rnn", {"x": x, "initial_h": h}, want.shape, parameters | {"weight_ih": w_ih, "weight_hh": w_hh, "bias": b}, 2), want, "float32", 2)
    w_ih, w_hh, b = weights(20, 3, 4, 5)
    gated = torch.nn.GRU(5, 4)  # torch: r z n, Core ML: r n z; torch resets after the product
    for name, value in (("weight_ih_l0", w_ih), ("weight_hh_l0", w_hh), ("bias_ih_l0", 0.5 * b), ("bias_hh_l0", b)):
        getattr(gated, name).data = torch_order(value, (0, 2, 1))
    with torch.no_grad():
        want = gated(fed, torch.from_numpy(h)[None])[0].numpy()
    parameters |= {"weight_ih": w_ih, "weight_hh": w_hh, "bias": b, "input_bias": 0.5 * b, "reset_after": np.bool_(True)}
    close(run_first("gru", {"x": x, "initial_h": h}, want.shape, parameters, 2), want, "float32", 2)


def test_gru_resets_before_the_product_by_default() -> None:
    x, h = values(1, (1, 1, 2), "float32"), values(2, (1, 3), "float32")
    w_ih, w_hh, b = weights(30, 3, 3, 2)
    (ir, io, iz), (hr, ho, hz), (br, bo, bz) = (np.split(w.astype(np.float64), 3) for w in (w_ih, w_hh, b))
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    r, z = sigmoid(x[0] @ ir.T + h @ hr.T + br), sigmoid(x[0] @ iz.T + h @ hz.T + bz)
    want = (1 - z) * np.tanh(x[0] @ io.T + (r * h) @ ho.T + bo) + z * h
    got = run_first("gru", {"x": x, "initial_h": h}, (1, 1, 3), {"weight_ih": w_ih, "weight_hh": w_hh, "bias": b}, 2)
    close(got, want[None], "float32")


def test_an_unknown_mode_is_refused_by_name() -> None:
    x = values(1, (1, 2, 4, 4), "float32")
    with pytest.raises(ConversionError, match="layer_frobnicate"):
        run("frobnicate", {"x": x}, ("float32", x.shape))
