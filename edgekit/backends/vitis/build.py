"""From an ONNX model and a candidate to an artifact folder: the order of the steps."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit.backends import Artifact, Candidate, Context, Tap
from edgekit.backends.vitis import MODEL_FILE, calibrate, forms, limits, losses, qdq, report
from edgekit.backends.vitis.net import Net, Unit, units
from edgekit.errors import ConversionError
from edgekit.formats import Model, Session
from edgekit.legalize import onnx_prepare
from edgekit.tensors import Array, Arrays, Signature, TensorSpec
from edgekit.virtual.dpu import reader
from edgekit.virtual.dpu.program import Program

ARCH_KEY = "edgekit.arch"


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Read the model once; the result builds one candidate a call. Raises `ConversionError` for what the DPU's arithmetic does not have."""
    options = context.target.options
    if context.ranges != "auto":
        raise ConversionError(f"{context.target.name} has no ranges by {context.ranges}: its powers of two are searched for", "leave out --ranges")
    arch, rounding = str(options.get("arch", "any")), str(options.get("rounding", "half_up"))
    known = limits.load(arch)
    if any(node.op_type == "QuantizeLinear" for node in model.handle.graph.node):
        reader.read(model.handle, rounding, allow_cpu=False)
        return lambda candidate: _pass_through(model, context, candidate, arch, rounding)
    prepared = onnx_prepare.prepare(model)
    net, notices = forms.legalize(prepared.model.handle, hard_sigmoid=bool(options.get("hard_sigmoid", False)))
    _some_on_dpu(model, units(net, limits.judge(known)))
    names = {**prepared.inputs, **prepared.outputs}
    samples = [{prepared.inputs[name]: value for name, value in sample.items() if name in prepared.inputs} for sample in context.calibration]

    def build(candidate: Candidate) -> Artifact:
        kept = (*candidate.keep_float, *options.get("keep_float", ()))
        keep = tuple(names.get(name, name) for name in kept)

        def group(one: Net) -> tuple[Unit, ...]:
            return units(one, limits.judge(known, keep))

        _some_on_dpu(model, group(net))
        made = _calibrated(net, group, samples, candidate, rounding, context)
        proto = _written(made, rounding, arch)
        shown = (*prepared.notices, *notices, *made.notices, *_left(made.units), *losses.notices(made))
        artifact = _artifact(model, context, candidate, proto, {n: s for n, s in names.items() if n != s}, shown)
        return dataclasses.replace(artifact, sensitivity=losses.sensitivity(made))

    return build


def _some_on_dpu(model: Model, found: tuple[Unit, ...]) -> None:
    if not any(unit.on_dpu for unit in found):
        raise ConversionError(f"{model.name}: the DPU takes none of its operators ({found[0].reason})", found[0].suggestion or None)


def _calibrated(
    net: Net, group: Callable[[Net], tuple[Unit, ...]], samples: Sequence[Arrays], candidate: Candidate, rounding: str, context: Context
) -> calibrate.Calibrated:
    if not samples:
        raise ConversionError("power-of-two int8 needs calibration data: its activations have fixed ranges", "give --calibration")
    tolerance = context.target.tolerance.quantization.get(candidate.precision)
    least_db = tolerance.min_sqnr_db if tolerance else None
    wanted = calibrate.Wanted(least_db or 0.0, float(context.target.options.get("float_macs", 0.0)))
    return calibrate.calibrate(net, group, samples, candidate.rounding, rounding, context.progress, wanted)


def _written(made: calibrate.Calibrated, rounding: str, arch: str) -> Any:
    net, found = made.net, made.units
    left = [name for unit in found if not unit.on_dpu for node in unit.nodes for name in (_stored_name(net, made.positions, node.output[0]),)]
    refused = [unit for unit in found if not unit.on_dpu]
    why = {_stored_name(net, made.positions, node.output[0]): [unit.reason, unit.suggestion] for unit in refused for node in unit.nodes}
    metadata = {
        reader.ROUNDING_KEY: rounding,
        ARCH_KEY: arch,
        reader.CPU_KEY: msgspec.json.encode(left).decode(),
        report.REASONS_KEY: msgspec.json.encode(why, order="deterministic").decode(),
    }
    return qdq.write(net, found, made.positions, made.params, metadata)


def _stored_name(net: Net, positions: dict[str, int], name: str) -> str:
    return qdq.real(net, name) if name in positions else name


def _left(found: tuple[Unit, ...]) -> tuple[str, ...]:
    """One notice for each kind of operator that stays on the CPU."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for unit in found:
        if not unit.on_dpu:
            reasons.setdefault((unit.head.op_type, unit.reason), []).append(unit.output)
    return tuple(f"{kind} on the CPU ({len(names)}x, {names[0]}): {reason}" for (kind, reason), names in reasons.items())


def _pass_through(model: Model, context: Context, candidate: Candidate, arch: str, rounding: str) -> Artifact:
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model.handle)
    del proto.metadata_props[:]
    for key, value in ((reader.ROUNDING_KEY, rounding), (ARCH_KEY, arch)):
        proto.metadata_props.add(key=key, value=value)
    return _artifact(model, context, candidate, proto, {}, ("the model is already power-of-two int8: packaged with its own weights and scales",))


def _artifact(model: Model, context: Context, candidate: Candidate, proto: Any, names: dict[str, str], notices: tuple[str, ...]) -> Artifact:
    folder = context.workdir / f"{candidate.precision}.{candidate.rounding}"
    temporary = folder.with_suffix(".part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    (temporary / MODEL_FILE).write_bytes(proto.SerializeToString(deterministic=True))
    report.write_side_files(temporary, proto)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.replace(folder)
    return Artifact(folder, "dpu", model.signature, candidate, runtime_names=names, notices=notices)


@dataclasses.dataclass(frozen=True)
class Emulated:
    """An artifact in the integer reference, by source names."""

    program: Program
    artifact: Artifact

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by source name."""
        names, signature = self.artifact.runtime_names, self.artifact.signature
        given = {names.get(spec.name, spec.name): inputs[spec.name] for spec in signature.inputs}
        found = self.program.run(given)
        return {spec.name: found[names.get(spec.name, spec.name)] for spec in signature.outputs}


def emulate(artifact: Artifact) -> Session:
    """The artifact in the integer reference."""
    return Emulated(reader.read(artifact.path / MODEL_FILE if artifact.path.is_dir() else artifact.path), artifact)


def tapped(artifact: Artifact, out: Path) -> tuple[Artifact, tuple[Tap, ...]]:
    """A copy in the file `out` whose quantized tensors are outputs in real values too, in the order of execution."""
    import onnx

    proto, graph = onnx.load(artifact.path / MODEL_FILE), report.graph(artifact.path / MODEL_FILE)
    known = {value.name for value in proto.graph.output}
    specs, taps = list(artifact.signature.outputs), []
    for operator in graph.operators:
        tensor = graph.tensors[operator.outputs[0]]
        taps.append(Tap(tensor.name, operator.index, operator.type))
        if tensor.name not in known:
            proto.graph.output.append(onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, tensor.shape))
            specs.append(TensorSpec(tensor.name, tensor.shape, "float32"))
    out.write_bytes(proto.SerializeToString(deterministic=True))
    by_runtime = {runtime: source for source, runtime in artifact.runtime_names.items()}
    named = tuple(Tap(by_runtime.get(tap.tensor, tap.tensor), tap.operator, tap.type) for tap in taps)
    signature = Signature(artifact.signature.inputs, tuple(specs))
    return dataclasses.replace(artifact, path=out, signature=signature), named
