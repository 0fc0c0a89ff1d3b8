"""Other shapes that an artifact is to take: each is run here and held to the float source at that shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import msgspec

from edgekit import calibration, formats, hops, parity
from edgekit.errors import ConversionError, UsageError
from edgekit.packager.job import Built, Job, Options, shapes_of
from edgekit.target import Target, Tolerance
from edgekit.tensors import Arrays, Signature, TensorSpec

SAMPLES = 2
SEED = 21
MARGIN_DB = 6.0
"""How much worse than at the first shape the outputs may be: random inputs of another size are not the same inputs."""


def check(options: Options, target: Target, takes: bool) -> None:
    """Raise `UsageError` where several shapes cannot be asked for."""
    if options.others and not takes:
        raise UsageError(f"{target.name}: an artifact takes one shape", "give one shape a --input, and build a bundle for each")


def verified(job: Job, reference: str, best: Built) -> Built:
    """The choice, with a notice for each other shape. Raises `ConversionError` where the artifact computes something else than the source there."""
    told = []
    for other in shapes_of(job.options.others):
        label = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in other.items())
        job.progress(0, 0, f"checking {label}")
        told.append(f"{label}: {_agreement(job, reference, best, other, label)}")
    artifact = dataclasses.replace(best.artifact, notices=(*best.artifact.notices, *told))
    return dataclasses.replace(best, artifact=artifact)


def _agreement(job: Job, reference: str, best: Built, other: dict[str, tuple[int, ...]], label: str) -> str:
    source = formats.in_float32(formats.open(reference, {**job.options.inputs, **other}))
    edge = Signature(tuple(_at(spec, now) for spec, now in zip(best.artifact.signature.inputs, source.signature.inputs, strict=True)), ())
    samples = calibration.random_samples(edge, SAMPLES, SEED)
    wanted = hops.run(formats.session(source), source.signature, samples)
    db, broken = _loss(best, wanted, hops.run(job.backend.emulate(best.artifact), edge, samples))
    at_first = hops.run(job.backend.emulate(best.artifact), best.artifact.signature, job.data.random)
    first, _ = _loss(best, job.reference.run(job.data.random), at_first)
    if not broken and db < first - MARGIN_DB:
        broken = f"{db:.1f} dB, and {first:.1f} dB at the first shape"
    if broken:
        raise ConversionError(f"at {label} the artifact computes something else than the source: {broken}", "build a bundle for each shape")
    return "equal to the source" if math.isinf(db) else f"{db:.1f} dB against the source, on random inputs"


def _loss(best: Built, wanted: Sequence[Arrays], found: Sequence[Arrays]) -> tuple[float, str]:
    """SQNR of the worst output, infinite where all are equal, and what is wrong beyond that."""
    named = [msgspec.structs.replace(spec, shape=wanted[0][spec.name].shape) for spec in best.artifact.signature.outputs]
    loss = parity.compare_all(wanted, found, reference_specs=named, other_specs=named)
    broken = next((finding.message for finding in parity.judge(loss, Tolerance()) if finding.severity == "error"), "")
    return min((output.sqnr_db for output in loss if output.sqnr_db is not None), default=math.inf), broken


def _at(spec: TensorSpec, now: TensorSpec) -> TensorSpec:
    """The artifact's input at the shape of the source's."""
    if spec.pixels is None:
        return msgspec.structs.replace(spec, shape=now.shape)
    height, width = now.shape[2:] if spec.pixels.layout == "NCHW" else now.shape[1:3]
    return msgspec.structs.replace(spec, shape=(1, height, width, spec.shape[3]))
