"""Judge samples before they are used: what contradicts itself is refused, what is odd becomes a notice, both by file name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from edgekit.errors import UsageError
from edgekit.preprocess import Preprocess
from edgekit.tensors import Array, Signature, TensorSpec

GROSS = 8.0  # values beyond this many times the range that the preprocessing can give are in other units
FAINT = 32.0  # and so are values that fill less than this part of it
COARSE = 16.0  # whole numbers in a narrower range are no picture
FEW = 3


def judge(samples: Sequence[dict[str, Array]], names: Sequence[str], signature: Signature, preprocess: Preprocess | None) -> list[str]:
    """Notices about the samples. Raises `UsageError` when all are constant, or values contradict the preprocessing or each other."""
    notices = ["a single sample: its range stands for all that will ever come"] if len(samples) == 1 else _repeated(samples, names)
    for spec in signature.inputs:
        arrays = [sample[spec.name] for sample in samples]
        if preprocess is not None and len(signature.inputs) == 1:
            _check_whole_numbers(spec, preprocess)
        if arrays[0].size < 2 or arrays[0].dtype.kind != "f":
            continue
        bounds = [(float(array.min()), float(array.max())) for array in arrays]
        notices += _constant(bounds, names, spec.name, len(signature.inputs))
        image = len(arrays[0].shape) in (3, 4) and len(signature.inputs) == 1
        if image and preprocess is not None:
            notices += _against_stated(bounds, names, preprocess)
        _check_units(arrays, bounds, names)
        notices += _odd_scale(bounds, names)
        if image and preprocess is None and all(_pixels(array, bound) for array, bound in zip(arrays, bounds, strict=True)):
            notices.append(f"{spec.name}: all values are whole numbers from 0 to 255, like raw pixels; is that what the model takes?")
    return notices


def _check_whole_numbers(spec: TensorSpec, preprocess: Preprocess) -> None:
    """Refuse a preprocessing whose values an input of whole numbers rounds to a few."""
    low, high = preprocess.value_range
    if len(spec.shape) in (3, 4) and spec.scale is None and not spec.dtype.startswith("float") and high - low < COARSE:
        message = f"{spec.name} takes {spec.dtype}, but the stated preprocessing gives {low:.4g} to {high:.4g}, of which rounding leaves nothing"
        raise UsageError(message, "state scale=1 for a model that takes pixels from 0 to 255")


def _repeated(samples: Sequence[dict[str, Array]], names: Sequence[str]) -> list[str]:
    seen: dict[bytes, str] = {}
    repeats = []
    for sample, name in zip(samples, names, strict=True):
        digest = hashlib.blake2b(digest_size=16)
        for array in sample.values():
            digest.update(array.data if array.size else b"")
        key = digest.digest()
        if key in seen:
            repeats.append(f"{name} = {seen[key]}")
        seen.setdefault(key, name)
    if len(seen) == 1:
        return [f"all {len(samples)} samples are identical: only one counts"]
    return [f"identical samples: {_some(repeats)}"] if repeats else []


def _constant(bounds: Sequence[tuple[float, float]], names: Sequence[str], input_name: str, inputs: int) -> list[str]:
    constant = [name for (low, high), name in zip(bounds, names, strict=True) if low == high]
    if constant and len(constant) == len(bounds) and inputs == 1:
        raise UsageError(f"{_some(constant)}: every sample is constant ({bounds[0][0]:g} throughout)", "constant data says nothing about real ranges")
    if not constant:
        return []
    return [f"{input_name}: {'always constant' if len(constant) == len(bounds) else f'constant in {_some(constant)}'}"]


def _against_stated(bounds: Sequence[tuple[float, float]], names: Sequence[str], preprocess: Preprocess) -> list[str]:
    low, high = preprocess.value_range
    reach, slack = max(abs(low), abs(high)), 0.1 * (high - low)
    stated = f"the stated preprocessing gives {low:.4g} to {high:.4g}"
    beyond = []
    for (least, most), name in zip(bounds, names, strict=True):
        if max(abs(least), abs(most)) > GROSS * reach:
            raise UsageError(f"{name}: values from {least:.4g} to {most:.4g}, but {stated}", "was the preprocessing applied to this file?")
        if least < low - slack or most > high + slack:
            beyond.append(name)
    notices = [f"values beyond what {stated.removeprefix('the ')}: {_some(beyond)}"] if beyond else []
    if max(max(abs(least), abs(most)) for least, most in bounds) < reach / FAINT:
        notices.append(f"all values lie within {max(most for _, most in bounds):.4g}, but {stated}")
    return notices


def _check_units(arrays: Sequence[Array], bounds: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Refuse raw pixels among samples of small values."""
    raw = [i for i, (array, bound) in enumerate(zip(arrays, bounds, strict=True)) if _pixels(array, bound)]
    small = [i for i, (low, high) in enumerate(bounds) if max(abs(low), abs(high)) <= GROSS and low != high]
    if raw and small and len(raw) + len(small) == len(bounds):
        low, high = bounds[raw[0]]
        other = f"{names[small[0]]} from {bounds[small[0]][0]:.4g} to {bounds[small[0]][1]:.4g}"
        raise UsageError(f"{names[raw[0]]}: values from {low:g} to {high:g} like raw pixels, but {other}", "prepare all samples in the same way")


def _odd_scale(bounds: Sequence[tuple[float, float]], names: Sequence[str]) -> list[str]:
    peaks = [max(abs(low), abs(high)) for low, high in bounds]
    usual = sorted(peaks)[len(peaks) // 2]
    odd = [name for peak, name in zip(peaks, names, strict=True) if usual and peak > FAINT * usual]
    return [f"values more than {FAINT:g} times larger than usual: {_some(odd)}"] if odd else []


def _pixels(array: Array, bound: tuple[float, float]) -> bool:
    import numpy as np

    low, high = bound
    return low >= 0 and 32 < high <= 255 and bool((array == np.rint(array)).all())


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
