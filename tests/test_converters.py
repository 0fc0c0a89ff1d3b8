from __future__ import annotations

import pytest

from edgekit import converters
from edgekit import hops as seam
from edgekit.errors import ConversionError


def _names(source, accepts):
    return [hop.__name__.rpartition(".")[2] for hop in converters.route(source, accepts)]


@pytest.mark.parametrize(("source", "accepts", "hops"), [
    ("tflite", ("tflite",), []),
    ("torch", ("tflite",), ["torch_to_litert"]),
    ("torch", ("onnx", "tflite"), ["torch_to_onnx"]),
    ("onnx", ("tflite", "onnx"), []),
    ("keras", ("onnx",), ["keras_to_onnx"]),
    ("savedmodel", ("tflite",), ["savedmodel_to_litert"]),
])
def test_the_shortest_chain_is_taken(source, accepts, hops):
    assert _names(source, accepts) == hops


def test_every_hop_says_what_it_turns_into_what():
    for (source, result), name in converters.HOPS.items():
        (hop,) = converters.route(source, [result])
        assert (hop.SOURCE, hop.RESULT, hop.__name__) == (source, result, f"edgekit.converters.{name}")


def test_no_way_is_an_error_with_a_reason():
    with pytest.raises(ConversionError, match="no way from mlprogram to tflite or onnx"):
        converters.route("mlprogram", ["tflite", "onnx"])


def test_whatever_fails_below_the_seam_says_what_to_do() -> None:
    def raised(error: Exception) -> ConversionError:
        with pytest.raises(ConversionError) as caught, seam.translated("a → b"):
            raise error
        return caught.value

    assert raised(RuntimeError("\n  first line\nsecond")).message == "a → b failed: RuntimeError: first line"
    assert "report it" in str(raised(RuntimeError("x")).hint)
    assert "report it" in str(raised(ConversionError("the converter lost y")).hint)
    assert raised(ConversionError("no", "do this")).hint == "do this"
