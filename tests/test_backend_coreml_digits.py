"""Small nets whose PyTorch operators come wrong out of a plain conversion, or out of half precision: right values, and what is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import converters, formats, hops, target
from edgekit.backends import Context, coreml
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.formats import torch as torch_format
from edgekit.planner import Candidate
from edgekit.tensors import Arrays
from tests.decibels import sqnr_db

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("coremltools")
nn, F = torch.nn, torch.nn.functional


def net(function: Callable[[Any], Any]) -> Any:
    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    return Net()


class Recurrent(nn.Module):
    """Two layers become loops, whose bodies read the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 12, num_layers=2)

    def forward(self, sequence: Any, state: Any) -> Any:
        return self.gru(sequence, state)


class Cells(nn.Module):
    """A step of an LSTM, and a plain recurrent layer in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.layer = nn.LSTMCell(8, 12), nn.RNN(8, 6, bidirectional=True)

    def forward(self, sequence: Any, state: Any) -> Any:
        return (*self.cell(sequence[0], (state[0], state[1])), self.layer(sequence)[0])


def converted(module: Any, folder: Path, *inputs: Any) -> tuple[Model, Model, list[Arrays], list[Arrays]]:
    """The source, its float32 package, its samples and its outputs."""
    torch.manual_seed(0)
    source = torch_format.from_module(module.eval(), inputs, {}, "small")
    samples: list[Arrays] = [{spec.name: value.numpy() for spec, value in zip(source.signature.inputs, inputs, strict=True)}]
    (hop,) = converters.route(source.format, coreml.accepts)
    return source, hop.convert(source, folder), samples, hops.run(formats.session(source), source.signature, samples)


def variance_of_squares(x: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt((x * x).mean(-1, keepdim=True) - mean**2 + 1e-5)


PICTURE = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, 14, 15)).astype(np.float32))


@pytest.mark.parametrize("function", [
    lambda x: F.interpolate(x, scale_factor=1.7),
    lambda x: F.interpolate(x, size=(7, 8), mode="bilinear", antialias=True),
    lambda x: F.interpolate(x, size=(23, 9), mode="bicubic", align_corners=True),
    lambda x: F.interpolate(x, scale_factor=2.5, mode="bilinear"),
    lambda x: 1 / (x.abs() * 1e-3 + 1e-4),
    lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, 1:2], enable_gqa=True),
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x.std() + torch.sub(x, 3.0, alpha=0.5),
    lambda x: F.channel_shuffle(x.reshape(1, 6, 7, 15), 2).index_add(1, torch.tensor([0, 0, 3]), x.reshape(1, 6, 7, 15)[:, :3]),
    lambda x: F.pad(F.max_pool2d(x, 3, 1, 1, dilation=2), (2, 1, 1, 0), mode="circular"),
    lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=5),
    lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), padding_mode="reflection", align_corners=False),
    lambda x: torch.where((x > 0) & (x < 1) | (x < -1), F.celu(x, 2.0), F.logsigmoid(x)),
    lambda x: F.rms_norm(x * 1e-2, (15,), eps=1e-6) @ x[0, 0, 0],
    lambda x: F.instance_norm(x, torch.ones(3), torch.full((3,), 2.0), use_input_stats=False),
])  # fmt: skip
def test_the_float_package_gives_what_the_source_gives(function: Callable[[Any], Any], tmp_path: Path) -> None:
    _, made, samples, wanted = converted(net(function), tmp_path, PICTURE)
    (got,) = hops.run(formats.session(made), made.signature, samples)
    for name, right in wanted[0].items():
        np.testing.assert_allclose(got[name], right, rtol=1e-5, atol=1e-5)


def test_an_operator_that_fails_in_coremltools_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="grid_sampler in layer"):
        converted(net(lambda x: F.grid_sample(x[:, :, None], x.permute(0, 2, 3, 1)[:, None], align_corners=False)), tmp_path, PICTURE)


def test_a_convolution_with_its_normalization_is_called_as_the_convolution(tmp_path: Path) -> None:
    up = (nn.ConvTranspose2d(8, 4, 2, stride=2), nn.BatchNorm2d(4), nn.Sigmoid())
    block = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), *up)
    _, made, samples, wanted = converted(block, tmp_path, PICTURE)
    assert [operator.name for operator in formats.module("mlprogram").graph(made).operators][:3] == ["_0", "_2", "_3"]
    (got,) = hops.run(formats.session(made), made.signature, samples)
    np.testing.assert_allclose(got["output_0"], wanted[0]["output_0"], atol=1e-5)


@pytest.mark.parametrize("module", [Recurrent, Cells])
def test_recurrent_layers_read_inputs_by_their_names(module: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    inputs = [torch.from_numpy(random.normal(size=shape).astype(np.float32)) for shape in ((9, 1, 8), (2, 1, 12))]
    _, made, samples, wanted = converted(module(), tmp_path, *inputs)
    assert [spec.name for spec in made.signature.inputs] == ["sequence", "state"]
    assert [feature.name for feature in made.handle.program.features_in] == ["sequence", "state_"]  # a word of MIL's own
    (got,) = hops.run(formats.session(made), made.signature, samples)
    for name, right in wanted[0].items():
        np.testing.assert_allclose(got[name], right, atol=1e-5)


ROWS = np.random.default_rng(2).normal(size=(8, 64)).astype(np.float32)
ZEROS = np.concatenate([np.zeros((1, 4), np.float32), np.abs(ROWS[:1, :12])], 1)


@pytest.mark.parametrize(("function", "inputs", "least_db", "told"), [
    (variance_of_squares, ROWS + 30, 38, "small difference of large values"),
    (lambda x: 1 / torch.sqrt(x + 1e-8), ZEROS, 60, "below the smallest normal half"),
    (lambda x: torch.log(x + 1e-10), ZEROS, 60, "below the smallest normal half"),
    (lambda x: torch.sin(x * 1000), np.arange(40, dtype=np.float32)[:, None], 60, "angle"),
])  # fmt: skip
def test_half_precision_keeps_the_digits_that_count(function: Callable[[Any], Any], inputs: Any, least_db: float, told: str, tmp_path: Path) -> None:
    _, made, samples, wanted = converted(net(function), tmp_path, torch.from_numpy(inputs))
    (tmp_path / "built").mkdir()
    artifact = coreml.prepare(made, Context(target.load("ios-coreml"), samples, tmp_path / "built"))(Candidate("fp16"))
    (got,) = hops.run(coreml.emulate(artifact), artifact.signature, samples)
    for name, right in wanted[0].items():
        assert sqnr_db(right, got[name]) > least_db
    assert any(told in notice for notice in artifact.notices), artifact.notices


def test_a_mask_made_of_an_input_is_made_finite_once(tmp_path: Path) -> None:
    scores = np.random.default_rng(3).normal(size=(1, 8, 8)).astype(np.float32)

    class Masked(nn.Module):
        def forward(self, scores: Any, mask: Any) -> Any:
            return torch.softmax(scores + (1 - mask) * -1e9, -1)

    mask = np.array([[[1, 1, 1, 1, 1, 0, 0, 0]]], np.float32)
    _, made, samples, wanted = converted(Masked(), tmp_path, torch.from_numpy(scores), torch.from_numpy(mask))
    (tmp_path / "built").mkdir()
    artifact = coreml.prepare(made, Context(target.load("ios-coreml"), samples, tmp_path / "built"))(Candidate("fp16"))
    (got,) = hops.run(coreml.emulate(artifact), artifact.signature, samples)
    for name, right in wanted[0].items():
        np.testing.assert_allclose(got[name], right, atol=1e-3)
    assert [notice for notice in artifact.notices if "mask" in notice]
    assert not [notice for notice in artifact.notices if "single precision" in notice]
