"""Packages that coremltools wrote: layers and nets from torch and TensorFlow, and compressed weights, each against its float source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.errors import ConversionError
from edgekit.formats import mlprogram
from edgekit.virtual.coreml import hazards

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
pytest.importorskip("coremltools")
nn, F = torch.nn, torch.nn.functional

HALF = {"rtol": 2e-2, "atol": 1e-2}
SINGLE = {"rtol": 1e-5, "atol": 2e-5}


def convert(module: Any, inputs: tuple[Any, ...], folder: Path, target: str, half: bool, traced: bool = False) -> Path:
    """The module as an ML Program package, by way of torch.export, or of a trace where coremltools needs one."""
    import coremltools as ct

    settings = {"convert_to": "mlprogram", "minimum_deployment_target": getattr(ct.target, target), "skip_model_load": True}
    settings["compute_precision"] = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
    if traced:
        kinds = [ct.TensorType(shape=x.shape, dtype=np.float32 if x.is_floating_point() else np.int32) for x in inputs]
        model = ct.convert(torch.jit.trace(module, inputs), inputs=kinds, **settings)
    else:
        model = ct.convert(torch.export.export(module, inputs).run_decompositions({}), **settings)
    model.save(str(folder / "m.mlpackage"))
    return folder / "m.mlpackage"


def check(path: Path, inputs: tuple[Any, ...], wanted: Any, half: bool) -> None:
    model = mlprogram.open(str(path), {})
    mlprogram.graph(model)
    got = mlprogram.session(model).run({spec.name: np.asarray(x) for spec, x in zip(model.signature.inputs, inputs, strict=True)})
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for spec, want in zip(model.signature.outputs, wanted, strict=True):
        want = np.asarray(want, np.float64)
        assert got[spec.name].shape == want.shape == spec.shape
        tolerance = HALF if half else SINGLE
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(got[spec.name].astype(np.float64), want, rtol=tolerance["rtol"], atol=tolerance["atol"] * scale)


class Encoder(nn.Module):
    """A transformer block: attention, LayerNorm, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return F.log_softmax(self.head(self.layer(x).mean(1)), -1)


class UNet(nn.Module):
    """Down, up by bilinear resizing, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(14, 2, 1)

    def forward(self, x: Any) -> Any:
        first = F.relu(self.a(x))
        second = F.relu(self.b(F.max_pool2d(first, 2, 2)))
        return self.c(torch.cat([F.interpolate(second, scale_factor=2, mode="bilinear", align_corners=False), first], 1))


class First(nn.Module):
    """A recurrent layer's sequence alone."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def rand(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES: dict[str, tuple[Any, tuple[Any, ...], bool]] = {
    "encoder": (Encoder, (rand(1, 7, 16),), False),
    "unet": (UNet, (rand(1, 3, 16, 12),), False),
    "lstm": (lambda: First(nn.LSTM(5, 6, num_layers=2, bidirectional=True)), (rand(7, 1, 5),), True),
    "gru in a loop": (lambda: First(nn.GRU(5, 6, batch_first=True)), (rand(1, 7, 5),), True),
    "rnn": (lambda: First(nn.RNN(5, 6)), (rand(7, 1, 5),), True),
    "transposed with output padding": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (rand(1, 4, 5, 6),), False),
    "pool by ceiling": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (rand(1, 3, 10, 11),), False),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d(3), (rand(1, 3, 8, 8),), False),
    "group norm": (lambda: nn.GroupNorm(2, 4), (rand(1, 4, 6, 6),), False),
    "sampling": (lambda: Call(lambda x, g: F.grid_sample(x, g, align_corners=False)), (rand(1, 2, 5, 6), rand(1, 4, 3, 2)), False),
    "scatter": (lambda: Call(lambda x, i, s: x.scatter_add(1, i, s)), (rand(2, 6), torch.tensor([[0, 2, 2], [5, 4, 5]]), rand(2, 3)), False),
    "sorting": (lambda: Call(lambda x: x.topk(3, dim=1)[0] + x.sort(-1)[0][:, :3]), (rand(2, 7),), False),
    "attention": (lambda: Call(lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True)), (rand(1, 2, 5, 8), rand(1, 2, 5, 8)), False),
    "embedding": (lambda: nn.Embedding(10, 4), (torch.tensor([[1, 2, 9]]),), False),
    "slices": (lambda: Call(lambda x: torch.stack([x[:, 1:4:2, -3:], x.flip(1)[:, 2:4, 2:]])), (rand(2, 6, 5),), False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("target", "half"), [("iOS16", True), ("iOS18", False)])
def test_torch(name: str, target: str, half: bool, tmp_path: Path) -> None:
    make, inputs, traced = CASES[name]
    torch.manual_seed(0)
    module = make().eval()
    inputs = tuple(x.half().float() if half and x.is_floating_point() else x for x in inputs)
    with torch.no_grad():
        wanted = module(*inputs)
    check(convert(module, inputs, tmp_path, target, half, traced), inputs, wanted, half)


def keras_unet() -> Any:
    import keras

    layers = keras.layers
    image = keras.Input((8, 8, 3), batch_size=1)
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(image)
    second = layers.SeparableConv2D(6, 3, padding="same", activation="swish")(layers.AveragePooling2D(3, 2, padding="same")(first))
    merged = layers.Concatenate()([layers.UpSampling2D(2, interpolation="nearest")(second), first])
    return keras.Model(image, layers.Conv2DTranspose(2, 3, strides=2, padding="same")(layers.LayerNormalization()(merged)))


@pytest.mark.parametrize("half", [True, False])
def test_keras(half: bool, tmp_path: Path) -> None:
    import coremltools as ct
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    net = keras_unet()
    function = tf.function(lambda x: tf.image.resize(net(x), (21, 35), method="nearest"), input_signature=[tf.TensorSpec((1, 8, 8, 3), tf.float32)])
    x = np.random.RandomState(0).randn(1, 8, 8, 3).astype(np.float16).astype(np.float32)
    precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
    settings = {"source": "tensorflow", "convert_to": "mlprogram", "skip_model_load": True, "compute_precision": precision}
    model = ct.convert([function.get_concrete_function()], minimum_deployment_target=ct.target.iOS17, **settings)
    model.save(str(tmp_path / "m.mlpackage"))
    check(tmp_path / "m.mlpackage", (x,), function(tf.constant(x)).numpy(), half)


def compressions() -> dict[str, tuple[str, Any]]:
    import coremltools.optimize.coreml as cto

    def linear(**fields: Any) -> Any:
        config = cto.OptimizationConfig(cto.OpLinearQuantizerConfig(weight_threshold=64, **fields))
        return lambda model: cto.linear_quantize_weights(model, config)

    def palette(**fields: Any) -> Any:
        config = cto.OptimizationConfig(cto.OpPalettizerConfig(weight_threshold=64, **fields))
        return lambda model: cto.palettize_weights(model, config)

    def pruned(model: Any) -> Any:
        return cto.prune_weights(model, cto.OptimizationConfig(cto.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=64)))

    def joined(model: Any) -> Any:
        config = cto.OptimizationConfig(cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=64))
        return cto.linear_quantize_weights(pruned(model), config, joint_compression=True)

    return {
        "int8 symmetric": ("iOS16", linear(mode="linear_symmetric")),
        "uint8 asymmetric": ("iOS16", linear(mode="linear", dtype="uint8")),
        "int4 blocks": ("iOS18", linear(mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=8)),
        "6-bit palette": ("iOS16", palette(mode="kmeans", nbits=6)),
        "4-bit palette": ("iOS16", palette(mode="uniform", nbits=4)),
        "3-bit grouped palette": ("iOS18", palette(mode="kmeans", nbits=3, granularity="per_grouped_channel", group_size=8)),
        "vector palette": ("iOS18", palette(mode="kmeans", nbits=4, cluster_dim=2)),
        "pruned": ("iOS16", pruned),
        "pruned in place": ("iOS18", pruned),
        "pruned and int8": ("iOS18", joined),
    }


@pytest.mark.parametrize("name", list(compressions()))
def test_compressed_weights_equal_what_coremltools_decompresses(name: str, tmp_path: Path) -> None:
    import coremltools as ct
    import coremltools.optimize.coreml as cto

    target, compress = compressions()[name]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 16)).eval()
    x = rand(1, 16, 6, 6)
    plain = ct.models.MLModel(str(convert(module, (x,), tmp_path, target, False)), skip_model_load=True)
    small = compress(plain)
    small.save(str(tmp_path / "small.mlpackage"))
    cto.decompress_weights(small).save(str(tmp_path / "large.mlpackage"))
    results, sizes = [], []
    for kind in ("small", "large"):
        model = mlprogram.open(str(tmp_path / f"{kind}.mlpackage"), {})
        sizes.append(model.handle.file_bytes)
        results.append(mlprogram.session(model).run({model.signature.inputs[0].name: x.numpy()}))
    graph = mlprogram.graph(mlprogram.open(str(tmp_path / "small.mlpackage"), {}))
    assert any(operator.type.startswith("constexpr_") for operator in graph.operators)
    assert sizes[0] < 0.8 * sizes[1]
    for a, b in zip(results[0].values(), results[1].values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_state_is_kept_between_runs(tmp_path: Path) -> None:
    import coremltools as ct

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(1, 3))

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return self.total * 2

    states = [ct.StateType(wrapped_type=ct.TensorType(shape=(1, 3)), name="total")]
    fixed = {"convert_to": "mlprogram", "minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    model = ct.convert(torch.jit.trace(Counter(), torch.zeros(1, 3)), inputs=[ct.TensorType(name="x", shape=(1, 3))], states=states, **fixed)
    model.save(str(tmp_path / "m.mlpackage"))
    session = mlprogram.session(mlprogram.open(str(tmp_path / "m.mlpackage"), {}))
    x = np.array([[1, 2, 3]], np.float32)
    for count in (1, 2, 3):
        np.testing.assert_allclose(next(iter(session.run({"x": x}).values())), 2 * count * x)
    session.reset()
    np.testing.assert_allclose(next(iter(session.run({"x": x}).values())), 2 * x)


def test_a_softplus_by_hand_is_found_to_overflow_in_half(tmp_path: Path) -> None:
    x = torch.tensor([[-3.0, 0, 5, 11, 12, 20]])
    path = convert(Call(lambda v: torch.log(1 + torch.exp(v))), (x,), tmp_path, "iOS16", True)
    model = mlprogram.open(str(path), {})
    found = hazards.hazards(model.handle, [{model.signature.inputs[0].name: x.numpy()}])
    first = next(item for item in found if item.kind == "overflow")
    assert first.operator == "exp"
    assert first.value == pytest.approx(np.exp(20), rel=1e-3)


def test_a_size_that_depends_on_values_is_refused(tmp_path: Path) -> None:
    path = convert(Call(lambda v: torch.nonzero(v > 0)), (rand(3, 4),), tmp_path, "iOS16", False)
    with pytest.raises(ConversionError, match="depends on the input's values"):
        mlprogram.open(str(path), {})
