"""Make raw arrays fit a signature: names, shapes, types. Refuse, with the file's name, what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from edgekit.errors import UsageError, close_match
from edgekit.tensors import Array, Signature, TensorSpec, dequantize

T = TypeVar("T")
SWAPPED_AXES = {"NHWC": (0, 3, 1, 2), "NCHW": (0, 2, 3, 1)}


def unstack(name: str, arrays: Mapping[str, Array], signature: Signature, limit: int) -> list[dict[str, Array]]:
    """The samples of one file: one, or one for each step of the leading axis that arrays have beyond the input's own.

    Arrays of the input's own shape beside stacked ones go to every sample. At most `limit` samples are taken, evenly spaced.
    Raises `UsageError` where inputs hold different numbers of samples.
    """
    named = by_input(name, arrays, signature)
    lengths = {key: length for key, array in named.items() if (length := _stacked(array, _spec(signature, key))) is not None}
    if not lengths:
        return [named]
    if len(set(lengths.values())) > 1:
        what = f"{name}: the inputs hold different numbers of samples: {', '.join(f'{k} {n}' for k, n in lengths.items())}"
        raise UsageError(what, "stack as many of each input")
    count = next(iter(lengths.values()))
    return [{key: array[i] if key in lengths else array for key, array in named.items()} for i in spaced(range(count), limit)]


def spaced(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` items, evenly spaced, in order: a sorted folder often holds one class after the other."""
    count = len(items)
    return list(items) if count <= limit else [items[(2 * i + 1) * count // (2 * limit)] for i in range(limit)]


def by_input(name: str, arrays: Mapping[str, Array], signature: Signature) -> dict[str, Array]:
    """Arrays under the model's input names. A single array feeds a single input whatever its key. Raises `UsageError` for a missing one."""
    wanted = [spec.name for spec in signature.inputs]
    if len(wanted) == 1 and len(arrays) == 1:
        return {wanted[0]: next(iter(arrays.values()))}
    missing = [key for key in wanted if key not in arrays]
    if missing:
        there = [key for key in arrays if key]
        hint = close_match(missing[0], there) if there else "give .npz files with one key an input"
        raise UsageError(f"{name}: no array for the input {missing[0]!r}; the model takes {', '.join(wanted)}", hint)
    return {key: arrays[key] for key in wanted}


def fit(name: str, arrays: Mapping[str, Array], signature: Signature, first: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """One sample in the model's shapes and types; `first` is the first sample, to tell varying lengths from wrong shapes.

    Raises `UsageError` for a missing input, another shape, a type that does not fit, a value that the type cannot hold or is not finite.
    """
    named = by_input(name, arrays, signature)
    return {spec.name: _fit_one(name, named[spec.name], spec, first) for spec in signature.inputs}


def _fit_one(name: str, array: Array, spec: TensorSpec, first: Mapping[str, Array] | None) -> Array:
    import numpy as np

    if array.dtype.kind not in "fiub":
        raise UsageError(f"{name}: {spec.name} has the type {array.dtype}", "arrays of real numbers are taken")
    if not np.isfinite(array).all():
        broken = ~np.isfinite(array)
        what = f"{name}: {spec.name} has {int(broken.sum())} values that are not finite, first at {np.argwhere(broken)[0].tolist()}"
        raise UsageError(what, "leave the sample out, or find what made it")
    shaped = _shape(name, array, spec, first)
    return np.asarray(_convert(name, shaped, spec), order="C")


def _shape(name: str, array: Array, spec: TensorSpec, first: Mapping[str, Array] | None) -> Array:
    if _matches(array.shape, spec.shape):
        return array
    if spec.shape and spec.shape[0] in (1, -1) and _matches(array.shape, spec.shape[1:]):
        return array[None]
    message = f"{name}: {spec.name} has the shape {list(array.shape)}, the model takes {list(spec.shape)}"
    raise UsageError(message, _shape_hint(array.shape, spec, first))


def _shape_hint(shape: tuple[int, ...], spec: TensorSpec, first: Mapping[str, Array] | None) -> str | None:
    batched = (1, *shape) if len(shape) == len(spec.shape) - 1 else shape
    if len(batched) == 4 and len(spec.shape) == 4:
        for layout, axes in SWAPPED_AXES.items():
            if _matches(tuple(batched[axis] for axis in axes), spec.shape):
                other = "NCHW" if layout == "NHWC" else "NHWC"
                return f"the data looks like {layout}, the model takes {other}: transpose it"
    if first is not None and len(batched) == len(spec.shape) and batched[0] == spec.shape[0]:
        return "the samples vary in length: pad or cut them to one, or give the model a dynamic shape"
    return None


def _convert(name: str, array: Array, spec: TensorSpec) -> Array:
    import numpy as np

    dtype = np.dtype(spec.dtype)
    if spec.scale is not None:
        return dequantize(array, spec) if array.dtype == dtype else array.astype(np.float32)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = array.astype(dtype)
        if not np.isfinite(values).all():
            raise UsageError(
                f"{name}: {spec.name} has the value {np.abs(array).max():.4g}, which {dtype} cannot hold", "is it in the units that the model takes?"
            )
        return values
    if array.dtype.kind == "f" and not (array == np.rint(array)).all():
        raise UsageError(f"{name}: {spec.name} has fractions ({array.dtype}), the model takes {spec.dtype}", "give integers")
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if array.size and (array.min() < limits[0] or array.max() > limits[1]):
        raise UsageError(
            f"{name}: {spec.name} has values from {array.min()} to {array.max()}, which {spec.dtype} cannot hold", "is it what the model takes?"
        )
    return array.astype(dtype)


def _stacked(array: Array, spec: TensorSpec) -> int | None:
    """How many samples an array holds; none when it is a single sample or fits in no way (which `fit` will tell)."""
    shape, own = array.shape, spec.shape
    batch = own[1:] if own and own[0] == 1 else None
    if _matches(shape, own) or (batch is not None and len(shape) == len(batch) and _matches(shape, batch)):
        return None
    rest = shape[1:]
    fits = bool(shape) and (_matches(rest, own) or (batch is not None and _matches(rest, batch)))
    return shape[0] if fits else None


def _matches(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(size in (have, -1) for have, size in zip(shape, wanted, strict=True))


def _spec(signature: Signature, name: str) -> TensorSpec:
    return next(spec for spec in signature.inputs if spec.name == name)
