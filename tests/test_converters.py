from __future__ import annotations

import dataclasses
import types

import numpy as np
import pytest

from edgekit import converters, formats
from edgekit import hops as seam
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.target import Tolerance
from edgekit.tensors import Signature, TensorSpec


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


@dataclasses.dataclass(frozen=True)
class Doubled:
    """A hop that doubles, or fails."""

    RESULT: str
    fails: bool = False

    def convert(self, model, folder):
        if self.fails:
            raise ConversionError("no such operator")
        return dataclasses.replace(model, format=self.RESULT, handle=model.handle + 1)


@pytest.mark.parametrize("detour_fails", [False, True])
def test_a_model_on_which_the_shortest_way_fails_takes_the_longer_one(monkeypatch, tmp_path, detour_fails):
    spec = TensorSpec("x", (1,), "float32")
    source = Model("onnx", "net", Signature((spec,), (spec,)), "0", handle=0)
    monkeypatch.setattr(converters, "route", lambda *_: (Doubled("tflite", fails=True),))
    monkeypatch.setattr(converters, "detour", lambda *_: (Doubled("torch"), Doubled("tflite", fails=detour_fails)))
    monkeypatch.setattr(formats, "session", lambda model: types.SimpleNamespace(run=dict))
    sample = {"x": np.ones(1, np.float32)}

    def made():
        return seam.convert(source, lambda samples: samples, ("tflite",), (sample,), Tolerance(max_abs=0), tmp_path, lambda *_: None)

    if detour_fails:
        with pytest.raises(ConversionError, match="no such operator"):
            made()
        return
    model, names = made()
    assert (model.handle, names) == (2, ("onnx → torch", "torch → tflite"))
    assert model.notices == ("converted by a longer way, for the shortest fails: no such operator",)


def test_whatever_fails_below_the_seam_says_what_to_do() -> None:
    def raised(error: Exception) -> ConversionError:
        with pytest.raises(ConversionError) as caught, seam.translated("a → b"):
            raise error
        return caught.value

    assert raised(RuntimeError("\n  first line\nsecond")).message == "a → b failed: RuntimeError: first line"
    assert "report it" in str(raised(RuntimeError("x")).hint)
    assert "report it" in str(raised(ConversionError("the converter lost y")).hint)
    assert raised(ConversionError("no", "do this")).hint == "do this"
