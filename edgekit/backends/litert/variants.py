"""Ways to build one precision, each judged by running the built file on calibration samples; the stock quantizer's own is among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import msgspec

from edgekit.backends import Candidate
from edgekit.backends.litert import equalized, joins, layers, running, signatures, source, stock
from edgekit.backends.litert.improve import Improved, improve
from edgekit.backends.litert.source import Source
from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.ranges import Method
from edgekit.tensors import Arrays, dequantize, quantize

RANGES: tuple[Method, ...] = ("mse", "minmax", "percentile")

ENOUGH = 32
"""Samples from which clipping is considered: it is judged on the samples that ranges were measured on, and fewer make it look harmless."""

TAIL = frozenset({"FULLY_CONNECTED", "MEAN", "RESHAPE"})
"""Operators whose 16-bit kernels cost next to nothing on tensors of up to `TAIL_ELEMENTS` elements."""

TAIL_ELEMENTS = 8192

WIDE_WORTH_DB = 0.25

WORTH_DB = 0.5
"""What equalizing must gain, in the plainest build, to be used: it changes the weights that everything else starts from."""

JUDGES = {"w8a16": 6}
"""How many samples judge a build, where not all of them: the interpreter's 16-bit kernels are slow."""

STATIC_BITS = {"w8a8": 8, "w8a16": 16}


@dataclasses.dataclass(frozen=True)
class Built:
    """A file and what it lost: SQNR in dB over the judging samples (infinite when nothing). `remake` builds it with more operators in float."""

    content: bytes
    sqnr_db: float
    remake: Callable[[tuple[str, ...]], bytes]
    ranges: stock.Ranges | None = None
    notices: tuple[str, ...] = ()


def best(opened: Source, candidate: Candidate) -> Built:
    """The best build of `candidate` on the judging samples: ours with each choice of ranges, or the stock quantizer's own at no more bytes."""
    base, equalizing = opened.once(("base", candidate.precision), lambda: equalize(opened, candidate.precision))
    keep, joined = _joins(base, candidate)
    policy = stock.Policy((*_scopes(base, candidate.keep_float), *keep), _scopes(base, candidate.wide), opened.context.io)
    tried = _ranges(base, candidate)
    improved = rounded(base, candidate, policy, tried[0])
    built = [_make(opened, base, improved, candidate, policy, ranges) for ranges in tried]
    improved, chosen = _or_nearest(opened, base, improved, candidate, policy, max(built, key=lambda one: one.sqnr_db))
    ours = _with_wide_tail(opened, base, improved, candidate, policy, chosen)
    plain = _stock(opened, candidate, policy)
    if plain is not None and plain.sqnr_db > ours.sqnr_db and len(plain.content) <= len(ours.content):
        better = f"{plain.sqnr_db:.1f} dB against {ours.sqnr_db:.1f} dB on the calibration samples"
        return dataclasses.replace(plain, notices=(f"rounding and ranges are the stock quantizer's own, which did better here: {better}",))
    return dataclasses.replace(ours, notices=(*joined, *equalizing, *improved.notices, *ours.notices))


def equalize(opened: Source, precision: str) -> tuple[Source, tuple[str, ...]]:
    """The float model with channels equalized where that gains `WORTH_DB` in `precision`; otherwise as it is."""
    changed, names = opened.once("equalized", lambda: _equalized(opened))
    if not names:
        return opened, ()
    candidate = Candidate(precision, rounding="nearest")
    try:
        before, after = (
            _make(opened, one, Improved(one.content, {}), candidate, stock.Policy(_joins(one, candidate)[0]), _ranges(one, candidate)[0]).sqnr_db
            for one in (opened, changed)
        )
    except ConversionError:
        return opened, ()
    if not after >= before + WORTH_DB:
        return opened, ()
    around = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return changed, (f"channel ranges equalized between the layers around {around}: {after - before:+.1f} dB",)


def rounded(base: Source, candidate: Candidate, policy: stock.Policy, ranges: stock.Ranges | None) -> Improved:
    """`base` with its weights rounded by the candidate's method, once for all candidates that quantize the same; for 8-bit activations
    behind layers whose activations are on the grids of `ranges` already.
    """
    smallest = stock.MIN_WEIGHT_ELEMENTS if candidate.precision == "w8" else 0
    kept = frozenset(scope.rstrip(";") for scope in policy.keep_float)
    skip = kept | layers.smaller_than(base.fresh(), smallest)
    static = candidate.precision == "w8a8" and ranges is not None and candidate.rounding != "nearest"
    grids = {name: grid for name, grid in source.grids(ranges).items() if name not in kept} if static and ranges else {}
    made: Improved = base.once((candidate.rounding, skip, static), lambda: improve(base, base.content, candidate.rounding, skip, grids))
    return made


def _equalized(opened: Source) -> tuple[Source, tuple[str, ...]]:
    content, names = equalized.equalized(opened)
    return dataclasses.replace(opened, content=content, made={}), names


def _joins(base: Source, candidate: Candidate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A join of unlike ranges needs care where its one scale has 8 bits: inside w8a8, and at an int8 edge."""
    if candidate.precision == "w8a8" or (candidate.precision == "w8a16" and base.context.io == "int8"):
        return joins.unlike(base)
    return (), ()


def _make(opened: Source, base: Source, improved: Improved, candidate: Candidate, policy: stock.Policy, ranges: stock.Ranges | None) -> Built:
    def remake(keep: tuple[str, ...]) -> bytes:
        more = msgspec.structs.replace(policy, keep_float=(*policy.keep_float, *keep))
        content = layers.restored(improved.content, base.content, keep) if keep and candidate.precision not in STATIC_BITS else improved.content
        return stock.quantize(content, candidate, more, ranges, improved.channels)

    content = remake(())
    return Built(content, sqnr_db(opened, content, opened.judges[: JUDGES.get(candidate.precision)]), remake, ranges)


def sqnr_db(opened: Source, content: bytes, samples: Sequence[Arrays]) -> float:
    """Signal to quantization noise of a built file on the first judging samples, averaged over outputs as noise per signal, in dB."""
    import numpy as np

    signature = signatures.stored_signature(flatbuffer.load(content), opened.model.signature)
    session = running.Interpreter(content, signature)
    noise: dict[str, list[float]] = {spec.name: [0.0, 0.0] for spec in signature.outputs}
    for sample, wanted in zip(samples, opened.reference, strict=False):
        given = session.run({spec.name: quantize(sample[spec.name], spec) for spec in signature.inputs})
        for spec in signature.outputs:
            reference = wanted[spec.name].astype(np.float64)
            noise[spec.name][0] += float(((dequantize(given[spec.name], spec) - reference) ** 2).sum())
            noise[spec.name][1] += float((reference**2).sum())
    shares = [lost / max(signal, 1e-30) for lost, signal in noise.values()]
    mean = sum(shares) / len(shares)
    return float("inf") if mean == 0 else -10 * float(np.log10(mean)) if mean == mean else float("-inf")


def _ranges(base: Source, candidate: Candidate) -> list[stock.Ranges | None]:
    bits = STATIC_BITS.get(candidate.precision)
    if bits is None:
        return [None]
    methods = RANGES if bits == 8 and len(base.samples) >= ENOUGH else ("minmax",)
    return [source.chosen_ranges(base, method, bits) for method in methods]


def _or_nearest(opened: Source, base: Source, improved: Improved, candidate: Candidate, policy: stock.Policy, built: Built) -> tuple[Improved, Built]:
    """What was built, or the same rounded to nearest where that is better: rounding by data looks at weights, not at 8-bit activations."""
    if candidate.precision != "w8a8" or candidate.rounding == "nearest":
        return improved, built
    plain = Improved(base.content, {}, (f"{candidate.rounding} rounding is not used: with 8-bit activations nearest did better here",))
    nearest = _make(opened, base, plain, candidate, policy, built.ranges)
    return (plain, nearest) if nearest.sqnr_db > built.sqnr_db else (improved, built)


def _with_wide_tail(opened: Source, base: Source, improved: Improved, candidate: Candidate, policy: stock.Policy, built: Built) -> Built:
    """`built`, or the same with the model's last small operators on 16-bit activations, where the CPU runs it and that gains enough."""
    tail = _tail(base) if candidate.precision == "w8a8" and not candidate.wide and opened.context.io == "float32" else ()
    if not tail or opened.context.target.runtime.name != "litert" or opened.context.target.runtime.accelerator not in ("cpu", "xnnpack"):
        return built
    wider = msgspec.structs.replace(policy, wide=tail)
    try:
        changed = _make(opened, base, improved, candidate, wider, built.ranges)
    except ConversionError:
        return built
    if not changed.sqnr_db >= built.sqnr_db + WIDE_WORTH_DB:
        return built
    gain, bytes_ = changed.sqnr_db - built.sqnr_db, len(changed.content) - len(built.content)
    notice = f"the last {len(tail)} operators have 16-bit activations: {gain:+.1f} dB, {bytes_:+d} bytes"
    return dataclasses.replace(changed, notices=(notice,))


def _tail(base: Source) -> tuple[str, ...]:
    """Scopes of the operators at the end of the main graph that make small tensors only, from the last one up."""
    model = base.fresh()
    graph = model.subgraphs[0]
    found: list[str] = []
    for op in reversed(graph.operators):
        sizes = [math.prod(int(size) for size in graph.tensors[i].shape) for i in op.outputs]
        if flatbuffer.op_name(model, op) not in TAIL or max(sizes, default=0) > TAIL_ELEMENTS:
            break
        found.append(joins.scope(graph, op))
    return tuple(found)


def _stock(opened: Source, candidate: Candidate, policy: stock.Policy) -> Built | None:
    """What the stock quantizer makes of the model with its own calibration; None where it makes nothing."""
    plain = stock.Policy(_scopes(opened, candidate.keep_float), policy.wide, policy.io)
    try:
        ranges = source.averaged_ranges(opened) if candidate.precision in STATIC_BITS else None
        return _make(opened, opened, Improved(opened.content, {}), candidate, plain, ranges)
    except ConversionError:
        return None


def _scopes(opened: Source, names: tuple[str, ...]) -> tuple[str, ...]:
    """Recipe scopes of operators given by an output tensor's name."""
    if not names:
        return ()
    graph = opened.fresh().subgraphs[0]
    wanted = {name.rstrip(";") for name in names}
    return tuple(joins.scope(graph, op) for op in graph.operators if wanted & {flatbuffer.text(graph.tensors[i].name) for i in op.outputs})
