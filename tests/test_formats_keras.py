from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from edgekit import formats
from edgekit.errors import ConversionError, UsageError
from edgekit.formats import _tf

pytestmark = pytest.mark.slow  # TensorFlow takes seconds to import
pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def two_heads():
    """Two inputs and two outputs of one shape, none in the alphabet's order."""
    import keras

    keras.utils.set_random_seed(3)
    first, second = keras.Input((4,), name="wide"), keras.Input((4,), name="deep")
    zed = keras.layers.Dense(3, name="zed")(first)
    alp = keras.layers.Dense(3, name="alp")(keras.layers.Add()([first, second]))
    return keras.Model([first, second], [zed, alp])


def _inputs(seed=0):
    rng = np.random.RandomState(seed)
    return {"wide": rng.randn(1, 4).astype(np.float32), "deep": rng.randn(1, 4).astype(np.float32)}


@pytest.mark.parametrize("name", ["net.keras", "net.h5"])
def test_files_keep_names_order_and_values(tmp_path, two_heads, name):
    two_heads.save(tmp_path / name)
    model = formats.open(str(tmp_path / name))
    assert [s.name for s in model.signature.inputs] == ["wide", "deep"]
    assert [s.name for s in model.signature.outputs] == ["zed", "alp"]
    assert "input wide: dimension 0 was dynamic and is fixed to 1" in model.notices
    feeds = _inputs()
    for got, right in zip(formats.session(model).run(feeds).values(), two_heads(list(feeds.values())), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5)


def test_a_savedmodel_is_frozen_by_signature(tmp_path, two_heads):
    two_heads.export(tmp_path / "net", verbose=False)
    model = formats.open(str(tmp_path / "net"))
    assert model.digest == formats.open(f"{tmp_path / 'net'}#serving_default").digest
    feeds = _inputs()
    outputs = formats.session(model).run({spec.name: feeds[spec.name] for spec in model.signature.inputs})
    for name, right in zip(["output_0", "output_1"], two_heads(list(feeds.values())), strict=True):
        np.testing.assert_allclose(outputs[name], right, rtol=1e-5)
    with pytest.raises(UsageError, match="no signature is called 'servin'") as error:
        formats.open(f"{tmp_path / 'net'}#servin")
    assert "#SIGNATURE" in error.value.hint


def test_an_lstm_starts_afresh_at_every_call(tmp_path):
    import keras

    keras.utils.set_random_seed(1)
    keras.Sequential([keras.Input((6, 4), name="x"), keras.layers.LSTM(5)]).save(tmp_path / "lstm.keras")
    session = formats.session(formats.open(str(tmp_path / "lstm.keras")))
    feed = {"x": np.random.RandomState(0).randn(1, 6, 4).astype(np.float32)}
    first, *later = [session.run(feed) for _ in range(3)]
    for again in later:
        np.testing.assert_array_equal(next(iter(again.values())), next(iter(first.values())))


def test_what_holds_code_is_weights_alone_or_damaged_is_refused(tmp_path, two_heads):
    import keras

    doubling = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2)])
    two_heads.save_weights(tmp_path / "only.weights.h5")
    two_heads.save(tmp_path / "net.keras")
    (tmp_path / "short.keras").write_bytes((tmp_path / "net.keras").read_bytes()[:500])
    for name in ("lambda.keras", "lambda.h5"):
        doubling.save(tmp_path / name)
        with pytest.raises(ConversionError, match="Lambda layer") as error:
            formats.open(str(tmp_path / name))
        assert "package.module:function" in error.value.hint
    for name in ("only.weights.h5", "short.keras"):
        with pytest.raises(ConversionError, match=name):
            formats.open(str(tmp_path / name))


def test_a_layer_that_keeps_its_state_is_named():
    keras = pytest.importorskip("keras")
    from edgekit.formats import keras as keras_format

    ends = keras.Input(batch_shape=(1, 3, 2))
    net = keras.Model(ends, keras.layers.LSTM(4, stateful=True, name="memory")(ends))
    with pytest.raises(ConversionError, match="the layer memory keeps state between calls"):
        keras_format.from_module(net, None, {}, "net")


def test_batch_statistics_in_a_savedmodel_are_refused(tmp_path):
    import tensorflow as tf

    class Net(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([1, 4, 4, 2], tf.float32, name="x")])
        def __call__(self, x):
            one = tf.ones([2])
            return {"y": tf.compat.v1.nn.fused_batch_norm(x, one, one, is_training=True, name="bn")[0]}

    net = Net()
    tf.saved_model.save(net, str(tmp_path / "net"), signatures=net.__call__)
    with pytest.raises(ConversionError, match=r"training mode: FusedBatchNormV3 in layer .*bn"):
        formats.open(str(tmp_path / "net"))


def test_tensorflow_after_the_htp_simulator_is_refused_not_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", types.ModuleType("onnxruntime_qnn"))
    assert _tf.tensorflow().__name__ == "tensorflow"  # it was there before
    monkeypatch.delitem(sys.modules, "tensorflow")
    with pytest.raises(ConversionError, match="after the HTP simulator"):
        _tf.tensorflow()


@pytest.fixture(scope="module")
def ends():
    """Functions of which only one can be packaged."""
    import tensorflow as tf

    class Ends(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
        def text(self, words):
            return {"length": tf.strings.length(words)}

        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32, name="x")])
        def any_rank(self, x):
            return {"y": x * 2}

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, name="x")])
        def product(self, x):
            return {"y": tf.matmul(x, tf.ones([8, 2]))}

    return Ends()


def test_signatures_that_cannot_be_packaged_are_refused_by_input(tmp_path, ends):
    import tensorflow as tf

    tf.saved_model.save(ends, str(tmp_path / "net"), signatures={"text": ends.text, "any": ends.any_rank, "product": ends.product})
    for key, shapes, words in (
        ("text", {}, "words: is of type string"),
        ("text", {"words": (1,)}, "words: is of type string"),
        ("any", {}, "x: even the number of dimensions is unknown"),
        ("product", {}, "dimensions 0, 1 are dynamic"),
        ("product", {"x": (1, 9)}, "Dimensions must be equal, but are 9 and 8"),
    ):
        with pytest.raises(ConversionError, match=words):
            formats.open(f"{tmp_path / 'net'}#{key}", shapes)
    model = formats.open(f"{tmp_path / 'net'}#product", {"x": (3, 8)})
    np.testing.assert_array_equal(formats.session(model).run({"x": np.ones((3, 8), np.float32)})["y"], np.full((3, 2), 8, np.float32))


def test_the_only_signature_needs_no_name(tmp_path, ends):
    import tensorflow as tf

    tf.saved_model.save(ends, str(tmp_path / "net"), signatures={"predict": ends.product})
    assert formats.open(str(tmp_path / "net"), {"x": (1, 8)}).name == "net"


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.filterwarnings("ignore")
def test_a_class_of_ones_own_is_named(tmp_path, suffix):
    import keras

    class Doubled(keras.layers.Layer):
        def call(self, x):
            return x * 2

    image = keras.Input((4,))
    keras.Model(image, Doubled()(image)).save(tmp_path / f"net{suffix}")
    with pytest.raises(ConversionError, match="built with the class Doubled, which only your code has") as error:
        formats.open(str(tmp_path / f"net{suffix}"))
    assert "package.module:function" in error.value.hint


def test_a_variable_without_a_value_is_named(tmp_path):
    import tensorflow as tf

    one = tf.compat.v1
    with tf.Graph().as_default(), one.Session() as running:
        x = one.placeholder(tf.float32, [1, 4], name="x")
        weight, gain = one.get_variable("weight", [4, 3]), one.get_variable("gain", [3])
        ends = one.saved_model.predict_signature_def({"x": x}, {"y": tf.matmul(x, weight) * gain})
        running.run(weight.initializer)
        builder = one.saved_model.Builder(str(tmp_path / "net"))
        builder.add_meta_graph_and_variables(running, ["serve"], {"serving_default": ends}, saver=one.train.Saver([weight]))
        builder.save()
    with pytest.raises(ConversionError, match="the variable gain has no value"):
        formats.open(str(tmp_path / "net"))
