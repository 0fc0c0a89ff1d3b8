from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgekit import fingerprint, repeats


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprint, "_UNSTABLE", ("/proc/",))


def test_a_folder_is_known_by_names_and_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.npy").write_bytes(b"1")
    (folder / "sub" / "b.npy").write_bytes(b"2")
    before = fingerprint.of_reference(str(folder))
    os.utime(folder / "a.npy", (1, 1))
    assert fingerprint.of_reference(str(folder)) == before
    (folder / "a.npy").rename(folder / "c.npy")
    assert fingerprint.of_reference(str(folder)) != before


def test_external_weights_count(tmp_path: Path) -> None:
    import numpy as np
    from onnx import helper, numpy_helper, save

    model, weights = tmp_path / "m.onnx", tmp_path / "sub" / "weights of m.bin"
    weights.parent.mkdir()
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(np.arange(8, dtype="float32"), "w")])
    save(helper.make_model(graph), model, save_as_external_data=True, location="sub/weights of m.bin", size_threshold=0)
    before = fingerprint.of_reference(str(model))
    assert fingerprint.of_reference(str(model)) == before
    weights.write_bytes(b"\0" * 32)
    assert fingerprint.of_reference(str(model)) != before


def test_a_function_is_known_by_the_files_it_opened(tmp_path: Path) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"1")
    assert fingerprint.of_reference("some.module:build") is None
    with fingerprint.recording("some.module:build"):
        weights.read_bytes()
        (tmp_path / "written.txt").write_text("not a dependency")
    first = fingerprint.of_reference("some.module:build")
    assert first is not None
    (tmp_path / "written.txt").write_text("changed")
    assert fingerprint.of_reference("some.module:build") == first
    weights.write_bytes(b"12")
    assert fingerprint.of_reference("some.module:build") is None


def test_a_repeat_is_found_only_while_its_bundle_is_untouched(tmp_path: Path) -> None:
    model, bundle = tmp_path / "m.tflite", tmp_path / "m.edgekit"
    model.write_bytes(b"model")
    bundle.write_bytes(b"bundle")
    key = repeats.key(str(model), None, "settings")
    assert repeats.find(key) is None
    repeats.remember(key, bundle)
    assert repeats.find(repeats.key(str(model), None, "settings")) == bundle.resolve()
    assert repeats.find(repeats.key(str(model), None, "other settings")) is None
    bundle.write_bytes(b"tampered")
    assert repeats.find(key) is None


def test_a_damaged_record_only_forgets(tmp_path: Path) -> None:
    (tmp_path / "m.edgekit").write_bytes(b"bundle")
    with fingerprint.recording("module:function"):
        pass
    repeats.remember("build", tmp_path / "m.edgekit")
    for record in (tmp_path / "cache").rglob("*.json"):
        record.write_bytes(record.read_bytes()[:5])
    assert repeats.find("build") is None and fingerprint.of_reference("module:function") is None


def test_a_cache_that_cannot_be_written_only_forgets(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    (tmp_path / "m.edgekit").write_bytes(b"bundle")
    (tmp_path / "m.tflite").write_bytes(b"model")
    build = repeats.key(str(tmp_path / "m.tflite"), None)
    with fingerprint.recording("module:function"):
        pass
    repeats.remember(build, tmp_path / "m.edgekit")
    assert repeats.find(build) is None and fingerprint.of_reference("module:function") is None
