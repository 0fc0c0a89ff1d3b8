"""Preprocessing against hand-computed values, torchvision's rules of size, and its two spellings."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from edgekit import preprocess
from edgekit.errors import UsageError
from edgekit.preprocess import Preprocess
from edgekit.tensors import TensorSpec

NCHW = TensorSpec("image", (1, 3, 2, 2), "float32")
NHWC = TensorSpec("image", (1, 2, 2, 3), "float32")
PIXELS = np.array([[[255, 0, 51], [0, 0, 0]], [[102, 102, 102], [0, 255, 0]]], np.uint8)


def test_the_whole_chain_by_hand():
    stated = Preprocess(mean=(0.2, 0.4, 0.6), std=(0.5, 0.25, 0.1))
    found = preprocess.apply(PIXELS, stated, NHWC)
    assert found.dtype == np.float32
    assert found.shape == (1, 2, 2, 3)
    np.testing.assert_allclose(found[0, 0, 0], [(1 - 0.2) / 0.5, (0 - 0.4) / 0.25, (0.2 - 0.6) / 0.1], rtol=1e-6)
    np.testing.assert_allclose(found[0, 1, 0], [(0.4 - 0.2) / 0.5, 0, (0.4 - 0.6) / 0.1], rtol=1e-6, atol=1e-7)


def test_layout_and_order_only_move_values():
    plain = preprocess.apply(PIXELS, Preprocess(), NHWC)
    assert np.array_equal(preprocess.apply(PIXELS, Preprocess(), NCHW), plain.transpose(0, 3, 1, 2))
    assert np.array_equal(preprocess.apply(PIXELS, Preprocess(order="BGR"), NHWC), plain[..., ::-1])


def test_normalization_follows_the_stated_order():
    found = preprocess.apply(PIXELS, Preprocess(order="BGR", mean=(0.2, 0, 0)), NHWC)
    np.testing.assert_allclose(found[0, 0, 0], [0, 0, 1], atol=1e-7)  # blue 51 / 255 less 0.2 comes first


def test_gray_is_luma():
    found = preprocess.apply(PIXELS, Preprocess(order="GRAY", scale=1), TensorSpec("image", (1, 2, 2, 1), "float32"))
    np.testing.assert_allclose(found.ravel(), [0.299 * 255 + 0.114 * 51, 0, 102, 0.587 * 255], atol=1)


def test_without_a_batch_axis():
    assert preprocess.apply(PIXELS, Preprocess(), TensorSpec("image", (3, 2, 2), "float32")).shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("width", "height", "short", "expected"),
    [(640, 480, 256, (341, 256)), (480, 640, 256, (256, 341)), (300, 300, 224, (224, 224)), (500, 333, 256, (384, 256))],
)
def test_a_single_length_goes_to_the_shorter_side(width, height, short, expected):
    picture = Image.new("RGB", (width, height), (10, 20, 30))
    spec = TensorSpec("image", (1, 3, expected[1], expected[0]), "float32")
    assert preprocess.apply(picture, Preprocess(resize=short), spec).shape == spec.shape


def test_the_crop_is_centered():
    pixels = np.arange(5 * 7, dtype=np.uint8).reshape(5, 7)[..., None].repeat(3, -1)
    found = preprocess.apply(pixels, Preprocess(crop=(3, 1), scale=1), TensorSpec("image", (1, 1, 3, 3), "float32", layout="NHWC"))
    assert found[0, 0, :, 0].tolist() == [16, 17, 18]


def test_keeping_the_aspect_pads_to_the_center():
    pixels = np.full((2, 4, 3), 200, np.uint8)
    stated = Preprocess(resize=(4, 4), keep_aspect=True, pad=114, scale=1, interpolation="nearest")
    found = preprocess.apply(pixels, stated, TensorSpec("image", (1, 3, 4, 4), "float32"))
    assert found[0, 0].tolist() == [[114] * 4, [200] * 4, [200] * 4, [114] * 4]


def test_nearest_keeps_pixel_values_and_bilinear_blends():
    pixels = np.zeros((1, 2, 3), np.uint8)
    pixels[0, 1] = 100
    spec = TensorSpec("image", (1, 1, 4, 3), "float32", layout="NHWC")
    nearest = preprocess.apply(pixels, Preprocess(resize=(4, 1), scale=1, interpolation="nearest"), spec)[0, 0, :, 0]
    bilinear = preprocess.apply(pixels, Preprocess(resize=(4, 1), scale=1), spec)[0, 0, :, 0]
    assert nearest.tolist() == [0, 0, 100, 100]
    assert bilinear.tolist() == [0, 25, 75, 100]


def test_integer_inputs_take_rounded_and_clipped_pixels():
    found = preprocess.apply(PIXELS, Preprocess(scale=1), TensorSpec("image", (1, 2, 2, 3), "uint8"))
    assert found.dtype == np.uint8
    assert np.array_equal(found[0], PIXELS)
    shifted = preprocess.apply(PIXELS, Preprocess(scale=1, mean=(200.0,)), TensorSpec("image", (1, 2, 2, 3), "int8"))
    assert (shifted.min(), shifted.max()) == (-128, 55)


def test_a_quantized_input_stays_real():
    found = preprocess.apply(PIXELS, Preprocess(), TensorSpec("image", (1, 2, 2, 3), "uint8", scale=1 / 255))
    assert found.dtype == np.float32
    assert found.max() == 1


@settings(max_examples=40)
@given(st.integers(0, 255), st.floats(-2, 2), st.floats(0.1, 3), st.sampled_from(["RGB", "BGR"]))
def test_values_stay_in_the_stated_range(pixel, mean, std, order):
    stated = Preprocess(order=order, mean=(mean, 0.0, 0.5), std=(std, 1.0, 0.2))
    found = preprocess.apply(np.full((2, 2, 3), pixel, np.uint8), stated, NHWC)
    low, high = stated.value_range
    assert low - 1e-4 <= found.min() <= found.max() <= high + 1e-4


def test_both_spellings_say_the_same(tmp_path):
    imagenet = "mean=0.485:0.456:0.406,std=0.229:0.224:0.225"
    flags = preprocess.parse(f"resize=256, crop=224,layout=nchw,order=rgb,scale=1/255,{imagenet},interpolation=bicubic")
    assert flags == Preprocess(256, 224, layout="NCHW", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), interpolation="bicubic")
    file = tmp_path / "image.toml"
    size = 'resize = 256\ncrop = 224\nlayout = "NCHW"\ninterpolation = "bicubic"\n'
    file.write_text(size + "mean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]\n")
    assert preprocess.parse(str(file)) == flags
    assert preprocess.parse("resize=320x240,keep_aspect=yes,pad=114").resize == (320, 240)


@pytest.mark.parametrize(
    "stated", [Preprocess(), Preprocess(256, (224, 200), order="BGR", mean=(0.1, 0.2, 0.3)), Preprocess((3, 4), keep_aspect=True)]
)
def test_it_survives_the_manifest(stated):
    assert msgspec.json.decode(msgspec.json.encode(stated), type=Preprocess) == stated


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("resiz=3", "did you mean resize?"),
        ("resize", "not KEY=VALUE"),
        ("resize=2x", "resize=2x cannot be read"),
        ("resize=0", "from 1 to 16384"),
        ("crop=-4", "from 1 to 16384"),
        ("crop=3,crop=4", "stated twice"),
        ("std=0", "std must not be zero"),
        ("mean=1:2", "mean has 2 values, RGB has 3 channels"),
        ("order=GRAY,std=1:2:3", "std has 3 values, GRAY has 1 channels"),
        ("scale=1/0", "scale=1/0 cannot be read"),
        ("keep_aspect=maybe", "keep_aspect=maybe cannot be read"),
        ("keep_aspect=yes,resize=256", "needs resize=WIDTHxHEIGHT"),
        ("layout=CHWN", "layout: NCHW, NHWC"),
        ("interpolation=lanczos", "interpolation: nearest, bilinear, bicubic"),
        ("dtype=float8", "unknown dtype 'float8'"),
        ("pad=300", "pad must be from 0 to 255"),
        ("nowhere.toml", "no such preprocessing file"),
    ],
)
def test_bad_statements_are_refused(text, says):
    with pytest.raises(UsageError) as caught:
        preprocess.parse(text)
    assert says in f"{caught.value.message} {caught.value.hint}"


def test_a_bad_file_names_the_key(tmp_path):
    file = tmp_path / "image.toml"
    file.write_text("meen = [0.5]\n")
    with pytest.raises(UsageError, match=r"image\.toml.*meen") as caught:
        preprocess.parse(str(file))
    assert caught.value.hint == "did you mean mean?"


@pytest.mark.parametrize(
    ("stated", "spec", "says"),
    [
        (Preprocess(), TensorSpec("x", (1, 10), "float32"), "no image input"),
        (Preprocess(), TensorSpec("x", (1, 3, 3, 3), "float32"), "layout is open"),
        (Preprocess(), TensorSpec("x", (1, 4, 2, 2), "float32"), "does not hold 3 channels"),
        (Preprocess(layout="NHWC"), NCHW, "does not hold 3 channels"),
        (Preprocess(), TensorSpec("x", (1, 3, 8, 8), "float32"), "takes 8x8 pixels, the image has 2x2"),
        (Preprocess(resize=4), TensorSpec("x", (1, 3, 8, 8), "float32"), "resize and crop give 4x4"),
        (Preprocess(crop=4), TensorSpec("x", (1, 3, 4, 4), "float32"), "cannot crop 4x4"),
    ],
)
def test_what_does_not_fit_is_refused(stated, spec, says):
    with pytest.raises(UsageError, match=says):
        preprocess.apply(PIXELS, stated, spec)


def test_an_open_layout_is_settled_by_the_model_or_the_statement():
    spec = TensorSpec("x", (1, 3, 3, 3), "float32", layout="NHWC")
    assert preprocess.geometry(spec, Preprocess())[0] == "NHWC"
    assert preprocess.geometry(TensorSpec("x", (1, 3, 3, 3), "float32"), Preprocess(layout="NCHW"))[0] == "NCHW"


def test_deep_images_are_refused():
    with pytest.raises(UsageError, match="more than 8 bits"):
        preprocess.apply(Image.fromarray(np.full((2, 2), 40_000, np.uint16)), Preprocess(), NCHW)
