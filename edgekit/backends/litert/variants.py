"""Ways to build one precision, each judged by running the built file on calibration samples; the stock quantizer's own is among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import msgspec

from edgekit.backends import Candidate
from edgekit.backends.litert import divisions, equalized, joins, layers, outputs, running, signatures, simulate, source, stock
from edgekit.backends.litert.improve import Improved, improve
from edgekit.backends.litert.source import Source
from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize.grid import Affine
from edgekit.quantize.ranges import Method
from edgekit.tensors import Array, Arrays, dequantize, quantize

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
    base, equalizing = _base(opened, candidate)
    keep, joined = _kept_float(base, candidate)
    policy = stock.Policy((*_scopes(base, candidate.keep_float), *keep), _scopes(base, candidate.wide), opened.context.io)
    ranges = _ranges(base, candidate)
    improved = rounded(base, candidate, policy, ranges)
    built = _make(opened, base, improved, candidate, policy, ranges)
    improved, chosen = _or_nearest(opened, base, improved, candidate, policy, built)
    ours = _with_wide_tail(opened, base, improved, candidate, policy, chosen)
    plain = _stock(opened, candidate, policy)
    if plain is not None and plain.sqnr_db > ours.sqnr_db and len(plain.content) <= len(ours.content):
        better = f"{plain.sqnr_db:.1f} dB against {ours.sqnr_db:.1f} dB on the calibration samples"
        return dataclasses.replace(
            plain,
            notices=(
                *joined,
                f"rounding and ranges are the stock quantizer's own, which did better here: {better}",
            ),
        )
    return dataclasses.replace(ours, notices=(*joined, *equalizing, *improved.notices, *ours.notices))


def _base(opened: Source, candidate: Candidate) -> tuple[Source, tuple[str, ...]]:
    """What is quantized, and notices about it: rounding to nearest is the quick way, for weights as they are."""
    if candidate.rounding == "nearest":
        return opened, ()
    base: tuple[Source, tuple[str, ...]] = opened.once(("base", candidate.precision), lambda: equalize(opened, candidate.precision))
    return base


def equalize(opened: Source, precision: str) -> tuple[Source, tuple[str, ...]]:
    """The float model with channels equalized where that gains `WORTH_DB` in `precision`; otherwise as it is."""
    changed, names = opened.once("equalized", lambda: _equalized(opened))
    if not names:
        return opened, ()
    try:
        before, after = (_plain_db(opened, one, precision) for one in (opened, changed))
    except ConversionError:
        return opened, ()
    if not after >= before + WORTH_DB:
        return opened, ()
    around = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return changed, (f"channel ranges equalized between the layers around {around}: {after - before:+.1f} dB",)


def _plain_db(opened: Source, base: Source, precision: str) -> float:
    """How well `base` does before any rounding by data: with 8-bit activations by what they cost alone, for the weights' share is taken back."""
    candidate = Candidate(precision, rounding="nearest")
    ranges = _ranges(base, candidate)
    if precision == "w8a8" and ranges is not None:
        many = len(base.samples) >= ENOUGH and base.context.ranges == "auto"
        return _best_ranges(base, candidate)[1] if many else simulate.sqnr_db(base, _grids(base, candidate, ranges))
    return _make(opened, base, Improved(base.content, {}), candidate, stock.Policy(_kept_float(base, candidate)[0]), ranges).sqnr_db


def rounded(base: Source, candidate: Candidate, policy: stock.Policy, ranges: stock.Ranges | None) -> Improved:
    """`base` with its weights rounded by the candidate's method, once for all candidates that quantize the same; for 8-bit activations
    behind layers whose activations are on the grids of `ranges` already.
    """
    smallest = stock.MIN_WEIGHT_ELEMENTS if candidate.precision == "w8" else 0
    left = policy.keep_float if candidate.precision in STATIC_BITS else ()  # what float weights leave is put back by `restored`
    skip = frozenset(scope.rstrip(";") for scope in left) | layers.smaller_than(base.fresh(), smallest)
    static = candidate.precision == "w8a8" and candidate.rounding != "nearest"

    def make() -> Improved:
        grids = _grids(base, candidate, ranges, policy) if static and ranges else {}
        return improve(base, base.content, candidate.rounding, skip, grids)

    made: Improved = base.once((candidate.rounding, skip, static), make)
    return made


def _equalized(opened: Source) -> tuple[Source, tuple[str, ...]]:
    content, names = equalized.equalized(opened)
    return dataclasses.replace(opened, content=content, made={}), names


def _kept_float(base: Source, candidate: Candidate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Scopes of the operators that integers would break, and why. A join of unlike ranges is one where its one scale has 8 bits: inside
    w8a8, and at an int8 edge; so are an output's channels.
    """
    if candidate.precision not in STATIC_BITS:
        return (), ()
    kept: tuple[tuple[str, ...], tuple[str, ...]] = base.once(("float", candidate.precision), lambda: _find_float(base, candidate.precision))
    return kept


def _find_float(base: Source, precision: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    scopes, notices = divisions.kept_float(base)
    if precision == "w8a8" or base.context.io == "int8":
        joined, ends = joins.unlike(base), outputs.unlike(base)
        more = ends[1] if set(ends[0]) - set(joined[0]) or not joined[0] else ()  # one word on each join
        return tuple(dict.fromkeys((*scopes, *joined[0], *ends[0]))), (*notices, *joined[1], *more)
    return scopes, notices


def _make(opened: Source, base: Source, improved: Improved, candidate: Candidate, policy: stock.Policy, ranges: stock.Ranges | None) -> Built:
    def remake(keep: tuple[str, ...]) -> bytes:
        more = msgspec.structs.replace(policy, keep_float=(*policy.keep_float, *keep))
        put_back = more.keep_float if candidate.precision not in STATIC_BITS else ()
        content = layers.restored(improved.content, base.content, put_back) if put_back else improved.content
        return stock.quantize(content, candidate, more, ranges, improved.channels)

    content = remake(())
    return Built(content, sqnr_db(opened, content, opened.judges[: JUDGES.get(candidate.precision)]), remake, ranges)


def sqnr_db(opened: Source, content: bytes, samples: Sequence[Arrays]) -> float:
    """Signal to quantization noise of a built file on the first judging samples, in dB (`simulate.level_db`)."""
    signature = signatures.stored_signature(flatbuffer.load(content), opened.model.signature)
    session = running.Interpreter(content, signature)
    parts = [(spec, part) for spec in signature.outputs for part in outputs.parts(opened, spec.name)]
    rows: list[list[tuple[Array, Array]]] = [[] for _ in parts]
    for sample, wanted in zip(samples, opened.reference, strict=False):
        given = session.run({spec.name: quantize(sample[spec.name], spec) for spec in signature.inputs})
        for row, (spec, part) in zip(rows, parts, strict=True):
            row.append((wanted[spec.name][part], dequantize(given[spec.name], spec)[part]))
    return simulate.level_db(rows)


def _ranges(base: Source, candidate: Candidate) -> stock.Ranges | None:
    """The ranges of the activations; at 8 bits those of the method that costs least when the activations alone are rounded."""
    bits = STATIC_BITS.get(candidate.precision)
    if bits is None:
        return None
    if bits == 8 and base.context.ranges != "auto":
        return source.chosen_ranges(base, base.context.ranges, 8)
    if bits == 16 or len(base.samples) < ENOUGH:
        return source.chosen_ranges(base, "minmax", bits)
    return _best_ranges(base, candidate)[0]


def _best_ranges(base: Source, candidate: Candidate) -> tuple[stock.Ranges, float]:
    """The ranges of 8-bit activations, and what is left in dB when they alone are rounded."""

    def measure() -> tuple[stock.Ranges, float]:
        tried = [*(source.chosen_ranges(base, method, 8) for method in RANGES), source.averaged_ranges(base)]
        return max(((ranges, simulate.sqnr_db(base, _grids(base, candidate, ranges))) for ranges in tried), key=lambda pair: pair[1])

    made: tuple[stock.Ranges, float] = base.once("ranges", measure)
    return made


def _grids(base: Source, candidate: Candidate, ranges: stock.Ranges, policy: stock.Policy | None = None) -> dict[str, Affine]:
    """The grids on which activations will lie, as the stock quantizer settles them."""
    return simulate.grids(stock.quantize(base.content, candidate, policy or stock.Policy(_kept_float(base, candidate)[0]), ranges))


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
    """What the stock quantizer makes of the model with its own calibration; None where it makes nothing, or other ranges are asked for."""
    if candidate.precision == "w8a8" and opened.context.ranges != "auto":
        return None
    plain = stock.Policy((*_scopes(opened, candidate.keep_float), *_kept_float(opened, candidate)[0]), policy.wide, policy.io)
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
