"""Convolution, pooling, normalization and recurrent layers against their definitions, or torch in double precision."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coreml_operator import PRECISIONS, close, run, run_first, seeds, thorough, values

torch = pytest.importorskip("torch")
F = torch.nn.functional

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


def naive_conv(
    x: np.ndarray, w: np.ndarray, b: np.ndarray, strides: Sequence[int], pad: Sequence[tuple[int, int]], dilations: Sequence[int], groups: int
) -> np.ndarray:
    """Convolution by its definition, in double precision."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pad])
    extent = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    sizes = [(n - e) // s + 1 for n, e, s in zip(x.shape[2:], extent, strides, strict=True)]
    out = np.zeros([x.shape[0], w.shape[0], *sizes])
    per_out, per_in = w.shape[0] // groups, w.shape[1]
    for channel in range(w.shape[0]):
        part = x[:, channel // per_out * per_in : (channel // per_out + 1) * per_in]
        for at in itertools.product(*map(range, sizes)):
            window = part[
                (slice(None), slice(None), *[slice(i * s, i * s + e, d) for i, s, e, d in zip(at, strides, extent, dilations, strict=True)])
            ]
            out[(slice(None), channel, *at)] = (window * w[channel].astype(np.float64)).reshape(x.shape[0], -1).sum(1) + b[channel]
    return out


@thorough
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


@thorough
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


def naive_pool(
    x: np.ndarray, kind: str, kernel: Sequence[int], strides: Sequence[int], pad: Sequence[tuple[int, int]], ceil: bool, exclude: bool
) -> np.ndarray:
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
@thorough
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


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 5), (2, 3, 4, 5), (1, 3, 2, 3, 4)])
def test_batch_norm(shape: tuple[int, ...], dtype: str) -> None:
    x = values(1, shape, dtype)
    mean, variance, gamma, beta = (values(i, (3,), dtype, 0.25, 2) for i in range(4))
    want = F.batch_norm(*(torch.from_numpy(a).double() for a in (x, mean, variance, gamma, beta)), False, 0.0, float(np.dtype(dtype).type(1e-3)))
    parameters = {
        "mean": (mean, dtype),
        "variance": (variance, dtype),
        "gamma": (gamma, dtype),
        "beta": (beta, dtype),
        "epsilon": (np.float32(1e-3), dtype),
    }
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


def weights(seed: int, gates: int, hidden: int, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(
        values(seed + i, s, "float32", -1, 1) for i, s in enumerate(((gates * hidden, features), (gates * hidden, hidden), (gates * hidden,)))
    )  # type: ignore[return-value]


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
    close(
        run_first("rnn", {"x": x, "initial_h": h}, want.shape, parameters | {"weight_ih": w_ih, "weight_hh": w_hh, "bias": b}, 2), want, "float32", 2
    )
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
