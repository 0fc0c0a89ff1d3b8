"""Inputs of LiteRT's own selective build, from the operators of the final artifact.

The files follow LiteRT's build (`tflite/build_def.bzl`: `tflite_custom_c_library`, `tflite_custom_android_library`; `tflite/tools/build_aar.sh`;
`tflite/tools/gen_op_registration.cc` for the registration source).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from edgekit.budget import Usage
from edgekit.budget.catalogue import load, part
from edgekit.budget.parts import Saving
from edgekit.graph import Graph, Operator

PLATFORM = "android-arm64-v8a"
DELEGATE_ONLY = frozenset({"Convolution2DTransposeBias", "MaxPoolingWithArgmax2D", "MaxUnpooling2D"})
"""Custom operators that have no kernel to register: a delegate takes them, or the model does not load."""

FILES = {
    "selected_ops.json": "the operators to keep: versions, types, and the layers that need them",
    "selected_ops.cc": "RegisterSelectedOps for a hand-made build: registers exactly these kernels and versions",
    "BUILD.bazel": "targets for a LiteRT source tree; put the artifact beside it as model.tflite",
    "build_aar.sh": "builds a trimmed AAR in a LiteRT source tree: build_aar.sh MODEL.tflite",
}


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator that the build must keep, and why: `count` layers use it, `layers` names the first of them."""

    type: str
    min_version: int
    max_version: int
    types: tuple[str, ...]
    count: int
    layers: tuple[str, ...]
    custom: bool = False
    note: str = ""


def trim(graph: Graph, folder: Path) -> dict[str, str]:
    """Write the files of a selective build for `graph` into `folder`; file name -> what it is for."""
    found = kept(graph)
    document = {"operators": found, "estimate": estimate()}
    contents = {
        "selected_ops.json": msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n",
        "selected_ops.cc": _registration(found),
        "BUILD.bazel": _BUILD,
        "build_aar.sh": _SCRIPT,
    }
    for name, text in contents.items():
        (folder / name).write_text(text, "utf-8")
    return dict(FILES)


def kept(graph: Graph) -> tuple[Kept, ...]:
    """The operators that the artifact needs, sorted by name. One that a delegate takes is needed too: it is resolved before it is delegated."""
    by_type: dict[tuple[bool, str], list[Operator]] = {}
    for operator in graph.operators:
        by_type.setdefault((operator.custom, operator.type), []).append(operator)
    return tuple(_kept(graph, operators) for _, operators in sorted(by_type.items()))


def estimate() -> Saving | None:
    """The saving that reported builds suggest; None where none is known. The largest reported trimmed build is taken."""
    catalogue = load("litert")
    here = [r for r in catalogue.rows if r.platform == PLATFORM]
    full = Usage(tuple(part(catalogue, r) for r in here if r.ships and r.category == "runtime" and not r.accelerators))
    trimmed = [r for r in here if r.variant == "trimmed" and r.download_bytes]
    if not full.parts or not trimmed:
        return None
    largest = max(trimmed, key=lambda row: row.download_bytes or 0)
    before, after = full.total_bytes("download"), largest.download_bytes or 0
    note = "from builds of other models, of an older runtime; package with --runtime-aar to measure your own build"
    return Saving(PLATFORM, before, after, max(before - after, 0), "estimated", (*(p.source for p in full.parts), largest.library), note)


def _kept(graph: Graph, operators: list[Operator]) -> Kept:
    first, versions = operators[0], [o.version for o in operators]
    types = {graph.tensors[i].dtype for o in operators for i in (*o.inputs, *o.outputs) if i >= 0}
    note = "only the XNNPACK and GPU delegates run it: nothing to register" if first.custom and first.type in DELEGATE_ONLY else ""
    layers = tuple(o.name for o in operators[:3])
    return Kept(first.type, min(versions), max(versions), tuple(sorted(types)), len(operators), layers, first.custom, note)


def _registration(found: Iterable[Kept]) -> str:
    builtin = [k for k in found if not k.custom]
    custom = [k for k in found if k.custom and not k.note]
    lines = ['#include "tflite/mutable_op_resolver.h"', "", "namespace tflite::ops::builtin {"]
    lines += [f"TfLiteRegistration* Register_{k.type}();" for k in builtin]
    lines += ["}  // namespace tflite::ops::builtin"]
    if custom:
        lines += ["namespace tflite::ops::custom {"]
        lines += [f"TfLiteRegistration* Register_{_identifier(k.type)}();" for k in custom]
        lines += ["}  // namespace tflite::ops::custom"]
    lines += ["", "void RegisterSelectedOps(::tflite::MutableOpResolver* resolver) {"]
    for k in builtin:
        register = f"::tflite::ops::builtin::Register_{k.type}()"
        lines += [f"  resolver->AddBuiltin(::tflite::BuiltinOperator_{k.type}, {register}, {k.min_version}, {k.max_version});"]
    for k in custom:
        register = f"::tflite::ops::custom::Register_{_identifier(k.type)}()"
        lines += [f'  resolver->AddCustom("{_escaped(k.type)}", {register}, {k.min_version}, {k.max_version});']
    return "\n".join([*lines, "}", ""])


def _identifier(name: str) -> str:
    """A C++ identifier of a custom operator's name, which comes from the file and may hold anything."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name).upper()


def _escaped(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-./ ") else "_" for c in name)


_BUILD = """load("//tflite:build_def.bzl", "tflite_custom_android_library", "tflite_custom_c_library")

tflite_custom_c_library(
    name = "selected_c",
    models = [":model.tflite"],
)

tflite_custom_android_library(
    name = "selected_android",
    models = [":model.tflite"],
)
"""

_SCRIPT = """#!/bin/sh
# Run in the root of a LiteRT source tree: build_aar.sh MODEL.tflite
set -eu
exec bash tflite/tools/build_aar.sh --input_models="$(realpath "$1")" --target_archs=arm64-v8a
"""
