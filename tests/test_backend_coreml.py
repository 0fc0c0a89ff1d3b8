"""The Core ML backend on small nets: what is built, against the float source run by torch or TensorFlow."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import converters, fingerprint, formats, hops, target
from edgekit.backends import Artifact, Context, coreml
from edgekit.errors import BundleError, ConversionError
from edgekit.formats import Model, mlprogram
from edgekit.formats import torch as torch_format
from edgekit.planner import Candidate
from edgekit.tensors import Arrays
from edgekit.virtual.coreml import hazards
from tests.decibels import output_db

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("coremltools")
nn, F = torch.nn, torch.nn.functional


class Net(nn.Module):
    """Convolutions (one depthwise) and a classifier, with names that no ML Program could have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depth = nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.point, self.head = nn.Conv2d(32, 96, 1), nn.Linear(96, 64)

    def forward(self, picture: Any) -> Any:
        x = F.relu(self.point(F.relu6(self.depth(F.relu6(self.first(picture))))))
        return {"class:scores": self.head(x.mean((2, 3))), "map": x[:, :1]}


class Softplus(nn.Module):
    """Written by hand: exp leaves the half range from 11.1 on, though inputs and outputs are small."""

    def forward(self, x: Any) -> Any:
        return torch.log(1 + torch.exp(x))


class Norm(nn.Module):
    """Written by hand: squares leave the half range, and the epsilon is below it."""

    def forward(self, x: Any) -> Any:
        centered = x - x.mean(-1, keepdim=True)
        return centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-9)


class Masked(nn.Module):
    """Attention behind a mask of minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.triu(torch.full((6, 6), float("-inf")), 1))

    def forward(self, q: Any) -> Any:
        return torch.softmax(q @ q.transpose(1, 2) + self.mask, -1) @ q


def opened(module: Any, *inputs: Any) -> Model:
    torch.manual_seed(0)
    return torch_format.from_module(module().eval(), inputs, {}, module.__name__.lower())


def source_outputs(model: Model, samples: list[Arrays]) -> list[Arrays]:
    return hops.run(formats.session(model), model.signature, samples)


def converted(model: Model, folder: Path) -> Model:
    (hop,) = converters.route(model.format, coreml.accepts)
    made: Model = hop.convert(model, folder)
    return made


def built(model: Model, samples: list[Arrays], folder: Path, precision: str, profile: str = "ios-coreml", **fields: Any) -> Artifact:
    folder.mkdir(parents=True, exist_ok=True)
    return coreml.prepare(model, Context(target.load(profile), samples, folder))(Candidate(precision, **fields))


def decompressed(artifact: Artifact, path: Path) -> Model:
    """The package with its weights decoded by coremltools."""
    import coremltools as ct

    model = ct.optimize.coreml.decompress_weights(ct.models.MLModel(str(artifact.path), skip_model_load=True))
    model.save(str(path))
    made = mlprogram.open(str(path), {})
    return dataclasses.replace(made, signature=artifact.signature)


def images(count: int, seed: int) -> list[Arrays]:
    rng = np.random.default_rng(seed)
    return [{"picture": np.cumsum(rng.normal(0, 0.3, (1, 3, 16, 16)), -1).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    source = opened(Net, torch.zeros(1, 3, 16, 16))
    return source, converted(source, tmp_path_factory.mktemp("net"))


def test_a_hop_keeps_names_values_and_layers(net: tuple[Model, Model]) -> None:
    source, made = net
    samples = images(3, 1)
    got = source_outputs(made, samples)
    assert list(got[0]) == ["class:scores", "map"]
    for name in got[0]:
        assert output_db(source_outputs(source, samples), got, name) > 90
    assert {"first", "depth", "point"} <= {operator.name for operator in mlprogram.graph(made).operators}


def test_precisions_trade_bytes_for_fidelity(net: tuple[Model, Model], tmp_path: Path) -> None:
    source, made = net
    judged = images(6, 2)
    wanted = source_outputs(source, judged)
    found = {}
    for precision in ("fp32", "fp16", "w8", "p6", "p4"):
        artifact = built(made, images(12, 1), tmp_path / precision, precision)
        got = hops.run(coreml.emulate(artifact), artifact.signature, judged)
        assert list(got[0]) == ["class:scores", "map"]
        size = sum(path.stat().st_size for path in artifact.path.rglob("*") if path.is_file())
        found[precision] = output_db(wanted, got, "class:scores"), size, coreml.graph(artifact)
    levels = [found[precision][0] for precision in found]
    assert levels == sorted(levels, reverse=True)
    assert found["fp32"][0] > 90 and found["fp16"][0] > 55 and found["w8"][0] > 35 and found["p6"][0] > 24 and found["p4"][0] > 12
    sizes = [found[precision][1] for precision in ("fp32", "fp16", "w8", "p6", "p4")]
    assert sizes == sorted(sizes, reverse=True)
    kinds = {precision: {operator.type for operator in graph.operators} for precision, (_, _, graph) in found.items()}
    assert "constexpr_affine_dequantize" in kinds["w8"] and "constexpr_lut_to_dense" in kinds["p6"]
    assert coreml.own_precision(mlprogram.open(str(tmp_path / "w8" / "net-w8.mlpackage"), {})) == "w8"


@pytest.mark.parametrize(("profile", "precision", "operator", "least_db"), [
    ("ios17-coreml", "w8a8", "quantize", 25),
    ("ios18-coreml", "p4", "constexpr_lut_to_dense", 12),
    ("macos15-coreml", "w8", "constexpr_blockwise_shift_scale", 35),
    ("ios18-coreml", "w4", "constexpr_blockwise_shift_scale", 15),
    ("ios18-coreml", "p6", "constexpr_lut_to_dense", 25),
    ("ios-coreml", "s50", "constexpr_sparse_to_dense", 4),
    ("ios18-coreml", "s50", "constexpr_sparse_to_dense", 4),
    ("ios18-coreml", "s50-w8", "constexpr_sparse_blockwise_shift_scale", 4),
    ("ios18-coreml", "s50-p6", "constexpr_lut_to_sparse", 4),
])  # fmt: skip
def test_forms_of_compressed_weights(
    net: tuple[Model, Model], tmp_path: Path, profile: str, precision: str, operator: str, least_db: float
) -> None:
    """Each form as the interpreter decodes it, and as coremltools does."""
    source, made = net
    judged = images(4, 2)
    artifact = built(made, images(12, 1), tmp_path, precision, profile)
    got = hops.run(coreml.emulate(artifact), artifact.signature, judged)
    assert operator in {o.type for o in coreml.graph(artifact).operators}
    assert output_db(source_outputs(source, judged), got, "class:scores") > least_db
    opset = mlprogram.open(str(artifact.path), {}).handle.program.opset
    assert opset == {"ios-coreml": "CoreML6", "ios17-coreml": "CoreML7"}.get(profile, "CoreML8")
    dense = hops.run(formats.session(decompressed(artifact, tmp_path / "dense.mlpackage")), artifact.signature, judged[:2])
    for ours, theirs in zip(got, dense, strict=False):
        np.testing.assert_allclose(ours["class:scores"], theirs["class:scores"], rtol=0, atol=1e-6)


def test_the_same_model_gives_the_same_bytes(net: tuple[Model, Model], tmp_path: Path) -> None:
    digests = {fingerprint.of_path(built(net[1], images(4, 1), tmp_path / str(i), "w8").path) for i in range(2)}
    assert len(digests) == 1


def test_w8a8_needs_samples(net: tuple[Model, Model], tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="needs calibration data"):
        built(net[1], [], tmp_path, "w8a8", "ios17-coreml")


def test_a_package_that_is_half_already_stays_as_it_is(net: tuple[Model, Model], tmp_path: Path) -> None:
    given = mlprogram.open(str(built(net[1], [], tmp_path / "given", "fp16").path), {})
    again = built(given, [], tmp_path / "again", coreml.own_precision(given) or "")
    assert fingerprint.of_path(again.path) == fingerprint.of_path(given.path)
    with pytest.raises(ConversionError, match="already fp16 and cannot become w8"):
        built(given, [], tmp_path / "other", "w8")


@pytest.mark.parametrize(("module", "inputs", "named"), [
    (Softplus, np.array([[-3.0, 0, 5, 11, 12, 20]], np.float32), "exp"),
    (Norm, np.stack([np.full(8, 400.0), np.linspace(-400, 400, 8)]).astype(np.float32), "mul"),
])  # fmt: skip
def test_what_leaves_the_half_range_is_named_and_stays_single(module: Any, inputs: Any, named: str, tmp_path: Path) -> None:
    source = opened(module, torch.from_numpy(inputs))
    samples = [{source.signature.inputs[0].name: inputs}]
    artifact = built(converted(source, tmp_path), samples, tmp_path / "built", "fp16")
    (got,), (wanted,) = hops.run(coreml.emulate(artifact), artifact.signature, samples), source_outputs(source, samples)
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=2e-3, atol=2e-3)
    assert any(notice.startswith(named) and "single precision" in notice for notice in artifact.notices), artifact.notices


def test_a_mask_of_infinity_becomes_finite_where_that_is_equal(tmp_path: Path) -> None:
    queries = np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)
    source = opened(Masked, torch.from_numpy(queries))
    samples = [{source.signature.inputs[0].name: queries}]
    artifact = built(converted(source, tmp_path), samples, tmp_path / "built", "fp16")
    (got,), (wanted,) = hops.run(coreml.emulate(artifact), artifact.signature, samples), source_outputs(source, samples)
    np.testing.assert_allclose(next(iter(got.values())), next(iter(wanted.values())), rtol=5e-3, atol=5e-3)
    assert any("mask" in notice for notice in artifact.notices)
    package = mlprogram.open(str(artifact.path), {}).handle
    assert not [item for item in hazards.hazards(package, [{package.program.inputs[0].name: queries}]) if "infinit" in item.kind]


def test_the_operator_without_counterpart_is_named(tmp_path: Path) -> None:
    class Strange(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x)

    with pytest.raises(ConversionError, match="bessel_j0"):
        converted(opened(Strange, torch.zeros(1, 4)), tmp_path)


def test_a_truncated_artifact_is_a_damaged_bundle_s(net: tuple[Model, Model], tmp_path: Path) -> None:
    artifact = built(net[1], [], tmp_path / "b", "fp16")
    broken = tmp_path / "broken.mlpackage"
    shutil.copytree(artifact.path, broken)
    weights = next(broken.rglob("weight.bin"))
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(BundleError) as caught:
        hops.run(coreml.emulate(dataclasses.replace(artifact, path=broken)), artifact.signature, images(1, 1))
    assert caught.value.exit_code == 7 and "weight.bin" in caught.value.message
