"""Packages that list several shapes: each runs in the interpreter as the source does, and others are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import bundle, device, formats, packager, runner, tester
from edgekit.cli.package import more_shapes, shapes
from edgekit.errors import ConversionError, RunnerError, UsageError
from edgekit.preprocess import Preprocess

SHAPES = ("x=1x3x16x24,1x3x32x32", {"x": (1, 3, 16, 24)}, {"x": ((1, 3, 32, 32),)})


def test_several_shapes_are_written_with_commas() -> None:
    text, first, others = SHAPES
    assert (shapes((text,)), more_shapes((text,))) == (first, others)
    assert more_shapes(("x=1x3", "y=2")) == {}


@pytest.mark.parametrize("text", ["x=1x3,", "x=1x3,2", "x=1x3,1xa", "x=1x3,1x0", "=1x3,1x4"])
def test_what_is_no_list_of_shapes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not NAME=SIZExSIZE"):
        more_shapes((text,))


def test_inputs_with_several_shapes_have_as_many() -> None:
    with pytest.raises(UsageError, match="x 2, y 3"):
        more_shapes(("x=1,2", "y=1,2,3"))


def test_targets_of_one_shape_say_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes one shape"):
        packager.package(str(tmp_path / "absent.onnx"), "linux-arm64", packager.Options(others={"x": ((1, 3),)}, out=tmp_path))


NETS = """
import torch
from torch import nn

def fully():
    torch.manual_seed(3)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Upsample(scale_factor=2))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = body, nn.Linear(8, 5)

        def forward(self, x):
            found = self.body(x)
            return found, self.head(found.mean((2, 3)))

    return Net().eval(), (torch.zeros(1, 3, 16, 24),)

def held():
    class Net(nn.Module):
        def forward(self, x):
            return torch.relu(x).reshape(3, 16 * 24) if x.shape[2] == 16 else torch.relu(x).reshape(3, -1)

    return Net().eval(), (torch.zeros(1, 3, 16, 24),)

def silent():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x):
            return self.conv(x) * (x.shape[2] / 16)

    torch.manual_seed(4)
    return Net().eval(), (torch.zeros(1, 3, 16, 24),)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("torch")
    pytest.importorskip("coremltools")
    (tmp_path / "shape_nets.py").write_text(NETS, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shape_nets", raising=False)
    return "shape_nets"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "w8"])
def test_every_listed_shape_computes_what_the_source_does(precision: str, nets: str, tmp_path: Path) -> None:
    options = packager.Options(inputs=SHAPES[1], others=SHAPES[2], precision=precision, out=tmp_path)
    outcome = packager.package(f"{nets}:fully", "ios-coreml", options)
    assert outcome.bundle is not None and any("x 1x3x32x32: " in notice for notice in outcome.manifest.notices)
    convolutions = [verdict for verdict in outcome.manifest.verdicts if verdict.delegate == "ane" and verdict.type == "conv"]
    assert not any("known at run time" in verdict.reason for verdict in convolutions)
    with bundle.open(outcome.bundle) as opened:
        opened.extract(opened.manifest.artifact.main, tmp_path)
        path = tmp_path / Path(opened.manifest.artifact.main).name
    for shape in ((1, 3, 16, 24), (1, 3, 32, 32)):
        source, made = formats.open(f"{nets}:fully", {"x": shape}), formats.open(str(path), {"x": shape})
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        wanted, found = formats.session(source).run({"x": x}), formats.session(made).run({"x": x})
        for (name, right), got in zip(wanted.items(), found.values(), strict=True):
            assert got.shape == right.shape, name
            np.testing.assert_allclose(got, right, atol=1e-5 if precision == "fp32" else 0.05)
    with pytest.raises(RunnerError, match="lists 1x3x16x24, 1x3x32x32"):
        formats.session(formats.open(str(path))).run({"x": np.zeros((1, 3, 8, 8), np.float32)})
    report = tester.test(outcome.bundle, [device.parse("virtual:coreml")], tester.Options(runner.RunOptions(min_runs=0))).reports[0]
    assert (report.verdict, report.exit_code) == ("unproven", 0)  # random inputs only


@pytest.mark.slow
@pytest.mark.parametrize(("net", "said"), [("held", "operator reshape"), ("silent", "something else than the source")])
def test_a_net_that_holds_on_to_a_size_is_refused(net: str, said: str, nets: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=said) as caught:
        packager.package(f"{nets}:{net}", "ios-coreml", packager.Options(inputs=SHAPES[1], others=SHAPES[2], precision="fp32", out=tmp_path))
    assert "1x3x32x32" in caught.value.message and "a bundle for each shape" in (caught.value.hint or "")


@pytest.mark.slow
def test_images_have_several_sizes_too(nets: str, tmp_path: Path) -> None:
    stated: Any = Preprocess(mean=(0.5,), std=(0.25,))
    options = packager.Options(inputs=SHAPES[1], others=SHAPES[2], precision="fp16", io="image", preprocess=stated, out=tmp_path)
    outcome = packager.package(f"{nets}:fully", "ios-coreml", options)
    assert outcome.bundle is not None
    with bundle.open(outcome.bundle) as opened:
        opened.extract(opened.manifest.artifact.main, tmp_path)
        made = formats.open(str(tmp_path / Path(opened.manifest.artifact.main).name))
    (feature,) = made.handle.program.features_in
    assert feature.channels == 3 and feature.shapes == ((1, 3, 16, 24), (1, 3, 32, 32))
    assert {tuple(a.shape) for a in formats.session(made).run({"x": np.zeros((1, 32, 32, 3), np.uint8)}).values()} == {(1, 8, 32, 32), (1, 5)}
