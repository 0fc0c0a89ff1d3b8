"""Files with several signatures, and names with a hash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgekit import formats
from edgekit.errors import UsageError
from edgekit.formats import tflite, tflite_flatbuffer
from tests.e2e import models


def two_signatures(path: Path) -> Path:
    """Two dense networks in one file: `first` takes 16 values, `second` 8 and is the file's second graph."""
    one, two = (tflite_flatbuffer.load(models.dense(path.with_name(f"{n}.tflite"), (n, 4)).read_bytes()) for n in (16, 8))
    graph = two.subgraphs[0]
    for tensor in graph.tensors:
        tensor.buffer += len(one.buffers)
    for operator in graph.operators:
        operator.opcodeIndex += len(one.operatorCodes)
    one.subgraphs.append(graph)
    one.buffers, one.operatorCodes = [*one.buffers, *two.buffers], [*one.operatorCodes, *two.operatorCodes]
    one.signatureDefs = [*one.signatureDefs, *two.signatureDefs]
    for number, key in enumerate((b"first", b"second")):
        one.signatureDefs[number].signatureKey, one.signatureDefs[number].subgraphIndex = key, number
    path.write_bytes(tflite_flatbuffer.dump(one))
    return path


def test_one_signature_of_several_is_taken_by_name(tmp_path: Path) -> None:
    path = two_signatures(tmp_path / "both.tflite")
    for key, size in (("", 16), ("#first", 16), ("#second", 8)):
        model = formats.open(f"{path}{key}")
        assert model.name == "both" + key.replace("#", "-")
        x = np.random.RandomState(0).randn(1, size).astype(np.float32)
        right = formats.session(formats.open(str(tmp_path / f"{size}.tflite"))).run({"x": x})["scores"]
        np.testing.assert_array_equal(formats.session(model).run({"x": x})["scores"], right)
        assert len(tflite.graph(model).operators) == 1
        assert any("first, second" in notice for notice in model.notices)
    with pytest.raises(UsageError, match="no signature is called 'secnd'") as error:
        formats.open(f"{path}#secnd")
    assert "did you mean second?" in str(error.value.hint)


def test_a_hash_in_a_name_is_a_name(tmp_path: Path) -> None:
    path = models.dense(tmp_path / "net#2.tflite")
    assert formats.open(str(path)).name == "net#2"
    with pytest.raises(UsageError, match=r"\.keras files have no signatures"):
        (tmp_path / "net.keras").touch()
        formats.open(f"{tmp_path / 'net.keras'}#part")
