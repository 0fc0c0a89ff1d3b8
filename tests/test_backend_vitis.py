"""The DPU backend on small networks: legal positions, placement with reasons, and the artifact run through a job."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit import formats, opset, target
from edgekit import job as contract
from edgekit.backends import Candidate, Context, vitis
from edgekit.backends.vitis import forms, report
from edgekit.errors import ConversionError, UsageError
from edgekit.transports import virtual
from edgekit.virtual.dpu import reader
from tests.dpu_models import NETWORK_SHAPE as SHAPE
from tests.dpu_models import Builder, by_onnxruntime, network

pytestmark = pytest.mark.slow

def samples(count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.RandomState(seed)
    return [{"x": (rng.randn(*SHAPE) + rng.randn(1, 3, 1, 1)).astype(np.float32)} for _ in range(count)]


def built(tmp_path: Path, name: str = "fpga-dpuczdx8g", keep: tuple[str, ...] = ()) -> Any:
    model = formats.open(str(network(tmp_path / "net.onnx")))
    work = tmp_path / f"work-{name}"
    work.mkdir()
    return model, vitis.prepare(model, Context(target.load(name), samples(8, 0), work))(Candidate("w8a8", keep_float=keep))


def test_an_artifact_is_legal_faithful_and_equal_to_its_own_file(tmp_path: Path) -> None:
    model, artifact = built(tmp_path)
    proto = onnx.load(artifact.path / vitis.MODEL_FILE)
    program = reader.read(proto)
    for tensor in proto.graph.initializer:
        if tensor.name.startswith("dpu/scale_"):
            assert math.frexp(float(numpy_helper.to_array(tensor)))[0] == 0.5
    shifts = {step.name: step.shift for step in program.steps if step.type.startswith(("Conv", "Gemm"))}
    assert len(shifts) == 4
    float_session, session = formats.session(model), vitis.emulate(artifact)
    noise = signal = 0.0
    for sample in samples(8, 1):
        wanted, got = float_session.run(sample), session.run(sample)
        noise += float(((wanted["scores"] - got["scores"]) ** 2).sum())
        signal += float((wanted["scores"] ** 2).sum())
        even = reader.read(proto, "half_even").run({"x": sample["x"]})
        for spec, theirs in zip(proto.graph.output, by_onnxruntime(proto, {"x": sample["x"]}), strict=True):
            np.testing.assert_allclose(even[spec.name], theirs, atol=0 if spec.name == "scores" else 1e-6)
    assert 10 * math.log10(signal / noise) > 20


def test_placement_is_named_with_reasons(tmp_path: Path) -> None:
    _, artifact = built(tmp_path)
    graph = vitis.graph(artifact)
    verdicts = opset.check(graph, target.load("fpga-dpuczdx8g"))
    left = {v.type: v.reason for v in verdicts if v.status != "accelerated"}
    assert set(left) == {"Softmax"}
    assert "the DPU does not have Softmax" in left["Softmax"]
    assert opset.summary(graph, verdicts)[0].macs_share == 1.0
    vitis.trim(graph, tmp_path)
    assert "Softmax y: the DPU does not have Softmax" in (tmp_path / "partition.txt").read_text()
    info = msgspec.json.decode((artifact.path / "quantization.json").read_bytes())
    assert info["arch"] == "DPUCZDX8G_ISA1_B4096"
    assert "VitisAIExecutionProvider" in (artifact.path / "README.txt").read_text()


def test_an_operator_kept_in_float_runs_on_the_cpu(tmp_path: Path) -> None:
    model, artifact = built(tmp_path, keep=("c3",))
    assert any("kept in float by request" in notice for notice in artifact.notices)
    sample = samples(1, 3)[0]
    wanted, got = formats.session(model).run(sample)["scores"], vitis.emulate(artifact).run(sample)["scores"]
    assert np.abs(wanted - got).max() < 0.2 * np.abs(wanted).max()


def test_the_same_build_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (built(tmp_path / folder)[1].path / vitis.MODEL_FILE for folder in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_job_on_the_virtual_dpu(tmp_path: Path) -> None:
    _, artifact = built(tmp_path)
    job, result = tmp_path / "job", tmp_path / "result"
    for folder in (job, result):
        folder.mkdir()
    (job / "net").mkdir()
    for file in artifact.path.iterdir():
        (job / "net" / file.name).write_bytes(file.read_bytes())
    sample = samples(1, 2)[0]
    (job / "x.raw").write_bytes(sample["x"].tobytes())
    tensor = contract.TensorFile("x", "float32", SHAPE, "x.raw")
    contract.write(job, contract.Job("dpu", "net", ((tensor,),), artifact.signature.outputs, accelerator="dpu", min_runs=2))
    link = virtual.connect("dpu", {})
    assert link.facts().emulated
    link.execute(job, result, 120)
    found = contract.read_result(result)
    assert found.status == "ok", found.error
    assert found.delegation is not None
    assert found.delegation.fallback == ("Softmax",)
    given = np.frombuffer((result / found.outputs[0][1].file).read_bytes(), np.float32)
    np.testing.assert_array_equal(given, vitis.emulate(artifact).run(sample)["scores"].ravel())


@pytest.mark.parametrize(("size", "factor"), [((3, 3), 0.984375), ((7, 7), 1.0048828125), ((4, 4), 1.0), ((9, 9), 81 * 101 / 2**13)])
def test_pool_factors_make_fractions(size: tuple[int, int], factor: float) -> None:
    assert forms.pool_factor(*size) == pytest.approx(factor, rel=1e-3)


def test_an_imported_model_with_another_scale_is_refused(tmp_path: Path) -> None:
    build = Builder()
    build.input("x", (1, 4), 4)
    onnx.save(build.model(build.quantized(build.node("Relu", ["x_dq"], "y"), 0, scale=0.1)), tmp_path / "m.onnx")
    model = formats.open(str(tmp_path / "m.onnx"))
    assert vitis.own_precision(model) == "w8a8"
    with pytest.raises(ConversionError, match="not a power of two"):
        vitis.prepare(model, Context(target.load("fpga-generic-pow2"), [], tmp_path))


def test_an_unknown_configuration(tmp_path: Path) -> None:
    profile = msgspec.structs.replace(target.load("fpga-dpuczdx8g"), options={"arch": "DPUCZDX8G_ISA1_B4095"})
    with pytest.raises(UsageError, match=r"no DPU configuration .DPUCZDX8G_ISA1_B4095"):
        vitis.prepare(formats.open(str(network(tmp_path / "n.onnx"))), Context(profile, [], tmp_path))


def test_ranges_by_a_method_are_refused(tmp_path: Path) -> None:
    asked = Context(target.load("fpga-dpuczdx8g"), [], tmp_path, ranges="entropy")
    with pytest.raises(ConversionError, match="no ranges by entropy"):
        vitis.prepare(formats.open(str(network(tmp_path / "n.onnx"))), asked)


def small(kind: str) -> Any:
    """A convolution and what a DPU may or may not take behind it."""
    rng = np.random.RandomState(0)
    stored = [numpy_helper.from_array((rng.randn(3, 3, 1, 1)).astype(np.float32), name) for name in ("w", "v")]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"])]
    if kind == "leaky":
        nodes += [helper.make_node("LeakyRelu", ["c"], ["a"], alpha=0.1)]
    elif kind == "add-hard-swish":
        nodes += [helper.make_node("Add", ["c", "x"], ["s"]), helper.make_node("HardSwish", ["s"], ["a"])]
    else:
        nodes += [helper.make_node("Add", ["c", "x"], ["s"]), helper.make_node("HardSigmoid", ["s"], ["a"], alpha=0.2)]
    nodes.append(helper.make_node("Conv", ["a", "v"], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], stored), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("kind", "parts", "left", "notice"),
    [
        ("leaky", 1, {}, "LeakyReLU's slope 0.1 became 26/256"),
        ("add-hard-swish", 1, {}, ""),
        ("hard-sigmoid", 2, {"HardSigmoid": "train with slope 1/6"}, "HardSigmoid with slope 0.2"),
    ],
)
def test_activations_of_other_forms(kind: str, parts: int, left: dict[str, str], notice: str, tmp_path: Path) -> None:
    onnx.save(small(kind), tmp_path / "m.onnx")
    model = formats.open(str(tmp_path / "m.onnx"))
    artifact = vitis.prepare(model, Context(target.load("fpga-dpuczdx8g"), samples(4, 0), tmp_path))(Candidate("w8a8"))
    graph = vitis.graph(artifact)
    assert report.parts(graph) == parts
    on_cpu = {operator.type: operator.attributes["suggestion"] for operator in graph.operators if operator.attributes.get("cpu")}
    assert set(on_cpu) == set(left)
    assert all(left[kind] in suggestion for kind, suggestion in on_cpu.items())
    assert notice in " ".join(artifact.notices)
    sample = samples(1, 5)[0]
    wanted, got = formats.session(model).run(sample)["y"], vitis.emulate(artifact).run(sample)["y"]
    assert np.abs(wanted - got).max() < 0.1 * np.abs(wanted).max()
