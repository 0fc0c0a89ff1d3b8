"""The ends of a graph as C of our own (softmax, functions of one value as tables, transposes), and the interface of `apps/mcu` around all."""

from __future__ import annotations

import copy
import dataclasses
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.backends.micro_c import softmax
from edgekit.embed import c_text
from edgekit.errors import ConversionError
from edgekit.formats import tflite
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.legalize import tflite_bakenn
from edgekit.tensors import Signature

SOFTMAX, QUANTIZE = "SOFTMAX", "QUANTIZE"


@dataclasses.dataclass(frozen=True)
class Ends:
    """C functions, the calls on the input before the net, which then reads `given`, and those on the output buffer behind it, in order."""

    functions: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    given: str = "inputs[0]"
    calls: tuple[str, ...] = ()


def write(model: Any, head: Sequence[Any], operators: Sequence[Any], source: Path) -> Ends:
    """The C of the operators cut off the start and the end of `source`. Raises `ConversionError` for one whose tensors are not int8."""
    functions, before = _head(model, head, source)
    calls = list[str]()
    for number, operator in enumerate(operators):
        kind = flatbuffer.op_name(model, operator)
        if kind in tflite_bakenn.SHAPES:
            continue
        given, made = (model.subgraphs[0].tensors[int(i)] for i in (operator.inputs[0], operator.outputs[0]))
        types = flatbuffer.schema().TensorType
        if given.type != types.INT8 or made.type not in ((types.INT8, types.UINT8) if kind == QUANTIZE else (types.INT8,)):
            raise ConversionError(f"{source.name}: {kind} ({flatbuffer.text(made.name)}) at the end is not int8 throughout", "use int8 edges")
        if kind == SOFTMAX:
            functions.append(softmax.code(float(operator.builtinOptions.beta), float(given.quantization.scale[0]), number))
            calls.append(f"softmax_{number}(outputs[0], {_rows(made)}, {int(made.shape[-1])});")
        elif kind == tflite_bakenn.TURN:
            functions.append(_transposed(model, operator, f"made_{number}"))
            calls.append(f"memcpy(made_{number}, outputs[0], sizeof made_{number});")
            calls.append(f"transposed_made_{number}(made_{number}, outputs[0]);")
        else:
            functions.append(_table(model, operator, f"table_{number}"))
            calls.append(f"table_{number}(outputs[0], EDGEKIT_OUTPUT_0_ELEMENTS);")
    return Ends(tuple(functions), tuple(before), "given" if before else "inputs[0]", tuple(calls))


def _head(model: Any, head: Sequence[Any], source: Path) -> tuple[list[str], list[str]]:
    """C functions and calls that write the input to a buffer `given`: in another order of axes, from uint8 to int8, or both."""
    kinds = {flatbuffer.op_name(model, operator): operator for operator in head}
    turn, scale = kinds.get(tflite_bakenn.TURN), kinds.get(QUANTIZE)
    functions, calls = list[str](), list[str]()
    if turn is not None:
        functions.append(_transposed(model, turn, "given"))
        calls.append("transposed_given(inputs[0], given);")
    if scale is not None:
        given, made = (model.subgraphs[0].tensors[int(i)] for i in (scale.inputs[0], scale.outputs[0]))
        types = flatbuffer.schema().TensorType
        if given.type not in (types.UINT8, types.INT8) or made.type != types.INT8:
            what = f"{source.name}: {QUANTIZE} ({flatbuffer.text(made.name)}) at the start is not from 8 bits to int8"
            raise ConversionError(what, "use int8 edges")
        size = math.prod(int(n) for n in made.shape)
        functions += [*([] if turn is not None else [f"static int8_t given[{size}];\n"]), _table(model, scale, "table_given")]
        calls += [*([] if turn is not None else ["memcpy(given, inputs[0], sizeof given);"]), f"table_given(given, {size});"]
    return functions, calls


def wrap(folder: Path, signature: Signature, arena_bytes: int, ends: Ends, *, cmsis_nn: bool) -> None:
    """Write `edgekit_model.h`, `.c` and `.json` around bakenn's files in `folder`."""
    defines = ("BAKENN_CMSIS_NN_BUILTIN_MEMORY",) if cmsis_nn else ()
    (folder / "edgekit_model.h").write_text(c_text.header(signature, arena_bytes), "utf-8")
    (folder / "edgekit_model.json").write_bytes(c_text.description(signature, arena_bytes, defines))
    body = _BODY.replace("@FUNCTIONS@", "\n".join(ends.functions)).replace("@GIVEN@", ends.given)
    for place, calls in (("@BEFORE@", ends.before), ("@CALLS@", ends.calls)):
        body = body.replace(place, "".join(f"  {call}\n" for call in calls))
    (folder / "edgekit_model.c").write_text(body, "utf-8")


def _rows(tensor: Any) -> int:
    rows = 1
    for size in tensor.shape[:-1]:
        rows *= int(size)
    return rows


def _transposed(model: Any, operator: Any, name: str) -> str:
    """A buffer and a function that writes int8 values in another order of axes: loops over the result's axes, and strides of what is read."""
    tensors = model.subgraphs[0].tensors
    source, axes = tensors[int(operator.inputs[0])], flatbuffer.data(model, tensors[int(operator.inputs[1])])
    sizes = [int(n) for n in source.shape]
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    order = [int(axis) for axis in axes.reshape(-1) if sizes[int(axis)] != 1]
    loops = "".join(f"  for (int32_t i{k} = 0; i{k} < {sizes[axis]}; i{k}++)\n" for k, axis in enumerate(order))
    place = " + ".join(f"i{k} * {strides[axis]}" for k, axis in enumerate(order)) or "0"
    return _TRANSPOSED.replace("@N@", name).replace("@SIZE@", str(math.prod(sizes))).replace("@LOOPS@", loops).replace("@PLACE@", place)


def _table(model: Any, operator: Any, name: str) -> str:
    """All 256 answers, asked of LiteRT's reference kernel itself, by the bits of an int8."""
    import numpy as np

    alone = copy.deepcopy(model)
    graph = alone.subgraphs[0]
    graph.operators, graph.inputs, graph.outputs = [copy.deepcopy(operator)], [int(operator.inputs[0])], [int(operator.outputs[0])]
    for index in (*graph.inputs, *graph.outputs):
        graph.tensors[index].shape, graph.tensors[index].shapeSignature = [1, 256], None
    alone.signatureDefs = None
    with tempfile.TemporaryDirectory(prefix="edgekit-table-") as scratch:
        opened = tflite.open(str(flatbuffer.write(Path(scratch, "one.tflite"), flatbuffer.dump(alone))), {})
        session, (spec,) = tflite.session(opened, reference_kernels=True), opened.signature.inputs
        values = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)
        (answers,) = session.run({spec.name: values.view(spec.dtype)}).values()
    rows = ", ".join(str(int(x)) for x in answers.view(np.int8).reshape(-1))
    return _TABLE.replace("@N@", name).replace("@ROWS@", rows)


_TABLE = """
static void @N@(int8_t *x, int32_t count) {
  static const int8_t answers[256] = {@ROWS@};
  for (int32_t i = 0; i < count; i++) x[i] = answers[x[i] + 128];
}
"""

_TRANSPOSED = """
static int8_t @N@[@SIZE@];

static void transposed_@N@(const int8_t *x, int8_t *y) {
@LOOPS@    *y++ = x[@PLACE@];
}
"""

_BODY = """#include "edgekit_model.h"

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bknn_net.h"

static alignas(16) uint8_t arena[EDGEKIT_ARENA_BYTES > 0 ? EDGEKIT_ARENA_BYTES : 1];
@FUNCTIONS@
int edgekit_model_init(void) { return 0; }

int edgekit_model_run(const void *const inputs[], void *const outputs[]) {
@BEFORE@  bknn_net_infer(arena, @GIVEN@, outputs[0]);
@CALLS@  return 0;
}
"""
