"""ONNX operators translated to PyTorch, each against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit import formats
from edgekit.converters import onnx_to_torch, route
from edgekit.errors import ConversionError

pytestmark = pytest.mark.slow

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

RNG = np.random.default_rng(0)


def weights(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


CASES: dict[str, tuple[str, tuple[int, ...], list[Any], dict[str, Any], int]] = {
    "conv same": ("Conv", (1, 4, 7, 8), [weights(6, 2, 3, 3), weights(6)], {"auto_pad": "SAME_UPPER", "strides": [2, 2], "group": 2}, 1),
    "conv uneven": ("Conv", (1, 4, 7, 8), [weights(6, 4, 3, 3)], {"pads": [0, 1, 2, 1], "dilations": [1, 2]}, 1),
    "conv 1d": ("Conv", (1, 4, 9), [weights(6, 4, 3)], {"pads": [1, 1]}, 1),
    "transposed": ("ConvTranspose", (1, 4, 5, 5), [weights(4, 3, 3, 3)], {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}, 1),
    "max pool": ("MaxPool", (1, 3, 8, 9), [], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, 1),
    "average pool": ("AveragePool", (1, 3, 8, 9), [], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, 1),
    "gemm": ("Gemm", (3, 5), [weights(4, 5), weights(4)], {"transB": 1, "alpha": 0.5, "beta": 2.0}, 1),
    "layer norm": ("LayerNormalization", (2, 3, 8), [weights(8), weights(8)], {"axis": -1}, 1),
    "pad reflect": ("Pad", (1, 2, 5, 6), [ints(0, 0, 1, 2, 0, 0, 2, 1)], {"mode": "reflect"}, 1),
    "pad constant": ("Pad", (2, 5), [ints(1, 0, 0, 2), np.array(0.5, np.float32)], {}, 1),
    "slice": ("Slice", (2, 6, 5), [ints(-1, 1), ints(-7, 5), ints(1, 2), ints(-1, 2)], {}, 1),
    "split": ("Split", (2, 6), [ints(1, 5)], {"axis": 1}, 2),
    "gather": ("Gather", (4, 5), [ints(0, -1, 2)], {"axis": 0}, 1),
    "resize": ("Resize", (1, 2, 4, 5), [np.array([], np.float32), np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"}, 1),
    "resize of channels": ("Resize", (1, 2, 4, 5), [np.array([], np.float32), np.array([1, 2, 2, 2], np.float32)], {"nearest_mode": "floor"}, 1),
    "reduce": ("ReduceMean", (2, 3, 4), [], {"axes": [1, 2], "keepdims": 0}, 1),
    "unsqueeze": ("Unsqueeze", (2, 3), [ints(0, 3)], {}, 1),
    "prelu": ("PRelu", (1, 4, 3, 3), [weights(4, 1, 1)], {}, 1),
    "transpose": ("Transpose", (2, 3, 4), [], {"perm": [2, 0, 1]}, 1),
    "clip": ("Clip", (3, 4), [np.array(-0.5, np.float32), np.array(0.7, np.float32)], {}, 1),
    "hard swish": ("HardSwish", (3, 4), [], {}, 1),
}


def saved(folder: Path, kind: str, shape: tuple[int, ...], constants: list[Any], attributes: dict[str, Any], outputs: int) -> str:
    names = [f"c{i}" for i in range(len(constants))]
    node = helper.make_node(kind, ["x", *names], [f"y{i}" for i in range(outputs)], name="layer", **attributes)
    ends = [helper.make_tensor_value_info("x", 1, shape)], [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(outputs)]
    graph = helper.make_graph([node], "g", *ends, [numpy_helper.from_array(c, n) for c, n in zip(constants, names, strict=True)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "m.onnx")
    return str(folder / "m.onnx")


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_onnx_runtime_does(name: str, tmp_path: Path) -> None:
    source = formats.open(saved(tmp_path, *CASES[name]))
    made = onnx_to_torch.convert(source, tmp_path)
    x = np.random.default_rng(1).normal(size=CASES[name][1]).astype(np.float32)
    wanted, got = (formats.session(model).run({"x": x}) for model in (source, made))
    assert list(got) == list(wanted)
    for output in wanted:
        np.testing.assert_allclose(got[output], wanted[output], rtol=1e-5, atol=1e-5)


def test_an_operator_without_translation_is_named(tmp_path: Path) -> None:
    source = formats.open(saved(tmp_path, "Det", (3, 3), [], {}, 1))
    with pytest.raises(ConversionError, match="Det in layer layer has no translation"):
        onnx_to_torch.convert(source, tmp_path)


def test_onnx_and_litert_reach_core_ml_by_way_of_pytorch() -> None:
    for source, hops in (("onnx", ["torch", "mlprogram"]), ("tflite", ["onnx", "torch", "mlprogram"]), ("keras", ["mlprogram"])):
        assert [hop.RESULT for hop in route(source, ("mlprogram",))] == hops
