"""Networks of many forms through the backend: the CPU part is named, the integer reference equals the file, and both are close to the float model
(12 dB: random weights do not forgive as trained ones do; a wrong operator leaves a few).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import torch

from edgekit import formats, target
from edgekit.backends import Artifact, Candidate, Context, vitis
from edgekit.backends.vitis import heads
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.target import Tolerance
from edgekit.virtual.dpu import reader
from tests import vitis_nets
from tests.dpu_models import by_onnxruntime

pytestmark = pytest.mark.slow

ON_CPU = {
    "squeeze-sigmoid": {"Sigmoid"},
    "bilinear-corners": {"Resize"},
    "prelu": {"PRelu"},
    "silu": {"Sigmoid"},
    "padded-means": {"AveragePool"},
    "group-norm": {"InstanceNormalization"},
    "softmax": {"Softmax"},
    "shuffled": {"DepthToSpace"},
    "grouped": {"Conv"},
    "boxes-and-scores": {"Sigmoid", "Reshape", "Mul", "Concat"},
    "raw-boxes-and-scores": {"Concat"},
}
"""What stays on the CPU of the Zynq's DPU; nothing of the others."""

TARGETS = {"dilated": "fpga-dpucvdx8g", "bilinear": "fpga-generic-pow2", "grouped": "fpga-dpucvdx8g", "silu": "fpga-generic-pow2"}


def samples(shape: tuple[int, ...], count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.RandomState(seed)
    return [{"x": (rng.randn(*shape) + rng.randn(1, shape[1], 1, 1)).astype(np.float32)} for _ in range(count)]


def packaged(name: str, folder: Path) -> tuple[Model, Artifact]:
    module, example = vitis_nets.make(name)
    torch.onnx.export(module, example, str(folder / "net.onnx"), dynamo=False, opset_version=17, input_names=["x"])
    model = formats.open(str(folder / "net.onnx"))
    profile = target.load(TARGETS.get(name, "fpga-dpuczdx8g"))
    return model, vitis.prepare(model, Context(profile, samples(vitis_nets.IMAGE, 12, 0), folder))(Candidate("w8a8"))


@pytest.mark.parametrize("name", vitis_nets.NETS)
@pytest.mark.filterwarnings("ignore")  # torch's exporter announces its successor
def test_network(name: str, tmp_path: Path) -> None:
    model, artifact = packaged(name, tmp_path)
    left = [operator for operator in vitis.graph(artifact).operators if operator.attributes.get("cpu")]
    assert {operator.type for operator in left} == ON_CPU.get(name, set())
    assert all(operator.attributes["suggestion"] for operator in left)
    proto, floats, session = onnx.load(artifact.path / vitis.MODEL_FILE), formats.session(model), vitis.emulate(artifact)
    program = reader.read(proto, "half_even")
    noise, power = (dict.fromkeys((spec.name for spec in model.signature.outputs), 0.0) for _ in "ab")
    for sample in samples(vitis_nets.IMAGE, 4, 1):
        ours = program.run(sample)
        for spec, theirs in zip(proto.graph.output, by_onnxruntime(proto, sample), strict=True):
            np.testing.assert_allclose(ours[spec.name], theirs, atol=1e-6)
        wanted, got = floats.run(sample), session.run(sample)
        for output in noise:
            noise[output] += float(((wanted[output] - got[output]) ** 2).sum())
            power[output] += float((wanted[output] ** 2).sum())
    decibels = {output: 10 * math.log10(power[output] / noise[output]) for output in noise}
    assert min(decibels.values()) > 12, decibels


def test_scores_beside_boxes_are_as_fine_as_without_them(tmp_path: Path) -> None:
    model, artifact = packaged("boxes-and-scores", tmp_path)
    output = model.signature.outputs[0].name
    for sample in samples(vitis_nets.IMAGE, 4, 1):
        wanted, got = formats.session(model).run(sample)[output], vitis.emulate(artifact).run(sample)[output]
        assert np.abs(wanted[:, 4:] - got[:, 4:]).max() < 0.02
        assert np.abs(wanted[:, :4] - got[:, :4]).max() < 6.0
        assert len(np.unique(got[:, 4:])) > 32


def imported(folder: Path, **options: Any) -> Path:
    """A network that ONNX Runtime's own tools quantized, with scales rounded up to powers of two."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Feeds(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
        def __init__(self) -> None:
            self._given = iter(samples(vitis_nets.IMAGE, 4, 0))

        def get_next(self) -> Any:
            return next(self._given, None)

    module, example = vitis_nets.make("dilated")
    torch.onnx.export(module, example, str(folder / "float.onnx"), dynamo=False, opset_version=17, input_names=["x"])
    more = {"ActivationSymmetric": True, "WeightSymmetric": True}
    kinds = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8} | options
    quantize_static(str(folder / "float.onnx"), str(folder / "int8.onnx"), Feeds(), extra_options=more, **kinds)
    return folder / "int8.onnx"


def in_powers_of_two(path: Path) -> Any:
    """The file with every scale the next power of two (a bias's then does not match its layer's: another network, but a legal one)."""
    proto = onnx.load(path)
    scales = {node.input[1] for node in proto.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    for tensor in proto.graph.initializer:
        if tensor.name in scales:
            raised = np.exp2(np.ceil(np.log2(onnx.numpy_helper.to_array(tensor)))).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(raised, tensor.name))
    return proto


def kept(path: Path, folder: Path) -> Artifact:
    model = formats.open(str(path))
    return vitis.prepare(model, Context(target.load("fpga-dpuczdx8g"), [], folder))(Candidate("w8a8"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
def test_a_quantized_model_of_powers_of_two_is_kept(activations: str, tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType

    proto = in_powers_of_two(imported(tmp_path, activation_type=QuantType[activations]))
    last, rest = proto.graph.node[-1], list(proto.graph.node[:-1])
    del proto.graph.node[:]
    proto.graph.node.extend([last, *rest])  # as quantizers write it that append what they add
    onnx.save(proto, tmp_path / "m.onnx")
    artifact = kept(tmp_path / "m.onnx", tmp_path)
    assert "already power-of-two int8" in artifact.notices[0]
    program = reader.read(artifact.path / vitis.MODEL_FILE, "half_even")
    stored = onnx.load(artifact.path / vitis.MODEL_FILE)
    for sample in samples(vitis_nets.IMAGE, 2, 3):
        np.testing.assert_array_equal(next(iter(program.run(sample).values())), by_onnxruntime(stored, sample)[0])


@pytest.mark.filterwarnings("ignore")
def test_quantized_models_that_are_refused_say_why(tmp_path: Path) -> None:
    path = imported(tmp_path)
    with pytest.raises(ConversionError, match="is not a power of two"):
        kept(path, tmp_path)
    proto = in_powers_of_two(path)
    proto.graph.node.append(onnx.helper.make_node("Erf", [proto.graph.output[0].name], ["more"]))
    proto.graph.output[0].name = "more"
    onnx.save(proto, tmp_path / "erf.onnx")
    with pytest.raises(ConversionError, match="Erf"):
        kept(tmp_path / "erf.onnx", tmp_path)
    proto = in_powers_of_two(path)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(proto, tmp_path / "dynamic.onnx")
    with pytest.raises(ConversionError, match="dynamic"):
        kept(tmp_path / "dynamic.onnx", tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_the_head_runs_in_float_where_int8_misses_the_tolerance(tmp_path: Path) -> None:
    module, example = vitis_nets.make("three-scales")
    torch.onnx.export(module, example, str(tmp_path / "net.onnx"), dynamo=False, opset_version=17, input_names=["x"])
    model, given, found = formats.open(str(tmp_path / "net.onnx")), target.load("fpga-dpuczdx8g"), {}
    for share in (0.0, 0.9):
        tolerance = msgspec.structs.replace(given.tolerance, quantization={"w8a8": Tolerance(min_sqnr_db=60.0)})
        profile = msgspec.structs.replace(given, tolerance=tolerance, options=given.options | {"float_macs": share})
        (tmp_path / str(share)).mkdir()
        artifact = vitis.prepare(model, Context(profile, samples(vitis_nets.IMAGE, 12, 0), tmp_path / str(share)))(Candidate("w8a8"))
        session, floats = vitis.emulate(artifact), formats.session(model)
        pairs = [(next(iter(floats.run(one).values())), next(iter(session.run(one).values()))) for one in samples(vitis_nets.IMAGE, 4, 1)]
        found[share] = sum(float(((wanted - got) ** 2).sum()) for wanted, got in pairs)
        left = [operator for operator in vitis.graph(artifact).operators if operator.attributes.get("cpu") == heads.REASON]
        assert bool(left) == bool(share)
    assert found[0.9] < found[0.0]
