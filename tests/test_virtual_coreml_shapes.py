"""Operators that move and make values, against numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coreml_operator import PRECISIONS, close, quick, run, run_first, seeds, shapes, thorough, values

torch = pytest.importorskip("torch")
F = torch.nn.functional


def i32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def same(kind: str, x: np.ndarray, want: np.ndarray, parameters: dict[str, Any]) -> None:
    """The operator only moves values: the result must be equal, in every precision."""
    want = np.ascontiguousarray(want)
    for dtype in PRECISIONS:
        np.testing.assert_array_equal(run(kind, {"x": x}, (dtype, want.shape), parameters), want)


def counted(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@quick
@given(shape=shapes, seed=seeds)
def test_transpose_reverse_tile(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.RandomState(seed)
    x, perm = counted(*shape), rng.permutation(len(shape))
    same("transpose", x, x.transpose(perm), {"perm": perm.astype(np.int32)})
    axes = perm[: rng.randint(1, len(shape) + 1)]
    same("reverse", x, np.flip(x, tuple(axes)), {"axes": axes.astype(np.int32)})
    same("reverse", x, np.flip(x), {})
    reps = rng.randint(1, 4, len(shape))
    same("tile", x, np.tile(x, reps), {"reps": reps.astype(np.int32)})


def test_reshape_squeeze_expand() -> None:
    x = counted(2, 1, 6)
    same("reshape", x, x.reshape(2, 3, 2), {"shape": i32(0, 3, -1)})
    same("squeeze", x, x.reshape(2, 6), {"axes": i32(-2)})
    same("squeeze", x, x.reshape(2, 6), {})
    same("expand_dims", x, x.reshape(2, 1, 1, 6, 1), {"axes": i32(-1, 1)})
    same("flatten2d", x, x.reshape(2, 6), {"axis": np.int32(1)})
    same("identity", x, x, {})


@thorough
@given(data=st.data(), size=st.integers(1, 6))
def test_slice_by_index_is_numpy_slicing(data: st.DataObject, size: int) -> None:
    x = counted(size, 4, 3)
    begin, end, stride, begin_mask, end_mask, key = [], [], [], [], [], []
    for n in x.shape:
        b, e = data.draw(st.integers(-n, n - 1)), data.draw(st.integers(-n, n))
        s, bm, em = data.draw(st.sampled_from((1, 2, -1, -2))), data.draw(st.booleans()), data.draw(st.booleans())
        for values_of, value in ((begin, b), (end, e), (stride, s), (begin_mask, bm), (end_mask, em)):
            values_of.append(value)
        key.append(slice(None if bm else b, None if em else e, s))
    parameters = {"begin": i32(*begin), "end": i32(*end), "stride": i32(*stride), "begin_mask": np.array(begin_mask), "end_mask": np.array(end_mask)}
    same("slice_by_index", x, x[tuple(key)], parameters)


def test_slice_squeezes_and_updates() -> None:
    x = counted(3, 4, 5)
    squeeze = np.array([False, True, False])
    same("slice_by_index", x, x[1:, -1], {"begin": i32(1, -1, 0), "end": i32(3, 0, 5), "squeeze_mask": squeeze})
    same("slice_by_size", x, x[1:3, :, 2:], {"begin": i32(1, 0, 2), "size": i32(2, 4, -1)})
    want = x.copy()
    want[0:3:2, 1:3] = -1
    update = np.full((2, 2, 5), -1, np.float32)
    got = run("slice_update", {"x": x, "update": update}, ("float32", x.shape), {"begin": i32(0, 1, 0), "end": i32(3, 3, 5), "stride": i32(2, 1, 1)})
    np.testing.assert_array_equal(got, want)


@quick
@given(shape=shapes, data=st.data())
def test_concat_stack_split(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    a, b = counted(*shape), -1 - counted(*shape)
    want = np.concatenate([a, b], axis)
    got = run("concat", {"a": a, "b": b}, ("float32", want.shape), {"axis": np.int32(axis), "interleave": np.bool_(False)}, "values")
    np.testing.assert_array_equal(got, want)
    stacked = np.stack([a, b], axis)
    np.testing.assert_array_equal(run("stack", {"a": a, "b": b}, ("float32", stacked.shape), {"axis": np.int32(axis)}, "values"), stacked)
    at = axis % len(shape)
    interleaved = np.stack([a, b], at + 1).reshape(want.shape)
    got = run("concat", {"a": a, "b": b}, ("float32", want.shape), {"axis": np.int32(axis), "interleave": np.bool_(True)}, "values")
    np.testing.assert_array_equal(got, interleaved)
    np.testing.assert_array_equal(run_first("split", {"x": want}, shape, {"axis": np.int32(axis), "num_splits": np.int32(2)}, 2), a)
    sizes = i32(1, want.shape[at] - 1)
    first = np.split(want, [1], axis)[0]
    np.testing.assert_array_equal(run_first("split", {"x": want}, first.shape, {"axis": np.int32(axis), "split_sizes": sizes}, 2), first)


def test_blocks_of_pixels() -> None:
    x = counted(2, 8, 3, 4)
    t = torch.from_numpy(x)
    same("pixel_shuffle", x, F.pixel_shuffle(t, 2).numpy(), {"upscale_factor": np.int32(2)})
    y = counted(2, 2, 6, 4)
    same("pixel_unshuffle", y, F.pixel_unshuffle(torch.from_numpy(y), 2).numpy(), {"downscale_factor": np.int32(2)})
    deep = np.zeros((2, 2, 6, 8), np.float32)
    for i, j in np.ndindex(2, 2):
        deep[:, :, i::2, j::2] = x[:, (2 * i + j) * 2 : (2 * i + j) * 2 + 2]
    same("depth_to_space", x, deep, {"block_size": np.int32(2)})
    same("space_to_depth", deep, x, {"block_size": np.int32(2)})
    same("crop", x, x[:, :, 1:, 1:-2], {"crop_height": i32(1, 0), "crop_width": i32(1, 2)})
    batched = np.concatenate([y[:, :, i::2, j::2] for i, j in np.ndindex(2, 2)])
    same("space_to_batch", y, batched, {"block_shape": i32(2, 2), "paddings": np.zeros((2, 2), np.int32)})
    same("batch_to_space", batched, y[:, :, 1:], {"block_shape": i32(2, 2), "crops": np.array([[1, 0], [0, 0]], np.int32)})
    windows = np.lib.stride_tricks.sliding_window_view(counted(2, 7, 3), 3, 1)[:, ::2].transpose(0, 1, 3, 2)
    same("sliding_windows", counted(2, 7, 3), windows, {"axis": np.int32(1), "size": np.int32(3), "stride": np.int32(2)})


@quick
@given(data=st.data(), mode=st.sampled_from(("constant", "reflect", "replicate")), axes=st.integers(1, 3))
def test_pad(data: st.DataObject, mode: str, axes: int) -> None:
    x = counted(3, 4, 5)
    limit = {"constant": 5, "reflect": 2, "replicate": 3}[mode]
    pairs = [(data.draw(st.integers(0, limit)), data.draw(st.integers(0, limit))) for _ in range(axes)]
    full = [(0, 0)] * (3 - axes) + pairs
    want = np.pad(x, full, constant_values=2.5) if mode == "constant" else np.pad(x, full, "edge" if mode == "replicate" else "reflect")
    same("pad", x, want, {"pad": i32(*(n for pair in pairs for n in pair)), "mode": mode, "constant_val": np.float32(2.5)})


def test_makers() -> None:
    x = counted(3, 4)
    np.testing.assert_array_equal(run("shape", {"x": x}, ("int32", (2,))), [3, 4])
    np.testing.assert_array_equal(run("fill_like", {"ref_tensor": x}, ("float32", (3, 4)), {"value": np.float32(7)}), np.full((3, 4), 7))
    same("band_part", x, np.tril(x), {"lower": np.int32(-1), "upper": np.int32(0)})
    same("band_part", x, np.triu(x, -1) * np.tri(3, 4, 1), {"lower": np.int32(1), "upper": np.int32(1)})
    size = np.array([5], np.int32)
    np.testing.assert_array_equal(run("fill", {"shape": size}, ("float32", (5,)), {"value": np.float32(1.5)}), np.full(5, 1.5))
    steps = {"start": np.int32(1), "step": np.int32(3)}
    np.testing.assert_array_equal(run("range_1d", {"end": np.array(9, np.int32)}, ("int32", (3,)), steps), [1, 4, 7])
    ids = np.array([[0, 2], [3, -1]], np.int32)
    got = run(
        "one_hot",
        {"indices": ids},
        ("float32", (2, 3, 2)),
        {"one_hot_vector_size": np.int32(3), "axis": np.int32(1), "on_value": np.float32(2), "off_value": np.float32(-1)},
    )
    np.testing.assert_array_equal(got, np.where(ids[:, None, :] == np.arange(3).reshape(1, 3, 1), 2, -1))
    np.testing.assert_array_equal(run("non_zero", {"x": np.array([[0, 2], [3, 0]], np.float32)}, ("int32", (2, 2))), [[0, 1], [1, 0]])


@quick
@given(seed=seeds, shape=shapes, exclusive=st.booleans(), reverse=st.booleans())
def test_cumsum(seed: int, shape: tuple[int, ...], exclusive: bool, reverse: bool) -> None:
    x = values(seed, shape, "float32")
    flipped = x[::-1] if reverse else x
    total = np.cumsum(flipped.astype(np.float64), 0)
    total = total - flipped if exclusive else total
    close(
        run("cumsum", {"x": x}, ("float32", shape), {"axis": np.int32(0), "exclusive": np.bool_(exclusive), "reverse": np.bool_(reverse)}),
        total[::-1] if reverse else total,
        "float32",
        4,
    )


@quick
@given(seed=seeds, ascending=st.booleans(), k=st.integers(1, 5))
def test_topk_and_argsort_take_the_earlier_of_equals(seed: int, ascending: bool, k: int) -> None:
    x = np.random.RandomState(seed).randint(-3, 4, (3, 6)).astype(np.float32)
    order = np.argsort(x if ascending else -x, axis=1, kind="stable")
    flags = {"axis": np.int32(1), "ascending": np.bool_(ascending)}
    np.testing.assert_array_equal(run("argsort", {"x": x}, ("int32", x.shape), flags), order)
    want = np.take_along_axis(x, order[:, :k], 1)
    np.testing.assert_array_equal(run_first("topk", {"x": x}, want.shape, flags | {"k": np.int32(k)}, 2), want)


def test_select_broadcasts() -> None:
    x, y = values(1, (3, 1, 4), "float32"), values(2, (2, 1), "float32")
    condition = np.array([[1], [0]], np.int32)
    got = run("select", {"cond": condition, "a": x, "b": y}, ("float32", (3, 2, 4)))
    np.testing.assert_array_equal(got, np.where(condition.astype(bool), x, y))


def test_reverse_sequence() -> None:
    x = counted(2, 5, 3)
    want = x.copy()
    want[0, :2], want[1, :4] = x[0, :2][::-1], x[1, :4][::-1]
    same("reverse_sequence", x, want, {"lengths": i32(2, 4), "seq_axis": np.int32(1), "batch_axis": np.int32(0)})
