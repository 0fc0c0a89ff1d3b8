"""Recipe 3: find the first operator where a device parts from this machine, and how the error grows from there."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import msgspec

from edgekit import bundle, farm, parity, plugins, runner
from edgekit.backends import Artifact, Backend, Candidate, Tap
from edgekit.bundle import Bundle
from edgekit.device import Unit
from edgekit.errors import UsageError
from edgekit.manifest import Golden, Manifest, golden_file
from edgekit.parity import OutputParity
from edgekit.progress import Progress, silent
from edgekit.runner import RunOptions
from edgekit.tensors import Arrays, raw_bytes


class Step(msgspec.Struct, frozen=True):
    """One tensor on the way: what computed it, and how the device's values compare with this machine's. `parts` says why it is out of bounds."""

    operator: int
    type: str
    tensor: str
    parity: OutputParity
    parts: str = ""


class Drift(msgspec.Struct, frozen=True):
    """The tensors in execution order; `first` is the index of the first one out of bounds, None when there is none."""

    bundle: str
    device: str
    sample: str
    steps: tuple[Step, ...]
    first: int | None


def locate(path: Path, unit: Unit, options: RunOptions, progress: Progress = silent) -> Drift:
    """Run a bundle's first golden sample on a device with every intermediate tensor as an output, and compare them with this machine's.

    Raises `UsageError` when the artifact's family cannot show its inside; `DeviceError`, `RunnerError` and `BundleError` as a test does.
    """
    with bundle.open(path) as opened, tempfile.TemporaryDirectory(prefix="edgekit-drift-") as scratch:
        manifest = opened.manifest
        backend: Backend = plugins.load("edgekit.backends", manifest.target.backend)
        if not hasattr(backend, "tapped"):
            hint = "what can: the artifacts of LiteRT, ONNX Runtime, Core ML and DPU targets"
            raise UsageError(f"{path.name}: the {manifest.target.backend} backend cannot show what its operators compute inside", hint)
        progress(0, 0, "opening the artifact's inside")
        tapped, taps = backend.tapped(_artifact(opened, Path(scratch)), Path(scratch, "tapped" + Path(manifest.artifact.main).suffix))
        inputs = {spec.name: array for spec, array in zip(manifest.signature.inputs, runner.stored_inputs(opened, 0), strict=True)}
        host = backend.emulate(tapped).run(inputs)
        whole = Path(scratch, "tapped" + bundle.SUFFIX)
        _write(whole, opened, tapped, host)
        progress(0, 0, f"running on {unit.name}")
        with bundle.open(whole) as inner, farm.session(unit) as link:
            run = runner.run(inner, link, link.facts(), dataclasses.replace(options, min_runs=0, warmup_runs=0))
        steps = _compare(manifest, tapped, taps, host, run.outputs[0])
    return Drift(
        path.name, run.facts.model or run.facts.identity, manifest.golden.samples[0], steps, next((i for i, s in enumerate(steps) if s.parts), None)
    )


def _compare(manifest: Manifest, tapped: Artifact, taps: tuple[Tap, ...], host: Arrays, device: Arrays) -> tuple[Step, ...]:
    parities = {p.name: p for p in parity.compare_all([host], [device], reference_specs=tapped.signature.outputs)}
    steps = []
    for tap in taps:
        found = parities[tap.tensor]
        broken = [f.message for f in parity.judge([found], manifest.target.tolerance.device) if f.severity == "error"]
        steps.append(Step(tap.operator, tap.type, tap.tensor, found, broken[0] if broken else ""))
    return tuple(steps)


def _artifact(opened: Bundle, folder: Path) -> Artifact:
    entry = opened.manifest.artifact
    opened.extract(entry.main, folder)
    return Artifact(folder / Path(entry.main).name, entry.format, opened.manifest.signature, Candidate(entry.precision), entry.runtime_names)


def _write(path: Path, opened: Bundle, tapped: Artifact, host: Arrays) -> None:
    """A bundle of the tapped artifact with one golden sample: it takes the same way to the device as any other."""
    manifest = opened.manifest
    entry = msgspec.structs.replace(manifest.artifact, main=f"artifact/{tapped.path.name}", runtime_names=tapped.runtime_names)
    files = bundle.files_of(entry.main, tapped.path)
    for index in range(len(manifest.signature.inputs)):
        files[golden_file("inputs", 0, index)] = opened.read(golden_file("inputs", 0, index))
    for index, spec in enumerate(tapped.signature.outputs):
        files[golden_file("host", 0, index)] = raw_bytes(host[spec.name])
    golden = Golden(manifest.golden.samples[:1], 0)
    bundle.write(path, msgspec.structs.replace(manifest, artifact=entry, signature=tapped.signature, golden=golden), files)
