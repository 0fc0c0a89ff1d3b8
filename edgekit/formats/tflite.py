"""TFLite (LiteRT) models: open, run here with LiteRT, read the operators, write plain float copies.

`graph` and `traits` read the flatbuffer only; `open` needs the interpreter for files whose shapes are dynamic, `session` always.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit import fingerprint
from edgekit.errors import ConversionError, UsageError, close_match, require
from edgekit.formats import Model, Shapes, tflite_reader, tflite_rewrite, tflite_signature
from edgekit.formats._quiet import quiet
from edgekit.formats.tflite_reader import Entry, File, Port
from edgekit.graph import Graph
from edgekit.tensors import Array, Arrays, Signature, TensorSpec

RUNTIME_CUSTOM = frozenset({"TFLite_Detection_PostProcess", "AudioSpectrogram", "Mfcc", "NumericVerify"})
"""Custom operators whose kernels are part of the runtime's own resolver (LiteRT `tflite/core/kernels/register.cc`)."""

XNNPACK_CUSTOM = frozenset({"Convolution2DTransposeBias", "MaxPoolingWithArgmax2D", "MaxUnpooling2D"})
"""Custom operators that only the XNNPACK and GPU delegates know (LiteRT `tflite/delegates/xnnpack/xnnpack_delegate.cc`)."""

SCALED = frozenset(("ADD", "SUB", "MUL", "PRELU", "LEAKY_RELU", "HARD_SWISH", "RELU", "RELU6", "LOGISTIC", "TANH", "SOFTMAX")) | frozenset(
    ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED")
)
"""Operators that compute on 8-bit integers by their scales only: the runtime ends the process where there is none."""

RESOURCES = frozenset({"VAR_HANDLE", "HASHTABLE"})


@dataclasses.dataclass(frozen=True)
class Handle:
    """What a session needs of an opened file: how it is called, input shapes to set (by name), and traits of its operators."""

    entry: Entry
    resize: dict[str, tuple[int, ...]]
    keeps_state: bool
    xnnpack_only: tuple[str, ...]
    folder: tempfile.TemporaryDirectory[str] | None = None
    """Holds the file where it is one signature of the source's."""


def open(reference: str, inputs: Shapes) -> Model:
    """Open a .tflite file; `FILE#SIGNATURE` names one signature of several.

    A dynamic first dimension (the batch) is fixed at 1 with a notice; any other dynamic dimension needs its shape in `inputs`.
    Raises `UsageError` for a file that cannot be read or an input that does not exist, `ConversionError` for a damaged file, for custom and
    Flex operators that the runtime does not have, and for shapes that cannot be fixed.
    """
    given, key = fingerprint.split(reference)
    path, folder, notices = _signature_alone(given, key)
    file = tflite_reader.read(path)
    _refuse_unknown(path.name, file.graph)
    refuse_unscaled(path.name, file.graph)
    resize, more = _fix(file, inputs)
    notices += more
    xnnpack_only = tuple(o.type for o in file.graph.operators if o.custom and o.type in XNNPACK_CUSTOM)
    handle = Handle(file.entry, resize, any(o.type in RESOURCES for o in file.graph.operators), xnnpack_only, folder)
    if xnnpack_only:
        notices.append(f"{', '.join(sorted(set(xnnpack_only)))}: a custom operator that only the XNNPACK and GPU delegates run")
    ends = (file.entry.inputs, file.entry.outputs)
    dynamic = any(-1 in file.graph.tensors[port.tensor].shape for ports in ends for port in ports)
    shapes = _inferred(path, handle) if dynamic else {}
    signature = Signature(*(tuple(_spec(port, file.graph, shapes.get(port.name)) for port in ports) for ports in ends))
    name = given.stem + (f"-{key}" if key else "")
    return Model("tflite", name, signature, _digest((path, *file.external)), path, handle, tuple(notices))


def _signature_alone(path: Path, key: str) -> tuple[Path, tempfile.TemporaryDirectory[str] | None, list[str]]:
    """The file to work on, the folder that holds it, and what to say of it: a copy with one signature where the source has several."""
    found = tflite_signature.keys(path)
    if len(found) < 2 and not key:
        return path, None, []
    chosen = tflite_signature.choose(path, found, key)
    if len(found) < 2:
        return path, None, []
    folder = tempfile.TemporaryDirectory(prefix="edgekit-signature-")
    notice = f"the file has the signatures {', '.join(found)}: {chosen} is taken" + ("" if key else f"; {path.name}#NAME takes another")
    return tflite_signature.alone(path, chosen, Path(folder.name) / path.name), folder, [notice]


def session(model: Model, *, threads: int = 1, reference_kernels: bool = False, keep_state: bool = False) -> Interpreter:
    """Load `model` into LiteRT's interpreter on this machine: XNNPACK and the optimized kernels, or the plain reference kernels.

    Every sample starts from fresh state unless `keep_state`. Raises `ConversionError` when the runtime refuses the model.
    """
    if model.path is None or not isinstance(model.handle, Handle):
        raise ConversionError(f"{model.name}: not an opened .tflite file")
    if reference_kernels and model.handle.xnnpack_only:
        kind = model.handle.xnnpack_only[0]
        raise ConversionError(f"{model.path.name}: there is no reference kernel for {kind}", "run it with XNNPACK, or convert it with to_float")
    return Interpreter(model.path, model.handle, threads, "BUILTIN_REF" if reference_kernels else "AUTO", keep_state)


def graph(model: Model | Path) -> Graph:
    """The operators and tensors of a file, custom ones included. Raises `ConversionError` for a damaged file."""
    path = model.path if isinstance(model, Model) else model
    if path is None:
        raise ConversionError(f"{model.name if isinstance(model, Model) else model}: not a file")
    return tflite_reader.read(path).graph


def traits(path: Path) -> frozenset[str]:
    """What kind of weights a file holds: any of `fp16-weights` (float16 behind DEQUANTIZE), `sparse-weights`, `int8`, `int16-activations`,
    `quantized-weights` (integer weights, float activations).
    """
    file = tflite_reader.read(path)
    tensors = file.graph.tensors
    fed = {i for o in file.graph.operators if o.type in ("DEQUANTIZE", "DENSIFY") for i in o.inputs if i >= 0 and tensors[i].constant}
    activations = {t.dtype for t in tensors if t.scale and not t.constant}
    weights = {t.dtype for t in tensors if t.scale and t.constant and t.dtype in ("int8", "uint8", "int4", "int2")}
    found = {
        "fp16-weights": any(tensors[i].dtype == "float16" for i in fed),
        "sparse-weights": bool(file.sparse),
        "int8": bool(activations & {"int8", "uint8"}),
        "int16-activations": "int16" in activations,
        "quantized-weights": bool(weights) and not activations & {"int8", "uint8", "int16"},
    }
    return frozenset(name for name, present in found.items() if present)


def to_float(path: Path, out: Path) -> Path:
    """Write `path` with plain dense float32 weights to `out`: constants behind DENSIFY and DEQUANTIZE folded, their operators gone, and
    MediaPipe's Convolution2DTransposeBias written as the built-in TRANSPOSE_CONV. A file without a signature gets one of its tensor names.

    The two files compute the same. Raises `ConversionError` for a damaged file or one whose constants lie outside it.
    """
    return tflite_rewrite.to_float(path, out)


def fix_shapes(model: Model, out: Path) -> Path:
    """Write an opened model with its shapes made static throughout, as `open` fixed them. Raises `ConversionError`."""
    if model.path is None:
        raise ConversionError(f"{model.name}: not a file")
    shapes: dict[int, tuple[int, ...]] = {}
    if model.handle.resize:
        kernels = "AUTO" if model.handle.xnnpack_only else "BUILTIN_WITHOUT_DEFAULT_DELEGATES"  # a delegate hides the shapes inside it
        runner = Interpreter(model.path, model.handle, 1, kernels, keep_state=False)
        runner.run(_zeros(model.handle))
        shapes = {d["index"]: tuple(int(n) for n in d["shape"]) for d in runner.interpreter.get_tensor_details()}
    return tflite_rewrite.set_shapes(model.path, shapes, out)


class Interpreter:
    """A .tflite file in LiteRT's interpreter, called through its signature. `interpreter` is the runtime's own object.

    `kernels` names one of the runtime's resolvers (`ai_edge_litert.interpreter.OpResolverType`).
    """

    def __init__(self, path: Path, handle: Handle, threads: int = 1, kernels: str = "AUTO", keep_state: bool = False) -> None:
        self.path, self.handle, self.threads, self.kernels, self.keep_state = path, handle, threads, kernels, keep_state
        self.interpreter: Any = self._load()

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name for one sample, in stored types. Raises `UsageError` for a wrong input, `ConversionError` when the runtime fails."""
        ports = self.handle.entry.inputs
        if set(inputs) != {port.name for port in ports}:
            raise UsageError(f"{self.path.name}: inputs {sorted(inputs)} given, but it takes {sorted(p.name for p in ports)}")
        for port in ports:
            given, shape = inputs[port.name], self.handle.resize.get(port.name, port.stored_shape)
            if given.shape != shape or given.dtype.name != port.dtype:
                raise UsageError(f"{self.path.name}: input {port.name} is {port.dtype}{list(shape)}, not {given.dtype.name}{list(given.shape)}")
        if not self.keep_state:
            self._reset()
        try:
            return self._call(inputs)
        except (RuntimeError, ValueError) as error:
            raise ConversionError(f"{self.path.name}: LiteRT could not run it: {error}") from error

    def _call(self, inputs: Arrays) -> dict[str, Array]:
        entry = self.handle.entry
        if entry.key is not None:
            found = self.interpreter.get_signature_runner(entry.key)(**dict(inputs))
            return {port.name: found[port.name] for port in entry.outputs}
        for port in entry.inputs:
            self.interpreter.set_tensor(port.tensor, inputs[port.name])
        self.interpreter.invoke()
        return {port.name: self.interpreter.get_tensor(port.tensor) for port in entry.outputs}

    def _reset(self) -> None:
        if self.handle.keeps_state:  # the runtime resets variable tensors, but not resource variables
            self.interpreter = self._load()
        else:
            self.interpreter.reset_all_variables()

    def _load(self) -> Any:
        runtime = require("ai_edge_litert.interpreter", extra="litert", purpose="running a .tflite model")
        resolver = getattr(runtime.OpResolverType, self.kernels)
        try:
            with quiet():  # the runtime announces its delegates on stderr
                loaded = runtime.Interpreter(str(self.path), num_threads=self.threads, experimental_op_resolver_type=resolver)
                for port in self.handle.entry.inputs:
                    if port.name in self.handle.resize and self.handle.entry.subgraph == 0:
                        loaded.resize_tensor_input(port.tensor, self.handle.resize[port.name])
                loaded.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise ConversionError(f"{self.path.name}: LiteRT refuses it: {error}") from error
        return loaded


def _refuse_unknown(name: str, graph: Graph) -> None:
    unknown = [o for o in graph.operators if (o.custom and o.type not in RUNTIME_CUSTOM | XNNPACK_CUSTOM) or o.type.startswith("BUILTIN_")]
    if not unknown:
        return
    flex = [o for o in unknown if o.type.startswith("Flex")]
    kinds = ", ".join(sorted({o.type for o in unknown}))
    first = (flex or unknown)[0]
    what = "Select TensorFlow (Flex) operators" if flex else "operators that LiteRT does not have"
    flex_cost = "the Flex library is not part of the runtime and adds about 8 MB to a download (reported)"
    hint = f"convert again with TFLITE_BUILTINS only, and replace this layer: {flex_cost}"
    other = "replace this layer by built-in operators before exporting; a custom kernel exists only in the app that brings it"
    raise ConversionError(f"{name}: {what}: {kinds} (first: {first.type} at layer {first.name})", hint if flex else other)


def refuse_unscaled(name: str, graph: Graph) -> None:
    """Raise `ConversionError` for arithmetic on 8-bit integers without a scale, at which the runtime ends the process instead of refusing."""
    for operator in (o for o in graph.operators if o.type in SCALED):
        for tensor in (graph.tensors[i] for i in (*operator.inputs, *operator.outputs) if i >= 0):
            if tensor.dtype in ("int8", "uint8") and not tensor.scale:
                what = f"{name}: {operator.type} in layer {operator.name} computes on {tensor.dtype} without a scale ({tensor.name})"
                raise ConversionError(what, "LiteRT takes 8-bit integers there for quantized values only: cast to int32 or float32 before it")


def _fix(file: File, inputs: Shapes) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    names = {port.name for port in file.entry.inputs}
    for name in inputs:
        if name not in names:
            raise UsageError(f"no input is called {name!r}", close_match(name, names))
    resize, notices = {}, []
    for port in file.entry.inputs:
        declared = file.graph.tensors[port.tensor].shape
        shape = _fixed_shape(port, declared, inputs.get(port.name))
        if port.name not in inputs and -1 in declared:
            notices.append(f"input {port.name}: the dynamic batch of {list(declared)} was fixed at 1")
        if shape != port.stored_shape:
            resize[port.name] = shape
    return resize, notices


def _fixed_shape(port: Port, declared: Sequence[int], wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    if wanted is not None:
        if len(wanted) != len(declared) or any(d not in (-1, w) or w < 1 for d, w in zip(declared, wanted, strict=True)):
            what = f"input {port.name}: shape {list(wanted)} does not fit the model's {list(declared)}"
            raise UsageError(what, "-1 is free, the other sizes are fixed")
        return tuple(wanted)
    if -1 in declared[1:]:
        example = "x".join("?" if n == -1 else str(n) for n in declared)
        raise ConversionError(f"input {port.name} has dynamic dimensions {list(declared)}", f"fix them with --input {port.name}={example}")
    return tuple(1 if n == -1 else n for n in declared)


def _inferred(path: Path, handle: Handle) -> dict[str, tuple[int, ...]]:
    """Shapes of inputs and outputs found by running on zeros: only the runtime knows how sizes carry through."""
    zeros = _zeros(handle)
    found = zeros | Interpreter(path, handle).run(zeros)
    return {name: tuple(int(n) for n in array.shape) for name, array in found.items()}


def _zeros(handle: Handle) -> dict[str, Array]:
    import numpy as np

    return {p.name: np.zeros(handle.resize.get(p.name, p.stored_shape), p.dtype) for p in handle.entry.inputs}


def _spec(port: Port, graph: Graph, shape: tuple[int, ...] | None) -> TensorSpec:
    tensor = graph.tensors[port.tensor]
    scale = tensor.scale[0] if len(tensor.scale) == 1 and tensor.scale[0] else None
    zero_point = tensor.zero_point[0] if scale and tensor.zero_point else 0
    return TensorSpec(port.name, tensor.shape if shape is None else shape, tensor.dtype, scale, zero_point)


def _digest(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()
