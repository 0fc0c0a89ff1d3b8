"""What goes into a bundle: the manifest, the artifact, golden tensors, inputs of a selective build."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from edgekit import __version__, bundle, fingerprint, hops, opset, versions
from edgekit.backends import Artifact
from edgekit.graph import Graph
from edgekit.manifest import ArtifactEntry, Golden, Manifest, Sensitivity, Source, golden_file
from edgekit.packager.job import Built, Job
from edgekit.planner import Plan
from edgekit.tensors import Arrays, raw_bytes

DEQUANTIZE = frozenset({"DEQUANTIZE", "DequantizeLinear"})


def manifest(job: Job, best: Built, plan: Plan, route: tuple[str, ...], converted: tuple[str, ...] = ()) -> Manifest:
    """What the bundle says of itself: the source, how `best` was built from it, what it measured. `converted` are the notices of the conversion."""
    artifact, source = best.artifact, job.source
    graph = job.backend.graph(artifact)
    _, names, random = job.data.golden
    return Manifest(
        edgekit=__version__,
        name=job.name,
        target=job.target,
        source=Source(source.name, source.format, source.digest, route),
        signature=artifact.signature,
        source_signature=source.signature,
        artifact=_artifact_entry(job.name, artifact, graph),
        golden=Golden(names, random),
        verdicts=opset.check(graph, job.target),
        plan=plan,
        usage=best.usage,
        loss=best.loss,
        sensitivity=tuple(Sensitivity(*row) for row in artifact.sensitivity),
        preprocess=job.options.preprocess,
        notices=tuple(dict.fromkeys(_notices(job, artifact, converted))),
        tools=versions.tool_versions(),
        licenses={package: license for package in job.target.runtime.packages if (license := versions.license_of(package))},
    )


def _notices(job: Job, artifact: Artifact, converted: tuple[str, ...]) -> tuple[str, ...]:
    """What was noticed on the way, from the model to the libraries that the user gave; and how ranges were chosen, where that was asked for."""
    given = job.runtime if job.options.runtime_aar else ()
    libraries = tuple(f"{part.name}: {part.note}" for part in given if part.category == "runtime" and part.note)
    outputs = job.reference.run(job.data.golden[0])
    asked = (f"ranges of 8-bit activations are chosen by {job.options.ranges}, as asked",) if job.options.ranges != "auto" else ()
    return job.source.notices + converted + job.data.notices + asked + artifact.notices + libraries + _unmoved(outputs)


def files(job: Job, artifact: Artifact) -> dict[str, Path | bytes]:
    """Everything else in the bundle, by its name there."""
    return bundle.files_of(_main(job.name, artifact.path), artifact.path) | _golden_files(job, artifact) | _trim_files(job, artifact)


def _artifact_entry(name: str, artifact: Artifact, graph: Graph) -> ArtifactEntry:
    path = artifact.path
    size = path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return ArtifactEntry(
        _main(name, path),
        artifact.format,
        artifact.candidate.precision,
        size,
        fingerprint.of_path(path),
        artifact.runtime_names,
        _output_steps(artifact, graph),
    )


def _output_steps(artifact: Artifact, graph: Graph) -> dict[str, float]:
    """The quantization step behind each float output that a DEQUANTIZE gives out, by name: two right kernels may differ by one."""
    scales = {o.outputs[0]: graph.tensors[o.inputs[0]].scale for o in graph.operators if o.type in DEQUANTIZE and o.outputs and o.inputs}
    rows = zip(artifact.signature.outputs, graph.outputs, strict=False)
    return {spec.name: scales[index][0] for spec, index in rows if spec.scale is None and len(scales.get(index, ())) == 1}


def _main(name: str, path: Path) -> str:
    """Where the artifact is in the bundle: under the bundle's name, in characters that every device's file system takes."""
    return f"artifact/{re.sub(r'[^A-Za-z0-9._-]+', '_', name) or 'model'}{path.suffix}"


def _trim_files(job: Job, artifact: Artifact) -> dict[str, Path | bytes]:
    folder = job.work / "trim"
    folder.mkdir()
    job.backend.trim(job.backend.graph(artifact), folder)
    if sources := getattr(job.backend, "sources", None):
        sources(artifact, folder)
    return bundle.files_of("trim", folder)


def _unmoved(reference: Sequence[Arrays]) -> tuple[str, ...]:
    """Outputs that are the same for every sample: equal values prove little then."""
    first, *others = reference
    names = [name for name, array in first.items() if others and all((array == other[name]).all() for other in others)]
    return tuple(f"output {name} is the same for every sample: comparing it proves little" for name in names)


def _golden_files(job: Job, artifact: Artifact) -> dict[str, Path | bytes]:
    inputs, _, _ = job.data.golden
    host = hops.run(job.backend.emulate(artifact), artifact.signature, inputs)
    files: dict[str, Path | bytes] = {}
    for kind, rows, specs in (
        ("inputs", inputs, [spec.real for spec in job.source.signature.inputs]),
        ("reference", job.reference.run(inputs), job.source.signature.outputs),
        ("host", host, artifact.signature.outputs),
    ):
        for number, row in enumerate(rows):
            files |= {golden_file(kind, number, index): raw_bytes(row[spec.name].astype(spec.dtype)) for index, spec in enumerate(specs)}
    return files
