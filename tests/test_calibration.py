"""Every kind of source, what it is refused for, and that the same data always gives the same samples."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from PIL import Image

from edgekit import calibration, preprocess
from edgekit.calibration import Calibration
from edgekit.errors import UsageError
from edgekit.preprocess import Preprocess
from edgekit.tensors import Signature, TensorSpec
from tests.calibration_files import IMAGE, ONE, TWO, X, arrays, pictures, refusal, values


def test_a_folder_of_npy(tmp_path):
    found = calibration.load(str(arrays(tmp_path)), ONE)
    assert found.names == ("00.npy", "01.npy", "02.npy")
    assert found.notices == ()
    for i, sample in enumerate(found.samples):
        assert np.array_equal(sample["x"], values(i))


def test_arrays_without_the_batch_axis_get_it(tmp_path):
    assert calibration.load(str(arrays(tmp_path, shape=(4, 6))), ONE).samples[0]["x"].shape == (1, 4, 6)


def test_files_are_taken_in_sorted_order_whatever_the_order_of_writing(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("c.npy", "b/z.npy", "a.npy"):
        np.save(tmp_path / name, values(ord(name[0])))
    np.save(tmp_path / ".hidden.npy", values(9, (7,)))
    assert calibration.load(str(tmp_path), ONE).names == ("a.npy", "b/z.npy", "c.npy")


def test_a_folder_of_npz_with_several_inputs(tmp_path):
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=values(i), rate=np.int64(16000 + i), label=3)
    found = calibration.load(str(tmp_path), TWO)
    assert [int(sample["rate"]) for sample in found.samples] == [16000, 16001]
    assert found.samples[0]["rate"].dtype == np.int64
    assert set(found.samples[0]) == {"x", "rate"}


@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 1, 4, 6)])
def test_one_npz_is_split_along_its_leading_axis(tmp_path, shape):
    stacked = values(1, shape)
    np.savez(tmp_path / "all.npz", x=stacked, rate=16000)
    found = calibration.load(str(tmp_path / "all.npz"), TWO)
    assert found.names == tuple(f"all.npz[{i}]" for i in range(5))
    assert np.array_equal(found.samples[3]["x"], stacked[3].reshape(1, 4, 6))
    assert [int(sample["rate"]) for sample in found.samples] == [16000] * 5


def test_an_array_of_the_exact_shape_is_one_sample(tmp_path):
    np.savez_compressed(tmp_path / "one.npz", anything=values(1))
    found = calibration.load(str(tmp_path / "one.npz"), ONE)
    assert len(found.samples) == 1
    assert found.notices == ("a single sample: its range stands for all that will ever come",)


def test_a_batch_of_more_than_one_is_not_split_by_guess(tmp_path):
    batched = Signature((TensorSpec("x", (2, 4), "float32"),), ())
    np.save(tmp_path / "a.npy", values(1, (3, 2, 4)))
    assert len(calibration.load(str(tmp_path / "a.npy"), batched).samples) == 3
    np.save(tmp_path / "a.npy", values(1, (6, 4)))
    assert "shape [6, 4], the model takes [2, 4]" in refusal(tmp_path / "a.npy", batched)


def test_stacks_of_different_lengths_are_refused(tmp_path):
    two = Signature((X, TensorSpec("y", (1, 2), "float32")), ())
    np.savez(tmp_path / "all.npz", x=values(1, (5, 4, 6)), y=values(2, (3, 2)))
    assert "different numbers of samples: x 5, y 3" in refusal(tmp_path / "all.npz", two)


def test_a_function(tmp_path, monkeypatch):
    (tmp_path / "feeds_a.py").write_text(
        "import numpy as np\n"
        "def arrays():\n    for i in range(3): yield np.full((4, 6), i, np.float64) + np.arange(6)\n"
        "def dicts():\n    yield {'x': np.arange(24.).reshape(1, 4, 6), 'rate': 8000}\n"
        "def pairs():\n    yield np.arange(24.).reshape(1, 4, 6), np.int64(8000)\n"
        "def endless():\n    i = 0\n    while True:\n        i += 1\n        yield np.arange(24.).reshape(4, 6) / i\n"
        "def broken():\n    raise KeyError('no such file')\n"
        "def words():\n    yield 'hello'\n"
        "def none():\n    return []\n"
    )
    monkeypatch.chdir(tmp_path)
    found = calibration.load("feeds_a:arrays", ONE)
    assert found.names[2] == "feeds_a:arrays[2]"
    assert found.samples[2]["x"].dtype == np.float32
    assert int(calibration.load("feeds_a:dicts", TWO).samples[0]["rate"]) == 8000
    assert int(calibration.load("feeds_a:pairs", TWO).samples[0]["rate"]) == 8000
    assert len(calibration.load("feeds_a:endless", ONE, limit=7).samples) == 7
    assert "KeyError: 'no such file'" in refusal("feeds_a:broken")
    assert "feeds_a:words[0] is a str" in refusal("feeds_a:words")
    assert "no calibration samples" in refusal("feeds_a:none")
    assert "did you mean arrays?" in refusal("feeds_a:arays")
    assert "cannot import feeds_q" in refusal("feeds_q:arrays")


def test_a_folder_of_images_is_preprocessed_as_stated(tmp_path):
    stated = preprocess.parse("resize=8x8,mean=0.5,std=0.5")
    found = calibration.load(str(pictures(tmp_path)), IMAGE, stated)
    pixels = np.asarray(Image.open(tmp_path / "01.png"), np.float64)
    np.testing.assert_allclose(found.samples[1]["image"][0], ((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1), rtol=1e-6)
    assert found.notices == ()


def test_a_scale_that_leaves_nothing_of_whole_pixels_is_refused(tmp_path):
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(tmp_path / "a.png")
    whole = Signature((TensorSpec("x", (1, 8, 8, 3), "uint8", layout="NHWC"),), ())
    with pytest.raises(UsageError, match="takes uint8, but the stated preprocessing gives 0 to 1") as caught:
        calibration.load(str(tmp_path), whole, preprocess.parse("resize=8x8"))
    assert "scale=1" in caught.value.hint
    kept = calibration.load(str(tmp_path), whole, preprocess.parse("resize=8x8,scale=1")).samples[0]["x"]
    np.testing.assert_array_equal(kept.ravel(), np.arange(192))


def test_images_without_a_statement_are_stretched_and_say_so(tmp_path):
    found = calibration.load(str(pictures(tmp_path, size=(20, 11))), IMAGE)
    assert found.samples[0]["image"].shape == (1, 3, 8, 8)
    assert "no --preprocess" in found.notices[0]


def test_the_same_data_gives_the_same_bytes(tmp_path):
    folder = pictures(tmp_path, 5, (30, 20))
    first, second = (calibration.load(str(folder), IMAGE, Preprocess(resize=10, crop=8), limit=3) for _ in range(2))
    assert [s["image"].tobytes() for s in first.samples] == [s["image"].tobytes() for s in second.samples]
    assert first.names == ("00.png", "02.png", "04.png")
    assert "3 of 5 files were taken, evenly spaced" in first.notices


def test_what_is_no_source(tmp_path):
    assert "no such calibration data" in refusal(tmp_path / "nowhere")
    assert "no images and no .npy" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert "holds no samples" in refusal(tmp_path / "notes.txt")
    pictures(arrays(tmp_path))
    assert "both images (00.png) and arrays (00.npy)" in refusal(tmp_path)


def test_an_image_is_turned_as_its_camera_says(tmp_path):
    """Orientation 6: the camera was turned a quarter to the right; the viewer turns the pixels clockwise."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    Image.fromarray(pixels).save(tmp_path / "b.png")
    found = calibration.load(str(tmp_path), IMAGE, Preprocess(scale=1.0))
    np.testing.assert_array_equal(found.samples[0]["image"][0], np.rot90(pixels, -1).transpose(2, 0, 1))
    np.testing.assert_array_equal(found.samples[1]["image"][0], pixels.transpose(2, 0, 1))
    assert "1 images are turned upright, as their EXIF orientation says (a.png)" in found.notices


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_dropped_and_told(tmp_path, mode):
    for name in ("a", "b"):
        picture = Image.fromarray(np.random.default_rng(ord(name)).integers(0, 256, (8, 8, 4), np.uint8), "RGBA").convert(mode)
        picture.save(tmp_path / f"{name}.png", **({"transparency": 3} if mode == "P" else {}))
    found = calibration.load(str(tmp_path), IMAGE, Preprocess(scale=1.0))
    assert any(notice.startswith("2 images have transparency, which is dropped") and "(a.png, ...)" in notice for notice in found.notices)
    with Image.open(tmp_path / "a.png") as picture:
        np.testing.assert_array_equal(found.samples[0]["image"][0], np.asarray(picture.convert("RGB")).transpose(2, 0, 1))


def test_images_for_several_inputs_are_refused(tmp_path):
    assert "the model has 2: x, rate" in refusal(pictures(tmp_path), TWO, Preprocess())


def test_other_files_are_counted(tmp_path):
    (arrays(tmp_path) / "labels.txt").write_text("0 1 2")
    assert "1 other files" in calibration.load(str(tmp_path), ONE).notices[0]


def test_pickled_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"x": 1}], dtype=object))
    assert "a.npy: not a readable .npy file" in refusal(tmp_path)
    (tmp_path / "a.npy").unlink()
    np.savez(tmp_path / "a.npz", x=np.array([print], dtype=object))
    assert "a.npz: not a readable .npz file" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.png"])
def test_damaged_files_are_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert f"{name}: not a readable" in refusal(tmp_path, IMAGE)
    whole = tmp_path / name
    if name == "a.png":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)).save(whole)
    else:
        (np.save if name == "a.npy" else np.savez)(whole, values(1))
    whole.write_bytes(whole.read_bytes()[:-60])
    assert f"{name}: not a readable" in refusal(tmp_path, IMAGE if name == "a.png" else ONE)


def test_an_image_bomb_is_refused_before_it_is_decoded(tmp_path):
    Image.new("1", (12_000, 12_000)).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size < 100_000
    assert "a.png: an image of 12000x12000 pixels" in refusal(tmp_path, IMAGE)


def test_an_array_bomb_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration.sources, "MOST_BYTES", 10_000)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((200, 4, 6), np.float32))
    assert "a.npz: 19328 bytes of arrays" in refusal(tmp_path)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("evil.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }".ljust(128))
    monkeypatch.setattr(calibration.sources, "MOST_BYTES", 10**6)
    assert "a.npz: not a readable" in refusal(tmp_path)


def test_random_samples_are_frozen():
    signature = Signature((X, TensorSpec("b", (300,), "uint8"), TensorSpec("ids", (50,), "int64"), TensorSpec("mask", (50,), "bool")), ())
    first, second = calibration.random_samples(signature, 2, 7)
    again = calibration.random_samples(signature, 2, 7)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip((first, second), again, strict=True) for k in a)
    assert not np.array_equal(first["x"], second["x"])
    assert np.array_equal(first["x"].ravel(), np.random.RandomState(7).standard_normal(24).astype(np.float32))
    assert [first[k].dtype for k in first] == [np.float32, np.uint8, np.int64, np.bool_]
    assert first["b"].max() > 200
    assert set(first["ids"]) == {0, 1}


def test_random_samples_of_a_quantized_input_cover_what_it_stores():
    spec = TensorSpec("x", (1000,), "int8", scale=0.1, zero_point=28)
    (sample,) = calibration.random_samples(Signature((spec,), ()), 1, 0)
    assert sample["x"].dtype == np.float32
    assert -15.6 - 1e-5 <= sample["x"].min() < -15
    assert 9.4 < sample["x"].max() <= 9.9 + 1e-5


def test_random_samples_need_static_shapes():
    with pytest.raises(UsageError, match=r"\[1, -1\] is not static"):
        calibration.random_samples(Signature((TensorSpec("x", (1, -1), "float32"),), ()), 1, 0)


@pytest.mark.parametrize(("count", "holdout"), [(2, 1), (10, 3), (7, 100), (256, 64), (5, 0)])
def test_split(count, holdout):
    whole = Calibration(tuple({"x": np.array([i])} for i in range(count)), tuple(map(str, range(count))))
    train, held = calibration.split(whole, holdout)
    assert len(held.names) == max(1, min(holdout, count - 1))
    assert sorted(map(int, train.names + held.names)) == list(range(count))
    assert train.names
    assert [int(sample["x"][0]) for sample in held.samples] == [int(name) for name in held.names]


def test_a_single_sample_is_on_both_sides_and_says_so():
    train, held = calibration.split(Calibration(({"x": np.zeros(1)},), ("a",)), 1)
    assert train.names == held.names == ("a",)
    assert "too good" in held.notices[0]
