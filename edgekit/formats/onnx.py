"""ONNX models, with external data. The handle is a `ModelProto` with static input shapes, local functions inlined, in inference mode."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit import decimals
from edgekit.errors import ConversionError, UsageError, first_line, require
from edgekit.formats import Model, Session, Shapes, _onnx_view
from edgekit.formats._onnx_graph import (
    element_type,
    name_all_axes,
    refuse_custom,
    refuse_open_results,
    size_from_input,
    sized_by_values,
    sort_nodes,
    switch_to_inference,
    tensors,
    value_shape,
)
from edgekit.formats._onnx_width import widened
from edgekit.formats._source import DYNAMIC, digest_of_files, fix_shapes, image_layout
from edgekit.graph import Graph
from edgekit.tensors import Array, Arrays, Signature, TensorSpec


def open(reference: str, inputs: Shapes) -> Model:
    """Open an .onnx file.

    Raises `ConversionError` for a damaged file, external data outside the model's folder, custom operators, active training mode that cannot be
    switched off, and dynamic dimensions without a size.
    """
    onnx = require("onnx", extra="onnx", purpose="reading an ONNX model")
    path = Path(reference)
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf raises its own types
        raise ConversionError(f"{path}: not a readable ONNX file ({first_line(error)})", "is the file complete?") from error
    external = _external_files(proto, path.parent)
    if external:
        onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    total = hashlib.sha256(digest_of_files(path).encode())
    for file in external:
        total.update(digest_of_files(file).encode())
    digest = total.hexdigest() if external else digest_of_files(path)
    return from_proto(proto, path.stem, digest, inputs, path)


def from_proto(proto: Any, name: str, digest: str, inputs: Shapes, path: Path | None = None) -> Model:
    """A model of a `ModelProto` in memory. Raises `ConversionError` as `open`."""
    _refuse_newer(proto, name)
    proto = _checked(proto, name)
    refuse_custom(proto, name)
    name_all_axes(proto)
    notices = switch_to_inference(proto, name)
    specs, more = fix_shapes(_input_specs(proto, name), inputs)
    _set_input_shapes(proto, specs)
    handle = _inferred(proto)
    return Model("onnx", name, Signature(specs, _output_specs(handle, specs)), digest, path, handle, (*notices, *more))


def in_float32(model: Model) -> Model:
    """The model with its half precision widened, exactly; itself where it has none."""
    wide = widened(model.handle)
    if wide is model.handle:
        return model
    inputs, outputs = (tuple(map(_in_float32, specs)) for specs in (model.signature.inputs, model.signature.outputs))
    notice = "the model is in half precision: it is taken as float32"
    return dataclasses.replace(model, handle=_inferred(wide), signature=Signature(inputs, outputs), notices=(*model.notices, notice))


def _in_float32(spec: TensorSpec) -> TensorSpec:
    return msgspec.structs.replace(spec, dtype="float32") if spec.dtype == "float16" else spec


def session(model: Model) -> Session:
    """Run in onnxruntime on the CPU: one thread, sequential, only exact graph optimizations."""
    return OnnxSession(_runtime_session(model.handle, model.name), model.signature, lambda error: _cannot_run(error, model.handle))


def graph(model: Model) -> Graph:
    """The model's operators."""
    return _onnx_view.graph(model.handle, _stored_bytes(model.path) if model.path else model.handle.ByteSize())


def _stored_bytes(path: Path) -> int:
    import onnx

    beside = _external_files(onnx.load(path, load_external_data=False), path.parent)
    return sum(file.stat().st_size for file in (path, *beside))


@dataclasses.dataclass(frozen=True)
class OnnxSession:
    """A loaded model in onnxruntime. `names` maps the signature's names to the file's where they differ; `refusal` says what a failed run means.

    An input that the file has lost, since nothing read it, is not passed on.
    """

    runtime: Any
    signature: Signature
    refusal: Callable[[Exception], ConversionError]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by the signature's names. Raises `ConversionError` when onnxruntime fails."""
        present = {value.name for value in self.runtime.get_inputs()}
        ends = (self.signature.inputs, self.signature.outputs)
        given, wanted = ({spec.name: self.names.get(spec.name, spec.name) for spec in specs} for specs in ends)
        try:
            values = self.runtime.run(list(wanted.values()), {now: inputs[name] for name, now in given.items() if now in present})
        except Exception as error:  # onnxruntime raises its own types
            raise self.refusal(error) from error
        return dict(zip(wanted, values, strict=True))


def _cannot_run(error: Exception, proto: Any) -> ConversionError:
    what, hint = f"onnxruntime could not run the model: {first_line(error)}", "does it run in onnxruntime alone, with inputs of these shapes?"
    sized = size_from_input(proto, [value.name for value in proto.graph.output])
    if sized is None:
        return ConversionError(what, hint)
    return ConversionError(f"{what.rstrip('.')}; a size depends on values: {sized[1]}", f"export the model with a constant in place of {sized[2]}")


def _runtime_session(proto: Any, name: str) -> Any:
    ort = require("onnxruntime", extra="onnx", purpose="running an ONNX model")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own types
        raise ConversionError(
            f"{name}: onnxruntime refuses the model: {first_line(error)}", "export it again, from operators of a released opset"
        ) from error


def _external_files(proto: Any, folder: Path) -> list[Path]:
    """Files beside the model that hold weights, sorted. Raises `ConversionError` for one that lies elsewhere or is too short."""
    import onnx

    found = set()
    root = folder.resolve()
    for tensor in tensors(proto):
        if not onnx.external_data_helper.uses_external_data(tensor):
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        file = (root / location).resolve()
        if not location or Path(location).is_absolute() or not file.is_relative_to(root):
            what = f"external data of {tensor.name} lies outside the model's folder: {location!r}"
            raise ConversionError(what, "keep weights beside the .onnx file")
        if not file.is_file():
            raise ConversionError(f"external data of {tensor.name} is missing: {location}", "copy it beside the .onnx file")
        if _number(entries, "offset") + _number(entries, "length") > file.stat().st_size:
            raise ConversionError(f"external data of {tensor.name} ends beyond {location}", "is the file complete?")
        found.add(file)
    return sorted(found)


def _number(entries: dict[str, str], key: str) -> int:
    text = entries.get(key, "0")
    if not decimals.is_whole(text):
        raise ConversionError(f"external data with the {key} {text!r}")
    return int(text)


def _refuse_newer(proto: Any, name: str) -> None:
    import onnx

    known = onnx.defs.onnx_opset_version()
    newest = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    if proto.ir_version > onnx.IR_VERSION or newest > known:
        what = f"IR version {proto.ir_version}" if proto.ir_version > onnx.IR_VERSION else f"operator set {newest}"
        limits = f"IR version {onnx.IR_VERSION} and operator set {known}"
        raise ConversionError(f"{name}: {what} is newer than the installed onnx reads ({limits})", f"export it with operator set {min(known, 17)}")


def _checked(proto: Any, name: str) -> Any:
    import onnx
    import onnx.inliner

    try:
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        sort_nodes(proto.graph)
        if not any(node.domain not in ("", "ai.onnx", "ai.onnx.ml") for node in proto.graph.node):
            onnx.checker.check_model(proto)
    except Exception as error:  # the checker and the inliner raise their own types
        raise ConversionError(f"{name}: not a valid ONNX model: {first_line(error)}", "is the file complete? export it again") from error
    return proto


def _input_specs(proto: Any, name: str) -> tuple[TensorSpec, ...]:
    stored = {tensor.name for tensor in proto.graph.initializer}
    specs = []
    for value in proto.graph.input:
        if value.name in stored:
            continue
        shape, dtype = value_shape(value), element_type(value)
        if shape is None or dtype is None:
            what = f"{name}: the input {value.name} is {_kind(value)}, and edgekit takes numeric tensors of known rank and numpy's types"
            raise ConversionError(what, "keep what is of other types outside the model")
        specs.append(TensorSpec(value.name, shape, dtype, layout=image_layout(shape, dtype, "NCHW")))
    if not specs:
        raise ConversionError(
            f"{name}: the model takes no input", "a model that only holds constants has nothing to package: export it with an input"
        )
    return tuple(specs)


def _set_input_shapes(proto: Any, specs: Sequence[TensorSpec]) -> None:
    """Fixed sizes at the inputs; what was inferred from the old ones is dropped."""
    shapes = {spec.name: spec.shape for spec in specs}
    for value in proto.graph.input:
        if value.name in shapes:
            for dimension, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
                dimension.Clear()
                dimension.dim_value = size
    for value in proto.graph.output:
        if DYNAMIC in (value_shape(value) or (DYNAMIC,)):
            value.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]


def _inferred(proto: Any) -> Any:
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # inference is a help: what it cannot tell is found by running
        return proto


def _run_shapes(proto: Any, inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...] | None]) -> dict[str, tuple[int, ...] | None]:
    """The sizes that outputs have when the model runs. Raises `ConversionError` where they depend on values."""
    import numpy as np

    still_open = [name for name, shape in shapes.items() if shape is None or DYNAMIC in shape]
    refuse_open_results(proto, still_open)
    by_values = sized_by_values(proto, still_open)
    runner = _runtime_session(proto, proto.graph.name or "the model")
    found = list[dict[str, tuple[int, ...] | None]]()
    for value in (0, 1) if by_values else (0,):
        try:
            made = runner.run(list(shapes), {spec.name: np.full(spec.shape, value, spec.dtype) for spec in inputs})
        except Exception as error:  # onnxruntime raises its own types
            if not found:
                raise (by_values or _cannot_run(error, proto)) from error
        else:
            found.append({name: tuple(array.shape) for name, array in zip(shapes, made, strict=True)})
    if by_values and found[0] != found[-1]:
        raise by_values
    return dict(found[0])


def _output_specs(proto: Any, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    shapes = {value.name: value_shape(value) for value in proto.graph.output}
    if any(shape is None or DYNAMIC in shape for shape in shapes.values()):
        shapes = _run_shapes(proto, inputs, shapes)
    specs = []
    for value in proto.graph.output:
        dtype, shape = element_type(value), shapes[value.name]
        if dtype is None or shape is None:
            raise UsageError(f"the output {value.name} is {_kind(value)}, and edgekit takes numeric tensors of numpy's types")
        specs.append(TensorSpec(value.name, shape, dtype, layout=image_layout(shape, dtype, "NCHW")))
    return tuple(specs)


def _kind(value: Any) -> str:
    """What a graph input or output is, in a word or two."""
    import onnx

    if not value.type.HasField("tensor_type"):
        return f"a {value.type.WhichOneof('value').removesuffix('_type')}" if value.type.WhichOneof("value") else "of no type"
    kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return f"of type {kind}" if value_shape(value) is not None else f"{kind} of unknown rank"
