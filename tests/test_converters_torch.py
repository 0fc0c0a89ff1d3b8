from __future__ import annotations

import numpy as np
import pytest

from edgekit import formats
from edgekit.errors import ConversionError

torch = pytest.importorskip("torch")
from edgekit.converters import _tflite_edges, torch_to_litert, torch_to_onnx  # noqa: E402  # after the check that PyTorch is there
from edgekit.formats import torch as torch_format  # noqa: E402
from edgekit.legalize import torch_ops, torch_pools  # noqa: E402

functional = torch.nn.functional


class Call(torch.nn.Module):
    """A function as a module, behind a convolution that has a name."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.function = torch.nn.Conv2d(3, 4, 3, padding=1), function

    def forward(self, image):
        return self.function(self.stem(image))


class Pair(torch.nn.Module):
    def forward(self, image, other):
        return {"zeta": image + other, "alpha": image - other}


class Gru(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.gru = torch.nn.GRU(4, 8, batch_first=True)

    def forward(self, steps):
        return self.gru(steps)


def _opened(module, *examples):
    return torch_format.from_module(module.eval(), examples, {}, "net")


def _worst(source, made):
    rng = np.random.RandomState(7)
    feeds = {s.name: rng.standard_normal(s.shape).astype(s.dtype) for s in source.signature.inputs}
    right, got = formats.session(source).run(feeds), formats.session(made).run(feeds)
    assert list(got) == list(right)
    return max(float(np.abs(got[name] - right[name]).max()) for name in right)


def _decoder(**options):
    torch.manual_seed(8)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, 2, 1), torch.nn.ReLU(), torch.nn.ConvTranspose2d(6, 6, 3, **options))


DECODERS = [
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": 2, "padding": 1},
    {"stride": 3, "output_padding": 2, "bias": False},
    {"stride": 2, "padding": 2, "output_padding": 1, "groups": 3},
    {"stride": 2, "dilation": 2, "padding": 1},
]
POOLS = {
    "adaptive 8 to 3": lambda x: functional.adaptive_avg_pool2d(x, (3, 3)),
    "adaptive 8 to 3 and 5": lambda x: functional.adaptive_avg_pool2d(x, (3, 5)),
    "adaptive, one axis divides": lambda x: functional.adaptive_avg_pool2d(x, (4, 3)),
    "adaptive, equal windows": lambda x: functional.adaptive_avg_pool2d(x[..., :7, :7], 3),
    "padding not counted": lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "padding not counted, ceil": lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "padding not counted, uneven": lambda x: functional.avg_pool2d(x, (2, 4), (1, 3), (1, 2), count_include_pad=False),
}
OTHERS = {
    "adaptive maximum, 8 to 3": lambda x: functional.adaptive_max_pool2d(x, 3),
    "adaptive maximum, 8 to 4 and 1": lambda x: functional.adaptive_max_pool2d(x, (4, 1)),
    "adaptive maximum of a sequence": lambda x: functional.adaptive_max_pool1d(x[:, :, 0], 3),
    "transposed, three axes": lambda x: functional.conv_transpose3d(x[:, :, None], _ramp(4, 5, 2, 3, 2), None, (1, 2, 3), (0, 1, 1), (0, 1, 2)),
    "transposed, three axes, dilated": lambda x: functional.conv_transpose3d(x[:, :, None], _ramp(4, 2, 1, 2, 2), torch.ones(2), dilation=2),
    "padding not counted, without a batch": lambda x: functional.avg_pool2d(x[0], 3, 2, 1, count_include_pad=False),
    "transposed, without a batch": lambda x: functional.conv_transpose2d(x[0], _ramp(4, 2, 3, 3), None, 2, 1, 1),
    "adaptive mean over three axes": lambda x: functional.adaptive_avg_pool3d(x[:, None], (2, 3, 5)),
    "nearest, half": lambda x: functional.interpolate(x, scale_factor=0.5),
    "nearest, 8 to 5 and 11": lambda x: functional.interpolate(x, (5, 11)),
    "nearest, by 1.3": lambda x: functional.interpolate(x, scale_factor=1.3),
    "bilinear, by 1.3": lambda x: functional.interpolate(x, scale_factor=1.3, mode="bilinear"),
    "bilinear, smoothed": lambda x: functional.interpolate(x, (3, 5), mode="bilinear", antialias=True),
    "bicubic, smoothed, by 0.4": lambda x: functional.interpolate(x, scale_factor=0.4, mode="bicubic", antialias=True),
    "reversed rows of channels": lambda x: x.flip(1, -1),
    "softmax of channels": lambda x: x.softmax(1),
}


def _ramp(*shape):
    return torch.linspace(-1, 1, int(np.prod(shape))).reshape(shape)


REWRITTEN = {str(options): _decoder(**options) for options in DECODERS} | {name: Call(made) for name, made in (POOLS | OTHERS).items()}


@pytest.mark.parametrize("module", REWRITTEN.values(), ids=REWRITTEN)
def test_every_rewrite_computes_the_same(module):
    model = _opened(module, torch.zeros(1, 3, 8, 8))
    rewritten, notices = torch_ops.legalize(model.handle)
    assert len(notices) == 1
    assert notices[0].startswith("layer ")
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        got = torch_to_litert.flat_module(model.handle, rewritten)(image)[0]
        torch.testing.assert_close(got, module(image), rtol=1e-4, atol=1e-5)


def test_what_converts_as_it_is_is_left_alone():
    plain = torch.nn.Sequential(torch.nn.ConvTranspose2d(3, 3, 2, 2), torch.nn.AdaptiveAvgPool2d(4), torch.nn.AvgPool2d(2))
    assert torch_ops.legalize(_opened(plain, torch.zeros(1, 3, 8, 8)).handle)[1] == ()


def test_places_of_an_adaptive_maximum_are_not_lost():
    model = _opened(Call(lambda x: functional.adaptive_max_pool2d(x, 3, return_indices=True)), torch.zeros(1, 3, 8, 8))
    assert torch_ops.legalize(model.handle)[1] == ()


@pytest.mark.parametrize(("size", "count"), [(8, 3), (7, 3), (5, 5), (4, 7), (1, 1)])
def test_windows_of_an_adaptive_pool_are_those_of_pytorch(size, count):
    ramp = torch.arange(float(size)).reshape(1, 1, size)
    means = [ramp[0, 0, start:end].mean() for start, end in torch_pools.windows(size, count)]
    torch.testing.assert_close(functional.adaptive_avg_pool1d(ramp, count)[0, 0], torch.stack(means))


@pytest.mark.slow
@pytest.mark.parametrize("options", DECODERS, ids=str)
def test_transposed_convolutions_convert(options, tmp_path):
    model = _opened(_decoder(**options), torch.zeros(1, 3, 8, 8))
    made = torch_to_litert.convert(model, tmp_path)
    assert _worst(model, made) < 1e-5
    assert made.notices == ("layer 2: conv_transpose2d with padding: lowered to a full transposed convolution and a crop",)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adaptive 8 to 3", "padding not counted"])
def test_pools_convert_to_what_delegates_have(name, tmp_path):
    model = _opened(Call(POOLS[name]), torch.zeros(1, 3, 8, 8))
    made = torch_to_litert.convert(model, tmp_path)
    assert _worst(model, made) < 1e-5
    operators = {operator.type for operator in formats.module("tflite").graph(made).operators}
    assert operators <= {"CONV_2D", "TRANSPOSE", "SLICE", "MEAN", "CONCATENATION", "PAD", "AVERAGE_POOL_2D", "MUL"}


@pytest.mark.slow
@pytest.mark.parametrize("convert", [torch_to_litert.convert, torch_to_onnx.convert])
def test_names_order_and_layout_stay_with_two_outputs_of_one_shape(convert, tmp_path):
    model = _opened(Pair(), torch.zeros(1, 4, 4, 4), torch.zeros(1, 4, 4, 4))
    made = convert(model, tmp_path)
    assert made.signature == model.signature
    assert _worst(model, made) < 1e-6
    assert convert(model, tmp_path).digest == made.digest  # reproducible


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Gru(), (1, 10, 4)),
        (torch.nn.PReLU(4, 0.1), (1, 4, 4, 4)),
        (torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (1, 2, 5, 5)),
        (torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), (1, 2, 5, 5)),
    ],
    ids=["gru", "prelu", "corners", "half-pixel"],
)
def test_operators_that_were_converted_wrongly_elsewhere(module, shape, tmp_path):
    if isinstance(module, torch.nn.PReLU):
        with torch.no_grad():
            module.weight.copy_(torch.tensor([0.1, 0.3, 0.5, 0.9]))
    model = _opened(module, torch.zeros(shape))
    assert _worst(model, torch_to_litert.convert(model, tmp_path)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["adaptive maximum, 8 to 3", "transposed, three axes", "reversed rows of channels", "nearest, half", "bilinear, smoothed"]
)
def test_what_the_runtime_lacks_is_rewritten_into_what_it_runs(name, tmp_path):
    model = _opened(Call(OTHERS[name]), torch.zeros(1, 3, 8, 8))
    assert _worst(model, torch_to_litert.convert(model, tmp_path)) < 1e-5


@pytest.mark.slow
def test_float64_becomes_float32_throughout_and_is_held_to_the_double_model(tmp_path):
    class Double(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.layer, self.shift = torch.nn.Linear(4, 3).double(), torch.linspace(0, 1, 3, dtype=torch.float64)

        def forward(self, image):
            return self.layer(image.double()) + self.shift

    model = _opened(Double(), torch.zeros(1, 4))
    made = torch_to_litert.convert(model, tmp_path)
    assert (model.signature.outputs[0].dtype, made.signature.outputs[0].dtype) == ("float64", "float32")
    assert "float64: float32 here" in made.notices[0]
    assert _worst(model, made) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: torch.linalg.svd(x)[1], "aten::linalg_svd in layer"),
        (lambda x: torch.linalg.inv(x), "aten::linalg_inv in layer"),
        (lambda x: torch.sort(x)[0], "STABLEHLO_SORT"),
    ],
)
def test_what_litert_does_not_have_is_named_without_a_compiler_dump(function, said, tmp_path):
    with pytest.raises(ConversionError, match=said) as error:
        torch_to_litert.convert(_opened(Call(function), torch.zeros(1, 3, 4, 4)), tmp_path)
    assert "\n" not in error.value.message
    assert error.value.hint


def test_custom_operators_are_refused_before_conversion(tmp_path):
    @torch.library.custom_op("edgekit_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    with pytest.raises(ConversionError, match="custom operator edgekit_test::twice"):
        torch_to_litert.convert(_opened(Call(twice), torch.zeros(1, 3, 4, 4)), tmp_path)


@pytest.mark.slow
def test_64_bit_inputs_become_32_bit_with_a_notice(tmp_path):
    model = torch_format.from_module(torch.nn.Embedding(10, 4).eval(), torch.tensor([[1, 2, 9]]), {}, "net")
    made = torch_to_litert.convert(model, tmp_path)
    assert made.signature.inputs[0].dtype == "int32"
    assert made.notices == ("input input: int64 becomes int32, as LiteRT runs it",)
    got = formats.session(made).run(made.examples)["output_0"]
    np.testing.assert_array_equal(got, formats.session(model).run(model.examples)["output_0"])


@pytest.mark.slow
def test_constants_are_aligned_in_the_rewritten_file(tmp_path):
    from ai_edge_litert import schema_py_generated as schema

    made = torch_to_litert.convert(_opened(Call(torch.relu), torch.zeros(1, 3, 4, 4)), tmp_path)
    data = made.path.read_bytes()
    file = schema.Model.GetRootAs(data, 0)
    starts = [file.Buffers(i)._tab for i in range(file.BuffersLength()) if file.Buffers(i).DataLength()]
    assert starts
    assert all(tab.Vector(tab.Offset(4)) % 16 == 0 for tab in starts)
    assert _tflite_edges.signature_tensors(data)[0].keys() == {"image"}
