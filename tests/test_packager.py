from __future__ import annotations

import gc
import threading
import types
from pathlib import Path

import pytest

from edgekit import packager
from edgekit.errors import ConversionError

pytest.importorskip("ai_edge_litert")


def test_the_garbage_collector_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "broken.tflite").write_bytes(b"0000TFL3" + bytes(64))
    with pytest.raises(ConversionError):
        packager.package(str(tmp_path / "broken.tflite"), "android-arm64", packager.Options(out=tmp_path, rebuild=True))
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_a_toolchain_is_imported_while_calibration_files_are_read(tmp_path: Path) -> None:
    """Each of the two waits for the other to have begun; code of the user's runs alone."""
    reading, importing = threading.Event(), threading.Event()

    def toolchain() -> None:
        importing.set()
        assert reading.wait(10)

    def read() -> str:
        reading.set()
        assert importing.wait(10)
        return "samples"

    backend, source = types.SimpleNamespace(accepts=("made",), toolchain=toolchain), types.SimpleNamespace(format="given")
    files = packager.Options(calibration=str(tmp_path))
    assert packager._beside_imports(source, backend, files, read) == "samples"
    importing.clear()
    code = packager.Options(calibration="package.module:function")
    assert packager._beside_imports(source, backend, code, lambda: "alone") == "alone"
    assert not importing.is_set()
