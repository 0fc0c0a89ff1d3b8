"""Firmware sources around TensorFlow Lite Micro: the model as an aligned constant, a resolver of exactly its operators, build files."""

from __future__ import annotations

import re
from pathlib import Path

from edgekit.embed import build_files, c_text
from edgekit.errors import ConversionError
from edgekit.graph import Graph
from edgekit.tensors import Signature

IRREGULAR = {
    "BATCH_MATMUL": "BatchMatMul",
    "CUMSUM": "CumSum",
    "PADV2": "PadV2",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
    "CIRCULAR_BUFFER": "CircularBuffer",
    "TFLite_Detection_PostProcess": "DetectionPostprocess",
    "ethos-u": "EthosU",
    "TFLM_DECODE": "Decode",
    "SignalPCAN": "PCAN",
}
"""Methods of `MicroMutableOpResolver` that are not the operator's name in camel case (tflite-micro, `micro_mutable_op_resolver.h`)."""


def registrations(graph: Graph) -> dict[str, str]:
    """Operator -> the resolver's call that registers it, for every subgraph. Raises `ConversionError` for a custom operator TFLM lacks."""
    return {operator.type: f"Add{_method(operator.type, custom=operator.custom)}()" for operator in sorted(graph.operators, key=lambda o: o.type)}


def write(model: bytes, graph: Graph, signature: Signature, arena_bytes: int, folder: Path) -> None:
    """Write a library for CMake, Zephyr, Arduino and ESP-IDF into `folder`; the file's bytes are aligned to 16 and stay in flash."""
    source = folder / "src"
    source.mkdir(exist_ok=True)
    calls = registrations(graph)
    (source / "edgekit_model.h").write_text(c_text.header(signature, arena_bytes), "utf-8")
    (source / "edgekit_model.json").write_bytes(c_text.description(signature, arena_bytes))
    (source / "edgekit_model_data.h").write_text(_DATA_HEADER.replace("@SIZE@", str(len(model))), "utf-8")
    (source / "edgekit_model_data.c").write_text(_DATA.replace("@BYTES@", c_text.byte_rows(model)), "utf-8")
    stateful = "1" if "VAR_HANDLE" in calls else "0"
    body = _BODY.replace("@COUNT@", str(len(calls))).replace("@VARIABLES@", str(variables(graph))).replace("@STATEFUL@", stateful)
    add = "\n".join(f"  if (resolver.{call} != kTfLiteOk) return EDGEKIT_ERROR_RESOLVER;" for call in calls.values())
    (source / "edgekit_model.cpp").write_text(body.replace("@ADD@", add), "utf-8")
    build_files.write(folder, "edgekit_model", ("edgekit_model.cpp", "edgekit_model_data.c"), tflm=True)


def _method(kind: str, *, custom: bool) -> str:
    if kind in IRREGULAR:
        return IRREGULAR[kind]
    if custom:
        if not re.fullmatch(r"Signal[A-Za-z]+", kind):
            raise ConversionError(f"{kind} is a custom operator that TFLM cannot register", "replace this layer by built-in operators")
        return kind.removeprefix("Signal")
    return "".join(part if part[0].isdigit() else part.capitalize() for part in kind.split("_"))


def variables(graph: Graph) -> int:
    """How many resource variables a model makes, at most."""
    names = {operator.attributes.get("shared_name", operator.name) for operator in graph.operators if operator.type == "VAR_HANDLE"}
    return max(len(names), sum(o.type == "VAR_HANDLE" for o in graph.operators if not o.attributes.get("subgraph")))


_DATA_HEADER = """#ifndef EDGEKIT_MODEL_DATA_H
#define EDGEKIT_MODEL_DATA_H

#define EDGEKIT_MODEL_DATA_BYTES @SIZE@u

#ifdef __cplusplus
extern "C" {
#endif
extern const unsigned char edgekit_model_data[EDGEKIT_MODEL_DATA_BYTES];
#ifdef __cplusplus
}
#endif
#endif
"""

_DATA = """#include "edgekit_model_data.h"

#include <stdalign.h>

alignas(16) const unsigned char edgekit_model_data[EDGEKIT_MODEL_DATA_BYTES] = {
@BYTES@
};
"""

_BODY = """#include <cstdint>
#include <cstring>
#include <new>

#include "edgekit_model_data.h"
#include "tensorflow/lite/micro/micro_allocator.h"
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/micro/micro_resource_variable.h"
#include "tensorflow/lite/schema/schema_generated.h"

extern "C" {
#include "edgekit_model.h"
}

namespace {

alignas(16) uint8_t arena[EDGEKIT_ARENA_BYTES];
alignas(16) uint8_t place[sizeof(tflite::MicroInterpreter)];
using Resolver = tflite::MicroMutableOpResolver<@COUNT@>;
alignas(Resolver) uint8_t resolver_place[sizeof(Resolver)];
Resolver *registered = nullptr;
tflite::MicroInterpreter *interpreter = nullptr;

int add_operators() {
  if (registered != nullptr) return 0;
  Resolver &resolver = *new (resolver_place) Resolver();
@ADD@
  registered = &resolver;
  return 0;
}

}  // namespace

extern "C" int edgekit_model_init(void) {
  if (reinterpret_cast<uintptr_t>(edgekit_model_data) % 16 != 0) return EDGEKIT_ERROR_ALIGNMENT;
  const tflite::Model *model = tflite::GetModel(edgekit_model_data);
  if (model->version() != TFLITE_SCHEMA_VERSION) return EDGEKIT_ERROR_VERSION;
  const int failed = add_operators();
  if (failed != 0) return failed;
  if (interpreter != nullptr) interpreter->~MicroInterpreter();
  interpreter = nullptr;
  tflite::MicroAllocator *allocator = tflite::MicroAllocator::Create(arena, sizeof(arena));
  if (allocator == nullptr) return EDGEKIT_ERROR_ARENA;
  tflite::MicroResourceVariables *variables = nullptr;
  if (@STATEFUL@) variables = tflite::MicroResourceVariables::Create(allocator, @VARIABLES@);
  tflite::MicroInterpreter *made = new (place) tflite::MicroInterpreter(model, *registered, allocator, variables);
  if (made->AllocateTensors() != kTfLiteOk) {
    made->~MicroInterpreter();
    return EDGEKIT_ERROR_ARENA;
  }
  interpreter = made;
  return 0;
}

extern "C" uint32_t edgekit_model_arena_used(void);
extern "C" uint32_t edgekit_model_arena_used(void) { return interpreter == nullptr ? 0 : static_cast<uint32_t>(interpreter->arena_used_bytes()); }

extern "C" int edgekit_model_run(const void *const inputs[], void *const outputs[]) {
  if (interpreter == nullptr) return EDGEKIT_ERROR_NOT_READY;
  for (int i = 0; i < EDGEKIT_INPUTS; i++) std::memcpy(interpreter->input(i)->data.raw, inputs[i], interpreter->input(i)->bytes);
  if (interpreter->Invoke() != kTfLiteOk) return EDGEKIT_ERROR_INVOKE;
  for (int i = 0; i < EDGEKIT_OUTPUTS; i++) std::memcpy(outputs[i], interpreter->output(i)->data.raw, interpreter->output(i)->bytes);
  return 0;
}
"""
