"""Rewrite rules of the ONNX family: each has a form that it matches, a near miss that it leaves alone, and equal values before and after."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from edgekit import formats
from edgekit.formats import onnx as onnx_format
from edgekit.legalize import (
    onnx_functions,
    onnx_fuse,
    onnx_norms,
    onnx_places,
    onnx_prepare,
    onnx_rank,
    onnx_resize,
    onnx_rules,
    onnx_split,
    onnx_windows,
)
from edgekit.qdq import protos

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

MODULES = (onnx_fuse, onnx_split, onnx_norms, onnx_resize, onnx_windows, onnx_places, onnx_rank)
RULES = {rule.name: rule for rule in reversed([rule for module in MODULES for rule in module.RULES])}
F = np.float32


@dataclasses.dataclass(frozen=True)
class Case:
    """A rule's example: `body` computes y from x; `near` is what must stay. `gone` operators are replaced by `made`."""

    rule: str
    body: str
    gone: str
    made: str
    near: str
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    shape: str = "1, 4, 6, 6"
    opset: int = 17


ERF = "d = Div (x, root) e = Erf (d) a = Add (e, one)"
RAMP = "a = Add (x, three) c = Clip (a, low, high)"
GELU = {"root": F(2**0.5), "inverse": F(0.5**0.5), "one": F(1), "half": F(0.5), "other": F(0.7)}
SIX = {"three": F(3), "low": F(0), "high": F(6), "six": F(6), "sixth": F(1 / 6), "four": F(4)}
NORM = {"eps": F(1e-5), "two": F(2), "g": np.linspace(0.5, 2, 6).astype(F), "b": np.linspace(-1, 1, 6).astype(F)}
CHANNELS = {name: np.linspace(0.4, 1.6, 4).astype(F) for name in ("scale", "bias", "mean", "var")}
LAYER = "m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Pow (d, two) v = ReduceMean <axes = [-1]> (q) w = Add (v, eps) s = Sqrt (w)"

KERNELS = {"k": np.random.default_rng(2).standard_normal((4, 2, 3, 3)).astype(F), "b2": np.array([1, -2], F)}
SCATTER = {"places": np.array([[[[0, 1, 2], [5, -2, 0]]] * 2]).reshape(1, 2, 2, 3), "news": np.linspace(-9, 9, 12).reshape(1, 2, 2, 3).astype(F)}

CASES = [
    Case("gelu", f"{ERF} h = Mul (x, half) y = Mul (h, a)", "Erf", "Gelu", f"{ERF} h = Mul (x, other) y = Mul (h, a)", GELU),
    Case("gelu", f"{ERF} h = Mul (x, a) y = Mul (h, half)", "Erf", "Gelu", f"{ERF} h = Mul (x, x) k = Mul (h, a) y = Mul (k, half)", GELU),
    Case("gelu", "d = Mul (x, inverse) e = Erf (d) a = Add (one, e) h = Mul (half, a) y = Mul (x, h)", "Erf", "Gelu",
         "d = Mul (x, root) e = Erf (d) a = Add (one, e) h = Mul (half, a) y = Mul (x, h)", GELU),
    Case("softplus", "e = Exp (x) a = Add (e, one) y = Log (a)", "Exp", "Softplus", "e = Exp (x) a = Add (e, half) y = Log (a)", GELU),
    Case("hard-sigmoid", f"{RAMP} y = Div (c, six)", "Clip", "HardSigmoid", f"{RAMP} y = Div (c, four)", SIX),
    Case("hard-swish", f"{RAMP} p = Mul (x, c) y = Div (p, six)", "Clip", "HardSwish", f"{RAMP} p = Mul (a, c) y = Div (p, six)", SIX),
    Case("hard-swish", f"{RAMP} p = Mul (c, x) y = Mul (p, sixth)", "Clip", "HardSwish", f"{RAMP} p = Mul (c, x) y = Mul (p, six)", SIX),
    Case("hard-swish-gate", "g = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, g)", "HardSigmoid", "HardSwish",
         "g = HardSigmoid (x) y = Mul (x, g)"),
    Case("max-infinity", "a = Max (low, x) y = Abs (a)", "Max", "Identity", "a = Max (x, high) y = Abs (a)", {"low": F(-np.inf), "high": F(np.inf)}),
    Case("min-infinity", "a = Min (x, high) y = Abs (a)", "Min", "Identity", "a = Min (x, x) y = Abs (a)", {"high": F(np.inf)}),
    Case("clip", "a = Min (x, six) y = Max (low, a)", "Min", "Clip", "a = Min (x, low) y = Max (six, a)", SIX),
    Case("clip", "a = Max (x, low) y = Min (a, six)", "Min", "Clip", "a = Max (x, x) y = Min (a, six)", SIX),
    Case("div-chain", "d = Div (x, four) y = Div (d, six)", "Div", "Mul", "d = Div (x, four) y = Div (six, d)", SIX),
    Case("layer-norm", f"{LAYER} y = Div (d, s)", "ReduceMean", "LayerNormalization",
         f"{LAYER.replace('(d, two)', '(x, two)')} y = Div (d, s)", NORM),
    Case("layer-norm", f"{LAYER.replace('Pow (d, two)', 'Mul (d, d)')} y = Div (d, s)", "ReduceMean", "LayerNormalization",
         f"{LAYER.replace('[-1]', '[1]')} y = Div (d, s)", NORM),
    Case("layer-norm-affine", "n = LayerNormalization (x, ones) p = Mul (n, g) y = Add (p, b)", "Mul", "LayerNormalization",
         "n = LayerNormalization (x, g) p = Mul (n, g) y = Add (p, b)", {**NORM, "ones": np.ones(6, F)}),
    Case("layer-norm-bias", "y = LayerNormalization (x, g)", "", "LayerNormalization", "y = LayerNormalization (x, g, b)", NORM),
    Case("layer-norm-axes", "y = LayerNormalization <axis = 2> (x, g2)", "", "Reshape", "y = LayerNormalization <axis = -1> (x, g)",
         {**NORM, "g2": np.linspace(0.5, 2, 36).reshape(6, 6).astype(F)}),
    Case("instance-norm", "y = InstanceNormalization (x, scale, bias)", "InstanceNormalization", "LayerNormalization",
         "s = Abs (scale) y = InstanceNormalization (x, s, bias)", CHANNELS),
    Case("group-norm", "y = GroupNormalization <num_groups = 2> (x, scale, bias)", "GroupNormalization", "LayerNormalization",
         "s = Abs (scale) y = GroupNormalization <num_groups = 2> (x, s, bias)", CHANNELS, opset=21),
    Case("batch-norm", "y = BatchNormalization (x, scale, bias, mean, var)", "BatchNormalization", "Mul",
         "s = Abs (scale) y = BatchNormalization (x, s, bias, mean, var)", CHANNELS),
    Case("reduce-l1", "y = ReduceL1 <axes = [2, 3]> (x)", "ReduceL1", "ReduceSum", "y = ReduceL2 <axes = [2, 3]> (x)"),
    Case("reduce-l2", "y = ReduceL2 <axes = [1], keepdims = 0> (x)", "ReduceL2", "Sqrt", "y = ReduceL1 <axes = [1]> (x)"),
    Case("reduce-l2", "y = ReduceL2 (x, over)", "ReduceL2", "Sqrt", "y = ReduceL2 <noop_with_empty_axes = 1> (x)",
         {"over": np.array([-1])}, opset=18),
    Case("reduce-sum-square", "y = ReduceSumSquare (x)", "ReduceSumSquare", "ReduceSum", "y = ReduceL1 (x)"),
    Case("reduce-log-sum", "a = Abs (x) y = ReduceLogSum <axes = [1]> (a)", "ReduceLogSum", "Log", "y = ReduceL1 (x)"),
    Case("reduce-log-sum-exp", "y = ReduceLogSumExp <axes = [3]> (x)", "ReduceLogSumExp", "ReduceMax",
         "y = ReduceLogSumExp <axes = [3], keepdims = 0> (x)"),
    Case("reduce-axes", "y = ReduceSum (x)", "", "ReduceSum", "y = ReduceSum (x, over)", {"over": np.array([1])}),
    Case("max-pairwise", "a = Abs (x) y = Max (x, a, x)", "", "Max", "a = Abs (x) y = Max (x, a)"),
    Case("min-pairwise", "y = Min (x)", "Min", "Identity", "a = Abs (x) y = Min (x, a)"),
    Case("sum-pairwise", "y = Sum (x, x, x)", "Sum", "Add", "y = Sum (x, x)"),
    Case("mean-pairwise", "a = Abs (x) y = Mean (x, a, x)", "Mean", "Add", "y = Sum (x, x)"),
    Case("gemm-factors", "y = Gemm <alpha = 0.5, beta = 2.0, transA = 1> (x, w, c)", "", "Transpose", "y = Gemm (x, w2, c)",
         {"w": np.ones((4, 5), F), "w2": np.ones((6, 5), F), "c": np.ones(5, F)}, "4, 6"),
    Case("gemm-matrix", "y = Gemm (x, w2, c)", "", "Add", "y = Gemm (x, w2, w)",
         {"w": np.ones((1, 5), F), "w2": np.ones((6, 5), F), "c": np.ones((4, 5), F)}, "4, 6"),
    Case("product-of-one", "y = MatMul (x, w)", "MatMul", "Mul", "t = Transpose <perm = [1, 0]> (x) y = MatMul (t, w2)",
         {"w": np.ones((1, 5), F), "w2": np.ones((4, 5), F)}, "4, 1"),
    Case("reciprocal", "y = Reciprocal (x)", "Reciprocal", "Div", "y = Sqrt (x)"),
    Case("tan", "t = Tanh (x) y = Tan (t)", "Tan", "Cos", "y = Tanh (x)"),
    Case("resize-nearest", 'y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "ceil"> (x, , , size)', "Resize", "Gather",
         'y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , , size)', {"size": np.array([1, 4, 9, 15])}),
    Case("resize-nearest", "y = Resize (x, , scales)", "", "Resize", 'y = Resize <mode = "linear"> (x, , scales)',
         {"scales": np.array([1, 1, 2, 3], F)}),
    Case("celu", "y = Celu <alpha = 2.0> (x)", "Celu", "Elu", "y = Elu (x)"),
    Case("selu", "y = Selu (x)", "Selu", "Elu", "y = Elu (x)"),
    Case("softsign", "y = Softsign (x)", "Softsign", "Div", "y = Tanh (x)"),
    Case("prelu", "y = PRelu (x, each)", "PRelu", "Neg", "y = PRelu (x, one)",
         {"each": np.array([0.1, -0.5, 2.0, 0.7], F).reshape(4, 1, 1), "one": np.array([0.1], F)}),
    Case("thresholded-relu", "y = ThresholdedRelu <alpha = 0.5> (x)", "ThresholdedRelu", "Where", "y = LeakyRelu (x)"),
    Case("gather-indices", "y = Gather <axis = 1> (x, last)", "", "Gather", "y = Gather <axis = 1> (x, first)",
         {"last": np.array([-1, 2]), "first": np.array([0, 2])}),
    Case("pow", "y = Pow (x, two)", "Pow", "Mul", "y = Pow (x, eps)", {**NORM, "eps": F(2.5)}),
    Case("pow", "y = Pow (x, whole)", "", "Pow", "y = Pow (x, eps)", {"whole": np.array([1, 2, 3, 2, 1, 2], np.int32), "eps": F(2.5)}),
    Case("sum-of-two", "a = Abs (x) y = Sum (x, a)", "Sum", "Add", "y = Sum (x, x, x)"),
    Case("acos", "t = Tanh (x) y = Acos (t)", "Acos", "Asin", "t = Tanh (x) y = Asin (t)"),
    Case("sinh", "y = Sinh (x)", "Sinh", "Exp", "y = Sin (x)"),
    Case("cosh", "y = Cosh (x)", "Cosh", "Exp", "y = Cos (x)"),
    Case("asinh", "y = Asinh (x)", "Asinh", "Log", "y = Atan (x)"),
    Case("acosh", "c = Exp (x) d = Add (c, one) y = Acosh (d)", "Acosh", "Log", "y = Cosh (x)", GELU),
    Case("atanh", "a = Tanh (x) b = Mul (a, half) y = Atanh (b)", "Atanh", "Log", "y = Tanh (x)", GELU),
    Case("l1-normalization", "y = LpNormalization <p = 1, axis = 1> (x)", "LpNormalization", "ReduceSum", "y = LpNormalization <axis = 1> (x)"),
    Case("reduce-nothing", "a = ReduceSum <noop_with_empty_axes = 1> (x) y = Abs (a)", "ReduceSum", "Identity", "y = ReduceSum (x)"),
    Case("conv-transpose", "y = ConvTranspose <strides = [2, 2], output_padding = [1, 1]> (x, k, b2)", "", "ConvTranspose",
         "y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (x, k, b2)", KERNELS),
    Case("conv-transpose", "y = ConvTranspose <strides = [2, 1], dilations = [2, 3], pads = [1, 0, 0, 2]> (x, k)", "", "ConvTranspose",
         "y = ConvTranspose <strides = [2, 1]> (x, k)", KERNELS),
    Case("conv-transpose", 'y = ConvTranspose <strides = [3, 2], dilations = [2, 1], auto_pad = "SAME_UPPER", group = 2> (x, k)', "", "ConvTranspose",
         'y = ConvTranspose <strides = [2, 2], auto_pad = "SAME_LOWER"> (x, k)', KERNELS),
    Case("conv-transpose", "y = ConvTranspose <strides = [3, 2], dilations = [3, 2], output_shape = [20, 12]> (x, k)", "", "ConvTranspose",
         "y = ConvTranspose <strides = [3, 2], output_shape = [18, 11]> (x, k)", KERNELS),
    Case("conv-transpose", "y = ConvTranspose <strides = [3, 2], output_shape = [20, 13]> (x, k, b2)", "", "ConvTranspose",
         "y = ConvTranspose <strides = [3, 2], output_shape = [17, 12]> (x, k, b2)", KERNELS),
    Case("average-pool-ceil", "y = AveragePool <kernel_shape = [3, 2], strides = [2, 4], ceil_mode = 1> (x)", "", "AveragePool",
         "y = AveragePool <kernel_shape = [3, 2], strides = [2, 4], pads = [1, 1, 1, 1], ceil_mode = 1, count_include_pad = 1> (x)"),
    Case("average-pool-padding", "y = AveragePool <kernel_shape = [3, 3], pads = [2, 2, 2, 2]> (x)", "AveragePool", "Conv",
         "y = AveragePool <kernel_shape = [3, 3], strides = [2, 1]> (x)"),
    Case("average-pool-padding",
         "y = AveragePool <kernel_shape = [3, 2], strides = [2, 3], pads = [1, 1, 1, 0], ceil_mode = 1, count_include_pad = 1> (x)",
         "AveragePool", "Conv", "y = MaxPool <kernel_shape = [3, 2], pads = [1, 1, 1, 0]> (x)"),
    Case("average-pool-padding", 'y = AveragePool <kernel_shape = [4, 3], strides = [2, 1], auto_pad = "SAME_LOWER"> (x)', "AveragePool", "Conv",
         "y = GlobalAveragePool (x)"),
    Case("average-pool-padding", "y = AveragePool <kernel_shape = [2, 3], dilations = [2, 1]> (x)", "AveragePool", "Conv",
         "y = AveragePool <kernel_shape = [2, 3]> (x)", opset=19),
    Case("max-pool-ceil", "y = MaxPool <kernel_shape = [3, 3], strides = [2, 4], pads = [1, 0, 1, 0], ceil_mode = 1> (x)", "", "MaxPool",
         "y = MaxPool <kernel_shape = [3, 3], pads = [1, 0, 1, 0]> (x)"),
    Case("scatter", "y = ScatterElements <axis = 2> (x, places, news)", "ScatterElements", "Where",
         "n = Abs (places) y = ScatterElements (x, n, news)", SCATTER),
    Case("scatter", 'y = ScatterElements <axis = 2, reduction = "add"> (x, places, news)', "ScatterElements", "Add",
         'y = ScatterElements <axis = 2, reduction = "add"> (x, same, news)', {**SCATTER, "same": np.zeros((1, 2, 2, 3), np.int64)}, opset=18),
    Case("scatter-nd", "y = ScatterND (x, rows, row)", "ScatterND", "Where", "n = Abs (rows) y = ScatterND (x, n, row)",
         {"rows": np.array([[0, 3], [0, -4]]), "row": np.linspace(0, 1, 72).reshape(2, 6, 6).astype(F)}),
    Case("pad-axes", "y = Pad (x, wide, one, over)", "", "Pad", "y = Pad (x, all, one)",
         {"wide": np.array([1, 0, 2, -1]), "over": np.array([-1, 1]), "one": F(1), "all": np.array([0, 0, 1, 0, 0, 0, 0, 2])}, opset=18),
    Case("resize-axes", 'y = Resize <axes = [2, 3], keep_aspect_ratio_policy = "not_larger"> (x, , , two)', "", "Resize", "y = Resize (x, , scales)",
         {"two": np.array([9, 20]), "scales": np.array([1, 1, 2, 2], F)}, opset=18),
    Case("resize-axes", 'y = Resize <axes = [3, 2], mode = "linear"> (x, , some)', "", "Resize", "y = Resize (x, , scales)",
         {"some": np.array([2, 1.4], F), "scales": np.array([1, 1, 2, 2], F)}, opset=18),
    Case("resize-interpolation", 'y = Resize <mode = "linear"> (x, , scales)', "Resize", "MatMul", "y = Resize (x, , scales)",
         {"scales": np.array([1, 1, 0.6, 1.7], F)}),
    Case("resize-interpolation", 'y = Resize <mode = "cubic", antialias = 1, cubic_coeff_a = -0.5> (x, , scales)', "Resize", "MatMul",
         'y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, roi, scales)',
         {"scales": np.array([1, 1, 0.5, 1], F), "roi": np.array([0, 0, 0, 0, 1, 1, 1, 1], F)}, opset=18),
    Case("rank", "r = Reshape (x, six) t = Transpose <perm = [0, 1, 4, 2, 5, 3]> (r) y = Reshape (t, out)", "", "Reshape",
         "r = Reshape (x, six) a = Abs (r) t = Transpose <perm = [0, 1, 4, 2, 5, 3]> (a) y = Reshape (t, out)",
         {"six": np.array([1, 1, 2, 2, 6, 6]), "out": np.array([1, 1, 12, 12])}),
]  # fmt: skip


def model_of(body: str, case: Case) -> formats.Model:
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {case.opset}]> net (float[{case.shape}] x) => (float y) {{ {body} }}')
    made.graph.output[0].type.tensor_type.ClearField("shape")
    for name, value in case.values.items():
        protos.set_constant(made, name, np.asarray(value))
    made = onnx.shape_inference.infer_shapes(made, data_prop=True)
    if not made.graph.output[0].type.tensor_type.HasField("shape"):  # onnx does not infer GroupNormalization, which keeps the shape
        made.graph.output[0].type.CopyFrom(made.graph.input[0].type)
    return onnx_format.from_proto(made, "net", "", {})


def types(model: Any) -> set[str]:
    return {node.op_type for node in model.handle.graph.node}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{len(case.body)}")
def test_a_rule_matches_its_form_and_keeps_the_values(case: Case) -> None:
    model = model_of(case.body, case)
    proto, count = onnx_rules.apply(RULES[case.rule], model.handle)
    after = dataclasses.replace(model, handle=proto)
    assert count == 1 and case.gone not in types(after) and case.made in types(after)
    feeds = [{"x": np.random.default_rng(seed).uniform(-4, 4, model.signature.inputs[0].shape).astype(F)} for seed in (1, 2)]
    assert onnx_rules.difference(model, after, feeds) < 2e-6
    assert [value.name for value in proto.graph.output] == ["y"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{len(case.near)}")
def test_a_near_miss_is_left_alone(case: Case) -> None:
    model = model_of(case.near, case)
    assert onnx_rules.apply(RULES[case.rule], model.handle) == (model.handle, 0)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


@pytest.mark.parametrize(("sizes", "order", "expected"), [
    ((2, 3, 2, 2, 4, 4), (0, 1, 4, 2, 5, 3), ((6, 2, 2, 4, 4), (0, 3, 1, 4, 2))),
    ((1, 3, 4, 2, 4, 2), (0, 3, 5, 1, 2, 4), ((12, 2, 4, 2), (1, 3, 0, 2))),
    ((1, 2, 1, 3), (0, 2, 1, 3), ((6,), (0,))),
    ((2, 3, 4, 5, 6, 7), (5, 3, 1, 4, 2, 0), ((2, 3, 4, 5, 6, 7), (5, 3, 1, 4, 2, 0))),
])  # fmt: skip
def test_collapsed_axes_move_elements_the_same_way(sizes: Any, order: Any, expected: Any) -> None:
    merged, permutation = onnx_rank.collapse(sizes, order)
    assert (merged, permutation) == expected
    x = np.arange(np.prod(sizes))
    assert np.array_equal(x.reshape(sizes).transpose(order).ravel(), x.reshape(merged).transpose(permutation).ravel())


def prepared(body: str, **values: Any) -> onnx_prepare.Prepared:
    return onnx_prepare.prepare(model_of(body, Case("", body, "", "", "", values)))


def test_rules_apply_by_what_the_target_takes() -> None:
    made = prepared(f"{ERF} h = Mul (x, half) k = Mul (h, a) s = Softsign (k) y = ReduceL1 <axes = [1]> (s)", **GELU)
    hexagon = onnx_rules.legalize(made, "hexagon")
    assert not types(hexagon.model) & {"Erf", "Softsign", "ReduceL1"} and "Gelu" in types(hexagon.model)
    assert {notice.partition(":")[0] for notice in hexagon.notices} == {"gelu", "softsign", "reduce-l1"}
    nnapi = onnx_rules.legalize(made, "ort_nnapi")  # which has no Gelu
    assert "Erf" in types(nnapi.model)
    cpu = onnx_rules.legalize(made, "ort_cpu")
    assert {"Softsign", "ReduceL1", "Gelu"} <= types(cpu.model)


def test_a_rewrite_that_changes_values_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dataclasses.replace(RULES["softplus"], replace=lambda op, x, one: op.Sigmoid(x))
    monkeypatch.setattr(onnx_fuse, "RULES", (wrong,))
    made = onnx_rules.legalize(prepared("e = Exp (x) a = Add (e, one) y = Log (a)", **GELU), "hexagon")
    assert "Exp" in types(made.model) and any("left as it is" in notice for notice in made.notices)


@pytest.mark.parametrize(("kind", "body", "gone"), [
    ("Attention", "y = Attention <q_num_heads = 2, kv_num_heads = 2> (r, r, r, , , )", {"Attention"}),
    ("MeanVarianceNormalization", "y = MeanVarianceNormalization (x)", {"MeanVarianceNormalization"}),
    ("LayerNormalization", "n, y = LayerNormalization <axis = 2> (x, g)", {"LayerNormalization"}),
    ("RMSNormalization", "y = RMSNormalization <axis = 2> (x, g)", {"RMSNormalization"}),
    ("Mish", "y = Mish (x)", {"Mish"}),
    ("Shrink", "y = Shrink <lambd = 0.5, bias = 0.1> (x)", {"Shrink", "CastLike"}),
    ("SoftmaxCrossEntropyLoss", "y = SoftmaxCrossEntropyLoss (x, labels)", {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}),
])  # fmt: skip
def test_what_the_target_lacks_is_written_out_as_the_standard_defines_it(kind: str, body: str, gone: set[str]) -> None:
    rows = "r = Reshape (x, rows) " if kind == "Attention" else ""
    values = {"g": np.linspace(0.5, 2, 36).reshape(6, 6).astype(F), "rows": np.array([1, 12, 12]), "labels": np.full((1, 6, 6), 2)}
    used = {name: value for name, value in values.items() if name in rows + body}
    model = model_of(rows + body, Case("", body, "", "", "", used, opset=24))
    made, told = onnx_functions.written_out(model, "hexagon")
    assert not types(made) & gone and kind in types(model)
    assert told[0].startswith(f"{kind}: 1 x written out")
    feeds = [{"x": np.random.default_rng(3).uniform(-4, 4, (1, 4, 6, 6)).astype(F)}]
    assert onnx_rules.difference(model, made, feeds) < 1e-5
    assert onnx_functions.written_out(model, "hexagon", {kind})[0] is model


def test_what_has_no_definition_without_a_loop_is_left_alone() -> None:
    model = model_of("e = Erf (x) y = Hardmax (e)", Case("", "", "", "", ""))
    assert onnx_functions.written_out(model, "hexagon") == (model, ())
    node = onnx.helper.make_node("Range", ["a", "b", "c"], ["y"])
    assert onnx_functions.definition(node, {}, model.handle) is None


def test_the_part_of_a_split_that_has_no_length_is_taken_away() -> None:
    made = prepared("a, b = Split <axis = 1> (x, lengths) y = Abs (a)", lengths=np.array([4, 0]))
    assert "Split" not in types(made.model) or all(len(node.output) == 1 for node in made.model.handle.graph.node if node.op_type == "Split")


def test_a_graph_that_the_simplifier_fails_on_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxslim

    def fails(_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(onnxslim, "slim", fails)
    made = prepared("a = Abs (x) y = Sqrt (a)")
    assert types(made.model) == {"Abs", "Sqrt"} and "could not be simplified: list index out of range: it is taken as it is" in made.notices[0]


def test_an_empty_list_of_axes_means_all_of_them() -> None:
    model = model_of("y = ReduceSum (x, none)", Case("", "", "", "", "", {"none": np.zeros(0, np.int64)}))
    assert model.signature.outputs[0].shape == (1, 1, 1, 1)
