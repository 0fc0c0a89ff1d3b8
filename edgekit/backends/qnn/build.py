"""From a float ONNX model to an artifact folder: `model.onnx` (QDQ), `context.onnx` (the binary for the chip), `build.json`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from edgekit.backends import Artifact, Candidate, Context
from edgekit.errors import ConversionError, RunnerError, UsageError, close_match
from edgekit.formats import Model, Session, _onnx_view
from edgekit.hostruntimes import onnxruntime_qnn
from edgekit.hostruntimes.onnxruntime_qnn import Build
from edgekit.legalize import onnx_prepare, onnx_rules
from edgekit.opset import hexagon, table, view
from edgekit.qdq import protos, rounding, spans, stream, write
from edgekit.quantize.ranges import Histogram
from edgekit.tensors import Array, Arrays, Signature

ARCHS = (68, 69, 73, 75, 79, 81)
"""Generations that onnxruntime-qnn 2.7.0 accepts (measured); for any other it only warns, and builds for a default."""


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Do once what all candidates share. Raises `UsageError` for an unknown generation, `ConversionError` for a quantized model."""
    arch = context.target.options.get("arch")
    if arch not in ARCHS:
        raise UsageError(f"{context.target.name}: unknown Hexagon generation {arch!r}", close_match(str(arch), map(str, ARCHS)))
    if any(node.op_type == "QuantizeLinear" for node in model.handle.graph.node):
        raise ConversionError(f"{model.name} is already quantized", "give the float model")
    if context.io != "float32":
        raise ConversionError(f"hexagon artifacts have float32 edges, not {context.io}", "leave out --io")
    prepared = onnx_rules.legalize(onnx_prepare.prepare(model), "hexagon", context.calibration)
    _refuse_wrong(model.name, prepared.model.handle)
    source = _Source(model, context, protos.canonical(prepared.model.handle), dict(prepared.inputs), dict(prepared.outputs), prepared.notices)
    return source.build


def _refuse_wrong(name: str, proto: Any) -> None:
    """Raise `ConversionError` for operators that the HTP takes and computes otherwise."""
    graph = _onnx_view.graph(proto, 0)
    seen = view.make(graph, table.load("hexagon"))
    for operator in graph.operators:
        reason = hexagon.wrong(seen, operator)
        if reason:
            raise ConversionError(f"{name}: {operator.type} in layer {operator.name}: {reason}", "replace that operator: the HTP would take it")


@dataclasses.dataclass(frozen=True, eq=False)
class _Source:
    model: Model
    context: Context
    proto: Any
    inputs: dict[str, str]
    outputs: dict[str, str]
    notices: tuple[str, ...]

    @functools.cached_property
    def samples(self) -> list[Arrays]:
        """The calibration sets, by the prepared graph's names and in its types."""
        specs = {spec.name: spec for spec in self.model.signature.inputs}
        return [{self.inputs[name]: sample[name].astype(specs[name].dtype) for name in self.inputs} for sample in self.context.calibration]

    @functools.cached_property
    def seen(self) -> dict[str, Histogram]:
        """How the float activations are spread."""
        return stream.histograms(self.proto, self.samples, self.context.progress)

    @functools.cache  # noqa: B019  (one source lives as long as its builds)
    def weights(self, method: str) -> rounding.Weights:
        """The rounded float graph, once for all precisions."""
        return rounding.round_weights(self.proto, self.samples, self.seen, self.context.workdir, method=method, progress=self.context.progress)

    def build(self, candidate: Candidate) -> Artifact:
        """Write one candidate, and ask the simulator to take it and to make the context binary."""
        if not self.samples:
            raise ConversionError(f"{candidate.precision} needs calibration data: its activations have fixed ranges", "give --calibration")
        options = self.context.target.options
        weights = self.weights(candidate.rounding)
        bits = 16 if candidate.precision == "a16w8" else 8
        seen = spans.widened(weights.proto, self.seen) if bits == 16 else self.seen
        proto = write.write(weights, seen, write.Policy(bits))
        folder = self.context.workdir / f"{candidate.precision}-{candidate.rounding}" / "hexagon"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(proto.SerializeToString(deterministic=True))
        _compile(folder, options)
        versions = metadata.version("onnxruntime-qnn"), metadata.version("onnxruntime")
        built = Build(options["arch"], options.get("soc_model", 0), options.get("soc", ""), *versions)
        (folder / "build.json").write_bytes(msgspec.json.format(msgspec.json.encode(built), indent=1))
        names = {was: now for was, now in {**self.inputs, **self.outputs}.items() if was != now}
        made_for = f"context binary for {built.soc or 'any chip'}, Hexagon v{built.arch}, onnxruntime-qnn {built.provider}"
        notices = (*self.notices, *weights.notices, made_for, "the simulator proves values: not the chip's generation, and not latency")
        return Artifact(folder, "onnx-qnn", self.model.signature, candidate, names, notices)


def _compile(folder: Path, options: dict[str, Any]) -> None:
    try:
        onnxruntime_qnn.session(folder / "model.onnx", options["arch"], options.get("soc_model", 0), folder / "context.onnx")
    except RunnerError as error:
        left = onnxruntime_qnn.left_over(folder / "model.onnx", options["arch"], options.get("soc_model", 0))
        named = ", ".join(f"{kind} in layer {name}" for kind, name in left[:5] if not kind.endswith("uantizeLinear"))
        what = f"the HTP simulator does not take {named}" if named else f"the HTP simulator does not take the model: {error.message}"
        raise ConversionError(what, "'edgekit inspect MODEL' lists its operators") from error


def emulate(artifact: Artifact) -> Session:
    """The artifact on the simulator."""
    return _session(artifact.path, artifact.signature, tuple(sorted(artifact.runtime_names.items())))


@functools.lru_cache(maxsize=2)
def _session(folder: Path, signature: Signature, names: Sequence[tuple[str, str]]) -> Session:
    built = msgspec.json.decode((folder / "build.json").read_bytes(), type=Build)
    return _Simulated(onnxruntime_qnn.session(folder / "model.onnx", built.arch, built.soc_model), signature, dict(names))


@dataclasses.dataclass(frozen=True)
class _Simulated:
    runtime: Any
    signature: Signature
    names: dict[str, str]

    def run(self, inputs: Arrays) -> dict[str, Array]:
        present = {value.name for value in self.runtime.get_inputs()}
        feed = {self.names.get(n, n): inputs[n] for n in (s.name for s in self.signature.inputs) if self.names.get(n, n) in present}
        names = [spec.name for spec in self.signature.outputs]
        try:
            return dict(zip(names, self.runtime.run([self.names.get(n, n) for n in names], feed), strict=True))
        except Exception as error:  # onnxruntime raises its own types
            raise ConversionError(f"the HTP simulator fails on the model: {onnxruntime_qnn.explain(str(error))}") from error
