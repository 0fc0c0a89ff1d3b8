from __future__ import annotations

import gc
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
