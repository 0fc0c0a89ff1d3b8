"""Trained models through the DPU backend: legal, named CPU parts, the integer reference equal to the file in ONNX Runtime."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgekit import converters, formats, opset, target
from edgekit.backends import Candidate, Context, vitis
from edgekit.virtual.dpu import reader
from tests.dpu_models import by_onnxruntime
from tests.zoo import crops, fetch

CALIBRATION, EVALUATION = 16, 8


@dataclasses.dataclass(frozen=True)
class Row:
    """A model, its input's size and normalization, and what is asked of it."""

    reference: str
    size: tuple[int, int]
    least_db: float
    layout: str = "NCHW"
    mean: float = 0.5
    std: float = 0.5
    inputs: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


ROWS = {
    "efficientnet-lite0": Row("tests.zoo.models:efficientnet_lite0", (224, 224), 12.0, mean=0.498, std=0.502),
    "ppocr-cls": Row("zoo:ppocr-cls", (48, 192), 10.0, inputs={"x": (1, 3, 48, 192)}),
    "small-resnet": Row("tests.zoo.test_zoo_dpu:small_resnet", (64, 64), 30.0),
}


def small_resnet() -> Any:
    """Two residual blocks and a head, seeded."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.b(torch.relu(self.a(x))))

    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    model = nn.Sequential(nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Block(), Block(), head)
    return model.eval(), (torch.zeros(1, 3, 64, 64),)


def images(row: Row, count: int, seed: int) -> Any:
    square = crops.crops(count, seed=seed, size=max(row.size), mean=row.mean, std=row.std)[:, :, : row.size[0], : row.size[1]]
    return np.ascontiguousarray(square if row.layout == "NCHW" else square.transpose(0, 2, 3, 1))[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_zoo(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    reference = str(fetch.path(row.reference[4:])) if row.reference.startswith("zoo:") else row.reference
    model = source = formats.open(reference, row.inputs)
    for number, hop in enumerate(converters.route(source.format, vitis.accepts)):
        (tmp_path / str(number)).mkdir()
        model = hop.convert(model, tmp_path / str(number))
    entry = model.signature.inputs[0].name
    profile = target.load("fpga-dpuczdx8g")
    calibration = [{entry: x} for x in images(row, CALIBRATION, 1)]
    artifact = vitis.prepare(model, Context(profile, calibration, tmp_path))(Candidate("w8a8"))
    proto = onnx.load(artifact.path / vitis.MODEL_FILE)
    scales = [float(numpy_helper.to_array(t)) for t in proto.graph.initializer if t.name.startswith("dpu/scale_")]
    assert scales and all(math.frexp(scale)[0] == 0.5 for scale in scales)
    program = reader.read(proto, "half_even")
    for step in program.steps:
        if step.type.startswith(("Conv", "Gemm")) and step.shift is not None and "LeakyRelu" not in step.type:
            assert -1 <= step.shift <= 16, step.name
    graph = vitis.graph(artifact)
    summary = opset.summary(graph, opset.check(graph, profile))[0]
    noise = signal = 0.0
    worst = 0.0
    session, floats = vitis.emulate(artifact), formats.session(source)
    for x in images(row, EVALUATION, 7):
        wanted, got = next(iter(floats.run({source.signature.inputs[0].name: x}).values())), next(iter(session.run({entry: x}).values()))
        noise, signal = noise + float(((wanted - got) ** 2).sum()), signal + float((wanted**2).sum())
        fed = {program.signature.inputs[0].name: x}
        even, theirs = program.run(fed), by_onnxruntime(proto, fed)
        worst = max(
            worst, *(float(np.abs(even[v.name] - t).max() / max(np.abs(t).max(), 1e-9)) for v, t in zip(proto.graph.output, theirs, strict=True))
        )
    decibels = 10 * math.log10(signal / max(noise, 1e-30))
    print(f"{name}: {decibels:.1f} dB, {100 * summary.macs_share:.1f} % of MACs on the DPU, {worst:.3g} off ONNX Runtime, CPU: {artifact.notices}")
    assert decibels >= row.least_db
    assert worst <= 0.02  # a mean in float may fall on the other side of a half
