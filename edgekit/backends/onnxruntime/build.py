"""From a float ONNX model to the artifact: `model.onnx` at a chosen precision."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from edgekit.backends import Artifact, Candidate, Context
from edgekit.backends.onnxruntime import running, weights
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.legalize import onnx_prepare, onnx_rules
from edgekit.qdq import protos, rounding, stream, write
from edgekit.quantize.ranges import Histogram
from edgekit.tensors import Arrays


def own_precision(model: Model) -> str | None:
    """`w8a8` where activations are quantized already; None for a float model."""
    quantizes = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "MatMulInteger", "ConvInteger"}
    return "w8a8" if any(node.op_type in quantizes for node in model.handle.graph.node) else None


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Do once what all candidates share. Raises `ConversionError`."""
    if context.io != "float32":
        raise ConversionError(f"ONNX Runtime artifacts keep the model's own edges, not {context.io}", "leave out --io")
    if own_precision(model):
        return functools.partial(_as_it_is, model, context)
    prepared = onnx_rules.legalize(onnx_prepare.prepare(model), context.target.delegates[0], context.calibration)
    source = _Source(model, context, protos.canonical(prepared.model.handle), dict(prepared.inputs), dict(prepared.outputs), prepared.notices)
    return source.build


def _as_it_is(model: Model, context: Context, candidate: Candidate) -> Artifact:
    if candidate.precision != own_precision(model):
        raise ConversionError(f"{model.name} is already quantized: it stays {own_precision(model)}", "give the float model")
    folder = context.workdir / "own"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model.handle.SerializeToString(deterministic=True))
    return Artifact(folder / "model.onnx", "onnx", model.signature, candidate, notices=("the model was quantized already: passed through",))


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
        """The calibration sets, by the prepared graph's names and in its types; inputs that nothing reads are left out."""
        specs = {spec.name: spec for spec in self.model.signature.inputs}
        present = {value.name for value in self.proto.graph.input}
        used = {source: name for source, name in self.inputs.items() if name in present}
        return [{name: sample[source].astype(specs[source].dtype) for source, name in used.items()} for sample in self.context.calibration]

    @functools.cached_property
    def seen(self) -> dict[str, Histogram]:
        """How the float activations are spread."""
        return stream.histograms(self.proto, self.samples, self.context.progress)

    @functools.cache  # noqa: B019  (one source lives as long as its builds)
    def weights(self, method: str) -> rounding.Weights:
        """The rounded float graph, once for all precisions."""
        return rounding.round_weights(self.proto, self.samples, self.seen, self.context.workdir, method=method, progress=self.context.progress)

    def build(self, candidate: Candidate) -> Artifact:
        """Write one candidate, and load it here: what the runtime refuses is no artifact."""
        proto, notices = self._proto(candidate)
        folder = self.context.workdir / f"{candidate.precision}-{candidate.rounding}"
        folder.mkdir()
        path = folder / "model.onnx"
        path.write_bytes(proto.SerializeToString(deterministic=True))
        names = {was: now for was, now in {**self.inputs, **self.outputs}.items() if was != now}
        running.session(path, self.model.signature, names)
        return Artifact(path, "onnx", self.model.signature, candidate, names, (*self.notices, *notices))

    def _proto(self, candidate: Candidate) -> tuple[Any, tuple[str, ...]]:
        if candidate.precision == "fp32":
            return self.proto, ()
        if candidate.precision == "fp16":
            return weights.half(self.proto)
        if candidate.precision == "w8":
            rounded = self.weights(candidate.rounding)
            return weights.stored(rounded), rounded.notices
        if not self.samples:
            raise ConversionError(f"{candidate.precision} needs calibration data: its activations have fixed ranges", "give --calibration")
        rounded = self.weights(candidate.rounding)
        return write.write(rounded, self.seen, write.Policy(8)), rounded.notices
