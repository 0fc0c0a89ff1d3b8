"""Models that other tools are known to convert wrongly or to refuse with a compiler's dump, through the whole recipe."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import bundle, formats, opset, packager, tools
from edgekit import target as targets
from edgekit.errors import ConversionError
from edgekit.manifest import Manifest
from tests.e2e import models
from tests.tflite_build import Net

pytestmark = pytest.mark.slow

TARGET = "android-arm64"
FORBIDDEN = {"GATHER_ND", "STABLEHLO_REDUCE_WINDOW", "BROADCAST_TO"}


@dataclasses.dataclass(frozen=True)
class Made:
    """A bundle's manifest, and its artifact ready to run."""

    manifest: Manifest
    model: formats.Model

    def run(self, **inputs: Any) -> list[Any]:
        return list(formats.session(self.model).run(inputs).values())

    @property
    def operators(self) -> list[str]:
        return [operator.type for operator in formats.module(self.model.format).graph(self.model).operators]


def package(reference: Path, out: Path, **fields: Any) -> Made:
    outcome = packager.package(str(reference), TARGET, packager.Options(out=out, rebuild=True, **{"precision": "fp32", **fields}))
    assert outcome.bundle is not None, outcome.findings
    with bundle.open(outcome.bundle) as opened:
        (path,) = opened.extract(opened.manifest.artifact.main, out)
        return Made(opened.manifest, formats.open(str(path)))


def exported(net: Any, shape: tuple[int, ...], tmp_path: Path) -> tuple[Path, Any, Any]:
    """A seeded network as `.pt2`, an input and PyTorch's own output in evaluation mode."""
    import torch

    x = np.random.RandomState(0).randn(*shape).astype(np.float32)
    net = net.eval()
    torch.export.save(torch.export.export(net, (torch.from_numpy(x),)), tmp_path / "net.pt2")
    with torch.no_grad():
        return tmp_path / "net.pt2", x, net(torch.from_numpy(x)).numpy()


def close(made: Made, x: Any, y: Any) -> None:
    (got,) = made.run(**{made.manifest.signature.inputs[0].name: x})
    np.testing.assert_allclose(got, y, atol=1e-4)


def test_a_transposed_convolution_with_output_padding(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(8)
    layers = torch.nn.Conv2d(3, 6, 3, 2, 1), torch.nn.ReLU(), torch.nn.ConvTranspose2d(6, 3, 3, 2, 1, output_padding=1)
    path, x, y = exported(torch.nn.Sequential(*layers), (1, 3, 8, 8), tmp_path)
    close(package(path, tmp_path), x, y)


@pytest.mark.parametrize("kind", ["adaptive", "padding"])
def test_pools_become_what_delegates_have(kind: str, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(1)
    pool = torch.nn.AdaptiveAvgPool2d(3) if kind == "adaptive" else torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False)
    path, x, y = exported(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), pool), (1, 3, 8, 8), tmp_path)
    made = package(path, tmp_path)
    close(made, x, y)
    assert not FORBIDDEN & set(made.operators)
    nnapi = targets.load("android-arm64-nnapi")
    verdicts = opset.check(formats.module("tflite").graph(made.model), nnapi)
    assert not [verdict for verdict in verdicts if verdict.status == "unsupported"]


def test_recurrent_and_upsampling_layers(tmp_path: Path) -> None:
    import torch

    class Gru(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = torch.nn.GRU(4, 8, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.gru(x)[0]

    torch.manual_seed(2)
    for number, (net, shape) in enumerate(
        [
            (Gru(), (1, 10, 4)),
            (torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (1, 2, 5, 7)),
            (torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), (1, 2, 5, 7)),
            (torch.nn.PReLU(4, init=0.1), (1, 4, 4, 4)),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        if isinstance(net, torch.nn.PReLU):
            with torch.no_grad():
                net.weight.copy_(torch.tensor([0.1, 0.2, 0.4, 0.8]))
        path, x, y = exported(net, shape, folder)
        close(package(path, folder), x, y)


def test_a_lstm_gives_the_same_at_every_call(tmp_path: Path) -> None:
    import keras

    keras.utils.set_random_seed(4)
    net = keras.Sequential([keras.Input((6, 4), batch_size=1), keras.layers.LSTM(5)])
    net.save(tmp_path / "lstm.keras")
    made = package(tmp_path / "lstm.keras", tmp_path)
    x = np.random.RandomState(0).randn(1, 6, 4).astype(np.float32)
    session = formats.session(made.model)
    name = made.manifest.signature.inputs[0].name
    for _ in range(3):
        np.testing.assert_allclose(next(iter(session.run({name: x}).values())), net(x), atol=1e-4)


def training_onnx(path: Path) -> tuple[Any, Any]:
    """A network exported in training mode, an input, and the output of evaluation mode."""
    import torch

    torch.manual_seed(5)
    layers = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Conv2d(8, 4, 1)
    net = torch.nn.Sequential(*layers)
    with torch.no_grad():
        layers[1].running_var.copy_(torch.logspace(-1, 1, 8))
        layers[1].running_mean.normal_()
    x = torch.from_numpy(np.random.RandomState(0).randn(1, 3, 8, 8).astype(np.float32))
    y = net.eval()(x).detach().numpy()
    mode = torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(net.train(), (x,), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"], training=mode)
    return x.numpy(), y


def test_an_export_in_training_mode_is_refused_by_layer(tmp_path: Path) -> None:
    training_onnx(tmp_path / "train.onnx")
    with pytest.raises(ConversionError, match="training mode") as caught:
        package(tmp_path / "train.onnx", tmp_path)
    assert caught.value.hint
    assert not list(tmp_path.glob("*.edgekit"))


def test_a_dynamic_height_is_fixed_only_when_asked_and_right_at_two_sizes(tmp_path: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)

        def forward(self, x: Any) -> Any:
            return self.conv(x).flatten(2).mean(-1)

    torch.manual_seed(6)
    net, x = Net().eval(), torch.randn(1, 3, 12, 8)
    program = torch.export.export(net, (x,), dynamic_shapes=({2: torch.export.Dim("height", min=4, max=64)},))
    torch.export.save(program, tmp_path / "dynamic.pt2")
    with pytest.raises(Exception, match="x") as caught:
        package(tmp_path / "dynamic.pt2", tmp_path)
    assert "--input" in str(getattr(caught.value, "hint", "")) + str(caught.value)
    for height in (10, 23):
        folder = tmp_path / str(height)
        folder.mkdir()
        made = package(tmp_path / "dynamic.pt2", folder, inputs={"x": (1, 3, height, 8)})
        given = torch.randn(1, 3, height, 8)
        close(made, given.numpy(), net(given).detach().numpy())


def test_operators_that_need_flex_are_refused_by_layer(tmp_path: Path) -> None:
    import tensorflow as tf

    class Inverse(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([1, 3, 3], tf.float32)])
        def __call__(self, x: Any) -> Any:
            return {"y": tf.linalg.inv(x)}

    module = Inverse()
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=module.__call__)
    with pytest.raises(ConversionError, match="MatrixInverse"):
        package(tmp_path / "saved", tmp_path)
    net = Net()
    x, y = net.tensor("x", (1, 3, 3)), net.tensor("y", (1, 3, 3))
    net.add("FlexMatrixInverse", [x], [y], custom=True)
    with pytest.raises(ConversionError, match="FlexMatrixInverse"):
        package(net.write(tmp_path / "flex.tflite", [x], [y]), tmp_path)


def test_fidelity_on_random_inputs_alone_is_said_to_be_no_proof(tmp_path: Path) -> None:
    from edgekit import device, tester
    from edgekit.runner import RunOptions

    model = models.dense(tmp_path / "dense.tflite")
    made = package(model, tmp_path)
    assert any("random inputs alone" in notice for notice in made.manifest.notices)
    (path,) = tmp_path.glob("*.edgekit")
    run = tester.test(path, [device.parse("local:")], tester.Options(RunOptions(min_runs=0)))
    assert run.reports[0].verdict == "unproven"


@pytest.mark.parametrize("side", [4, 6])
def test_slopes_of_a_cube_with_open_sizes_and_weights_in_another_file(side: int, tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    pytest.importorskip("uv")
    tools.install("onnx2tf")
    slopes = np.array([-2, 0.1, 0.5, 3], np.float32).reshape(4, 1, 1)
    sizes = [1, 4, "height", "width"]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in "xy"]
    graph = helper.make_graph([helper.make_node("PRelu", ["x", "s"], ["y"])], "g", ends[:1], ends[1:], [numpy_helper.from_array(slopes, "s")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(proto, tmp_path / "prelu.onnx", save_as_external_data=True, location="slopes.bin", size_threshold=0)
    x = np.random.RandomState(2).randn(1, 4, side, side).astype(np.float32)
    made = package(tmp_path / "prelu.onnx", tmp_path, inputs={"x": x.shape})
    close(made, x, np.where(x < 0, x * slopes, x))
    assert any("dimension 2 was dynamic" in notice for notice in made.manifest.notices)
