"""Recipe 1: a trained model and a target become a verified bundle within its limits, or a report that says which limit broke."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from edgekit import budget, bundle, fingerprint, formats, hops, pixels, planner, plugins, repeats, samples
from edgekit import target as targets
from edgekit.backends import Backend
from edgekit.budget import boards
from edgekit.errors import UsageError, close_match
from edgekit.formats import Model
from edgekit.packager import variants
from edgekit.packager.candidates import search
from edgekit.packager.contents import files, manifest
from edgekit.packager.findings import judge
from edgekit.packager.job import Job, Options, Outcome
from edgekit.progress import Progress, silent
from edgekit.reference import Reference
from edgekit.samples import Samples
from edgekit.target import Target, Tolerance

__all__ = ["Options", "Outcome", "package"]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Frameworks make millions of objects that live as long as the conversion: looking for garbage among them takes a tenth of its time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # nor among them afterwards, until packaging ends
        if before:
            gc.enable()


@contextlib.contextmanager
def _thawing() -> Iterator[None]:
    try:
        yield
    finally:
        gc.unfreeze()


@_thawing()
def package(reference: str, target_name: str, options: Options, progress: Progress = silent) -> Outcome:
    """Convert, quantize, check, budget, verify and bundle a model for a target.

    Raises `UsageError` for bad options or data, `ConversionError` when the model cannot become an artifact, `MissingPackageError` when a
    toolchain is absent. A limit or tolerance that cannot be met is an outcome, not an error.
    """
    profile = targets.load(target_name)
    backend: Backend = plugins.load("edgekit.backends", profile.backend)
    target = _demanding(profile, backend, options.min_sqnr_db)
    options = dataclasses.replace(options, limits=boards.within(options.limits, options.board, target))
    _check_precision(options.precision, target, backend)
    _check_edge(options, target, backend)
    variants.check(options, target, getattr(backend, "enumerates_shapes", False))
    if not options.rebuild and (repeat := repeats.find(_key(reference, target, options))):
        return _repeat(options.out / repeat.name if repeat.parent == options.out.resolve() else repeat)
    progress(0, 0, "opening the model")
    with _no_collection(), fingerprint.recording(*filter(None, (reference, options.calibration))):
        source = formats.in_float32(formats.open(reference, options.inputs))
        place = _place(options, options.name or source.name, target)
        edge = pixels.edge(source.signature, options.preprocess) if options.io == "image" else None
        stream = getattr(backend, "carries_state", False) and getattr(source.handle, "keeps_state", False)
        given = functools.partial(samples.load, options.calibration, source.signature, options.preprocess, edge, stream=stream)
        data = _beside_imports(source, backend, options, given)
    with tempfile.TemporaryDirectory(prefix="edgekit-package-") as scratch:
        runtime = budget.runtime_parts(target, options.runtime_aar)
        reference_run = Reference(source, stream)
        data = samples.answered(data, reference_run.run)
        job = Job(target, backend, options, reference_run, data, runtime, Path(scratch), progress)
        with _no_collection():
            model, route = hops.convert(source, job.reference.run, backend.accepts, data.hop, target.tolerance.conversion, job.work, progress)
        plan, best = search(job, model)
        best = variants.verified(job, reference, best)
        made = manifest(job, best, plan, route, model.notices)
        findings = judge(job, best, made)
        if any(finding.severity == "error" for finding in findings):
            return Outcome(None, made, findings)
        bundle.write(place, made, files(job, best.artifact))
    repeats.remember(_key(reference, target, options), place)
    return Outcome(place, made, findings)


def _beside_imports(source: Model, backend: Backend, options: Options, read: Callable[[], Samples]) -> Samples:
    """What `read` gives, while the toolchain of a conversion is imported: files alone are read beside it, for code of the user's may import too,
    and nothing of a toolchain's may be half there or hidden then.
    """
    toolchain = getattr(backend, "toolchain", None)
    files_only = options.calibration is not None and Path(options.calibration).exists()
    if toolchain is None or source.format in backend.accepts or not files_only:
        return read()
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as beside:  # either side may change the filters of warnings, and put them back
        reading = beside.submit(read)
        toolchain()
        return reading.result()


def _demanding(target: Target, backend: Backend, min_sqnr_db: float | None) -> Target:
    """The profile with what the user demands of every precision instead of its own: devices are then held to the same."""
    if min_sqnr_db is None:
        return target
    demanded = {precision: Tolerance(min_sqnr_db=min_sqnr_db) for precision in backend.precisions}
    return msgspec.structs.replace(target, tolerance=msgspec.structs.replace(target.tolerance, quantization=demanded))


def _check_precision(precision: str, target: Target, backend: Backend) -> None:
    if precision == "auto":
        return
    if precision not in backend.precisions or precision not in target.precisions:
        known = [p for p in target.precisions if p in backend.precisions]
        raise UsageError(f"{target.name} has no precision {precision!r}", close_match(precision, [*known, "auto"]))


def _check_edge(options: Options, target: Target, backend: Backend) -> None:
    if options.io == "image" and not getattr(backend, "takes_images", False):
        raise UsageError(f"--io image: {target.name} has no image inputs", "the app gives the tensor that --preprocess describes: leave out --io")
    if options.io == "int8" and options.precision != "auto" and not planner.needs_calibration(options.precision):
        what = f"--io int8: {options.precision} computes in float, and has no integers at its edges"
        raise UsageError(what, "give a --precision with integer activations, or leave out --io")


def _place(options: Options, name: str, target: Target) -> Path:
    """Where the bundle goes. Raises `UsageError` early, before the work, when nothing can be written there."""
    if not bundle.is_file_name(name):
        raise UsageError(f"the bundle's name {name!r} holds a character that file names cannot", "choose another with --name; --out says where")
    out = options.out
    path = out if out.suffix == bundle.SUFFIX else out / f"{name}-{target.name}{bundle.SUFFIX}"
    bundle.check_writable(path)
    return path


def _key(reference: str, target: Target, options: Options) -> str | None:
    settings = dataclasses.asdict(dataclasses.replace(options, rebuild=False, out=Path()))
    aar = fingerprint.of_path(options.runtime_aar) if options.runtime_aar else ""
    name = fingerprint.split(reference)[0].name  # a copy under another name is another bundle
    return repeats.key(reference, options.calibration, target, repr(settings), aar, str(options.out.resolve()), name)


def _repeat(path: Path) -> Outcome:
    with bundle.open(path) as opened:
        return Outcome(path, opened.manifest, unchanged=True)
