from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from edgekit.backends import litert
from edgekit.backends.litert import selective_build
from edgekit.formats import tflite
from tests.tflite_build import Net, schema
from tests.zoo import fetch


def test_the_list_holds_the_final_artifact_s_operators_with_versions_and_types(tmp_path: Path) -> None:
    path = fetch.path("wake-word-alexa")
    written = litert.trim(tflite.graph(path), tmp_path)
    assert sorted(written) == sorted(p.name for p in tmp_path.iterdir())
    listed = {row["type"]: row for row in json.loads((tmp_path / "selected_ops.json").read_text())["operators"]}
    model = schema.Model.GetRootAs(path.read_bytes(), 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    names = {value: name for name, value in vars(schema.BuiltinOperator).items()}
    assert {(names[c.BuiltinCode()], c.Version()) for c in codes} == {(k, r["max_version"]) for k, r in listed.items()}
    assert listed["CONV_2D"]["types"] == ["int32", "int8"] and listed["CONV_2D"]["layers"]
    assert "resource" in listed["READ_VARIABLE"]["types"]


def test_registration_names_exactly_the_kernels_and_versions(tmp_path: Path) -> None:
    selective_build.trim(tflite.graph(fetch.path("selfie-segmentation")), tmp_path)
    source = (tmp_path / "selected_ops.cc").read_text()
    assert "AddBuiltin(::tflite::BuiltinOperator_DEQUANTIZE, ::tflite::ops::builtin::Register_DEQUANTIZE(), 2, 2);" in source
    assert "AddCustom" not in source
    note = [r for r in json.loads((tmp_path / "selected_ops.json").read_text())["operators"] if r["type"] == "Convolution2DTransposeBias"]
    assert "nothing to register" in note[0]["note"]


def test_names_from_the_file_cannot_leave_their_place_in_the_source(tmp_path: Path) -> None:
    net = Net()
    x, y = net.tensor("x", (1, 4)), net.tensor("y", (1, 4))
    net.add('Evil"); system("x', [x], [y], custom=True)
    selective_build.trim(tflite.graph(net.write(tmp_path / "m.tflite", [x], [y])), tmp_path)
    assert 'AddCustom("Evil___ system__x", ::tflite::ops::custom::Register_EVIL____SYSTEM__X(), 1, 1);' in (tmp_path / "selected_ops.cc").read_text()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_registration_compiles_against_the_interface(tmp_path: Path) -> None:
    (tmp_path / "tflite").mkdir()
    (tmp_path / "tflite" / "mutable_op_resolver.h").write_text(
        "struct TfLiteRegistration;\nnamespace tflite {\nenum BuiltinOperator {"
        + ", ".join(f"BuiltinOperator_{k} = {v}" for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("_"))
        + "};\nstruct MutableOpResolver {\n  void AddBuiltin(BuiltinOperator, const TfLiteRegistration*, int, int);\n"
        "  void AddCustom(const char*, const TfLiteRegistration*, int, int);\n};\n}\n"
    )
    selective_build.trim(tflite.graph(fetch.path("face-landmark-with-attention")), tmp_path)
    subprocess.run(["g++", "-std=c++17", "-I", str(tmp_path), "-fsyntax-only", "-Wall", "-Werror", str(tmp_path / "selected_ops.cc")], check=True)


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path) -> None:
    graph = tflite.graph(fetch.path("basic-pitch-tflite"))
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        selective_build.trim(graph, folder)
    assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in selective_build.FILES)


def test_the_saving_is_an_estimate_and_says_so() -> None:
    saving = selective_build.estimate()
    assert saving is not None and saving.kind == "estimated" and saving.sources
    assert saving.saved_bytes == saving.full_bytes - saving.trimmed_bytes > 0
