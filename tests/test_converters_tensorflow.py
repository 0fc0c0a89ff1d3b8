from __future__ import annotations

import numpy as np
import pytest

from edgekit import formats
from edgekit.converters import route
from edgekit.errors import ConversionError

pytestmark = pytest.mark.slow  # TensorFlow takes seconds to import
pytest.importorskip("tensorflow")


def _worst(source, made, seed=4):
    rng = np.random.RandomState(seed)
    feeds = {s.name: rng.standard_normal(s.shape).astype(s.dtype) for s in source.signature.inputs}
    right, got = formats.session(source).run(feeds), formats.session(made).run(feeds)
    assert list(got) == list(right)
    return max(float(np.abs(got[name] - right[name]).max()) for name in right)


@pytest.fixture(scope="module")
def two_heads():
    import keras

    keras.utils.set_random_seed(3)
    first, second = keras.Input((4, 4, 2), name="wide"), keras.Input((4, 4, 2), name="deep")
    zed = keras.layers.Conv2D(3, 3, padding="same", name="zed")(first)
    alp = keras.layers.Conv2D(3, 3, padding="same", name="alp")(keras.layers.Add()([first, second]))
    return keras.Model([first, second], [zed, alp])


@pytest.mark.parametrize("stored", ["net.keras", "net"])
@pytest.mark.parametrize("result", ["tflite", "onnx"])
def test_names_order_layout_and_values_stay(tmp_path, two_heads, stored, result):
    two_heads.save(tmp_path / stored) if stored.endswith(".keras") else two_heads.export(tmp_path / stored, verbose=False)
    model = formats.open(str(tmp_path / stored))
    (hop,) = route(model.format, [result])
    made = hop.convert(model, tmp_path)
    assert made.signature == model.signature
    assert {s.layout for s in made.signature.inputs} == {"NHWC"}
    assert _worst(model, made) < 1e-5


def test_tflite_to_onnx_keeps_names_and_order(tmp_path, two_heads):
    two_heads.save(tmp_path / "net.keras")
    tflite = route("keras", ["tflite"])[0].convert(formats.open(str(tmp_path / "net.keras")), tmp_path)
    made = route("tflite", ["onnx"])[0].convert(tflite, tmp_path)
    assert [s.name for s in (*made.signature.inputs, *made.signature.outputs)] == ["wide", "deep", "zed", "alp"]
    assert _worst(tflite, made) < 1e-5


def test_operators_that_need_flex_are_refused_with_their_layer(tmp_path):
    import tensorflow as tf

    class Net(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([1, 3, 3], tf.float32, name="x")])
        def __call__(self, x):
            return {"y": tf.linalg.inv(x, name="solve")}

    net = Net()
    tf.saved_model.save(net, str(tmp_path / "net"), signatures=net.__call__)
    with pytest.raises(ConversionError, match=r"MatrixInverse \(layer .*solve.*\)") as error:
        route("savedmodel", ["tflite"])[0].convert(formats.open(str(tmp_path / "net")), tmp_path)
    assert "\n" not in error.value.message
    assert "Flex" in error.value.hint


def test_an_lstm_gives_the_same_at_every_call(tmp_path):
    import keras

    keras.utils.set_random_seed(1)
    keras.Sequential([keras.Input((6, 4), name="x"), keras.layers.LSTM(5)]).save(tmp_path / "lstm.keras")
    model = formats.open(str(tmp_path / "lstm.keras"))
    made = route("keras", ["tflite"])[0].convert(model, tmp_path)
    session = formats.session(made)
    feed = {"x": np.random.RandomState(0).randn(1, 6, 4).astype(np.float32)}
    right = formats.session(model).run(feed)
    for _ in range(3):
        for name, got in session.run(feed).items():
            np.testing.assert_allclose(got, right[name], atol=1e-5)
