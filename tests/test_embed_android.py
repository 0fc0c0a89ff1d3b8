"""The Android library's names and types."""

from __future__ import annotations

import pytest

from edgekit.embed import android, kotlin, names
from edgekit.errors import UsageError
from edgekit.tensors import TensorSpec


def test_names_are_identifiers_and_distinct() -> None:
    specs = [TensorSpec(name, (1,), "float32") for name in ("serving_default_x:0", "class", "x", "X", "1st", "StatefulPartitionedCall:1", "ü")]
    found = names.parameters(specs, kotlin.KEYWORDS)
    assert found[:3] == ["servingDefaultX0", "classValue", "x"]
    assert len(set(found)) == len(found)
    assert all(name.isascii() and name.isidentifier() and name not in kotlin.KEYWORDS for name in found)
    assert names.class_name("efficientnet-lite0") == "EfficientnetLite0"


def test_text_from_a_bundle_cannot_leave_its_place() -> None:
    assert kotlin.text('a"$b\\') == '"a\\"\\$b\\\\"'
    assert "*/" not in names.comment("x */ fun evil() /* y")


def test_types_that_cannot_cross_are_refused() -> None:
    with pytest.raises(UsageError, match="half: an Android app cannot pass float16"):
        kotlin.tensor(TensorSpec("half", (1,), "float16"), "half")


@pytest.mark.parametrize("name", ["a b", "com.example.lower", "Com.Example", "com.in.Model", "com..Model", "../Model"])
def test_bad_class_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no name of a Kotlin class"):
        android._names(name, "net")
