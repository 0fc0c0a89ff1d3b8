"""Models for Core ML: packaged in half, 8-bit and 6-bit precision, run by the interpreter, held to the float source and to bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import converters, formats, hops, target
from edgekit.backends import Context, coreml
from edgekit.formats import Model, mlprogram
from edgekit.formats import torch as torch_format
from edgekit.planner import Candidate
from edgekit.tensors import Arrays
from tests.decibels import output_db
from tests.test_virtual_coreml_zoo import ONNX_NAMES, OUTPUTS
from tests.zoo import fetch, table

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("coremltools")
nn, F = torch.nn, torch.nn.functional


class Encoder(nn.Module):
    """Two transformer blocks (attention, LayerNorm, GELU) and a head."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu") for _ in range(2))
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(x).mean(1))


class Recurrent(nn.Module):
    """An LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(24, 64), nn.Linear(64, 40)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0])


class UNet(nn.Module):
    """Down twice, up by bilinear resizing, with skips."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 16), (16, 32), (32, 48), (80, 32), (48, 16))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in sizes)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Any) -> Any:
        first = F.relu(self.convolutions[0](x))
        second = F.relu(self.convolutions[1](F.max_pool2d(first, 2)))
        third = F.relu(self.convolutions[2](F.max_pool2d(second, 2)))
        up = F.relu(self.convolutions[3](torch.cat([_twice(third), second], 1)))
        return self.head(F.relu(self.convolutions[4](torch.cat([_twice(up), first], 1))))


def _twice(x: Any) -> Any:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


def of_module(module: type, shape: tuple[int, ...]) -> Callable[[], tuple[Model, list[Arrays], list[Arrays]]]:
    """A net with seeded weights, and smooth random inputs."""

    def make() -> tuple[Model, list[Arrays], list[Arrays]]:
        torch.manual_seed(0)
        source = torch_format.from_module(module().eval(), (torch.zeros(shape),), {}, module.__name__.lower())
        rng, name = np.random.default_rng(5), source.signature.inputs[0].name
        rows: list[Arrays] = [{name: (np.cumsum(rng.normal(size=shape), -1) / 4).astype(np.float32)} for _ in range(12)]
        return source, rows[:8], rows[8:]

    return make


def of_zoo(name: str, count: int) -> Callable[[], tuple[Model, list[Arrays], list[Arrays]]]:
    """A zoo model with its natural samples."""

    def make() -> tuple[Model, list[Arrays], list[Arrays]]:
        row = table.rows()[name]
        teach, judge = ([{k: v[i] for k, v in row.samples(n, seed).items()} for i in range(n)] for n, seed in ((count, 11), (4, 7)))
        return formats.open(row.reference, row.inputs), teach, judge

    return make


Bounds = dict[str, tuple[float, float]]

ROWS: dict[str, tuple[Callable[[], tuple[Model, list[Arrays], list[Arrays]]], Bounds]] = {
    "efficientnet-lite0": (of_zoo("efficientnet-lite0", 12), {"fp16": (51, 9.5e6), "w8": (34, 4.9e6), "p6": (23, 3.8e6)}),
    "mobilenet-v2": (of_zoo("mobilenet-v2", 8), {"fp16": (28, 1.0e6), "w8": (22, 0.65e6), "p6": (13, 0.55e6)}),
    "basic-pitch-savedmodel": (
        of_zoo("basic-pitch-savedmodel", 4),
        {"fp32": (80, 3.1e5), "fp16": (33, 2.6e5), "w8": (25, 2.3e5), "p6": (18, 2.15e5)},
    ),
    "basic-pitch-onnx": (of_zoo("basic-pitch-onnx", 4), {"fp32": (70, 4.6e5), "fp16": (33, 3.0e5), "w8": (25, 2.7e5), "p6": (18, 2.55e5)}),
    "selfie-segmentation": (of_zoo("selfie-segmentation", 4), {"fp16": (40, 3.5e5)}),  # LiteRT, over three hops
    "encoder": (of_module(Encoder, (1, 12, 64)), {"fp16": (50, 1.8e5), "w8": (42, 1.15e5), "p6": (35, 0.95e5)}),
    "lstm": (of_module(Recurrent, (10, 1, 24)), {"fp16": (60, 0.6e5), "w8": (48, 0.37e5), "p6": (42, 0.31e5)}),
    "unet": (of_module(UNet, (1, 3, 32, 32)), {"fp16": (60, 1.2e5), "w8": (55, 0.7e5), "p6": (45, 0.58e5)}),
}
"""Name -> how to make it, and for each precision the least SQNR in dB of its worst output and the most bytes.

Bytes follow from the bits of the weights and what the package's graph takes. The SQNRs are floors below what is reached now, so that nothing
gets worse unseen.
"""


@pytest.mark.parametrize("name", ROWS)
def test_a_model_keeps_its_outputs(name: str, tmp_path: Path) -> None:
    make, bounds = ROWS[name]
    source, teach, judge = make()
    wanted = hops.run(formats.session(source), source.signature, judge)
    (tmp_path / "build").mkdir()
    build = coreml.prepare(converted(source, tmp_path), Context(target.load("ios-coreml"), teach, tmp_path / "build"))
    for precision, (least_db, most_bytes) in bounds.items():
        artifact = build(Candidate(precision))
        got = hops.run(coreml.emulate(artifact), artifact.signature, judge)
        assert [spec.name for spec in artifact.signature.outputs] == [spec.name for spec in source.signature.outputs]
        worst = min(output_db(wanted, got, spec.name) for spec in source.signature.outputs)
        if precision == "fp32":
            assert off_its_authors_package(judge, got) <= 1e-5
        size = sum(path.stat().st_size for path in artifact.path.rglob("*") if path.is_file())
        assert worst >= least_db and size <= most_bytes, (precision, worst, size)


def test_eight_bit_activations_keep_a_trained_network(tmp_path: Path) -> None:
    """28 dB on crops that took no part, with at least nine tenths of the multiply-adds of 8 by 8 bits, and a reason for each that is not."""
    source, teach, judge = ROWS["efficientnet-lite0"][0]()
    (tmp_path / "build").mkdir()
    artifact = coreml.prepare(converted(source, tmp_path), Context(target.load("ios17-coreml"), teach, tmp_path / "build"))(Candidate("w8a8"))
    wanted = hops.run(formats.session(source), source.signature, judge)
    got = hops.run(coreml.emulate(artifact), artifact.signature, judge)
    assert output_db(wanted, got, source.signature.outputs[0].name) >= 28
    kinds = [operator.type for operator in coreml.graph(artifact).operators]
    told = next(notice for notice in artifact.notices if "read half precision" in notice)
    half = int(told.split()[0])
    assert kinds.count("quantize") == 50 - half  # each layer reads an activation of its own
    assert float(re.findall(r"([\d.]+)%", told)[0]) >= 90
    assert sum("left in half precision" in reason for _, _, reason in artifact.sensitivity) > half / 2


def off_its_authors_package(samples: list[Arrays], got: list[Arrays]) -> float:
    """How far basic-pitch's outputs are, at most, from those of its authors' float32 package. That is the right reference for a program in
    single precision: runtimes that sum in another order differ by up to 3e-4 on these chords (the logarithm of what is next to nothing).
    """
    session = mlprogram.session(mlprogram.open(str(fetch.path("basic-pitch-mlpackage")), {}))
    worst = 0.0
    for sample, row in zip(samples, got, strict=True):
        published = session.run({"input_2": next(iter(sample.values()))})
        for name, own in OUTPUTS.items():
            value = row[name] if name in row else row[ONNX_NAMES[name]]
            worst = max(worst, float(np.abs(published[own] - value).max()))
    return worst


def converted(source: Model, folder: Path) -> Model:
    """The model as a float32 program, over every hop: LiteRT takes three."""
    model = source
    for number, hop in enumerate(converters.route(source.format, coreml.accepts)):
        (folder / f"hop-{number}").mkdir()
        model = hop.convert(model, folder / f"hop-{number}")
    return model
