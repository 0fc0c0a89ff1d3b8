"""A float network to a bundle for a DPU and its proof on the virtual one, by the command line; and what is refused, with its exit code."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.dpu_models import NETWORK_SHAPE, Builder, network
from tests.e2e.cli import edgekit, refused

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.RandomState(0)
    np.savez(tmp_path / "data.npz", x=rng.randn(16, *NETWORK_SHAPE).astype(np.float32) + rng.randn(16, 1, 3, 1, 1).astype(np.float32))
    return network(tmp_path / "net.onnx")


def package(model: Path, target: str, *arguments: object) -> Any:
    data = model.with_name("data.npz")
    given = ["--calibration", data] if data.is_file() else []
    return edgekit("package", model, "--target", target, "--out", model.parent / "out", *given, *arguments, cwd=model.parent)


@pytest.mark.parametrize("target", ["fpga-dpuczdx8g", "fpga-dpucvdx8g", "fpga-generic-pow2"])
def test_packaged_and_proved(target: str, model: Path) -> None:
    made = package(model, target)
    assert made.returncode == 0, made.stderr
    assert "LeakyReLU's slope 0.1 became 26/256" in made.stderr
    (bundle,) = (model.parent / "out").glob("*.edgekit")
    done = edgekit("test", bundle, "--device", "virtual:dpu", "--runs", 3, "--json", cwd=model.parent)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    (report,) = json.loads(done.stdout)["reports"]
    assert report["verdict"] == "passed"
    assert report["device"]["emulated"] is True
    drift = edgekit("drift", bundle, "--device", "virtual:dpu", "--json", cwd=model.parent)
    assert drift.returncode == 0, drift.stdout[-2000:] + drift.stderr
    document = json.loads(drift.stdout)
    assert document["first"] is None
    assert [step["type"] for step in document["steps"]][-2:] == ["Gemm", "Softmax"]
    assert len(document["steps"]) == 13
    files = zipfile.ZipFile(bundle)
    text = {Path(name).name: files.read(name).decode() for name in files.namelist() if name.endswith((".txt", "quantization.json"))}
    macs = _macs(files)
    assert f"12 operator(s) in 1 part(s), {macs} MACs (100.00 %)" in text["partition.txt"]
    assert "Softmax y: the DPU does not have Softmax\n    change: leave it to the CPU" in text["partition.txt"]
    arch = json.loads(text["quantization.json"])["arch"]
    if target == "fpga-generic-pow2":
        assert "your accelerator's compiler" in text["README.txt"]
    else:
        assert arch.startswith(target.removeprefix("fpga-").upper())
        assert arch in text["README.txt"]
        _runs_as_far_as_the_provider(text["README.txt"], files, model.parent)


def _macs(files: zipfile.ZipFile) -> int:
    """Multiply-accumulates counted from the artifact itself: outputs times the weights of one output."""
    proto = onnx.shape_inference.infer_shapes(onnx.load_from_string(next(files.read(n) for n in files.namelist() if n.endswith("model.onnx"))))
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*proto.graph.value_info, *proto.graph.output)}
    stored = {t.name: t.dims for t in proto.graph.initializer}
    weights = {n.output[0]: stored[n.input[0]] for n in proto.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in stored}
    linear = [n for n in proto.graph.node if n.op_type in ("Conv", "Gemm")]
    each = {"Conv": lambda shape: np.prod(shape[1:]), "Gemm": lambda shape: shape[0]}
    return int(sum(np.prod(sizes[n.output[0]]) * each[n.op_type](weights[n.input[1]]) for n in linear))


def _runs_as_far_as_the_provider(readme: str, files: zipfile.ZipFile, folder: Path) -> None:
    """The next command is one: here, without AMD's provider, ONNX Runtime says which providers it has and loads the model on the CPU."""
    import subprocess
    import sys

    command = next(line.strip() for line in readme.splitlines() if line.strip().startswith("python3 -c "))
    (folder / "model.onnx").write_bytes(next(files.read(n) for n in files.namelist() if n.endswith("model.onnx")))
    program = command.removeprefix('python3 -c "').removesuffix('"')
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "VitisAIExecutionProvider" in done.stdout + done.stderr


def _float_only(path: Path) -> None:
    np.savez(path.with_name("data.npz"), x=np.random.RandomState(0).randn(8, 1, 8).astype(np.float32))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("Exp", ["s"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _dynamic(path: Path) -> None:
    network(path)
    proto = onnx.load(path)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(proto, path)


def _quantized(path: Path, *, scale: float = 0.1, opset: int = 17) -> None:
    build = Builder()
    build.input("x", (1, 4), 4)
    onnx.save(build.model(build.quantized(build.node("Relu", ["x_dq"], "y"), 4, scale=scale), opset), path)


def _uint8(path: Path) -> None:
    _quantized(path, scale=0.25)
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        if tensor.name == "y_z":
            tensor.CopyFrom(numpy_helper.from_array(np.array(127, np.uint8), "y_z"))
    onnx.save(proto, path)


BAD: dict[str, tuple[Callable[[Path], Any], int, tuple[str, ...]]] = {
    "float-only": (_float_only, 4, ("the DPU takes none of its operators", "Softmax")),
    "dynamic": (_dynamic, 4, ("x", "--input")),
    "scale": (_quantized, 4, ("y_q", r"scale 0\.1", "not a power of two")),
    "uint8": (_uint8, 4, ("zero point 127", "uint8")),
    "opset": (lambda path: _quantized(path, scale=0.25, opset=10), 4, ("opset 10", "13 to 23")),
}


@pytest.mark.parametrize("name", BAD)
def test_named_and_refused(name: str, tmp_path: Path) -> None:
    write, code, words = BAD[name]
    write(tmp_path / "model.onnx")
    done = package(tmp_path / "model.onnx", "fpga-dpuczdx8g")
    refused(done, code, *words)
    assert not list((tmp_path / "out").glob("*"))
