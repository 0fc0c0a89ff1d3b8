"""Inputs of ONNX Runtime's own reduced build: the model in `.ort` form, and the operators (with types) that its optimized graph needs.

The optimizer and the lists are onnxruntime's own (`onnxruntime.tools`); the build options are those of its guide on reduced operator kernels.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from edgekit.budget import Usage
from edgekit.budget.catalogue import load, part
from edgekit.budget.parts import Saving
from edgekit.errors import ConversionError, first_line, require
from edgekit.graph import Graph

PLATFORM = "android-arm64-v8a"

FILES = {
    "model.ort": "the artifact as a minimal build loads it, optimized for Arm",
    "required_operators.config": "the operators to keep: --include_ops_by_config",
    "required_operators_and_types.config": "the same with types: add --enable_reduced_operator_type_support",
    "build_android.sh": "builds a minimal library in an ONNX Runtime source tree",
    "estimate.json": "what a reduced build may save, from reported ones",
}


def estimate_file(graph: Graph, folder: Path) -> dict[str, str]:
    """Write `estimate.json`: the operator types of the file as it is, and the estimated saving."""
    document = {"operators": sorted({o.type for o in graph.operators}), "estimate": estimate()}
    (folder / "estimate.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    return {"estimate.json": FILES["estimate.json"]}


def estimate() -> Saving | None:
    """The saving that the reported reduced build suggests; None where none is known."""
    catalogue = load("onnxruntime")
    here = [row for row in catalogue.rows if row.platform == PLATFORM]
    full = Usage(tuple(part(catalogue, row) for row in here if row.ships and row.category == "runtime"))
    reported = {row.variant: row for row in here if row.kind == "reported" and row.installed_bytes}
    if not full.parts or "trimmed" not in reported or "full" not in reported:
        return None
    ratio = (reported["trimmed"].installed_bytes or 0) / (reported["full"].installed_bytes or 1)
    before = full.total_bytes()
    after = round(before * ratio)
    note = "by the ratio of one reported pair of builds, of another model; measure your own build and compare it with the full one"
    return Saving(PLATFORM, before, after, before - after, "estimated", tuple(p.source for p in full.parts), note)


def sources(model: Path, folder: Path) -> dict[str, str]:
    """Write the `.ort` form of `model` and the operator lists of its optimized graph. Raises `ConversionError` when the runtime refuses it."""
    utils = require("onnxruntime.tools.ort_format_model.utils", extra="onnx", purpose="listing the operators of an ONNX Runtime model")
    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    ort_model = _ort_form(model, folder / "model.ort")
    for name, with_types in (("required_operators.config", False), ("required_operators_and_types.config", True)):
        with tempfile.TemporaryDirectory() as scratch:
            written = Path(scratch, "list")
            utils.create_config_from_models([ort_model], written, with_types)
            lines = written.read_text("utf-8").splitlines()
        kept = [line for line in lines if not line.startswith("#")]  # the comments tell where the model lay
        (folder / name).write_text("\n".join(kept) + "\n", "utf-8")
    script = folder / "build_android.sh"
    script.write_text(_SCRIPT, "utf-8")
    return {name: why for name, why in FILES.items() if name != "estimate.json"}


def _ort_form(model: Path, out: Path) -> Path:
    """The optimized graph in the runtime's own format. Layouts that only x86 has are left out; packed weights stay packed."""
    ort = require("onnxruntime", extra="onnx", purpose="writing an .ort file")
    with tempfile.TemporaryDirectory() as scratch:
        options = _options(ort, Path(scratch, "model.ort"))
        if _has_halves(model):
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # the level above unpacks them
        try:
            ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"], disabled_optimizers=["NchwcTransformer", "ConstantFolding"])
        except Exception as error:  # onnxruntime raises its own types
            raise ConversionError(f"ONNX Runtime cannot write the artifact as .ort: {first_line(error)}") from error
        shutil.copyfile(Path(scratch, "model.ort"), out)
    return out


def _has_halves(model: Path) -> bool:
    import onnx

    return any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in onnx.load(model).graph.initializer)


def _options(ort: Any, out: Path) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(out)
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.add_session_config_entry("session.qdqisint8allowed", "1")  # Arm's kernels take int8 activations too
    return options


_SCRIPT = """#!/bin/sh
# Run in the root of an ONNX Runtime source tree, with the operator list beside this script:
#   ANDROID_HOME=... ANDROID_NDK_HOME=... sh build_android.sh
# --minimal_build loads .ort files only; leave it out to keep loading .onnx files.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec ./build.sh --config MinSizeRel --android --android_abi arm64-v8a --android_api 24 \\
  --android_sdk_path "$ANDROID_HOME" --android_ndk_path "$ANDROID_NDK_HOME" --build_shared_lib --parallel --skip_tests \\
  --minimal_build --disable_ml_ops --include_ops_by_config "$here/required_operators_and_types.config" --enable_reduced_operator_type_support
"""
