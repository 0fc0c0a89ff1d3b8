"""Ways to build one precision, each judged by running the built file on held-out samples; the stock quantizer's own is among them."""

from __future__ import annotations

import dataclasses
import functools

from edgekit.backends import Candidate
from edgekit.backends.litert import equalized, flatbuffer, joins, running, source, stock
from edgekit.backends.litert.improve import Improved, improve
from edgekit.backends.litert.source import Source
from edgekit.errors import ConversionError
from edgekit.quantize.ranges import Method
from edgekit.tensors import dequantize, quantize

RANGES: tuple[Method, ...] = ("minmax", "mse", "percentile")

WORTH_DB = 0.5
"""What equalizing must gain, in the plainest build, to be used: it changes the weights that everything else starts from."""

STATIC_BITS = {"w8a8": 8, "w8a16": 16}


@dataclasses.dataclass(frozen=True)
class Built:
    """A file and what it lost: SQNR in dB over held-out samples (infinite when nothing, NaN when there is nothing to judge by)."""

    content: bytes
    sqnr_db: float
    notices: tuple[str, ...] = ()


def best(opened: Source, candidate: Candidate, base: Source, improved: Improved) -> Built:
    """The best build of `candidate`: `base` is the (perhaps equalized) float model that `improved` was rounded from."""
    keep, notices = joins.unlike(base) if candidate.precision == "w8a8" else ((), ())
    policy = stock.Policy((*_scopes(base, candidate.keep_float), *keep), _scopes(base, candidate.wide), opened.context.io)
    make = functools.partial(stock.quantize, improved.content, candidate, policy, channels=improved.channels)
    built = [_judged(opened, make(ranges)) for ranges in _ranges(base, candidate)]
    ours = max(built, key=lambda one: one.sqnr_db)
    plain = _stock(opened, candidate, policy)
    if plain is not None and plain.sqnr_db > ours.sqnr_db and len(plain.content) <= len(ours.content):
        lost = f"{plain.sqnr_db:.1f} dB against {ours.sqnr_db:.1f} dB on held-out samples"
        return dataclasses.replace(plain, notices=(*notices, f"rounding and ranges are the stock quantizer's, which did better here: {lost}"))
    return dataclasses.replace(ours, notices=(*notices, *improved.notices))


def equalize(opened: Source) -> tuple[Source, tuple[str, ...]]:
    """The float model with channels equalized where that gains `WORTH_DB` in w8a8; otherwise as it is."""
    content, names = equalized.equalized(opened)
    if not names:
        return opened, ()
    changed = dataclasses.replace(opened, content=content)
    candidate = Candidate("w8a8", rounding="nearest")
    policies = [stock.Policy((*joins.unlike(one)[0],)) for one in (opened, changed)]
    try:
        before, after = (
            sqnr_db(opened, stock.quantize(one.content, candidate, policy, source.chosen_ranges(one, "minmax", 8)))
            for one, policy in zip((opened, changed), policies, strict=True)
        )
    except ConversionError:
        return opened, ()
    if after < before + WORTH_DB:
        return opened, ()
    around = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return changed, (f"channel ranges equalized between the layers around {around}: {after - before:+.1f} dB",)


@functools.lru_cache(maxsize=4)
def rounded(base: Source, method: str) -> Improved:
    """`base` with its weights rounded by `method`, once for all candidates."""
    return improve(base, base.content, method)


def sqnr_db(opened: Source, content: bytes) -> float:
    """Signal to quantization noise of a built file on the held-out samples, averaged over outputs as noise per signal, in dB."""
    import numpy as np

    if not opened.held_out:
        return float("nan")
    signature = flatbuffer.stored_signature(flatbuffer.load(content), opened.model.signature)
    session = running.Interpreter(content, signature)
    noise: dict[str, list[float]] = {spec.name: [0.0, 0.0] for spec in signature.outputs}
    for sample, wanted in zip(opened.held_out, opened.reference, strict=True):
        given = session.run({spec.name: quantize(sample[spec.name], spec) for spec in signature.inputs})
        for spec in signature.outputs:
            reference = wanted[spec.name].astype(np.float64)
            noise[spec.name][0] += float(((dequantize(given[spec.name], spec) - reference) ** 2).sum())
            noise[spec.name][1] += float((reference**2).sum())
    shares = [lost / max(signal, 1e-30) for lost, signal in noise.values()]
    mean = sum(shares) / len(shares)
    return float("inf") if mean == 0 else -10 * float(np.log10(mean)) if mean == mean else float("-inf")


def _judged(opened: Source, content: bytes) -> Built:
    return Built(content, sqnr_db(opened, content))


def _ranges(base: Source, candidate: Candidate) -> list[stock.Ranges | None]:
    bits = STATIC_BITS.get(candidate.precision)
    if bits is None:
        return [None]
    return [source.chosen_ranges(base, method, bits) for method in (RANGES if bits == 8 else RANGES[:1])]


def _stock(opened: Source, candidate: Candidate, policy: stock.Policy) -> Built | None:
    """What the stock quantizer makes of the model with its own calibration; None where it makes nothing."""
    plain = stock.Policy(_scopes(opened, candidate.keep_float), policy.wide, policy.io)
    try:
        ranges = source.averaged_ranges(opened) if candidate.precision in STATIC_BITS else None
        return _judged(opened, stock.quantize(opened.content, candidate, plain, ranges))
    except ConversionError:
        return None


def _scopes(opened: Source, names: tuple[str, ...]) -> tuple[str, ...]:
    """Recipe scopes of operators given by an output tensor's name."""
    if not names:
        return ()
    graph = opened.fresh().subgraphs[0]
    wanted = {name.rstrip(";") for name in names}
    return tuple(joins.scope(graph, op) for op in graph.operators if wanted & {flatbuffer.text(graph.tensors[i].name) for i in op.outputs})


