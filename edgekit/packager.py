"""Recipe 1: a trained model and a target become a verified bundle within its limits, or a report that says which limit broke."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from edgekit import __version__, budget, bundle, fingerprint, formats, hops, opset, parity, planner, plugins, repeats, samples, versions
from edgekit import target as targets
from edgekit.backends import Artifact, Backend, Context
from edgekit.budget import Limits, Part, Usage, boards
from edgekit.errors import ConversionError, UsageError, close_match
from edgekit.formats import Model, Session
from edgekit.graph import Graph
from edgekit.manifest import ArtifactEntry, Golden, Manifest, Sensitivity, Source, golden_file
from edgekit.parity import Finding, OutputParity
from edgekit.planner import Candidate, Plan, Point, Prefer
from edgekit.preprocess import Preprocess
from edgekit.samples import Samples
from edgekit.target import Target, Tolerance
from edgekit.tensors import Arrays, raw_bytes

Progress = Callable[[int, int, str], None]

DEQUANTIZE = frozenset({"DEQUANTIZE", "DequantizeLinear"})


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked for; see `edgekit package --help`. `out` is a folder, or a file that ends in `.edgekit`."""

    inputs: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    calibration: str | None = None
    preprocess: Preprocess | None = None
    precision: str = "auto"
    rounding: str = "second-order"
    prefer: Prefer = "fidelity"
    min_sqnr_db: float | None = None
    io: str = "float32"
    limits: Limits = dataclasses.field(default_factory=Limits)
    board: str = ""
    runtime_aar: Path | None = None
    name: str = ""
    out: Path = dataclasses.field(default_factory=Path)
    rebuild: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of it. `bundle` is the file written, none when a limit or tolerance broke; `findings` say which. `unchanged`: a repeat."""

    bundle: Path | None
    manifest: Manifest
    findings: tuple[Finding, ...] = ()
    unchanged: bool = False

    @property
    def passed(self) -> bool:
        """Whether a bundle within every bound was written."""
        return self.bundle is not None


@dataclasses.dataclass(frozen=True)
class _Built:
    """A candidate that was built: its artifact, what it measured, and how its outputs compare with the float source."""

    artifact: Artifact
    point: Point
    usage: Usage
    loss: tuple[OutputParity, ...]


@dataclasses.dataclass(frozen=True)
class _Job:
    """What stays the same through one packaging."""

    target: Target
    backend: Backend
    options: Options
    source: Model
    reference: Session
    data: Samples
    runtime: tuple[Part, ...]
    work: Path
    progress: Progress


def package(reference: str, target_name: str, options: Options, progress: Progress = lambda done, of, what: None) -> Outcome:
    """Convert, quantize, check, budget, verify and bundle a model for a target.

    Raises `UsageError` for bad options or data, `ConversionError` when the model cannot become an artifact, `MissingPackageError` when a
    toolchain is absent. A limit or tolerance that cannot be met is an outcome, not an error.
    """
    profile = targets.load(target_name)
    backend: Backend = plugins.load("edgekit.backends", profile.backend)
    target = _demanding(profile, backend, options.min_sqnr_db)
    options = dataclasses.replace(options, limits=boards.within(options.limits, options.board, target))
    _check_precision(options.precision, target, backend)
    if not options.rebuild and (repeat := repeats.find(_key(reference, target, options))):
        return _repeat(repeat)
    progress(0, 0, "opening the model")
    with fingerprint.recording(*filter(None, (reference, options.calibration))):
        source = formats.open(reference, options.inputs)
        place = _place(options, options.name or source.name, target)
        data = samples.load(options.calibration, source.signature, options.preprocess)
    with tempfile.TemporaryDirectory(prefix="edgekit-package-") as scratch:
        job = _Job(
            target,
            backend,
            options,
            source,
            hops.stream(source),
            data,
            budget.runtime_parts(target, options.runtime_aar),
            Path(scratch),
            progress,
        )
        model, route = hops.convert(source, job.reference, backend.accepts, data.hop, target.tolerance.conversion, job.work, progress)
        plan, built = _search(job, model)
        best = built[plan.chosen] if plan.chosen is not None else min((b for b in built if b), key=lambda b: b.point.total_bytes)
        assert best is not None
        outcome, files = _describe(job, best, plan, route)
        if any(finding.severity == "error" for finding in outcome.findings):
            return outcome
        bundle.write(place, outcome.manifest, files)
    repeats.remember(_key(reference, target, options), place)
    return dataclasses.replace(outcome, bundle=place)


def _search(job: _Job, model: Model) -> tuple[Plan, list[_Built | None]]:
    """Build tiers of candidates, most faithful first, until the plan is settled. `None` stands for a candidate that could not be built."""
    options, data = job.options, job.data
    own = job.backend.own_precision(model) if options.precision == "auto" else None
    tiers, skipped = planner.tiers(job.target, job.backend.precisions, own or options.precision, options.rounding, calibrated=bool(data.train))
    folder = job.work / "build"
    folder.mkdir()
    with hops.translated(f"preparing {model.name} for {job.target.backend}"):
        build = job.backend.prepare(model, Context(job.target, data.train or data.random, folder, options.io, job.progress))
    job.progress(0, 0, "running the float reference")
    expected = hops.run(hops.stream(job.source), job.source.signature, data.judged)
    points: list[Point] = []
    built: list[_Built | None] = []
    for tier in tiers:
        if planner.settled(points, options.prefer):
            skipped |= {candidate.precision: "not built: a more faithful one fits" for candidate in tier}
            continue
        for candidate in tier:
            job.progress(len(points), sum(map(len, tiers)), f"building {candidate.precision}")
            found = _measure(job, build, candidate, expected)
            points.append(found.point if isinstance(found, _Built) else found)
            built.append(found if isinstance(found, _Built) else None)
    if not points:
        what = f"{job.source.name}: every precision of {job.target.name} has fixed ranges, which only data can give"
        raise ConversionError(what, "give --calibration")
    if all(point.failed for point in points):
        raise ConversionError(f"{job.source.name}: {points[0].candidate.precision} could not be built: {points[0].failed}")
    return planner.choose(points, job.target.tolerance.quantization, options.prefer, skipped), built


def _measure(job: _Job, build: Callable[[Candidate], Artifact], candidate: Candidate, expected: Sequence[Arrays]) -> _Built | Point:
    """Build a candidate, run it here on the judged samples, and weigh it; a bare point when it cannot be built and others might."""
    try:
        with hops.translated(f"building {candidate.precision}"):
            artifact = build(candidate)
    except ConversionError as error:
        if job.options.precision != "auto":
            raise
        return Point(candidate, failed=error.message)
    found = hops.run(job.backend.emulate(artifact), artifact.signature, job.data.judged)
    loss = parity.compare_all(expected, found, reference_specs=job.source.signature.outputs, other_specs=artifact.signature.outputs)
    named = f"model ({artifact.candidate.precision})"
    usage = Usage((*artifact.parts, *job.runtime)) if artifact.parts else budget.usage(artifact.path, job.runtime, name=named)
    limits = job.options.limits
    point = Point(
        artifact.candidate,
        usage.model_bytes,
        usage.total_bytes(limits.size_of),
        _fidelity_db(loss),
        min((output.top1 for output in loss if output.top1 is not None), default=None),
        _accelerated(job, artifact),
        excess=tuple(f"{excess.what} is {excess.over_bytes / 1e6:.2f} MB over" for excess in budget.check(usage, limits)),
    )
    return _Built(artifact, point, usage, loss)


def _describe(job: _Job, best: _Built, plan: Plan, route: tuple[str, ...]) -> tuple[Outcome, dict[str, Path | bytes]]:
    """The manifest of the best candidate, what is wrong with it, and the files of its bundle."""
    artifact, source = best.artifact, job.source
    graph = job.backend.graph(artifact)
    name = job.options.name or source.name
    inputs, names, random = job.data.golden
    reference = hops.run(hops.stream(source), source.signature, inputs)
    unmoved = _unmoved(reference)
    files = _artifact_files(_main(name, artifact.path), artifact.path) | _golden_files(job, artifact, reference) | _trim_files(job, artifact)
    manifest = Manifest(
        edgekit=__version__,
        name=name,
        target=job.target,
        source=Source(source.name, source.format, source.digest, route),
        signature=artifact.signature,
        source_signature=source.signature,
        artifact=_artifact_entry(name, artifact, graph),
        golden=Golden(names, random),
        verdicts=opset.check(graph, job.target),
        plan=plan,
        usage=best.usage,
        loss=best.loss,
        sensitivity=tuple(Sensitivity(*row) for row in artifact.sensitivity),
        preprocess=job.options.preprocess,
        notices=source.notices + job.data.notices + artifact.notices + unmoved,
        tools=versions.tool_versions(),
        licenses={package: license for package in job.target.runtime.packages if (license := versions.license_of(package))},
    )
    return Outcome(None, manifest, _judge(job, best, plan, manifest)), files


def _judge(job: _Job, best: _Built, plan: Plan, manifest: Manifest) -> tuple[Finding, ...]:
    """What is out of bounds: limits on bytes, fidelity, operators that the runtime does not have."""
    findings = list(parity.judge(best.loss, job.target.tolerance.quantization.get(best.point.candidate.precision, Tolerance())))
    for excess in budget.check(manifest.usage, job.options.limits) if plan.chosen is None else ():
        findings.append(boards.finding(excess, job.backend.graph(best.artifact), best.point.candidate.precision))
    for verdict in manifest.verdicts:
        if verdict.status == "unsupported" and verdict.delegate == job.target.delegates[0]:
            findings.append(Finding("error", "unsupported-operator", f"{verdict.type} ({verdict.name}): {verdict.reason}", verdict.suggestion))
    return tuple(findings)


def _accelerated(job: _Job, artifact: Artifact) -> float:
    """Share of the artifact's MACs that the planned delegate takes."""
    if not job.target.delegates:
        return 1.0
    graph = job.backend.graph(artifact)
    verdicts = opset.judge(graph, job.target.delegates[0], job.target.options)
    return opset.summary(graph, verdicts)[0].macs_share


def _fidelity_db(loss: Sequence[OutputParity]) -> float | None:
    """SQNR of the worst output; 0 when one is broken, None when all are exact."""
    if any(output.mismatch or output.non_finite for output in loss):
        return 0.0
    return min((output.sqnr_db for output in loss if output.sqnr_db is not None), default=None)


def _demanding(target: Target, backend: Backend, min_sqnr_db: float | None) -> Target:
    """The profile with what the user demands of every precision instead of its own: devices are then held to the same."""
    if min_sqnr_db is None:
        return target
    demanded = {precision: Tolerance(min_sqnr_db=min_sqnr_db) for precision in backend.precisions}
    return msgspec.structs.replace(target, tolerance=msgspec.structs.replace(target.tolerance, quantization=demanded))


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


def _artifact_files(main: str, path: Path) -> dict[str, Path | bytes]:
    if path.is_file():
        return {main: path}
    return {f"{main}/{file.relative_to(path).as_posix()}": file for file in sorted(path.rglob("*")) if file.is_file()}


def _trim_files(job: _Job, artifact: Artifact) -> dict[str, Path | bytes]:
    folder = job.work / "trim"
    folder.mkdir()
    job.backend.trim(job.backend.graph(artifact), folder)
    if sources := getattr(job.backend, "sources", None):
        sources(artifact, folder)
    return {f"trim/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*")) if path.is_file()}


def _unmoved(reference: Sequence[Arrays]) -> tuple[str, ...]:
    """Outputs that are the same for every sample: equal values prove little then."""
    first, *others = reference
    names = [name for name, array in first.items() if others and all((array == other[name]).all() for other in others)]
    return tuple(f"output {name} is the same for every sample: comparing it proves little" for name in names)


def _golden_files(job: _Job, artifact: Artifact, reference: Sequence[Arrays]) -> dict[str, Path | bytes]:
    inputs, _, _ = job.data.golden
    host = hops.run(job.backend.emulate(artifact), artifact.signature, inputs)
    files: dict[str, Path | bytes] = {}
    for kind, rows, specs in (
        ("inputs", inputs, [spec.real for spec in job.source.signature.inputs]),
        ("reference", reference, job.source.signature.outputs),
        ("host", host, artifact.signature.outputs),
    ):
        for number, row in enumerate(rows):
            files |= {golden_file(kind, number, index): raw_bytes(row[spec.name].astype(spec.dtype)) for index, spec in enumerate(specs)}
    return files


def _check_precision(precision: str, target: Target, backend: Backend) -> None:
    if precision == "auto":
        return
    if precision not in backend.precisions or precision not in target.precisions:
        known = [p for p in target.precisions if p in backend.precisions]
        raise UsageError(f"{target.name} has no precision {precision!r}", close_match(precision, [*known, "auto"]))


def _place(options: Options, name: str, target: Target) -> Path:
    """Where the bundle goes. Raises `UsageError` early, before the work, when nothing can be written there."""
    if "/" in name or "\\" in name or "\0" in name:
        raise UsageError(f"the bundle's name {name!r} holds a character that file names cannot", "choose another with --name; --out says where")
    out = options.out
    path = out if out.suffix == bundle.SUFFIX else out / f"{name}-{target.name}{bundle.SUFFIX}"
    bundle.check_writable(path)
    return path


def _key(reference: str, target: Target, options: Options) -> str | None:
    settings = dataclasses.asdict(dataclasses.replace(options, rebuild=False, out=Path()))
    aar = fingerprint.of_path(options.runtime_aar) if options.runtime_aar else ""
    return repeats.key(reference, options.calibration, target, repr(settings), aar, str(options.out.resolve()))


def _repeat(path: Path) -> Outcome:
    with bundle.open(path) as opened:
        return Outcome(path, opened.manifest, unchanged=True)
