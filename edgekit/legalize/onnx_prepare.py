"""Make an ONNX graph plain before a converter sees it: opset raised, constants folded, simplified, shapes known, names safe.

Nothing is believed: the prepared graph is run against the original.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from edgekit import formats
from edgekit.errors import ConversionError, first_line, require
from edgekit.formats import Model, onnx
from edgekit.formats._onnx_graph import graphs, rename_values
from edgekit.legalize import onnx_loops, onnx_pads, onnx_upsample
from edgekit.tensors import Array, Signature, TensorSpec

OPSET = 17
"""Raised to this when older: the newest that all converters here read in full."""

_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared model and the names it gave to the source's inputs and outputs."""

    model: Model
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    notices: tuple[str, ...]


def prepare(source: Model) -> Prepared:
    """The prepared graph of an opened ONNX model. Raises `ConversionError` when it does not compute the same."""
    raised, notices = _raised(source.handle)
    proto, more = _plain(raised, source.signature)
    loops = 0
    while (written := onnx_loops.unrolled(proto))[1]:  # the loops inside a loop are in the main graph then
        loops += written[1]
        proto, more = _plain(written[0], source.signature)
    if loops:
        more = (*more, f"{loops} loops that run a known number of times are written out")
    onnx_pads.write_out(proto)
    names = _safe_names(proto)
    inputs = {spec.name: names.get(spec.name, _safe(spec.name)) for spec in source.signature.inputs}
    outputs = {spec.name: names[spec.name] for spec in source.signature.outputs}
    _rename(proto.graph, names)
    present = {value.name for value in proto.graph.input}
    signature = Signature(
        tuple(_renamed(spec, inputs) for spec in source.signature.inputs if inputs[spec.name] in present),
        tuple(_renamed(spec, outputs) for spec in source.signature.outputs),
    )
    model = Model("onnx", source.name, signature, source.digest, handle=proto)
    _check_equal(source, model, inputs, outputs)
    return Prepared(model, inputs, outputs, (*notices, *more))


def random_inputs(signature: Signature, seed: int) -> dict[str, Array]:
    """Seeded inputs: normal values, or 0..1 integers, which every embedding and index accepts."""
    import numpy as np

    rng = np.random.RandomState(seed)
    drawn = {}
    for spec in signature.inputs:
        values = rng.standard_normal(spec.shape) if spec.dtype.startswith("float") else rng.randint(0, 2, spec.shape)
        drawn[spec.name] = values.astype(spec.dtype)
    return drawn


def _raised(proto: Any) -> tuple[Any, tuple[str, ...]]:
    import onnx.version_converter

    version = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    if version >= OPSET:
        return proto, ()
    try:
        raised = onnx.version_converter.convert_version(proto, OPSET)
        if version <= 10:
            onnx_upsample.as_it_was(raised)
        return raised, ()
    except Exception:  # an operator without an adapter: the converter may still read the old form
        return proto, (f"opset {version} could not be raised to {OPSET}: kept",)


def _plain(proto: Any, signature: Signature) -> tuple[Any, tuple[str, ...]]:
    """The graph simplified; as it is where the simplifier fails. Outputs have their shapes, which inference does not find for every operator."""
    import onnx

    shaped = onnx.ModelProto()
    shaped.CopyFrom(proto)
    for value, spec in zip(shaped.graph.output, signature.outputs, strict=True):
        kind = value.type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, spec.shape))
    try:
        return simplified(shaped), ()
    except ConversionError as error:
        return onnx.shape_inference.infer_shapes(shaped, data_prop=True), (f"{error.message}: it is taken as it is",)


def simplified(proto: Any) -> Any:
    """A copy with constants folded, what nothing reads removed, and shapes inferred. Raises `ConversionError` when that fails."""
    import onnx

    onnxslim = require("onnxslim", extra="onnx", purpose="simplifying an ONNX model")
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    try:
        slim = _without_empty_parts(onnxslim.slim(_without_empty_parts(copy)))
        return onnx.shape_inference.infer_shapes(slim, data_prop=True)
    except Exception as error:  # onnxslim raises whatever its passes raise
        reason = first_line(error)
        raise ConversionError(f"the ONNX graph could not be simplified: {reason}") from error


def _without_empty_parts(proto: Any) -> Any:
    """Take away what a Split gives of no length and nothing reads: targets have no tensors without elements."""
    import numpy as np
    import onnx

    sizes = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in proto.graph.initializer if t.data_type == onnx.TensorProto.INT64 and t.dims}
    read = {name for node in proto.graph.node for name in node.input} | {value.name for value in proto.graph.output}
    for node in proto.graph.node:
        lengths = sizes.get(node.input[1], []) if node.op_type == "Split" and len(node.input) > 1 else []
        kept = [(length, name) for length, name in zip(lengths, node.output, strict=False) if length or name in read]
        if not lengths or len(kept) == len(lengths) or len(node.output) != len(lengths):
            continue
        if len(kept) == 1:
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:], node.output[:]
            node.output.append(kept[0][1])
            continue
        name = f"{node.input[1]}/{kept[0][1]}"
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([length for length, _ in kept], np.int64), name))
        node.input[1] = name
        del node.output[:]
        node.output.extend(name for _, name in kept)
    return proto


def _safe(name: str) -> str:
    """Letters, digits, `_`, `.`, `/` only, starting with a letter: what TensorFlow takes as a scope name."""
    plain = re.sub(r"[^A-Za-z0-9_./]", "_", name)
    return plain if plain[:1].isalpha() else f"t{plain}"


def _safe_names(proto: Any) -> dict[str, str]:
    """New, distinct names for every value and node of the graph."""
    taken: set[str] = set()
    made: dict[str, str] = {}
    for name in _all_names(proto.graph):
        if name and name not in made:
            plain, count = _safe(name), 1
            while plain.lower() in taken:
                count += 1
                plain = f"{_safe(name)}_{count}"
            taken.add(plain.lower())
            made[name] = plain
    return made


def _all_names(graph: Any) -> Iterable[str]:
    for one in graphs(graph):
        yield from (value.name for value in (*one.input, *one.output, *one.initializer, *one.value_info))
        for node in one.node:
            yield from (*node.input, *node.output)


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    rename_values(graph, names)
    for one in graphs(graph):
        for node in one.node:
            node.name = _safe(node.name) if node.name else ""


def _renamed(spec: TensorSpec, names: Mapping[str, str]) -> TensorSpec:
    return TensorSpec(names[spec.name], spec.shape, spec.dtype, layout=spec.layout)


def _check_equal(source: Model, made: Model, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    import numpy as np

    feeds = random_inputs(source.signature, 0)
    right = formats.session(source).run(feeds)
    got = onnx.session(made).run({inputs[name]: value for name, value in feeds.items()})
    for name, wanted in right.items():
        there = got[outputs[name]]
        size = max(1.0, float(np.abs(wanted.astype(np.float64)).max(initial=0)))
        worst = float(np.abs(there.astype(np.float64) - wanted).max(initial=0)) if there.shape == wanted.shape else float("inf")
        if not (worst <= _TOLERANCE * size or np.array_equal(there, wanted, equal_nan=True)):
            what = f"{source.name}: simplifying the graph changed {name} by {worst:.3g}"
            raise ConversionError(what, "this is a fault of the simplifier: report it")
