"""What samples are refused or noted for: values, types, shapes and ranges that the model or its preprocessing contradict."""

from __future__ import annotations

import numpy as np
import pytest

from edgekit import calibration
from edgekit.preprocess import Preprocess
from edgekit.tensors import Signature, TensorSpec
from tests.calibration_files import IMAGE, ONE, TWO, X, arrays, refusal, values


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_are_refused_by_file_name(tmp_path, bad):
    broken = values(1)
    broken[0, 2, 3] = bad
    np.save(arrays(tmp_path) / "01.npy", broken)
    assert "01.npy: x has 1 values that are not finite, first at [0, 2, 3]" in refusal(tmp_path)


def test_values_beyond_the_type_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.full((1, 4, 6), 1e300))
    assert "a.npy: x has the value 1e+300, which float32 cannot hold" in refusal(tmp_path)


def test_a_mixed_up_layout_is_recognized(tmp_path):
    np.save(tmp_path / "a.npy", values(1, (1, 8, 8, 3)))
    assert "looks like NHWC, the model takes NCHW" in refusal(tmp_path, IMAGE)
    np.save(tmp_path / "a.npy", values(1, (3, 8, 8)))
    assert "looks like NCHW, the model takes NHWC" in refusal(tmp_path, Signature((TensorSpec("image", (1, 8, 8, 3), "float32"),), ()))


def test_varying_lengths_are_refused_unless_the_model_takes_them(tmp_path):
    for i, steps in enumerate((3, 6, 4)):
        np.save(tmp_path / f"{i}.npy", values(i, (1, steps, 4)))
    text = refusal(tmp_path, Signature((TensorSpec("x", (1, 3, 4), "float32"),), ()))
    assert "1.npy: x has the shape [1, 6, 4], the model takes [1, 3, 4]" in text
    assert "vary in length" in text
    dynamic = calibration.load(str(tmp_path), Signature((TensorSpec("x", (1, -1, 4), "float32"),), ()))
    assert [sample["x"].shape[1] for sample in dynamic.samples] == [3, 6, 4]


def test_types(tmp_path):
    tokens = Signature((TensorSpec("ids", (1, 4), "int32"),), ())
    np.save(tmp_path / "a.npy", np.array([[0, 5, 7, 2**31 - 1]]))
    assert calibration.load(str(tmp_path), tokens).samples[0]["ids"].dtype == np.int32
    np.save(tmp_path / "a.npy", np.array([[0, 5, 7, 2**31]]))
    assert "int32 cannot hold" in refusal(tmp_path, tokens)
    np.save(tmp_path / "a.npy", np.array([[0.5, 1, 2, 3]]))
    assert "has fractions" in refusal(tmp_path, tokens)
    np.save(tmp_path / "a.npy", np.array([["a", "b", "c", "d"]]))
    assert "type <U1" in refusal(tmp_path, tokens)


def test_quantized_inputs_take_real_or_stored_values(tmp_path):
    spec = TensorSpec("x", (1, 4), "int8", scale=0.5, zero_point=-2)
    np.save(tmp_path / "a.npy", np.array([[-2, 0, 2, 127]], np.int8))
    np.save(tmp_path / "b.npy", np.array([[0, 1, 2, 64.5]]))
    first, second = calibration.load(str(tmp_path), Signature((spec,), ())).samples
    assert first["x"].dtype == np.float32
    assert np.array_equal(first["x"], second["x"])


def test_missing_and_misspelled_inputs(tmp_path):
    np.savez(tmp_path / "a.npz", X=values(1), rates=1)
    assert "a.npz: no array for the input 'x'" in refusal(tmp_path, TWO)
    np.savez(tmp_path / "a.npz", x=values(1), rates=1)
    assert "'rate'; the model takes x, rate | did you mean rates?" in refusal(tmp_path, TWO)


def test_constant_samples(tmp_path):
    np.save(arrays(tmp_path) / "01.npy", np.zeros((1, 4, 6), np.float32))
    assert calibration.load(str(tmp_path), ONE).notices == ("x: constant in 01.npy",)
    for i in (0, 2):
        np.save(tmp_path / f"{i:02d}.npy", np.full((1, 4, 6), i, np.float32))
    assert "00.npy, 01.npy, 02.npy: every sample is constant" in refusal(tmp_path)


def test_a_state_that_is_always_zero_is_only_noted(tmp_path):
    stateful = Signature((X, TensorSpec("state", (2, 8), "float32")), ())
    np.savez(tmp_path / "all.npz", x=values(1, (3, 4, 6)), state=np.zeros((2, 8)))
    assert calibration.load(str(tmp_path / "all.npz"), stateful).notices == ("state: always constant",)


def test_repeated_samples(tmp_path):
    np.save(arrays(tmp_path) / "02.npy", values(0))
    assert calibration.load(str(tmp_path), ONE).notices == ("identical samples: 02.npy = 00.npy",)
    np.save(tmp_path / "01.npy", values(0))
    assert calibration.load(str(tmp_path), ONE).notices == ("all 3 samples are identical: only one counts",)


def test_a_range_that_contradicts_the_statement(tmp_path):
    stated = Preprocess(mean=(0.5,), std=(0.5,))
    raw = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", raw[0])
    text = refusal(tmp_path, IMAGE, stated)
    assert "a.npy: values from 0 to 25" in text
    assert "the stated preprocessing gives -1 to 1" in text
    np.save(tmp_path / "a.npy", raw[:2] / 255 * 2.6 - 1)
    assert "values beyond what stated preprocessing gives -1 to 1: a.npy[0], a.npy[1]" in calibration.load(str(tmp_path), IMAGE, stated).notices
    np.save(tmp_path / "a.npy", raw[:2] / 255)
    notices = calibration.load(str(tmp_path), IMAGE, Preprocess(scale=1)).notices
    assert notices == ("all values lie within 1, but the stated preprocessing gives 0 to 255",)


def test_raw_pixels_among_prepared_samples(tmp_path):
    arrays(tmp_path)
    np.save(tmp_path / "01.npy", np.random.default_rng(0).integers(0, 256, (1, 4, 6)).astype(np.float32))
    text = refusal(tmp_path)
    assert text.startswith("01.npy: values from ")
    assert "like raw pixels, but 00.npy from -" in text


def test_an_odd_sample_is_named(tmp_path):
    np.save(arrays(tmp_path, 5) / "03.npy", values(3) * 1000)
    assert calibration.load(str(tmp_path), ONE).notices == ("values more than 32 times larger than usual: 03.npy",)


def test_raw_pixels_throughout_are_noted(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8), np.uint8))
    assert "like raw pixels" in calibration.load(str(tmp_path / "a.npy"), IMAGE).notices[0]
