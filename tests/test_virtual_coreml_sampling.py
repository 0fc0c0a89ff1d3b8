"""Gather, scatter, resizing and sampling, against numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import EdgekitError
from tests.coreml_operator import PRECISIONS, close, quick, run, seeds, values

torch = pytest.importorskip("torch")
F = torch.nn.functional


def i32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def counted(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@quick
@given(seed=seeds, axis=st.integers(-3, 2), rank=st.integers(0, 2))
def test_gather(seed: int, axis: int, rank: int) -> None:
    rng = np.random.RandomState(seed)
    x = values(seed, (3, 4, 5), "float32")
    indices = rng.randint(-x.shape[axis], x.shape[axis], (2, 3)[:rank]).astype(np.int32)
    want = np.take(x, indices, axis)
    np.testing.assert_array_equal(run("gather", {"x": x, "indices": np.asarray(indices)}, ("float32", want.shape), {"axis": np.int32(axis)}), want)
    along = rng.randint(-x.shape[axis], x.shape[axis], (3, 4, 5)).astype(np.int32)
    got = run("gather_along_axis", {"x": x, "indices": along}, ("float32", x.shape), {"axis": np.int32(axis), "validate_indices": np.bool_(False)})
    np.testing.assert_array_equal(got, np.take_along_axis(x, along, axis))


def test_gather_with_batches() -> None:
    x, rng = values(1, (2, 3, 4, 5), "float32"), np.random.RandomState(0)
    indices = rng.randint(0, 4, (2, 3, 6)).astype(np.int32)
    want = np.stack([np.stack([x[i, j][indices[i, j]] for j in range(3)]) for i in range(2)])
    got = run("gather", {"x": x, "indices": indices}, ("float32", want.shape), {"axis": np.int32(2), "batch_dims": np.int32(2)})
    np.testing.assert_array_equal(got, want)
    points = np.stack([rng.randint(0, 3, (2, 7)), rng.randint(0, 4, (2, 7))], -1).astype(np.int32)
    want = np.stack([x[i][points[i, :, 0], points[i, :, 1]] for i in range(2)])
    np.testing.assert_array_equal(run("gather_nd", {"x": x, "indices": points}, ("float32", want.shape), {"batch_dims": np.int32(1)}), want)
    want = x[points[0, :, 0] % 2, points[0, :, 1] % 3]
    got = run("gather_nd", {"x": x, "indices": points[0] % [2, 3]}, ("float32", want.shape), {})
    np.testing.assert_array_equal(got, want)


MODES = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("mode", [*MODES, "update"])
@quick
@given(seed=seeds, axis=st.integers(-2, 1))
def test_scatter(mode: str, seed: int, axis: int) -> None:
    rng = np.random.RandomState(seed)
    data, size = values(seed, (4, 5), "float32"), (4, 5)[axis]
    chosen = rng.permutation(size)[:3] if mode == "update" else rng.randint(0, size, 3)
    picked: list[Any] = [slice(None), slice(None)]
    picked[axis] = chosen
    updates = values(seed + 1, data[tuple(picked)].shape, "float32", 0.5, 2)

    def apply(into: np.ndarray, at: Any) -> np.ndarray:
        out = into.astype(np.float64)
        if mode == "update":
            out[at] = updates
        else:
            MODES[mode].at(out, at, updates)
        return out

    parameters = {"axis": np.int32(axis), "mode": mode}
    got = run("scatter", {"data": data, "indices": chosen.astype(np.int32), "updates": updates}, ("float32", data.shape), parameters)
    close(got, apply(data, tuple(picked)), "float32", 4)
    grid = np.indices(updates.shape)
    along = np.broadcast_to(chosen.reshape([-1, 1] if axis % 2 == 0 else [1, -1]), updates.shape)
    where = tuple(along if i == axis % 2 else grid[i] for i in range(2))
    got = run("scatter_along_axis", {"data": data, "indices": along.astype(np.int32), "updates": updates}, ("float32", data.shape), parameters)
    close(got, apply(data, where), "float32", 4)
    vectors = np.stack(where, -1).astype(np.int32)
    got = run("scatter_nd", {"data": data, "indices": vectors, "updates": updates}, ("float32", data.shape), {"mode": mode})
    close(got, apply(data, where), "float32", 4)


def test_an_index_out_of_range_names_the_layer() -> None:
    with pytest.raises(EdgekitError, match="layer_gather"):
        run("gather", {"x": counted(3), "indices": i32(7)}, ("float32", (1,)), {"axis": np.int32(0)})


def interpolated(x: np.ndarray, grids: list[list[float]]) -> np.ndarray:
    """Linear interpolation of the last two axes at stated positions, by numpy."""
    for axis, grid in zip((-2, -1), grids, strict=True):
        x = np.apply_along_axis(lambda row, at=grid: np.interp(at, np.arange(len(row)), row), axis, x)
    return x


def reference_grid(mode: str, size: int, out: int) -> list[float]:
    """The sampling positions, term by term as the operator reference writes them."""
    if mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS"):
        if out == 1:
            return [(size - 1) / 2 if mode == "ALIGN_CORNERS" else 0]
        points = [i * (size - 1) / (out - 1) for i in range(out)]
    elif mode == "DEFAULT":
        points = [i * (size - size / out) / (out - 1) if out > 1 else 0 for i in range(out)]
    elif mode == "OFFSET_CORNERS":
        delta = max(1, size - 1) / out
        points = [0.5 * delta + i * delta for i in range(out)]
    else:
        points = [i * size / out + 0.5 * size / out - 0.5 for i in range(out)]
    return [min(size - 1, max(0, p)) for p in points]


@pytest.mark.parametrize("mode", ["STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS", "UNALIGN_CORNERS"])
@quick
@given(seed=seeds, sizes=st.tuples(*[st.integers(1, 6)] * 2), outs=st.tuples(*[st.integers(1, 9)] * 2), dtype=st.sampled_from(PRECISIONS))
def test_resize_bilinear(mode: str, seed: int, sizes: tuple[int, int], outs: tuple[int, int], dtype: str) -> None:
    x = values(seed, (2, 2, *sizes), dtype)
    want = interpolated(x.astype(np.float64), [reference_grid(mode, n, m) for n, m in zip(sizes, outs, strict=True)])
    parameters = {"target_size_height": np.int32(outs[0]), "target_size_width": np.int32(outs[1]), "sampling_mode": mode}
    close(run("resize_bilinear", {"x": x}, (dtype, want.shape), parameters), want, dtype, 4)
    parameters = {"shape": i32(*outs), "resized_dims": np.int32(2), "interpolation_mode": "LINEAR", "sampling_mode": mode}
    close(run("resize", {"x": x}, (dtype, want.shape), parameters), want, dtype, 4)


@quick
@given(seed=seeds, outs=st.tuples(*[st.integers(1, 11)] * 2))
def test_resize_nearest_takes_pixel_centers_and_upsample_corners(seed: int, outs: tuple[int, int]) -> None:
    x = values(seed, (1, 2, 5, 7), "float32")
    t, shape = torch.from_numpy(x), (1, 2, *outs)
    centers = F.interpolate(t, size=outs, mode="nearest-exact").numpy()
    sizes = {"target_size_height": np.int32(outs[0]), "target_size_width": np.int32(outs[1])}
    np.testing.assert_array_equal(run("resize_nearest_neighbor", {"x": x}, ("float32", shape), sizes), centers)
    parameters = {"shape": i32(*outs), "resized_dims": np.int32(2), "interpolation_mode": "NEAREST_NEIGHBOR", "sampling_mode": "DEFAULT"}
    np.testing.assert_array_equal(run("resize", {"x": x}, ("float32", shape), parameters), centers)
    factors = {"scale_factor_height": np.float32((outs[0] + 1e-4) / 5), "scale_factor_width": np.float32((outs[1] + 1e-4) / 7)}
    np.testing.assert_array_equal(run("upsample_nearest_neighbor", {"x": x}, ("float32", shape), factors), F.interpolate(t, size=outs).numpy())


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_upsample(dtype: str) -> None:
    x = values(1, (1, 2, 4, 5), dtype)
    t = torch.from_numpy(x).double()
    twice = {"scale_factor_height": np.int32(2), "scale_factor_width": np.int32(3)}
    np.testing.assert_array_equal(run("upsample_nearest_neighbor", {"x": x}, (dtype, (1, 2, 8, 15)), twice), x.repeat(2, 2).repeat(3, 3))
    for aligned in (True, False):
        want = F.interpolate(t, scale_factor=(2, 3), mode="bilinear", align_corners=aligned)
        close(run("upsample_bilinear", {"x": x}, (dtype, want.shape), twice | {"align_corners": np.bool_(aligned)}), want, dtype, 4)
    want = F.interpolate(t, size=(6, 7), mode="bilinear", align_corners=False)
    scales = {"scale_factor_height": np.float32(1.5), "scale_factor_width": np.float32(1.5), "align_corners": np.bool_(False)}
    close(run("upsample_bilinear", {"x": x}, (dtype, want.shape), scales), want, dtype, 4)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("aligned", [True, False])
def test_resample_at_pixel_and_normalized_positions(mode: str, aligned: bool) -> None:
    x = values(1, (1, 2, 5, 6), "float32")
    at = np.random.RandomState(2).uniform(-1.2, 1.2, (1, 3, 4, 2)).astype(np.float32)
    fixed = {"sampling_mode": mode, "padding_mode": "constant", "padding_value": np.float32(0), "align_corners": np.bool_(aligned)}
    want = F.grid_sample(torch.from_numpy(x), torch.from_numpy(at), mode, "zeros", aligned).numpy()
    close(
        run("resample", {"x": x, "coordinates": at}, ("float32", want.shape), fixed | {"coordinates_mode": "normalized_minus_one_to_one"}),
        want,
        "float32",
        4,
    )
    size = np.array([6, 5], np.float32)
    pixels = (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
    got = run("resample", {"x": x, "coordinates": pixels.astype(np.float32)}, ("float32", want.shape), fixed | {"coordinates_mode": "unnormalized"})
    close(got, want, "float32", 40)


def test_crop_resize_of_a_whole_and_a_part() -> None:
    x = values(1, (1, 2, 5, 6), "float32")
    boxes = np.array([[0, 0, 4, 5], [1, 2, 3, 4], [-4, 0, 0, 5]], np.float32)
    parameters = {
        "box_indices": i32(0, 0, 0),
        "target_height": np.int32(3),
        "target_width": np.int32(3),
        "sampling_mode": "ALIGN_CORNERS",
        "pad_value": np.float32(9),
    }
    got = run("crop_resize", {"x": x, "boxes": boxes}, ("float32", (3, 2, 3, 3)), parameters)
    whole = F.interpolate(torch.from_numpy(x), size=(3, 3), mode="bilinear", align_corners=True).numpy()[0]
    close(got[0], whole, "float32", 4)
    close(got[1], x[0, :, 1:4, 2:5], "float32", 4)
    np.testing.assert_array_equal(got[2, :, :2], np.full((2, 2, 3), 9))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("mode", ["reflection", "symmetric"])
def test_sampling_outside_reads_the_picture_mirrored(mode: str, aligned: bool) -> None:
    """At the middles of the outermost pixels, or at their edges: numpy's two ways to mirror, here of a picture padded by twice its size."""
    width, height = 5, 4
    x, margin = values(3, (1, 2, height, width), "float32"), 8
    wide = np.pad(x, [(0, 0), (0, 0), (margin, margin), (margin, margin)], "reflect" if mode == "reflection" else "symmetric")
    pixels = np.random.RandomState(4).uniform(-margin + 1, height + margin - 2, (1, 6, 3, 2)).astype(np.float32)
    size = np.array([width, height], np.float32)
    at = 2 * pixels / (size - 1) - 1 if aligned else (2 * pixels + 1) / size - 1
    there = torch.from_numpy(2 * (pixels + margin) / (size + 2 * margin - 1) - 1)
    want = F.grid_sample(torch.from_numpy(wide), there, align_corners=True).numpy()
    parameters = {"sampling_mode": "bilinear", "padding_mode": mode, "padding_value": np.float32(0), "align_corners": np.bool_(aligned)}
    parameters["coordinates_mode"] = "normalized_minus_one_to_one"
    got = run("resample", {"x": x, "coordinates": at.astype(np.float32)}, ("float32", want.shape), parameters)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
