"""The figures of a comparison, in float64."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from edgekit.parity.values import Element, OutputParity
from edgekit.tensors import Array, Arrays, TensorSpec

SWAP_DB = 20.0  # another output matching better by this much means that outputs changed places
LEAST_CLASSES, MOST_CLASSES = 2, 100_000


def compare(
    name: str,
    reference: Sequence[Array],
    other: Sequence[Array],
    *,
    reference_spec: TensorSpec | None = None,
    other_spec: TensorSpec | None = None,
    step: float | None = None,
    classes: bool | None = None,
) -> OutputParity:
    """Compare one output over a batch: `reference[i]` and `other[i]` are its arrays for sample i, of one shape.

    A spec says how stored integers map to real values and which dtype to expect; without one the values are taken as real. `step` is the
    quantization step of `other` where its spec cannot tell: an 8-bit model that gives its output as float.
    `classes` states whether the output holds class scores; left open, an output with a single axis longer than one counts as such when every
    sample is a probability distribution (`yes`), or when it has at most two axes and is no unit-length embedding (`guessed`).
    """
    problem = _mismatch(reference, other, reference_spec, other_spec)
    if problem:
        return OutputParity(name, len(other), mismatch=problem)
    step = other_spec.scale if step is None and other_spec else step
    samples = [_sample(i, _real(a, reference_spec), _real(b, other_spec)) for i, (a, b) in enumerate(zip(reference, other, strict=True))]
    broken = [sample for sample in samples if sample.non_finite]
    if broken:
        return OutputParity(name, len(other), non_finite=sum(sample.non_finite for sample in broken), step=step, worst=broken[0].worst)
    kind = _class_kind(reference[0].shape, samples, classes)
    same = all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(reference, other, strict=True))
    return msgspec.structs.replace(_figures(samples, kind), name=name, identical=same, step=step)


def compare_all(
    reference: Sequence[Arrays],
    other: Sequence[Arrays],
    *,
    reference_specs: Sequence[TensorSpec],
    other_specs: Sequence[TensorSpec] | None = None,
    steps: Mapping[str, float] | None = None,
) -> tuple[OutputParity, ...]:
    """Compare every output of `reference_specs`, in that order; `reference[i]` and `other[i]` map output names to arrays of sample i.

    `other_specs` defaults to `reference_specs` (the same artifact on two machines). Outputs that changed places are recognized.
    `steps` are by output name, as in `compare`.
    """
    specs = {spec.name: spec for spec in (reference_specs if other_specs is None else other_specs)}
    parities = []
    for spec in reference_specs:
        if not all(spec.name in sample for sample in other):
            parities.append(OutputParity(spec.name, len(other), mismatch=f"missing; there is {', '.join(other[0]) or 'nothing'}"))
            continue
        left, right = [sample[spec.name] for sample in reference], [sample[spec.name] for sample in other]
        step = (steps or {}).get(spec.name)
        parity = compare(spec.name, left, right, reference_spec=spec, other_spec=specs.get(spec.name), step=step)
        parities.append(_with_swap(parity, spec, left, other, specs))
    return tuple(parities)


def _real(array: Array, spec: TensorSpec | None) -> Array:
    import numpy as np

    values = array.astype(np.float64)
    return values if spec is None or spec.scale is None else (values - spec.zero_point) * spec.scale


def _mismatch(reference: Sequence[Array], other: Sequence[Array], reference_spec: TensorSpec | None, other_spec: TensorSpec | None) -> str:
    if len(reference) != len(other):
        return f"{len(other)} samples, but the reference has {len(reference)}"
    if not len(reference):
        return "no samples"
    for sample, (left, right) in enumerate(zip(reference, other, strict=True)):
        if left.shape != right.shape:
            return f"shape {list(right.shape)} in sample {sample}, but the reference has {list(left.shape)}"
        for array, spec in ((left, reference_spec), (right, other_spec)):
            if spec is not None and array.dtype != spec.dtype:
                return f"dtype {array.dtype} in sample {sample}, declared {spec.dtype}"
    return "" if all(left.size for left in reference) else "it has no elements"


class _Sample(msgspec.Struct, frozen=True):
    """Sums over one sample, so that a large batch is never held as float64."""

    worst: Element
    non_finite: int = 0
    size: int = 0
    noise: float = 0
    signal: float = 0
    power: float = 0
    cross: float = 0
    error: float = 0
    max_abs: float = 0
    low: float = 0
    high: float = 0
    rank: int = 0
    total: float = 0


def _sample(number: int, reference: Array, other: Array) -> _Sample:
    import numpy as np

    broken = ~(np.isfinite(reference) & np.isfinite(other))
    if broken.any():
        return _Sample(_element(number, int(broken.argmax()), reference, other), int(broken.sum()))
    error = np.abs(other - reference)
    left, right = reference.ravel(), other.ravel()
    return _Sample(
        worst=_element(number, int(error.argmax()), reference, other),
        size=error.size,
        noise=float(np.vdot(error, error)),
        signal=float(np.vdot(left, left)),
        power=float(np.vdot(right, right)),
        cross=float(np.vdot(left, right)),
        error=float(error.sum()),
        max_abs=float(error.max()),
        low=float(left.min()),
        high=float(left.max()),
        rank=int((right > right[left == left.max()].max()).sum()),
        total=float(left.sum()),
    )


def _element(sample: int, flat: int, reference: Array, other: Array) -> Element:
    import numpy as np

    index = tuple(int(i) for i in np.unravel_index(flat, reference.shape))
    return Element(sample, index, float(reference.flat[flat]), float(other.flat[flat]))


def _figures(samples: Sequence[_Sample], classes: Literal["yes", "guessed", "no"]) -> OutputParity:
    noise, signal, power = (sum(getattr(sample, field) for sample in samples) for field in ("noise", "signal", "power"))
    low, high = min(sample.low for sample in samples), max(sample.high for sample in samples)
    largest = max(samples, key=lambda sample: sample.max_abs)
    noisiest = max(samples, key=lambda sample: sample.noise)
    top1, top5 = _top_agreement(samples) if classes != "no" else (None, None)
    return OutputParity(
        name="",
        samples=len(samples),
        reference_zero=signal == 0,
        max_abs=largest.max_abs,
        mean_abs=sum(sample.error for sample in samples) / sum(sample.size for sample in samples),
        peak=max(abs(low), abs(high)),
        span=high - low,
        sqnr_db=_ratio_db(signal, noise),
        cosine=_cosine(sum(sample.cross for sample in samples), signal, power),
        top1=top1,
        top5=top5,
        classes=classes,
        worst=largest.worst,
        worst_sample=noisiest.worst.sample,
        worst_sqnr_db=_ratio_db(signal / len(samples), noisiest.noise),
    )


def _ratio_db(signal: float, noise: float) -> float | None:
    if not (signal and noise):
        return None
    ratio = signal / noise  # of infinite sums it is 0 or undefined: as bad as can be told
    return 10 * math.log10(ratio if ratio > 0 else sys.float_info.min)


def _cosine(cross: float, signal: float, power: float) -> float | None:
    return min(1.0, max(-1.0, cross / math.sqrt(signal) / math.sqrt(power))) if signal and power else None


def _class_kind(shape: tuple[int, ...], samples: Sequence[_Sample], stated: bool | None) -> Literal["yes", "guessed", "no"]:
    size = samples[0].size
    if stated is not None:
        return "yes" if stated and size > 1 else "no"
    if not LEAST_CLASSES <= size <= MOST_CLASSES or sum(axis > 1 for axis in shape) != 1:
        return "no"
    # quantized probabilities may sum to a little more or less than one
    if all(sample.low >= 0 and abs(sample.total - 1) < 0.05 for sample in samples):
        return "yes"
    embedding = all(sample.low < 0 and abs(sample.signal - 1) < 0.01 for sample in samples)
    return "guessed" if len(shape) <= 2 and not embedding else "no"


def _top_agreement(samples: Sequence[_Sample]) -> tuple[float, float | None]:
    """Shares of samples whose best class agrees, and, from six classes on, whose best class is among the other's best five.

    Equal scores rank equally: quantized scores often tie, and the order of equals is arbitrary.
    """
    first, fifth = (sum(sample.rank < depth for sample in samples) / len(samples) for depth in (1, 5))
    return first, fifth if samples[0].size > 5 else None


def _with_swap(
    parity: OutputParity, spec: TensorSpec, left: Sequence[Array], other: Sequence[Arrays], specs: Mapping[str, TensorSpec]
) -> OutputParity:
    suspicious = parity.mismatch or (parity.sqnr_db is not None and parity.sqnr_db < SWAP_DB)
    if not suspicious:
        return parity
    for name in specs:
        if name == spec.name or not all(name in sample for sample in other):
            continue
        rival = compare(spec.name, left, [sample[name] for sample in other], reference_spec=spec, other_spec=specs[name], classes=False)
        if _fits_better(rival, parity):
            return msgspec.structs.replace(parity, swapped_with=name)
    return parity


def _fits_better(rival: OutputParity, parity: OutputParity) -> bool:
    if rival.mismatch or rival.non_finite or rival.max_abs is None or rival.reference_zero:
        return False
    own = parity.sqnr_db if parity.sqnr_db is not None else -math.inf
    return rival.sqnr_db is None or rival.sqnr_db >= max(own, 0.0) + SWAP_DB
