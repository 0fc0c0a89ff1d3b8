"""From a float ONNX model to the artifact: `model.onnx` at a chosen precision."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgekit.backends import Artifact, Candidate, Context
from edgekit.backends.onnxruntime import running, weights
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.legalize import onnx_prepare, onnx_rules
from edgekit.qdq import protos, sensitivity, write
from edgekit.qdq.source import Source
from edgekit.quantize import ranges
from edgekit.quantize.ranges import Method


def own_precision(model: Model) -> str | None:
    """`w8a8` where activations are quantized already; None for a float model."""
    return "w8a8" if any(node.op_type in protos.QUANTIZING for node in model.handle.graph.node) else None


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Do once what all candidates share. Raises `ConversionError`."""
    if context.io != "float32":
        raise ConversionError(f"ONNX Runtime artifacts keep the model's own edges, not {context.io}", "leave out --io")
    if own_precision(model):
        return functools.partial(_as_it_is, model, context)
    prepared = onnx_rules.legalize(onnx_prepare.prepare(model), context.target.delegates[0], context.calibration)
    proto, ends = protos.canonical(prepared.model.handle), (dict(prepared.inputs), dict(prepared.outputs))
    source = Source(model, proto, *ends, context.calibration, context.workdir, context.progress)
    return _Builder(source, prepared.notices, ranges.method(context.ranges)).build


def _as_it_is(model: Model, context: Context, candidate: Candidate) -> Artifact:
    if candidate.precision != own_precision(model):
        raise ConversionError(f"{model.name} is already quantized: it stays {own_precision(model)}", "give the float model")
    folder = context.workdir / "own"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model.handle.SerializeToString(deterministic=True))
    return Artifact(folder / "model.onnx", "onnx", model.signature, candidate, notices=("the model was quantized already: passed through",))


@dataclasses.dataclass(frozen=True)
class _Builder:
    source: Source
    notices: tuple[str, ...]
    by: Method

    def build(self, candidate: Candidate) -> Artifact:
        """Write one candidate, and load it here: what the runtime refuses is no artifact."""
        proto, notices = self._proto(candidate)
        source = self.source
        folder = source.workdir / f"{candidate.precision}-{candidate.rounding}"
        folder.mkdir()
        path = folder / "model.onnx"
        path.write_bytes(source.with_all_inputs(proto).SerializeToString(deterministic=True))
        notices += self._in_float(path) if candidate.precision == "w8a8" else self._loaded(path)
        return Artifact(path, "onnx", source.model.signature, candidate, source.renamed, (*self.notices, *notices, *self._gain(candidate, path)))

    def _loaded(self, path: Path, optimized: Path | None = None) -> tuple[str, ...]:
        running.session(path, self.source.model.signature, self.source.renamed, optimized)
        return ()

    def _in_float(self, path: Path) -> tuple[str, ...]:
        """Load the artifact; which of its operators compute in float between integers."""
        optimized = self.source.workdir / f"{path.parent.name}.optimized.onnx"
        self._loaded(path, optimized)
        left = running.left_in_float(optimized)
        optimized.unlink()
        named = ", ".join(f"{kind} in layer {name}" for kind, name in left[:5]) + (" ..." if len(left) > 5 else "")
        many = f"{len(left)} operators compute" if len(left) > 1 else "1 operator computes"
        return (f"{many} in float between integers, for want of an integer kernel in the runtime: {named}",) if left else ()

    def _gain(self, candidate: Candidate, path: Path) -> tuple[str, ...]:
        """That a quantized file is no smaller than the float one, and where its bytes are."""
        import onnx

        now, before = path.stat().st_size, self.source.proto.ByteSize()
        if candidate.precision == "fp32" or now < before:
            return ()
        rows = sorted(((len(tensor.raw_data) or tensor.ByteSize(), tensor.name) for tensor in onnx.load(path).graph.initializer), reverse=True)
        largest = ", ".join(f"{name} {count}" for count, name in rows[:3])
        rest = now - sum(count for count, _ in rows)
        return (
            f"{candidate.precision} is no smaller than float: {now} bytes against {before}; constants {now - rest} (largest: {largest}), "
            f"scales, names and extra operators {rest}",
        )

    def _proto(self, candidate: Candidate) -> tuple[Any, tuple[str, ...]]:
        if candidate.precision == "fp32":
            return self.source.proto, ()
        if candidate.precision == "fp16":
            return weights.half(self.source.proto)
        if candidate.precision == "w8":
            rounded = self.source.weights(candidate.rounding)
            return weights.stored(rounded), rounded.notices
        if not self.source.samples:
            raise ConversionError(f"{candidate.precision} needs calibration data: its activations have fixed ranges", "give --calibration")
        return self._static(candidate.rounding)

    def _static(self, method: str) -> tuple[Any, tuple[str, ...]]:
        """8-bit activations, but for those that would spoil the outputs: float ones cost time alone, as the runtime has both."""
        joined, told = self.source.joined
        costs = self.source.costs(write.Policy(8, self.by, real=joined))
        kept = sensitivity.loud(costs, 8)
        policy = write.Policy(8, self.by, real=kept | joined)
        source, gained = self.source.leveled(policy) if method != "nearest" else (self.source, ())
        made, notices = source.quantized(method, policy)
        named = sorted((name for name in costs if name in kept), key=lambda name: (-costs[name].noise, name))
        spoiling = f"{len(named)} of {len(costs)} activations stay float, as 8 bits of one would spoil the outputs: {', '.join(named[:3])}"
        level = f"{len(gained)} chains of layers equalized, around {', '.join(gained[:3])}"
        return made, (*notices, *told, *((spoiling,) if named else ()), *((level,) if gained else ()))
