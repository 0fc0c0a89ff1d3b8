"""The end of a graph as C of our own (softmax, functions of one value as tables), and the interface of `apps/mcu` around everything."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.backends.micro_c import softmax
from edgekit.embed import c_text
from edgekit.errors import ConversionError
from edgekit.formats import tflite
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.tensors import Signature

SOFTMAX = "SOFTMAX"


@dataclasses.dataclass(frozen=True)
class Tail:
    """C functions and the calls on the output buffer, in order."""

    functions: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


def write(model: Any, operators: Sequence[Any], source: Path) -> Tail:
    """The C of the operators cut off the end of `source`. Raises `ConversionError` for one whose tensors are not int8."""
    functions, calls = [], []
    for number, operator in enumerate(operators):
        kind = flatbuffer.op_name(model, operator)
        given, made = (model.subgraphs[0].tensors[int(i)] for i in (operator.inputs[0], operator.outputs[0]))
        types = flatbuffer.schema().TensorType
        if given.type != types.INT8 or made.type != types.INT8:
            raise ConversionError(f"{source.name}: {kind} ({flatbuffer.text(made.name)}) at the end is not int8 throughout", "use int8 edges")
        if kind == SOFTMAX:
            functions.append(softmax.code(float(operator.builtinOptions.beta), float(given.quantization.scale[0]), number))
            calls.append(f"softmax_{number}(outputs[0], {_rows(made)}, {int(made.shape[-1])});")
        else:
            functions.append(_table(model, operator, number))
            calls.append(f"table_{number}(outputs[0], EDGEKIT_OUTPUT_0_ELEMENTS);")
    return Tail(tuple(functions), tuple(calls))


def wrap(folder: Path, signature: Signature, arena_bytes: int, tail: Tail, *, cmsis_nn: bool) -> None:
    """Write `edgekit_model.h`, `.c` and `.json` around bakenn's files in `folder`."""
    defines = ("BAKENN_CMSIS_NN_BUILTIN_MEMORY",) if cmsis_nn else ()
    (folder / "edgekit_model.h").write_text(c_text.header(signature, arena_bytes), "utf-8")
    (folder / "edgekit_model.json").write_bytes(c_text.description(signature, arena_bytes, defines))
    body = _BODY.replace("@FUNCTIONS@", "\n".join(tail.functions)).replace("@CALLS@", "".join(f"  {call}\n" for call in tail.calls))
    (folder / "edgekit_model.c").write_text(body, "utf-8")


def _rows(tensor: Any) -> int:
    rows = 1
    for size in tensor.shape[:-1]:
        rows *= int(size)
    return rows


def _table(model: Any, operator: Any, number: int) -> str:
    """All 256 answers, asked of LiteRT's reference kernel itself."""
    import numpy as np

    alone = copy.deepcopy(model)
    graph = alone.subgraphs[0]
    graph.operators, graph.inputs, graph.outputs = [copy.deepcopy(operator)], [int(operator.inputs[0])], [int(operator.outputs[0])]
    for index in (*graph.inputs, *graph.outputs):
        graph.tensors[index].shape, graph.tensors[index].shapeSignature = [1, 256], None
    alone.signatureDefs = None
    with tempfile.TemporaryDirectory(prefix="edgekit-table-") as scratch:
        opened = tflite.open(str(flatbuffer.write(Path(scratch, "one.tflite"), flatbuffer.dump(alone))), {})
        session = tflite.session(opened, reference_kernels=True)
        values = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)
        (answers,) = session.run({opened.signature.inputs[0].name: values}).values()
    rows = ", ".join(str(int(x)) for x in answers.reshape(-1))
    return _TABLE.replace("@N@", str(number)).replace("@ROWS@", rows)


_TABLE = """
static void table_@N@(int8_t *x, int32_t count) {
  static const int8_t answers[256] = {@ROWS@};
  for (int32_t i = 0; i < count; i++) x[i] = answers[x[i] + 128];
}
"""

_BODY = """#include "edgekit_model.h"

#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "bknn_net.h"

static alignas(16) uint8_t arena[EDGEKIT_ARENA_BYTES > 0 ? EDGEKIT_ARENA_BYTES : 1];
@FUNCTIONS@
int edgekit_model_init(void) { return 0; }

int edgekit_model_run(const void *const inputs[], void *const outputs[]) {
  bknn_net_infer(arena, inputs[0], outputs[0]);
@CALLS@  return 0;
}
"""
